"""Dynamic updates (RFC 2136): every prerequisite, every rule of an update, every code."""

from collections.abc import Sequence

import dns.message
import dns.name
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.update
import pytest

from kudurru.domain.dns import names, record_types, records, update
from kudurru.domain.dns.lookup import (
    FORMERR,
    NOTAUTH,
    NOTZONE,
    NXDOMAIN,
    NXRRSET,
    RCODE_NAMES,
    REFUSED,
    YXDOMAIN,
    YXRRSET,
)
from kudurru.domain.dns.message_reader import Record, read_message
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.update import Update, UpdateRefused
from kudurru.domain.kinds.tsigkey import UpdateRule, parse_rule
from kudurru.domain.zone_import import RRs

ORIGIN = dns.name.from_text("example.org.")
SOA = "ns.example.org. h.example.org. 100 1 2 3 4"
ZONE = [
    f"@ 300 SOA {SOA}",
    "@ 300 NS ns1.example.org.",
    "@ 300 NS ns2.example.org.",
    "@ 300 MX 10 mail.example.org.",
    "www 300 A 192.0.2.1",
    "www 300 A 192.0.2.2",
    'www 300 TXT "text"',
    "alias 300 CNAME www.example.org.",
    "one.sub 300 NS ns.one.sub.example.org.",
]

Lines = Sequence[str]
IN, ANY, NONE = "IN", "ANY", "NONE"


def parsed(line: str) -> tuple[Name, int, int, bytes]:
    owner, ttl, rtype, data = line.split(None, 3)
    name = dns.name.from_text(owner, ORIGIN).to_wire()
    assert name is not None
    number = record_types.type_from_text(rtype)
    origin = names.from_text("example.org.")
    return Name(name), number, int(ttl), records.rdata_from_text(number, data, origin)


def holdings(lines: Lines) -> dict[Name, RRs]:
    held: dict[Name, RRs] = {}
    for line in lines:
        owner, rtype, ttl, rdata = parsed(line)
        rrs = held.setdefault(names.key(owner), {})
        rdatas = rrs.setdefault(rtype, (ttl, {}))[1]
        rdatas[records.canonical_rdata(rtype, rdata)] = rdata
    return held


HELD = holdings(ZONE)


def read(key: Name) -> RRs:
    return HELD.get(key, {})


def section(lines: Lines) -> list[dns.rrset.RRset]:
    """Records as "owner ttl class type data"; without data the rdata is empty."""
    made = []
    for line in lines:
        owner, ttl, rclass, rtype, *data = line.split(None, 4)
        name = dns.name.from_text(owner, ORIGIN)
        kind = dns.rdatatype.from_text(rtype)
        if data:
            rdata = dns.rdata.from_text("IN", kind, data[0], origin=ORIGIN, relativize=False)
            rrset = dns.rrset.from_rdata(name, int(ttl), rdata)
        else:
            rrset = dns.rrset.RRset(name, dns.rdataclass.IN, kind)
            rrset.update_ttl(int(ttl))
        rrset.deleting = None if rclass == IN else dns.rdataclass.from_text(rclass)
        made.append(rrset)
    return made


def message(
    prerequisites: Lines = (), changes: Lines = (), *, zone: str = "example.org.", kind: str = "SOA"
) -> bytes:
    made = dns.update.UpdateMessage(zone)
    made.question[0].rdtype = dns.rdatatype.from_text(kind)
    made.sections[1] = section(prerequisites)
    made.sections[2] = section(changes)
    return made.to_wire()


def the_update(prerequisites: Lines = (), changes: Lines = ()) -> Update:
    return update.read_update(read_message(message(prerequisites, changes)))


def checked(prerequisites: Lines = (), changes: Lines = ()) -> Update:
    asked = the_update(prerequisites, changes)
    update.check_prerequisites(asked, read)
    update.prescan(asked)
    return asked


PREREQUISITES: list[tuple[Lines, int]] = [
    # Name is in use, and is not (sections 2.4.4, 2.4.5).
    (["www 0 ANY ANY"], 0),
    (["WWW 0 ANY ANY"], 0),
    (["nope 0 ANY ANY"], NXDOMAIN),
    (["sub 0 ANY ANY"], NXDOMAIN),  # an empty non-terminal holds nothing
    (["nope 0 NONE ANY"], 0),
    (["sub 0 NONE ANY"], 0),
    (["www 0 NONE ANY"], YXDOMAIN),
    # RRset exists, value independent (2.4.1), and does not exist (2.4.3).
    (["www 0 ANY A"], 0),
    (["www 0 ANY MX"], NXRRSET),
    (["nope 0 ANY A"], NXRRSET),
    (["@ 0 ANY SOA"], 0),
    (["www 0 NONE MX"], 0),
    (["www 0 NONE A"], YXRRSET),
    # RRset exists, value dependent (2.4.2): the whole set, whatever its TTL and order.
    (["www 0 IN A 192.0.2.2", "www 0 IN A 192.0.2.1"], 0),
    (["www 0 IN A 192.0.2.1"], NXRRSET),
    (["www 0 IN A 192.0.2.1", "www 0 IN A 192.0.2.2", "www 0 IN A 192.0.2.3"], NXRRSET),
    (["www 0 IN MX 1 a."], NXRRSET),
    (["alias 0 IN CNAME WWW.example.org."], 0),
    (['www 0 IN TXT "text"', "www 0 ANY A", "nope 0 NONE ANY"], 0),
    # What is malformed or elsewhere.
    (["www 1 IN A 192.0.2.1"], FORMERR),
    (["www 0 ANY A 192.0.2.1"], FORMERR),
    (["www 0 NONE A 192.0.2.1"], FORMERR),
    (["www 0 CH A"], FORMERR),
    (["www 0 ANY AXFR"], FORMERR),
    (["www.example.com. 0 ANY ANY"], NOTZONE),
    (["example.com. 0 NONE ANY"], NOTZONE),
    (["xexample.org. 0 NONE ANY"], NOTZONE),
]


@pytest.mark.parametrize(
    ("lines", "rcode"), PREREQUISITES, ids=[f"{lines[-1]}-{code}" for lines, code in PREREQUISITES]
)
def test_prerequisites_hold_or_are_refused_with_their_code(lines: Lines, rcode: int) -> None:
    if not rcode:
        checked(lines)
        return
    with pytest.raises(UpdateRefused) as caught:
        checked(lines)
    assert RCODE_NAMES[caught.value.rcode] == RCODE_NAMES[rcode]


@pytest.mark.parametrize(
    ("line", "rcode"),
    [
        ("host.example.com. 300 IN A 192.0.2.1", NOTZONE),
        ("org. 0 ANY A", NOTZONE),
        ("www 300 IN ANY", FORMERR),
        ("www 300 IN AXFR", FORMERR),
        ("www 300 IN A", FORMERR),
        ("www 0 ANY A 192.0.2.1", FORMERR),
        ("www 0 ANY AXFR", FORMERR),
        ("www 1 NONE A 192.0.2.1", FORMERR),
        ("www 0 NONE ANY", FORMERR),
        ("www 0 CH A 192.0.2.1", FORMERR),
    ],
)
def test_updates_that_make_no_sense_are_refused_with_their_code(line: str, rcode: int) -> None:
    with pytest.raises(UpdateRefused) as caught:
        checked((), [line])
    assert RCODE_NAMES[caught.value.rcode] == RCODE_NAMES[rcode]


def test_what_deletes_or_asks_has_no_ttl() -> None:
    record = Record(names.from_text("www.example.org."), record_types.A, 255, 1, b"")
    zone = names.from_text("example.org.")
    with pytest.raises(UpdateRefused) as caught:
        update.check_prerequisites(Update(zone, [record], []), read)
    assert caught.value.rcode == FORMERR
    with pytest.raises(UpdateRefused) as caught:
        update.prescan(Update(zone, [], [record]))
    assert caught.value.rcode == FORMERR


@pytest.mark.parametrize(
    ("octets", "rcode"),
    [
        (message(kind="A"), FORMERR),
        (message()[:4] + b"\0\0" + message()[6:12], FORMERR),
        (message()[:-2] + b"\0\3", NOTAUTH),
    ],
    ids=["no SOA", "no zone", "class CHAOS"],
)
def test_a_zone_section_is_one_soa_question_of_class_in(octets: bytes, rcode: int) -> None:
    with pytest.raises(UpdateRefused) as caught:
        update.read_update(read_message(octets))
    assert caught.value.rcode == rcode


def after(*changes: str) -> dict[str, list[str]]:
    """What the touched names hold, as "ttl type data"."""
    changed = update.apply(checked((), changes), read)
    found: dict[str, list[str]] = {}
    for owner, rrs in changed.values():
        found[names.to_text(owner, final_dot=False)] = [
            f"{ttl} {record_types.type_to_text(rtype)} {records.rdata_to_text(rtype, rdata)}"
            for rtype, (ttl, rdatas) in sorted(rrs.items())
            for rdata in sorted(rdatas.values())
        ]
    return found


WWW = ["300 A 192.0.2.1", "300 A 192.0.2.2", '300 TXT "text"']
APEX = [
    f"300 SOA {SOA}", "300 NS ns1.example.org.", "300 NS ns2.example.org.",
    "300 MX 10 mail.example.org.",
]  # fmt: skip
APPLIED: list[tuple[str, Lines, str, Lines]] = [
    ("a new name", ["new 60 IN A 192.0.2.9"], "new", ["60 A 192.0.2.9"]),
    ("one more record, and the set has its TTL", ["www 60 IN A 192.0.2.3"], "www",
     ["60 A 192.0.2.1", "60 A 192.0.2.2", "60 A 192.0.2.3", '300 TXT "text"']),
    ("a record that is there", ["www 300 IN A 192.0.2.1"], "www", WWW),
    ("a CNAME beside other data is ignored", ["www 60 IN CNAME a."], "www", WWW),
    ("other data beside a CNAME is ignored", ["alias 60 IN A 192.0.2.1"], "alias",
     ["300 CNAME www.example.org."]),
    ("a CNAME takes the place of a CNAME", ["alias 60 IN CNAME new.example.org."], "alias",
     ["60 CNAME new.example.org."]),
    ("a CNAME after the rest was deleted", ["www 0 ANY ANY", "www 60 IN CNAME a."], "www",
     ["60 CNAME a."]),
    ("a set is deleted", ["www 0 ANY A"], "www", ['300 TXT "text"']),
    ("a set that is not there", ["www 0 ANY MX"], "www", WWW),
    ("all sets are deleted", ["www 0 ANY ANY"], "www", []),
    ("a record is deleted", ["www 0 NONE A 192.0.2.1"], "www", WWW[1:]),
    ("the last record of a set", ['www 0 NONE TXT "text"'], "www", WWW[:2]),
    ("a record that is not there", ["www 0 NONE A 192.0.2.9"], "www", WWW),
    ("deleted and added again", ["www 0 ANY A", "www 60 IN A 192.0.2.1"], "www",
     ["60 A 192.0.2.1", '300 TXT "text"']),
    ("all of the apex: SOA and NS stay", ["@ 0 ANY ANY"], "example.org", APEX[:3]),
    ("the NS set of the apex stays", ["@ 0 ANY NS"], "example.org", APEX),
    ("the SOA stays", ["@ 0 ANY SOA"], "example.org", APEX),
    ("the SOA stays as a record", [f"@ 0 NONE SOA {SOA}"], "example.org", APEX),
    ("a name server of two", ["@ 0 NONE NS ns1.example.org."], "example.org",
     [APEX[0], *APEX[2:]]),
    ("the last name server stays",
     ["@ 0 NONE NS ns1.example.org.", "@ 0 NONE NS ns2.example.org."], "example.org",
     [APEX[0], *APEX[2:]]),
    ("name servers below the apex go", ["one.sub 0 ANY NS"], "one.sub", []),
    ("the last name server below the apex goes",
     ["one.sub 0 NONE NS ns.one.sub.example.org."], "one.sub", []),
    ("a SOA of an older serial", ["@ 9 IN SOA a. b. 99 9 9 9 9"], "example.org", APEX),
    ("a SOA of the same serial", ["@ 9 IN SOA a. b. 100 9 9 9 9"], "example.org", APEX),
    ("a SOA of a newer serial", ["@ 9 IN SOA a. b. 101 9 9 9 9"], "example.org",
     ["9 SOA a. b. 101 9 9 9 9", *APEX[1:]]),
    ("a SOA where there is none", ["www 9 IN SOA a. b. 101 9 9 9 9"], "www", WWW),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "name", "wanted"),
    [case[1:] for case in APPLIED],
    ids=[case[0] for case in APPLIED],
)
def test_updates_are_applied_as_the_rfc_says(changes: Lines, name: str, wanted: Lines) -> None:
    owner = name if "." in name and name != "one.sub" else f"{name}.example.org"
    found = after(*changes)[owner]
    assert sorted(found) == sorted(wanted)
    assert holdings(ZONE) == HELD, "what was read must stay as it is"


def test_what_does_not_change_is_known() -> None:
    changed = update.apply(checked((), ["www 300 IN A 192.0.2.1", "alias 9 IN A 192.0.2.1"]), read)
    assert not any(update.differs(read(key), rrs) for key, (_, rrs) in changed.items())


# --- policy ----------------------------------------------------------------------------------


def may(rule: str, *changes: str) -> bool:
    asked = the_update((), changes)
    try:
        rules = update.rules_for(asked, [parse_rule(text) for text in rule.split()])
        update.check_allowed(asked, rules, read)
    except UpdateRefused as refused:
        return refused.rcode != REFUSED
    return True


@pytest.mark.parametrize(
    ("rule", "change", "allowed"),
    [
        ("example.org", "www 60 IN A 192.0.2.1", True),
        ("EXAMPLE.org.", "www 60 IN A 192.0.2.1", True),
        ("example.com", "www 60 IN A 192.0.2.1", False),
        ("sub.example.org", "one.sub 60 IN A 192.0.2.1", False),
        ("example.org:www.example.org", "WWW 60 IN A 192.0.2.1", True),
        ("example.org:www.example.org", "a.www 60 IN A 192.0.2.1", False),
        ("example.org:*.example.org", "a.www 60 IN A 192.0.2.1", True),
        ("example.org:*.example.org", "@ 60 IN A 192.0.2.1", False),
        ("example.org::TXT", "www 60 IN A 192.0.2.1", False),
        ("example.org::TXT", '_acme-challenge 60 IN TXT "x"', True),
        ("example.org::TXT", "www 0 ANY A", False),
        ("example.org::TXT", "www 0 ANY TXT", True),
        ("example.org::TXT", "www 0 ANY ANY", False),
        ("example.org::A,TXT", "www 0 ANY ANY", True),
        ("example.org::TXT example.org:www.example.org:A", "www 0 ANY ANY", True),
        ("example.org::TXT", "nope 0 ANY ANY", True),
        ("example.org:a.example.org", "nope 0 ANY ANY", False),
    ],
)
def test_a_key_may_change_what_its_rules_name(rule: str, change: str, allowed: bool) -> None:
    assert may(rule, change) is allowed


def test_a_key_without_rules_may_change_nothing() -> None:
    rules: list[UpdateRule] = []
    with pytest.raises(UpdateRefused):
        update.rules_for(the_update((), ["www 60 IN A 192.0.2.1"]), rules)
