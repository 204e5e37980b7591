"""What QUIC adds to the contract of packet engines: Retry, limits, deadlines, streams."""

import asyncio
import contextlib
import socket
import struct

import pytest
from aioquic.h3.connection import ErrorCode, encode_frame
from aioquic.quic.connection import QuicConnection
from hypothesis import given, settings
from hypothesis import strategies as st

from kudurru.adapters.dns import quic
from kudurru.adapters.dns.quic_applications import (
    DOQ_EXCESSIVE_LOAD,
    DOQ_NO_ERROR,
    DOQ_PROTOCOL_ERROR,
    DOQ_UNSPECIFIED_ERROR,
)
from kudurru.adapters.dns.streams import StreamLimits
from kudurru.adapters.sockets import split_address
from kudurru.domain.ports import Reply
from tests.dns_clients import (
    framed,
    open_doq,
    open_http3,
    post,
    quic_configuration,
)
from tests.engines import serving, until
from tests.packets import query

PACKET = query("www.example", ident=0)
TRANSPORTS = ["quic", "h3"]


class Echo:
    def handle(self, packet: bytes, client: str, proto: str) -> Reply | None:
        if b"drop" in packet:
            return None
        more = bytes(60_000) if b"large" in packet else client.encode()
        return Reply(packet[:2] + b"\x81\x80" + bytes(8) + packet[12:] + more, memo=False)


def target_of(engine) -> tuple[str, int]:
    return split_address(engine.addresses[0])


def after(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


def run(proto: str, scenario, **options) -> None:
    async def main() -> None:
        async with serving(proto, Echo(), **options) as engine:
            await scenario(engine)

    asyncio.run(main())


class Naming:
    """Says who a client says it is."""

    takes_client_ids = tells_clients_apart = True

    def names_id(self, client_id: str) -> bool:
        return True

    def handle(self, packet: bytes, client: str, proto: str, client_id: str = "") -> Reply:
        return Reply(packet[:2] + b"\x81\x80" + packet[4:] + client_id.encode(), memo=False)


NAMES = {"anna-phone.dns.example": "anna-phone", "localhost": "", "": ""}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_cut", [False, True], ids=["whole", "cut"])
def test_a_client_is_known_by_the_name_that_it_asks_for(name: str, is_cut: bool) -> None:
    """Also where the ClientHello comes in two pieces."""

    async def scenario() -> None:
        async with serving("quic", Naming()) as engine:
            configuration = quic_configuration("doq")
            configuration.server_name = name or None
            if is_cut:  # it does not fit into one datagram
                configuration.alpn_protocols += [f"{i:0200}" for i in range(8)]
            async with open_doq(target_of(engine), configuration=configuration) as client:
                answer = await client.ask(PACKET)
            assert answer[len(PACKET) :].decode() == NAMES[name]

    asyncio.run(scenario())


def test_over_http3_the_path_comes_before_the_name() -> None:
    async def scenario() -> None:
        async with serving("h3", Naming()) as engine:
            configuration = quic_configuration("h3")
            configuration.server_name = "anna-phone.dns.example"
            async with open_http3(target_of(engine), configuration) as client:
                for path, told in ((b"/dns-query", b"anna-phone"), (b"/dns-query/tv", b"tv")):
                    answered = await client.request(*post(PACKET, path))
                    assert answered.body[len(PACKET) :] == told

    asyncio.run(scenario())


def first_flight(size: int = 1200) -> bytes:
    """The first datagram of a client that says nothing more."""
    client = QuicConnection(configuration=quic_configuration("doq"))
    client.connect(("127.0.0.1", 1), now=0)
    datagram = client.datagrams_to_send(now=0)[0][0]
    return datagram[:size]


@contextlib.asynccontextmanager
async def plain_socket(engine):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, target_of(engine))
        yield sock


@pytest.mark.parametrize("proto", TRANSPORTS)
def test_a_handshake_that_stalls_is_forgotten_after_five_seconds(proto: str) -> None:
    async def scenario(engine) -> None:
        async with plain_socket(engine) as sock:
            sock.send(first_flight(10_000))
            await until(lambda: len(engine.connections) == 1)
            engine.connections.expire(after(4.9))
            assert len(engine.connections) == 1
            engine.connections.expire(after(5))
            assert len(engine.connections) == len(engine.by_id) == 0
            assert engine.statistics().connections_timed_out == 1

    run(proto, scenario)


def test_a_client_must_show_where_it_is_when_half_of_the_connections_are_used() -> None:
    async def scenario(engine) -> None:
        async with open_doq(target_of(engine)) as first:
            assert first._quic._retry_source_connection_id is None
            async with open_doq(target_of(engine)) as second:
                assert second._quic._retry_source_connection_id is not None
                assert await second.ask(PACKET)
            async with plain_socket(engine) as sock:
                sock.send(first_flight(10_000))
                retry = await asyncio.get_running_loop().sock_recv(sock, 4096)
                assert retry[0] & 0xF0 == 0xF0  # a long header of type Retry
            await until(lambda: len(engine.connections) == 1)

    run("quic", scenario, limits=StreamLimits(connections=2))


def test_connections_over_a_limit_get_no_answer() -> None:
    async def scenario(engine) -> None:
        async with open_doq(target_of(engine)), plain_socket(engine) as sock:
            sock.send(first_flight(10_000))
            await until(lambda: engine.statistics().connections_refused == 1)
            assert len(engine.connections) == 1

    run("quic", scenario, limits=StreamLimits(connections_per_network=1))


def test_no_ticket_is_given_so_nothing_can_be_sent_early_and_replayed() -> None:
    async def scenario(engine) -> None:
        async with open_doq(target_of(engine)) as client:
            tickets: list[object] = []
            client._quic._session_ticket_handler = tickets.append
            await client.ask(PACKET)
            await client.ping()
            assert tickets == []

    run("quic", scenario)


@pytest.mark.parametrize("proto", TRANSPORTS)
def test_an_idle_connection_is_closed_after_ten_seconds_and_pings_do_not_help(proto: str) -> None:
    async def scenario(engine) -> None:
        opened = open_doq if proto == "quic" else open_http3
        async with opened(target_of(engine)) as client:
            await client.ping()
            (connection,) = engine.connections
            begun = connection.deadline_s
            assert after(9) < begun <= after(10)
            await client.ping()
            assert connection.deadline_s == begun
            engine.connections.expire(begun)
            expected = DOQ_NO_ERROR if proto == "quic" else ErrorCode.H3_NO_ERROR
            assert await client.terminated == expected

    run(proto, scenario)


def test_a_stream_that_drips_is_cut_though_others_are_answered() -> None:
    async def scenario(engine) -> None:
        async with open_doq(target_of(engine)) as client:
            slow = client.send(framed(PACKET)[:5], fin=False)
            await client.ask(PACKET)
            (connection,) = engine.connections
            begun = connection.deadline_s
            assert after(20) < begun <= after(30)
            client.send(framed(PACKET)[5:9], fin=False, stream=slow)
            await client.ask(PACKET)
            assert connection.deadline_s == begun
            engine.connections.expire(begun)
            assert await client.terminated == DOQ_NO_ERROR

    run("quic", scenario)


def test_a_drop_resets_its_stream_only() -> None:
    async def scenario(engine) -> None:
        async with open_doq(target_of(engine)) as client:
            dropped = client.send(framed(query("drop.example", ident=0)))
            assert await client.ends[dropped] == DOQ_UNSPECIFIED_ERROR
            assert client.arrived.get(dropped) is None
            assert await client.ask(PACKET)

    run("quic", scenario)


@pytest.mark.parametrize(
    "octets",
    [b"", b"\0", framed(b"x" * 11), framed(PACKET) + b"x", framed(PACKET)[:-1], framed(b"")],
    ids=["nothing", "half a length", "no header", "more", "less", "empty"],
)
def test_a_stream_that_is_no_message_ends_the_connection(octets: bytes) -> None:
    async def scenario(engine) -> None:
        async with open_doq(target_of(engine)) as client:
            client.send(octets)
            assert await client.terminated == DOQ_PROTOCOL_ERROR
            assert engine.statistics().dropped_malformed == 1
        async with open_doq(target_of(engine)) as client:
            assert await client.ask(PACKET)

    run("quic", scenario)


def test_more_requests_under_way_than_allowed_end_the_connection() -> None:
    async def scenario(engine) -> None:
        async with open_doq(target_of(engine)) as client:
            for _ in range(quic.STREAMS_MAX + 1):
                client.send(framed(PACKET)[:5], fin=False)
            assert await client.terminated == DOQ_EXCESSIVE_LOAD

    run("quic", scenario)


def test_a_client_that_resets_again_and_again_is_cut() -> None:
    async def scenario(engine) -> None:
        async with open_doq(target_of(engine)) as client:
            for number in range(quic.RESETS_MAX + 1):
                stream = client.send(framed(PACKET)[:5], fin=False)
                client._quic.reset_stream(stream, 0)
                client.transmit()
                if number % 20 == 0:
                    await asyncio.sleep(0)
            assert await client.terminated == DOQ_EXCESSIVE_LOAD
            assert engine.statistics().received == 0

    run("quic", scenario)


def test_a_client_that_only_sends_uses_up_its_allowance() -> None:
    async def scenario(engine) -> None:
        async with open_doq(target_of(engine)) as client:
            (connection,) = engine.connections
            connection._allowance = 500
            slow = client.send(framed(bytes(10_000))[:2], fin=False)
            for _ in range(10):
                client.send(bytes(100), fin=False, stream=slow)
                await asyncio.sleep(0)
            assert await client.terminated == DOQ_EXCESSIVE_LOAD

    run("quic", scenario)


def test_answers_give_back_more_than_an_honest_client_spends() -> None:
    async def scenario(engine) -> None:
        async with open_doq(target_of(engine)) as client:
            (connection,) = engine.connections
            for _ in range(30):
                await asyncio.gather(*(client.ask(PACKET) for _ in range(20)))
            assert connection._allowance > quic.ALLOWANCE - 20_000

    run("quic", scenario)


def test_answers_that_a_client_does_not_take_are_bounded() -> None:
    async def scenario(engine) -> None:
        async with open_doq(target_of(engine)) as client:
            client._quic._local_max_data.value = 0  # no octet of any answer
            (connection,) = engine.connections
            connection.quic._remote_max_data = 0
            large = framed(query("large.example", ident=0))
            for _ in range(quic.RESPONSES_HELD_MAX // 60_000 + 1):
                client.send(large)
            assert await client.terminated == DOQ_EXCESSIVE_LOAD

    run("quic", scenario)


def test_answers_that_were_taken_count_no_more() -> None:
    async def scenario(engine) -> None:
        async with open_doq(target_of(engine)) as client:
            for _ in range(2 * quic.RESPONSES_HELD_MAX // 60_000):
                assert len(await client.ask(query("large.example", ident=0))) > 60_000
            (connection,) = engine.connections
            assert connection._held <= quic.RESPONSES_HELD_MAX

    run("quic", scenario)


def test_a_request_of_http_3_that_is_given_up_costs_nobody_else() -> None:
    async def scenario(engine) -> None:
        async with open_http3(target_of(engine)) as client:
            stream = client._quic.get_next_available_stream_id()
            client._quic.send_stream_data(stream, encode_frame(1, b"\0\0"))
            client._quic.reset_stream(stream, 0)
            client.transmit()
            assert (await client.request(*post(PACKET))).status == 200

    run("h3", scenario)


def test_another_version_is_told_which_ones_are_spoken() -> None:
    async def scenario(engine) -> None:
        async with plain_socket(engine) as sock:
            sock.send(
                b"\xc0" + struct.pack("!I", 0x1A2A3A4A) + b"\x08" + bytes(8) + b"\0" + bytes(1200)
            )
            reply = await asyncio.get_running_loop().sock_recv(sock, 4096)
            assert reply[1:5] == bytes(4)
            assert b"\0\0\0\1" in reply
            assert len(engine.connections) == 0

    run("quic", scenario)


@pytest.mark.parametrize(
    "datagram",
    [b"", b"\xc0", bytes(1200), b"\x41" + bytes(range(40)), first_flight(1199), b"\xff" * 5000],
    ids=["empty", "one", "zeros", "unknown connection", "short first flight", "large"],
)
def test_datagrams_that_open_nothing_get_no_answer(datagram: bytes) -> None:
    async def scenario(engine) -> None:
        async with plain_socket(engine) as sock:
            sock.send(datagram)
            async with open_doq(target_of(engine)) as client:
                assert await client.ask(PACKET)
            await until(lambda: len(engine.connections) == 0)
            assert engine.connections.accepted == 1
            with pytest.raises(BlockingIOError):
                sock.recv(4096)

    run("quic", scenario)


def test_stopping_tells_every_client() -> None:
    async def scenario(engine) -> None:
        async with open_doq(target_of(engine)) as one, open_doq(target_of(engine)) as two:
            await engine.stop()
            assert await one.terminated == await two.terminated == DOQ_NO_ERROR
            assert not engine.by_id

    run("quic", scenario)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(TRANSPORTS),
    st.lists(st.tuples(st.binary(max_size=80), st.booleans(), st.booleans()), max_size=5),
)
def test_no_octets_on_streams_harm_the_listener(proto, pieces) -> None:
    async def scenario(engine) -> None:
        async with open_doq(target_of(engine), "doq" if proto == "quic" else "h3") as client:
            for octets, fin, is_unidirectional in pieces:
                stream = client._quic.get_next_available_stream_id(is_unidirectional)
                client.send(octets, fin=fin, stream=stream)
            await ask(engine, proto)

    run(proto, scenario)


async def ask(engine, proto: str) -> None:
    if proto == "quic":
        async with open_doq(target_of(engine)) as client:
            assert await client.ask(PACKET)
    else:
        async with open_http3(target_of(engine)) as client:
            assert (await client.request(*post(PACKET))).status == 200


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1199), st.integers(1, 255)), max_size=6),
    st.binary(max_size=30),
)
def test_no_datagram_harms_the_listener(changes, start) -> None:
    async def scenario(engine) -> None:
        datagram = bytearray(first_flight(10_000))
        for at, mask in changes:
            datagram[at] ^= mask
        async with plain_socket(engine) as sock:
            sock.send(datagram)
            sock.send(start + bytes(1200))
            async with open_doq(target_of(engine)) as client:
                assert await client.ask(PACKET)

    run("quic", scenario, limits=StreamLimits(drain_s=0.01))
