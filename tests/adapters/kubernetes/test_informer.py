"""A copy of a collection is what the API server has, whatever happens to it and to the network."""

import asyncio
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kudurru.adapters.kubernetes.client import Client
from kudurru.adapters.kubernetes.fakes.network import Link, Response
from kudurru.adapters.kubernetes.informer import (
    AT_ONCE,
    IN_LOOP_MAX,
    OCTETS_AT_ONCE,
    PAGE,
    RETRY_MAX_S,
    Handler,
    Informer,
    Source,
    slim,
)
from tests.adapters.kubernetes.nested import DEEP, nest
from tests.adapters.kubernetes.worlds import MAPS, SEEDS, World, config_map, in_world, running
from tests.clusters import APPLY, Kube, in_cluster

Object = dict[str, Any]


class Seen(Handler[str]):
    """What a handler was told, in words."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def put(self, key: str, new: str, old: str | None) -> None:
        self.told.append(f"{key}: {old} -> {new}")

    def gone(self, key: str, last: str | None, version: str) -> None:
        self.told.append(f"{key}: {last} gone")

    def broken(self, key: str, why: str) -> None:
        self.told.append(f"{key}: broken: {why}")

    def absent(self) -> None:
        self.told.append("absent")

    def recovered(self) -> None:
        self.told.append("recovered")

    def list_failed(self, error: Exception) -> None:
        self.told.append("list failed")

    def rolled_back(self, seen: str, now: str) -> None:
        self.told.append("rolled back")


def data(found: Object) -> str:
    text = str(found["data"]["of"])
    if text == "broken":
        raise ValueError("no text that I know")
    return text


def informer(
    world: World,
    handler: Handler[str] | None = None,
    *,
    client: Client | None = None,
    source: Source | None = None,
    strict: bool = False,
    seed: int = 1,
) -> Informer[str]:
    return Informer(
        client or world.client(),
        source or Source(MAPS),
        data,
        handler or Handler(),
        chance=random.Random(seed),
        strict=strict,
    )


def is_current(world: World, found: Informer[str]) -> Callable[[], bool]:
    def check() -> bool:
        there = {k: v["metadata"]["resourceVersion"] for k, v in objects(world).items()}
        return found.versions == there

    return check


def objects(world: World) -> dict[str, Object]:
    return world.api.objects("configmaps")


def test_large_objects_are_converted_beside_the_loop_in_their_order() -> None:
    async def write(kube: Kube, name: str, text: str) -> str:
        path = f"{MAPS}/{name}?fieldManager=people&force=true"
        body = config_map(name, text)
        made = await kube.people.request("PATCH", path, body, content_type=APPLY)
        return str(made["metadata"]["resourceVersion"])

    async def case(kube: Kube) -> None:  # on a loop that waits for threads
        on_loop = {}

        def convert(found: Object) -> str:
            text = data(found)[0]
            on_loop[text] = threading.current_thread() is threading.main_thread()
            return text

        seen = Seen()
        found = Informer(kube.people, Source(MAPS), convert, seen, chance=random.Random(1))
        await write(kube, "a", "1" * IN_LOOP_MAX)
        await write(kube, "b", "2")
        async with running(found.run()):
            await found.synced()
            await write(kube, "a", "3" * IN_LOOP_MAX)
            last = await write(kube, "a", "4")
            await found.changed(lambda: found.versions.get("default/a") == last)
        assert on_loop == {"1": False, "2": True, "3": False, "4": True}
        assert found.copy == {"default/a": "4", "default/b": "2"}
        assert seen.told[-2:] == ["default/a: 1 -> 3", "default/a: 3 -> 4"]

    in_cluster(case)


def test_a_copy_begins_with_a_list_and_follows_changes() -> None:
    async def case(world: World) -> None:
        seen = Seen()
        found = informer(world, seen)
        await world.write("a", "1")
        async with running(found.run()):
            await found.synced()
            await world.write("a", "2")
            await world.write("b", "1")
            await world.delete("a")
            await found.changed(is_current(world, found))
        assert found.copy == {"default/b": "1"}
        assert seen.told == [
            "default/a: None -> 1",
            "default/a: 1 -> 2",
            "default/b: None -> 1",
            "default/a: 2 gone",
        ]

    in_world(case)


class Turns(Handler[str]):
    """How many objects are told before others have their turn on the loop."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.most = 0
        self._in_turn = 0

    def put(self, key: str, new: str, old: str | None) -> None:
        self._count(key)

    def gone(self, key: str, last: str | None, version: str) -> None:
        self._count(key)

    def _count(self, key: str) -> None:
        if self._in_turn == 0:
            asyncio.get_running_loop().call_soon(self._next)
        self.told.append(key)
        self._in_turn += 1
        self.most = max(self.most, self._in_turn)

    def _next(self) -> None:
        self._in_turn = 0


def test_others_have_their_turn_while_a_large_list_is_told_in_order() -> None:
    async def case(world: World) -> None:
        names = [f"default/m{number:04d}" for number in range(200)]
        for name in names:
            await world.write(name.partition("/")[2], "1")
        turns = Turns()
        found = informer(world, turns)
        async with running(found.run()):
            await found.synced()
            assert (turns.told, turns.most) == (names, AT_ONCE)
            turns.told.clear()
            world.api.absent = {"configmaps"}
            world.api.compact()
            await found.changed(lambda: not found.versions)
            assert (turns.told, turns.most) == (names, AT_ONCE)

    in_world(case)


def test_large_objects_leave_others_their_turn_sooner() -> None:
    async def case(world: World) -> None:
        size = IN_LOOP_MAX // 2
        for number in range(20):
            await world.write(f"m{number:02d}", "x" * size)
        turns = Turns()
        found = informer(world, turns)
        async with running(found.run()):
            await found.synced()
        assert len(turns.told) == 20
        assert turns.most <= OCTETS_AT_ONCE // size

    in_world(case)


def test_a_page_is_told_before_the_next_is_asked_for_and_a_list_that_breaks_drops_nothing() -> None:
    async def case(world: World) -> None:
        for name in "abcd":
            await world.write(name, "1")
        seen, link = Seen(), Link(world.server)
        source = Source(MAPS, page=2)
        found = informer(world, seen, client=world.client(link), source=source)
        when_asked: list[list[str]] = []

        def interfere(verb: str, plural: str, name: str) -> Response | None:
            if verb != "list":
                return None
            when_asked.append([word for word in seen.told if word.startswith("default/")])
            return Response(500) if len(when_asked) == 2 else None

        async with running(found.run()):
            await found.synced()
            link.cut()
            await world.delete("a")
            await world.write("b", "2")
            await world.write("d", "2")
            world.api.compact()
            seen.told.clear()
            world.api.interfere = interfere
            link.mend()
            await found.changed(is_current(world, found))
        first, second = ["default/b: 1 -> 2"], ["default/d: 1 -> 2", "default/a: 1 gone"]
        assert when_asked == [[], first, first, first]
        assert [word for word in seen.told if word.startswith("default/")] == [*first, *second]

    in_world(case)


def test_a_list_comes_in_pages() -> None:
    async def case(world: World) -> None:
        for number in range(260):
            await world.write(f"m{number}", str(number))
        found = informer(world)
        async with running(found.run()):
            await found.synced()
        assert len(found.copy) == 260
        assert world.api.calls.count(("list", "configmaps", "")) == 2

    in_world(case)


def test_a_quiet_day_costs_one_request_for_each_watch() -> None:
    async def case(world: World) -> None:
        found = informer(world)
        async with running(found.run()):
            await found.synced()
            begun = len(world.api.calls)
            await asyncio.sleep(6 * 3600)
        watches = world.api.calls[begun:]
        assert {verb for verb, _, _ in watches} == {"watch"}
        assert 6 * 3600 / 590 - 1 <= len(watches) <= 6 * 3600 / 290
        assert found.reopened == len(watches)

    in_world(case)


def test_a_watch_resumes_and_what_happened_meanwhile_is_told() -> None:
    async def case(world: World) -> None:
        seen = Seen()
        found = informer(world, seen)
        await world.write("a", "1")
        async with running(found.run()):
            await found.synced()
            world.api.end_watches()
            await world.write("a", "2")
            await found.changed(is_current(world, found))
        assert found.lists == 1
        assert seen.told[-1] == "default/a: 1 -> 2"

    in_world(case)


def test_after_versions_are_forgotten_it_lists_again_and_tells_the_differences() -> None:
    async def case(world: World) -> None:
        seen, link = Seen(), Link(world.server)
        found = informer(world, seen, client=world.client(link))
        for name in "abc":
            await world.write(name, "1")
        async with running(found.run()):
            await found.synced()
            world.server.down()
            world.server.up()
            link.cut()
            await world.write("a", "2")
            await world.delete("b")
            world.api.compact()
            link.mend()
            await found.changed(is_current(world, found))
            await found.changed(lambda: "recovered" in seen.told)
        told = [word for word in seen.told[3:] if word != "list failed"]
        assert told == ["default/a: 1 -> 2", "default/b: 1 gone", "recovered"]
        assert found.lists == 2

    in_world(case)


def test_while_the_server_is_down_the_copy_stays_and_waits_grow_to_half_a_minute() -> None:
    async def case(world: World) -> None:
        found = informer(world)
        await world.write("a", "1")
        async with running(found.run()):
            await found.synced()
            sent = found._client.transport.requests
            world.server.down()
            await asyncio.sleep(3600)
            assert found.is_synced
            assert found.copy == {"default/a": "1"}
            assert 3600 / 30 <= found._client.transport.requests - sent <= 3600 / 8
            world.server.up()
            await asyncio.sleep(31)
            assert found.lists == 1

    in_world(case)


def test_a_strict_informer_is_not_synced_while_its_watch_fails() -> None:
    async def case(world: World) -> None:
        found = informer(world, strict=True)
        async with running(found.run()):
            await found.synced()
            world.server.down()
            await found.changed(lambda: not found.is_synced)
            world.server.up()
            await found.synced()

    in_world(case)


@pytest.mark.parametrize("code", [401, 403])
def test_who_may_list_and_not_watch_is_not_synced(code: int) -> None:
    async def case(world: World) -> None:
        def interfere(verb: str, plural: str, name: str) -> Response | None:
            return Response(code) if verb == "watch" else None

        found = informer(world)
        async with running(found.run()):
            await found.synced()
            world.api.interfere = interfere
            world.api.end_watches()
            await found.changed(lambda: not found.is_synced)
            world.api.interfere = None
            await found.synced()

    in_world(case)


def test_a_kind_that_is_not_installed_is_empty_and_looked_at_every_five_minutes() -> None:
    async def case(world: World) -> None:
        world.api.absent.add("configmaps")
        seen = Seen()
        found = informer(world, seen)
        async with running(found.run()):
            await found.synced()
            assert found.is_absent
            sent = len(world.server.requests)
            await asyncio.sleep(3001)
            assert len(world.server.requests) - sent == 10
            world.api.absent.clear()
            await world.write("a", "1")
            await found.changed(is_current(world, found))
            assert not found.is_absent
            assert found.reopened == 0
            world.api.absent.add("configmaps")
            world.server.down()
            world.server.up()
            await found.changed(lambda: not found.copy)
        assert seen.told[0] == "list failed"
        assert [word for word in seen.told if word.startswith("default")] == [
            "default/a: None -> 1",
            "default/a: 1 gone",
        ]

    in_world(case)


def test_of_one_object_that_is_not_there_this_is_said_once_and_after_the_first_read() -> None:
    async def case(world: World) -> None:
        seen = Seen()
        found = informer(world, seen, source=Source(MAPS, name="one"))
        await world.write("another", "1")
        async with running(found.run()):
            await found.synced()
            assert seen.told == ["absent"]
            await world.write("one", "1")
            await world.write("another", "2")
            await found.changed(lambda: bool(found.copy))
            await world.delete("one")
            await found.changed(lambda: not found.copy)
        assert seen.told == ["absent", "default/one: None -> 1", "default/one: 1 gone"]

    in_world(case)


def test_what_cannot_be_read_is_said_by_name_and_its_last_copy_stays() -> None:
    async def case(world: World) -> None:
        seen = Seen()
        found = informer(world, seen)
        await world.write("a", "1")
        await world.write("b", "broken")
        async with running(found.run()):
            await found.synced()
            await world.write("a", "broken")
            await found.changed(is_current(world, found))
            assert found.copy == {"default/a": "1"}
            await world.write("a", "2")
            await found.changed(is_current(world, found))
            assert found.copy == {"default/a": "2"}
            await world.delete("b")
            await found.changed(is_current(world, found))
        assert seen.told == [
            "default/a: None -> 1",
            "default/b: broken: no text that I know",
            "default/a: broken: no text that I know",
            "default/a: 1 -> 2",
            "default/b: None gone",
        ]

    in_world(case)


def test_a_server_that_was_restored_from_a_backup_is_noticed_and_believed() -> None:
    async def case(world: World) -> None:
        seen = Seen()
        found = informer(world, seen)
        await world.write("a", "1")
        backup = world.api.backup()
        await world.write("a", "2")
        await world.write("b", "1")
        async with running(found.run()):
            await found.synced()
            world.server.down()
            world.api.rolled_back(*backup)
            world.server.up()
            up_s = asyncio.get_running_loop().time()
            await found.changed(lambda: "rolled back" in seen.told)
            await found.changed(is_current(world, found))
            # The wait between two tries, and not until a watch was silent for too long.
            assert asyncio.get_running_loop().time() - up_s <= RETRY_MAX_S
        assert found.copy == {"default/a": "1"}

    in_world(case)


def test_a_server_that_is_set_back_between_two_tries_of_a_list_says_it_each_time() -> None:
    async def case(world: World) -> None:
        seen = Seen()
        found = informer(world, seen, source=Source(MAPS, page=2))
        backups = []
        for text in "123":
            for name in "abcd":
                await world.write(name, text)
            backups.append(world.api.backup())
        pages = 0

        def interfere(verb: str, plural: str, name: str) -> Response | None:
            """The second page is not answered, and then the server is an older one."""
            nonlocal pages
            pages += verb == "list"
            if pages % 2 or not backups:
                return None
            world.api.rolled_back(*backups.pop())
            return Response(500, b"")

        world.api.interfere = interfere
        backups.pop()
        async with running(found.run()):
            await found.changed(is_current(world, found))
        assert [word for word in seen.told if word[:7] in ("rolled ", "list fa")] == [
            "list failed", "rolled back", "list failed", "rolled back"
        ]  # fmt: skip
        assert found.copy == {f"default/{name}": "1" for name in "abcd"}

    in_world(case)


def test_a_server_that_was_set_back_before_the_first_list_is_noticed_by_its_first_page() -> None:
    async def case(world: World) -> None:
        seen = Seen()
        await world.write("a", "1")
        found = informer(world, seen)
        found.expect("1000000")
        async with running(found.run()):
            await found.changed(is_current(world, found))
        assert seen.told == ["rolled back", "default/a: None -> 1"]

    in_world(case)


def test_a_server_that_refuses_for_a_while_is_asked_again_when_it_says() -> None:
    async def case(world: World) -> None:
        def interfere(verb: str, plural: str, name: str) -> Response | None:
            return Response(429, b"", {"retry-after": "120"})

        found = informer(world)
        world.api.interfere = interfere
        async with running(found.run()):
            await asyncio.sleep(600)
            assert len(world.api.calls) == 5
            world.api.interfere = None
            await found.synced()

    in_world(case)


def test_a_watch_that_always_ends_at_once_is_no_storm() -> None:
    async def case(world: World) -> None:
        def interfere(verb: str, plural: str, name: str) -> Response | None:
            return Response(200) if verb == "watch" else None

        found = informer(world)
        world.api.interfere = interfere
        async with running(found.run()):
            await asyncio.sleep(3600)
        assert len(world.api.calls) < 3600 / 8

    in_world(case)


def test_a_handler_that_fails_ends_the_informer() -> None:
    class Fails(Handler[str]):
        def put(self, key: str, new: str, old: str | None) -> None:
            raise ZeroDivisionError

    async def case(world: World) -> None:
        await world.write("a", "1")
        with pytest.raises(ZeroDivisionError):
            await informer(world, Fails()).run()

    in_world(case)


def test_a_selector_is_the_servers_to_apply_and_another_objects_labels_may_change_into_it() -> None:
    async def case(world: World) -> None:
        await world.write("a", "1", labels={"wanted": "yes"})
        await world.write("b", "1")
        found = informer(world, source=Source(MAPS, label_selector="wanted=yes"))
        async with running(found.run()):
            await found.synced()
            assert found.copy == {"default/a": "1"}
            await world.write("c", "1", labels={"wanted": "yes"})
            await found.changed(lambda: "default/c" in found.copy)
        assert sorted(found.copy) == ["default/a", "default/c"]

    in_world(case)


def test_no_list_may_come_from_a_cache_that_is_older_than_our_own_write() -> None:
    async def case(world: World) -> None:
        found = informer(world)
        async with running(found.run()):
            await found.synced()
            world.api.compact()
            world.api.end_watches()
            await asyncio.sleep(5)
        targets = [target for _, target in world.server.requests]
        lists = [target for target in targets if "limit=" in target]
        assert lists
        assert not any("resourceVersion" in target for target in lists)

    in_world(case)


def test_that_the_first_read_is_done_is_said_once_and_after_each_object_of_it() -> None:
    class Order(Seen):
        def read(self, version: str) -> None:
            self.told.append("read")

    async def case(world: World) -> None:
        seen = Order()
        await world.write("a", "1")
        found = informer(world, seen)
        async with running(found.run()):
            await found.synced()
            world.server.down()
            world.api.compact()
            world.server.up()
            await world.write("a", "2")
            await found.changed(is_current(world, found))
        assert seen.told[:2] == ["default/a: None -> 1", "read"]
        assert seen.told.count("read") == 1

    in_world(case)


def test_who_has_ended_tells_nothing_any_more() -> None:
    async def case(world: World) -> None:
        seen = Seen()
        found = informer(world, seen)
        async with running(found.run()):
            await found.synced()
        told = list(seen.told)
        await world.write("a", "1")
        await asyncio.sleep(60)
        assert seen.told == told

    in_world(case)


def test_an_object_of_the_cluster_has_its_name_as_key() -> None:
    async def case(world: World) -> None:
        found: Informer[str] = Informer(
            world.client(),
            Source("/api/v1/namespaces"),
            lambda one: str(one["metadata"]["name"]),
            Handler(),
            chance=random.Random(1),
        )
        async with running(found.run()):
            await found.synced()
        assert sorted(found.copy) == ["default", "kube-system"]

    in_world(case)


def test_the_slim_form_has_no_managed_fields() -> None:
    assert slim({"metadata": {"name": "a", "managedFields": [1]}, "spec": {}}) == {
        "metadata": {"name": "a"},
        "spec": {},
    }


class Mirror(Handler[str]):
    """What somebody has who knows only what he is told."""

    def __init__(self) -> None:
        self.objects: dict[str, str] = {}

    def put(self, key: str, new: str, old: str | None) -> None:
        assert self.objects.get(key) == old
        self.objects[key] = new

    def gone(self, key: str, last: str | None, version: str) -> None:
        assert self.objects.pop(key) == last


class Mischief:
    """What a server and a network do to a client, at random."""

    def __init__(self, world: World, link: Link, chance: random.Random) -> None:
        self._world = world
        self._link = link
        self._chance = chance

    def begin(self) -> None:
        self._world.api.interfere = self._interfere
        self._world.api.events_of_watches = self._events

    def end(self) -> None:
        self._world.api.interfere = None
        self._world.api.events_of_watches = None
        self._link.mend()
        self._world.server.up()

    def step(self) -> None:
        match self._chance.randrange(40):
            case 0:
                self._world.server.down()
            case 1 | 2 | 3:
                self._world.server.up()
            case 4:
                self._link.cut()
            case 5 | 6 | 7:
                self._link.mend()
            case 8:
                self._world.api.compact()
            case 9:
                self._world.api.end_watches()

    def _interfere(self, verb: str, plural: str, name: str) -> Response | None:
        if verb not in ("list", "watch"):
            return None
        match self._chance.randrange(30):
            case 0:
                return Response(429, b"", {"retry-after": "2"})
            case 1:
                return Response(429)
            case 2:
                return Response(500, b"out of order")
            case 3:
                return Response(
                    200, b'{"metadata":{"resourceVersion":"9"},"items":[{', cut_after=30
                )
            case 4 if verb == "watch":
                return Response(410)
        return None

    def _events(self, lines: list[bytes]) -> list[bytes]:
        if lines and self._chance.random() < 0.2:
            lines = [*lines, self._chance.choice(lines)]  # told twice
        if len(lines) > 1 and self._chance.random() < 0.2:
            self._chance.shuffle(lines)
        return lines


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_the_copy_ends_as_what_the_server_has(seed: int) -> None:
    async def case(world: World) -> None:
        chance = random.Random(seed)
        link = Link(world.server)
        handler = Mirror()
        source = Source(MAPS, page=chance.choice((3, PAGE)))
        client = world.client(link)
        found = informer(world, handler, client=client, source=source, seed=seed)
        mischief = Mischief(world, link, chance)
        mischief.begin()
        async with running(found.run()):
            for number in range(400):
                mischief.step()
                if not world.server.is_down:
                    name = f"m{chance.randrange(12)}"
                    if chance.random() < 0.3 and f"default/{name}" in objects(world):
                        await world.delete(name)
                    else:
                        await world.write(name, str(number))
                await asyncio.sleep(chance.choice((0, 0, 0.1, 1, 5, 40)))
            mischief.end()
            async with asyncio.timeout(600):
                await found.changed(is_current(world, found))
            assert (
                handler.objects
                == found.copy
                == {key: value["data"]["of"] for key, value in objects(world).items()}
            )

    in_world(case)


def test_an_object_of_any_depth_keeps_no_other_from_being_told() -> None:
    """Nobody reads its managedFields; an API server takes ten thousand levels of them."""

    async def case(world: World) -> None:
        nest(world.server)
        seen = Seen()
        found = informer(world, seen)
        for number in range(300):
            await world.write(f"m{number:03}", "1")
        await world.write("m100", "1", managedFields=[DEEP])
        await world.write("m200", "1", labels=DEEP)
        async with running(found.run()):
            await found.synced()
            assert len(found.copy) == 300
            await world.write("m000", "2", managedFields=[DEEP])
            await world.write("m001", "2")
            await world.delete("m100")
            await found.changed(is_current(world, found))
        assert seen.told[300:] == [
            "default/m000: 1 -> 2",
            "default/m001: 1 -> 2",
            "default/m100: 1 gone",
        ]

    in_world(case)


@pytest.mark.parametrize("error", [KeyError("x"), TypeError("x"), RecursionError("x")])
def test_whatever_is_wrong_with_an_object_it_is_told_as_broken(error: Exception) -> None:
    async def case(world: World) -> None:
        def convert(found: Object) -> str:
            if found["data"]["of"] == "bad":
                raise error
            return data(found)

        seen = Seen()
        found = Informer(world.client(), Source(MAPS), convert, seen, chance=random.Random(1))
        for name, text in (("a", "1"), ("b", "bad"), ("c", "1")):
            await world.write(name, text)
        async with running(found.run()):
            await found.synced()
            await world.write("c", "bad")
            await world.write("a", "2")
            await found.changed(is_current(world, found))
        assert [one for one in seen.told if "broken" in one] == [
            f"default/{name}: broken: {type(error).__name__}: {error}" for name in ("b", "c")
        ]
        assert found.copy == {"default/a": "2", "default/c": "1"}

    in_world(case)


def test_a_page_that_is_too_large_is_asked_for_in_smaller_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def case(world: World) -> None:
        monkeypatch.setattr("kudurru.adapters.kubernetes.client.ANSWER_MAX", 8_000)
        found = informer(world)
        for number in range(60):
            await world.write(f"m{number}", "x" * 1_000)
        async with running(found.run()):
            await found.synced()
        assert len(found.copy) == 60

    in_world(case)
