"""What a cluster has, held against what the log recorded of it: `kudurru audit compare`.

An object is known by its uid and its version. The log has the newest version that said something
new; later ones, of statuses say, are in no event. So two are alike that have one uid and say the
same, unless the log has a later version than the cluster, which was set back then. Statuses are the
leader's to write, and are not compared.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from kudurru.adapters.kubernetes.answers import Forbidden
from kudurru.adapters.kubernetes.store import KubernetesStore
from kudurru.domain import mirror
from kudurru.domain.errors import StorageFailed
from kudurru.domain.events import MIRROR_KEY, MIRROR_RESTORED, MIRROR_WRITTEN
from kudurru.domain.kinds.registry import KINDS
from kudurru.domain.mirror import version_number
from kudurru.domain.object_store import position_of
from kudurru.domain.objects import Key, key_of, ref_of
from kudurru.domain.ports import Document
from kudurru.entrypoints.cluster.facts import is_of_cluster, refused
from kudurru.entrypoints.cluster.found import found_in, stored_digest
from kudurru.entrypoints.wiring import Node

Owner = Literal["cluster", "log"]


class Side(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What one of them has of an object."""

    uid: str
    resource_version: str


class Difference(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    object: str
    difference: Literal["missing", "surplus", "differing"]  # of the cluster
    why: str
    position: int = 0  # in the log, of what it has; 0: nothing
    log: Side | None = None
    cluster: Side | None = None


class Compared(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    cluster: str  # uid of kube-system; "" where that may not be read
    owner: Owner
    position: int  # up to which the log was read
    objects: int  # that both have, and that are alike
    ok: bool
    differences: list[Difference]  # by kind, namespace and name


class There(msgspec.Struct, frozen=True):
    """An object of the cluster."""

    uid: str
    version: str
    manager: str
    made: bytes  # digest of what people write
    problem: str = ""  # why it cannot be read


class Recorded(msgspec.Struct, frozen=True):
    """An object of the log, and which one of the cluster it is."""

    uid: str  # "" where the log does not say
    version: str
    made: bytes
    position: int


async def compare(
    node: Node,
    store: KubernetesStore,
    owner: Owner,
    namespaces: Iterable[str],
    take_in: Callable[[], object],
    settle: Callable[[], Awaitable[None]],
) -> Compared:
    """`take_in` brings the views of the node up to what the log has now, and `settle` waits a
    moment: what differs is looked at twice, since a node that follows is a moment behind. Raises:
    Invalid when the log is of no cluster, or of another one; what the store does."""
    cluster = await _checked_cluster(cluster_of(node), store)
    ours = f"{mirror.COPY_PREFIX}{node.log.log_id}" if owner == "log" else ""

    async def look() -> tuple[int, list[Difference]]:
        known, there = await _looked(node, store, owner, frozenset(namespaces), take_in)
        return len(known.keys() & there.keys()), list(differences(known, there, ours))

    both, found = await look()
    if found:
        await settle()
        both, again = await look()
        found = [one for one in again if one in found]
    alike = both - sum(1 for one in found if one.log and one.cluster)
    return Compared(
        cluster=cluster,
        owner=owner,
        position=max(node.position, node.views.objects_only.position),
        objects=alike,
        ok=not found,
        differences=found,
    )


def cluster_of(node: Node) -> str:
    """The uid of the cluster that a log is of; "" where it is not known. Raises: Invalid."""
    newest = next(iter(node.log.read(key=MIRROR_KEY, newest_first=True)), None)
    if newest is None:
        raise refused("kubernetes", "this log is of no cluster, so there is nothing to compare")
    return mirror.cluster_of(newest)


async def _checked_cluster(known: str, store: KubernetesStore) -> str:
    try:
        found = await store.cluster_id()
    except StorageFailed as error:
        if isinstance(error.__cause__, Forbidden):
            return ""
        raise
    if known and known != found:
        raise refused("kubernetes", f"this log is of the cluster {known}, and this is {found}")
    return found


async def _looked(
    node: Node,
    store: KubernetesStore,
    owner: Owner,
    namespaces: frozenset[str],
    take_in: Callable[[], object],
) -> tuple[dict[Key, Recorded], dict[Key, There]]:
    there = {key: found async for key, found in _there(store, namespaces)}
    take_in()  # after the cluster was read, so that what it had can be in the log
    known = {key: one for key, one in recorded(node, owner).items() if _is_in(key, namespaces)}
    return known, there


def _is_in(key: Key, namespaces: frozenset[str]) -> bool:
    namespace = ref_of(key).namespace
    return not (namespace and namespaces) or namespace in namespaces


async def _there(
    store: KubernetesStore, namespaces: frozenset[str]
) -> AsyncIterator[tuple[Key, There]]:
    """Of the namespaces that are followed; others the account may not be allowed to list."""
    for kind in mirror.MIRRORED:
        for namespace in (sorted(namespaces) if kind.namespaced else ()) or (None,):
            async for item in _listed(store, kind.name, namespace):
                metadata = item["metadata"]
                key = key_of(kind.name, metadata.get("namespace", ""), metadata["name"])
                yield key, _seen(key, item)


async def _listed(
    store: KubernetesStore, kind: str, namespace: str | None
) -> AsyncIterator[Document]:
    continue_ = ""
    while True:
        page = await store.list(kind, namespace, continue_=continue_)
        for item in page.items:
            yield item
        continue_ = page.continue_
        if not continue_:
            break


def _seen(key: Key, item: Mapping[str, Any]) -> There:
    metadata = item["metadata"]
    try:
        found = found_in(KINDS[ref_of(key).kind], dict(item))
    except ValueError as error:
        return There(metadata["uid"], metadata["resourceVersion"], "", b"", str(error))
    return There(found.uid, found.version, found.manager, found.made)


def recorded(node: Node, owner: Owner) -> dict[Key, Recorded]:
    """What the log has of the objects that are in the cluster too."""
    copies = _copies(node) if owner == "log" else {}
    set_back = _set_back(node)
    found = {}
    for key in node.objects.all_keys():
        stored = node.objects.find(key)
        if stored is None or not is_of_cluster(stored):
            continue
        origin = stored.body.origin
        uid, version = stored.body.uid, origin.resource_version if origin is not None else ""
        if owner == "log":
            copy = copies.get(key)
            uid, version = (copy.uid, copy.resource_version) if copy is not None else ("", "")
        position = position_of(stored.resource_version, node.log.epoch) or 0
        if position < set_back.get(ref_of(key).kind, 0):
            version = ""  # of another past: later ones may be lower
        found[key] = Recorded(uid, version, stored_digest(stored), position)
    return found


def _set_back(node: Node) -> dict[str, int]:
    """By kind, where the log has noticed last that the cluster was set back."""
    return {
        msgspec.json.decode(event.body, type=mirror.Restored).kind: event.seq
        for event in node.log.read(key=MIRROR_KEY)
        if event.type == MIRROR_RESTORED and event.body is not None
    }


def _copies(node: Node) -> dict[Key, mirror.Version]:
    """The newest version of each object that this log copied."""
    found: dict[Key, mirror.Version] = {}
    for event in node.log.read(key=MIRROR_KEY):
        if event.type == MIRROR_WRITTEN and event.body is not None:
            body = msgspec.json.decode(event.body, type=mirror.Written)
            found |= {version.key: version for version in body.versions}
    return found


def differences(
    known: Mapping[Key, Recorded], there: Mapping[Key, There], ours: str = ""
) -> Iterator[Difference]:
    """In order of kind, namespace and name. `ours` is the manager of what was copied there; ""
    where all that is there is the log's to follow."""
    for key in sorted(known.keys() | there.keys()):
        one, other = known.get(key), there.get(key)
        if one is None:
            assert other is not None
            if ours in ("", other.manager):
                yield _difference(key, "surplus", "the log has no such object", one, other)
        elif other is None:
            yield _difference(key, "missing", "the cluster has no such object", one, other)
        elif why := _why_not_alike(one, other, ours):
            yield _difference(key, "differing", why, one, other)


def _why_not_alike(one: Recorded, other: There, ours: str) -> str:
    if other.problem:
        return f"it cannot be read there: {other.problem}"
    if ours and other.manager != ours:
        return f"{other.manager or 'somebody else'} manages it there"
    if one.uid and one.uid != other.uid:
        return "it is another object of that name"
    if one.version and version_number(other.version) < version_number(one.version):
        return "the cluster has an older version"
    if one.made != other.made:
        is_same = one.version == other.version
        return f"{'the same' if is_same else 'a later'} version says something else there"
    return ""


def _difference(
    key: Key,
    difference: Literal["missing", "surplus", "differing"],
    why: str,
    one: Recorded | None,
    other: There | None,
) -> Difference:
    return Difference(
        object=str(ref_of(key)),
        difference=difference,
        why=why,
        position=one.position if one is not None else 0,
        log=Side(uid=one.uid, resource_version=one.version) if one is not None else None,
        cluster=Side(uid=other.uid, resource_version=other.version) if other is not None else None,
    )
