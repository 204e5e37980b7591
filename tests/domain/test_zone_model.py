"""From objects to records: who serves what at one owner, and what is wrong with the rest."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.dns import names
from kudurru.domain.dns.names import Name, from_text
from kudurru.domain.dns.record_types import AAAA, CNAME, NS, RRSIG, TXT, A, type_to_text
from kudurru.domain.dns.records import rdata_to_text
from kudurru.domain.kinds.zone import DNSZoneSpec
from kudurru.domain.objects import Key, key_of
from kudurru.domain.zone_model import (
    Contribution,
    Resolved,
    apex_rrsets,
    parse_endpoints,
    resolve_owner,
    soa_of,
)
from tests.objects import endpoint, record_set

APEX = from_text("example.org.")
OWNER = from_text("www.example.org.")
NOW_S = 1_800_000_000
SOON = "2027-01-15T08:01:00Z"  # a minute after NOW_S
PAST = "2027-01-15T08:00:00Z"  # NOW_S itself
FIRST, SECOND, THIRD = "2025-01-01T00:00:00Z", "2025-01-01T00:00:01Z", "2025-01-01T00:00:02Z"


def rs(name: str, namespace: str = "default") -> Key:
    return key_of("DNSRecordSet", namespace, name)


def wants(created: str, key: Key, *endpoints: Any, owner: Name = OWNER) -> Contribution:
    spec: Any = record_set("x", *endpoints).spec
    return Contribution(created, key, parse_endpoints(spec)[names.key(owner)])


def at_www(rtype: str, *targets: str, **fields: Any) -> Any:
    return endpoint("www.example.org", rtype, *targets, **fields)


def a(*targets: str, **fields: Any) -> Any:
    return at_www("A", *(targets or ("192.0.2.1",)), **fields)


def resolve(*contributions: Contribution, owner: Name = OWNER, now_s: int = NOW_S) -> Resolved:
    return resolve_owner(
        contributions,
        owner_key=names.key(owner),
        apex_key=names.key(APEX),
        default_ttl=300,
        now_s=now_s,
    )


def served(resolved: Resolved) -> list[tuple[str, int, list[str]]]:
    return [
        (type_to_text(r.rtype), r.ttl, [rdata_to_text(r.rtype, rdata) for rdata in r.rdatas])
        for r in resolved.rrsets
    ]


def reasons(resolved: Resolved) -> dict[str, list[str]]:
    return {key: [p.reason for p in problems] for key, problems in resolved.problems.items()}


# Precedence and contested identities


def test_one_record_set_serves_what_it_says() -> None:
    found = resolve(wants(FIRST, rs("a"), a("192.0.2.1", "192.0.2.2", recordTTL=60)))
    assert served(found) == [("A", 60, ["192.0.2.1", "192.0.2.2"])]
    assert found.problems == {}
    assert found.next_expiry_s is None


def test_the_earlier_object_keeps_a_contested_identity_and_the_later_is_told() -> None:
    found = resolve(wants(SECOND, rs("a"), a("192.0.2.2")), wants(FIRST, rs("b"), a("192.0.2.1")))
    assert served(found) == [("A", 300, ["192.0.2.1"])]
    assert reasons(found) == {rs("a"): ["Duplicated"]}
    (problem,) = found.problems[rs("a")]
    assert (problem.dns_name, problem.record_type) == ("www.example.org.", "A")
    assert rs("b") in problem.message


def test_of_objects_of_one_second_the_first_by_namespace_and_name_wins() -> None:
    found = resolve(
        wants(FIRST, rs("a", "team"), a("192.0.2.1")),
        wants(FIRST, rs("b", "default"), a("192.0.2.2")),
        wants(FIRST, rs("c", "default"), a("192.0.2.3")),
    )
    assert served(found) == [("A", 300, ["192.0.2.2"])]
    assert set(found.problems) == {rs("a", "team"), rs("c")}


def test_another_type_or_set_identifier_is_another_identity() -> None:
    found = resolve(
        wants(FIRST, rs("a"), a("192.0.2.1")),
        wants(SECOND, rs("b"), a("192.0.2.2", setIdentifier="b")),
        wants(THIRD, rs("c"), at_www("AAAA", "2001:db8::1")),
    )
    assert served(found) == [
        ("A", 300, ["192.0.2.1"]),
        ("A", 300, ["192.0.2.2"]),
        ("AAAA", 300, ["2001:db8::1"]),
    ]
    assert found.problems == {}


@pytest.mark.parametrize("off", [{"disabled": True}, {"expiresAt": PAST}])
def test_what_is_off_or_expired_serves_nothing_and_still_holds_its_identity(off: Any) -> None:
    found = resolve(
        wants(FIRST, rs("a"), a("192.0.2.1", **off)), wants(SECOND, rs("b"), a("192.0.2.2"))
    )
    assert served(found) == []
    assert found.owner is None
    assert reasons(found) == {rs("b"): ["Duplicated"]}


def test_a_problem_goes_with_its_cause() -> None:
    later = wants(SECOND, rs("b"), a("192.0.2.2"))
    assert resolve(wants(FIRST, rs("a"), a()), later).problems
    assert resolve(later).problems == {}
    assert served(resolve(later)) == [("A", 300, ["192.0.2.2"])]


types = st.sampled_from(["A", "AAAA", "CNAME", "TXT", "RRSIG", "DNAME"])
TARGETS = {
    "A": "192.0.2.1",
    "AAAA": "2001:db8::1",
    "CNAME": "a.example",
    "DNAME": "b.example",
    "TXT": "x",
    "RRSIG": "A 8 2 300 20300101000000 20200101000000 1 example.org. AAAA",
}


@st.composite
def rival_sets(draw: st.DrawFn) -> list[Contribution]:
    def one(i: int) -> Contribution:
        chosen = draw(st.lists(types, min_size=1, max_size=2, unique=True))
        if "CNAME" in chosen:
            chosen = [t for t in chosen if t in ("CNAME", "RRSIG")]
        endpoints = [
            at_www(
                rtype,
                TARGETS[rtype],
                setIdentifier=draw(st.sampled_from(["", "b"])),
                disabled=draw(st.booleans()),
                **draw(st.sampled_from([{}, {"expiresAt": SOON}, {"expiresAt": PAST}])),
            )
            for rtype in chosen
        ]
        return wants(draw(st.sampled_from([FIRST, SECOND])), rs(f"s{i}"), *endpoints)

    return [one(i) for i in range(draw(st.integers(1, 5)))]


@given(rival_sets(), st.randoms(use_true_random=False))
def test_the_outcome_does_not_depend_on_the_order_of_writing(
    rivals: list[Contribution], chance: Any
) -> None:
    shuffled = list(rivals)
    chance.shuffle(shuffled)
    assert resolve(*shuffled) == resolve(*rivals)


@given(rival_sets())
def test_what_is_served_obeys_the_rules_of_cname_whatever_was_asked(
    rivals: list[Contribution],
) -> None:
    found = resolve(*rivals)
    rtypes = [rrset.rtype for rrset in found.rrsets]
    assert rtypes.count(CNAME) <= 1
    if CNAME in rtypes:
        assert set(rtypes) <= {CNAME, RRSIG}
    # Nothing gets lost: an endpoint is served, off, or a problem.
    off = sum(
        p.disabled or (p.expires_at_s or NOW_S + 1) <= NOW_S for c in rivals for p in c.endpoints
    )
    faulty = sum(map(len, found.problems.values()))
    assert (
        len(rtypes) + faulty
        <= sum(len(c.endpoints) for c in rivals)
        <= (len(rtypes) + faulty + off)
    )


# CNAME and DNAME


def test_a_cname_of_a_later_object_gives_way_to_data() -> None:
    found = resolve(
        wants(FIRST, rs("a"), a()), wants(SECOND, rs("b"), at_www("CNAME", "x.example"))
    )
    assert [rtype for rtype, _, _ in served(found)] == ["A"]
    assert reasons(found) == {rs("b"): ["Invalid"]}
    assert "stands alone" in found.problems[rs("b")][0].message


def test_data_of_a_later_object_gives_way_to_a_cname() -> None:
    found = resolve(
        wants(FIRST, rs("a"), at_www("CNAME", "x.example")),
        wants(SECOND, rs("b"), a(), at_www("TXT", "x")),
    )
    assert [rtype for rtype, _, _ in served(found)] == ["CNAME"]
    assert reasons(found) == {rs("b"): ["Invalid", "Invalid"]}


def test_signatures_stand_beside_a_cname() -> None:
    found = resolve(
        wants(FIRST, rs("a"), at_www("RRSIG", TARGETS["RRSIG"])),
        wants(SECOND, rs("b"), at_www("CNAME", "x.example")),
    )
    assert [rtype for rtype, _, _ in served(found)] == ["RRSIG", "CNAME"]
    assert found.problems == {}


@pytest.mark.parametrize("rtype", ["CNAME", "DNAME"])
def test_a_name_has_one_cname_and_one_dname_at_most(rtype: str) -> None:
    found = resolve(
        wants(FIRST, rs("a"), at_www(rtype, "x.example")),
        wants(SECOND, rs("b"), at_www(rtype, "y.example", setIdentifier="b")),
    )
    assert served(found) == [(rtype, 300, ["x.example."])]
    assert reasons(found) == {rs("b"): ["Invalid"]}


@pytest.mark.parametrize("off", [{"disabled": True}, {"expiresAt": PAST}])
def test_a_cname_that_is_off_or_expired_is_in_nobodys_way_and_has_no_problem(off: Any) -> None:
    cname = at_www("CNAME", "x.example", **off)
    first = resolve(wants(FIRST, rs("a"), cname), wants(SECOND, rs("b"), a()))
    later = resolve(wants(FIRST, rs("b"), a()), wants(SECOND, rs("a"), cname))
    for found in (first, later):
        assert served(found) == [("A", 300, ["192.0.2.1"])]
        assert found.problems == {}


def test_a_cname_steps_in_when_the_data_before_it_expires() -> None:
    rivals = [
        wants(FIRST, rs("a"), a(expiresAt=SOON)),
        wants(SECOND, rs("b"), at_www("CNAME", "x.example")),
    ]
    before = resolve(*rivals)
    assert [rtype for rtype, _, _ in served(before)] == ["A"]
    assert before.next_expiry_s == NOW_S + 60
    after = resolve(*rivals, now_s=NOW_S + 60)
    assert [rtype for rtype, _, _ in served(after)] == ["CNAME"]
    assert after.problems == {}


# The apex


def test_name_servers_of_the_zone_are_written_in_the_zone_alone() -> None:
    found = resolve(
        wants(FIRST, rs("a"), endpoint("example.org", "NS", "ns.example"), owner=APEX), owner=APEX
    )
    assert served(found) == []
    assert reasons(found) == {rs("a"): ["Invalid"]}


def test_a_cname_at_the_apex_is_a_problem_and_other_data_there_is_served() -> None:
    found = resolve(
        wants(FIRST, rs("a"), endpoint("example.org", "CNAME", "x.example"), owner=APEX),
        wants(SECOND, rs("b"), endpoint("example.org", "TXT", "x"), owner=APEX),
        owner=APEX,
    )
    assert [rtype for rtype, _, _ in served(found)] == ["TXT"]
    assert reasons(found) == {rs("a"): ["Invalid"]}


def test_a_delegation_below_the_apex_is_data() -> None:
    found = resolve(wants(FIRST, rs("a"), at_www("NS", "ns.example")))
    assert [rrset.rtype for rrset in found.rrsets] == [NS]


def test_an_owner_outside_the_zone_is_a_problem() -> None:
    owner = from_text("www.example.net.")
    found = resolve(
        wants(FIRST, rs("a"), endpoint("www.example.net", "A", "192.0.2.1"), owner=owner),
        owner=owner,
    )
    assert served(found) == []
    assert reasons(found) == {rs("a"): ["OutsideZone"]}


# TTL and time


@pytest.mark.parametrize(("ttl", "wanted"), [({}, 300), ({"recordTTL": 0}, 0)])
def test_the_ttl_is_the_endpoints_else_that_of_the_zone(ttl: Any, wanted: int) -> None:
    assert resolve(wants(FIRST, rs("a"), a(**ttl))).rrsets[0].ttl == wanted


def test_a_zone_that_says_nothing_has_a_ttl_of_300() -> None:
    assert DNSZoneSpec(zone_name="a").default_ttl == 300


def test_the_next_expiry_is_the_earliest_that_is_still_to_come() -> None:
    found = resolve(
        wants(
            FIRST,
            rs("a"),
            a(expiresAt=PAST),
            at_www("TXT", "x", expiresAt="2027-01-15T09:00:00Z"),
            at_www("AAAA", "2001:db8::1", expiresAt=SOON),
            at_www("MX", "0 .", expiresAt="2027-01-15T08:00:01Z", disabled=True),
        )
    )
    assert found.next_expiry_s == NOW_S + 60
    assert {r.rtype: r.expires_at_s for r in found.rrsets} == {
        TXT: NOW_S + 3600,
        AAAA: NOW_S + 60,
    }


def test_an_expiry_that_only_clears_a_problem_is_awaited_too() -> None:
    found = resolve(
        wants(FIRST, rs("a"), a()),
        wants(SECOND, rs("b"), at_www("CNAME", "x.example", expiresAt=SOON)),
    )
    assert reasons(found) == {rs("b"): ["Invalid"]}
    assert found.next_expiry_s == NOW_S + 60


# Names


def test_letter_case_is_ignored_for_identity_and_kept_as_the_first_writes_it() -> None:
    found = resolve(
        wants(SECOND, rs("a"), endpoint("WWW.example.org", "TXT", "x")),
        wants(FIRST, rs("b"), endpoint("Www.example.org.", "A", "192.0.2.1")),
    )
    assert found.owner == from_text("Www.example.org.")
    assert {r.rtype for r in found.rrsets} == {A, TXT}


def test_endpoints_are_grouped_by_owner_whatever_their_letter_case_and_final_dot() -> None:
    spec: Any = record_set(
        "x",
        endpoint("a.example.org", "A", "192.0.2.1"),
        endpoint("b.example.org", "A", "192.0.2.2"),
        endpoint("A.EXAMPLE.ORG.", "TXT", "x"),
    ).spec
    found = parse_endpoints(spec)
    assert {names.to_text(owner): [p.rtype for p in parsed] for owner, parsed in found.items()} == {
        "a.example.org.": [A, TXT],
        "b.example.org.": [A],
    }


def test_a_text_that_no_longer_parses_is_left_out_and_the_rest_is_served() -> None:
    spec: Any = record_set("x", a(), at_www("TXT", "x")).spec
    stale = [
        msgspec.structs.replace(spec.endpoints[0], record_type="GONE"),
        msgspec.structs.replace(spec.endpoints[0], targets=["no address"]),
        msgspec.structs.replace(spec.endpoints[0], dns_name="a..b"),
        msgspec.structs.replace(spec.endpoints[0], expires_at="tomorrow"),
    ]
    spec = msgspec.structs.replace(spec, endpoints=[*stale, *spec.endpoints])
    found = parse_endpoints(spec)
    assert [parsed.rtype for parsed in found[OWNER]] == [A, TXT]


# What the zone itself says


def test_the_apex_has_the_name_servers_of_the_zone_with_their_ttl() -> None:
    spec = DNSZoneSpec(zone_name="example.org", nameservers=["ns1.example.org", "ns2.example."])
    (rrset,) = apex_rrsets(spec)
    assert (rrset.rtype, rrset.ttl) == (NS, 300)
    assert rrset.rdatas == (from_text("ns1.example.org."), from_text("ns2.example."))
    assert apex_rrsets(msgspec.structs.replace(spec, nameserver_ttl=60))[0].ttl == 60
    assert apex_rrsets(DNSZoneSpec(zone_name="example.org")) == []


def test_the_soa_fills_in_what_is_not_written() -> None:
    bare = soa_of(DNSZoneSpec(zone_name="example.org"))
    assert (bare.mname, bare.rname) == (
        from_text("ns.example.org."),
        from_text("hostmaster.example.org."),
    )
    assert (bare.ttl, bare.minimum) == (300, 300)
    served_by = DNSZoneSpec(zone_name="example.org", nameservers=["a.example"], default_ttl=60)
    assert soa_of(served_by).mname == from_text("a.example.")
    assert soa_of(served_by).ttl == 60


def test_the_soa_of_a_zone_with_the_longest_name_is_one() -> None:
    longest = ".".join(["a" * 63] * 3 + ["a" * 61])
    soa = soa_of(DNSZoneSpec(zone_name=longest))
    assert soa.mname == soa.rname == from_text(longest)


@given(
    st.sampled_from([OWNER, APEX, from_text("www.example.com.")]),
    st.sampled_from([("A", "192.0.2.1"), ("CNAME", "a.test."), ("NS", "a.test."), ("TXT", "x")]),
    st.sampled_from(
        [{}, {"recordTTL": 60}, {"disabled": True}, {"expiresAt": SOON}, {"expiresAt": PAST}]
    ),
)
def test_an_endpoint_alone_is_served_as_beside_one_that_is_off(
    owner: Name, content: tuple[str, str], how: dict[str, Any]
) -> None:
    text = names.to_text(owner)
    alone = wants(FIRST, rs("a"), endpoint(text, *content, **how), owner=owner)
    off = wants(SECOND, rs("b"), endpoint(text, "MX", "1 a.test.", disabled=True), owner=owner)
    found, wanted = resolve(alone, owner=owner), resolve(alone, off, owner=owner)
    wanted.problems.pop(rs("b"), None)
    assert found == wanted
