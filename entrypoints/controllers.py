"""Controllers: keep what the statuses of objects say true.

One queue for each kind, two workers each. A worker gets a key, not an event: it works out the whole
status from the node's views, which hold every object whatever the store, and writes it when it
differs. What happened is only what wakes it, so that nothing is lost by events that come together,
or late, or never: every ten minutes all objects are looked at again.

Runs on the node that leads, for one term; the next term begins from nothing.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple, NoReturn, assert_never

import msgspec

from kudurru.domain.errors import Conflict, Invalid, KudurruError, NotFound
from kudurru.domain.events import Recorded
from kudurru.domain.kinds.registry import DNS_RECORD_SET, DNS_ZONE
from kudurru.domain.object_store import CONTROLLER, StoredObject, to_document
from kudurru.domain.objects import Key, ref_of
from kudurru.domain.ports import Clock, EventSink, Notice, Store, Timers
from kudurru.domain.reconcile.conditions import DEGRADED, READY, condition
from kudurru.domain.reconcile.judging import is_new, new_problems
from kudurru.domain.reconcile.queue import RetryLimit, WorkQueue
from kudurru.entrypoints.waiting import pause
from kudurru.entrypoints.wiring import Node
from kudurru.entrypoints.writer import Writer
from kudurru.projections.statuses import JUDGED_KINDS

log = logging.getLogger("kudurru")

WORKERS = 2
RESYNC_US = 600_000_000
ECHO_US = 1_000_000
"""Until what was written, and was not seen yet, is looked for again."""
SLICE = 2_000
"""Keys that are listed before others have their turn: a millisecond."""

WARNED = frozenset({"Duplicated", "OutsideZone", "Invalid"})
"""Reasons that people are told of when they come up."""

_SETS, _ZONES = f"{DNS_RECORD_SET.name}/", f"{DNS_ZONE.name}/"


class Done(NamedTuple):
    """All is as it should be."""


class After(NamedTuple):
    """To be looked at again after a time, whatever happens."""

    wait_us: int


class Failed(NamedTuple):
    """To be tried again, later each time; one that `is_final` only when the object changes."""

    why: Exception
    is_final: bool = False

    @property
    def result(self) -> str:
        return "conflict" if isinstance(self.why, Conflict) else "error"


class ControllerStatistics(msgspec.Struct, frozen=True):
    """By kind; `reconciles` by kind and result: done, after, conflict, error."""

    reconciles: dict[tuple[str, str], int]
    seconds: dict[str, float]  # that passes took
    status_writes: dict[str, int]
    resyncs: dict[str, int]
    waiting: dict[str, int]


class _Written(NamedTuple):
    """A status write that the views do not show yet."""

    base: str  # resourceVersion that it was made on
    status: dict[str, Any]


class _Kind:
    """A queue and who waits for it."""

    def __init__(self, name: str, limit: RetryLimit, clock: Clock, timers: Timers) -> None:
        self.name = name
        self.queue = WorkQueue(limit)
        self._clock = clock
        self._timers = timers
        self._wake = asyncio.Event()

    def add(self, key: Key, wait_us: int = 0) -> None:
        if wait_us:
            self.queue.add_at(key, self._clock.monotonic_us() + wait_us)
        else:
            self.queue.add(key)
        self._wake.set()

    def retry(self, key: Key) -> None:
        self.queue.retry(key, self._clock.monotonic_us())
        self._wake.set()

    async def take(self) -> Key:
        while (key := self.queue.take(self._clock.monotonic_us())) is None:
            self._wake.clear()
            due_us = self.queue.next_due_us()
            if due_us is None:
                await self._wake.wait()
                continue
            wait_us = max(0, due_us - self._clock.monotonic_us())
            timer = self._timers.call_later(wait_us, self._wake.set)
            try:
                await self._wake.wait()
            finally:
                timer.cancel()
        return key


class Controllers:
    def __init__(
        self,
        node: Node,
        writer: Writer,
        store: Store,
        *,
        clock: Clock,
        timers: Timers,
        sink: EventSink,
        coalesce_us: int,
    ) -> None:
        """`coalesce_us`: how long a look at a zone waits, so that a burst is one look."""
        self._node = node
        self._writer = writer
        self._store = store
        self._clock = clock
        self._timers = timers
        self._sink = sink
        self.coalesce_us = coalesce_us  # replaced when the settings change
        self._reconciles: Counter[tuple[str, str]] = Counter()
        self._took_us: Counter[str] = Counter()
        self._writes: Counter[str] = Counter()
        self._resyncs: Counter[str] = Counter()
        self._begin()

    def statistics(self) -> ControllerStatistics:
        return ControllerStatistics(
            dict(self._reconciles),
            {kind: us / 1_000_000 for kind, us in self._took_us.items()},
            dict(self._writes),
            dict(self._resyncs),
            {name: len(kind.queue) for name, kind in self._kinds.items()},
        )

    async def run(self) -> NoReturn:
        """A term: until cancelled."""
        self._begin()
        self._writer.listeners.append(self._heard)
        self._node.zones.on_judged = self._enqueue
        try:
            await self._list()  # and nobody works before all is listed
            async with asyncio.TaskGroup() as tasks:
                for kind in self._kinds.values():
                    for i in range(WORKERS):
                        tasks.create_task(self._work(kind), name=f"{kind.name} {i}")
                await self._keep_resynced()
        finally:
            self._node.zones.on_judged = None
            self._writer.listeners.remove(self._heard)

    def _begin(self) -> None:
        limit = RetryLimit()
        self._kinds = {
            kind.name: _Kind(kind.name, limit, self._clock, self._timers) for kind in JUDGED_KINDS
        }
        self._written: dict[Key, _Written] = {}
        self._serials = {
            state.key: state.zone.serial
            for state in self._node.zones.states()
            if state.zone is not None and state.zone.stamped_soa is not None
        }

    # --- what is to be looked at ---------------------------------------------------------

    def _enqueue(self, key: Key) -> None:
        kind = self._kinds.get(key.partition("/")[0])
        if kind is not None:
            kind.add(key, self.coalesce_us if kind.name == DNS_ZONE.name else 0)

    def _heard(self, recorded: Sequence[Recorded]) -> None:
        """Events, once they are in the views."""
        concerned = self._node.views.statuses.concerned
        for event in recorded:
            if event.ver == 1 and event.key.startswith(_SETS):
                continue  # an import brings a hundred thousand of them
            for key in concerned(event):
                self._enqueue(key)

    async def _list(self) -> None:
        """Every object of which something is said, or is to be."""
        async with self._writer.applying:
            keys = self._node.objects.all_keys()
            troubled = self._node.zones.with_problems()
        has_status = self._node.views.statuses.has_status
        for i, key in enumerate(chain(keys, troubled)):
            if i % SLICE == 0:
                await asyncio.sleep(0)
            if i >= len(keys) or not key.startswith(_SETS) or has_status(key):
                self._enqueue(key)

    async def _keep_resynced(self) -> NoReturn:
        """Where to look at all takes longer than the time between two looks, one is left out: on a
        slow machine there would be no end of it, and nothing is seen by it that is not seen when
        its turn comes."""
        while True:
            listed = [(kind.queue, kind.queue.takes_until_empty) for kind in self._kinds.values()]
            await pause(self._timers, RESYNC_US)
            if all(queue.takes >= takes for queue, takes in listed):
                await self._list()
                self._resyncs.update(list(self._kinds))

    # --- looking at one ------------------------------------------------------------------

    async def _work(self, kind: _Kind) -> NoReturn:
        while True:
            key = await kind.take()
            started_us = self._clock.monotonic_us()
            try:
                outcome = await self._pass(key)
            finally:
                kind.queue.done(key)
            now_us = self._clock.monotonic_us()
            self._took_us[kind.name] += now_us - started_us
            self._settle(kind, key, outcome)
            await asyncio.sleep(0)  # queries have their turn between two

    def _settle(self, kind: _Kind, key: Key, outcome: Done | After | Failed) -> None:
        match outcome:
            case Done():
                kind.queue.succeeded(key)
                result = "done"
            case After(wait_us):
                kind.queue.succeeded(key)
                kind.add(key, wait_us)
                result = "after"
            case Failed(why, is_final):
                result = outcome.result
                if result == "error":
                    log.warning("the status of %s is not written: %s", ref_of(key), why)
                if not is_final:
                    kind.retry(key)
            case _:
                assert_never(outcome)
        self._reconciles[kind.name, result] += 1

    async def _pass(self, key: Key) -> Done | After | Failed:
        async with self._writer.applying:
            pass  # what is read next is no part of a change
        if self._node.why_not_writable is not None:
            return Done()  # which the log and readiness say, and not each object again and again
        try:
            return await self._reconcile(key)
        except NotFound:
            return Done()  # it is gone, or its content erased
        except Invalid as error:
            return Failed(error, is_final=True)
        except KudurruError as error:
            return Failed(error)
        except Exception as error:  # a fault of ours with one object is no reason to stop
            log.exception("a fault of kudurru with %s; please report it", ref_of(key))
            return Failed(error)

    async def _reconcile(self, key: Key) -> Done | After | Failed:
        stored = self._node.objects.find(key)
        if stored is None:
            self._written.pop(key, None)
            self._serials.pop(key, None)
            return Done()
        statuses = self._node.views.statuses
        if statuses.awaits_stamp(key):
            return Done()  # which is a status too, and brings us back
        self._tell_serial(stored)
        written = self._unseen(stored)
        before = written.status if written is not None else stored.status
        now_s = self._clock.now_us() // 1_000_000
        after = statuses.status_of(stored, before, now_s)
        if after is None or after == before:
            return Done()
        if written is not None:
            return After(ECHO_US)  # on the version that we know it would only be refused
        document = {**to_document(stored), "status": after}
        await self._store.update_status(document, CONTROLLER)
        self._writes[ref_of(key).kind] += 1
        self._written[key] = _Written(stored.resource_version, after)
        self._tell_news(stored, before, after)
        return Done()

    def _unseen(self, stored: StoredObject) -> _Written | None:
        """What was written of an object and the views do not show yet."""
        written = self._written.get(stored.key)
        if written is not None and written.base != stored.resource_version:
            del self._written[stored.key]
            return None
        return written

    # --- telling people ------------------------------------------------------------------

    def _tell_serial(self, stored: StoredObject) -> None:
        if not stored.key.startswith(_ZONES):
            return
        state = self._node.zones.state(ref_of(stored.key).name)
        serial = (stored.status or {}).get("serial")
        before = self._serials.get(stored.key)
        if state is None or state.spec.type != "Primary" or serial in (None, before):
            return
        self._serials[stored.key] = serial
        was = f", after {before}" if before is not None else ""
        self._post(stored, "Normal", "SerialBumped", f"serial {serial}{was}")

    def _tell_news(
        self, stored: StoredObject, before: dict[str, Any] | None, after: dict[str, Any]
    ) -> None:
        """Of faults that the object did not have before."""
        if stored.key.startswith(_SETS):
            for problem in new_problems(before, after):
                if problem["reason"] in WARNED:
                    where = f"{problem['dnsName']} {problem['recordType']}".strip()
                    message = f"{where}: {problem['message']}"
                    self._post(stored, "Warning", problem["reason"], message)
            return
        # That record sets of a zone have problems was told of them.
        kind = READY if stored.key.startswith(_ZONES) else DEGRADED
        found = condition(after, kind)
        if found is not None and found["reason"] in WARNED and is_new(before, after, kind):
            self._post(stored, "Warning", found["reason"], found["message"])

    def _post(self, stored: StoredObject, type_: Any, reason: str, message: str) -> None:
        self._sink.post(
            Notice(key=stored.key, uid=stored.body.uid, type=type_, reason=reason, message=message)
        )
