"""What people ask about lists, over a node."""

import logging
from pathlib import Path

import msgspec

from kudurru.domain.kinds.blocklist import BlockListStatus, SourceStatus
from kudurru.domain.lists.matcher import Union
from kudurru.domain.object_store import StoredObject
from kudurru.domain.objects import Key, ref_of
from kudurru.entrypoints.wiring import Node

log = logging.getLogger("kudurru")


class ListRow(msgspec.Struct, frozen=True, kw_only=True):
    """A list as `kudurru list status` shows it."""

    namespace: str
    name: str
    enabled: bool
    entries: int
    sources: list[SourceStatus]


def take_up_lists(node: Node, folder: Path) -> None:
    """Filter by the table in a folder, where there is one that can be used."""
    from kudurru.adapters.lists.files import ListFiles  # most commands do without
    from kudurru.domain.lists.table import Unusable

    try:
        table = ListFiles(folder).open_table()
    except Unusable as error:
        log.warning("the table of lists is not used: %s", error)
        return
    if table is not None:
        node.views.policies.subscribe(Union(node.views.lists.inline, table))


def status_of(stored: StoredObject | None) -> BlockListStatus:
    """The status of a BlockList, empty where there is none, or one that only another version
    understands: it is written anew."""
    if stored is None or not stored.status:
        return BlockListStatus()
    try:
        return msgspec.convert(stored.status, BlockListStatus)
    except msgspec.ValidationError:
        return BlockListStatus()


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


def list_key(name: str, namespace: str) -> Key:
    """Key of a list that a person names, `name` or `namespace/name`."""
    of, slash, rest = name.partition("/")
    return Key(f"BlockList/{of}/{rest}" if slash else f"BlockList/{namespace}/{name}")
