"""`sglang-pd-fabric tiny`: writes one of the tiny checkpoints to a directory."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from sglang_pd_fabric.tools.tiny.checkpoint import make_checkpoint
from sglang_pd_fabric.tools.tiny.config import MODELS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags to a parser."""
    parser.add_argument(
        "--model",
        choices=MODELS,
        default="gqa",
        help="gqa: Qwen3-MoE; mqa: the same with one KV head; mla: DeepSeek-V3 (default: gqa)",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory to write to")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="the same seed gives the same bytes (default: 0)"
    )


def run(options: argparse.Namespace) -> int:
    """Carry out the command for parsed flags."""
    directory = make_checkpoint(options.model, options.out, options.seed)
    print(f"wrote a {options.model} checkpoint with seed {options.seed} to {directory}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the flags and carry out the command."""
    parser = argparse.ArgumentParser(
        prog="sglang-pd-fabric tiny",
        description="Write a tiny seeded checkpoint whose answers depend on every page of the KV cache.",
    )
    add_arguments(parser)
    return run(parser.parse_args(arguments))
