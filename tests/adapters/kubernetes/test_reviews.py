"""Who a token says somebody is, and what he may do: the cluster is asked, and believed for some
seconds."""

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from kudurru.adapters.kubernetes import reviews as reviews_module
from kudurru.adapters.kubernetes.fakes.network import Request, Response
from kudurru.adapters.kubernetes.fakes.reviews import Person
from kudurru.adapters.kubernetes.reviews import KEPT_S, TOKEN_MAX, KubernetesReviews
from kudurru.domain.errors import StorageFailed
from kudurru.domain.objects import key_of
from kudurru.domain.ports import ClusterUser
from tests.adapters.kubernetes.worlds import World, in_world

ALICE = ClusterUser("alice", "alice-uid", ("dev",))
SET = key_of("DNSRecordSet", "team", "www")
ZONE = key_of("DNSZone", "", "example")


def asked(world: World, plural: str) -> int:
    return world.api.calls.count(("create", plural, ""))


def test_a_token_is_somebodys_when_it_is_made_for_us() -> None:
    async def case(world: World) -> None:
        reviews = KubernetesReviews(world.client())
        world.api.reviews.people = {
            "good": Person("alice", ("dev",)),
            "of the API server": Person("alice", ("dev",), ("https://kubernetes.default.svc",)),
        }
        assert await reviews.user("good") == ALICE
        assert await reviews.user("of the API server") is None
        assert await reviews.user("nobody's") is None
        begun = len(world.api.calls)
        assert await reviews.user("größe") is None
        assert await reviews.user("x" * (TOKEN_MAX + 1)) is None
        assert len(world.api.calls) == begun

    in_world(case)


def test_an_answer_that_names_no_audience_lets_nobody_in() -> None:
    async def case(world: World) -> None:
        body = b'{"status":{"authenticated":true,"user":{"username":"alice"}}}'
        world.api.interfere = lambda verb, plural, name: Response(201, body)
        assert await KubernetesReviews(world.client()).user("good") is None

    in_world(case)


def test_what_somebody_may_do_is_what_the_cluster_says_of_him_and_the_object() -> None:
    async def case(world: World) -> None:
        seen: list[tuple[str, Collection[str], dict[str, Any]]] = []

        def may(who: str, groups: Collection[str], wanted: dict[str, Any]) -> bool:
            seen.append((who, groups, wanted))
            return wanted.get("namespace") == "team" or wanted.get("name") == "by-name"

        reviews = KubernetesReviews(world.client())
        world.api.reviews.may = may
        assert await reviews.refusal(ALICE, "patch", SET) == ""
        assert await reviews.refusal(ALICE, "delete", ZONE) == (
            "alice may not delete dnszones.kudurru.io in Kubernetes"
        )
        other = key_of("DNSRecordSet", "other", "www")
        assert "dnsrecordsets.kudurru.io in the namespace other" in (
            await reviews.refusal(ALICE, "patch", other)
        )
        assert seen[0][:2] == ("alice", ["dev"])
        assert seen[0][2] == {
            "group": "kudurru.io",
            "version": "v1alpha1",
            "resource": "dnsrecordsets",
            "verb": "patch",
            "namespace": "team",
        }
        assert "namespace" not in seen[1][2]
        begun = len(seen)
        for number in range(100):  # what is allowed for all of them is asked once
            key = key_of("DNSRecordSet", "team", f"n{number}")
            assert await reviews.refusal(ALICE, "patch", key) == ""
        assert len(seen) == begun
        named = key_of("DNSZone", "", "by-name")
        assert await reviews.refusal(ALICE, "delete", named) == ""

    in_world(case)


def test_an_answer_holds_for_seconds_and_no_longer() -> None:
    async def case(world: World) -> None:
        reviews = KubernetesReviews(world.client())
        world.api.reviews.people = {"good": Person("alice", ("dev",))}
        world.api.reviews.may = lambda who, groups, wanted: True
        for _ in range(3):
            assert await reviews.user("good") == ALICE
            assert await reviews.refusal(ALICE, "patch", SET) == ""
        assert asked(world, "tokenreviews") == asked(world, "subjectaccessreviews") == 1
        world.api.reviews.people.clear()
        world.api.reviews.may = lambda who, groups, wanted: False
        await asyncio.sleep(KEPT_S - 1)
        assert await reviews.user("good") == ALICE
        await asyncio.sleep(1.1)
        assert await reviews.user("good") is None
        assert await reviews.refusal(ALICE, "patch", SET)
        # Another person, verb or object is another question.
        again = ClusterUser("alice", "alice-uid", ())
        begun = asked(world, "subjectaccessreviews")
        world.api.reviews.may = lambda who, groups, wanted: True
        for question in ((again, "patch", SET), (ALICE, "get", SET), (ALICE, "patch", ZONE)):
            await reviews.refusal(*question)
        assert asked(world, "subjectaccessreviews") == begun + 3

    in_world(case)


def test_an_answer_that_came_late_is_as_old_as_its_question() -> None:
    """It may have been given before a right was taken away, and been on its way since."""

    async def case(world: World) -> None:
        reviews = KubernetesReviews(world.client())
        handle = world.server._handler

        async def slowly(request: Request) -> Response:
            answer = await handle(request)
            await asyncio.sleep(KEPT_S - 2)
            return answer

        world.server._handler = slowly
        world.api.reviews.may = lambda who, groups, wanted: True
        assert await reviews.refusal(ALICE, "patch", SET) == ""
        world.api.reviews.may = lambda who, groups, wanted: False
        await asyncio.sleep(2.1)
        assert await reviews.refusal(ALICE, "patch", SET)

    in_world(case)


def test_what_is_kept_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reviews_module, "KEPT_MAX", 20)

    async def case(world: World) -> None:
        reviews = KubernetesReviews(world.client())
        for number in range(25):
            await reviews.user(f"t{number}")
        assert len(reviews._users._answers) == 20
        await reviews.user("t24")
        assert asked(world, "tokenreviews") == 25
        await reviews.user("t0")  # the oldest went
        assert asked(world, "tokenreviews") == 26

    in_world(case)


def test_many_who_ask_the_same_at_once_make_one_request_also_when_one_goes_away() -> None:
    async def case(world: World) -> None:
        reviews = KubernetesReviews(world.client())
        world.api.reviews.people = {"good": Person("alice", ("dev",))}
        first, *others = (asyncio.ensure_future(reviews.user("good")) for _ in range(10))
        await asyncio.sleep(0)
        first.cancel()
        assert await asyncio.gather(*others) == [ALICE] * 9
        assert asked(world, "tokenreviews") == 1

    in_world(case)


def test_who_cannot_be_asked_about_is_not_let_in_and_asked_about_again() -> None:
    async def case(world: World) -> None:
        reviews = KubernetesReviews(world.client())
        world.api.reviews.people = {"good": Person("alice", ("dev",))}
        world.api.forbidden |= {
            ("create", "tokenreviews"),
            ("create", "subjectaccessreviews"),
        }
        with pytest.raises(StorageFailed, match=r"schemas/rbac/reviews\.yaml"):
            await reviews.user("good")
        with pytest.raises(StorageFailed, match="SubjectAccessReview is missing"):
            await reviews.refusal(ALICE, "patch", SET)
        world.api.forbidden.clear()
        world.server.down()
        with pytest.raises(StorageFailed, match="cannot be asked"):
            await reviews.user("good")
        world.server.up()
        assert await reviews.user("good") == ALICE

    in_world(case)
