"""Secondary zones of a node, over a client in memory and a clock that stands."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest

from kudurru.adapters.memory.clock import ManualClock
from kudurru.adapters.refresh_times import RefreshTimes
from kudurru.domain.commands import Revert
from kudurru.domain.dns import names
from kudurru.domain.dns.lookup import NOERROR, NXDOMAIN, SERVFAIL, lookup
from kudurru.domain.dns.record_types import NS, SOA, TXT, A
from kudurru.domain.errors import Conflict, Invalid, StorageFailed
from kudurru.domain.events import OBJECT_STATUS
from kudurru.domain.objects import Key, key_of
from kudurru.entrypoints import secondaries as module
from kudurru.entrypoints.health import zone_samples
from kudurru.entrypoints.secondaries import Secondaries
from kudurru.entrypoints.wiring import Change, Node
from kudurru.entrypoints.writer import Writer
from kudurru.projections.zones_as_of import ZonesAsOf
from tests.idle_loop import IdleLoop, run_idle
from tests.nodes import BrittleLog, a_change, memory_node, rebuilt
from tests.objects import drop, endpoint, put, record_set, zone
from tests.primaries import MemoryClient, Script, Step, soa, whole

S = 1_000_000
NAME = "sec.example"
ZONE = key_of("DNSZone", "", NAME)
FIRST, SECOND = "192.0.2.1", "192.0.2.2"
HOURS = "3600 600 86400 60"


class Scene:
    """A node with the runnables that secondary zones need."""

    def __init__(self, node: Node, client: MemoryClient, times: RefreshTimes | None = None) -> None:
        assert isinstance(node.clock, ManualClock)
        self.node, self.client, self.clock = node, client, node.clock
        self.script = client.scripts[FIRST]
        self.writer = Writer(node)
        ids = iter(range(1, 60_000))
        self.secondaries = Secondaries(
            node,
            self.writer,
            client,
            chance=lambda: 0.0,
            new_id=lambda: next(ids),
            find_key=lambda _name: None,
            times=times,
        )
        self.writer.listeners.append(self.secondaries.heard)

    async def add(self, **spec: object) -> None:
        primaries = {"primaries": [{"address": FIRST}, {"address": SECOND}]}
        manifest = zone(NAME, type="Secondary", **{"secondary": primaries, **spec})
        await self.writer.submit(a_change(put(manifest)))

    def say(self, step: Step, *, by: str = FIRST) -> None:
        self.client.scripts[by].steps[NAME] = step

    def pass_time(self, seconds: int) -> None:
        self.clock.advance(seconds * S)
        self.node.advance()
        self.secondaries.wake()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.001)

    async def settled(self) -> None:
        """Until everything that is due was done."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, IdleLoop)
        await loop.idle()
        assert not any(t.busy is not None for t in self.secondaries._tracked.values())

    def serial(self) -> int | None:
        found = self.node.zones.served.get(names.from_text(NAME))
        return found.serial if found is not None and found.is_available else None

    def rcode(self, name: str, rtype: int = TXT) -> int:
        qname = names.from_text(f"{name}.{NAME}" if name else NAME)
        return lookup(self.node.zones.served, qname, rtype, 0).rcode

    def status(self) -> dict:
        stored = self.node.objects.find(ZONE)
        assert stored is not None
        return stored.status or {}

    def condition(self, kind: str) -> tuple[str, str]:
        return next(
            (c["status"], c["reason"]) for c in self.status()["conditions"] if c["type"] == kind
        )

    def sets(self) -> set[str]:
        return {key.rpartition("/")[2] for key in self.node.objects.keys("DNSRecordSet")}


Use = Callable[[Scene], Awaitable[None]]


def run(
    use: Use,
    *,
    node: Node | None = None,
    scripts: dict[str, Script] | None = None,
    times: RefreshTimes | None = None,
) -> Node:
    async def scene() -> Node:
        client = MemoryClient()
        client.scripts = scripts or {FIRST: Script(), SECOND: Script()}
        made = Scene(node or memory_node(), client, times)
        tasks = [
            asyncio.create_task(made.writer.run()),
            asyncio.create_task(made.secondaries.run()),
        ]
        try:
            await asyncio.wait_for(use(made), 60)
            for task in tasks:
                assert not task.done(), task.exception()
        finally:
            # What is being written is written to its end: the node has what its log has.
            writing, refreshing = tasks
            refreshing.cancel()
            with suppress(asyncio.CancelledError):
                await refreshing
            made.writer.stop()
            await writing
        return made.node

    return run_idle(scene())


async def transferred(scene: Scene, *lines: str, serial: int = 10) -> None:
    """A zone that has been transferred once."""
    scene.say(whole(serial, *(lines or ('www 60 TXT "one"',)), timers=HOURS))
    await scene.add()
    await scene.until(lambda: scene.serial() == serial)
    await scene.settled()


def test_a_zone_is_transferred_and_served_as_its_primary_has_it() -> None:
    async def use(scene: Scene) -> None:
        await scene.add()
        await scene.settled()
        assert scene.rcode("www") == SERVFAIL  # before the first transfer, nothing is right
        scene.say(whole(10, 'www 60 TXT "one"', timers=HOURS))
        scene.pass_time(2)
        await scene.until(lambda: scene.serial() == 10)
        assert scene.rcode("www") == NOERROR
        assert scene.rcode("ftp") == NXDOMAIN
        assert scene.rcode("", NS) == NOERROR
        assert (
            lookup(scene.node.zones.served, names.from_text(NAME), SOA, 0)
            .answer[0]
            .wire.endswith(bytes.fromhex("0000000a 00000e10 00000258 00015180 0000003c"))
        )
        assert scene.sets() == {f"apex.{NAME}", f"www.{NAME}"}
        assert scene.status()["serial"] == 10
        assert not scene.node.zones.unstamped()

    node = run(use)
    assert rebuilt(node).views.digests() == node.views.digests()
    assert len({event.txn for event in node.log.read()}) == 3  # the zone, its trouble, its version
    transfer = [event for event in node.log.read() if event.manager == f"secondary:{NAME}"]
    assert b'"actor":"secondary:sec.example"' in (transfer[0].who or b"")
    assert b'"source":"192.0.2.1:53"' in (transfer[0].who or b"")


def test_metrics_have_zones_that_are_served_and_none_before_all_is_there() -> None:
    async def use(scene: Scene) -> None:
        await transferred(scene, 'www 60 TXT "one"', 'www 60 TXT "two"', serial=7)
        forward = {"upstreams": ["192.0.2.9"]}
        await scene.writer.submit(
            a_change(
                put(zone("home.example")), put(zone("f.example", type="Forward", forward=forward))
            )
        )
        assert [*zone_samples(scene.node, is_synced=False)] == []
        found = {
            (one.name, *one.labels): one.value for one in zone_samples(scene.node, is_synced=True)
        }
        assert {zone for _, zone, *_ in found} == {f"{NAME}.", "home.example."}
        assert found["zone_serial", f"{NAME}."] == 7
        assert found["zone_records", f"{NAME}.", "records"] == 4  # SOA, NS and two TXT
        assert found["zone_records", f"{NAME}.", "names"] == 2

    run(use)


def test_a_newer_version_writes_what_differs_as_one_change_and_the_past_can_be_asked() -> None:
    async def use(scene: Scene) -> None:
        await transferred(scene, 'www 60 TXT "one"', 'old 60 TXT "o"', 'keep 60 TXT "k"')
        before = scene.node.position
        steps = [soa(11, HOURS), soa(10, HOURS), 'old 60 TXT "o"', 'WWW 60 TXT "one"',
                 soa(11, HOURS), 'www 60 TXT "two"', soa(11, HOURS)]  # fmt: skip
        scene.say({**whole(11, timers=HOURS), "axfr": "drop", "ixfr": [steps]})
        scene.pass_time(3600)
        await scene.until(lambda: scene.serial() == 11)
        new = list(scene.node.log.read(before))
        assert {e.txn for e in new} == {before + 1}
        assert [e.key.rpartition("/")[2] for e in new] == [f"old.{NAME}", f"www.{NAME}", NAME]
        assert scene.script.asked[-1] == (NAME, "IXFR")
        (delta,) = [v.delta for v in scene.node.zones.history.versions(names.from_text(NAME))][1:]
        assert delta is not None
        assert (delta.from_serial, delta.to_serial, len(delta.changes)) == (10, 11, 2)
        past = ZonesAsOf(scene.node.log, before)
        assert lookup(past, names.from_text(f"old.{NAME}"), TXT, 0).rcode == NOERROR
        found = past.get(names.from_text(NAME))
        assert found is not None
        assert found.serial == 10
        assert found.stamped_soa is not None
        assert found.stamped_soa.refresh == 3600

    node = run(use)
    assert rebuilt(node).views.digests() == node.views.digests()


def test_a_whole_zone_after_differences_that_fail_deletes_what_is_gone() -> None:
    async def use(scene: Scene) -> None:
        await transferred(scene, 'www 60 TXT "one"', 'old 60 TXT "o"')
        step = whole(11, 'www 60 TXT "one"', timers=HOURS)
        wrong = [soa(11, HOURS), soa(10, HOURS), 'not 60 TXT "t"', soa(11, HOURS), soa(11, HOURS)]
        scene.say({**step, "ixfr": [wrong]})
        scene.pass_time(3600)
        await scene.until(lambda: scene.serial() == 11)
        assert [rtype for _, rtype in scene.script.asked[-3:]] == ["SOA", "IXFR", "AXFR"]
        assert scene.sets() == {f"apex.{NAME}", f"www.{NAME}"}
        assert scene.secondaries.statistics().failures == {"BadTransfer": 1}

    run(use)


def test_an_unchanged_zone_writes_nothing_at_its_refreshes() -> None:
    async def use(scene: Scene) -> None:
        await transferred(scene)
        before = scene.node.position
        for _ in range(5):
            scene.pass_time(3600)
            await scene.settled()
        assert scene.node.position == before
        # ... but once in a quarter of its expiry, for a node that has nothing but the log.
        scene.pass_time(3600)
        scene.pass_time(3600)
        await scene.settled()
        assert scene.node.position == before + 1

    run(use)


def test_a_zone_whose_primaries_are_silent_is_served_until_it_expires_and_not_after() -> None:
    async def use(scene: Scene) -> None:
        await transferred(scene)
        scene.script.is_down = True
        before = scene.node.position
        for _ in range(23):
            scene.pass_time(3600)
            await scene.settled()
            assert scene.rcode("www") == NOERROR
        assert scene.condition("Refreshed") == ("False", "Unreachable")
        assert scene.condition("Ready")[0] == "True"
        assert scene.node.position == before + 1  # one write for all failures
        scene.pass_time(3600)
        await scene.until(lambda: scene.rcode("www") == SERVFAIL)
        await scene.settled()
        assert scene.condition("Ready") == ("False", "Expired")
        assert scene.secondaries.statistics().expired == 1
        assert rebuilt(scene.node).views.digests() == scene.node.views.digests()
        scene.script.is_down = False
        scene.pass_time(3600)
        await scene.until(lambda: scene.rcode("www") == NOERROR)
        await scene.settled()
        assert scene.condition("Ready") == ("True", "AsExpected")
        assert scene.sets() == {f"apex.{NAME}", f"www.{NAME}"}

    run(use)


def test_an_expiry_is_written_also_when_somebody_changes_the_zone_just_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def use(scene: Scene) -> None:
        await transferred(scene)
        scene.script.is_down = True
        scene.pass_time(3600)
        await scene.settled()
        submit = scene.writer.submit

        async def overtaken(_change: Change) -> NoReturn:
            monkeypatch.setattr(scene.writer, "submit", submit)
            raise Conflict("another was faster")

        monkeypatch.setattr(scene.writer, "submit", overtaken)
        scene.pass_time(86400)
        await scene.until(lambda: scene.rcode("www") == SERVFAIL)
        await scene.settled()
        assert scene.condition("Ready") == ("False", "Expired")

    run(use)


def test_a_zone_expires_also_when_the_log_takes_nothing() -> None:
    async def use(scene: Scene) -> None:
        await transferred(scene)
        scene.script.is_down = True
        scene.pass_time(3600)
        await scene.settled()
        assert isinstance(scene.node.log, BrittleLog)
        scene.node.why_not_writable = StorageFailed("the disk is gone")
        scene.pass_time(86400)
        await scene.until(lambda: scene.rcode("www") == SERVFAIL)

    run(use)


@pytest.mark.parametrize("has_file", [True, False])
def test_a_restart_without_the_primary_serves_until_expiry(tmp_path: Path, has_file: bool) -> None:
    """The file beside the log has the last refresh; the log alone has one of the last quarter."""
    times = RefreshTimes(tmp_path / "times.json")
    silent = {FIRST: Script(), SECOND: Script()}

    async def first(scene: Scene) -> None:
        await transferred(scene)
        for _ in range(5):  # right until five hours after the transfer, and the log does not know
            scene.pass_time(3600)
            await scene.settled()

    async def second(scene: Scene) -> None:
        left_s = 86_400 if has_file else 86_400 - 5 * 3600
        await scene.settled()
        scene.pass_time(left_s - 60)
        await scene.settled()
        assert scene.rcode("www") == NOERROR
        scene.pass_time(60)
        await scene.until(lambda: scene.rcode("www") == SERVFAIL)

    node = run(first, times=times)
    if not has_file:
        (tmp_path / "times.json").unlink()
    again = Node(node.log, node.clock, node._entropy)
    again.catch_up()
    run(second, node=again, scripts=silent, times=times)


def test_a_restart_after_the_expiry_serves_nothing(tmp_path: Path) -> None:
    times = RefreshTimes(tmp_path / "times.json")
    node = run(transferred, times=times)
    assert isinstance(node.clock, ManualClock)
    node.clock.advance(90_000 * S)
    again = Node(node.log, node.clock, node._entropy)
    again.catch_up()

    async def use(scene: Scene) -> None:
        await scene.until(lambda: scene.rcode("www") == SERVFAIL)

    run(use, node=again, scripts={FIRST: Script(), SECOND: Script()}, times=times)


def test_a_clock_that_jumps_expires_nothing() -> None:
    async def use(scene: Scene) -> None:
        await transferred(scene)
        scene.script.is_down = True
        scene.clock.step_wall(10 * 365 * 86_400 * S)
        scene.secondaries.wake()
        await scene.settled()
        assert scene.rcode("www") == NOERROR

    run(use)


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (None, "Unreachable"),
        ({"serial": 11, "soa": "drop"}, "Unreachable"),
        (whole(9), "Behind"),
        ({"serial": 11, "axfr": "rcode REFUSED"}, "Refused"),
        ({"serial": 11, "axfr": [[soa(11), 'evil.org. 60 TXT "e"', soa(11)]]}, "BadTransfer"),
        ({"serial": 11, "axfr": [[soa(11), 'www 60 TXT "w"'], "close"]}, "BadTransfer"),
        ({"serial": 11, "axfr": [[soa(11), 'www 60 TXT "w"']]}, "Unreachable"),
        ({"serial": 11, "axfr": [[soa(10), 'www 60 TXT "w"', soa(9)]]}, "BadTransfer"),
    ],
    ids=["silent", "no soa", "older", "refused", "out of zone", "cut", "stalls", "another end"],
)  # fmt: skip
def test_whatever_a_primary_sends_the_served_zone_stays_and_the_status_says_why(
    step: Step | None, reason: str
) -> None:
    async def use(scene: Scene) -> None:
        await transferred(scene)
        scene.script.steps.clear()
        if step is not None:
            scene.say(step)
        for _ in range(3):
            scene.pass_time(3600)
            await scene.settled()
        assert scene.condition("Refreshed") == ("False", reason)
        assert scene.serial() == 10
        assert scene.rcode("www") == NOERROR

    node = run(use)
    assert sum(e.type == OBJECT_STATUS for e in node.log.read()) <= 3


def test_the_second_primary_is_asked_when_the_first_is_silent_and_first_from_then_on() -> None:
    async def use(scene: Scene) -> None:
        await transferred(scene)
        scene.script.is_down = True
        scene.say(whole(11, 'www 60 TXT "two"', timers=HOURS), by=SECOND)
        scene.pass_time(3600)
        await scene.until(lambda: scene.serial() == 11)
        await scene.settled()
        assert scene.status()["primary"] == f"{SECOND}:53"
        asked = len(scene.script.asked)
        scene.pass_time(3600)
        await scene.settled()
        assert len(scene.script.asked) == asked

    run(use)


def test_nobody_else_writes_into_a_secondary_zone() -> None:
    async def use(scene: Scene) -> None:
        await transferred(scene)
        mine = record_set("mine", endpoint(f"mine.{NAME}", "A", "192.0.2.9"), zone=NAME)
        with pytest.raises(Invalid, match="its records come from its primary"):
            await scene.writer.submit(a_change(put(mine, force=True)))
        key = Key(f"DNSRecordSet/default/www.{NAME}")
        with pytest.raises(Invalid, match="its records come from its primary"):
            await scene.writer.submit(a_change(drop(key, manager="kudurru", force=True)))

    run(use)


def test_record_sets_that_were_there_before_give_way_to_the_primarys() -> None:
    async def use(scene: Scene) -> None:
        mine = record_set("mine", endpoint(f"mine.{NAME}", "A", "192.0.2.9"), zone=NAME)
        await scene.writer.submit(a_change(put(zone(NAME)), put(mine)))
        await scene.add()
        await scene.settled()
        assert scene.rcode("mine", A) == NOERROR  # until there is something to take its place
        scene.say(whole(10, 'www 60 TXT "one"', timers=HOURS))
        scene.pass_time(2)
        await scene.until(lambda: scene.rcode("mine", A) == NXDOMAIN)
        assert scene.sets() == {f"apex.{NAME}", f"www.{NAME}"}

    run(use)


def test_records_that_a_restore_changed_are_fetched_again() -> None:
    async def use(scene: Scene) -> None:
        await transferred(scene)
        stored = scene.node.objects.find(Key(f"DNSRecordSet/default/www.{NAME}"))
        assert stored is not None
        spec = bytes(stored.body.spec).replace(b'\\"one\\"', b'\\"was\\"')
        revert = Revert(
            key=stored.key, spec=type(stored.body.spec)(spec), labels={}, annotations={},
            manager=stored.manager, created=stored.body.creation_timestamp,
        )  # fmt: skip
        scene.script.is_down = True
        await scene.writer.submit(a_change(revert))
        stored = scene.node.objects.find(stored.key)
        assert stored is not None
        assert b"was" in bytes(stored.body.spec)
        scene.pass_time(1)
        await scene.until(lambda: scene.condition("Refreshed")[0] == "False")
        await scene.settled()
        scene.script.is_down = False
        asked = len(scene.script.asked)
        scene.pass_time(3600)
        await scene.until(lambda: len(scene.script.asked) == asked + 2)
        await scene.settled()
        stored = scene.node.objects.find(stored.key)
        assert stored is not None
        assert b"one" in bytes(stored.body.spec)
        assert scene.script.asked[-2:] == [(NAME, "SOA"), (NAME, "AXFR")]

    run(use)


def test_the_record_sets_of_a_deleted_zone_go_with_it() -> None:
    async def use(scene: Scene) -> None:
        await transferred(scene)
        await scene.writer.submit(a_change(drop(ZONE)))
        await scene.until(lambda: not scene.sets())

    run(use)


def test_a_zone_that_is_deleted_and_applied_again_takes_a_lower_serial() -> None:
    async def use(scene: Scene) -> None:
        await transferred(scene)
        scene.say(whole(3, timers=HOURS))
        await scene.writer.submit(a_change(drop(ZONE)))
        await scene.settled()
        await scene.add()
        await scene.until(lambda: scene.serial() == 3)
        assert scene.rcode("www") == NXDOMAIN

    run(use)


def test_a_flood_of_notifies_is_one_look_at_the_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(scene: Scene) -> None:
        await transferred(scene)
        looks = 0
        look = scene.secondaries._reconcile

        def counted() -> None:
            nonlocal looks
            looks += 1
            look()

        monkeypatch.setattr(scene.secondaries, "_reconcile", counted)
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        monkeypatch.setattr(loop, "time", lambda: now_s)  # what is due later is not due here
        for _ in range(50):
            assert scene.secondaries.notified(names.from_text(NAME), FIRST, None) == "taken"
            for _ in range(5):
                await asyncio.sleep(0)
        await scene.settled()
        assert looks <= 1

    run(use)


def test_a_secondary_becomes_a_primary_with_what_it_has_and_its_serial_goes_on() -> None:
    async def use(scene: Scene) -> None:
        await transferred(scene)
        await scene.writer.submit(a_change(put(zone(NAME))))
        assert scene.rcode("www") == NOERROR
        served = scene.node.zones.served.get(names.from_text(NAME))
        assert served is not None
        assert served.serial > 10
        assert "soa" not in scene.status()

    node = run(use)
    assert rebuilt(node).views.digests() == node.views.digests()


def test_a_slow_transfer_does_not_keep_a_zone_from_expiring() -> None:
    async def use(scene: Scene) -> None:
        await transferred(scene)
        scene.say(whole(11, 'www 60 TXT "two"', timers=HOURS))
        scene.script.is_slow = asyncio.Event()
        scene.pass_time(3600)
        await scene.until(lambda: scene.script.asked[-1] == (NAME, "IXFR"))
        assert scene.rcode("www") == NOERROR
        scene.pass_time(90_000)
        await scene.until(lambda: scene.rcode("www") == SERVFAIL)
        scene.script.is_slow.set()
        await scene.until(lambda: scene.serial() == 11)
        await scene.settled()
        assert scene.condition("Ready") == ("True", "AsExpected")

    run(use)


def test_primaries_may_be_taken_away_while_one_is_asked() -> None:
    async def use(scene: Scene) -> None:
        await transferred(scene)
        scene.script.is_down = True
        scene.say(whole(11, timers=HOURS), by=SECOND)
        scene.client.scripts[SECOND].is_slow = asyncio.Event()
        scene.pass_time(3600)
        await scene.until(lambda: scene.client.scripts[SECOND].asked[-1:] == [(NAME, "IXFR")])
        await scene.add(secondary={"primaries": [{"address": FIRST}]})
        scene.client.scripts[SECOND].is_slow.set()
        await scene.until(lambda: scene.serial() == 11)

    run(use)


def test_a_fault_of_ours_costs_a_refresh_and_not_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def use(scene: Scene) -> None:
        await transferred(scene)
        with monkeypatch.context() as patch:
            patch.setattr(module, "is_sound", lambda *_: 1 // 0)
            scene.pass_time(3600)
            await scene.settled()
        scene.say(whole(11, timers=HOURS))
        scene.pass_time(7200)
        await scene.until(lambda: scene.serial() == 11)

    run(use)


# --- NOTIFY ----------------------------------------------------------------------------------


def test_a_notify_of_a_primary_leads_to_one_refresh_and_of_others_to_none() -> None:
    async def use(scene: Scene) -> None:
        await transferred(scene)
        apex = names.from_text(NAME)
        scene.say(whole(11, timers=HOURS))
        before = scene.secondaries.statistics().refreshes
        assert scene.secondaries.notified(apex, "192.0.2.99", None) == "refused"
        assert scene.secondaries.notified(names.from_text("other."), FIRST, None) == "unknown"
        await scene.settled()
        assert scene.secondaries.statistics().refreshes == before
        for _ in range(100):
            assert scene.secondaries.notified(apex, f"::ffff:{FIRST}", None) == "taken"
        scene.pass_time(1)
        await scene.until(lambda: scene.serial() == 11)
        await scene.settled()
        assert scene.secondaries.statistics().refreshes == before + 1
        assert scene.secondaries.statistics().notifies == {
            "refused": 1, "unknown": 1, "taken": 100
        }  # fmt: skip

    run(use)


def test_a_primary_that_has_a_key_must_sign_its_notify() -> None:
    async def use(scene: Scene) -> None:
        primaries = {"primaries": [{"address": FIRST, "keyRef": "k"}]}
        await scene.add(secondary=primaries)
        await scene.settled()
        assert scene.secondaries.notified(names.from_text(NAME), FIRST, None) == "refused"
        assert scene.condition("Refreshed") == ("False", "Refused")

    run(use)


def test_hundreds_of_zones_are_refreshed_some_at_a_time() -> None:
    async def use(scene: Scene) -> None:
        most = 0

        def count() -> None:
            nonlocal most
            busy = sum(t.busy is not None for t in scene.secondaries._tracked.values())
            most = max(most, busy)

        scene.client.before_message = count
        changes = []
        for i in range(100):
            scene.script.steps[f"z{i}.example"] = whole(10, timers=HOURS)
            secondary = {"primaries": [{"address": FIRST}]}
            changes.append(put(zone(f"z{i}.example", type="Secondary", secondary=secondary)))
        await scene.writer.submit(a_change(*changes))
        await scene.until(lambda: all(z.is_available for z in scene.node.zones.served))
        await scene.settled()
        assert 1 < most <= module.REFRESHES_MAX

    run(use)
