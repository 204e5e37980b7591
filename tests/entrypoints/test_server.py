"""Parts of the server that need no process."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

import pytest
from msgspec.structs import replace

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.memory.clock import ManualClock, SeededEntropy
from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.adapters.sockets import Bound, Listener, bind_all
from kudurru.domain.commands import Delete
from kudurru.domain.errors import Busy, Invalid, KudurruError, LogDamaged
from kudurru.domain.events import SETTINGS_CHANGED, ChangeSet, Event, Who
from kudurru.domain.objects import Key
from kudurru.domain.ports import LogRow
from kudurru.domain.settings_changes import SETTINGS_KEY
from kudurru.entrypoints import listeners as listeners_module
from kudurru.entrypoints.cli.serve import serve_options
from kudurru.entrypoints.listeners import bind_listeners, stop_all
from kudurru.entrypoints.live_settings import LiveSettings
from kudurru.entrypoints.server import Server
from kudurru.entrypoints.settings import Sources
from kudurru.entrypoints.wiring import Change, Node
from tests.nodes import TESTER, a_change, memory_node
from tests.objects import put, www, zone

PAIR = [("udp", "127.0.0.1:0"), ("tcp", "127.0.0.1:0")]


def close(bound: Sequence[Bound]) -> None:
    for one in bound:
        for sock in one.sockets:
            sock.close()


def test_udp_and_tcp_get_one_port_between_them() -> None:
    bound = bind_listeners(PAIR, 1)
    try:
        assert len({one.address for one in bound}) == 1
    finally:
        close(bound)


def test_another_port_is_tried_where_any_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[str] = []

    def bind(listeners: Sequence[Listener], per_listener: int = 1) -> list[Bound]:
        if listeners[0].proto == "tcp" and len(refused) < 3:
            refused.append(listeners[0].address)
            raise Busy("taken")
        return bind_all(listeners, per_listener)

    monkeypatch.setattr(listeners_module, "bind_all", bind)
    bound = bind_listeners(PAIR, 1)
    try:
        assert len(refused) == 3
        assert len({one.address for one in bound}) == 1
    finally:
        close(bound)


def test_a_port_that_was_named_is_not_traded_for_another() -> None:
    holder = bind_listeners(PAIR, 1)
    try:
        with pytest.raises(Busy, match="is taken by"):
            bind_listeners([("udp", holder[0].address)], 1)
    finally:
        close(holder)


def test_encrypted_listeners_have_one_socket() -> None:
    listeners = [(proto, "127.0.0.1:0") for proto in ("udp", "tcp", "tls", "https", "h3", "quic")]
    bound = bind_listeners(listeners, 3)
    try:
        assert [len(one.sockets) for one in bound] == [3, 3, 1, 1, 1, 1]
        ports = [one.address for one in bound]
        assert ports[0] == ports[1]
        assert ports[2] == ports[5]
        assert ports[3] == ports[4]
        assert len(set(ports)) == 3
    finally:
        close(bound)


def test_listeners_are_stopped_together() -> None:
    """One that drains slowly holds up no other, and a fault of one is no reason to leave one."""

    class Part:
        def __init__(self, barrier: asyncio.Barrier, fault: str = "") -> None:
            self.barrier, self.fault = barrier, fault

        async def stop(self) -> None:
            await self.barrier.wait()
            if self.fault:
                raise OSError(self.fault)

    async def main() -> None:
        barrier = asyncio.Barrier(3)
        async with asyncio.timeout(60):
            with pytest.raises(OSError, match="first"):
                await stop_all([Part(barrier), Part(barrier, "first"), Part(barrier, "second")])

    asyncio.run(main())


def test_a_protocol_that_is_not_spoken_is_refused() -> None:
    with pytest.raises(Invalid, match="not carrier-pigeon"):
        bind_listeners([("carrier-pigeon", "127.0.0.1:0")], 1)


def test_a_fault_of_ours_costs_the_change_that_met_it_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node(
        MemoryEventLog(entropy=SystemEntropy(), clock=SystemClock()),
        SystemClock(),
        SystemEntropy(),
    )
    change = Change(commands=(Delete(key=Key("DNSZone//a")),), who=Who(actor="test"))
    met: list[int] = []
    decide_one = node._decide_one

    def faulty(*args: object) -> object:
        met.append(1)
        if len(met) == 1:
            raise ZeroDivisionError("oops")
        return decide_one(*args)

    monkeypatch.setattr(node, "_decide_one", faulty)
    first, second = node.decide([change, change], 1_000_000)
    assert isinstance(first, KudurruError)
    assert "fault of kudurru (ZeroDivisionError: oops)" in str(first)
    assert "does not exist" in str(second)


def a_server(node: Node) -> tuple[LiveSettings, Server]:
    live = LiveSettings(Sources(None, {}), node.clock)
    return live, Server(live, partial(serve_options, with_demo=False, strict=False, pid_file=None))


class LongLog(MemoryEventLog):
    """One of which reading all rows takes its time, so nobody may on the loop."""

    def rows(self, after: int = 0, upto: int | None = None) -> Iterator[LogRow]:
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise AssertionError("all rows were read on the event loop")
        return super().rows(after, upto)


def test_an_older_damage_is_looked_for_beside_the_event_loop() -> None:
    clock = ManualClock()
    log = LongLog(entropy=SeededEntropy(1), clock=clock)
    Node(log, clock, SeededEntropy(2)).commit(a_change(put(zone()), put(www())))
    row = log._rows[1]
    assert row is not None
    log._rows[1] = replace(row, event=replace(row.event, body=b"{}"))
    node = Node(log, clock, SeededEntropy(3))
    server = a_server(node)[1]
    server._node = node
    asyncio.run(server._replay(node, None))
    assert isinstance(server.why_not_writable, LogDamaged)
    assert (server.why_not_writable.position, node.position) == (2, 1)


def test_settings_of_a_damaged_log_that_cannot_be_read_are_a_warning() -> None:
    node = memory_node()
    event = Event(SETTINGS_CHANGED, SETTINGS_KEY, 1, "/", "kudurru", b'{"kept":1}')
    node.log.append([ChangeSet((event,), TESTER)], node.clock.now_us())
    live, server = a_server(node)
    server._take_up_undamaged_settings(node.log)
    (warning,) = live.resolved.warnings
    assert warning.startswith("the settings of the log cannot be read, and are left out: ")
    assert live.current == LiveSettings(Sources(None, {}), node.clock).current
