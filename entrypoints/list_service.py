"""What people ask about lists, over a node."""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Literal

import msgspec

from kudurru.adapters.lists.files import ListFiles
from kudurru.adapters.lists.jobs import Nameserver
from kudurru.adapters.metrics import Sample
from kudurru.domain.dns.upstreams import parse_entry
from kudurru.domain.kinds.blocklist import BlockListStatus, SourceStatus
from kudurru.domain.lists.matcher import Union
from kudurru.domain.lists.table import Unusable
from kudurru.domain.object_store import StoredObject
from kudurru.domain.objects import Key, ref_of
from kudurru.domain.settings import Settings, UpstreamSettings
from kudurru.entrypoints.wiring import Node

log = logging.getLogger("kudurru")


class ListOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What keeping needs of the settings."""

    interval: timedelta = timedelta(hours=24)
    max_bytes: int = 64 << 20
    concurrency: int = 4
    startup: Literal["fast", "blocking", "failOnError"] = "fast"
    allow_private: bool = False
    nameservers: tuple[Nameserver, ...] = ()


class ListRow(msgspec.Struct, frozen=True, kw_only=True):
    """A list as `kudurru list status` shows it."""

    namespace: str
    name: str
    enabled: bool
    entries: int
    sources: list[SourceStatus]


class Statistics(msgspec.Struct, frozen=True):
    fetches: dict[str, int]  # by how they ended: new, unchanged, failed
    builds: dict[str, int]  # done, failed
    rules: int  # in the table
    bytes: int  # of the table's words


def take_up_lists(node: Node, folder: Path) -> None:
    """Filter by the table in a folder, where there is one that can be used."""
    try:
        table = ListFiles(folder).open_table()
    except Unusable as error:
        log.warning("the table of lists is not used: %s", error)
        return
    if table is not None:
        node.views.policies.subscribe(Union(node.views.lists.inline, table))


def status_of(stored: StoredObject | None) -> BlockListStatus:
    """The status of a BlockList, empty where there is none."""
    if stored is None or not stored.status:
        return BlockListStatus()
    return msgspec.convert(stored.status, BlockListStatus)


def stored_rows(node: Node) -> list[ListRow]:
    """Every list, with its sources as its status has them."""
    view = node.views.lists
    found = []
    for key in view.all_keys():
        ref, status = ref_of(key), status_of(node.objects.find(key))
        row = ListRow(
            namespace=ref.namespace, name=ref.name, enabled=key in view.lists,
            entries=status.entries, sources=status.sources,
        )  # fmt: skip
        found.append(row)
    return found


def list_samples(rows: Iterable[ListRow], seen: Statistics) -> Iterator[Sample]:
    for row in rows:
        name = f"{row.namespace}/{row.name}"
        yield Sample("blocklist_entries", (name,), row.entries)
        for phase, count in Counter(source.phase for source in row.sources).items():
            yield Sample("blocklist_status", (name, phase), count)
    for result, count in seen.fetches.items():
        yield Sample("blocklist_fetches_total", (result,), count)
    for result, count in seen.builds.items():
        yield Sample("blocklist_builds_total", (result,), count)
    yield Sample("blocklist_table_bytes", (), seen.bytes)


def list_key(name: str, namespace: str) -> Key:
    """Key of a list that a person names, `name` or `namespace/name`."""
    of, slash, rest = name.partition("/")
    return Key(f"BlockList/{of}/{rest}" if slash else f"BlockList/{namespace}/{name}")


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
