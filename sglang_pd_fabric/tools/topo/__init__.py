"""`sglang-pd-fabric topo`: shows which NICs and cores each GPU would use, and why."""
