"""The node asks its own listeners. Time is the test's own."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kudurru.adapters.memory.clock import ManualClock
from kudurru.adapters.memory.timers import ManualTimers
from kudurru.adapters.sockets import Bound, Listener
from kudurru.domain.errors import Unreachable
from kudurru.domain.notation import parse_network, parse_socket_address
from kudurru.domain.settings import Listener as Configured
from kudurru.entrypoints.selfcheck import INTERVAL_US, TIMEOUT_US, SelfCheck, probes_of

UDP, TCP = "udp 192.0.2.53:53", "tcp 192.0.2.53:53"


class Rig:
    """Two listeners, each of which answers, refuses or is silent."""

    def __init__(self) -> None:
        self.timers = ManualTimers(ManualClock())
        self.state = {UDP: "answers", TCP: "answers"}
        self.asked = 0
        self.check = SelfCheck({name: self.probe(name) for name in self.state}, self.timers)

    def probe(self, name: str) -> Callable[[], Awaitable[None]]:
        async def ask() -> None:
            self.asked += 1
            match self.state[name]:
                case "refuses":
                    raise Unreachable("connection refused")
                case "is silent":
                    await asyncio.Event().wait()
                case "has a fault":
                    raise ZeroDivisionError("oops")

        return ask

    async def look(self) -> None:
        """One look, and the time that it takes."""
        looking = asyncio.create_task(self.check.look())
        before = self.asked
        while self.asked < before + 2:
            await asyncio.sleep(0)
        if "is silent" in self.state.values():
            self.timers.advance(TIMEOUT_US)
        await looking

    def answering(self) -> dict[str, float]:
        return {sample.labels[0]: sample.value for sample in self.check.samples()}


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("refuses", "connection refused"),
        ("is silent", "no answer in time"),
        ("has a fault", "ZeroDivisionError: oops"),
    ],
)
def test_a_listener_that_twice_does_not_answer_is_named_until_it_does(state: str, why: str) -> None:
    async def main() -> None:
        rig = Rig()
        await rig.look()
        rig.state[TCP] = state
        await rig.look()
        assert rig.check.problems() == []
        await rig.look()
        assert rig.check.problems() == [f"Listener: {TCP} does not answer this node itself: {why}"]
        assert rig.answering() == {UDP: 1, TCP: 0}
        rig.state[TCP] = "answers"
        await rig.look()
        assert rig.check.problems() == []
        assert rig.answering() == {UDP: 1, TCP: 1}

    asyncio.run(main())


def test_failures_that_are_not_in_a_row_do_not_count() -> None:
    async def main() -> None:
        rig = Rig()
        for state in ("refuses", "answers") * 3:
            rig.state[UDP] = state
            await rig.look()
            assert rig.check.problems() == []

    asyncio.run(main())


def test_it_looks_every_five_seconds() -> None:
    async def main() -> None:
        rig = Rig()
        task = asyncio.create_task(rig.check.run())
        for looks in range(4):
            while rig.timers.waits_us() != [INTERVAL_US]:
                await asyncio.sleep(0)
            assert rig.asked == 2 * looks
            rig.timers.advance(INTERVAL_US - 1)
            await asyncio.sleep(0)
            assert rig.asked == 2 * looks
            rig.timers.advance(1)
            while rig.asked < 2 * looks + 2:
                await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


def test_probes_are_named_by_protocol_and_address() -> None:
    where = parse_socket_address("127.0.0.1:0")
    configured = [
        Configured(proto="udp", address=where, proxy_protocol=(parse_network("127.0.0.0/8"),)),
        Configured(proto="tcp", address=where, proxy_protocol=(parse_network("10.0.0.0/8"),)),
    ]
    bound = [
        Bound(Listener("udp", "127.0.0.1:0"), "127.0.0.1:5353", ()),
        Bound(Listener("tcp", "127.0.0.1:0"), "127.0.0.1:5353", ()),
    ]
    found = probes_of(configured, bound, 4711)
    assert list(found) == ["udp 127.0.0.1:5353", "tcp 127.0.0.1:5353"]
    proxied = [ask.keywords["is_proxied"] for ask in found.values()]  # type: ignore[attr-defined]  # a partial
    assert proxied == [True, False]


def test_a_listener_at_an_address_that_is_elsewhere_is_not_asked() -> None:
    configured = [Configured(proto="udp", address=parse_socket_address("192.0.2.77:5353"))]
    bound = [Bound(Listener("udp", "192.0.2.77:5353", freebind=True), "192.0.2.77:5353", ())]
    (ask,) = probes_of(configured, bound, 4711).values()
    asyncio.run(asyncio.wait_for(ask(), 5))  # it would wait for an answer, or be unreachable
