"""An election in real time, on a real API server, as the account that the manifests make."""

import asyncio
import random
import time
from typing import NoReturn

import pytest

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.kubernetes.client import Client
from kudurru.adapters.kubernetes.election import LeaseElector
from kudurru.adapters.timers import LoopTimers
from kudurru.entrypoints.runner import Runner
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
            stopping = {"a": asyncio.Event(), "b": asyncio.Event()}
            tasks = {}

            def start(who: str) -> None:
                runner = Runner(SystemClock(), LoopTimers(), electors[who])
                runner.add("work", lambda: work(who), leader_only=True)
                tasks[who] = asyncio.create_task(runner.run(stopping[who].wait))

            async def stop(who: str) -> None:
                stopping[who].set()
                await tasks[who]

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
            await stop("b")
            await until("a", what="clean stop to the next leader")
            await stop("a")
            lease = await near.get(path, dict)
            assert not lease["spec"].get("holderIdentity")
            assert most == 1

    asyncio.run(main())
