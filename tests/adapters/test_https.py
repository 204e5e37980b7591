"""What DoH adds to the contract of packet engines: refusals, proxies, limits, deadlines."""

import asyncio
import base64
import contextlib
import socket
from collections import defaultdict
from typing import Any

import h2.errors
import h2.exceptions
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kudurru.adapters.dns.answering import Answering
from kudurru.adapters.dns.doh import HEADERS_MAX, MESSAGE_MAX, TARGET_MAX, Doh, Request
from kudurru.adapters.dns.http2_repeats import CREDIT
from kudurru.adapters.dns.https import BODIES_WINDOW, RESETS_MAX, RESPONSES_HELD_MAX, STREAMS_MAX
from kudurru.adapters.dns.streams import StreamLimits
from kudurru.adapters.networks import Networks
from kudurru.adapters.sockets import split_address
from kudurru.domain.notation import parse_network
from kudurru.domain.ports import Reply
from tests.dns_clients import (
    MEDIA_TYPE,
    Answered,
    Http2,
    is_closed,
    open_http1,
    open_http2,
    open_http3,
    open_tls,
    post,
)
from tests.engines import LOOPBACK, serving, until
from tests.packets import query

HOST = b"Host: dns.test\r\n"


class Echo:
    """Answers with the client's address behind the question, or more of it."""

    def handle(self, packet: bytes, client: str, proto: str) -> Reply | None:
        if b"drop" in packet:
            return None
        more = bytes(60_000) if b"large" in packet else client.encode()
        return Reply(packet[:2] + b"\x81\x80" + bytes(8) + packet[12:] + more, memo=False)


def target_of(engine) -> tuple[str, int]:
    return split_address(engine.addresses[0])


def after(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


def get(packet: bytes) -> bytes:
    return b"/dns-query?dns=" + base64.urlsafe_b64encode(packet).rstrip(b"=")


VERSIONS = {
    "http1": ("https", open_http1),
    "http2": ("https", open_http2),
    "http3": ("h3", open_http3),
}

PACKET = query("www.example")
REQUESTS = {
    "other path": ((b"GET", b"/", [], b""), 404),
    "deeper path": ((b"GET", b"/dns-query/x/y?dns=AAAA", [], b""), 404),
    "no client ID": ((b"GET", b"/dns-query/x_y?dns=AAAA", [], b""), 404),
    "longer word": ((b"GET", b"/dns-queryx?dns=AAAA", [], b""), 404),
    "long target": ((b"GET", b"/dns-query?dns=" + b"A" * TARGET_MAX, [], b""), 414),
    "not base64url": ((b"GET", b"/dns-query?dns=%00", [], b""), 400),
    "one letter": ((b"GET", b"/dns-query?dns=A", [], b""), 400),
    "bits left over": ((b"GET", b"/dns-query?dns=AB", [], b""), 400),
    "another parameter": ((b"GET", b"/dns-query?name=www.example", [], b""), 400),
    "no header": ((b"GET", get(b"x" * 11), [], b""), 400),
    "delete": ((b"DELETE", b"/dns-query", [], b""), 405),
    "form": ((b"POST", b"/dns-query", [(b"content-type", b"text/plain")], PACKET), 415),
    "no type": ((b"POST", b"/dns-query", [], PACKET), 415),
    "two types": ((b"POST", b"/dns-query", [MEDIA_TYPE, MEDIA_TYPE], PACKET), 415),
    "too large": ((b"POST", b"/dns-query", [MEDIA_TYPE], bytes(65_536)), 413),
    "largest": ((b"POST", b"/dns-query", [MEDIA_TYPE], PACKET + bytes(65_535 - 100)), 200),
    "get": ((b"GET", get(PACKET), [], b""), 200),
    "percent": ((b"GET", get(PACKET).replace(b"dns=A", b"dns=%41"), [], b""), 200),
}


def test_what_a_connection_over_http1_remembers_goes_with_it() -> None:
    async def main() -> None:
        async with serving("https", Echo()) as engine:
            async with open_http1(target_of(engine)) as client:
                for name in ("one", "two"):
                    path = b"/dns-query/" + name.encode() + get(PACKET).removeprefix(b"/dns-query")
                    assert (await client.request(b"GET", path, [], b"")).status == 200
                assert engine.http1_room.held == 2
            await until(lambda: engine.http1_room.held == 0)

    asyncio.run(main())


@pytest.mark.parametrize("opened", [open_http1, open_http2])
def test_a_connection_that_is_over_holds_no_forms(opened: Any) -> None:
    async def main() -> None:
        async with serving("https", Echo()) as engine:
            async with opened(target_of(engine)) as client:
                assert (await client.request(b"GET", get(PACKET), [], b"")).status == 200
            await until(lambda: len(engine.connections) == 0)
            assert engine.http1_room.held == engine.http2_room.held == 0

    asyncio.run(main())


@pytest.mark.parametrize("version", VERSIONS)
def test_each_request_gets_its_status_and_the_next_one_is_served(version: str) -> None:
    proto, opened = VERSIONS[version]

    async def main() -> None:
        async with serving(proto, Echo()) as engine:
            for name, ((method, path, headers, body), status) in REQUESTS.items():
                fields = list(headers)
                if body:
                    fields.append((b"content-length", b"%d" % len(body)))
                async with opened(target_of(engine)) as client:
                    found = await client.request(method, path, fields, body)
                    assert (name, found.status) == (name, status)
                    if status != 200:
                        assert found.headers[b"cache-control"] == b"no-store"
                        assert found.headers[b"content-type"].startswith(b"text/plain")
                    if status == 405:
                        assert found.headers[b"allow"] == b"GET, HEAD, POST"
                async with opened(target_of(engine)) as client:
                    assert (await client.request(*post(PACKET))).status == 200

    asyncio.run(main())


class Who:
    """Answers with what the client calls itself."""

    takes_client_ids = tells_clients_apart = True

    def names_id(self, client_id: str) -> bool:
        return True

    def handle(self, packet: bytes, client: str, proto: str, client_id: str = "") -> Reply:
        text = client_id.encode()
        return Reply(packet[:2] + b"\x81\x80" + bytes(8) + packet[12:] + text, memo=False)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_says_who_it_is_in_the_path(version: str) -> None:
    proto, opened = VERSIONS[version]

    async def main() -> None:
        async with serving(proto, Who()) as engine:
            for path, told in ((b"/dns-query/Anna-Phone", b"Anna-Phone"), (b"/dns-query", b"")):
                target = path + get(PACKET).removeprefix(b"/dns-query")
                async with opened(target_of(engine)) as client:
                    found = await client.request(b"GET", target, [], b"")
                assert found.status == 200
                assert found.body[len(PACKET) :].startswith(told)

    asyncio.run(main())


@pytest.mark.parametrize("version", VERSIONS)
def test_a_drop_costs_its_own_request_only(version: str) -> None:
    proto, opened = VERSIONS[version]

    async def main() -> None:
        async with serving(proto, Echo()) as engine:
            async with opened(target_of(engine)) as client:
                found = await client.request(*post(query("drop.example")))
                assert (found.is_reset, found.status, found.body) == (True, 0, b"")
                if version != "http1":
                    assert (await client.request(*post(PACKET))).status == 200
            async with opened(target_of(engine)) as client:
                assert (await client.request(*post(PACKET))).status == 200

    asyncio.run(main())


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("trusted", [LOOPBACK, None])
def test_forwarded_addresses_are_believed_from_trusted_proxies_only(version, trusted) -> None:
    proto, opened = VERSIONS[version]

    async def main() -> None:
        async with (
            serving(proto, Echo(), trusted=trusted) as engine,
            opened(target_of(engine)) as client,
        ):
            method, path, headers, body = post(PACKET)
            forwarded = [*headers, (b"x-forwarded-for", b"198.51.100.1, 203.0.113.9")]
            found = await client.request(method, path, forwarded, body)
            expected = b"203.0.113.9" if trusted else b"127.0.0.1"
            assert found.body[len(PACKET) :] == expected

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fields", "client"),
    [
        ([], "10.0.0.1"),
        ([b"203.0.113.9"], "203.0.113.9"),
        ([b"203.0.113.9:4711"], "203.0.113.9"),
        ([b"2001:db8::9"], "2001:db8::9"),
        ([b"[2001:db8::9]:80"], "2001:db8::9"),
        ([b"198.51.100.1, 203.0.113.9, 10.0.0.7"], "203.0.113.9"),
        ([b"198.51.100.1", b"203.0.113.9"], "203.0.113.9"),
        ([b"10.0.0.3, 10.0.0.2"], "10.0.0.1"),
        ([b"203.0.113.9, unknown"], "10.0.0.1"),
        ([b"unknown, 203.0.113.9"], "203.0.113.9"),
        ([b""], "10.0.0.1"),
        ([b"\xff"], "10.0.0.1"),
        ([b"::ffff:203.0.113.9"], "203.0.113.9"),
        ([b"fe80::1%anything, at all"], "10.0.0.1"),
        ([b"203.0.113.9" + b", 10.0.0.2" * 1000], "10.0.0.1"),
    ],
)
def test_the_client_is_the_nearest_address_that_is_no_proxy(fields, client) -> None:
    doh = Doh(Answering(Echo(), "https", 65_535), Networks([parse_network("10.0.0.0/8")]))
    headers = [MEDIA_TYPE, *((b"x-forwarded-for", value) for value in fields)]
    response = doh.respond(Request(b"POST", b"/dns-query", headers, PACKET), "10.0.0.1")
    assert response is not None
    assert response.body[len(PACKET) :].decode() == client


@pytest.mark.parametrize("origin", [b"", b"https://dns.example", b"HTTP://192.0.2.1:8443"])
def test_a_target_may_be_a_whole_url(origin) -> None:
    """RFC 9112 section 3.2.2."""
    doh = Doh(Answering(Echo(), "https", 65_535), LOOPBACK)
    response = doh.respond(Request(b"GET", origin + get(PACKET), [], b""), "10.0.0.1")
    assert response is not None
    assert response.status == 200


@given(st.binary(max_size=80), st.binary(max_size=60), st.binary(max_size=60), st.booleans())
def test_any_request_has_a_response_or_none(method, target, body, is_post) -> None:
    doh = Doh(Answering(Echo(), "https", 65_535), LOOPBACK)
    headers = [MEDIA_TYPE, (b"x-forwarded-for", method)]
    request = Request(b"POST" if is_post else b"GET", b"/dns-query?dns=" + target, headers, body)
    response = doh.respond(request, "127.0.0.1")
    assert response is None or response.status in (200, 400, 404, 413, 414, 415)


@given(st.binary(min_size=12, max_size=300))
def test_every_message_survives_the_way_through_a_get(packet: bytes) -> None:
    doh = Doh(Answering(Echo(), "https", 65_535), LOOPBACK)
    response = doh.respond(Request(b"GET", get(packet), [], b""), "127.0.0.1")
    assert response is None or response.body[12 : len(packet)] == packet[12:]


# HTTP/1.1


def test_requests_that_come_together_are_answered_in_order() -> None:
    async def main() -> None:
        async with serving("https", Echo()) as engine:
            reader, writer = await open_tls(target_of(engine), "http/1.1")
            for number in range(60):
                path = get(query("www.example", ident=number))
                writer.write(b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"\r\n")
            for number in range(60):
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                body = await reader.readexactly(size)
                assert int.from_bytes(body[:2], "big") == number
            writer.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"\r\n\r\nnonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: " + b"a" * (HEADERS_MAX + 100), 431),
        (b"GET / HTTP/1.1\r\n" + HOST + b"A: " + b"a" * (HEADERS_MAX + 2000) + b"\r\n\r\n", 431),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: x\r\n\r\n", 400),
    ],
)
def test_what_is_no_request_is_refused_and_the_connection_closed(request_, status) -> None:
    async def main() -> None:
        async with serving("https", Echo()) as engine:
            reader, writer = await open_tls(target_of(engine), "http/1.1")
            writer.write(request_)
            answer = await reader.read()
            assert int(answer.split()[1]) == status
            assert b"connection: close" in answer.lower()
            writer.close()

    asyncio.run(main())


def test_a_refused_head_is_answered_without_a_body() -> None:
    async def main() -> None:
        async with serving("https", Echo()) as engine:
            reader, writer = await open_tls(target_of(engine), "http/1.1")
            fields = b"Transfer-Encoding: chunked\r\nContent-Type: application/dns-message\r\n\r\n"
            writer.write(b"HEAD /dns-query HTTP/1.1\r\n" + HOST + fields + b"no size\r\n")
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 4")
            assert body == b""
            writer.close()

    asyncio.run(main())


def test_a_client_may_ask_whether_to_go_on() -> None:
    async def main() -> None:
        async with serving("https", Echo()) as engine:
            reader, writer = await open_tls(target_of(engine), "http/1.1")
            size = b"Content-Length: %d\r\n" % len(PACKET)
            kind = b"Content-Type: application/dns-message\r\nExpect: 100-continue\r\n"
            writer.write(b"POST /dns-query HTTP/1.1\r\n" + HOST + size + kind + b"\r\n")
            assert b" 100 " in await reader.readuntil(b"\r\n\r\n")
            writer.write(PACKET)
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            writer.close()

    asyncio.run(main())


@pytest.mark.parametrize("alpn", ["http/1.1", "h2"])
def test_an_idle_connection_is_closed_after_ten_seconds(alpn: str) -> None:
    async def main() -> None:
        async with serving("https", Echo()) as engine:
            reader, writer = await open_tls(target_of(engine), alpn)
            if alpn == "h2":
                client = Http2(reader, writer)
                assert (await client.request(*post(PACKET))).status == 200
            await until(lambda: all(one._is_open for one in engine.connections))
            engine.connections.expire(after(9))
            assert engine.statistics().connections_timed_out == 0
            engine.connections.expire(after(10))
            rest = await reader.read()
            assert rest == b"" or alpn == "h2"  # a GOAWAY
            assert engine.statistics().connections_timed_out == 1
            writer.close()

    asyncio.run(main())


def test_a_request_that_drips_is_cut_after_thirty_seconds() -> None:
    async def main() -> None:
        async with serving("https", Echo()) as engine:
            reader, writer = await open_tls(target_of(engine), "http/1.1")
            for octet in b"GET /dns-query":
                writer.write(bytes((octet,)))
                await writer.drain()
                await asyncio.sleep(0)
            await until(lambda: any(one._http.started_s() for one in engine.connections))
            (connection,) = engine.connections
            begun = connection.deadline_s
            assert after(20) < begun <= after(30)
            writer.write(b"?dns=AAAA")
            await writer.drain()
            for _ in range(20):
                await asyncio.sleep(0)
            assert connection.deadline_s == begun
            engine.connections.expire(begun)
            assert await is_closed(reader)
            writer.close()

    asyncio.run(main())


# HTTP/2


def test_a_stream_that_drips_is_cut_though_others_are_answered() -> None:
    async def main() -> None:
        async with serving("https", Echo()) as engine, open_http2(target_of(engine)) as client:
            method, path, headers, body = post(PACKET)
            slow = client.http.get_next_available_stream_id()
            pseudo = [(b":method", method), (b":scheme", b"https"), (b":authority", b"a")]
            client.http.send_headers(slow, [*pseudo, (b":path", path), *headers])
            client.http.send_data(slow, body[:5])
            await client.request(method, path, headers, body)
            (connection,) = engine.connections
            begun = connection.deadline_s
            await client.request(method, path, headers, body)
            assert connection.deadline_s == begun
            engine.connections.expire(begun)
            await until(lambda: len(engine.connections) == 0)

    asyncio.run(main())


def test_a_client_that_resets_again_and_again_is_told_to_calm_down() -> None:
    async def main() -> None:
        async with serving("https", Echo()) as engine, open_http2(target_of(engine)) as client:
            for _ in range(RESETS_MAX + 1):
                client.http.reset_stream(open_stream(client))
            client.writer.write(client.http.data_to_send())
            await reads_until_told(client)
            assert client.terminated == h2.errors.ErrorCodes.ENHANCE_YOUR_CALM
            assert engine.statistics().received == 0

    asyncio.run(main())


def open_stream(client: Http2) -> int:
    stream = client.http.get_next_available_stream_id()
    pseudo = [(b":method", b"POST"), (b":scheme", b"https"), (b":authority", b"a")]
    client.http.send_headers(stream, [*pseudo, (b":path", b"/dns-query"), MEDIA_TYPE])
    return stream


async def reads_until_told(client: Http2) -> None:
    """Read to the end of the connection."""
    with contextlib.suppress(ConnectionResetError):
        while octets := await client.reader.read(65_536):
            for event in client.http.receive_data(octets):
                client._take(event, defaultdict(Answered), set())


def test_more_streams_than_allowed_end_the_connection() -> None:
    async def main() -> None:
        async with serving("https", Echo()) as engine, open_http2(target_of(engine)) as client:
            for _ in range(STREAMS_MAX):
                open_stream(client)
            client.writer.write(client.http.data_to_send())
            await until(lambda: any(len(c._http._streams) == STREAMS_MAX for c in opened(engine)))
            client.http.remote_settings[3] = 1000
            client.http.remote_settings.acknowledge()
            open_stream(client)
            client.writer.write(client.http.data_to_send())
            await reads_until_told(client)
            await until(lambda: len(engine.connections) == 0)

    asyncio.run(main())


def opened(engine) -> list:
    return [one for one in engine.connections if one._is_open]


def test_responses_that_a_client_does_not_take_are_bounded() -> None:
    async def main() -> None:
        async with serving("https", Echo()) as engine:
            reader, writer = await open_tls(target_of(engine), "h2")
            client = Http2(reader, writer)
            client.http.update_settings({4: 0})  # INITIAL_WINDOW_SIZE: no octet of any response
            for _ in range(RESPONSES_HELD_MAX // 60_000 + 2):
                client.send(*post(query("large.example")))
            writer.write(client.http.data_to_send())
            await reads_until_told(client)
            assert client.terminated == h2.errors.ErrorCodes.ENHANCE_YOUR_CALM
            writer.close()

    asyncio.run(main())


def test_large_responses_arrive_whole_however_small_the_window() -> None:
    async def main() -> None:
        async with serving("https", Echo()) as engine, open_http2(target_of(engine)) as client:
            client.http.update_settings({4: 1000})
            found = await client.all(*[post(query("large.example"))] * 3)
            assert [len(one.body) for one in found] == [60_000 + len(query("large.example"))] * 3

    asyncio.run(main())


def test_one_connection_does_not_keep_another_waiting() -> None:
    async def main() -> None:
        async with (
            serving("https", Echo()) as engine,
            open_http2(target_of(engine)) as greedy,
            open_http2(target_of(engine)) as modest,
        ):
            assert (await modest.request(*post(PACKET))).status == 200
            for _ in range(100):
                greedy.send(*post(PACKET))
            greedy.writer.write(greedy.http.data_to_send())
            await greedy.writer.drain()
            assert (await modest.request(*post(PACKET))).status == 200
            assert engine.statistics().received < 102

    asyncio.run(main())


def test_a_client_that_reads_nothing_is_not_read_from_and_then_cut() -> None:
    async def main() -> None:
        async with serving("https", Echo()) as engine:
            _, writer = await open_tls(target_of(engine), "http/1.1")
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            writer.transport.pause_reading()
            path = get(query("large.example"))
            writer.write((b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"\r\n") * 500)
            await until(lambda: any(one._is_waiting_for_client for one in engine.connections))
            received = engine.statistics().received
            for _ in range(100):
                await asyncio.sleep(0)
            assert engine.statistics().received == received < 300
            engine.connections.expire(after(31))
            await until(lambda: len(engine.connections) == 0)
            writer.transport.abort()

    asyncio.run(main())


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["http/1.1", "h2"]),
    st.booleans(),
    st.lists(st.binary(min_size=1, max_size=100), min_size=1, max_size=4),
)
def test_no_octets_harm_the_listener(alpn, has_preface, pieces) -> None:
    async def main() -> None:
        async with serving("https", Echo(), limits=StreamLimits(drain_s=0.01)) as engine:
            _, writer = await open_tls(target_of(engine), alpn)
            if has_preface and alpn == "h2":
                writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
            for piece in pieces:
                writer.write(len(piece).to_bytes(3, "big") + piece if has_preface else piece)
            async with open_http1(target_of(engine)) as client:
                assert (await client.request(*post(PACKET))).status == 200
            writer.transport.abort()

    asyncio.run(main())


class Kept:
    """Answers that may be repeated, where the question says so."""

    def handle(self, packet: bytes, client: str, proto: str) -> Reply:
        return Reply(packet[:2] + b"\x81\x80" + bytes(8) + packet[12:60], memo=b"kept" in packet)


def test_the_largest_body_has_room_beside_all_that_is_not_given_back_yet() -> None:
    """h2 gives back what it saw, and who answers past it what it did not, each when it is much."""

    def of_size(name: str, size: int) -> bytes:
        return query(name, ident=0).ljust(size, b"\0")

    async def main() -> None:
        async with (
            serving("https", Kept()) as engine,
            open_http2(target_of(engine)) as client,
        ):
            kept = of_size("kept.example", 1000)
            seen = BODIES_WINDOW // 2 - 1
            for size in (seen // 2 - len(kept), seen - seen // 2 - len(kept)):
                await client.request(*post(of_size("other.example", size)))
            past_h2 = (CREDIT - 1) // len(kept)
            for _ in range(2 + past_h2):  # from the third one on its form is known
                await client.request(*post(kept))
            room = BODIES_WINDOW - seen - past_h2 * len(kept)
            assert client.http.outbound_flow_control_window == room
            found = await client.request(*post(of_size("other.example", MESSAGE_MAX)))
            assert found.status == 200

    asyncio.run(main())
