"""Every control message, its encoding and its limits.

A healthy transfer needs one: decode's ``Pull``. ``Hello`` and ``Welcome`` pass once per pair of ranks, with
some providers ``Ready`` too; ``Abort`` and ``Quiet`` end a request early; ``Refusal`` and ``Failure`` come
only when something is wrong, ``Counting`` and ``Over`` when a request takes long, ``Digest`` only where
integrity is asked for. Every message says which process
start (incarnation) it comes from, so that what an ended process said is never taken for its successor's.
Encoding is MessagePack through msgspec: typed, versioned by ``PROTOCOL`` in the layout record, no pickle.
"""

from typing import Annotated, NamedTuple

import msgspec

from sglang_pd_fabric.fabric.mapped import Share, SharedRegion
from sglang_pd_fabric.messenger.layout import LayoutRecord
from sglang_pd_fabric.messenger.states import FirstToken

TAG = b"PDF1"
NO_SLOT = 0  # no generation ever has this number
MAX_MESSAGE_BYTES = 16 << 20

U32 = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
U64 = Annotated[int, msgspec.Meta(ge=0)]  # MessagePack holds no integer above 2^64 - 1
Port = Annotated[int, msgspec.Meta(gt=0, lt=1 << 16)]
MAX_REASON = 4096
Reason = Annotated[str, msgspec.Meta(max_length=MAX_REASON)]
MAX_ROOMS = 4096
MAX_ASKED = 1024


class PullName(NamedTuple):
    """Names a Pull among those of one process start of a decode rank, whatever ``Again`` has said since."""

    room: U64
    slot: U32
    generation: U32


class Ended(NamedTuple):
    """A pull for which nothing more will be written, and why, if it has failed and that is still known."""

    room: U64
    slot: U32
    generation: U32
    reason: Reason


class MalformedMessageError(ValueError):
    """Bytes that are none of our messages."""


class Endpoint(msgspec.Struct, frozen=True):
    """Where a rank takes control messages."""

    host: str
    port: Port

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class RemoteRegion(msgspec.Struct, frozen=True):
    """A memory region that a peer may write into."""

    base: U64
    nbytes: U64
    keys: tuple[U64, ...]


class Shared(msgspec.Struct, frozen=True):
    """Memory of decode that prefill may map when both are on one host.

    Attributes:
        slots: the completion slots.
        regions: all of ``kv``, then all of ``aux``.
    """

    slots: Share
    regions: tuple[SharedRegion, ...]


class Hello(msgspec.Struct, frozen=True, tag=True):
    """Decode rank to prefill rank, once: who I am and where you may write.

    Attributes:
        incarnation: random per process start; tells a restarted decode from its predecessor.
        prefill: the prefill rank as decode knows it; comes back in the answer.
        number: counts the Hellos of this decode; comes back in the answer.
        reply: decode's control endpoint.
        layout: decode's layout record.
        addresses: fabric addresses of decode's NICs.
        kv: a region for each KV buffer.
        aux: a region for each metadata buffer.
        credits: most writes that may be in flight to decode's NICs; 0: they take no more writers.
        shared: the same memory for a prefill on this host, when it can be mapped.
    """

    incarnation: U64
    prefill: Endpoint
    number: U64
    reply: Endpoint
    layout: LayoutRecord
    addresses: tuple[bytes, ...]
    kv: tuple[RemoteRegion, ...]
    aux: tuple[RemoteRegion, ...]
    credits: U32
    shared: Shared | None = None


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """Prefill rank to decode rank: accepted; my layout, from which you compute what to expect.

    Attributes:
        prefill: the prefill rank as decode knows it.
        incarnation: random number of prefill's process start.
        number: of the Hello that this answers.
        layout: prefill's layout record.
        addresses: fabric addresses of prefill's NICs. Where the provider wants them known before a write
            arrives, prefill writes nothing until decode has said ``Ready``.
        standstill_s: after a standstill (SIGSTOP, a suspended machine) longer than this, prefill writes
            nothing that it was asked for before.
    """

    prefill: Endpoint
    incarnation: U64
    number: U64
    layout: LayoutRecord
    addresses: tuple[bytes, ...]
    standstill_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)]


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Decode rank to prefill rank: my NICs know yours, you may write. Only where the provider wants it.

    Attributes:
        incarnation: of the decode that said Hello.
        addresses: those of the Welcome, so that a restarted prefill is not meant by mistake.
        problem: why they could not be made known; empty if they were.
    """

    incarnation: U64
    addresses: tuple[bytes, ...]
    problem: Reason = ""


class Refusal(msgspec.Struct, frozen=True, tag=True):
    """Prefill rank to decode rank: we cannot exchange pages. Answers a Hello, or a Ready with a problem."""

    prefill: Endpoint
    incarnation: U64
    number: U64
    reason: Reason


class Pull(msgspec.Struct, frozen=True, tag=True):
    """Decode rank to prefill rank, for each request: write these pages, count in this slot.

    Attributes:
        incarnation: of the decode that said Hello.
        room: the request.
        slot, generation: the completion slot, to be carried in every immediate.
        pages: destination page ids, little-endian uint32, in the order of the prompt.
        aux_row: destination row of the metadata buffers.
        prefix_tokens: tokens that decode already has; their pages are not in ``pages``.
        writers: how many decode ranks will send a Pull for this room to this prefill rank.
        prompt: digest of the prompt whose pages are asked for; 0: not known.
        first_token: whose decode takes it to be; prefill fails a room where it sees that differently.
    """

    incarnation: U64
    room: U64
    slot: U32
    generation: U32
    pages: bytes
    aux_row: U32
    prefix_tokens: U32
    writers: U32
    prompt: U64 = 0
    first_token: FirstToken = "prefill"

    def __post_init__(self) -> None:
        if len(self.pages) % 4:
            raise ValueError("page ids have 4 bytes each")


class Spoiled(msgspec.Struct, frozen=True, tag=True):
    """Prefill rank to decode rank: a path broke, and nobody knows which units of this slot were counted.

    Another path is left: with a new slot, everything comes once more.
    """

    prefill: Endpoint
    incarnation: U64
    room: U64
    slot: U32
    generation: U32


class Again(msgspec.Struct, frozen=True, tag=True):
    """Decode rank to all prefill ranks that write for the room: start again, and count in this slot.

    ``NO_SLOT`` as generation: nothing is missing, or nobody waits for the room any more.

    Attributes:
        old_slot, old_generation: where it counted before; with them a later request with the same room number
            is told apart.
    """

    incarnation: U64
    room: U64
    old_slot: U32
    old_generation: U32
    slot: U32
    generation: U32


class Failure(msgspec.Struct, frozen=True, tag=True):
    """Prefill rank to decode rank: this request will not be completed.

    ``NO_SLOT`` as generation: one that decode has not pulled yet.
    """

    prefill: Endpoint
    incarnation: U64
    room: U64
    slot: U32
    generation: U32
    reason: Reason


class Queued(msgspec.Struct, frozen=True, tag=True):
    """Decode rank to prefill rank, while requests wait for memory on decode: these rooms will be pulled.

    Prefill's time-out for a room that nobody pulls begins anew. Rooms that have failed there are answered
    with a ``Failure`` without a slot.

    Attributes:
        prefill: the prefill rank as decode knows it; comes back in the answer.
        reply: decode's control endpoint.
    """

    prefill: Endpoint
    reply: Endpoint
    rooms: Annotated[tuple[U64, ...], msgspec.Meta(max_length=MAX_ROOMS)]


class Counting(msgspec.Struct, frozen=True, tag=True):
    """Decode rank to prefill rank, every few seconds: I still count these; is anything to come?

    Pulls of which nothing is come back in an ``Over``; there is no answer if there are none.

    Attributes:
        incarnation: of the decode that pulled.
        prefill: the prefill rank as decode knows it; comes back in the answer.
        reply: decode's control endpoint: prefill may not know this decode any more.
    """

    incarnation: U64
    prefill: Endpoint
    reply: Endpoint
    pulls: Annotated[tuple[PullName, ...], msgspec.Meta(max_length=MAX_ASKED)]


class Over(msgspec.Struct, frozen=True, tag=True):
    """Prefill rank to decode rank: these pulls have failed, or everything has been written for them."""

    prefill: Endpoint
    incarnation: U64
    pulls: Annotated[tuple[Ended, ...], msgspec.Meta(max_length=MAX_ASKED)]


class Refused(msgspec.Struct, frozen=True, tag=True):
    """An HTTP server of either side to prefill ranks: the client was told why this will not be answered."""

    room: U64
    reason: Reason


class Renounced(msgspec.Struct, frozen=True, tag=True):
    """Decode rank to prefill rank: the request has ended here before its pages were asked for."""

    room: U64


class Digest(msgspec.Struct, frozen=True, tag=True):
    """Prefill rank to decode rank, where both want integrity: checksums of what it wrote for this slot.

    Attributes:
        prefill: the prefill rank as decode knows it.
        incarnation: of the decode that pulled the room.
        sums: XXH3 of the bytes of each buffer that it wrote, in the order of its copy tables.
    """

    prefill: Endpoint
    incarnation: U64
    room: U64
    slot: U32
    generation: U32
    sums: tuple[U64, ...]


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Decode rank to all prefill ranks that it pulled a room from: I wait no more; say when you are quiet.

    It means one pull, not a room: another request may have the same room number by now. It is said again
    until it is answered.

    Attributes:
        incarnation: of the decode that pulled.
        prefill: the prefill rank as decode knows it; comes back in the answer.
        reply: decode's control endpoint: prefill may not know this decode any more.
        room, slot, generation: as they stood in the Pull, whatever ``Again`` has said since.
    """

    incarnation: U64
    prefill: Endpoint
    reply: Endpoint
    room: U64
    slot: U32
    generation: U32


class Quiet(msgspec.Struct, frozen=True, tag=True):
    """Prefill rank to decode rank: no write of that pull waits or is on a wire, and none can start again."""

    prefill: Endpoint
    incarnation: U64
    room: U64
    slot: U32
    generation: U32


Message = (
    Hello
    | Welcome
    | Ready
    | Refusal
    | Pull
    | Spoiled
    | Again
    | Failure
    | Digest
    | Queued
    | Counting
    | Over
    | Refused
    | Renounced
    | Abort
    | Quiet
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> list[bytes]:
    """Frames of the message."""
    return [TAG, _encoder.encode(message)]


def decode(frames: list[bytes]) -> Message:
    """The message in the frames.

    Raises:
        MalformedMessageError: wrong tag, number of frames, size, or content.
    """
    if len(frames) != 2 or frames[0] != TAG:
        sizes = [len(frame) for frame in frames[:8]]
        raise MalformedMessageError(f"{len(frames)} frames of {sizes} bytes instead of a tag and a body")
    if len(frames[1]) > MAX_MESSAGE_BYTES:
        raise MalformedMessageError(f"{len(frames[1])} bytes; at most {MAX_MESSAGE_BYTES} are taken")
    try:
        return _decoder.decode(frames[1])
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise MalformedMessageError(str(error)) from error
