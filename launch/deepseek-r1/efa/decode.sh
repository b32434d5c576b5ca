#!/usr/bin/env bash
# Written by `sglang-pd-fabric recipes` from sglang_pd_fabric/tools/recipes/models/deepseek-r1.toml: change that.
#
# DeepSeek-R1, a decode server (of 3, a machine each), on p5en.48xlarge.
# MLA caches are replicated over the ranks of prefill (TP 8), so a random GPU and NIC serve each transfer. Decode attends
# with DP 8: each GPU holds the caches of its own requests only, and as many of them fit. A page of 64 tokens is 72 KB in each
# layer, and one write.
# `sglang-pd-fabric doctor` tells whether this machine can; more flags of SGLang may follow.
#
# Why each is set:
#   SGLANG_PD_FABRIC_PROVIDER          named, so that a missing NIC ends the start; `auto` would take tcp
#   --model-path                       what is served; a folder on a local disk starts sooner than a download
#   --disaggregation-mode              the side that this server is on
#   --disaggregation-transfer-backend  KV pages travel by this package
#   --host                             other machines must reach it
#   --port                             the router and its clients
#   --enable-metrics                   `/metrics`, for `explain`, the dashboard and the alerts
#   --trust-remote-code                the checkpoint brings Python files of its own
#   --page-size                        large pages make large writes, and few of them; the same on both sides
#   --context-length                   the longest request, prompt and answer; the same on both sides
#   --tp-size                          the GPUs of this server
#   --attn-dp-size                     so many groups of ranks attend to different requests, and each request's cache is on one GPU only
#   --mem-fraction-static              the share of GPU memory for weights and KV pool; the rest is for activations and graphs
#   --max-running-requests             seats on decode, of all its groups together; more requests wait
#   --cuda-graph-max-bs-decode         graphs for as many requests as a group has seats
set -euo pipefail
ulimit -l unlimited
export SGLANG_PD_FABRIC_PROVIDER=efa
exec python3 -m sglang.launch_server \
  --model-path deepseek-ai/DeepSeek-R1 \
  --disaggregation-mode decode \
  --disaggregation-transfer-backend fabric \
  --host 0.0.0.0 \
  --port 30000 \
  --enable-metrics \
  --trust-remote-code \
  --page-size 64 \
  --context-length 65536 \
  --tp-size 8 \
  --attn-dp-size 8 \
  --mem-fraction-static 0.85 \
  --max-running-requests 512 \
  --cuda-graph-max-bs-decode 64 "$@"
