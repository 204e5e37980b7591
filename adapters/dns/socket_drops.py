"""How many datagrams the system dropped because nobody read them in time.

Linux counts them per socket and tells when asked (SO_MEMINFO, since 4.12). The same counter may
come with each datagram (SO_RXQ_OVFL), which costs each some time. Elsewhere nothing is known: 0.
"""

import contextlib
import socket
import struct
import sys
from collections.abc import Iterable

_SO_MEMINFO = 55  # asm-generic/socket.h
_MEMINFO = struct.Struct("9I")
_DROPS_AT = 8  # SK_MEMINFO_DROPS of linux/sock_diag.h
_MODULUS = 1 << 32


class SocketDrops:
    """Of some sockets, since they were opened. What closed ones had is kept, as last asked."""

    def __init__(self, sockets: Iterable[socket.socket]) -> None:
        self._seen = dict.fromkeys(sockets, 0)

    def count(self) -> int:
        for sock, before in self._seen.items():
            self._seen[sock] = before + (_drops_of(sock, before) - before) % _MODULUS
        return sum(self._seen.values())


def _drops_of(sock: socket.socket, before: int) -> int:
    if sys.platform == "linux" and sock.fileno() >= 0:
        with contextlib.suppress(OSError, struct.error):  # a system that knows no such option
            found = sock.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size)
            return int(_MEMINFO.unpack(found)[_DROPS_AT])
    return before
