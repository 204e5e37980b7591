"""The suite of every store, on the objects of a real API server, as the account that the manifests
make and no other."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from kudurru.adapters.clock import SystemEntropy
from kudurru.adapters.kubernetes.election import Timings
from kudurru.adapters.kubernetes.store import KubernetesStore, Place
from kudurru.domain.kinds.registry import KINDS
from tests.conformance.store import test_mass_change, test_objects, test_watch
from tests.conformance.store.drivers import PATIENCE_S, Case
from tests.kube.connections import connected
from tests.kube.server import ApiServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

CASES: dict[str, Case] = {
    name: test.__dict__["case"]
    for module in (test_mass_change, test_objects, test_watch)
    for name, test in vars(module).items()
    if name.startswith("test_")
}
NAMESPACES = ("default", "team", "teams")


@pytest.fixture
def empty(installed: ApiServer) -> ApiServer:
    """Without any object of ours."""
    for name in NAMESPACES[1:]:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        assert installed.call("POST", "/api/v1/namespaces", body)[0] in (201, 409)
    for kind in KINDS.values():
        for namespace in NAMESPACES if kind.namespaced else ("",):
            within = f"/namespaces/{namespace}" if namespace else ""
            path = f"/apis/kudurru.io/v1alpha1{within}/{kind.plural}"
            assert kind.is_internal or installed.call("DELETE", path)[0] == 200
    return installed


@asynccontextmanager
async def store_of(server: ApiServer) -> AsyncIterator[KubernetesStore]:
    async with connected(server) as client:
        store = KubernetesStore(
            replace(client, pace=None),  # cases write thousands of objects
            Place("default", "pod"),
            entropy=SystemEntropy(),
            chance=random.Random(),
            timings=Timings(9, 5, 2),
        )
        try:
            yield store
        finally:
            await store.close()


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_store_in_kubernetes_passes_the_suite(empty: ApiServer, name: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(2 * PATIENCE_S), store_of(empty) as store:
            await CASES[name](store)

    asyncio.run(main())
