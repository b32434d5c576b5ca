"""`sglang-pd-fabric bench handover`: from prefill's last forward pass to decode's right to schedule."""

from sglang_pd_fabric.tools.bench.handover.command import PURPOSE, add_arguments, run

__all__ = ["PURPOSE", "add_arguments", "run"]
