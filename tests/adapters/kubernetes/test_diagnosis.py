"""What is missing in a cluster is said by name, with the feature that wants it, and until it is
there; of what is in order nothing is asked."""

import asyncio
import logging
import random

import msgspec
import pytest

from kudurru.adapters.kubernetes.answers import Forbidden
from kudurru.adapters.kubernetes.client import Client
from kudurru.adapters.kubernetes.diagnosis import AGAIN_S, NOTES_MAX, SOON_S, Diagnosis
from kudurru.adapters.kubernetes.fakes.network import Response
from kudurru.adapters.kubernetes.informer import Handler, Informer, Source
from kudurru.adapters.kubernetes.rbac import FEATURES
from kudurru.adapters.kubernetes.rights import Right, Rule, needed, right_of
from tests.adapters.kubernetes.worlds import World, in_world, running

ZONES = "/apis/kudurru.io/v1alpha1/dnszones"
NEEDED = [(feature.name, right) for feature in FEATURES for right in needed(feature)]


def diagnosed(world: World) -> tuple[Diagnosis, Client]:
    """And a client that it observes."""
    diagnosis = Diagnosis(world.client(), "default")
    return diagnosis, world.client().with_observer(diagnosis.observe)


@pytest.mark.parametrize(
    ("method", "target", "right"),
    [
        ("GET", f"{ZONES}/a", "get dnszones.kudurru.io"),
        ("GET", f"{ZONES}?limit=250", "list dnszones.kudurru.io"),
        ("GET", f"{ZONES}?watch=1&resourceVersion=5", "watch dnszones.kudurru.io"),
        ("PATCH", f"{ZONES}/a?fieldManager=b", "patch dnszones.kudurru.io"),
        ("PUT", f"{ZONES}/a/status", "update dnszones/status.kudurru.io"),
        ("DELETE", "/api/v1/namespaces/n/secrets/a", "delete secrets"),
        ("POST", "/api/v1/namespaces/n/events", "create events"),
        ("GET", "/api/v1/namespaces/kube-system", "get namespaces"),
        ("GET", "/api/v1/namespaces", "list namespaces"),
        ("GET", "/apis/kudurru.io", "None"),
        ("GET", "/version", "None"),
    ],
)
def test_the_right_that_a_request_needs(method: str, target: str, right: str) -> None:
    assert str(right_of(method, target)) == right


@pytest.mark.parametrize(
    ("rule", "allows"),
    [
        (Rule(["get"], ["a"], ["bs"]), True),
        (Rule(["*"], ["*"], ["*"]), True),
        (Rule(["get"], ["a"], ["bs", "cs"], ["one"]), True),
        (Rule(["get"], ["a"], ["bs"], ["another"]), False),
        (Rule(["list"], ["a"], ["bs"]), False),
        (Rule(["get"], [""], ["bs"]), False),
        (Rule(["get"], ["a"], ["bs/status"]), False),
    ],
)
def test_a_rule_allows_what_it_names(rule: Rule, allows: bool) -> None:
    assert rule.allows(Right("a", "bs", "get"), ["one"]) == allows


@pytest.mark.parametrize(
    ("verb", "resource", "feature"),
    [(right.verb, right.resource, name) for name, right in NEEDED],
)
def test_each_verb_that_is_missing_is_named_with_its_feature_before_it_is_used(
    verb: str, resource: str, feature: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def case(world: World) -> None:
        diagnosis, _ = diagnosed(world)
        await diagnosis.look()
        assert diagnosis.warnings() == []
        world.api.forbidden.add((verb, resource))
        await diagnosis.look()
        await diagnosis.look()  # the same is not said again
        (warning,) = diagnosis.warnings()
        assert f"the feature {feature} lacks the verb {verb} on {resource}" in warning
        assert f"schemas/rbac/{feature}.yaml" in warning
        assert [one.getMessage() for one in caplog.records] == [warning]
        world.api.forbidden.clear()
        await diagnosis.look()
        assert diagnosis.warnings() == []

    with caplog.at_level(logging.WARNING):
        in_world(case)


def test_a_refusal_is_named_by_who_was_refused_until_it_is_allowed() -> None:
    async def case(world: World) -> None:
        diagnosis, client = diagnosed(world)
        world.api.forbidden |= {("list", "dnszones"), ("create", "dnszones")}
        body = {"apiVersion": "kudurru.io/v1alpha1", "kind": "DNSZone", "metadata": {"name": "a"}}
        path = f"{ZONES}/a?fieldManager=a"
        for _ in range(2):
            with pytest.raises(Forbidden):
                await client.get(ZONES, dict)
            with pytest.raises(Forbidden):
                await client.request("PATCH", path, body, content_type="application/apply-patch")
        create, listing = diagnosis.warnings()
        assert "the feature objects lacks the verb create on dnszones.kudurru.io" in create
        assert "lacks the verb list on dnszones.kudurru.io" in listing
        world.api.forbidden.clear()
        await client.get(ZONES, dict)
        await client.request("PATCH", path, body, content_type="application/apply-patch")
        assert diagnosis.warnings() == []

    in_world(case)


def test_a_right_that_is_given_and_not_used_is_missing_no_more_after_some_minutes() -> None:
    async def case(world: World) -> None:
        diagnosis, client = diagnosed(world)
        world.api.forbidden.add(("list", "dnszones"))
        async with running(diagnosis.run()):
            with pytest.raises(Forbidden):
                await client.get(ZONES, dict)
            world.api.forbidden.clear()
            await asyncio.sleep(SOON_S + AGAIN_S - 1)
            assert len(diagnosis.warnings()) == 1
            await asyncio.sleep(2)
            assert diagnosis.warnings() == []

    in_world(case)


def test_a_watch_that_is_refused_is_named_too_and_asked_for_every_five_minutes() -> None:
    async def case(world: World) -> None:
        diagnosis, client = diagnosed(world)
        found = Informer(client, Source(ZONES), dict, Handler(), chance=random.Random(1))
        async with running(diagnosis.run(), found.run()):
            await found.synced()
            reviews = reviewed(world)
            await asyncio.sleep(12 * 3600)
            assert reviewed(world) == reviews == 1  # nothing is wrong, and nothing is asked
            world.api.forbidden.add(("watch", "dnszones"))
            world.api.end_watches()
            await found.changed(lambda: not found.is_synced)
            assert "lacks the verb watch on dnszones.kudurru.io" in diagnosis.warnings()[0]
            await asyncio.sleep(SOON_S + 2 * AGAIN_S + 1)
            assert reviewed(world) == reviews + 3
            world.api.forbidden.clear()
            await found.synced()
            assert diagnosis.warnings() == []

    in_world(case)


def reviewed(world: World) -> int:
    return world.api.calls.count(("create", "selfsubjectrulesreviews", ""))


def test_credentials_that_are_refused_are_one_warning() -> None:
    async def case(world: World) -> None:
        diagnosis, client = diagnosed(world)
        world.api.interfere = lambda verb, plural, name: Response(401, b'{"message":"no"}')
        for _ in range(2):
            with pytest.raises(Forbidden):
                await client.get(ZONES, dict)
        (warning,) = diagnosis.warnings()
        assert warning.startswith("Unauthorized: ")
        world.api.interfere = None
        await client.get(ZONES, dict)
        assert diagnosis.warnings() == []

    in_world(case)


def test_a_definition_that_is_missing_or_of_another_version_is_named() -> None:
    async def case(world: World) -> None:
        diagnosis, client = diagnosed(world)
        zones = world.api.resources.pop(("/apis/kudurru.io/v1alpha1", "dnszones"))
        later = msgspec.structs.replace(zones, prefix="/apis/kudurru.io/v2")
        world.api.resources[(later.prefix, later.plural)] = later
        world.api.absent.add("policies")
        path = ("/apis/kudurru.io/v1alpha1", "blocklists")
        world.api.resources[path] = msgspec.structs.replace(
            world.api.resources[path], has_status=False
        )
        found = Informer(client, Source(ZONES), dict, Handler(), chance=random.Random(1))
        async with running(diagnosis.run(), found.run()):
            await found.synced()
            assert found.is_absent
            await asyncio.sleep(1)
            other, status, absent = diagnosis.warnings()
            assert other.startswith(
                "OtherVersion: dnszones.kudurru.io is served as v2 and this program speaks v1alpha1"
            )
            assert status.startswith("NoStatus: blocklists.kudurru.io has no status subresource")
            assert absent.startswith("NotInstalled: policies.kudurru.io is not installed")
            assert "kudurru crds install" in absent
            world.api.resources[(zones.prefix, zones.plural)] = zones
            world.api.resources[path] = msgspec.structs.replace(zones, plural="blocklists")
            world.api.absent.clear()
            await asyncio.sleep(AGAIN_S)
            assert diagnosis.warnings() == []

    in_world(case)


def test_where_nothing_is_installed_every_kind_is_named() -> None:
    async def case(world: World) -> None:
        world.api.absent |= {"dnszones", "dnsrecordsets", "blocklists", "clientgroups", "policies"}
        diagnosis, _ = diagnosed(world)
        await diagnosis.look()
        assert len(diagnosis.warnings()) == 5

    in_world(case)


def test_what_cannot_be_asked_is_no_fault() -> None:
    async def case(world: World) -> None:
        diagnosis, _ = diagnosed(world)
        world.api.forbidden.add(("list", "dnszones"))
        await diagnosis.look()
        before = diagnosis.warnings()
        world.server.down()
        await diagnosis.look()
        assert diagnosis.warnings() == before
        world.server.up()
        world.api.reviews.is_incomplete = True
        world.api.forbidden.clear()
        await diagnosis.look()
        assert diagnosis.warnings() == before

    in_world(case)


def test_what_could_not_be_asked_is_asked_again() -> None:
    async def case(world: World) -> None:
        diagnosis, _ = diagnosed(world)
        world.api.forbidden.add(("list", "dnszones"))
        world.server.down()
        async with running(diagnosis.run()):
            await asyncio.sleep(1)
            assert diagnosis.warnings() == []
            world.server.up()
            await asyncio.sleep(AGAIN_S)
            assert len(diagnosis.warnings()) == 1

    in_world(case)


def test_objects_that_cannot_be_read_are_named_until_they_can_and_many_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def case(world: World) -> None:
        diagnosis, _ = diagnosed(world)
        for _ in range(2):
            diagnosis.unreadable("DNSZone a", "spec.zoneName: no name")
        (warning,) = diagnosis.warnings()
        assert warning == (
            "Unreadable: DNSZone a is kept out, and what is held of it stays: "
            "spec.zoneName: no name"
        )
        assert len(caplog.records) == 1
        diagnosis.readable("DNSZone a")
        assert diagnosis.warnings() == []
        for number in range(NOTES_MAX + 3):
            diagnosis.unreadable(f"DNSZone {number}", "x" * 1000)
        assert len(diagnosis.warnings()) == NOTES_MAX + 1
        assert diagnosis.warnings()[-1] == "Unreadable: 3 more objects"

    with caplog.at_level(logging.WARNING):
        in_world(case)
