import re
from collections import Counter

import dns.exception
import dns.zone
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kudurru.domain.dns import master_file, names, record_types, records
from kudurru.domain.dns.master_file import CannotRead, Limits
from kudurru.domain.errors import Invalid

ORIGIN = names.from_text("ex.")


def shown(text: str | bytes, **options) -> list[str]:
    """Records as `owner ttl type data`."""
    options.setdefault("origin", ORIGIN)
    options.setdefault("default_ttl", 9)
    found = master_file.read(text, file="z", **options)
    return [show(record) for record in found.records]


def show(record: master_file.Record) -> str:
    rtype = record_types.type_to_text(record.rtype)
    data = records.rdata_to_text(record.rtype, record.rdata)
    return f"{names.to_text(record.owner)} {record.ttl} {rtype} {data}"


def causes(text: str | bytes, **options) -> list[str]:
    with pytest.raises(Invalid) as caught:
        shown(text, **options)
    return [str(cause) for cause in caught.value.causes]


LAYOUT = {
    "owner, TTL, class": ("a 5 IN A 1.1.1.1", ["a.ex. 5 A 1.1.1.1"]),
    "owner, class, TTL": ("a IN 5 A 1.1.1.1", ["a.ex. 5 A 1.1.1.1"]),
    "no class": ("a 5 A 1.1.1.1", ["a.ex. 5 A 1.1.1.1"]),
    "no TTL": ("a IN A 1.1.1.1", ["a.ex. 9 A 1.1.1.1"]),
    "neither": ("a A 1.1.1.1", ["a.ex. 9 A 1.1.1.1"]),
    "any letter case": (
        "a in a 1.1.1.1\nb cLaSs1 tYpE1 1.1.1.1",
        ["a.ex. 9 A 1.1.1.1", "b.ex. 9 A 1.1.1.1"],
    ),
    "an owner that looks like a class": ("in IN A 1.1.1.1", ["in.ex. 9 A 1.1.1.1"]),
    "an owner that looks like a type": ("mx MX 1 mx", ["mx.ex. 9 MX 1 mx.ex."]),
    "an owner that looks like a TTL": ("300 A 1.1.1.1", ["300.ex. 9 A 1.1.1.1"]),
    "owner omitted": ("a A 1.1.1.1\n  A 2.2.2.2", ["a.ex. 9 A 1.1.1.1", "a.ex. 9 A 2.2.2.2"]),
    "owner omitted after a tab": (
        "a A 1.1.1.1\n\tA 2.2.2.2",
        ["a.ex. 9 A 1.1.1.1", "a.ex. 9 A 2.2.2.2"],
    ),
    "owner omitted at first": (" A 1.1.1.1", ["ex. 9 A 1.1.1.1"]),
    "owner kept over $ORIGIN": (
        "a A 1.1.1.1\n$ORIGIN b\n A 2.2.2.2",
        ["a.ex. 9 A 1.1.1.1", "a.ex. 9 A 2.2.2.2"],
    ),
    "the same owner under two origins": (
        "a A 1.1.1.1\n$ORIGIN b\na A 2.2.2.2",
        ["a.ex. 9 A 1.1.1.1", "a.b.ex. 9 A 2.2.2.2"],
    ),
    "@": ("@ NS @", ["ex. 9 NS ex."]),
    "absolute": ("a.b. NS c.", ["a.b. 9 NS c."]),
    "$ORIGIN": ("$ORIGIN a\nb NS c\n$ORIGIN d.\n@ NS @", ["b.a.ex. 9 NS c.a.ex.", "d. 9 NS d."]),
    "$TTL": (
        "$TTL 1h30m\na A 1.1.1.1\n$ttl 7\nb A 1.1.1.1",
        ["a.ex. 5400 A 1.1.1.1", "b.ex. 7 A 1.1.1.1"],
    ),
    "TTL units": (
        "a 1w2d3h4m5s A 1.1.1.1\nb 1M A 1.1.1.1",
        ["a.ex. 788645 A 1.1.1.1", "b.ex. 60 A 1.1.1.1"],
    ),
    "an explicit TTL does not stick": (
        "a 5 A 1.1.1.1\nb A 1.1.1.1",
        ["a.ex. 5 A 1.1.1.1", "b.ex. 9 A 1.1.1.1"],
    ),
    "parentheses": ("a MX ( 1 ; one\n  b ) ; end", ["a.ex. 9 MX 1 b.ex."]),
    "parentheses around everything": ("(a) (5) (IN) (A) (1.1.1.1)", ["a.ex. 5 A 1.1.1.1"]),
    "nested parentheses": ("a ( A ( 1.1.1.1 ) )", ["a.ex. 9 A 1.1.1.1"]),
    "a parenthesis in a comment": ("a A ( ; )\n1.1.1.1 )", ["a.ex. 9 A 1.1.1.1"]),
    "a parenthesis in quotes": ('a TXT "(" ")"', ['a.ex. 9 TXT "(" ")"']),
    "a semicolon in quotes": ('a TXT "a;b"', ['a.ex. 9 TXT "a;b"']),
    "a comment without space": ("a TXT a;b", ['a.ex. 9 TXT "a"']),
    "an escaped semicolon": (r"a TXT a\;b", ['a.ex. 9 TXT "a;b"']),
    "an escaped space": (r"a TXT a\ b", ['a.ex. 9 TXT "a b"']),
    "an escaped quote": (r'a TXT "a\"b"', [r'a.ex. 9 TXT "a\"b"']),
    "decimal escapes": (r"a TXT \065\"", [r'a.ex. 9 TXT "A\""']),
    "strings without space": ('a TXT "a""b"', ['a.ex. 9 TXT "a" "b"']),
    "an empty string": ('a TXT ""', ['a.ex. 9 TXT ""']),
    "a string over lines": ('a TXT "a\nb"', [r'a.ex. 9 TXT "a\010b"']),
    "lines end in CR LF": (
        "a A 1.1.1.1\r\n\r\n A 2.2.2.2 ; x\r\n",
        ["a.ex. 9 A 1.1.1.1", "a.ex. 9 A 2.2.2.2"],
    ),
    "a quoted value of a parameter": (
        'a HTTPS 1 . alpn="h2,h3"',
        ['a.ex. 9 HTTPS 1 . alpn="h2,h3"'],
    ),
    "blank and comment lines": ("\n  \n;x\n  ; y\n\t\na A 1.1.1.1", ["a.ex. 9 A 1.1.1.1"]),
    "no line end at the end": ("a A 1.1.1.1 ; x", ["a.ex. 9 A 1.1.1.1"]),
    "generic data": (r"a TYPE1 \# 4 01010101", ["a.ex. 9 A 1.1.1.1"]),
    "generic data in parts": ("a TYPE999 \\# 2 ( 01\n 02 )", [r"a.ex. 9 TYPE999 \# 2 0102"]),
    "long data in parts": ("a TLSA 3 1 1 ( 0a\n 0b )", ["a.ex. 9 TLSA 3 1 1 0A0B"]),
    "UTF-8": ('a TXT "é" ; ü', [r'a.ex. 9 TXT "\195\169"']),
    "a non-breaking space is no space": ("a TXT x\u00a0y", [r'a.ex. 9 TXT "x\194\160y"']),
    "escaped owner": (r"\$a.b\.c A 1.1.1.1", [r"\$a.b\.c.ex. 9 A 1.1.1.1"]),
    "letter case is kept": ("wWw A 1.1.1.1", ["wWw.ex. 9 A 1.1.1.1"]),
    "nothing": ("", []),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), LAYOUT.values(), ids=LAYOUT)
def test_files_are_read_however_they_are_laid_out(text: str, expected: list[str]) -> None:
    assert shown(text) == expected
    assert shown(text.encode()) == expected
    assert shown(b"\xef\xbb\xbf" + text.encode()) == expected  # a byte order mark


def test_octets_that_are_no_utf_8_stay_what_they_are() -> None:
    assert shown(b'a TXT "\xe9"') == [r'a.ex. 9 TXT "\233"']


SOA = "@ SOA ns h 1 2 3 4 77\n"


@pytest.mark.parametrize(
    ("text", "ttls"),
    [
        (SOA + "a A 1.1.1.1", [77, 77]),
        ("@ 5 SOA ns h 1 2 3 4 77\na A 1.1.1.1", [5, 5]),
        ("$TTL 3\n" + SOA + "a 4 A 1.1.1.1\nb A 1.1.1.1", [3, 4, 3]),
        (SOA + "a 4 A 1.1.1.1\nb A 1.1.1.1", [77, 4, 4]),
        ("a 4 A 1.1.1.1\nb A 1.1.1.1\n$TTL 6\nc A 1.1.1.1", [4, 4, 6]),
    ],
)
def test_a_ttl_that_is_not_stated_comes_from_before(text: str, ttls: list[int]) -> None:
    found = master_file.read(text, file="z", origin=ORIGIN)
    assert [record.ttl for record in found.records] == ttls


def test_records_know_their_line() -> None:
    text = 'a A 1.1.1.1\n\nb TXT ( "x"\n\n "y\nz" ) ; c\n; d\nc A 2.2.2.2\n'
    found = master_file.read("$TTL 1\n" + text, file="z", origin=ORIGIN)
    assert [record.place for record in found.records] == ["z:2", "z:4", "z:9"]
    assert [str(warning) for warning in found.warnings] == [
        "z:4: a quoted string goes on over the end of the line"
    ]


def test_the_apex_is_the_owner_of_the_first_soa() -> None:
    assert master_file.read("$ORIGIN a.\n" + SOA, file="z").apex == names.from_text("a.")
    assert master_file.read("a. SOA b. c 1 2 3 4 5", file="z").apex == names.from_text("a.")
    assert master_file.read("$TTL 1\n@ NS a.", file="z", origin=ORIGIN).apex is None


def test_an_absolute_soa_that_opens_a_file_gives_the_origin() -> None:
    text = "a.b. 5 IN SOA ns h 1 2 3 4 5\nc A 1.1.1.1"
    expected = ["a.b. 5 SOA ns.a.b. h.a.b. 1 2 3 4 5", "c.a.b. 9 A 1.1.1.1"]
    assert shown(text, origin=None) == expected


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a A 1.1.1.256", "z:1: A: '1.1.1.256' is not an IPv4 address"),
        ("\n\na A", "z:3: A: 1 fields are wanted, 0 are there"),
        ("a", "z:1: the record has no type"),
        ("a 5 IN", "z:1: the record has no type"),
        ("a 5 6 A 1.1.1.1", "z:1: '6' is a second TTL"),
        ("a FOO x", "z:1: unknown record type 'FOO'"),
        ("a CH A 1.1.1.1", "z:1: class CH is not served; only IN"),
        ("a CLASS3 A 1.1.1.1", "z:1: class CLASS3 is not served; only IN"),
        ("a 2147483648 A 1.1.1.1", "z:1: TTL: 2147483648 is too large; at most 2147483647"),
        ("a 99999w A 1.1.1.1", "z:1: TTL: 99999w is"),
        ("a 5x A 1.1.1.1", "z:1: TTL: '5x' is not a time"),
        ("a AXFR x", "z:1: AXFR is not a type of zone data"),
        ("a..b A 1.1.1.1", "z:1: 'a..b' has an empty label"),
        ('a TXT "x', "z:1: a quote is not closed"),
        ("a TXT x\\\nb A 1.1.1.1", "z:1: a backslash at the end of the line"),
        ("a TXT ( x", "z:1: a parenthesis is not closed"),
        ("a TXT x )", "z:1: a closing parenthesis without an opening one"),
        ("$FOO", "z:1: unknown directive '$FOO'"),
        ("$TTL", "z:1: $TTL with 0 arguments"),
        ("$TTL x", "z:1: TTL: 'x' is not a time"),
        ("$ORIGIN a b", "z:1: $ORIGIN with 2 arguments"),
        ("$ORIGIN a..b", "z:1: 'a..b' has an empty label"),
        ("$INCLUDE /etc/passwd", "z:1: $INCLUDE is not allowed here"),
        ("é A 1.1.1.1", "z:1: 'é' is not ASCII"),
        ("a TXT \x00\nb\x00 A 1.1.1.1", "z:2: '\\x00' in 'b\\x00' must be escaped"),
        (b"\xff\xfea\x00", "z:1: the file is UTF-16; save it as UTF-8"),
        (r"a A \# 3 010101", "z:1: A: 4 octets wanted"),
    ],
)
def test_a_fault_names_file_and_line(text: str | bytes, fault: str) -> None:
    found = causes(text)
    assert len(found) == 1
    assert found[0].startswith(fault)


def test_all_faults_are_reported_together_and_reading_goes_on() -> None:
    text = 'a A x\nb TXT "open\nc A 1.1.1.1\nd ( A\ne TXT )\nf AAAA y\ng ( MX'
    assert [fault.split(": ")[0] for fault in causes(text)] == ["z:1", "z:2", "z:4", "z:6", "z:7"]


def test_faults_end_at_the_limit() -> None:
    found = causes("a A x\n" * 500)
    assert len(found) == 101
    assert found[-1] == "and more; the rest was not read"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a A 1.1.1.1", "no origin yet"),
        (" SOA a b 1 2 3 4 5", "no origin yet"),
        ("a SOA a b 1 2 3 4 5", "no origin yet"),
        ("$ORIGIN a", "relative"),
    ],
)
def test_relative_names_without_an_origin_are_a_fault(text: str, why: str) -> None:
    assert why in causes(text, origin=None)[0]


def test_a_file_without_an_origin_says_so_once_and_is_read_from_the_first_one_on() -> None:
    told = causes("a A 1.1.1.1\nb A 1.1.1.1\n$ORIGIN o.\nc A x\n", origin=None)
    assert len(told) == 2
    assert "no origin yet" in told[0]
    assert "IPv4" in told[1]


def test_a_first_record_without_any_ttl_is_a_fault() -> None:
    assert "no TTL" in causes("a A 1.1.1.1", default_ttl=None)[0]


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    text = "a A 1.1.1.1\n" * 20_000
    shown(text, on_progress=lambda *step: told.append(step))
    assert [total for _, total in told] == [len(text)] * 2
    assert 0 < told[0][0] < told[1][0] <= len(text)


# ---- $INCLUDE


def test_an_included_file_has_its_own_origin_and_gives_both_back() -> None:
    files = {"f": "b A 1.1.1.1\n$ORIGIN c\n@ A 1.1.1.1\n$TTL 4\n", "g": " A 2.2.2.2\n"}
    text = 'a A 3.3.3.3\n$INCLUDE f\n A 4.4.4.4\n$INCLUDE g in\n$include "f" in.\nz A 5.5.5.5'
    found = master_file.read(
        text, file="z", origin=ORIGIN, default_ttl=9,
        include=lambda name, _: (name, files[name].encode()),
    )  # fmt: skip
    assert [(show(record), record.place) for record in found.records] == [
        ("a.ex. 9 A 3.3.3.3", "z:1"),
        ("b.ex. 9 A 1.1.1.1", "f:1"),
        ("c.ex. 9 A 1.1.1.1", "f:3"),
        ("a.ex. 4 A 4.4.4.4", "z:3"),
        ("in.ex. 4 A 2.2.2.2", "g:1"),
        ("b.in. 4 A 1.1.1.1", "f:1"),
        ("c.in. 4 A 1.1.1.1", "f:3"),
        ("z.ex. 4 A 5.5.5.5", "z:6"),
    ]


def test_files_that_include_each_other_are_a_fault() -> None:
    found = causes(
        "$INCLUDE f", include=lambda name, _: ("z" if name == "f2" else name, b"$INCLUDE f2")
    )
    assert found == ["f:1: $INCLUDE of z from within itself"]


def test_includes_nest_ten_deep_and_no_deeper() -> None:
    def include(name: str, _: str) -> tuple[str, bytes]:
        return name, f"$INCLUDE {int(name) + 1}\n".encode() if name != "11" else b""

    assert causes("$INCLUDE 1", include=include) == [
        "10:1: $INCLUDE is nested deeper than 10 files"
    ]
    assert shown("$INCLUDE 2", include=include) == []


def test_an_include_that_cannot_be_read_is_a_fault_of_its_line() -> None:
    def include(name: str, file: str) -> tuple[str, bytes]:
        raise CannotRead(f"no {name} for {file}")

    assert causes("\n$INCLUDE f", include=include) == ["z:2: no f for z"]


# ---- $GENERATE: what BIND 9.18 makes of each


GENERATED = {
    "numbers": ("1-2 h$ A 192.0.2.$", ["h1.ex. 9 A 192.0.2.1", "h2.ex. 9 A 192.0.2.2"]),
    "a step": ("0-4/3 h$ A 192.0.2.$", ["h0.ex. 9 A 192.0.2.0", "h3.ex. 9 A 192.0.2.3"]),
    "a TTL and a class": ("1-1 h 300 IN A 192.0.2.$", ["h.ex. 300 A 192.0.2.1"]),
    "an offset and a width": ("1-1 h${10,4,d} CNAME x${-1}", ["h0011.ex. 9 CNAME x0.ex."]),
    "hexadecimal": ("254-254 ${0,3,x} CNAME ${0,0,X}", ["0fe.ex. 9 CNAME FE.ex."]),
    "octal": ("8-8 ${0,3,o} CNAME ${0,0,o}", ["010.ex. 9 CNAME 10.ex."]),
    "nibbles": ("254-254 ${0,5,n}.r PTR ${0,3,N}", ["e.f.0.r.ex. 9 PTR E.F.ex."]),
    "nibbles with the last dot": ("254-254 ${0,4,N}r PTR a", ["E.F.r.ex. 9 PTR a.ex."]),
    "nibbles as few as they are": ("5-5 ${0,1,n}.r PTR ${0,0,n}", ["5.r.ex. 9 PTR 5.ex."]),
    "quoted data": ('1-1 h MX "10 mail$"', ["h.ex. 9 MX 10 mail1.ex."]),
    "quoted strings": ('1-1 h TXT "a b$"', ['h.ex. 9 TXT "a" "b1"']),
    "quotes in quotes": (r'1-1 h TXT "\"a b$\""', ['h.ex. 9 TXT "a b1"']),
    "more words than BIND takes": ("1-1 h MX 10 mail$", ["h.ex. 9 MX 10 mail1.ex."]),
    "a dollar sign": (r"1-1 h CNAME $$x\$y", [r"h.ex. 9 CNAME \$x\$y.ex."]),
    "a wildcard": ("1-1 *.w$ A 10.0.0.1", ["*.w1.ex. 9 A 10.0.0.1"]),
}  # fmt: skip


@pytest.mark.parametrize(("directive", "expected"), GENERATED.values(), ids=GENERATED)
def test_generate_makes_the_records_that_bind_makes(directive: str, expected: list[str]) -> None:
    assert shown(f"$GENERATE {directive}") == expected


def test_generated_records_do_not_become_the_omitted_owner() -> None:
    text = "a A 1.1.1.1\n$GENERATE 1-1 b A 1.1.1.1\n A 2.2.2.2"
    assert shown(text)[2] == "a.ex. 9 A 2.2.2.2"


@pytest.mark.parametrize(
    ("directive", "why"),
    [
        ("", "with 0 arguments"),
        ("1-2 a", "wants a range"),
        ("1 a A 1.1.1.1", "not a range"),
        ("2-1 a A 1.1.1.1", "backwards"),
        ("1-2/0 a A 1.1.1.1", "no step"),
        ("0-65536 a A 1.1.1.1", "at most 65536"),
        ("0-9999999999 a A 1.1.1.1", "exceeds"),
        ("1-2 ${x} A 1.1.1.1", "offset,width,base"),
        ("1-2 ${0,999} A 1.1.1.1", "width"),
        ("1-2 ${-2} A 1.1.1.1", "outside"),
        ("250-256 a A 1.1.1.$", r"\$GENERATE at 256: A: '1.1.1.256'"),
    ],
)
def test_a_generate_that_makes_no_sense_is_one_fault(directive: str, why: str) -> None:
    found = causes(f"$GENERATE {directive}")
    assert len(found) == 1
    assert re.search(why, found[0])


def test_generated_records_of_a_file_are_bounded() -> None:
    limits = Limits(generated=5)
    found = causes("$GENERATE 1-3 a A 1.1.1.1\n" * 3, limits=limits)
    assert found == [
        "z:2: more than 5 records are generated in all",
        "z:3: more than 5 records are generated in all",
    ]


# ---- writing


def test_a_written_zone_is_in_order_and_loads_as_what_it_was() -> None:
    text = r"""
b 5 A 1.1.1.1
@ NS ns.other.
a TXT "x;y" "\000\""
*.b HTTPS 1 . alpn=h2
\$odd\.one MX 0 .
B A 1.1.1.2
x TYPE65280 \# 1 00
x RESINFO qnamemin
@ SOA ns h 1 2 3 4 5
"""
    found = master_file.read(text, file="z", origin=ORIGIN, default_ttl=9)
    lines = list(master_file.write(found.records, ORIGIN))
    assert lines == [
        "$ORIGIN ex.\n",
        "@ 9 IN SOA ns.ex. h.ex. 1 2 3 4 5\n",
        "@ 9 IN NS ns.other.\n",
        "\\$odd\\.one 9 IN MX 0 .\n",
        'a 9 IN TXT "x;y" "\\000\\""\n',
        "b 5 IN A 1.1.1.1\n",
        "B 9 IN A 1.1.1.2\n",
        '*.b 9 IN HTTPS 1 . alpn="h2"\n',
        "x 9 IN TYPE261 \\# 9 08716E616D656D696E\n",
        "x 9 IN TYPE65280 \\# 1 00\n",
    ]
    again = master_file.read("".join(lines), file="w")
    assert Counter(map(show, again.records)) == Counter(map(show, found.records))
    assert list(master_file.write(again.records, ORIGIN)) == lines


def test_the_root_zone_and_names_outside_are_written_whole() -> None:
    found = master_file.read("a. 1 NS b.\n. 1 NS c.", file="z", origin=names.ROOT).records
    assert list(master_file.write(found, names.ROOT))[1:] == ["@ 1 IN NS c.\n", "a. 1 IN NS b.\n"]
    assert list(master_file.write(found, ORIGIN))[1:] == [". 1 IN NS c.\n", "a. 1 IN NS b.\n"]


# ---- beside dnspython

OWNERS = st.sampled_from(["a", "b.c", "@", "*", r"x\.y", "Q.ex.", "other.ex.", "_t._u"])
DATA = st.sampled_from([
    "A 192.0.2.1", "AAAA 2001:db8::1", "MX 10 m", "NS ns.other.", 'TXT "a b" c', r'TXT "q\"\;"',
    "TXT ( one\n  two ; three )\n )", "SRV 0 1 2 s", 'CAA 0 issue "ca;x"',
    r"TYPE999 \# 2 ( 01\n 02 )",
    "DS 1 8 1 ( 0102030405060708090a\n0b0c0d0e0f1011121314 )", "PTR ptr", "HINFO PC OS",
    "RP a .", "LOC 60 9 N 24 39 E 10", "TLSA 3 1 1 00ff", r"A \# 4 c0000201",
]).map(lambda data: data.replace(r"\n", "\n"))  # fmt: skip
HEADS = st.sampled_from(["", "7", "IN", "7 IN", "IN 7", "1h5m in", "In 0"])
LINES = st.one_of(
    st.tuples(OWNERS | st.just(" "), HEADS, DATA).map(" ".join),
    st.sampled_from(["$ORIGIN sub", "$ORIGIN ex.", "$TTL 77", "$TTL 2h", '; c ( "', "", "  "]),
    # An owner follows: what an omitted one would be, dnspython sees otherwise than BIND.
    st.sampled_from(
        ["$GENERATE 1-3 g$ A 10.0.0.$\ne PTR e", "$GENERATE 1-2 ${0,2,d} NS c$\n@ NS @"]
    ),
)
SPACES = st.sampled_from([" ", "\t", "  \t"])


def by_dnspython(text: str) -> Counter:
    zone = dns.zone.from_text(text, "ex.", relativize=False, check_origin=False)
    return Counter(
        (name.to_wire().lower(), int(rdata.rdtype), ttl, rdata.to_digestable())
        for name, ttl, rdata in zone.iterate_rdatas()
    )


def by_us(text: str) -> Counter:
    """As dnspython's zone keeps it: duplicates once, the smallest TTL of an RRset for all."""
    found = master_file.read(text, file="z", origin=ORIGIN).records
    ttls: dict[tuple[bytes, int], int] = {}
    for record in found:
        rrset = names.key(record.owner), record.rtype
        ttls[rrset] = min(record.ttl, ttls.get(rrset, record.ttl))
    return Counter({
        (owner, record.rtype, ttls[owner, record.rtype],
         records.canonical_rdata(record.rtype, record.rdata))
        for record in found
        for owner in [names.key(record.owner)]
    })  # fmt: skip


@given(st.lists(LINES, max_size=8), SPACES, st.sampled_from(["\n", "\r\n"]))
def test_files_mean_here_what_they_mean_to_dnspython(lines, space, end) -> None:
    text = "\n".join(["$TTL 60", "@ SOA ns h 1 2 3 4 5", *lines])
    text = text.replace(" ", space).replace("\n", end)
    try:
        expected = by_dnspython(text)
    except dns.exception.DNSException:
        assume(False)
    assert by_us(text) == expected


PIECES = st.sampled_from([
    "a", "@", ".", "..", "b.c.", "$TTL", "$ORIGIN", "$INCLUDE", "$GENERATE", "1-3", "$", "${0,2,n}",
    "300", "1h", "IN", "CH", "A", "192.0.2.1", "AAAA", "::1", "TXT", "SOA", "1 2 3 4 5", "HTTPS",
    "alpn=", "MX", "LOC", '"', '"x y"', "(", ")", ";", "\n", "\n", "\n", " ", " ", "\t", "\r\n",
    "\\", "\\000", "\\#", "0", "TYPE1", "é", "\x00", "\x1c", "\u00a0", "\ufeff", "=", "-",
])  # fmt: skip


@given(st.lists(PIECES, max_size=30).map("".join) | st.text(max_size=40) | st.binary(max_size=40))
def test_any_text_is_read_or_invalid(text: str | bytes) -> None:
    def include(name: str, _: str) -> tuple[str, bytes]:
        return name, b"x 5 A 1.1.1.1\n"

    try:
        found = master_file.read(text, file="z", origin=ORIGIN, include=include)
    except Invalid:
        return
    lines = "".join(master_file.write(found.records, ORIGIN))
    again = master_file.read(lines, file="w")
    assert Counter(map(show, again.records)) == Counter(map(show, found.records))
