"""Facts about the cluster in the log, and who the actors of a cluster are."""

import asyncio
from collections.abc import Iterable, Iterator

import msgspec

from kudurru.domain import mirror
from kudurru.domain.commands import Command
from kudurru.domain.events import MIRROR_KEY, Recorded, SecretWrite, Who
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


def who_of(event: Recorded) -> Who:
    """Who an intent was recorded for; the system where that was erased."""
    return msgspec.json.decode(event.who, type=Who) if event.who is not None else SYSTEM
