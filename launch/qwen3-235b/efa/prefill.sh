#!/usr/bin/env bash
# Written by `sglang-pd-fabric recipes` from sglang_pd_fabric/tools/recipes/models/qwen3-235b.toml: change that.
#
# Qwen3-235B, a prefill server (of 1, a machine each), on p5.48xlarge.
# Four KV heads: with TP 4 each rank holds one, with TP 8 two ranks hold the same. Prefill with TP 4 leaves half of a node to
# a second server (start it with CUDA_VISIBLE_DEVICES=4,5,6,7 and ports of its own); decode with TP 8 takes each head from the
# rank that has it. A rank has one head on both sides, so its pages are whole pieces in token order too: no HND. FP8 blocks of
# 128 do not divide the experts' width by 8 (1536 / 8 = 192), hence ep-size on decode.
# `sglang-pd-fabric doctor` tells whether this machine can; more flags of SGLang may follow.
#
# Why each is set:
#   SGLANG_PD_FABRIC_PROVIDER          named, so that a missing NIC ends the start; `auto` would take tcp
#   --model-path                       what is served; a folder on a local disk starts sooner than a download
#   --disaggregation-mode              the side that this server is on
#   --disaggregation-transfer-backend  KV pages travel by this package
#   --disaggregation-bootstrap-port    where decodes ask this prefill for its ranks; the router tells them
#   --host                             other machines must reach it
#   --port                             the router and its clients
#   --enable-metrics                   `/metrics`, for `explain`, the dashboard and the alerts
#   --page-size                        large pages make large writes, and few of them; the same on both sides
#   --context-length                   the longest request, prompt and answer; the same on both sides
#   --tp-size                          the GPUs of this server
#   --chunked-prefill-size             tokens of a forward pass; a chunk's transfer hides behind its next layers
#   --mem-fraction-static              the share of GPU memory for weights and KV pool; the rest is for activations and graphs
set -euo pipefail
ulimit -l unlimited
export SGLANG_PD_FABRIC_PROVIDER=efa
exec python3 -m sglang.launch_server \
  --model-path Qwen/Qwen3-235B-A22B-Instruct-2507-FP8 \
  --disaggregation-mode prefill \
  --disaggregation-transfer-backend fabric \
  --disaggregation-bootstrap-port 8998 \
  --host 0.0.0.0 \
  --port 30000 \
  --enable-metrics \
  --page-size 64 \
  --context-length 65536 \
  --tp-size 4 \
  --chunked-prefill-size 8192 \
  --mem-fraction-static 0.85 "$@"
