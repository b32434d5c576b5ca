"""Who may change what a bootstrap server says, or ask it: signatures on HTTP requests, and neighbours.

With a secret every request is signed: an HMAC-SHA256 over its method, its path with the query, its time and
its body. Without one, whoever is in a network of this machine may register ranks, and anybody may ask.
"""

import hashlib
import hmac
import ipaddress
import time

import psutil  # type: ignore[import-untyped]

HEADER = "X-PD-Fabric-Signature"
_PURPOSE = b"sglang_pd_fabric bootstrap request\0"


class UnsignedError(ValueError):
    """A request that was not signed with our secret."""


def sign(secret: bytes | None, method: str, path: str, body: bytes = b"") -> dict[str, str]:
    """Headers for a request; none without a secret.

    Args:
        path: path and query exactly as they go over the wire.
    """
    if secret is None:
        return {}
    stamp = str(time.time_ns())
    return {HEADER: f"{stamp}:{_mac(secret, method, path, stamp, body)}"}


def check(secret: bytes, header: str, method: str, path: str, body: bytes) -> None:
    """Whether a request was signed with the secret.

    Raises:
        UnsignedError: it was not.
    """
    if not header:
        raise UnsignedError("this prefill server has a secret, and the request is not signed with it")
    stamp, _, mac = header.partition(":")
    expected = _mac(secret, method, path, stamp, body)
    if not hmac.compare_digest(mac.encode(errors="replace"), expected.encode()):
        raise UnsignedError("the request was signed with another secret, or altered on its way")


def signed_at(header: str) -> int:
    """When a request was signed, in nanoseconds since 1970 on its sender's clock; 0 if it was not."""
    stamp = header.partition(":")[0]
    return int(stamp) if stamp.isascii() and stamp.isdigit() and len(stamp) < 20 else 0


def is_neighbour(address: str) -> bool:
    """Whether an IP address is this machine's, or in a network that an interface of this machine is in."""
    try:
        asked = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(asked, ipaddress.IPv6Address) and asked.ipv4_mapped is not None:
        asked = asked.ipv4_mapped
    return asked.is_loopback or any(
        asked
        in ipaddress.ip_network(f"{held.address.partition('%')[0]}/{_prefix(held.netmask)}", strict=False)
        for interface in psutil.net_if_addrs().values()
        for held in interface
        if held.family.name in ("AF_INET", "AF_INET6") and held.netmask
    )


def _prefix(netmask: str) -> int:
    return int(ipaddress.ip_address(netmask)).bit_count()


def _mac(secret: bytes, method: str, path: str, stamp: str, body: bytes) -> str:
    digest = hmac.new(secret, _PURPOSE, hashlib.sha256)
    for part in (
        method.encode(),
        path.encode(errors="surrogateescape"),
        stamp.encode(errors="replace"),
        body,
    ):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()
