"""Secondaries are told of new versions: a real socket here, a secondary of a few lines there."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import dns.flags
import dns.message
import dns.opcode
import pytest

from kudurru.adapters.clock import SystemClock
from kudurru.adapters.memory.clock import ManualClock, SeededEntropy
from kudurru.adapters.sealing import NodeKey
from kudurru.domain.dns import names, tsig
from kudurru.domain.errors import StorageFailed
from kudurru.domain.kinds.zone import Transfer
from kudurru.domain.reconcile import notifies
from kudurru.domain.reconcile.notifies import Target
from kudurru.entrypoints.keyring import KeyRequest, Keyring
from kudurru.entrypoints.notifier import Notifier, targets_of
from kudurru.entrypoints.wiring import Change, Node
from tests.nodes import TESTER, a_change, memory_node
from tests.objects import ZONE_KEY, endpoint, put, record_set, zone

SECRET = bytes(range(32))
KEY = names.from_text("k1")
Reply = Callable[[bytes], bytes | None]


class Secondary(asyncio.DatagramProtocol):
    """Keeps what it is told; `reply` makes the answers."""

    def __init__(self) -> None:
        self.told: list[bytes] = []
        self.reply: Reply = acknowledge
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.told.append(data)
        answer = self.reply(data)
        if answer is not None:
            self.transport.sendto(answer, addr)

    @property
    def port(self) -> int:
        return int(self.transport.get_extra_info("sockname")[1])


def acknowledge(packet: bytes) -> bytes:
    answer = dns.message.make_response(dns.message.from_wire(packet, keyring=False))
    answer.flags |= dns.flags.AA
    return answer.to_wire()


class Rig:
    def __init__(self, node: Node, keyring: Keyring, secondary: Secondary) -> None:
        self.node = node
        self.keyring = keyring
        self.secondary = secondary
        self.notifier = Notifier(node, keyring, SystemClock(), SeededEntropy(3), self.submit)

        self.wrote = 0

    def start(self) -> None:
        self.telling = asyncio.create_task(self.notifier.run())
        self.reporting = asyncio.create_task(self.notifier.run_reports())

    async def stop(self) -> None:
        self.telling.cancel()
        self.reporting.cancel()
        await asyncio.gather(self.telling, self.reporting, return_exceptions=True)

    async def submit(self, change: Change) -> None:
        self.node.commit(change)
        self.wrote += 1

    def conditions(self) -> list[dict[str, Any]]:
        stored = self.node.objects.find(ZONE_KEY)
        assert stored is not None
        assert stored.status is not None
        found = stored.status.get("conditions", [])
        return [condition for condition in found if condition["type"] == "SecondariesTold"]

    def zone(self, **transfer: Any) -> None:
        wanted = {"notify": [f"127.0.0.1:{self.secondary.port}"], **transfer}
        self.do(put(zone(nameservers=["ns.example.org."], transfer=wanted)))

    def change(self, number: int) -> None:
        self.do(put(record_set("a", endpoint("a.example.org", "A", f"192.0.2.{number}"))))

    def do(self, *commands: Any) -> None:
        assert isinstance(self.node.clock, ManualClock)
        self.node.clock.advance(1_000_000)
        self.node.commit(a_change(*commands))
        self.notifier.wake()

    def make_key(self) -> None:
        request = KeyRequest(name="k1", algorithm="hmac-sha256", secret=SECRET)
        self.node.commit(self.keyring.creation(request, TESTER, SeededEntropy(5)))

    async def until(self, name: str, count: int) -> None:
        while getattr(self.notifier.statistics(), name) < count:
            await asyncio.sleep(0.001)


@asynccontextmanager
async def rig(folder: Path) -> AsyncIterator[Rig]:
    node = memory_node(ManualClock(1_760_000_000_000_000))
    keyring = Keyring(node, NodeKey(folder / "node.key", SeededEntropy(7)))
    loop = asyncio.get_running_loop()
    transport, secondary = await loop.create_datagram_endpoint(
        Secondary, local_addr=("127.0.0.1", 0)
    )
    made = Rig(node, keyring, secondary)
    async with asyncio.timeout(60):
        made.start()
        try:
            yield made
        finally:
            await made.stop()
            transport.close()


def serials(secondary: Secondary) -> list[int]:
    found = []
    for packet in secondary.told:
        message = dns.message.from_wire(packet, keyring=False)
        assert message.opcode() == dns.opcode.NOTIFY
        assert message.flags & dns.flags.AA
        assert message.question[0].to_text() == "example.org. IN SOA"
        found.append(message.answer[0][0].serial)
    return found


def test_a_secondary_is_told_of_each_version_with_its_soa(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as one:
            one.zone()
            await one.until("acknowledged", 1)
            one.change(1)
            await one.until("acknowledged", 2)
            assert serials(one.secondary) == [1_760_000_001, 1_760_000_002]
            assert one.notifier.statistics().pending == 0

    asyncio.run(main())


def test_a_secondary_with_a_key_is_told_signed_and_must_answer_signed(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as one:
            one.make_key()
            one.secondary.reply = lambda packet: signed(acknowledge(packet), packet)
            one.zone(keys=["k1"])
            await one.until("acknowledged", 1)

    asyncio.run(main())


def signed(answer: bytes, request: bytes) -> bytes:
    signature = tsig.find(request)
    assert signature is not None
    key = tsig.TsigKey(KEY, tsig.ALGORITHMS["hmac-sha256"], SECRET)
    now_s = SystemClock().now_us() // 1_000_000
    return tsig.verify(request, signature, {KEY: key}.get, now_s).sign(answer, now_s)


@pytest.mark.parametrize("fault", ["unsigned", "another secret", "another ID", "a query", "short"])
def test_an_answer_that_anybody_could_have_sent_is_no_answer(tmp_path: Path, fault: str) -> None:
    async def main() -> None:
        async with rig(tmp_path) as one:
            one.make_key()
            right: list[bytes] = []

            def reply(packet: bytes) -> bytes:
                answer = acknowledge(packet)
                right.append(signed(answer, packet))
                match fault:
                    case "unsigned":
                        return answer
                    case "another secret":
                        return right[-1][:-10] + bytes(10)
                    case "another ID":
                        return bytes((packet[0] ^ 1,)) + right[-1][1:]
                    case "a query":
                        return packet
                return right[-1][:11]

            one.secondary.reply = reply
            one.zone(keys=["k1"])
            await one.until("sent", 1)
            while not right:
                await asyncio.sleep(0.001)
            # The right answer comes after the false one, and is taken.
            source = one.notifier._socket._transports[4].get_extra_info("sockname")[1]
            one.secondary.transport.sendto(right[0], ("127.0.0.1", source))
            await one.until("acknowledged", 1)
            assert len(one.secondary.told) == 1

    asyncio.run(main())


def test_an_answer_from_elsewhere_is_no_answer(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as one:
            one.secondary.reply = lambda _: None
            one.zone()
            await one.until("sent", 1)
            while not one.secondary.told:
                await asyncio.sleep(0.001)
            source = one.notifier._socket._transports[4].get_extra_info("sockname")[1]
            transport, stranger = await asyncio.get_running_loop().create_datagram_endpoint(
                Secondary, local_addr=("127.0.0.1", 0)
            )
            answer = acknowledge(one.secondary.told[0])
            stranger.transport.sendto(answer, ("127.0.0.1", source))
            one.secondary.transport.sendto(answer, ("127.0.0.1", source))
            await one.until("acknowledged", 1)
            assert one.notifier.statistics().acknowledged == 1
            transport.close()

    asyncio.run(main())


def test_a_secondary_that_cannot_be_told_shows_in_the_status_until_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with rig(tmp_path) as one:
            monkeypatch.setattr(notifies, "WAIT_FIRST_US", 1000)
            one.secondary.reply = lambda _: None
            one.zone()
            await one.until("given_up", 1)
            while not one.conditions():
                await asyncio.sleep(0.001)
            (condition,) = one.conditions()
            assert (condition["type"], condition["status"]) == ("SecondariesTold", "False")
            assert f"127.0.0.1:{one.secondary.port}: it does not answer" in condition["message"]
            position = one.node.position
            one.change(1)
            await one.until("given_up", 2)
            assert len(one.conditions()) == 1
            assert one.node.position == position + 2  # the change and its stamp, and no status
            monkeypatch.undo()
            one.secondary.reply = acknowledge
            one.change(2)
            await one.until("acknowledged", 1)
            while one.conditions()[0]["status"] == "False":
                await asyncio.sleep(0.001)

    asyncio.run(main())
    assert "is not told of serial" in caplog.text


def test_of_nodes_that_share_a_log_the_leader_writes_what_secondaries_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        monkeypatch.setattr(notifies, "WAIT_FIRST_US", 1000)
        async with rig(tmp_path) as one:
            other = Rig(one.node, one.keyring, one.secondary)
            other.start()
            one.secondary.reply = lambda _: None
            one.zone()
            await one.until("given_up", 1)
            await other.until("given_up", 1)
            while not one.conditions():
                await asyncio.sleep(0.001)
            assert (one.wrote, other.wrote) == (1, 0)
            one.reporting.cancel()  # what the next leader found is the same: nothing to write
            one.secondary.reply = acknowledge
            one.change(1)
            other.notifier.wake()
            while one.conditions()[0]["status"] == "False":
                await asyncio.sleep(0.001)
            assert (one.wrote, other.wrote) == (1, 1)
            await other.stop()

    asyncio.run(main())


def test_a_key_that_does_not_work_sends_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path) as one:
            one.zone(keys=["k1"])
            await one.until("sent", 1)
            assert one.secondary.told == []
            assert one.notifier.statistics().acknowledged == 0

    asyncio.run(main())


def test_a_log_that_cannot_be_read_for_a_moment_costs_a_moment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with rig(tmp_path) as one:
            monkeypatch.setattr(notifies, "WAIT_FIRST_US", 1000)
            one.make_key()
            one.secondary.reply = lambda packet: signed(acknowledge(packet), packet)
            find, failures = one.keyring.find, [StorageFailed("the database is away")] * 2

            def find_soon(name: Any) -> Any:
                if failures:
                    raise failures.pop()
                return find(name)

            monkeypatch.setattr(one.keyring, "find", find_soon)
            one.zone(keys=["k1"])
            await one.until("acknowledged", 1)

    asyncio.run(main())
    assert "the database is away" in caplog.text


@pytest.mark.parametrize(
    ("notify", "keys", "targets"),
    [
        (["192.0.2.1"], [], [Target("192.0.2.1", 53)]),
        (["192.0.2.1:5353", "[2001:DB8::1]:54", "2001:db8::2"], [],
         [Target("192.0.2.1", 5353), Target("2001:db8::1", 54), Target("2001:db8::2", 53)]),
        (["192.0.2.1", "192.0.2.2"], ["k1"],
         [Target("192.0.2.1", 53, KEY), Target("192.0.2.2", 53, KEY)]),
        (["192.0.2.1", "192.0.2.2"], ["k1", "k2"],
         [Target("192.0.2.1", 53, KEY), Target("192.0.2.2", 53, names.from_text("k2"))]),
        (["192.0.2.1", "192.0.2.1:53"], [], [Target("192.0.2.1", 53)]),
    ],
)  # fmt: skip
def test_targets_are_read_as_they_are_written(
    notify: list[str], keys: list[str], targets: list[Target]
) -> None:
    assert targets_of(Transfer(notify=notify, keys=keys)) == targets
