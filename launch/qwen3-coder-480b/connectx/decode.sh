#!/usr/bin/env bash
# Written by `sglang-pd-fabric recipes` from sglang_pd_fabric/tools/recipes/models/qwen3-coder-480b.toml: change that.
#
# Qwen3-Coder-480B, a decode server (of 3, a machine each), on HGX H100 with 8 ConnectX-7.
# GQA caches go rank to rank. Pages are ordered by head (HND), so that a page of a rank is one piece whatever the TP of the
# other side; while both have TP 8, a rank has one head and token order does as well (then leave out SGLANG_USE_HND_KVCACHE,
# --attention-backend and --disaggregation-decode-retraction-backup, on both sides). The FP8 blocks of 128 do not divide the
# experts' width by 8 ranks (2560 / 8 = 320): experts are spread over the ranks as a whole instead (ep-size).
# A page of 64 tokens is two pieces of 16 KB in each layer of a rank, K and V; up to four pieces are one write where the
# network can.
# `sglang-pd-fabric doctor` tells whether this machine can; more flags of SGLang may follow.
#
# Why each is set:
#   SGLANG_PD_FABRIC_PROVIDER                  named, so that a missing NIC ends the start; `auto` would take tcp
#   SGLANG_USE_HND_KVCACHE                     pages are ordered by head: a head's share of a page is one piece whatever the TP of the other side
#   --model-path                               what is served; a folder on a local disk starts sooner than a download
#   --disaggregation-mode                      the side that this server is on
#   --disaggregation-transfer-backend          KV pages travel by this package
#   --host                                     other machines must reach it
#   --port                                     the router and its clients
#   --enable-metrics                           `/metrics`, for `explain`, the dashboard and the alerts
#   --attention-backend                        reads pages that are ordered by head, on Hopper
#   --page-size                                large pages make large writes, and few of them; the same on both sides
#   --context-length                           the longest request, prompt and answer; the same on both sides
#   --ep-size                                  experts are spread as a whole: FP8 blocks of 128 do not divide their width by the ranks
#   --tool-call-parser                         answers of this model that call tools
#   --tp-size                                  the GPUs of this server
#   --mem-fraction-static                      the share of GPU memory for weights and KV pool; the rest is for activations and graphs
#   --max-running-requests                     seats on decode, of all its groups together; more requests wait
#   --cuda-graph-max-bs-decode                 graphs for as many requests as a group has seats
#   --disaggregation-decode-retraction-backup  SGLang cannot copy pages that are ordered by head aside; what is retracted ends with 503
set -euo pipefail
ulimit -l unlimited
export SGLANG_PD_FABRIC_PROVIDER=verbs
export SGLANG_USE_HND_KVCACHE=1
exec python3 -m sglang.launch_server \
  --model-path Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8 \
  --disaggregation-mode decode \
  --disaggregation-transfer-backend fabric \
  --host 0.0.0.0 \
  --port 30000 \
  --enable-metrics \
  --attention-backend fa3 \
  --page-size 64 \
  --context-length 131072 \
  --ep-size 8 \
  --tool-call-parser qwen3_coder \
  --tp-size 8 \
  --mem-fraction-static 0.88 \
  --max-running-requests 256 \
  --cuda-graph-max-bs-decode 256 \
  --disaggregation-decode-retraction-backup none "$@"
