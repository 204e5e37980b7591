"""Changes of objects that a cluster owns: asked for here, carried out there, recorded here.

Three steps, each of which may be the last of a process: the intent is recorded, with who wants it
and why; the API server is asked; what it has then is recorded with the outcome, and only that is
acknowledged. A change whose answer was lost is settled by reading its objects, before the next one
begins, and when a process finds one open in its log.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import NoReturn

import msgspec

from kudurru.adapters.kubernetes.store import Deletion, KubernetesStore, Write
from kudurru.domain import mirror
from kudurru.domain.commands import (
    Apply,
    Command,
    Delete,
    Observe,
    ObserveGone,
    Origin,
    Revert,
)
from kudurru.domain.errors import KudurruError, NotFound, PartiallyApplied, StorageFailed
from kudurru.domain.kinds.registry import KINDS
from kudurru.domain.object_store import Outcome, manifest_of
from kudurru.domain.objects import Key, ref_of
from kudurru.domain.ports import Timers
from kudurru.entrypoints.cluster_facts import Facts, is_theirs, who_of
from kudurru.entrypoints.cluster_feed import Feed, Found, found_in
from kudurru.entrypoints.waiting import pause
from kudurru.entrypoints.wiring import Change, Node, Result
from kudurru.entrypoints.writer import Writer

log = logging.getLogger("kudurru.kubernetes")

RETRY_US = 1_000_000


class ClusterWrites:
    """Implements `writer.Elsewhere`."""

    def __init__(
        self,
        node: Node,
        writer: Writer,
        facts: Facts,
        store: KubernetesStore,
        feed: Feed,
        timers: Timers,
    ) -> None:
        self._node = node
        self._writer = writer
        self._facts = facts
        self._store = store
        self._feed = feed
        self._timers = timers
        self._turn = asyncio.Lock()
        self._held: list[Key] = []
        self._is_open = asyncio.Event()
        """A change has no outcome yet; at the start that is not known."""
        self._is_open.set()

    def takes(self, change: Change) -> bool:
        return any(is_theirs(self._node, command) for command in change.commands)

    async def submit(self, change: Change) -> Result:
        """Raises: what `Writer.submit` does; ManagedBy, Invalid, Conflict and PartiallyApplied as
        the API server has it; StorageFailed when it cannot be asked."""
        theirs = [command for command in change.commands if is_theirs(self._node, command)]
        tried = await self._writer.submit(_tried(change))
        if not self._feed.synced.is_set():
            raise StorageFailed(
                "the cluster that owns the objects was not read yet: nothing was changed; try again"
            )
        steps = [self._step(command) for command in theirs]
        outcomes = await self._store.carry_out(steps, dry_run=True)
        if change.dry_run:
            return msgspec.structs.replace(tried, outcomes=_merged(change, theirs, outcomes, tried))
        if all(outcome.verb == "unchanged" for outcome in outcomes) and len(theirs) == len(
            change.commands
        ):
            return tried
        async with self._turn:
            await self._settle_open()
            return await self._carry_out(change, theirs, steps)

    async def settle(self) -> None:
        """What was left open, by an earlier process or this one. Raises: StorageFailed when it
        cannot be read yet."""
        async with self._turn:
            await self._settle_open()

    async def keep_settled(self) -> NoReturn:
        """Settle what is left open as soon as the API server can be asked."""
        while True:
            await self._is_open.wait()
            try:
                await self.settle()
            except KudurruError as error:
                log.debug("a change is still open: %s", error)
                await pause(self._timers, RETRY_US)

    # --- the three steps ----------------------------------------------------------------

    async def _carry_out(
        self, change: Change, theirs: Sequence[Command], steps: Sequence[Write | Deletion]
    ) -> Result:
        keys = [mirror.key_of_command(command) for command in theirs]
        aims = mirror.Intended(cluster=self._facts.cluster, aims=mirror.aims_of(theirs))
        self._feed.hold(keys)
        self._held = keys
        self._is_open.set()  # from here on a crash leaves it so
        intent = (await self._facts.record(aims, change.who)).seq
        try:
            await self._store.carry_out_tried(steps)
        except KudurruError as error:
            await self._record_failed(intent, keys, change, error)
            raise _told(error) from error
        return await self._record_done(intent, keys, change)

    def _close(self, versions: Iterable[mirror.Version]) -> None:
        """The outcome is in the log."""
        for version in versions:
            self._feed.wrote(version.key, version.resource_version)
        self._feed.release(self._held)
        self._held = []
        self._is_open.clear()

    async def _record_done(self, intent: int, keys: Sequence[Key], change: Change) -> Result:
        """Both parts of a change: what the cluster has of it now, and what is ours alone."""
        versions, observed = await self._look(keys)
        by_key = {mirror.key_of_command(command): command for command in observed}
        commands = [
            by_key.get(mirror.key_of_command(command), command) for command in change.commands
        ]
        body = mirror.Written(cluster=self._facts.cluster, intent=intent, versions=versions)
        result = await self._facts.record(
            body,
            change.who,
            commands,
            secrets=change.secrets,
            imported_serials=change.imported_serials,
        )
        self._close(versions)
        return msgspec.structs.replace(result, outcomes=result.outcomes[: len(change.commands)])

    async def _record_failed(
        self, intent: int, keys: Sequence[Key], change: Change, error: KudurruError
    ) -> None:
        """What came of it in spite of the error. When that cannot be read it stays open."""
        try:
            versions, observed = await self._look(keys)
        except KudurruError:
            return
        body = mirror.Written(
            cluster=self._facts.cluster, intent=intent, versions=versions, refused=str(error)
        )
        await self._facts.record(body, change.who, observed)
        self._close(versions)

    async def _settle_open(self) -> None:
        if not self._is_open.is_set():
            return
        intent = mirror.open_intent(self._facts.newest_first())
        versions: list[mirror.Version] = []
        if intent is not None and intent.body is not None:
            aims = msgspec.json.decode(intent.body, type=mirror.Intended).aims
            versions, observed = await self._look(aim.key for aim in aims)
            body = mirror.Written(
                cluster=self._facts.cluster, intent=intent.seq, versions=versions, is_settled=True
            )
            await self._facts.record(body, who_of(intent), observed)
            log.info("the change of position %d was settled by reading its objects", intent.seq)
        self._close(versions)

    async def _look(self, keys: Iterable[Key]) -> tuple[list[mirror.Version], list[Command]]:
        """What the cluster has of these objects now."""
        versions: list[mirror.Version] = []
        commands: list[Command] = []
        for key in dict.fromkeys(keys):
            try:
                found = _found(key, await self._store.get(key))
            except NotFound:
                versions.append(mirror.Version(key=key, uid="", resource_version=""))
                commands.append(ObserveGone(key=key, origin=Origin(resource_version="")))
                continue
            assert found.content is not None
            version = mirror.Version(key=key, uid=found.uid, resource_version=found.version)
            versions.append(version)
            origin = Origin(resource_version=found.version, field_manager=found.owner)
            commands.append(
                Observe(manifest=found.content.manifest, manager=found.owner, origin=origin)
            )
        return versions, commands

    # --- translating --------------------------------------------------------------------

    def _expected(self, key: Key, expected: str | None) -> str | None:
        """The version in the cluster of what a caller read here, which is recorded."""
        found = self._feed.find(key) if expected else None
        return found.version if found is not None else None

    def _step(self, command: Command) -> Write | Deletion:
        match command:
            case Apply():
                expected = self._expected(command.manifest.key, command.expected)
                return Write(command.manifest, command.manager, command.force, expected)
            case Revert():
                manifest = manifest_of(
                    command.key, command.spec, command.labels, command.annotations
                )
                return Write(manifest, command.manager, True)
            case Delete():
                expected = self._expected(command.key, command.expected)
                return Deletion(command.key, command.manager, command.force, expected)
            case _:
                raise AssertionError(f"{command} is not for a cluster")


def _tried(change: Change) -> Change:
    """To be held against the rules that only this node knows. Who owns an object is up to the
    cluster, and so is which version it has."""
    commands = tuple(
        msgspec.structs.replace(command, force=True)
        if isinstance(command, Apply | Delete)
        else command
        for command in change.commands
    )
    return msgspec.structs.replace(change, commands=commands, dry_run=True, is_own=True)


def _merged(
    change: Change, theirs: Sequence[Command], outcomes: Sequence[Outcome], tried: Result
) -> list[Outcome]:
    """Outcomes in the order of the change: those of the cluster where it was asked."""
    by_command = {id(command): one for command, one in zip(theirs, outcomes, strict=True)}
    return [
        by_command.get(id(command), own)
        for command, own in zip(change.commands, tried.outcomes, strict=True)
    ]


def _told(error: KudurruError) -> KudurruError:
    """A refusal of the first object of all is that refusal: nothing was done."""
    cause = error.__cause__
    if isinstance(error, PartiallyApplied) and not error.done:
        return cause if isinstance(cause, KudurruError) else error
    return error


def _found(key: Key, document: dict[str, object]) -> Found:
    try:
        return found_in(KINDS[ref_of(key).kind], document)
    except ValueError as error:
        raise StorageFailed(f"{ref_of(key)} in the cluster cannot be read: {error}") from None
