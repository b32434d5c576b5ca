"""Shows a NIC's address, as ``fi_getname`` gives it, to people."""

import socket
import struct

_IPV4, _IPV6, _EFA = 16, 28, 32  # bytes of sockaddr_in, sockaddr_in6, and efa's GID, queue pair and key


def describe_address(address: bytes) -> str:
    """Host and port, efa's GID and queue pair, shm's name, or else the bytes in hexadecimal."""
    family = int.from_bytes(address[:2], "little")
    if len(address) == _IPV4 and family == socket.AF_INET:
        port, host = struct.unpack_from("!H4s", address, 2)
        return f"{socket.inet_ntop(socket.AF_INET, host)}:{port}"
    if len(address) == _IPV6 and family == socket.AF_INET6:
        port, _flow, host = struct.unpack_from("!HI16s", address, 2)
        return f"[{socket.inet_ntop(socket.AF_INET6, host)}]:{port}"
    if len(address) == _EFA and address[:1] == b"\xfe":
        (queue_pair,) = struct.unpack_from("<H", address, 16)
        return f"{socket.inet_ntop(socket.AF_INET6, address[:16])} queue pair {queue_pair}"
    name = address.split(b"\0")[0]
    if name and name.isascii() and name.decode("ascii").isprintable():
        return name.decode("ascii")
    return address.hex()
