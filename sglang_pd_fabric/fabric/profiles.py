"""What differs between libfabric's providers, as data. The rest of the code asks the profile, not a name."""

from dataclasses import dataclass

from sglang_pd_fabric.fabric._core import lib

# Everything that our addressing code can serve; a provider takes what it needs (see fi_mr(3)).
SERVED_MR_MODE: int = lib.FI_MR_LOCAL | lib.FI_MR_VIRT_ADDR | lib.FI_MR_ALLOCATED | lib.FI_MR_PROV_KEY


@dataclass(frozen=True)
class Profile:
    """How to use one provider.

    Attributes:
        name: what users write (``SGLANG_PD_FABRIC_PROVIDER``).
        provider: libfabric's name for it.
        binds_host: endpoints are bound to an IP address; without one the provider takes the first
            interface it finds, which on a host with bridges is often the wrong one.
        wait_fd: the completion queue has a descriptor on which an idle I/O thread can sleep. Without
            one it has to look every millisecond.
        segments: most (local, remote) pairs in one write; the provider's own limit caps it.
        write_bytes: most bytes in one write, unless a single page is larger.
        window: writes in flight per NIC.
        peer_window: of those, to one peer, so that a frozen peer cannot take them all.
        single_host: peers must share this host.
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


PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            name="tcp",
            provider="tcp",
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
            binds_host=False,
            wait_fd=False,
            segments=4,
            write_bytes=1 << 20,
            window=512,
            peer_window=256,
            single_host=True,
        ),
    )
}
