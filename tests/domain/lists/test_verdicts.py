"""From rules to verdicts: what a set of lists says of a name."""

from ipaddress import ip_address

import pytest

from kudurru.domain.dns import names
from kudurru.domain.dns.record_types import AAAA, CNAME, TXT, A
from kudurru.domain.lists.matcher import Place, Union
from kudurru.domain.lists.memory import MemoryMatcher
from kudurru.domain.lists.patterns import Patterns
from kudurru.domain.lists.rules import Context, Reason, Reply
from kudurru.domain.lists.verdicts import NOBODY, Asker, Verdicts, verdicts
from kudurru.domain.objects import Key

ONE, TWO = Key("BlockList/default/one"), Key("BlockList/default/two")


def matcher(*lines: str, **more: list[str]) -> MemoryMatcher:
    found = MemoryMatcher()
    found.put(ONE, [("inline", lines)], Context())
    for key, texts in more.items():
        found.put(Key(f"BlockList/default/{key}"), [("inline", texts)], Context())
    return found


def ask(
    lists: MemoryMatcher, text: str, *keys: Key, qtype: int = A, asker: Asker = NOBODY
) -> Verdicts:
    name = names.key(names.from_text(text))
    return verdicts(name, lists.lookup(name), keys or (ONE,), qtype, asker)


def rule_texts(lists: MemoryMatcher, said: Verdicts) -> list[str]:
    found = [said.important_allow, said.important_deny, said.allow, said.deny]
    places = [lists.place(one.hit) for one in found if one]
    return [place.text for place in places if place]


def test_exact_comes_before_wildcard_and_that_before_a_pattern() -> None:
    lists = matcher("/ads/", "||example^", "||ads.example^", "|ads.example^", "||b.ads.example^")
    hits = lists.lookup(names.key(names.from_text("ads.example")))
    assert [(lists.place(hit) or Place("", 0, "")).line for hit in hits] == [4, 3, 2, 1]


def test_rules_say_by_class_what_they_want() -> None:
    lists = matcher("||a.example^$important", "@@||a.example^", "||b.example^", "@@||c.example^")
    assert rule_texts(lists, ask(lists, "a.example")) == [
        "||a.example^$important",
        "@@||a.example^",
    ]
    assert ask(lists, "b.example").deny
    assert ask(lists, "x.c.example").allow
    assert ask(lists, "d.example") == Verdicts()


def test_only_the_lists_that_are_asked_for_count() -> None:
    lists = matcher("||a.example^", two=["@@||a.example^"])
    assert ask(lists, "a.example", TWO).deny is None
    both = ask(lists, "a.example", ONE, TWO)
    assert both.deny
    assert both.allow
    assert ask(lists, "a.example", Key("BlockList/default/three")) == Verdicts()


def test_badfilter_takes_out_the_equal_rule_of_its_own_list_only() -> None:
    lists = matcher("||a.example^", "||a.example^$badfilter", "|a.example^", two=["||a.example^"])
    assert rule_texts(lists, ask(lists, "a.example")) == ["|a.example^"]
    assert ask(lists, "x.a.example") == Verdicts()
    assert ask(lists, "x.a.example", ONE, TWO).deny


def test_types_clients_and_exceptions_narrow_a_rule() -> None:
    lists = matcher(
        "||t.example^$dnstype=AAAA", "||n.example^$dnstype=~TXT",
        "||c.example^$client=192.0.2.0/24|phone", "||m.example^$client=~192.0.2.9",
        "||d.example^$denyallow=ok.d.example",
    )  # fmt: skip
    inside, outside = Asker(ip_address("192.0.2.9")), Asker(ip_address("198.51.100.1"))
    assert ask(lists, "t.example", qtype=AAAA).deny
    assert not ask(lists, "t.example", qtype=A).deny
    assert not ask(lists, "n.example", qtype=TXT).deny
    assert ask(lists, "c.example", asker=inside).deny
    assert ask(lists, "c.example", asker=Asker(None, frozenset({"phone"}))).deny
    assert not ask(lists, "c.example", asker=outside).deny
    assert not ask(lists, "m.example", asker=inside).deny
    assert ask(lists, "m.example", asker=outside).deny
    assert ask(lists, "x.d.example").deny
    assert not ask(lists, "a.ok.d.example").deny


def test_records_of_one_name_are_answered_together() -> None:
    lists = matcher("a.example 60 IN CNAME b.example.", "address=/c.example/192.0.2.1",
                    "address=/c.example/2001:db8::1", "address=/example/192.0.2.9")  # fmt: skip
    said = ask(lists, "c.example").deny
    assert said
    assert said.reply
    assert [rtype for rtype, _ in said.reply.records] == [A, AAAA]


WALLED = b"\x01e\x07example\x06walled\x07example\x00"
ZONE = [
    "*.a.example CNAME .", "b.a.example A 192.0.2.1", "*.b.a.example CNAME *.",
    "c.a.example CNAME rpz-passthru.", "e.example CNAME *.walled.example.",
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "qtype", "reply"),
    [
        ("x.a.example", A, Reply("NXDOMAIN")),
        ("a.example", A, None),
        ("b.a.example", A, Reply("NOERROR", ((A, b"\xc0\x00\x02\x01"),))),
        ("b.a.example", TXT, Reply("NOERROR", ((A, b"\xc0\x00\x02\x01"),))),  # NODATA
        ("x.b.a.example", A, Reply("NOERROR")),
        ("x.c.a.example", A, None),  # RFC 4592: a name that is there ends the wildcards above it
        (
            "e.example",
            A,
            Reply("NOERROR", ((CNAME, b"\x01e\x07example\x06walled\x07example\x00"),)),
        ),
    ],
)
def test_names_of_policy_zones_match_as_in_zones(
    name: str, qtype: int, reply: Reply | None
) -> None:
    said = ask(matcher(*ZONE), name, qtype=qtype)
    assert (said.deny.reply if said.deny else None) == reply


def test_a_target_that_would_be_too_long_does_not_exist() -> None:
    lists = matcher(f"*.e.example CNAME *.{'w' * 60}.{'w' * 60}.example.")
    said = ask(lists, ".".join(["x" * 60] * 3) + ".e.example").deny
    assert said
    assert said.reply == Reply("NXDOMAIN")


def test_a_list_that_is_dropped_or_replaced_leaves_nothing_behind() -> None:
    lists = matcher("||a.example^", "/ads/", two=["||a.example^"])
    lists.put(TWO, [("inline", ["||b.example^"])], Context())
    assert not ask(lists, "a.example", TWO).deny
    lists.drop(ONE)
    assert lists.lookup(names.key(names.from_text("ads.a.example"))) == []
    assert lists.lookup(names.key(names.from_text("b.example")))


def test_several_matchers_answer_as_one() -> None:
    one, two = matcher("||example^"), MemoryMatcher()
    two.put(TWO, [("file:/x", ["# two", "|a.example^"])], Context())
    both = Union(one, two)
    hits = both.lookup(names.key(names.from_text("a.example")))
    assert [both.place(hit) for hit in hits] == [
        Place("file:/x", 2, "|a.example^"),
        Place("inline", 1, "||example^"),
    ]


def test_a_regular_expression_that_needs_too_much_memory_is_searched_alone() -> None:
    hard = [f"/(a|b)*a(a|b){{{i % 20 + 10}}}c{i}x/" for i in range(200)]
    lists = matcher(*hard, "/ads/")
    name = names.key(names.from_text("ads." + ".".join(["ab" * 30] * 3)))
    assert [hit.rule.pattern for hit in lists.lookup(name)] == ["ads"]


HUGE = r"\pL{1,50}\pN{1,50}[^a]{1,50}"


def test_a_regular_expression_of_many_instructions_is_refused() -> None:
    lists = MemoryMatcher()
    facts = lists.put(ONE, [("inline", [f"/{HUGE}/", "/ads/"])], Context())[0]
    assert facts.entries == 1
    assert facts.refused == {Reason.REGEX: 1}


def test_a_list_has_so_many_instructions_and_no_more() -> None:
    lines = [f"/{'[a-m]?' * 100}{i}/" for i in range(300)]
    facts = MemoryMatcher().put(ONE, [("inline", lines)], Context())[0]
    assert 0 < facts.entries < 300
    assert facts.refused == {Reason.REGEX_MAX: 300 - facts.entries}


def test_expressions_that_are_too_large_together_are_searched_alone() -> None:
    found = Patterns([rf"\pL{{1,20}}{i}$" for i in range(40)])
    assert found.search(f"{'x' * 10}5") == [5]
    assert found.search("abc") == []


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "(.*a){25}", "((a*)*)*b"])
def test_a_regular_expression_that_explodes_elsewhere_takes_its_time_here(pattern: str) -> None:
    lists = matcher(f"/{pattern}/")
    lists.lookup(names.key(names.from_text(".".join(["a" * 60] * 4))))
