"""What is fuzzed: by name, how to make a function of octets, and how often it is called in CI."""

from collections.abc import Callable
from typing import NamedTuple

from tests.fuzz import lists, packets, transports, upstreams


class Target(NamedTuple):
    make: Callable[[], Callable[[bytes], None]]
    executions: int


TARGETS = {
    "packet": Target(packets.packet, 400_000),
    "proxy": Target(transports.proxy, 300_000),
    "tcp": Target(transports.tcp, 100_000),
    "doh": Target(transports.doh, 200_000),
    "http1": Target(transports.http1, 20_000),
    "http2": Target(transports.http2, 20_000),
    "doq": Target(transports.doq, 2_000),
    "h3": Target(transports.h3, 2_000),
    "lists": Target(lists.lists, 50_000),
    "quic": Target(transports.quic, 20_000),
    "response": Target(upstreams.responses, 300_000),
    "upstream": Target(upstreams.texts, 200_000),
}
