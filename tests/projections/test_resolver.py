"""The stage that resolves: the cache, stale answers, one flight for many, what is safe."""

from datetime import timedelta
from typing import Any

import dns.flags
import dns.message
import pytest

from kudurru.domain.dns import names
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.responses import RECORDS_MAX
from kudurru.domain.notation import parse_network
from kudurru.domain.settings import CacheSettings, ServeStaleSettings
from kudurru.projections.pipeline.resolver import FOLLOWED_MAX, Rules
from tests.upstreams import CLIENT, Rig, always, question_in, response, silent
from tests.zone_files import zone_from_text

ONE, TWO = "192.0.2.11", "192.0.2.12"
WWW = "www.example. 300 IN A 192.0.2.1"
SOA = "example. 3600 IN SOA ns.example. h.example. 1 7200 900 1209600 60"


def rig_of(*answer: str, **options: Any) -> Rig:
    rig = Rig(ONE, **options)
    rig.scripts[ONE] = always(*answer)
    return rig


def key(text: str) -> Name:
    return names.key(names.from_text(text))


def test_a_repeat_is_answered_from_the_cache_with_its_ttl_counted_down() -> None:
    rig = rig_of(WWW, "www.example. 200 IN A 192.0.2.2")
    rig.ask("www.example")
    rig.pass_time(50.9)
    asked = rig.ask("WWW.example")
    assert asked.is_answered
    assert asked.texts == ["WWW.example. 150 A 192.0.2.1", "WWW.example. 150 A 192.0.2.2"]
    rig.pass_time(149.1)
    assert not rig.ask("www.example").is_answered
    assert len(rig.asked) == 2


def test_negative_answers_are_kept_as_long_as_their_soa_says() -> None:
    for rcode in ("NXDOMAIN", "NOERROR"):
        rig = Rig(ONE)
        rig.scripts[ONE] = always(authority=[SOA], rcode=rcode)
        assert rig.ask("nope.example").rcode == rcode
        rig.pass_time(59.5)
        (soa,) = rig.ask("nope.example").answer.authority
        assert soa.ttl == 1
        rig.pass_time(0.6)
        assert not rig.ask("nope.example").is_answered


def test_a_negative_answer_is_kept_no_longer_than_the_setting() -> None:
    rig = Rig(ONE, cache=CacheSettings(negative_ttl=timedelta(seconds=20)))
    rig.scripts[ONE] = always(authority=[SOA], rcode="NXDOMAIN")
    assert rig.ask("nope.example").answer.authority[0].ttl == 20
    rig.pass_time(20.1)
    assert not rig.ask("nope.example").is_answered


def test_a_negative_answer_without_a_soa_is_not_kept() -> None:
    rig = Rig(ONE)
    rig.scripts[ONE] = always(rcode="NXDOMAIN")
    assert rig.ask("nope.example").rcode == "NXDOMAIN"
    assert not rig.ask("nope.example").is_answered


def test_ttls_are_raised_and_cut_to_the_settings() -> None:
    settings = CacheSettings(min_ttl=timedelta(seconds=10), max_ttl=timedelta(seconds=100))
    for ttl, shown in ((0, 10), (5, 10), (50, 50), (101, 100), (1 << 31, 10)):
        rig = rig_of(cache=settings)

        def script(query: dns.message.Message, _: bytes, ttl: int = ttl) -> bytes:
            wire = response(query, ["www.example. 1 IN A 192.0.2.1"])
            at = wire.rindex(b"\0\0\0\1\0\4\xc0\0\2\1")
            return wire[:at] + ttl.to_bytes(4, "big") + wire[at + 4 :]

        rig.scripts[ONE] = script
        assert rig.ask("www.example").texts == [f"www.example. {shown} A 192.0.2.1"]


def test_flags_that_change_the_answer_have_entries_of_their_own() -> None:
    rig = rig_of(WWW)
    for options in ({}, {"want_dnssec": True}, {"flags": dns.flags.RD | dns.flags.CD}):
        assert rig.ask("www.example", **options).rcode == "NOERROR"
        assert rig.ask("www.example", **options).is_answered
    assert len(rig.asked) == 3


def test_clients_who_ask_the_same_wait_for_one_answer() -> None:
    rig = Rig(ONE)
    rig.scripts[ONE] = lambda q, _: [(0.5, response(q, [WWW]))]
    asked = [rig.ask("www.example", use_edns=i % 2 - 1) for i in range(50)]
    rig.pass_time(0.5)
    assert all(one.texts == ["www.example. 300 A 192.0.2.1"] for one in asked)
    assert len(rig.asked) == 1


def test_a_client_that_left_costs_the_others_nothing_and_the_answer_is_kept() -> None:
    rig = Rig(ONE)
    rig.scripts[ONE] = lambda q, _: [(0.5, response(q, [WWW]))]
    gone, stays = rig.ask("www.example"), rig.ask("www.example")
    assert gone.later is not None
    gone.later.cancel()
    rig.pass_time(0.5)
    assert (gone.is_answered, stays.is_answered) == (False, True)
    assert rig.ask("www.example").is_answered
    assert rig.resolver.statistics().waiting == 0


def test_when_too_many_wait_the_next_is_refused_and_counted() -> None:
    rig = Rig(ONE, waiting_max=3)
    rig.scripts[ONE] = silent
    asked = [rig.ask(f"h{i}.example") for i in range(5)]
    assert [one.is_answered for one in asked] == [False] * 3 + [True] * 2
    assert asked[4].rcode == "SERVFAIL"
    assert rig.resolver.statistics().refused_full == 2


def stale_rig(**options: Any) -> Rig:
    rig = rig_of("st.example. 5 IN A 192.0.2.9", **options)
    rig.ask("st.example")
    rig.pass_time(7)
    rig.asked.clear()
    rig.scripts[ONE] = silent
    return rig


def test_a_stale_answer_is_served_while_the_upstream_is_down() -> None:
    rig = stale_rig()
    asked = rig.ask("st.example", use_edns=0)
    rig.pass_time(1.7)
    assert not asked.is_answered
    rig.pass_time(0.1)
    assert asked.texts == ["st.example. 30 A 192.0.2.9"]
    assert asked.answer.options[0].code == 3  # stale answer
    assert rig.ask("st.example").is_answered  # who comes later does not wait again
    assert rig.asked_names() == ["st.example."] * 2  # one refresh; the first may have been lost
    assert rig.cache.statistics().stale == 2


def test_a_fresh_answer_replaces_the_stale_one() -> None:
    rig = stale_rig()
    assert rig.ask("st.example").texts == ["st.example. 30 A 192.0.2.9"]
    rig.scripts[ONE] = always("st.example. 5 IN A 192.0.2.10")
    rig.pass_time(3)
    assert rig.ask("st.example").texts == ["st.example. 5 A 192.0.2.10"]


def test_a_refresh_that_comes_after_its_client_was_answered_is_kept() -> None:
    rig = stale_rig()
    rig.scripts[ONE] = lambda q, _: [(1.9, response(q, ["st.example. 5 IN A 192.0.2.10"]))]
    asked = rig.ask("st.example")
    rig.pass_time(1.8)
    assert asked.texts == ["st.example. 30 A 192.0.2.9"]
    rig.pass_time(0.2)
    assert rig.ask("st.example").is_answered
    assert rig.ask("st.example").texts == ["st.example. 5 A 192.0.2.10"]


def test_a_stale_answer_is_given_at_once_where_upstreams_say_they_cannot() -> None:
    rig = stale_rig()
    rig.scripts[ONE] = always(rcode="SERVFAIL")
    for _ in range(3):
        asked = rig.ask("st.example")
        rig.pass_time(0)
        assert asked.texts == ["st.example. 30 A 192.0.2.9"]
    assert len(rig.asked) == 1  # a failure is remembered, too


def test_without_patience_the_stale_answer_comes_at_once_and_a_fresh_one_behind_it() -> None:
    rig = stale_rig(rules=Rules(client_timeout_us=0))
    asked = rig.ask("st.example")
    assert asked.is_answered  # before anybody could have been asked
    assert asked.texts == ["st.example. 30 A 192.0.2.9"]
    assert rig.asked_names() == ["st.example."]


@pytest.mark.parametrize("answer", ["st.example. 0 IN A 192.0.2.10", ""])
def test_a_fresh_answer_that_must_not_be_kept_ends_the_stale_one(answer: str) -> None:
    rig = stale_rig()
    rig.scripts[ONE] = always(*filter(None, [answer]))
    expected = [answer.replace(" IN", "")] if answer else []
    assert rig.ask("st.example").texts == expected
    rig.scripts[ONE] = silent
    assert rig.ask("st.example").rcode == "SERVFAIL"


@pytest.mark.parametrize(
    ("settings", "age_s"),
    [
        (ServeStaleSettings(), 12 * 3600 + 5),
        (ServeStaleSettings(enabled=False), 7),
        (ServeStaleSettings(max_age=timedelta(seconds=3)), 9),
    ],
)
def test_what_is_too_old_or_not_wanted_is_not_served(
    settings: ServeStaleSettings, age_s: int
) -> None:
    rules = Rules(is_stale_served=settings.enabled)
    rig = stale_rig(cache=CacheSettings(serve_stale=settings), rules=rules)
    rig.pass_time(age_s - 7)
    assert rig.ask("st.example").rcode == "SERVFAIL"


def test_a_popular_answer_is_fetched_again_before_it_expires() -> None:
    rig = rig_of("www.example. 100 IN A 192.0.2.1")
    rig.ask("www.example")
    for _ in range(3):
        rig.pass_time(31)
        assert rig.ask("www.example").is_answered
    rig.pass_time(0)
    assert len(rig.asked) == 2
    assert rig.ask("www.example").texts == ["www.example. 100 A 192.0.2.1"]
    assert rig.cache.statistics().prefetches == 1


def test_what_nobody_asks_for_is_not_fetched_again() -> None:
    rig = rig_of("www.example. 100 IN A 192.0.2.1")
    rig.ask("www.example")
    rig.pass_time(95)
    assert rig.ask("www.example").is_answered
    rig.pass_time(1)
    assert len(rig.asked) == 1


def test_a_failure_is_remembered_for_seconds_only() -> None:
    rig = Rig(ONE)
    rig.scripts[ONE] = always(rcode="SERVFAIL")
    assert rig.ask("f.example").rcode == "SERVFAIL"
    assert rig.ask("f.example").is_answered
    rig.pass_time(5)
    rig.scripts[ONE] = always("f.example. 60 IN A 192.0.2.1")
    assert rig.ask("f.example").rcode == "NOERROR"


def test_what_does_not_belong_to_the_question_is_neither_given_nor_kept() -> None:
    rig = Rig(ONE)
    rig.scripts[ONE] = always(
        "p.example.net. 60 IN CNAME q.example.net.",
        "q.example.net. 60 IN A 192.0.2.9",
        "www.bank.example. 60 IN A 192.0.2.66",
        authority=["example.net. 60 IN NS ns.example.net.", "bank.example. 60 IN NS evil.example."],
        additional=["ns.example.net. 60 IN A 192.0.2.53", "www.bank.example. 60 IN A 192.0.2.66"],
    )
    answer = rig.ask("p.example.net").answer
    sections = [answer.answer, answer.authority, answer.additional]
    owners = [[str(rrset.name) for rrset in section] for section in sections]
    assert owners == [
        ["p.example.net.", "q.example.net."],
        ["example.net."],
        ["ns.example.net."],
    ]
    assert not rig.ask("www.bank.example").is_answered


def test_names_with_pointers_into_what_was_dropped_stay_whole() -> None:
    """The alias' target is compressed against a record that does not belong."""
    rig = Rig(ONE)

    def script(query: dns.message.Message, packet: bytes) -> bytes:
        foreign = b"\4evil\7example\0\0\1\0\1\0\0\0\x3c\0\4\xc0\0\2\x42"
        at = 12 + len(question_in(packet))
        target = (0xC000 | at).to_bytes(2, "big")
        alias = b"\xc0\x0c\0\5\0\1\0\0\0\x3c\0\4\1x" + target
        return packet[:2] + b"\x81\x80\0\1\0\2\0\0\0\0" + packet[12:at] + foreign + alias

    rig.scripts[ONE] = script
    assert rig.ask("www.example").texts == ["www.example. 60 CNAME x.evil.example."]


@pytest.mark.parametrize(
    ("rtype", "rdata", "whole"),
    [
        ("TYPE14", b"\1m\xc0\x0c\1n\xc0\x0c", b"\1m%b\1n%b"),  # MINFO
        ("TYPE8", b"\1m\xc0\x0c", b"\1m%b"),  # MG
        ("RP", b"\1m\xc0\x0c\xc0\x0c", b"\1m%b%b"),
        ("AFSDB", b"\0\1\1m\xc0\x0c", b"\0\1\1m%b"),
        ("PX", b"\0\1\1m\xc0\x0c\1n\xc0\x0c", b"\0\1\1m%b\1n%b"),
        ("NAPTR", b"\0\1\0\2\1s\1t\0\xc0\x0c", b"\0\1\0\2\1s\1t\0%b"),
        ("SRV", b"\0\1\0\2\0\3\xc0\x0c", b"\0\1\0\2\0\3%b"),
    ],
)
def test_compressed_names_in_rdata_stay_whole_behind_an_alias(
    rtype: str, rdata: bytes, whole: bytes
) -> None:
    rig = Rig(ONE, by_domain={key("corp.example"): [TWO]})
    rig.scripts[TWO] = always("www.corp.example. 60 IN CNAME web.example.")

    def script(query: dns.message.Message, packet: bytes) -> bytes:
        asked = question_in(packet)
        fixed = asked[-4:] + b"\0\0\0\x3c" + len(rdata).to_bytes(2, "big")
        head = packet[:2] + b"\x81\x80\0\1\0\1\0\0\0\0"
        return head + asked + b"\xc0\x0c" + fixed + rdata

    rig.scripts[ONE] = script
    found = rig.ask("www.corp.example", rtype).answer.answer[-1][0].to_wire()
    full = whole.replace(b"%b", names.from_text("web.example."))
    assert found is not None
    assert found.lower() == full


def zone_server(**names: str) -> Any:
    """An upstream that serves zones: an alias is all it says."""

    def script(query: dns.message.Message, _: bytes) -> bytes:
        name = str(query.question[0].name).lower()
        record = names.get(name.partition(".")[0])
        if record is None:
            return response(query, authority=[SOA], rcode="NXDOMAIN")
        return response(query, [f"{name} 60 IN {record}"])

    return script


def test_an_alias_that_an_upstream_leaves_open_is_followed() -> None:
    rig = Rig(ONE, by_domain={key("corp.example"): [TWO]})
    rig.scripts[TWO] = zone_server(www="CNAME b.corp.example.", b="CNAME web.example.")
    rig.scripts[ONE] = lambda q, _: [(0.2, response(q, ["web.example. 30 IN A 192.0.2.8"]))]
    asked = rig.ask("www.corp.example")
    assert asked.texts == [
        "b.corp.example. 60 CNAME web.example.",
        "web.example. 30 A 192.0.2.8",
        "www.corp.example. 60 CNAME b.corp.example.",
    ]
    rig.pass_time(10)
    asked = rig.ask("WWW.corp.example")
    assert asked.is_answered
    assert "web.example. 20 A 192.0.2.8" in asked.texts
    assert rig.ask("web.example").is_answered
    assert len(rig.asked) == 3


def test_an_alias_that_leads_to_nothing_says_so() -> None:
    rig = Rig(ONE, by_domain={key("corp.example"): [TWO]})
    rig.scripts[TWO] = zone_server(www="CNAME gone.example.")
    rig.scripts[ONE] = always(authority=[SOA], rcode="NXDOMAIN")
    asked = rig.ask("www.corp.example")
    assert asked.rcode == "NXDOMAIN"
    assert asked.texts == ["www.corp.example. 60 CNAME gone.example."]
    assert asked.answer.authority[0].rdtype == dns.rdatatype.SOA
    assert rig.ask("www.corp.example").is_answered


def test_aliases_of_two_upstreams_in_a_circle_end() -> None:
    rig = Rig(ONE, by_domain={key("corp.example"): [TWO]})
    rig.scripts[TWO] = zone_server(www="CNAME www.other.example.")
    rig.scripts[ONE] = lambda q, _: [
        (0.1, response(q, ["www.other.example. 60 IN CNAME www.corp.example."]))
    ]
    both = [rig.ask("www.corp.example"), rig.ask("www.other.example")]
    for asked in both:
        assert asked.rcode == "NOERROR"
    assert rig.resolver.statistics().waiting == 0


def test_aliases_without_end_are_followed_for_a_while_only() -> None:
    rig = Rig(ONE)

    def script(query: dns.message.Message, _: bytes) -> list[tuple[float, bytes]]:
        name = str(query.question[0].name).lower()
        number = int(name[1:].partition(".")[0])
        return [(0.01, response(query, [f"{name} 60 IN CNAME n{number + 1}.example."]))]

    rig.scripts[ONE] = script
    asked = rig.ask("n0.example")
    assert asked.rcode == "NOERROR"
    assert len(asked.texts) == FOLLOWED_MAX + 1
    assert len(rig.asked) == FOLLOWED_MAX + 1
    assert rig.resolver.statistics().waiting == 0


def test_answers_that_are_too_large_together_leave_the_alias() -> None:
    rig = Rig(ONE)

    def script(query: dns.message.Message, packet: bytes) -> list[tuple[float, bytes]]:
        name = query.question[0].name.to_text().lower()
        if name != "n2.example.":
            following = int(name[1]) + 1
            return [(0.1, response(query, [f"{name} 60 IN CNAME n{following}.example."]))]
        asked = packet[12 : 12 + len("n2.example.") + 5]
        records = b"\xc0\x0c" + asked[-4:] + b"\0\0\0\x3c\0\0"
        count = RECORDS_MAX.to_bytes(2, "big")
        head = b"\0\0\x81\x80\0\1" + count + bytes(4)
        return [(0.1, head + asked + records * RECORDS_MAX)]

    rig.scripts[ONE] = script
    asked = rig.ask("n0.example", "TYPE65280", proto="tcp")
    assert asked.texts == [
        "n0.example. 60 CNAME n1.example.",
        "n1.example. 60 CNAME n2.example.",
    ]
    assert rig.resolver.statistics().waiting == 0


def test_a_target_that_cannot_be_resolved_leaves_the_alias() -> None:
    rig = Rig(ONE, by_domain={key("corp.example"): [TWO]})
    rig.scripts[TWO] = zone_server(www="CNAME web.example.")
    rig.scripts[ONE] = silent
    assert rig.ask("www.corp.example").texts == ["www.corp.example. 60 CNAME web.example."]


def test_special_names_are_answered_here() -> None:
    rig = Rig(ONE)
    assert rig.ask("localhost").texts == ["localhost. 10800 A 127.0.0.1"]
    assert rig.ask("a.LOCALHOST", "AAAA").texts == ["a.LOCALHOST. 10800 AAAA ::1"]
    assert rig.ask("localhost", "MX").rcode == "NOERROR"
    nothing = ("x.invalid", "x.test", "x.onion", "printer.local", "x.home.arpa", "b.alt")
    reverse = ("1.1.168.192.in-addr.arpa", "1.16.172.in-addr.arpa", "x.d.f.ip6.arpa")
    for name in (*nothing, *reverse, "use-application-dns.net"):
        asked = rig.ask(name, "PTR")
        assert asked.rcode == "NXDOMAIN", name
        assert asked.answer.authority[0].rdtype == dns.rdatatype.SOA
    assert rig.ask("_dns.resolver.arpa", "SVCB").rcode == "NOERROR"
    assert not rig.asked
    rig.scripts[ONE] = silent
    assert not rig.ask("1.1.15.172.in-addr.arpa", "PTR").is_answered


@pytest.mark.parametrize("name", ["1.0.0.127.in-addr.arpa", "1." + "0." * 31 + "ip6.arpa"])
def test_the_loopback_addresses_are_called_localhost(name: str) -> None:
    rig = Rig(ONE)
    assert rig.ask(name, "PTR").texts == [f"{name}. 10800 PTR localhost."]
    assert rig.ask(name, "TXT").rcode == "NOERROR"
    assert not rig.asked


def test_names_around_the_loopback_address_exist_as_far_as_they_do() -> None:
    rig = Rig(ONE)
    assert rig.ask("0.0.127.in-addr.arpa", "PTR").rcode == "NOERROR"
    assert rig.ask("2.0.0.127.in-addr.arpa", "PTR").rcode == "NXDOMAIN"
    assert rig.ask("1.1.127.in-addr.arpa", "PTR").rcode == "NXDOMAIN"
    assert not rig.asked


@pytest.mark.parametrize("zone", ["10.in-addr.arpa", "home.arpa"])
def test_whether_a_special_zone_is_signed_its_parent_says(zone: str) -> None:
    """Who validates wants the parent's proof that it is not (RFC 8375 section 4)."""
    rig = Rig(ONE)
    rig.scripts[ONE] = always(authority=[SOA])
    assert rig.ask(zone, "DS").rcode == "NOERROR"
    assert rig.asked_names() == [f"{zone}."]
    assert rig.ask(f"x.{zone}", "DS").rcode == "NXDOMAIN"
    for top in ("localhost", "test", "use-application-dns.net"):
        rig.ask(top, "DS")
    assert rig.asked_names() == [f"{zone}."]


def test_special_names_go_where_somebody_sends_them() -> None:
    rig = Rig(ONE, by_domain={key("168.192.in-addr.arpa"): [TWO]})
    rig.scripts[TWO] = always("1.1.168.192.in-addr.arpa. 60 IN PTR nas.example.")
    assert rig.ask("1.1.168.192.in-addr.arpa", "PTR").rcode == "NOERROR"
    off = Rig(ONE, rules=Rules(special_names=False))
    off.scripts[ONE] = always(rcode="NXDOMAIN")
    off.ask("x.test")
    assert len(off.asked) == 1


@pytest.mark.parametrize(
    "record",
    [
        "www.example. 60 IN A 192.168.1.1",
        "www.example. 60 IN A 127.0.0.1",
        "www.example. 60 IN AAAA fd00::1",
        "www.example. 60 IN AAAA ::ffff:10.0.0.1",
        "www.example. 60 IN AAAA 64:ff9b::c0a8:101",
        "www.example. 60 IN HTTPS 1 . alpn=h2 ipv4hint=192.168.1.1",
        "www.example. 60 IN HTTPS 1 x.example. ipv4hint=192.0.2.1 ipv6hint=2001:db8::1,fd00::1",
    ],
)
def test_a_public_name_has_no_private_address(record: str) -> None:
    rtype = record.split()[3]
    rig = rig_of(WWW if rtype == "A" else record, record)
    asked = rig.ask("www.example", rtype, use_edns=0)
    assert asked.rcode == "REFUSED"
    assert asked.answer.options[0].code == 15
    assert not rig.ask("www.example", rtype).is_answered  # nor is it kept
    assert rig.resolver.statistics().rebound == 1
    allowed = rig_of(record, rules=Rules(private_domains=frozenset({key("example")})))
    assert allowed.ask("www.example", rtype).rcode == "NOERROR"
    off = rig_of(record, rules=Rules(rebind_protection=False))
    assert off.ask("www.example", rtype).rcode == "NOERROR"


def test_nor_has_the_target_of_a_service_beside_it() -> None:
    rig = Rig(ONE)
    rig.scripts[ONE] = always(
        "www.example. 60 IN HTTPS 1 x.example.", additional=["x.example. 60 IN A 192.168.1.1"]
    )
    assert rig.ask("www.example", "HTTPS").rcode == "REFUSED"


def test_an_upstream_that_blocks_with_no_address_is_let_through() -> None:
    assert rig_of("ads.example. 60 IN A 0.0.0.0").ask("ads.example").rcode == "NOERROR"


def test_only_private_clients_may_recurse_unless_said_otherwise() -> None:
    inside = {"192.168.1.1", "127.0.0.1", "fe80::1", "fd00::1", "::ffff:10.1.1.1"}
    cases: list[tuple[Any, set[str]]] = [
        ("private", inside),
        ("all", {*inside, "8.8.8.8"}),
        ((parse_network("8.8.0.0/16"),), {"8.8.8.8"}),
    ]
    for clients, allowed in cases:
        rig = rig_of(WWW, rules=Rules(clients=clients))
        for client in sorted({*inside, "8.8.8.8"}):
            asked = rig.ask("www.example", client=client, use_edns=0)
            is_allowed = client in allowed
            assert asked.rcode == ("NOERROR" if is_allowed else "REFUSED")
            assert bool(asked.answer.flags & dns.flags.RA) == is_allowed


def test_who_may_not_recurse_is_told_that_it_is_prohibited() -> None:
    rig = rig_of()
    asked = rig.ask("www.example", client="203.0.113.9", use_edns=0)
    assert asked.rcode == "REFUSED"
    assert asked.answer.options[0].code == 18  # prohibited (RFC 8914 section 4.19)
    asked = rig.ask("www.example", client="203.0.113.9", use_edns=0, flags=0)
    assert asked.answer.options[0].code == 20  # it asked an authority, which we are none of


def test_without_rd_nothing_is_asked_for() -> None:
    rig = rig_of(WWW)
    assert rig.ask("www.example", flags=0).rcode == "REFUSED"
    assert not rig.asked
    assert rig.ask("www.example").rcode == "NOERROR"
    assert rig.ask("www.example", flags=0).rcode == "NOERROR"


def test_zones_served_here_come_first_and_are_remembered() -> None:
    zone = zone_from_text(
        "home.example. 300 IN SOA ns.home.example. h.home.example. 1 2 3 4 5\n"
        "www.home.example. 300 IN A 192.168.0.7\n",
        "home.example.",
    )
    rig = rig_of(WWW, zones=[zone])
    assert rig.ask("www.home.example").texts == ["www.home.example. 300 A 192.168.0.7"]
    assert rig.ask("nope.home.example").rcode == "NXDOMAIN"
    assert not rig.asked


def test_answers_of_the_resolver_are_not_given_to_others_by_engines() -> None:
    rig = rig_of(WWW)
    for _ in range(2):
        asked = rig.ask("www.example")
        assert asked.texts
        assert [reply.memo for reply in asked.replies if reply] == [False]
    refused = rig.ask("www.example", client="203.0.113.9")
    assert [reply.memo for reply in refused.replies if reply] == [False]


def test_where_a_question_goes_is_told_without_asking_it() -> None:
    rig = Rig(ONE, by_domain={key("168.192.in-addr.arpa"): [TWO]})
    ways = {
        ("www.example", CLIENT): "forward",
        ("www.example", "198.51.100.1"): "not-allowed",
        ("localhost", CLIENT): "special",
        ("1.0.0.10.in-addr.arpa", CLIENT): "special",
        ("1.0.168.192.in-addr.arpa", CLIENT): "forward",
    }
    for (name, client), way in ways.items():
        assert rig.resolver.way_of(key(name), 1, client, None) == way
    rig.resolver.configure(Rules(), None, {})
    assert rig.resolver.way_of(key("localhost"), 1, CLIENT, None) == "nobody"
    assert not rig.asked
