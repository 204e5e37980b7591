"""What a cluster has, as events of the local log.

An informer for each kind says how an object is now. What differs from the log is recorded: with
whoever wrote it there as its actor, and the version that it has there in its body. What is as the
log has it is no event, whatever its version. So differences that were missed while the API server
was away arrive once, and our own writes come back without a trace.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, NoReturn, TypeAlias

from kudurru.adapters.kubernetes.answers import cut
from kudurru.adapters.kubernetes.client import Client
from kudurru.adapters.kubernetes.informer import IN_LOOP_MAX, Handler, Informer, Source
from kudurru.adapters.kubernetes.store import collection
from kudurru.domain import mirror
from kudurru.domain.commands import Command, Observe, ObserveGone, Origin, UpdateStatus
from kudurru.domain.errors import KudurruError
from kudurru.domain.events import Who
from kudurru.domain.kinds.meta import Spec
from kudurru.domain.kinds.registry import DNS_ZONE, KINDS, POLICY, Kind
from kudurru.domain.kinds.stored import read_zone
from kudurru.domain.kinds.zone import DNSZoneSpec
from kudurru.domain.mirror import version_number
from kudurru.domain.object_store import StoredObject
from kudurru.domain.objects import Key, key_of, ref_of
from kudurru.domain.ports import Clock, Timers
from kudurru.entrypoints.cluster.facts import Facts, actor, is_of_cluster
from kudurru.entrypoints.cluster.found import Found, found_in, of_all_nodes, stored_digest
from kudurru.entrypoints.cluster.missing import Gone, Missing
from kudurru.entrypoints.cluster.reach import Reach
from kudurru.entrypoints.waiting import pause
from kudurru.entrypoints.wiring import Change, Node
from kudurru.entrypoints.writer import Writer

log = logging.getLogger("kudurru.kubernetes")

BATCH = 256
"""Objects that are recorded at once: one transaction, for which queries wait some milliseconds."""
RETRY_US = 5_000_000
"""After a change that the log did not take."""
NOTE_US = 600_000_000
"""How often the log is told up to which versions it has followed, when something came."""
RECORDED_MAX = 65_536
"""Writes of ours that were not heard of yet. Of one beyond, what came before it may be recorded
after it, until it is heard of."""
EARLY_US = 50_000
EARLY_TRIES = 40
"""How long a serial waits for the records that it is of: kinds are watched one by one, and a zone
may be told of before its record sets. After two seconds it is taken as it is."""
WHY_MAX = 512
"""Octets that are told of why an object cannot be read."""

Seen: TypeAlias = Found | Gone


class Feed:
    """`run` it in a task, once the cluster is known to be the right one."""

    def __init__(
        self,
        node: Node,
        writer: Writer,
        facts: Facts,
        client: Client,
        *,
        namespaces: Iterable[str],
        records: bool,
        leads: Callable[[], bool],
        clock: Clock,
        timers: Timers,
        chance: random.Random,
        allows_much: bool = False,
        reach: Reach | None = None,
    ) -> None:
        """`records`: the cluster owns the objects. Statuses are the leader's to write, so one that
        `leads` takes none from the cluster."""
        self.synced = asyncio.Event()
        """Set when everything that was there at first is in the log."""
        self.on_seen: Callable[[Key], None] = _nobody
        """Told of objects that changed in the cluster, or are gone from it."""
        self.on_recovered: Callable[[], None] = lambda: None
        """Told when a watch is open again."""
        self.on_listed: Callable[[], None] = lambda: None
        """Told of each list, before what it lacks is looked at."""
        self.broken: dict[Key, str] = {}
        """Why an object cannot be read; the log keeps what it has of it."""
        self.refused: dict[Key, str] = {}
        """Why one that can be read is not taken; the same."""
        self.early_tries = EARLY_TRIES
        self.restored: dict[str, str] = {}
        """By kind, what was noticed last of a cluster that was set back."""
        self._node = node
        self._writer = writer
        self._facts = facts
        self._records = records
        self._leads = leads
        self._timers = timers
        self._reach = reach or Reach()
        self.missing = Missing(
            node, self._size, allows_much=allows_much, monotonic_us=clock.monotonic_us
        )
        self._waiting: dict[Key, Seen] = {}
        self._held: Counter[Key] = Counter()
        self._recorded: dict[Key, int] = {}
        """Versions that were recorded as the API server answered them, and not heard of yet."""
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        """Nothing waits to be recorded."""
        self._versions: dict[str, int] = {}
        self._noted: dict[str, str] = {}
        self._restorations: dict[str, mirror.Restored] = {}
        """By kind, what is not in the log yet."""
        self._parts = [
            _KindFeed(self, kind, namespace, client, chance)
            for kind in mirror.MIRRORED
            for namespace in (tuple(namespaces) if kind.namespaced else ()) or ("",)
        ]

    async def run(self) -> NoReturn:
        if self._records:
            await self._count_logged()
        followed = mirror.followed(self._facts.newest_first())
        for part in self._parts:
            part.informer.expect(followed.get(part.kind.name, ""))
        async with asyncio.TaskGroup() as tasks:
            for part in self._parts:
                tasks.create_task(part.informer.run(), name=f"informer {part.kind.name}")
            tasks.create_task(self._keep_noted(), name="cluster versions")
            await self._keep_recorded()

    # --- asking -------------------------------------------------------------------------

    def find(self, key: Key) -> Found | None:
        """As the cluster had it when it was last heard of."""
        part = self._part_of(key)
        return part.informer.copy.get(part.name_of(key)) if part is not None else None

    def _part_of(self, key: Key) -> "_KindFeed | None":
        """Who hears of an object; None where its namespace is not followed."""
        ref = ref_of(key)
        for part in self._parts:
            if part.kind.name == ref.kind and part.namespace in ("", ref.namespace):
                return part
        return None

    def all_keys(self) -> Iterator[Key]:
        for part in self._parts:
            yield from (found.key for found in part.informer.copy.values())

    def _size(self) -> int:
        """Objects that are there; of a kind whose list is not told whole those that were before."""
        informers = (part.informer for part in self._parts)
        return sum(len(one.versions) if one.before is None else one.before for one in informers)

    @property
    def is_current(self) -> bool:
        """Whether every watch is open."""
        return self.synced.is_set() and all(part.informer.is_synced for part in self._parts)

    def reopened(self) -> Mapping[str, int]:
        found: Counter[str] = Counter()
        for part in self._parts:
            found[part.kind.name] += part.informer.reopened
        return found

    def why_not_read(self) -> dict[str, str]:
        """By kind, what the API server refuses: a verb that is missing, say."""
        return {part.kind.plural: part.problem for part in self._parts if part.problem}

    async def caught_up(self, versions: Mapping[Key, str]) -> None:
        """Wait until these versions, or later ones, are recorded."""
        for part in self._parts:
            wanted = {k: int(v) for k, v in versions.items() if ref_of(k).kind == part.kind.name}
            await part.informer.changed(partial(self._has_all, wanted))
        await self._idle.wait()

    def _has_all(self, wanted: Mapping[Key, int]) -> bool:
        there = ((self.find(key), version) for key, version in wanted.items())
        return all(
            found is None or version_number(found.version) >= least for found, least in there
        )

    # --- our own writes -----------------------------------------------------------------

    def hold(self, keys: Iterable[Key]) -> None:
        """What comes of these objects waits until `release`: who writes them records what he
        wrote."""
        self._held.update(keys)

    def release(self, keys: Iterable[Key]) -> None:
        self._held.subtract(keys)
        self._held = +self._held
        self._wake.set()

    def wrote(self, key: Key, version: str) -> None:
        """The log has this version, so that what came before it is old."""
        if self._part_of(key) is None:
            return  # nothing is heard of it
        newest = max(self._recorded.pop(key, 0), version_number(version))
        self._recorded[key] = newest
        while len(self._recorded) > RECORDED_MAX:
            del self._recorded[next(iter(self._recorded))]

    def has(self, document: dict[str, Any], stored: StoredObject) -> bool:
        """Whether people wrote of an object in the cluster what the log has of it. Its
        resourceVersion may be another: versions that say nothing new are in no event. Statuses are
        not compared, since each node may have its own."""
        try:
            found = found_in(KINDS[ref_of(stored.key).kind], document)
        except ValueError:
            return False
        return found.uid == stored.body.uid and found.made == stored_digest(stored)

    def logged(self, found: Found) -> str:
        """The version that the log has of this very object, where it says."""
        stored = self._node.objects.find(found.key) if not self.synced.is_set() else None
        if stored is None or stored.body.uid != found.uid or stored.body.origin is None:
            return ""
        return stored.body.origin.resource_version

    # --- hearing ------------------------------------------------------------------------

    def hear(self, seen: Seen) -> None:
        self.broken.pop(seen.key, None)
        kind = ref_of(seen.key).kind
        self._versions[kind] = max(self._versions.get(kind, 0), version_number(seen.version))
        if self._records:
            self._waiting.pop(seen.key, None)  # the newest goes last
            if isinstance(seen, Found):
                self.missing.is_back(seen.key)
            if isinstance(seen, Found) or not self.missing.takes(seen):
                self._wait(seen)
            self._wake.set()
        elif isinstance(seen, Found):
            seen.content = None
        self.on_seen(seen.key)

    def hear_listed(self, part: "_KindFeed", version: str) -> None:
        """A list was told. A write of ours that is older and not in it was undone before anybody
        heard of it, so that nobody else misses it."""
        for key, written in list(self._recorded.items()):
            is_there = part.name_of(key) in part.informer.versions
            if self._part_of(key) is part and not is_there and written < version_number(version):
                self.hear(Gone(key, version, by_list=True))
        self.on_listed()
        self._wake.set()

    def look_at_missing(self) -> None:
        """It is known now whose cluster this is, or what was to be listed is not."""
        self._wake.set()

    def _wait(self, seen: Seen) -> None:
        self._waiting[seen.key] = seen
        self._idle.clear()

    def hear_first(self, part: "_KindFeed", version: str) -> None:
        """All that is there was told: what the log has and the cluster has not is gone."""
        kind = part.kind.name
        self._versions[kind] = max(self._versions.get(kind, 0), version_number(version))
        if part.informer.is_absent:
            log.warning(
                "%s are not installed in the cluster: this node serves those of its log; "
                "apply schemas/crds",
                part.kind.plural,
            )
        elif self._records:
            self.missing.begin(part.logged)
            for key in self._logged(part):
                if part.name_of(key) not in part.informer.versions:
                    self.missing.takes(Gone(key, version, by_list=True))
        self._wake.set()

    def _logged(self, part: "_KindFeed") -> Iterator[Key]:
        """What the log has of the cluster's."""
        for key in self._node.objects.keys(part.kind.name, part.namespace or None):
            stored = self._node.objects.find(key)
            if stored is not None and is_of_cluster(stored):
                yield key

    async def _count_logged(self) -> None:
        """Before anything is recorded of the first lists."""
        for part in self._parts:
            for _ in self._logged(part):
                part.logged += 1
                if part.logged % BATCH == 0:
                    await asyncio.sleep(0)

    def hear_restored(self, kind: str, seen: str, now: str) -> None:
        """The versions of the cluster went back. What was recorded is no measure any more."""
        prefix = f"{kind}/"
        self._recorded = {k: v for k, v in self._recorded.items() if not k.startswith(prefix)}
        self._versions[kind] = version_number(now)
        text = f"{kind} objects of the cluster went back from version {seen} to {now}"
        self.restored[kind] = text
        log.warning("%s: it was restored from a backup; the log follows it", text)
        before = self._restorations.get(kind)
        seen = before.seen if before is not None else seen
        self._restorations[kind] = mirror.Restored(
            cluster=self._facts.cluster, kind=kind, seen=seen, now=now
        )
        self._wake.set()

    # --- recording ----------------------------------------------------------------------

    async def _keep_recorded(self) -> NoReturn:
        while True:
            self._wake.clear()
            await self._record_restorations()
            is_read = all(part.has_read and not part.informer.is_listing for part in self._parts)
            for gone in self.missing.may_go() if is_read else ():
                self._wait(gone)
            ready = (seen for key, seen in self._waiting.items() if key not in self._held)
            batch = list(islice(ready, BATCH))
            if batch:
                await self._record(batch)
                continue
            if not self._waiting:
                self._idle.set()
                if is_read:
                    self._now_synced()
            await self._wake.wait()

    async def _record(self, batch: list[Seen]) -> None:
        for seen in batch:
            del self._waiting[seen.key]
        batch.sort(key=lambda seen: not seen.key.startswith(f"{DNS_ZONE.name}/"))
        done = await asyncio.gather(*map(self._record_one, batch), return_exceptions=True)
        failed = [one for one in zip(batch, done, strict=True) if one[1] is not None]
        for seen, error in failed:
            if not isinstance(error, KudurruError):
                assert isinstance(error, BaseException)
                raise error
            self._waiting.setdefault(seen.key, seen)
        if failed:
            log.error("what the cluster says is not recorded, and tried again: %s", failed[0][1])
            await pause(self._timers, RETRY_US)

    async def _record_one(self, seen: Seen) -> None:
        # What the API server answered to a write of ours is newer than what was on its way. Once
        # that write is heard of, all that comes is newer.
        if seen.as_of < self._recorded.get(seen.key, 0):
            return
        self._recorded.pop(seen.key, None)
        is_early = isinstance(seen, Found) and self._is_early(seen)
        if self._is_kept_out(seen):
            found = None if is_early else self._status_alone(seen)
        else:
            found = self.order(seen, is_early=is_early)
        if found is not None:
            command, who = found
            await self._writer.submit(Change(commands=(command,), who=who))
        if not isinstance(seen, Found):
            return
        if is_early:
            seen.tries += 1
            self._timers.call_later(EARLY_US, partial(self._look_again, seen))
        else:
            seen.content = None

    def _is_kept_out(self, seen: Seen) -> bool:
        """Whether the log keeps what it has of an object, whatever the cluster says."""
        why = self.why_kept_out(seen)
        self._note_refused(seen.key, why if isinstance(seen, Found) else "")
        return bool(why)

    def why_kept_out(self, seen: Seen, asked: Spec | None = None) -> str:
        """ "" where it is not. `asked` is what this node was asked to make of the object."""
        stored = self._node.objects.find(seen.key)
        if stored is not None and not is_of_cluster(stored):
            return f"this node has one of its own, of {stored.manager}; delete it in the cluster"
        if isinstance(seen, Found) and seen.content is not None:
            return cut(self._reach.why_not(seen.content.manifest.spec, stored, asked), WHY_MAX)
        return ""

    def _note_refused(self, key: Key, why: str) -> None:
        if self.refused.get(key, "") == why:
            return
        self.refused.pop(key, None)
        if why:
            log.warning("%s in the cluster is not taken: %s", ref_of(key), why)
            self.refused[key] = why
        self.on_seen(key)

    def _status_alone(self, seen: Seen) -> tuple[Command, Who] | None:
        """What the leader says of an object that is kept out, as of all: what it was before is
        served on, with the records that come and go, and the serials of that are his."""
        stored = self._node.objects.find(seen.key)
        if isinstance(seen, Gone) or seen.content is None or stored is None:
            return None
        is_zone = seen.content.manifest.kind is DNS_ZONE
        is_own = self._keeps_status(read_zone(stored.body.spec) if is_zone else None)
        is_other = seen.uid != stored.body.uid or not is_of_cluster(stored)
        status = of_all_nodes(seen.content.status)
        if status is None or is_own or is_other:
            return None
        command = UpdateStatus(key=seen.key, status=status, expected=stored.resource_version)
        return command, actor(seen.content.status_writer)

    def _is_early(self, seen: Found) -> bool:
        """Whether a zone has a serial there, and here not yet the records that it is of."""
        content = seen.content
        if content is None or content.manifest.kind is not DNS_ZONE:
            return False
        if seen.tries >= self.early_tries or self._keeps_status(content.manifest.spec):
            return False
        said = (content.status or {}).get("contentHash")
        state = self._node.zones.state(content.manifest.meta.name)
        zone = state.zone if state is not None else None
        return said is not None and (zone is None or zone.digest() != said)

    def _look_again(self, seen: Found) -> None:
        if self.find(seen.key) is seen and seen.key not in self._waiting:
            self._waiting[seen.key] = seen
            self._idle.clear()
            self._wake.set()

    def order(self, seen: Seen, *, is_early: bool = False) -> tuple[Command, Who] | None:
        """What to record of an object, and who did it; None where that was done. One that
        `is_early` without its status."""
        if isinstance(seen, Gone):
            return ObserveGone(key=seen.key, origin=Origin(resource_version=seen.version)), actor(
                ""
            )
        content = seen.content
        if content is None:
            return None
        is_kept = is_early or self._keeps_status(content.manifest.spec)
        status = None if is_kept else of_all_nodes(content.status)
        is_content_new = self.is_new(seen)
        writer = content.writer if is_content_new or status is None else content.status_writer
        origin = Origin(resource_version=seen.version, field_manager=writer)
        command = Observe(
            manifest=content.manifest, manager=seen.owner, origin=origin, status=status
        )
        return command, actor(writer)

    def is_new(self, seen: Found) -> bool:
        """Whether the log has it otherwise, whatever its status."""
        stored = self._node.objects.find(seen.key)
        return stored is None or stored_digest(stored) != seen.made

    def _keeps_status(self, spec: Spec | None) -> bool:
        """Whether the status is this node's to say: as leader, and of zones that it fetches."""
        is_fetched = isinstance(spec, DNSZoneSpec) and spec.type == "Secondary"
        return is_fetched or self._leads()

    def _now_synced(self) -> None:
        if not self.synced.is_set():
            log.info("in step with the cluster: %d objects", sum(1 for _ in self.all_keys()))
            self.synced.set()

    # --- facts --------------------------------------------------------------------------

    async def _record_restorations(self) -> None:
        while self._restorations:
            kind, newest = next(iter(self._restorations.items()))
            try:
                await self._facts.record(newest)
            except KudurruError as error:
                log.warning("that the cluster was set back is not recorded yet: %s", error)
                return
            if self._restorations[kind] is newest:
                del self._restorations[kind]

    async def _keep_noted(self) -> NoReturn:
        await self.synced.wait()
        while True:
            await self.note()
            await pause(self._timers, NOTE_US)

    async def note(self) -> None:
        """Tell the log up to where it has followed the cluster; nothing when it knows."""
        versions = {kind: str(number) for kind, number in sorted(self._versions.items())}
        if self._noted == versions:
            return
        synced = mirror.newest_synced(self._facts.newest_first())
        if synced is None or (synced.cluster, synced.versions) != (self._facts.cluster, versions):
            body = mirror.Synced(cluster=self._facts.cluster, versions=versions)
            try:
                await self._facts.record(body)
            except KudurruError as error:
                log.warning("the log is not told which versions it has followed: %s", error)
                return
        self._noted = versions


class _KindFeed(Handler[Found]):
    """One kind, in one namespace or all."""

    def __init__(
        self, feed: Feed, kind: Kind, namespace: str, client: Client, chance: random.Random
    ) -> None:
        self.kind = kind
        self.namespace = namespace
        self.has_read = False
        self.logged = 0  # objects that the log had before the first list
        self.problem = ""
        self._set_back_in = -1  # number of the list that it was noticed in
        self._told_since: set[str] = set()  # in that list, which may have to begin again
        self._feed = feed
        path = collection(kind, namespace or None)
        self.informer: Informer[Found] = Informer(
            client,
            Source(path),
            lambda document: found_in(kind, document),
            self,
            chance=chance,
            # The regexes of a small one may take as long to compile as those of a large one.
            in_loop_max=0 if kind is POLICY else IN_LOOP_MAX,
        )

    def name_of(self, key: Key) -> str:
        ref = ref_of(key)
        return f"{ref.namespace}/{ref.name}" if ref.namespace else ref.name

    def key_of(self, name: str) -> Key:
        namespace, _, name = name.rpartition("/")
        return key_of(self.kind.name, namespace, name)

    def put(self, key: str, new: Found, old: Found | None) -> None:
        new.as_of = version_number(self.informer.as_of)
        seen = old.version if old is not None else ""
        is_told = key in self._told_since
        if not is_told:  # what was told may not be in the log yet
            seen = max(seen, self._feed.logged(new), key=version_number)
        is_known = self._set_back_in == self.informer.lists and not is_told
        if version_number(new.version) < version_number(seen) and not is_known:
            # Versions only rise, so that it was set back, and went on from there since. Of one list
            # it is said once, whatever its objects have; but for those that it told already.
            self.rolled_back(seen, new.version)
        if self._set_back_in == self.informer.lists:
            self._told_since.add(key)
        self._feed.hear(new)

    def gone(self, key: str, last: Found | None, version: str) -> None:  # noqa: ARG002
        if version:  # else its definition is gone, and the log keeps what it has
            self._feed.hear(Gone(self.key_of(key), version, by_list=self.informer.is_listing))

    def read(self, version: str) -> None:
        self.has_read, self.problem = True, ""
        self._feed.hear_first(self, version)

    def listed(self) -> None:
        self._told_since.clear()
        self._feed.hear_listed(self, self.informer.as_of)

    def recovered(self) -> None:
        self.problem = ""
        self._feed.on_recovered()

    def list_failed(self, error: Exception) -> None:
        self.problem = str(error)
        self._feed.look_at_missing()

    def broken(self, key: str, why: str) -> None:
        known, why = self.key_of(key), cut(why, WHY_MAX)
        if self._feed.broken.get(known) != why:
            log.warning("%s in the cluster cannot be read, and is left as it was: %s",
                        ref_of(known), why)  # fmt: skip
        self._feed.broken[known] = why
        self._feed.missing.is_back(known)  # whatever it says

    def rolled_back(self, seen: str, now: str) -> None:
        self._set_back_in = self.informer.lists
        self._told_since.clear()
        self._feed.hear_restored(self.kind.name, seen, now)


def _nobody(key: Key) -> None:
    """Who is told while nobody wants to know."""
    del key
