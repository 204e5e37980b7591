"""Asking upstreams, on scripted ones: whom, how often, what is believed."""

import dns.edns
import dns.flags
import dns.message
import pytest

from tests.upstreams import Rig, Script, always, question_in, response, silent

WWW = "www.example. 300 IN A 192.0.2.1"
ONE, TWO, THREE = "192.0.2.11", "192.0.2.12", "192.0.2.13"


def test_a_question_goes_to_an_upstream_and_its_answer_comes_back() -> None:
    rig = Rig(ONE)
    rig.scripts[ONE] = always(WWW)
    asked = rig.ask("www.example")
    assert asked.texts == ["www.example. 300 A 192.0.2.1"]
    assert asked.answer.flags & (dns.flags.RA | dns.flags.AA) == dns.flags.RA
    ((upstream, proto, query),) = rig.asked
    assert (upstream, proto) == (ONE, "udp")
    assert query.flags == dns.flags.RD
    assert query.edns == 0
    (cookie,) = query.options  # nothing of the client's subnet, or of anything else of its
    assert cookie.otype == dns.edns.OptionType.COOKIE


def test_letters_are_mixed_and_the_client_gets_its_own() -> None:
    rig = Rig(ONE)
    rig.scripts[ONE] = always("wWw.a-long-name-with-letters.example. 300 IN A 192.0.2.1")
    name = "www.A-long-Name-with-Letters.example"
    asked = rig.ask(name)
    assert str(asked.answer.question[0].name) == name + "."
    sent = str(rig.asked[0][2].question[0].name)
    assert sent.lower() == name.lower() + "."
    assert sent not in (sent.lower(), sent.upper())


def test_no_letters_of_chance_are_shown() -> None:
    """Neither in what is written anew, nor where an upstream wrote them out."""
    rig = Rig(ONE)

    def script(query: dns.message.Message, _packet: bytes) -> bytes:
        name = str(query.question[0].name)
        host, zone = name.split(".", 1)
        if host.lower() == "alias":  # the second record does not belong to the question
            alias, address = f"{name} 60 IN CNAME www.{zone}", f"www.{zone} 60 IN A 192.0.2.1"
            return response(query, [alias, address])
        if host.lower() == "a-long-host":
            dname, alias = f"{zone} 60 IN DNAME new.test.", f"{name} 60 IN CNAME {host}.new.test."
            return response(query, [dname, alias])
        return response(query, [], ["example. 60 IN SOA ns.example. h.example. 1 2 3 4 60"])

    rig.scripts[ONE] = script
    name = "Alias.in-some.Example."
    assert rig.ask(name, "MX").texts == [f"{name} 60 CNAME www.in-some.example."]
    assert rig.ask("a-long-host.old.example", "MX").texts == [
        "a-long-host.old.example. 60 CNAME a-long-host.new.test.",
        "old.example. 60 DNAME new.test.",
    ]


def _lower_letters(query: dns.message.Message, packet: bytes) -> bytes:
    lowered = dns.message.from_wire(packet[:12] + packet[12:].lower())
    return response(lowered, [WWW])


def test_an_upstream_that_does_not_keep_letters_is_asked_over_tcp_and_then_known() -> None:
    rig = Rig(ONE)
    rig.scripts[ONE] = _lower_letters
    for i in range(3):
        assert rig.ask("www.example", ["A", "AAAA", "TXT"][i]).rcode == "NOERROR"
    assert [proto for _, proto, _ in rig.asked] == ["udp", "tcp"] * 3
    rig.asked.clear()
    assert rig.ask("www.example", "MX").rcode == "NOERROR"
    assert [proto for _, proto, _ in rig.asked] == ["udp"]


def test_a_truncated_answer_is_asked_again_over_tcp() -> None:
    rig = Rig(ONE)
    texts = [f"www.example. 300 IN A 192.0.2.{i}" for i in range(200)]
    rig.scripts[ONE] = always(flags=dns.flags.TC)
    rig.scripts[f"tcp:{ONE}"] = always(*texts)
    assert len(rig.ask("www.example", proto="tcp").texts) == 200
    assert [proto for _, proto, _ in rig.asked] == ["udp", "tcp"]


def test_many_truncated_answers_for_nothing_are_no_answer() -> None:
    rig = Rig(ONE)
    rig.scripts[ONE] = always(flags=dns.flags.TC)
    assert rig.ask("www.example").rcode == "SERVFAIL"


def test_an_answer_to_another_question_is_ignored_and_the_right_one_awaited() -> None:
    rig = Rig(ONE)

    def script(query: dns.message.Message, packet: bytes) -> list[tuple[float, bytes]]:
        other = dns.message.make_query("www2.example", "A", id=0)
        lie = response(other, ["www2.example. 300 IN A 192.0.2.66"])
        is_query = packet  # with QR clear
        return [(0.1, lie), (0.2, is_query), (0.3, b"\0"), (0.4, response(query, [WWW]))]

    rig.scripts[ONE] = script
    assert rig.ask("www.example").texts == ["www.example. 300 A 192.0.2.1"]
    assert rig.upstreams[ONE].statistics().mismatched == 3


def test_a_lost_packet_is_sent_again() -> None:
    rig = Rig(ONE)
    answers = iter([silent, silent, always(WWW)])

    def script(query: dns.message.Message, packet: bytes) -> object:
        return next(answers)(query, packet)

    rig.scripts[ONE] = script  # type: ignore[assignment]
    asked = rig.ask("www.example")
    rig.pass_time(1)
    assert asked.texts == ["www.example. 300 A 192.0.2.1"]


def test_a_hard_name_does_not_make_its_upstream_a_dead_one() -> None:
    rig = Rig(ONE)

    def script(query: dns.message.Message, packet: bytes) -> bytes | None:
        return None if "hard" in str(query.question[0].name).lower() else response(query, [WWW])

    rig.scripts[ONE] = script
    assert rig.ask("hard.example").rcode == "SERVFAIL"
    assert rig.upstreams[ONE].health.is_up
    assert rig.ask("www.example").is_answered is False


def test_a_dead_upstream_costs_one_time_out_and_not_one_per_query() -> None:
    rig = Rig(ONE, TWO)
    rig.scripts |= {ONE: silent, TWO: always(WWW)}
    first = rig.ask("www.example")
    rig.pass_time(1.9)
    assert not first.is_answered
    rig.pass_time(0.1)
    assert first.rcode == "NOERROR"
    for rtype in ("AAAA", "TXT", "MX", "SRV", "CAA"):
        asked = rig.ask("www.example", rtype)
        rig.pass_time(0)
        assert asked.is_answered
    assert not rig.upstreams[ONE].statistics().is_healthy


def test_a_dead_upstream_is_tried_beside_a_live_one_and_recovers() -> None:
    rig = Rig(ONE, TWO)
    rig.scripts |= {ONE: silent, TWO: always(WWW)}
    assert rig.ask("www.example").rcode == "NOERROR"
    rig.asked.clear()
    rig.pass_time(1)
    rig.scripts[ONE] = always(WWW)
    assert rig.ask("www.example", "AAAA").rcode == "NOERROR"
    assert sorted(upstream for upstream, _, _ in rig.asked) == [ONE, TWO]
    assert rig.upstreams[ONE].health.is_up
    rig.asked.clear()
    assert rig.ask("www.example", "TXT").rcode == "NOERROR"
    assert [upstream for upstream, _, _ in rig.asked] == [ONE]


def test_while_all_are_dead_one_question_at_a_time_waits_and_the_others_fail_at_once() -> None:
    rig = Rig(ONE)
    rig.scripts[ONE] = silent
    assert rig.ask("a.example").rcode == "SERVFAIL"
    waits = rig.ask("b.example")
    fails = rig.ask("c.example", use_edns=0)
    assert (waits.is_answered, fails.is_answered) == (False, True)
    assert fails.rcode == "SERVFAIL"
    assert fails.answer.options[0].code == 22
    rig.scripts[ONE] = always(WWW)
    assert waits.is_answered is False  # asked again soon, and then answered
    assert waits.rcode == "NOERROR"
    assert rig.ask("www.example").rcode == "NOERROR"


@pytest.mark.parametrize("rcode", ["SERVFAIL", "REFUSED", "NOTIMP"])
def test_another_upstream_is_asked_when_one_cannot_answer(rcode: str) -> None:
    rig = Rig(ONE, TWO)
    rig.scripts |= {ONE: always(rcode=rcode), TWO: always(WWW)}
    assert rig.ask("www.example").rcode == "NOERROR"
    assert [upstream for upstream, _, _ in rig.asked][-2:] == [ONE, TWO]


def test_the_fallback_is_asked_when_a_whole_group_fails() -> None:
    rig = Rig(ONE, TWO, fallback=[THREE])
    rig.scripts |= {ONE: lambda *_: "refused", TWO: always(rcode="SERVFAIL"), THREE: always(WWW)}
    assert rig.ask("www.example").texts == ["www.example. 300 A 192.0.2.1"]


def test_an_upstream_that_cannot_be_reached_is_left_at_once() -> None:
    rig = Rig(ONE, TWO)
    rig.scripts |= {ONE: lambda *_: "refused", TWO: always(WWW)}
    asked = rig.ask("www.example")
    rig.pass_time(0)
    assert asked.is_answered
    assert rig.upstreams[ONE].statistics().failures == {"refused": 1}


def test_an_upstream_without_edns_is_asked_without() -> None:
    rig = Rig(ONE)

    def script(query: dns.message.Message, packet: bytes) -> bytes:
        if query.edns >= 0:
            return packet[:2] + b"\x81\x81" + bytes(8)  # FORMERR, a bare header
        return response(query, [WWW])

    rig.scripts[ONE] = script
    assert rig.ask("www.example").rcode == "NOERROR"
    assert rig.ask("www.example", "TXT").rcode == "NOERROR"
    assert [query.edns for _, _, query in rig.asked] == [0, -1, -1]


def test_parallel_takes_the_first_answer_and_learns_of_the_other() -> None:
    rig = Rig(ONE, TWO, strategy="parallel")
    rig.scripts |= {
        ONE: lambda q, _: [(0.3, response(q, ["www.example. 300 IN A 192.0.2.9"]))],
        TWO: lambda q, _: [(0.1, response(q, [WWW]))],
    }
    asked = rig.ask("www.example")
    rig.pass_time(0.1)
    assert asked.texts == ["www.example. 300 A 192.0.2.1"]
    rig.pass_time(0.3)
    assert rig.upstreams[ONE].health.latency_us == 300_000
    assert rig.upstreams[TWO].health.latency_us == 100_000


def test_parallel_finds_out_that_one_is_dead() -> None:
    rig = Rig(ONE, TWO, strategy="parallel")
    rig.scripts |= {ONE: silent, TWO: always(WWW)}
    assert rig.ask("www.example").rcode == "NOERROR"
    rig.pass_time(3)
    assert not rig.upstreams[ONE].health.is_up


def test_fastest_asks_the_fastest() -> None:
    rig = Rig(ONE, TWO, strategy="fastest")
    delays = {ONE: 0.2, TWO: 0.05}
    for text, delay in delays.items():
        rig.scripts[text] = lambda q, _, delay=delay: [(delay, response(q, [WWW]))]  # type: ignore[misc]
    for i in range(40):
        assert rig.ask(f"h{i}.example").rcode == "NOERROR"
    upstreams = [upstream for upstream, _, _ in rig.asked[4:]]
    assert upstreams.count(TWO) >= 36
    assert upstreams.count(ONE) <= 6


def test_random_asks_all() -> None:
    rig = Rig(ONE, TWO, THREE, strategy="random")
    rig.scripts |= dict.fromkeys((ONE, TWO, THREE), always(WWW))
    for i in range(60):
        assert rig.ask(f"h{i}.example").rcode == "NOERROR"
    upstreams = [upstream for upstream, _, _ in rig.asked]
    assert min(upstreams.count(text) for text in (ONE, TWO, THREE)) >= 8


def test_domains_have_upstreams_of_their_own() -> None:
    rig = Rig(ONE, by_domain={b"\x04corp\x07example\0": [TWO]})
    rig.scripts |= {ONE: always(WWW), TWO: always("a.corp.example. 60 IN A 10.0.0.1")}
    assert rig.ask("a.corp.example").texts == ["a.corp.example. 60 A 10.0.0.1"]
    assert rig.ask("corp.example", "TXT").rcode == "NOERROR"
    assert rig.ask("notcorp.example").rcode == "NOERROR"
    assert [upstream for upstream, _, _ in rig.asked] == [TWO, TWO, ONE]


def test_do_and_cd_are_passed_on_and_ad_only_from_who_is_trusted() -> None:
    trusted = f"{TWO}#trusted"
    for text in (ONE, trusted):
        rig = Rig(text)
        rig.scripts[text] = always(WWW, flags=dns.flags.AD)
        flags = dns.flags.RD | dns.flags.CD
        asked = rig.ask("www.example", flags=flags, want_dnssec=True)
        assert bool(asked.answer.flags & dns.flags.AD) == (text == trusted)
        assert asked.answer.flags & dns.flags.CD
        assert not rig.ask("www.example").answer.flags & dns.flags.AD  # nobody asked for it
        (first, second) = [query for _, _, query in rig.asked]
        assert first.ednsflags & dns.flags.DO
        assert first.flags & dns.flags.CD
        assert not second.ednsflags & dns.flags.DO
        assert not second.flags & dns.flags.CD


def test_options_of_the_client_go_no_further() -> None:
    rig = Rig(ONE)
    rig.scripts[ONE] = always(WWW)
    subnet = dns.edns.ECSOption("198.51.100.0", 24)
    cookie = dns.edns.CookieOption(b"client's", b"")
    assert rig.ask("www.example", use_edns=0, options=[subnet, cookie]).rcode == "NOERROR"
    (ours,) = rig.asked[0][2].options
    assert ours.otype == dns.edns.OptionType.COOKIE
    assert ours.client != cookie.client


def test_whoever_tries_many_answers_sends_the_question_to_tcp() -> None:
    rig = Rig(ONE)

    def script(query: dns.message.Message, packet: bytes) -> list[tuple[float, bytes]]:
        lie = response(dns.message.make_query("other.example", "A", id=0))
        return [(0.01 * i, lie) for i in range(20)]

    rig.scripts[ONE] = script
    rig.scripts[f"tcp:{ONE}"] = always(WWW)
    asked = rig.ask("www.example")
    rig.pass_time(0.1)
    assert asked.texts == ["www.example. 300 A 192.0.2.1"]
    assert [proto for _, proto, _ in rig.asked] == ["udp", "tcp"]


MALFORMED: dict[str, Script] = {
    "cut": lambda q, _: response(q, [WWW])[:-3],
    "more": lambda q, _: response(q, [WWW]) + b"\0",
    "counts": lambda q, p: p[:2] + b"\x81\x80\0\1\xff\xff\0\0\0\0" + question_in(p),
    "pointer": lambda q, p: p[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + question_in(p) + b"\xc0\xff" * 6,
    "circle": always(
        "www.example. 60 IN CNAME a.example.",
        "a.example. 60 IN CNAME b.example.",
        "b.example. 60 IN CNAME a.example.",
    ),
    "self": always("www.example. 60 IN CNAME www.example."),
    "chain": always(
        "www.example. 60 IN CNAME n0.example.",
        *(f"n{i}.example. 60 IN CNAME n{i + 1}.example." for i in range(40)),
    ),
    "address": lambda q, p: (
        p[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + question_in(p) + b"\xc0\x0c\0\1\0\1\0\0\0\5\0\3abc"
    ),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_answer_is_counted_and_another_upstream_asked(kind: str) -> None:
    rig = Rig(ONE, TWO)
    rig.scripts |= {ONE: MALFORMED[kind], TWO: always(WWW)}
    assert rig.ask("www.example").texts == ["www.example. 300 A 192.0.2.1"]
    assert rig.upstreams[ONE].statistics().failures == {"malformed": 1}


def test_a_fault_in_one_time_out_does_not_take_those_of_other_questions_with_it() -> None:
    rig = Rig(ONE)
    asked = 0

    def script(_query: dns.message.Message, _packet: bytes) -> None:
        nonlocal asked
        asked += 1
        if asked == 3:
            raise RuntimeError("a fault of ours")

    rig.scripts[ONE] = script
    both = [rig.ask("one.example"), rig.ask("two.example")]
    with pytest.raises(RuntimeError):
        rig.pass_time(1)
    for one in both:
        assert one.rcode == "SERVFAIL"
    rig.scripts[ONE] = always(WWW)
    rig.pass_time(60)
    assert rig.ask("www.example").rcode == "NOERROR"


def test_more_than_an_upstream_takes_at_once_does_not_make_it_a_dead_one() -> None:
    rig = Rig(ONE)
    rig.scripts[ONE] = lambda _query, _packet: "full"
    assert rig.ask("one.example").rcode == "SERVFAIL"
    assert rig.upstreams[ONE].health.is_up
    assert rig.upstreams[ONE].statistics().failures == {"full": 1}
