#!/usr/bin/env bash
# Written by `sglang-pd-fabric recipes` from sglang_pd_fabric/tools/recipes/models/qwen3-coder-480b.toml: change that.
#
# Qwen3-Coder-480B, the router, on p5.48xlarge.
# GQA caches go rank to rank. Pages are ordered by head (HND), so that a page of a rank is one piece whatever the TP of the
# other side; while both have TP 8, a rank has one head and token order does as well (then leave out SGLANG_USE_HND_KVCACHE,
# --attention-backend and --disaggregation-decode-retraction-backup, on both sides). The FP8 blocks of 128 do not divide the
# experts' width by 8 ranks (2560 / 8 = 320): experts are spread over the ranks as a whole instead (ep-size).
#
# PREFILL='host host' DECODE='host host host' router.sh
set -euo pipefail
servers=()
for host in $PREFILL; do servers+=(--prefill "http://$host:30000" 8998); done
for host in $DECODE; do servers+=(--decode "http://$host:30000"); done
exec python3 -m sglang_router.launch_router \
  --pd-disaggregation \
  --host 0.0.0.0 \
  --port 8000 "${servers[@]}" "$@"
