"""Who is to blame for a record: the event that brought it."""

from kudurru.adapters.memory.clock import ManualClock
from kudurru.domain.blame import Blamed, blame
from kudurru.domain.dns import names, record_types
from kudurru.entrypoints.wiring import Node
from kudurru.projections import as_of
from tests.nodes import a_change, memory_node
from tests.objects import drop, endpoint, put, record_set, zone

SOA = "ns.example.net. hostmaster.example.org. 0 7200 900 1209600 300"


def shown(node: Node) -> dict[tuple[str, str, str], int]:
    """(owner, type, data) of each record to the position that it is blamed on."""
    return {line(one): one.event.seq for one in blamed(node)}


def blamed(node: Node) -> list[Blamed]:
    return blame(as_of.events_of(node.log, "example.org"))


def line(one: Blamed) -> tuple[str, str, str]:
    return names.to_text(one.owner), record_types.type_to_text(one.rtype), one.data


def a(name: str, *targets: str, **fields):
    return endpoint(f"{name}.example.org", "A", *targets, **fields)


def node_with(*changes) -> Node:
    node = memory_node(ManualClock())
    node.commit(a_change(put(zone(nameservers=["ns.example.net"]))))  # 1, its stamp is 2
    for commands in changes:
        node.commit(a_change(*commands))
    return node


def test_a_record_is_blamed_on_the_event_that_brought_it_and_not_on_later_ones() -> None:
    one = record_set("x", a("www", "192.0.2.1"), a("mail", "192.0.2.2"))
    two = record_set("x", a("mail", "192.0.2.2"), a("www", "192.0.2.1", "192.0.2.9"))
    node = node_with([put(one)], [put(two)])
    assert shown(node) == {
        (
            "example.org.",
            "SOA",
            "ns.example.net. hostmaster.example.org. 0 7200 900 1209600 300",
        ): 1,
        ("example.org.", "NS", "ns.example.net."): 1,
        ("mail.example.org.", "A", "192.0.2.2"): 3,
        ("www.example.org.", "A", "192.0.2.1"): 3,
        ("www.example.org.", "A", "192.0.2.9"): 5,
    }


def test_another_ttl_is_another_record_and_another_case_is_not() -> None:
    node = node_with(
        [put(record_set("x", a("www", "192.0.2.1"), a("mail", "192.0.2.2")))],
        [put(record_set("x", a("www", "192.0.2.1", recordTTL=60), a("MAIL", "192.0.2.2")))],
    )
    assert [one.event.seq for one in blamed(node) if one.rtype == record_types.A] == [3, 5]


def test_what_is_switched_off_deleted_or_elsewhere_has_nobody_to_blame() -> None:
    gone, moved = record_set("gone", a("gone", "192.0.2.1")), record_set("moved")
    node = node_with(
        [put(gone), put(record_set("moved", a("moved", "192.0.2.1")))],
        [put(record_set("off", a("off", "192.0.2.1", disabled=True)))],
        [drop(gone.key), put(record_set("moved", zone="elsewhere"))],
    )
    assert {one.rtype for one in blamed(node)} == {record_types.SOA, record_types.NS}
    assert moved.key not in {one.key for one in blamed(node)}


def test_a_record_that_was_deleted_and_came_back_is_blamed_on_who_brought_it_back() -> None:
    made = record_set("x", a("www", "192.0.2.1"))
    node = node_with([put(made)], [drop(made.key)], [put(made)])
    assert shown(node)["www.example.org.", "A", "192.0.2.1"] == 7


def test_a_change_of_the_zone_takes_the_blame_for_what_it_changes_only() -> None:
    node = node_with([put(zone(nameservers=["ns.example.net", "ns2.example.net"]))])
    seqs = {data: seq for (_, rtype, data), seq in shown(node).items() if rtype == "NS"}
    assert seqs == {"ns.example.net.": 1, "ns2.example.net.": 3}
    assert [seq for (_, rtype, _), seq in shown(node).items() if rtype == "SOA"] == [1]


def test_records_come_in_canonical_order_the_soa_first() -> None:
    node = node_with([put(record_set("x", a("z.a", "192.0.2.1"), a("b", "192.0.2.1"),
                                     a("a", "192.0.2.2", "192.0.2.1")))])  # fmt: skip
    assert [line(one)[:2] for one in blamed(node)] == [
        ("example.org.", "SOA"),
        ("example.org.", "NS"),
        ("a.example.org.", "A"),
        ("a.example.org.", "A"),
        ("z.a.example.org.", "A"),
        ("b.example.org.", "A"),
    ]
