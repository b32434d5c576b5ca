"""KV cache transfer from prefill to decode for SGLang, over libfabric.

Importing this package needs neither SGLang nor torch nor a GPU. Dependencies point one way:
``tools -> integration -> messenger -> fabric``; only ``integration`` and ``tools`` import SGLang.
"""

__version__ = "0.1.0"
