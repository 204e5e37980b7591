"""Who asks regularly comes in by sockets of their own, whatever lies in those for everybody."""

import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest

from kudurru.adapters.dns import classic_bpf as bpf
from kudurru.adapters.dns import reserved as reserved_module
from kudurru.adapters.dns.classic_bpf import CLIENTS_MAX, TOGETHER
from kudurru.adapters.dns.overload import (
    ADMIT_S,
    BARRED_S,
    LEADS_MIN,
    LOOK_CLOSELY_S,
    LOOK_S,
    LOOKS_MIN,
    Overload,
)
from kudurru.adapters.dns.reserved import Reserved
from kudurru.adapters.sockets import Listener, bind_all
from tests.network_apart import ran_apart

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="programs of groups are Linux's")


@contextmanager
def listening(per_listener: int = 1) -> Iterator[tuple[Sequence[socket.socket], Reserved]]:
    (bound,) = bind_all([Listener("udp", "127.0.0.1:0")], per_listener)
    with ExitStack() as stack:
        for sock in bound.sockets:
            stack.enter_context(sock)
        found = Reserved(bound.sockets)
        for sock in found.sockets:
            stack.enter_context(sock)
        yield bound.sockets, found


def number(address: str) -> int:
    return int.from_bytes(socket.inet_aton(address))


def ask(sockets: Sequence[socket.socket], client: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind((client, 0))
        other.sendto(client.encode(), sockets[0].getsockname())


def taken(sockets: Sequence[socket.socket]) -> list[str]:
    """Loopback: what was sent is there."""
    found = []
    for sock in sockets:
        try:
            while True:
                found.append(sock.recv(100).decode())
        except BlockingIOError:
            continue
    return sorted(found)


@linux_only
@pytest.mark.parametrize("per_listener", [1, 3])
@pytest.mark.parametrize("count", [0, 1, 2, TOGETHER, TOGETHER + 1, 100, CLIENTS_MAX])
def test_who_is_admitted_comes_in_by_these_sockets_and_all_others_by_the_rest(
    count: int, per_listener: int
) -> None:
    clients = [f"127.{1 + i * 7 % 200}.{i >> 7 & 255}.{1 + i % 128}" for i in range(count)]
    strangers = ["127.0.0.1", "127.255.255.254", *(f"127.{i}.9.200" for i in range(1, 30))]
    with listening(per_listener) as (everybody, reserved):
        reserved.admit(frozenset(map(number, clients)))
        assert len(reserved.sockets) == per_listener
        assert reserved.admitted == frozenset(map(number, clients))
        for client in (*clients, *strangers):
            ask(everybody, client)
        assert taken(reserved.sockets) == sorted(clients)
        assert taken(everybody) == sorted(strangers)


@linux_only
def test_a_socket_that_stays_alone_is_shared_with_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no programs here")

    monkeypatch.setattr(bpf, "attach", refuse)
    with listening() as ((everybody,), reserved), socket.socket(type=socket.SOCK_DGRAM) as other:
        assert reserved.sockets == ()
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind(everybody.getsockname())


@linux_only
def test_a_regular_that_floods_comes_in_with_everybody_for_a_while_and_it_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    flooding, honest = "127.0.0.7", "127.0.0.8"
    with listening() as (everybody, reserved):
        overload, now_s = Overload(everybody, reserved), 10.0
        (sock,) = reserved.sockets
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)

        def look(clients: list[str]) -> float | None:
            return overload.look([(0, []), (0, list(map(number, clients)))], now_s)

        for _ in range(LOOKS_MIN):
            assert look([flooding, honest]) == LOOK_S
            now_s += LOOK_S
        assert reserved.admitted == {number(flooding), number(honest)}
        for _ in range(2):
            for _ in range(300):
                ask(everybody, flooding)
            assert look([flooding] * LEADS_MIN + [honest]) == LOOK_CLOSELY_S
            assert not overload.is_over
            now_s += LOOK_CLOSELY_S
        assert reserved.admitted == {number(honest)}
        assert "from clients that ask regularly" in caplog.text
        assert look([honest]) == LOOK_S
        assert overload.is_over
        now_s += BARRED_S
        look([flooding])
        assert reserved.admitted == {number(flooding), number(honest)}


OLDER_KERNEL = """
from kudurru.adapters.dns.classic_bpf import CLIENTS_MAX, SO_ATTACH_FILTER, attach
from kudurru.adapters.dns.overload import filter_program
from kudurru.adapters.dns.reserved import Reserved
from kudurru.adapters.sockets import Listener, bind_all

clients = frozenset(0xC0A80000 + 3 * i for i in range(CLIENTS_MAX))  # high ones take most
for address in ("127.0.0.1:0", "[::1]:0"):
    (listener,) = bind_all([Listener("udp", address)])
    reserved = Reserved(listener.sockets)
    reserved.admit(clients)
    print(len(reserved.admitted))
    for share in (0.5, 0.4):
        program = filter_program(clients, share, is_ipv6=address[0] == "[")
        attach(listener.sockets[0], SO_ATTACH_FILTER, program)
"""


@linux_only
def test_kernels_that_give_programs_less_room_take_as_many() -> None:
    room = 20_480  # before Linux 6.7
    done = ran_apart([f"echo {room} > /proc/sys/net/core/optmem_max"], OLDER_KERNEL)
    assert done.stdout.split() == [str(CLIENTS_MAX)] * 2, done.stderr
    assert not done.returncode, done.stderr


@linux_only
def test_all_sockets_of_both_kinds_are_used() -> None:
    with listening(3) as (everybody, reserved):
        reserved.admit(frozenset([number("127.0.0.7")]))
        for group, client in ((everybody, "127.0.0.1"), (reserved.sockets, "127.0.0.7")):
            for _ in range(200):
                ask(everybody, client)
            assert all(taken([sock]) for sock in group)


@linux_only
def test_who_is_no_regular_any_more_comes_in_as_all_others_do() -> None:
    with listening() as (everybody, reserved):
        for admitted in ({number("127.0.0.7")}, {number("127.0.0.8")}):
            reserved.admit(frozenset(admitted))
        ask(everybody, "127.0.0.7")
        assert taken(everybody) == ["127.0.0.7"]


@linux_only
def test_a_full_buffer_of_strangers_is_in_nobodys_way() -> None:
    with listening() as (everybody, reserved):
        everybody[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # the least that there is
        reserved.admit(frozenset([number("127.0.0.7")]))
        for _ in range(1000):
            ask(everybody, "127.9.9.9")
        ask(everybody, "127.0.0.7")
        assert taken(reserved.sockets) == ["127.0.0.7"]
        assert len(taken(everybody)) < 1000


@linux_only
def test_who_asks_again_and_again_is_admitted() -> None:
    with listening() as (everybody, reserved):
        overload = Overload(everybody, reserved)
        for look in range(LOOKS_MIN):
            recent = [(look, [number("127.0.0.7")]), (0, [number(f"127.0.1.{look}")])]
            overload.look(recent, look * ADMIT_S)
        assert reserved.admitted == {number("127.0.0.7")}
        overload.end()


@linux_only
def test_without_a_group_all_come_in_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets of several addresses, or a system that has no groups."""
    listeners = [Listener("udp", "127.0.0.1:0") for _ in range(2)]
    sockets = [one.sockets[0] for one in bind_all(listeners)]
    assert Reserved(sockets).sockets == ()

    def refuse(_: socket.socket) -> socket.socket:
        raise OSError("no groups here")

    monkeypatch.setattr(reserved_module, "beside", refuse)
    reserved = Reserved(sockets[:1])
    assert reserved.sockets == ()
    reserved.admit(frozenset([number("127.0.0.7")]))
    assert reserved.admitted == frozenset()
    ask(sockets, "127.0.0.7")
    assert taken(sockets) == ["127.0.0.7"]
    for sock in sockets:
        sock.close()


IPV6 = """
import socket
from kudurru.adapters.dns.classic_bpf import MIX, SOMEBODY
from kudurru.adapters.dns.reserved import Reserved
from kudurru.adapters.sockets import Listener, bind_all

def bound(address):
    sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    sock.bind((address, 0))
    return sock

def number(address):
    octets = socket.inet_pton(socket.AF_INET6, address)
    first, second = (int.from_bytes(octets[at : at + 4]) for at in (0, 4))
    return first * MIX & 0xFFFFFFFF ^ second | SOMEBODY

(listener,) = bind_all([Listener("udp", "[::]:0")], 2)
reserved = Reserved(listener.sockets)
reserved.admit(frozenset([number("2001:db8:1::"), number("::")]))
port = listener.sockets[0].getsockname()[1]
for client in ("2001:db8:1::1", "2001:db8:1::2", "2001:db8:2::1", "::1"):
    with bound(client) as sock:
        sock.sendto(b"?", ("2001:db8:3::1", port))
    count = 0
    for one in reserved.sockets:
        one.setblocking(False)
        try:
            count += len(one.recv(9))
        except BlockingIOError:
            pass
    print(count)
"""


@linux_only
def test_of_ipv6_networks_of_64_bits_are_admitted() -> None:
    addresses = [f"2001:db8:{i}::{j}/128" for i, j in ((1, 1), (1, 2), (2, 1), (3, 1))]
    lines = [f"ip address add {one} dev lo nodad" for one in addresses]
    done = ran_apart(lines, IPV6)
    assert done.stdout.split() == ["1", "1", "0", "1"], done.stderr
