"""`sglang-pd-fabric timeline`: a picture of one real request, layer by layer, out of its servers' traces.

``events`` puts a request together from the lines of prefill's and decode's traces, ``draw`` makes the SVG,
``main`` starts servers and asks.
"""
