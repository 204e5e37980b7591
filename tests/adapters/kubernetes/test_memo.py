"""No copy that is older than what the API server answered us is taken for the present."""

import asyncio
from typing import Any

import pytest

from kudurru.adapters.kubernetes.answers import Absent, Collided, Unanswered
from kudurru.adapters.kubernetes.memo import Memo, Turns
from kudurru.adapters.kubernetes.status import read, settle_status, version_of
from tests.adapters.kubernetes.worlds import World, in_world

ZONES = "/apis/kudurru.io/v1alpha1/dnszones"
HOME = f"{ZONES}/home"
Object = dict[str, Any]


async def answer(version: str) -> str:
    return version


async def fails(error: Exception) -> str:
    raise error


def same(version: str) -> str:
    return version


def test_what_was_never_noted_is_current_at_any_version() -> None:
    memo = Memo()
    assert memo.is_current("a", "1")
    assert not memo.knows("a")


def test_only_the_version_that_was_answered_last_is_current() -> None:
    async def main() -> None:
        memo = Memo()
        await memo.send("a", lambda: answer("9"), same)
        assert memo.is_current("a", "9")
        assert not memo.is_current("a", "8")
        assert not memo.is_current("a", "10")  # equality only
        assert memo.is_current("b", "8")

    asyncio.run(main())


def test_after_a_request_that_failed_nothing_is_current_until_a_read() -> None:
    async def main() -> None:
        memo = Memo()
        error = Unanswered("PUT", "/a", "cut")
        with pytest.raises(Unanswered):
            await memo.send("a", lambda: fails(error), same)
        assert memo.knows("a")
        assert not memo.is_current("a", "1")
        await memo.send("a", lambda: answer("1"), same)
        assert memo.is_current("a", "1")

    asyncio.run(main())


def test_requests_about_one_object_are_noted_in_order_and_others_do_not_wait() -> None:
    async def main() -> None:
        memo = Memo()
        go = asyncio.Event()

        async def slow() -> str:
            await go.wait()
            return "1"

        first = asyncio.create_task(memo.send("a", slow, same))
        second = asyncio.create_task(memo.send("a", lambda: answer("2"), same))
        await memo.send("b", lambda: answer("3"), same)
        assert not second.done()
        go.set()
        assert await asyncio.gather(first, second) == ["1", "2"]
        assert memo.is_current("a", "2")

    asyncio.run(main())


def test_turns_go_one_by_one_whoever_comes_in_between() -> None:
    async def main() -> None:
        turns, inside, most = Turns(), 0, 0

        async def use(waits: int) -> None:
            nonlocal inside, most
            for _ in range(waits):
                await asyncio.sleep(0)
            async with turns.of("a"):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0)
                inside -= 1

        await asyncio.gather(*(use(number % 7) for number in range(40)))
        assert (most, len(turns)) == (1, 0)

    asyncio.run(main())


def test_a_list_does_not_note_over_a_request_that_was_noted_while_it_was_under_way() -> None:
    async def main() -> None:
        memo = Memo()
        await memo.send("b", lambda: answer("1"), same)

        async def listing() -> str:
            await memo.send("a", lambda: answer("5"), same)
            return "list"

        await memo.send_list(listing, lambda _: {"a": "4", "b": "4"})
        assert memo.is_current("a", "5")
        assert memo.is_current("b", "4")
        with pytest.raises(Unanswered):
            await memo.send_list(lambda: fails(Unanswered("GET", "/", "cut")), lambda _: {"b": "9"})
        assert memo.is_current("b", "4")

    asyncio.run(main())


def test_what_was_made_a_moment_ago_is_part_of_a_list_that_lacks_it() -> None:
    async def main() -> None:
        memo = Memo()
        await memo.send("a", lambda: answer("1"), same)
        with pytest.raises(Unanswered):
            await memo.send("b", lambda: fails(Unanswered("POST", "/", "cut")), same)
        assert memo.unheld({}) == ["a"]
        assert memo.unheld({"a": "0"}) == []

    asyncio.run(main())


def test_it_forgets_what_has_done_its_work() -> None:
    async def main() -> None:
        memo = Memo()
        for key in "abc":
            await memo.send(key, lambda: answer("1"), same)
        memo.held("a", "0")
        assert len(memo) == 3
        memo.held("a", "1")
        memo.forget_gone(listed={"b"}, held={})
        assert (memo.knows("a"), memo.knows("b"), memo.knows("c")) == (False, True, False)
        for number in range(10_000):
            await memo.send(f"m{number}", lambda: answer("1"), same)
            memo.held(f"m{number}", "1")
        assert len(memo) == 1
        assert not len(memo._turns)

    asyncio.run(main())


def serial(wanted: int) -> Any:
    def compute(found: Object) -> Object | None:
        status = found.get("status", {})
        return None if status.get("serial") == wanted else status | {"serial": wanted}

    return compute


async def zone(world: World) -> Object:
    kind = {"apiVersion": "kudurru.io/v1alpha1", "kind": "DNSZone"}
    body = kind | {"metadata": {"name": "home"}, "spec": {"zoneName": "home.example."}}
    return await world.people.request("POST", ZONES, body)


def test_a_status_that_is_right_is_not_written() -> None:
    async def case(world: World) -> None:
        client, memo = world.client(), Memo()
        made = await zone(world)
        written = await settle_status(client, memo, HOME, made, serial(1))
        assert written is not None
        assert written["status"] == {"serial": 1}
        assert "status" not in made
        assert memo.is_current("home", version_of(written))
        begun = len(world.api.calls)
        assert await settle_status(client, memo, HOME, written, serial(1)) is None
        assert len(world.api.calls) == begun

    in_world(case)


def test_an_old_copy_is_read_again_and_the_status_computed_from_the_new_one() -> None:
    async def case(world: World) -> None:
        client, memo = world.client(), Memo()
        old = await zone(world)
        labelled = old | {"metadata": old["metadata"] | {"labels": {"a": "b"}}}
        await world.people.request("PUT", HOME, labelled)
        written = await settle_status(client, memo, HOME, old, serial(2))
        assert written is not None
        assert (written["metadata"]["labels"], written["status"]) == ({"a": "b"}, {"serial": 2})
        # And where the fresh one needs no write, none is made.
        begun = len(world.api.calls)
        assert await settle_status(client, memo, HOME, old, serial(2)) is None
        assert [verb for verb, _, _ in world.api.calls[begun:]] == ["update", "get"]

    in_world(case)


def test_a_status_of_what_is_gone_is_not_found_and_of_what_was_made_again_is_its_own() -> None:
    async def case(world: World) -> None:
        client, memo = world.client(), Memo()
        old = await zone(world)
        await world.people.request("DELETE", HOME)
        with pytest.raises(Absent):
            await settle_status(client, memo, HOME, old, serial(3))
        assert not memo.knows("home")
        again = await zone(world)
        written = await settle_status(client, memo, HOME, old, serial(3))
        assert written is not None
        assert written["metadata"]["uid"] == again["metadata"]["uid"]

    in_world(case)


def test_whose_object_moves_twice_is_told_so() -> None:
    async def case(world: World) -> None:
        client, memo = world.client(), Memo()
        old = await zone(world)

        def compute(found: Object) -> Object:
            key = ("dnszones.kudurru.io", "", "home")
            found = world.api._objects[key]
            version = int(found["metadata"]["resourceVersion"]) + 1
            found["metadata"] = found["metadata"] | {"resourceVersion": str(version)}
            return {"serial": version}

        with pytest.raises(Collided):
            await settle_status(client, memo, HOME, old, compute)
        assert not memo.is_current("home", version_of(world.api.objects("dnszones")["home"]))
        assert await read(client, memo, HOME, "home")

    in_world(case)
