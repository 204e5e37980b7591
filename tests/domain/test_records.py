import dns.rdata
import dns.rdatatype
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.dns import names, record_types, records
from kudurru.domain.dns.record_types import BadRecord

ORIGIN = names.from_text("example.")
ALL_TYPES = sorted(records._KINDS)

# (type, presentation, canonical presentation where it differs)
GOOD = [
    ("A", "192.0.2.1", None),
    ("AAAA", "2001:DB8::1", "2001:db8::1"),
    ("AAAA", "::", None),
    ("AAAA", "::1.2.3.4", "::102:304"),
    ("AAAA", "1:0:0:2:0:0:0:3", "1:0:0:2::3"),
    ("AAAA", "1:0:0:2:3:0:0:4", "1::2:3:0:0:4"),
    ("AAAA", "1:2:3:4:5:6:7::", "1:2:3:4:5:6:7:0"),
    ("AAAA", "1:0:2:3:4:5:6:7", None),
    ("NS", "ns", "ns.example."),
    ("NS", "@", "example."),
    ("CNAME", "a.b.", None),
    ("CNAME", r"\@\.b", r"\@\.b.example."),
    ("MX", "10 Mail", "10 Mail.example."),
    ("MX", "0 .", None),
    ("SOA", "ns host 1 2h 15m 2w 1h30m", "ns.example. host.example. 1 7200 900 1209600 5400"),
    ("TXT", '"a b" c', '"a b" "c"'),
    ("TXT", '""', None),
    ("TXT", r'"\"\\\000\255"', None),
    ("TXT", r"\"foo\"", r'"\"foo\""'),
    ("TXT", 'v="x y"', '"v=" "x y"'),
    ("TXT", "é", r'"\195\169"'),
    ("TXT", '( "a" "b" )', '"a" "b"'),
    ("SRV", "0 5 5060 .", None),
    ("CAA", '0 issue "ca.example.net; a=b"', None),
    ("CAA", "128 tbs Unknown", '128 tbs "Unknown"'),
    ("CAA", '0 issue ""', None),
    ("DS", "12345 RSASHA256 1 " + "0a" * 20, "12345 8 1 " + "0A" * 20),
    ("CDS", "0 0 0 00", None),
    ("DNSKEY", "257 3 8 AwEA AQ==", "257 3 8 AwEAAQ=="),
    ("CDNSKEY", "0 3 0 AA==", None),
    ("NSEC", "a. RRSIG A TYPE1234", "a. A RRSIG TYPE1234"),
    ("NSEC", "a.", None),
    ("NSEC3", "1 0 12 - 2t7b4g4vsa5smi47", "1 0 12 - 2T7B4G4VSA5SMI47"),
    ("NSEC3PARAM", "1 0 0 AABB", None),
    ("RRSIG", "A 8 2 3 9 0 7 a. AAAA", "A 8 2 3 19700101000009 19700101000000 7 a. AAAA"),
    ("TLSA", "3 1 1 0a 0B", "3 1 1 0A0B"),
    ("SSHFP", "4 2 " + "AB" * 32, None),
    ("NAPTR", '1 2 S SIP+D2U "" _sip', '1 2 "S" "SIP+D2U" "" _sip.example.'),
    ("HINFO", "PC Linux", '"PC" "Linux"'),
    ("URI", '1 2 "https://a/"', None),
    ("EUI48", "00-00-5E-00-53-2a", "00-00-5e-00-53-2a"),
    ("L64", "10 2001:0DB8:1140:1000", "10 2001:0db8:1140:1000"),
    ("LOC", "60 9 N 24 39 E 10", "60 9 0.000 N 24 39 0.000 E 10.00m"),
    ("APL", "1:192.168.32.0/21 !1:192.168.38.0/28", None),
    ("SVCB", "0 svc", "0 svc.example."),
    ("SVCB", "0 . port=53 key99", "0 . port=53 key99"),
    ("SVCB", "0 . port", r"0 . key3"),
    ("HTTPS", "1 . alpn=h2,h3 port=443", '1 . alpn="h2,h3" port=443'),
    ("HTTPS", "1 . port=1 mandatory=port,alpn alpn=h2", '1 . mandatory=alpn,port alpn="h2" port=1'),
    ("HTTPS", r'1 . alpn="f\\\\oo\\,bar,h2"', None),
    ("HTTPS", r"1 . alpn=f\\\092oo\092,bar,h2", r'1 . alpn="f\\\\oo\\,bar,h2"'),
    ("HTTPS", "1 . ohttp", "1 . key8"),
    ("HTTPS", "1 . tls-supported-groups=29,23", r'1 . key9="\000\029\000\023"'),
    ("SVCB", "1 . dohpath=/dns-query{?dns}", '1 . dohpath="/dns-query{?dns}"'),
    ("TYPE65280", r"\# 3 41 4243", r"\# 3 414243"),
    ("TYPE65280", r"\# 0", None),
    ("A", r"\# 4 C0000201", "192.0.2.1"),
]  # fmt: skip

BAD = [
    ("A", "192.0.2.256", "IPv4"),
    ("A", "192.0.2", "IPv4"),
    ("A", "192.0.2.01", "IPv4"),
    ("A", "192.0.2.1 x", "1 fields"),
    ("A", "::1", "IPv4"),
    ("A", "", "1 fields"),
    ("A", r"\# 3 010203", "4 octets"),
    ("A", r"\# 5 01020304", "announces 5"),
    ("A", r"\# 4 0102030", "odd number"),
    ("A", r"\# x", "not a number"),
    ("AAAA", "192.0.2.1", "IPv6"),
    ("AAAA", ":::", "IPv6"),
    ("AAAA", "1::2::3", "IPv6"),
    ("AAAA", "1:2:3:4::5:6:7:8", "IPv6"),
    ("AAAA", "12345::", "IPv6"),
    ("AAAA", "-1::", "IPv6"),
    ("AAAA", "1:2:3:4:5:6:7:8:9", "IPv6"),
    ("NS", "a..b", "empty label"),
    ("NS", "a" * 64, "64 octets"),
    ("MX", "65536 a", "at most 65535"),
    ("MX", "-1 a", "not a number"),
    ("MX", "a", "2 fields"),
    ("SOA", "a b 4294967296 1 1 1 1", "at most 4294967295"),
    ("SOA", "a b 1 1 1 1", "too few"),
    ("SOA", "a b 1h 1 1 1 1", "not a number"),
    ("TXT", "", "missing"),
    ("TXT", '"' + "a" * 256 + '"', "256 octets"),
    ("TXT", '"a', "not closed"),
    ("TXT", r'"\256"', "bad escape"),
    ("TXT", r'"\2x"', "bad escape"),
    ("TXT", "a;b", "semicolon"),
    ("TXT", "a\\", "backslash"),
    ("CAA", "256 issue x", "at most 255"),
    ("CAA", "0 iss-ue x", "letters and digits"),
    ("DS", "1 8 1 00", "20 octets"),
    ("DNSKEY", "257 3 8 AwEAAQ", "base64"),
    ("DNSKEY", "257 3 8", "empty"),
    ("NSEC3", "1 0 12 - !!", "base32hex"),
    ("RRSIG", "A 8 2 300 20301301000000 0 7 a. AAAA", "not a time"),
    ("SSHFP", "4 2 00", "32 octets"),
    ("URI", '1 2 ""', "must not be empty"),
    ("EUI48", "00-00-5E-00-53", "groups"),
    ("LOC", "91 N 0 E 0", "range"),
    ("LOC", "90 1 N 0 E 0", "latitude above 90"),
    ("LOC", "0 N 180 0 0.001 W 0", "longitude above 180"),
    ("SVCB", "1", "priority and a target"),
    ("SVCB", "1 . alpn", "list of protocols"),
    ("SVCB", "1 . alpn=h2 alpn=h3", "twice"),
    ("SVCB", "1 . alpn=h2,,h3", "empty item"),
    ("SVCB", "1 . no-default-alpn", "without alpn"),
    ("SVCB", "1 . mandatory=port", "not there"),
    ("SVCB", "1 . mandatory=mandatory", "itself"),
    ("SVCB", "1 . port=65536", "at most"),
    ("SVCB", "1 . ech=123", "base64"),
    ("SVCB", "1 . dohpath=/dns-query", "variable dns"),
    ("SVCB", "1 . dohpath", "variable dns"),
    ("SVCB", "1 . key65535", "unknown parameter"),
    ("SVCB", "1 . key01", "unknown parameter"),
    ("SVCB", "1 . key3=x", "port"),
    ("SVCB", "1 . hello", "unknown parameter"),
    ("ANY", r"\# 0", "not a type of zone data"),
    ("OPT", r"\# 0", "not a type of zone data"),
    ("TYPE65280", "hello", "no text form"),
]  # fmt: skip


@pytest.mark.parametrize(("mnemonic", "text", "canonical"), GOOD)
def test_presentation_is_read_and_shown_in_canonical_form(
    mnemonic: str, text: str, canonical: str | None
) -> None:
    rtype = record_types.type_from_text(mnemonic)
    rdata = records.rdata_from_text(rtype, text, ORIGIN)
    shown = records.rdata_to_text(rtype, rdata)
    assert shown == (canonical or text)
    assert records.rdata_from_text(rtype, shown) == rdata
    records.check_rdata(rtype, rdata)


@pytest.mark.parametrize(("mnemonic", "text", "why"), BAD)
def test_what_is_no_record_is_refused_with_the_reason(mnemonic: str, text: str, why: str) -> None:
    with pytest.raises(BadRecord, match=why):
        records.rdata_from_text(record_types.type_from_text(mnemonic), text, ORIGIN)


@given(st.sampled_from(ALL_TYPES), st.binary(max_size=60))
def test_any_octets_are_shown_and_well_formed_ones_read_back(rtype: int, rdata: bytes) -> None:
    shown = records.rdata_to_text(rtype, rdata)
    try:
        records.check_rdata(rtype, rdata)
    except BadRecord:
        assert shown == records.generic_text(rdata)
    else:
        assert records.rdata_from_text(rtype, shown) == rdata
    records.canonical_rdata(rtype, rdata)
    records.target_name(rtype, rdata)


WORDS = st.sampled_from([
    "0", "1", "8", "255", "65536", "a", "@", ".", "a.b.", '""', '"x"', "192.0.2.1", "::1", "A",
    "TYPE9", "AAAA", "-", "alpn=h2", "key9", "port=1", "1h", "20300101000000", "\\#", "00ff",
])  # fmt: skip


@given(st.sampled_from(ALL_TYPES), st.lists(WORDS, max_size=10) | st.text(max_size=20).map(list))
def test_any_text_is_a_record_or_refused(rtype: int, words: list[str]) -> None:
    try:
        rdata = records.rdata_from_text(rtype, " ".join(words), ORIGIN)
    except BadRecord:
        return
    records.check_rdata(rtype, rdata)
    assert records.rdata_from_text(rtype, records.rdata_to_text(rtype, rdata)) == rdata


# ---- beside dnspython, where both are right

NAME = st.from_regex(r"[a-z_*-]{1,5}(\.[A-Z0-9]{1,3})?\.?", fullmatch=True)
U8, U16, U32 = (st.integers(0, 2**bits - 1).map(str) for bits in (8, 16, 32))
STRING = st.binary(max_size=40).map(lambda value: "".join(f"\\{octet:03d}" for octet in value))
QUOTED = STRING.map('"{}"'.format)
HEX = st.binary(min_size=1, max_size=20).map(bytes.hex)
TYPES = st.lists(st.sampled_from(["A", "NS", "TYPE300", "CAA", "TYPE65000"]), max_size=4)
SHAPES: dict[str, list] = {
    "A": [st.ip_addresses(v=4).map(str)],
    "AAAA": [st.ip_addresses(v=6).map(str)],
    "NS": [NAME],
    "DNAME": [NAME],
    "MX": [U16, NAME],
    "SOA": [NAME, NAME, U32, U32, U32, U32, U32],
    "SRV": [U16, U16, U16, NAME],
    "TXT": [QUOTED, QUOTED],
    "CAA": [U8, st.from_regex("[a-zA-Z0-9]{1,8}", fullmatch=True), QUOTED],
    "NAPTR": [U16, U16, QUOTED, QUOTED, QUOTED, NAME],
    "TLSA": [U8, U8, st.just("0"), HEX],
    "NSEC": [NAME, TYPES.map(" ".join)],
    "RP": [NAME, NAME],
    "RRSIG": [st.just("A 8 2"), U32, U32, U32, U16, NAME, st.just("AAAA")],
    "NID": [U16, st.just("0014:4fff:ff20:ee64")],
    "HTTPS": [st.just("1"), NAME, st.sampled_from(["", "alpn=h2", "port=1 key667=x"])],
}  # fmt: skip
RECORDS = st.sampled_from(sorted(SHAPES)).flatmap(
    lambda mnemonic: st.tuples(st.just(mnemonic), st.tuples(*SHAPES[mnemonic]).map(" ".join))
)


@given(RECORDS)
def test_wire_and_canonical_wire_are_as_dnspython_makes_them(record: tuple[str, str]) -> None:
    mnemonic, text = record
    rtype = record_types.type_from_text(mnemonic)
    rdata = records.rdata_from_text(rtype, text, ORIGIN)
    peer = dns.rdata.from_text("IN", mnemonic, text, dns.name.from_text("example."), False)
    assert rdata == peer.to_wire()
    assert records.canonical_rdata(rtype, rdata) == peer.to_digestable()
    shown = records.rdata_to_text(rtype, rdata)
    assert dns.rdata.from_text("IN", mnemonic, shown).to_wire() == rdata


@pytest.mark.parametrize(
    ("mnemonic", "text", "lowered"),
    [
        ("NSEC", "A.B. A", "A.B. A"),  # RFC 6840 section 5.1
        ("RRSIG", "A 8 2 3 0 0 7 A.B. AAAA", "A 8 2 3 0 0 7 a.b. AAAA"),
        ("TXT", "A", "A"),
        ("SVCB", "1 A.", "1 A."),
        ("NAPTR", '1 2 "S" "" "X" A.', '1 2 "S" "" "X" a.'),
        ("HINFO", "A B", "A B"),
        ("KX", "1 A.", "1 a."),
    ],
)
def test_names_are_lowered_where_rfc_4034_lists_the_type(mnemonic, text, lowered) -> None:
    rtype = record_types.type_from_text(mnemonic)
    found = records.canonical_rdata(rtype, records.rdata_from_text(rtype, text))
    assert found == records.rdata_from_text(rtype, lowered)


# ---- targets


@pytest.mark.parametrize(
    ("mnemonic", "target", "shown"),
    [
        ("CNAME", "a.example", "a.example."),
        ("CNAME", "a.example.", "a.example."),
        ("MX", "10 mail.example", "10 mail.example."),
        ("TXT", "v=spf1 -all; x", '"v=spf1 -all; x"'),
        ("TXT", r"back\slash", r'"back\\slash"'),
        ("TXT", 'a "b"', r'"a \"b\""'),
        ("TXT", '"a" "b"', '"a" "b"'),
        ("TXT", "", '""'),
        ("TXT", "ü" * 200, '"' + r"\195\188" * 127 + r'\195" "\188' + r"\195\188" * 72 + '"'),
        ("SPF", "v=spf1", '"v=spf1"'),
        ("TYPE16", "plain", '"plain"'),
    ],
)
def test_targets_are_absolute_and_plain_text_is_one_string(mnemonic, target, shown) -> None:
    rtype = record_types.type_from_text(mnemonic)
    assert records.rdata_to_text(rtype, records.target_from_text(rtype, target)) == shown


@pytest.mark.parametrize(
    ("mnemonic", "target"),
    [("CNAME", "@"), ("CNAME", "a b"), ("TXT", '"a'), ("TXT", "x" * 65536), ("TXT", "\ud800")],
)
def test_bad_targets_are_refused(mnemonic: str, target: str) -> None:
    with pytest.raises(BadRecord):
        records.target_from_text(record_types.type_from_text(mnemonic), target)


# ---- what answers need


@pytest.mark.parametrize(
    ("mnemonic", "text", "target"),
    [
        ("NS", "a.", "a."),
        ("MX", "1 a.", "a."),
        ("SRV", "1 2 3 a.", "a."),
        ("HTTPS", "1 a. port=1", "a."),
        ("DNAME", "a.", "a."),
        ("TXT", "a", None),
        ("SOA", "a. b. 1 2 3 4 5", None),
    ],
)
def test_the_target_of_a_record_is_found(mnemonic, text, target) -> None:
    rtype = record_types.type_from_text(mnemonic)
    found = records.target_name(rtype, records.rdata_from_text(rtype, text))
    assert found == (target and names.from_text(target))


def test_only_types_of_rfc_1035_may_be_compressed() -> None:
    found = {rtype: records.compressible(rtype) for rtype in ALL_TYPES}
    assert {rtype for rtype, where in found.items() if where} == {2, 5, 6, 12, 15}
    assert found[record_types.SOA] == (0, 2)
    assert found[record_types.MX] == (2, 1)


@pytest.mark.parametrize(
    ("mnemonic", "rdata"),
    [
        ("A", b"abc"),
        ("A", b"abcde"),
        ("NS", b"\xc0\x00"),
        ("NS", b"\x01a"),
        ("NS", b"\x01a\x00\x00"),
        ("NS", b"\x01a" * 128 + b"\x00"),
        ("TXT", b""),
        ("TXT", b"\x05a"),
        ("NSEC", b"\x00\x00\x01\x00"),
        ("NSEC", b"\x00\x01\x01\x40\x00\x01\x40"),
        ("HTTPS", b"\x00\x01\x00\x00\x03\x00\x02\x00\x35\x00\x01\x00\x03\x02h2"),
        ("HTTPS", b"\x00\x01\x00\x00\x03\x00\x01\x35"),
        ("CAA", b"\x00\x00x"),
        ("LOC", b"\x00"),
    ],
)
def test_malformed_wire_is_found_and_shown_as_octets(mnemonic: str, rdata: bytes) -> None:
    rtype = record_types.type_from_text(mnemonic)
    with pytest.raises(BadRecord):
        records.check_rdata(rtype, rdata)
    assert records.rdata_to_text(rtype, rdata).startswith(f"\\# {len(rdata)}")


# ---- types


@pytest.mark.parametrize(
    ("text", "number"),
    [("A", 1), ("https", 65), ("TYPE1", 1), ("type65280", 65280), ("nsap-ptr", 23)],
)
def test_types_are_read_by_name_and_number(text: str, number: int) -> None:
    assert record_types.type_from_text(text) == number


@pytest.mark.parametrize("text", ["", "*", "AA", "TYPE", "TYPE65536", "TYPE-1", "TYPE¹"])
def test_an_unknown_type_is_refused(text: str) -> None:
    with pytest.raises(BadRecord, match="unknown record type"):
        record_types.type_from_text(text)


def test_type_names_are_those_of_dnspython() -> None:
    for rtype in [*dns.rdatatype.RdataType, 65280]:
        text = record_types.type_to_text(int(rtype))
        assert record_types.type_from_text(text) == rtype
        if "_" not in dns.rdatatype.to_text(rtype) and rtype:
            assert text == dns.rdatatype.to_text(rtype)


def test_blanks_behind_an_address_are_no_octets_of_it() -> None:
    wire = bytes.fromhex("00010002000300040005000600070008")
    assert records.target_from_text(record_types.AAAA, "1:2:3:4:5:6:7:08  ") == wire
