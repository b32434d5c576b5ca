#!/usr/bin/env bash
# Written by `sglang-pd-fabric recipes` from sglang_pd_fabric/tools/recipes/models/qwen3-235b.toml: change that.
#
# Qwen3-235B, the router, on p5.48xlarge.
# Four KV heads: with TP 4 each rank holds one, with TP 8 two ranks hold the same. Prefill with TP 4 leaves half of a node to
# a second server (start it with CUDA_VISIBLE_DEVICES=4,5,6,7 and ports of its own); decode with TP 8 takes each head from the
# rank that has it. A rank has one head on both sides, so its pages are whole pieces in token order too: no HND. FP8 blocks of
# 128 do not divide the experts' width by 8 (1536 / 8 = 192), hence ep-size on decode.
#
# PREFILL='host host' DECODE='host host host' router.sh
# It can be asked when its /readiness is 200; its /health is so at once.
#
# Why each is set:
#   --pd-disaggregation  each request goes to one prefill and one decode
#   --prefill            URL and bootstrap port of each
#   --decode             URL of each
#   --decode-policy      decodes keep no prefixes, so each is as good; prefills are chosen by theirs, as is the default
#   --host               other machines must reach it
#   --port               clients
set -euo pipefail
servers=()
for host in $PREFILL; do servers+=(--prefill "http://$host:30000" 8998); done
for host in $DECODE; do servers+=(--decode "http://$host:30000"); done
exec python3 -m sglang_router.launch_router \
  --pd-disaggregation \
  --decode-policy round_robin \
  --host 0.0.0.0 \
  --port 8000 "${servers[@]}" "$@"
