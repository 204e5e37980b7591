"""What becomes of a DNSEndpoint: record sets, faults, or nothing."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.commands import Apply, Command
from kudurru.domain.errors import Invalid
from kudurru.domain.objects import Key, key_of
from kudurru.entrypoints.wiring import Node
from kudurru.projections.dns_endpoints import (
    ENDPOINTS_MAX,
    Unplannable,
    declared,
    manager_of,
    plan,
    source_of,
)
from kudurru.projections.external_dns import Terms
from tests.nodes import a_change, memory_node
from tests.objects import endpoint, manifest, put, record_set, zone

A = endpoint("www.example.org", "A", "192.0.2.1")


def a_node(*objects: Any) -> Node:
    """With the zone example.org, and objects of manager kudurru."""
    node = memory_node()
    node.commit(a_change(put(zone()), *map(put, objects)))
    return node


def document(*endpoints: Any, name: str = "web") -> dict[str, Any]:
    metadata = {"namespace": "default", "name": name, "uid": "u", "generation": 1}
    return {"metadata": metadata, "spec": {"endpoints": list(endpoints)}}


def planned(node: Node, *endpoints: Any, mine: tuple[Key, ...] = (), **terms: Any) -> list[Command]:
    it = declared(document(*endpoints))
    return plan(it, mine, node.zones, node.objects, Terms(**terms)).commands


def faults(node: Node, *endpoints: Any) -> list[str]:
    with pytest.raises(Invalid) as error:
        planned(node, *endpoints)
    return [str(cause) for cause in error.value.causes]


def specs(commands: list[Command]) -> dict[str, list[Any]]:
    """Endpoints by zone."""
    found = {}
    for command in commands:
        assert isinstance(command, Apply)
        spec: Any = msgspec.to_builtins(command.manifest.spec)
        found[spec["zoneRef"]["name"]] = spec["endpoints"]
    return found


@pytest.mark.parametrize(
    ("given_", "kept"),
    [
        (A, A),
        ({**A, "recordTTL": 0}, A),
        ({**A, "recordTTL": 60}, {**A, "recordTTL": 60}),
        ({**A, "labels": {"a": "b"}, "providerSpecific": [{"name": "x", "value": "y"}]}, A),
        ({**A, "setIdentifier": "blue"}, {**A, "setIdentifier": "blue"}),
        ({**A, "somethingNew": 1}, A),
        (endpoint("*.example.org", "CNAME", "www.example.org."),) * 2,
        (endpoint("WWW.Example.ORG.", "AAAA", "2001:db8::1"),) * 2,
        (endpoint("example.org", "MX", "10 mail.example.org", "20 mx.example.net."),) * 2,
        (endpoint("_sip._tcp.example.org", "SRV", "0 5 5060 sip.example.org."),) * 2,
        (endpoint("t.example.org", "TXT", "v=spf1 -all", '"in quotes"'),) * 2,
        (endpoint("sub.example.org", "NS", "ns.example.net"),) * 2,
    ],
)
def test_an_endpoint_is_kept_as_records_are_written(given_: Any, kept: Any) -> None:
    assert specs(planned(a_node(), given_)) == {"example.org": [kept]}


def test_each_zone_has_a_record_set_and_names_go_into_the_closest() -> None:
    node = a_node(manifest("DNSZone", "sub", {"zoneName": "sub.example.org"}))
    below = endpoint("a.sub.example.org", "A", "192.0.2.2")
    commands = planned(node, A, below, endpoint("x.other.example", "A", "nonsense"))
    assert specs(commands) == {"example.org": [A], "sub": [below]}
    assert len({command.manifest.key for command in commands if isinstance(command, Apply)}) == 2
    assert {command.manager for command in commands if isinstance(command, Apply)} == {
        "dnsendpoint:default/web"
    }


def test_names_below_a_zone_that_is_no_primary_are_somebody_elses() -> None:
    forward = {"zoneName": "f.example.org", "type": "Forward",
               "forward": {"upstreams": ["192.0.2.53"]}}  # fmt: skip
    secondary = {"zoneName": "s.example.org", "type": "Secondary",
                 "secondary": {"primaries": [{"address": "192.0.2.53"}]}}  # fmt: skip
    node = a_node(manifest("DNSZone", "f", forward), manifest("DNSZone", "s", secondary))
    names = ("a.f.example.org", "f.example.org", "a.s.example.org", "other", ".")
    assert planned(node, *(endpoint(name, "A", "192.0.2.1") for name in names)) == []


def test_what_is_as_it_should_be_leads_to_nothing() -> None:
    node = a_node()
    commands = planned(node, A)
    node.commit(a_change(*commands))
    (command,) = commands
    assert isinstance(command, Apply)
    assert planned(node, A, mine=(command.manifest.key,)) == []


@pytest.mark.parametrize(
    ("theirs", "mine", "is_contested"),
    [
        ("A", "A", True),
        ("A", "TYPE1", True),
        ("A", "AAAA", False),
        ("A", "CNAME", True),
        ("CNAME", "TXT", True),
        ("TXT", "A", False),
    ],
)
def test_types_of_another_manager_at_a_name(theirs: str, mine: str, is_contested: bool) -> None:
    target = {"A": "192.0.2.9", "AAAA": "2001:db8::1", "TYPE1": "\\# 4 c0000201"}
    other = endpoint("www.example.org", theirs, target.get(theirs, "x.example.org"))
    node = a_node(record_set("theirs", other))
    wanted = endpoint("www.example.org", mine, target.get(mine, "x.example.org"))
    if not is_contested:
        assert planned(node, wanted)
        return
    with pytest.raises(Unplannable) as error:
        planned(node, endpoint("free.example.org", "A", "192.0.2.8"), wanted)
    assert error.value.in_the_way == {key_of("DNSRecordSet", "default", "theirs")}
    (fault,) = faults(node, wanted)
    assert fault == (
        f"spec.endpoints[0]: www.example.org {theirs} is managed by 'kudurru', "
        "in DNSRecordSet default/theirs"
    )


def test_every_fault_is_told_with_its_place_in_the_object() -> None:
    found = faults(
        a_node(record_set("theirs", endpoint("t.example.org", "A", "192.0.2.9"))),
        endpoint("elsewhere.example", "A", "192.0.2.1"),
        None,
        endpoint("a..example.org", "A", "192.0.2.1"),
        A,
        endpoint("b.example.org", "A", "192.0.2.1", "nonsense"),
        endpoint("t.example.org", "A", "192.0.2.1"),
        endpoint("c.example.org", "A"),
        {**A, "recordTTL": -1, "dnsName": "d.example.org"},
        {**A, "recordType": ""},
        A,
    )
    assert [fault.partition(": ")[0].removeprefix("spec.endpoints") for fault in found] == [
        "[2].dnsName", "[6].targets", "[8].recordType",
        "[5]", "[7].recordTTL", "[4].targets[1]", "[9]",
    ]  # fmt: skip
    assert "as spec.endpoints[3]" in found[-1]


def test_more_than_a_record_set_or_an_object_takes_is_a_fault() -> None:
    many = [endpoint(f"h{i}.example.org", "A", "192.0.2.1") for i in range(ENDPOINTS_MAX + 1)]
    assert "spec.endpoints" in faults(a_node(), *many[:257])[0]
    with pytest.raises(ValueError, match="more than 1024"):
        declared(document(*many))


@pytest.mark.parametrize("spec", [None, {}, {"endpoints": None}, {"endpoints": []}])
def test_an_object_without_endpoints_asks_for_nothing(spec: Any) -> None:
    it = declared({**document(), "spec": spec})
    assert not plan(it, (), a_node().zones, a_node().objects, Terms()).is_here


@pytest.mark.parametrize("spec", [{"endpoints": {}}, {"endpoints": "x"}, {"endpoints": [1]}])
def test_what_is_no_list_of_endpoints_is_told(spec: Any) -> None:
    with pytest.raises(ValueError, match="endpoints"):
        declared({**document(), "spec": spec})


def test_the_record_sets_of_an_endpoint_are_in_its_namespace() -> None:
    here, abroad = (key_of("DNSRecordSet", namespace, "x") for namespace in ("team", "other"))
    assert source_of(here, manager_of("team/web")) == "team/web"
    assert source_of(abroad, manager_of("team/web")) is None
    assert source_of(here, "external-dns") is None
    assert source_of(here, None) is None


texts = st.text(max_size=12) | st.sampled_from(
    ["", ".", "*", "*.example.org", "a.example.org", "é.example.org", "\\000.example.org",
     "\ud800.example.org", "x" * 64 + ".example.org", "A", "TYPE65535", "OPT", "cname", "@"]
)  # fmt: skip
anything = st.none() | st.integers() | texts | st.lists(texts, max_size=3)
objects = st.fixed_dictionaries(
    {},
    optional={
        "dnsName": texts | anything,
        "recordType": texts | anything,
        "targets": st.lists(texts, max_size=3) | anything,
        "recordTTL": st.integers(-(2**63), 2**63 - 1) | anything,
        "setIdentifier": texts | anything,
    },
)


@given(st.lists(objects | anything, max_size=4))
def test_whatever_an_object_says_it_is_taken_or_refused(endpoints: list[Any]) -> None:
    node = a_node()
    try:
        commands = planned(node, *endpoints)
    except (ValueError, Invalid):
        return
    node.commit(a_change(*commands))
