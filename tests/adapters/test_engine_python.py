"""What the Python engine does when the system has no room, which loopback cannot bring about."""

import asyncio
import ctypes
import errno
import socket
from typing import Any

import pytest

from kudurru.adapters.dns import mmsg
from kudurru.adapters.dns.engine_python import PythonEngine
from kudurru.domain.ports import EngineStatistics, Reply
from tests.packets import query


class Echo:
    def handle(self, packet: bytes, client: str, proto: str) -> Reply | None:
        return None if b"drop" in packet else Reply(packet[:2] + b"\x81" + packet[3:], memo=True)


class SystemWithRoomFor:
    """The C library, whose socket buffer takes so many datagrams more."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._real = mmsg._LIBC
        self.recvmmsg = self._real.recvmmsg

    def sendmmsg(self, fd: int, headers: Any, count: int, flags: int) -> int:
        if not self.room:
            ctypes.set_errno(errno.EAGAIN)
            return -1
        sent = self._real.sendmmsg(fd, headers, min(count, self.room), flags)
        self.room -= sent
        return int(sent)


class SocketWithRoomFor(socket.socket):
    room: int

    def sendmsg(self, *args: Any) -> int:
        if not self.room:
            raise BlockingIOError
        self.room -= 1
        return super().sendmsg(*args)


def answered_of(queries: list[bytes], *, batched: bool, room: int) -> EngineStatistics:
    """Statistics after the queries, which wait in the socket when the engine starts."""

    async def main() -> EngineStatistics:
        with SocketWithRoomFor(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.room = room
            sock.bind(("127.0.0.1", 0))
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
                for one in queries:
                    client.sendto(one, sock.getsockname())
                engine = PythonEngine(Echo(), [sock], batched=batched)
                await engine.start()
                while engine.statistics().received < len(queries):
                    await asyncio.sleep(0)
                await engine.stop()
                return engine.statistics()

    return asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("room", [0, 1, 7, 20])
@pytest.mark.parametrize("drop_every", [100, 5, 2])
def test_what_finds_no_room_is_dropped_counted_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, room: int, drop_every: int
) -> None:
    names = ["drop" if number % drop_every == 1 else "www" for number in range(20)]
    queries = [query(f"{name}.example") for name in names]
    for batched in (False, True) if mmsg.is_available() else (False,):
        monkeypatch.setattr(mmsg, "_LIBC", SystemWithRoomFor(room))
        seen = answered_of(queries, batched=batched, room=room)
        monkeypatch.undo()
        assert seen.dropped_by_handler == names.count("drop")
        assert seen.answered == min(room, names.count("www"))
        assert seen.answered + seen.dropped_full == names.count("www")
