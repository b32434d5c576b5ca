"""The command ``sglang-pd-fabric bench``: our engine, bare libfabric, memcpy and the peers, in one run."""
