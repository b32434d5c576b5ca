#!/usr/bin/env bash
# Written by `sglang-pd-fabric recipes` from sglang_pd_fabric/tools/recipes/models/qwen3-coder-480b.toml: change that.
#
# Qwen3-Coder-480B, a prefill server (of 1, a machine each), on HGX H100 with 8 ConnectX-7.
# GQA caches go rank to rank. Pages are ordered by head (HND), so that a page of a rank is one piece whatever the TP of the
# other side. The FP8 blocks of 128 do not divide the experts' width by 8 ranks (2560 / 8 = 320): experts are spread over
# the ranks as a whole instead (ep-size).
# `sglang-pd-fabric doctor` tells whether this machine can; more flags of SGLang may follow.
set -euo pipefail
ulimit -l unlimited
export SGLANG_PD_FABRIC_PROVIDER=verbs
export SGLANG_USE_HND_KVCACHE=1
exec python3 -m sglang.launch_server \
  --model-path Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8 \
  --disaggregation-mode prefill \
  --disaggregation-transfer-backend fabric \
  --disaggregation-bootstrap-port 8998 \
  --host 0.0.0.0 \
  --port 30000 \
  --enable-metrics \
  --page-size 64 \
  --context-length 131072 \
  --ep-size 8 \
  --tool-call-parser qwen3_coder \
  --tp-size 8 \
  --chunked-prefill-size 16384 \
  --mem-fraction-static 0.88 "$@"
