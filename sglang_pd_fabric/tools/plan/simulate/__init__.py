"""Servers as simpy processes, pass by pass: colocated, chunked and disaggregated serving of one trace.

``engine`` is one server, ``run`` puts servers together and plays a trace.
"""
