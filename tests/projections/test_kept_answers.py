"""What the pipeline lets an engine repeat that counts down TTLs and knows who may recurse."""

from datetime import timedelta

import dns.message
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.filtering.clients import packed_address
from kudurru.domain.filtering.decision import Filters
from kudurru.domain.ports import CLIENT_CLASSES_MAX, Keep, Reply
from kudurru.domain.settings import CacheSettings
from kudurru.projections.pipeline.resolver import Rules
from tests.filtering import groups, lists, policy
from tests.upstreams import CLIENT, Rig, always

ONE = "192.0.2.11"
SOA = "example. {ttl} IN SOA ns.example. h.example. 1 7200 900 1209600 {minimum}"


def rig_of(*answer: str, **options: object) -> Rig:
    rig = Rig(ONE, **options)
    rig.pipeline.keeps_for_a_while = True
    rig.scripts[ONE] = always(*answer)
    return rig


def asked(rig: Rig, packet: bytes, proto: str = "udp") -> Reply:
    reply = rig.pipeline.handle(packet, CLIENT, proto)
    assert isinstance(reply, Reply)
    return reply


def query(name: str = "www.example", **options: object) -> bytes:
    return dns.message.make_query(name, "A", id=7, **options).to_wire()


def cached(rig: Rig, packet: bytes | None = None, proto: str = "udp") -> Reply:
    """The reply to a question that was asked before."""
    rig.pipeline.handle(packet or query(), CLIENT, proto)
    rig.pass_time(0)  # the upstream's answer arrives
    return asked(rig, packet or query(), proto)


def repeated(reply: Reply, now_us: int) -> bytes | None:
    """What an engine makes of it, by the words of `Keep`."""
    keep = reply.keep
    assert keep is not None
    if keep.until_us and now_us >= keep.until_us:
        return None
    wire = bytearray(reply.wire)
    more = (now_us - keep.stored_us) // 1_000_000 - keep.aged_s
    for at in keep.ttls_at:
        wire[at : at + 4] = (int.from_bytes(wire[at : at + 4], "big") - more).to_bytes(4, "big")
    return bytes(wire)


ttls = st.integers(1, 400)
waits = st.floats(0, 450)
answers = st.one_of(
    st.lists(ttls, min_size=1, max_size=4).map(
        lambda of: ([f"www.example. {ttl} IN A 192.0.2.{i}" for i, ttl in enumerate(of)], [])
    ),
    st.tuples(ttls, ttls).map(
        lambda of: (
            [f"www.example. {of[0]} IN CNAME a.example.", f"a.example. {of[1]} IN A 1.2.3.4"],
            [],
        )
    ),
    st.tuples(ttls, ttls).map(lambda of: ([], [SOA.format(ttl=of[0], minimum=of[1])])),
)


@given(answers, st.booleans(), st.sampled_from([-1, 0, 512]), waits, waits)
def test_until_it_ends_a_repeat_is_what_the_cache_would_say(
    answer: tuple[list[str], list[str]], prefetch: bool, use_edns: int, first: float, then: float
) -> None:
    rig = rig_of(cache=CacheSettings(prefetch=prefetch))
    records, authority = answer
    rig.scripts[ONE] = always(*records, authority=authority)
    packet = query(use_edns=use_edns)
    rig.pipeline.handle(packet, CLIENT, "udp")
    rig.pass_time(first)
    reply = rig.pipeline.handle(packet, CLIENT, "udp")
    if not isinstance(reply, Reply) or reply.keep is None:
        return  # it had ended, or was about to
    rig.pass_time(then)
    said = repeated(reply, rig.clock.monotonic_us())
    if said is not None:
        assert asked(rig, packet).wire == said


def test_who_asks_when_it_ends_makes_it_fresh() -> None:
    rig = rig_of("www.example. 100 IN A 192.0.2.1")
    keep = cached(rig).keep
    assert keep is not None
    assert keep.until_us == keep.stored_us + 90_000_000
    rig.pass_time(90)
    asked(rig, query())
    rig.pass_time(0)
    assert len(rig.asked) == 2
    later = cached(rig).keep
    assert later is not None
    assert later.until_us > keep.until_us


@pytest.mark.parametrize(("clients", "is_restricted"), [("private", True), ("all", False)])
def test_it_is_for_those_who_may_recurse(clients: str, is_restricted: bool) -> None:
    rig = rig_of("www.example. 100 IN A 192.0.2.1", rules=Rules(clients=clients))
    reply = cached(rig)
    assert reply.keep is not None
    assert reply.keep.is_restricted == is_restricted
    assert reply.keep.tally == ("cache", "positive")
    assert not reply.memo, "an engine that cannot count TTLs down must not repeat it"


def test_an_answer_that_depends_on_policies_is_kept_for_those_who_have_the_same() -> None:
    some = {
        "kids": [{"cidr": "192.0.2.0/29"}],
        "guests": [{"ip": "192.0.2.1"}, {"ip": "192.0.2.200"}, {"ip": "2001:db8::9"}],
        "phone": [{"clientID": "anna-phone"}],
    }
    kids = policy("kids", clientGroupRefs=["kids"], deny=["www.example"])
    guests = policy("guests", clientGroupRefs=["guests"], deny=["other.example"])
    filters = Filters([kids, guests], groups(**some))
    rig = rig_of("www.example. 100 IN A 192.0.2.1", filters=filters, rules=Rules(clients="all"))
    classes: dict[int, list[str]] = {}
    clients = ["192.0.2.2", "192.0.2.3", "192.0.2.1", "192.0.2.200", "2001:db8::9", "192.0.2.100"]
    for client in clients:
        rig.pipeline.handle(query(), client, "udp")
        rig.pass_time(0)
        reply = rig.pipeline.handle(query(), client, "udp")
        assert isinstance(reply, Reply)
        assert reply.keep is not None
        assert not reply.memo
        assert reply.keep.client == packed_address(client)
        classes.setdefault(reply.keep.client_class, []).append(client)
    assert list(classes.values()) == [clients[:2], clients[2:3], clients[3:5], clients[5:]]
    assert 0 not in classes
    # Classes go by address, and who calls itself what no group names is as its address is.
    for client_id, is_kept in (("", True), ("dns", True), ("Anna-Phone", False)):
        reply = rig.pipeline.handle(query(), clients[0], "tls", client_id)
        assert isinstance(reply, Reply)
        assert (reply.keep is not None, reply.memo) == (is_kept, False)


def test_when_there_are_more_classes_than_numbers_the_rest_is_not_kept() -> None:
    several = {f"g{i}": [{"ip": f"192.0.2.{i}"}] for i in range(CLIENT_CLASSES_MAX + 3)}
    policies = [policy(name, clientGroupRefs=[name], deny=["x.example"]) for name in several]
    rig = rig_of(filters=Filters(policies, groups(**several)), rules=Rules(clients="all"))
    kept = []
    for name, (place,) in several.items():
        denied = dns.message.make_query("x.example", "A", id=7).to_wire()
        reply = rig.pipeline.handle(denied, place["ip"], "udp")
        assert isinstance(reply, Reply), name
        assert not reply.memo
        kept.append(0 if reply.keep is None else reply.keep.client_class)
    assert kept == [*range(1, CLIENT_CLASSES_MAX + 1), 0, 0, 0]


def test_a_truncated_answer_has_no_ttls() -> None:
    rig = rig_of(*(f"www.example. 100 IN A 192.0.2.{i}" for i in range(60)))
    reply = cached(rig, query(use_edns=-1))
    assert reply.wire[2] & 2
    assert reply.keep is not None
    assert reply.keep.ttls_at == ()


@pytest.mark.parametrize("proto", ["tcp", "tls", "https", "h3", "quic"])
def test_an_answer_is_kept_alike_over_every_transport(proto: str) -> None:
    www = "www.example. 100 IN A 192.0.2.1"
    assert cached(rig_of(www), proto=proto).keep == cached(rig_of(www)).keep is not None


def test_what_may_be_another_thing_for_the_next_one_is_not_kept() -> None:
    www = "www.example. 100 IN A 192.0.2.1"
    rig = rig_of(www)
    rig.pipeline.keeps_for_a_while = False
    assert cached(rig).keep is None
    for_one = policy("kids", clientGroupRefs=["kids"], deny=["ads.example"])
    rig = rig_of(www, filters=Filters([for_one], groups(kids=[{"mac": "02:00:00:00:00:01"}])))
    assert cached(rig).keep is None, "the neighbours may change"
    paused = Filters([for_one], groups(kids=[{"ip": "192.0.2.1"}]), pauses={"default/kids": 1})
    assert cached(rig_of(www, filters=paused)).keep is None
    for_all = policy("all", deny=["ads.example"])
    rig = rig_of(www, filters=Filters([for_all], groups()))
    assert cached(rig).keep is not None
    assert rig.pipeline.has_plain_zones
    silent = policy("all", deny=["ads.example"], queryLog=False)
    rig = rig_of(www, filters=Filters([silent], groups()))
    assert cached(rig).keep is None
    assert not rig.pipeline.has_plain_zones


THEIRS = "192.0.2.7"
PERSONAL = {
    "an answer that leads to what others may not have": (
        [f"||tracker.example^$client={THEIRS}"],
        ["www.example. 300 IN CNAME tracker.example.", "tracker.example. 300 IN A 192.0.2.66"],
    ),
    "an alias whose target is another one for others": (
        [
            "||www.example^$dnsrewrite=NOERROR;CNAME;b.example",
            f"||b.example^$client={THEIRS},dnsrewrite=NOERROR;A;192.0.2.99",
        ],
        ["b.example. 300 IN A 192.0.2.66"],
    ),
    "aliases of which one is for others": (
        [
            "||www.example^$dnsrewrite=NOERROR;CNAME;b.example",
            f"||b.example^$client={THEIRS},dnsrewrite=NOERROR;CNAME;c.example",
            "||c.example^$dnsrewrite=NOERROR;A;192.0.2.99",
        ],
        ["b.example. 300 IN A 192.0.2.66"],
    ),
}


@pytest.mark.parametrize("clients", ["private", "all"])
@pytest.mark.parametrize("case", PERSONAL)
def test_what_a_rule_for_some_clients_changes_on_the_way_is_kept_for_nobody(
    case: str, clients: str
) -> None:
    rules, answer = PERSONAL[case]
    filters = Filters([policy("all", blockListRefs=["own"])], groups(), matcher=lists(own=rules))
    rig = rig_of(*answer, filters=filters, rules=Rules(clients=clients))
    wires = set()
    for client in (CLIENT, THEIRS, CLIENT, THEIRS):
        rig.pipeline.handle(query(), client, "udp")
        rig.pass_time(0)  # the upstream's answer arrives, where it is asked
        reply = rig.pipeline.handle(query(), client, "udp")
        assert isinstance(reply, Reply)
        assert reply.keep is None, client
        assert not reply.memo, client
        wires.add((client, reply.wire[12:]))
    assert len({client for client, _ in wires}) == 2
    assert len({wire for _, wire in wires}) == 2, "the rule makes a difference"


def test_of_several_aliases_for_one_name_the_first_is_given() -> None:
    rules = [f"||www.example^$dnsrewrite=NOERROR;CNAME;{one}.example" for one in "ab"]
    filters = Filters([policy("all", blockListRefs=["own"])], groups(), matcher=lists(own=rules))
    rig = rig_of("a.example. 300 IN A 192.0.2.66", filters=filters)
    assert rig.ask("www.example").texts == [
        "a.example. 300 A 192.0.2.66",
        "www.example. 30 CNAME a.example.",
    ]
    assert rig.ask("www.example", "CNAME").texts == ["www.example. 30 CNAME a.example."]


def test_a_stale_answer_is_not_kept() -> None:
    rig = rig_of("www.example. 100 IN A 192.0.2.1")
    cached(rig)
    rig.scripts[ONE] = always(rcode="SERVFAIL")
    rig.pass_time(101)
    rig.pipeline.handle(query(), CLIENT, "udp")
    rig.pass_time(0)
    assert asked(rig, query()).keep is None


def test_a_blocked_answer_is_kept_and_counted_for_its_policy() -> None:
    for_all = policy("all", deny=["www.example"])
    rig = rig_of(filters=Filters([for_all], groups()))
    reply = asked(rig, query())
    assert reply.keep == Keep(is_restricted=True, tally=("blocked", "default/all", ""))
    assert not reply.memo
    rig = rig_of(filters=Filters([for_all], groups()), rules=Rules(clients="all"))
    reply = asked(rig, query())
    assert reply.keep == Keep(tally=("blocked", "default/all", ""))
    assert reply.memo


def test_a_short_life_is_no_shorter_than_it_was() -> None:
    rig = rig_of("www.example. 1 IN A 192.0.2.1", cache=CacheSettings(min_ttl=timedelta(0)))
    keep = cached(rig).keep
    assert keep is not None
    assert keep.until_us - keep.stored_us == 900_000
