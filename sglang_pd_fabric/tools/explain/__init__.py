"""``sglang-pd-fabric explain``: which phase of a request is slow, by the metrics of running servers."""
