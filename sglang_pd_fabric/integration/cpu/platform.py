"""The platform class that SGLang instantiates in each of its processes, and the defaults it gives them.

Whatever a plain CPU server would otherwise have to be told by flags is decided here, so that
``SGLANG_PLATFORM=pd_fabric_cpu`` alone is enough. Flags that the user gave always win, except where the
only other value cannot work on this platform.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.environ import envs
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform

from sglang_pd_fabric.integration.cpu import seeds

if TYPE_CHECKING:
    import torch

ATTENTION_BACKEND = "torch_native"
# Enough for a dozen long prompts; SGLang's own rule would take a share of the machine's whole memory.
DEFAULT_KV_TOKENS = 16384


class FabricCpuPlatform(CpuDeviceMixin, SRTPlatform):  # type: ignore[misc]
    """A CPU without special kernels, graphs or Triton."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    capabilities = PlatformCapabilities()

    def is_pin_memory_available(self, device: Any = None) -> bool:  # noqa: ARG002 (the interface's signature)
        return False

    def get_device(self, device_id: int = 0) -> str:  # noqa: ARG002 (the interface's signature)
        # Its name, as the interface says: the mixin's object breaks a server that was given no --device.
        return self.device_type

    def get_default_attention_backend(self) -> str:
        return ATTENTION_BACKEND

    def apply_server_args_defaults(self, server_args: Any) -> None:
        # SGLang's rule for `--device cpu` runs before this hook and picks the AMX kernels, which the
        # published wheel lacks: here that name can only be this rule's doing or a mistake.
        if server_args.attention_backend in (None, "intel_amx"):
            server_args.attention_backend = ATTENTION_BACKEND
        seeds.allow(ATTENTION_BACKEND)
        if server_args.sampling_backend is None:
            server_args.sampling_backend = "pytorch"
        if server_args.max_total_tokens is None:
            server_args.max_total_tokens = DEFAULT_KV_TOKENS
        if server_args.mem_fraction_static is None:
            server_args.mem_fraction_static = 0.5
        server_args.disable_cuda_graph = True
        # Decode with DP attention otherwise exchanges logits through an operator that CPU tensors lack.
        server_args.enable_tp_lm_head_all_to_all = False
        # An idle scheduler otherwise spins, on a core that another server of the machine computes with.
        server_args.sleep_on_idle = True
        # The default keeps retracted requests in a pinned pool, which asks the CUDA runtime for it. Copying
        # them elsewhere is possible in the NHD order only.
        if server_args.disaggregation_decode_retraction_backup is None:
            backup = "none" if envs.SGLANG_USE_HND_KVCACHE.get() else "cpu_tensor"
            server_args.disaggregation_decode_retraction_backup = backup
        # Sending the cached prefix early records a CUDA event under the overlap scheduler. The variable is
        # inherited by the scheduler processes, which are started after this hook.
        if not envs.SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX.is_set():
            envs.SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX.set(False)

    def init_backend(self) -> None:
        import torch

        # Compiling one small function takes longer here than a whole test.
        torch.compiler.set_stance("force_eager")
        seeds.keep_torch_kernels()

    def post_load_model(self, model: torch.nn.Module) -> None:  # noqa: ARG002 (the interface's signature)
        from sglang_pd_fabric.integration.cpu import patches

        patches.use_our_attention()
        seeds.hash_without_kernels()
        patches.exchange_batches_without_cuda()
        patches.use_absorbed_mla(ATTENTION_BACKEND)
        patches.keep_stock_sender_off_cuda()
        patches.tell_stock_nixl_that_pools_are_host_memory()
        patches.share_decode_pools()
