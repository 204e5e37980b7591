import asyncio
import contextlib
import json
import math
import socket
import ssl
import struct
import tempfile
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kudurru.adapters.http_api import (
    ANSWER_S,
    BUFFERED_MAX,
    HEADERS_COUNT_MAX,
    HEADERS_KEPT_MAX,
    PIPELINED_MAX,
    ApiLimits,
    ApiServer,
    Application,
    Reply,
    Request,
    Stream,
)
from kudurru.adapters.http_ops import HEADERS_MAX, Response, failure
from kudurru.adapters.sockets import Listener, bind_all, split_address
from tests.certificates import write_pair

HEAD = b"Host: localhost\r\n"
GET, POST = (method + b" / HTTP/1.1\r\n" + HEAD for method in (b"GET", b"POST"))
SMALL = ApiLimits(body_bytes=1000)
OPENED: list[asyncio.StreamWriter] = []
"""Connections of the test at hand, closed at its end."""

OVER: list[ssl.SSLContext | None] = [None]
"""Over what the test at hand speaks: a client's context, where it is TLS."""


@pytest.fixture(autouse=True, params=["tcp", "tls"])
def over(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every promise holds over both."""
    OVER[0] = client_context() if request.param == "tls" else None
    yield request.param
    OVER[0] = None


def client_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


@cache
def server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        context.load_cert_chain(*write_pair(Path(folder)))
    return context


class Echo(Application):
    """An application that says what it was asked."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.admitted = 0
        self.numbers: list[int] = []
        self.loudness = 1
        self.gate = asyncio.Event()
        self.is_stream_closed = False

    def admit(self, request: Request) -> Response | None:
        self.admitted += 1
        self.numbers.append(request.headers_number)
        return failure(401, "who?" * self.loudness) if "x-nobody" in request.headers else None

    def overdue(self, request: Request) -> Response:
        return failure(503, f"later than {request.limit_s:.0f} s")

    async def answer(self, request: Request) -> Response | Stream:
        self.seen.append(request.path)
        match request.path:
            case "/boom":
                raise RuntimeError("secret detail")
            case "/wait":
                await self.gate.wait()
            case "/stream":
                return Stream("text/plain", self.parts())
            case "/flood":
                return Stream("text/plain", self.flood())
            case "/large":
                return Response(200, bytes(4 << 20), "application/octet-stream")
            case "/headers":
                return Reply(code=201, body=b"{}", headers=(("ETag", '"7"'),))
        found = {
            "method": request.method, "path": request.path, "query": request.query,
            "body": request.body.decode("latin-1"), "headers": request.headers,
        }  # fmt: skip
        return Response(200, json.dumps(found).encode())

    async def parts(self) -> AsyncIterator[bytes]:
        try:
            yield b"one\n"
            await self.gate.wait()
            yield b"two\n"
        finally:
            self.is_stream_closed = True

    async def flood(self) -> AsyncIterator[bytes]:
        try:
            while True:
                yield bytes(1 << 16)
        finally:
            self.is_stream_closed = True


@contextlib.asynccontextmanager
async def serving(
    app: Echo | None = None, limits: ApiLimits | None = None
) -> AsyncIterator[ApiServer]:
    (bound,) = bind_all([Listener("tcp", "127.0.0.1:0")])
    tls = server_context if OVER[0] is not None else None
    server = ApiServer(app or Echo(), bound.sockets, limits=limits, tls=tls)
    async with asyncio.timeout(60):
        await server.start()
        try:
            yield server
        finally:
            await server.stop()
            while OPENED:
                writer = OPENED.pop()
                writer.close()
                with contextlib.suppress(OSError):  # TLS wants no answers after its end
                    await writer.wait_closed()


async def opened(server: ApiServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = split_address(server.addresses[0])[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=OVER[0])
    OPENED.append(writer)
    return reader, writer


async def raw(server: ApiServer, *parts: bytes) -> bytes:
    """Everything the server sends until it closes. Parts are sent in turns of their own."""
    reader, writer = await opened(server)
    for part in parts:
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(0)
    try:
        return await reader.read()
    finally:
        writer.close()


async def one(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], Any]:
    """The next answer of a connection that stays."""
    head = await reader.readuntil(b"\r\n\r\n")
    code, fields = parsed_head(head)
    body = await reader.readexactly(int(fields["content-length"]))
    return code, fields, json.loads(body)


def parsed_head(head: bytes) -> tuple[int, dict[str, str]]:
    status, *lines = head.decode().strip().split("\r\n")
    return int(status.split()[1]), dict(line.lower().split(": ", 1) for line in lines)


def codes(octets: bytes) -> list[int]:
    return [int(part.split(b" ", 1)[0]) for part in octets.split(b"HTTP/1.1 ")[1:]]


def got(*parts: bytes, limits: ApiLimits | None = None) -> bytes:
    async def asked() -> bytes:
        async with serving(limits=limits) as server:
            return await raw(server, *parts)

    return asyncio.run(asked())


def request(target: str = "/", method: str = "GET", body: bytes = b"", **headers: str) -> bytes:
    lines = {"Host": "localhost", **{k.replace("_", "-"): v for k, v in headers.items()}}
    if body:
        lines.setdefault("Content-Length", str(len(body)))
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode() + body


def test_requests_of_one_connection_are_answered_in_order() -> None:
    async def asked() -> list[str]:
        async with serving() as server:
            reader, writer = await opened(server)
            found = []
            for i in range(3):
                writer.write(request(f"/{i}?a=b%20c", "PUT", b"body"))
                code, fields, body = await one(reader)
                assert (code, fields["connection"]) == (200, "keep-alive")
                assert (body["method"], body["query"], body["body"]) == ("PUT", "a=b%20c", "body")
                found.append(body["path"])
            writer.write(b"".join(request(f"/{i}", "POST", b"x" * i) for i in range(3, 9)))
            found += [(await one(reader))[2]["path"] for _ in range(6)]
            writer.close()
            return found

    assert asyncio.run(asked()) == [f"/{i}" for i in range(9)]


def test_the_same_headers_again_have_the_same_number_and_others_another_one() -> None:
    app = Echo()
    said = [{"X-A": "1"}, {"X-A": "1"}, {"X-A": "2"}, {"X-A": "1"}, {"x-a": "1"}, {"X": "A1"}, {}]

    async def asked() -> None:
        async with serving(app) as server:
            reader, writer = await opened(server)
            for headers in said:
                writer.write(request("/", **headers))
                found = (await one(reader))[2]["headers"]
                expected = {name.lower().replace("_", "-"): text for name, text in headers.items()}
                assert found == {"host": "localhost"} | expected

    asyncio.run(asked())
    assert app.numbers == [1, 1, 2, 3, 4, 5, 6]


def test_a_longer_head_of_the_same_headers_is_refused_as_ever() -> None:
    app = Echo()
    value = "a" * (HEADERS_KEPT_MAX - 100)
    long_target = "/" + "b" * (HEADERS_MAX - HEADERS_KEPT_MAX + 100)

    async def asked() -> list[int]:
        async with serving(app) as server:
            reader, writer = await opened(server)
            found = []
            for target in ("/", "/", long_target):
                writer.write(request(target, X=value))
                found.append((await one(reader))[0])
            return found

    assert asyncio.run(asked()) == [200, 200, 431]


def test_large_headers_are_not_kept() -> None:
    app = Echo()

    async def asked() -> None:
        async with serving(app) as server:
            reader, writer = await opened(server)
            for value in ("a", "b" * HEADERS_KEPT_MAX, "b" * HEADERS_KEPT_MAX, "a"):
                writer.write(request("/", X=value))
                assert (await one(reader))[2]["headers"]["x"] == value

    asyncio.run(asked())
    assert app.numbers == [1, 2, 3, 1]


def test_a_request_may_come_octet_by_octet() -> None:
    octets = request("/slow", "POST", b"slow", Connection="close")
    answer = got(*(octets[i : i + 1] for i in range(len(octets))))
    assert b'"body": "slow"' in answer


def test_a_chunked_body_is_read_and_its_trailers_are_not_headers() -> None:
    head = POST + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    answer = got(head, b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nX-Nobody: 1\r\n\r\n")
    assert codes(answer) == [200]
    assert b'"body": "abcde"' in answer
    assert b"x-nobody" not in answer


@pytest.mark.parametrize(
    "octets",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n" + HEAD + b"\r\n",
        b"GET / HTTP/1.1\nHost: localhost\n\n",
        b"GET /\xff HTTP/1.1\r\n" + HEAD + b"\r\n",
        b"GET http://evil.example/ HTTP/1.1\r\n" + HEAD + b"\r\n",
        b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
        GET + HEAD + b"\r\n",
        GET + b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
        POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Content-Length: -1\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)  # fmt: skip
def test_what_two_readers_could_read_differently_is_refused_and_closed(octets: bytes) -> None:
    """Request smuggling lives of that."""
    answer = got(octets, request("/smuggled"))
    assert codes(answer) == [400]
    assert b'"Status"' in answer
    assert b"Connection: close" in answer


def test_what_comes_before_nonsense_is_answered() -> None:
    assert codes(got(request("/a") + b"nonsense\r\n\r\n")) == [200, 400]


@pytest.mark.parametrize(
    "octets",
    [
        GET + b"X: " + b"a" * HEADERS_MAX + b"\r\n\r\n",
        b"GET /" + b"a" * HEADERS_MAX + b" HTTP/1.1\r\n" + HEAD + b"\r\n",
        GET + b"X: y\r\n" * HEADERS_COUNT_MAX + b"\r\n",
        GET + b"X: " + b"a" * 2 * HEADERS_MAX,  # without an end
    ],
)
def test_headers_have_a_limit(octets: bytes) -> None:
    assert codes(got(octets)) == [431]


def test_a_body_over_the_limit_is_refused_before_it_is_read() -> None:
    announced = POST + b"Content-Length: 1001\r\n\r\n"
    assert codes(got(announced, limits=SMALL)) == [413]
    chunked = POST + b"Transfer-Encoding: chunked\r\n\r\n"
    assert codes(got(chunked, b"3e9\r\n" + b"x" * 1001, limits=SMALL)) == [413]
    assert codes(got(request("/", "POST", b"x" * 1000, Connection="close"), limits=SMALL)) == [200]


def test_who_is_refused_by_the_head_sends_no_body_for_nothing() -> None:
    """The answer comes before the body, and can be read while the client still sends."""

    async def asked() -> tuple[bytes, int]:
        async with serving() as server:
            reader, writer = await opened(server)
            head = POST + b"X-Nobody: 1\r\nContent-Length: 4000000\r\n\r\n"
            writer.write(head)
            answer = await reader.readuntil(b"\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                writer.write(b"x" * 100_000)
                await writer.drain()
            writer.close()
            return answer, server.buffered

    answer, buffered = asyncio.run(asked())
    assert codes(answer) == [401]
    assert buffered == 0


def test_a_refusal_without_a_body_keeps_the_connection() -> None:
    async def asked() -> list[int]:
        async with serving() as server:
            reader, writer = await opened(server)
            found = []
            for headers in ({"X_Nobody": "1"}, {}):
                writer.write(request("/", **headers))
                found.append((await one(reader))[0])
            writer.close()
            return found

    assert asyncio.run(asked()) == [401, 200]


def test_refusals_that_nobody_reads_are_not_heaped_up() -> None:
    """Nothing more is read meanwhile, and the client is cut off in the end."""

    async def asked() -> None:
        app = Echo()
        app.loudness = 1 << 18  # a megabyte each, to fill what the system holds
        async with serving(app) as server:
            _, writer = await opened(server)
            await until(lambda: len(server.connections) == 1)
            (connection,) = server.connections
            sent = 0
            while connection._can_write.is_set():
                writer.write(request("/", X_Nobody="1"))
                sent += 1
                await until(lambda: app.admitted == sent)  # noqa: B023  # in this turn
                await asyncio.sleep(0)
            assert not connection._transport.is_reading()
            assert connection._transport.get_write_buffer_size() < 2 << 20
            connection_expires(server)
            await until(lambda: not len(server.connections))

    asyncio.run(asked())


def test_a_body_in_small_chunks_takes_little_more_than_its_octets() -> None:
    octets = 400_000

    async def asked() -> int:
        async with serving() as server:
            _, writer = await opened(server)
            writer.write(POST + b"Transfer-Encoding: chunked\r\n\r\n")
            tracemalloc.start()
            try:
                for _ in range(100):
                    writer.write(b"2\r\nab\r\n" * (octets // 200))
                    await writer.drain()
                await until(lambda: server.buffered == octets)
                return tracemalloc.get_traced_memory()[0]
            finally:
                tracemalloc.stop()

    assert asyncio.run(asked()) < 6 * octets


@pytest.mark.parametrize(
    ("octets", "code", "reason"),
    [
        (b"nonsense\r\n\r\n", 400, "BadRequest"),
        (POST + b"Content-Length: 9999999\r\n\r\n", 413, "RequestEntityTooLarge"),
        (GET + b"X: y\r\n" * HEADERS_COUNT_MAX + b"\r\n", 431, "RequestHeaderFieldsTooLarge"),
        (request("/wait") + request("/") * (PIPELINED_MAX + 1), 503, "Busy"),
        (request("/boom", Connection="close"), 500, "InternalError"),
    ],
)
def test_refusals_of_the_parser_have_the_shape_of_all_others(
    octets: bytes, code: int, reason: str
) -> None:
    async def asked() -> bytes:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        app = Echo()
        app.gate.set()
        async with serving(app) as server:
            return await raw(server, octets)

    last = asyncio.run(asked()).rpartition(b"HTTP/1.1 ")[2]
    head, _, body = last.partition(b"\r\n\r\n")
    told, fields = parsed_head(b"HTTP/1.1 " + head)
    status = json.loads(body)
    assert (told, status["code"], status["reason"]) == (code, code, reason)
    assert (status["apiVersion"], status["kind"], status["status"]) == ("v1", "Status", "Failure")
    assert fields.get("retry-after") == ("1" if code == 503 else None)


def test_expect_continue_is_answered_for_who_may_send() -> None:
    async def asked(*headers: str) -> bytes:
        async with serving() as server:
            reader, writer = await opened(server)
            extra = {"Expect": "100-continue", "Content-Length": "2", **dict.fromkeys(headers, "1")}
            writer.write(request("/", "POST", **extra))
            first = await reader.readuntil(b"\r\n\r\n")
            writer.close()
            return first

    assert codes(asyncio.run(asked())) == [100]
    assert codes(asyncio.run(asked("X_Nobody"))) == [401]


def test_an_upgrade_is_ignored() -> None:
    answer = got(request("/", Connection="Upgrade", Upgrade="h2c"))
    assert codes(answer) == [200]


def test_a_head_gets_the_head_only() -> None:
    answer = got(request("/x", "HEAD", Connection="close"))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert int(parsed_head(head)[1]["content-length"]) > 0
    assert body == b""


def test_headers_of_an_answer_are_sent_with_those_that_keep_it_from_pages() -> None:
    code, fields = parsed_head(
        got(request("/headers", Connection="close")).partition(b"\r\n\r\n")[0]
    )
    assert (code, fields["etag"]) == (201, '"7"')
    assert fields["cache-control"] == "no-store"
    assert fields["x-content-type-options"] == "nosniff"
    assert fields["x-frame-options"] == "deny"


def test_a_fault_of_ours_is_told_as_one_and_its_detail_to_the_log_only() -> None:
    async def asked() -> tuple[bytes, int]:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        async with serving() as server:
            answer = await raw(server, request("/boom", Connection="close"))
            assert str(told[0]["exception"]) == "secret detail"
            return answer, server.statistics().unhandled_exceptions

    answer, count = asyncio.run(asked())
    assert (codes(answer), count) == ([500], 1)
    assert b"secret" not in answer


def test_a_stream_is_sent_part_by_part_and_closed_with_the_client() -> None:
    async def asked() -> bytes:
        app = Echo()
        async with serving(app) as server:
            reader, writer = await opened(server)
            writer.write(request("/stream"))
            head = await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(9) == b"4\r\none\n\r\n"
            app.gate.set()
            assert await reader.read() == b"4\r\ntwo\n\r\n0\r\n\r\n"
            assert app.is_stream_closed
            app.is_stream_closed = False
            app.gate.clear()
            gone, other = await opened(server)
            other.write(request("/stream"))
            await gone.readuntil(b"one\n")
            other.close()
            await until(lambda: app.is_stream_closed)
            writer.close()
            return head

    head = asyncio.run(asked())
    assert b"Transfer-Encoding: chunked" in head


def test_a_stream_waits_for_its_client_and_holds_little() -> None:
    async def asked() -> None:
        app = Echo()
        async with serving(app) as server:
            reader, writer = await opened(server)
            writer.write(request("/flood"))
            await reader.readuntil(b"\r\n\r\n")
            (connection,) = server.connections
            await until(lambda: not connection._can_write.is_set())
            assert connection._transport.get_write_buffer_size() < 1 << 20
            connection_expires(server)
            await until(lambda: app.is_stream_closed)
            writer.close()

    asyncio.run(asked())


def connection_expires(server: ApiServer) -> None:
    server.connections.expire(asyncio.get_running_loop().time() + server.limits.request_s + 1)


def test_a_client_that_says_nothing_is_cut_off_and_one_that_waits_is_not() -> None:
    async def asked() -> list[bytes]:
        app = Echo()
        async with serving(app, limits=ApiLimits(request_s=ANSWER_S / 2)) as server:
            idle, idle_writer = await opened(server)
            waiting, writer = await opened(server)
            writer.write(request("/wait"))
            idle_writer.write(b"GET / HT")
            await until(lambda: app.seen == ["/wait"] and len(server.connections) == 2)
            connection_expires(server)
            with contextlib.suppress(ConnectionError):
                assert await idle.read() == b""
            app.gate.set()
            found = [await waiting.readuntil(b"\r\n\r\n")]
            for one_writer in (idle_writer, writer):
                one_writer.close()
            return found

    assert [codes(answer) for answer in asyncio.run(asked())] == [[200]]


def test_who_waits_too_long_is_told_so_and_what_was_asked_for_goes_on() -> None:
    async def asked() -> tuple[bytes, bool, int]:
        app = Echo()
        async with serving(app) as server:
            reader, writer = await opened(server)
            writer.write(request("/wait"))
            await until(lambda: app.seen == ["/wait"])
            (connection,) = server.connections
            answering = connection._task
            server.connections.expire(asyncio.get_running_loop().time() + ANSWER_S)
            answer = await reader.read()
            writer.close()
            app.gate.set()
            assert answering is not None
            await answering
            return answer, answering.cancelled(), server.exceptions

    answer, is_cancelled, exceptions = asyncio.run(asked())
    assert codes(answer) == [503]
    assert b"later than 30 s" in answer
    assert (is_cancelled, exceptions) == (False, 0)


def test_what_takes_as_long_as_it_takes_is_waited_for() -> None:
    class Endless(Echo):
        def admit(self, request: Request) -> Response | None:
            request.limit_s = math.inf
            return None

    async def asked() -> bytes:
        app = Endless()
        async with serving(app) as server:
            reader, writer = await opened(server)
            writer.write(request("/wait"))
            await until(lambda: app.seen == ["/wait"])
            server.connections.expire(asyncio.get_running_loop().time() + 86_400)
            app.gate.set()
            answer = await reader.readuntil(b"\r\n\r\n")
            writer.close()
            return answer

    assert codes(asyncio.run(asked())) == [200]


def test_a_client_that_goes_away_takes_nothing_back() -> None:
    async def asked() -> bool:
        app = Echo()
        async with serving(app) as server:
            _, writer = await opened(server)
            writer.write(request("/wait"))
            await until(lambda: app.seen == ["/wait"])
            (connection,) = server.connections
            answering = connection._task
            with_a_reset(writer)
            await until(lambda: not len(server.connections))
            app.gate.set()
            assert answering is not None
            await answering
            return answering.cancelled()

    assert not asyncio.run(asked())


class Soon(Echo):
    """Begins what is asked for, and is told the answer by the test."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[Callable[[Callable[[], Response]], None]] = []

    def begin(self, request: Request, answered: Callable[[Callable[[], Response]], None]) -> bool:
        self.seen.append(request.path)
        match request.path:
            case "/boom":
                raise RuntimeError("secret detail")
            case "/now":
                answered(lambda: Response(200, b"{}"))
            case "/later":
                self.begun.append(answered)
            case _:
                return False
        return True


def test_what_needs_no_task_is_answered_at_once_or_later_and_in_order() -> None:
    async def asked() -> bytes:
        app = Soon()
        async with serving(app) as server:
            reader, writer = await opened(server)
            ask = (request("/now"), request("/later"), request("/"), request("/now"))
            writer.write(b"".join(ask) + request("/now", Connection="close"))
            await until(lambda: bool(app.begun))
            assert app.seen == ["/now", "/later"]
            app.begun.pop()(lambda: Response(201, b"{}"))
            answers = await reader.read()
            assert app.seen[2:] == ["/", "/", "/now", "/now"]  # one that needed a task
            writer.close()
            return answers

    assert codes(asyncio.run(asked())) == [200, 201, 200, 200, 200]


def test_a_fault_in_what_needs_no_task_is_told_as_one_too() -> None:
    def fail() -> Response:
        raise RuntimeError("secret detail")

    async def asked() -> tuple[bytes, int]:
        app = Soon()
        async with serving(app) as server:
            told: list[Any] = []
            asyncio.get_running_loop().set_exception_handler(
                lambda _, context: told.append(context)
            )
            reader, writer = await opened(server)
            writer.write(request("/later") + request("/boom", Connection="close"))
            await until(lambda: bool(app.begun))
            app.begun.pop()(fail)
            answers = await reader.read()
            writer.close()
            assert len(told) == 2
            return answers, server.exceptions

    answers, exceptions = asyncio.run(asked())
    assert (codes(answers), exceptions) == ([500, 500], 2)
    assert b"secret" not in answers


def test_who_went_away_or_was_told_that_it_takes_too_long_hears_no_more() -> None:
    async def asked(*, is_late: bool) -> tuple[list[int], int]:
        app = Soon()
        async with serving(app) as server:
            reader, writer = await opened(server)
            writer.write(request("/later", "POST", b"x" * 5000))
            await until(lambda: bool(app.begun))
            assert server.buffered == 5000
            answer = b""
            if is_late:
                server.connections.expire(asyncio.get_running_loop().time() + ANSWER_S)
                answer = await reader.read()
                writer.close()
            else:
                with_a_reset(writer)
            await until(lambda: not len(server.connections))
            app.begun.pop()(lambda: Response(200, b"{}"))
            return codes(answer), server.buffered

    assert asyncio.run(asked(is_late=True)) == ([503], 0)
    assert asyncio.run(asked(is_late=False)) == ([], 0)


def test_the_next_one_is_begun_when_the_answer_before_it_is_taken() -> None:
    async def asked() -> list[str]:
        app = Soon()
        async with serving(app) as server:
            reader, writer = await opened(server)
            writer.write(request("/later") + request("/now", Connection="close"))
            await until(lambda: bool(app.begun))
            (connection,) = server.connections
            app.begun.pop()(lambda: Response(200, bytes(32 << 20)))
            assert not connection._can_write.is_set()
            await asyncio.sleep(0)
            seen = list(app.seen)
            octets = await reader.read()
            assert len(octets) > 32 << 20
            assert app.seen == ["/later", "/now"]
            writer.close()
            return seen

    assert asyncio.run(asked()) == ["/later"]


def with_a_reset(writer: asyncio.StreamWriter) -> None:
    """Close so that the other side is told at once, and not when it writes."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def test_a_client_that_left_before_its_stream_began_gets_none() -> None:
    async def asked() -> None:
        app = Late()
        async with serving(app) as server:
            reader, writer = await opened(server)
            writer.write(request("/wait"))
            await until(lambda: app.seen == ["/wait"])
            if writer.can_write_eof():
                writer.write_eof()  # half of it: its end is told, and it would still read
            else:  # TLS has no halves
                writer.close()
            (connection,) = server.connections
            await until(lambda: connection._is_closing)
            app.gate.set()
            assert await reader.read() == b""
            writer.close()

    class Late(Echo):
        async def answer(self, request: Request) -> Response | Stream:
            await super().answer(request)
            return Stream("text/plain", self.endless())

        async def endless(self) -> AsyncIterator[bytes]:
            yield b""
            await asyncio.Event().wait()

    asyncio.run(asked())


def test_the_octets_that_bodies_hold_are_counted_and_given_back() -> None:
    async def asked() -> tuple[int, int, list[int]]:
        app = Echo()
        async with serving(app) as server:
            reader, writer = await opened(server)
            writer.write(request("/wait", "POST", b"x" * 5000))
            await until(lambda: app.seen == ["/wait"])
            held = server.buffered
            server.buffered += BUFFERED_MAX  # as if others held that
            full = codes(await raw(server, request("/", "POST", b"yyy")))
            server.buffered -= BUFFERED_MAX
            writer.close()
            app.gate.set()
            await until(lambda: server.buffered == 0)
            with contextlib.suppress(ssl.SSLError):
                await reader.read()
            return held, server.buffered, full

    assert asyncio.run(asked()) == (5000, 0, [503])


def test_at_the_end_an_answer_is_finished_and_a_stream_is_not_waited_for() -> None:
    async def asked() -> tuple[bytes, bool]:
        app = Echo()
        async with serving(app) as server:
            reader, writer = await opened(server)
            streaming, stream_writer = await opened(server)
            writer.write(request("/wait"))
            stream_writer.write(request("/stream"))
            await streaming.readuntil(b"one\n")
            await until(lambda: len(app.seen) == 2)
            stopping = asyncio.create_task(server.stop())
            await until(lambda: app.is_stream_closed)
            app.gate.set()
            await stopping
            answer = await reader.read()
            writer.close()
            stream_writer.close()
            return answer, app.is_stream_closed

    answer, is_closed = asyncio.run(asked())
    assert codes(answer) == [200]
    assert is_closed


def test_connections_have_a_limit_per_network() -> None:
    async def asked() -> tuple[bytes, int]:
        async with serving(limits=ApiLimits(connections_per_network=1)) as server:
            reader, writer = await opened(server)
            writer.write(request("/"))
            await one(reader)
            with contextlib.suppress(ConnectionError):
                refused = await raw(server, request("/"))
                assert refused == b""
            writer.close()
            return b"", server.statistics().connections_refused

    assert asyncio.run(asked()) == (b"", 1)


def test_a_large_answer_is_taken_at_the_clients_pace() -> None:
    answer = got(request("/large", Connection="close"))
    assert len(answer.partition(b"\r\n\r\n")[2]) == 4 << 20


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


# --- TLS ------------------------------------------------------------------------------------


@pytest.mark.parametrize("octets", [GET + b"\r\n", POST, b"\x00\x01", b"\x80\x2e\x01\x00\x02"])
def test_who_speaks_in_the_clear_to_a_listener_over_tls_is_told(octets: bytes) -> None:
    async def asked() -> bytes:
        async with serving() as server:
            server._tls = server_context
            OVER[0] = None
            return await raw(server, octets)

    answer = asyncio.run(asked())
    assert codes(answer) == [400]
    assert b"HTTPS only" in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["reason"] == "BadRequest"


@pytest.mark.parametrize("octets", [b"", b"\x16", b"\x16\x03\x01\x02\x00" + bytes(40)])
def test_who_does_not_shake_hands_is_counted_and_cut_off(octets: bytes) -> None:
    async def asked() -> None:
        async with serving() as server:
            server._tls = server_context
            OVER[0] = None
            reader, writer = await opened(server)
            writer.write(octets)
            await until(lambda: server.connections.accepted == 1)
            now_s = asyncio.get_running_loop().time()
            server.connections.expire(now_s + server.limits.handshake_s + 1)
            with contextlib.suppress(ConnectionError):
                assert b"HTTP" not in await reader.read()
            await until(lambda: not len(server.connections))

    asyncio.run(asked())


def test_a_connection_over_tls_has_as_long_as_others_once_it_shook_hands() -> None:
    async def asked() -> list[int]:
        async with serving() as server:
            server._tls, OVER[0] = server_context, client_context()
            reader, writer = await opened(server)
            late_s = asyncio.get_running_loop().time() + server.limits.handshake_s + 1
            await until(lambda: [one.deadline_s > late_s for one in server.connections] == [True])
            server.connections.expire(late_s)
            writer.write(GET + b"\r\n")
            return [(await one(reader))[0]]

    assert asyncio.run(asked()) == [200]
