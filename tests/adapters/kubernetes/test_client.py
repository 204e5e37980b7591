"""Requests to an API server, over connections in memory and on the clock of the test."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpcore
import msgspec
import pytest

from kudurru.adapters.kubernetes import client
from kudurru.adapters.kubernetes.access import in_cluster, kubeconfig
from kudurru.adapters.kubernetes.answers import (
    Absent,
    Collided,
    Expired,
    Forbidden,
    NotLeading,
    Refused,
    Throttled,
    Unanswered,
    retry_after,
)
from kudurru.adapters.kubernetes.client import BURST, Client, Outcome
from kudurru.adapters.kubernetes.fakes.network import (
    Link,
    MemoryServer,
    Request,
    Response,
    client_of,
)
from kudurru.adapters.memory.clock import ManualClock
from kudurru.adapters.memory.loop import run_manually
from kudurru.domain.errors import Busy, Conflict, Invalid, NotFound, Unreachable
from tests.certificates import write_pair

Answers = Callable[[Request], Response]
FINE = Response(200, b'{"kind":"Fine"}')


def run(
    handler: Answers, case: Callable[[Client, MemoryServer, ManualClock], Awaitable[None]]
) -> None:
    clock = ManualClock()

    async def main() -> None:
        async def handle(request: Request) -> Response:
            return handler(request)

        server = MemoryServer(handle)
        client = client_of(server, clock)
        try:
            await case(client, server, clock)
        finally:
            await client.transport.close()
            await server.close()

    run_manually(main(), clock)


def status(code: int, reason: str = "", message: str = "", **details: object) -> Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return Response(code, msgspec.json.encode(body | {"details": details}))


def seconds(clock: ManualClock) -> float:
    return clock.monotonic_us() / 1e6


def test_an_answer_is_decoded_and_its_connection_used_again() -> None:
    async def case(client: Client, server: MemoryServer, clock: ManualClock) -> None:
        for _ in range(3):
            assert await client.get("/api", dict) == {"kind": "Fine"}
        assert server.requests == [("GET", "/api")] * 3
        assert client.transport.last_contact_us == clock.now_us()

    run(lambda request: FINE, case)


@pytest.mark.parametrize(
    ("code", "expected", "domain"),
    [
        (404, Absent, NotFound),
        (409, Collided, Conflict),
        (410, Expired, Refused),
        (401, Forbidden, Refused),
        (403, Forbidden, Refused),
        (429, Throttled, Busy),
        (500, Refused, Refused),
    ],
)
def test_answers_that_are_no_success_are_distinct_errors(
    code: int, expected: type[Refused], domain: type[Exception]
) -> None:
    async def case(client: Client, server: MemoryServer, clock: ManualClock) -> None:
        with pytest.raises(Refused, match=f"GET /x: {code} the text of the server") as refused:
            await client.get("/x", dict)
        assert type(refused.value) is expected
        assert isinstance(refused.value, domain)
        assert refused.value.status.reason == "Why"

    run(lambda request: status(code, "Why", "the text of the server", retryAfterSeconds=99), case)


def test_another_uid_is_a_conflict_and_another_422_is_not() -> None:
    async def case(client: Client, server: MemoryServer, clock: ManualClock) -> None:
        with pytest.raises(Collided):
            await client.request("PATCH", "/uid")
        with pytest.raises(Refused) as refused:
            await client.request("PATCH", "/spec")
        assert type(refused.value) is Refused

    def answer(request: Request) -> Response:
        field = f"{'metadata' if request.target == '/uid' else 'x'}.uid"
        return status(422, "Invalid", "no", causes=[{"field": field}])

    run(answer, case)


def test_an_error_repeats_little_of_what_the_server_says() -> None:
    async def case(client: Client, server: MemoryServer, clock: ManualClock) -> None:
        with pytest.raises(Refused) as refused:
            await client.get("/x", dict)
        assert len(refused.value.text.encode()) <= 2048
        assert refused.value.text.endswith("é…")
        assert await client.get("/fine", dict) == {"kind": "Fine"}

    run(lambda r: FINE if r.target == "/fine" else Response(500, "é".encode() * 9000), case)


@pytest.mark.parametrize("place", ["header", "body", "nowhere"])
def test_a_429_is_sent_again_after_the_wait_it_asks_for(place: str) -> None:
    left = [2]

    def answer(request: Request) -> Response:
        if not left[0]:
            return FINE
        left[0] -= 1
        match place:
            case "header":
                return Response(429, b"slow down", {"retry-after": "4"})
            case "body":
                return status(429, "TooManyRequests", "slow down", retryAfterSeconds=4)
        return Response(429)

    async def case(client: Client, server: MemoryServer, clock: ManualClock) -> None:
        assert await client.request("POST", "/x", {}) == {"kind": "Fine"}
        assert seconds(clock) == pytest.approx(2 if place == "nowhere" else 8)
        assert len(server.requests) == 3

    run(answer, case)


def test_who_has_waited_ten_seconds_is_told_how_long_the_server_wants() -> None:
    async def case(client: Client, server: MemoryServer, clock: ManualClock) -> None:
        with pytest.raises(Throttled) as throttled:
            await client.get("/x", dict)
        assert seconds(clock) == pytest.approx(8)
        assert retry_after(throttled.value) == 4
        assert retry_after(ValueError()) == 0

    run(lambda request: Response(429, b"", {"retry-after": "4"}), case)


def test_waits_end_with_what_ends_them_and_no_request_is_cut_off_by_that() -> None:
    async def case(client: Client, server: MemoryServer, clock: ManualClock) -> None:
        end = asyncio.Event()
        asyncio.get_running_loop().call_later(3, end.set)
        with pytest.raises(Throttled):
            await client.with_waits_until(end).request("PUT", "/x")
        assert seconds(clock) == pytest.approx(3)
        assert await client.with_waits_until(end).get("/fine", dict) == {"kind": "Fine"}

    run(lambda r: FINE if r.target == "/fine" else Response(429, b"", {"retry-after": "5"}), case)


def test_the_guard_is_asked_before_every_write_and_every_repeat_of_one() -> None:
    asked: list[None] = []

    def guard() -> None:
        asked.append(None)
        if len(asked) > 1:
            raise NotLeading("another may lead")

    async def case(client: Client, server: MemoryServer, clock: ManualClock) -> None:
        guarded = client.with_guard(guard)
        with pytest.raises(Throttled):
            await guarded.get("/x", dict)
        sent = len(server.requests)
        assert not asked
        with pytest.raises(NotLeading):
            await guarded.request("DELETE", "/x")
        assert len(server.requests) == sent + 1

    run(lambda request: Response(429, b"", {"retry-after": "4"}), case)


def test_the_observer_hears_the_outcome_of_a_request_once() -> None:
    heard: list[Outcome] = []
    answers = iter([Response(429), FINE, Response(404), FINE])

    async def case(client: Client, server: MemoryServer, clock: ManualClock) -> None:
        observed = client.with_observer(heard.append)
        await observed.get("/a", dict)
        with pytest.raises(Absent) as absent:
            await observed.get("/b", dict)
        server.down()
        with pytest.raises(Unanswered) as unanswered:
            await observed.get("/c", dict)
        assert heard == [
            Outcome("GET", "/a", 200, None),
            Outcome("GET", "/b", 404, absent.value),
            Outcome("GET", "/c", 0, unanswered.value),
        ]

    run(lambda request: next(answers), case)


async def trickle() -> AsyncIterator[bytes]:
    while True:
        yield b" "
        await asyncio.sleep(5)


def test_a_body_that_trickles_is_given_up_as_a_whole() -> None:
    async def case(client: Client, server: MemoryServer, clock: ManualClock) -> None:
        with pytest.raises(Unanswered, match="within 30 s"):
            await client.get("/x", dict)
        assert seconds(clock) == pytest.approx(30)
        with pytest.raises(Unanswered, match="within 3 s"):
            await client.with_limit(3).get("/x", dict)
        assert seconds(clock) == pytest.approx(33)

    run(lambda request: Response(200, stream=trickle()), case)


def test_a_server_that_is_silent_is_given_up_after_ten_seconds() -> None:
    async def silent(request: Request) -> Response:
        await asyncio.sleep(3600)
        return FINE

    clock = ManualClock()

    async def main() -> None:
        server = MemoryServer(silent)
        client = client_of(server, clock)
        with pytest.raises(Unanswered) as unanswered:
            await client.get("/x", dict)
        assert isinstance(unanswered.value, Unreachable)
        assert seconds(clock) == pytest.approx(10)
        assert client.transport.last_contact_us == 0
        await client.transport.close()
        await server.close()

    run_manually(main(), clock)


@pytest.mark.parametrize("size", [0, 5])
def test_half_an_answer_is_no_answer(size: int) -> None:
    async def case(client: Client, server: MemoryServer, clock: ManualClock) -> None:
        with pytest.raises(Unanswered):
            await client.get("/half", dict)
        assert await client.get("/x", dict) == {"kind": "Fine"}

    cut = Response(200, FINE.body, cut_after=size)
    run(lambda request: cut if request.target == "/half" else FINE, case)


def test_what_is_no_json_is_no_answer() -> None:
    async def case(client: Client, server: MemoryServer, clock: ManualClock) -> None:
        with pytest.raises(Unanswered, match="cannot be read"):
            await client.get("/x", dict)

    run(lambda request: Response(200, b"<html>a proxy</html>"), case)


def test_a_server_that_is_down_refuses_and_is_there_again() -> None:
    async def case(client: Client, server: MemoryServer, clock: ManualClock) -> None:
        await client.get("/x", dict)
        server.down()
        for _ in range(2):
            with pytest.raises(Unanswered):
                await client.get("/x", dict)
        server.up()
        await client.get("/x", dict)

    run(lambda request: FINE, case)


def test_through_a_cut_link_nothing_comes_and_no_later_answer_is_believed() -> None:
    clock = ManualClock()

    async def main() -> None:
        async def handle(request: Request) -> Response:
            await asyncio.sleep(1)
            return FINE

        server = MemoryServer(handle)
        link = Link(server)
        client = client_of(link, clock)
        asyncio.get_running_loop().call_later(0.5, link.cut)
        with pytest.raises(Unanswered):
            await client.with_limit(3).get("/x", dict)
        assert seconds(clock) == pytest.approx(3)
        with pytest.raises(Unanswered):
            await client.with_limit(3).get("/x", dict)
        link.mend()
        assert await client.get("/x", dict) == {"kind": "Fine"}
        await client.transport.close()
        await server.close()

    run_manually(main(), clock)


def test_more_than_the_burst_is_sent_at_the_rate() -> None:
    async def case(client: Client, server: MemoryServer, clock: ManualClock) -> None:
        await asyncio.gather(*(client.get("/x", dict) for _ in range(BURST)))
        assert seconds(clock) == pytest.approx(0)
        await asyncio.gather(*(client.get("/x", dict) for _ in range(50)))
        assert seconds(clock) == pytest.approx(1)
        await client.without_pace().get("/x", dict)
        assert seconds(clock) == pytest.approx(1)

    run(lambda request: FINE, case)


def test_a_watch_gives_lines_as_they_come_until_the_server_ends_it() -> None:
    async def events() -> AsyncIterator[bytes]:
        yield b'{"a":'
        await asyncio.sleep(60)
        yield b"1}\n\n{}\n{"
        await asyncio.sleep(60)
        yield b"}\n"

    async def case(client: Client, server: MemoryServer, clock: ManualClock) -> None:
        async with client.lines("/watch") as lines:
            found = [(line, round(seconds(clock))) async for line in lines]
        assert found == [(b'{"a":1}', 60), (b"{}", 60), (b"{}", 120)]
        assert client.transport.last_contact_us == clock.now_us()

    run(lambda request: Response(200, stream=events()), case)


def test_a_watch_that_brings_nothing_for_long_is_given_up() -> None:
    async def nothing() -> AsyncIterator[bytes]:
        yield b"{}\n"
        await asyncio.sleep(9999)
        yield b"{}\n"

    async def case(client: Client, server: MemoryServer, clock: ManualClock) -> None:
        async with client.lines("/watch", quiet_s=90) as lines:
            assert await anext(lines) == b"{}"
            with pytest.raises(Unanswered):
                await anext(lines)
        assert seconds(clock) == pytest.approx(90)

    run(lambda request: Response(200, stream=nothing()), case)


def test_a_watch_that_is_refused_is_refused_on_entry() -> None:
    async def case(client: Client, server: MemoryServer, clock: ManualClock) -> None:
        with pytest.raises(Expired):
            async with client.lines("/watch"):
                raise AssertionError

    run(lambda request: Response(410), case)


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    certificate, _ = write_pair(tmp_path)
    certificate.rename(tmp_path / "ca.crt")
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "namespace").write_text("dns")
    return tmp_path


ENVIRONMENT = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}


def test_a_pod_reads_its_token_for_every_request(mount: Path) -> None:
    access = in_cluster(mount=mount, environment=ENVIRONMENT)
    assert access.server == "https://[fd00::1]:443"
    assert access.namespace == "dns"
    assert access.tls is not None
    assert access.tls.cert_store_stats()["x509"] == 1  # none of the system's
    assert asyncio.run(_header(access.credentials)) == "Bearer first"
    (mount / "token").write_text("second")
    assert asyncio.run(_header(access.credentials)) == "Bearer second"


async def _header(credentials: Callable[[], Awaitable[str]]) -> str:
    return await credentials()


@pytest.mark.parametrize("gone", ["ca.crt", "token", "environment"])
def test_what_a_pod_lacks_is_said(mount: Path, gone: str) -> None:
    if gone != "environment":
        (mount / gone).unlink()
    environment = {} if gone == "environment" else ENVIRONMENT
    with pytest.raises(Invalid, match="no pod" if gone == "environment" else "service account"):
        in_cluster(mount=mount, environment=environment)


@pytest.mark.parametrize("token", ["", "two words", "a\nb: c"])
def test_a_token_that_would_be_another_header_is_refused(mount: Path, token: str) -> None:
    (mount / "token").write_text(token)
    with pytest.raises(Invalid, match="holds no token"):
        in_cluster(mount=mount, environment=ENVIRONMENT)


def test_a_kubeconfig_is_read_as_kubectl_does(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(
        """
apiVersion: v1
kind: Config
current-context: home
contexts:
- {name: home, context: {cluster: home, user: me, namespace: dns}}
- {name: other, context: {cluster: home, user: me}}
clusters:
- {name: home, cluster: {server: "http://127.0.0.1:8080"}}
users:
- {name: me, user: {token: abc}}
"""
    )
    access = kubeconfig(path)
    assert (access.server, access.namespace) == ("http://127.0.0.1:8080", "dns")
    assert asyncio.run(_header(access.credentials)) == "Bearer abc"
    assert kubeconfig(path, context="other").namespace == "default"
    with pytest.raises(Invalid, match="kubeconfig"):
        kubeconfig(path, context="none")
    with pytest.raises(Invalid, match="kubeconfig"):
        kubeconfig(tmp_path / "absent")


def test_another_address_of_the_api_server_may_be_given_and_proofs_stay_the_same(
    mount: Path,
) -> None:
    access = in_cluster(server="https://127.0.0.1:6443/", mount=mount, environment={})
    assert access.server.rstrip("/") == "https://127.0.0.1:6443"
    assert access.tls is not None
    assert access.tls.cert_store_stats()["x509"] == 1
    assert asyncio.run(_header(access.credentials)) == "Bearer first"


def test_without_credentials_no_header_is_sent() -> None:
    seen: list[str | None] = []

    def handler(request: Request) -> Response:
        seen.append(request.headers.get("authorization"))
        return FINE

    async def case(client: Client, server: MemoryServer, clock: ManualClock) -> None:
        await client.get("/a", dict)
        other = client_of(server, clock, token="abc")
        await other.get("/a", dict)
        await other.transport.close()
        assert seen == [None, "Bearer abc"]

    run(handler, case)


class Optioned(Link):
    """Keeps what is asked of its sockets."""

    options: tuple[object, ...] = ()

    async def connect_tcp(self, *args: Any, **named: Any) -> httpcore.AsyncNetworkStream:
        self.options = tuple(named.get("socket_options") or ())
        return await super().connect_tcp(*args, **named)


def test_a_connection_is_waited_for_five_seconds() -> None:
    async def case(client: Client, server: MemoryServer, clock: ManualClock) -> None:
        link = Link(server)
        other = client_of(link, clock)
        link.cut()
        begun = seconds(clock)
        with pytest.raises(Unanswered):
            await other.get("/a", dict)
        assert seconds(clock) - begun == pytest.approx(5, abs=0.01)
        await other.transport.close()

    run(lambda request: FINE, case)


def test_a_machine_that_dies_is_noticed_since_connections_are_kept_alive() -> None:
    async def case(client: Client, server: MemoryServer, clock: ManualClock) -> None:
        link = Optioned(server)
        other = client_of(link, clock)
        await other.get("/a", dict)
        await other.transport.close()
        assert (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1) in link.options
        assert (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10) in link.options

    run(lambda request: FINE, case)


@pytest.mark.parametrize(("idle_s", "connections"), [(client.IDLE_S, 1), (0.0, 2)])
def test_a_connection_that_was_idle_for_too_long_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch, idle_s: float, connections: int
) -> None:
    monkeypatch.setattr(client, "IDLE_S", idle_s)
    accepted = []

    async def case(to: Client, server: MemoryServer, _clock: ManualClock) -> None:
        accept = server.accept
        monkeypatch.setattr(server, "accept", lambda: accepted.append(1) or accept())
        for _ in range(2):
            await to.get("/fine", dict)

    run(lambda _: FINE, case)
    assert len(accepted) == connections
