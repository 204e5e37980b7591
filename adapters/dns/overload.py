"""Who is heard while more comes than the threads can read: those who were there before.

What finds a socket's buffer full is lost, whoever sent it, and to read ten times as much only to
drop it is beyond any program. So while a socket overflows, the kernel drops at the door instead
(SO_ATTACH_FILTER): who asked before it began comes in, and of the rest as many, by chance, as can
be read. What is dropped so is counted like what finds the buffer full. See docs/decisions/0054.

A forged flood may of course use the addresses of those who were there, if it knows them. And a
client that is new gets through by asking again, or over TCP.
"""

import contextlib
import ctypes
import logging
import socket
import struct
import sys
from collections.abc import Collection, Sequence
from typing import NamedTuple

log = logging.getLogger("kudurru")

LOOK_S = 0.05
"""Between looks: so long a flood goes unnoticed. One costs some microseconds."""
LOOK_CLOSELY_S = 0.02  # while it lasts

REGULARS_MAX = 512  # the kernel takes programs of 4,096 instructions
SEEN_MAX = 4 * REGULARS_MAX
LOOKS_MIN = 2
"""In which somebody was seen who counts as there before: a flood that begins is seen in one."""

CALM_S = 10.0
"""After an overflow, until those who ask are taken for regulars again: a flood has pauses."""

HIGH, LOW = 1 / 16, 1 / 64  # of a buffer
LESS, MORE = 0.7, 1.01
OPTIMISM = 2.0
"""How much more may be read than when it began, when the threads had to share the processors or to
wait: a pause overflows a buffer too, and nobody is to be turned away for it."""
FLOOD = 2.0
"""So many times what can be read is no rush any more. The threads are then kept half busy: who is
always behind waits for its turn of the processor too, and those who were there with it."""
SAY_AGAIN_S = 60.0

_SO_ATTACH_FILTER, _SO_DETACH_FILTER, _SO_MEMINFO = 26, 27, 55  # asm-generic/socket.h
_MEMINFO = struct.Struct("9I")
_ALLOCATED_AT, _BUFFER_AT, _DROPS_AT = 0, 1, 8  # linux/sock_diag.h


class Instruction(NamedTuple):
    """Of classic BPF (linux/filter.h)."""

    code: int
    if_true: int = 0
    if_false: int = 0
    k: int = 0


LOAD, MULTIPLY, KEEP_IN_X, XOR_X, OR = 0x20, 0x24, 0x07, 0xAC, 0x44
JUMP, IF_EQUAL, IF_AT_LEAST, RETURN = 0x05, 0x15, 0x35, 0x06
NETWORK = -0x100000 & 0xFFFFFFFF  # SKF_NET_OFF: from here on offsets are into the IP header
CHANCE = -0x1000 + 56 & 0xFFFFFFFF  # SKF_AD_OFF + SKF_AD_RANDOM
LET_IN, DROP = Instruction(RETURN, k=0xFFFFFFFF), Instruction(RETURN)
SOURCE4, SOURCE6 = 12, 8  # where addresses of senders are
MIX = 2654435761
"""Of an IPv6 address its /64 counts, as one number; worker.c has the same."""
SOMEBODY = 1 << 31
"""Is set in it: 0 is nobody, and the first 64 bits of ::1 are. worker.c has the same."""


def filter_program(regulars: Collection[int], share: float, *, is_ipv6: bool) -> list[Instruction]:
    """Lets in `regulars` (numbers as of `Workers.take_recent`), and `share` of the rest."""
    chance = min(int(share * (1 << 32)), 0xFFFFFFFF)
    if is_ipv6:
        client = [
            Instruction(LOAD, k=NETWORK + SOURCE6),
            Instruction(MULTIPLY, k=MIX),
            Instruction(KEEP_IN_X),
            Instruction(LOAD, k=NETWORK + SOURCE6 + 4),
            Instruction(XOR_X),
            Instruction(OR, k=SOMEBODY),
        ]
    else:
        client = [Instruction(LOAD, k=NETWORK + SOURCE4)]
    lucky = [Instruction(LOAD, k=CHANCE), Instruction(IF_AT_LEAST, 1, 0, chance), LET_IN]
    return [*lucky, *client, *_one_of(sorted(regulars)[:REGULARS_MAX])]


def _one_of(ordered: Sequence[int]) -> list[Instruction]:
    """A search tree. Jumps on conditions reach 255 instructions, others any number."""
    if not ordered:
        return [DROP]
    if len(ordered) == 1:
        return [Instruction(IF_EQUAL, 0, 1, ordered[0]), LET_IN, DROP]
    middle = len(ordered) // 2
    below, others = _one_of(ordered[:middle]), _one_of(ordered[middle:])
    return [
        Instruction(IF_AT_LEAST, 0, 1, ordered[middle]),
        Instruction(JUMP, k=len(below)),
        *below,
        *others,
    ]


def attach(sock: socket.socket, program: Sequence[Instruction]) -> None:
    """In place of the one that is there."""
    code = b"".join(struct.pack("=HBBI", *one) for one in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    given = struct.pack("@HP", len(program), ctypes.addressof(buffer))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, given)


def detach(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # there is none
        sock.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


class Regulars:
    """Who asked lately, and more than once."""

    def __init__(self) -> None:
        self._looks: dict[int, int] = {}  # who was seen last comes last

    def see(self, clients: Collection[int]) -> None:
        for client in set(clients):
            self._looks[client] = self._looks.pop(client, 0) + 1
        while len(self._looks) > SEEN_MAX:
            del self._looks[next(iter(self._looks))]

    def known(self) -> list[int]:
        """The last REGULARS_MAX of them."""
        found = [client for client, looks in self._looks.items() if looks >= LOOKS_MIN]
        return found[-REGULARS_MAX:]


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

    @property
    def is_open(self) -> bool:
        return self.share >= 1

    def look(self, seen: Seen, took_s: float) -> None:
        received_per_s = seen.received / took_s
        came_per_s = received_per_s + seen.dropped / took_s
        if self.is_open:
            if not seen.dropped:
                return
            self._readable_per_s = self._most_per_s = OPTIMISM * received_per_s
        elif seen.level > HIGH:
            self._readable_per_s *= LESS
        elif seen.level < LOW:
            self._most_per_s = max(self._most_per_s, received_per_s)
            # What was just read can be. Else a look in which a thread had no processor counts for
            # ever: zero does not grow.
            readable_per_s = max(self._readable_per_s * MORE, received_per_s)
            self._readable_per_s = min(readable_per_s, self._most_per_s)
        is_flood = came_per_s > FLOOD * self._readable_per_s
        wanted_per_s = self._readable_per_s / 2 if is_flood else self._readable_per_s
        self.share = min(1.0, wanted_per_s / came_per_s) if came_per_s else 1.0


class _Door:
    """A socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.gate = Gate()
        self.received = self.dropped = 0

    def look(self, received: int, known: Regulars, took_s: float) -> None:
        found = _MEMINFO.unpack(self.sock.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size))
        seen = Seen(
            received - self.received,
            (found[_DROPS_AT] - self.dropped) % (1 << 32),
            found[_ALLOCATED_AT] / max(1, found[_BUFFER_AT]),
        )
        self.received, self.dropped = received, found[_DROPS_AT]
        before = self.gate.share
        self.gate.look(seen, took_s)
        if self.gate.share == before:
            return
        if self.gate.is_open:
            detach(self.sock)
        else:
            is_ipv6 = self.sock.family == socket.AF_INET6
            clients = known.known()
            attach(self.sock, filter_program(clients, self.gate.share, is_ipv6=is_ipv6))


class Overload:
    """Watches the sockets of one address. Where the system has no such filters, nothing happens."""

    def __init__(self, sockets: Sequence[socket.socket]) -> None:
        self._doors = [_Door(sock) for sock in sockets] if sys.platform == "linux" else []
        self._regulars = Regulars()  # a client comes in by another socket with each port
        self._looked_s: float | None = None
        self._calm_from_s = 0.0
        self._said_s: float | None = None

    @property
    def is_over(self) -> bool:
        return all(door.gate.is_open for door in self._doors)

    def look(self, recent: Sequence[tuple[int, Sequence[int]]], now_s: float) -> float | None:
        """Of each socket how many datagrams were received so far, and clients of late. Seconds
        until it wants to look again; None: never."""
        if not self._doors:
            return None
        took_s = now_s - self._looked_s if self._looked_s is not None else LOOK_S
        if took_s <= 0:
            return LOOK_CLOSELY_S
        self._looked_s = now_s
        try:
            for door, (received, _) in zip(self._doors, recent, strict=True):
                door.look(received, self._regulars, took_s)
        except (OSError, struct.error) as fault:
            log.warning("floods are not filtered: %s", fault)
            self.end()
            self._doors = []
            return None
        if not self.is_over:
            self._calm_from_s = now_s + CALM_S
            self._say(now_s)
            return LOOK_CLOSELY_S
        if now_s >= self._calm_from_s:
            self._regulars.see({client for _, clients in recent for client in clients})
        return LOOK_S

    def _say(self, now_s: float) -> None:
        if self._said_s is not None and now_s - self._said_s < SAY_AGAIN_S:
            return
        self._said_s = now_s
        shut = [door for door in self._doors if not door.gate.is_open]
        log.warning(
            "more queries come than can be read: %d clients that were there before come first, and "
            "%.1f %% of the others",
            len(self._regulars.known()),
            100 * min(door.gate.share for door in shut),
        )

    def end(self) -> None:
        for door in self._doors:
            detach(door.sock)
