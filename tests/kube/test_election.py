"""An election in real time, on a real API server, as the account that the manifests make."""

import asyncio
import random
import time
from typing import NoReturn

import pytest

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.kubernetes.client import Client
from kudurru.adapters.kubernetes.election import LeaseElector
from kudurru.entrypoints.leading import lead
from tests.kube.connections import Cuttable, connected
from tests.kube.server import ApiServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

PATIENCE_S = 120.0


def elector(client: Client, name: str, pod: str) -> LeaseElector:
    return LeaseElector(
        client,
        name,
        namespace="default",
        pod=pod,
        clock=SystemClock(),
        entropy=SystemEntropy(),
        chance=random.Random(),
    )


def test_a_partition_and_a_clean_stop(installed: ApiServer) -> None:
    async def main() -> None:
        active: list[str] = []
        most = 0

        async def work(who: str) -> NoReturn:
            nonlocal most
            active.append(who)
            most = max(most, len(active))
            try:
                await asyncio.Event().wait()
            finally:
                active.remove(who)
            raise AssertionError

        async def until(*who: str, what: str) -> None:
            begun = time.monotonic()
            async with asyncio.timeout(PATIENCE_S):
                while active != list(who):
                    await asyncio.sleep(0.05)
            print(f"suite kube: {what}: {time.monotonic() - begun:.2f} s")

        way = Cuttable()
        async with connected(installed, backend=way) as near, connected(installed) as far:
            electors = {
                "a": elector(near, "timed", "a"),
                "b": elector(far, "timed", "b"),
            }
            tasks = {}

            def start(who: str) -> None:
                tasks[who] = asyncio.create_task(lead(electors[who], lambda: work(who)))

            path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/kudurru-timed"
            start("a")
            await until("a", what="first start to leader")
            start("b")
            while not electors["b"].leader:
                await asyncio.sleep(0.1)
            await way.cut()
            await until(what="partition to the end of the term")
            await until("b", what="and to the next leader")
            way.is_cut = False
            tasks["b"].cancel()
            await asyncio.gather(tasks["b"], return_exceptions=True)
            await until("a", what="clean stop to the next leader")
            tasks["a"].cancel()
            await asyncio.gather(tasks["a"], return_exceptions=True)
            lease = await near.get(path, dict)
            assert not lease["spec"].get("holderIdentity")
            assert most == 1

    asyncio.run(main())
