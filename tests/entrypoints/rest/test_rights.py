"""Every route, asked by every role."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from kudurru.adapters.memory.clock import ManualClock, SeededEntropy
from kudurru.adapters.query_log.store import QueryLogStore
from kudurru.domain.access import RIGHTS
from kudurru.domain.dns.names import from_text
from kudurru.domain.query_log import Fact, Privacy, Retention, Seen
from kudurru.domain.settings import ListSettings, QuerylogSettings, Settings
from kudurru.entrypoints.rest.app import all_routes
from kudurru.entrypoints.rest.routes import Route
from tests.api import Answer, Api, refused, serving
from tests.entrypoints.rest.shapes import record_set, zone
from tests.projections.test_redaction import redact

ROLES = ("viewer", "operator", "admin")


BODIES: dict[str, Any] = {
    "/batch": {},
    "/restore": {"at": "1", "scope": {"namespace": "default"}},
    "/undo": {"what": "1", "apply": False},
    "/marks": {"name": "here"},
    "/events:redact": {"position": 1, "reason": "x"},
    "/events:prune": {"before": "1"},
    "/checkpoint:rotate": {},
    "/tokens": {"name": "new", "role": "viewer"},
    "/tsigkeys": {"name": "k", "secret": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="},
    "/blocking": {"blocks": True},
    "/settings": {"cache.maxEntries": 5},
}

READS = {"info", "objects.read", "history", "explain", "query", "zones.export", "stats"}
ADMINS = {
    "settings.write", "tokens", "tokens.create", "keys",
    "audit.export", "audit.redact", "audit.prune", "querylog.purge", "log.follow",
}  # fmt: skip


def path_of(route: Route) -> str:
    path = route.path.replace("{namespace}", "default").replace("{name}", "one")
    path = path.replace("{subject}", "domains")
    return path + ("?name=a.example" if any(p.is_needed for p in route.params) else "")


async def code_of(api: Api, route: Route, role: str) -> int:
    body = BODIES.get(route.path, {}) if route.body is not None else None
    answer = await api.ask(route.method, path_of(route), body, token=role)
    if answer.code == 403:
        refused(answer, 403, "Forbidden")
    return answer.code


@pytest.mark.parametrize("route", all_routes(), ids=lambda route: f"{route.method} {route.path}")
def test_a_route_is_for_the_roles_of_its_right(route: Route, tmp_path: Path) -> None:
    """Those of the table in the design; what becomes of the request otherwise is told by others."""
    if route.path == "/queries":
        allowed = {"operator", "admin"}  # of viewers the privacy level decides
    elif route.right in READS:
        allowed = set(ROLES)
    elif route.right in ADMINS:
        allowed = {"admin"}
    else:
        allowed = {"operator", "admin"}

    async def asked() -> dict[str, int]:
        async with serving(*ROLES, tmp=tmp_path / "key") as api:
            return {role: await code_of(api, route, role) for role in ROLES}

    codes = asyncio.run(asked())
    assert {role for role, code in codes.items() if code != 403} == allowed, codes
    assert all(code < 500 or code == 503 for code in codes.values()), codes


def test_a_follower_copies_the_log_and_does_nothing_else() -> None:
    async def asked() -> dict[str, int]:
        async with serving("follower") as api:
            return {
                route.right: await code_of(api, route, "follower")
                for route in all_routes()
                if route.path != "/queries"
            }

    codes = asyncio.run(asked())
    assert {right for right, code in codes.items() if code != 403} == {"info", "log.follow"}


def test_the_first_token_can_only_make_tokens() -> None:
    async def asked() -> dict[str, int]:
        async with serving() as api:
            change, new = api.tokens.bootstrap(_tester(), api.entropy)
            await api.writer.submit(change)
            # As at a first start: there is no admin yet.
            await api.writer.submit(api.tokens.revocation("admin", _tester()))
            api.token["bootstrap"] = new.token
            return {
                f"{route.method} {route.path}": await code_of(api, route, "bootstrap")
                for route in all_routes()
                if route.path != "/tokens" or route.method == "GET"
            } | {
                "made": (
                    await api.ask("POST", "/tokens", BODIES["/tokens"], token="bootstrap")
                ).code
            }

    codes = asyncio.run(asked())
    assert codes.pop("made") == 201
    assert set(codes.values()) == {403}


def _making() -> Route:
    return next(one for one in all_routes() if (one.method, one.path) == ("POST", "/tokens"))


def _tester() -> Any:
    from tests.nodes import TESTER

    return TESTER


def test_every_right_of_a_route_is_one_that_somebody_has() -> None:
    assert {route.right for route in all_routes()} <= RIGHTS["admin"]


# --- limits ---------------------------------------------------------------------------------


async def filled(api: Api) -> int:
    """Zones a.example and b.example with a record set each in the namespaces red and blue. The
    position of that."""
    objects = [zone("a.example"), zone("b.example")]
    objects += [
        record_set(f"{namespace}-{of[0]}", of, namespace)
        for of in ("a.example", "b.example")
        for namespace in ("red", "blue")
    ]
    done = await api.ask("POST", "/batch", {"apply": objects})
    assert done.code == 200, done
    await api.make_token("operator", "red", namespaces=["red"])
    await api.make_token("operator", "a", zones=["a.example"])
    await api.make_token("viewer", "both", zones=["a.example"], namespaces=["red"])
    return int(done.json["position"])


async def names(api: Api, path: str, token: str) -> list[str]:
    answer = await api.ask("GET", path, token=token)
    assert answer.code == 200, answer
    return [item["metadata"]["name"] for item in answer.json["items"]]


SEEN = {
    "admin": ["blue-a", "blue-b", "red-a", "red-b"],
    "red": ["red-a", "red-b"],
    "a": ["blue-a", "red-a"],
    "both": ["red-a"],
}


@pytest.mark.parametrize("at", ["", "?at=6"])
@pytest.mark.parametrize(("token", "seen"), SEEN.items())
def test_a_list_has_what_its_token_may_see_now_and_then(
    token: str, seen: list[str], at: str
) -> None:
    async def listed() -> list[str]:
        async with serving() as api:
            await filled(api)
            position = api.node.log.head().seq
            path = "/dnsrecordsets" + (f"?at={position}" if at else "")
            return sorted(await names(api, path, token))

    assert asyncio.run(listed()) == seen


def test_pages_skip_what_may_not_be_seen_and_do_not_name_it() -> None:
    async def paged() -> list[tuple[list[str], str]]:
        async with serving() as api:
            await filled(api)
            pages, more = [], ""
            while True:
                path = (
                    f"/dnsrecordsets?limit=1&continue={more}" if more else "/dnsrecordsets?limit=1"
                )
                answer = await api.ask("GET", path.replace(" ", "%20"), token="both")
                more = answer.json["metadata"].get("continue", "")
                pages.append(([i["metadata"]["name"] for i in answer.json["items"]], more))
                if not more:
                    return pages

    assert asyncio.run(paged()) == [(["red-a"], "")]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/namespaces/blue/dnsrecordsets/blue-b", None),
        ("GET", "/namespaces/blue/dnsrecordsets/none", None),
        ("GET", "/namespaces/blue/dnsrecordsets/blue-b?at=8", None),
        ("GET", "/namespaces/blue/dnsrecordsets/blue-b/problems", None),
        ("DELETE", "/namespaces/blue/dnsrecordsets/blue-b", None),
        ("PATCH", "/namespaces/blue/dnsrecordsets/blue-b", {"metadata": {"labels": {"a": "b"}}}),
        ("GET", "/dnszones/b.example", None),
        ("GET", "/dnszones/b.example/export", None),
        ("POST", "/dnszones/b.example:refresh", None),
    ],
)
def test_what_may_not_be_seen_is_refused_as_what_is_not_there(
    method: str, path: str, body: Any
) -> None:
    async def asked() -> None:
        async with serving() as api:
            await filled(api)
            await api.make_token("operator", "limited", zones=["a.example"])
            refused(await api.ask(method, path, body, token="limited"), 404, "NotFound")

    asyncio.run(asked())


@pytest.mark.parametrize(
    ("token", "method", "path", "body"),
    [
        ("red", "PUT", "/namespaces/blue/dnsrecordsets/x", record_set("x", "a.example", "blue")),
        ("red", "PUT", "/dnszones/c.example", zone("c.example")),
        ("red", "PUT", "/dnszones/a.example", zone("a.example")),
        ("red", "DELETE", "/dnszones/a.example", None),
        ("a", "PUT", "/namespaces/red/dnsrecordsets/x", record_set("x", "b.example", "red")),
        ("a", "PUT", "/namespaces/red/dnsrecordsets/red-b", record_set("x", "a.example", "red")),
        ("a", "PUT", "/namespaces/red/dnsrecordsets/red-a", record_set("x", "b.example", "red")),
        ("a", "PUT", "/dnszones/c.example", zone("c.example")),
        ("a", "DELETE", "/dnszones/a.example", None),
        ("a", "POST", "/batch", {"apply": [record_set("x", "b.example", "red")]}),
        ("a", "POST", "/batch", {"delete": [{"kind": "DNSZone", "name": "a.example"}]}),
        ("a", "PUT", "/namespaces/red/policies/p", {"spec": {"deny": ["x.example"]}}),
        ("red", "POST", "/restore", {"at": "FILLED", "scope": {"all": True}, "apply": True}),
        ("red", "POST", "/restore", {"at": "FILLED", "scope": {"zone": "a.example"}}),
        ("a", "POST", "/restore", {"at": "FILLED", "scope": {"namespace": "red"}}),
        ("a", "POST", "/undo", {"what": "FILLED"}),
        ("red", "GET", "/stats/domains", None),
        ("a", "PUT", "/blocking", {"blocks": False}),
        ("a", "GET", "/events/verify", None),
        ("red", "GET", "/dnszones/a.example/export", None),
        ("both", "GET", "/dnszones/a.example/export?at=6", None),
        ("a", "PUT", "/dnszones/a.example",
         {"spec": {"zoneName": "a.example", "catalog": {}}}),
        ("a", "PATCH", "/dnszones/a.example", {"spec": {"catalog": {}}}),
        ("a", "POST", "/batch", {"apply": [
            {**zone("a.example"), "spec": {"zoneName": "a.example", "catalog": {}}}]}),
        ("a", "POST", "/batch", {"importedSerials": {"b.example": 1}}),
        ("a", "POST", "/batch",
         {"apply": [zone("a.example")], "importedSerials": {"a.example": 1}}),
        ("red", "POST", "/batch", {"force": True}),
        ("red", "PUT", "/namespaces/red/dnsrecordsets/red-a?force=true",
         record_set("red-a", "a.example", "red")),
    ],
)  # fmt: skip
def test_a_limited_token_changes_nothing_outside_of_its_limits(
    token: str, method: str, path: str, body: Any
) -> None:
    async def asked() -> None:
        async with serving() as api:
            position = await filled(api)
            if method == "PUT" and "metadata" in body:
                body["metadata"] = {"name": path.rpartition("/")[2].partition("?")[0]}
            text = json.dumps(body).replace("FILLED", str(position)).encode() if body else None
            if path == "/restore":  # so that there is something to restore
                changed = {"spec": {"defaultTTL": 1}}
                await api.ask("PATCH", "/dnszones/a.example", changed)
                await api.ask("DELETE", "/namespaces/red/dnsrecordsets/red-b")
            before = api.node.objects.position
            refused(await api.ask(method, path, text, token=token), 403, "Forbidden")
            facts = [event.type for event in api.node.log.read(before)]
            assert [type_ for type_ in facts if not type_.startswith("auth.")] == []

    asyncio.run(asked())


def test_refused_plans_name_no_object_that_may_not_be_seen() -> None:
    """Or a limited token would learn all names, one position after the other."""

    async def asked() -> list[str]:
        async with serving() as api:
            await filled(api)
            path = "/namespaces/blue/dnsrecordsets/hidden"
            made = await api.ask("PUT", path, record_set("hidden", "b.example", "blue"))
            seq = made.headers["X-Kudurru-Position"]
            scopes: list[Any] = [{"namespace": "blue"}, {"objects": ["rs/blue/hidden"]}]
            asked: list[tuple[str, Any]] = [("/undo", {"what": seq, "apply": False})]
            asked += [("/restore", {"at": str(int(seq) - 1), "scope": scope}) for scope in scopes]
            return [
                refused(await api.ask("POST", path, body, token=token), 403, "Forbidden")["message"]
                for token in ("red", "a")
                for path, body in asked
            ]

    assert not [message for message in asyncio.run(asked()) if "hidden" in message]


@pytest.mark.parametrize(
    ("token", "method", "path", "body", "headers"),
    [
        # Zones are seen by who may write record sets in some namespace.
        ("c", "GET", "/diff?from=1&zone=NAME", None, {}),
        ("c", "GET", "/dnszones/NAME/export", None, {}),
        ("c", "GET", "/dnszones/NAME/export?at=9", None, {}),
        ("c", "POST", "/restore", {"at": "9", "scope": {"zone": "NAME"}}, {}),
        ("c", "DELETE", "/namespaces/blue/dnsrecordsets/NAME", None, {"if-match": "*"}),
        ("c", "PUT", "/namespaces/blue/dnsrecordsets/NAME", {}, {"if-match": "*"}),
        ("red", "DELETE", "/namespaces/blue/dnsrecordsets/NAME", None, {"if-match": "*"}),
        ("red", "PUT", "/namespaces/blue/dnsrecordsets/NAME", {}, {"if-match": "*"}),
    ],
)
def test_what_may_not_be_seen_is_told_from_nothing_by_no_question(
    token: str, method: str, path: str, body: Any, headers: dict[str, str]
) -> None:
    """Neither code nor text says whether a name that was guessed is there."""

    async def asked() -> list[tuple[int, str]]:
        async with serving() as api:
            await filled(api)
            await api.ask("PUT", "/dnszones/c.example", zone("c.example"))
            await api.make_token("operator", "c", zones=["c.example"])
            answers = []
            for name in ("b", "n"):
                of = f"blue-{name}" if "/blue/" in path else f"{name}.example"
                text = json.dumps(body).replace("NAME", of) if body is not None else None
                if method == "PUT":
                    text = json.dumps(record_set(of, "b.example", "blue"))
                answer = await api.ask(
                    method, path.replace("NAME", of), text and text.encode(),
                    token=token, headers=headers,
                )  # fmt: skip
                said = answer.body.decode().replace(of, "NAME")
                answers.append((answer.code, said))
            return answers

    there, not_there = asyncio.run(asked())
    assert there == not_there
    assert there[0] >= 400


def test_a_zone_that_is_not_served_does_not_name_those_that_are() -> None:
    async def asked() -> Answer:
        async with serving("viewer") as api:
            await filled(api)
            spec = {"type": "Forward", "forward": {"upstreams": ["9.9.9.9"]}}
            path = "/dnszones/a.example?allowMassChange=true"
            done = await api.ask("PATCH", path, {"spec": spec})
            assert done.code == 200, done
            return await api.ask("GET", "/dnszones/a.example/export", token="a")

    assert "b.example" not in refused(asyncio.run(asked()), 404, "NotFound")["message"]


def test_what_was_redacted_and_may_not_be_seen_is_as_what_was_never_there() -> None:
    async def asked() -> None:
        async with serving("viewer") as api:
            await filled(api)
            path = "/namespaces/blue/clientgroups/kids"
            made = await api.ask("PUT", path, filters("blue")[0])
            position = made.headers["X-Kudurru-Position"]
            await api.ask("DELETE", path)
            redact(api.node, int(position))
            assert (await api.ask("GET", f"{path}?at={position}")).code == 410
            for token in ("red", "a", "both"):
                answer = await api.ask("GET", f"{path}?at={position}", token=token)
                refused(answer, 404, "NotFound")

    asyncio.run(asked())


def test_a_limited_token_works_inside_of_its_limits() -> None:
    async def asked() -> list[int]:
        async with serving() as api:
            position = await filled(api)
            wanted = record_set("red-a", "a.example", "red")
            wanted["spec"]["endpoints"][0]["targets"] = ["192.0.2.99"]
            path = "/namespaces/red/dnsrecordsets/red-a"
            codes = [(await api.ask("PUT", path, wanted, token=token)).code for token in "a"]
            codes.append((await api.ask("PUT", path, wanted, token="red")).code)
            again = {"metadata": {"labels": {"a": "b"}}}
            patched = await api.ask("PATCH", path, again, token="a")
            seq = patched.headers["X-Kudurru-Position"]
            codes.append((await api.ask("POST", "/undo", {"what": seq}, token="a")).code)
            at = {"at": str(position), "scope": {"objects": ["rs/red/red-a"]}, "apply": True}
            codes.append((await api.ask("POST", "/restore", at, token="red")).code)
            changed = {"spec": {"zoneName": "a.example", "defaultTTL": 60}}
            codes.append((await api.ask("PUT", "/dnszones/a.example", changed, token="a")).code)
            gone = await api.ask("DELETE", path, token="a")
            return [*codes, gone.code]

    assert asyncio.run(asked()) == [200, 200, 200, 200, 200, 200]


def test_history_shows_what_may_be_seen_and_addresses_to_admins_only() -> None:
    async def asked() -> dict[str, Any]:
        async with serving("viewer") as api:
            await filled(api)
            return {
                token: (await api.ask("GET", "/events?limit=100", token=token)).json["items"]
                for token in ("admin", "viewer", "red", "both")
            }

    seen = asyncio.run(asked())
    sources = {token: {event["source"] for event in events} for token, events in seen.items()}
    assert "api 127.0.0.1" in sources["admin"]
    assert "api 127.0.0.1" not in sources["viewer"] | sources["red"] | sources["both"]
    objects = {token: {event["object"] for event in events} for token, events in seen.items()}
    assert "apitoken/red" in objects["admin"]
    assert not any("apitoken" in name for name in objects["viewer"])
    assert objects["both"] == {"dnszone/a.example", "dnsrecordset/red/red-a"}
    assert "dnsrecordset/red/red-b" in objects["red"]
    assert "dnsrecordset/blue/blue-a" not in objects["red"]


def test_changes_of_what_came_from_elsewhere_are_told_from_nothing() -> None:
    """A record set that moves into a zone had another content in the other one."""

    async def asked() -> list[dict[str, Any]]:
        async with serving() as api:
            await filled(api)
            moved = record_set("red-b", "a.example", "red")
            assert (await api.ask("PUT", "/namespaces/red/dnsrecordsets/red-b", moved)).code == 200
            path = "/events?kind=rs&namespace=red&name=red-b&changes=true"
            return (await api.ask("GET", path, token="a")).json["items"]  # type: ignore[no-any-return]  # JSON

    events = asyncio.run(asked())
    assert [event["type"] for event in events] == ["obj.applied.v1"]
    assert "b.example" not in str(events)


HOST = {"apiVersion": "kudurru.io/v1alpha1", "kind": "BlockList", "metadata": {"name": "host"}}


def forwarding(*upstreams: str) -> dict[str, Any]:
    spec = {"zoneName": "fwd.example", "type": "Forward", "forward": {"upstreams": [*upstreams]}}
    return {
        "apiVersion": "kudurru.io/v1alpha1", "kind": "DNSZone", "metadata": {"name": "fwd"},
        "spec": spec,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "document"),
    [
        ("/dnszones/fwd", forwarding("127.0.0.1:53", "9.9.9.9")),
        ("/dnszones/fwd", forwarding("192.168.1.1")),
        (
            "/namespaces/default/blocklists/host",
            {"spec": {"sources": [{"url": "file:/etc/passwd"}]}},
        ),
    ],
)
def test_where_this_node_sends_and_what_it_reads_here_is_decided_by_admins(
    path: str, document: dict[str, Any]
) -> None:
    async def asked() -> list[Answer]:
        async with serving("operator") as api:
            tried = await api.ask("PUT", path, document, token="operator")
            batch = {"apply": [{**HOST, **document}]}
            return [
                tried,
                await api.ask("POST", "/batch", batch, token="operator"),
                await api.ask("PUT", path, document),
                # What an admin allowed may stay where it is.
                await api.ask(
                    "PATCH", path, {"metadata": {"labels": {"a": "b"}}}, token="operator"
                ),
            ]

    put, batch, by_admin, label = asyncio.run(asked())
    for answer in (put, batch):
        assert "an admin may apply this" in refused(answer, 403, "Forbidden")["message"]
    assert by_admin.code in (200, 201)
    assert label.code == 200


def test_private_addresses_are_for_everybody_where_the_settings_say_so() -> None:
    async def asked() -> int:
        async with serving("operator") as api:
            api.settings = Settings(lists=ListSettings(allow_private=True))
            answer = await api.ask(
                "PUT", "/dnszones/fwd", forwarding("192.168.1.1"), token="operator"
            )
            return answer.code

    assert asyncio.run(asked()) in (200, 201)


@pytest.mark.parametrize(("level", "code"), [(0, 403), (1, 403), (2, 404), (3, 404)])
def test_a_viewer_reads_the_query_log_where_it_names_nobody(level: int, code: int) -> None:
    """404: a node in memory has none."""

    async def asked() -> int:
        async with serving("viewer") as api:
            api.settings = Settings(querylog=QuerylogSettings(privacy_level=level))
            return (await api.ask("GET", "/queries", token="viewer")).code

    assert asyncio.run(asked()) == code


def test_a_catalog_that_was_taken_away_is_neither_restored_nor_undone_by_a_limited_token() -> None:
    async def asked() -> None:
        async with serving() as api:
            await filled(api)
            for catalog in ({}, None):
                change = {"spec": {"catalog": catalog}}
                done = await api.ask("PATCH", "/dnszones/a.example", change)
                assert done.code == 200, done
            at = int(done.headers["X-Kudurru-Position"])
            body = {"beforeEvent": at, "scope": {"objects": ["dnszone/a.example"]}, "apply": True}
            for path, asked in (("/restore", body), ("/undo", {"what": str(at)})):
                answer = await api.ask("POST", path, asked, token="a")
                assert "a catalog" in refused(answer, 403, "Forbidden")["message"]

    asyncio.run(asked())


def test_serials_are_set_of_zones_that_the_batch_applies() -> None:
    async def asked() -> Answer:
        async with serving("operator") as api:
            await filled(api)
            body = {
                "apply": [zone("a.example"), record_set("a.example", "a.example", "red")],
                "importedSerials": {"a.example": 5, "b.example": 5, "no/name": 5},
            }
            answer = await api.ask("POST", "/batch", body, token="operator")
            del body["importedSerials"]["b.example"], body["importedSerials"]["no/name"]  # type: ignore[attr-defined]  # the dict above
            assert (await api.ask("POST", "/batch", body, token="operator")).code == 200
            return answer

    causes = refused(asyncio.run(asked()), 422, "Invalid")["details"]["causes"]
    assert [cause["field"] for cause in causes] == [
        "importedSerials.b.example", "importedSerials.no/name",
    ]  # fmt: skip


def filters(namespace: str) -> list[dict[str, Any]]:
    """A group, and a policy for it that names a list that is not there."""
    group, policy = (
        {"apiVersion": "kudurru.io/v1alpha1", "kind": kind, "spec": spec,
         "metadata": {"name": "kids", "namespace": namespace}}
        for kind, spec in (
            ("ClientGroup", {"clients": [{"cidr": "192.0.2.0/24"}]}),
            ("Policy", {"clientGroupRefs": ["kids"], "blockListRefs": ["none"]}),
        )
    )  # fmt: skip
    return [group, policy]


def test_pauses_and_diagnoses_are_told_of_what_may_be_seen() -> None:
    async def asked() -> dict[str, Any]:
        async with serving("viewer") as api:
            await filled(api)
            made = await api.ask("POST", "/batch", {"apply": filters("red") + filters("blue")})
            assert made.code == 200, made
            for group in ("red/kids", "blue/kids", ""):
                paused = await api.ask("PUT", "/blocking", {"blocks": False, "group": group})
                assert paused.code == 200, paused
            return {
                token: (await api.ask("GET", "/blocking", token=token)).json
                for token in ("viewer", "red", "a")
            }

    told = asyncio.run(asked())
    groups = {token: [one["group"] for one in state["pauses"]] for token, state in told.items()}
    assert groups == {"viewer": ["", "blue/kids", "red/kids"], "red": ["", "red/kids"], "a": [""]}
    assert [told[token]["policies"] for token in ("viewer", "red", "a")] == [2, 1, 0]
    about = [" ".join(told[token]["diagnoses"]) for token in ("viewer", "red", "a")]
    assert ["blue" in text for text in about] == [True, False, False]
    assert ["red" in text for text in about] == [True, True, False]


@pytest.mark.parametrize("octets", [None, b""])
def test_a_query_log_that_has_not_begun_is_empty(tmp_path: Path, octets: bytes | None) -> None:
    path = tmp_path / "querylog.db"
    if octets is not None:
        path.write_bytes(octets)

    async def asked() -> None:
        async with serving() as api:
            api.context.query_log = path
            assert (await api.ask("GET", "/queries")).json == {"items": []}
            assert (await api.ask("GET", "/stats/domains")).json == {"top": [], "totals": {}}

    asyncio.run(asked())


def test_a_viewer_never_reads_who_asked_before_the_level_was_raised(tmp_path: Path) -> None:
    log = QueryLogStore(tmp_path / "querylog.db", SeededEntropy(3).token)
    now_us = ManualClock().now_us()
    for level in range(3):
        log.configure(Privacy(level=level), Retention())
        wire = from_text(f"at{level}.example")
        fact = Fact(now_us, bytes((192, 0, 2, 7)), wire, 1, "udp", 0, "forward")
        log.write(Seen(now_us, (fact,), {}))
    log.close()

    async def asked(token: str, path: str) -> list[dict[str, Any]]:
        async with serving("viewer", "operator", clock=ManualClock()) as api:
            api.settings = Settings(querylog=QuerylogSettings(privacy_level=2))
            api.context.query_log = tmp_path / "querylog.db"
            answer = await api.ask("GET", path, token=token)
            assert answer.code == 200
            found: list[dict[str, Any]] = answer.json.get("items", answer.json.get("top"))
            return found

    for path, key in (("/queries", "client"), ("/stats/clients", "text")):
        whole = sorted(one[key] for one in asyncio.run(asked("operator", path)))
        assert whole[:2] == ["192.0.2.0/24", "192.0.2.7"]
        assert [one[key] for one in asyncio.run(asked("viewer", path))] == whole[2:]
    assert asyncio.run(asked("viewer", "/queries?client=192.0.2.7")) == []
    assert len(asyncio.run(asked("viewer", "/stats/domains"))) == 3
