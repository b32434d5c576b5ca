"""The oracle itself: tiny models must answer the same whatever the batch, chunk or cache, and must notice
any wrong page. Where these fail, no other end-to-end test can be believed."""

from __future__ import annotations

import filecmp
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sglang_pd_fabric.tools.demo.client import ask_all
from sglang_pd_fabric.tools.demo.compare import LOGPROB_TOLERANCE, differences
from sglang_pd_fabric.tools.demo.pool import Pool
from sglang_pd_fabric.tools.demo.prompts import make_questions, text
from sglang_pd_fabric.tools.tiny.checkpoint import make_checkpoint
from sglang_pd_fabric.tools.tiny.config import MODELS, Model

# One KV head is a matter of the recipes' tests, which are nightly too.
EACH = [pytest.param(model, marks=pytest.mark.nightly) if model == "mqa" else model for model in MODELS]
ANSWER_TOKENS = 32


def test_same_seed_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    one, again, other = (
        make_checkpoint("gqa", tmp_path / name, seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    files = [path.name for path in one.iterdir()]
    assert filecmp.cmpfiles(one, again, files, shallow=False)[0] == files
    assert not filecmp.cmp(one / "model.safetensors", other / "model.safetensors", shallow=False)


@pytest.mark.parametrize("model", EACH)
def test_checkpoint_is_small(model: Model, tmp_path: Path) -> None:
    directory = make_checkpoint(model, tmp_path)
    assert sum(path.stat().st_size for path in directory.iterdir()) < 8_000_000


class Cache(NamedTuple):
    """The KV cache of a prompt, the token that follows it, and what the model says after it."""

    keys: list[Any]
    values: list[Any]
    answer: Any
    logits: Any


class Reader:
    """Runs a tiny model on transformers, where the cache can be damaged at will."""

    def __init__(self, directory: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()

    def read(self, prompt: str) -> Cache:
        """Read a prompt, answer it greedily, and keep the prompt's cache and the answer's logits."""
        from transformers.cache_utils import DynamicCache

        with self.torch.no_grad():
            cache = DynamicCache()
            ids = self.torch.tensor([list(prompt.encode())])
            token = self.model(ids, past_key_values=cache, logits_to_keep=1).logits[:, -1].argmax(-1)
            keys = [layer.keys for layer in cache.layers]
            values = [layer.values for layer in cache.layers]
            answer = [token]
            while len(answer) < ANSWER_TOKENS:
                token = self.model(answer[-1][None], past_key_values=cache).logits[:, -1].argmax(-1)
                answer.append(token)
        tokens = self.torch.stack(answer, dim=1)
        return Cache(keys, values, tokens, self.logits(keys, values, tokens))

    def logits(self, keys: list[Any], values: list[Any], answer: Any) -> Any:
        """Return the logits after each token of an answer, for one or several caches of the prompt."""
        from transformers.cache_utils import DynamicCache

        with self.torch.no_grad():
            cache = DynamicCache()
            copies = max(tensor.shape[0] for tensor in (*keys, *values))
            for layer, (key, value) in enumerate(zip(keys, values, strict=True)):
                cache.update(key.expand(copies, -1, -1, -1), value.expand(copies, -1, -1, -1), layer)
            return self.model(answer.expand(copies, -1), past_key_values=cache).logits

    def damaged(self, cache: Cache, layer: int, page_size: int, pages: list[int]) -> Any:
        """Return the logits of caches that each have one page of one layer missing."""
        keys, values = list(cache.keys), list(cache.values)
        keys[layer] = keys[layer].repeat(len(pages), 1, 1, 1)
        values[layer] = values[layer].repeat(len(pages), 1, 1, 1)
        for copy, page in enumerate(pages):
            lost = slice(page * page_size, (page + 1) * page_size)
            keys[layer][copy, :, lost] = 0
            values[layer][copy, :, lost] = 0
        return self.logits(keys, values, cache.answer)


@pytest.fixture(scope="module", params=EACH)
def reader(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    pytest.importorskip("transformers")
    model: Model = request.param
    return Reader(make_checkpoint(model, tmp_path_factory.mktemp(model)))


@pytest.mark.parametrize(("tokens", "page_size"), [(1500, 64), (1500, 16), (200, 16), (40, 1), (2, 1)])
def test_any_lost_page_of_any_layer_changes_the_tokens(reader: Reader, tokens: int, page_size: int) -> None:
    cache = reader.read(text(tokens, seed=7))
    pages = list(range(-(-tokens // page_size)))
    pages = pages[:: max(1, len(pages) // 12)]
    right = cache.logits.argmax(-1)
    for layer in range(len(cache.keys)):
        wrong = reader.damaged(cache, layer, page_size, pages).argmax(-1)
        unnoticed = [page for page, row in zip(pages, wrong, strict=True) if (row == right[0]).all()]
        assert not unnoticed, f"layer {layer}: pages {unnoticed} are lost and the answer is the same"


def test_one_lost_token_of_1500_changes_the_log_probabilities(reader: Reader) -> None:
    cache = reader.read(text(1500, seed=8))
    answer = cache.answer[:, 1:, None]
    right = cache.logits.log_softmax(-1)[:, :-1].gather(2, answer)
    tokens = list(range(0, 1500, 125))
    for layer in range(len(cache.keys)):
        wrong = reader.damaged(cache, layer, 1, tokens).log_softmax(-1)[:, :-1]
        changes = (wrong.gather(2, answer.expand(len(tokens), -1, -1)) - right).abs().amax((1, 2))
        assert changes.min() > 3 * LOGPROB_TOLERANCE, f"layer {layer}"


def test_answers_vary(reader: Reader) -> None:
    answers = [reader.read(text(tokens, seed=tokens)).answer[0].tolist() for tokens in (1, 30, 600)]
    assert all(len(set(answer)) > ANSWER_TOKENS // 3 for answer in answers)
    assert len({answer[0] for answer in answers}) > 1


@pytest.mark.sglang
@pytest.mark.parametrize("model", EACH)
def test_ordinary_server_agrees_with_itself_and_with_transformers(
    model: Model, pool: Pool, tmp_path: Path
) -> None:
    ordinary = pool.ordinary(model)
    questions = make_questions(20, seed=3, answer_tokens=ANSWER_TOKENS)
    alone = ask_all(ordinary.url, questions, at_once=1)
    together = ask_all(ordinary.url, questions, at_once=8)  # other batches, and every prefix is cached now
    assert not [str(one) for one in differences(questions, alone, together)]
    assert any(answer.cached_tokens for answer in together)
    reader = Reader(make_checkpoint(model, tmp_path))
    for question, answer in list(zip(questions, alone, strict=True))[:6]:
        if question.door == "generate":
            assert tuple(reader.read(question.prompt).answer[0].tolist()) == answer.tokens
