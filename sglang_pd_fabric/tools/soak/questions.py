"""What a soak asks, and the right answers: an ordinary server gives them once, a file keeps them."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import asdict, replace
from pathlib import Path

from sglang_pd_fabric.tools.demo.client import Answer
from sglang_pd_fabric.tools.demo.cluster import checkpoint
from sglang_pd_fabric.tools.demo.main import reference_answers
from sglang_pd_fabric.tools.demo.prompts import LONGEST, Question, text
from sglang_pd_fabric.tools.demo.servers import ServerOptions

LONGEST_ANSWER = 64
_AT_ONCE = 4


def soak_questions(options: ServerOptions, count: int, seed: int) -> list[Question]:
    """Prompts of every class in turn: tiny, around a page's end, several chunks, a shared prefix.

    All have the longest answer; a shorter one is its beginning, because they go on behind an end token. The
    reference is asked for its second choices too.
    """
    source = random.Random(seed)
    page, chunk = options.page_size, options.chunked_prefill_size
    shared = text(LONGEST, seed)
    questions = []
    for index in range(count):
        kind = index % 4
        if kind == 0:
            prompt = text(source.randint(1, page - 1), seed + 1 + index)
        elif kind == 1:
            prompt = text(page * source.randint(1, 12) + source.choice((-1, 0, 1)), seed + 1 + index)
        elif kind == 2:
            length = chunk * source.randint(2, LONGEST // chunk) + source.choice((-1, 0, 1, page))
            prompt = text(min(length, LONGEST), seed + 1 + index)
        else:
            prefix = page * source.randint(4, 40) + source.choice((0, 1, page - 1))
            prompt = shared[:prefix] + text(source.randint(1, 2 * chunk), seed + 1 + index)
        asked = Question(f"q{index}", prompt, answer_tokens=LONGEST_ANSWER, ignore_eos=True, runners_up=True)
        questions.append(asked)
    return questions


def right_answers(options: ServerOptions, questions: list[Question], logs: Path, cache: Path) -> list[Answer]:
    """The ordinary server's answers, from the cache if they are there.

    Raises:
        ServerError: the ordinary server did not start.
        RuntimeError: it did not answer a question.
    """
    import sglang

    weights = sorted(checkpoint(options.model).glob("*.safetensors"))
    digest = hashlib.sha256(repr((sglang.__version__, options.dtype, questions)).encode())
    for file in weights:
        digest.update(file.read_bytes())
    file = cache / f"answers-{options.model}-{digest.hexdigest()[:16]}.json"
    if file.exists():
        return [_answer(fields) for fields in json.loads(file.read_text())]
    logs.mkdir(parents=True, exist_ok=True)
    answers = reference_answers(options, questions, logs, _AT_ONCE)
    for question, answer in zip(questions, answers, strict=True):
        if answer.error or len(answer.tokens) != question.answer_tokens:
            raise RuntimeError(f"the ordinary server did not answer {question.name}: {answer}")
    cache.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(".tmp")
    fresh.write_text(json.dumps([asdict(answer) for answer in answers]))
    fresh.replace(file)
    return answers


def _answer(fields: dict[str, object]) -> Answer:
    answer = Answer(**fields)  # type: ignore[arg-type]
    seconds = tuple((token, behind) for token, behind in answer.runners_up)
    return replace(answer, tokens=tuple(answer.tokens), logprobs=tuple(answer.logprobs), runners_up=seconds)
