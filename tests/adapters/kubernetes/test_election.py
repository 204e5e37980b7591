"""At most one leads, whatever happens to the network, the server, the Lease and the clocks."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import pytest

from kudurru.adapters.kubernetes.answers import NotLeading
from kudurru.adapters.kubernetes.election import LeaseElector, Timings
from kudurru.adapters.kubernetes.fakes.network import Link, Response
from kudurru.adapters.kubernetes.times import micros_text
from kudurru.adapters.memory.clock import ManualClock, SeededEntropy
from kudurru.adapters.timers import LoopTimers
from kudurru.domain.errors import Invalid
from kudurru.entrypoints.runner import Runner
from tests.adapters.kubernetes.worlds import SEEDS, World, in_world

LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
LEASE = f"{LEASES}/kudurru-controller"
CALM = Timings(30, 10, 5)


class OwnClock:
    """The time of one machine: its wall clock is off, its seconds are as long as all."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.off_us = 0

    def now_us(self) -> int:
        return self._clock.now_us() + self.off_us

    def monotonic_us(self) -> int:
        return self._clock.monotonic_us()


class Arena:
    """Whose work is going on, and how it went."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.active: list[str] = []
        self.most = 0
        self.history: list[tuple[float, str]] = []

    async def work(self, who: str) -> NoReturn:
        self.active.append(who)
        self.most = max(self.most, len(self.active))
        self.history.append((self._world.now_s, f"{who} begins"))
        try:
            await asyncio.Event().wait()
        finally:
            self.active.remove(who)
            self.history.append((self._world.now_s, f"{who} ends"))
        raise AssertionError

    async def until(self, *who: str) -> float:
        """When just these are active; a minute is the longest that is waited for."""
        async with asyncio.timeout(60):
            while self.active != list(who):
                await asyncio.sleep(0.05)
        return self._world.now_s


class Node:
    def __init__(
        self,
        world: World,
        arena: Arena,
        pod: str,
        seed: int = 0,
        timings: Timings | None = None,
        *,
        leads: bool = True,
    ) -> None:
        self.pod = pod
        self.link = Link(world.server)
        self.clock = OwnClock(world.clock)
        self.elector = LeaseElector(
            world.client(self.link),
            "controller",
            namespace="default",
            pod=pod,
            clock=self.clock,
            entropy=SeededEntropy(hash_of(pod) + seed),
            chance=random.Random(seed),
            timings=timings,
        )
        runner = Runner(world.clock, LoopTimers(), self.elector)
        if leads:
            runner.add("work", lambda: arena.work(pod), leader_only=True)
        self._stopping = asyncio.Event()
        self._task = asyncio.ensure_future(runner.run(self._stopping.wait))

    async def stop(self) -> None:
        self._stopping.set()
        await self._task

    async def crash(self) -> None:
        """Nothing is given back."""
        self.link.cut()
        await self.stop()


def hash_of(text: str) -> int:
    return int.from_bytes(text.encode(), "big") % 10_007


def lease(world: World) -> dict[str, Any]:
    return world.api.objects("leases")["default/kudurru-controller"]


def between(arena: Arena, nodes: list[Node], case: Awaitable[None]) -> Awaitable[None]:
    async def run() -> None:
        try:
            await case
        finally:
            for node in nodes:
                await node.crash()
        assert arena.most <= 1, arena.history

    return run()


Scene = Callable[[World, Arena, Callable[..., Node]], Awaitable[None]]


def play(scene: Scene, timings: Timings | None = None) -> None:
    async def case(world: World) -> None:
        arena = Arena(world)
        nodes: list[Node] = []

        def node(pod: str, seed: int = 0) -> Node:
            nodes.append(Node(world, arena, pod, seed or len(nodes), timings))
            return nodes[-1]

        await between(arena, nodes, scene(world, arena, node))

    in_world(case)


def test_who_makes_the_lease_waits_once_and_the_second_waits_for_it() -> None:
    async def scene(world: World, arena: Arena, node: Callable[..., Node]) -> None:
        a = node("a")
        assert 10 <= await arena.until("a") <= 12.5
        node("b")
        await asyncio.sleep(600)
        assert arena.active == ["a"]
        spec = lease(world)["spec"]
        assert spec["holderIdentity"] == a.elector.identity
        assert a.elector.identity.startswith("a_")
        assert len(a.elector.identity) == 2 + 8
        assert spec["leaseDurationSeconds"] == 15
        assert len(spec["renewTime"]) == len("2026-11-30T00:00:00.000000Z")
        assert a.elector.term == spec["leaseTransitions"] == 2

    play(scene)


def test_a_lease_that_names_nobody_is_taken_at_once() -> None:
    async def scene(world: World, arena: Arena, node: Callable[..., Node]) -> None:
        await world.people.request("POST", LEASES, {"metadata": {"name": NAME}})
        node("a")
        assert await arena.until("a") < 0.1

    play(scene)


def test_after_a_clean_stop_the_next_leads_within_three_seconds() -> None:
    async def scene(world: World, arena: Arena, node: Callable[..., Node]) -> None:
        a = node("a")
        await arena.until("a")
        b = node("b")
        await asyncio.sleep(20)
        await a.stop()
        stopped = world.now_s
        spec = lease(world)["spec"]
        assert (spec["holderIdentity"], spec["leaseDurationSeconds"]) == ("", 1)
        assert await arena.until("b") - stopped <= 3
        assert b.elector.term == 3

    play(scene)


def test_a_partition_ends_the_old_term_before_another_begins() -> None:
    async def scene(world: World, arena: Arena, node: Callable[..., Node]) -> None:
        a = node("a")
        await arena.until("a")
        node("b")
        await asyncio.sleep(60)
        a.link.cut()
        cut = world.now_s
        ended = await arena.until() - cut
        began = await arena.until("b") - cut
        assert 8 <= ended <= 12.5
        assert 13 <= began <= 20
        a.link.mend()
        await asyncio.sleep(60)
        assert arena.active == ["b"]

    play(scene)


def test_the_calmer_timings_keep_their_bounds() -> None:
    async def scene(world: World, arena: Arena, node: Callable[..., Node]) -> None:
        a = node("a")
        await arena.until("a")
        node("b")
        await asyncio.sleep(60)
        a.link.cut()
        cut = world.now_s
        assert 5 <= await arena.until() - cut <= 15
        assert 25 <= await arena.until("b") - cut <= 41

    play(scene, CALM)


def test_a_deleted_lease_is_made_anew_by_its_holder_whose_term_goes_on() -> None:
    async def scene(world: World, arena: Arena, node: Callable[..., Node]) -> None:
        a = node("a")
        await arena.until("a")
        node("b")
        await asyncio.sleep(30)
        await world.people.request("DELETE", LEASE)
        await asyncio.sleep(2.5)
        assert lease(world)["spec"]["holderIdentity"] == a.elector.identity
        await asyncio.sleep(60)
        assert arena.active == ["a"]
        assert [what for _, what in arena.history] == ["a begins"]

    play(scene)


def test_a_lease_that_was_deleted_when_its_holder_was_gone_is_waited_for() -> None:
    async def scene(world: World, arena: Arena, node: Callable[..., Node]) -> None:
        a = node("a")
        await arena.until("a")
        node("b")
        await asyncio.sleep(30)
        a.link.cut()
        cut = world.now_s
        await world.people.request("DELETE", LEASE)
        assert await arena.until() - cut <= 12.5
        assert 13 <= await arena.until("b") - cut <= 20

    play(scene)


def test_who_is_robbed_of_the_lease_stops_and_takes_it_back_when_it_expires() -> None:
    async def scene(world: World, arena: Arena, node: Callable[..., Node]) -> None:
        a = node("a")
        await arena.until("a")
        await asyncio.sleep(30)
        robbed = lease(world)
        robbed["spec"]["holderIdentity"] = "robber"
        await world.people.request("PUT", LEASE, robbed)
        at = world.now_s
        assert await arena.until() - at <= 2.5
        with pytest.raises(NotLeading):
            a.elector.guard()
        assert 13 <= await arena.until("a") - at <= 20

    play(scene)


def test_a_process_that_crashed_is_followed_by_the_next_of_its_pod_at_once() -> None:
    async def scene(world: World, arena: Arena, node: Callable[..., Node]) -> None:
        a = node("a")
        await arena.until("a")
        await asyncio.sleep(30)
        await a.crash()
        await asyncio.sleep(16)
        begun = world.now_s
        node("a", seed=99)
        assert await arena.until("a") - begun < 1

    play(scene)


def test_and_waits_when_that_could_still_be_renewed_or_was_of_another_pod() -> None:
    async def scene(world: World, arena: Arena, node: Callable[..., Node]) -> None:
        a = node("a")
        await arena.until("a")
        await a.crash()
        b = node("b")
        await asyncio.sleep(1)
        begun = world.now_s
        node("a", seed=99)
        await asyncio.sleep(10)
        assert not arena.active
        await b.stop()
        assert await arena.until("a") - begun <= 20

    play(scene)


def test_clocks_that_are_apart_and_jump_make_no_difference() -> None:
    async def scene(world: World, arena: Arena, node: Callable[..., Node]) -> None:
        a, b = node("a"), node("b")
        await arena.until("a")
        b.clock.off_us = -3600 * 1_000_000
        a.clock.off_us = 86_400 * 1_000_000
        await asyncio.sleep(60)
        a.clock.off_us = -86_400 * 1_000_000
        b.clock.off_us = 7 * 86_400 * 1_000_000
        await asyncio.sleep(60)
        assert arena.history[0][1] == "a begins"
        assert arena.active == ["a"]

    play(scene)


def test_a_renewal_that_comes_late_does_not_keep_the_lease_from_being_given_back() -> None:
    async def scene(world: World, arena: Arena, node: Callable[..., Node]) -> None:
        a = node("a")
        await arena.until("a")
        node("b")
        await asyncio.sleep(3)
        late = [True]

        def delay(verb: str, plural: str) -> bool:
            return verb == "update" and bool(late) and late.pop()

        world.api.late = delay
        await asyncio.sleep(2.2)
        assert not late
        begun = world.now_s
        await a.stop()
        assert lease(world)["spec"]["holderIdentity"] == ""
        assert await arena.until("b") - begun <= 3

    play(scene)


def test_the_lease_of_another_is_left_alone_at_the_end() -> None:
    async def scene(world: World, arena: Arena, node: Callable[..., Node]) -> None:
        node("a")
        await arena.until("a")
        b = node("b")
        await asyncio.sleep(10)
        before = lease(world)["spec"]["holderIdentity"]
        await b.stop()
        assert lease(world)["spec"]["holderIdentity"] == before
        await b.elector.resign()

    play(scene)


def test_while_the_server_is_down_the_term_ends_and_begins_again_after_it() -> None:
    async def scene(world: World, arena: Arena, node: Callable[..., Node]) -> None:
        node("a")
        await arena.until("a")
        await asyncio.sleep(30)
        world.server.down()
        down = world.now_s
        assert await arena.until() - down <= 12.5
        await asyncio.sleep(300)
        world.server.up()
        up = world.now_s
        assert await arena.until("a") - up <= 3

    play(scene)


def test_a_lease_that_came_back_from_a_backup_is_nobodys_until_it_expires() -> None:
    async def scene(world: World, arena: Arena, node: Callable[..., Node]) -> None:
        a = node("a")
        await arena.until("a")
        backup = world.api.backup()
        b = node("b")
        await asyncio.sleep(10)
        await a.stop()
        await arena.until("b")
        # A process of pod a again, with the identity of before: it sees itself in the Lease.
        again = node("a")
        again.elector.identity = a.elector.identity
        await asyncio.sleep(10)
        world.api.rolled_back(*backup)
        await asyncio.sleep(12)
        assert arena.active != ["a", "b"]
        await b.stop()

    play(scene)


def test_a_lease_that_may_not_be_written_is_waited_for() -> None:
    async def scene(world: World, arena: Arena, node: Callable[..., Node]) -> None:
        world.api.forbidden.add(("create", "leases"))
        a = node("a")
        await asyncio.sleep(60)
        assert not arena.active
        assert a.elector.failures > 20
        world.api.forbidden.clear()
        await arena.until("a")

    play(scene)


def test_the_guard_is_closed_before_and_after_a_term_and_when_renewals_are_too_old() -> None:
    async def scene(world: World, arena: Arena, node: Callable[..., Node]) -> None:
        a = node("a")
        with pytest.raises(NotLeading):
            a.elector.guard()
        await arena.until("a")
        a.elector.guard()
        # A loop that stood still for long has ended nothing yet, and still nothing is sent.
        world.clock.advance(10_000_000)
        assert a.elector.is_leader
        with pytest.raises(NotLeading):
            a.elector.guard()

    play(scene)


def test_a_stop_that_comes_with_the_win_gives_the_lease_back() -> None:
    async def scene(world: World, arena: Arena, node: Callable[..., Node]) -> None:
        held = [True]

        def delay(verb: str, plural: str) -> bool:
            return verb == "create" and bool(held) and held.pop()

        world.api.late = delay
        a = node("a")
        await asyncio.sleep(0.5)
        await a.stop()  # what it sent lands after the read of the release
        b = node("b")
        assert await arena.until("b") <= 20
        assert b.elector.is_leader

    play(scene)


def test_a_stop_before_the_lease_of_the_dead_was_taken_clears_it() -> None:
    async def scene(world: World, arena: Arena, node: Callable[..., Node]) -> None:
        a = node("a")
        await arena.until("a")
        await a.crash()
        await asyncio.sleep(16)
        held = [True]

        def delay(verb: str, plural: str) -> bool:
            return verb == "update" and bool(held) and held.pop()

        world.api.late = delay
        again = node("a", seed=99)
        await asyncio.sleep(0.5)
        await again.stop()
        assert not held
        assert lease(world)["spec"]["holderIdentity"] == ""

    play(scene)


def test_a_lease_that_is_gone_at_the_end_is_no_fault_and_stays_gone() -> None:
    async def scene(world: World, arena: Arena, node: Callable[..., Node]) -> None:
        a = node("a")
        await arena.until("a")
        await world.people.request("DELETE", LEASE)
        await a.stop()
        assert not world.api.objects("leases")

    play(scene)


def test_giving_it_back_takes_five_seconds_at_most() -> None:
    async def scene(world: World, arena: Arena, node: Callable[..., Node]) -> None:
        a = node("a")
        await arena.until("a")
        a.link.cut()
        begun = world.now_s
        await a.stop()
        assert world.now_s - begun <= 5

    play(scene)


@pytest.mark.parametrize(
    ("name", "namespace", "pod", "timings"),
    [
        ("", "", "", Timings()),
        ("A", "default", "a", Timings()),
        ("a", "no_label", "a", Timings()),
        ("a", "default", "a_b", Timings()),
        ("a", "default", "a", Timings(13, 10, 2)),
    ],
)
def test_what_names_no_lease_is_refused(
    name: str, namespace: str, pod: str, timings: Timings
) -> None:
    async def case(world: World) -> None:
        with pytest.raises(Invalid):
            LeaseElector(
                world.client(),
                name,
                namespace=namespace,
                pod=pod,
                clock=world.clock,
                entropy=SeededEntropy(1),
                chance=random.Random(1),
                timings=timings,
            )

    in_world(case)


def test_the_log_says_who_holds_it_and_who_waits_for_whom(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene(world: World, arena: Arena, node: Callable[..., Node]) -> None:
        a = node("a")
        await arena.until("a")
        b = node("b")
        await asyncio.sleep(5)
        assert b.elector.leader == a.elector.identity
        await a.stop()
        await arena.until("b")
        told = [record.getMessage() for record in caplog.records]
        assert any(one.startswith("a_") and "holds" in one and "term" in one for one in told), told
        assert any(one.startswith("b_") and a.elector.identity in one for one in told), told
        assert any("was given back" in one for one in told), told

    with caplog.at_level(logging.INFO):
        play(scene)


def test_who_leads_nothing_writes_no_lease() -> None:
    async def case(world: World) -> None:
        arena = Arena(world)
        a = Node(world, arena, "a", leads=False)
        await asyncio.sleep(60)
        await a.stop()
        assert world.api.objects("leases") == {}
        assert arena.history == []

    in_world(case)


def test_the_api_server_was_heard_of_some_seconds_ago_at_most_and_in_a_partition_not_at_all() -> (
    None
):
    async def scene(world: World, arena: Arena, node: Callable[..., Node]) -> None:
        a = node("a")
        await arena.until("a")
        transport = a.elector._client.transport
        oldest = 0
        for _ in range(60):
            await asyncio.sleep(1)
            oldest = max(oldest, world.clock.now_us() - transport.last_contact_us)
        assert oldest <= 3_000_000
        a.link.cut()
        contact = transport.last_contact_us
        await asyncio.sleep(3)
        assert transport.last_contact_us == contact
        a.link.mend()
        healed = world.clock.now_us()
        while transport.last_contact_us == contact:
            await asyncio.sleep(0.1)
        assert transport.last_contact_us - healed <= 5_500_000  # one that was lost, and a wait

    play(scene)


@pytest.mark.parametrize("seed", SEEDS)
def test_at_no_time_do_two_lead(seed: int) -> None:
    async def scene(world: World, arena: Arena, node: Callable[..., Node]) -> None:
        chance = random.Random(seed)
        nodes = {pod: node(pod, seed * 1000 + at) for at, pod in enumerate("abc")}

        def interfere(verb: str, plural: str, name: str) -> Response | None:
            return Response(chance.choice((429, 500, 503))) if chance.random() < 0.05 else None

        world.api.interfere = interfere
        world.api.late = lambda verb, plural: chance.random() < 0.03
        await asyncio.sleep(10)
        for step in range(120):
            one = nodes[chance.choice("abc")]
            match chance.randrange(14):
                case 0 | 1:
                    one.link.cut()
                case 2 | 3 | 4 | 5:
                    one.link.mend()
                case 6:
                    world.server.down()
                case 7 | 8:
                    world.server.up()
                case 9 if "default/kudurru-controller" in world.api.objects("leases"):
                    del world.api._objects["leases.coordination.k8s.io", "default", NAME]
                case 10 if "default/kudurru-controller" in world.api.objects("leases"):
                    world.api._objects["leases.coordination.k8s.io", "default", NAME]["spec"] |= {
                        "holderIdentity": "robber",
                        "renewTime": micros_text(world.clock.now_us()),
                    }
                case 11:
                    await one.crash()
                    nodes[one.pod] = node(one.pod, seed * 1000 + 10 + step)
                case 12:
                    await one.stop()
                    nodes[one.pod] = node(one.pod, seed * 1000 + 10 + step)
                case 13:
                    one.clock.off_us = chance.choice((-1, 1)) * chance.randrange(10**12)
            await asyncio.sleep(chance.choice((0.1, 1, 3, 7, 20)))
        world.api.interfere = world.api.late = None
        world.server.up()
        for one in nodes.values():
            one.link.mend()
        async with asyncio.timeout(60):
            while len(arena.active) != 1:
                await asyncio.sleep(0.5)
        assert len(arena.history) > 10

    play(scene)


NAME = "kudurru-controller"
