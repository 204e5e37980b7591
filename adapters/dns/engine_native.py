"""The packet engine whose repeats are answered without Python: UDP by threads in C.

Each socket has a thread of its own that never takes the GIL (native/worker.c). It answers what its
table knows, and what is plain in the zones (zone_images.py) that it was given. The rest comes here
through a bounded queue, is answered by the handler on the event loop, and goes back out of the same
socket; what may be repeated is put into the table. One contract with the engine in Python:
tests/contracts/test_packet_engine.py.

The extension is optional. Where it was not built, `is_available()` says so and the engine in Python
serves.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Literal, Protocol

from kudurru.adapters.dns import memo
from kudurru.adapters.dns.answering import HEADER, Answering, Waiting, Wire
from kudurru.adapters.dns.engine_python import DRAIN_S
from kudurru.adapters.dns.overload import Overload
from kudurru.adapters.dns.packet_info import ask_for_packet_info
from kudurru.adapters.dns.reserved import Reserved
from kudurru.adapters.dns.slots import ALL, FILTERS_SLOT, changed_slots, slots_of
from kudurru.adapters.dns.socket_drops import SocketDrops
from kudurru.adapters.sockets import address_of
from kudurru.domain.dns import names
from kudurru.domain.dns.cookies import DAY_S, Cookies
from kudurru.domain.dns.rebinding import PRIVATE
from kudurru.domain.dns.record_types import counted_as
from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.later import Later
from kudurru.domain.notation import Network
from kudurru.domain.ports import FILTERS, EngineStatistics, Keep, Origins, QueryHandler

if TYPE_CHECKING:
    from kudurru.adapters.dns import _engine
else:
    try:
        from kudurru.adapters.dns import _engine
    except ImportError:
        _engine = None

log = logging.getLogger("kudurru")

ENTRIES_MAX = 131_072  # answers for all listeners: the questions that a busy site asks repeatedly
BYTES_MAX = 48 << 20
THREADS_MAX = 4_094
"""That can read one table (native/core.h): 4,095, and one of them is Python's."""

MESSAGE_MAX = 4096  # octets of the longest message taken or sent: EDNS's usual upper bound
MISSES_BYTES = 1 << 18
"""Of queries that wait for Python, per socket: some 1,500, which it answers in a tenth of a second.
More would only make them late."""
URGENT_BYTES = 1 << 14  # of queries for the health name, which are read first: about a hundred
REPEATS_BYTES = 1 << 22
"""Of repeats that the query log has not heard of, per socket: some 40,000."""
MISSES_PER_TURN = 64  # of each socket: then other work has its turn
REPEATS_PER_TURN = 2_000
REPEATS_S = 0.1  # they are told of together: one by one they would keep Python awake

_SCOPES_MAX = 256  # an octet of each key
FOR_EVERYBODY = Keep()
_SEED_SIZE = 16
_text = lru_cache(4096)(socket.inet_ntop)


def is_available() -> bool:
    return _engine is not None


class Limiter(Protocol):
    """A limiter that counts in buckets of the core."""

    @property
    def buckets(self) -> object:
        """Made by `new_buckets`."""
        ...

    def truncated(self, client: bytes, query: bytes) -> bytes | None:
        """What a query gets that is over the limit, both without their ID."""
        ...


def new_buckets() -> "_engine.Buckets":
    return _engine.Buckets(secrets.token_bytes(_SEED_SIZE))


Of = tuple[int, int, tuple[str, ...]]
"""What is counted together: type (as `counted_as` has it), RCODE and tally."""
Hits = Counter[Of]


class AnswerTable:
    """Answers that the threads of all engines read; each listener has a scope of its own."""

    def __init__(
        self,
        entries_max: int = ENTRIES_MAX,
        bytes_max: int = BYTES_MAX,
        cookies: Cookies | None = None,
    ) -> None:
        """`cookies` None: answers with one are not kept."""
        self._cookies = cookies
        self._day_no = -1  # whose keys the threads have
        seed = secrets.token_bytes(_SEED_SIZE)
        self.core = _engine.Table(entries_max=entries_max, bytes_max=bytes_max, seed=seed)
        self.places: dict[Of, int] = {}
        """Where answers are counted."""
        self._vacant = list(reversed(range(_engine.PLACES)))
        self._eras = [0] * _engine.PLACES  # in which a place was last given to an answer
        self._full_since = 0  # the era that began before there was no place to be taken back
        self._scopes: list[TableScope] = []
        self._threads = 0  # there is room for

    def __len__(self) -> int:
        return self.core.statistics()[0]

    @property
    def is_full(self) -> bool:
        """Whether there are no scopes left."""
        return len(self._scopes) == _SCOPES_MAX

    def make_room(self, threads: int) -> bool:
        """For so many more, until `give_back`; whether there is."""
        if self._threads + threads > THREADS_MAX:
            return False
        self._threads += threads
        return True

    def give_back(self, threads: int) -> None:
        self._threads -= threads

    def new_scope(self) -> "TableScope":
        scope = TableScope(self, len(self._scopes))
        self._scopes.append(scope)
        return scope

    def admit(self, clients: Literal["private", "all"] | Iterable[Network]) -> None:
        """Who may recurse, as the setting has it: restricted answers are for them."""
        is_everybody = clients == "all"
        if isinstance(clients, str):
            clients = PRIVATE
        networks = [(one.network_address.packed, one.prefixlen) for one in clients]
        self.core.admit(networks, is_everybody)

    def sample(self, one_in: int) -> None:
        """As the setting `querylog.sample` has it."""
        self.core.sample(one_in)

    def can_make_cookies(self) -> bool:
        """Whether the threads can: they have the keys of today then."""
        if self._cookies is None:
            return False
        day_no = int(time.time()) // DAY_S
        if day_no != self._day_no:
            keys = [self._cookies.key_of(day_no + days) for days in (-1, 0, 1)]
            self.core.set_cookie_keys(day_no, *keys)
            self._day_no = day_no
        return True

    def place(self, packet: bytes, wire: bytes, tally: tuple[str, ...], era: int) -> int | None:
        """Where an answer of an era is counted. None: there are too many to count."""
        end = names.end_of(packet, HEADER)
        of = counted_as(int.from_bytes(packet[end : end + 2], "big")), wire[3] & 15, tally
        place = self.places.get(of)
        if place is None:
            if not self._vacant and not self._take_back():
                return None
            place = self.places[of] = self._vacant.pop()
        self._eras[place] = max(self._eras[place], era)
        return place

    def _take_back(self) -> bool:
        """Empty the places of answers that were all dropped. Policies and lists come and go, and
        what was counted of those that went is kept by each scope."""
        all_since, filtered_since = self.core.since(ALL), self.core.since(FILTERS_SLOT)
        if self._full_since == filtered_since:
            return False
        former = {
            (rtype, rcode, tally): place
            for (rtype, rcode, tally), place in self.places.items()
            if self._eras[place] < (filtered_since if tally else all_since)
        }
        if not former:
            self._full_since = filtered_since
        # A thread may be counting what it looked up before they were dropped.
        elif all(scope.is_settled() for scope in self._scopes):
            for scope in self._scopes:
                scope.empty(former)
            for of, place in former.items():
                del self.places[of]
                self._vacant.append(place)
        return bool(self._vacant)


class TableScope:
    """The table as one listener sees it. Implements `memo.Keeper`; what the threads find is counted
    by them."""

    def __init__(self, table: AnswerTable, number: int) -> None:
        self.table = table
        self.number = number
        self.workers: _engine.Workers | None = None
        """The threads that count in this scope, once there are any."""
        self._core = table.core
        self._repeats = _engine.Repeats(table.core, number)
        self._before: Counter[int] = Counter()  # counted at a place when it was emptied last
        self._emptied: Counter[Of] = Counter()

    @property
    def era(self) -> int:
        return self._core.generation()

    def find_for(
        self, packet: bytes, client: bytes, *, is_named: bool, room: int = memo.MESSAGE_MAX
    ) -> tuple[bytes, int] | None:
        return self._repeats.find(packet, client, is_named, room)

    def take(
        self,
        arrived: bytearray,
        at: int,
        client: bytes,
        *,
        is_named: bool,
        limit: int,
        is_told: bool,
    ) -> memo.Taken:
        return self._repeats.take(arrived, at, client, is_named, limit, is_told)

    def new_http2(self) -> "_engine.Http2":
        return _engine.Http2(self._repeats, secrets.token_bytes(32))

    def store(self, era: int, packet: bytes, wire: bytes, origins: Origins = None) -> None:
        self.keep(era, packet, wire, FOR_EVERYBODY, origins)

    def keep(
        self, era: int, packet: bytes, wire: bytes, how: Keep, origins: Origins = None
    ) -> None:
        if origins is not None and how.tally:
            origins = {*origins, FILTERS}  # by which its place is taken back
        if how.cookie_at and not self.table.can_make_cookies():
            return
        place = self.table.place(packet, wire, how.tally, era)
        if place is not None:
            self._core.store(
                self.number,
                era,
                packet,
                wire,
                place,
                slots_of(origins),
                is_restricted=how.is_restricted,
                until_us=how.until_us,
                stored_us=how.stored_us,
                aged_s=how.aged_s,
                ttls_at=how.ttls_at,
                cookie_at=how.cookie_at,
                client_class=how.client_class,
            )
            if how.client_class:
                self._core.learn_class(self.number, era, how.client, how.client_class)

    def counts(self) -> dict[tuple[int, int], int]:
        return by_type(self.hits([]))

    def hits(self, of_threads: Sequence[int]) -> Hits:
        """Answers given from the table: those found here, and those of the threads by place."""
        found = self._emptied.copy()
        here = self._repeats.hits()
        for of, place in self.table.places.items():
            if count := _at(place, here, of_threads) - self._before[place]:
                found[of] += count
        return found

    def is_settled(self) -> bool:
        """Whether nobody counts any more what was dropped from the table before now."""
        return self.workers is None or self.workers.settle()

    def empty(self, places: Mapping[Of, int]) -> None:
        """Keep what was counted there apart: other answers will be."""
        of_threads = [] if self.workers is None else self.workers.counters(_engine.PLACES)[7]
        here = self._repeats.hits()
        for of, place in places.items():
            at = _at(place, here, of_threads)
            self._emptied[of] += at - self._before[place]
            self._before[place] = at

    def invalidate(self, changed: Origins = None) -> None:
        self._core.invalidate(changed_slots(changed))


def _at(place: int, here: Sequence[int], of_threads: Sequence[int]) -> int:
    return here[place] + (of_threads[place] if place < len(of_threads) else 0)


def by_type(hits: Hits) -> dict[tuple[int, int], int]:
    found: Counter[tuple[int, int]] = Counter()
    for (rtype, rcode, _), count in hits.items():
        found[rtype, rcode] += count
    return dict(found)


def counted_by_type(counts: Iterable[tuple[int, int, int]]) -> dict[tuple[int, int], int]:
    found: Counter[tuple[int, int]] = Counter()
    for rtype, rcode, count in counts:
        found[counted_as(rtype), rcode] += count
    return dict(found)


def by_tally(hits: Hits) -> dict[tuple[str, ...], int]:
    found: Counter[tuple[str, ...]] = Counter()
    for (_, _, tally), count in hits.items():
        if tally:
            found[tally] += count
    return dict(found)


class NativeEngine:
    """A `PacketEngine` over UDP. Wants `is_available()`."""

    def __init__(
        self,
        handler: QueryHandler,
        sockets: Sequence[socket.socket],
        *,
        table: AnswerTable | None = None,
        limiter: Limiter | None = None,
        zones: "_engine.Zones | None" = None,
        joins_answers: bool = True,
        drain_s: float = DRAIN_S,
    ) -> None:
        """`zones` are of the same table. `joins_answers`: those of one length to one client go to
        the system as one, where it can cut them again. Raises: Invalid when the table has no room
        for the threads."""
        table = AnswerTable() if table is None else table
        if not table.make_room(len(sockets)):
            fault = (
                f"more than {THREADS_MAX} sockets over UDP, of all listeners together: set "
                "listeners.sockets lower, or have fewer listeners"
            )
            raise Invalid("listeners", [Cause("sockets", fault)])
        self._table, self._room = table, len(sockets)
        self._limiter = limiter
        self._zones = zones
        self._joins_answers = joins_answers
        self._drain_s = drain_s
        self._sockets = tuple(sockets)
        self._overload: Overload | None = None
        self._drops = SocketDrops(self._sockets)
        self._looking: asyncio.TimerHandle | None = None
        self._addresses = tuple(dict.fromkeys(address_of(sock) for sock in sockets))
        self._scope = table.new_scope()
        self._answering = Answering(handler, "udp", MESSAGE_MAX, self._scope)
        self._waiting = Waiting()
        self._outbox: dict[int, list[tuple[bytes, bytes]]] = {}
        self._telling: asyncio.TimerHandle | None = None
        self._untold = 0
        self._workers: _engine.Workers | None = None
        self._is_running = False

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._addresses

    async def start(self) -> None:
        reserved = self._reserved()
        try:
            self._workers = self._new_workers((*self._sockets, *reserved.sockets))
        except OSError as fault:
            if not reserved.sockets:
                raise
            log.warning("who asks regularly gets no threads of their own: %s", fault)
            reserved.close()
            self._workers = self._new_workers(self._sockets)
        self._overload = Overload(self._sockets, reserved)
        self._sockets += reserved.sockets
        self._drops = SocketDrops(self._sockets)
        self._scope.workers = self._workers
        asyncio.get_running_loop().add_reader(self._workers.wake_fd(), self._woken)
        self._is_running = True
        self._workers.start()
        self._look_turn()

    def _reserved(self) -> Reserved:
        """Sockets for regulars, where there is room for their threads beside all the others."""
        number = len(self._sockets)
        if not self._table.make_room(number):
            log.warning(
                "who asks regularly gets no threads of their own: %d is the most", THREADS_MAX
            )
            return Reserved(())
        self._room += number
        return Reserved(self._sockets)

    def _new_workers(self, sockets: Sequence[socket.socket]) -> "_engine.Workers":
        limiter = self._limiter
        for sock in sockets:
            sock.setblocking(True)  # its thread waits in the system call
        return _engine.Workers(
            table=self._scope.table.core,
            buckets=None if limiter is None else limiter.buckets,  # type: ignore[arg-type]  # the core checks it
            zones=self._zones,
            sockets=[
                (sock.fileno(), sock.family == socket.AF_INET6, ask_for_packet_info(sock))
                for sock in sockets
            ],
            scope=self._scope.number,
            hears_repeats=self._answering.listener is not None,
            misses_size=MISSES_BYTES,
            urgent_size=URGENT_BYTES,
            repeats_size=REPEATS_BYTES,
            joins_answers=self._joins_answers,
        )

    async def stop(self) -> None:
        if self._is_running and self._workers is not None:
            self._is_running = False
            if self._looking is not None:
                self._looking.cancel()
            assert self._overload is not None
            self._overload.end()
            asyncio.get_running_loop().remove_reader(self._workers.wake_fd())
            self._workers.stop()
            while self._serve_misses():
                await asyncio.sleep(0)
            while self._tell():
                await asyncio.sleep(0)
            if self._telling is not None:
                self._telling.cancel()
            await self._waiting.drain(self._drain_s)
            self._flush()
        self._table.give_back(self._room)
        self._room = 0
        self._drops.count()  # the last time that anybody can
        for sock in self._sockets:
            sock.close()

    def invalidate(self, changed: Origins = None) -> None:
        self._scope.invalidate(changed)

    def statistics(self) -> EngineStatistics:
        seen = self._answering.statistics()
        if self._workers is None:
            return seen
        received, answered, malformed, full, busy, send_errors, unsent, by_place, by_zones = (
            self._workers.counters(_engine.PLACES)
        )
        hits = self._scope.hits(by_place)
        return EngineStatistics(
            received=received,
            answered=seen.answered + answered,
            memo_hits=by_type(hits),
            memo_tallies=by_tally(hits),
            memo_unsent=unsent,
            zone_answers=counted_by_type(by_zones),
            dropped_malformed=malformed,
            dropped_full=seen.dropped_full + full,
            dropped_busy=seen.dropped_busy + busy,
            dropped_by_handler=seen.dropped_by_handler,
            dropped_unread=self._drops.count(),
            send_errors=seen.send_errors + send_errors,
            unhandled_exceptions=seen.unhandled_exceptions,
            faults=seen.faults,
            waiting=seen.waiting,
        )

    def _look_turn(self) -> None:
        loop = asyncio.get_running_loop()
        assert self._workers is not None
        assert self._overload is not None
        if self._looking is not None:
            self._looking.cancel()
        again_s = self._overload.look(self._workers.take_recent(), loop.time())
        if self._overload.is_over:
            self._workers.take_overflow()  # it was seen
        self._looking = None if again_s is None else loop.call_later(again_s, self._look_turn)

    # --- what the threads leave to us -----------------------------------------------------

    def _woken(self) -> None:
        assert self._workers is not None
        with contextlib.suppress(BlockingIOError):
            os.read(self._workers.wake_fd(), 8)
        self._serve_turn()
        assert self._overload is not None
        if self._overload.is_over and self._workers.take_overflow():
            self._look_turn()
        if self._answering.listener is not None and self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(REPEATS_S, self._tell_turn)

    def _serve_turn(self) -> None:
        """Answer some, and come back until there are none: only then are we woken again. So we
        come back whatever went wrong."""
        has_more = True
        try:
            has_more = self._serve_misses()
        finally:
            if has_more and self._is_running:
                asyncio.get_running_loop().call_soon(self._serve_turn)

    def _serve_misses(self) -> bool:
        """Whether there were any."""
        assert self._workers is not None
        misses = self._workers.misses(MISSES_PER_TURN)
        for worker, origin, client, packet, is_slip in misses:
            try:
                self._serve_miss(worker, origin, client, packet, is_slip=bool(is_slip))
            except Exception as fault:  # the others are still to be answered
                self._answering.failed(fault)
        self._flush()
        return bool(misses)

    def _serve_miss(
        self, worker: int, origin: bytes, client: bytes, packet: bytes, *, is_slip: bool
    ) -> None:
        if is_slip:
            wire: Wire | Later[Wire] = self._truncated(client, packet)
        else:
            wire = self._answer(packet, client)
        if isinstance(wire, Later):
            self._waiting.add(wire, partial(self._deliver, worker, origin))
        elif wire is not None:
            self._outbox.setdefault(worker, []).append((origin, wire))

    def _answer(self, packet: bytes, client: bytes) -> Wire | Later[Wire]:
        family = socket.AF_INET6 if len(client) == 16 else socket.AF_INET
        text = _text(family, client)
        return self._answering.recall(packet, text) or self._answering.ask(packet, text)

    def _truncated(self, client: bytes, packet: bytes) -> Wire:
        assert self._limiter is not None
        reply = self._limiter.truncated(client, packet[2:])
        return None if reply is None else packet[:2] + reply

    def _deliver(self, worker: int, origin: bytes, wire: Wire) -> None:
        """Send an answer that came later, together with those of the same turn of the loop."""
        if wire is None:
            return
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.setdefault(worker, []).append((origin, wire))

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, {}
        if self._workers is None or self._sockets[0].fileno() < 0:
            return
        for worker, answers in outbox.items():
            for first in range(0, len(answers), _engine.BATCH):
                self._send(self._workers, worker, tuple(answers[first : first + _engine.BATCH]))

    def _send(
        self, workers: "_engine.Workers", worker: int, answers: tuple[tuple[bytes, bytes], ...]
    ) -> None:
        try:
            sent, refused, full = workers.send(worker, answers)
        except Exception as fault:  # one of them is no answer: each by itself, then
            if len(answers) == 1:
                self._answering.failed(fault)
            else:
                for answer in answers:
                    self._send(workers, worker, (answer,))
            return
        self._answering.answered += sent
        self._answering.send_errors += refused
        self._answering.full += full

    def _tell_turn(self) -> None:
        self._telling = None
        has_more = True
        try:
            has_more = self._tell()
        finally:
            if has_more and self._is_running:
                self._telling = asyncio.get_running_loop().call_later(0, self._tell_turn)

    def _tell(self) -> bool:
        """Tell who listens of some repeats. Whether there may be more."""
        listener = self._answering.listener
        if listener is None or self._workers is None:
            return False
        repeats, answers = self._workers.repeats(REPEATS_PER_TURN)
        if repeats:
            self._answering.tell(repeats)
        if answers:
            self._answering.tell_answered(answers)
        untold = self._workers.untold()
        if untold > self._untold:
            missed, self._untold = untold - self._untold, untold
            listener.missed(missed)
        return len(repeats) + len(answers) >= REPEATS_PER_TURN
