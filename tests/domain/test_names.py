import io
from collections.abc import Callable

import dns.exception
import dns.name
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.dns import names
from kudurru.domain.dns.names import BadName, Name

# Few different octets, so that equal and related names come up.
LABELS = st.binary(min_size=1, max_size=63) | st.sampled_from([b"a", b"A", b"b", b"*", b"\x01a"])
NAMES = st.lists(LABELS, max_size=8).filter(lambda parts: sum(map(len, parts)) + len(parts) < 255)
ORIGIN = names.from_text("example.")


def peer(parts: list[bytes]) -> dns.name.Name:
    return dns.name.Name([*parts, b""])


@given(NAMES)
def test_text_of_a_name_reads_back_here_and_in_dnspython(parts: list[bytes]) -> None:
    name = names.from_labels(parts)
    text = names.to_text(name)
    assert names.from_text(text) == name
    assert dns.name.from_text(text).to_wire() == name
    assert names.from_text(peer(parts).to_text()) == name
    assert names.labels(name) == parts


@given(st.text(st.sampled_from('abA.\\@$*-_;"()0159 é\n'), max_size=12))
def test_any_text_is_a_name_as_dnspython_reads_it_or_refused(text: str) -> None:
    try:
        found = names.from_text(text, ORIGIN)
    except BadName:
        return
    assert found == dns.name.from_text(text, peer([b"example"])).to_wire()


@given(
    st.lists(st.text(st.sampled_from("abA.\\@-*0é"), max_size=3), max_size=4).map(".".join)
    | st.sampled_from([f"{'a' * n}.{'b' * m}." for n in (0, 1, 63, 64) for m in (0, 1, 63, 64)])
    | st.sampled_from([f"{'a' * n}." + f"{'b' * 61}." * 4 for n in (1, 5, 6, 7)]),
    st.sampled_from([None, ORIGIN]),
)
def test_a_name_with_a_remembered_end_is_the_name_read_whole(text: str, origin: Name | None):
    def read(how: Callable[[str, Name | None], Name]) -> Name | str:
        try:
            return how(text, origin)
        except BadName as error:
            return str(error)

    assert read(names.from_text) == read(names._from_any_text)


@given(NAMES, NAMES)
def test_names_are_ordered_and_nested_as_dnspython_has_it(a: list[bytes], b: list[bytes]) -> None:
    ours, theirs = names.from_labels(a), names.from_labels(b)
    order = names.canonical_order(ours), names.canonical_order(theirs)
    assert (order[0] < order[1]) == (peer(a) < peer(b))
    within = names.is_within(names.key(ours), names.key(theirs))
    assert within == peer(a).is_subdomain(peer(b))
    assert (names.key(ours) == names.key(theirs)) == (peer(a) == peer(b))


@given(NAMES, NAMES, NAMES)
def test_compressed_names_of_dnspython_are_read(a: list[bytes], b: list[bytes], c: list[bytes]):
    message = io.BytesIO(b"\x00" * 12)
    message.seek(12)
    compress: dict = {}
    starts = []
    for parts in (a, b, c, [*a[:1], *c]):
        try:
            whole = peer(parts)
        except dns.exception.DNSException:
            continue
        starts.append((message.tell(), whole))
        whole.to_wire(message, compress)
    wire = message.getvalue()
    ends = [start for start, _ in starts[1:]] + [len(wire)]
    for (start, whole), end in zip(starts, ends, strict=True):
        name, after = names.from_wire(wire, start)
        assert after == end
        # dnspython takes a suffix of another letter case for the same.
        assert names.key(name) == names.key(whole.to_wire())


@given(st.binary(max_size=40), st.integers(0, 40))
def test_any_octets_are_a_name_or_refused(message: bytes, offset: int) -> None:
    try:
        name, after = names.from_wire(message, offset)
    except BadName:
        return
    assert names.from_text(names.to_text(name)) == name
    assert names.from_wire(message[:after], offset) == (name, after)


def test_a_name_does_not_depend_on_what_comes_after_it() -> None:
    # The pointer leads to a label that runs over the pointer, into what follows.
    message = b"\x07abc" + b"\x01h\xc0\x00" + b"\0"
    with pytest.raises(BadName, match="does not end before it"):
        names.from_wire(message, 4)


@pytest.mark.parametrize(
    ("text", "wire"),
    [
        (".", b"\x00"),
        ("@", b"\x07example\x00"),
        ("www", b"\x03www\x07example\x00"),
        ("www.", b"\x03www\x00"),
        (r"a\.b", b"\x03a.b\x07example\x00"),
        (r"a\\.", b"\x02a\\\x00"),
        (r"a\.", b"\x02a.\x07example\x00"),
        (r"\042.w", b"\x01*\x01w\x07example\x00"),
        (r"\@", b"\x01@\x07example\x00"),
        ("_sip._tcp", b"\x04_sip\x04_tcp\x07example\x00"),
        ("WwW", b"\x03WwW\x07example\x00"),
        ("a" * 63, b"\x3f" + b"a" * 63 + b"\x07example\x00"),
    ],
)
def test_presentation_form_is_read(text: str, wire: bytes) -> None:
    assert names.from_text(text, ORIGIN) == wire


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty name"),
        ("..", "empty label"),
        ("a..b", "empty label"),
        (".a", "empty label"),
        ("a" * 64, "64 octets"),
        (".".join(["a" * 60] * 5), "at most 255"),
        ("a b", "must be escaped"),
        ('a"', "must be escaped"),
        ("a\\", "bad escape"),
        (r"\25", "bad escape"),
        (r"\256", "bad escape"),
        ("münchen", "xn--"),
        ("a\tb", "must be escaped"),
    ],
)
def test_a_text_that_is_no_name_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(BadName, match=why):
        names.from_text(text, ORIGIN)


def test_an_at_sign_without_origin_is_refused() -> None:
    with pytest.raises(BadName, match="origin"):
        names.from_text("@")


def test_a_label_that_looks_like_a_length_is_no_boundary() -> None:
    inner = names.from_labels([b"x\x01a"])
    assert not names.is_within(inner, names.from_text("a."))


@pytest.mark.parametrize(
    "message",
    [b"\xc0\x00", b"\x01a\xc0\x02", b"\x40", b"\x03ab", b"\x01a", b"", b"\x01a" * 128 + b"\x00"],
)
def test_bad_wire_names_are_refused(message: bytes) -> None:
    with pytest.raises(BadName):
        names.from_wire(message, 0)


def test_parents_and_wildcards() -> None:
    assert names.parent(names.from_text("a.b.")) == names.from_text("b.")
    assert names.is_wildcard(names.from_text("*.b."))
    assert not names.is_wildcard(Name(b"\x02**\x01b\x00"))
