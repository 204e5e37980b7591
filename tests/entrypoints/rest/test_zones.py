"""Zones at length: records page by page, and zone files read into objects."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kudurru.entrypoints.rest import record
from tests.api import Api, refused, serving
from tests.entrypoints.rest.shapes import record_set, zone

ZONE_FILE = """\
$ORIGIN read.example.
$TTL 300
@ IN SOA ns1 hostmaster 2024010203 7200 900 1209600 300
@ IN NS ns1
ns1 IN A 192.0.2.53
web IN A 192.0.2.80
"""


def on_api(ask: Callable[[Api], Awaitable[Any]]) -> Any:
    async def asked() -> Any:
        async with serving("viewer", "operator") as api:
            return await ask(api)

    return asyncio.run(asked())


async def applied(api: Api, *objects: dict[str, Any]) -> None:
    done = await api.ask("POST", "/batch", {"apply": list(objects)})
    assert done.code == 200, done


async def names_of(api: Api, query: str = "", token: str = "viewer") -> list[tuple[str, str]]:
    found = await api.ask("GET", f"/dnszones/a.example/records{query}", token=token)
    assert found.code == 200, found
    return [(one["dnsName"], one["recordType"]) for one in found.json["items"]]


# --- records --------------------------------------------------------------------------------


def test_records_come_page_by_page_in_canonical_order_with_the_object_that_holds_them() -> None:
    async def ask(api: Api) -> None:
        sets = [record_set(name, "a.example", "default") for name in ("b", "a", "c.b", "z")]
        await applied(api, zone("a.example"), *sets)
        first = (await api.ask("GET", "/dnszones/a.example/records?limit=3", token="viewer")).json
        assert [(one["dnsName"], one["recordType"]) for one in first["items"]] == [
            ("a.example.", "SOA"), ("a.a.example", "A"), ("b.a.example", "A"),
        ]  # fmt: skip
        assert first["names"] == 5
        row = first["items"][1]
        assert (row["object"], row["index"], row["targets"]) == ("default/a", 0, ["192.0.2.1"])
        kept = (await api.ask("GET", "/namespaces/default/dnsrecordsets/a")).headers["ETag"]
        assert kept == f'"{row["resourceVersion"]}"'
        rest = await names_of(api, f"?limit=3&continue={first['continue']}")
        assert rest == [("c.b.a.example", "A"), ("z.a.example", "A")]
        for place in ("a..b", "elsewhere.example"):
            path = f"/dnszones/a.example/records?continue={place}"
            refused(await api.ask("GET", path), 422, "Invalid")
        assert await names_of(api, "?search=C.B") == [("c.b.a.example", "A")]
        assert await names_of(api, "?dnsName=B.a.example.") == [("b.a.example", "A")]
        assert await names_of(api, "?dnsName=none.a.example") == []
        refused(await api.ask("GET", "/dnszones/none.example/records"), 404, "NotFound")

    on_api(ask)


def test_records_that_are_switched_off_and_those_of_the_zone_itself_are_told_too() -> None:
    async def ask(api: Api) -> None:
        off = record_set("off", "a.example", "default")
        off["spec"]["endpoints"][0]["disabled"] = True
        top = record_set("top", "a.example", "default")
        top["spec"]["endpoints"][0] |= {"dnsName": "A.example", "recordType": "TXT"}
        named = zone("a.example")
        named["spec"]["nameservers"] = ["ns1.a.example"]
        await applied(api, named, off, top)
        found = (await api.ask("GET", "/dnszones/A.EXAMPLE./records", token="viewer")).json
        rows = {one["recordType"]: one for one in found["items"]}
        assert rows["A"]["disabled"] is True
        assert rows["TXT"]["object"] == "default/top"
        assert rows["NS"]["targets"] == ["ns1.a.example"]
        assert "object" not in rows["NS"]
        assert rows["SOA"]["targets"][0].startswith("ns1.a.example. hostmaster.a.example. ")

    on_api(ask)


def test_a_limited_token_is_told_of_no_records_of_others_and_not_how_many_there_are() -> None:
    async def ask(api: Api) -> None:
        sets = [record_set(name, "a.example", name) for name in ("red", "blue")]
        await applied(api, zone("a.example"), zone("b.example"), *sets)
        await api.make_token("viewer", "red", namespaces=["red"])
        await api.make_token("viewer", "b", zones=["b.example"])
        found = await api.ask("GET", "/dnszones/a.example/records", token="red")
        shown = [one["dnsName"] for one in found.json["items"]]
        assert shown == ["a.example.", "red.a.example"]
        assert found.json["names"] == 2
        refused(await api.ask("GET", "/dnszones/a.example/records", token="b"), 404, "NotFound")

    on_api(ask)


# --- events of a zone -----------------------------------------------------------------------


def test_events_of_a_zone_are_those_of_it_and_its_record_sets_newest_first() -> None:
    async def ask(api: Api) -> None:
        await applied(api, zone("a.example"), zone("b.example"))
        await applied(api, record_set("one", "a.example", "red"))
        await applied(api, record_set("two", "b.example", "red"))
        await applied(api, record_set("two", "a.example", "blue"))
        path = "/events?zone=a.example&noStatus=true"
        found = (await api.ask("GET", path, token="viewer")).json["items"]
        assert [one["object"] for one in found] == [
            "dnsrecordset/blue/two", "dnsrecordset/red/one", "dnszone/a.example",
        ]  # fmt: skip
        first = (await api.ask("GET", f"{path}&limit=1", token="viewer")).json
        rest = f"{path}&continue={first['continue']}"
        more = (await api.ask("GET", rest, token="viewer")).json["items"]
        assert first["items"] + more == found

    on_api(ask)


def test_of_events_of_other_zones_none_are_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "SCANNED_MAX", 3)

    async def ask(api: Api) -> None:
        await applied(api, zone("a.example"))
        await applied(api, zone("b.example"))
        for address in ("192.0.2.1", "192.0.2.2", "192.0.2.3"):
            await applied(api, record_set("one", "b.example", "red", address))
        found = (await api.ask("GET", "/events?zone=a.example&limit=1")).json["items"]
        assert [one["object"] for one in found] == ["dnszone/a.example"]

    on_api(ask)


# --- zone files -----------------------------------------------------------------------------


async def read(api: Api, text: str, query: str = "", token: str = "operator") -> Any:
    return await api.ask(
        "POST", f"/dnszones:read{query}", text.encode(), kind="text/dns", token=token
    )


def test_a_zone_file_becomes_what_batch_takes_and_nothing_is_written() -> None:
    async def ask(api: Api) -> None:
        found = await read(api, ZONE_FILE)
        assert found.code == 200, found
        assert (found.json["zone"], found.json["records"]) == ("read.example.", 4)
        assert found.json["importedSerials"] == {"read.example": 2024010203}
        assert (await api.ask("GET", "/dnszones")).json["items"] == []
        batch = {"apply": found.json["apply"], "importedSerials": found.json["importedSerials"]}
        done = await api.ask("POST", "/batch", batch, token="operator")
        assert [one["verb"] for one in done.json["outcomes"]] == ["created"] * 3
        again = await read(api, ZONE_FILE.replace("web IN A 192.0.2.80\n", ""))
        assert [one["name"] for one in again.json["surplus"]] == ["web.read.example"]
        same = await api.ask("POST", "/batch", {"apply": again.json["apply"]}, token="operator")
        assert {one["verb"] for one in same.json["outcomes"]} == {"unchanged"}

    on_api(ask)


def test_what_a_file_does_not_have_is_told_as_far_as_it_may_be_seen() -> None:
    async def ask(api: Api) -> None:
        await applied(api, zone("read.example"))
        await applied(api, record_set("hidden", "read.example", "blue", "192.0.2.1"))
        await api.make_token("operator", "red", namespaces=["red"])
        for token, names in (("operator", ["hidden"]), ("red", [])):
            found = await read(api, ZONE_FILE, "?namespace=blue", token=token)
            assert [one["name"] for one in found.json["surplus"]] == names

    on_api(ask)


def test_what_a_zone_has_that_no_file_says_is_kept() -> None:
    async def ask(api: Api) -> None:
        kept = zone("read.example")
        kept["spec"]["allowedNamespaces"] = ["default"]
        await applied(api, kept)
        [made, *_] = (await read(api, ZONE_FILE)).json["apply"]
        assert made["spec"]["allowedNamespaces"] == ["default"]

    on_api(ask)


def test_a_zone_below_another_gets_names_for_its_record_sets_that_are_free() -> None:
    async def ask(api: Api) -> None:
        await applied(api, zone("example"), record_set("web.read.example", "example", "default"))
        made = (await read(api, ZONE_FILE)).json["apply"]
        found = [one["metadata"]["name"] for one in made]
        assert "web.read.example" not in found
        assert any(name.startswith("web.read.example-") for name in found)

    on_api(ask)


def test_faults_of_a_zone_file_are_told_by_line_and_files_of_the_host_are_not_read() -> None:
    async def ask(api: Api) -> None:
        wrong = await read(api, ZONE_FILE + "web IN A nonsense\n$INCLUDE /etc/passwd\n")
        refused(wrong, 422, "Invalid")
        fields = [one["field"] for one in wrong.json["details"]["causes"]]
        assert fields == ["line:7", "line:8"]
        assert "root:" not in wrong.body.decode()
        refused(await read(api, "web IN A 192.0.2.1\n"), 422, "Invalid")
        many = "$GENERATE 1-65536 h$ A 192.0.2.1\n"
        refused(await read(api, ZONE_FILE + many + many), 422, "Invalid")
        refused(await read(api, ZONE_FILE + many), 422, "Invalid")  # more than one batch takes
        refused(await read(api, ZONE_FILE, "?namespace=A_B"), 400, "BadRequest")
        refused(await read(api, ZONE_FILE, token="viewer"), 403, "Forbidden")

    on_api(ask)
