"""Prefill does not sample: decode runs the prompt's last token as an ordinary step, and samples there.

Prefill runs the prompt without its last token, for which SGLang needs neither a grammar nor a sampler. Decode
gets the pages of these tokens. Pages of all tokens but the last: after each step of decode that is how things
stand. So everything that hangs on sampled tokens (grammars, penalties, seeds, log-probabilities, stop
strings) happens on decode alone, as in an ordinary server, and nothing of it has to be handed over.

``decision`` says for which requests, ``prefill`` and ``decode`` are the hooks of the two sides,
``penalties`` one that both the mode and SGLang's penalties need, ``counters`` what shows on ``/metrics``.
docs/first-token.md explains the mode to those who run it.
"""
