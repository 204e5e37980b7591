"""What engines tell of the queries that they answer by themselves."""

from collections.abc import Iterable

import pytest

from kudurru.adapters.dns.answering import Answering
from kudurru.domain.filtering.clients import packed_address
from kudurru.domain.ports import Reply
from kudurru.domain.query_log import Repeat
from tests.packets import query


class Listening:
    """Answers with the query, and keeps what it hears."""

    hears_repeats = True

    def __init__(self) -> None:
        self.heard: list[tuple[str, bytes, bytes, int, int]] = []
        self.weights = [3, 0]

    def handle(self, packet: bytes, client: str, proto: str) -> Reply:
        return Reply(packet, memo=True)

    def weigh(self) -> int:
        return self.weights.pop(0)

    def repeated(self, proto: str, repeats: Iterable[Repeat]) -> None:
        self.heard += [(proto, *one) for one in repeats]


@pytest.mark.parametrize("client", ["192.0.2.1", "2001:db8::1", "fe80::1%eth0", "::ffff:10.0.0.1"])
def test_a_repeat_is_told_with_the_octets_of_its_client(client: str) -> None:
    handler = Listening()
    answering = Answering(handler, "tcp", 65_535)
    packet = query("www.example", ident=7)
    assert answering.recall(packet, client) is None
    answering.ask(packet, client)
    assert handler.heard == []
    assert answering.recall(packet, client) == packet
    assert handler.heard == [("tcp", packed_address(client), packet[2:], 0, 3)]


def test_a_repeat_that_is_not_to_be_logged_is_not_told_of() -> None:
    handler = Listening()
    answering = Answering(handler, "tcp", 65_535)
    packet = query("www.example", ident=7)
    answering.ask(packet, "192.0.2.1")
    for _ in range(2):
        assert answering.recall(packet, "192.0.2.1") == packet
    assert [heard[-1] for heard in handler.heard] == [3]
