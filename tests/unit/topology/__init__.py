"""NICs and cores for GPUs, on machines that we do not have."""
