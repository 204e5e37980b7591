"""The name by which balancers and probes ask whether a server wants clients. It is answered
whatever else goes on: never charged, never remembered, and never behind others in a queue."""

from typing import Final

from kudurru.domain.dns import names

HEALTH_NAME: Final = names.from_text("health.kudurru.internal.")

_CLASS_IN = b"\0\1"

# Offsets in a query without its ID.
_COUNTS_AT = 2
_NAME_AT = 10
_CLASS_AT = _NAME_AT + len(HEALTH_NAME) + 2
_NOT_A_QUERY = 0xF8  # QR and opcode


def is_health_query(query: bytes) -> bool:
    """Of a message without its ID."""
    return (
        query[_NAME_AT : _NAME_AT + len(HEALTH_NAME)].lower() == HEALTH_NAME
        and not query[0] & _NOT_A_QUERY
        and query[_COUNTS_AT : _COUNTS_AT + 2] == b"\0\1"
        and query[_CLASS_AT : _CLASS_AT + 2] == _CLASS_IN
    )
