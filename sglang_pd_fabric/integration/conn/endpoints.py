"""Where ranks are reached: our own control plane, and prefill ranks as the bootstrap server names them."""

import socket
from typing import Any

import zmq

from sglang_pd_fabric.fabric.topology.interfaces import read_interfaces
from sglang_pd_fabric.messenger.links import Links
from sglang_pd_fabric.messenger.messages import Endpoint
from sglang_pd_fabric.settings import SettingError, Settings, variable


def open_links(settings: Settings, local_address: str, secret: bytes | None) -> Links:
    """This rank's control plane, bound to SGLANG_PD_FABRIC_HOST, or else to SGLang's local address.

    Raises:
        SettingError: it cannot be bound to.
    """
    named = settings.host or local_address
    host = read_interfaces().address_of(named)
    try:
        return Links(host or str(socket.getaddrinfo(named, None)[0][4][0]), secret)
    except (OSError, ValueError, zmq.ZMQError) as error:
        remedy = f"name an address or interface with {variable('host')}"
        raise SettingError(f"control messages cannot be taken at {named}: {error}; {remedy}") from error


def endpoint_of(bootstrap_info: dict[str, Any]) -> Endpoint:
    """A prefill rank's control endpoint, from what the bootstrap server says of it."""
    return Endpoint(str(bootstrap_info["rank_ip"]), int(bootstrap_info["rank_port"]))
