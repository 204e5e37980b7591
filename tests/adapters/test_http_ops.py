import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from kudurru.adapters.http_ops import (
    Asked,
    HttpLimits,
    HttpServer,
    Response,
    Route,
    health_routes,
    lameduck_actions,
    lameduck_routes,
)
from kudurru.adapters.sockets import Listener, bind_all, split_address


class Node:
    """What the routes under test are about."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def routes(self) -> dict[str, Route]:
        return {
            **health_routes(lambda: self.reasons),
            "/large": lambda: Response(200, bytes(4 << 20), "text/plain"),
            "/boom": self.boom,
        }

    def boom(self) -> Response:
        raise RuntimeError("secret detail")


@contextlib.asynccontextmanager
async def serving(
    node: Node | None = None, address: str = "127.0.0.1:0", limits: HttpLimits | None = None
) -> AsyncIterator[HttpServer]:
    (bound,) = bind_all([Listener("tcp", address)])
    server = HttpServer(
        (node or Node()).routes(), bound.sockets, names=["Ns1.Example"], limits=limits
    )
    async with asyncio.timeout(60):
        await server.start()
        try:
            yield server
        finally:
            await server.stop()


async def raw(server: HttpServer, octets: bytes) -> bytes:
    """Everything the server sends until it closes."""
    _, port = split_address(server.addresses[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(octets)
    try:
        return await reader.read()
    finally:
        writer.close()


async def ask(
    server: HttpServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], Any]:
    lines = {"Host": "localhost", "Connection": "close", **headers}
    head = "".join(f"{key}: {value}\r\n" for key, value in lines.items())
    got = await raw(server, f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode())
    return parsed(got)


def parsed(got: bytes) -> tuple[int, dict[str, str], Any]:
    top, _, body = got.partition(b"\r\n\r\n")
    status, *lines = top.decode().split("\r\n")
    fields = dict(line.lower().split(": ", 1) for line in lines)
    is_json = fields.get("content-type") == "application/json" and body
    return int(status.split()[1]), fields, json.loads(body) if is_json else body


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


@pytest.mark.parametrize("path", ["/healthz/live", "/livez", "/health", "/livez?verbose=1"])
def test_it_is_live_while_it_is_not_ready(path: str) -> None:
    async def main() -> None:
        node = Node()
        node.reasons = ["not synced"]
        async with serving(node) as server:
            assert (await ask(server, path))[::2] == (200, {"status": "ok"})

    asyncio.run(main())


@pytest.mark.parametrize("path", ["/healthz/ready", "/readyz", "/ready"])
def test_it_is_ready_when_there_is_no_reason_against_it(path: str) -> None:
    async def main() -> None:
        node = Node()
        node.reasons = ["the zones are not loaded", "lameduck"]
        async with serving(node) as server:
            code, fields, body = await ask(server, path)
            assert (code, fields["content-type"]) == (503, "application/json")
            assert body == {
                "apiVersion": "v1",
                "kind": "Status",
                "status": "Failure",
                "reason": "ServiceUnavailable",
                "code": 503,
                "message": "not ready",
                "details": {
                    "causes": [
                        {"field": "", "message": "the zones are not loaded"},
                        {"field": "", "message": "lameduck"},
                    ]
                },
            }
            node.reasons = []
            assert (await ask(server, path))[0] == 200

    asyncio.run(main())


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8081", "127.0.0.1", "127.0.0.1:9", "[::1]:8081", "ns1.example:80"],
)
def test_our_names_and_addresses_are_taken_as_host(host: str) -> None:
    async def main() -> None:
        async with serving() as server:
            assert (await ask(server, "/livez", Host=host))[0] == 200

    asyncio.run(main())


@pytest.mark.parametrize(
    "host", ["attacker.example", "127.0.0.1.attacker.example", "192.0.2.1", "", "[::1", "a@b:c"]
)
def test_another_host_is_refused_as_a_rebound_name_would_be(host: str) -> None:
    async def main() -> None:
        async with serving() as server:
            code, _, body = await ask(server, "/livez", Host=host)
            assert (code, body["reason"]) == (421, "MisdirectedRequest")

    asyncio.run(main())


def test_on_all_addresses_the_one_that_was_asked_is_taken_as_host() -> None:
    async def main() -> None:
        async with serving(address="0.0.0.0:0") as server:
            assert (await ask(server, "/livez", Host="127.0.0.1"))[0] == 200
            assert (await ask(server, "/livez", Host="127.0.0.2"))[0] == 421

    asyncio.run(main())


@pytest.mark.parametrize(
    ("origin", "code"),
    [("http://localhost:8081", 200), ("https://attacker.example", 403), ("null", 403)],
)
def test_an_origin_that_is_not_ours_is_refused(origin: str, code: int) -> None:
    async def main() -> None:
        async with serving() as server:
            assert (await ask(server, "/livez", Origin=origin))[0] == code

    asyncio.run(main())


def test_http_1_0_without_host_is_answered_and_closed() -> None:
    async def main() -> None:
        async with serving() as server:
            assert parsed(await raw(server, b"GET /livez HTTP/1.0\r\n\r\n"))[0] == 200

    asyncio.run(main())


def test_head_gets_the_headers_of_get_alone() -> None:
    async def main() -> None:
        async with serving() as server:
            code, fields, body = await ask(server, "/livez", "HEAD")
            assert (code, fields["content-length"], body) == (200, "15", b"")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("method", "path", "headers", "code", "reason"),
    [
        ("GET", "/nothing", {}, 404, "NotFound"),
        ("GET", "/../livez", {}, 404, "NotFound"),
        ("POST", "/livez", {}, 405, "MethodNotAllowed"),
        ("DELETE", "/livez", {}, 405, "MethodNotAllowed"),
        ("GET", "/livez", {"Content-Length": "5"}, 413, "RequestEntityTooLarge"),
        ("GET", "/livez", {"Transfer-Encoding": "chunked"}, 413, "RequestEntityTooLarge"),
        ("GET", "/livez", {"Content-Length": "-1"}, 400, "BadRequest"),
        ("GET", "/livez", {"X": "x" * 40_000}, 431, "RequestHeaderFieldsTooLarge"),
        ("GET", "/livez", {"Bad Name": "x"}, 400, "BadRequest"),
        ("GET", "/livez now", {}, 400, "BadRequest"),
    ],
)
def test_a_refusal_is_a_status_with_its_reason(
    method: str, path: str, headers: dict[str, str], code: int, reason: str
) -> None:
    async def main() -> None:
        async with serving() as server:
            got, fields, body = await ask(server, path, method, **headers)
            assert (got, body["kind"], body["code"]) == (code, "Status", code)
            assert body["reason"] == reason
            assert (fields.get("allow") == "get, head") == (code == 405)

    asyncio.run(main())


def test_a_fault_of_a_route_is_500_without_its_details_and_is_counted() -> None:
    async def main() -> None:
        faults: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
        async with serving() as server:
            code, _, body = await ask(server, "/boom")
            assert (code, "secret" in str(body)) == (500, False)
            assert server.statistics().unhandled_exceptions == 1
            assert [str(fault["exception"]) for fault in faults] == ["secret detail"]

    asyncio.run(main())


def test_requests_sent_ahead_are_answered_in_order() -> None:
    async def main() -> None:
        async with serving() as server:
            one = b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n"
            last = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            got = await raw(server, one % b"livez" + one % b"none" + one % b"ready" + last)
            statuses = [part[:3] for part in got.split(b"HTTP/1.1 ")[1:]]
            assert statuses == [b"200", b"404", b"200", b"200"]

    asyncio.run(main())


def test_a_client_that_takes_no_answers_gets_no_more_of_them_made() -> None:
    async def main() -> None:
        async with serving() as server:
            _, writer = await asyncio.open_connection(*split_address(server.addresses[0]))
            writer.transport.pause_reading()
            writer.write(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
            await until(lambda: any(c._is_waiting_for_client for c in server.connections))
            (connection,) = server.connections
            for _ in range(50):
                await asyncio.sleep(0)
            assert connection._transport.get_write_buffer_size() <= 8 << 20
            writer.close()

    asyncio.run(main())


def test_a_connection_is_cut_thirty_seconds_after_its_last_request() -> None:
    async def main() -> None:
        async with serving() as server:
            reader, writer = await asyncio.open_connection(*split_address(server.addresses[0]))
            writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\nGET /li")
            await reader.readuntil(b'"ok"}')
            (connection,) = server.connections
            server.connections.expire(connection.deadline_s - 0.1)
            assert len(server.connections) == 1
            server.connections.expire(connection.deadline_s)
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            await until(lambda: len(server.connections) == 0)
            assert server.statistics().connections_timed_out == 1
            writer.close()

    asyncio.run(main())


def test_connections_over_the_limit_are_refused() -> None:
    async def main() -> None:
        async with serving(limits=HttpLimits(connections=1)) as server:
            _, writer = await asyncio.open_connection(*split_address(server.addresses[0]))
            await until(lambda: len(server.connections) == 1)
            with contextlib.suppress(ConnectionError):
                assert await raw(server, b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n") == b""
            assert server.statistics().connections_refused == 1
            writer.close()

    asyncio.run(main())


# --- lameduck -------------------------------------------------------------------------------


class Duck:
    """A server that may be asked for lameduck, and its HTTP listener."""

    def __init__(self) -> None:
        self.is_lameduck = False
        self.actions = lameduck_actions(lambda: self.is_lameduck, self.ask)

    def ask(self, is_wanted: bool) -> None:
        self.is_lameduck = is_wanted

    def server(self) -> HttpServer:
        (bound,) = bind_all([Listener("tcp", "127.0.0.1:0")])
        routes = lameduck_routes(lambda: self.is_lameduck)
        return HttpServer(routes, bound.sockets, actions=self.actions)


OURS = {b"x-kudurru": b"1"}


def test_lameduck_is_begun_shown_and_ended_over_http() -> None:
    async def main() -> None:
        duck = Duck()
        server = duck.server()
        await server.start()
        try:
            for method, headers, code, is_lameduck in (
                ("GET", {}, 200, False),
                ("POST", {"X-Kudurru": "1", "Content-Length": "0"}, 200, True),
                ("GET", {}, 200, True),
                ("POST", {"X-Kudurru": "1"}, 200, True),
                ("DELETE", {}, 403, True),
                ("DELETE", {"X-Kudurru": "1"}, 200, False),
                ("POST", {}, 403, False),
                ("POST", {"X-Kudurru": "yes"}, 403, False),
                ("POST", {"X-Kudurru": "1", "Origin": "http://evil.example"}, 403, False),
                ("POST", {"X-Kudurru": "1", "Host": "evil.example"}, 421, False),
                ("PUT", {"X-Kudurru": "1"}, 405, False),
            ):
                got, fields, document = await ask(server, "/lameduck", method, **headers)
                assert (got, duck.is_lameduck) == (code, is_lameduck), (method, headers)
                if got == 200:
                    assert document == {"lameduck": is_lameduck}
                if got == 405:
                    assert fields["allow"] == "get, head, post, delete"
        finally:
            await server.stop()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("peer", "is_here"),
    [
        ("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("::ffff:127.0.0.1", True),
        ("192.0.2.1", False), ("10.0.0.1", False), ("::ffff:10.0.0.1", False),
        ("fe80::1%lo", False), ("::", False), ("2001:db8::1", False),
    ],
)  # fmt: skip
def test_only_a_process_on_this_machine_may_ask_for_it(peer: str, is_here: bool) -> None:
    for method in ("POST", "DELETE"):
        duck = Duck()
        duck.is_lameduck = method == "DELETE"
        response = duck.actions[method, "/lameduck"](Asked(peer, OURS))
        assert (response.code == 200) == is_here
        assert duck.is_lameduck == (is_here == (method == "POST"))
