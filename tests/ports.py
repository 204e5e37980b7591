"""Ports for servers that are told theirs, or that come back where they were."""

import random
import socket
from contextlib import suppress
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_chance = random.SystemRandom()


def free_port() -> int:
    """A port that nobody has, neither over TCP nor over UDP.

    It is none of those that the system gives to whoever wants any: between now and when its server
    listens, or while that is away, no other process gets it by chance."""
    while True:
        port = _chance.choice(_others())
        with (
            suppress(OSError),
            socket.create_server(("127.0.0.1", port)),
            socket.socket(type=socket.SOCK_DGRAM) as datagrams,
        ):
            datagrams.bind(("127.0.0.1", port))
            return port


def _others() -> list[int]:
    first, last = 32_768, 60_999  # Linux, by default
    with suppress(OSError):
        first, last = map(int, _RANGE.read_text().split())
    found = [*range(10_000, first), *range(last + 1, 65_536)]
    return found or [*range(10_000, 65_536)]
