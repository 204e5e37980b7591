"""Changes of objects that a cluster owns: asked for here, carried out there, recorded here.

Three steps, each of which may be the last of a process: the intent is recorded, with who wants it
and why; the API server is asked; what it has then is recorded with the outcome, and only that is
acknowledged. A change whose answer was lost is settled by reading its objects, before the next one
begins, and when a process finds one open in its log.
"""

import asyncio
import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import msgspec

from kudurru.adapters.kubernetes.store import Carried, Deletion, Expected, KubernetesStore, Write
from kudurru.domain import mirror
from kudurru.domain.codec import canonical
from kudurru.domain.commands import (
    Apply,
    Command,
    Delete,
    Observe,
    ObserveGone,
    Origin,
    Revert,
)
from kudurru.domain.errors import (
    Cause,
    Conflict,
    Invalid,
    KudurruError,
    NotFound,
    PartiallyApplied,
    StorageFailed,
)
from kudurru.domain.events import Who
from kudurru.domain.kinds.registry import KINDS
from kudurru.domain.kinds.validation import Manifest
from kudurru.domain.object_store import Outcome, annotations_after, manifest_of
from kudurru.domain.objects import Key, ref_of
from kudurru.domain.ports import Timers
from kudurru.entrypoints.cluster.facts import Facts, is_theirs, who_of
from kudurru.entrypoints.cluster.feed import Feed
from kudurru.entrypoints.cluster.found import Found, found_in
from kudurru.entrypoints.waiting import pause
from kudurru.entrypoints.wiring import Change, Node, Result
from kudurru.entrypoints.writer import Writer

log = logging.getLogger("kudurru.kubernetes")

RETRY_US = 1_000_000
_APPLY, _DELETE = "apply", "delete"


class _Done(NamedTuple):
    """A step that the API server answered."""

    key: Key
    theirs: tuple[Command, Who] | None  # what others wrote before, and is to be recorded first
    after: Found | None  # None: it is not there any more, or is refused
    refused: str = ""
    """Why the log does not take what came of it: the cluster puts in what others hold."""
    version: mirror.Version | None = None  # of what is refused


class _Looked(NamedTuple):
    """What came of a change, and the orders to record it."""

    versions: list[mirror.Version]
    commands: list[Command]

    def add(self, key: Key, found: Found | None) -> None:
        if found is None:
            self.versions.append(mirror.Version(key=key, uid="", resource_version=""))
            self.commands.append(ObserveGone(key=key, origin=Origin(resource_version="")))
            return
        assert found.content is not None
        version = mirror.Version(key=key, uid=found.uid, resource_version=found.version)
        origin = Origin(resource_version=found.version, field_manager=found.owner)
        manifest = found.content.manifest
        self.versions.append(version)
        self.commands.append(Observe(manifest=manifest, manager=found.owner, origin=origin))


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
        aims = [self._aim(step) for step in steps]
        keys = [aim.key for aim in aims]
        self._feed.hold(keys)
        self._held = keys
        self._is_open.set()  # from here on a crash leaves it so
        intended = mirror.Intended(cluster=self._facts.cluster, aims=aims)
        intent = (await self._facts.record(intended, change.who)).seq
        done: list[_Done] = []
        seen: set[Key] = set()
        try:
            async for carried in self._store.carried_out(steps):
                step = steps[len(done)]
                done.append(self._done(carried, step, is_first=carried.key not in seen))
                seen.add(carried.key)
        except KudurruError as error:
            await self._record_failed(intent, done, aims[len(done)], change, error)
            raise _told(error) from error
        if refusals := [one for one in done if one.refused]:
            await self._record_refused(intent, done, refusals, change)
            raise _refusal(done, refusals)
        return await self._record_done(intent, done, theirs, change)

    def _close(self, versions: Iterable[mirror.Version]) -> None:
        """The outcome is in the log."""
        for version in versions:
            self._feed.wrote(version.key, version.resource_version)
        self._feed.release(self._held)
        self._held = []
        self._is_open.clear()

    async def _record_done(
        self, intent: int, done: Sequence[_Done], theirs: Sequence[Command], change: Change
    ) -> Result:
        """Both parts of a change: what the cluster answered to it, and what is ours alone."""
        versions, observed = await self._answered(done)
        by_command = {id(of): command for of, command in zip(theirs, observed, strict=True)}
        commands = [by_command.get(id(command), command) for command in change.commands]
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

    async def _record_refused(
        self, intent: int, done: Sequence[_Done], refusals: Sequence[_Done], change: Change
    ) -> None:
        """The cluster took it and this node does not: of the refused only that they were made."""
        versions, observed = await self._answered(done)
        body = mirror.Written(
            cluster=self._facts.cluster,
            intent=intent,
            versions=versions,
            refused="; ".join(f"{ref_of(one.key)}: {one.refused}" for one in refusals),
        )
        await self._facts.record(body, change.who, observed)
        self._close(versions)

    async def _record_failed(
        self,
        intent: int,
        done: Sequence[_Done],
        failed: mirror.Aim,
        change: Change,
        error: KudurruError,
    ) -> None:
        """What came of it in spite of the error. When that cannot be read it stays open."""
        is_known = not isinstance(error.__cause__, StorageFailed)  # but refused
        try:
            lost = await self._look([] if is_known else [failed])
        except KudurruError:
            return
        answered = await self._answered(done)
        body = mirror.Written(
            cluster=self._facts.cluster,
            intent=intent,
            versions=answered.versions + lost.versions,
            refused=str(error),
        )
        await self._facts.record(body, change.who, answered.commands + lost.commands)
        self._close(body.versions)

    async def _settle_open(self) -> None:
        if not self._is_open.is_set():
            return
        intent = mirror.open_intent(self._facts.newest_first())
        versions: list[mirror.Version] = []
        if intent is not None and intent.body is not None:
            if self._feed.missing.is_unknown:
                raise StorageFailed(
                    "what became of an earlier change cannot be told while it is unknown whether "
                    "this is the cluster of the log: nothing was changed; bind "
                    "schemas/rbac/cluster-id.yaml, or set kubernetes.clusterID"
                )
            aims = msgspec.json.decode(intent.body, type=mirror.Intended).aims
            versions, observed = await self._look(aims)
            body = mirror.Written(
                cluster=self._facts.cluster, intent=intent.seq, versions=versions, is_settled=True
            )
            await self._facts.record(body, who_of(intent), observed)
            log.info("the change of position %d was settled by reading its objects", intent.seq)
        self._close(versions)

    def _done(self, carried: Carried, step: Write | Deletion, *, is_first: bool) -> "_Done":
        """What is to be recorded of it. What others wrote before, and is not in the log yet, is in
        what was read in the moment of the write."""
        key, before = carried.key, carried.before
        theirs = self._theirs(key, before) if before is not None and is_first else None
        if carried.after is not None:
            return self._answer(key, theirs, carried.after, step)
        if before is not None:  # what is older than the deletion is not told any more
            self._feed.wrote(key, str(int(before["metadata"]["resourceVersion"]) + 1))
        return _Done(key, theirs, None)

    def _answer(
        self,
        key: Key,
        theirs: tuple[Command, Who] | None,
        document: dict[str, Any],
        step: Write | Deletion,
    ) -> "_Done":
        asked = step.manifest.spec if isinstance(step, Write) else None
        try:
            found = _found(key, document)
            why = self._feed.why_kept_out(found, asked)
        except ValueError as error:
            found, why = None, f"what came of it cannot be read: {error}"
        if not why:
            return _Done(key, theirs, found)
        metadata = document["metadata"]
        version = mirror.Version(
            key=key, uid=metadata["uid"], resource_version=metadata["resourceVersion"]
        )
        return _Done(key, theirs, None, why, version)

    def _theirs(self, key: Key, document: dict[str, Any]) -> tuple[Command, Who] | None:
        """Not what the feed refuses too: it tells of it."""
        try:
            found = _found(key, document)
        except ValueError:
            return None
        if self._feed.why_kept_out(found):
            return None
        return self._feed.order(found) if self._feed.is_new(found) else None

    async def _answered(self, done: Iterable["_Done"]) -> "_Looked":
        """What the API server answered; what others wrote before is recorded first, as theirs."""
        looked = _Looked([], [])
        for one in done:
            if one.theirs is not None:
                command, who = one.theirs
                await self._writer.submit(Change(commands=(command,), who=who))
            if one.version is not None:
                looked.versions.append(one.version)
            else:
                looked.add(one.key, one.after)
        return looked

    async def _look(self, aims: Iterable[mirror.Aim]) -> "_Looked":
        """What came of an intent whose answer was lost, as its objects are now. What somebody made
        of them since is his, and is left to the feed."""
        looked = _Looked([], [])
        for aim in {aim.key: aim for aim in aims}.values():
            try:
                document = await self._store.get(aim.key)
            except NotFound:
                if aim.verb == _DELETE:
                    looked.add(aim.key, None)
                continue
            try:
                found = _found(aim.key, document)
            except ValueError as error:  # nothing of ours is so
                log.info("%s is somebody else's by now: %s", ref_of(aim.key), error)
                continue
            if found.content is not None and aim.made == _digest(
                found.content.manifest, found.owner
            ):
                looked.add(aim.key, found)
        return looked

    def _aim(self, step: Write | Deletion) -> mirror.Aim:
        if isinstance(step, Deletion):
            return mirror.Aim(verb=_DELETE, key=step.key)
        stored = self._node.objects.find(step.key)
        kept = stored.body.annotations if stored is not None else {}
        made = _digest(step.manifest, step.manager, kept)
        return mirror.Aim(verb=_APPLY, key=step.key, made=made)

    # --- translating --------------------------------------------------------------------

    def _expected(self, key: Key, expected: str | None) -> Expected:
        """That the cluster has what a caller read here. Raises: Conflict when the log has another
        version by now."""
        if not expected:
            return expected  # none, or ABSENT
        stored = self._node.objects.find(key)
        if stored is None or stored.resource_version != expected:
            raise Conflict(f"{ref_of(key)} is not at resourceVersion {expected}: read it again")
        return lambda document: self._feed.has(document, stored)

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
        msgspec.structs.replace(by_command.get(id(command), own), warnings=own.warnings)
        for command, own in zip(change.commands, tried.outcomes, strict=True)
    ]


def _told(error: KudurruError) -> KudurruError:
    """A refusal of the first object of all is that refusal: nothing was done."""
    cause = error.__cause__
    if isinstance(error, PartiallyApplied) and not error.done:
        return cause if isinstance(cause, KudurruError) else error
    return error


def _digest(manifest: Manifest, manager: str, kept: Mapping[str, str] | None = None) -> str:
    """Of what an Apply makes of an object that has the annotations `kept`."""
    meta = manifest.meta
    annotations = annotations_after(meta.annotations, kept or {})
    said = canonical([manifest.spec, meta.labels, annotations, manager])
    return hashlib.blake2b(said, digest_size=16).hexdigest()


def _refusal(done: Sequence[_Done], refusals: Sequence[_Done]) -> KudurruError:
    """What is told of a change that the cluster took, and this node does not."""
    first = refusals[0]
    why = f"it is so in the cluster, and not taken here: {first.refused}"
    if len(done) == 1:
        return Invalid(str(ref_of(first.key)), [Cause("", why)])
    others = [str(one.key) for one in done if not one.refused]
    left = [str(one.key) for one in refusals[1:]]
    return PartiallyApplied(others, str(first.key), left, why)


def _found(key: Key, document: dict[str, Any]) -> Found:
    """Raises: ValueError for what cannot be read, whatever is in it."""
    try:
        return found_in(KINDS[ref_of(key).kind], document)
    except ValueError:
        raise
    except Exception as error:  # as the informer has it
        log.warning("%s in the cluster cannot be converted", ref_of(key), exc_info=True)
        raise ValueError(f"{type(error).__name__}: {error}") from None
