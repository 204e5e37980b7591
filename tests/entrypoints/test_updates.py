"""Dynamic updates of nodes that share a log."""

import asyncio
from pathlib import Path

import pytest

from kudurru.adapters.memory.clock import ManualClock, SeededEntropy
from kudurru.adapters.sealing import NodeKey
from kudurru.domain.dns import names
from kudurru.domain.dns.lookup import NOERROR, REFUSED
from kudurru.domain.dns.message_reader import Message, Question, Record
from kudurru.domain.dns.record_types import SOA, A
from kudurru.domain.dns.records import CLASS_IN
from kudurru.domain.dns.tsig import Signer
from kudurru.entrypoints.keyring import KeyRequest, Keyring
from kudurru.entrypoints.updates import LOGGED_PER_S, Updates
from kudurru.entrypoints.writer import Writer
from kudurru.projections.pipeline.signatures import Opened
from tests.nodes import TESTER, a_change, memory_node
from tests.objects import put, zone

NOW_S = 1_760_000_000
KEY = names.from_text("k1")


def adding(last: int) -> Message:
    owner = names.from_text("x.example.org")
    added = Record(owner, A, CLASS_IN, 60, bytes((192, 0, 2, last)))
    question = Question(names.from_text("example.org"), SOA, CLASS_IN)
    return Message(1, 5 << 11, [question], [], [added], [])


def test_what_one_node_carried_out_is_not_carried_out_again_by_another(tmp_path: Path) -> None:
    node = memory_node(ManualClock(NOW_S * 1_000_000))
    keyring = Keyring(node, NodeKey(tmp_path / "node.key", SeededEntropy(7)))
    request = KeyRequest(
        name="k1", algorithm="hmac-sha256", secret=bytes(32), updates=[{"zone": "example.org"}]
    )
    node.commit(keyring.creation(request, TESTER, SeededEntropy(5)))
    node.commit(a_change(put(zone(nameservers=["ns.example.net."]))))

    async def main() -> list[int]:
        writer = Writer(node)
        first, second = (Updates(node, writer, keyring) for _ in range(2))
        writer.listeners += [first.heard, second.heard]
        running = [asyncio.create_task(run) for run in (writer.run(), first.run(), second.run())]

        async def send(to: Updates, last: int, signed_s: int) -> int:
            key = keyring.find(KEY)
            assert key is not None
            opened = Opened(b"", Signer(key, b""), signed_s, bytes((last,)))
            answer = to.answer(adding(last), "192.0.2.9", opened)
            while not answer.is_over:
                await asyncio.sleep(0)
            return answer.value

        codes = [
            await send(first, 1, NOW_S + 1),
            await send(first, 2, NOW_S + 5),
            await send(second, 1, NOW_S + 1),
            await send(second, 3, NOW_S + 5),
        ]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        return codes

    assert asyncio.run(main()) == [NOERROR, NOERROR, REFUSED, NOERROR]


def test_a_flood_of_unsigned_updates_takes_no_place_and_fills_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = memory_node(ManualClock(NOW_S * 1_000_000))
    node.commit(a_change(put(zone(nameservers=["ns.example.net."]))))
    keyring = Keyring(node, NodeKey(tmp_path / "node.key", SeededEntropy(7)))
    updates = Updates(node, Writer(node), keyring)
    codes = {updates.answer(adding(1), "192.0.2.9", Opened(b"", None)).value for _ in range(1000)}
    assert codes == {REFUSED}
    assert len(caplog.messages) == LOGGED_PER_S
    assert updates.statistics().answered == {"REFUSED": 1000}
    assert updates.statistics().full == 0
    assert isinstance(node.clock, ManualClock)
    node.clock.advance(1_000_000)
    updates.answer(adding(1), "192.0.2.9", Opened(b"", None))
    assert caplog.messages[LOGGED_PER_S].startswith("990 more updates")
