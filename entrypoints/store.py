"""The Store over a log: memory, SQLite and PostgreSQL have all of it in common but the log.

Reads come from the views, writes go through the one writer. Where a list goes over several pages,
the later ones show the moment of the first: objects that changed since are read back from the log.
"""

import asyncio
import builtins
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

import msgspec

from kudurru.domain.codec import in_profile
from kudurru.domain.commands import Apply, Command, Delete, UpdateStatus
from kudurru.domain.errors import Busy, Cause, Closed, Conflict, Invalid
from kudurru.domain.events import OBJECT_TYPES, Position, Who
from kudurru.domain.kinds.meta import DEFAULT_NAMESPACE, MANAGED_BY
from kudurru.domain.kinds.registry import DNS_ZONE, KINDS, Kind
from kudurru.domain.kinds.validation import Manifest, parse_manifest
from kudurru.domain.object_store import (
    Outcome,
    StoredObject,
    manager_faults,
    position_of,
    resource_version,
    to_document,
)
from kudurru.domain.objects import Key
from kudurru.domain.ports import (
    Clock,
    Document,
    Elector,
    Entropy,
    EventLog,
    ListPage,
    Snapshot,
    StoreInfo,
)
from kudurru.domain.selectors import parse_selector
from kudurru.entrypoints.service import PAGE_MAX, because, read_object
from kudurru.entrypoints.store_counts import StoreCounts, counted
from kudurru.entrypoints.watches import Hub, LogWatch, resumable
from kudurru.entrypoints.wiring import Change, Node
from kudurru.entrypoints.writer import Writer
from kudurru.projections import as_of

CHANGED_MAX = 10_000
"""Events since its first page that a list may look back over."""

LOOKS_MAX = 16
"""How often a list looks again for what changed while it looked."""


class LogStore:
    """Implements `Store` over a node and its writer."""

    def __init__(
        self,
        driver: str,
        node: Node,
        writer: Writer,
        hub: Hub,
        who: Who,
        counts: StoreCounts | None = None,
    ) -> None:
        self._driver = driver
        self.counts = counts or StoreCounts(node.clock)
        self._node = node
        self._writer = writer
        self._hub = hub
        self._who = who
        self._is_closed = False

    def acting_for(self, who: Who) -> Self:
        """The same store, its changes recorded as somebody else's."""
        return type(self)(self._driver, self._node, self._writer, self._hub, who, self.counts)

    # --- writing ------------------------------------------------------------------------

    @counted("apply")
    async def apply(
        self,
        object: Document,  # noqa: A002  # as the port names it
        manager: str,
        *,
        force: bool = False,
        expected_resource_version: str | None = None,
        dry_run: bool = False,
        reason: str = "",
        allow_mass_change: bool = False,
    ) -> Outcome:
        command = Apply(
            manifest=_manifest(object),
            manager=_checked(manager),
            force=force,
            expected=expected_resource_version,
        )
        return (
            await self._change(
                [command], dry_run=dry_run, reason=reason, allow_mass_change=allow_mass_change
            )
        )[0]

    @counted("update_status")
    async def update_status(self, object: Document, manager: str) -> Outcome:  # noqa: A002
        manifest = _manifest(object)
        version = manifest.meta.resource_version
        if not version:
            fault = "missing: a status is of the version that it was computed from"
            raise Invalid("status", [Cause("metadata.resourceVersion", fault)])
        status = _status(manifest.kind, object.get("status") or {})
        command = UpdateStatus(key=manifest.key, status=status, expected=version)
        return (await self._change([command], reason=f"status by {_checked(manager)}"))[0]

    @counted("delete")
    async def delete(
        self,
        ref: Key,
        *,
        expected_resource_version: str | None = None,
        manager: str | None = None,
        force: bool = False,
        reason: str = "",
        allow_mass_change: bool = False,
    ) -> None:
        command = Delete(key=ref, manager=manager, force=force, expected=expected_resource_version)
        await self._change([command], reason=reason, allow_mass_change=allow_mass_change)

    @counted("apply")
    async def apply_many(
        self,
        objects: Sequence[Document],
        manager: str,
        *,
        delete: Sequence[Key] = (),
        force: bool = False,
        dry_run: bool = False,
        reason: str = "",
        allow_mass_change: bool = False,
    ) -> builtins.list[Outcome]:
        _checked(manager)
        manifests = [_manifest(one) for one in objects]
        # Zones first: record sets are held against them, wherever they stand in the batch.
        order = sorted(range(len(manifests)), key=lambda i: manifests[i].kind is not DNS_ZONE)
        commands: list[Command] = [
            Apply(manifest=manifests[i], manager=manager, force=force) for i in order
        ]
        commands += [Delete(key=key, manager=manager, force=force) for key in delete]
        outcomes = await self._change(
            commands, dry_run=dry_run, reason=reason, allow_mass_change=allow_mass_change
        )
        place = {index: at for at, index in enumerate(order)}
        applied = [outcomes[place[index]] for index in range(len(order))]
        return [*applied, *outcomes[len(order) :]]

    async def _change(
        self,
        commands: Sequence[Command],
        *,
        dry_run: bool = False,
        reason: str = "",
        allow_mass_change: bool = False,
    ) -> builtins.list[Outcome]:
        self._check_open()
        if not commands:
            return []
        who = because(self._who, reason)
        change = Change(
            commands=tuple(commands),
            who=who,
            dry_run=dry_run,
            allow_mass_change=allow_mass_change,
        )
        return (await self._writer.submit(change)).outcomes

    # --- reading ------------------------------------------------------------------------

    @counted("get")
    async def get(self, ref: Key) -> dict[str, Any]:
        self._check_open()
        return read_object(self._node, ref)

    @counted("list")
    async def list(
        self,
        kind: str,
        namespace: str | None = None,
        label_selector: str = "",
        *,
        limit: int | None = None,
        continue_: str = "",
        may_see: Callable[[StoredObject], bool] = lambda stored: True,  # noqa: ARG005  # all
    ) -> ListPage:
        """As the port has it; what may not be seen is left out, of `continue_` too."""
        self._check_open()
        _check_kind(kind)
        selects = parse_selector(label_selector)
        async with self._writer.applying:  # or half of a large change would be seen
            at, start = self._place(continue_)
        objects = await self._as_of(at, kind)
        items: builtins.list[dict[str, Any]] = []
        size = min(limit or PAGE_MAX, PAGE_MAX)
        version = resource_version(self._node.log.epoch, at)
        for key in objects.keys(kind, namespace, start):
            stored = objects.find(key)
            if stored is None or not selects(stored.body.labels) or not may_see(stored):
                continue
            if len(items) == size:
                return ListPage(items=items, resource_version=version, continue_=f"{version} {key}")
            items.append(to_document(stored))
        return ListPage(items=items, resource_version=version)

    def _place(self, continue_: str) -> tuple[Position, str]:
        """Of a page: the moment that the list shows, and the key that it begins with."""
        newest = self._node.objects.position
        if not continue_:
            return newest, ""
        version, _, start = continue_.partition(" ")
        at = position_of(version, self._node.log.epoch)
        if at is None or at > newest or not start:
            raise Invalid("list", [Cause("continue", "not of this list: begin again without it")])
        if newest - at > CHANGED_MAX:
            raise Conflict(f"{newest - at} changes since the list began: begin again")
        return at, start

    async def _as_of(self, at: Position, kind: str) -> "_AsOf":
        """What objects of a kind were at a moment that is not long ago. Good until the loop runs
        again. Raises: Busy when changes come faster than they can be looked back over."""
        node, known_to = self._node, at
        before: dict[Key, StoredObject | None] = {}
        for _ in range(LOOKS_MAX):
            upto = node.objects.position
            if upto == known_to:
                return _AsOf(node, before)
            changed = await asyncio.to_thread(_before, node, kind, at, known_to, upto)
            before, known_to = {**changed, **before}, upto
        raise Busy("the store changes faster than a list of it can be read; try again")

    @counted("watch")
    async def watch(
        self, kind: str, namespace: str | None = None, resource_version: str = ""
    ) -> LogWatch:
        self._check_open()
        _check_kind(kind)
        node, after = self._node, None
        if resource_version:
            position = node.objects.position
            after = await asyncio.to_thread(resumable, node.log, resource_version, position)
        if after is None:
            self.counts.relists[kind] += 1
        async with self._writer.applying:
            return self._hub.open(kind, namespace, after)

    @counted("snapshot")
    async def snapshot(self, *, safe: bool = False) -> Snapshot:
        self._check_open()
        async with self._writer.applying:
            at = self._node.objects.position
        found: builtins.list[dict[str, Any]] = []
        for kind in KINDS.values():
            if safe and kind.is_internal:
                continue
            start = ""
            while True:
                objects = await self._as_of(at, kind.name)
                keys = builtins.list(objects.keys(kind.name, None, start))
                page = map(objects.find, keys[:PAGE_MAX])
                found += [to_document(stored) for stored in page if stored is not None]
                if len(keys) <= PAGE_MAX:
                    break
                start = keys[PAGE_MAX]
        epoch = self._node.log.epoch
        return Snapshot(
            cluster_id=self._node.log.log_id,
            resource_version=resource_version(epoch, at),
            objects=found,
        )

    @counted("restore")
    async def restore(
        self, snapshot: Snapshot, *, dry_run: bool = False, reason: str = ""
    ) -> builtins.list[Outcome]:
        self._check_open()
        wanted = [(_manifest(one), _manager_of(one)) for one in snapshot.objects]
        wanted.sort(key=lambda one: one[0].kind is not DNS_ZONE)
        keys = {manifest.key for manifest, _ in wanted}
        commands: builtins.list[Command] = [
            Apply(manifest=manifest, manager=manager, force=True) for manifest, manager in wanted
        ]
        for kind in KINDS.values():
            present = self._node.objects.keys(kind.name)
            if not kind.is_internal:
                commands += [Delete(key=key) for key in present if key not in keys]
        outcomes = await self._change(
            commands, dry_run=dry_run, reason=reason, allow_mass_change=True
        )
        return [outcome for outcome in outcomes if outcome.verb != "unchanged"]

    # --- the store itself ---------------------------------------------------------------

    def elector(self, name: str) -> Elector:
        self._check_open()
        return self._node.log.elector(name)

    async def info(self) -> StoreInfo:
        self._check_open()
        log = self._node.log
        return StoreInfo(
            driver=self._driver,
            atomic_batches=True,
            cluster_id=log.log_id,
            resource_version=resource_version(log.epoch, self._node.objects.position),
            last_contact=log.last_contact_us,
        )

    async def close(self) -> None:
        self._is_closed = True
        await self._hub.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("the store was closed")


@asynccontextmanager
async def opened(
    driver: str, log: EventLog, *, clock: Clock, entropy: Entropy, who: Who
) -> AsyncIterator[LogStore]:
    """A store on a log, without a server around it. The caller closes the log."""
    node = Node(log, clock, entropy)
    await asyncio.to_thread(node.catch_up)
    writer = Writer(node)
    writer.follow()
    store = LogStore(driver, node, writer, Hub(node), who)
    running = asyncio.create_task(writer.run(), name="writer")
    try:
        yield store
    finally:
        await store.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class _AsOf:
    """Objects as they were at a moment: those of now, but for those that changed since."""

    def __init__(self, node: Node, before: dict[Key, StoredObject | None]) -> None:
        self._view = node.objects
        self._before = before

    def find(self, key: Key) -> StoredObject | None:
        return self._before[key] if key in self._before else self._view.find(key)

    def keys(self, kind: str, namespace: str | None, start: str) -> Iterator[Key]:
        """In order, from `start`."""
        keys = self._view.keys(kind, namespace)
        prefix = f"{kind}/" if namespace is None else f"{kind}/{namespace}/"
        gone = [key for key in self._before if key.startswith(prefix)]
        if gone:
            keys = sorted({*keys, *gone})
        for key in keys:
            if key >= start and (key not in self._before or self._before[key] is not None):
                yield key


def _before(
    node: Node, kind: str, at: Position, after: Position, upto: Position
) -> dict[Key, StoredObject | None]:
    """Objects of a kind that changed with after < seq <= upto, as they were at `at`. In any
    thread."""
    log, prefix = node.log, f"{kind}/"
    changed = {
        event.key
        for event in log.read(after, upto)
        if event.type in OBJECT_TYPES and event.key.startswith(prefix)
    }
    return {key: as_of.state(log, key, at) for key in changed}


def _manifest(document: Document) -> Manifest:
    return parse_manifest(dict(document), what="object", default_namespace=DEFAULT_NAMESPACE)


def _manager_of(document: Document) -> str:
    return str(document["metadata"].get("annotations", {}).get(MANAGED_BY, ""))


def _status(kind: Kind, status: Any) -> dict[str, Any]:
    try:
        msgspec.convert(status, kind.status, strict=True)
    except msgspec.ValidationError as error:
        raise Invalid("status", [Cause("status", str(error))]) from None
    if not in_profile(status):
        raise Invalid("status", [Cause("status", "numbers are integers below 2^53 here")])
    return dict(status)


def _checked(manager: str) -> str:
    """Names that are reserved are for who calls this."""
    causes = builtins.list(manager_faults(manager, from_outside=False))
    if causes:
        raise Invalid("manager", causes)
    return manager


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise Invalid("kind", [Cause("", f"{kind!r} is not known; there are {', '.join(KINDS)}")])
