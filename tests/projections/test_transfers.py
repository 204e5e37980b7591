"""Transfers out of the views: whole versions, whoever asks and whatever happens meanwhile."""

import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import dns.message
import dns.rcode
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kudurru.adapters.memory.clock import ManualClock
from kudurru.domain.dns import names, tsig
from kudurru.domain.dns.tsig import ALGORITHMS, TsigKey
from kudurru.domain.errors import NotFound
from kudurru.domain.events import ChangeSet
from kudurru.domain.ports import Reply
from kudurru.entrypoints.answering import pipeline_of
from kudurru.entrypoints.wiring import Node
from kudurru.projections import zone_history
from kudurru.projections.pipeline import transfers
from kudurru.projections.pipeline.pipeline import Pipeline
from kudurru.projections.pipeline.signatures import Signatures
from kudurru.projections.pipeline.transfers import Transfers
from tests.bench.answers import build_zone
from tests.bench.transfers import pipeline_of as bench_pipeline_of
from tests.nodes import a_change, memory_node, rebuilt
from tests.objects import drop, endpoint, manifest, put, record_set, zone
from tests.transfers import (
    HOME,
    Version,
    apply,
    fetch,
    full,
    read,
    serial_of,
    transfer_query,
    wires,
)

SECOND = 1_000_000
ZONE = "example.org."
KEYS = {
    names.from_text(name): TsigKey(names.from_text(name), ALGORITHMS["hmac-sha256"], secret)
    for name, secret in (("k1", bytes(32)), ("k2", bytes(range(32))))
}
OPEN = {"allow": ["127.0.0.0/8"]}


def served(node: Node) -> Pipeline:
    signatures = Signatures(KEYS.get)
    return pipeline_of(node, signatures=signatures, transfers=Transfers(node.zones))


@pytest.fixture
def node() -> Node:
    node = memory_node(ManualClock(1_760_000_000 * SECOND))
    node.commit(a_change(put(zone(nameservers=["ns.example.org."], transfer=OPEN))))
    return node


def do(node: Node, *commands: Any) -> None:
    assert isinstance(node.clock, ManualClock)
    node.clock.advance(SECOND)
    node.commit(a_change(*commands))


def do_unstamped(node: Node, *commands: Any) -> None:
    """As a server does between a change and its stamp."""
    (decided,) = node.decide([a_change(*commands)], node.clock.now_us())
    node.take_in(node.log.append([decided_set(decided)], node.clock.now_us()))


def decided_set(decided: Any) -> Any:
    return ChangeSet(tuple(decided.events), decided.change.who)


def host(number: int, *targets: str) -> Any:
    name = f"h{number}.{ZONE}"
    texts = targets or (f'"{number} {"x" * 200}"',)
    return put(record_set(f"h{number}", endpoint(name, "TXT", *texts)))


def hosts(count: int) -> list[Any]:
    return [host(i) for i in range(count)]


def version(pipeline: Pipeline) -> Version:
    return full(fetch(pipeline, ZONE))


# What is sent


def test_a_zone_is_sent_whole_between_two_soa_records(node: Node) -> None:
    do(node, *hosts(300))
    packet = transfer_query(ZONE).to_wire()
    messages = list(wires(served(node), packet))
    records = [record for wire in messages for record in read(wire)]
    assert all(wire[2] & 0b100 for wire in messages)  # AA
    assert len(full(records)) == 302  # with SOA and NS
    assert len(messages) > 4
    assert max(map(len, messages)) < 17_000


def test_names_are_compressed(node: Node) -> None:
    targets = ("10 mail.example.org.", "20 mail.example.net.")
    do(
        node,
        *(put(record_set(f"m{i}", endpoint(f"m{i}.{ZONE}", "MX", *targets))) for i in range(50)),
    )
    (message,) = wires(served(node), transfer_query(ZONE).to_wire())
    assert message.count(b"\x07example\x03org") == 1
    assert len(version(served(node))) == 102


def test_rrsets_that_do_not_fit_into_one_message_go_into_several(node: Node) -> None:
    texts = [f'"{i:03} {"y" * 250}"' for i in range(200)]
    sets = [
        put(record_set(f"s{i}", endpoint(f"big.{ZONE}", "TXT", *texts[i::4], setIdentifier=str(i))))
        for i in range(4)
    ]
    do(node, *sets)
    assert len(version(served(node))) == 202


def test_owners_keep_their_letter_case(node: Node) -> None:
    do(node, put(record_set("a", endpoint(f"WwW.{ZONE}", "A", "192.0.2.1"))))
    do(node, put(record_set("b", endpoint("up.EXAMPLE.org.", "A", "192.0.2.1"))))
    (message,) = wires(served(node), transfer_query(ZONE).to_wire())
    owners = {record.owner for record in read(message)}
    assert {"WwW.example.org.", "up.EXAMPLE.org."} <= owners


def test_types_that_nobody_knows_are_sent_as_they_are(node: Node) -> None:
    do(node, put(record_set("a", endpoint(f"u.{ZONE}", "TYPE65280", r"\# 4 deadbeef"))))
    assert any(record.rdata == r"\# 4 deadbeef" for record in version(served(node)))


def test_who_is_up_to_date_gets_the_soa_alone(node: Node) -> None:
    pipeline = served(node)
    serial = serial_of(version(pipeline))
    for theirs in (serial, serial + 1, (serial + 2**31 - 1) % 2**32):
        (record,) = fetch(pipeline, ZONE, theirs)
        assert (record.rtype, record.serial) == ("SOA", serial)


@pytest.mark.parametrize("serial", [1, 1_759_999_999, (1_760_000_001 + 2**31) % 2**32])
def test_who_has_a_version_that_nobody_remembers_gets_the_zone(node: Node, serial: int) -> None:
    do(node, *hosts(3))
    pipeline = served(node)
    assert full(fetch(pipeline, ZONE, serial)) == version(pipeline)


@pytest.mark.slow
def test_one_changed_record_of_a_large_zone_is_sent_in_less_than_a_kilobyte(node: Node) -> None:
    texts = [f'"{i}"' for i in range(200)]
    big = [
        put(record_set(f"g{i}", *(endpoint(f"g{i}-{j}.{ZONE}", "TXT", *texts) for j in range(25))))
        for i in range(10)
    ]
    do(node, *big)
    before = version(served(node))
    assert len(before) > 50_000
    do(node, put(record_set("one", endpoint(f"g1-1.{ZONE}", "A", "192.0.2.1"))))
    packet = transfer_query(ZONE, serial_of(before)).to_wire()
    messages = list(wires(served(node), packet))
    assert sum(map(len, messages)) < 1_000
    records = [record for wire in messages for record in read(wire)]
    assert apply(before, records) == version(served(node))


def test_a_step_that_is_larger_than_the_zone_is_sent_as_the_zone(node: Node) -> None:
    do(node, *hosts(20))
    before = serial_of(version(served(node)))
    do(node, *(drop(command.manifest.key) for command in hosts(20)))
    records = fetch(served(node), ZONE, before)
    assert records[1].rtype != "SOA"


def test_an_ixfr_over_udp_fits_or_sends_the_client_to_tcp(node: Node) -> None:
    do(node, *hosts(30))
    pipeline = served(node)
    before = version(pipeline)
    do(node, host(1, '"new"'))
    after = version(pipeline)
    assert apply(before, fetch(pipeline, ZONE, serial_of(before), proto="udp")) == after
    do(node, *(host(i, f'"{"z" * 200}{i}"') for i in range(20)))
    (record,) = fetch(pipeline, ZONE, serial_of(before), proto="udp")
    assert record.serial == serial_of(version(pipeline))
    assert pipeline.handle(transfer_query(ZONE, serial_of(before)).to_wire(), HOME, "udp")


@pytest.mark.slow
def test_a_large_zone_is_sent_in_the_memory_of_a_few_messages() -> None:
    names_count = 200_000
    zone = build_zone(names_count)
    zone.stamp(1)
    pipeline = bench_pipeline_of(zone)
    tracemalloc.start()
    count = sum(
        int.from_bytes(wire[6:8], "big")
        for wire in wires(pipeline, transfer_query("home.example.").to_wire())
    )
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count > names_count
    # Eight octets for each owner that is still to be sent, and a message.
    assert peak < names_count * 8 + (1 << 20)


# Versions


def test_a_transfer_carries_the_stamped_version_while_newer_content_is_served(node: Node) -> None:
    do(node, *hosts(3))
    pipeline = served(node)
    before = version(pipeline)
    do_unstamped(node, host(1, '"newer"'), drop(host(2).manifest.key), host(7))
    assert version(pipeline) == before
    assert fetch(pipeline, ZONE, serial_of(before))[0].serial == serial_of(before)


def begun(pipeline: Pipeline, count: int = 1) -> tuple[list[bytes], Iterator[bytes]]:
    stream = wires(pipeline, transfer_query(ZONE).to_wire())
    return list(islice(stream, count)), stream


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_a_transfer_is_of_one_version_whatever_happens_while_it_is_sent(
    data: st.DataObject,
) -> None:
    node = memory_node(ManualClock(1_760_000_000 * SECOND))
    node.commit(a_change(put(zone(nameservers=["ns.example.org."], transfer=OPEN)), *hosts(200)))
    pipeline = served(node)
    before = version(pipeline)
    if data.draw(st.booleans()):
        do_unstamped(node, host(3, '"before"'), drop(host(4).manifest.key), host(500))
    messages, stream = begun(pipeline, data.draw(st.integers(1, 3)))
    for number in data.draw(st.lists(st.integers(0, 220), max_size=6)):
        what = data.draw(st.sampled_from(("change", "delete", "unstamped", "soa", "drop zone")))
        key = host(number).manifest.key
        match what:
            case "change":
                do(node, host(number, '"changed"'))
            case "delete" if node.objects.find(key):
                do(node, drop(key))
            case "unstamped":
                do_unstamped(node, host(number, '"unstamped"'))
            case "soa" if node.zones.state("example.org"):
                do(node, put(zone(nameservers=["n2.example.org."], defaultTTL=60, transfer=OPEN)))
            case "drop zone" if node.zones.state("example.org"):
                do(node, drop(zone().key))
        messages += islice(stream, 1)
    messages += stream
    assert full(record for wire in messages for record in read(wire)) == before


def test_a_transfer_that_is_broken_off_leaves_nothing_behind(node: Node) -> None:
    do(node, *hosts(200))
    pipeline = served(node)
    _, stream = begun(pipeline)
    state = node.zones.find(ZONE)
    assert state is not None
    assert state.zone is not None
    assert len(state.zone.versions_read) == 1
    del stream
    assert not state.zone.versions_read


OWNERS = ("", "a.", "b.", "C.", "x.y.", "*.w.")
RECORDS = (
    ("A", ("192.0.2.1",)), ("A", ("192.0.2.1", "192.0.2.2")), ("A", ("192.0.2.3",)),
    ("MX", ("10 a.example.org.", "20 Mail.example.net.")), ("TXT", ('"one"', '"two"')),
    ("TYPE65280", (r"\# 2 0102",)), ("SRV", ("1 2 3 b.example.org.",)),
)  # fmt: skip


@st.composite
def steps(draw: st.DrawFn) -> Any:
    number = draw(st.integers(0, 5))
    if draw(st.integers(0, 9)) == 0:
        spec = {
            "nameservers": [f"ns{number}.example.org."],
            "defaultTTL": draw(st.sampled_from((300, 60))),
            "soa": {"refresh": 3600 + number},
            "transfer": OPEN,
        }
        return put(zone(**spec))
    name = f"s{number}"
    if draw(st.integers(0, 3)) == 0:
        return drop(record_set(name).key)
    endpoints = [
        endpoint(f"{draw(st.sampled_from(OWNERS))}{ZONE}", rtype, *targets, recordTTL=ttl)
        for (rtype, targets), ttl in draw(
            st.lists(
                st.tuples(st.sampled_from(RECORDS), st.sampled_from((60, 300))),
                max_size=3,
                unique_by=lambda one: one[0][0],
            )
        )
    ]
    return put(record_set(name, *endpoints))


def happened(node: Node, history: list[list[Any]]) -> dict[int, Version]:
    """Every version that the zone had, by serial."""
    pipeline = served(node)
    versions = {}
    for commands in history:
        with suppress(NotFound):  # what is refused is no part of the history
            do(node, *commands)
        found = version(pipeline)
        versions[serial_of(found)] = found
    return versions


HISTORIES = st.lists(st.lists(steps(), min_size=1, max_size=3), min_size=1, max_size=12)
START_S = st.sampled_from((1_760_000_000, 4_294_967_290))  # the second wraps


@settings(deadline=None)
@given(HISTORIES, START_S, st.sampled_from(("tcp", "udp")))
def test_an_ixfr_from_any_version_leads_to_the_newest(
    history: list[list[Any]], start_s: int, proto: str
) -> None:
    node = memory_node(ManualClock(start_s * SECOND))
    node.commit(a_change(put(zone(nameservers=["ns.example.org."], transfer=OPEN))))
    versions = happened(node, history)
    newest = version(served(node))
    for other in (node, rebuilt(node)):
        pipeline = served(other)
        for serial, old in versions.items():
            found = fetch(pipeline, ZONE, serial, proto=proto)
            if proto == "udp" and len(found) == 1:
                assert found[0].serial == serial_of(newest)
            else:
                assert apply(old, found) == newest


@given(HISTORIES, st.integers(1, 4), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_a_history_that_forgets_gives_the_zone_instead(
    history: list[list[Any]], versions_max: int, changes_max: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zone_history, "VERSIONS_MAX", versions_max)
        patch.setattr(zone_history, "CHANGES_MAX", changes_max)
        node = memory_node(ManualClock(1_760_000_000 * SECOND))
        node.commit(a_change(put(zone(nameservers=["ns.example.org."], transfer=OPEN))))
        versions = happened(node, history)
        newest = version(served(node))
        for serial, old in versions.items():
            assert apply(old, fetch(served(node), ZONE, serial)) == newest


# Who gets it


def rcode(
    node: Node, query: dns.message.Message, *, client: str = HOME, proto: str = "tcp", key: str = ""
) -> str:
    packet = query.to_wire()
    if key:
        packet, _ = tsig.sign_request(
            packet, KEYS[names.from_text(key)], node.clock.now_us() // SECOND
        )
    reply = served(node).handle(packet, client, proto)
    assert isinstance(reply, Reply)
    return dns.rcode.to_text(reply.wire[3] & 15)


@pytest.mark.parametrize(
    ("allow", "client", "key", "answer"),
    [
        (None, HOME, "", "REFUSED"),
        ([], HOME, "", "REFUSED"),
        ([], HOME, "k1", "REFUSED"),
        (["127.0.0.1"], HOME, "", "NOERROR"),
        (["127.0.0.0/8"], HOME, "k2", "NOERROR"),
        (["192.0.2.0/24", "127.0.0.1/32"], HOME, "", "NOERROR"),
        (["192.0.2.0/24"], HOME, "", "REFUSED"),
        (["0.0.0.0/0"], "::1", "", "REFUSED"),
        (["::/0"], "2001:db8::1", "", "NOERROR"),
        (["2001:db8::/32"], "2001:db9::1", "", "REFUSED"),
        (["127.0.0.0/8"], "::ffff:127.0.0.1", "", "NOERROR"),
        (["fe80::/10"], "fe80::1%eth0", "", "NOERROR"),
        (["k1"], HOME, "", "REFUSED"),
        (["k1"], HOME, "k1", "NOERROR"),
        (["k1"], HOME, "k2", "REFUSED"),
        (["k2", "k1"], HOME, "k1", "NOERROR"),
        (["k1", "127.0.0.0/8"], HOME, "k1", "NOERROR"),
        (["k1", "127.0.0.0/8"], HOME, "", "REFUSED"),
        (["k1", "192.0.2.0/24"], HOME, "k1", "REFUSED"),
    ],
)
def test_a_zone_goes_to_whom_its_list_allows(
    node: Node, allow: list[str] | None, client: str, key: str, answer: str
) -> None:
    spec = {} if allow is None else {"transfer": {"allow": allow}}
    do(node, put(zone(nameservers=["ns.example.org."], **spec)))
    for serial in (None, 1):
        query = transfer_query(ZONE, serial)
        assert rcode(node, query, client=client, key=key) == answer


@pytest.mark.parametrize("name", ["example.net.", "org.", "www.example.org.", "."])
def test_zones_that_are_not_ours_are_notauth(node: Node, name: str) -> None:
    assert rcode(node, transfer_query(name)) == "NOTAUTH"
    assert rcode(node, transfer_query(name, 1)) == "NOTAUTH"


def test_a_zone_of_all_classes_is_notauth(node: Node) -> None:
    query = transfer_query(ZONE, rdclass="ANY")
    assert rcode(node, query) == "NOTAUTH"


def test_a_forwarded_zone_is_notauth(node: Node) -> None:
    spec = {"zoneName": "f.test.", "type": "Forward", "forward": {"upstreams": ["192.0.2.1"]}}
    do(node, put(manifest("DNSZone", "f", spec)))
    assert rcode(node, transfer_query("f.test.")) == "NOTAUTH"


@pytest.mark.parametrize(
    ("proto", "answer"),
    [("udp", "FORMERR"), ("https", "NOTIMP"), ("h3", "NOTIMP"), ("quic", "NOTIMP"),
     ("tls", "NOERROR")],
)  # fmt: skip
def test_axfr_needs_a_stream(node: Node, proto: str, answer: str) -> None:
    assert rcode(node, transfer_query(ZONE), proto=proto) == answer


@pytest.mark.parametrize("text", ["a. 0 IN SOA . . 1 0 0 0 0", "example.org. 0 IN A 192.0.2.1", ""])
def test_an_ixfr_without_the_soa_of_its_zone_is_malformed(node: Node, text: str) -> None:
    query = transfer_query(ZONE, 1)
    query.authority.clear()
    if text:
        owner, ttl, rclass, rtype, rdata = text.split(" ", 4)
        query.authority.append(dns.rrset.from_text(owner, int(ttl), rclass, rtype, rdata))
    assert rcode(node, query) == "FORMERR"


def test_a_zone_before_its_first_stamp_is_for_later(node: Node) -> None:
    do_unstamped(node, put(zone("new.test", transfer=OPEN)))
    assert rcode(node, transfer_query("new.test.")) == "SERVFAIL"


def test_more_transfers_than_allowed_at_once_are_for_later(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "TRANSFERS_MAX", 2)
    do(node, *hosts(200))
    pipeline = served(node)
    under_way = [begun(pipeline)[1] for _ in range(2)]
    reply = pipeline.handle(transfer_query(ZONE).to_wire(), HOME, "tcp")
    assert isinstance(reply, Reply)
    assert reply.wire[3] & 15 == dns.rcode.SERVFAIL
    under_way.pop()
    assert len(version(pipeline)) == 202


# Signed


def test_every_message_of_a_signed_transfer_is_signed(node: Node) -> None:
    do(node, *hosts(300))
    now_s = node.clock.now_us() // SECOND
    packet, reader = tsig.sign_request(
        transfer_query(ZONE).to_wire(), KEYS[names.from_text("k1")], now_s
    )
    messages = list(wires(served(node), packet))
    assert all(tsig.find(wire) for wire in messages)
    taken = [reader.take(wire, now_s) for wire in messages]
    reader.finish()
    assert len(full(record for wire in taken for record in read(wire))) == 302


def test_a_signed_answer_over_udp_stays_within_what_the_client_takes(node: Node) -> None:
    texts = [f'"{i} {"t" * 60}"' for i in range(15)]
    do(node, put(record_set("big", endpoint(f"big.{ZONE}", "TXT", *texts))))
    query = dns.message.make_query(f"big.{ZONE}", "TXT", use_edns=0, payload=1232)
    plain = served(node).handle(query.to_wire(), HOME, "udp")
    packet, _ = tsig.sign_request(
        query.to_wire(), KEYS[names.from_text("k1")], node.clock.now_us() // SECOND
    )
    signed = served(node).handle(packet, HOME, "udp")
    assert isinstance(plain, Reply)
    assert isinstance(signed, Reply)
    assert 1150 < len(plain.wire) <= 1232
    assert signed.wire[2] & 2  # TC: with the signature it would be too long
    assert len(signed.wire) <= 1232
    assert not signed.memo
