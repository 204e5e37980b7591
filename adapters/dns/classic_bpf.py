"""Classic BPF (linux/filter.h): programs that the kernel runs for each datagram of a socket, for
everybody without privileges, and what ours have in common: they tell clients apart.

A client is a number: an IPv4 address, or one that stands for an IPv6 /64 (`Workers.take_recent`).
"""

import contextlib
import ctypes
import socket
import struct
from collections.abc import Collection, Sequence
from typing import NamedTuple

CLIENTS_MAX = 512
"""The kernel takes programs of 4,096 instructions. Before Linux 6.7 it has 20,480 octets for them
in its own form (net.core.optmem_max), a filter together with the one that it replaces."""
TOGETHER = 16
"""At the end of a search so many are compared one after the other: with a jump for each, programs
were more than twice as long."""

SO_ATTACH_FILTER, SO_DETACH_FILTER, SO_ATTACH_REUSEPORT_CBPF = 26, 27, 51  # asm-generic/socket.h


class Instruction(NamedTuple):
    code: int
    if_true: int = 0
    if_false: int = 0
    k: int = 0


LOAD, MULTIPLY, KEEP_IN_X, XOR_X, OR = 0x20, 0x24, 0x07, 0xAC, 0x44
ADD, MODULO, STORE, LOAD_STORED, TAKE_FROM_X = 0x04, 0x94, 0x02, 0x60, 0x87
JUMP, IF_EQUAL, IF_AT_LEAST, RETURN, RETURN_A = 0x05, 0x15, 0x35, 0x06, 0x16
NETWORK = -0x100000 & 0xFFFFFFFF  # SKF_NET_OFF: from here on offsets are into the IP header
CHANCE = -0x1000 + 56 & 0xFFFFFFFF  # SKF_AD_OFF + SKF_AD_RANDOM
SOURCE4, SOURCE6 = 12, 8  # where addresses of senders are
MIX = 2654435761
"""Of an IPv6 address its /64 counts, as one number; worker.c has the same."""
SOMEBODY = 1 << 31
"""Is set in it: 0 is nobody, and the first 64 bits of ::1 are. worker.c has the same."""


def client(*, is_ipv6: bool) -> list[Instruction]:
    """Loads it; of IPv6 into X too."""
    if not is_ipv6:
        return [Instruction(LOAD, k=NETWORK + SOURCE4)]
    return [
        Instruction(LOAD, k=NETWORK + SOURCE6),
        Instruction(MULTIPLY, k=MIX),
        Instruction(KEEP_IN_X),
        Instruction(LOAD, k=NETWORK + SOURCE6 + 4),
        Instruction(XOR_X),
        Instruction(OR, k=SOMEBODY),
    ]


def one_of(
    clients: Collection[int], then: Sequence[Instruction], otherwise: Sequence[Instruction]
) -> list[Instruction]:
    """Whether the loaded client is one of the first CLIENTS_MAX. Both ends return."""
    tree = _search(sorted(clients)[:CLIENTS_MAX], 0, len(then))
    return [*tree, *then, *otherwise]


def _search(ordered: Sequence[int], after: int, size: int) -> list[Instruction]:
    """A search tree, `after` instructions before the two ends, of which the first has `size`. Jumps
    on conditions reach 255 instructions, others any number."""
    count = len(ordered)
    if count <= TOGETHER:
        return [
            *(Instruction(IF_EQUAL, count - i, 0, one) for i, one in enumerate(ordered)),
            Instruction(JUMP, k=1 + after + size),
            Instruction(JUMP, k=after),
        ]
    middle = count // 2
    others = _search(ordered[middle:], after, size)
    below = _search(ordered[:middle], len(others) + after, size)
    return [
        Instruction(IF_AT_LEAST, 0, 1, ordered[middle]),
        Instruction(JUMP, k=len(below)),
        *below,
        *others,
    ]


def attach(sock: socket.socket, option: int, program: Sequence[Instruction]) -> None:
    """In place of the one that is there. Raises OSError."""
    code = b"".join(struct.pack("=HBBI", *one) for one in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    given = struct.pack("@HP", len(program), ctypes.addressof(buffer))
    sock.setsockopt(socket.SOL_SOCKET, option, given)


def detach(sock: socket.socket) -> None:
    """A filter, if there is one."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
