"""Cookies towards upstreams (RFC 7873), on scripted ones."""

import dns.edns
import dns.flags
import dns.message
import dns.rcode
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.dns.cookie_jar import CLIENT_LIFE_US, LEFT_OUT_US
from kudurru.domain.dns.responses import cookie_of
from tests.upstreams import SECOND_US, Rig, Script, always, question_in, response

WWW = "www.example. 300 IN A 192.0.2.1"
LIE = "www.example. 300 IN A 192.0.2.66"
ONE, TWO = "192.0.2.11", "192.0.2.12"
SERVER = b"a server's cookie"
TYPES = ("A", "AAAA", "TXT", "MX", "SRV", "PTR")


def cookie_in(query: dns.message.Message) -> dns.edns.CookieOption | None:
    found = [option for option in query.options if option.otype == dns.edns.OptionType.COOKIE]
    return found[0] if found else None


def with_cookie(
    query: dns.message.Message,
    *answer: str,
    server: bytes = SERVER,
    client: bytes | None = None,
    rcode: str = "NOERROR",
) -> bytes:
    """A response with the cookie of the query (or another one) and the server's."""
    sent = cookie_in(query)
    made = dns.message.from_wire(response(query, answer))
    options = [] if sent is None else [dns.edns.CookieOption(client or sent.client, server)]
    made.use_edns(0, options=options)
    made.set_rcode(dns.rcode.from_text(rcode))
    return made.to_wire()


def cooking(*answer: str) -> Script:
    return lambda query, _: with_cookie(query, *answer)


def test_the_cookie_of_an_upstream_is_shown_with_the_next_question() -> None:
    rig = Rig(ONE)
    rig.scripts[ONE] = cooking(WWW)
    for rtype in TYPES[:3]:
        assert rig.ask("www.example", rtype).rcode == "NOERROR"
    cookies = [cookie_in(query) for _, _, query in rig.asked]
    assert [cookie.server for cookie in cookies if cookie] == [b"", SERVER, SERVER]
    assert len({cookie.client for cookie in cookies if cookie}) == 1
    assert rig.upstreams[ONE].statistics().has_cookies


def test_each_upstream_sees_a_cookie_of_its_own_and_for_an_hour() -> None:
    rig = Rig(ONE, by_domain={b"\4else\0": [TWO]})
    rig.scripts |= {ONE: cooking(WWW), TWO: always()}
    rig.ask("www.example")
    rig.ask("www.else")
    rig.pass_time(CLIENT_LIFE_US / SECOND_US)
    rig.ask("www.example", "TXT")
    rig.pass_time(0)
    clients = [cookie.client for _, _, query in rig.asked if (cookie := cookie_in(query))]
    assert len(set(clients)) == len(clients) == 3


@pytest.mark.parametrize("upstream", ["tcp://192.0.2.11", "tls://192.0.2.11#name=x.example"])
def test_where_nobody_can_forge_no_cookie_is_sent(upstream: str) -> None:
    rig = Rig(upstream)
    rig.scripts[upstream] = always(WWW)
    assert rig.ask("www.example").texts == ["www.example. 300 A 192.0.2.1"]
    assert cookie_in(rig.asked[0][2]) is None


@pytest.mark.parametrize("forged", ["none", "other", "short"])
def test_an_answer_without_the_cookie_is_not_taken_from_who_gave_it_back(forged: str) -> None:
    rig = Rig(ONE)
    rig.scripts[ONE] = cooking(WWW)
    assert rig.ask("first.example").rcode == "NOERROR"

    def lie(query: dns.message.Message, _packet: bytes) -> bytes:
        if forged == "none":
            return response(query, [LIE])
        if forged == "other":
            return with_cookie(query, LIE, client=b"8 octets")
        return with_cookie(query, LIE, server=b"")

    rig.scripts |= {ONE: lie, f"tcp:{ONE}": cooking(WWW)}
    assert rig.ask("www.example").texts == ["www.example. 300 A 192.0.2.1"]
    assert [proto for _, proto, _ in rig.asked] == ["udp", "udp", "tcp"]
    assert rig.upstreams[ONE].statistics().mismatched == 1


def test_the_right_answer_behind_a_forged_one_is_still_taken() -> None:
    rig = Rig(ONE)
    rig.scripts[ONE] = cooking(WWW)
    rig.ask("first.example")
    rig.pass_time(0)
    rig.scripts |= {
        ONE: lambda query, _: [(0.01, response(query, [LIE])), (0.02, with_cookie(query, WWW))],
        f"tcp:{ONE}": lambda _query, _packet: None,
    }
    assert rig.ask("www.example").texts == ["www.example. 300 A 192.0.2.1"]


def test_a_bad_cookie_is_asked_again_with_the_new_one_and_then_over_tcp() -> None:
    rig = Rig(ONE)
    fresh = [b"one server cookie", b"two server cookie"]
    rig.scripts[ONE] = lambda query, _: with_cookie(query, server=fresh.pop(0), rcode="BADCOOKIE")
    rig.scripts[f"tcp:{ONE}"] = cooking(WWW)
    assert rig.ask("www.example").texts == ["www.example. 300 A 192.0.2.1"]
    assert [proto for _, proto, _ in rig.asked] == ["udp", "udp", "tcp"]
    shown = [cookie_in(query) for _, _, query in rig.asked]
    assert [cookie.server for cookie in shown if cookie] == [
        b"", b"one server cookie", b"two server cookie",
    ]  # fmt: skip


def test_an_upstream_that_gives_none_back_any_more_is_asked_without_for_a_while() -> None:
    rig = Rig(ONE)
    rig.scripts[ONE] = cooking(WWW)
    assert rig.ask("first.example").rcode == "NOERROR"
    rig.scripts |= {ONE: always(WWW), f"tcp:{ONE}": always(WWW)}
    for rtype in TYPES[:3]:
        assert rig.ask("www.example", rtype).rcode == "NOERROR"
    assert [proto for _, proto, _ in rig.asked[1:]] == ["udp", "tcp"] * 3
    rig.asked.clear()
    assert rig.ask("www.example", "MX").rcode == "NOERROR"
    assert [(proto, cookie_in(query)) for _, proto, query in rig.asked] == [("udp", None)]
    rig.asked.clear()
    rig.pass_time(LEFT_OUT_US / SECOND_US)
    assert rig.ask("www.example", "SRV").rcode == "NOERROR"
    ((_, proto, query),) = rig.asked
    assert proto == "udp"
    assert cookie_in(query) is not None


def test_a_server_that_knows_edns_and_refuses_cookies_is_asked_without() -> None:
    rig = Rig(ONE)

    def script(query: dns.message.Message, _packet: bytes) -> bytes:
        return response(query, [WWW], rcode="FORMERR" if query.options else "NOERROR")

    rig.scripts[ONE] = script
    assert rig.ask("www.example").rcode == "NOERROR"
    assert rig.ask("www.example", "TXT").rcode == "NOERROR"
    seen = [(query.edns, len(query.options)) for _, _, query in rig.asked]
    assert seen == [(0, 1), (0, 0), (0, 0)]


def test_a_server_that_drops_queries_with_cookies_costs_three_waits() -> None:
    rig = Rig(ONE)
    rig.scripts[ONE] = lambda query, _: None if query.options else response(query, [WWW])
    for rtype in TYPES[:4]:
        assert rig.ask("www.example", rtype).rcode == "NOERROR"
    assert [len(query.options) for _, _, query in rig.asked] == [1, 0] * 3 + [0]


def test_a_truncated_answer_needs_no_cookie_because_tcp_is_asked_anyway() -> None:
    rig = Rig(ONE)
    rig.scripts[ONE] = cooking(WWW)
    assert rig.ask("first.example").rcode == "NOERROR"
    rig.scripts |= {ONE: always(flags=dns.flags.TC), f"tcp:{ONE}": cooking(WWW)}
    assert rig.ask("www.example").texts == ["www.example. 300 A 192.0.2.1"]
    assert rig.upstreams[ONE].statistics().mismatched == 0


@given(
    st.lists(st.sampled_from([WWW, "www.example. 60 IN TXT a", "x.example. 60 IN MX 1 y."])),
    st.binary(min_size=0, max_size=40),
    st.booleans(),
    st.booleans(),
)
def test_the_cookie_of_a_response_is_found_wherever_it_stands(
    answer: list[str], cookie: bytes, has_more_options: bool, has_one: bool
) -> None:
    query = dns.message.make_query("www.example", "A", use_edns=0)
    made = dns.message.from_wire(response(query, answer))
    options = [dns.edns.GenericOption(dns.edns.OptionType.COOKIE, cookie)] if has_one else []
    if has_more_options:
        options.insert(0, dns.edns.GenericOption(65_001, b"more"))
    made.use_edns(0, options=options)
    wire = made.to_wire()
    assert cookie_of(question_in(wire), wire) == (cookie if has_one else None)


@given(st.binary(max_size=80))
def test_garbage_shows_no_cookie_and_no_fault(tail: bytes) -> None:
    query = dns.message.make_query("www.example", "A").to_wire()
    wire = query[:2] + b"\x81\x80\0\1\0\1\0\0\0\1" + question_in(query) + tail
    found = cookie_of(question_in(query), wire)
    assert found is None or found in tail
