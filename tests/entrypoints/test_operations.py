"""The table of what a node can be asked."""

import asyncio
import inspect
import re
import threading
from dataclasses import MISSING, fields
from typing import Any

import pytest

from kudurru.domain.errors import Invalid, NotFound
from kudurru.domain.events import Who
from kudurru.domain.restore import Scope
from kudurru.entrypoints import restoring, rpc
from kudurru.entrypoints.operations import METHODS, Operations
from kudurru.entrypoints.restoring import RestoreRequest, Undertaking
from kudurru.entrypoints.wiring import Node
from kudurru.entrypoints.writer import Writer
from tests.nodes import memory_node

WHO = Who(actor="ada", source="socket")


def operations(node: Node) -> Operations:
    """Of a node without listeners: enough for what reads and writes objects."""
    needed = [one.name for one in fields(Operations) if one.default_factory is MISSING]
    parts: dict[str, Any] = dict.fromkeys(needed)
    return Operations(**{**parts, "node": node, "writer": Writer(node)})


def test_what_the_client_asks_is_what_can_be_asked() -> None:
    asked = re.findall(r'_(?:call|send)\(\[?"([a-z-]+)"', inspect.getsource(rpc.RemoteService))
    assert set(asked) == set(METHODS)


def test_every_operation_is_in_the_table() -> None:
    public = {f for name, f in inspect.getmembers(Operations, inspect.isfunction) if name[0] != "_"}
    assert public - {Operations.handle} == set(METHODS.values())


def test_what_is_no_method_is_refused() -> None:
    with pytest.raises(Invalid, match="unknown method 'no-such'"):
        asyncio.run(operations(memory_node()).handle("no-such", None, WHO))


@pytest.mark.parametrize("key", [None, 7, "DNSZone", "NoSuchKind//a", ["DNSZone//a"]])
def test_what_is_no_key_is_refused(key: object) -> None:
    with pytest.raises(Invalid, match="is no key of an object"):
        asyncio.run(operations(memory_node()).handle("get", key, WHO))


def test_a_purge_without_a_query_log_says_so() -> None:
    with pytest.raises(NotFound, match="keeps no query log"):
        asyncio.run(operations(memory_node()).handle("purge-queries", None, WHO))


def test_plans_are_made_one_at_a_time() -> None:
    """Each takes a thread for as long as the log is, and there are few for all that a node does."""
    node, planning, together = memory_node(), threading.Semaphore(1), []

    def prepare(_id: str, _who: Who) -> Undertaking:
        together.append(not planning.acquire(blocking=False))
        plan = restoring.plan_restore(node.log, RestoreRequest(scope=Scope(everything=True)))
        if not together[-1]:
            threading.Event().wait(0.02)  # so long another one would have to begin
            planning.release()
        return Undertaking(plan, "", ())

    async def asked() -> None:
        of_node = operations(node)
        await asyncio.gather(*(of_node._carry_out(prepare, WHO) for _ in range(5)))

    asyncio.run(asked())
    assert together == [False] * 5
