#!/usr/bin/env bash
# Written by `sglang-pd-fabric recipes` from sglang_pd_fabric/tools/recipes/models/deepseek-r1.toml: change that.
#
# DeepSeek-R1, the router, on HGX H200 with 8 ConnectX-7.
# MLA caches are replicated over the ranks of prefill (TP 8), so a random GPU and NIC serve each transfer. Decode attends
# with DP 8: each GPU holds the caches of its own requests only, and as many of them fit. A page of 64 tokens is 72 KB in each
# layer, and one write.
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
