"""Random histories of a few objects that get in each other's way: zones that share a name, record
sets that move between them, owners that take over, deletions."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hypothesis import strategies as st

from kudurru.adapters.memory.clock import ManualClock
from kudurru.domain.commands import Command, UpdateStatus
from kudurru.domain.errors import Conflict, Invalid, NotFound
from kudurru.domain.objects import key_of
from kudurru.entrypoints.wiring import Change, Node
from tests.nodes import a_change, memory_node
from tests.objects import drop, endpoint, manifest, put

SECOND = 1_000_000
ZONES = ("east", "west")
APEXES = ("a.test.", "b.test.")
CLOCKS_S = (1_700_000_000, 3_000_000_000, 4_294_967_290)
"""Times at which unix time, the successor, and the wrap of a serial decide."""

Operation = Callable[[Node], None]
_managers = st.sampled_from(("kudurru", "external-dns"))
_labels = st.sampled_from(({}, {"team": "x"}, {"team": "y"}))


def _commit(*commands: Command, **how: Any) -> Operation:
    def operate(node: Node) -> None:
        # What is refused is no part of the history.
        with suppress(Invalid, NotFound):
            node.commit(a_change(*commands, **how))

    return operate


@st.composite
def _zones(draw: st.DrawFn) -> Operation:
    name = draw(st.sampled_from(ZONES))
    spec = {
        "zoneName": draw(st.sampled_from(APEXES)),
        "defaultTTL": draw(st.sampled_from((300, 600))),
        "type": draw(st.sampled_from(("Primary", "Primary", "Primary", "Forward"))),
    }
    if spec["type"] == "Forward":
        spec["forward"] = {"upstreams": ["192.0.2.53"]}
    made = manifest("DNSZone", name, spec, labels=draw(_labels))
    imported = draw(st.sampled_from(({}, {name: 4_294_967_290})))
    return _commit(put(made, draw(_managers), force=True), imported_serials=imported)


@st.composite
def _sets(draw: st.DrawFn) -> Operation:
    return _commit(put(draw(record_sets()), draw(_managers), force=True))


@st.composite
def record_sets(draw: st.DrawFn) -> Any:
    owners = st.sampled_from(("www", "mail", "*.apps", "x.y"))
    name, apex = draw(st.sampled_from(("one", "two"))), draw(st.sampled_from(APEXES))
    endpoints = [
        endpoint(f"{owner}.{apex}", "A", f"192.0.2.{draw(st.integers(1, 3))}")
        for owner in draw(st.lists(owners, max_size=2, unique=True))
    ]
    if endpoints and draw(st.booleans()):
        endpoints[0]["expiresAt"] = draw(st.sampled_from(("2023-11-14T22:14:00Z",
                                                          "2065-01-24T05:21:00Z")))  # fmt: skip
    return manifest(
        "DNSRecordSet",
        name,
        {"zoneRef": {"name": draw(st.sampled_from(ZONES))}, "endpoints": endpoints},
        namespace=draw(st.sampled_from(("default", "team"))),
        labels=draw(_labels),
        annotations=draw(st.sampled_from(({}, {"kudurru.io/comment": "hm"}))),
    )


KEYS = [key_of("DNSZone", "", name) for name in ZONES] + [
    key_of("DNSRecordSet", namespace, name)
    for namespace in ("default", "team")
    for name in ("one", "two")
]


def _drops() -> st.SearchStrategy[Operation]:
    return st.sampled_from(KEYS).map(lambda key: _commit(drop(key)))


def _batches() -> st.SearchStrategy[Operation]:
    """Several objects in one change."""
    puts = st.lists(record_sets(), min_size=2, max_size=3)
    return puts.map(lambda sets: _commit(*(put(made, force=True) for made in sets)))


def _pauses() -> st.SearchStrategy[Operation]:
    def pause(seconds: int) -> Operation:
        def operate(node: Node) -> None:
            assert isinstance(node.clock, ManualClock)
            node.clock.advance(seconds * SECOND)
            node.advance()

        return operate

    return st.sampled_from((1, 30, 3_600)).map(pause)


def operations() -> st.SearchStrategy[list[Operation]]:
    one = st.one_of(_zones(), _sets(), _sets(), _sets(), _drops(), _batches(), _pauses())
    return st.lists(one, min_size=4, max_size=16)


SPECS: dict[str, list[dict[str, Any]]] = {
    "BlockList": [
        {"sources": [{"inline": ["ads.example"]}]},
        {"sources": [{"url": "https://lists.example/a.txt"}], "match": "subtree", "maxBytes": 4096},
    ],
    "ClientGroup": [
        {"clients": [{"ip": "192.0.2.7"}, {"cidr": "2001:db8::/32"}]},
        {"clients": [{"ip": "192.0.2.8"}]},
    ],
    "Policy": [
        {"priority": -5, "clientGroupRefs": ["x"], "blockListRefs": ["x"], "blockTTL": 30},
        {"deny": ["bad.example"], "blockMode": "nxdomain", "queryLog": False},
    ],
}  # fmt: skip


@st.composite
def others(draw: st.DrawFn) -> Operation:
    """Of the kinds that no zone is made of: made, changed, given a status, deleted."""
    kind = draw(st.sampled_from(sorted(SPECS)))
    labels = draw(st.sampled_from(({}, {"a": "b", "team": ""})))
    annotations = draw(
        st.sampled_from(({}, {"kudurru.io/comment": 'Ünï\n"code" \x7f', "x.test/y": "{}"}))
    )
    made = manifest(
        kind,
        draw(st.sampled_from(("x", "y"))),
        draw(st.sampled_from(SPECS[kind])),
        namespace=draw(st.sampled_from(("default", "team"))),
        labels=labels,
        annotations=annotations,
    )
    what = draw(st.sampled_from(("put", "put", "status", "drop")))
    manager = draw(st.sampled_from(("kudurru", "external-dns", "some/one else")))

    def operate(node: Node) -> None:
        stored = node.objects.find(made.key)
        with suppress(NotFound, Conflict):
            match what:
                case "put":
                    node.commit(a_change(put(made, manager, force=True)))
                case "drop":
                    node.commit(a_change(drop(made.key)))
                case "status" if stored is not None:
                    status = {"observedGeneration": stored.body.generation}
                    version = stored.resource_version
                    order = UpdateStatus(key=made.key, status=status, expected=version)
                    node.commit(a_change(order))

    return operate


def run(node: Node, history: list[Operation]) -> None:
    for operate in history:
        operate(node)


@st.composite
def histories(draw: st.DrawFn) -> Node:
    """A node with a history, and at least one event."""
    node = memory_node(ManualClock(draw(st.sampled_from(CLOCKS_S)) * SECOND))
    node.commit(Change(commands=(put(draw(record_sets())),), who=a_change().who))
    run(node, draw(operations()))
    return node


def targets_of(node: Node) -> list[int]:
    """The last position of each change set."""
    return sorted({event.txn + event.n - 1 for event in node.log.read()})
