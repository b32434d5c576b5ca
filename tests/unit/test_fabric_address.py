"""NIC addresses as people read them."""

import socket
import struct

import pytest

from sglang_pd_fabric.fabric.address import describe_address

V4 = struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", 4000, bytes([10, 0, 0, 5]))
V6 = struct.pack("=H", socket.AF_INET6) + struct.pack("!HI16sI", 4000, 0, bytes(15) + b"\1", 0)
EFA = socket.inet_pton(socket.AF_INET6, "fe80::4:1") + struct.pack("<HHIQ", 9, 0, 0x1234, 0)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        (V4, "10.0.0.5:4000"),
        (V6, "[::1]:4000"),
        (EFA, "fe80::4:1 queue pair 9"),
        (b"fi_shm://spf-1-2\0\0\0", "fi_shm://spf-1-2"),
        (b"\xff\0\1", "ff0001"),
        (b"", ""),
    ],
)
def test_an_address_is_shown_as_people_know_it(address: bytes, text: str) -> None:
    assert describe_address(address) == text
