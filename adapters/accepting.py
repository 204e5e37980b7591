"""Taking connections from a socket that listens.

Not by asyncio's server: it accepts up to a thousand connections before anything else has its turn,
so a storm of them holds DNS up, and at the limit of open files it writes a line for each. Here a
turn has an end, what has no room is closed before anything is built for it, and a system that gives
no more sockets is asked again after a while, and named once.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from functools import partial

log = logging.getLogger("kudurru")

ACCEPTS_PER_TURN = 16  # below a millisecond, also when each one is let in
RETRY_S = 1.0  # after the system had no room

_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Acceptor:
    """Lets connections of one socket in.

    `admit` is asked with the peer's address in text, `make` gives the protocol of one that is in.
    """

    def __init__(
        self,
        sock: socket.socket,
        admit: Callable[[str], bool],
        make: Callable[[], asyncio.BaseProtocol],
    ) -> None:
        self._socket = sock
        self._admit = admit
        self._make = make
        self._starting: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._had_room = True

    def start(self) -> None:
        self._socket.setblocking(False)
        self._retry = None
        asyncio.get_running_loop().add_reader(self._socket, self.accept)

    def stop(self) -> None:
        """Take no more. Those that are in are their protocols' business. Harmless when stopped."""
        if self._retry is not None:
            self._retry.cancel()
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._socket)
        for task in self._starting:
            task.cancel()

    def accept(self) -> None:
        """Let in what waits, as far as this turn allows."""
        for _ in range(ACCEPTS_PER_TURN):
            try:
                connection, peer = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as fault:
                if fault.errno in _NO_ROOM:
                    self._wait_for_room(fault)
                    return
                continue  # this one was gone before it was taken: accept(2), "Error handling"
            self._had_room = True
            if self._admit(peer[0]):
                task = asyncio.get_running_loop().create_task(self._begin(connection))
                self._starting.add(task)
                task.add_done_callback(partial(self._begun, connection))
            else:
                connection.close()

    async def _begin(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(self._make, connection)

    def _begun(self, connection: socket.socket, task: "asyncio.Task[None]") -> None:
        self._starting.discard(task)
        if task.cancelled():
            connection.close()  # not in `_begin`, which was never entered where it was early
        elif (fault := task.exception()) is not None:
            connection.close()
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a connection could not be begun", "exception": fault}
            )

    def _wait_for_room(self, fault: OSError) -> None:
        if self._had_room:
            host, port = self._socket.getsockname()[:2]
            log.error(
                "%s port %d takes no connections for now: %s; raise the limit of open files",
                host,
                port,
                fault.strerror,
            )
        self._had_room = False
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        self._retry = loop.call_later(RETRY_S, self.start)
