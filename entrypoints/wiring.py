"""A node: one log, its views, and the road from a command to an event.

`Node` is synchronous and knows no sockets: the command line uses it on a directory, tests with a
memory log, and the server drives it from its one writer.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import Protocol

import msgspec

from kudurru.adapters.time_zones import find_time_zone
from kudurru.domain.clock_steps import Reading, step
from kudurru.domain.commands import Command, UpdateStatus
from kudurru.domain.dns.names import Name
from kudurru.domain.errors import Busy, Conflict, Follows, KudurruError, LogNewer
from kudurru.domain.events import (
    CLOCK_STEPPED,
    LOG_EPOCH,
    OBJECT_STATUS,
    SYSTEM_KEY,
    ChangeSet,
    Event,
    Position,
    Recorded,
    SecretWrite,
    Who,
)
from kudurru.domain.object_store import (
    CONTROLLER,
    Batch,
    Outcome,
    StoredObject,
    resource_version,
)
from kudurru.domain.objects import Key, ref_of
from kudurru.domain.ports import Clock, Entropy, EventLog
from kudurru.domain.reconcile.conditions import status_with
from kudurru.domain.reconcile.zones import next_serial, stamped_status
from kudurru.domain.restore import Scope
from kudurru.entrypoints.steps import PER_STEP, Steps, finish
from kudurru.projections import as_of, mass_change
from kudurru.projections.bodies import Bodies
from kudurru.projections.clock_view import ClockView
from kudurru.projections.follow import Follower
from kudurru.projections.lists_view import ListsView
from kudurru.projections.objects_view import ObjectsView
from kudurru.projections.policy_view import PolicyView
from kudurru.projections.statuses import Statuses
from kudurru.projections.zone_state import ZoneState
from kudurru.projections.zone_view import OnChange, ZoneView

log = logging.getLogger("kudurru")

_ZONES = "DNSZone/"

STEPPED_MIN = 500
"""Events that are not taken in without a break. Before a break what is served is copied, and a
copy of a large zone takes as long as some hundred events."""


RECENT_BYTES_MAX = 4_096
"""Of a body that is remembered until the next group: those of a group are two megabytes at most."""


class Guard(msgspec.Struct, frozen=True):
    """A change was decided from a scope as it was at a position: it is refused with Conflict when
    the scope has moved since, other than by events of this cause."""

    scope: Scope
    base: int
    cause: str


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Commands that happen together or not at all, and who wants them."""

    commands: tuple[Command, ...]
    who: Who
    dry_run: bool = False
    imported_serials: dict[str, int] = {}
    """Serials that zones had in the files they came from, by name of the DNSZone."""
    allow_mass_change: bool = True
    guard: Guard | None = None
    secrets: tuple[SecretWrite, ...] = ()
    """Secret parts of the objects, written with the events that come of the commands."""
    is_own: bool = False
    """To be decided here, also where another place owns the objects."""


class Result(msgspec.Struct, frozen=True):
    """What became of a change: one outcome per command, and the position of its last event that is
    no status, as of which what was asked for is there (0: nothing was written)."""

    outcomes: list[Outcome]
    seq: Position


class Overtaken(Exception):
    """Another node appended first: catch up and decide again."""


ATTEMPTS_MAX = 16
"""How often a change is decided before its caller is told that others are faster all the time."""

BUSY = "other nodes append faster than this one can decide; try again"


class Observer(Protocol):
    """Who wants to hear of changes of objects."""

    def wants(self, key: Key) -> bool: ...

    def changed(
        self, event: Recorded, before: StoredObject | None, after: StoredObject | None
    ) -> None: ...


class _Decided(msgspec.Struct):
    change: Change
    events: list[Event]
    outcomes: list[Outcome]


class Views:
    """The views of a log, and the follower that keeps them in step."""

    def __init__(
        self,
        read_event: Callable[[int], Recorded | None],
        epoch: int,
        on_change: OnChange = lambda _changed: None,
        *,
        oldest: Callable[[], Position] = lambda: Position(0),
        hold_bodies: bool = False,
    ) -> None:
        self._oldest = oldest
        self.objects = ObjectsView(read_event, epoch)
        self.zones = ZoneView(self.objects, read_event, on_change)
        self.clock = ClockView()
        self.lists = ListsView(on_change)
        self.policies = PolicyView(find_time_zone, on_change)
        self.policies.subscribe(self.lists.inline)
        self.statuses = Statuses(self.objects, self.zones, self.policies)
        self.bodies = Bodies(self.objects) if hold_bodies else None
        first = [self.bodies] if self.bodies is not None else []
        # The zone view reads objects as they were before the event at hand: it comes first.
        self.follower = Follower(
            [*first, self.clock, self.lists, self.policies, self.zones, self.objects], oldest
        )
        self.objects_only = Follower([*first, self.objects], oldest)
        """For reads that need no zones; the two are not mixed on one instance."""

    def follower_to(self, name: str) -> Follower:
        """What leads to one view: that, and those that it reads. Not mixed with the others
        either."""
        needed = {"zones": ("bodies", "zones", "objects"), "bodies": ("bodies", "objects")}
        found = [p for p in self.follower.projections if p.name in needed.get(name, (name,))]
        return Follower(found, self._oldest)

    def digests(self) -> dict[str, str]:
        return {p.name: p.digest() for p in self.follower.projections}


class Node:
    """One log and its views. One thread at a time."""

    def __init__(
        self,
        log: EventLog,
        clock: Clock,
        entropy: Entropy,
        on_change: OnChange = lambda _changed: None,
    ) -> None:
        self.log = log
        self.clock = clock
        self._entropy = entropy
        self._pending: dict[int, Recorded] = {}
        self._recent: dict[int, Recorded] = {}
        """Of the newest group, by seq: who wrote an object is told what became of it, and the log
        need not be asked for what it was told just now."""
        self._seen = 0
        self.observer: Observer | None = None
        self._why_not_whole: KudurruError | None = None
        self.follows: Follows | None = None
        """Set where the log is a copy of another node's."""
        self.blocked: KudurruError | None = None
        """Set where another node goes on from this log, or may do so."""
        self._last_reading: Reading | None = None  # that the log knows; None: not looked at yet
        self._reading: Reading | None = None
        self.views = Views(
            self._read_event,
            log.epoch,
            on_change,
            oldest=log.oldest,
            hold_bodies=log.is_shared,
        )

    def _read_event(self, seq: int) -> Recorded | None:
        bodies = self.views.bodies
        held = bodies.find(seq) if bodies is not None else None
        return held or self._recent.get(seq) or self._pending.get(seq) or self.log.get(seq)

    @property
    def objects(self) -> ObjectsView:
        return self.views.objects

    @property
    def zones(self) -> ZoneView:
        return self.views.zones

    @property
    def position(self) -> Position:
        """Of the newest event that is in the views."""
        return self.views.follower.position

    def news(self, limit: int) -> list[Recorded]:
        """What the log holds and the views do not, at most `limit` events. In any thread."""
        if self.views.follower.stopped_at is not None:
            return []
        found = list(islice(self.log.read(self.position), limit))
        self._note_seen(found)
        return found

    def known_head(self) -> int:
        """Newest position of the log, as far as it is known without asking over a network."""
        return max(self._seen, self.position) if self.log.is_shared else self.log.head().seq

    def _note_seen(self, recorded: Sequence[Recorded]) -> None:
        if recorded:
            self._seen = max(self._seen, recorded[-1].seq)

    def catch_up(self) -> int:
        """Take in what the log holds and the views do not; how many events that was."""
        count = self.views.follower.catch_up(self.log)
        self.advance()
        return count

    def advance(self) -> None:
        self.views.follower.advance(self.clock.now_us() // 1_000_000)

    # --- changing -----------------------------------------------------------------------

    def decide(self, changes: Sequence[Change], now_us: int) -> list[_Decided | KudurruError]:
        """Decide changes in order, each seeing the earlier ones. A refused change is its error."""
        return finish(self.decide_steps(changes, now_us))

    def decide_steps(
        self, changes: Sequence[Change], now_us: int
    ) -> Steps[list[_Decided | KudurruError]]:
        self.check_writable()
        outer = self._batch(now_us)
        decided: list[_Decided | KudurruError] = []
        for change in changes:
            try:
                if change.guard is not None:
                    self._check_unmoved(change.guard, decided)
                decided.append((yield from self._decide_one(outer, change)))
            except KudurruError as error:
                decided.append(error)
            except Exception as error:
                # Deciding is pure, so a fault of ours in it has changed nothing: it costs this
                # change only, and not the writer of everybody else's.
                log.exception("a change could not be decided")
                fault = f"a fault of kudurru ({type(error).__name__}: {error}); please report it"
                decided.append(KudurruError(f"the change could not be decided, by {fault}"))
        return decided

    def _check_unmoved(self, guard: Guard, earlier: Iterable[_Decided | KudurruError]) -> None:
        """Against the log, and changes of the same group that it does not hold yet."""
        moved: Event | Recorded | None = as_of.moved_since(
            self.log, guard.scope, guard.base, but_by=guard.cause
        )
        for one in earlier:
            if isinstance(one, _Decided) and one.change.who.cause != guard.cause:
                moved = moved or next(filter(guard.scope.moved_by, one.events), None)
        if moved is not None:
            raise Conflict(
                f"{ref_of(moved.key)} changed after the plan was made, at position {guard.base}; "
                "plan again"
            )

    @property
    def why_not_writable(self) -> KudurruError | None:
        """What stops writing, when something does: what is wrong, or that another node writes."""
        return self.why_not_whole or self.follows or self.blocked

    @why_not_writable.setter
    def why_not_writable(self, error: KudurruError) -> None:
        self._why_not_whole = error

    @property
    def why_not_whole(self) -> KudurruError | None:
        """What is wrong with the log: what was found, or an event that this version does not
        know."""
        stopped = self.views.follower.stopped_at
        if self._why_not_whole is not None or stopped is None:
            return self._why_not_whole
        return LogNewer(
            f"position {stopped.seq} holds an event of type {stopped.type!r} that this "
            "version does not know; upgrade kudurru to write here"
        )

    def check_writable(self) -> None:
        """Raises what stops writing."""
        if (error := self.why_not_writable) is not None:
            raise error

    def _decide_one(self, outer: Batch, change: Change) -> Steps[_Decided]:
        if len(change.commands) == 1:
            return (yield from self._decide_single(outer, change))
        batch = outer.nested()
        events: list[Event] = []
        outcomes: list[Outcome] = []
        for i, command in enumerate(change.commands, 1):
            if i % PER_STEP == 0:
                yield
            led_to, outcome = batch.decide(command)
            events += led_to
            outcomes.append(outcome)
        if not change.allow_mass_change:
            # What was never there before takes nothing away.
            touched = {event.key for event in events if event.ver > 1}
            if touched:
                yield from mass_change.check_steps(outer, batch, touched, self.zones)
        if change.dry_run:
            return _Decided(change, [], outcomes)
        outer.absorb(batch)
        return _Decided(change, events, outcomes)

    def _decide_single(self, outer: Batch, change: Change) -> Steps[_Decided]:
        """The same of one command, which needs no batch to itself: nearly all changes."""
        events, outcome = outer.judge(change.commands[0])
        if not change.allow_mass_change and any(event.ver > 1 for event in events):
            batch = outer.nested()
            batch.note(events)
            yield from mass_change.check_steps(outer, batch, {events[0].key}, self.zones)
        if change.dry_run:
            return _Decided(change, [], [outcome])
        outer.note(events)
        return _Decided(change, events, [outcome])

    def _batch(self, now_us: int) -> Batch:
        return Batch(self.objects, now_us=now_us, epoch=self.log.epoch, new_uid=self._new_uid)

    def new_id(self) -> str:
        """A short name that nothing has yet, to be typed by people."""
        return f"r-{self._entropy.token(5).hex()}"

    def _new_uid(self) -> str:
        raw = bytearray(self._entropy.token(16))
        raw[6] = raw[6] & 0x0F | 0x40  # RFC 9562 section 5.4: version 4
        raw[8] = raw[8] & 0x3F | 0x80
        text = raw.hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def take_in(self, recorded: Sequence[Recorded]) -> None:
        """Apply events that are durable now, and tell who watches."""
        finish(self.take_in_steps(recorded))

    def take_in_steps(self, recorded: Sequence[Recorded]) -> Steps[None]:
        """Apply events, and serve what they lead to at once, however many steps it takes."""
        self._recent = {}
        if len(recorded) < STEPPED_MIN:
            with self.zones.told_once():
                for event in recorded:
                    if event.body is not None and len(event.body) <= RECENT_BYTES_MAX:
                        self._recent[event.seq] = event
                    self._take_in_one(event)
            return
        with self.zones.as_one():
            for i, event in enumerate(recorded, 1):
                if i % PER_STEP == 0:
                    yield
                self._take_in_one(event)

    def _take_in_one(self, event: Recorded) -> None:
        self._take_in(event)
        if event.type == LOG_EPOCH:
            self.objects.begin_epoch(self.log.epoch)
        elif event.type == CLOCK_STEPPED:
            self._last_reading = self._reading  # at its new place the clock is normal

    def _take_in(self, event: Recorded) -> None:
        observer = self.observer
        if observer is None or not observer.wants(event.key):
            self.views.follower.apply(event)
            return
        before = self.objects.find(event.key)
        self.views.follower.apply(event)
        if self.position == event.seq:
            observer.changed(event, before, self.objects.find(event.key))

    def commit(self, change: Change) -> Result:
        """Decide, record and apply one change, with its stamps in the same change set.

        For a directory that no server holds: nobody asks the views meanwhile, so they may go
        ahead of the log to learn what the stamp is. Raises what `decide` refuses with; Busy when
        other nodes append all the time.
        """
        for _ in range(ATTEMPTS_MAX):
            try:
                return self._commit(change)
            except Overtaken:
                self.catch_up()
        raise Busy(BUSY)

    def _commit(self, change: Change) -> Result:
        now_us = self.clock.now_us()
        decided = self.decide([change], now_us)[0]
        if isinstance(decided, KudurruError):
            raise decided
        if not decided.events:
            return Result(decided.outcomes, Position(0))
        at_us = self.time_for_events_us(now_us)
        if steps := self.clock_steps(now_us):
            self.take_in(self.append(steps, at_us, self.position))
        decided_at = self.position
        with self._ahead_of_log(at_us) as record, self.judged() as judged:
            record(decided.events)
            judged.update(self.concerned(decided.events))
            # Statuses before stamps, as a server has them.
            for command in chain(self.judgements(judged), self.stamps(change.imported_serials)):
                led_to, _ = self._batch(now_us).decide(command)
                record(led_to)
                decided.events += led_to
            who = msgspec.structs.replace(change.who, wall=now_us)
            change_set = ChangeSet(tuple(decided.events), who, change.secrets)
            recorded = self.append([change_set], at_us, decided_at)
        result = self.results([decided], recorded)[0]
        assert isinstance(result, Result)
        return result

    @contextmanager
    def judged(self) -> Iterator[dict[Key, None]]:
        """Objects that the zone view tells of, as it takes in what happens inside, in order."""
        found: dict[Key, None] = {}
        self.zones.on_judged = lambda key: found.setdefault(key)
        try:
            yield found
        finally:
            self.zones.on_judged = None

    def concerned(self, events: Iterable[Event]) -> dict[Key, None]:
        """Objects that these events concern, once they are in the views, in order."""
        concerned = self.views.statuses.concerned
        return {key: None for event in events for key in concerned(event)}

    def judgements(self, keys: Iterable[Key]) -> Iterator[UpdateStatus]:
        """Status writes that are due for these objects, zones last: what is to be said of a record
        set reaches its zone. Each is worked out when it is asked for."""
        statuses, now_s = self.views.statuses, self.clock.now_us() // 1_000_000
        for key in sorted(keys, key=lambda key: key.startswith(_ZONES)):
            stored = self.objects.find(key)
            if stored is None or statuses.awaits_stamp(key):
                continue
            after = statuses.status_of(stored, stored.status, now_s)
            if after is not None and after != stored.status:
                yield UpdateStatus(key=key, status=after, expected=stored.resource_version)

    def append(
        self, sets: Sequence[ChangeSet], at_us: int, decided_at: Position | None = None
    ) -> list[Recorded]:
        """Record what was decided. In any thread. Raises: Overtaken when the log went on and what
        was decided does not hold any more; what the log does."""
        try:
            recorded = self.log.append(sets, at_us, head_seq=decided_at)
        except Conflict as error:
            raise Overtaken from error
        self._note_seen(recorded)
        return recorded

    def settle_some(self, count: int) -> None:
        """Bring digests up to the views, by so many objects and owners of zones at most: what a
        checkpoint and a stamp would do all at once. Not while another thread reads them."""
        self.objects.settle_some(count)
        self.zones.settle_some(count)

    def time_for_events_us(self, now_us: int) -> int:
        """What to append events with. Where the clock went back after records were let expire,
        the log must not say that the events came before: views built again would keep them."""
        return max(now_us, self.zones.now_s * 1_000_000)

    def clock_steps(self, now_us: int) -> list[ChangeSet]:
        """What to record before the next events, and before serials are asked for, when the clock
        did not run as clocks do. It is said again until it was recorded."""
        last = self._last_reading or self._reading_of_log()
        self._reading = Reading(now_us, self.clock.monotonic_us())
        stepped = step(last, self._reading) if last is not None else None
        if stepped is None:
            self._last_reading = self._reading
            return []
        version = self.log.stream_version(SYSTEM_KEY) + 1
        body = stepped.encode()
        event = Event(CLOCK_STEPPED, SYSTEM_KEY, version, "/", CONTROLLER, body)
        return [ChangeSet((event,), Who(actor="system", source="clock", wall=now_us))]

    def _reading_of_log(self) -> Reading | None:
        """What the clock said when the newest event was recorded."""
        newest = self.log.get(self.log.head().seq)
        if newest is None:
            return None
        who = msgspec.json.decode(newest.who, type=Who) if newest.who is not None else None
        return Reading(who.wall if who and who.wall else newest.ts, None)

    @contextmanager
    def _ahead_of_log(self, at_us: int) -> Iterator[Callable[[Sequence[Event]], None]]:
        """Let the views see events before the log has them. When the log then refuses, the views
        are worthless and are built again."""
        ts = max(self.log.head().ts, at_us)
        first = self.position + 1

        def record(events: Sequence[Event]) -> None:
            for event in events:
                seq = Position(first + len(self._pending))
                provisional = Recorded(
                    seq,
                    Position(first),
                    0,
                    ts,
                    event.type,
                    event.key,
                    event.ver,
                    event.scope,
                    event.manager,
                    event.body,
                    None,
                )
                self._pending[seq] = provisional
                self.views.follower.apply(provisional)

        try:
            yield record
        except BaseException:
            self._pending.clear()
            passed_s = self.zones.now_s
            self.views.follower.reset()
            self.catch_up()
            # What had expired stays away, also where the clock went back since.
            self.views.follower.advance(passed_s)
            raise
        finally:
            self._pending.clear()

    def results(
        self,
        decided: Sequence[_Decided | KudurruError],
        recorded: Sequence[Recorded],
        stamped: Sequence[Recorded] = (),
    ) -> list[Result | KudurruError]:
        """What to tell each caller of a group, once its events are recorded. Who made the newest
        version of a zone that was stamped with the group gets the version with the stamp."""
        return finish(self.results_steps(decided, recorded, stamped))

    def results_steps(
        self,
        decided: Sequence[_Decided | KudurruError],
        recorded: Sequence[Recorded],
        stamped: Sequence[Recorded] = (),
    ) -> Steps[list[Result | KudurruError]]:
        found: list[Result | KudurruError] = []
        versions: dict[Key, str] = {}  # what is unchanged may be so since an earlier one in here
        at = 0
        for one in decided:
            if isinstance(one, KudurruError):
                found.append(one)
                continue
            own = recorded[at : at + len(one.events)]
            at += len(own)
            for event in own:
                versions[event.key] = resource_version(self.log.epoch, event.seq)
            outcomes = []
            for i, outcome in enumerate(one.outcomes, 1):
                version = versions.get(outcome.key, outcome.resource_version)
                outcomes.append(msgspec.structs.replace(outcome, resource_version=version))
                if i % PER_STEP == 0:
                    yield
            found.append(Result(outcomes, _last_of(own)))
        for event in stamped:
            newest, stamp = versions.get(event.key), resource_version(self.log.epoch, event.seq)
            for result in found:
                if isinstance(result, Result):
                    result.outcomes[:] = [
                        msgspec.structs.replace(o, resource_version=stamp)
                        if o.key == event.key and o.resource_version == newest
                        else o
                        for o in result.outcomes
                    ]
        return found

    # --- stamping -----------------------------------------------------------------------

    def stamps(
        self, imported: dict[str, int] | None = None, *, only_new: bool = False
    ) -> list[UpdateStatus]:
        """Status writes that are due: zones whose content is not what their serial says.

        `only_new` leaves out zones that have a serial already: the server lets a burst of changes
        to those pass as one version.
        """
        now_s = self.clock.now_us() // 1_000_000
        commands = []
        for state in self.zones.unstamped():
            assert state.zone is not None
            is_new = state.zone.stamped_soa is None
            if only_new and not is_new:
                continue
            commands.append(self._stamp(state, now_s, (imported or {}).get(state.name)))
        return commands

    def _stamp(self, state: ZoneState, now_s: int, imported: int | None) -> UpdateStatus:
        zone = state.zone
        stored = self.objects.find(state.key)
        assert zone is not None
        assert stored is not None
        serial = next_serial(
            stamped=None if zone.stamped_soa is None else zone.serial,
            highest_published=self.zones.history.highest(Name(state.apex)),
            imported=imported,
            now_s=now_s,
            is_clock_trusted=self.views.clock.is_trusted,
        )
        generation = stored.body.generation
        status = stamped_status(
            stored.status,
            serial=serial,
            content_hash=zone.digest(),
            record_count=zone.record_count + 1,  # and the SOA, as a zone file has it
            generation=generation,
        )
        # What else is to be said of it, in the same event.
        said = self.views.statuses.zone_said(state, status)
        status = status_with(status, said, generation=generation, now_s=now_s)
        return UpdateStatus(key=state.key, status=status, expected=stored.resource_version)


def _last_of(own: Sequence[Recorded]) -> Position:
    """Stamps and statuses come after what they speak of, in the same change or a later one."""
    for event in reversed(own):
        if event.type != OBJECT_STATUS:
            return event.seq
    return own[-1].seq if own else Position(0)
