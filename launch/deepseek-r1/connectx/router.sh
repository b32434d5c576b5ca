#!/usr/bin/env bash
# Written by `sglang-pd-fabric recipes` from sglang_pd_fabric/tools/recipes/models/deepseek-r1.toml: change that.
#
# DeepSeek-R1, the router, on HGX H200 with 8 ConnectX-7.
# MLA caches are replicated over the ranks of prefill (TP 8), so a random GPU and NIC serve each transfer. Decode attends
# with DP 8: each GPU holds the caches of its own requests only, and as many of them fit.
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
