"""Network interfaces and their IP addresses: what the tcp provider can be bound to.

``read_interfaces`` asks the kernel, the rest is pure. A local address need not stand on an interface (all of
127.0.0.0/8 is local), so whether one can be used is asked by binding to it.
"""

import fcntl
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

SIOCGIFADDR = 0x8915
_IPV6_GLOBAL = "00"  # scope in /proc/net/if_inet6
_IPV6_HOST = "10"


@dataclass(frozen=True)
class Interfaces:
    """This network namespace.

    Attributes:
        addresses: IP addresses of each interface, IPv4 first; empty for one without.
        is_local: whether an address can be bound here.
    """

    addresses: dict[str, tuple[str, ...]]
    is_local: Callable[[str], bool]

    def address_of(self, name: str) -> str:
        """The address that an interface's name or an address stands for; empty where it can be none."""
        return next(iter(self.addresses.get(name, ())), "") or name * self.is_local(name)

    def problem(self, name: str) -> str:
        """Why a name cannot be bound to; empty if it can."""
        if self.addresses.get(name):
            return ""
        if name in self.addresses:
            return f"{name} has no IP address"
        address = parse_ip(name)
        if address is None:
            return f"there is no interface {name}, and it is no IP address"
        if address.is_unspecified or address.is_multicast:
            return f"peers cannot be told to connect to {name}"
        return "" if self.is_local(name) else f"{name} is no address of this machine"

    def holder(self, address: str) -> str:
        """The interface with this address; empty if none has it."""
        return next((name for name, held in self.addresses.items() if address in held), "")

    def what_there_is(self) -> str:
        """All interfaces, for messages."""
        rows = [f"{name} ({', '.join(held) or 'no address'})" for name, held in self.addresses.items()]
        return f"Interfaces here: {', '.join(rows) or 'none'}"


def read_interfaces() -> Interfaces:
    """The interfaces of this process's network namespace."""
    found: dict[str, list[str]] = {name: [] for _index, name in socket.if_nameindex()}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for name, held in found.items():
            with suppress(OSError):
                answer = fcntl.ioctl(asker, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                held.append(socket.inet_ntoa(answer[20:24]))
    for name, address in _ipv6_addresses():
        found.setdefault(name, []).append(address)
    return Interfaces({name: tuple(held) for name, held in found.items()}, is_local_address)


def is_local_address(address: str) -> bool:
    """Whether an IP address is one of this machine's."""
    parsed = parse_ip(address)
    if parsed is None:
        return False
    family = socket.AF_INET if parsed.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
            # A broadcast address can be bound too, and without any network every address: neither connects.
            probe.connect((address, 9))
    except OSError:
        return False
    return True


def parse_ip(text: str) -> IPv4Address | IPv6Address | None:
    """The IP address that a text is, or None."""
    try:
        return ip_address(text)
    except ValueError:
        return None


def _ipv6_addresses() -> list[tuple[str, str]]:
    """Interface and address; without link-local ones, which mean something on their own link only."""
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return []
    rows = [line.split() for line in lines]
    return [
        (row[5], str(IPv6Address(bytes.fromhex(row[0]))))
        for row in rows
        if row[3] in (_IPV6_GLOBAL, _IPV6_HOST)
    ]
