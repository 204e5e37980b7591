"""The history of a DNS name, whichever objects held it."""

from typing import Any

import pytest

from kudurru.domain.errors import Invalid
from kudurru.domain.events import Recorded
from kudurru.domain.objects import key_of
from kudurru.entrypoints.history_names import is_wanted, name_changes
from kudurru.entrypoints.wiring import Node
from tests.nodes import a_change, memory_node
from tests.objects import drop, endpoint, manifest, put

ZONE = manifest("DNSZone", "home", {"zoneName": "home.example"})


def set_of(name: str, *endpoints: dict[str, Any]) -> Any:
    return put(
        manifest("DNSRecordSet", name, {"zoneRef": {"name": "home"}, "endpoints": list(endpoints)})
    )


def nas(address: str) -> dict[str, Any]:
    return endpoint("NAS.home.example.", "A", address)


OTHER = endpoint("printer.home.example", "A", "192.0.2.9")
TEXT = endpoint("nas.home.example", "TXT", '"v=1"')


@pytest.fixture(scope="module")
def node() -> Node:
    node = memory_node()
    for command in (
        put(ZONE),
        set_of("big", nas("192.0.2.1"), OTHER),
        set_of("big", OTHER, nas("192.0.2.1")),  # the order says nothing
        set_of("big", nas("192.0.2.1"), OTHER, TEXT),
        set_of("big", OTHER, TEXT),
        set_of("mine", nas("192.0.2.2")),
        set_of("other", endpoint("x.nas.home.example", "A", "192.0.2.3")),
        drop(key_of("DNSRecordSet", "default", "mine")),
        drop(key_of("DNSRecordSet", "default", "big")),
        put(manifest("DNSZone", "home", {"zoneName": "home.example", "defaultTTL": 600})),
    ):
        node.commit(a_change(command))
    return node


def told(
    node: Node, name: str, rtype: str = "", hidden: tuple[str, ...] = ()
) -> list[tuple[str, str]]:
    """What is shown of a name: type of event, and object."""

    def sees(event: Recorded) -> bool:
        return event.type not in hidden

    wanted = name_changes(name, rtype)
    return [
        (event.type.split(".")[1], event.key.rpartition("/")[2])
        for event in node.log.read()
        if is_wanted(wanted, event, node.log, sees)
    ]


APPLIED = "obj.applied.v1"


@pytest.mark.parametrize(
    ("name", "rtype", "shown"),
    [
        (
            "nas.home.example", "A",
            [("applied", "big"), ("applied", "big"), ("applied", "mine"), ("deleted", "mine")],
        ),
        (
            "Nas.Home.Example.", "",
            [("applied", "big"), ("applied", "big"), ("applied", "big"), ("applied", "mine"),
             ("deleted", "mine"), ("deleted", "big")],
        ),
        (r"n\097s.home.example", "txt", [("applied", "big"), ("deleted", "big")]),
        ("nas.home.example", "AAAA", []),
        ("example", "", []),
        ("home.example", "", [("applied", "home"), ("applied", "home")]),
        ("home.example", "SOA", [("applied", "home"), ("applied", "home")]),
        ("home.example", "A", []),
    ],
)  # fmt: skip
def test_a_name_has_the_changes_of_what_every_object_held_there(
    name: str, rtype: str, shown: list[tuple[str, str]], node: Node
) -> None:
    assert told(node, name, rtype) == shown


def test_what_was_before_and_may_not_be_seen_tells_nothing(node: Node) -> None:
    shown = told(node, "nas.home.example", "A", hidden=(APPLIED,))
    assert ("deleted", "mine") not in shown


def test_no_name_is_every_change(node: Node) -> None:
    assert len(told(node, "")) == len(list(node.log.read()))


@pytest.mark.parametrize(
    ("name", "rtype", "says"),
    [
        ("", "A", "give the name too"),
        ("a..b", "", "a..b"),
        ("a.example", "FOO", "unknown record type 'FOO'"),
    ],
)
def test_what_is_no_name_or_type_is_said(name: str, rtype: str, says: str) -> None:
    with pytest.raises(Invalid, match=says.replace(".", r"\.")):
        name_changes(name, rtype)
