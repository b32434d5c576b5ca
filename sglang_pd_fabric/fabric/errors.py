"""Errors of the fabric. Each message says what was being done, the value, and where possible the fix."""


class FabricError(RuntimeError):
    """A call of the fabric failed. ``code`` is the negative errno of the core or of libfabric."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class LibfabricNotFoundError(FabricError):
    """No usable libfabric was found; the message names every place that was looked at."""
