"""Connections are let in a few at a time, whatever comes and whatever the system has left."""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Iterator

import pytest

from kudurru.adapters import accepting
from kudurru.adapters.accepting import ACCEPTS_PER_TURN, Acceptor
from tests.engines import until

STORM = 5 * ACCEPTS_PER_TURN


class Listening(socket.socket):
    """A socket that the system may refuse another one for."""

    fault = 0
    asked = 0

    def accept(self) -> tuple[socket.socket, object]:
        self.asked += 1
        if self.fault:
            raise OSError(self.fault, os.strerror(self.fault))
        return super().accept()


@pytest.fixture
def listening() -> Iterator[Listening]:
    with Listening() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(STORM)
        sock.setblocking(False)
        yield sock


@pytest.fixture
def clients(listening: Listening) -> Iterator[list[socket.socket]]:
    """They wait for accept."""
    found = [socket.create_connection(listening.getsockname()) for _ in range(STORM)]
    yield found
    for client in found:
        client.close()


def test_a_storm_of_connections_leaves_others_their_turn(listening, clients) -> None:
    asked: list[str] = []

    async def main() -> None:
        acceptor = Acceptor(listening, lambda peer: bool(asked.append(peer)), asyncio.Protocol)
        acceptor.accept()
        assert len(asked) == ACCEPTS_PER_TURN
        acceptor.start()
        await until(lambda: len(asked) == STORM)
        acceptor.stop()

    asyncio.run(main())
    assert set(asked) == {"127.0.0.1"}
    for client in clients:
        assert client.recv(1) == b""  # not admitted: closed


def test_who_is_admitted_gets_a_protocol(listening, clients) -> None:
    made: list[asyncio.Protocol] = []

    class Hello(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(self)
            transport.write(b"hello")
            transport.close()

    async def main() -> None:
        acceptor = Acceptor(listening, lambda _: True, Hello)
        acceptor.start()
        await until(lambda: len(made) == STORM)
        acceptor.stop()

    asyncio.run(main())
    assert {client.recv(9) for client in clients} == {b"hello"}


def test_a_connection_that_cannot_be_begun_costs_only_itself(listening, clients) -> None:
    async def main() -> None:
        faults: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))

        def make() -> asyncio.BaseProtocol:
            raise RuntimeError("no certificate")

        acceptor = Acceptor(listening, lambda _: True, make)
        acceptor.start()
        await until(lambda: len(faults) == STORM)
        acceptor.stop()

    asyncio.run(main())
    assert {client.recv(1) for client in clients} == {b""}


@pytest.mark.parametrize("fault", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_when_the_system_has_no_sockets_left_it_is_said_once_and_tried_again(
    fault, listening, clients, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(accepting, "RETRY_S", 0)
    listening.fault = fault
    caplog.set_level(logging.INFO)

    async def main() -> None:
        admitted: list[str] = []
        acceptor = Acceptor(listening, lambda peer: bool(admitted.append(peer)), asyncio.Protocol)
        acceptor.start()
        await until(lambda: listening.asked == 5)
        assert not admitted
        listening.fault = 0
        await until(lambda: len(admitted) == STORM)
        acceptor.stop()

    asyncio.run(main())
    assert len(caplog.records) == 1
    assert "takes no connections for now" in caplog.text
    assert "raise the limit of open files" in caplog.text


def test_one_that_was_gone_before_it_was_taken_ends_nothing(listening, clients) -> None:
    async def main() -> None:
        listening.fault = errno.ECONNABORTED
        admitted: list[str] = []
        acceptor = Acceptor(listening, lambda peer: bool(admitted.append(peer)), asyncio.Protocol)
        acceptor.accept()
        assert listening.asked == ACCEPTS_PER_TURN
        listening.fault = 0
        acceptor.accept()
        assert len(admitted) == ACCEPTS_PER_TURN

    asyncio.run(main())


def test_who_was_let_in_as_it_stops_is_closed(listening, clients) -> None:
    """Before its first turn a task that is cancelled never runs, not even its `finally`."""

    async def main() -> None:
        acceptor = Acceptor(listening, lambda _peer: True, asyncio.Protocol)
        acceptor.accept()
        acceptor.stop()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(main())
    for client in clients[:ACCEPTS_PER_TURN]:
        client.settimeout(30)
        assert client.recv(1) == b""
