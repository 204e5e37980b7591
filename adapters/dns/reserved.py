"""Sockets of their own for those who ask regularly, beside those for everybody, on one address.

What strangers send fills other buffers then, and keeps other threads busy: who reads for regulars
has always something to give, and so gets a processor as soon as it wants one. The kernel sorts, by
a program of the group that the sockets are in (SO_ATTACH_REUSEPORT_CBPF). See
docs/decisions/0061-regulars-have-sockets-of-their-own.md.

It is the same answer whichever socket a query comes to. So a program that is out of date, or none,
harms nobody.
"""

import contextlib
import logging
import socket
import sys
from collections.abc import Collection, Sequence

from kudurru.adapters.dns import classic_bpf as bpf
from kudurru.adapters.dns.classic_bpf import Instruction
from kudurru.adapters.sockets import beside

log = logging.getLogger("kudurru")


def sorting_program(regulars: Collection[int], number: int, *, is_ipv6: bool) -> list[Instruction]:
    """Of a group with `number` sockets for everybody, and as many for regulars after them. Which of
    them is left to chance: some senders are many clients."""
    return [
        *bpf.client(is_ipv6=is_ipv6),
        Instruction(bpf.STORE),
        Instruction(bpf.LOAD, k=bpf.CHANCE),
        Instruction(bpf.MODULO, k=number),
        Instruction(bpf.KEEP_IN_X),
        Instruction(bpf.LOAD_STORED),
        *bpf.one_of(
            regulars,
            [Instruction(bpf.TAKE_FROM_X), Instruction(bpf.ADD, k=number), _CHOSEN],
            [Instruction(bpf.TAKE_FROM_X), _CHOSEN],
        ),
    ]


_CHOSEN = Instruction(bpf.RETURN_A)


class Reserved:
    """`everybody` are all sockets of an address so far. `sockets` are for regulars, as many; none
    where the system has no such groups. `admitted` are those who are sent there."""

    def __init__(self, everybody: Sequence[socket.socket]) -> None:
        self.sockets: tuple[socket.socket, ...] = ()
        self.admitted: frozenset[int] = frozenset()
        self._everybody = tuple(everybody)
        if sys.platform != "linux" or len({one.getsockname() for one in everybody}) != 1:
            return
        with contextlib.ExitStack() as undo:
            try:
                sockets = tuple(undo.enter_context(beside(one)) for one in everybody)
                self._sort(self.admitted)
            except OSError as fault:
                log.warning("who asks regularly gets no sockets of their own: %s", fault)
                if len(everybody) == 1:  # nothing keeps out of a group who joins it
                    with contextlib.suppress(OSError):
                        everybody[0].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 0)
                return
            self.sockets = sockets
            undo.pop_all()

    def admit(self, regulars: frozenset[int]) -> None:
        """From now on these, if the kernel takes them: else those of before stay."""
        if not self.sockets or self.admitted == regulars:
            return
        try:
            self._sort(regulars)
        except OSError as fault:
            log.warning("the kernel does not take who asks regularly: %s", fault)
        else:
            self.admitted = regulars

    def close(self) -> None:
        """All come in by the other sockets from now on."""
        self.admit(frozenset())
        for sock in self.sockets:
            sock.close()
        self.sockets = ()

    def _sort(self, regulars: Collection[int]) -> None:
        first = self._everybody[0]
        is_ipv6 = first.family == socket.AF_INET6
        program = sorting_program(regulars, len(self._everybody), is_ipv6=is_ipv6)
        bpf.attach(first, bpf.SO_ATTACH_REUSEPORT_CBPF, program)
