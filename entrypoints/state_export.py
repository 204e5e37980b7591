"""The state of a node as files: what `kudurru apply` makes the same state of, and master files.

    NAME.zone               each zone that is served, as its serial names it
    manifests/KIND-N.json   all objects, one JSON document a line
    first/KIND-N.json       record sets that were there before a zone that does not enclose them:
                            `apply` refuses those once the zone is there, so they come first
    refused/KIND-N.json     what this version of kudurru accepts no more

A log that somebody else wrote may hold any name, and none leads out of the folder.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from kudurru.domain import zone_export
from kudurru.domain.commands import Apply
from kudurru.domain.errors import Cause, Invalid, Redacted
from kudurru.domain.kinds.meta import API_VERSION, DEFAULT_NAMESPACE, MANAGED_BY, is_dns_subdomain
from kudurru.domain.kinds.registry import KINDS
from kudurru.domain.kinds.validation import parse_manifest
from kudurru.domain.object_store import Batch, StoredObject
from kudurru.domain.objects import ref_of
from kudurru.domain.restore import state_digest
from kudurru.entrypoints.cli.output import json_line
from kudurru.entrypoints.wiring import Node

MANIFESTS = "manifests"
FIRST = "first"
REFUSED = "refused"

FETCHED = ("secondary:", "catalog:", "mirror:")
"""Managers whose objects come from another server or from other objects, and come again: they are
in no manifest, as nobody else may write them."""

FILE_OBJECTS = 5_000
FILE_BYTES = 4 * 1024 * 1024
"""Objects in a file, and about how large it gets: both within what `apply` reads."""


class Exported(msgspec.Struct):
    """What was written."""

    zones: int = 0
    manifests: int = 0
    first: int = 0
    refused: int = 0
    redacted: list[str] = []  # objects whose content was erased: they are in no file
    digest: str = ""
    """Of what people wrote, as a restore compares it: equal for equal objects, however they came
    about."""


def export_state(
    node: Node, folder: Path, moved: Callable[[int], None] = lambda _: None
) -> Exported:
    """Write the state of the views. `moved` hears how many objects are done. Raises: Invalid where
    the folder cannot be written."""
    exported = Exported()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _export_zones(node, folder, exported)
        exported.digest = state_digest(_written(node, folder, exported, moved))
    except OSError as error:
        raise Invalid(str(folder), [Cause("", f"cannot be written: {error.strerror}")]) from None
    return exported


def _written(
    node: Node, folder: Path, exported: Exported, moved: Callable[[int], None]
) -> Iterator[StoredObject]:
    """Each object, once it is in its file."""
    series: dict[tuple[str, str], _Series] = {}
    count: Counter[str] = Counter()
    with ExitStack() as stack:
        for done, (place, stored) in enumerate(_sorted_out(node, exported), 1):
            plural = KINDS[ref_of(stored.key).kind].plural
            if (place, plural) not in series:
                files = stack.enter_context(closing(_Series(folder / place, plural)))
                series[place, plural] = files
            series[place, plural].write(_document(stored))
            count[place] += 1
            moved(done)
            yield stored
    exported.manifests, exported.first = count[MANIFESTS], count[FIRST]
    exported.refused = count[REFUSED]


def _export_zones(node: Node, folder: Path, exported: Exported) -> None:
    for state in node.zones.states():
        if state.zone is None:
            continue
        if not is_dns_subdomain(state.name):
            why = f"{state.name!r} is no object name, and no file is named like it"
            raise Invalid("export", [Cause("", why)])
        with (folder / f"{state.name}.zone").open("w", encoding="utf-8") as file:
            file.writelines(zone_export.lines(state.zone))
        exported.zones += 1


def _objects(node: Node, redacted: list[str]) -> Iterator[StoredObject]:
    for kind in KINDS.values():
        if kind.is_internal:
            continue  # of no use without its secret part
        for key in node.objects.keys(kind.name):
            try:
                stored = node.objects.find(key)
            except Redacted:
                redacted.append(str(ref_of(key)))
                continue
            if stored is not None and not stored.manager.startswith(FETCHED):
                yield stored


def _sorted_out(node: Node, exported: Exported) -> Iterator[tuple[str, StoredObject]]:
    """Each object, and the folder that it belongs into: what `apply` would say of it."""
    batch = Batch(node.objects, now_us=0, epoch=node.log.epoch, new_uid=str)
    for stored in _objects(node, exported.redacted):
        document = _document(stored)
        try:
            manifest = parse_manifest(document, what="", default_namespace=DEFAULT_NAMESPACE)
        except Invalid:
            yield REFUSED, stored
            continue
        try:
            batch.decide(Apply(manifest=manifest, manager=stored.manager))
        except Invalid:
            yield FIRST, stored
        else:
            yield MANIFESTS, stored


def _document(stored: StoredObject) -> dict[str, Any]:
    """What a person would have written."""
    ref = ref_of(stored.key)
    meta: dict[str, Any] = {"name": ref.name}
    if ref.namespace:
        meta["namespace"] = ref.namespace
    if stored.body.labels:
        meta["labels"] = stored.body.labels
    meta["annotations"] = {MANAGED_BY: stored.manager, **stored.body.annotations}
    spec = msgspec.json.decode(stored.body.spec)
    return {"apiVersion": API_VERSION, "kind": ref.kind, "metadata": meta, "spec": spec}


class _Series:
    """Files of one kind in a folder, one after the other, each as large as it may be."""

    def __init__(self, folder: Path, plural: str) -> None:
        self._folder = folder
        self._plural = plural
        self._number = 0
        self._count = 0  # objects in the file that is open
        self._file = self._next()

    def _next(self) -> BinaryIO:
        self._number += 1
        self._count = 0
        self._folder.mkdir(exist_ok=True)
        return (self._folder / f"{self._plural}-{self._number:04}.json").open("wb")

    def write(self, document: dict[str, Any]) -> None:
        if self._count >= FILE_OBJECTS or self._file.tell() >= FILE_BYTES:
            self._file.close()
            self._file = self._next()
        self._file.write(json_line(document).encode() + b"\n")
        self._count += 1

    def close(self) -> None:
        self._file.close()
