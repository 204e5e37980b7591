"""What a server answers while it replays: right, or "ask another server"."""

import dns.message
import dns.rcode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kudurru.domain.dns.cookies import Cookies
from kudurru.domain.errors import KudurruError
from kudurru.domain.events import ChangeSet
from kudurru.entrypoints.answering import pipeline_of
from kudurru.entrypoints.early import EarlyHandler
from kudurru.entrypoints.wiring import Node
from kudurru.projections import early_zones
from kudurru.projections.pipeline.pipeline import Pipeline
from tests.histories import histories
from tests.nodes import TESTER, a_change, memory_node
from tests.objects import ZONE_KEY, drop, endpoint, put, record_set, www, zone

few = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))

COOKIES = Cookies(bytes(16))
NAMES = [
    *(f"{owner}{apex}" for apex in ("a.test.", "b.test.")
      for owner in ("", "www.", "mail.", "other.apps.", "x.y.", "y.", "nope.")),
    "elsewhere.test.",
]  # fmt: skip


def early_handler(node: Node) -> EarlyHandler:
    unsynced = pipeline_of(node, is_synced=lambda: False)
    handler = EarlyHandler(unsynced)
    handler.begin(node.log, node.log.head().seq, node.clock, COOKIES)
    return handler


def asked(handler: EarlyHandler | Pipeline, name: str, rtype: str = "A") -> dns.message.Message:
    query = dns.message.make_query(name, rtype)
    query.id = 0
    reply = handler.handle(query.to_wire(), "192.0.2.1", "udp")
    assert reply is not None
    return dns.message.from_wire(reply.wire)


def rcode(message: dns.message.Message) -> str:
    return dns.rcode.to_text(message.rcode())


@few
@given(histories(), st.lists(st.sampled_from(NAMES), min_size=3, max_size=6))
def test_an_early_answer_is_the_answer_that_comes_later(node: Node, names: list[str]) -> None:
    handler, later = early_handler(node), pipeline_of(node)
    for name in names:
        for rtype in ("A", "TXT", "SOA"):
            wanted, found = asked(later, name, rtype), asked(handler, name, rtype)
            if rcode(wanted) == "REFUSED":
                assert rcode(found) == "SERVFAIL"
            else:
                assert found.to_text() == wanted.to_text()


def served() -> Node:
    node = memory_node()
    node.commit(a_change(put(zone()), put(www())))
    return node


def test_what_is_forwarded_waits_and_the_zone_above_tells_nothing_of_it() -> None:
    node = served()
    inner = (
        ("host.f.example.org", "A", "192.0.2.2"),
        ("alias.example.org", "CNAME", "host.f.example.org"),
        ("cut.example.org", "NS", "host.f.example.org"),
    )
    for i, one in enumerate(inner):
        node.commit(a_change(put(record_set(f"r{i}", endpoint(*one)))))
    forward = {"type": "Forward", "forward": {"upstreams": ["192.0.2.53"]}}
    node.commit(a_change(put(zone("f.example.org", **forward))))
    assert rcode(asked(early_handler(node), "host.f.example.org")) == "SERVFAIL"
    for name in ("alias.example.org", "x.cut.example.org"):
        found = asked(early_handler(node), name)
        assert found.to_text() == asked(pipeline_of(node), name).to_text()
        assert rcode(found) == "NOERROR"
        assert "192.0.2.2" not in found.to_text()


def test_the_end_of_early_answers_is_the_handler_itself() -> None:
    node = served()
    later = pipeline_of(node)
    handler = EarlyHandler(later)
    assert handler.handle == later.handle
    handler.begin(node.log, node.log.head().seq, node.clock, COOKIES)
    assert rcode(asked(handler, "www.example.org")) == "NOERROR"
    assert rcode(asked(handler, "nope.example.org")) == "NXDOMAIN"
    handler.end()
    assert handler.handle == later.handle
    counted = {sample.labels[1]: sample.value for sample in handler.samples()}
    assert counted == {"NOERROR": 1, "NXDOMAIN": 1}


def test_nothing_is_remembered_of_an_early_answer() -> None:
    node = served()
    packet = dns.message.make_query("www.example.org", "A").to_wire()
    reply = early_handler(node).handle(packet, "192.0.2.1", "udp")
    assert reply is not None
    assert not reply.memo


def test_balancers_wait_until_all_is_there() -> None:
    assert rcode(asked(early_handler(served()), "health.kudurru.internal")) == "SERVFAIL"


def test_a_transfer_waits_too() -> None:
    assert rcode(asked(early_handler(served()), "example.org", "AXFR")) == "SERVFAIL"


def test_a_zone_that_takes_long_to_read_waits_for_the_replay() -> None:
    node = served()
    for i in range(5):
        node.commit(a_change(put(www(f"192.0.2.{i}"))))
    node.commit(a_change(put(zone("small.test"))))
    name = endpoint("www.small.test", "A", "192.0.2.1")
    node.commit(a_change(put(record_set("small", name, zone="small.test"))))
    before = early_zones.EVENTS_MAX
    early_zones.EVENTS_MAX = 6
    try:
        handler = early_handler(node)
        for _ in range(2):
            assert rcode(asked(handler, "www.example.org")) == "SERVFAIL"
            assert rcode(asked(handler, "www.small.test")) == "NOERROR"
    finally:
        early_zones.EVENTS_MAX = before


def test_only_so_much_is_read_early() -> None:
    node = served()
    node.commit(a_change(put(zone("other.test"))))
    before = early_zones.EVENTS_OF_ALL_MAX
    early_zones.EVENTS_OF_ALL_MAX = 1
    try:
        handler = early_handler(node)
        assert rcode(asked(handler, "www.example.org")) == "NOERROR"
        assert rcode(asked(handler, "other.test", "SOA")) == "SERVFAIL"
        assert rcode(asked(handler, "www.example.org")) == "NOERROR"
    finally:
        early_zones.EVENTS_OF_ALL_MAX = before


def test_a_zone_that_is_gone_is_not_answered_for() -> None:
    node = served()
    node.commit(a_change(drop(ZONE_KEY)))
    assert rcode(asked(early_handler(node), "www.example.org")) == "SERVFAIL"


def test_a_zone_without_a_serial_waits_for_it() -> None:
    node = memory_node()
    decided = node.decide([a_change(put(zone()))], node.clock.now_us())[0]
    assert not isinstance(decided, KudurruError)
    node.take_in(node.log.append([ChangeSet(tuple(decided.events), TESTER)], 0))
    assert rcode(asked(early_handler(node), "example.org", "SOA")) == "SERVFAIL"
