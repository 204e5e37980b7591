"""Asking a pipeline as a client would, and comparing answers with the rows of a case file."""

from typing import Any

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from kudurru.adapters.memory.clock import ManualClock
from kudurru.domain.dns.cookies import Cookies
from kudurru.domain.dns.messages import COOKIE, EXTENDED_ERROR, KEEPALIVE, NSID
from kudurru.domain.dns.zone_set import ZoneSet
from kudurru.domain.dns.zone_tree import Zone
from kudurru.projections.pipeline.ingress import Identity
from kudurru.projections.pipeline.pipeline import Pipeline

SIGNATURES = ("RRSIG", "NSEC", "NSEC3")


def pipeline_of(*zones: Zone, node: str = "node") -> Pipeline:
    def raise_again(error: Exception) -> None:
        raise error

    return Pipeline(
        ZoneSet(zones),
        lambda: True,
        clock=ManualClock(),
        identity=Identity(version="test", hostname=node),
        is_lameduck=lambda: False,
        on_exception=raise_again,
        cookies=Cookies(bytes(32)),
    )


def ask(
    pipeline: Pipeline, name: str, rtype: str, *, tcp: bool = False, bufsize: int | None = None
):
    query = dns.message.make_query(name, rtype, use_edns=bufsize is not None, payload=bufsize or 0)
    query.flags = 0
    reply = pipeline.handle(query.to_wire(), "192.0.2.99", "tcp" if tcp else "udp")
    assert reply is not None, "no answer"
    answer = dns.message.from_wire(reply.wire, one_rr_per_rrset=True)  # shows records twice
    assert query.is_response(answer)
    return answer


def faults(expected: dict[str, Any], answer: dns.message.Message) -> list[str]:
    """What differs from a row's `expect`. Compared are the code, AA, the answer as a set, the
    authority as a set when the answer is empty, and additional records that must be there."""
    found = []
    rcode = dns.rcode.to_text(answer.rcode())
    allowed = expected.get("rcode_in", [expected.get("rcode", rcode)])
    if rcode not in allowed:
        found.append(f"rcode {rcode}, want {allowed}")
    if expected.get("aa") not in (None, bool(answer.flags & dns.flags.AA)):
        found.append(f"aa is not {expected['aa']}")
    got = lines(answer.answer)
    if len(got) != len(set(got)):
        found.append("a record twice")
    if len(got) > expected.get("answer_max", 100) or len(got) < expected.get("min_answer", 0):
        found.append(f"{len(got)} answer records")
    if "answer_count" in expected and len(got) != expected["answer_count"]:
        found.append(f"{len(got)} answer records, want {expected['answer_count']}")
    if "answer" in expected:
        found += differences("answer", expected["answer"], got)
        if not expected["answer"] and expected.get("authority") is not None:
            found += differences("authority", expected["authority"], lines(answer.authority))
    for section in ("authority", "additional"):
        must = {normal(line) for line in expected.get(f"{section}_must", ())}
        missing = must - set(lines(getattr(answer, section)))
        if missing:
            found.append(f"{section} lacks {sorted(missing)}")
    return found


def packet_faults(expected: dict[str, Any], packet: bytes, reply: bytes | None) -> list[str]:
    """What differs from a row's `expect` that is about headers, EDNS and silence."""
    if reply is None:
        return [] if "no_reply" in expected or "no_reply_or" in expected else ["no answer"]
    answer = dns.message.from_wire(reply, question_only="no_reply_or" in expected)
    rcode = dns.rcode.to_text(answer.rcode())
    found = []
    if "no_reply" in expected:
        found.append("answered")
    allowed = expected.get("no_reply_or", expected.get("rcode_in", [expected.get("rcode", rcode)]))
    if rcode not in allowed:
        found.append(f"rcode {rcode}, want {allowed}")
    if expected.get("aa") not in (None, bool(answer.flags & dns.flags.AA)):
        found.append(f"aa is not {expected['aa']}")
    if "flags_clear" in expected and answer.flags & dns.flags.from_text(
        " ".join(expected["flags_clear"])
    ):
        found.append(f"flags {dns.flags.to_text(answer.flags)}")
    for section in ("answer", "authority"):
        types = [dns.rdatatype.to_text(rrset.rdtype) for rrset in getattr(answer, section)]
        if f"{section}_types" in expected and types != expected[f"{section}_types"]:
            found.append(f"{section} has {types}")
    if "opt" in expected:
        version = None if answer.edns < 0 else {"version": answer.edns}
        want = expected["opt"] and {"version": expected["opt"]["version"]}
        if version != want:
            found.append(f"EDNS {version}, want {want}")
        elif want and answer.ednsflags & 0x7FFF:
            found.append("EDNS flags that mean nothing")
    options = {int(one.otype): one.to_wire() or b"" for one in answer.options}
    unwanted = {*options} - {NSID, COOKIE, KEEPALIVE, EXTENDED_ERROR}
    unwanted |= {*options} & {*(expected.get("opt") or {}).get("options_absent", ())}
    if unwanted:
        found.append(f"options {unwanted}")
    if "cookie" in expected and not 16 <= len(options.get(COOKIE, b"")) <= 40:
        found.append("no cookie")
    if expected.get("question_exact") and reply[12:][: len(packet) - 12] != packet[12:]:
        found.append("the question is not as it came")
    if len(reply) > expected.get("max_size", 65535):
        found.append(f"{len(reply)} octets")
    return found


def differences(section: str, expected: list[str], got: list[tuple[str, ...]]) -> list[str]:
    want = {normal(line) for line in expected if line.split()[3] not in SIGNATURES}
    have = set(got)
    if want == have:
        return []
    return [f"{section}: missing {sorted(want - have)}, too much {sorted(have - want)}"]


def lines(section: list[dns.rrset.RRset]) -> list[tuple[str, ...]]:
    return [
        (str(rrset.name).lower(), str(rrset.ttl), rtype, rdata.to_digestable().hex())
        for rrset in section
        if (rtype := dns.rdatatype.to_text(rrset.rdtype)) not in SIGNATURES
        for rdata in rrset
    ]


def normal(line: str) -> tuple[str, ...]:
    owner, ttl, _, rtype, text = line.split(None, 4)
    rdata = dns.rdata.from_text("IN", rtype, text)
    if isinstance(rdata, dns.rdata.GenericRdata):
        rdata = dns.rdata.from_wire("IN", rtype, rdata.to_wire(), 0, len(rdata.to_wire()))
    return owner.lower(), ttl, rtype, rdata.to_digestable().hex()
