"""Each verb of each manifest is taken away in turn, from an account of its own, and the node says
which one it misses and for what: before it needs it, and when it is refused."""

import asyncio
import copy
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kudurru.adapters.clock import SystemEntropy
from kudurru.adapters.kubernetes.client import Client
from kudurru.adapters.kubernetes.diagnosis import Diagnosis
from kudurru.adapters.kubernetes.informer import Handler, Informer, Source
from kudurru.adapters.kubernetes.rbac import FEATURES, bound
from kudurru.adapters.kubernetes.rights import needed
from kudurru.adapters.kubernetes.store import PREFIX, KubernetesStore, Place
from kudurru.domain.errors import StorageFailed
from kudurru.domain.objects import key_of
from tests.kube.connections import connected
from tests.kube.installing import collection
from tests.kube.server import ApiServer
from tests.objects import Document, document

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

PATIENCE_S = 60.0
"""Roles take effect some moments after they are written."""
SUBJECT = {"kind": "User", "name": "limited", "apiGroup": "rbac.authorization.k8s.io"}
GROUPS = f"{PREFIX}/namespaces/default/clientgroups"

Object = dict[str, Any]
Attempt = Callable[[KubernetesStore], Awaitable[object]]


@pytest.fixture(scope="module")
def roles(installed: ApiServer) -> dict[str, Object]:
    """Roles of the user `limited`, by feature, each bound to him and to no other."""
    found: dict[str, Object] = {}
    for feature in FEATURES:
        for manifest in bound(feature, SUBJECT, "default"):
            named = copy.deepcopy(manifest)
            named["metadata"]["name"] = f"limited-{feature.name}"
            if "rules" in named:
                found[feature.name] = named
            else:
                named["roleRef"]["name"] = f"limited-{feature.name}"
            assert installed.call("POST", collection(named), named)[0] == 201
    return found


def without(role: Object, verb: str, resource: str) -> Object:
    """The role with one verb less."""
    fewer = copy.deepcopy(role)
    fewer["rules"] = [part for rule in role["rules"] for part in _split(rule, verb, resource)]
    return fewer


def _split(rule: Object, verb: str, resource: str) -> Iterator[Object]:
    for one in rule["resources"]:
        verbs = [word for word in rule["verbs"] if (word, one) != (verb, resource)]
        if verbs:
            yield rule | {"resources": [one], "verbs": verbs}


def put(server: ApiServer, role: Object) -> None:
    path = f"{collection(role)}/{role['metadata']['name']}"
    assert server.call("PUT", path, role)[0] == 200


@asynccontextmanager
async def diagnosed(server: ApiServer) -> AsyncIterator[tuple[Diagnosis, Client]]:
    async with connected(server, "limited") as client:
        diagnosis = Diagnosis(client, "default")
        yield diagnosis, client.with_observer(diagnosis.observe)


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await is_so():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("feature", FEATURES, ids=lambda one: one.name)
def test_each_verb_that_is_taken_away_is_named_with_its_feature(
    installed: ApiServer, roles: dict[str, Object], feature: Any
) -> None:
    async def main() -> None:
        async with connected(installed, "limited") as client:
            fast = Diagnosis(client.without_pace(), "default")

            async def nothing() -> bool:
                await fast.look()
                return fast.warnings() == []

            for right in needed(feature):
                await until(nothing)
                put(installed, without(roles[feature.name], right.verb, right.resource))

                async def named(right: Any = right) -> bool:
                    await fast.look()
                    what = f"the feature {feature.name} lacks the verb {right.verb} on "
                    said = fast.warnings()
                    return len(said) == 1 and f"{what}{right.resource}" in said[0]

                await until(named)
                put(installed, roles[feature.name])
            await until(nothing)

    asyncio.run(main())


def group(ip: str = "192.0.2.1", **metadata: Any) -> Document:
    return document("ClientGroup", "limited", {"clients": [{"ip": ip}]}, **metadata)


KEY = key_of("ClientGroup", "default", "limited")


async def _status(store: KubernetesStore) -> None:
    version = (await store.get(KEY))["metadata"]["resourceVersion"]
    await store.update_status(group(resourceVersion=version) | {"status": {}}, "carol")


ATTEMPTS: dict[tuple[str, str], Attempt] = {
    ("get", "clientgroups"): lambda store: store.get(KEY),
    ("list", "clientgroups"): lambda store: store.list("ClientGroup"),
    ("patch", "clientgroups"): lambda store: store.apply(group("198.51.100.9"), "alice"),
    ("update", "clientgroups/status"): _status,
    ("create", "clientgroups"): lambda store: store.apply(group("198.51.100.1"), "alice"),
    ("delete", "clientgroups"): lambda store: store.delete(KEY),
}


def test_a_refusal_names_the_verb_and_the_feature_until_it_is_allowed(
    installed: ApiServer, roles: dict[str, Object]
) -> None:
    async def main() -> None:
        async with diagnosed(installed) as (diagnosis, client):
            store = KubernetesStore(
                client, Place("default", "pod"), entropy=SystemEntropy(), chance=random.Random()
            )

            async def ready() -> bool:
                await diagnosis.look()
                return diagnosis.warnings() == []

            await until(ready)
            await store.apply(group(), "alice")
            for (verb, resource), attempt in ATTEMPTS.items():
                await until(ready)
                if verb == "create":
                    await store.delete(KEY)
                put(installed, without(roles["objects"], verb, resource))

                async def refused(attempt: Attempt = attempt, verb: str = verb) -> bool:
                    try:
                        await attempt(store)
                    except StorageFailed as error:
                        return f"cannot {verb} resource" in str(error)
                    return False

                await until(refused)
                (warning,) = diagnosis.warnings()
                assert f"the feature objects lacks the verb {verb} on {resource}" in warning
                put(installed, roles["objects"])

                async def allowed(refused: Callable[[], Awaitable[bool]] = refused) -> bool:
                    return not await refused()

                await until(allowed)
                assert diagnosis.warnings() == []
            await store.close()

    asyncio.run(main())


def test_a_watch_that_is_refused_is_named_and_goes_on_once_it_is_allowed(
    installed: ApiServer, roles: dict[str, Object]
) -> None:
    async def main() -> None:
        async with diagnosed(installed) as (diagnosis, client):
            put(installed, without(roles["objects"], "watch", "clientgroups"))

            async def without_it() -> bool:
                await diagnosis.look()
                return len(diagnosis.warnings()) == 1

            await until(without_it)
            found = Informer(client, Source(GROUPS), dict, Handler(), chance=random.Random())
            running = asyncio.ensure_future(found.run())
            async with asyncio.timeout(PATIENCE_S):
                await found.changed(lambda: found.lists > 0)
            assert "lacks the verb watch on clientgroups" in diagnosis.warnings()[0]
            put(installed, roles["objects"])
            async with asyncio.timeout(PATIENCE_S):
                await found.synced()
            assert diagnosis.warnings() == []
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())
