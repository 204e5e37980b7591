"""Checkpoints, the row of keys, and what asks for a checkpoint."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.adapters.signing import check_signature, signing_key
from kudurru.domain.checkpoint import (
    AdoptionBody,
    KeyChain,
    adoption_note,
    checkpoint_of,
    is_activity,
    note_of_txt,
    parse_checkpoint,
    tlog_proof,
    txt_target,
)
from kudurru.domain.dns import record_types, records
from kudurru.domain.errors import Invalid
from kudurru.domain.events import CHECKPOINT_STATE, KEY_ADOPTED, OBJECT_APPLIED, Position, Recorded
from kudurru.domain.objects import Key
from kudurru.domain.signed_note import SigningKey, sign_note
from kudurru.domain.tree import Edge

ORIGIN = "kudurru/0123456789abcdef0123456789abcdef/1"
FIRST, SECOND, THIRD = (signing_key(ORIGIN, bytes([n]) * 32) for n in (1, 2, 3))


def checkpoint(size: int, key: SigningKey = FIRST) -> str:
    edge, _ = Edge().extended([bytes([n]) * 32 for n in range(size)])
    return checkpoint_of(ORIGIN, edge, key, b"{}").note


def adoption(key: SigningKey, before: SigningKey | None = None, origin: str = ORIGIN) -> bytes:
    return msgspec.json.encode(AdoptionBody(adoption_note(origin, key, before)))


def chain(*trusted: SigningKey) -> KeyChain:
    return KeyChain(ORIGIN, check_signature, [key.verifier for key in trusted])


def test_a_checkpoint_is_origin_size_and_root() -> None:
    found = parse_checkpoint(checkpoint(5))
    edge, _ = Edge().extended([bytes([n]) * 32 for n in range(5)])
    assert (found.origin, found.size, found.root) == (ORIGIN, 5, edge.root())
    assert checkpoint(5).split("\n")[:2] == [ORIGIN, "5"]


@pytest.mark.parametrize(
    "text",
    [
        "one line\n",
        f"{ORIGIN}\n5\n",
        f"{ORIGIN}\n05\nR1k6Yv2sVYw7ZJqjlWUZgvDBpxuoJ8KmSAIkVXd5J0Y=\n",
        f"{ORIGIN}\n-5\nR1k6Yv2sVYw7ZJqjlWUZgvDBpxuoJ8KmSAIkVXd5J0Y=\n",
        f"{ORIGIN}\nfive\nR1k6Yv2sVYw7ZJqjlWUZgvDBpxuoJ8KmSAIkVXd5J0Y=\n",
        f"{ORIGIN}\n5\nAAAA\n",
        f"{ORIGIN}\n5\nR1k6Yv2sVYw7ZJqjlWUZgvDBpxuoJ8KmSAIkVXd5J0Y=\n\nmore\n",
        f"{ORIGIN}\n{10**20}\nR1k6Yv2sVYw7ZJqjlWUZgvDBpxuoJ8KmSAIkVXd5J0Y=\n",
    ],
)
def test_a_note_of_something_else_is_no_checkpoint(text: str) -> None:
    with pytest.raises(Invalid):
        parse_checkpoint(sign_note(text, FIRST))


def test_extension_lines_are_let_pass() -> None:
    lines = checkpoint(5).partition("\n\n")[0]
    assert parse_checkpoint(sign_note(f"{lines}\nmore\n", FIRST)).size == 5


def test_each_key_signs_from_where_it_was_adopted() -> None:
    keys = chain()
    assert keys.adopt(4, adoption(FIRST)) is None
    assert keys.adopt(9, adoption(SECOND, FIRST)) is None
    assert keys.current == SECOND.verifier
    for size, signer in ((5, FIRST), (8, FIRST), (9, SECOND), (12, SECOND)):
        assert keys.key_at(size) == signer.verifier
        assert keys.is_signed(parse_checkpoint(checkpoint(size, signer)))
    assert keys.key_at(3) is None
    assert not keys.is_signed(parse_checkpoint(checkpoint(3)))
    assert not keys.is_signed(parse_checkpoint(checkpoint(12)))


def test_trust_passes_from_a_key_to_those_after_it() -> None:
    for trusted, sizes in ((FIRST, {5, 9}), (SECOND, {9}), (THIRD, set())):
        keys = chain(trusted)
        keys.adopt(4, adoption(FIRST))
        keys.adopt(9, adoption(SECOND, FIRST))
        assert {size for size in (3, 5, 9) if keys.trusts(size)} == sizes


BAD_ADOPTIONS = {
    "is not signed by": msgspec.json.encode(
        AdoptionBody(adoption_note(ORIGIN, SECOND, FIRST).rpartition("— ")[0])
    ),
    "follows another key": adoption(SECOND),
    "follows another key than": adoption(SECOND, THIRD),
    "is of another log": adoption(SECOND, FIRST, "kudurru/other/1"),
    "cannot be read": b"{}",
    "the note is of something else": msgspec.json.encode(AdoptionBody(checkpoint(5))),
    "was erased": None,
}


@pytest.mark.parametrize("why", BAD_ADOPTIONS)
def test_a_key_that_the_one_before_did_not_accept_is_none(why: str) -> None:
    keys = chain()
    assert keys.adopt(4, adoption(FIRST)) is None
    fault = keys.adopt(9, BAD_ADOPTIONS[why])
    assert fault is not None
    assert why in fault
    assert keys.current == FIRST.verifier


def event(type_: str, source: str | None) -> Recorded:
    who = None if source is None else b'{"actor":"system","source":"%s"}' % source.encode()
    return Recorded(
        Position(1), Position(1), 1, 0, type_, Key("System//x"), 1, "/", "m", b"{}", who
    )


@pytest.mark.parametrize(
    ("type_", "source", "asks"),
    [
        (OBJECT_APPLIED, "cli", True),
        (OBJECT_APPLIED, None, True),
        (OBJECT_APPLIED, "checkpoint", False),
        (CHECKPOINT_STATE, "checkpoint", False),
        (KEY_ADOPTED, "cli", False),
    ],
)
def test_checkpoints_and_their_publication_ask_for_no_checkpoint(
    type_: str, source: str | None, asks: bool
) -> None:
    assert is_activity(event(type_, source)) is asks


def test_a_checkpoint_travels_as_a_txt_record() -> None:
    note = checkpoint(5)
    rdata = records.target_from_text(record_types.TXT, txt_target(note))
    strings, at = [], 0
    while at < len(rdata):
        strings.append(rdata[at + 1 : at + 1 + rdata[at]])
        at += 1 + rdata[at]
    assert b"\n".join(strings).decode() + "\n" == note
    shown = records.rdata_to_text(record_types.TXT, rdata)
    assert note_of_txt(shown + "\n") == note
    assert note_of_txt(note) == note


lines = st.lists(st.text(st.characters(exclude_categories=["Cc", "Cs"])), min_size=1)


@given(lines)
def test_any_note_comes_back_from_a_txt_record(some: list[str]) -> None:
    note = "".join(f"{line}\n" for line in some)
    assert note_of_txt(txt_target(note)) == note


def test_a_proof_file_has_the_form_of_the_specification() -> None:
    text = tlog_proof(7, [bytes(32), bytes(range(32))], checkpoint(9), b"entry")
    assert text.startswith(
        "c2sp.org/tlog-proof@v1\nextra ZW50cnk=\nindex 7\n"
        "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n"
        "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n\n"
    )
    assert text.endswith(checkpoint(9))
