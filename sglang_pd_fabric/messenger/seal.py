"""Seals on control messages, for ranks that share a secret: who has it not can neither make nor repeat one.

A seal is an HMAC-SHA256 over the message, its sender, its number among that sender's messages, and the
endpoint it is meant for. Nothing is encrypted. Without a secret a message travels as it is.
"""

import hmac
import secrets
import struct
from collections import OrderedDict
from typing import Literal

from sglang_pd_fabric.messenger.messages import Endpoint, MalformedMessageError

# Why a message is not taken, in a word that can be counted.
Dropped = Literal["malformed", "unsealed", "sealed", "forged", "repeated"]
TAG = b"PDS1"
MOST_SENDERS = 65_536  # process starts that are remembered, each for its last count
_STAMP = struct.Struct("<QQ")  # sender, count
_PURPOSE = b"sglang_pd_fabric control message\0"


class ForeignMessageError(ValueError):
    """A message from somebody who does not share our secret, or a copy of an old one.

    Attributes:
        kind: what is wrong.
    """

    def __init__(self, kind: Dropped, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Seal:
    """Seals what one process sends and checks what it receives. The owner holds a lock around ``put_on``.

    Args:
        secret: None: nothing is sealed, and what is sealed is refused.
        here: where this process takes messages.
    """

    def __init__(self, secret: bytes | None, here: Endpoint) -> None:
        self._secret = secret
        self._here = here
        self._sender = secrets.randbits(64)
        self._count = 0
        self._seen: OrderedDict[int, int] = OrderedDict()

    def put_on(self, frames: list[bytes], peer: Endpoint) -> list[bytes]:
        """The frames to send for the frames of a message."""
        if self._secret is None:
            return frames
        self._count += 1
        stamp = _STAMP.pack(self._sender, self._count)
        return [TAG, *frames, stamp, _mac(self._secret, peer, frames, stamp)]

    def take_off(self, frames: list[bytes]) -> list[bytes]:
        """The frames of the message in the frames that came.

        Raises:
            ForeignMessageError: its sender has another secret, or none, or it was sent before.
            MalformedMessageError: it is no message.
        """
        sealed = bool(frames) and frames[0] == TAG
        if self._secret is None:
            if sealed:
                raise ForeignMessageError("sealed", "its sender has a secret, and this process has none")
            return frames
        if not sealed:
            raise ForeignMessageError("unsealed", "it has no seal: its sender has no secret")
        if len(frames) < 3 or len(frames[-2]) != _STAMP.size:
            raise MalformedMessageError(f"a seal cannot be read in {len(frames)} frames")
        message, stamp, mac = frames[1:-2], frames[-2], frames[-1]
        if not hmac.compare_digest(mac, _mac(self._secret, self._here, message, stamp)):
            raise ForeignMessageError("forged", "its seal is not of our secret, or it was meant for another")
        self._check_count(*_STAMP.unpack(stamp))
        return message

    def _check_count(self, sender: int, count: int) -> None:
        """Counts of a sender only grow. Only those who have the secret come this far."""
        if count <= self._seen.get(sender, 0):
            raise ForeignMessageError("repeated", "it was sent before")
        self._seen[sender] = count
        self._seen.move_to_end(sender)
        if len(self._seen) > MOST_SENDERS:
            self._seen.popitem(last=False)


def _mac(secret: bytes, receiver: Endpoint, frames: list[bytes], stamp: bytes) -> bytes:
    """Over each part with its length before it, so that no two messages have the same bytes."""
    parts = (str(receiver).encode(), stamp, *frames)
    lengths = struct.pack(f"<{len(parts)}Q", *map(len, parts))
    return hmac.digest(
        secret, b"".join((_PURPOSE, len(parts).to_bytes(8, "little"), lengths, *parts)), "sha256"
    )
