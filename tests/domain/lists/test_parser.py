"""Lines of lists to rules."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.dns import names
from kudurru.domain.dns.record_types import TXT, A, type_from_text
from kudurru.domain.dns.records import rdata_from_text
from kudurru.domain.lists.body import Facts, inspect
from kudurru.domain.lists.parser import Parser, parse_line
from kudurru.domain.lists.rules import (
    BELOW,
    SELF,
    SUBTREE,
    Context,
    Format,
    Line,
    Reason,
    Reply,
    Rule,
)
from kudurru.domain.lists.words import Refused, name_of
from kudurru.domain.notation import parse_network
from tests.vectors import vectors

COVERS = {"": 0, "self": SELF, "below": BELOW, "subtree": SUBTREE}


def name(text: str) -> names.Name:
    return names.key(names.from_text(text))


def shown(rules: tuple[Rule, ...]) -> list[str]:
    """Rules as short texts: `@! subtree ads.example`."""
    words = {number: word for word, number in COVERS.items()}

    def about(rule: Rule) -> str:
        if rule.pattern:
            return f"/{rule.pattern}/"
        kind = "node" if rule.is_node else words[rule.covers]
        return f"{kind} {names.to_text(rule.name, final_dot=False)}"

    return ["@" * r.is_allow + "!" * r.is_important + about(r) for r in rules]


RULES = [
    # hosts
    ("auto", "0.0.0.0 ads.example", ["self ads.example"]),
    ("auto", "127.0.0.1\tads.example\t#x", ["self ads.example"]),
    ("auto", ":: ads.example", ["self ads.example"]),
    ("auto", "::1 a.example b.example", ["self a.example", "self b.example"]),
    ("auto", "fe80::1%lo0 a.example", ["self a.example"]),
    ("auto", "0.0.0.0 ADS.Example.", ["self ads.example"]),
    ("auto", "0.0.0.0 single", ["self single"]),
    ("auto", "0.0.0.0 a.example ##note", ["self a.example"]),
    ("auto", "0.0.0.0 _dmarc.example", ["self _dmarc.example"]),
    ("hosts", "0.0.0.0 ads.example#x", ["self ads.example"]),
    ("hosts", "ads.example", ["self ads.example"]),
    ("auto", "0.0.0.0 0.0.0.0", []),
    ("auto", "127.0.0.1 localhost.localdomain local", []),
    # domains
    ("auto", "ads.example", ["self ads.example"]),
    ("auto", "*.ads.example", ["subtree ads.example"]),
    ("auto", ".ads.example", ["subtree ads.example"]),
    ("auto", "*.zip", ["subtree zip"]),
    ("domains", "zip", ["self zip"]),
    ("domains", "ads.example # why", ["self ads.example"]),
    ("auto", "bücher.example", ["self xn--bcher-kva.example"]),
    ("auto", "ΒΌΛΟΣ.example", ["self xn--nxasmq6b.example"]),
    ("auto", "xn--0ca24w.example", ["self xn--0ca24w.example"]),
    # adblock
    ("auto", "||ads.example^", ["subtree ads.example"]),
    ("auto", "||ads.example", ["subtree ads.example"]),
    ("auto", "||ads.example^|", ["subtree ads.example"]),
    ("auto", "||zip^", ["subtree zip"]),
    ("auto", "||*.ads.example^", ["below ads.example"]),
    ("auto", "|ads.example^", ["self ads.example"]),
    ("auto", "|ads.example|", ["self ads.example"]),
    ("auto", "ads.example^", ["subtree ads.example"]),
    ("auto", "@@||ads.example^", ["@subtree ads.example"]),
    ("auto", "@@|ads.example^|", ["@self ads.example"]),
    ("auto", "||ads.example^$important", ["!subtree ads.example"]),
    ("auto", "@@||ads.example^$important", ["@!subtree ads.example"]),
    ("auto", "*$denyallow=com|net", ["subtree ."]),
    ("auto", "||ad*.example^", [r"/(?:^|\.)ad.*\.example$/"]),
    ("auto", "|ads.", [r"/^ads\./"]),
    ("auto", "||ads.", [r"/(?:^|\.)ads\./"]),
    ("auto", "-ads-*.example", [r"/-ads-.*\.example/"]),
    ("adblock", "ads.example", ["self ads.example"]),
    # dnsmasq
    ("auto", "address=/ads.example/0.0.0.0", ["subtree ads.example"]),
    ("auto", "address=/ads.example/#", ["subtree ads.example"]),
    ("auto", "address=/ads.example/", ["subtree ads.example"]),
    ("auto", "address=/a.example/b.example/::", ["subtree a.example", "subtree b.example"]),
    ("auto", "server=/ads.example/", ["subtree ads.example"]),
    ("auto", "local=/ads.example/", ["subtree ads.example"]),
    ("auto", "server=/ok.example/#", ["@subtree ok.example"]),
    ("dnsmasq", "address=/ads.example/0.0.0.0 # x", ["subtree ads.example"]),
    # regex
    ("auto", "/^ads[0-9]+\\./", ["/^ads[0-9]+\\./"]),
    ("auto", "@@/^ads/$important", ["@!/^ads/"]),
    ("auto", "/^ads/$client=192.0.2.0/24", ["/^ads/"]),
    ("regex", "^ads[0-9]+\\.", ["/^ads[0-9]+\\./"]),
    ("regex", "/^ads/", ["/^ads/"]),
    # rpz
    ("auto", "ads.example CNAME .", ["node ads.example"]),
    ("auto", "*.ads.example 300 IN CNAME .", ["below ads.example"]),
    ("rpz", "ads.example CNAME .", ["node ads.example"]),
    ("rpz", "ads.example CNAME *. ; it has no data", ["node ads.example"]),
    ("rpz", '* TXT "a;b\\";c" ; "x', ["below ."]),
    ("rpz", "* CNAME .", ["below ."]),
    ("rpz", "ok.example CNAME rpz-passthru.", ["@node ok.example"]),
    ("rpz", "32.1.2.0.192.rpz-ip CNAME .", ["self 192.0.2.1"]),
    ("rpz", "32.1.2.0.192.rpz-ip CNAME rpz-passthru.", ["@self 192.0.2.1"]),
    ("rpz", "128.1.zz.db8.2001.rpz-ip CNAME .", ["self 2001:db8::1"]),
    ("rpz", "128.zz.db8.2001.rpz-ip A 192.0.2.9", ["self 2001:db8::"]),
    ("rpz", "128.1.zz.rpz-ip CNAME .", ["self ::1"]),
    ("rpz", "128.8.7.6.5.4.3.2.1.rpz-ip CNAME .", ["self 1:2:3:4:5:6:7:8"]),
    ("rpz", "ok.example CNAME ok.example.", ["@node ok.example"]),
]


@pytest.mark.parametrize(("format_", "text", "wanted"), RULES)
def test_a_line_makes_these_rules(format_: Format, text: str, wanted: list[str]) -> None:
    for around in (text, f"  {text} \r", f"\ufeff{text}"):
        if format_ == "rpz" and around.startswith(" "):
            continue  # where it says that the owner is that of the line before
        assert shown(parse_line(around, Context(format=format_)).rules) == wanted


@pytest.mark.parametrize(
    "text",
    ["", "   ", "# comment", "! comment", "; comment", "// comment", "[Adblock Plus 2.0]", "\ufeff",
     "localhost", "127.0.0.1", "2001:db8::1", "#", "127.0.0.1 localhost", "$TTL 300",
     "$ORIGIN rpz.example."],
)  # fmt: skip
def test_some_lines_say_nothing_and_are_no_faults(text: str) -> None:
    assert Parser(Context()).feed(text) == Line()


REFUSED = [
    ("auto", "example.org##.banner", Reason.COSMETIC),
    ("auto", "##.ad", Reason.COSMETIC),
    ("auto", "#?#div:has(a)", Reason.COSMETIC),
    ("auto", "example.com#@#.x", Reason.COSMETIC),
    ("auto", "||ads.example^$third-party", Reason.MODIFIER),
    ("auto", "||ads.example^$important,script", Reason.MODIFIER),
    ("auto", "||ads.example^$dnstype=NONSENSE", Reason.MODIFIER),
    ("auto", "||ads.example^$dnstype=", Reason.MODIFIER),
    ("auto", "||ads.example^$dnsrewrite=", Reason.MODIFIER),
    ("auto", "||ads.example^$dnsrewrite=192.0.2.1%eth0", Reason.UNSUPPORTED),
    ("adblock", "||ads.example^$dnsrewrite=fe80::1%eth0", Reason.UNSUPPORTED),
    ("auto", "0.0.0.0 a..example", Reason.NAME),
    ("auto", "0.0.0.0 -.example", Reason.NAME),
    ("auto", "0.0.0.0 " + "a" * 64 + ".example", Reason.NAME),
    ("auto", "||192.0.2.1^", Reason.NAME),
    ("auto", "/(/", Reason.REGEX),
    ("auto", "/banner/ads/", Reason.UNSUPPORTED),
    ("auto", "/banner/ads.js", Reason.UNSUPPORTED),
    ("auto", "/(?=lookahead)/", Reason.REGEX),
    ("auto", r"/(a)\1/", Reason.REGEX),
    ("auto", "||ads.example/path/*", Reason.UNSUPPORTED),
    ("auto", "|https://ads.example^", Reason.UNSUPPORTED),
    ("auto", "https://ads.example/list.txt", Reason.UNSUPPORTED),
    ("auto", "ads.example:443", Reason.UNSUPPORTED),
    ("auto", "server=/corp.example/192.0.2.1", Reason.UNSUPPORTED),
    ("dnsmasq", "dhcp-range=192.0.2.1,192.0.2.9", Reason.UNSUPPORTED),
    ("dnsmasq", "domain-needed", Reason.NOT_A_RULE),
    ("dnsmasq", "address=/ads.example/192.0.2.1%", Reason.UNSUPPORTED),
    ("dnsmasq", "address=/ads.example/fe80::1%eth0", Reason.UNSUPPORTED),
    ("auto", "address=/ads.example/::1%lo", Reason.UNSUPPORTED),
    ("auto", "moved", Reason.NOT_A_RULE),
    ("auto", "This page has moved", Reason.NOT_A_RULE),
    ("auto", "Once A day", Reason.NOT_A_RULE),
    ("auto", "<html><body>moved</body></html>", Reason.NOT_A_RULE),
    ("domains", "two words.example", Reason.NOT_A_RULE),
    ("auto", "a" * 5000, Reason.TOO_LONG),
    ("rpz", "24.0.2.0.192.rpz-ip CNAME .", Reason.UNSUPPORTED),
    ("rpz", "48.zz.db8.2001.rpz-ip CNAME .", Reason.UNSUPPORTED),
    ("rpz", "32.1.2.0.300.rpz-ip CNAME .", Reason.NAME),
    ("rpz", "128.zz.db8.zz.2001.rpz-ip CNAME .", Reason.NAME),
    ("rpz", "128.rpz-ip CNAME .", Reason.NAME),
    ("rpz", "rpz-ip CNAME .", Reason.NAME),
    ("rpz", "ns.example.rpz-nsdname CNAME .", Reason.UNSUPPORTED),
    ("rpz", "ads.example", Reason.NOT_A_RULE),
    ("rpz", "ads.example A nonsense", Reason.NOT_A_RULE),
    ("rpz", "$INCLUDE other.zone", Reason.UNSUPPORTED),
]


@pytest.mark.parametrize(("format_", "text", "reason"), REFUSED)
def test_a_line_that_is_no_rule_has_a_reason(format_: Format, text: str, reason: Reason) -> None:
    assert parse_line(text, Context(format=format_)) == Line(refused=(reason,))


def test_prose_about_zones_makes_no_policy_zone_of_a_list() -> None:
    parser = Parser(Context())
    for text in ("# The SOA of this list", "! SOA a b", "; $ORIGIN example."):
        parser.feed(text)
    assert parser.feed("  ads.example").rules
    parser.feed("@ 60 IN SOA ns. hostmaster. 1 2 3 4 5")
    assert parser.context.format == "rpz"


def test_a_bad_name_does_not_cost_the_others_of_its_line() -> None:
    line = parse_line("0.0.0.0 a.example a..example b.example", Context())
    assert shown(line.rules) == ["self a.example", "self b.example"]
    assert line.refused == (Reason.NAME,)


def test_an_answer_with_a_zone_index_does_not_cost_the_other_lines_of_a_list() -> None:
    text = b"address=/ads.example/fe80::1%eth0\n||b.example^$dnsrewrite=::1%lo\n0.0.0.0 a.example\n"
    facts = inspect(text, Context(), had_entries=False)
    assert facts == Facts(1, {Reason.UNSUPPORTED: 2})


def test_match_subtree_is_about_bare_names_only() -> None:
    context = Context(covers=SUBTREE)
    for text in ("ads.example", "0.0.0.0 ads.example"):
        assert shown(parse_line(text, context).rules) == ["subtree ads.example"]
    assert shown(parse_line("|ads.example^", context).rules) == ["self ads.example"]


def test_every_rule_of_an_allow_list_is_an_exception() -> None:
    context = Context(is_allow=True)
    for text in ("ads.example", "||ads.example^", "@@||ads.example^", "/x/", "0.0.0.0 a.example"):
        assert all(rule.is_allow for rule in parse_line(text, context).rules)


def test_modifiers_become_fields_of_the_rule() -> None:
    def rule(options: str) -> Rule:
        return parse_line(f"||ads.example^${options}", Context()).rules[0]

    assert rule("denyallow=a.ads.example|b.example").except_names == (
        name("a.ads.example"),
        name("b.example"),
    )
    assert rule("dnstype=A|aaaa").types == {A, type_from_text("AAAA")}
    assert rule("dnstype=~TXT").not_types == {TXT}
    assert rule("client=192.0.2.0/24|Phone|~2001:db8::1").clients == (
        parse_network("192.0.2.0/24"),
        "phone",
    )
    assert rule("client=~2001:db8::1").not_clients == (parse_network("2001:db8::1"),)
    assert rule(r"client='Mary\, Bob\|s'").clients == ("mary, bob|s",)
    assert rule("badfilter").is_badfilter
    assert rule("dnsrewrite=NXDOMAIN").reply == Reply("NXDOMAIN")
    a = (A, rdata_from_text(A, "192.0.2.1"))
    assert rule("dnsrewrite=192.0.2.1").reply == Reply("NOERROR", (a,))
    assert rule("dnsrewrite=NOERROR;A;192.0.2.1").reply == Reply("NOERROR", (a,))
    cname = (type_from_text("CNAME"), name("b.example"))
    assert rule("dnsrewrite=b.example").reply == Reply("NOERROR", (cname,))
    txt = (TXT, rdata_from_text(TXT, '"a b"'))
    assert rule("dnsrewrite=NOERROR;TXT;a b").reply == Reply("NOERROR", (txt,))


RPZ = """\
$TTL 300
$ORIGIN example.com.
rpz 3600 IN SOA ns1.rpz.example.com. hostmaster.rpz.example.com. (
    1 28800 7200 ; refresh
    604800 7200 )
    3600 IN NS ns1.rpz.example.com.
$ORIGIN rpz.example.com.
ads.example     CNAME .
*.ads.example   CNAME *.
drop.example.rpz.example.com. CNAME rpz-drop.
tcp.example     CNAME rpz-tcp-only.
ok.example      CNAME rpz-passthru.
here.example    60 IN A 192.0.2.1
                A 192.0.2.2
                TXT "two words"
elsewhere.net.  CNAME .
"""


def test_a_policy_zone_is_read_with_its_origins_and_omitted_owners() -> None:
    parser = Parser(Context())
    lines = [parser.feed(text) for text in RPZ.splitlines()]
    rules = [rule for line in lines for rule in line.rules]
    assert shown(tuple(rules)) == [
        "node ads.example", "below ads.example", "node drop.example", "node tcp.example",
        "@node ok.example", "node here.example", "node here.example", "node here.example",
    ]  # fmt: skip
    assert [rule.reply.rcode if rule.reply else "" for rule in rules] == [
        "NXDOMAIN", "NOERROR", "DROP", "TCP", "", "NOERROR", "NOERROR", "NOERROR",
    ]  # fmt: skip
    assert rules[6].reply == Reply("NOERROR", ((A, b"\xc0\x00\x02\x02"),))
    assert [line.refused for line in lines if line.refused] == [(Reason.UNSUPPORTED,)]


def test_names_with_u_labels_become_what_uts_46_says() -> None:
    with gzip.open(vectors("idna/uts46.jsonl.gz"), "rt") as file:
        for text in file:
            row = json.loads(text)
            if row["in"].isascii():
                continue  # an A-label is taken as it is, legal or not
            try:
                found = names.to_text(name_of(row["in"]), final_dot=False)
            except Refused:
                found = None
            if row["ascii"] is not None or found is None:
                assert found == row["ascii"], row


@given(st.text(max_size=200), st.sampled_from(["auto", "hosts", "domains", "adblock", "dnsmasq",
                                               "rpz", "regex"]))  # fmt: skip
def test_no_text_breaks_the_parser(text: str, format_: Format) -> None:
    line = Parser(Context(format=format_)).feed(text)
    for rule in line.rules:
        assert bool(rule.covers) != bool(rule.pattern)
        assert names.key(rule.name) == rule.name
