"""A second opinion on an answer that is not the reference's: could transformers have given it?

A tiny model chooses experts, and sometimes tokens, within a rounding error, and rounding depends on how a
prompt is cut and on the order of sums. So transformers computes the same checkpoint, in float32, in several
legitimate ways. Each follows the answer's own tokens, so that what comes behind a tie can be judged too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sglang_pd_fabric.tools.demo.client import Answer
from sglang_pd_fabric.tools.demo.cluster import checkpoint
from sglang_pd_fabric.tools.demo.compare import LOGPROB_TOLERANCE as AGREES
from sglang_pd_fabric.tools.demo.prompts import Question
from sglang_pd_fabric.tools.demo.servers import ServerOptions
from sglang_pd_fabric.tools.soak.judge import TIE, largest_gap, verdict
from sglang_pd_fabric.tools.soak.records import Ending, Outcome, Rounding
from sglang_pd_fabric.tools.tiny.config import VOCABULARY

_FIRST_PAGES = range(8)  # of a first chunk; 0: it is whole


class _Way(NamedTuple):
    """Log-probabilities [token of the answer, vocabulary] behind these tokens, all but an answer's last."""

    fed: tuple[int, ...]
    rows: Any


class SecondOpinion:
    """What transformers says of answers. A model is loaded when it is first needed, a way computed once.

    Args:
        options: of the servers: which model, and where they cut prompts.
        questions: what they were asked; a prompt has one token a byte.
        enough: so many wrong answers are told with what transformers says (some 20 s each); to reject the
            others no more is needed than that they differ from the reference.
    """

    def __init__(self, options: ServerOptions, questions: Sequence[Question], enough: int = 10) -> None:
        self._options = options
        self._questions = questions
        self._still_to_tell = enough
        self._models: dict[str, Any] = {}
        self._known: dict[tuple[int, str, tuple[int, ...]], list[_Way]] = {}

    def settle(self, outcome: Outcome, right: Answer) -> tuple[Outcome, Rounding | None]:
        """Give a suspect its ending: wrong, or that which it has without a comparison with the reference."""
        ask, answer = outcome.ask, outcome.answer
        off, objection = 0.0, "not asked, so many are wrong"
        if self._still_to_tell > 0:
            off, objection = self.objection(ask.question, answer)
        if objection:
            self._still_to_tell -= 1
            reason = f"{outcome.reason}; transformers: {objection}"
            return replace(outcome, ending=Ending.WRONG, reason=reason), None
        ending, reason = verdict(ask, right, answer, taken_back=outcome.taken_back, rounding=True)
        rounding = Rounding(ask.question, outcome.reason, largest_gap(right, answer), off)
        return replace(outcome, ending=ending, reason=reason), rounding

    def objection(self, question: int, answer: Answer) -> tuple[float, str]:
        """Say how far the answer is from its nearest ways, and why none gives it ("": they do).

        At each token some way must have its log-probability, within `AGREES`, and in that way it must be the
        best, or less than `TIE` behind. Without log-probabilities only the second counts.
        """
        foreign = [token for token in answer.tokens if not 0 <= token < VOCABULARY]
        if foreign:
            return 0.0, f"tokens {foreign[:8]} are not in the vocabulary"
        length = len(self._questions[question].prompt)
        ways: list[Any] = []
        off, why = 0.0, "no way was tried"
        for ends in self._cuts(length):
            for attention in ("sdpa", "eager"):
                ways.append(self._rows(question, attention, ends, answer.tokens))
                off, why = _objection(answer, ways)
                if not why:
                    return off, ""
        return off, f"{why} (of {len(ways)} ways)"

    def _cuts(self, length: int) -> list[tuple[int, ...]]:
        """Where the pieces of a prompt end: whole, before the last token or page, in chunks, in both ways.

        Without any end the answer is in the same piece. For one token behind a prompt of 11 that makes a
        log-probability 0.0123 larger, and so does noise of one part in ten million; servers gave both values.

        One prompt of 1,296 tokens needs them: only sdpa, with a first chunk of 5 pages and the last token by
        itself, is 0.053 from the others, as a server was.
        """
        page, chunk, last = self._options.page_size, self._options.chunked_prefill_size, length - 1
        firsts = [pages * page or chunk for pages in _FIRST_PAGES]
        found: list[tuple[int, ...]] = [(), (last,), (last // page * page,)]
        found += [tuple(range(first, length, chunk)) for first in firsts]
        found += [(*range(first, last, chunk), last) for first in firsts]
        pieces = dict.fromkeys((*(cut for cut in cuts if cut), length) for cuts in found)
        return [*pieces, ()]

    def _rows(self, question: int, attention: str, ends: tuple[int, ...], tokens: tuple[int, ...]) -> Any:
        known = self._known.setdefault((question, attention, ends), [])
        fed = tokens[:-1]
        for way in known:
            if way.fed[: len(fed)] == fed:
                return way.rows[: len(tokens)]
        prompt = list(self._questions[question].prompt.encode())
        model = self._model(attention)
        rows = _compute(model, [*prompt, *fed], ends) if ends else _at_once(model, prompt, fed)
        known.append(_Way(fed, rows))
        return known[-1].rows

    def _model(self, attention: str) -> Any:
        if attention not in self._models:
            import torch
            from transformers import AutoModelForCausalLM

            self._models[attention] = AutoModelForCausalLM.from_pretrained(
                checkpoint(self._options.model), dtype=torch.float32, attn_implementation=attention
            ).eval()
        return self._models[attention]


def _compute(model: Any, text: list[int], ends: tuple[int, ...]) -> Any:
    """Log-probabilities behind a prompt, fed in pieces, and behind each token after it, fed one by one."""
    import torch
    from transformers import DynamicCache

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more only wait for one another
    cache, begin, rows = DynamicCache(), 0, []
    with torch.inference_mode():
        for end in (*ends, *range(ends[-1] + 1, len(text) + 1)):
            piece = torch.tensor([text[begin:end]])
            logits = model(piece, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            begin = end
            if end >= ends[-1]:
                rows.append(logits[0, -1].log_softmax(-1))
    torch.set_num_threads(threads)
    return torch.stack(rows)


def _at_once(model: Any, prompt: Sequence[int], fed: Sequence[int]) -> Any:
    """Log-probabilities behind a prompt, and behind each token after it, all computed in one pass."""
    import torch

    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *fed]]), use_cache=False, logits_to_keep=len(fed) + 1).logits
    return logits[0].log_softmax(-1)


def _objection(answer: Answer, ways: Sequence[Any]) -> tuple[float, str]:
    largest = 0.0
    for at, token in enumerate(answer.tokens):
        places = [(float(rows[at, token]), float(rows[at].max())) for rows in ways]
        chosen = [own for own, best in places if best - own < TIE]
        if not chosen:
            behind = min(best - own for own, best in places)
            return largest, f"token {at}, {token}, is {behind:.4f} behind the best"
        if answer.logprobs:
            off = min(abs(own - answer.logprobs[at]) for own in chosen)
            if not off <= AGREES:  # it may be no number
                return largest, f"token {at} has log-probability {answer.logprobs[at]:.6f}, {off:.4f} off"
            largest = max(largest, off)
    return largest, ""
