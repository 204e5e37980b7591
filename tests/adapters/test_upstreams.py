"""Ways to upstreams, on loopback: our own servers on real sockets, and servers that lie."""

import asyncio
import base64
import hashlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.settings
import pytest
from cryptography import x509

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.dns.upstream.carriers import Carriers
from kudurru.adapters.dns.upstream.doh import _Connection as HttpConnection
from kudurru.adapters.dns.upstream.tls import spki_pin
from kudurru.adapters.dns.upstream.udp import QUERIES_PER_SOCKET, SOCKETS_MAX, UdpCarrier
from kudurru.adapters.sockets import split_address
from kudurru.domain.chance import Chance
from kudurru.domain.dns.queries import build_query
from kudurru.domain.dns.responses import is_answer_to
from kudurru.domain.dns.upstreams import parse_upstream
from kudurru.domain.later import Later
from kudurru.domain.ports import Carrier, Reply
from tests.certificates import SERVER_NAME, pair
from tests.dns_clients import framed, read_message
from tests.engines import serving, until
from tests.packets import name

DEADLINE_S = 60


class Handler:
    """Answers with the question, and says who asked over what."""

    def __init__(self) -> None:
        self.asked = 0

    def handle(self, packet: bytes, client: str, proto: str) -> Reply | None:
        self.asked += 1
        if packet[13:17] == b"drop":
            return None
        return Reply(packet[:2] + b"\x81\x80" + packet[4:] + proto.encode(), memo=False)


class Waits:
    """An `Exchange` of a test. What it does not take is in `others`."""

    def __init__(self, text: str = "www.example", *, block: int = 0) -> None:
        self.question = name(text) + b"\0\1\0\1"
        self.packet = build_query(self.question, 0x0100, udp_size=1232, block=block)
        self.others: list[bytes] = []
        self.over: asyncio.Future[bytes | str] = asyncio.get_running_loop().create_future()

    def received(self, packet: bytes) -> bool:
        if not is_answer_to(self.question, packet):
            self.others.append(packet)
            return False
        self.over.set_result(packet)
        return True

    def failed(self, why: str) -> None:
        self.over.set_result(why)


async def ask(carrier: Carrier, text: str = "www.example") -> bytes | str:
    waits = Waits(text)
    carrier.send(waits)
    found = await waits.over
    carrier.forget(waits)
    return found


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await scenario()

    asyncio.run(main())


def opened(text: str, *, over_tcp: bool = False, ca: str = "") -> Carrier:
    carriers = Carriers(Chance(SystemEntropy()), SystemClock(), _nobody, ca)
    return carriers.open(parse_upstream(text), over_tcp=over_tcp)


def _nobody(_host: str) -> Later[tuple[str, ...]]:
    raise AssertionError


def _certificate() -> x509.Certificate:
    return x509.load_pem_x509_certificate(pair()[0])


def pin() -> str:
    return base64.b64encode(spki_pin(_certificate())).decode()


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("ca") / "ca.pem"
    path.write_bytes(pair()[0])
    return str(path)


SERVED = {
    "udp": "udp://{}",
    "tcp": "tcp://{}",
    "tls": "tls://{}#name=" + SERVER_NAME,
    "https": "https://{}#name=" + SERVER_NAME,
    "quic": "quic://{}#name=" + SERVER_NAME,
    "h3": "h3://{}#name=" + SERVER_NAME,
}
ENCRYPTED = [proto for proto in SERVED if proto not in ("udp", "tcp")]


@pytest.mark.parametrize("proto", SERVED)
def test_many_queries_at_once_get_each_their_answer(proto: str, ca: str) -> None:
    async def scenario() -> None:
        handler = Handler()
        async with serving(proto, handler) as engine:
            carrier = opened(SERVED[proto].format(engine.addresses[0]), ca=ca)
            count = 90
            found = await asyncio.gather(*(ask(carrier, f"h{i}.example") for i in range(count)))
            for i, packet in enumerate(found):
                assert isinstance(packet, bytes)
                assert packet[12:].startswith(name(f"h{i}.example"))
                assert packet.endswith(proto.encode())
            assert handler.asked == count
            assert await ask(carrier, "again.example")
            if proto != "udp":
                assert engine.statistics().connections_accepted == 1
            await carrier.close()

    run(scenario)


@pytest.mark.parametrize("proto", ["tcp", "tls", "https", "quic", "h3"])
def test_an_upstream_that_closed_its_connection_is_connected_to_again(proto: str, ca: str) -> None:
    async def scenario() -> None:
        async with serving(proto, Handler()) as engine:
            carrier = opened(SERVED[proto].format(engine.addresses[0]), ca=ca)
            assert isinstance(await ask(carrier), bytes)
            for connection in list(engine.connections):
                connection.close()
            assert isinstance(await ask(carrier), bytes)
            await carrier.close()

    run(scenario)


@pytest.mark.parametrize("proto", ["tcp", "tls", "https", "quic", "h3"])
def test_a_drop_is_a_failure_at_once_and_the_next_query_is_answered(proto: str, ca: str) -> None:
    async def scenario() -> None:
        async with serving(proto, Handler()) as engine:
            carrier = opened(SERVED[proto].format(engine.addresses[0]), ca=ca)
            assert isinstance(await ask(carrier, "drop.example"), str)
            assert isinstance(await ask(carrier), bytes)
            await carrier.close()

    run(scenario)


@pytest.mark.parametrize("proto", ENCRYPTED)
def test_an_upstream_is_known_by_the_pin_of_its_key(proto: str) -> None:
    async def scenario() -> None:
        async with serving(proto, Handler()) as engine:
            at = engine.addresses[0]
            scheme = SERVED[proto].partition(":")[0]
            wrong = base64.b64encode(bytes(32)).decode()
            for options, is_right in (
                (pin(), True),
                (f"{wrong}&pin={pin()}", True),
                (wrong, False),
            ):
                carrier = opened(f"{scheme}://{at}#pin={options}")
                found = await ask(carrier)
                assert isinstance(found, bytes) if is_right else found == "pin"
                await carrier.close()

    run(scenario)


@pytest.mark.parametrize("proto", ENCRYPTED)
def test_a_certificate_for_another_name_or_of_no_known_ca_is_refused(proto: str, ca: str) -> None:
    async def scenario() -> None:
        async with serving(proto, Handler()) as engine:
            at = engine.addresses[0]
            scheme = SERVED[proto].partition(":")[0]
            for text, known in (("other.test", ca), (SERVER_NAME, "")):
                carrier = opened(f"{scheme}://{at}#name={text}", ca=known)
                assert await ask(carrier) == "tls"
                await carrier.close()

    run(scenario)


def _stamp(number: int, *fields: bytes) -> str:
    octets = bytes((number,)) + bytes(8) + b"".join(bytes((len(f),)) + f for f in fields)
    return "sdns://" + base64.urlsafe_b64encode(octets).decode().rstrip("=")


@pytest.mark.parametrize(("number", "proto"), [(2, "https"), (3, "tls"), (4, "quic")])
def test_a_stamp_says_all_that_is_needed(number: int, proto: str, ca: str) -> None:
    async def scenario() -> None:
        async with serving(proto, Handler()) as engine:
            right = hashlib.sha256(_certificate().tbs_certificate_bytes).digest()
            path = [b"/dns-query"] if number == 2 else []
            for digest in (right, bytes(32)):
                at = engine.addresses[0].encode()
                carrier = opened(_stamp(number, at, digest, SERVER_NAME.encode(), *path), ca=ca)
                found = await ask(carrier)
                assert isinstance(found, bytes) if digest == right else found == "pin"
                await carrier.close()

    run(scenario)


@pytest.mark.parametrize("proto", SERVED)
def test_nobody_at_the_address_is_a_failure(proto: str) -> None:
    async def scenario() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind(("127.0.0.1", 0))
            at = f"127.0.0.1:{sock.getsockname()[1]}"
        carrier = opened(SERVED[proto].format(at))
        if proto not in ("quic", "h3"):  # their time-out is the caller's
            assert await ask(carrier) == "refused"
        await carrier.close()

    run(scenario)


# UDP, and an upstream that lies


class Liar:
    """A UDP upstream on a plain socket."""

    def __init__(self) -> None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind(("127.0.0.1", 0))
        self.sock.setblocking(False)

    @property
    def target(self) -> tuple[str, int]:
        found: tuple[str, int] = self.sock.getsockname()
        return found

    async def hear(self) -> tuple[bytes, Any]:
        return await asyncio.get_running_loop().sock_recvfrom(self.sock, 4096)


def answer_to(packet: bytes, more: bytes = b"") -> bytes:
    return packet[:2] + b"\x81\x80" + packet[4:] + more


def test_only_an_answer_with_the_right_id_and_question_from_the_right_port_is_taken() -> None:
    async def scenario() -> None:
        liar, other = Liar(), Liar()
        carrier = UdpCarrier(liar.target, Chance(SystemEntropy()))
        waits = Waits()
        carrier.send(waits)
        packet, client = await liar.hear()
        wrong_id = bytes((packet[0] ^ 1, packet[1]))
        liar.sock.sendto(wrong_id + answer_to(packet)[2:], client)
        liar.sock.sendto(answer_to(packet[:12] + name("x.example") + packet[-15:]), client)
        liar.sock.sendto(packet, client)
        liar.sock.sendto(b"", client)
        other.sock.sendto(answer_to(packet, b"forged"), client)
        liar.sock.sendto(answer_to(packet, b"right"), client)
        found = await waits.over
        assert isinstance(found, bytes)
        assert found.endswith(b"right")
        assert len(waits.others) == 2
        await carrier.close()
        liar.sock.close()
        other.sock.close()

    run(scenario)


def test_ports_and_ids_are_many_and_used_ports_are_left() -> None:
    async def scenario() -> None:
        liar = Liar()
        carrier = UdpCarrier(liar.target, Chance(SystemEntropy()))
        ports: set[int] = set()
        ids: set[bytes] = set()
        count = 3000
        for _ in range(count):
            waits = Waits()
            carrier.send(waits)
            packet, client = await liar.hear()
            ports.add(client[1])
            ids.add(packet[:2])
            liar.sock.sendto(answer_to(packet), client)
            await waits.over
        assert len(ports) >= SOCKETS_MAX
        assert len(ids) > count * 0.95
        many = [Waits() for _ in range(QUERIES_PER_SOCKET * SOCKETS_MAX // 4)]
        for one in many:
            carrier.send(one)
        for one in many:
            carrier.forget(one)
        await carrier.close()
        liar.sock.close()

    run(scenario)


def test_what_was_forgotten_is_not_answered() -> None:
    async def scenario() -> None:
        liar = Liar()
        carrier = UdpCarrier(liar.target, Chance(SystemEntropy()))
        waits, other = Waits(), Waits("other.example")
        carrier.send(waits)
        packet, client = await liar.hear()
        carrier.forget(waits)
        carrier.forget(waits)
        carrier.send(other)
        liar.sock.sendto(answer_to(packet), client)
        packet, client = await liar.hear()
        liar.sock.sendto(answer_to(packet), client)
        await other.over
        assert not waits.over.done()
        await carrier.close()
        liar.sock.close()

    run(scenario)


# TCP, and an upstream that behaves badly


@asynccontextmanager
async def stream_server(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """Where it listens. At the end its connections are over."""
    over: list[asyncio.Task[None]] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        over.append(task)
        await serve(reader, writer)
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.gather(*over)


def test_answers_over_a_stream_may_come_in_any_order_and_in_pieces() -> None:
    async def scenario() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            packets = [await read_message(reader) for _ in range(3)]
            octets = framed(*(answer_to(packet) for packet in reversed(packets)), b"\0\0junk")
            for i in range(0, len(octets), 7):
                writer.write(octets[i : i + 7])
                await writer.drain()
                await asyncio.sleep(0)

        async with stream_server(serve) as at:
            carrier = opened(f"tcp://{at}")
            found = await asyncio.gather(*(ask(carrier, f"h{i}.example") for i in range(3)))
            assert [packet[12:14] for packet in found] == [b"\2h"] * 3
            await carrier.close()

    run(scenario)


def test_an_upstream_that_only_closes_is_a_failure_and_not_a_loop() -> None:
    async def scenario() -> None:
        opened_count = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal opened_count
            opened_count += 1
            await read_message(reader)

        async with stream_server(serve) as at:
            carrier = opened(f"tcp://{at}")
            assert await ask(carrier) == "closed"
            assert opened_count == 1
            await carrier.close()

    run(scenario)


def test_a_host_by_name_is_looked_up_once_for_many_queries() -> None:
    async def scenario() -> None:
        async with serving("udp", Handler()) as engine:
            host, port = split_address(engine.addresses[0])
            later: Later[tuple[str, ...]] = Later()
            asked: list[str] = []

            def look_up(host: str) -> Later[tuple[str, ...]]:
                asked.append(host)
                return later

            carriers = Carriers(Chance(SystemEntropy()), SystemClock(), look_up)
            carrier = carriers.open(parse_upstream(f"udp://dns.test:{port}"))
            both = [Waits(), Waits("other.example")]
            for one in both:
                carrier.send(one)
            later.settle((host,))
            await asyncio.gather(*(one.over for one in both))
            assert asked == ["dns.test"]
            await carrier.close()

    run(scenario)


def test_a_host_that_moved_is_found_again_and_queries_go_on_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        first, second = Handler(), Handler()
        async with serving("udp", first) as one:
            _, port = split_address(one.addresses[0])
            async with serving("udp", second, address=f"127.0.0.2:{port}"):
                found = ["127.0.0.1"]

                def look_up(_host: str) -> Later[tuple[str, ...]]:
                    later: Later[tuple[str, ...]] = Later()
                    later.settle(tuple(found))
                    return later

                carriers = Carriers(Chance(SystemEntropy()), SystemClock(), look_up)
                carrier = carriers.open(parse_upstream(f"udp://dns.test:{port}"))
                assert isinstance(await ask(carrier), bytes)
                monkeypatch.setattr("kudurru.adapters.dns.upstream.carriers.LOOK_UP_S", 0)
                for address in ("127.0.0.2", "127.0.0.1"):
                    found[:] = [address]
                    for _ in range(2):  # the first is sent where it was, and has it looked up
                        assert isinstance(await ask(carrier), bytes)
                assert (first.asked, second.asked) == (3, 2)
                await carrier.close()

    run(scenario)


def test_a_host_that_is_not_found_is_a_failure_and_looked_up_again() -> None:
    async def scenario() -> None:
        asked = 0

        def look_up(_host: str) -> Later[tuple[str, ...]]:
            nonlocal asked
            asked += 1
            later: Later[tuple[str, ...]] = Later()
            later.settle(())
            return later

        carriers = Carriers(Chance(SystemEntropy()), SystemClock(), look_up)
        carrier = carriers.open(parse_upstream("tls://dns.test"))
        for _ in range(2):
            assert await ask(carrier) == "no address"
        assert asked == 2
        await until(lambda: True)
        await carrier.close()

    run(scenario)


class Heard:
    """A `Sink` of a test."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.is_lost = False

    def answered(self, number: int, packet: bytes) -> None:
        assert packet
        self.answers.append(number)

    def refused(self, number: int, why: str) -> None:
        raise AssertionError(number, why)

    def lost(self) -> None:
        self.is_lost = True


class Wire(asyncio.Transport):
    """A transport that leads to the server of a test."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.is_over = False

    def write(self, data: Any) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return self.is_over


def test_a_server_that_takes_no_more_octets_is_sent_no_more_queries_over_http() -> None:
    async def scenario() -> None:
        config = h2.config.H2Configuration(client_side=False)
        server = h2.connection.H2Connection(config=config)
        server.initiate_connection()
        server.update_settings({h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 1000})
        wire = Wire()
        connection = HttpConnection(parse_upstream("https://192.0.2.1"), Heard())
        connection.connection_made(wire)
        connection.data_received(server.data_to_send())
        sent = 0
        while connection.room > 0:  # nothing makes room: 65,535 octets are all that fits
            connection.send(Waits(f"h{sent}.example", block=128))
            sent += 1
        assert 65_535 - 512 <= sent * len(Waits(block=128).packet) <= 65_535
        server.receive_data(bytes(wire.sent))
        assert server.open_inbound_streams == sent
        server.increment_flow_control_window(1 << 16)
        connection.data_received(server.data_to_send())
        assert connection.room > 0

    run(scenario)
