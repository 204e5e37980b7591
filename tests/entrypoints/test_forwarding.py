"""What a node that follows passes on to its leader, over real sockets."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kudurru.adapters.api_client import ApiClient
from kudurru.adapters.http_api import Request
from kudurru.domain.epochs import epoch_in, first_origin
from kudurru.domain.errors import Follows
from kudurru.entrypoints.rest import feed, forwarding
from kudurru.entrypoints.rest.app import all_routes
from kudurru.entrypoints.rest.forwarding import HOPS, Forwarding, Limits
from tests.api import LOCAL
from tests.certificates import write_pair
from tests.followers import (
    PATIENCE_S,
    Follower,
    Leading,
    Listening,
    follows,
    leading,
    opened,
    settings_of,
    until,
)
from tests.nodes import TESTER
from tests.objects import WWW_KEY, ZONE_KEY, put, www, zone

ZONE = {
    "apiVersion": "kudurru.io/v1alpha1",
    "kind": "DNSZone",
    "metadata": {"name": "example.org"},
    "spec": {"zoneName": "example.org."},
}
ZONE_PATH = "/dnszones/example.org"
WWW_PATH = "/namespaces/default/dnsrecordsets/www"
PATIENT = Limits(answer_s=PATIENCE_S, copy_s=PATIENCE_S)
SOON = Limits(answer_s=0.05, copy_s=0.01)  # for what does not happen
LATE = Limits(answer_s=PATIENCE_S, copy_s=0.01)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "SIGN_AFTER_S", 0.01)
    monkeypatch.setattr(feed, "PULSE_S", 0.05)


class Told(NamedTuple):
    code: int
    headers: dict[str, str]
    json: Any


async def ask(
    node: Listening, token: str, method: str, path: str, body: Any = None, **headers: str
) -> Told:
    """As a client elsewhere."""

    def work() -> Told:
        client = ApiClient(node.url, token)
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        octets = None
        if body is not None:
            octets, sent["content-type"] = json.dumps(body).encode(), kind
        try:
            client.connect()
            given = client.pass_on(method, f"/api/v1{path}", octets, sent, 1 << 20)
        finally:
            client.close()
        told = {name.lower(): value for name, value in given.headers.items()}
        return Told(given.code, told, json.loads(given.body))

    return await asyncio.to_thread(work)


class Nodes(NamedTuple):
    leader: Leading
    follower: Follower

    async def ask(self, method: str, path: str, body: Any = None, **how: Any) -> Told:
        """Of the follower, by somebody whose token the leader made."""
        token = self.leader.api.token[how.pop("token", "ann")]
        return await ask(self.follower, token, method, path, body, **how)

    async def are_in_step(self) -> None:
        await until(lambda: self.follower.has(self.leader))


@asynccontextmanager
async def copying(leader: Leading, above: Listening, folder: Path) -> AsyncIterator[Follower]:
    folder.mkdir()
    identity = leader.node.log.log_id, epoch_in(first_origin(leader.node.log))
    settings = settings_of(leader, folder)
    with opened(folder / "log.db", create=True, copy_of=identity) as log:
        settings = type(settings)(url=above.url, token=settings.token)
        async with follows(log, settings, folder) as follower:
            yield follower


@asynccontextmanager
async def two(tmp: Path, limits: Limits = PATIENT) -> AsyncIterator[Nodes]:
    folder = tmp / "one"
    folder.mkdir()
    with opened(folder / "log.db", create=True) as log:
        async with leading(log, folder) as leader:
            await leader.api.make_token("admin", "ann")
            await leader.api.make_token("viewer", "bob")
            async with copying(leader, leader, tmp / "two") as follower:
                nodes = Nodes(leader, follower)
                await nodes.are_in_step()
                await follower.serve(limits)
                yield nodes


def with_two(tmp: Path, work: Callable[[Nodes], Awaitable[None]], limits: Limits = PATIENT) -> None:
    async def run() -> None:
        async with two(tmp, limits) as nodes:
            await work(nodes)

    asyncio.run(run())


def check_refused(told: Told, code: int, reason: str, *texts: str) -> None:
    assert (told.code, told.json["kind"], told.json["reason"]) == (code, "Status", reason), told
    for text in texts:
        assert text in told.json["message"]


def test_what_a_follower_is_asked_its_leader_does_for_the_person_who_asked(tmp_path: Path) -> None:
    async def work(nodes: Nodes) -> None:
        told = await nodes.ask("PUT", f"{ZONE_PATH}?reason=we%20need%20it", ZONE)
        assert told.code == 201
        assert told.headers["x-kudurru-verb"] == "created"
        version = told.headers["etag"].strip('"')
        assert told.json["metadata"]["resourceVersion"] == version
        # It is here already when the answer is.
        assert nodes.follower.node.objects.find(ZONE_KEY) is not None
        assert int(told.headers["x-kudurru-copied"]) >= int(told.headers["x-kudurru-position"])
        for node in nodes:
            event = next(node.node.log.read(key=ZONE_KEY))
            assert event.who is not None
            who = json.loads(event.who)
            assert (who["actor"], who["reason"]) == ("token:ann", "we need it")
            assert who["source"] == f"api {LOCAL}"
        samples = {s.name: s for s in forwarding_of(nodes).samples()}
        assert samples["follower_forwarded_total"].labels == ("201",)

    with_two(tmp_path, work)


def forwarding_of(nodes: Nodes) -> Forwarding:
    found = nodes.follower.api.context.forwarding
    assert found is not None
    return found


CHANGES: list[tuple[str, str, Any]] = [
    ("PUT", ZONE_PATH, ZONE),
    ("PATCH", ZONE_PATH, {"metadata": {"labels": {"a": "b"}}}),
    ("POST", "/batch", {"delete": [{"kind": "DNSZone", "name": "example.org"}]}),
    ("POST", "/undo", {}),  # the batch
    ("DELETE", ZONE_PATH, None),
    ("POST", "/marks", {"name": "now"}),
    ("POST", "/restore", {"at": "mark:now", "scope": {"all": True}, "apply": True}),
    ("PATCH", "/settings", {"cache.maxEntries": 1000}),
    ("PUT", "/blocking", {"blocks": False, "for_s": 60}),
    ("POST", "/checkpoint", None),
    ("POST", "/tokens", {"name": "new", "role": "viewer"}),
    ("DELETE", "/tokens/new", None),
]


def test_changes_of_every_kind_are_passed_on_and_waited_for(tmp_path: Path) -> None:
    async def work(nodes: Nodes) -> None:
        last = Told(0, {}, {})
        for method, path, body in CHANGES:
            wanted = {"what": str(last.json["position"])} if path == "/undo" else body
            told = last = await nodes.ask(method, path, wanted)
            assert 200 <= told.code < 300, (method, path, told)
            at, copied = (int(told.headers[f"x-kudurru-{x}"]) for x in ("position", "copied"))
            assert copied >= at > 0, (method, path)

    with_two(tmp_path, work)


HERE = {
    ("POST", "/query"), ("POST", "/lists:refresh"), ("DELETE", "/cache"), ("DELETE", "/querylog"),
    ("POST", "/blocklists/{namespace}/{name}:refresh"),
    ("POST", "/namespaces/{namespace}/blocklists/{name}:refresh"),
    ("POST", "/dnszones:read"),
}  # fmt: skip
"""Of the node that is asked: what it has beside the log, and what writes nothing."""


def test_every_route_that_changes_something_is_the_leaders_or_of_what_each_node_has() -> None:
    changing = {(r.method, r.path): r for r in all_routes() if r.method != "GET"}
    assert {key for key, route in changing.items() if not route.is_leaders} == HERE
    assert not any(route.is_leaders for route in all_routes() if route.method == "GET")


def test_a_precondition_is_the_leaders_to_judge(tmp_path: Path) -> None:
    """By what it has now, and not by what the copy has."""

    async def work(nodes: Nodes) -> None:
        made = await nodes.ask("PUT", ZONE_PATH, ZONE)
        await nodes.follower.following.end()
        await nodes.leader.write(put(zone(soa={"refresh": 7300})))
        told = await nodes.ask("PUT", ZONE_PATH, ZONE, if_match=made.headers["etag"])
        check_refused(told, 412, "Conflict")
        told = await nodes.ask("PUT", ZONE_PATH, ZONE, if_none_match="*")
        check_refused(told, 412, "Conflict")
        stored = nodes.leader.node.objects.find(ZONE_KEY)
        assert stored is not None
        told = await nodes.ask("DELETE", ZONE_PATH, if_match=f'"{stored.resource_version}"')
        assert told.code == 200

    with_two(tmp_path, work, LATE)


def test_faults_of_a_body_come_back_with_their_paths(tmp_path: Path) -> None:
    async def work(nodes: Nodes) -> None:
        told = await nodes.ask("PUT", ZONE_PATH, {**ZONE, "spec": {"zoneName": "a..b"}})
        check_refused(told, 422, "Invalid")
        assert told.json["details"]["causes"][0]["field"] == "spec.zoneName"

    with_two(tmp_path, work)


def test_what_may_not_be_done_is_refused_before_the_leader_is_asked(tmp_path: Path) -> None:
    async def work(nodes: Nodes) -> None:
        told = await nodes.ask("PUT", ZONE_PATH, ZONE, token="bob")
        check_refused(told, 403, "Forbidden", "role viewer")
        told = await ask(nodes.follower, "kudurru_unknown", "PUT", ZONE_PATH, ZONE)
        check_refused(told, 401, "Unauthorized")
        told = await nodes.ask("PUT", ZONE_PATH, ZONE, origin="https://attacker.example")
        check_refused(told, 403, "Forbidden", "Origin")
        answered = nodes.leader.api.app.requests
        assert not any(answered[code] for code in (401, 403))

    with_two(tmp_path, work)


def test_a_token_that_was_revoked_at_the_leader_does_nothing_through_a_late_copy(
    tmp_path: Path,
) -> None:
    async def work(nodes: Nodes) -> None:
        await nodes.follower.following.end()
        api = nodes.leader.api
        await api.writer.submit(api.tokens.revocation("ann", TESTER))
        told = await nodes.ask("PUT", ZONE_PATH, ZONE)
        check_refused(told, 401, "Unauthorized")
        assert nodes.leader.node.objects.find(ZONE_KEY) is None

    with_two(tmp_path, work)


def test_addresses_of_a_token_are_judged_by_the_leader_too(tmp_path: Path) -> None:
    async def work(nodes: Nodes) -> None:
        await nodes.leader.api.make_token("admin", "far", cidrs=["192.0.2.0/24"])
        await nodes.are_in_step()
        request = Request(
            method="DELETE", path=f"/api/v1{ZONE_PATH}", query="", headers={},
            peer="192.0.2.1", local=LOCAL,
        )  # fmt: skip
        token = nodes.leader.api.token["far"]
        answer = await forwarding_of(nodes).pass_on(nodes.leader.url, request, token)
        assert answer.code == 403

    with_two(tmp_path, work)


def test_nodes_that_follow_each_other_say_so(tmp_path: Path) -> None:
    async def work(nodes: Nodes) -> None:
        leader = nodes.leader
        leader.node.follows = Follows(nodes.follower.url)
        leader.api.context.forwarding = Forwarding(leader.node, leader.api.context.standing)
        told = await nodes.ask("PUT", ZONE_PATH, ZONE)
        check_refused(told, 503, "Unreachable", "follow each other")
        leader.node.follows = None
        hops = {HOPS.lower(): "a, b, c, d"}
        told = await nodes.ask("PUT", ZONE_PATH, ZONE, **hops)
        check_refused(told, 503, "Unreachable", "none of them leads")
        assert leader.node.objects.find(ZONE_KEY) is None

    with_two(tmp_path, work)


def test_a_follower_of_a_follower_passes_on_too(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            two(tmp_path) as nodes,
            copying(nodes.leader, nodes.follower, tmp_path / "three") as third,
        ):
            await until(lambda: third.has(nodes.leader))
            await third.serve(PATIENT)
            told = await ask(third, nodes.leader.api.token["ann"], "PUT", ZONE_PATH, ZONE)
            assert told.code == 201
            assert third.node.objects.find(ZONE_KEY) is not None
            event = next(nodes.leader.node.log.read(key=ZONE_KEY))
            assert b'"token:ann"' in (event.who or b"")

    asyncio.run(run())


def test_without_a_leader_nothing_is_changed_and_reading_goes_on(tmp_path: Path) -> None:
    async def work(nodes: Nodes) -> None:
        await nodes.leader.write(put(zone()), put(www()))
        await nodes.are_in_step()
        head = nodes.leader.node.log.head()
        await nodes.leader.vanish()
        told = await nodes.ask("DELETE", WWW_PATH)
        check_refused(told, 503, "Unreachable", "nothing was changed", nodes.leader.url)
        assert nodes.leader.node.log.head() == nodes.follower.log.head() == head
        assert nodes.follower.node.objects.find(WWW_KEY) is not None
        assert (await nodes.ask("GET", WWW_PATH)).code == 200

    with_two(tmp_path, work)


def test_where_the_copy_is_late_the_answer_says_how_far_it_is(tmp_path: Path) -> None:
    async def work(nodes: Nodes) -> None:
        await nodes.follower.following.end()
        told = await nodes.ask("PUT", ZONE_PATH, ZONE)
        assert told.code == 201
        assert int(told.headers["x-kudurru-copied"]) == nodes.follower.node.position
        assert nodes.follower.node.position < int(told.headers["x-kudurru-position"])

    with_two(tmp_path, work, LATE)


def test_a_node_that_was_promoted_does_it_itself(tmp_path: Path) -> None:
    async def work(nodes: Nodes) -> None:
        await nodes.follower.following.end()
        nodes.follower.node.follows = None
        told = await nodes.ask("PUT", ZONE_PATH, ZONE)
        assert told.code == 201
        assert nodes.leader.node.objects.find(ZONE_KEY) is None
        assert "x-kudurru-copied" not in told.headers

    with_two(tmp_path, work)


def test_the_certificate_of_the_leader_is_of_a_ca_that_is_trusted(tmp_path: Path) -> None:
    cert, key = write_pair(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)

    async def work(nodes: Nodes) -> None:
        secure = Listening(nodes.leader.api, tls)
        await secure.listen()
        follower = nodes.follower
        follower.node.follows = Follows(secure.url)
        told = await nodes.ask("PUT", ZONE_PATH, ZONE)
        check_refused(told, 503, "Unreachable", "nothing was changed", "is not trusted")
        trusting = Forwarding(follower.node, follower.standing, str(cert), PATIENT)
        follower.writer.listeners.append(trusting.recorded)
        follower.api.context.forwarding = trusting
        told = await nodes.ask("PUT", ZONE_PATH, ZONE)
        assert told.code == 201
        await secure.vanish()

    with_two(tmp_path, work)


# --- what is no leader ----------------------------------------------------------------------


@asynccontextmanager
async def answering(octets: bytes | None) -> AsyncIterator[str]:
    """Somebody who takes a request and says the same each time; None: nothing, for ever."""
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if octets is None:
            await over.wait()
        else:
            writer.write(octets)
        writer.close()

    server = await asyncio.start_server(serve, LOCAL, 0)
    try:
        yield f"http://{LOCAL}:{server.sockets[0].getsockname()[1]}"
    finally:
        over.set()
        server.close()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize(
    ("octets", "text"),
    [
        pytest.param(b"", "is not known", id="hangs up"),
        pytest.param(None, "is not known", id="is silent"),
        pytest.param(HEAD[:-2] % b"application/json", "is not known", id="hangs up in its answer"),
        pytest.param(HEAD % b"text/html", "is no kudurru", id="sends a page"),
        pytest.param(
            (HEAD % b"application/json").replace(b"200 OK", b"302 Found"), "is no kudurru",
            id="sends elsewhere",
        ),
    ],
)  # fmt: skip
def test_what_is_no_answer_of_a_leader_is_told_as_that(
    tmp_path: Path, octets: bytes | None, text: str
) -> None:
    async def work(nodes: Nodes) -> None:
        async with answering(octets) as url:
            nodes.follower.node.follows = Follows(url)
            told = await nodes.ask("PUT", ZONE_PATH, ZONE)
            check_refused(told, 502, "Unanswered", text, url)

    with_two(tmp_path, work, SOON if octets is None else PATIENT)


def test_more_than_so_many_at_once_are_refused_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "FORWARDS_MAX", 1)

    async def work(nodes: Nodes) -> None:
        async with answering(None) as url:
            nodes.follower.node.follows = Follows(url)
            first = asyncio.create_task(nodes.ask("PUT", ZONE_PATH, ZONE))
            passing = forwarding_of(nodes)
            await until(lambda: passing._under_way == 1)
            told = await nodes.ask("PUT", ZONE_PATH, ZONE)
            check_refused(told, 503, "Busy", "try again")
            assert told.headers["retry-after"]
            counts = {s.name: s.value for s in passing.samples()}
            assert counts["follower_forwards_refused_total"] == 1
        check_refused(await first, 502, "Unanswered")

    with_two(tmp_path, work)
