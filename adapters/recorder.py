"""The event log as a recorder of the eventsourcing library, whatever it is stored in.

`RecordedLog` has two doors to one insert path: `append` of our `EventLog` port, and the library's
`ApplicationRecorder`, so that its event store, subscriptions and recorder test kit work on our
logs. What is the library's stays here: its IntegrityError becomes Conflict in `append`, after the
heads of the streams were read again, and nothing inside knows it.
"""

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any
from uuid import UUID

from eventsourcing.persistence import (
    ApplicationRecorder,
    IntegrityError,
    JSONTranscoder,
    ListenNotifySubscription,
    Mapper,
    Notification,
    StoredEvent,
    Subscription,
)

from kudurru.domain.chain import FIRST_VERSIONS
from kudurru.domain.errors import ADVICE, Conflict, LogDamaged
from kudurru.domain.events import OBJECT_DELETED, ChangeSet, Event, Position, Recorded, Who
from kudurru.domain.objects import Key
from kudurru.domain.ports import Anchor, Clock, LogHead, SignTree, Upkeep

OURS_BEGIN_AT = (1,)

BATCH_FIRST = 32
BATCH_MAX = 1_000
"""Rows fetched at once, from the first batch up to this: who wants ten events does not pay for a
thousand, and who wants all holds a lock or a connection for milliseconds at a time."""


@dataclass(frozen=True)
class StoredFact(StoredEvent):
    """A StoredEvent with what our events say beside type and body. `originator_id` is the key,
    `topic` the type, `state` the body, empty where it was erased."""

    scope: str = ""
    manager: str = ""


@dataclass(frozen=True)
class FactNotification(Notification):
    """`StoredFact` with its position."""

    scope: str = ""
    manager: str = ""


class FactMapper(Mapper[str]):
    """Between our events and the library's. A topic is the short name of a type: nothing is
    imported by it, and the body passes through as it is, because its octets are hashed."""

    def __init__(self) -> None:
        super().__init__(JSONTranscoder())  # which is never asked

    def to_stored_event(self, domain_event: Any) -> StoredFact:
        event: Event | Recorded = domain_event
        return StoredFact(
            event.key, event.ver, event.type, event.body or b"", event.scope, event.manager
        )

    def to_domain_event(self, stored_event: StoredEvent) -> Any:
        return Event(
            type=stored_event.topic,
            key=Key(str(stored_event.originator_id)),
            ver=stored_event.originator_version,
            scope=getattr(stored_event, "scope", ""),
            manager=getattr(stored_event, "manager", ""),
            body=stored_event.state,
        )


def check_head(seq: int, expected: int | None) -> None:
    """Raises: Conflict when the log went on since the decision that `expected` was the head of."""
    if expected is not None and seq != expected:
        raise Conflict(
            f"the log went on from position {expected} to {seq} since this was decided: "
            "read it again and decide again"
        )


def check_last(found: bytes | None, last: LogHead) -> None:
    """The row that was newest, whose head was `found`, is still there as it was; others may have
    added. Raises: LogDamaged."""
    if found is None:
        raise LogDamaged("gap", last.seq, f"the row was deleted while in use; {ADVICE}")
    if found != last.hash:
        raise LogDamaged("chain", last.seq, f"the head changed while in use; {ADVICE}")


def batch_sizes() -> Iterator[int]:
    size = BATCH_FIRST
    while True:
        yield size
        size = min(size * 4, BATCH_MAX)


def continue_streams(
    change_sets: Sequence[ChangeSet],
    version_of: Callable[[Key], int | None],
    first: Collection[int],
) -> None:
    """Check that every event continues its stream without a gap. `version_of` is asked once for
    each stream, in the order of the events. Raises: IntegrityError."""
    newest: dict[Key, int | None] = {}
    for change_set in change_sets:
        for event in change_set.events:
            key = event.key
            version = newest[key] if key in newest else version_of(key)
            is_next = event.ver == version + 1 if version is not None else event.ver in first
            if not is_next:
                raise IntegrityError(f"version {event.ver} of {key} does not follow {version}")
            newest[key] = event.ver


def _nothing() -> None:
    """What nobody waits for."""


def secret_writes(change_sets: Sequence[ChangeSet]) -> dict[Key, bytes | None]:
    """What becomes of each secret that these change sets write."""
    return {one.key: one.sealed for change_set in change_sets for one in change_set.secrets}


class RecordedLog(ApplicationRecorder):
    """What the event logs of all stores share. A store says how rows get in and out."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mapper = FactMapper()
        self._listeners: set[Callable[[], None]] = set()
        self._wait_begins: Callable[[], None] = _nothing

    def on_wait(self, wake: Callable[[], None]) -> None:
        """See `EventLog`."""
        self._wait_begins = wake

    @property
    def is_shared(self) -> bool:
        return False

    @property
    def last_contact_us(self) -> int:
        return 0

    @abstractmethod
    def insert(
        self,
        change_sets: Sequence[ChangeSet],
        now_us: int,
        first: Collection[int],
        *,
        head_seq: int | None = None,
        sign: SignTree | None = None,
        upkeep: Upkeep | None = None,
    ) -> list[Recorded]:
        """Seal and store, all or nothing, with the secrets of the change sets; durable when it
        returns. A new stream begins at one of `first`. Tiles that the new leaves fill are stored
        with them, and the checkpoint that `sign` makes; what `upkeep` names is taken away.

        Raises: IntegrityError when a stream has moved; what `append` raises.
        """

    @abstractmethod
    def read(
        self,
        after: int = 0,
        upto: int | None = None,
        *,
        scope: str | None = None,
        key: Key | None = None,
        newest_first: bool = False,
    ) -> Iterator[Recorded]: ...

    @abstractmethod
    def head(self) -> LogHead: ...

    @abstractmethod
    def get(self, seq: int) -> Recorded | None: ...

    @abstractmethod
    def stream_version(self, key: Key) -> int: ...

    @abstractmethod
    def secret(self, key: Key) -> bytes | None: ...

    def check_storage(self) -> None:
        """See `EventLog.check_storage`. A store that keeps nothing beside the rows has nothing to
        check."""

    @abstractmethod
    def anchor(self) -> Anchor | None: ...

    def oldest(self) -> Position:
        """See `EventLog`."""
        anchor = self.anchor()
        return anchor.upto if anchor is not None else Position(0)

    def position_at(self, ts_us: int) -> Position:
        """See `EventLog`. By bisection, as ts only rises: twenty look-ups in a million events."""

        def ts_of(seq: int) -> int:
            event = self.get(seq)
            if event is None:
                raise LogDamaged("gap", seq, f"the row is missing from the log; {ADVICE}")
            return event.ts

        seqs = range(max(self.oldest(), 1), self.head().seq + 1)
        before = bisect_right(seqs, ts_us, key=ts_of)
        return Position(seqs[before - 1] if before else 0)

    def scopes(self) -> list[str]:
        """See `EventLog`. A store that has an index of scopes asks that."""
        return list(dict.fromkeys(event.scope for event in self.read()))

    def births(self, kind: str, upto: int) -> Iterator[Recorded]:
        """See `EventLog`. A store that finds the events of a kind quicker does."""
        alive: dict[Key, Recorded] = {}
        for event in self.read(0, upto):
            if not event.key.startswith(f"{kind}/"):
                continue
            if event.type == OBJECT_DELETED:
                alive.pop(event.key, None)
            else:
                alive.setdefault(event.key, event)
        return iter(alive.values())

    def append(
        self, change_sets: Sequence[ChangeSet], now_us: int, *, head_seq: int | None = None
    ) -> list[Recorded]:
        """See `EventLog.append`."""
        return self._append(change_sets, now_us, head_seq=head_seq)

    def append_signed(
        self,
        change_sets: Sequence[ChangeSet],
        now_us: int,
        sign: SignTree | None,
        upkeep: Upkeep | None = None,
        *,
        head_seq: int | None = None,
    ) -> list[Recorded]:
        """See `VerifiableLog.append_signed`."""
        return self._append(change_sets, now_us, head_seq=head_seq, sign=sign, upkeep=upkeep)

    def _append(
        self, change_sets: Sequence[ChangeSet], now_us: int, **options: Any
    ) -> list[Recorded]:
        try:
            recorded = self.insert(change_sets, now_us, OURS_BEGIN_AT, **options)
        except IntegrityError as error:
            raise self._why_refused(change_sets, error) from error
        self._notify()
        return recorded

    def _why_refused(self, change_sets: Sequence[ChangeSet], error: Exception) -> Exception:
        """The conflict in words, from stream heads that are read again: the library's error may
        be about an event that was ours and is already there."""
        expected: dict[Key, int] = {}
        for change_set in change_sets:
            for event in change_set.events:
                key = event.key
                before = expected[key] if key in expected else self.stream_version(key)
                if event.ver != before + 1:
                    return Conflict(
                        f"{key} is at version {before} and the change continues "
                        f"{event.ver - 1}: read it again and decide again"
                    )
                expected[key] = event.ver
        position = self.head().seq + 1
        return LogDamaged("entry", position, f"the store refuses rows that should fit: {error}")

    def insert_events(
        self, stored_events: Sequence[StoredEvent], **kwargs: Any
    ) -> Sequence[int] | None:
        """One change set. `who` may be given; the clock is read here, as the library has none.
        Raises: IntegrityError."""
        if not stored_events:
            return None
        now_us = self._clock.now_us()
        who = kwargs.get("who") or Who(actor="system", source="eventsourcing", wall=now_us)
        events = tuple(self._mapper.to_domain_event(stored) for stored in stored_events)
        recorded = self.insert([ChangeSet(events, who)], now_us, FIRST_VERSIONS)
        self._notify()
        return [event.seq for event in recorded]

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        stream = self.read(key=Key(str(originator_id)), newest_first=desc)
        wanted = (
            self._mapper.to_stored_event(event)
            for event in stream
            if (gt is None or event.ver > gt) and (lte is None or event.ver <= lte)
        )
        return list(islice(wanted, limit))

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        after = 0 if start is None else start - 1 if inclusive_of_start else start
        events = self.read(max(after, 0), stop)
        wanted = (_notification(event) for event in events if not topics or event.type in topics)
        return list(islice(wanted, limit))

    def max_notification_id(self) -> int | None:
        return self.head().seq or None

    def subscribe(
        self, gt: int | None = None, topics: Sequence[str] = ()
    ) -> Subscription[ApplicationRecorder]:
        """Of what this process appends, and of what other processes do where the log is shared."""
        return LogSubscription(self, gt, topics)

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake` after each append, until `unlisten`."""
        self._listeners.add(wake)

    def unlisten(self, wake: Callable[[], None]) -> None:
        self._listeners.discard(wake)

    def follow(self, wake: Callable[[], None]) -> None:
        """See `EventLog.follow`. Nobody else appends here."""

    def _notify(self) -> None:
        for wake in tuple(self._listeners):
            wake()


class LogSubscription(ListenNotifySubscription[RecordedLog]):
    """The library's pulling subscription, woken by appends."""

    def __init__(self, log: RecordedLog, gt: int | None, topics: Sequence[str]) -> None:
        super().__init__(recorder=log, gt=gt, topics=topics)
        log.listen(self._has_been_notified.set)
        # The thread pulls since the line before last: pull once more, or an event appended in
        # between would wait for the next one.
        self._has_been_notified.set()

    def stop(self) -> None:
        super().stop()
        self._recorder.unlisten(self._has_been_notified.set)


def _notification(event: Recorded) -> FactNotification:
    return FactNotification(
        event.key,
        event.ver,
        event.type,
        event.body or b"",
        Position(event.seq),
        event.scope,
        event.manager,
    )
