"""The node itself over the API: its settings, and what is wrong with it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kudurru.domain.errors import Busy, Conflict, KudurruError
from kudurru.entrypoints import messages
from tests.api import Api, refused, serving
from tests.entrypoints.rest.shapes import record_set


def on_api(ask: Callable[[Api], Awaitable[Any]]) -> Any:
    async def asked() -> Any:
        async with serving("viewer", "operator") as api:
            return await ask(api)

    return asyncio.run(asked())


def test_a_setting_is_changed_recorded_and_shown_with_where_it_came_from() -> None:
    async def ask(api: Api) -> None:
        done = await api.ask("PATCH", "/settings?reason=more+room", {"cache.maxEntries": 5})
        assert done.code == 200
        assert done.json["changed"] == {"cache.maxEntries": 5}
        assert done.json["persisted"]
        [event] = await api.events("settings.changed.v1")
        assert event["changed"] == {"cache.maxEntries": 5}
        same = await api.ask("PATCH", "/settings", {"cache.maxEntries": 5}, kind="application/json")
        assert same.json["changed"] == {}
        rows = {row["key"]: row for row in (await api.ask("GET", "/settings")).json}
        assert rows["cache.maxEntries"]["value"] == 5
        assert "log" in rows["cache.maxEntries"]["source"]

    on_api(ask)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"cache.maxEntrie": 5}, "cache.maxEntries"),
        ({"cache.maxEntries": "many"}, "cache.maxEntries"),
        ([1], "keys and values"),
    ],
)
def test_a_patch_that_cannot_be_taken_names_the_key_and_changes_nothing(
    body: Any, said: str
) -> None:
    async def ask(api: Api) -> None:
        await api.ask("GET", "/settings")
        await api.events("")  # that this token was used from here is written by now
        before = api.node.log.head().seq
        status = refused(await api.ask("PATCH", "/settings", body), 422, "Invalid")
        assert said in status["message"]
        assert api.node.log.head().seq == before

    on_api(ask)


def test_an_operator_reads_settings_and_the_doctor_and_changes_no_setting() -> None:
    async def ask(api: Api) -> None:
        for path in ("/settings", "/doctor"):
            assert (await api.ask("GET", path, token="operator")).code == 200
            refused(await api.ask("GET", path, token="viewer"), 403, "Forbidden")
        answer = await api.ask("PATCH", "/settings", {"cache.maxEntries": 5}, token="operator")
        refused(answer, 403, "Forbidden")

    on_api(ask)


def test_the_doctor_says_with_which_rights_it_was_asked() -> None:
    report = on_api(lambda api: api.ask("GET", "/doctor", token="operator")).json
    assert report["failures"] == 0
    assert "operator" in report["checks"][0]["message"]


def _policy(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "kudurru.io/v1alpha1", "kind": "Policy", "metadata": {"name": name},
        "spec": spec,
    }  # fmt: skip


def test_messages_tell_what_is_switched_off_from_what_is_wrong() -> None:
    group: dict[str, Any] = {
        "apiVersion": "kudurru.io/v1alpha1", "kind": "ClientGroup",
        "metadata": {"name": "off", "annotations": {"kudurru.io/enabled": "false"}},
        "spec": {"clients": [{"cidr": "192.0.2.0/24"}]},
    }  # fmt: skip

    async def ask(api: Api) -> None:
        assert (await api.ask("GET", "/info/messages")).json == {"items": [], "moreObjects": 0}
        refs = ["off", "none"]
        objects = [
            group,
            _policy("p", clientGroupRefs=refs),
            record_set("lost", "a.example", "default"),
        ]
        done = await api.ask("POST", "/batch", {"apply": objects})
        assert done.code == 200, done
        items = (await api.ask("GET", "/info/messages", token="operator")).json["items"]
        told = [(one["severity"], one["object"], one["reason"]) for one in items]
        assert told == [
            ("warning", "Policy default/p", "MissingReference"),
            ("info", "Policy default/p", "Disabled"),
            ("warning", "DNSRecordSet default/lost", "ZoneNotFound"),
        ]
        assert "no DNSZone 'a.example'" in items[2]["message"]

    on_api(ask)


def test_there_are_no_more_messages_than_anybody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MESSAGES_MAX", 3)

    async def ask(api: Api) -> None:
        lost = [record_set(f"lost{i}", "a.example", "default") for i in range(5)]
        assert (await api.ask("POST", "/batch", {"apply": lost})).code == 200
        found = (await api.ask("GET", "/info/messages")).json
        assert (len(found["items"]), found["moreObjects"]) == (3, 2)

    on_api(ask)


@pytest.mark.parametrize(
    ("leads", "code", "reason", "said"),
    [
        (Conflict("the leader does this: ask ns2"), 409, "Conflict", "ns2"),
        (Busy("no node leads now; try again"), 503, "Busy", "no node leads"),
    ],
)
def test_lists_are_refreshed_by_the_leader_and_others_say_who_that_is(
    leads: KudurruError, code: int, reason: str, said: str
) -> None:
    async def ask(api: Api) -> None:
        done = await api.ask("POST", "/lists:refresh", token="operator")
        assert (done.code, done.json) == (202, {"lists": []})
        api.leads = leads
        status = refused(await api.ask("POST", "/lists:refresh"), code, reason)
        assert said in status["message"]
        path = "/blocklists/default/none:refresh"
        refused(await api.ask("POST", path), 404, "NotFound")  # whoever leads

    on_api(ask)
