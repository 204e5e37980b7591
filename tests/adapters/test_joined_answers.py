"""Answers of one length to one client go to the system as one, and arrive as what they are. What
becomes of faults is in tests/native/harness.c."""

import asyncio
import errno
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import pytest

from kudurru.adapters.dns import engine_native
from kudurru.adapters.dns.engine_native import AnswerTable, NativeEngine
from kudurru.adapters.dns.packet_info import ask_for_packet_info
from kudurru.domain.ports import Reply
from tests.absent import absent
from tests.packets import needs_ipv6, query

pytestmark = pytest.mark.skipif(
    not engine_native.is_available(), reason="the native engine was not built"
)

UDP_SEGMENT, UDP_GRO = 103, 104
LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
families = pytest.mark.parametrize(
    "family", [socket.AF_INET, pytest.param(socket.AF_INET6, marks=needs_ipv6)]
)


def asks(family: socket.AddressFamily, *, sees_joined: bool = False) -> socket.socket:
    """A client."""
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.settimeout(30)
    sock.bind((LOOPBACK[family], 0))
    if sees_joined:
        try:
            sock.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
            sock.getsockopt(socket.IPPROTO_UDP, UDP_SEGMENT)
        except OSError as fault:
            if fault.errno != errno.ENOPROTOOPT:
                raise
            absent("this kernel joins no datagrams")
    return sock


def origin_of(sock: socket.socket) -> bytes:
    """Its struct sockaddr."""
    address, port = sock.getsockname()[:2]
    packed = socket.inet_pton(sock.family, address)
    if sock.family == socket.AF_INET:
        return struct.pack("=HH", sock.family, socket.htons(port)) + packed + bytes(8)
    return struct.pack("=HHI", sock.family, socket.htons(port), 0) + packed + bytes(4)


class Arrived(NamedTuple):
    answers: list[bytes]
    pieces: int  # in which they came


def received(sock: socket.socket, number: int) -> Arrived:
    """So many answers to a client that sees what was joined."""
    answers: list[bytes] = []
    pieces = 0
    while len(answers) < number:
        octets, controls, _, _ = sock.recvmsg(65536, 64)
        sizes = [
            struct.unpack_from("=i", value)[0]
            for level, kind, value in controls
            if (level, kind) == (socket.IPPROTO_UDP, UDP_GRO)
        ]
        size = sizes[0] if sizes else len(octets)
        answers += [octets[at : at + size] for at in range(0, len(octets), size)]
        pieces += 1
    return Arrived(answers, pieces)


@contextmanager
def sender(
    family: socket.AddressFamily, *, joins: bool
) -> Iterator["engine_native._engine.Workers"]:
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.bind((LOOPBACK[family], 0))
        yield engine_native._engine.Workers(
            AnswerTable().core, None, None, [(sock.fileno(), family == socket.AF_INET6, False)],
            0, False, 8192, 8192, 8192, joins,
        )  # fmt: skip


@families
@pytest.mark.parametrize(("joins", "pieces"), [(True, [3, 2]), (False, [40, 21])])
def test_answers_of_one_length_to_one_client_are_one_piece(
    family: socket.AddressFamily, joins: bool, pieces: list[int]
) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(asks(family, sees_joined=True)) for _ in range(2)]
        given = [
            [b"%02d" % i + b"-" * (10, 30, 20)[i % 3] for i in range(40)],
            [b"%02d" % i + b"+" * (10, 30)[i % 2] for i in range(21)],
        ]
        workers = stack.enter_context(sender(family, joins=joins))
        answers = [
            (origin_of(client), octets)
            for client, those in zip(clients, given, strict=True)
            for octets in those
        ]
        answers = answers[::2] + answers[1::2]
        assert workers.send(0, tuple(answers)) == (61, 0, 0)
        seen = [received(client, len(those)) for client, those in zip(clients, given, strict=True)]
        assert [sorted(one.answers) for one in seen] == [sorted(those) for those in given]
        assert [one.pieces for one in seen] == pieces


@families
def test_more_than_fits_a_packet_is_several_pieces(family: socket.AddressFamily) -> None:
    with asks(family, sees_joined=True) as client, sender(family, joins=True) as workers:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        given = [bytes([i]) * 4096 for i in range(40)]
        assert workers.send(0, tuple((origin_of(client), one) for one in given)) == (40, 0, 0)
        seen = received(client, 40)
    assert seen.answers == given
    assert seen.pieces == 3  # 15 of them are 61,440 octets


def answer_to(packet: bytes) -> bytes:
    return packet[:2] + b"\x84\x00" + packet[4:]


class Handler:
    tells_clients_apart = False

    def handle(self, packet: bytes, client: object, proto: str, client_id: str = "") -> Reply:
        return Reply(answer_to(packet), True)


@pytest.mark.parametrize(
    ("server", "asked"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.7"),
        pytest.param("::1", "::1", marks=needs_ipv6),
        pytest.param("::", "::1", marks=needs_ipv6),
    ],
)
def test_a_burst_is_answered_each_from_where_it_was_asked(server: str, asked: str) -> None:
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_DGRAM)
    bound.bind((server, 0))
    ask_for_packet_info(bound)  # as what comes before the engine starts has none otherwise
    place = asked, bound.getsockname()[1]
    packets = [query(f"{'x' * (i % 4)}.host{i}.example", ident=i + 1) for i in range(20)]

    async def serve(clients: Sequence[socket.socket]) -> None:
        engine = NativeEngine(Handler(), [bound])
        ask(clients, packets, place)  # they wait for the thread, which takes them at once
        await engine.start()
        try:
            await asyncio.to_thread(check_answers, clients, packets, place)
            ask(clients, packets, place)  # now the thread has the answers
            await asyncio.to_thread(check_answers, clients, packets, place)
            seen = engine.statistics()
        finally:
            await engine.stop()
        assert (seen.answered, seen.send_errors, seen.dropped_full) == (120, 0, 0)
        assert sum(seen.memo_hits.values()) >= 60

    with ExitStack() as stack:
        clients = [stack.enter_context(asks(family)) for _ in range(3)]
        asyncio.run(serve(clients))


def ask(clients: Sequence[socket.socket], packets: Sequence[bytes], place: tuple[str, int]) -> None:
    for packet in packets:
        for client in clients:
            client.sendto(packet, place)


def check_answers(
    clients: Sequence[socket.socket], packets: Sequence[bytes], place: tuple[str, int]
) -> None:
    for client in clients:
        found = [client.recvfrom(4096) for _ in packets]
        assert {peer[:2] for _, peer in found} == {place}
        assert sorted(octets for octets, _ in found) == [answer_to(packet) for packet in packets]
