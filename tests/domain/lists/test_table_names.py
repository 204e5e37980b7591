"""Whether the text of a list stands for a name: the check that makes every hit certain."""

from hypothesis import example, given
from hypothesis import strategies as st

from kudurru.domain.lists.table import is_name_at

HOST = "abcxyzABC019-_"
texts = st.lists(
    st.text(HOST, min_size=1, max_size=4) | st.text(HOST, min_size=40, max_size=63),
    min_size=1, max_size=4,
).map(".".join)  # fmt: skip


def wire_of(text: str) -> bytes:
    labels = text.lower().encode().split(b".")
    return b"".join(bytes((len(label),)) + label for label in labels) + b"\0"


@given(texts, st.sampled_from([b"", b"\n", b"^", b"x", b".", b" # note"]))
def test_a_text_stands_for_its_own_name_unless_it_goes_on(text: str, after: bytes) -> None:
    octets = b"||" + text.encode() + after
    assert is_name_at(octets, 2, wire_of(text)) == (after not in (b"x", b"."))


@given(texts, texts)
def test_a_text_stands_for_no_other_name(text: str, other: str) -> None:
    assert is_name_at(text.encode() + b"\n", 0, wire_of(other)) == (text.lower() == other.lower())


@given(st.lists(st.binary(min_size=1, max_size=63), min_size=1, max_size=4))
@example([b"a\x01b", b"com"])
@example([b"a.b", b"com"])
def test_a_name_with_odd_octets_is_not_taken_for_the_text_that_it_looks_like(
    labels: list[bytes],
) -> None:
    wire = b"".join(bytes((len(label),)) + label for label in labels) + b"\0"
    text = bytes(46 if octet < 45 else octet for octet in wire[1:-1])
    is_plain = all(chr(octet) in HOST.lower() for label in labels for octet in label)
    if is_name_at(text + b"\n", 0, wire):
        assert text.split(b".") == labels
    elif is_plain:
        assert text != b".".join(labels)
