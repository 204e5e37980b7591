"""Nodes for tests: a log in memory and a clock that stands."""

from typing import Any

from kudurru.adapters.memory.clock import ManualClock, SeededEntropy
from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.domain.commands import Command
from kudurru.domain.events import Who
from kudurru.domain.ports import EventLog
from kudurru.entrypoints.wiring import Change, Node

TESTER = Who(actor="user:1000", source="test")


def memory_node(clock: ManualClock | None = None) -> Node:
    clock = clock or ManualClock()
    log = MemoryEventLog(entropy=SeededEntropy(1), clock=clock)
    return Node(log, clock, SeededEntropy(2))


def node_on(log: EventLog, clock: ManualClock) -> Node:
    """Another node of the same log, caught up."""
    node = Node(log, clock, SeededEntropy(3))
    node.catch_up()
    return node


def a_change(*commands: Command, **how: Any) -> Change:
    return Change(commands=commands, who=TESTER, **how)
