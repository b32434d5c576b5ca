"""Questions for a cluster: prompts of every length that matters, some sharing a prefix, through every door.

They come from a seed, so that two runs, or a run and a test, ask the same.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

Door = Literal["generate", "chat"]

LONGEST = 1500
# One token; around the pages of 16 and 64; around the chunk of 256; long.
_LENGTHS = (1, 2, 15, 16, 17, 63, 64, 65, 200, 255, 256, 257, 511, 512, 513, 900, 1200, LONGEST)
_WORDS = """
    page cache token layer head rank write count slot chunk prefix decode prefill fabric queue memory
    order aux row latent expert route batch first last early late quiet a the of in to and is was not
""".split()  # noqa: SIM905


@dataclass(frozen=True)
class Question:
    """One request as a client would send it."""

    name: str
    prompt: str
    door: Door = "generate"
    stream: bool = False
    answer_tokens: int = 32
    # Ask for log-probabilities too: they show a wrong cache long before a token changes.
    logprobs: bool = True
    # Go on behind an end token, up to `answer_tokens`.
    ignore_eos: bool = False
    # Ask for the second choices too: they show where rounding may decide (at /generate only).
    runners_up: bool = False


def text(tokens: int, seed: int) -> str:
    """Return that many tokens (bytes) of word salad, different for each seed from its first word on."""
    source = random.Random(seed)
    words: list[str] = []
    length = 0
    while length < tokens:
        word = source.choice(_WORDS)
        words.append(word)
        length += len(word) + 1
    return " ".join(words)[:tokens].ljust(tokens, ".")


def make_questions(count: int, seed: int = 0, answer_tokens: int = 32) -> list[Question]:
    """Return questions that cover all lengths, both doors, streaming or not, and shared prefixes.

    Every fifth question continues the text of an earlier long one, so that the servers' prefix caches hit.
    """
    questions = []
    for index in range(count):
        length = _LENGTHS[(index * 7) % len(_LENGTHS)]
        if index % 5 == 4:
            shared = 300 + 16 * (index % 3)
            prompt = text(700, seed)[:shared] + text(40 + index, seed + 1 + index)
        else:
            prompt = text(length, seed + 1000 + index)
        questions.append(
            Question(
                name=f"q{index}",
                prompt=prompt,
                door="chat" if index % 3 == 2 else "generate",
                stream=index % 2 == 1,
                answer_tokens=answer_tokens,
                logprobs=index % 4 != 3,
            )
        )
    return questions
