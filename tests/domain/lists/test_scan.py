"""Reading a whole list at once says of each line what the parser says of it."""

import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kudurru.domain.lists.parser import Parser
from kudurru.domain.lists.rules import SELF, SUBTREE, Context, Format, Reason, Rule
from kudurru.domain.lists.scan import rules_of, scan, text_of

FORMATS: tuple[Format, ...] = ("auto", "hosts", "domains", "adblock", "dnsmasq", "rpz", "regex")

labels = st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True)
host_names = st.lists(labels, min_size=1, max_size=4).map(".".join)
lines = st.one_of(
    host_names,
    st.builds("{}{}{}{}".format,
              st.sampled_from(["", " ", "0.0.0.0 ", "127.0.0.1\t", "::1 ", "||", "@@||", "|", "*.",
                               ".", "address=/", "192.0.2.1 "]),
              host_names,
              st.sampled_from(["", ".", "^", "^$important", "/", " # x", "#x", " \t", " CNAME ."]),
              st.sampled_from(["", "\r", " "])),
    st.sampled_from(["localhost.localdomain", "0.0.0.0 localhost.localdomain", "||localhost^",
                     "127.0.0.1 localhost.localdomain # x", "a.0x1f", "a.b.1", "# x", "! x",
                     "$TTL 300", "bücher.example", "/ads/", "[x]", "<html>", ""]),
    st.text(max_size=20).filter(lambda text: "\n" not in text),
)  # fmt: skip


def at_once(text: bytes, context: Context, start: int = 0, end: int | None = None) -> list[Rule]:
    end = len(text) if end is None else end
    return [
        rule
        for _, found, more in scan(text, start, end, context)
        for rule in rules_of(found, more, context)
    ]


def slowly(text: bytes, context: Context) -> list[Rule]:
    parser = Parser(context)
    return [rule for line in text.split(b"\n") for rule in parser.feed(text_of(line)).rules]


@given(st.lists(lines, max_size=8), st.sampled_from(FORMATS), st.sampled_from([SELF, SUBTREE]))
@example(["localhost.localdomain.", "localhost.localdomain.example"], "auto", SELF)
@example(["a." + "b" * 64 + ".example", "a.example"], "auto", SELF)
@example([".".join(["b" * 60] * 5), "a.example"], "hosts", SELF)
@example(["a." * 31 + "a", "a." * 32 + "a", "||" + "a." * 40 + "a^"], "auto", SELF)
def test_a_whole_text_and_its_lines_make_the_same_rules(
    texts: list[str], format_: Format, covers: int
) -> None:
    text = "\n".join(texts).encode("utf-8", "replace")
    context = Context(format=format_, covers=covers)
    assert at_once(text, context) == slowly(text, context)


@pytest.mark.parametrize("line", [b"a.", b"a", b" ", b"||a.", b"0.0.0.0 a."])
def test_a_line_of_a_megabyte_takes_about_as_much_memory(line: bytes) -> None:
    text = line[:-2] + line[-2:] * ((1 << 20) // len(line[-2:])) + b"!"
    tracemalloc.start()
    try:
        assert at_once(text, Context()) == []
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=300), st.sampled_from(FORMATS))
def test_no_octets_break_it(text: bytes, format_: Format) -> None:
    context = Context(format=format_)
    assert at_once(text, context) == slowly(text, context)


def test_only_the_part_that_was_asked_for_is_read() -> None:
    text = b"a.example\nb.example\nc.example\n"
    assert len(at_once(text, Context(), 10, 20)) == 1


@pytest.mark.parametrize("octets", [b"a", "é".encode(), b"0.0.0.0 a.example "])
@pytest.mark.parametrize("format_", ["auto", "rpz"])
def test_a_line_of_megabytes_is_too_long_and_costs_nothing(format_: Format, octets: bytes) -> None:
    text = octets * 500_000 + b"\nb.example CNAME .\n"
    found = list(scan(text, 0, len(text), Context(format=format_)))
    assert not isinstance(found[0][1], bytes)
    assert found[0][1].refused == (Reason.TOO_LONG,)
    assert len(found) == 2
