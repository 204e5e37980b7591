"""What is made of an object is made anew for each event of it, and at no other time."""

import pytest

from kudurru.domain.commands import Delete
from kudurru.domain.object_store import StoredObject
from kudurru.domain.objects import key_of
from kudurru.entrypoints.read_once import ReadOnce
from tests.nodes import a_change, memory_node
from tests.objects import put, zone

KEY = key_of("DNSZone", "", zone().meta.name)


def test_an_object_is_read_once_for_each_event_of_it_and_forgotten_with_it() -> None:
    node = memory_node()
    made: list[int] = []

    def make(stored: StoredObject, applied: int) -> str:
        made.append(applied)
        return str(stored.key)

    found = ReadOnce(node, make)
    assert found.find(KEY) is None
    node.commit(a_change(put(zone())))
    assert found.find(KEY) == found.find(KEY) == KEY
    assert len(made) == 1
    node.commit(a_change(Delete(key=KEY)))
    assert found.find(KEY) is None
    node.commit(a_change(put(zone())))
    assert found.find(KEY) == KEY
    assert len(made) == len(set(made)) == 2, "the same object made again is another event"


def test_what_fails_is_tried_again() -> None:
    node = memory_node()
    node.commit(a_change(put(zone())))
    tries = iter([ValueError(), None])

    def make(stored: StoredObject, _: int) -> str:
        if (error := next(tries)) is not None:
            raise error
        return str(stored.key)

    found = ReadOnce(node, make)
    with pytest.raises(ValueError, match=r"^$"):
        found.find(KEY)
    assert found.find(KEY) == KEY
