"""Facts about the cluster in the log, and who the actors of a cluster are."""

import asyncio
from collections.abc import Iterable, Iterator

import msgspec

from kudurru.adapters.metrics import Sample
from kudurru.domain import mirror
from kudurru.domain.commands import Command, Delete
from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.events import MIRROR_KEY, Recorded, SecretWrite, Who
from kudurru.domain.object_store import StoredObject
from kudurru.domain.settings import KubernetesSettings
from kudurru.entrypoints.wiring import Change, Node, Result
from kudurru.entrypoints.writer import Writer

SOURCE = "kubernetes"
SYSTEM = Who(actor="system", source=SOURCE)


def actor(field_manager: str) -> Who:
    """Who wrote an object there, as far as the API server says: it keeps no user names."""
    name = f"{SOURCE}:{field_manager}" if field_manager else SOURCE
    return Who(actor=name, source=SOURCE)


class Facts:
    """Records facts in the stream of the mirror, one after the other. `cluster` is the uid of
    kube-system; "" while it is not known."""

    def __init__(self, node: Node, writer: Writer) -> None:
        self._node = node
        self._writer = writer
        self._turn = asyncio.Lock()
        newest = next(self.newest_first(), None)
        self.has_history = newest is not None
        """Whether the log is of a cluster, whose it follows or that it is copied to."""
        self.cluster = mirror.cluster_of(newest) if newest is not None else ""
        synced = mirror.newest_synced(self.newest_first())
        self.has_followed = synced is not None and bool(synced.versions)
        """Whether the log had all of that cluster once."""

    def check_cluster(self, found: str) -> None:
        """Raises: Invalid when the log is of another cluster."""
        if self.cluster and found and found != self.cluster:
            raise refused(
                "kubernetes",
                f"this log is of the cluster {self.cluster}, and this is {found}: "
                "give the data directory of this cluster, or an empty one",
            )

    async def bind(self, cluster: str) -> None:
        """From now on the log is of this cluster. Raises what `submit` does."""
        self.cluster = cluster
        if not self.has_history:
            await self.record(mirror.Synced(cluster=cluster, versions={}))
            self.has_history = True

    def newest_first(self) -> Iterator[Recorded]:
        """The stream, as the log has it."""
        return iter(self._node.log.read(key=MIRROR_KEY, newest_first=True))

    async def record(
        self,
        body: mirror.Body,
        who: Who = SYSTEM,
        commands: Iterable[Command] = (),
        *,
        secrets: tuple[SecretWrite, ...] = (),
        imported_serials: dict[str, int] | None = None,
    ) -> Result:
        """With the events of `commands`, together or not at all. Raises what `submit` does."""
        async with self._turn:
            order = mirror.fact(body, self._node.objects.version(MIRROR_KEY))
            change = Change(
                commands=(*commands, order),
                who=who,
                secrets=secrets,
                imported_serials=imported_serials or {},
            )
            return await self._writer.submit(change)


def checked_facts(settings: KubernetesSettings, node: Node, writer: Writer) -> Facts:
    """What the log says of its cluster, before anything is served from it. Raises: Invalid."""
    facts, owns = Facts(node, writer), settings.owner == "cluster"
    if node.log.is_shared and owns:
        raise refused(
            "kubernetes.owner",
            "a log in PostgreSQL is shared, and here each node keeps its own: leave --store "
            "out, or let the log own the objects",
        )
    facts.check_cluster(settings.cluster_id)
    if owns and not facts.has_history and _has_objects(node):
        raise refused(
            "kubernetes.owner",
            "this log has objects of its own, which the cluster would take away: copy them "
            "there first with kubernetes.owner: log, or give another --data",
        )
    return facts


def _has_objects(node: Node) -> bool:
    """In the log, whose views may not be built yet."""
    kinds = (kind.name for kind in mirror.MIRRORED)
    head = node.log.head().seq
    return any(next(iter(node.log.births(kind, head)), None) for kind in kinds)


def refused(key: str, why: str) -> Invalid:
    return Invalid(key, [Cause("", why)])


def is_of_cluster(stored: StoredObject) -> bool:
    """Whether it is the cluster's to take away, and no node's own. Earlier versions took managers
    of a node's own objects from there; what came from a cluster has an origin."""
    return mirror.is_mirrored(stored.key, stored.manager) or stored.body.origin is not None


def is_theirs(node: Node, command: Command) -> bool:
    """Whether a command is the cluster's to carry out, where it owns the objects."""
    stored = node.objects.find(command.key) if isinstance(command, Delete) else None
    if stored is not None:
        return is_of_cluster(stored)
    return mirror.is_for_cluster(command)


# --- what is said of a node that is not in step with its cluster ----------------------------


def not_synced(problem: str) -> str:
    why = f": {problem}" if problem else ""
    return f"NotSynced: the objects of the cluster are being read{why}"


def from_snapshot(age_s: float, problem: str) -> str:
    why = f": {problem}" if problem else ""
    return (
        f"ServingFromSnapshot: the cluster was not read yet, this node answers as its log was "
        f"{age_s:.0f} s ago{why}"
    )


def snapshot_samples(age_s: float | None) -> Iterator[Sample]:
    """None: it is in step, or need not be."""
    yield Sample("store_snapshot_serving", (), age_s is not None)
    yield Sample("store_snapshot_age_seconds", (), age_s or 0.0)


def who_of(event: Recorded) -> Who:
    """Who an intent was recorded for; the system where that was erased."""
    return msgspec.json.decode(event.who, type=Who) if event.who is not None else SYSTEM
