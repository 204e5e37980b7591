"""Controllers on a node: statuses that say what is so, written when they differ and not else."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest

from kudurru.adapters.memory.clock import SeededEntropy
from kudurru.adapters.sealing import NodeKey
from kudurru.domain.errors import Busy, Conflict, Invalid, StorageFailed
from kudurru.domain.object_store import CONTROLLER, Outcome
from kudurru.domain.objects import Key, key_of
from kudurru.domain.ports import Document
from kudurru.domain.reconcile.conditions import condition
from kudurru.entrypoints import controllers
from kudurru.entrypoints.controllers import RESYNC_US, Done
from kudurru.entrypoints.keyring import KeyRequest, Keyring, revocation
from kudurru.entrypoints.store import LogStore
from tests.controllers import SECOND, Scene, play
from tests.nodes import TESTER, a_change, memory_node
from tests.objects import (
    WWW_KEY,
    ZONE_KEY,
    drop,
    endpoint,
    manifest,
    put,
    record_set,
    www,
    zone,
)


def test_a_zone_is_ready_with_its_first_serial_in_one_event() -> None:
    async def act(scene: Scene) -> None:
        await scene.do(put(zone()))
        assert scene.says(ZONE_KEY) == ("True", "AsExpected")
        await scene.settle()
        assert scene.status_events() == 1
        assert scene.says(ZONE_KEY, "Degraded") == ("False", "AsExpected")
        assert scene.told() == [("SerialBumped", ZONE_KEY)]

    play(act)


def test_a_record_set_that_is_as_it_should_be_costs_no_event() -> None:
    async def act(scene: Scene) -> None:
        await scene.do(put(zone()), put(www()))
        await scene.settle()
        assert scene.status(WWW_KEY) is None

    play(act)


def addresses(name: str, *targets: str, owner: str = "www", **metadata: Any) -> Any:
    return put(record_set(name, endpoint(f"{owner}.example.org", "A", *targets), **metadata))


def set_key(name: str, namespace: str = "default") -> Key:
    return key_of("DNSRecordSet", namespace, name)


def test_the_later_of_two_record_sets_is_told_and_clears_when_the_earlier_goes() -> None:
    async def act(scene: Scene) -> None:
        await scene.do(put(zone()), addresses("a", "192.0.2.1"))
        await scene.do(addresses("b", "192.0.2.2"))
        await scene.settle()
        assert scene.status(set_key("a")) is None
        assert scene.says(set_key("b")) == ("False", "Duplicated")
        (problem,) = (scene.status(set_key("b")) or {})["problems"]
        assert problem["reason"] == "Duplicated"
        assert problem["dnsName"] == "www.example.org."
        assert scene.says(ZONE_KEY) == ("True", "AsExpected")
        assert scene.says(ZONE_KEY, "Degraded") == ("True", "Duplicated")
        await scene.do(drop(set_key("a")))
        await scene.settle()
        assert scene.says(set_key("b")) == ("True", "AsExpected")
        assert "problems" not in (scene.status(set_key("b")) or {})
        assert scene.says(ZONE_KEY, "Degraded") == ("False", "AsExpected")

    play(act)


def test_a_problem_is_an_event_for_people_once() -> None:
    async def act(scene: Scene) -> None:
        await scene.do(put(zone()), addresses("a", "192.0.2.1"), addresses("b", "192.0.2.2"))
        await scene.settle()
        for i in range(3, 6):
            await scene.do(addresses("b", f"192.0.2.{i}"))  # still a problem, and the same
            await scene.settle()
        warnings = [found for found in scene.told() if found[0] != "SerialBumped"]
        assert warnings == [("Duplicated", set_key("b"))]

    play(act)


@pytest.mark.parametrize(
    ("zone_spec", "made", "reason"),
    [
        ({}, addresses("x", "192.0.2.1", zone="missing"), "ZoneNotFound"),
        ({"allowedNamespaces": ["team"]}, addresses("x", "192.0.2.1"), "NotSelected"),
        (
            {"type": "Forward", "forward": {"upstreams": ["192.0.2.53"]}},
            addresses("x", "192.0.2.1"),
            "ZoneNotFound",
        ),
        (
            {},
            put(record_set("x", endpoint("example.org", "CNAME", "other.example."))),
            "Invalid",
        ),
    ],
)
def test_a_record_set_says_why_it_is_not_served(
    zone_spec: dict[str, Any], made: Any, reason: str
) -> None:
    async def act(scene: Scene) -> None:
        await scene.do(put(zone(**zone_spec)))
        await scene.do(made)
        await scene.settle()
        assert scene.says(set_key("x")) == ("False", reason)
        assert scene.says(set_key("x"), "Degraded") == ("True", reason)

    play(act)


def test_a_record_set_of_which_a_part_is_served_is_ready_and_degraded() -> None:
    async def act(scene: Scene) -> None:
        inside = endpoint("a.example.org", "A", "192.0.2.1")
        both = record_set("x", inside, endpoint("b.other.org", "A", "192.0.2.2"))
        await scene.do(put(both))
        await scene.do(put(zone()))
        await scene.settle()
        assert scene.says(set_key("x")) == ("True", "AsExpected")
        assert scene.says(set_key("x"), "Degraded") == ("True", "OutsideZone")
        assert ("OutsideZone", set_key("x")) in scene.told()

    play(act)


def test_record_sets_wait_for_their_zone_and_are_ready_when_it_comes() -> None:
    async def act(scene: Scene) -> None:
        await scene.do(put(www()))
        await scene.settle()
        assert scene.says(WWW_KEY) == ("False", "ZoneNotFound")
        await scene.do(put(zone()))
        await scene.settle()
        assert scene.says(WWW_KEY) == ("True", "AsExpected")
        await scene.do(drop(ZONE_KEY))
        await scene.settle()
        assert scene.says(WWW_KEY) == ("False", "ZoneNotFound")

    play(act)


def test_of_two_zones_with_one_name_the_later_is_told_until_the_earlier_goes() -> None:
    async def act(scene: Scene) -> None:
        await scene.do(put(zone()))
        scene.timers.advance(SECOND)
        second = manifest("DNSZone", "second", {"zoneName": "example.org."})
        await scene.do(put(second))
        await scene.settle()
        assert scene.says(second.key) == ("False", "Duplicated")
        assert ("Duplicated", second.key) in scene.told()
        assert scene.says(ZONE_KEY) == ("True", "AsExpected")
        await scene.do(drop(ZONE_KEY))
        await scene.settle()
        assert scene.says(second.key) == ("True", "AsExpected")
        assert (scene.status(second.key) or {})["serial"]

    play(act)


def test_a_zone_says_which_of_its_tsig_keys_is_not_there_until_it_is(tmp_path: Path) -> None:
    box = NodeKey(tmp_path / "node.key", SeededEntropy(1))

    async def act(scene: Scene) -> None:
        keyring = Keyring(scene.node, box)
        request = KeyRequest(name="Xfr.example", algorithm="hmac-sha256", secret=bytes(32))
        transfer = {"allow": ["192.0.2.0/24", "xfr.example"], "keys": ["xfr.example"]}
        await scene.do(put(zone(transfer=transfer)), put(zone("other.org")))
        await scene.settle()
        said = condition(scene.status(ZONE_KEY), "Degraded") or {}
        assert (said["status"], said["reason"]) == ("True", "MissingReference")
        assert said["message"].startswith("there is no TSIG key xfr.example: `kudurru tsig create")
        assert scene.says(ZONE_KEY) == ("True", "AsExpected")
        before = scene.status_events()
        await scene.writer.submit(keyring.creation(request, TESTER, SeededEntropy(2)))
        await scene.settle()
        assert scene.says(ZONE_KEY, "Degraded") == ("False", "AsExpected")
        assert scene.status_events() == before + 1
        await scene.writer.submit(revocation(scene.node, "xfr.example", TESTER))
        await scene.settle()
        assert scene.says(ZONE_KEY, "Degraded") == ("True", "MissingReference")

    play(act)


SECONDARY = {"type": "Secondary", "secondary": {"primaries": [{"address": "192.0.2.53"}]}}


def test_a_secondary_that_was_not_transferred_says_so() -> None:
    async def act(scene: Scene) -> None:
        await scene.do(put(zone(**SECONDARY)))
        await scene.settle()
        assert scene.says(ZONE_KEY) == ("False", "NotTransferred")
        assert "SerialBumped" not in dict(scene.told())

    play(act)


POLICY = key_of("Policy", "default", "kids")
OFF = {"annotations": {"kudurru.io/enabled": "false"}}


def policy(**spec: Any) -> Any:
    return put(manifest("Policy", "kids", spec))


def group(name: str, **metadata: Any) -> Any:
    return put(manifest("ClientGroup", name, {"clients": [{"ip": "192.0.2.7"}]}, **metadata))


def ads(**metadata: Any) -> Any:
    spec = {"sources": [{"inline": ["ads.example"]}]}
    return put(manifest("BlockList", "ads", spec, **metadata))


def test_references_of_a_policy_are_judged_as_what_they_name_comes_and_goes() -> None:
    async def act(scene: Scene) -> None:
        refs = {"clientGroupRefs": ["kids", "other/guests"], "blockListRefs": ["ads"]}
        await scene.do(policy(**refs))
        await scene.settle()
        assert scene.says(POLICY) == ("False", "MissingReference")
        await scene.do(group("kids"), ads())
        await scene.settle()
        assert scene.says(POLICY) == ("True", "AsExpected")
        assert scene.says(POLICY, "Degraded") == ("True", "MissingReference")
        await scene.do(group("guests"))  # of another namespace than the one that is named
        await scene.settle()
        assert scene.says(POLICY, "Degraded") == ("True", "MissingReference")
        await scene.do(group("guests", namespace="other"))
        await scene.settle()
        assert scene.says(POLICY, "Degraded") == ("False", "AsExpected")
        await scene.do(drop(key_of("BlockList", "default", "ads")))
        await scene.settle()
        found = condition(scene.status(POLICY), "Degraded") or {}
        assert found["message"] == "there is no BlockList default/ads"

    play(act)


def test_a_policy_names_what_it_leaves_out_because_it_is_disabled() -> None:
    async def act(scene: Scene) -> None:
        await scene.do(group("kids"), ads(**OFF))
        await scene.do(policy(clientGroupRefs=["kids"], blockListRefs=["ads"]))
        await scene.settle()
        ready = condition(scene.status(POLICY), "Ready") or {}
        assert (ready["status"], ready["reason"]) == ("True", "AsExpected")
        assert ready["message"] == "left out, as they are disabled: BlockList default/ads"
        assert scene.says(POLICY, "Degraded") == ("False", "AsExpected")
        await scene.do(ads(annotations={"kudurru.io/enabled": "true"}))
        await scene.settle()
        assert (condition(scene.status(POLICY), "Ready") or {})["message"] == ""
        await scene.do(group("kids", **OFF))
        await scene.settle()
        assert scene.says(POLICY) == ("False", "Disabled")
        await scene.do(group("kids", annotations={"kudurru.io/enabled": "true"}))
        await scene.settle()
        assert scene.says(POLICY) == ("True", "AsExpected")

    play(act)


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("BlockList", {"sources": [{"inline": ["ads.example"]}]}),
        ("ClientGroup", {"clients": [{"ip": "192.0.2.7"}]}),
        ("Policy", {"deny": ["ads.example"]}),
    ],
)
def test_what_is_switched_off_says_so_and_what_is_on_says_nothing_of_it(
    kind: str, spec: dict[str, Any]
) -> None:
    async def act(scene: Scene) -> None:
        key = key_of(kind, "default", "x")
        await scene.do(put(manifest(kind, "x", spec)))
        await scene.settle()
        assert scene.says(key) == ("True", "AsExpected")
        assert scene.says(key, "Disabled") is None
        await scene.do(put(manifest(kind, "x", spec, **OFF)))
        await scene.settle()
        assert scene.says(key) == ("False", "Disabled")
        assert scene.says(key, "Degraded") == ("False", "AsExpected")
        assert scene.says(key, "Disabled") == ("True", "Disabled")
        await scene.do(put(manifest(kind, "x", spec, annotations={"kudurru.io/enabled": "true"})))
        await scene.settle()
        assert scene.says(key, "Disabled") is None

    play(act)


def test_an_integration_of_a_client_group_is_unsupported() -> None:
    async def act(scene: Scene) -> None:
        key = key_of("ClientGroup", "default", "x")
        spec = {"sources": {"integrationRef": "unifi"}}
        await scene.do(put(manifest("ClientGroup", "x", spec)))
        await scene.settle()
        assert scene.says(key) == ("False", "Unsupported")
        await scene.do(put(manifest("ClientGroup", "x", {**spec, "clients": [{"ip": "::1"}]})))
        await scene.settle()
        assert scene.says(key) == ("True", "AsExpected")
        assert scene.says(key, "Degraded") == ("True", "Unsupported")

    play(act)


def test_what_was_written_by_others_stays_in_the_status_of_a_list() -> None:
    async def act(scene: Scene) -> None:
        key = key_of("BlockList", "default", "x")
        spec = {"sources": [{"url": "https://lists.example/a"}]}
        await scene.do(put(manifest("BlockList", "x", spec)))
        await scene.settle()
        assert scene.says(key) == ("Unknown", "NotFetched")
        sources = [
            {"source": "https://lists.example/a", "phase": "Failed", "error": "HTTP status 404"}
        ]
        document = await scene.store.get(key)
        document["status"] |= {"sources": sources, "entries": 0}
        await scene.store.update_status(document, "lists")
        await scene.settle()
        assert scene.says(key) == ("False", "Unreachable")
        assert scene.says(key, "Degraded") == ("True", "Unreachable")
        status = scene.status(key) or {}
        assert status["sources"] == sources
        assert status["entries"] == 0
        ready = condition(status, "Ready") or {}
        assert ready["message"] == "https://lists.example/a: HTTP status 404"

    play(act)


def test_resyncs_of_what_is_right_write_nothing() -> None:
    async def act(scene: Scene) -> None:
        await scene.do(put(zone()), addresses("a", "192.0.2.1"), addresses("b", "192.0.2.2"))
        await scene.do(policy(clientGroupRefs=["nobody"]), ads(), group("kids"))
        await scene.settle()
        head = scene.node.log.head().seq
        for _ in range(10):
            await scene.resync()
        assert scene.node.log.head().seq == head

    play(act)


def test_a_resync_heals_what_was_never_heard_of() -> None:
    async def act(scene: Scene) -> None:
        await scene.do(policy(clientGroupRefs=["kids"]))
        await scene.settle()
        heard = scene.writer.listeners.pop()  # nobody is told of what comes
        await scene.do(group("kids"), group("new"))
        await scene.settle()
        scene.writer.listeners.append(heard)
        assert scene.says(POLICY) == ("False", "MissingReference")
        await scene.resync()
        assert scene.says(POLICY) == ("True", "AsExpected")
        assert scene.says(key_of("ClientGroup", "default", "new")) == ("True", "AsExpected")

    play(act)


def test_a_new_term_changes_nothing_that_is_right_and_tells_nothing_again() -> None:
    async def act(scene: Scene) -> None:
        await scene.do(put(zone()), addresses("a", "192.0.2.1"), addresses("b", "192.0.2.2"))
        await scene.do(policy(clientGroupRefs=["nobody"]), put(zone("gone.test")))
        await scene.do(drop(key_of("DNSZone", "", "gone.test")))
        await scene.settle()

    node = play(act)
    head = node.log.head().seq

    async def again(scene: Scene) -> None:
        await scene.settle()
        assert scene.node.log.head().seq == head
        assert scene.told() == []
        assert scene.controllers.statistics().reconciles["Policy", "done"] == 1

    play(again, node)


def test_a_label_or_another_order_of_targets_moves_nothing() -> None:
    async def act(scene: Scene) -> None:
        await scene.do(put(zone()), put(www("192.0.2.1", "192.0.2.2")))
        await scene.settle()
        before = scene.status(ZONE_KEY), scene.status_events()
        await scene.do(put(www("192.0.2.2", "192.0.2.1", labels={"a": "b"})))
        await scene.settle()
        assert (scene.status(ZONE_KEY), scene.status_events()) == before

    play(act)


def test_a_thousand_changes_in_a_second_are_at_most_five_serials() -> None:
    async def act(scene: Scene) -> None:
        await scene.do(put(zone()))
        await scene.settle()
        before = scene.status_events()
        for i in range(1_000):
            await scene.do(addresses(f"h{i}", f"192.0.2.{i % 250}", owner=f"h{i}"))
            scene.timers.advance(SECOND // 1_000)
        await scene.settle()
        assert 1 <= scene.status_events() - before <= 5

    play(act)


def test_a_clock_an_hour_back_keeps_serials_rising() -> None:
    async def act(scene: Scene) -> None:
        await scene.do(put(zone()))
        await scene.settle()
        serials = [(scene.status(ZONE_KEY) or {})["serial"]]
        scene.clock.step_wall(-3_600 * SECOND)
        for i in range(3):
            await scene.do(put(www(f"192.0.2.{i}")))
            await scene.settle()
            serials.append((scene.status(ZONE_KEY) or {})["serial"])
        assert serials == sorted(set(serials))
        assert scene.told() == [("SerialBumped", ZONE_KEY)] * 4

    play(act)


def test_an_expired_record_frees_its_name_for_the_other_and_moves_the_serial() -> None:
    async def act(scene: Scene) -> None:
        at = scene.clock.now_us() // SECOND + 60
        text = f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"
        alias = endpoint("www.example.org", "CNAME", "other.example.", expiresAt=text)
        await scene.do(put(zone()), put(record_set("a", alias)), addresses("b", "192.0.2.2"))
        await scene.settle()
        assert scene.says(set_key("b")) == ("False", "Invalid")
        serial = (scene.status(ZONE_KEY) or {})["serial"]
        scene.timers.advance(61 * SECOND)
        await scene.settle()
        assert scene.says(set_key("b")) == ("True", "AsExpected")
        assert (scene.status(ZONE_KEY) or {})["serial"] > serial

    play(act)


class LateStore(LogStore):
    """One whose writes are shown by the views only when a test lets them."""

    late: ClassVar[list[dict[str, Any]]]

    async def update_status(self, object: Document, manager: str) -> Outcome:  # noqa: A002  # as the port has it
        self.late.append(dict(object))
        return Outcome("configured", Key("DNSRecordSet/default/b"), "later")

    async def echo(self) -> None:
        while self.late:
            await super().update_status(self.late.pop(0), CONTROLLER)


def test_what_was_written_and_is_not_seen_yet_is_not_written_again() -> None:
    async def act(scene: Scene) -> None:
        store = scene.store
        assert isinstance(store, LateStore)
        LateStore.late = []
        await scene.do(policy(clientGroupRefs=["kids"]))
        await scene.until(lambda: len(store.late) == 1)
        scene.timers.advance(RESYNC_US)
        await scene.until(lambda: scene.controllers.statistics().reconciles["Policy", "done"] == 2)
        assert len(store.late) == 1
        await scene.do(group("kids"))  # which gets a status too, and makes another of the policy's
        await scene.until(lambda: scene.controllers.statistics().reconciles["Policy", "after"] > 0)
        assert [one["kind"] for one in store.late] == ["Policy", "ClientGroup"]
        while scene.says(POLICY) != ("True", "AsExpected"):
            await store.echo()
            scene.timers.advance(SECOND)
            await scene.idle()
        await scene.settle()
        assert scene.says(POLICY) == ("True", "AsExpected")
        assert scene.status_events() == 3  # and no needless one

    play(act, store=LateStore)


class SlowStore(LogStore):
    """One whose status writes take until a test lets them end."""

    gate: ClassVar[asyncio.Event]

    async def update_status(self, object: Document, manager: str) -> Outcome:  # noqa: A002  # as the port has it
        await self.gate.wait()
        return await super().update_status(object, manager)


def test_a_resync_that_comes_due_before_all_were_looked_at_is_left_out() -> None:
    async def act(scene: Scene) -> None:
        SlowStore.gate = asyncio.Event()
        spec = {"clientGroupRefs": ["kids"]}
        await scene.do(*(put(manifest("Policy", f"p{i}", spec)) for i in range(5)))
        seen = scene.controllers.statistics
        for _ in range(4):  # the first of them finds what came since the start to be looked at
            scene.timers.advance(RESYNC_US)
            await scene.until(lambda: seen().resyncs["Policy"] == 1)
        SlowStore.gate.set()
        await scene.settle()
        assert seen().status_writes == {"Policy": 5}
        await scene.resync()

    play(act, store=SlowStore)


class FlakyStore(LogStore):
    """One that refuses some writes."""

    refusals: ClassVar[list[Exception]]

    async def update_status(self, object: Document, manager: str) -> Outcome:  # noqa: A002  # as the port has it
        if self.refusals:
            raise self.refusals.pop()
        return await super().update_status(object, manager)


@pytest.mark.parametrize(
    ("refusals", "result"),
    [
        ([Conflict("it moved")] * 5, "conflict"),
        ([Busy("many wait")] * 3, "error"),
        ([StorageFailed("the disk is full")] * 3, "error"),
        ([RuntimeError("a fault of ours")] * 2, "error"),
    ],
)
def test_what_is_refused_is_tried_again_and_ends_as_it_would_have(
    refusals: list[Exception], result: str
) -> None:
    async def act(scene: Scene) -> None:
        FlakyStore.refusals = list(refusals)
        await scene.do(policy(clientGroupRefs=["kids"]))
        await scene.settle()
        assert scene.says(POLICY) == ("False", "MissingReference")
        seen = scene.controllers.statistics()
        assert seen.reconciles["Policy", result] == len(refusals)
        assert seen.status_writes == {"Policy": 1}

    play(act, store=FlakyStore)


def test_what_can_never_be_written_is_left_until_the_object_changes() -> None:
    async def act(scene: Scene) -> None:
        FlakyStore.refusals = [Invalid("status", [])]
        await scene.do(policy(clientGroupRefs=["kids"]))
        await scene.settle()
        assert scene.status(POLICY) is None
        assert scene.controllers.statistics().reconciles == {("Policy", "error"): 1}
        await scene.do(policy(clientGroupRefs=["kids"], priority=1))
        await scene.settle()
        assert scene.says(POLICY) == ("False", "MissingReference")

    play(act, store=FlakyStore)


def test_nobody_works_before_everything_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controllers, "SLICE", 1)
    node = memory_node()
    node.commit(a_change(*(group(f"g{i}") for i in range(8))))

    async def whole() -> None:
        scene = Scene(node)
        term = asyncio.create_task(scene.controllers.run())
        seen = scene.controllers.statistics
        while sum(seen().waiting.values()) < 8:
            assert not seen().reconciles
            await asyncio.sleep(0)
        while seen().reconciles != {("ClientGroup", "done"): 8}:
            await asyncio.sleep(0)
        term.cancel()
        await asyncio.gather(term, return_exceptions=True)

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_objects_are_listed_slice_by_slice_those_with_problems_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controllers, "SLICE", 2)
    node = memory_node()
    node.commit(a_change(*(addresses(f"s{i}", "192.0.2.1", zone="missing") for i in range(6))))
    listing = Scene(node).controllers._list()
    turns = 0
    with suppress(StopIteration):
        while True:
            listing.send(None)
            turns += 1
    assert turns == (6 + 6) // 2, "each is an object, and has a problem"


def test_while_nothing_can_be_written_nothing_is_tried() -> None:
    async def main() -> None:
        scene = Scene(memory_node())
        writing = asyncio.create_task(scene.writer.run())
        await scene.do(put(www()))
        scene.node.why_not_writable = StorageFailed("the disk is broken")
        assert await scene.controllers._pass(WWW_KEY) == Done()
        writing.cancel()

    asyncio.run(main())
