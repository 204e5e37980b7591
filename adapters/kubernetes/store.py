"""The Store that an API server keeps: its objects are the cluster's.

Reads are consistent reads of the server. A write is server-side apply under the manager's name,
held to the uid and the version that were read before it, so that check and write are one step. The
annotation `kudurru.io/managed-by` names the owner; it is a field of the object like others, so that
of several managers that make one object the server lets one win.

Internal kinds hold secrets and are no objects here. See docs/decisions/0032.
"""

import asyncio
import builtins
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlencode

import msgspec

from kudurru.adapters.kubernetes import mass_change
from kudurru.adapters.kubernetes.answers import (
    Absent,
    Collided,
    Expired,
    Forbidden,
    Refused,
    Throttled,
    Unanswered,
    cut,
)
from kudurru.adapters.kubernetes.client import APPLY_PATCH, MERGE_PATCH, Client
from kudurru.adapters.kubernetes.election import LeaseElector, Timings
from kudurru.adapters.kubernetes.managers import (
    field_manager,
    other_manager,
    taken_over,
)
from kudurru.adapters.kubernetes.memo import Turns
from kudurru.adapters.kubernetes.watches import ObjectWatch
from kudurru.domain import codec
from kudurru.domain.commands import ABSENT
from kudurru.domain.errors import (
    Busy,
    Cause,
    Closed,
    Conflict,
    Invalid,
    KudurruError,
    ManagedBy,
    MassChange,
    NotFound,
    PartiallyApplied,
    StorageFailed,
)
from kudurru.domain.kinds.meta import (
    API_VERSION,
    DEFAULT_NAMESPACE,
    GROUP,
    LAST_APPLIED,
    MANAGED_BY,
    VERSION,
)
from kudurru.domain.kinds.registry import DNS_RECORD_SET, DNS_ZONE, KINDS, Kind
from kudurru.domain.kinds.validation import Manifest, parse_manifest
from kudurru.domain.object_store import (
    DEFAULT_MANAGER,
    Outcome,
    Verb,
    annotations_after,
    manager_faults,
)
from kudurru.domain.objects import Key, key_of, ref_of
from kudurru.domain.ports import Document, Entropy, ListPage, Snapshot, StoreInfo

PREFIX = f"/apis/{GROUP}/{VERSION}"
ROUNDS = 5
"""How often a write is tried on an object that others write at the same time."""
PAGE = 500
TRIED_AT_ONCE = 16
NO_VERSION = "1"
"""No object has it, as etcd's first write makes 2: an apply of it makes an object, and is refused
where there is one."""

FINALIZERS_MAX = 256
"""Octets that are told of their names."""

Object = dict[str, Any]
Expected: TypeAlias = str | Callable[[Object], bool] | None
"""A resourceVersion, what tells whether an object is as it was expected, or anything."""


class Place(NamedTuple):
    """Where this process runs, for elections."""

    namespace: str
    pod: str


class KubernetesStore:
    """Implements `Store`. The caller closes the client's transport."""

    def __init__(
        self,
        client: Client,
        place: Place,
        *,
        entropy: Entropy,
        chance: random.Random,
        timings: Timings | None = None,
    ) -> None:
        self._client = client
        self._place = place
        self._entropy = entropy
        self._chance = chance
        self._timings = timings
        self._cluster_id = ""
        self._watches: set[ObjectWatch] = set()
        self._turns = Turns()
        self._is_closed = False

    # --- writing ------------------------------------------------------------------------

    async def apply(
        self,
        object: Document,  # noqa: A002  # as the port names it
        manager: str,
        *,
        force: bool = False,
        expected_resource_version: str | None = None,
        dry_run: bool = False,
        reason: str = "",  # noqa: ARG002  # objects of a cluster have no place for it
        allow_mass_change: bool = False,
    ) -> Outcome:
        self._check_open()
        one = Write(_manifest(object), manager, force, expected_resource_version)
        _check_manager(manager)
        if not allow_mass_change:
            await self._guard([one])
        return (await self.write(one, dry_run=dry_run)).outcome

    async def update_status(self, object: Document, manager: str) -> Outcome:  # noqa: A002
        self._check_open()
        manifest = _manifest(object)
        _check_manager(manager)
        version, key = manifest.meta.resource_version, manifest.key
        if not version:
            fault = "missing: a status is of the version that it was computed from"
            raise Invalid("status", [Cause("metadata.resourceVersion", fault)])
        metadata = {"name": manifest.meta.name, "resourceVersion": version}
        if manifest.meta.uid:
            metadata["uid"] = manifest.meta.uid
        body = {
            "apiVersion": API_VERSION,
            "kind": manifest.kind.name,
            "metadata": metadata,
            "spec": _built(manifest),
            "status": _status(manifest.kind, object.get("status") or {}),
        }
        path = f"{_path(key)}/status?{urlencode({'fieldManager': field_manager(manager)})}"
        with _translated(key):
            found: Object = await self._client.request("PUT", path, body)
        after = _version(found)
        return Outcome("unchanged" if after == version else "configured", key, after)

    async def delete(
        self,
        ref: Key,
        *,
        expected_resource_version: str | None = None,
        manager: str | None = None,
        force: bool = False,
        reason: str = "",  # noqa: ARG002
        allow_mass_change: bool = False,
    ) -> None:
        self._check_open()
        one = Deletion(ref, manager, force, expected_resource_version)
        if not allow_mass_change:
            await self._guard([one])
        await self._delete(one)

    async def _delete(self, one: "Deletion") -> "Carried":
        ref = one.key
        for _ in range(ROUNDS):
            held = await self._deletable(ref, one.expected, one.manager, force=one.force)
            metadata = held["metadata"]
            exact = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
            try:
                with _translated(ref):
                    answer: Object = await self._client.request(
                        "DELETE", _path(ref), {"preconditions": exact}
                    )
            except Conflict:
                continue
            _check_not_held_up(ref, answer)
            return Carried(Outcome("deleted", ref), held, None)
        raise Conflict(f"{ref_of(ref)} is changed faster than it can be deleted: try again")

    async def apply_many(
        self,
        objects: Sequence[Document],
        manager: str,
        *,
        delete: Sequence[Key] = (),
        force: bool = False,
        dry_run: bool = False,
        reason: str = "",  # noqa: ARG002
        allow_mass_change: bool = False,
    ) -> builtins.list[Outcome]:
        self._check_open()
        _check_manager(manager)
        writes = [Write(_manifest(one), manager, force) for one in objects]
        deletions = [Deletion(key, manager, force) for key in delete]
        # Zones first: record sets are held against them, wherever they stand in the batch.
        order = sorted(range(len(writes)), key=lambda i: writes[i].manifest.kind is not DNS_ZONE)
        steps: builtins.list[Write | Deletion] = [*(writes[i] for i in order), *deletions]
        if not allow_mass_change:
            await self._guard(steps)
        outcomes = await self.carry_out(steps, dry_run=dry_run)
        place = {index: at for at, index in enumerate(order)}
        applied = [outcomes[place[index]] for index in range(len(order))]
        return [*applied, *outcomes[len(order) :]]

    async def _guard(self, steps: Sequence["Write | Deletion"]) -> None:
        """Raises: MassChange, and first what the change would be refused with anyway."""
        guard = mass_change.Guard(self._held, self._record_sets)
        try:
            await guard.check(
                mass_change.Change(one.key, one.manifest.spec if isinstance(one, Write) else None)
                for one in steps
            )
        except MassChange:
            await self.carry_out(steps, dry_run=True)
            raise

    async def _record_sets(self) -> AsyncIterator[Object]:
        continue_ = ""
        while True:
            page = await self.list(DNS_RECORD_SET.name, continue_=continue_)
            for found in page.items:
                yield found
            continue_ = page.continue_
            if not continue_:
                return

    async def carry_out(
        self, steps: Sequence["Write | Deletion"], *, dry_run: bool = False
    ) -> builtins.list[Outcome]:
        """Writes and deletions of several managers, in order. All of them are tried first, so that
        what can be seen to be refused writes nothing. Raises as `apply_many` does, but that who
        calls has asked the mass-change guard of his own."""
        self._check_open()
        tried: builtins.list[Outcome] = []
        for start in range(0, len(steps), TRIED_AT_ONCE):
            several = steps[start : start + TRIED_AT_ONCE]
            for outcome in await asyncio.gather(*map(self._try, several), return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome  # the first in order, when none is under way any more
                tried.append(outcome)
        if dry_run:
            return tried
        return [one.outcome async for one in self.carried_out(steps)]

    async def carried_out(self, steps: Sequence["Write | Deletion"]) -> AsyncIterator["Carried"]:
        """What `carry_out` does once it has tried all: each step when the API server has answered
        it. Raises: PartiallyApplied."""
        for at, one in enumerate(steps):
            try:
                carried = await self._step(one)
            except KudurruError as error:
                done, left = (
                    [str(other.key) for other in part] for part in (steps[:at], steps[at + 1 :])
                )
                raise PartiallyApplied(done, str(one.key), left, str(error)) from error
            yield carried

    async def _try(self, one: "Write | Deletion") -> Outcome:
        if isinstance(one, Write):
            return (await self.write(one, dry_run=True)).outcome
        await self._deletable(one.key, one.expected, one.manager, force=one.force)
        return Outcome("deleted", one.key)

    async def _step(self, one: "Write | Deletion") -> "Carried":
        return await (self.write(one) if isinstance(one, Write) else self._delete(one))

    async def write(self, one: "Write", *, dry_run: bool = False) -> "Carried":
        """As `carried_out` of one step, but that its errors are those of the write."""
        self._check_open()
        # Writers of one object in this process would only make each other begin again.
        async with self._turns.of(one.key):
            return await self._written(one, dry_run=dry_run)

    async def _written(self, one: "Write", *, dry_run: bool) -> "Carried":
        manifest, manager, force, expected = one
        key = manifest.key
        for _ in range(ROUNDS):
            held = await self._held(key)
            _check_owner(key, held, manager, force=force)
            _check_expected(key, held, expected)
            wanted = _Content.wanted(manifest, held, manager)
            if held is not None and _Content.of(manifest.kind, held) == wanted:
                return Carried(Outcome("unchanged", key, _version(held)), held, held)
            try:
                mine = held
                if force and held is not None and not dry_run:
                    mine = await self._take_over(key, held, manager)
                with _translated(key):
                    found = await self._send(
                        key, _body(manifest, wanted, mine), manager, force=force, dry_run=dry_run
                    )
            except Collided as error:
                if error.causes and (other := other_manager(error)):
                    now = await self._held(key)
                    owner = _owner(now) if now else ""
                    raise ManagedBy(
                        str(ref_of(key)), owner if owner not in ("", manager) else other
                    ) from error
                continue  # it moved since it was read
            verb: Verb = "created" if held is None else "configured"
            return Carried(Outcome(verb, key, _version(found)), held, found)
        raise Conflict(f"{ref_of(key)} is changed faster than it can be written: try again")

    async def _send(
        self, key: Key, body: Object, manager: str, *, force: bool, dry_run: bool
    ) -> Object:
        query = {"fieldManager": field_manager(manager), "force": str(force).lower()}
        if dry_run:
            query["dryRun"] = "All"
        return await self._client.request(
            "PATCH", f"{_path(key)}?{urlencode(query)}", body, content_type=APPLY_PATCH
        )

    async def _take_over(self, key: Key, held: Object, manager: str) -> Object:
        """Make all fields but those of the status the manager's: applying then takes away what it
        leaves out, whoever had set it. Raises: Collided when the object moved."""
        managed = held["metadata"].get("managedFields") or []
        mine = taken_over(managed, field_manager(manager))
        if mine == managed:
            return held
        metadata = {
            "uid": held["metadata"]["uid"],
            "resourceVersion": _version(held),
            "managedFields": mine,
        }
        query = urlencode({"fieldManager": field_manager(manager)})
        with _translated(key):
            return await self._client.request(
                "PATCH",
                f"{_path(key)}?{query}",
                {"metadata": metadata},
                content_type=MERGE_PATCH,
            )

    async def _deletable(
        self, key: Key, expected: Expected, manager: str | None, *, force: bool
    ) -> Object:
        """The object, when it may be deleted."""
        held = await self._held(key)
        if held is None:
            raise NotFound(f"{ref_of(key)} does not exist")
        if manager is not None:
            _check_owner(key, held, manager, force=force)
        _check_expected(key, held, expected)
        _check_not_held_up(key, held)
        return held

    async def _held(self, key: Key) -> Object | None:
        """The object as the server has it, managedFields and all."""
        try:
            with _translated(key):
                return await self._client.get(_path(key), dict)
        except NotFound:
            return None

    # --- reading ------------------------------------------------------------------------

    async def get(self, ref: Key) -> Object:
        self._check_open()
        _check_kind(ref_of(ref).kind)
        held = await self._held(ref)
        if held is None:
            raise NotFound(f"{ref_of(ref)} does not exist")
        return shown(ref_of(ref).kind, held)

    async def list(
        self,
        kind: str,
        namespace: str | None = None,
        label_selector: str = "",
        *,
        limit: int | None = None,
        continue_: str = "",
    ) -> ListPage:
        self._check_open()
        query = {"limit": str(min(limit or PAGE, PAGE))}
        if label_selector:
            query["labelSelector"] = label_selector
        if continue_:
            query["continue"] = continue_
        path = f"{collection(_check_kind(kind), namespace)}?{urlencode(query)}"
        with _translated(None):
            page: Object = await self._client.request("GET", path)
        metadata = page["metadata"]
        return ListPage(
            items=[shown(kind, item) for item in page.get("items") or ()],
            resource_version=metadata["resourceVersion"],
            continue_=metadata.get("continue", ""),
        )

    async def watch(
        self,
        kind: str,
        namespace: str | None = None,
        resource_version: str = "",  # noqa: ARG002  # a hint: it begins with what is there
    ) -> ObjectWatch:
        self._check_open()
        path = collection(_check_kind(kind), namespace)
        watch = ObjectWatch(
            self._client,
            path,
            lambda found: shown(kind, found),
            chance=self._chance,
            ended=self._watches.discard,
        )
        self._watches.add(watch)
        return watch

    async def snapshot(self, *, safe: bool = False) -> Snapshot:  # noqa: ARG002  # no secrets here
        self._check_open()
        objects: builtins.list[Object] = []
        newest = 0
        for kind in _KINDS:
            page = await self.list(kind.name)
            newest = max(newest, int(page.resource_version))
            objects += page.items
            while page.continue_:
                page = await self.list(kind.name, continue_=page.continue_)
                objects += page.items
        return Snapshot(
            cluster_id=await self.cluster_id(), resource_version=str(newest), objects=objects
        )

    async def restore(
        self,
        snapshot: Snapshot,
        *,
        dry_run: bool = False,
        reason: str = "",  # noqa: ARG002
    ) -> builtins.list[Outcome]:
        self._check_open()
        writes = [Write(_manifest(one), _owner(one) or DEFAULT_MANAGER, True)
                  for one in snapshot.objects]  # fmt: skip
        writes.sort(key=lambda one: one.manifest.kind is not DNS_ZONE)
        wanted = {one.key for one in writes}
        there = [_key(one) for one in (await self.snapshot()).objects]
        deletions = [Deletion(key, None, True) for key in there if key not in wanted]
        outcomes = await self.carry_out([*writes, *deletions], dry_run=dry_run)
        return [outcome for outcome in outcomes if outcome.verb != "unchanged"]

    # --- the store itself ---------------------------------------------------------------

    def elector(self, name: str) -> LeaseElector:
        self._check_open()
        return LeaseElector(
            self._client,
            name,
            namespace=self._place.namespace,
            pod=self._place.pod,
            clock=self._client.transport.clock,
            entropy=self._entropy,
            chance=self._chance,
            timings=self._timings,
        )

    async def info(self) -> StoreInfo:
        self._check_open()
        newest = await self.list(DNS_ZONE.name, limit=1)
        return StoreInfo(
            driver="kubernetes",
            atomic_batches=False,
            cluster_id=await self.cluster_id(),
            resource_version=newest.resource_version,
            last_contact=self._client.transport.last_contact_us,
        )

    async def cluster_id(self) -> str:
        """The uid of the namespace kube-system: what tells one cluster from another."""
        if not self._cluster_id:
            with _translated(None):
                found: Object = await self._client.get("/api/v1/namespaces/kube-system", dict)
            self._cluster_id = str(found["metadata"]["uid"])
        return self._cluster_id

    async def close(self) -> None:
        self._is_closed = True
        for watch in list(self._watches):
            await watch.stop()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("the store was closed")


class Write(NamedTuple):
    """One object to apply."""

    manifest: Manifest
    manager: str
    force: bool
    expected: Expected = None

    @property
    def key(self) -> Key:
        return self.manifest.key


class Deletion(NamedTuple):
    key: Key
    manager: str | None
    force: bool
    expected: Expected = None


class Carried(NamedTuple):
    """What became of one of them, as the API server answered."""

    outcome: Outcome
    before: Object | None  # as it was in the moment of the write; None: it was not there
    after: Object | None  # None: it is not there any more

    @property
    def key(self) -> Key:
        return self.outcome.key


class _Content(msgspec.Struct, frozen=True):
    """What an Apply writes."""

    spec: bytes  # canonical JSON; empty: it is none that is known here
    labels: dict[str, str]
    annotations: dict[str, str]

    @classmethod
    def wanted(cls, manifest: Manifest, held: Object | None, manager: str) -> "_Content":
        before = _annotations(held) if held else {}
        annotations = annotations_after(manifest.meta.annotations, before)
        return cls(
            codec.canonical(manifest.spec),
            manifest.meta.labels,
            annotations | {MANAGED_BY: manager},
        )

    @classmethod
    def of(cls, kind: Kind, held: Object) -> "_Content":
        try:
            spec = codec.canonical(msgspec.convert(held.get("spec") or {}, kind.spec))
        except msgspec.ValidationError:
            spec = b""
        annotations = {k: v for k, v in _annotations(held).items() if k != LAST_APPLIED}
        return cls(spec, held["metadata"].get("labels") or {}, annotations)


_KINDS = [kind for kind in KINDS.values() if not kind.is_internal]


def shown(kind: str, held: Object) -> Object:
    """An object as people see it, whatever else the server keeps in it."""
    metadata = {name: held["metadata"][name] for name in _SHOWN if held["metadata"].get(name)}
    found = {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": metadata,
        "spec": held.get("spec") or {},
    }
    return found | ({"status": held["status"]} if "status" in held else {})


_SHOWN = (
    "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp",
    "labels", "annotations",
)  # fmt: skip


def _body(manifest: Manifest, wanted: _Content, held: Object | None) -> Object:
    """What is sent to be applied: to the very object that was read, or where there is none."""
    metadata: Object = {"name": manifest.meta.name, "annotations": wanted.annotations}
    if wanted.labels:
        metadata["labels"] = wanted.labels
    if held is not None:
        metadata["uid"] = held["metadata"]["uid"]
    metadata["resourceVersion"] = _version(held) if held is not None else NO_VERSION
    return {
        "apiVersion": API_VERSION,
        "kind": manifest.kind.name,
        "metadata": metadata,
        "spec": msgspec.Raw(wanted.spec),
    }


@contextmanager
def _translated(key: Key | None) -> Iterator[None]:
    """Answers of the API server as errors of the store. Collided stays: it is a Conflict."""
    what = str(ref_of(key)) if key else "the request"
    try:
        yield
    except Absent as error:
        raise NotFound(f"{what} does not exist") from error
    except Expired as error:
        raise Conflict("the list began too long ago: begin again") from error
    except (Collided, Throttled):
        raise
    except (Forbidden, Unanswered) as error:
        raise StorageFailed(str(error)) from error
    except Refused as error:
        if error.code in (400, 422):
            causes = [Cause(one.field, one.message) for one in error.causes]
            raise Invalid(what, causes or [Cause("", error.text)]) from error
        raise StorageFailed(str(error)) from error


def _manifest(document: Document) -> Manifest:
    manifest = parse_manifest(dict(document), what="object", default_namespace=DEFAULT_NAMESPACE)
    _check_kind(manifest.kind.name)
    return manifest


def _check_kind(name: str) -> Kind:
    kind = KINDS.get(name)
    if kind is None or kind.is_internal:
        known = ", ".join(one.name for one in _KINDS)
        raise Invalid("kind", [Cause("", f"{name!r} is not kept in Kubernetes; there are {known}")])
    return kind


def _check_manager(manager: str) -> None:
    causes = list(manager_faults(manager, from_outside=False))
    if causes:
        raise Invalid("manager", causes)


def _check_owner(key: Key, held: Object | None, manager: str, *, force: bool) -> None:
    owner = _owner(held) if held else ""
    if owner and owner != manager and not force:
        raise ManagedBy(str(ref_of(key)), owner)


def _check_expected(key: Key, held: Object | None, expected: Expected) -> None:
    if expected is None:
        return
    if callable(expected):
        if held is None or not expected(held):
            raise Conflict(f"{ref_of(key)} was changed in the cluster meanwhile: read it again")
        return
    if held is None:
        if expected == ABSENT:
            return
        raise Conflict(f"{ref_of(key)} does not exist, and was expected at version {expected}")
    if expected == ABSENT:
        raise Conflict(f"{ref_of(key)} exists, and was expected not to")
    if _version(held) != expected:
        raise Conflict(f"{ref_of(key)} is at version {_version(held)} and not at {expected}")


def _check_not_held_up(key: Key, answer: Document) -> None:
    """Raises: Busy, where an object is marked for deletion and its finalizers are awaited. What
    says that it is gone has no such mark."""
    metadata = answer.get("metadata") or {}
    if metadata.get("deletionTimestamp"):
        names = ", ".join(metadata.get("finalizers") or ()) or "none that is named"
        raise Busy(
            f"{ref_of(key)} is to be deleted, and is there, and served, until those who hold it in "
            f"the cluster let go; its finalizers: {cut(names, FINALIZERS_MAX)}"
        )


def _status(kind: Kind, status: Any) -> Object:
    try:
        msgspec.convert(status, kind.status, strict=True)
    except msgspec.ValidationError as error:
        raise Invalid("status", [Cause("status", str(error))]) from None
    return dict(status)


def _built(manifest: Manifest) -> msgspec.Raw:
    return msgspec.Raw(codec.canonical(manifest.spec))


def collection(kind: Kind, namespace: str | None) -> str:
    """Path of a kind, in one namespace or all."""
    within = f"/namespaces/{namespace}" if kind.namespaced and namespace else ""
    return f"{PREFIX}{within}/{kind.plural}"


def _path(key: Key) -> str:
    kind, namespace, name = key.split("/", 2)
    return f"{collection(_check_kind(kind), namespace)}/{name}"


def _key(document: Document) -> Key:
    metadata = document["metadata"]
    return key_of(document["kind"], metadata.get("namespace", ""), metadata["name"])


def _annotations(held: Document) -> dict[str, str]:
    return held["metadata"].get("annotations") or {}


def _owner(held: Document) -> str:
    """Its manager; "" when it was made by somebody who has none, with kubectl perhaps."""
    return str(_annotations(held).get(MANAGED_BY, ""))


def _version(held: Document) -> str:
    """ "" of what was made only to see whether it could be."""
    return str(held["metadata"].get("resourceVersion", ""))
