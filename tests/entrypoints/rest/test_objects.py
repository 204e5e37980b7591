"""Objects over HTTP: what a write does, says and refuses, and what a read shows."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kudurru.entrypoints.rest.writing import merged
from tests.api import Answer, Api, refused, serving

ZONE = "/dnszones/example.org"
SET = "/namespaces/default/dnsrecordsets/www"
NOON = "2023-11-14T22:13:20Z"


def zone() -> dict[str, Any]:
    return {"spec": {"zoneName": "example.org"}}


def www(*targets: str) -> dict[str, Any]:
    endpoint = {
        "dnsName": "www.example.org", "recordType": "A", "targets": list(targets or ["192.0.2.1"]),
    }  # fmt: skip
    return {"spec": {"zoneRef": {"name": "example.org"}, "endpoints": [endpoint]}}


def on_api(ask: Callable[[Api], Awaitable[Any]], **how: Any) -> Any:
    async def asked() -> Any:
        async with serving("operator", "viewer", **how) as api:
            for path, body in ((ZONE, zone()), (SET, www())):
                assert (await api.ask("PUT", path, body)).code == 201
            return await ask(api)

    return asyncio.run(asked())


def test_an_object_is_created_configured_and_left_as_it_is() -> None:
    async def ask(api: Api) -> list[Answer]:
        again = {**www("192.0.2.2"), "metadata": {"labels": {"a": "b"}}}
        return [await api.ask("PUT", SET, body, token="operator") for body in (again, again)]

    changed, same = on_api(ask)
    assert [answer.code for answer in (changed, same)] == [200, 200]
    assert changed.headers["X-Kudurru-Verb"] == "configured"
    assert same.headers["X-Kudurru-Verb"] == "unchanged"
    assert same.headers["X-Kudurru-Position"] == "0"
    assert same.json == changed.json
    meta = changed.json["metadata"]
    assert (meta["generation"], meta["labels"]) == (2, {"a": "b"})
    assert changed.headers["ETag"] == f'"{meta["resourceVersion"]}"'


def test_a_zone_that_loses_its_name_servers_is_warned_of() -> None:
    """Once: what is applied again has lost nothing."""
    named = {"spec": {"zoneName": "example.org", "nameservers": ["ns.example.net"]}}
    whole = {"apiVersion": "kudurru.io/v1alpha1", "kind": "DNSZone",
             "metadata": {"name": "example.org"}, **zone()}  # fmt: skip

    async def ask(api: Api) -> list[Answer]:
        assert (await api.ask("PUT", ZONE, named)).code == 200
        body = {"apply": [whole], "dryRun": True}
        return [
            await api.ask("POST", "/batch", body),
            *[await api.ask("PUT", ZONE, zone()) for _ in range(2)],
        ]

    batch, lost, same = on_api(ask)
    (outcome,) = batch.json["outcomes"]
    (warning,) = outcome["warnings"]
    assert "loses its name servers, ns.example.net" in warning
    assert lost.headers["Warning"] == f'299 - "{warning}"'
    assert "Warning" not in same.headers


def test_a_dry_run_shows_the_object_as_it_would_be_and_writes_nothing() -> None:
    async def ask(api: Api) -> tuple[Answer, Answer, bool]:
        before = api.node.objects.position
        other = SET.replace("www", "new")
        new = await api.ask("PUT", f"{other}?dryRun=true", www("192.0.2.7"))
        changed = await api.ask("PUT", f"{SET}?dryRun=true&fieldManager=kudurru", www("192.0.2.7"))
        return new, changed, api.node.objects.position == before

    new, changed, is_same = on_api(ask)
    assert is_same
    assert (new.code, new.headers["X-Kudurru-Verb"]) == (200, "created")
    for answer in (new, changed):
        assert answer.json["spec"]["endpoints"][0]["targets"] == ["192.0.2.7"]
    assert "uid" not in new.json["metadata"]
    assert "uid" in changed.json["metadata"]


def test_a_stale_version_is_refused_and_nothing_changes() -> None:
    async def ask(api: Api) -> list[Answer]:
        stale = (await api.ask("GET", SET)).headers["ETag"]
        fresh = (await api.ask("PUT", SET, www("192.0.2.2"))).headers["ETag"]
        before = api.node.objects.position
        refusals = [
            await api.ask(method, path, body, headers=headers)
            for method, path, body, headers in (
                ("PUT", SET, www("192.0.2.3"), {"if-match": stale}),
                ("PATCH", SET, {"metadata": {"labels": {"a": "b"}}}, {"if-match": stale}),
                ("DELETE", SET, None, {"if-match": stale}),
                ("PUT", SET, www(), {"if-none-match": "*"}),
                ("PUT", SET.replace("www", "none"), www(), {"if-match": "*"}),
            )
        ]
        assert api.node.objects.position == before
        good = await api.ask("DELETE", SET, headers={"if-match": fresh})
        assert good.code == 200
        return refusals

    for answer in on_api(ask):
        refused(answer, 412, "Conflict")


@pytest.mark.parametrize("value", ['"a", "b"', '""', "", 'W/"1"'])
def test_if_match_is_one_version(value: str) -> None:
    answer = on_api(lambda api: api.ask("PUT", SET, www("192.0.2.9"), headers={"if-match": value}))
    assert answer.code in (400, 412)


def test_another_managers_object_is_refused_by_name_and_forced_by_admins_only() -> None:
    async def ask(api: Api) -> list[Answer]:
        path = f"{SET}?fieldManager=terraform"
        return [
            await api.ask("PUT", path, www("192.0.2.2"), token="operator"),
            await api.ask("PUT", f"{path}&force=true", www("192.0.2.2"), token="operator"),
            await api.ask("PUT", f"{path}&force=true", www("192.0.2.2")),
            await api.ask("DELETE", SET),
            await api.ask("PUT", f"{SET}?fieldManager=external-dns", www()),
            await api.ask("PUT", f"{SET}?fieldManager=update:k", www()),
        ]

    owned, forbidden, taken, foreign, reserved, update = on_api(ask)
    assert refused(owned, 409, "ManagedBy")["details"]["owner"] == "kudurru"
    assert "objects.force" in refused(forbidden, 403, "Forbidden")["message"]
    assert taken.json["metadata"]["annotations"]["kudurru.io/managed-by"] == "terraform"
    assert refused(foreign, 409, "ManagedBy")["details"]["owner"] == "terraform"
    for answer in (reserved, update):
        refused(answer, 422, "Invalid")


def test_peoples_annotations_are_patched_whoever_manages_the_object() -> None:
    async def ask(api: Api) -> list[Answer]:
        await api.ask("PUT", f"{SET}?fieldManager=terraform&force=true", www())
        off = {"metadata": {"annotations": {"kudurru.io/comment": "spare"}}}
        more = {"metadata": {"annotations": {"kudurru.io/comment": "x", "other/one": "y"}}}
        return [
            await api.ask("PATCH", SET, body, token="operator")
            for body in (off, more, {"metadata": {"annotations": {"kudurru.io/comment": None}}})
        ]

    noted, refusal, cleared = on_api(ask)
    annotations = {"kudurru.io/managed-by": "terraform", "kudurru.io/comment": "spare"}
    assert noted.json["metadata"]["annotations"] == annotations
    refused(refusal, 409, "ManagedBy")
    assert cleared.code == 200


def test_a_patch_merges_and_is_checked_like_an_apply() -> None:
    async def ask(api: Api) -> list[Answer]:
        return [
            await api.ask(
                "PATCH", ZONE, {"spec": {"defaultTTL": 60}, "metadata": {"labels": {"a": "b"}}}
            ),
            await api.ask("PATCH", ZONE, {"metadata": {"labels": None}}),
            await api.ask("PATCH", ZONE, {"spec": {"zoneName": "other.example"}}),
            await api.ask("PATCH", ZONE, {"metadata": {"name": "other"}}),
            await api.ask("PATCH", ZONE.replace("org", "net"), {"spec": {}}),
            await api.ask("PATCH", ZONE, {"spec": {"defaultTTL": 60}}, kind="application/json"),
        ]

    merged_, cleared, renamed, moved, nowhere, kind = on_api(ask)
    assert merged_.json["spec"] == {"zoneName": "example.org", "defaultTTL": 60}
    assert "labels" not in cleared.json["metadata"]
    refused(renamed, 422, "Invalid")
    refused(moved, 400, "BadRequest")
    refused(nowhere, 404, "NotFound")
    refused(kind, 415, "UnsupportedMediaType")


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_a_merge_patch_is_that_of_the_rfc(target: Any, patch: Any, result: Any) -> None:
    """RFC 7396 appendix A, whole."""
    assert merged(target, patch) == result


def test_an_object_and_its_list_are_as_they_were() -> None:
    async def ask(api: Api) -> list[Any]:
        at = api.node.objects.position
        await api.ask("PUT", SET, www("192.0.2.2"))
        await api.ask("DELETE", SET)
        then = await api.ask("GET", f"{SET}?at={at}")
        return [
            then.json["spec"]["endpoints"][0]["targets"],
            len((await api.ask("GET", f"/dnsrecordsets?at={at}")).json["items"]),
            (await api.ask("GET", f"{SET}?at={api.node.objects.position}")).code,
            (await api.ask("GET", SET)).code,
            (await api.ask("GET", f"/query?name=www.example.org&at={at}")).json,
            (await api.ask("GET", "/query?name=www.example.org")).json,
        ]

    targets, listed, later, now, answer, answer_now = on_api(ask)
    assert (targets, listed, later, now) == (["192.0.2.1"], 1, 404, 404)
    assert [record["data"] for record in answer["answer"]] == ["192.0.2.1"]
    assert "policies and upstreams did then is not part of this" in answer["note"]
    assert "note" not in answer_now


def test_pages_of_a_list_show_one_moment_and_end() -> None:
    async def ask(api: Api) -> list[str]:
        objects = [
            {
                "apiVersion": "kudurru.io/v1alpha1", "kind": "DNSRecordSet",
                "metadata": {"name": f"n{i}", "labels": {"half": str(i % 2)}},
                **www(f"192.0.2.{i}"),
            }
            for i in range(7)
        ]  # fmt: skip
        assert (await api.ask("POST", "/batch", {"apply": objects})).code == 200
        found, more = [], ""
        while True:
            path = "/namespaces/default/dnsrecordsets?limit=2&labelSelector=half%3D1"
            answer = await api.ask("GET", path + (f"&continue={more}" if more else ""))
            found += [item["metadata"]["name"] for item in answer.json["items"]]
            await api.ask("DELETE", SET.replace("www", "n5"))
            more = answer.json["metadata"].get("continue", "").replace(" ", "+")
            if not more:
                return found

    assert on_api(ask) == ["n1", "n3", "n5"]


def test_a_batch_is_all_or_nothing_and_tells_every_outcome_in_order() -> None:
    def named(name: str, kind: str = "DNSRecordSet", **parts: Any) -> dict[str, Any]:
        return {
            "apiVersion": "kudurru.io/v1alpha1",
            "kind": kind,
            "metadata": {"name": name},
            **parts,
        }

    async def ask(api: Api) -> list[Answer]:
        new_zone = named("z.example", "DNSZone", spec={"zoneName": "z.example"})
        good = {
            "apply": [named("a", **www("192.0.2.5")), new_zone, named("www", **www())],
            "delete": [{"kind": "rs", "name": "www2"}],
        }
        await api.ask("PUT", SET.replace("www", "www2"), www("192.0.2.8"))
        done = await api.ask("POST", "/batch", good, token="operator")
        before = api.node.objects.position
        bad = [
            {"apply": [named("b", **www()), named("c", spec={"endpoints": 7}), {"kind": "Policy"}]},
            {"apply": [named("b", **www()), named("b", **www())]},
            {"apply": [named("b", **www())], "delete": [{"kind": "rs", "name": "none"}]},
            {"apply": [named("k", "TSIGKey", spec={})]},
            {"delete": [{"kind": "apitoken", "name": "admin"}]},
            {"delete": [{"kind": "what", "name": "admin"}]},
            {"unknown": []},
            {"apply": [], "manager": "update:x"},
            {"apply": [], "reason": "x" * 2000, "delete": [{"kind": "rs", "name": "a"}]},
        ]
        refusals = [await api.ask("POST", "/batch", body) for body in bad]
        assert api.node.objects.position == before
        return [done, *refusals]

    done, first, twice, absent, *others = on_api(ask)
    assert [(o["verb"], o["name"]) for o in done.json["outcomes"]] == [
        ("created", "a"), ("created", "z.example"), ("unchanged", "www"), ("deleted", "www2"),
    ]  # fmt: skip
    fields = {cause["field"] for cause in refused(first, 422, "Invalid")["details"]["causes"]}
    assert {"apply[1].spec.zoneRef", "apply[1].spec.endpoints", "apply[2].metadata"} <= fields
    assert "given twice" in refused(twice, 422, "Invalid")["message"]
    refused(absent, 404, "NotFound")
    for answer in others:
        refused(answer, 422, "Invalid")


def test_a_mass_change_is_refused_with_both_numbers_until_it_is_allowed() -> None:
    async def ask(api: Api) -> tuple[Answer, Answer]:
        addresses = [f"192.0.2.{i}" for i in range(1, 21)]
        await api.ask("PUT", SET, www(*addresses))
        await api.writer.submit(_stamped(api))
        refusal = await api.ask("PUT", SET, www(*addresses[:10]))
        return refusal, await api.ask("PUT", f"{SET}?allowMassChange=true", www(*addresses[:10]))

    refusal, allowed = on_api(ask)
    details = refused(refusal, 409, "MassChange")["details"]
    assert (details["changed"], details["total"]) == (10, 20)
    assert allowed.code == 200


def _stamped(api: Api) -> Any:
    from tests.nodes import a_change

    return a_change(*api.node.stamps())


def test_who_did_it_and_why_is_in_the_log() -> None:
    async def ask(api: Api) -> Any:
        await api.ask("PUT", f"{SET}?reason=new%20address", www("192.0.2.2"), token="operator")
        events = (await api.ask("GET", "/events?kind=rs&name=www&changes=true&limit=1")).json
        return events["items"][0]

    event = on_api(ask)
    assert (event["actor"], event["source"]) == ("token:operator", "api 127.0.0.1")
    assert (event["reason"], event["verb"]) == ("new address", "changed")
    assert event["changes"] == [
        {"field": "spec.endpoints[0].targets[0]", "from": "192.0.2.1", "to": "192.0.2.2"}
    ] or "192.0.2.2" in str(event["changes"])


def test_events_come_in_pages_that_end() -> None:
    async def ask(api: Api) -> tuple[list[int], int]:
        for i in range(5):
            await api.ask("PUT", SET, www(f"192.0.2.{i + 2}"))
        seqs, more = [], ""
        while True:
            path = "/events?kind=rs&limit=2" + (f"&continue={more}" if more else "")
            page = (await api.ask("GET", path)).json
            seqs += [event["seq"] for event in page["items"]]
            more = page["continue"]
            if not more:
                return seqs, len(set(seqs))

    seqs, count = on_api(ask)
    assert count == len(seqs) == 6
    assert seqs == sorted(seqs, reverse=True)


def test_events_are_found_by_the_dns_name_that_they_changed() -> None:
    async def ask(api: Api) -> list[Any]:
        other = {**www()["spec"]["endpoints"][0], "dnsName": "b.example.org", "recordType": "TXT"}
        both = www()
        both["spec"]["endpoints"].append(other)
        await api.ask("PUT", SET, both)
        texts_of_b = "dnsName=b.example.org&recordType=TXT"
        queries = ("dnsName=WWW.example.org.", texts_of_b, "recordType=A")
        return [await api.ask("GET", f"/events?{query}&noStatus=true") for query in queries]

    first, second, untold = on_api(ask)
    assert [event["verb"] for event in first.json["items"]] == ["created"]
    assert [event["verb"] for event in second.json["items"]] == ["changed"]
    assert "give the name too" in str(refused(untold, 422, "Invalid"))


def test_a_restore_is_planned_then_carried_out_and_undone() -> None:
    async def ask(api: Api) -> list[Any]:
        at = api.node.objects.position
        await api.ask("DELETE", SET)
        body = {"at": str(at), "scope": {"zone": "example.org."}, "reason": "oops"}
        planned = await api.ask("POST", "/restore", body, token="operator")
        digest = planned.json["plan"]["digest"]
        stale = await api.ask("POST", "/restore", {**body, "apply": True, "planDigest": "0" * 32})
        done = await api.ask(
            "POST", "/restore", {**body, "apply": True, "planDigest": digest}, token="operator"
        )
        there = (await api.ask("GET", SET)).code
        undone = await api.ask("POST", "/undo", {"what": done.json["id"]}, token="operator")
        return [planned, stale, done, there, undone, (await api.ask("GET", SET)).code]

    planned, stale, done, there, undone, gone = on_api(ask)
    assert [step["action"] for step in planned.json["plan"]["steps"]] == ["create"]
    assert planned.json["seq"] == 0
    refused(stale, 409, "Conflict")
    assert done.json["seq"] > 0
    assert (there, undone.code, gone) == (200, 200, 404)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"at": "1"},
        {"at": "1", "beforeEvent": 2, "scope": {"kind": "rs"}},
        {"at": "1", "scope": {"kind": "nonsense"}},
        {"at": "1", "scope": {"objects": ["rs"]}},
        {"at": "1", "scope": {"all": True, "zone": "example.org"}},
        {"at": "1", "scope": {"kind": "rs"}, "surprise": 1},
    ],
)
def test_a_restore_that_says_nothing_clear_is_refused(body: Any) -> None:
    refused(on_api(lambda api: api.ask("POST", "/restore", body)), 422, "Invalid")


def test_tokens_and_keys_are_made_shown_without_their_secrets_and_taken_away(
    tmp_path: Path,
) -> None:
    async def ask(api: Api) -> list[Answer]:
        secret = "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"  # base64
        return [
            await api.ask("POST", "/tokens", {"name": "ci", "role": "viewer", "zones": ["z"]}),
            await api.ask("GET", "/tokens"),
            await api.ask("POST", "/tokens", {"name": "ci", "role": "viewer"}),
            await api.ask("DELETE", "/tokens/ci"),
            await api.ask("DELETE", "/tokens/ci"),
            await api.ask("POST", "/tsigkeys", {"name": "k.example.", "secret": secret}),
            await api.ask("GET", "/tsigkeys"),
            await api.ask("POST", "/tsigkeys", {"name": "k2", "secret": "no base64"}),
            await api.ask("DELETE", "/tsigkeys/k.example"),
        ]

    made, listed, taken, gone, absent, key, keys, bad, revoked = on_api(ask, tmp=tmp_path / "key")
    assert made.code == key.code == 201
    assert made.json["token"] not in listed.body.decode()
    assert "c2VjcmV0" not in key.body.decode() + keys.body.decode()
    refused(taken, 409, "Conflict")
    assert gone.json["status"] == "Success"
    refused(absent, 404, "NotFound")
    refused(bad, 422, "Invalid")
    assert revoked.code == 200


def test_what_a_node_is_and_who_asks_is_told() -> None:
    info = on_api(lambda api: api.ask("GET", "/info", token="viewer")).json
    assert (info["token"], info["role"]) == ("viewer", "viewer")
    assert info["position"] > 0


def test_a_checkpoint_and_a_verification_are_given() -> None:
    async def ask(api: Api) -> Any:
        return (await api.ask("GET", "/events/verify?level=full")).json

    found = on_api(ask)
    assert (found["level"], found["damages"]) == ("full", [])
    assert found["rows"] > 0
