#!/usr/bin/env bash
# Written by `sglang-pd-fabric recipes` from sglang_pd_fabric/tools/recipes/models/deepseek-r1.toml: change that.
#
# DeepSeek-R1, a decode server (of 3, a machine each), on p5en.48xlarge.
# MLA caches are replicated over the ranks of prefill (TP 8), so a random GPU and NIC serve each transfer. Decode attends
# with DP 8: each GPU holds the caches of its own requests only, and as many of them fit.
# `sglang-pd-fabric doctor` tells whether this machine can; more flags of SGLang may follow.
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
  --dp-size 8 \
  --enable-dp-attention \
  --mem-fraction-static 0.85 \
  --max-running-requests 512 \
  --cuda-graph-max-bs-decode 64 "$@"
