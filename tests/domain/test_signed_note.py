"""Signed notes and keys: the specification's own example, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.adapters.signing import check_signature, signing_key
from kudurru.domain.errors import Invalid
from kudurru.domain.signed_note import VerifierKey, parse_key, parse_note, sign_note

# golang.org/x/mod/sumdb/note: its key pair, and its note signed by it.
PETER = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
PETERS_NOTE = (
    "If you think cryptography is the answer to your problem,\n"
    "then you don't know what your problem is.\n"
    "\n"
    "— PeterNeumann "
    "x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)
SEED = bytes(range(32))
ORIGIN = "kudurru/0123/1"
KEY = signing_key(ORIGIN, SEED)


def test_a_note_of_another_implementation_verifies() -> None:
    key = parse_key(PETER)
    assert str(key) == PETER
    note = parse_note(PETERS_NOTE)
    assert note.text.endswith("your problem is.\n")
    assert note.signed_by(key, check_signature)
    assert not note.signed_by(KEY.verifier, check_signature)


@given(st.text(st.characters(exclude_characters="\r", exclude_categories=["Cc", "Cs"])))
def test_what_is_signed_is_read_back_and_verifies(line: str) -> None:
    text = f"{line}\nsecond\n"
    note = parse_note(sign_note(text, KEY))
    assert note.text == text
    assert note.signed_by(KEY.verifier, check_signature)


def test_two_keys_may_sign_and_one_wrong_signature_in_a_name_spoils_it() -> None:
    other = signing_key(ORIGIN, SEED[::-1])
    note = parse_note(sign_note("text\n", KEY, other))
    assert note.signed_by(KEY.verifier, check_signature)
    assert note.signed_by(other.verifier, check_signature)
    right, wrong = sign_note("text\n", KEY), sign_note("another\n", KEY)
    spoiled = parse_note(right + wrong.rpartition("\n\n")[2])
    assert not spoiled.signed_by(KEY.verifier, check_signature)


GOOD = sign_note("text\n", KEY)


@pytest.mark.parametrize(
    ("note", "why"),
    [
        ("", "no signatures"),
        ("text\n", "no signatures"),
        ("text\n\n", "no signatures"),
        (GOOD[:-1], "no signatures"),
        (GOOD.replace("—", "-"), "is no signature"),
        (GOOD.replace("text", "te\tt"), "control characters"),
        (GOOD.replace("=\n", "\n"), "is no signature"),
        ("text\n\n— a+b AAAAAAAA\n", "is no signature"),
        ("text\n\n— name AAAAAA==\n", "is no signature"),
        ("text\n\n" + "— name AAAAAAAA\n" * 17, "more than 16"),
        ("x" * 70_000, "longer than"),
    ],
)
def test_what_is_no_note_is_refused(note: str, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        parse_note(note)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is no verification key"),
        ("name+00000000", "is no verification key"),
        (PETER[:-4], "is no verification key"),
        (PETER.replace("c74f", "c74e"), "does not belong together"),
        (PETER.replace("Peter", "Paul"), "does not belong together"),
        ("name+00000000+AhpcmQcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW", "no Ed25519 key"),
        ("a b+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW", "is no verification key"),
    ],
)
def test_what_is_no_key_is_refused(text: str, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        parse_key(text)


def test_a_key_is_named_and_numbered_as_the_specification_says() -> None:
    key = VerifierKey("example.org/log", bytes(32))
    assert str(key).startswith("example.org/log+")
    assert parse_key(str(key)) == key
    assert len(key.id) == 4
