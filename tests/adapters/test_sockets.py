import asyncio
import errno
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kudurru.adapters import sockets
from kudurru.adapters.dns.tcp import TcpServer
from kudurru.adapters.http_ops import HttpServer
from kudurru.adapters.sockets import Bound, Listener, bind_all, split_address
from kudurru.domain.errors import Busy, Invalid
from tests.packets import needs_ipv6


@contextmanager
def bound(*listeners: Listener, per_listener: int = 1) -> Iterator[list[Bound]]:
    group = bind_all(listeners, per_listener)
    try:
        yield group
    finally:
        for one in group:
            for sock in one.sockets:
                sock.close()


@pytest.mark.parametrize("proto", ["udp", "tcp"])
@pytest.mark.parametrize("per_listener", [1, 3])
def test_port_0_is_resolved_and_shared_by_the_whole_group(proto: str, per_listener: int) -> None:
    with bound(Listener(proto, "127.0.0.1:0"), per_listener=per_listener) as (one,):
        names = {sock.getsockname() for sock in one.sockets}
        assert len(one.sockets) == per_listener
        assert names == {split_address(one.address)}
        assert not one.address.endswith(":0")


@pytest.mark.skipif(sys.platform != "linux", reason="the option is Linux's")
@pytest.mark.parametrize("proto", ["udp", "quic"])
@pytest.mark.parametrize("per_listener", [1, 3])
def test_datagrams_are_not_fragmented(proto: str, per_listener: int) -> None:
    with bound(Listener(proto, "127.0.0.1:0"), per_listener=per_listener) as (one,):
        for sock in one.sockets:
            seen = sock.getsockopt(socket.IPPROTO_IP, sockets.IP_MTU_DISCOVER)
            assert seen == sockets.IP_PMTUDISC_PROBE


def test_a_kernel_without_that_option_is_listened_on_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Refusing(socket.socket):
        def setsockopt(self, level: int, option: int, *value: Any) -> None:
            if (level, option) == (socket.IPPROTO_IP, sockets.IP_MTU_DISCOVER):
                raise OSError(errno.ENOPROTOOPT, "Protocol not available")
            super().setsockopt(level, option, *value)

    monkeypatch.setattr(socket, "socket", Refusing)
    with bound(Listener("udp", "127.0.0.1:0"), Listener("quic", "127.0.0.1:0")) as both:
        assert all(one.sockets for one in both)


@pytest.mark.parametrize("proto", ["udp", "tcp"])
@pytest.mark.parametrize("per_listener", [1, 3])
@pytest.mark.parametrize("held_with_reuse", [False, True])
def test_an_address_in_use_fails_and_names_who_has_it(
    proto: str, per_listener: int, held_with_reuse: bool
) -> None:
    first = Listener(proto, "127.0.0.1:0")
    with bound(first, per_listener=3 if held_with_reuse else 1) as (held,):
        with pytest.raises(Busy) as caught:
            bind_all([Listener(proto, held.address)], per_listener)
        command = Path("/proc/self/comm").read_text().strip()
        assert str(caught.value) == (
            f"{proto} {held.address} is taken by {command} (process {os.getpid()}); "
            "stop it, or listen on another port"
        )


def test_nothing_stays_bound_when_one_listener_fails() -> None:
    with bound(Listener("udp", "127.0.0.1:0")) as (free,):
        pass
    with bound(Listener("tcp", "127.0.0.1:0")) as (held,):
        listeners = [Listener("udp", free.address), Listener("tcp", held.address)]
        for per_listener in (1, 3):
            with pytest.raises(Busy):
                bind_all(listeners, per_listener)
            with bound(listeners[0]):
                pass


def test_a_connection_of_a_stopped_server_does_not_hold_its_port() -> None:
    listener = Listener("tcp", "127.0.0.1:0")
    with (
        bound(listener) as (first,),
        socket.create_connection(split_address(first.address)),
    ):
        accepted, _ = first.sockets[0].accept()
        accepted.close()  # the server closes first: TIME_WAIT is on its side
    with bound(Listener("tcp", first.address)):
        pass


@needs_ipv6
def test_ipv4_and_ipv6_wildcards_stand_side_by_side() -> None:
    with bound(Listener("udp", "0.0.0.0:0")) as (one,):
        port = split_address(one.address)[1]
        with bound(Listener("udp", f"[::]:{port}")) as (other,):
            assert other.address == f"[::]:{port}"


@pytest.mark.parametrize(
    "text",
    [
        *("", "127.0.0.1", ":53", "localhost:53", "127.0.0.1:", "127.0.0.1:-1", "1.2.3:53"),
        *("127.0.0.1:65536", "127.0.0.1:５３", "::1:53", "[::1]", "[127.0.0.1]:53", "[::1]:53 "),
    ],
)
def test_an_address_that_does_not_parse_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(Invalid, match=r"write |above 65535|brackets belong"):
        split_address(text)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(Invalid) as caught:
        bind_all([Listener("udp", "192.0.2.77:0")])
    assert str(caught.value) == (
        "listener udp 192.0.2.77:0: address: no interface of this machine has this address; "
        "listeners.freebind listens there all the same, on Linux"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such option")
@pytest.mark.parametrize("proto", ["udp", "tcp"])
@pytest.mark.parametrize("host", ["192.0.2.77", pytest.param("2001:db8::77", marks=needs_ipv6)])
def test_an_address_that_comes_later_is_listened_at_where_that_is_asked_for(
    proto: str, host: str
) -> None:
    assert not sockets.has_address(host)
    place = sockets.join_address(host, 0)
    with bound(Listener(proto, place, freebind=True), per_listener=2) as (one,):
        assert {sock.getsockname()[0] for sock in one.sockets} == {host}
        if proto == "udp":
            sockets.beside(one.sockets[0]).close()  # as regulars have them


def test_an_address_of_this_machine_is_told_from_others() -> None:
    assert sockets.has_address("127.0.0.1")
    assert sockets.has_address("0.0.0.0")


def test_a_port_nobody_has_has_no_holder() -> None:
    with bound(Listener("udp", "127.0.0.1:0")) as (one,):
        port = split_address(one.address)[1]
    assert sockets._holder("udp", port) is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the length of the queue")
@pytest.mark.parametrize("make", [HttpServer, TcpServer])
def test_as_many_connections_wait_for_a_busy_loop_as_were_asked_for(
    make: Callable[[Any, Any], HttpServer | TcpServer],
) -> None:
    async def length() -> int:
        (one,) = bind_all([Listener("tcp", "127.0.0.1:0")])
        server = make({}, one.sockets)
        await server.start()
        info = one.sockets[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
        await server.stop()
        return struct.unpack_from("I", info, 28)[0]  # tcpi_sacked, which a listener has that in

    most = int(Path("/proc/sys/net/core/somaxconn").read_text())
    assert asyncio.run(length()) == min(sockets.BACKLOG, most)


def test_a_platform_without_groups_gets_one_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "HAS_GROUPS", False)
    (bound,) = bind_all([Listener("udp", "127.0.0.1:0")], 4)
    assert len(bound.sockets) == 1
    bound.sockets[0].close()
