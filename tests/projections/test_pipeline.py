from collections.abc import Callable

import dns.flags
import dns.message
import dns.rcode
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.adapters.memory.clock import ManualClock
from kudurru.domain.dns import lookup as lookup_module
from kudurru.domain.dns import names
from kudurru.domain.dns.images import RRset
from kudurru.domain.dns.record_types import A
from kudurru.domain.dns.zone_set import ZoneSet
from kudurru.domain.dns.zone_tree import Zone
from kudurru.domain.ports import Reply
from kudurru.projections.pipeline.ingress import Identity
from kudurru.projections.pipeline.pipeline import Pipeline
from tests.zone_files import zone_from_text

TEXT = """
home.example. 300 IN SOA ns.home.example. host.home.example. 1 3600 600 86400 300
home.example. 300 IN NS ns.home.example.
ns.home.example. 300 IN A 192.0.2.53
www.home.example. 300 IN A 192.0.2.1
mail.home.example. 300 IN MX 1 www.home.example.
*.wild.home.example. 300 IN CNAME www.home.example.
sub.home.example. 300 IN NS ns.sub.home.example.
ns.sub.home.example. 300 IN A 192.0.2.2
d.home.example. 300 IN DNAME home.example.
"""


def zone() -> Zone:
    return zone_from_text(TEXT, "home.example.")


def raise_again(error: Exception) -> None:
    raise error


def pipeline_of(
    *,
    zones: ZoneSet | None = None,
    synced: bool = True,
    lameduck: bool = False,
    on_exception: Callable[[Exception], None] = raise_again,
) -> Pipeline:
    return Pipeline(
        ZoneSet([zone()]) if zones is None else zones,
        lambda: synced,
        clock=ManualClock(),
        identity=Identity(version="kudurru 1.2", hostname="node-1"),
        is_lameduck=lambda: lameduck,
        on_exception=on_exception,
    )


def ask(
    pipeline: Pipeline, name: str, rtype: str = "A", rdclass: str = "IN", **options
) -> tuple[dns.message.Message, bool]:
    query = dns.message.make_query(name, rtype, rdclass, **options)
    reply = pipeline.handle(query.to_wire(), "192.0.2.99", "udp")
    assert reply is not None
    return dns.message.from_wire(reply.wire), reply.memo


def test_an_answer_may_be_remembered_and_so_may_a_no() -> None:
    for name, rcode in (("www", "NOERROR"), ("none", "NXDOMAIN"), ("x.sub", "NOERROR")):
        reply, memo = ask(pipeline_of(), f"{name}.home.example.")
        assert (dns.rcode.to_text(reply.rcode()), memo) == (rcode, True)


def test_a_name_outside_all_zones_is_refused() -> None:
    reply, memo = ask(pipeline_of(), "other.example.")
    assert (reply.rcode(), memo) == (dns.rcode.REFUSED, True)
    assert not reply.flags & dns.flags.AA


def test_records_that_expire_are_not_remembered() -> None:
    served = zone()
    soon = ManualClock().now_us() // 1_000_000 + 5
    served.replace(names.from_text("t.home.example."), [RRset(A, 300, (bytes(4),), soon)])
    reply, memo = ask(pipeline_of(zones=ZoneSet([served])), "t.home.example.")
    assert (reply.answer[0].ttl, memo) == (5, False)


def test_before_there_is_data_every_answer_is_servfail() -> None:
    for name in ("www.home.example.", "other.", "health.kudurru.internal."):
        reply, memo = ask(pipeline_of(synced=False), name)
        assert (reply.rcode(), memo) == (dns.rcode.SERVFAIL, False)


def test_the_health_name_answers_with_loopback_addresses_and_is_never_remembered() -> None:
    pipeline = pipeline_of(zones=ZoneSet())
    for rtype, text in (("A", "127.0.0.1"), ("AAAA", "::1"), ("ANY", "127.0.0.1")):
        reply, memo = ask(pipeline, "Health.Kudurru.Internal.", rtype)
        assert [(rrset.ttl, str(rrset[0])) for rrset in reply.answer] == [(0, text)]
        assert not memo
    reply, memo = ask(pipeline, "health.kudurru.internal.", "TXT")
    assert (reply.rcode(), reply.answer, memo) == (dns.rcode.NOERROR, [], False)


def test_in_lameduck_the_health_name_fails_and_all_others_are_answered() -> None:
    pipeline = pipeline_of(lameduck=True)
    assert ask(pipeline, "health.kudurru.internal.")[0].rcode() == dns.rcode.SERVFAIL
    assert ask(pipeline, "www.home.example.")[0].rcode() == dns.rcode.NOERROR


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("version.bind.", "kudurru 1.2"),
        ("Hostname.Bind.", "node-1"),
        ("id.server.", "node-1"),
    ],
)
def test_the_server_names_itself_in_class_chaos(name: str, text: str) -> None:
    reply, _ = ask(pipeline_of(), name, "TXT", "CH")
    assert reply.answer[0][0].strings == (text.encode(),)
    assert ask(pipeline_of(), name, "A", "CH")[0].answer == []


@pytest.mark.parametrize(
    ("name", "rtype", "rdclass"),
    [
        ("authors.bind.", "TXT", "CH"),
        ("home.example.", "SOA", "HS"),
        ("elsewhere.example.", "SOA", "ANY"),
        ("home.example.", "AXFR", "IN"),
        ("home.example.", "IXFR", "IN"),
    ],
)
def test_what_is_not_given_out_is_refused(name: str, rtype: str, rdclass: str) -> None:
    query = dns.message.make_query(name, rtype, rdclass)
    for proto in ("udp", "tcp"):
        reply = pipeline_of().handle(query.to_wire(), "192.0.2.99", proto)
        assert reply is not None
        assert dns.message.from_wire(reply.wire).rcode() == dns.rcode.REFUSED


def test_a_server_without_a_name_says_nothing_of_itself() -> None:
    pipeline = Pipeline(
        ZoneSet(),
        lambda: True,
        clock=ManualClock(),
        identity=Identity(),
        is_lameduck=lambda: False,
        on_exception=raise_again,
    )
    assert ask(pipeline, "version.bind.", "TXT", "CH")[0].rcode() == dns.rcode.REFUSED


def test_a_newer_edns_version_is_badvers_with_ours() -> None:
    reply, memo = ask(pipeline_of(), "www.home.example.", use_edns=1)
    assert (reply.rcode(), reply.edns, reply.answer, memo) == (dns.rcode.BADVERS, 0, [], False)
    assert len(reply.question) == 1


def test_an_exception_costs_the_query_and_nothing_else() -> None:
    seen: list[Exception] = []
    served = zone()
    pipeline = pipeline_of(zones=ZoneSet([served]), on_exception=seen.append)
    served.nodes[names.from_text("www.home.example.")] = b"\0\1"  # an image that is none
    reply, memo = ask(pipeline, "www.home.example.")
    assert (reply.rcode(), memo) == (dns.rcode.SERVFAIL, False)
    assert len(seen) == 1
    assert pipeline.statistics().unhandled_exceptions == 1
    assert ask(pipeline, "ns.home.example.")[0].rcode() == dns.rcode.NOERROR


def test_everything_is_counted_and_drops_under_none() -> None:
    pipeline = pipeline_of()
    ask(pipeline, "www.home.example.")
    ask(pipeline, "none.home.example.")
    ask(pipeline, "other.")
    assert pipeline.handle(b"\0", "192.0.2.99", "tcp") is None
    assert pipeline.handle(bytes(12), "192.0.2.99", "udp") is not None
    found = pipeline.statistics()
    assert found.requests == {"udp": 4, "tcp": 1}
    assert found.responses == {"NOERROR": 1, "NXDOMAIN": 1, "REFUSED": 1, "none": 1, "FORMERR": 1}
    assert found.dropped == {"malformed": 1, "policy": 0}
    assert found.unhandled_exceptions == 0


def test_every_code_that_look_up_gives_has_a_name() -> None:
    codes = [
        value
        for name, value in vars(lookup_module).items()
        if name in dns.rcode.Rcode.__members__ or name == "BADVERS"
    ]
    assert set(codes) == set(lookup_module.RCODE_NAMES)
    for code, name in lookup_module.RCODE_NAMES.items():
        assert dns.rcode.to_text(code) == name


# Nothing that comes in breaks it

PIPELINE = pipeline_of()

QUESTIONS = st.builds(
    lambda name, rtype, edns: dns.message.make_query(
        name + ".home.example.", rtype, use_edns=0 if edns else False
    ).to_wire(),
    st.sampled_from(["www", "mail", "a.wild", "x.sub", "ns.sub", "a.b.d", "d", "none"]),
    st.integers(0, 300),
    st.booleans(),
)


@st.composite
def mutated(draw) -> bytes:
    octets = bytearray(draw(QUESTIONS))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(octets) - 1))
        match draw(st.sampled_from(["set", "cut", "insert"])):
            case "set":
                octets[at] = draw(st.integers(0, 255))
            case "cut":
                del octets[at:]
            case "insert":
                octets[at:at] = draw(st.binary(max_size=8))
        if not octets:
            break
    return bytes(octets)


@given(mutated() | st.binary(max_size=60), st.sampled_from(["udp", "tcp"]))
def test_whatever_comes_in_the_reply_is_a_message_or_silence(octets: bytes, proto: str) -> None:
    reply = PIPELINE.handle(octets, "192.0.2.99", proto)
    if reply is None:
        assert len(octets) < 12 or octets[2] & 0x80
        return
    assert isinstance(reply, Reply)
    message = dns.message.from_wire(reply.wire)
    assert message.id == int.from_bytes(octets[:2], "big")
    assert message.flags & dns.flags.QR
    assert len(reply.wire) <= (1232 if proto == "udp" else 65_535)
