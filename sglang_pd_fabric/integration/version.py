"""Which SGLang we work with. Its internals move with every release, so others are refused by name."""

from sglang_pd_fabric import __version__

SUPPORTED_SGLANG = "0.5.23"


class UnsupportedSGLangError(RuntimeError):
    """The installed SGLang is not the one that this release was made for."""


def require_supported(installed: str) -> None:
    """Checks the version of the installed SGLang.

    Raises:
        UnsupportedSGLangError: it is another one.
    """
    if installed != SUPPORTED_SGLANG:
        raise UnsupportedSGLangError(
            f"sglang-pd-fabric {__version__} works with sglang=={SUPPORTED_SGLANG}, but {installed} is "
            f"installed. Install the one it works with: pip install 'sglang=={SUPPORTED_SGLANG}'"
        )
