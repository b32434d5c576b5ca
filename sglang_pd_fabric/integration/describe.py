"""What this rank tells its peers about itself: the layout record, and the refusal of what we cannot move.

SGLang describes the KV pool in ``KVArgs`` (``disaggregation/base/conn.py``); the model's facts come from its
``ModelConfig``.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from sglang_pd_fabric import __version__
from sglang_pd_fabric.messenger.layout import PROTOCOL, LayoutRecord
from sglang_pd_fabric.settings import Settings

# Keys of config.json that do not change what the model computes.
_VOLATILE = frozenset({"_name_or_path", "transformers_version"})
_SAMPLE_BYTES = 64 << 10


class UnsupportedConfigurationError(RuntimeError):
    """The server is configured for something that this backend does not move."""


def refuse_unsupported(kv_args: Any, server_args: Any, parallel: Any) -> None:
    """Checks the configuration before anything is allocated.

    Raises:
        UnsupportedConfigurationError: names the feature and the way out.
    """
    from sglang.srt.environ import envs

    if kv_args.state_types:
        kinds = ", ".join(str(kind.value) for kind in kv_args.state_types)
        raise UnsupportedConfigurationError(
            f"the model keeps state besides its KV cache ({kinds}), which the fabric backend does not move "
            "yet; use --disaggregation-transfer-backend mooncake or nixl for it"
        )
    if server_args.enable_memory_saver:
        raise UnsupportedConfigurationError(
            "--enable-memory-saver: the pool's memory is exchanged while it is registered, and a NIC would "
            "go on writing into the old; leave the flag out"
        )
    for flag, used in (
        (f"--tokenizer-worker-num {server_args.tokenizer_worker_num}", server_args.tokenizer_worker_num > 1),
        ("--smg-grpc-mode", server_args.smg_grpc_mode),
        ("SGLANG_RUST_SERVER=1", envs.SGLANG_RUST_SERVER.get()),
    ):
        if used:
            raise UnsupportedConfigurationError(
                f"{flag}: requests would come in by processes without our plugin, which tells the other side "
                "of what is refused; leave it out"
            )
    if parallel.pp_size > 1:
        raise UnsupportedConfigurationError(
            f"--pp-size {parallel.pp_size}: the fabric backend does not serve pipeline stages yet; use 1"
        )
    if parallel.attn_cp_size > 1:
        raise UnsupportedConfigurationError(
            f"attention context parallel size {parallel.attn_cp_size}: the fabric backend needs 1"
        )


def refuse_early_release() -> None:
    """Checks that SGLang keeps the pages of an aborted request on decode until nobody can write to them.

    Raises:
        UnsupportedConfigurationError: it was told not to.
    """
    from sglang.srt.environ import envs

    setting = envs.SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE
    if not setting.get():
        raise UnsupportedConfigurationError(
            f"{setting.name}=0: pages of an aborted request would go to others while prefill still writes to "
            "them; leave it on"
        )


def layout_record(
    kv_args: Any, server_args: Any, parallel: Any, settings: Settings, *, is_mla: bool, provider: str
) -> LayoutRecord:
    """This rank's layout record."""
    from sglang import __version__ as sglang_version
    from sglang.srt.configs.model_config import ModelConfig

    model = ModelConfig.from_server_args(server_args)
    checkpoint = identify(server_args.model_path, server_args.revision)
    drafted = kv_args.num_draft_entries > 0
    compute_dtype = str(model.dtype).removeprefix("torch.")
    dtype = kv_args.kv_cache_dtype_str
    return LayoutRecord(
        protocol=PROTOCOL,
        model=checkpoint.model,
        attention="mla" if is_mla else "gqa",
        page_size=kv_args.page_size,
        dtype=compute_dtype if dtype in (None, "auto") else dtype,
        order=kv_args.kv_layout or "nhd",
        page_bytes=tuple(kv_args.kv_item_lens),
        aux_bytes=tuple(kv_args.aux_item_lens),
        layers=model.num_hidden_layers,
        kv_heads=1 if is_mla else model.get_total_num_kv_heads(),
        head_dim=model.kv_lora_rank + model.qk_rope_head_dim if is_mla else model.head_dim,
        tp_size=parallel.attn_tp_size,
        tp_rank=parallel.attn_tp_rank,
        pp_size=parallel.pp_size,
        pp_rank=kv_args.pp_rank,
        # Decode does not say; without pipeline stages it holds every layer.
        first_layer=getattr(kv_args, "prefill_start_layer", 0),
        draft_buffers=kv_args.num_draft_entries,
        draft_kv_heads=_draft_kv_heads(server_args) if drafted else 1,
        provider=provider,
        version=__version__,
        weights=checkpoint.weights,
        compute_dtype=compute_dtype,
        draft_model=_draft_identity(server_args) if drafted else "",
        sglang=sglang_version,
        integrity=settings.integrity == 1,
        allow=tuple(filter(None, settings.allow_mismatch.split(","))),
    )


def _draft_kv_heads(server_args: Any) -> int:
    """KV heads of the draft (MTP) model over all ranks; 1 when it has MLA."""
    from sglang.srt.configs.model_config import AttentionArch, ModelConfig

    draft = ModelConfig.from_server_args(
        server_args, model_path=server_args.speculative_draft_model_path, is_draft_model=True
    )
    return 1 if draft.attention_arch == AttentionArch.MLA else int(draft.get_total_num_kv_heads())


def _draft_identity(server_args: Any) -> str:
    path = server_args.speculative_draft_model_path or server_args.model_path
    return "/".join(identify(path, server_args.speculative_draft_model_revision))


class Checkpoint(NamedTuple):
    """Which checkpoint it is; both are equal for equal ones."""

    model: str
    weights: str


def identify(model_path: str, revision: str | None) -> Checkpoint:
    """What tells a checkpoint from others.

    Of a local directory: the model's class with a digest of its config; and of each weight file the size and
    samples of the content, so that two trainings of one architecture differ. Of a hub name: the name and
    the revision.
    """
    folder = Path(model_path)
    if not folder.is_dir():
        return Checkpoint(model_path, revision or "main")
    kind, digest = "unknown", hashlib.blake2b(digest_size=8)
    config = folder / "config.json"
    if config.exists():
        content = json.loads(config.read_text())
        stable = {key: value for key, value in content.items() if key not in _VOLATILE}
        kind = next(iter(content.get("architectures") or ()), kind)
        digest.update(json.dumps(stable, sort_keys=True).encode())
    return Checkpoint(f"{kind}-{digest.hexdigest()}", _sample(folder))


def _sample(folder: Path) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for weights in sorted((*folder.glob("*.safetensors"), *folder.glob("*.bin"))):
        size = weights.stat().st_size
        digest.update(f"{weights.name}:{size}".encode())
        with weights.open("rb") as file:
            for offset in (0, size // 2, max(0, size - _SAMPLE_BYTES)):
                file.seek(offset)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
