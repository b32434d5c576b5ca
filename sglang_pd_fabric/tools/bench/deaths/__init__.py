"""`sglang-pd-fabric bench deaths`: how soon the survivors know when a server is killed in mid-transfer."""

from sglang_pd_fabric.tools.bench.deaths.command import PURPOSE, add_arguments

__all__ = ["PURPOSE", "add_arguments"]
