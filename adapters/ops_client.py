"""Asks the operations listener of a running server."""

import http.client
import json
from typing import Any

from kudurru.domain.errors import Unreachable

TIMEOUT_S = 5.0
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # what is bound, not what we bind
BODY_MAX = 1 << 20


def ask(address: str, method: str, path: str) -> tuple[int, Any]:
    """Code and document of the response. `address` is "host:port" as it was bound, an IPv6 host in
    brackets. Raises: Unreachable."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    connection = http.client.HTTPConnection(ANYWHERE.get(host, host), int(port), timeout=TIMEOUT_S)
    try:
        connection.request(method, path, headers={"X-Kudurru": "1"})
        response = connection.getresponse()
        return response.status, json.loads(response.read(BODY_MAX))
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unreachable(
            f"no server of ours answers at {address} ({error}): is it running, and is that its "
            "ops.address?"
        ) from None
    finally:
        connection.close()


def faults(document: Any) -> list[str]:
    """What a `Status` says went wrong."""
    match document:
        case {"message": str(message), "details": {"causes": list(causes)}}:
            found = [str(one.get("message", "")) for one in causes if isinstance(one, dict)]
            return found or [message]
        case _:
            return ["the answer is of no server of ours"]
