"""DNS stamps, by the suite of go-dnsstamps and our own."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.dns.stamps import BadStamp, parse_stamp
from kudurru.domain.dns.upstreams import check_host, parse_entry, parse_upstream
from tests.conformance.cases import rows
from tests.vectors import vectors


def test_stamps_of_all_kinds_are_read_and_bad_ones_refused() -> None:
    count = 0
    for row in rows(vectors("stamps/stamps.jsonl")):
        count += 1
        expect = row["expect"]
        if expect == "error":
            with pytest.raises(BadStamp):
                parse_stamp(row["stamp"])
            continue
        stamp = parse_stamp(row["stamp"])
        assert stamp.protocol == expect["proto"]
        assert list(stamp.properties) == expect["props"]
        assert stamp.address == expect.get("addr", "")
        assert stamp.public_key.hex() == expect.get("pk", "")
        assert stamp.provider == expect.get("provider", "")
        assert [one.hex() for one in stamp.hashes] == expect.get("hashes", [])
        assert stamp.host == expect.get("host", "")
        assert stamp.path == expect.get("path", "")
    assert count == 23


@given(st.text(max_size=80) | st.binary(max_size=60).map(lambda b: b.hex()))
def test_any_text_is_an_upstream_or_refused_with_words(text: str) -> None:
    for candidate in (text, f"sdns://{text}", f"tls://{text}", f"https://a/{text}"):
        for parse in (parse_upstream, parse_entry):
            with contextlib.suppress(ValueError):
                assert parse(candidate)


@pytest.mark.parametrize(
    ("text", "transport", "host", "port", "path", "addresses"),
    [
        ("192.0.2.1", "udp", "192.0.2.1", 53, "", ("192.0.2.1",)),
        ("192.0.2.1:5353", "udp", "192.0.2.1", 5353, "", ("192.0.2.1",)),
        ("2001:db8::1", "udp", "2001:db8::1", 53, "", ("2001:db8::1",)),
        ("tcp://[2001:DB8::1]:54", "tcp", "2001:db8::1", 54, "", ("2001:db8::1",)),
        ("udp://::1", "udp", "::1", 53, "", ("::1",)),
        ("https://2001:db8::1/q", "doh", "2001:db8::1", 443, "/q", ("2001:db8::1",)),
        ("tls://dns.example", "dot", "dns.example", 853, "", ()),
        (
            "tls://dns.example#ip=192.0.2.1&ip=::1",
            "dot",
            "dns.example",
            853,
            "",
            ("192.0.2.1", "::1"),
        ),
        ("https://dns.example", "doh", "dns.example", 443, "/dns-query", ()),
        ("h3://dns.example:8443/q?x=1", "doh3", "dns.example", 8443, "/q?x=1", ()),
        ("quic://192.0.2.1", "doq", "192.0.2.1", 853, "", ("192.0.2.1",)),
    ],
)
def test_upstreams_as_people_write_them(
    text: str, transport: str, host: str, port: int, path: str, addresses: tuple[str, ...]
) -> None:
    found = parse_upstream(text)
    assert (found.transport, found.host, found.port, found.path) == (transport, host, port, path)
    assert found.addresses == addresses
    assert found.text == text


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("ftp://dns.example", "is no upstream"),
        ("tls://dns.example/path", "only https:// and h3://"),
        ("192.0.2.1:99999", "no number up to 65535"),
        ("192.0.2.1:0", "port 0"),
        ("tls://me:secret@dns.example", "passwords do not belong"),
        ("tls://dns.example#ipp=192.0.2.1", "unknown option 'ipp'"),
        ("192.0.2.1#5353", "a port is written 192.0.2.1:5353"),
        ("tls://dns.example#pin=abc", "a pin is"),
        ("[//]192.0.2.1", "names no domain"),
        ("sdns://AAcAAAAAAAAAA2ZvbwA", "after the last field"),
        ("", "is no upstream"),
        ("two words", "is no upstream"),
    ],
)
def test_what_is_no_upstream_is_refused_with_the_reason(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        parse_entry(text)


def test_a_secret_in_a_url_is_not_told_again() -> None:
    with pytest.raises(ValueError, match="passwords") as caught:
        parse_upstream("https://me:hunter2@dns.example/")
    assert "hunter2" not in str(caught.value)


def test_domains_before_an_upstream() -> None:
    found = parse_entry("[/Corp.Example/home.arpa/]192.0.2.1")
    assert found.domains == (b"\4corp\7example\0", b"\4home\4arpa\0")
    assert found.address.host == "192.0.2.1"


@pytest.mark.parametrize("text", ["999.1.1.1", "udp://192.0.2.256:53", "tls://dns.1", "192.0.2"])
def test_an_address_with_a_slip_is_no_host_name_that_anybody_writes(text: str) -> None:
    found = parse_entry(text).address  # what was recorded once is still read
    with pytest.raises(ValueError, match="is neither an IP address nor a host name"):
        check_host(found)


@pytest.mark.parametrize(
    "text", ["192.0.2.1", "tls://192.0.2#ip=192.0.2.1", "tls://1.dns.example", "7"]
)
def test_what_may_be_a_host_name_is_one(text: str) -> None:
    check_host(parse_entry(text).address)
