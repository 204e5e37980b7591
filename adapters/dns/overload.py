"""Who is heard while more comes than the threads can read: those who were there before.

What finds a socket's buffer full is lost, whoever sent it, and to read ten times as much only to
drop it is beyond any program. So while a socket overflows, the kernel drops at the door instead
(SO_ATTACH_FILTER): who asked before it began comes in, and of the rest as many, by chance, as can
be read. What is dropped so is counted like what finds the buffer full. See docs/decisions/0054.

A forged flood may of course use the addresses of those who were there, if it knows them. And a
client that is new gets through by asking again, or over TCP.
"""

import logging
import socket
import struct
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from heapq import nlargest
from itertools import islice
from typing import NamedTuple

from kudurru.adapters.dns import classic_bpf as bpf
from kudurru.adapters.dns.classic_bpf import CLIENTS_MAX, Instruction
from kudurru.adapters.dns.reserved import Reserved

log = logging.getLogger("kudurru")

LOOK_S = 1.0
"""Between looks in peace: who sees that something is lost calls for the next one (worker.c), and
Python that is woken twenty times a second costs a percent of a processor."""
LOOK_CLOSELY_S = 0.02  # once something is lost, and while a flood lasts

KNOWN_MAX = 4 * CLIENTS_MAX
SEEN_MAX = 32 * CLIENTS_MAX  # who is not known yet: many of them may be forged
LOOKS_MIN = 2
"""In which somebody was seen who counts as there before: a flood that begins is seen in one."""
HALF_LIFE = 3_600
"""Looks in peace, of which there is one a second: who was there for an hour is pushed out by nobody
who came since, unless he asks more often."""

CALM_S = 10.0
"""After an overflow, until those who ask are taken for regulars again: a flood has pauses."""

BARRED_S = 60.0
"""So long a regular that was the flood itself is a stranger."""
LEADS_MIN = 128  # batches that tell who it is

ADMIT_S = 1.0
"""Between programs that know who is a regular. One of 512 costs less than a millisecond."""

HIGH, LOW = 1 / 16, 1 / 64  # of a buffer
LESS, MORE = 0.7, 1.01
OPTIMISM = 2.0
"""How much more may be read than when it began, when the threads had to share the processors or to
wait: a pause overflows a buffer too, and nobody is to be turned away for it."""
FLOOD = 2.0
"""So many times what can be read is no rush any more. The threads are then kept half busy: who is
always behind waits for its turn of the processor too, and those who were there with it."""
LATE_S = 1.25 * LOOK_CLOSELY_S
"""A look that comes so late says that others want the processors, or that Python is busy: the less
is done for strangers, the sooner regulars have their turn."""
LEAST = 1 / 16
"""But of what could be read so much is, always."""
SURE_PER_S = 1000.0
"""What any thread reads, though none was seen to in the look that shut the gate."""
SAY_AGAIN_S = 60.0

_SO_MEMINFO = 55  # asm-generic/socket.h
_MEMINFO = struct.Struct("9I")
_ALLOCATED_AT, _BUFFER_AT, _DROPS_AT = 0, 1, 8  # linux/sock_diag.h


LET_IN, DROP = Instruction(bpf.RETURN, k=0xFFFFFFFF), Instruction(bpf.RETURN)


def filter_program(regulars: Collection[int], share: float, *, is_ipv6: bool) -> list[Instruction]:
    """Lets in `regulars`, and `share` of the rest."""
    chance = min(int(share * (1 << 32)), 0xFFFFFFFF)
    lucky = [
        Instruction(bpf.LOAD, k=bpf.CHANCE),
        Instruction(bpf.IF_AT_LEAST, 1, 0, chance),
        LET_IN,
    ]
    return [*lucky, *bpf.client(is_ipv6=is_ipv6), *bpf.one_of(regulars, [LET_IN], [DROP])]


class Regulars:
    """Who asked lately, and more than once: those first who did in most looks, which count half
    after HALF_LIFE more.

    So forged addresses take nobody's place unless each of them is seen as often, and for as long,
    as those who are there: to see each of them twice is not enough. Who asks once pushes out nobody
    who is known, however many do.
    """

    def __init__(self) -> None:
        self._new: dict[int, None] = {}  # who was seen once; last comes last, here and there
        self._known: dict[int, int] = {}  # to the looks in which each was seen
        self._look_no = 0
        self._first: frozenset[int] | None = None

    def see(self, clients: Collection[int]) -> None:
        self._look_no += 1
        if self._look_no % HALF_LIFE == 0:
            halves = ((client, looks // 2) for client, looks in self._known.items())
            self._known = {client: looks for client, looks in halves if looks}
        for client in set(clients):
            if client in self._known:
                self._known[client] = self._known.pop(client) + 1
            elif client in self._new:
                del self._new[client]
                self._known[client] = LOOKS_MIN
            else:
                self._new[client] = None
        for client in list(islice(self._new, max(0, len(self._new) - SEEN_MAX))):
            del self._new[client]
        if len(self._known) > KNOWN_MAX + KNOWN_MAX // 4:  # some at a time: it costs a sort
            stay = set(self._most_often(KNOWN_MAX))
            self._known = {one: looks for one, looks in self._known.items() if one in stay}
        self._first = None

    def known(self) -> frozenset[int]:
        """CLIENTS_MAX of them."""
        if self._first is None:
            self._first = frozenset(self._most_often(CLIENTS_MAX))
        return self._first

    def _most_often(self, number: int) -> list[int]:
        """Of those who did as often as each other, who did last."""
        if len(self._known) <= number:
            return list(self._known)
        return nlargest(number, reversed(self._known), key=self._known.__getitem__)


class Leaders:
    """Which regulars are the flood, while a socket of theirs overflows: who is first in most
    batches sends most."""

    def __init__(self) -> None:
        self.is_overflowing = False
        self._led = Counter[int]()
        self._barred_until_s: dict[int, float] = {}

    def look(self, clients: Iterable[int], now_s: float, *, is_lost: bool) -> bool:
        """`clients`: the first of each batch since the last look. Whether others are barred now."""
        had_begun, self.is_overflowing = self.is_overflowing, is_lost
        if not (had_begun and is_lost):
            # In peace each client is first in a batch of its own: that says nothing.
            self._led.clear()
            return False
        self._led.update(clients)
        batches = self._led.total()
        if batches < LEADS_MIN:
            return False
        for client, led in self._led.most_common():
            self._barred_until_s[client] = now_s + BARRED_S
            batches -= 2 * led
            if batches <= 0:  # they were first in half of them
                break
        self._led.clear()
        return True

    def barred(self, now_s: float) -> Collection[int]:
        over = [client for client, until_s in self._barred_until_s.items() if now_s >= until_s]
        for client in over:
            del self._barred_until_s[client]
        return self._barred_until_s.keys()


class Seen(NamedTuple):
    """What a socket and its thread did since they were looked at last."""

    received: int
    dropped: int
    level: float
    """of the buffer, full is 1"""


class Gate:
    """What part of those who are not known may come in to a socket: 1 until it overflows."""

    def __init__(self) -> None:
        self.share = 1.0
        self._readable_per_s = self._most_per_s = 0.0
        self._trial = 1.0
        """How much more than the most is tried. It grows while the buffer stays empty: what was
        measured first may have been far too little, and a flood fills the buffer again."""

    @property
    def is_open(self) -> bool:
        return self.share >= 1

    def look(self, seen: Seen, took_s: float) -> None:
        received_per_s = seen.received / took_s
        came_per_s = received_per_s + seen.dropped / took_s
        if self.is_open:
            if not seen.dropped:
                return
            self._readable_per_s = self._most_per_s = max(SURE_PER_S, OPTIMISM * received_per_s)
            self._trial = 1.0
        else:
            # What was just read can be. Else a look in which a thread had no processor counts for
            # longer than it has to.
            self._most_per_s = max(self._most_per_s, received_per_s)
            self._adapt(seen.level, received_per_s, came_per_s, took_s)
        is_flood = came_per_s > FLOOD * self._readable_per_s
        wanted_per_s = self._readable_per_s / 2 if is_flood else self._readable_per_s
        self.share = min(1.0, wanted_per_s / came_per_s) if came_per_s else 1.0

    def _adapt(self, level: float, received_per_s: float, came_per_s: float, took_s: float) -> None:
        more = MORE ** (took_s / LOOK_CLOSELY_S)
        if level > HIGH:
            self._trial = max(1.0, LESS * self._trial)
        elif level < LOW:
            self._trial *= more
        most_per_s = self._trial * self._most_per_s
        # Where no more comes than could be read there is nothing to be kept from strangers for:
        # else a pause on a busy machine shuts the socket for as long as the machine is busy.
        is_late = took_s > LATE_S and came_per_s > FLOOD * most_per_s
        if level > HIGH or is_late:
            self._readable_per_s = max(LESS * self._readable_per_s, LEAST * most_per_s)
        elif level < LOW:
            readable_per_s = max(more * self._readable_per_s, received_per_s)
            self._readable_per_s = min(readable_per_s, most_per_s)


class _Door:
    """A socket, mostly one for everybody."""

    def __init__(self, sock: socket.socket) -> None:
        self.gate = Gate()
        self._sock = sock
        self._received = self._dropped = 0

    def see(self, received: int) -> Seen:
        """Since the last time."""
        found = _MEMINFO.unpack(
            self._sock.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size)
        )
        seen = Seen(
            received - self._received,
            (found[_DROPS_AT] - self._dropped) % (1 << 32),
            found[_ALLOCATED_AT] / max(1, found[_BUFFER_AT]),
        )
        self._received, self._dropped = received, found[_DROPS_AT]
        return seen

    def look(self, received: int, took_s: float) -> bool:
        """Whether another share of those who are not known may come in now: `let_in` is due."""
        before = self.gate.share
        self.gate.look(self.see(received), took_s)
        return self.gate.share != before

    def let_in(self, known: Collection[int]) -> None:
        if self.gate.is_open:
            self.open()
            return
        is_ipv6 = self._sock.family == socket.AF_INET6
        program = filter_program(known, self.gate.share, is_ipv6=is_ipv6)
        bpf.attach(self._sock, bpf.SO_ATTACH_FILTER, program)

    def open(self) -> None:
        bpf.detach(self._sock)


class Overload:
    """Watches the sockets of one address, and tells `reserved` who asks regularly. Where the system
    has no such filters, nothing happens."""

    def __init__(self, everybody: Sequence[socket.socket], reserved: Reserved) -> None:
        self._doors = [_Door(sock) for sock in everybody] if sys.platform == "linux" else []
        self._reserved = reserved
        self._reserved_doors = [_Door(sock) for sock in reserved.sockets]
        self._regulars = Regulars()  # a client comes in by another socket with each port
        self._leaders = Leaders()
        self._looked_s = 0.0
        self._is_near = False  # the last look: the next one is to say what can be read
        self._calm_from_s = self._admit_from_s = 0.0
        self._said_s: dict[str, float] = {}

    @property
    def is_over(self) -> bool:
        return self._are_open and not self._leaders.is_overflowing

    @property
    def _are_open(self) -> bool:
        return all(door.gate.is_open for door in self._doors)

    def look(self, recent: Sequence[tuple[int, Sequence[int]]], now_s: float) -> float | None:
        """Of each socket, those for regulars last, how many datagrams were received so far, and
        clients of late. Seconds until it wants to look again; None: never."""
        if not self._doors:
            return None
        took_s, self._looked_s = now_s - self._looked_s, now_s
        number = len(self._doors)
        try:
            self._look_at_regulars(recent[number:], now_s)
            is_near = self._find(recent[:number], took_s, now_s)
        except (OSError, struct.error) as fault:
            log.warning("floods are not filtered: %s", fault)
            self.end()
            self._doors = []
            return None
        self._is_near = is_near
        if not self.is_over:
            self._calm_from_s = now_s + CALM_S
        if not self._are_open:
            self._say_what_comes_in(now_s)
        if is_near or self._leaders.is_overflowing:
            return LOOK_CLOSELY_S
        if now_s >= self._calm_from_s:
            self._regulars.see({client for _, clients in recent for client in clients})
            if now_s >= self._admit_from_s:
                self._admit(now_s)
        return LOOK_S

    def _find(
        self, recent: Sequence[tuple[int, Sequence[int]]], took_s: float, now_s: float
    ) -> bool:
        """Whether something is to be looked at closely. What was received since a look in peace
        does not tell how much can be: then it is only noted what was lost."""
        pairs = zip(self._doors, recent, strict=True)
        if not self._is_near or took_s <= 0:
            lost = [door.see(received).dropped for door, (received, _) in pairs]
            return any(lost)
        for door, (received, _) in pairs:
            if door.look(received, took_s):
                door.let_in(self._known(now_s) - self._reserved.admitted)
        return not self._are_open

    def _look_at_regulars(self, recent: Sequence[tuple[int, Sequence[int]]], now_s: float) -> None:
        pairs = zip(self._reserved_doors, recent, strict=True)
        lost = [door.see(received).dropped for door, (received, _) in pairs]
        clients = (client for _, clients in recent for client in clients)
        had_begun = self._leaders.is_overflowing
        if self._leaders.look(clients, now_s, is_lost=any(lost)):
            self._admit(now_s)
        if had_begun and self._leaders.is_overflowing:
            self._say(
                now_s,
                "more queries come from clients that ask regularly than can be read: those that "
                f"send most come after the others for {BARRED_S:.0f} seconds",
            )

    def _known(self, now_s: float) -> frozenset[int]:
        return self._regulars.known().difference(self._leaders.barred(now_s))

    def _admit(self, now_s: float) -> None:
        self._admit_from_s = now_s + ADMIT_S
        self._reserved.admit(self._known(now_s))

    def _say_what_comes_in(self, now_s: float) -> None:
        share = min(door.gate.share for door in self._doors)
        self._say(
            now_s,
            "more queries come than can be read: %d clients that were there before come first, and "
            "%.1f %% of the others",
            len(self._known(now_s)),
            100 * share,
        )

    def _say(self, now_s: float, message: str, *of: float) -> None:
        if now_s >= self._said_s.get(message, now_s - SAY_AGAIN_S) + SAY_AGAIN_S:
            self._said_s[message] = now_s
            log.warning(message, *of)

    def end(self) -> None:
        for door in self._doors:
            door.open()
