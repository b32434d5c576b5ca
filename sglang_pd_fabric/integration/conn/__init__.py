"""The classes that SGLang's disaggregation asks a backend for, on top of its common ones."""

from typing import Any


def kv_class(kind: str) -> Any | None:
    """Our class for a ``KVClassType`` value, or None where SGLang's own serves.

    Raises:
        UnsupportedSGLangError: the installed SGLang is not the one we work with.
    """
    import sglang

    from sglang_pd_fabric.integration.version import require_supported

    require_supported(sglang.__version__)
    if kind == "manager":
        from sglang_pd_fabric.integration.conn.manager import FabricKVManager

        return FabricKVManager
    if kind == "sender":
        from sglang_pd_fabric.integration.conn.sender import FabricKVSender

        return FabricKVSender
    if kind == "receiver":
        from sglang_pd_fabric.integration.conn.receiver import FabricKVReceiver

        return FabricKVReceiver
    if kind == "bootstrap_server":
        from sglang_pd_fabric.integration.conn.bootstrap import FabricBootstrapServer

        return FabricBootstrapServer
    return None
