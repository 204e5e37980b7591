"""Whatever goes wrong between us and an API server, and whatever that says meanwhile: what we hold
in the end is what it has, and what it acknowledged is not undone."""

import asyncio
import random
from collections import Counter
from typing import Any, get_args

import msgspec
import pytest

from kudurru.adapters.kubernetes.client import APPLY_PATCH
from kudurru.adapters.kubernetes.fakes.faults import Fault, FaultyLink
from kudurru.adapters.kubernetes.fakes.network import Response
from kudurru.adapters.kubernetes.informer import Handler, Informer, Source
from kudurru.adapters.kubernetes.store import KubernetesStore, Place
from kudurru.adapters.memory.clock import SeededEntropy
from kudurru.domain.errors import KudurruError
from kudurru.domain.objects import key_of
from tests.adapters.kubernetes.worlds import MAPS, World, in_world, running
from tests.objects import Document, document

Object = dict[str, Any]

RUNS = [
    pytest.param(seed, 1000 if seed < 2 else 4000, marks=[] if seed < 2 else pytest.mark.slow)
    for seed in range(4)
]
NAMES = 12
RATE = 0.03
SETTLED_S = 3600.0
"""Of the world's clock: a wait that grew to half a minute, and requests that were given up."""


class Copy(Handler[str]):
    """What somebody has who knows only what he is told."""

    def __init__(self) -> None:
        self.objects: dict[str, str] = {}

    def put(self, key: str, new: str, old: str | None) -> None:
        assert self.objects.get(key) == old
        self.objects[key] = new

    def gone(self, key: str, last: str | None, version: str) -> None:
        assert self.objects.pop(key) == last


class Confusion:
    """A server that is overloaded, out of order, behind another of its kind, and tells things twice
    and in another order."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self._world = world
        self._chance = chance
        self._old: list[bytes] = []
        self.said: Counter[str] = Counter()

    def begin(self) -> None:
        self._world.api.interfere = self.answer
        self._world.api.events_of_watches = self._events

    def end(self) -> None:
        self._world.api.interfere = None
        self._world.api.events_of_watches = None
        self._world.server.up()

    def step(self) -> None:
        match self._chance.randrange(20):
            case 0:
                self._world.server.down()
            case 1 | 2 | 3:
                self._world.server.up()
            case 4:
                self._world.api.compact()
            case 5:
                self._world.api.end_watches()
            case 6:
                self._old = [*self._old[-4:], self._list()]

    def answer(self, verb: str, plural: str, name: str) -> Response | None:
        if verb == "list" and self._old and self._chance.random() < 0.5:
            return self._told("stale", Response(200, self._chance.choice(self._old)))
        match self._chance.randrange(14):
            case 0:
                return self._told("429", Response(429, b"", {"retry-after": "2"}))
            case 1:
                return self._told("429 without", Response(429))
            case 2:
                return self._told("500", Response(500, b"out of order"))
            case 3:
                return self._told("503", Response(503, b'{"code":503,"message":"leaving"}'))
            case 4:
                half = b'{"metadata":{"resourceVersion":"9"},"items":[{'
                return self._told("half", Response(200, half, cut_after=self._chance.randrange(46)))
            case 5 if verb == "watch":
                return self._told("410", Response(410))
        return None

    def _told(self, word: str, answer: Response) -> Response:
        self.said[word] += 1
        return answer

    def _list(self) -> bytes:
        """As a server answers that is so far behind from then on."""
        items = list(self._world.api.objects("configmaps").values())
        version = str(self._world.api.backup()[1])
        return msgspec.json.encode({"metadata": {"resourceVersion": version}, "items": items})

    def _events(self, lines: list[bytes]) -> list[bytes]:
        if lines and self._chance.random() < 0.2:
            self.said["twice"] += 1
            lines = [*lines, self._chance.choice(lines)]
        return lines


@pytest.mark.parametrize(("seed", "steps"), RUNS)
def test_whatever_goes_wrong_on_the_way_the_copy_ends_as_what_the_server_has(
    seed: int, steps: int
) -> None:
    async def case(world: World) -> None:
        chance = random.Random(seed)
        link = FaultyLink(world.server, chance, RATE)
        copy = Copy()
        found: Informer[str] = Informer(
            world.client(link),
            Source(MAPS),
            lambda one: str(one["data"]["of"]),
            copy,
            chance=random.Random(seed),
        )
        confusion = Confusion(world, chance)
        confusion.begin()
        async with running(found.run()):
            for number in range(steps):
                confusion.step()
                await change(world, chance, number)
                await asyncio.sleep(chance.choice((0, 0, 0.1, 1, 5, 40)))
            confusion.end()
            link.rate = 0.0
            async with asyncio.timeout(SETTLED_S):
                await found.changed(lambda: found.versions == versions(world))
        assert copy.objects == found.copy == texts(world)
        assert set(link.faults) == set(get_args(Fault))
        assert set(confusion.said) == {
            "429", "429 without", "500", "503", "half", "410", "stale", "twice",
        }  # fmt: skip

    in_world(case)


@pytest.mark.parametrize("seed", range(4))
def test_events_in_another_order_make_no_difference(seed: int) -> None:
    """Within what comes at once: of one that was left out before a connection broke nobody could
    know, since versions have gaps. A server sends them in order."""

    async def case(world: World) -> None:
        chance = random.Random(seed)

        def shuffled(lines: list[bytes]) -> list[bytes]:
            return chance.sample(lines, len(lines))

        copy = Copy()
        found: Informer[str] = Informer(
            world.client(), Source(MAPS), lambda one: str(one["data"]["of"]), copy, chance=chance
        )
        world.api.events_of_watches = shuffled
        async with running(found.run()):
            await found.synced()
            for number in range(300):
                world.api.end_watches()  # what happens until it is back comes at once
                for part in range(4):
                    await change(world, chance, 4 * number + part)
                await found.changed(lambda: found.versions == versions(world))
        assert copy.objects == found.copy == texts(world)

    in_world(case)


async def change(world: World, chance: random.Random, number: int) -> None:
    """What other people do to the server's objects, without going through any of this."""
    name = f"m{chance.randrange(NAMES)}"
    interfere, world.api.interfere = world.api.interfere, None
    try:
        if not world.server.is_down:
            if chance.random() < 0.3 and f"default/{name}" in world.api.objects("configmaps"):
                await world.delete(name)
            else:
                await world.write(name, str(number))
    finally:
        world.api.interfere = interfere


def versions(world: World) -> dict[str, str]:
    found = world.api.objects("configmaps")
    return {key: one["metadata"]["resourceVersion"] for key, one in found.items()}


def texts(world: World) -> dict[str, str]:
    return {key: one["data"]["of"] for key, one in world.api.objects("configmaps").items()}


def group(name: str, number: int) -> Document:
    return document("ClientGroup", name, {"clients": [{"ip": f"192.0.2.{number % 250}"}]},
                    annotations={"number": str(number)})  # fmt: skip


@pytest.mark.parametrize(("seed", "steps"), RUNS)
def test_what_was_acknowledged_is_not_undone_by_a_write_that_nobody_heard_of(
    seed: int, steps: int
) -> None:
    """One writer for each object, who gives up on a write and goes on with the next. Some land
    later than anybody waits for them."""

    async def case(world: World) -> None:
        chance = random.Random(seed)
        link = FaultyLink(world.server, chance, RATE)
        store = KubernetesStore(
            world.client(link), Place("default", "pod"), entropy=SeededEntropy(1), chance=chance
        )
        confusion = Confusion(world, chance)
        outcomes: Counter[str] = Counter()

        async def writer(name: str) -> None:
            acknowledged, tried = -1, -1
            for tried in range(steps // 20):
                try:
                    await store.apply(group(name, tried), "alice")
                    acknowledged = tried
                    outcomes["done"] += 1
                except KudurruError as error:
                    outcomes[type(error).__name__] += 1
                found = world.api.objects("clientgroups").get(f"default/{name}")
                number = int(found["metadata"]["annotations"]["number"]) if found else -1
                assert acknowledged <= number <= tried
                await asyncio.sleep(chance.choice((0, 0.1, 1)))

        world.api.interfere = confusion.answer
        world.api.late = lambda verb, plural: chance.random() < 0.02
        await asyncio.gather(*(writer(f"g{number}") for number in range(4)))
        confusion.end()
        link.rate, world.api.late = 0.0, None
        for number in range(4):
            name = f"g{number}"
            await store.apply(group(name, steps), "alice")
            found = await store.get(key_of("ClientGroup", "default", name))
            assert found["metadata"]["annotations"]["number"] == str(steps)
        assert outcomes["done"] > steps / 20
        assert outcomes["StorageFailed"] > 0

    in_world(case)


@pytest.mark.parametrize(
    ("headers", "body", "waited_s"),
    [
        ({"retry-after": "3"}, b"", 6),
        ({}, b'{"details":{"retryAfterSeconds":4}}', 8),
        ({}, b"", 2),
        ({"retry-after": "0"}, b"", 2),
        ({"retry-after": "soon"}, b"", 2),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, b"", 2),
    ],
)
def test_a_write_is_sent_again_after_a_429_with_and_without_a_time(
    headers: dict[str, str], body: bytes, waited_s: int
) -> None:
    async def case(world: World) -> None:
        left = 2

        def busy(verb: str, plural: str, name: str) -> Response | None:
            nonlocal left
            left -= 1
            return Response(429, body, headers) if left >= 0 else None

        world.api.interfere = busy
        begun = world.now_s
        path = f"{MAPS}/a?fieldManager=people"
        sent = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
        await world.client().request("PATCH", path, sent, content_type=APPLY_PATCH)
        assert world.now_s - begun == waited_s
        assert [verb for verb, _, _ in world.api.calls] == ["patch"] * 3

    in_world(case)
