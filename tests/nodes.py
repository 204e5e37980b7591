"""Nodes for tests: a log in memory that may be told to fail, and a clock that stands."""

from collections.abc import Sequence
from typing import Any

import msgspec

from kudurru.adapters.memory.clock import ManualClock, SeededEntropy
from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.domain.commands import Command
from kudurru.domain.errors import KudurruError, StorageFailed
from kudurru.domain.events import ChangeSet, Recorded, Who
from kudurru.domain.ports import EventLog
from kudurru.entrypoints.wiring import Change, Node

TESTER = Who(actor="user:1000", source="test")


class BrittleLog(MemoryEventLog):
    """A log whose next append, or the one after `passes` more, fails when it is told so; nothing
    is recorded then."""

    fails_next = False
    passes = 0
    error: KudurruError = StorageFailed("no space left on device; free some")

    def append(
        self, change_sets: Sequence[ChangeSet], now_us: int, *, head_seq: int | None = None
    ) -> list[Recorded]:
        if self.fails_next and not self.passes:
            self.fails_next = False
            raise self.error
        self.passes = max(0, self.passes - 1)
        return super().append(change_sets, now_us, head_seq=head_seq)


def brittle_log(clock: ManualClock) -> BrittleLog:
    return BrittleLog(entropy=SeededEntropy(1), clock=clock)


def memory_node(clock: ManualClock | None = None) -> Node:
    clock = clock or ManualClock()
    return Node(brittle_log(clock), clock, SeededEntropy(2))


def rebuilt(node: Node, log: EventLog | None = None) -> Node:
    """Another node of the same log, built from nothing and brought to the same moment."""
    other = Node(log or node.log, node.clock, SeededEntropy(3))
    other.views.follower.catch_up(other.log)
    other.views.follower.advance(node.zones.now_s)
    return other


def a_change(*commands: Command, **how: Any) -> Change:
    return Change(commands=commands, who=TESTER, **how)


def commit_as_server(node: Node, change: Change) -> None:
    """What `Node.commit` does, the way a server goes: first the change, then what is to be said of
    the objects that it concerns, then its stamps."""
    now_us = node.clock.now_us()
    decided = node.decide([change], now_us)[0]
    if isinstance(decided, KudurruError):
        raise decided
    if not decided.events:
        return
    who = msgspec.structs.replace(change.who, wall=now_us)
    at_us = node.time_for_events_us(now_us)
    if steps := node.clock_steps(now_us):
        node.take_in(node.log.append(steps, at_us))
    with node.judged() as judged:
        node.take_in(node.log.append([ChangeSet(tuple(decided.events), who)], at_us))
        judged.update(node.concerned(decided.events))
        for command in node.judgements(judged):
            take_in_status(node, command, who, at_us)
    for command in node.stamps(change.imported_serials):
        take_in_status(node, command, who, at_us)


def take_in_status(node: Node, command: Command, who: Who, at_us: int) -> None:
    found = node.decide([a_change(command)], node.clock.now_us())[0]
    assert not isinstance(found, KudurruError)
    node.take_in(node.log.append([ChangeSet(tuple(found.events), who)], at_us))
