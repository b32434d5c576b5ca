#!/usr/bin/env bash
# Written by `sglang-pd-fabric recipes` from sglang_pd_fabric/tools/recipes/models/qwen3-coder-480b.toml: change that.
#
# Qwen3-Coder-480B, the router, on p5.48xlarge.
# GQA caches go rank to rank. Pages are ordered by head (HND), so that a page of a rank is one piece whatever the TP of the
# other side; while both have TP 8, a rank has one head and token order does as well (then leave out SGLANG_USE_HND_KVCACHE,
# --attention-backend and --disaggregation-decode-retraction-backup, on both sides). The FP8 blocks of 128 do not divide the
# experts' width by 8 ranks (2560 / 8 = 320): experts are spread over the ranks as a whole instead (ep-size).
# A page of 64 tokens is two pieces of 16 KB in each layer of a rank, K and V; up to four pieces are one write where the
# network can.
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
