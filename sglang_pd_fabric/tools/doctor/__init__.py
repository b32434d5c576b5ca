"""``sglang-pd-fabric doctor``: whether this machine can serve, and what to change where it cannot."""
