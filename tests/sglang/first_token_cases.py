"""What a request can ask of its first token, each thing once."""

import json
from typing import Any

from sglang_pd_fabric.tools.demo.prompts import text
from sglang_pd_fabric.tools.tiny.config import END_TOKEN

from .bodies import Case, generate

PAGE, CHUNK = 64, 256
PROMPT = text(150, 4_000)
LOGPROBS = {"return_logprob": True, "top_logprobs_num": 3}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "on": {"type": "boolean"}},
    "required": ["name", "on"],
    "additionalProperties": False,
}
# A space or a line break may go on for ever in JSON; so may digits.
NO_SPACE = {str(byte): -100.0 for byte in (9, 10, 13, 32)}

GREEDY = {"temperature": 0, "max_new_tokens": 12}
# The token that ends an answer comes first.
END = {str(END_TOKEN): 100.0}

# One token; two; around pages and chunks: decode's pages hold one token fewer.
LENGTHS = (1, 2, 3, PAGE, PAGE + 1, PAGE + 2, 2 * PAGE, CHUNK, CHUNK + 1, CHUNK + 2, 2 * CHUNK + 1, 700)

LENGTH_CASES = [generate(f"{length} tokens", text(length, 4_100 + length), **LOGPROBS) for length in LENGTHS]


def plain_cases(answer: str, tokens: list[int]) -> list[Case]:
    """Cases about ends and starts of an answer.

    Args:
        answer, tokens: what the ordinary server answers to `PROMPT`.
    """
    return [
        generate("nothing wanted", PROMPT, tokens=0),
        generate("one token", PROMPT, tokens=1, **LOGPROBS),
        generate("two tokens", PROMPT, tokens=2, **LOGPROBS),
        generate("the first token stops", PROMPT, stop_token_ids=tokens[:1], **LOGPROBS),
        generate("the first token stops, and is kept", PROMPT, stop_token_ids=tokens[:1], no_stop_trim=True),
        generate("the first character stops", PROMPT, stop=[answer[0]]),
        generate("a later string stops", PROMPT, stop=[answer[3:5]]),
        generate("a string over the first tokens stops", PROMPT, stop=[answer[:3]]),
        generate("a pattern stops", PROMPT, stop_regex=[r"[a-z]{2}"]),
        generate("EOS comes first", PROMPT, logit_bias=END, **LOGPROBS),
        generate("EOS comes first, ignored", PROMPT, logit_bias=END, ignore_eos=True, tokens=3),
        generate("EOS must wait for 1", PROMPT, logit_bias=END, min_new_tokens=1),
        generate("EOS must wait for 3", PROMPT, logit_bias=END, min_new_tokens=3, stock_too=False),
        generate("frequency", PROMPT, frequency_penalty=1.5, stock_too=False, **LOGPROBS),
        generate("presence", PROMPT, presence_penalty=1.5, stock_too=False, **LOGPROBS),
        generate("repetition", PROMPT, repetition_penalty=1.8, stock_too=False, **LOGPROBS),
        generate("all penalties", PROMPT, frequency_penalty=0.4, presence_penalty=0.7, repetition_penalty=1.2,
                 min_new_tokens=4, stock_too=False),
        generate("hot, but one candidate", PROMPT, temperature=1.0, top_k=1, **LOGPROBS),
        Case("two in one request", {"text": [PROMPT, PROMPT[:70]], "sampling_params": GREEDY}),
        generate("two samples", PROMPT, n=2),
        generate("chosen tokens' log-probabilities", PROMPT, stock_too=False,
                 return_logprob=True, token_ids_logprob=[65, 97, 101]),
        generate("the prompt's log-probabilities", PROMPT, return_logprob=True, logprob_start_len=0),
        generate("the last prompt token's log-probability", PROMPT, return_logprob=True,
                 logprob_start_len=len(PROMPT) - 1),
    ]  # fmt: skip


GRAMMAR_CASES = [
    generate("schema", PROMPT, json_schema=json.dumps(SCHEMA), logit_bias=NO_SPACE, tokens=48, **LOGPROBS),
    generate("regex", PROMPT, regex=r"(yes|no|[0-9]{3})-[a-d]{2}", tokens=16, **LOGPROBS),
    generate("grammar", PROMPT, ebnf='root ::= ("left" | "right") " " [a-f]+ "."', tokens=16),
    generate("any JSON", PROMPT, json_schema="{}", logit_bias=NO_SPACE, tokens=8),
    generate("regex of one character", PROMPT, regex="[xyz]", tokens=16, **LOGPROBS),
    Case(
        "chat with a schema",
        {
            "model": "tiny",
            "messages": [{"role": "user", "content": PROMPT}],
            "temperature": 0,
            "max_tokens": 48,
            "logit_bias": NO_SPACE,
            "logprobs": True,
            "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}},
        },
        "/v1/chat/completions",
    ),
]  # fmt: skip


def seeded(name: str, *, seed: int, **more: Any) -> Case:
    """An answer that is drawn at temperature 1, from a seed."""
    return generate(name, PROMPT, temperature=1.0, sampling_seed=seed, tokens=24, **LOGPROBS, **more)


# Only servers with --enable-deterministic-inference look at seeds. In a batch in which some draw from few
# candidates, all are drawn by another numbering of the candidates: SGLang's seeds hold within each list.
DRAWN_FROM_ALL = [
    seeded("a seed", seed=1),
    seeded("another seed", seed=2),
    seeded("a negative seed", seed=-7),
    seeded("a seed of 63 bits", seed=2**63 - 1),
    generate("one token, drawn", PROMPT, temperature=1.0, sampling_seed=4, tokens=1, **LOGPROBS),
    generate("drawn without a seed", PROMPT, temperature=1.0, tokens=24, **LOGPROBS),
]
DRAWN_FROM_FEW = [
    seeded("a seed, of few candidates", seed=1, top_k=8),
    seeded("another seed, of few candidates", seed=2, top_k=8),
    seeded("a seed, of likely candidates", seed=2, top_p=0.7),
    seeded("a seed, of few likely candidates", seed=3, top_k=12, top_p=0.8),
]
