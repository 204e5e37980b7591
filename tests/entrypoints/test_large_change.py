"""A large change beside queries: the loop has its turns, and nobody sees a part of it."""

import asyncio
from collections.abc import Callable
from typing import Any

import dns.message
import dns.rcode
import pytest

from kudurru.adapters.memory.clock import ManualClock, SeededEntropy
from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.domain.events import ChangeSet, Who
from kudurru.domain.ports import Origins
from kudurru.entrypoints.answering import pipeline_of
from kudurru.entrypoints.service import ChangeRequest, manifest_from_wire, to_change
from kudurru.entrypoints.steps import PER_STEP
from kudurru.entrypoints.wiring import STEPPED_MIN, Node
from kudurru.entrypoints.writer import Writer
from tests.blackbox.program import records, zone

SETS = 2_000
ZONE = "large.example"


def manifests(address: str, *, with_zone: bool = True) -> list[dict[str, Any]]:
    sets = [records(f"h{i}.{ZONE}", ZONE, (f"h{i}.{ZONE}", "A", address)) for i in range(SETS)]
    return [*([zone(ZONE)] if with_zone else []), *sets]


class Rig:
    """A node with its writer, and a client that asks at every turn of the loop."""

    def __init__(self) -> None:
        clock = ManualClock()
        self.invalidated = 0
        log = MemoryEventLog(entropy=SeededEntropy(1), clock=clock)
        self.node = Node(log, clock, SeededEntropy(2), on_change=self.invalidate)
        self.writer = Writer(self.node)
        self.pipeline = pipeline_of(self.node)
        self.seen: list[tuple[str, ...]] = []  # what the first, a middle and the last name gave
        self.on_look: Callable[[Rig], None] = lambda _: None

    def invalidate(self, _changed: Origins) -> None:
        self.invalidated += 1

    async def apply(self, documents: list[dict[str, Any]]) -> None:
        objects = [manifest_from_wire(one) for one in documents]
        request = ChangeRequest(apply=objects, allow_mass_change=True)
        await self.writer.submit(to_change(request, Who(actor="test", source="test")))

    async def ask_always(self) -> None:
        while True:
            names = [f"h{i}.{ZONE}." for i in (0, SETS // 2, SETS - 1)]
            self.seen.append(tuple(self.text(name) for name in names))
            self.on_look(self)
            await asyncio.sleep(0)

    def text(self, name: str) -> str:
        packet = dns.message.make_query(name, "A").to_wire()
        answer = dns.message.from_wire(self.pipeline.handle(packet, "192.0.2.1", "udp").wire)
        return answer.answer[0][0].to_text() if answer.answer else dns.rcode.to_text(answer.rcode())


def run(scenario: Callable[[Rig], Any]) -> Rig:
    async def main() -> Rig:
        rig = Rig()
        tasks = [asyncio.create_task(rig.writer.run()), asyncio.create_task(rig.ask_always())]
        await scenario(rig)
        rig.seen.append(tuple(rig.text(f"h{i}.{ZONE}.") for i in (0, SETS // 2, SETS - 1)))
        for task in tasks:
            task.cancel()
        return rig

    return asyncio.run(main())


def states(rig: Rig) -> list[str]:
    """What was seen, in order, repeats left out. Fails where one look saw two states."""
    assert all(len(set(look)) == 1 for look in rig.seen), set(rig.seen)
    seen = [look[0] for look in rig.seen]
    return [one for i, one in enumerate(seen) if i == 0 or one != seen[i - 1]]


def test_a_new_zone_is_there_at_once_and_queries_have_their_turns_while_it_is_made() -> None:
    rig = run(lambda rig: rig.apply(manifests("192.0.2.1")))
    assert states(rig) == ["REFUSED", "192.0.2.1"]
    # Deciding and taking in each have so many breaks.
    assert len(rig.seen) >= 2 * (SETS // PER_STEP)


def test_nobody_sees_a_new_zone_without_its_serial() -> None:
    serials: list[int] = []

    def look(rig: Rig) -> None:
        serials.extend(served.serial for served in rig.node.zones.served)

    async def scenario(rig: Rig) -> None:
        rig.on_look = look
        await rig.apply([zone(ZONE)])
        look(rig)

    run(scenario)
    assert serials
    assert 0 not in serials


def test_a_served_zone_changes_as_one_and_the_next_query_sees_all_of_it() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.apply(manifests("192.0.2.1"))
        rig.seen.clear()
        await rig.apply(manifests("192.0.2.2", with_zone=False))
        assert rig.text(f"h7.{ZONE}.") == "192.0.2.2"

    rig = run(scenario)
    assert states(rig) == ["192.0.2.1", "192.0.2.2"]
    assert len(rig.seen) >= 2 * (SETS // PER_STEP)


def test_remembered_answers_are_dropped_when_the_change_is_shown_not_at_each_record() -> None:
    rig = run(lambda rig: rig.apply(manifests("192.0.2.1")))
    assert rig.invalidated < 10


@pytest.mark.parametrize(
    ("count", "breaks"),
    [(1, 0), (PER_STEP, 0), (STEPPED_MIN - 1, 0), (STEPPED_MIN, STEPPED_MIN // PER_STEP)],
)
def test_only_a_large_change_is_taken_in_with_breaks(count: int, breaks: int) -> None:
    node = Rig().node
    documents = manifests("192.0.2.1", with_zone=False)[:count]
    request = ChangeRequest(apply=[manifest_from_wire(one) for one in documents])
    change = to_change(request, Who(actor="test", source="test"))
    (decided,) = node.decide([change], node.clock.now_us())
    events = node.append([ChangeSet(tuple(decided.events), change.who)], node.clock.now_us())
    assert len(list(node.take_in_steps(events))) == breaks
    assert node.position == count


def test_views_after_a_large_change_are_those_of_a_replay() -> None:
    rig = run(lambda rig: rig.apply(manifests("192.0.2.1")))
    other = Node(rig.node.log, ManualClock(), SeededEntropy(3))
    other.catch_up()
    assert other.views.digests() == rig.node.views.digests()
