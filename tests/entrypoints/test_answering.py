"""What a directory's node answers to who asks it directly."""

from kudurru.entrypoints.answering import answer
from tests.nodes import memory_node


def test_a_drop_is_servfail_for_who_asks_directly() -> None:
    # A message that is an answer itself is dropped on every transport.
    packet = bytes.fromhex("12348180000100000000000001610000010001")
    reply = answer(memory_node(), packet)
    assert reply[:2] == packet[:2]
    assert reply[3] & 15 == 2
