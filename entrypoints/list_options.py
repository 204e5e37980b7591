"""What keeping lists takes from the settings."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Literal

import msgspec

from kudurru.adapters.lists.jobs import Nameserver
from kudurru.domain.dns.upstreams import parse_entry
from kudurru.domain.settings import Settings, UpstreamSettings


class ListOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What keeping needs of the settings."""

    interval: timedelta = timedelta(hours=24)
    max_bytes: int = 64 << 20
    concurrency: int = 4
    startup: Literal["fast", "blocking", "failOnError"] = "fast"
    allow_private: bool = False
    nameservers: tuple[Nameserver, ...] = ()


def list_options(settings: Settings) -> ListOptions:
    startup = settings.lists.startup
    if startup == "fast" and not settings.blocking.allow_degraded:
        startup = "blocking"
    return ListOptions(
        interval=settings.blocking.refresh_interval,
        max_bytes=settings.lists.max_bytes,
        concurrency=settings.lists.concurrency,
        startup=startup,
        allow_private=settings.lists.allow_private,
        nameservers=tuple(_nameservers(settings.upstreams)),
    )


def _nameservers(upstreams: UpstreamSettings) -> Iterator[Nameserver]:
    """Whom to ask for the servers of lists, so that this is not ourselves: those that find
    upstreams, then upstreams. Those over HTTP and QUIC are left out."""
    for text in (*upstreams.bootstrap, *upstreams.groups.get("default", ())):
        found = parse_entry(text)
        server = found.address
        if found.domains:
            continue
        if server.transport in ("udp", "tcp"):
            yield from (Nameserver(address, server.port) for address in server.addresses)
        elif server.transport == "dot" and server.name:
            yield from (Nameserver(a, server.port, server.name) for a in server.addresses)
