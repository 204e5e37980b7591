"""The webhook provider of external-dns over a node in memory."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

from kudurru.adapters.http_api import Request
from kudurru.adapters.http_ops import Response
from kudurru.domain.settings import ExternalDnsSettings
from kudurru.entrypoints.external_dns import MEDIA_TYPE, ExternalDns
from kudurru.entrypoints.writer import Writer
from tests.nodes import a_change, memory_node
from tests.objects import endpoint, manifest, put, record_set, zone

Json = Any


class Told(NamedTuple):
    code: int
    kind: str
    json: Json


class Webhook:
    def __init__(self, **settings: Any) -> None:
        self.node = memory_node()
        self.writer = Writer(self.node)
        self.is_synced = True
        self.app = ExternalDns(
            ExternalDnsSettings(**settings), self.node, self.writer, lambda: self.is_synced
        )

    async def ask(
        self, method: str, path: str, body: Json = None, *, peer: str = "127.0.0.1", **headers: str
    ) -> Told:
        sent = {"host": "localhost:8888"}
        octets = b""
        if body is not None:
            octets = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent |= {"content-type": MEDIA_TYPE, "content-length": str(len(octets))}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        request = Request(
            method=method, path=path, query="", headers=sent, peer=peer, local="127.0.0.1",
            body=octets,
        )  # fmt: skip
        answer = self.app.admit(request)
        if answer is None:
            answer = await self.app.answer(request)
        assert isinstance(answer, Response)
        said = json.loads(answer.body) if answer.body else None
        return Told(answer.code, answer.content_type, said)

    async def change(self, **changes: Json) -> Told:
        return await self.ask("POST", "/records", changes)

    async def records(self) -> list[Json]:
        told = await self.ask("GET", "/records")
        assert (told.code, told.kind) == (200, MEDIA_TYPE)
        found: list[Json] = told.json
        return sorted(found, key=lambda one: (one["dnsName"], one["recordType"]))


@contextlib.asynccontextmanager
async def webhook(*objects: Any, **settings: Any) -> AsyncIterator[Webhook]:
    """Of a node with the zone example.org, and these objects of manager kudurru."""
    it = Webhook(**settings)
    it.node.commit(a_change(put(zone()), *map(put, objects)))
    it.node.zones.show_unstamped()
    running = asyncio.create_task(it.writer.run())
    try:
        async with asyncio.timeout(60):
            yield it
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


A = endpoint("test.example.org", "A", "192.0.2.1", recordTTL=10)
TXT = endpoint(
    "a-test.example.org", "TXT",
    '"heritage=external-dns,external-dns/owner=default,external-dns/resource=ingress/default/test"',
)  # fmt: skip


def test_the_domain_filter_names_the_primary_zones() -> None:
    async def run() -> None:
        forward = {"zoneName": "other.example.", "type": "Forward",
                   "forward": {"upstreams": ["192.0.2.53"]}}  # fmt: skip
        async with webhook(manifest("DNSZone", "other.example", forward)) as it:
            told = await it.ask("GET", "/", accept=MEDIA_TYPE)
            assert told == Told(200, MEDIA_TYPE, {"filters": ["example.org"]})
        async with webhook(domains=("Apps.example.org.",)) as it:
            assert (await it.ask("GET", "/")).json == {"filters": ["apps.example.org"]}

    asyncio.run(run())


def test_records_are_created_changed_and_deleted_as_it_plans() -> None:
    async def run() -> None:
        async with webhook() as it:
            created = await it.change(create=[A, TXT])
            assert created == Told(204, MEDIA_TYPE, None)
            assert await it.records() == [TXT, A]
            new = {**A, "targets": ["192.0.2.2", "192.0.2.3"]}
            assert (await it.change(updateOld=[A], updateNew=[new])).code == 204
            assert await it.records() == [TXT, new]
            assert (await it.change(delete=[new, TXT])).code == 204
            assert await it.records() == []
            assert it.node.objects.count("DNSRecordSet") == 0
            assert (await it.change(delete=[new])).code == 204, "what is gone already is no fault"

    asyncio.run(run())


def test_a_plan_is_one_change_of_its_own_manager_with_actor_and_reason() -> None:
    async def run() -> None:
        async with webhook() as it:
            before = it.node.objects.position
            await it.change(create=[A, TXT])
            events = [
                e for e in it.node.log.read() if e.seq > before and e.type.startswith("obj.a")
            ]
            assert {(e.manager, e.txn) for e in events} == {("external-dns", events[0].txn)}
            assert len(events) == 2
            assert events[0].who is not None
            who = json.loads(events[0].who)
            assert (who["actor"], who["source"]) == ("external-dns", "webhook 127.0.0.1")
            assert who["reason"] == "create 2"

    asyncio.run(run())


def test_the_same_plan_again_writes_nothing() -> None:
    async def run() -> None:
        async with webhook() as it:
            await it.change(create=[A])
            position = it.node.objects.position
            assert (await it.change(create=[A])).code == 204
            assert it.node.objects.position == position

    asyncio.run(run())


def test_lists_that_begin_with_capitals_are_read_as_older_versions_send_them() -> None:
    async def run() -> None:
        async with webhook() as it:
            plan = {"Create": [{**A, "labels": {"owner": "x"}, "providerSpecific": None}],
                    "UpdateOld": None, "UpdateNew": None, "Delete": None}  # fmt: skip
            assert (await it.change(**plan)).code == 204
            assert await it.records() == [A]

    asyncio.run(run())


def test_records_of_another_manager_are_told_and_never_touched() -> None:
    async def run() -> None:
        theirs = endpoint("test.example.org", "A", "198.51.100.1")
        async with webhook(record_set("theirs", theirs)) as it:
            assert await it.records() == [theirs]
            for plan in ({"create": [A]}, {"delete": [theirs]}, {"create": [TXT], "delete": [A]}):
                told = await it.change(**plan)
                assert told.code == 409
                assert told.json["reason"] == "ManagedBy"
                assert told.json["details"]["owner"] == "kudurru"
                assert "'kudurru'" in told.json["message"]
                assert await it.records() == [theirs], "none of the plan is carried out"

    asyncio.run(run())


def test_another_type_beside_the_records_of_another_manager_gets_a_record_set_of_its_own() -> None:
    async def run() -> None:
        theirs = endpoint("test.example.org", "A", "198.51.100.1")
        mine = endpoint("test.example.org", "TXT", '"mine"')
        async with webhook(record_set("test.example.org", theirs)) as it:
            assert (await it.change(create=[mine])).code == 204
            assert await it.records() == [theirs, mine]
            assert (await it.change(delete=[mine])).code == 204
            assert await it.records() == [theirs]

    asyncio.run(run())


def test_set_identifiers_are_kept_apart() -> None:
    async def run() -> None:
        blue, green = ({**A, "setIdentifier": one} for one in ("blue", "green"))
        async with webhook() as it:
            await it.change(create=[blue, green])
            assert (await it.change(delete=[blue])).code == 204
            assert await it.records() == [green]

    asyncio.run(run())


def test_adjusted_endpoints_lose_what_is_specific_to_providers() -> None:
    async def run() -> None:
        async with webhook() as it:
            given = {**A, "providerSpecific": [{"name": "alias", "value": "true"}]}
            told = await it.ask("POST", "/adjustendpoints", [given], accept=MEDIA_TYPE)
            assert told == Told(200, MEDIA_TYPE, [A])
            told = await it.ask("POST", "/adjustendpoints", b"null")
            assert told == Told(200, MEDIA_TYPE, [])
            assert (await it.ask("POST", "/adjustendpoints", {"a": 1})).code == 400

    asyncio.run(run())


def test_upsert_only_ignores_deletions() -> None:
    async def run() -> None:
        async with webhook(policy="upsert-only") as it:
            await it.change(create=[A])
            new = {**A, "targets": ["192.0.2.9"]}
            assert (await it.change(updateOld=[A], updateNew=[new], delete=[new])).code == 204
            assert await it.records() == [new]

    asyncio.run(run())


def test_a_dry_run_checks_and_changes_nothing() -> None:
    async def run() -> None:
        async with webhook(dry_run=True) as it:
            position = it.node.objects.position
            assert (await it.change(create=[A])).code == 204
            assert (await it.change(create=[{**A, "targets": ["x"]}])).code == 422
            assert it.node.objects.position == position

    asyncio.run(run())


def test_a_plan_that_takes_away_a_large_part_of_a_zone_is_refused_unless_allowed() -> None:
    async def run(*, allowed: bool) -> tuple[int, int]:
        many = [endpoint(f"h{i}.example.org", "A", "192.0.2.1") for i in range(200)]
        async with webhook(allow_mass_change=allowed) as it:
            assert (await it.change(create=many)).code == 204
            told = await it.change(delete=many)
            if not allowed:
                assert "externalDNS.allowMassChange" in told.json["message"]
            return told.code, len(await it.records())

    assert asyncio.run(run(allowed=False)) == (409, 200)
    assert asyncio.run(run(allowed=True)) == (204, 0)


def test_all_faults_of_a_plan_are_told_and_nothing_is_written() -> None:
    async def run() -> None:
        async with webhook() as it:
            bad = [{**A, "targets": ["nonsense"]}, {**TXT, "recordType": "WHAT"}]
            told = await it.change(create=[*bad, endpoint("ok.example.org", "A", "192.0.2.1")])
            assert told.code == 422
            faults = [cause["field"] for cause in told.json["details"]["causes"]]
            assert len(faults) == 2
            assert faults[0].startswith("test.example.org.: spec.endpoints[0].targets[0]")
            told = await it.change(
                create=[{**A, "dnsName": "a.elsewhere.net"}], delete=[{**A, "dnsName": "a..b"}]
            )
            faults = [cause["field"] for cause in told.json["details"]["causes"]]
            assert faults == ["create[0].dnsName", "delete[0].dnsName"]
            assert await it.records() == []

    asyncio.run(run())


def test_names_outside_of_the_domains_are_refused_and_not_told() -> None:
    async def run() -> None:
        theirs = record_set("theirs", endpoint("www.example.org", "A", "198.51.100.1"))
        async with webhook(theirs, domains=("apps.example.org",)) as it:
            assert (await it.change(create=[A])).code == 422
            inside = {**A, "dnsName": "a.apps.example.org"}
            assert (await it.change(create=[inside])).code == 204
            assert await it.records() == [inside]

    asyncio.run(run())


OTHER = "application/external.dns.webhook+json;version=2"


@pytest.mark.parametrize(
    ("method", "path", "headers", "code"),
    [
        ("GET", "/", {"accept": OTHER}, 406),
        ("GET", "/records", {"accept": OTHER}, 406),
        ("POST", "/records", {"content_type": OTHER}, 415),
        ("POST", "/records", {"content_type": "application/json"}, 415),
        ("POST", "/adjustendpoints", {"content_type": OTHER}, 415),
        ("POST", "/records", {"content_encoding": "gzip"}, 415),
        ("GET", "/adjustendpoints", {}, 405),
        ("DELETE", "/records", {}, 405),
        ("GET", "/applychanges", {}, 404),
        ("GET", "/", {"origin": "http://localhost:8888"}, 403),
        ("GET", "/", {"host": "attacker.example"}, 403),
        ("GET", "/", {"peer": "192.0.2.1"}, 403),
        ("GET", "/", {"peer": "::ffff:127.0.0.1"}, 200),
        ("GET", "/", {"host": "[::1]:8888"}, 200),
        ("GET", "/healthz", {"accept": "text/plain"}, 200),
        ("GET", "/", {"accept": "text/html, */*;q=0.8"}, 200),
    ],
)
def test_a_request_is_answered_with_the_code_that_fits(
    method: str, path: str, headers: dict[str, str], code: int
) -> None:
    async def run() -> None:
        async with webhook() as it:
            body = {} if method == "POST" else None
            told = await it.ask(method, path, body, **headers)
            assert told.code == code, told
            if code != 200:
                assert told.json["kind"] == "Status"
                assert told.json["message"]

    asyncio.run(run())


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"create": 1}', b'{"create": [{"dnsName": 1}]}']
)
def test_a_body_that_is_no_plan_is_a_fault_that_is_not_tried_again(body: bytes) -> None:
    async def run() -> None:
        async with webhook() as it:
            assert (await it.ask("POST", "/records", body)).code in (400, 422)

    asyncio.run(run())


def test_until_the_log_is_replayed_it_is_told_to_try_again() -> None:
    async def run() -> None:
        async with webhook() as it:
            it.is_synced = False
            for path in ("/", "/records", "/healthz"):
                assert (await it.ask("GET", path)).code == 503

    asyncio.run(run())


def test_requests_are_counted_under_labels_that_are_bounded() -> None:
    async def run() -> None:
        async with webhook() as it:
            await it.ask("GET", "/")
            await it.ask("GET", "/whatever")
            counted = {sample.labels: sample.value for sample in it.app.samples()}
            assert counted == {("/", "200"): 1, ("other", "404"): 1}

    asyncio.run(run())


def heritage(name: str, owned: str) -> Json:
    """A TXT record of external-dns' registry."""
    return endpoint(name, "TXT", "heritage=external-dns") | {"labels": {"ownedRecord": owned}}


def test_names_whose_owner_could_not_be_told_are_left_out_and_all_else_is_made(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with webhook() as it:
            plan = [
                endpoint("Example.ORG", "A", "192.0.2.1"),
                heritage("a-example.org", "example.org"),
                endpoint("www.example.org", "A", "192.0.2.2"),
                heritage("a-www.example.org", "www.example.org"),
            ]
            for _ in range(2):
                assert (await it.change(create=plan)).code == 204
            assert [(one["dnsName"], one["recordType"]) for one in await it.records()] == [
                ("a-www.example.org", "TXT"), ("www.example.org", "A"),
            ]  # fmt: skip
            stray = heritage("a-www.elsewhere.example", "www.example.org")
            text = endpoint("elsewhere.example", "TXT", "of no registry")
            assert (await it.change(updateNew=[stray])).code == 422
            assert (await it.change(create=[text])).code == 422

    asyncio.run(main())
    told = [one.getMessage() for one in caplog.records if "left out" in one.getMessage()]
    assert len(told) == 1, told
    assert "example.org.: left out" in told[0]
    assert "--txt-prefix=%{record_type}-owner." in told[0]
