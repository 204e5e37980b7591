"""The packet engine in plain Python: UDP from callbacks of the event loop.

Linux gives it batches (mmsg.py says how and why), other systems one datagram a call; both keep one
contract, tests/contracts/test_packet_engine.py. A repeat is answered where it lies: its octets
behind the ID are the key, and the kept answer overwrites them. A name with capitals takes a second
look with its letters lowered, and keeps them.
"""

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from msgspec.structs import replace

from kudurru.adapters.dns import mmsg
from kudurru.adapters.dns.answering import HEADER, Answering, Waiting, Wire
from kudurru.adapters.dns.memo import Kept, Memo
from kudurru.adapters.dns.packet_info import (
    ANCILLARY,
    Control,
    ask_for_packet_info,
    reply_info,
)
from kudurru.adapters.dns.proxyproto import HEADER_MAX, Malformed, unwrap
from kudurru.adapters.dns.socket_drops import SocketDrops
from kudurru.adapters.networks import Networks
from kudurru.adapters.sockets import address_of
from kudurru.domain.dns.health import is_health_query
from kudurru.domain.dns.messages import shortened
from kudurru.domain.later import Later
from kudurru.domain.ports import EngineStatistics, Origins, QueryHandler, QueryLimiter

BATCHES_PER_TURN = 4  # about 2 ms: then TCP, HTTP and writers get their turn
BATCHES_WHEN_BUSY = 16  # of queries that are not answered at once, which costs a quarter
MISSES_PER_TURN = 64
MISSES_MAX = 1_500
"""That wait: what is answered in a tenth of a second. More would only make them late."""
DRAIN_S = 5  # at stop, for answers to come


Deliver = Callable[[Wire], None]
"""Sends an answer to whom it is for."""


class PythonEngine:
    """A `PacketEngine` over UDP.

    `batched` chooses the calls: True needs mmsg.is_available(), None takes the best there is.
    `proxies` are the peers that must send a PROXY header; with any, datagrams are read one by one.
    `limiter` is asked of every datagram, before the memo.
    """

    def __init__(
        self,
        handler: QueryHandler,
        sockets: Sequence[socket.socket],
        *,
        batched: bool | None = None,
        proxies: Networks | None = None,
        memo: Memo | None = None,
        limiter: QueryLimiter | None = None,
        drain_s: float = DRAIN_S,
    ) -> None:
        self._limiter = limiter
        self._drain_s = drain_s
        self._waiting = Waiting()
        self._outboxes: list[_Outbox] = []
        self._backlog: deque[tuple[bytes, str, Deliver]] = deque()
        self._room = 0  # for misses, this turn
        self._urgent_room = 0  # for the health name beside them
        self._sockets = tuple(sockets)
        self._drops = SocketDrops(sockets)
        self._memo = Memo() if memo is None else memo
        self._answering = Answering(handler, "udp", mmsg.SLOT, self._memo)
        self._batched = mmsg.is_available() if batched is None else batched
        self._proxies = proxies
        self._size_max = mmsg.SLOT
        if proxies is not None:
            self._batched = False
            self._size_max += HEADER_MAX
        self._addresses = tuple(dict.fromkeys(address_of(sock) for sock in sockets))
        self._is_running = False

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._addresses

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        for sock in self._sockets:
            sock.setblocking(False)
            has_info = ask_for_packet_info(sock)
            if self._batched:
                batch = mmsg.Batch(sock, with_packet_info=has_info)
                outbox = _Outbox(sock, self._answering, with_packet_info=has_info)
                self._outboxes.append(outbox)
                loop.add_reader(sock, self._serve_batches, batch, outbox)
            else:
                buffer = memoryview(bytearray(self._size_max + 1))
                loop.add_reader(sock, self._serve_singly, sock, buffer)
        self._is_running = True

    async def stop(self) -> None:
        if self._is_running:
            for sock in self._sockets:
                asyncio.get_running_loop().remove_reader(sock)
        self._is_running = False
        while self._backlog:
            self._serve_backlog()
            await asyncio.sleep(0)
        await self._drain()
        self._drops.count()  # the last time that anybody can
        for sock in self._sockets:
            sock.close()

    async def _drain(self) -> None:
        """Wait for the answers that are to come, for a while, and send them."""
        await self._waiting.drain(self._drain_s)
        for outbox in self._outboxes:
            outbox.flush()
        self._outboxes.clear()

    def invalidate(self, changed: Origins = None) -> None:
        self._memo.invalidate(changed)

    def statistics(self) -> EngineStatistics:
        return replace(self._answering.statistics(), dropped_unread=self._drops.count())

    def _serve_batches(self, batch: mmsg.Batch, outbox: "_Outbox") -> None:
        for _ in range(self._turn(BATCHES_PER_TURN, BATCHES_WHEN_BUSY)):
            count = batch.receive()
            if count:
                self._answer_batch(batch, count, outbox)
            if count < mmsg.BATCH:
                return

    def _turn(self, usual: int, when_busy: int) -> int:
        """Begin a turn of a socket. While others wait all new misses queue behind them, and more is
        read: what asks for the health name is not to be lost in the system's buffer."""
        self._room = 0 if self._backlog else MISSES_PER_TURN
        self._urgent_room = MISSES_PER_TURN
        return when_busy if self._backlog else usual

    def _is_put_off(self, packet: bytes) -> bool:
        """Whether a miss has to wait for its turn."""
        if self._room > 0:
            self._room -= 1
            return False
        if self._urgent_room > 0 and is_health_query(packet[2:]):
            self._urgent_room -= 1
            return False
        return True

    def _put_off(self, packet: bytes, client: str, deliver: Deliver) -> None:
        if len(self._backlog) >= MISSES_MAX:
            self._answering.busy += 1
            return
        self._backlog.append((packet, client, deliver))
        if len(self._backlog) == 1:
            asyncio.get_running_loop().call_soon(self._backlog_turn)

    def _backlog_turn(self) -> None:
        self._serve_backlog()
        if self._backlog and self._is_running:
            asyncio.get_running_loop().call_soon(self._backlog_turn)

    def _serve_backlog(self) -> None:
        for _ in range(min(len(self._backlog), MISSES_PER_TURN)):
            packet, client, deliver = self._backlog.popleft()
            try:
                self._give(self._answering.recall(packet, client), packet, client, deliver)
            except Exception as fault:  # the others are still to be answered
                self._answering.failed(fault)

    def _give(self, known: Wire, packet: bytes, client: str, deliver: Deliver) -> None:
        """What is known, or what the handler says, now or later."""
        wire = known or self._answering.ask(packet, client)
        if isinstance(wire, Later):
            self._waiting.add(wire, deliver)
        else:
            deliver(wire)

    def _answer_batch(self, batch: mmsg.Batch, count: int, outbox: "_Outbox") -> None:
        """Answer `count` datagrams in place and send them in runs, cut where one is dropped.

        The hot loop of the program: `Memo.find` is written out here, for young answers, because a
        call and the objects of a whole packet would cost more than all the rest.
        """
        memo = self._memo
        octets, view, sizes = batch.octets, batch.view, batch.sizes
        places: dict[int, int] = {}  # of repeats, by slot
        others: list[int] = []  # indexes of what the memo did not answer
        first = 0  # of the run that is not sent yet
        lengths = batch.lengths[:count].tolist()
        queries = [
            octets[start + 2 : start + length]
            for start, length in zip(batch.starts, lengths, strict=False)
        ]
        self._answering.received += count
        recall = memo.young.get
        # All at once: the processor then waits for many parts of a large memo at a time, and not
        # for one after the other.
        found = list(map(recall, queries))
        verdicts = self._verdicts(batch, count, queries, found)
        for i, start, query, known in zip(range(count), batch.starts, queries, found, strict=False):
            if verdicts is not None and (verdict := verdicts[i]) is not None:
                wire = octets[start : start + 2] + verdict if verdict else None
            elif known is not None:
                kept, places[i], _ = known
                size = len(kept) + 2
                view[start + 2 : start + size] = kept
                sizes[i] = size
                continue
            elif (end := query.find(0, 10) + 1) and (
                known := recall(query[:10] + query[10:end].lower() + query[end:])
            ) is not None:
                kept, places[i], _ = known
                size = len(kept) + 2
                view[start + 2 : start + 12] = kept[:10]  # the name stays as it was asked
                view[start + 2 + end : start + size] = kept[end:]
                sizes[i] = size
                continue
            else:
                wire = self._answer_one(octets[start : start + lengths[i]], batch, i, outbox, end)
                recall = memo.young.get  # another dictionary, when it was full
            others.append(i)
            if wire is None:
                self._send(batch, first, i - first, places)
                first = i + 1
            else:
                view[start : start + len(wire)] = wire
                sizes[i] = len(wire)
        self._send(batch, first, count - first, places)
        for place in places.values():
            memo.hits[place] += 1
        if self._answering.listener is not None and len(others) < count:
            self._tell_of_repeats(batch, queries, sorted({*range(count)}.difference(others)))

    def _tell_of_repeats(self, batch: mmsg.Batch, queries: list[bytes], repeats: list[int]) -> None:
        weights = self._answering.weigh(len(repeats))
        if any(weights):
            clients = batch.clients(len(queries))
            self._answering.tell(
                [
                    (clients[i], queries[i], 0, weight)
                    for i, weight in zip(repeats, weights, strict=True)
                    if weight
                ]
            )

    def _verdicts(
        self, batch: mmsg.Batch, count: int, queries: list[bytes], found: list[Kept | None]
    ) -> Sequence[bytes | None] | None:
        if self._limiter is None:
            return None
        unknown: Sequence[bytes] = ()
        if not all(found):
            unknown = [query for query, kept in zip(queries, found, strict=True) if not kept]
        return self._admitted(batch.clients(count), queries, unknown)

    def _admitted(
        self,
        clients: Sequence[bytes],
        queries: Sequence[bytes],
        unknown: Sequence[bytes] | None = None,
    ) -> Sequence[bytes | None] | None:
        """What the limiter says. One that fails lets all pass: DNS goes on."""
        assert self._limiter is not None
        try:
            return self._limiter.admit(clients, queries, unknown=unknown)
        except Exception as fault:
            self._answering.noticed(fault)
            return None

    def _answer_one(
        self, packet: bytes, batch: mmsg.Batch, i: int, outbox: "_Outbox", name_end: int
    ) -> Wire:
        """The answer to what is not among the young answers; None: not now, or never. A fault
        costs this query only: the others of its batch are still to be answered."""
        answering = self._answering
        if not HEADER <= len(packet) <= mmsg.SLOT:
            answering.malformed += 1
            return None
        try:
            client = batch.client(i)
            wire: Wire | Later[Wire] = None
            if self._memo.has_old and name_end:
                wire = answering.recall(packet, client)
            if wire is None and self._is_put_off(packet):
                self._put_off(packet, client, partial(outbox.deliver, batch.origin(i)))
                return None
            if wire is None:
                wire = answering.ask(packet, client)
            if isinstance(wire, Later):
                self._waiting.add(wire, partial(outbox.deliver, batch.origin(i)))
                return None
        except Exception as fault:
            answering.failed(fault)
            return None
        return wire

    def _send(self, batch: mmsg.Batch, first: int, count: int, places: dict[int, int]) -> None:
        """Send a run of slots. Those that do not go leave `places`: they are no hits."""
        if not count:
            return
        sent, refused = batch.send(first, count)
        self._answering.answered += sent
        if sent == count:
            return
        full = count - sent - len(refused)
        self._answering.send_errors += len(refused)
        self._answering.full += full
        for slot in (*refused, *range(first + count - full, first + count)):
            if places.pop(slot, None) is not None:
                self._answering.unsent += 1

    def _serve_singly(self, sock: socket.socket, buffer: memoryview) -> None:
        answering = self._answering
        for _ in range(mmsg.BATCH * self._turn(BATCHES_PER_TURN, BATCHES_WHEN_BUSY)):
            try:
                length, control, _, peer = sock.recvmsg_into((buffer,), ANCILLARY)
            except (BlockingIOError, InterruptedError):
                return
            answering.received += 1
            packet, client = bytes(buffer[:length]), peer[0].partition("%")[0]
            if self._proxies is not None:
                try:
                    packet, client = unwrap(packet, client, is_believed=client in self._proxies)
                except Malformed:
                    answering.proxyproto += 1
                    continue
            deliver = partial(self._send_single, sock, reply_info(control), peer)
            try:
                self._answer_single(packet, client, deliver)
            except Exception as fault:  # the others are still to be answered
                answering.failed(fault)

    def _send_single(
        self, sock: socket.socket, control: Control, peer: Sequence[object], wire: Wire
    ) -> None:
        if wire is None:
            return
        try:
            sock.sendmsg((wire,), control, 0, tuple(peer))
            self._answering.answered += 1
        except BlockingIOError:
            self._answering.full += 1
        except OSError as fault:
            if fault.errno == errno.EMSGSIZE and (shorter := shortened(wire)):
                self._send_single(sock, control, peer, shorter)
            else:
                self._answering.send_errors += 1

    def _answer_single(self, packet: bytes, client: str, deliver: Deliver) -> None:
        if self._limiter is not None:
            family = socket.AF_INET6 if ":" in client else socket.AF_INET
            address = socket.inet_pton(family, client)
            verdicts = self._admitted((address,), (packet[2:],))
            if verdicts is not None and (verdict := verdicts[0]) is not None:
                deliver(packet[:2] + verdict if verdict else None)
                return
        if not HEADER <= len(packet) <= mmsg.SLOT:
            self._answering.malformed += 1
            return
        known = self._answering.recall(packet, client)
        if known is None and self._is_put_off(packet):
            self._put_off(packet, client, deliver)
        else:
            self._give(known, packet, client, deliver)


class _Outbox:
    """Answers that came later, sent together: those of one turn of the loop share a call."""

    def __init__(
        self, sock: socket.socket, answering: Answering, *, with_packet_info: bool
    ) -> None:
        self._sock = sock
        self._with_packet_info = with_packet_info
        self._answering = answering
        self._batch: mmsg.Batch | None = None  # a server that forwards nothing needs none
        self._count = 0

    def deliver(self, origin: bytes, wire: Wire) -> None:
        if wire is None:
            return
        if self._batch is None:
            self._batch = mmsg.Batch(self._sock, with_packet_info=self._with_packet_info)
        if not self._count:
            asyncio.get_running_loop().call_soon(self.flush)
        self._batch.put(self._count, origin, wire)
        self._count += 1
        if self._count == mmsg.BATCH:
            self.flush()

    def flush(self) -> None:
        count, self._count = self._count, 0
        if self._batch is None or not count or self._sock.fileno() < 0:
            return
        sent, refused = self._batch.send(0, count)
        self._answering.answered += sent
        self._answering.send_errors += len(refused)
        self._answering.full += count - sent - len(refused)
