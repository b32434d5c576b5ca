"""What a prefill rank tells its bootstrap server, signed where there is a secret."""

import json
import logging
import time
from typing import Any

import requests

from sglang_pd_fabric.integration.conn.credentials import sign

logger = logging.getLogger(__name__)

ANSWER_S = 5  # one answer of a bootstrap server
REGISTER_S = 60.0  # the HTTP process of a prefill server may start after its ranks
RETRY_S = 0.5


class RegistrationError(RuntimeError):
    """This rank cannot be found by any decode: its bootstrap server refuses it, or is not there."""


def tell(secret: bytes | None, method: str, url: str, path: str, body: object) -> requests.Response:
    """The answer to a JSON body.

    Raises:
        requests.RequestException: there is none.
    """
    data = json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **sign(secret, method, path, data)}
    return requests.request(
        method, url + path, data=data, headers=headers, timeout=ANSWER_S, allow_redirects=False
    )


def register(secret: bytes | None, url: str, path: str, payload: dict[str, Any]) -> None:
    """Announces a rank, and waits for a bootstrap server that is not there yet.

    Raises:
        RegistrationError: it refuses, or does not come.
    """
    deadline = time.monotonic() + REGISTER_S
    while True:
        try:
            answer = tell(secret, "PUT", url, path, payload)
            if answer.status_code == requests.codes.ok:
                return
            why = f"HTTP {answer.status_code}: {answer.text.strip()[:512]}"
            if answer.status_code < 500:
                raise RegistrationError(f"the bootstrap server at {url} refuses this rank: {why}")
        except requests.RequestException as error:
            why = str(error)
        if time.monotonic() > deadline:
            raise RegistrationError(f"the bootstrap server at {url} does not take this rank: {why}")
        logger.debug("The bootstrap server at %s is not there yet: %s", url, why)
        time.sleep(RETRY_S)
