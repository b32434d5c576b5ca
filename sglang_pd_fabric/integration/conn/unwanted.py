"""Requests that decode refuses before it pulls them: prefill is told, or it would wait for the Pull."""

import itertools
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from sglang.srt.disaggregation.common.conn import PrefillServerInfo
from sglang.srt.utils.network import NetworkAddress

from sglang_pd_fabric.integration.conn.endpoints import endpoint_of
from sglang_pd_fabric.integration.conn.registering import ask
from sglang_pd_fabric.messenger.messages import Endpoint, Message, Unwanted

logger = logging.getLogger(__name__)

MOST_RANKS = 1024  # of one prefill server: what answers there is named by a client


class _Refused(NamedTuple):
    bootstrap_address: str
    message: Unwanted


class UnwantedRooms:
    """Tells prefill servers, on a thread of its own: it takes HTTP, and the scheduler must not wait.

    Args:
        send: passes a control message to a prefill rank; must not raise for an unreachable one.
        secret: what servers share, if anything.
        speaks: whether this rank does it; of the ranks that see the same requests, one is enough.
    """

    def __init__(
        self, send: Callable[[Endpoint, Message], None], secret: bytes | None, *, speaks: bool
    ) -> None:
        self._send = send
        self._secret = secret
        self._speaks = speaks
        self._refused: queue.SimpleQueue[_Refused] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def tell(self, req: Any) -> None:
        """A request of SGLang's was finished with an error before it was pulled. Returns at once."""
        if not self._speaks:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pd_fabric_unwanted", daemon=True)
            self._thread.start()
        reason = f"refused by decode: {req.finished_reason.message}"[:4096]
        address = NetworkAddress(req.bootstrap_host, req.bootstrap_port).to_host_port_str()
        self._refused.put(_Refused(address, Unwanted(req.bootstrap_room, reason)))

    def _run(self) -> None:
        while True:
            refused = self._refused.get()
            try:
                for endpoint in self._ranks(refused.bootstrap_address):
                    self._send(endpoint, refused.message)
            except Exception as error:
                logger.warning(
                    "Could not tell prefill %s of a refused request: %s", refused.bootstrap_address, error
                )

    def _ranks(self, address: str) -> list[Endpoint]:
        """Control endpoints of all ranks of a prefill server: the one that has the room is among them."""
        info = PrefillServerInfo(**self._route(address, -1, -1, -1, -1))
        places = itertools.product(
            range(info.dp_size), range(info.attn_cp_size), range(info.attn_tp_size), range(info.pp_size)
        )
        return [endpoint_of(self._route(address, *place)) for place in itertools.islice(places, MOST_RANKS)]

    def _route(self, address: str, dp: int, cp: int, tp: int, pp: int) -> dict[str, Any]:
        query = f"prefill_dp_rank={dp}&prefill_cp_rank={cp}&target_tp_rank={tp}&target_pp_rank={pp}"
        response = ask(self._secret, address, f"/route?{query}")
        response.raise_for_status()
        answer: dict[str, Any] = response.json()
        return answer
