"""Look-up against a slow reference that follows the RFCs' words, and the rules one by one."""

import dns.message
import dns.rdatatype
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kudurru.domain.dns import names, records
from kudurru.domain.dns.images import RRset
from kudurru.domain.dns.lookup import NOERROR, NXDOMAIN, REFUSED, YXDOMAIN, lookup
from kudurru.domain.dns.messages import compose, parse_query
from kudurru.domain.dns.record_types import (
    ANY,
    CNAME,
    DNAME,
    DS,
    HTTPS,
    MX,
    NS,
    SOA,
    SRV,
    SVCB,
    TXT,
    A,
    type_from_text,
)
from kudurru.domain.dns.soa import Soa
from kudurru.domain.dns.zone_set import ZoneSet
from kudurru.domain.dns.zone_tree import Zone

NOW_S = 1_764_000_000

# Names here are tuples of labels from the root: ("z", "a") is a.z.
Labels = tuple[str, ...]
Zones = dict[Labels, dict[Labels, dict[int, tuple[str, ...]]]]

APEXES: list[Labels] = [("z",), ("y",), ("z", "a", "b")]
FORWARDED: list[Labels] = [("z", "a"), ("z", "a", "b", "a"), ("z", "b"), ("y",), ("out",)]


# The reference


def reference(zones: Zones, forwards: list[Labels], qname: Labels, qtype: int):
    """RFC 1034 section 4.3.2 in its own order; others are asked for `forwards`. Returns (rcode, aa,
    answer, authority), the sections as sets of (owner, type, text)."""
    answer: set[tuple[Labels, int, str]] = set()
    visited: set[Labels] = set()
    aa = False
    rcode = NOERROR
    while qname not in visited and len(visited) < 16:
        visited.add(qname)
        apex = enclosing(zones, forwards, qname, qtype)
        if apex is None:
            return (rcode if answer else REFUSED), aa, answer, set()
        zone = zones[apex]
        node = apex
        data = zone.get(node, {})
        referral = rename = None
        while node != qname:  # step 3: label by label down from the apex
            if DNAME in data:
                rename = node
                break
            below = (*node, qname[len(node)])
            if not exists(zone, below):
                break
            node = below
            data = zone.get(node, {})
            if NS in data and not (node == qname and qtype == DS):
                referral = node
                break
        if referral is not None:
            return rcode, aa, answer, {(referral, NS, text) for text in data[NS]}
        aa = True
        if rename is not None:
            target = (*labels_of(data[DNAME][0]), *qname[len(rename) :])
            answer.add((rename, DNAME, data[DNAME][0]))
            if len(text_of(target)) + 1 > 255:
                return YXDOMAIN, aa, answer, set()
            answer.add((qname, CNAME, text_of(target)))
            if qtype == CNAME or labels_of(data[DNAME][0])[: len(rename)] == rename:
                return rcode, aa, answer, set()
            qname = target
            continue
        if node != qname:
            data = zone.get((*node, "*"), {})
            if not exists(zone, (*node, "*")):
                return NXDOMAIN, aa, answer, {(apex, SOA, "")}
        if qtype in data:
            return rcode, aa, answer | {(qname, qtype, text) for text in data[qtype]}, set()
        if CNAME not in data:
            return rcode, aa, answer, {(apex, SOA, "")}
        answer.add((qname, CNAME, data[CNAME][0]))
        qname = labels_of(data[CNAME][0])
    return rcode, aa, answer, set()


def enclosing(zones: Zones, forwards: list[Labels], qname: Labels, qtype: int) -> Labels | None:
    found = [apex for apex in (*zones, *forwards) if qname[: len(apex)] == apex]
    closest = max(found, key=len, default=None)
    if qtype == DS and closest in zones and closest == qname:
        above = max((apex for apex in found if apex != qname), key=len, default=None)
        closest = above if above in zones else closest
    return closest if closest in zones else None


def exists(zone: dict[Labels, dict], name: Labels) -> bool:
    return any(owner[: len(name)] == name for owner in zone)


def labels_of(text: str) -> Labels:
    return tuple(reversed(text.rstrip(".").split(".")))


def text_of(name: Labels) -> str:
    return ".".join(reversed(name)) + "."


# Random zones

LABELS = st.sampled_from(["a", "b", "*"])
NAMES = st.builds(
    lambda apex, more: (*apex, *more), st.sampled_from(APEXES), st.lists(LABELS, max_size=3)
) | st.just(("out", "a"))
TEXTS = NAMES.map(text_of)
NODES = st.one_of(
    st.fixed_dictionaries({A: st.just(("192.0.2.1", "192.0.2.2"))}),
    st.fixed_dictionaries({MX: TEXTS.map(lambda t: (f"1 {t}",)), TXT: st.just(('"x"',))}),
    st.fixed_dictionaries({CNAME: TEXTS.map(lambda t: (t,))}),
    st.fixed_dictionaries({DNAME: TEXTS.map(lambda t: (t,)), TXT: st.just(('"x"',))}),
    st.fixed_dictionaries({NS: TEXTS.map(lambda t: (t,)), A: st.just(("192.0.2.3",))}),
)


@st.composite
def zone_sets(draw) -> Zones:
    zones: Zones = {}
    for apex in draw(st.lists(st.sampled_from(APEXES), min_size=1, unique=True)):
        owners = draw(
            st.dictionaries(st.lists(LABELS, min_size=1, max_size=3).map(tuple), NODES, max_size=6)
        )
        zone = {(*apex, *owner): data for owner, data in owners.items()}
        zone[apex] = {NS: ("ns.out.",)} | draw(st.just({}) | st.just({TXT: ('"apex"',)}))
        if draw(st.booleans()):
            zone[apex] |= {DNAME: (draw(TEXTS),)}
        zones[apex] = zone
    return zones


@settings(max_examples=200, deadline=None)
@given(
    zone_sets(),
    st.just([]) | st.lists(st.sampled_from(FORWARDED)),
    NAMES,
    st.sampled_from([A, TXT, MX, NS, CNAME, DNAME, DS]),
)
def test_answers_are_those_of_the_slow_reference(zones, forwards, qname, qtype) -> None:
    served = zone_set(zones)
    for apex in forwards:
        served.forward(names.key(wire(apex)), ("192.0.2.53",))
    got = answer_of(served, qname, qtype)
    assert got == reference(zones, forwards, qname, qtype)


def zone_set(zones: Zones) -> ZoneSet:
    return ZoneSet(zone_from(apex, owners) for apex, owners in zones.items())


def zone_from(apex: Labels, owners) -> Zone:
    zone = Zone(wire(apex), SOA_VALUE)
    for owner, data in owners.items():
        rrsets = []
        for rtype, texts in data.items():
            rdatas = tuple(records.rdata_from_text(rtype, text) for text in texts)
            rrsets.append(RRset(rtype, 300, rdatas))
        zone.replace(wire(owner), rrsets)
    zone.stamp(1)
    return zone


def wire(name: Labels) -> names.Name:
    return names.from_text(text_of(name))


SOA_VALUE = Soa(
    mname=names.from_text("ns.out."),
    rname=names.from_text("host.out."),
    refresh=3600,
    retry=600,
    expire=86400,
    minimum=60,
    ttl=300,
)


def answer_of(zones: ZoneSet, qname: Labels, qtype: int):
    message = message_of(zones, text_of(qname), qtype)
    got = []
    for section in (message.answer, message.authority):
        rows = [
            (
                labels_of(str(rrset.name)),
                int(rrset.rdtype),
                "" if rrset.rdtype == SOA else str(rdata),
            )
            for rrset in section
            for rdata in rrset
        ]
        assert len(rows) == len(set(rows)), "a record twice"
        got.append(set(rows))
    return message.rcode(), bool(message.flags & dns.flags.AA), *got


def message_of(zones: ZoneSet, qname: str, qtype: int, now_s: int = NOW_S) -> dns.message.Message:
    """The answer as a client reads it."""
    asked = dns.message.make_query(qname, qtype, use_edns=False)
    query = parse_query(asked.to_wire())
    answer = lookup(zones, query.qname, query.qtype, now_s)
    wire = compose(query, answer, 65_535)
    message = dns.message.from_wire(wire, one_rr_per_rrset=True)  # shows records twice
    assert asked.is_response(message)
    return message


# The rules one by one


def zones_of(text: str, apex: str = "z.") -> ZoneSet:
    """Lines of `owner TTL TYPE rdata`, all absolute."""
    zone = Zone(names.from_text(apex), SOA_VALUE)
    by_owner: dict[str, list[RRset]] = {}
    for line in text.strip().splitlines():
        owner, ttl, mnemonic, rdata = line.split(None, 3)
        rtype = type_from_text(mnemonic)
        rrset = RRset(rtype, int(ttl), (records.rdata_from_text(rtype, rdata),))
        by_owner.setdefault(owner, []).append(rrset)
    for owner, rrsets in by_owner.items():
        zone.replace(names.from_text(owner), rrsets)
    zone.stamp(1)
    return ZoneSet([zone])


def shown(section) -> list[str]:
    return [
        f"{rrset.name} {rrset.ttl} {dns.rdatatype.to_text(rrset.rdtype)} {rdata}"
        for rrset in section
        for rdata in rrset
    ]


def test_a_negative_answer_lives_as_long_as_the_smaller_of_soa_ttl_and_minimum() -> None:
    message = message_of(zones_of("a.z. 5 A 192.0.2.1"), "b.z.", A)
    assert shown(message.authority) == ["z. 60 SOA ns.out. host.out. 1 3600 600 86400 60"]
    message = message_of(zones_of("a.z. 5 A 192.0.2.1"), "z.", SOA)
    assert shown(message.answer) == ["z. 300 SOA ns.out. host.out. 1 3600 600 86400 60"]


def test_a_referral_has_all_in_domain_glue_before_that_of_siblings() -> None:
    zones = zones_of(
        """
        sub.z. 5 NS ns.o.z.
        sub.z. 5 NS ns.sub.z.
        sub.z. 5 NS ns.out.
        ns.o.z. 5 A 192.0.2.2
        ns.sub.z. 5 A 192.0.2.1
        ns.sub.z. 5 AAAA 2001:db8::1
        o.z. 5 NS ns.other.z.
        """
    )
    message = message_of(zones, "x.sub.z.", A)
    assert not message.flags & dns.flags.AA
    assert shown(message.additional) == [
        "ns.sub.z. 5 A 192.0.2.1",
        "ns.sub.z. 5 AAAA 2001:db8::1",
        "ns.o.z. 5 A 192.0.2.2",
    ]


def test_what_a_dname_hides_is_in_no_section() -> None:
    """RFC 6672 section 2.3; record sets of different people may put it there."""
    zones = zones_of(
        """
        z. 5 MX 1 h.d.z.
        z. 5 MX 2 d.z.
        d.z. 5 DNAME t.out.
        d.z. 5 A 192.0.2.1
        h.d.z. 5 A 192.0.2.2
        """
    )
    assert shown(message_of(zones, "z.", MX).additional) == ["d.z. 5 A 192.0.2.1"]
    assert shown(message_of(zones, "h.d.z.", A).answer) == [
        "d.z. 5 DNAME t.out.",
        "h.d.z. 5 CNAME h.t.out.",
    ]


def test_a_chain_that_ends_in_a_cut_keeps_aa_of_its_first_name() -> None:
    zones = zones_of("a.z. 5 CNAME x.sub.z.\nsub.z. 5 NS ns.out.")
    message = message_of(zones, "a.z.", A)
    assert message.flags & dns.flags.AA
    assert shown(message.answer) == ["a.z. 5 CNAME x.sub.z."]
    assert shown(message.authority) == ["sub.z. 5 NS ns.out."]


@pytest.mark.parametrize("qtype", ["A", "AAAA", "TXT"])
def test_a_loop_of_aliases_gives_each_record_once(qtype: str) -> None:
    zones = zones_of("a.z. 5 CNAME b.z.\nb.z. 5 CNAME a.z.")
    message = message_of(zones, "a.z.", type_from_text(qtype))
    assert message.rcode() == NOERROR
    assert shown(message.answer) == ["a.z. 5 CNAME b.z.", "b.z. 5 CNAME a.z."]


def test_a_chain_is_followed_sixteen_aliases_far() -> None:
    lines = [f"n{i}.z. 5 CNAME n{i + 1}.z." for i in range(30)]
    message = message_of(zones_of("\n".join(lines)), "n0.z.", A)
    assert message.rcode() == NOERROR
    assert len(shown(message.answer)) == 16


@pytest.mark.parametrize(
    ("text", "qname", "qtype"),
    [
        ("d.z. 5 DNAME t.out.", "host.d.z.", A),
        ("d.z. 5 DNAME t.z.\nhost.t.z. 5 A 192.0.2.1", "host.d.z.", A),
        ("host.z. 5 HTTPS 1 . alpn=h2\nhost.z. 5 A 192.0.2.1", "host.z.", HTTPS),
        ("*.z. 5 SVCB 1 . port=53\n*.z. 5 AAAA 2001:db8::1", "host.z.", SVCB),
    ],
)
def test_what_is_made_of_the_questions_name_has_no_letters_of_it(
    text: str, qname: str, qtype: int
) -> None:
    """Answers are repeated to others, with the question in their letters."""
    zones = zones_of(text)

    def behind_the_question(asked: str) -> bytes:
        query = parse_query(dns.message.make_query(asked, qtype, use_edns=False).to_wire())
        wire = compose(query, lookup(zones, query.qname, qtype, NOW_S), 65_535)
        return wire[12 + len(query.question) :]

    assert behind_the_question(qname.upper()) == behind_the_question(qname)


def test_a_dname_used_twice_on_one_way_is_there_once() -> None:
    zones = zones_of("d.z. 5 DNAME t.z.\nx.t.z. 5 CNAME y.d.z.\ny.t.z. 5 A 192.0.2.1")
    assert shown(message_of(zones, "x.d.z.", A).answer) == [
        "d.z. 5 DNAME t.z.",
        "x.d.z. 5 CNAME x.t.z.",
        "x.t.z. 5 CNAME y.d.z.",
        "y.d.z. 5 CNAME y.t.z.",
        "y.t.z. 5 A 192.0.2.1",
    ]


def test_any_gives_the_smallest_rrset_and_does_not_follow_an_alias() -> None:
    zones = zones_of(
        'a.z. 5 TXT "a long text beside"\na.z. 5 A 192.0.2.1\n'
        "b.z. 5 CNAME a.z.\n*.w.z. 5 A 192.0.2.2"
    )
    assert shown(message_of(zones, "a.z.", ANY).answer) == ["a.z. 5 A 192.0.2.1"]
    assert shown(message_of(zones, "b.z.", ANY).answer) == ["b.z. 5 CNAME a.z."]
    assert shown(message_of(zones, "x.w.z.", ANY).answer) == ["x.w.z. 5 A 192.0.2.2"]
    assert message_of(zones, "none.z.", ANY).rcode() == NXDOMAIN
    assert len(message_of(zones, "z.", ANY).answer) == 1


def test_targets_served_here_bring_their_addresses_once() -> None:
    zones = zones_of(
        """
        m.z. 5 MX 1 h.z.
        m.z. 5 MX 2 H.z.
        m.z. 5 MX 3 out.
        s.z. 5 SRV 0 0 1 h.z.
        h.z. 5 A 192.0.2.1
        h.z. 5 AAAA 2001:db8::1
        """
    )
    for name, qtype in (("m.z.", MX), ("s.z.", SRV)):
        additional = message_of(zones, name, qtype).additional
        assert shown(additional) == ["h.z. 5 A 192.0.2.1", "h.z. 5 AAAA 2001:db8::1"]


@pytest.mark.parametrize(
    ("name", "qtype", "expected"),
    [
        ("h.z.", A, {"z."}),
        ("none.z.", A, {"z."}),
        ("m.z.", MX, {"z.", "y."}),
        ("c.z.", A, {"z.", "y."}),
        ("x.d.z.", A, {"z.", "y."}),
        ("s.z.", HTTPS, {"z.", "y."}),
        ("cc.z.", MX, {"z.", "y.", "x."}),
        ("out.z.", MX, {"z."}),
    ],
)
def test_an_answer_names_the_zones_that_it_comes_of_also_where_they_have_nothing(
    name: str, qtype: int, expected: set[str]
) -> None:
    texts = {
        "z.": "h.z. 5 A 192.0.2.1\nm.z. 5 MX 1 none.y.\nc.z. 5 CNAME none.y.\nd.z. 5 DNAME y.\n"
        "s.z. 5 HTTPS 0 none.y.\ncc.z. 5 CNAME mx.y.\nout.z. 5 MX 1 elsewhere.",
        "y.": "mx.y. 5 MX 1 none.x.",
        "x.": "x. 5 TXT t",
    }
    zones = ZoneSet([zone for apex, text in texts.items() for zone in zones_of(text, apex)])
    found = lookup(zones, names.from_text(name), qtype, NOW_S)
    assert {names.to_text(apex) for apex in found.zones} == expected


BELOW_FORWARDED = """
h.f.z. 5 A 192.0.2.1
s.f.z. 5 HTTPS 1 .
*.f.z. 5 AAAA 2001:db8::1
f.z. 5 A 192.0.2.2
h.z. 5 A 192.0.2.3
c.z. 5 CNAME h.f.z.
apex.z. 5 CNAME f.z.
cc.z. 5 CNAME c.z.
d.z. 5 DNAME f.z.
*.w.z. 5 CNAME x.f.z.
mx.z. 5 MX 1 h.f.z.
mixed.z. 5 MX 1 x.f.z.
mixed.z. 5 MX 2 h.z.
srv.z. 5 SRV 0 0 1 f.z.
https.z. 5 HTTPS 0 s.f.z.
svcb.z. 5 SVCB 1 h.f.z.
z. 5 NS h.f.z.
sub.z. 5 NS h.f.z.
sub.z. 5 NS ns.sub.z.
ns.sub.z. 5 A 192.0.2.4
"""


@pytest.mark.parametrize(
    ("name", "qtype", "answer", "additional"),
    [
        ("c.z.", A, ["c.z. 5 CNAME h.f.z."], []),
        ("apex.z.", A, ["apex.z. 5 CNAME f.z."], []),
        ("cc.z.", TXT, ["cc.z. 5 CNAME c.z.", "c.z. 5 CNAME h.f.z."], []),
        ("h.d.z.", A, ["d.z. 5 DNAME f.z.", "h.d.z. 5 CNAME h.f.z."], []),
        ("y.w.z.", DS, ["y.w.z. 5 CNAME x.f.z."], []),
        ("mx.z.", MX, ["mx.z. 5 MX 1 h.f.z."], []),
        ("mixed.z.", MX, ["mixed.z. 5 MX 1 x.f.z.", "mixed.z. 5 MX 2 h.z."],
         ["h.z. 5 A 192.0.2.3"]),
        ("srv.z.", SRV, ["srv.z. 5 SRV 0 0 1 f.z."], []),
        ("https.z.", HTTPS, ["https.z. 5 HTTPS 0 s.f.z."], []),
        ("svcb.z.", SVCB, ["svcb.z. 5 SVCB 1 h.f.z."], []),
        ("z.", NS, ["z. 5 NS h.f.z."], []),
        ("a.sub.z.", A, [], ["ns.sub.z. 5 A 192.0.2.4"]),
    ],
)  # fmt: skip
def test_nothing_of_a_zone_is_told_below_what_is_forwarded(
    name: str, qtype: int, answer: list[str], additional: list[str]
) -> None:
    zones = zones_of(BELOW_FORWARDED)
    zones.forward(names.key(names.from_text("f.z.")), ("192.0.2.53",))
    message = message_of(zones, name, qtype)
    assert (message.rcode(), sorted(shown(message.answer))) == (NOERROR, sorted(answer))
    assert shown(message.additional) == additional
    for below in ("f.z.", "h.f.z.", "x.f.z.", "x.h.f.z."):
        assert message_of(zones, below, qtype).rcode() == REFUSED
    zones.forward(names.key(names.from_text("f.z.")), None)
    assert message_of(zones, "c.z.", A).answer[-1].to_text() == "h.f.z. 5 IN A 192.0.2.1"


def test_a_zone_below_what_is_forwarded_is_answered_from_also_by_an_alias() -> None:
    (inner,) = zones_of("h.i.f.z. 5 A 192.0.2.1", "i.f.z.")
    zones = ZoneSet([*zones_of("c.z. 5 CNAME h.i.f.z.\nm.z. 5 MX 1 h.i.f.z."), inner])
    zones.forward(names.key(names.from_text("f.z.")), ("192.0.2.53",))
    assert len(message_of(zones, "c.z.", A).answer) == 2
    assert len(message_of(zones, "m.z.", MX).additional) == 1
    message = message_of(zones, "i.f.z.", DS)  # the parent side is not ours
    assert shown(message.authority)[0].startswith("i.f.z. ")


def test_targets_in_a_zone_that_has_expired_bring_nothing_until_it_is_there_again() -> None:
    (other,) = zones_of("h.y. 5 A 192.0.2.1", "y.")
    zones = ZoneSet([*zones_of("m.z. 5 MX 1 h.y."), other])
    other.is_available = False
    assert not message_of(zones, "m.z.", MX).additional
    answer = lookup(zones, names.from_text("m.z."), MX, NOW_S)
    assert other.key in answer.zones  # it comes of that one too
    other.is_available = True
    assert shown(message_of(zones, "m.z.", MX).additional) == ["h.y. 5 A 192.0.2.1"]


def test_a_target_that_comes_of_a_wildcard_brings_what_a_question_for_it_would_find() -> None:
    """RFC 1034 section 4.3.2 step 6 and RFC 4592; Knot and NSD do so too."""
    zones = zones_of(
        """
        z. 5 NS z.
        z. 5 NS w.z.
        z. 5 HTTPS 0 *.z.
        *.z. 5 A 192.0.2.1
        *.z. 5 HTTPS 1 .
        m.z. 5 MX 1 x.y.z.
        m.z. 5 MX 2 x.sub.z.
        m.z. 5 MX 3 x.ent.z.
        m.z. 5 MX 4 x.d.z.
        s.z. 5 HTTPS 0 w.z.
        sub.z. 5 NS ns.z.
        a.x.ent.z. 5 TXT t
        d.z. 5 DNAME out.
        """
    )
    assert shown(message_of(zones, "z.", NS).additional) == ["w.z. 5 A 192.0.2.1"]
    assert shown(message_of(zones, "a.sub.z.", A).additional) == ["ns.z. 5 A 192.0.2.1"]
    assert shown(message_of(zones, "m.z.", MX).additional) == ["x.y.z. 5 A 192.0.2.1"]
    assert shown(message_of(zones, "s.z.", HTTPS).additional) == [
        "w.z. 5 HTTPS 1 .",
        "w.z. 5 A 192.0.2.1",
    ]
    assert shown(message_of(zones, "z.", HTTPS).additional) == [
        "*.z. 5 HTTPS 1 .",
        "*.z. 5 A 192.0.2.1",
    ]


def test_services_bring_what_their_targets_need() -> None:
    zones = zones_of(
        """
        self.z. 5 HTTPS 1 . alpn=h2
        self.z. 5 A 192.0.2.1
        alias.z. 5 HTTPS 0 self.z.
        none.z. 5 SVCB 0 .
        none.z. 5 A 192.0.2.2
        """
    )
    assert shown(message_of(zones, "self.z.", HTTPS).additional) == ["self.z. 5 A 192.0.2.1"]
    assert shown(message_of(zones, "alias.z.", HTTPS).additional) == [
        'self.z. 5 HTTPS 1 . alpn="h2"',
        "self.z. 5 A 192.0.2.1",
    ]
    assert shown(message_of(zones, "none.z.", SVCB).additional) == []


@pytest.mark.parametrize(("left", "ttl"), [(1000, 300), (7, 7), (0, 0), (-5, 0)])
def test_a_ttl_never_exceeds_the_time_a_record_has_left(left: int, ttl: int) -> None:
    zone = Zone(names.from_text("z."), SOA_VALUE)
    address = bytes((192, 0, 2, 1))
    zone.replace(names.from_text("*.z."), [RRset(A, 300, (address,), NOW_S + left)])
    zone.replace(names.from_text("b.z."), [RRset(A, 300, (address,))])
    zones = ZoneSet([zone])
    assert shown(message_of(zones, "a.z.", A).answer) == [f"a.z. {ttl} A 192.0.2.1"]
    assert not lookup(zones, names.from_text("a.z."), A, NOW_S).is_lasting
    assert lookup(zones, names.from_text("b.z."), A, NOW_S).is_lasting


def test_owners_keep_the_letter_case_they_are_stored_with() -> None:
    zones = zones_of("SamBa.z. 5 A 192.0.2.1\na.z. 5 CNAME samba.z.\nl.z. 5 A 192.0.2.2")
    assert shown(message_of(zones, "SAMBA.z.", A).answer) == ["SamBa.z. 5 A 192.0.2.1"]
    assert shown(message_of(zones, "a.z.", A).answer)[1] == "SamBa.z. 5 A 192.0.2.1"
    # One that is stored in lower case takes on the case of the question, as everywhere.
    assert shown(message_of(zones, "L.z.", A).answer) == ["L.z. 5 A 192.0.2.2"]


def test_ds_of_a_delegation_is_answered_by_the_parent_and_below_it_referred() -> None:
    zones = zones_of("sub.z. 5 NS ns.out.\nsub.z. 5 DS 1 8 2 " + "00" * 32)
    assert message_of(zones, "sub.z.", DS).flags & dns.flags.AA
    assert len(message_of(zones, "sub.z.", DS).answer) == 1
    assert not message_of(zones, "x.sub.z.", DS).flags & dns.flags.AA


def test_a_substitution_too_long_is_yxdomain_with_the_dname() -> None:
    label = "a" * 60
    zones = zones_of(f"d.z. 5 DNAME {label}.{label}.{label}.z.")
    message = message_of(zones, f"{label}.{label}.d.z.", A)
    assert message.rcode() == YXDOMAIN
    assert [rrset.rdtype for rrset in message.answer] == [DNAME]
    assert message.flags & dns.flags.AA
