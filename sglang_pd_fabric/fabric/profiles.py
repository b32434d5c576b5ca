"""What differs between libfabric's providers, as data. The rest of the code asks the profile, not a name.

Where no machine of ours has the NIC, a comment names the source: a page of libfabric's manual
(``fi_efa(7)``), a measurement of others, or what the provider's binary does.
"""

from dataclasses import dataclass
from typing import NamedTuple

from sglang_pd_fabric.fabric._core import lib

# Everything that our addressing code can serve; a provider takes what it needs (see fi_mr(3)). FI_MR_HMEM
# only says that memory of a GPU would be registered as such; it changes nothing for memory of the host.
SERVED_MR_MODE: int = (
    lib.FI_MR_LOCAL | lib.FI_MR_VIRT_ADDR | lib.FI_MR_ALLOCATED | lib.FI_MR_PROV_KEY | lib.FI_MR_HMEM
)
FI_HMEM: int = lib.FI_HMEM

# Numbers that 1.17 headers do not have. libfabric only appends to its enumerations, and a library that is
# too old for one says ENOPROTOOPT, which the core takes as "not available". Checked against the option
# switch of the efa provider of libfabric 2.5 (wheel ``mpich`` 5.0).
FI_OPT_CUDA_API_PERMITTED = 10  # rdma/fi_endpoint.h, bool
FI_OPT_SHARED_MEMORY_PERMITTED = 11  # rdma/fi_endpoint.h, bool
_FI_OPT_EFA = -(0xEFA << 16)  # rdma/fi_ext.h: options of efa count up from here
FI_OPT_EFA_RNR_RETRY = _FI_OPT_EFA  # size_t
FI_OPT_EFA_EMULATED_WRITE = _FI_OPT_EFA + 2  # bool, only to be read
FI_EFA_WR_HIGH_PPS = 1 << 60  # rdma/fi_ext_efa.h of libfabric 2.6, flag of fi_writemsg

Version = tuple[int, int]


class Option(NamedTuple):
    """An endpoint option. One that this libfabric or this device does not have is left out."""

    name: str
    number: int
    nbytes: int
    value: int
    since: Version
    purpose: str
    gpu_only: bool = False


class WriteFlag(NamedTuple):
    """A flag of every write. A library that does not know it may refuse the write, so ``since`` is exact."""

    name: str
    bit: int
    since: Version
    purpose: str


@dataclass(frozen=True)
class Profile:
    """How to use one provider.

    Attributes:
        name: what users write (``SGLANG_PD_FABRIC_PROVIDER``).
        provider: libfabric's name for it.
        fabric: libfabric's name of the fabric, where one provider has several; empty for any.
        minimum: oldest libfabric that serves it.
        api: newest libfabric interface to ask for; ``None`` for that of the headers we were compiled with.
        device_driver: kernel driver of its NICs in ``/sys/class/infiniband``; empty: any; ``None``: it
            needs no RDMA device.
        domain_suffix: libfabric's domain name is the device's name with this behind it.
        binds_host: endpoints are bound to an IP address; without one the provider takes the first
            interface it finds, which on a host with bridges is often the wrong one.
        wait_fd: the completion queue has a descriptor on which an idle I/O thread can sleep. Without
            one it has to look every millisecond, or every other when nothing comes for long.
        event_queue: bind one, because the provider ends the process on an internal error when there is none.
        inserts_both_ways: the target must have the initiator's address too before a write arrives.
        warm_up: make the connection when a peer is added, not with the first page.
        renew: an endpoint with writes that never end is opened anew when it is idle: on shm those to a dead
            peer, with tcp of libfabric 1.17 those whose connection was cut, and it would not connect again.
        target_copies: a write is copied by its target, when that looks, from what the initiator's memory
            holds then. If the target stood still, that may be another request's.
        cut: the connection to a peer stays when the peer is removed, and what is queued for it leaves as
            soon as the peer takes it. So we disconnect the sockets ourselves, and the provider sees a
            broken connection.
        outlives: a write goes on after its peer was removed, until the provider has reported it: a NIC
            repeats it out of our memory until it has arrived or is given up. Its pages are in use until then.
        confirm: a write has ended when it was sent, not when it has arrived. So the last one over a
            connection asks for its delivery (``FI_DELIVERY_COMPLETE``), which is that of all before it.
        segments: most (local, remote) pairs in one write; the provider's own limit caps it.
        write_bytes: most bytes in one write, unless a single page is larger.
        window: writes in flight per NIC; the provider's queue caps it.
        peer_window: of those, to one peer, so that a frozen peer cannot take them all.
        queue_entries: completion queue of a NIC. It holds completions of our own writes and immediates of
            others, and on real NICs one entry too many is fatal: see ``writers``.
        single_host: peers must share this host.
        registers_mapped: its NICs register GPU memory that CUDA's virtual memory management has mapped.
        options: set before the endpoint is enabled.
        write_flags: of every write.
        emulation_option: what to read to learn whether writes are emulated; 0 for nothing.
    """

    name: str
    provider: str
    binds_host: bool
    wait_fd: bool
    segments: int
    write_bytes: int
    window: int
    peer_window: int
    single_host: bool
    fabric: str = ""
    minimum: Version = (1, 17)
    api: Version | None = None
    device_driver: str | None = None
    domain_suffix: str = ""
    event_queue: bool = False
    inserts_both_ways: bool = False
    warm_up: bool = True
    renew: bool = False
    target_copies: bool = False
    cut: bool = False
    outlives: bool = False
    confirm: bool = False
    queue_entries: int = 8192
    options: tuple[Option, ...] = ()
    write_flags: tuple[WriteFlag, ...] = ()
    emulation_option: int = 0
    registers_mapped: bool = True

    @property
    def writers(self) -> int:
        """NICs of others that may write to one NIC of ours without ever overrunning its queue.

        Each has at most ``peer_window`` writes in flight, and a write that has ended at its initiator
        has its immediate in our queue; the rest of the queue is for our own completions.
        """
        return (self.queue_entries - self.window) // self.peer_window

    def domain(self, device: str) -> str:
        """libfabric's domain name of a device in ``/sys/class/infiniband``."""
        return device if device.endswith(self.domain_suffix) else device + self.domain_suffix

    def options_for(self, version: Version, *, gpu: bool) -> tuple[Option, ...]:
        """Options to try with a libfabric of that version."""
        return tuple(o for o in self.options if version >= o.since and (gpu or not o.gpu_only))

    def flags_for(self, version: Version) -> int:
        """Bits that every write carries with a libfabric of that version."""
        return sum(flag.bit for flag in self.write_flags if version >= flag.since)

    def caps_for(self, *, gpu: bool) -> int:
        """Capabilities besides messages and remote writes. FI_HMEM costs inject on shm, so only for a GPU."""
        return FI_HMEM if gpu else 0


# Off the CPU and off the GPU's driver: what is left is the NIC, which is what we tuned and test for. With
# the provider's shared memory, peers on one host would go through its copies (and, with a GPU, through
# cudaMemcpy on the I/O thread).
_EFA_OPTIONS = (
    Option(
        "FI_OPT_SHARED_MEMORY_PERMITTED",
        FI_OPT_SHARED_MEMORY_PERMITTED,
        nbytes=1,
        value=0,
        since=(1, 18),
        purpose="peers on one host go through the NIC as well",
    ),
    # Refused with EINVAL where no CUDA is loaded, hence only with GPU memory.
    Option(
        "FI_OPT_CUDA_API_PERMITTED",
        FI_OPT_CUDA_API_PERMITTED,
        nbytes=1,
        value=0,
        since=(1, 18),
        purpose="no CUDA call on the I/O thread, which could wait for a graph capture",
        gpu_only=True,
    ),
    # 7 means for ever: a receiver that is slow for a moment is no error. Our own deadline fails the rest; its
    # pages stay in use until the receiver goes on or ends.
    Option(
        "FI_OPT_EFA_RNR_RETRY",
        FI_OPT_EFA_RNR_RETRY,
        nbytes=8,
        value=7,
        since=(1, 17),
        purpose="a receiver that is not ready for a moment fails no write",
    ),
)
_EFA_FLAGS = (
    WriteFlag(
        "FI_EFA_WR_HIGH_PPS",
        FI_EFA_WR_HIGH_PPS,
        since=(2, 6),  # ofiwg/libfabric pull request 12225
        purpose="the NIC favours the rate of small writes",
    ),
)

_EFA = Profile(
    name="efa",
    provider="efa",
    fabric="efa",  # from 2.1 on fi_getinfo lists efa-direct first
    minimum=(1, 18),
    api=(1, 20),  # below 1.18 the provider emulates writes where it could offload them (fi_efa(7))
    device_driver="efa",
    domain_suffix="-rdm",
    binds_host=False,
    wait_fd=False,  # fi_efa(7): "Wait objects are not currently supported"
    event_queue=True,  # prov/efa/src/efa_base_ep.c: without one an internal error calls abort()
    # Asked for by efa-direct and by homogeneous peers only, but harmless, and it saves the target the
    # insertion of an unknown peer on its I/O thread.
    inserts_both_ways=True,
    # prov/efa/src/rdm/efa_rdm_peer.c: a removed peer's packets stay until the device has reported them.
    outlives=True,
    segments=1,  # rma_iov_limit is 1 on every EFA device
    write_bytes=1 << 20,  # p5en is at its best from 512 KiB on (Mooncake's sweep)
    window=1024,
    peer_window=256,
    queue_entries=12288,
    single_host=False,
    options=_EFA_OPTIONS,
    write_flags=_EFA_FLAGS,
    emulation_option=FI_OPT_EFA_EMULATED_WRITE,
    registers_mapped=False,  # SGLang turns its own CUDA VMM pools off for Mooncake on EFA
)

PROFILES = {
    profile.name: profile
    for profile in (
        _EFA,
        # The same devices without the provider's wire protocol: no handshake, one work request a write.
        Profile(
            name="efa-direct",
            provider="efa",
            fabric="efa-direct",
            minimum=(2, 1),
            api=(1, 20),
            device_driver="efa",
            domain_suffix="-rdm",
            binds_host=False,
            wait_fd=False,
            event_queue=True,
            inserts_both_ways=True,  # fi_efa(7), RMA operations: a limit of the device
            outlives=True,
            segments=1,
            write_bytes=1 << 20,
            window=1024,
            peer_window=256,
            queue_entries=12288,
            single_host=False,
            options=tuple(o for o in _EFA_OPTIONS if o.number >= 0),
            write_flags=_EFA_FLAGS,
            registers_mapped=False,
        ),
        # ConnectX. RDM exists only through ofi_rxm, which makes one queue pair per peer.
        Profile(
            name="verbs",
            provider="verbs;ofi_rxm",
            minimum=(1, 17),
            api=(1, 20),
            device_driver="",
            binds_host=False,
            wait_fd=True,
            outlives=True,  # ofi_rxm keeps the queue pair of an address that was removed
            segments=1,  # an RDMA write has one remote address
            write_bytes=1 << 20,
            window=256,  # tx_attr.size is 384; EAGAIN from the queue pair is dearer than waiting here
            peer_window=128,
            queue_entries=8192,
            single_host=False,
        ),
        # 2.x has reliable datagrams of its own; 1.17 answers the same hints with tcp;ofi_rxm.
        Profile(
            name="tcp",
            provider="tcp",
            cut=True,
            renew=True,
            confirm=True,  # on every write it takes 1.5 to 2 times the CPU time at small pages
            binds_host=True,
            wait_fd=True,
            segments=4,
            write_bytes=1 << 20,
            window=512,
            peer_window=256,
            single_host=False,
        ),
        Profile(
            name="shm",
            provider="shm",
            # Before 2.0 a peer that ends in mid-transfer crashes or hangs the other one, inside libfabric.
            minimum=(2, 0),
            binds_host=False,
            wait_fd=False,
            warm_up=False,  # there is nothing to connect
            renew=True,
            target_copies=True,
            confirm=True,  # a write of some 200 bytes ends when it lies in the target's ring
            segments=4,
            write_bytes=1 << 20,
            window=512,
            peer_window=256,
            single_host=True,
        ),
    )
}

# What ``auto`` tries, best first. efa-direct and shm are for those who ask.
PREFERENCE = ("efa", "verbs", "tcp")
