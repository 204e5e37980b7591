"""The history of a DNS name is read from the zones that can have it, and nothing is missing."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.errors import KudurruError
from kudurru.domain.events import OBJECT_APPLIED, Recorded
from kudurru.domain.objects import key_of
from kudurru.entrypoints.history_names import changes_near, is_wanted, name_changes
from kudurru.entrypoints.wiring import Node
from tests.nodes import a_change, memory_node
from tests.objects import drop, endpoint, manifest, put

APEXES = ("a.example", "b.example", "b.a.example")
ZONES = ("one", "two")


def zone(name: str, apex: str) -> Any:
    return put(manifest("DNSZone", name, {"zoneName": apex}))


def set_of(name: str, zone_name: str, *owners: str) -> Any:
    endpoints = [endpoint(owner, "A", "192.0.2.1") for owner in owners]
    spec = {"zoneRef": {"name": zone_name}, "endpoints": endpoints}
    return put(manifest("DNSRecordSet", name, spec))


@st.composite
def commands(draw: st.DrawFn) -> Any:
    """One command, as often one that is refused."""
    name = draw(st.sampled_from(ZONES))
    apex = draw(st.sampled_from(APEXES))
    record_set = draw(st.sampled_from(["x", "y"]))
    owners = draw(st.lists(st.sampled_from(["", "w.", "*."]), min_size=1, max_size=3, unique=True))
    return draw(
        st.sampled_from(
            [
                zone(name, apex),
                drop(key_of("DNSZone", "", name)),
                set_of(record_set, name, *(owner + apex for owner in owners)),
                drop(key_of("DNSRecordSet", "default", record_set)),
            ]
        )
    )


def everything(node: Node, name: str, after: int, upto: int | None) -> list[Recorded]:
    """By the whole log."""
    wanted = name_changes(name, "")
    events = node.log.read(after, upto, newest_first=True)
    return [event for event in events if is_wanted(wanted, event, node.log)]


def near(node: Node, name: str, after: int = 0, upto: int | None = None) -> list[Recorded]:
    wanted = name_changes(name, "")
    found = changes_near(wanted, node.log, after, upto)
    return [event for event in found if is_wanted(wanted, event, node.log)]


@given(st.lists(commands(), max_size=25), st.integers(0, 30), st.integers(0, 30))
def test_nothing_is_missing_and_nothing_twice(made: list[Any], after: int, upto: int) -> None:
    node = memory_node()
    for name, apex in zip(ZONES, APEXES, strict=False):
        node.commit(a_change(zone(name, apex)))
    for command in made:
        with suppress(KudurruError):  # of what is refused nothing is in the log
            node.commit(a_change(command))
    for name in ("w.a.example", "b.a.example", "w.b.a.example", "c.example", "example"):
        assert near(node, name) == everything(node, name, 0, None)
        assert near(node, name, after, upto) == everything(node, name, after, upto)


@pytest.fixture(scope="module")
def node() -> Node:
    node = memory_node()
    for command in (
        zone("one", "a.example"),
        zone("two", "b.example"),
        set_of("x", "one", "w.a.example"),
        set_of("y", "two", "w.b.example"),
        set_of("x", "two", "x.b.example"),
        drop(key_of("DNSRecordSet", "default", "y")),
    ):
        node.commit(a_change(command))
    return node


def scopes(node: Node, name: str) -> set[str]:
    return {event.scope for event in changes_near(name_changes(name, ""), node.log, 0, None)}


def test_zones_that_never_had_the_name_are_not_read(node: Node) -> None:
    assert scopes(node, "w.b.example") == {"/two", "default/two"}
    assert scopes(node, "elsewhere.example") == set()


def test_a_record_set_that_left_with_the_name_is_among_its_changes(node: Node) -> None:
    shown = near(node, "w.a.example")
    assert [(event.type, event.scope) for event in shown] == [
        (OBJECT_APPLIED, "default/two"), (OBJECT_APPLIED, "default/one"),
    ]  # fmt: skip
    (left,) = near(node, "w.a.example", shown[0].seq - 1)
    assert left == shown[0]
    assert near(node, "w.a.example", 0, shown[0].seq - 1) == shown[1:]


def test_a_zone_that_was_deleted_is_read_whatever_it_was() -> None:
    node = memory_node()
    for command in (
        zone("one", "a.example"),
        set_of("x", "one", "w.a.example"),
        drop(key_of("DNSRecordSet", "default", "x")),
        drop(key_of("DNSZone", "", "one")),
        zone("one", "b.example"),
    ):
        node.commit(a_change(command))
    assert len(near(node, "w.a.example")) == 2


def test_without_a_name_it_is_the_log(node: Node) -> None:
    assert list(changes_near(None, node.log, 0, None)) == list(node.log.read(newest_first=True))
