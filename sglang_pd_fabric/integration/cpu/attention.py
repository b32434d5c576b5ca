"""SGLang's plain torch attention, with what two corners of it need: pages by head, and padded batches.

SGLang's backend reads a pool of rows, one for each token. Where the pool is ordered [page, head, token, dim]
(HND), it is given the pool through an object that finds a token's row there.
"""

from typing import Any

from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

NAME = "torch_native"


class TokenRows:
    """The rows of an HND buffer by token: ``rows[tokens]`` has the shape [len(tokens), heads, dim].

    Args:
        buffer: a tensor [pages, heads, tokens of a page, dim].
    """

    def __init__(self, buffer: Any) -> None:
        self._by_token = buffer.transpose(1, 2)

    def __getitem__(self, tokens: Any) -> Any:
        page_size = self._by_token.shape[1]
        return self._by_token[tokens // page_size, tokens % page_size]


class CpuAttentionBackend(TorchNativeAttnBackend):  # type: ignore[misc]
    """Serves on the CPU platform under the name of the backend that it extends.

    SGLang has rules for that name (no graphs, plain page allocation) that hold here as well.
    """

    def get_cpu_graph_seq_len_fill_value(self) -> int:
        """Length of the requests that pad a batch, so that all DP ranks have equally many."""
        return 1

    def _run_sdpa_forward_extend(
        self, query: Any, output: Any, k_cache: Any, v_cache: Any, *args: Any, **kwargs: Any
    ) -> Any:
        return super()._run_sdpa_forward_extend(
            query, output, _rows(k_cache), _rows(v_cache), *args, **kwargs
        )

    def _run_sdpa_forward_decode(
        self, query: Any, output: Any, k_cache: Any, v_cache: Any, *args: Any, **kwargs: Any
    ) -> Any:
        return super()._run_sdpa_forward_decode(
            query, output, _rows(k_cache), _rows(v_cache), *args, **kwargs
        )


def _rows(buffer: Any) -> Any:
    """HND buffers have four dimensions, all others three."""
    return TokenRows(buffer) if buffer.dim() == 4 else buffer
