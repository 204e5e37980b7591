"""kudurru-verify from within: its own Ed25519, its own tree, and how it reads a line."""

import io
import json
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from kudurru.domain.chain import genesis, head_after, origin_of
from kudurru.domain.events import PAYLOAD_REDACTED, SIGNING_KEY, SYSTEM_KEY, Event
from kudurru.domain.export import event_line, first_line, last_line
from kudurru.domain.ports import VerifiableLog
from kudurru.domain.tree import Edge, Tree, root_of
from kudurru.entrypoints import verify_export
from tests.logs import NOON_US, adopt, applied, change, log_key, memory_log, recorded_history, sign

# RFC 8032 section 7.1: public key, message, signature in two parts.
VECTORS = [
    "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
    "-",
    "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155",
    "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
    "72",
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da",
    "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
    "af82",
    "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac",
    "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
]


@pytest.mark.parametrize("at", [0, 4, 8])
def test_signatures_of_rfc_8032_verify(at: int) -> None:
    public, message, *signature = VECTORS[at : at + 4]
    octets = bytes.fromhex(public), bytes.fromhex("".join(signature))
    text = bytes.fromhex(message.strip("-"))
    assert verify_export.is_signed(*octets, text)
    assert not verify_export.is_signed(*octets, text + b"x")


@settings(max_examples=10, deadline=None)
@given(seed=st.binary(min_size=32, max_size=32), message=st.binary(max_size=80), data=st.data())
def test_only_the_signature_that_was_made_is_accepted(
    seed: bytes, message: bytes, data: st.DataObject
) -> None:
    private = Ed25519PrivateKey.from_private_bytes(seed)
    public, signature = private.public_key().public_bytes_raw(), private.sign(message)
    assert verify_export.is_signed(public, signature, message)
    at = data.draw(st.integers(0, 63))
    changed = bytearray(signature)
    changed[at] ^= data.draw(st.integers(1, 255))
    assert not verify_export.is_signed(public, bytes(changed), message)


def test_a_signature_that_is_its_own_plus_the_order_is_refused() -> None:
    # RFC 8032 section 5.1.7: s must be below L, or every signature would have a twin.
    private = Ed25519PrivateKey.from_private_bytes(bytes(32))
    signature = private.sign(b"text")
    s = int.from_bytes(signature[32:], "little") + verify_export.L
    twin = signature[:32] + s.to_bytes(32, "little")
    public = private.public_key().public_bytes_raw()
    assert verify_export.is_signed(public, signature, b"text")
    assert not verify_export.is_signed(public, twin, b"text")
    assert not verify_export.is_signed(public[:-1], signature, b"text")
    assert not verify_export.is_signed(b"\xff" * 32, signature, b"text")


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 8, 100, 257])
def test_its_tree_is_ours(size: int) -> None:
    leaves = [bytes([n % 256]) * 32 for n in range(size)]
    tree = verify_export.Tree()
    for leaf in leaves:
        tree.add(leaf)
    assert tree.root() == root_of(leaves)
    if not size:
        return
    edge, tiles = Edge().extended(leaves)
    stored = {(tile.level, tile.index): tile.hashes for tile in tiles}

    def read(level: int, first: int, last: int) -> Sequence[bytes]:
        return stored[level, 0][first:last] if level else leaves[first:last]

    for index in (0, size // 2, size - 1):
        proof = Tree(size, read).inclusion_proof(index)
        found = verify_export.root_by_proof(leaves[index], index, size, proof)
        assert found == edge.root()
        assert verify_export.root_by_proof(leaves[index], index, size, [*proof, bytes(32)]) is None


texts = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=10,
)


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(texts, values, min_size=1, max_size=4))
def test_fields_are_read_as_they_stand(document: dict[str, object]) -> None:
    line = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    fields = verify_export.fields_of(line)
    assert {name: json.loads(text) for name, text in fields.items()} == document
    parts = [f"{json.dumps(name, ensure_ascii=False)}:{text}" for name, text in fields.items()]
    assert "{" + ",".join(parts) + "}" == line


@pytest.mark.parametrize(
    "line",
    ["", "{", "[]", '{"a":1', '{"a":1}x', '{"a":1,"a":2}', '{"a":1 ,"b":2}', '{"a" :1}', "{}x"],
)
def test_what_is_no_object_on_a_line_is_refused(line: str) -> None:
    with pytest.raises((ValueError, IndexError)):
        verify_export.fields_of(line)


# --- what only an export of odd events has ----------------------------------------------------


def said_of(log: VerifiableLog, *, erased: int = 0) -> str:
    """What the verifier says of an export of a log, the body at a position erased."""
    return said_of_text(b"".join(lines_of(log, erased=erased)))


def said_of_text(octets: bytes) -> str:
    text = octets.decode(errors="surrogateescape")
    return verify_export.verify(io.StringIO(text, newline="\n"), [])[0]


def lines_of(log: VerifiableLog, *, erased: int = 0, **header: Any) -> list[bytes]:
    newest = log.newest_checkpoint()
    assert newest is not None
    notes = [json.loads(event.body or b"")["note"] for event in log.read(key=SIGNING_KEY)]
    lines = [first_line(origin_of(log.log_id, log.epoch), newest.size, {}, notes, **header)]
    for row in log.rows(0, newest.size):
        is_erased = row.seq == erased
        lines.append(
            event_line(msgspec.structs.replace(row, salt=None, body=None) if is_erased else row)
        )
    lines.append(last_line(newest, newest.size))
    return lines


def redaction(seq: int, **more: str) -> Event:
    body = json.dumps({"seq": seq, **more}).encode()
    return Event(PAYLOAD_REDACTED, SYSTEM_KEY, 1, "/", "kudurru-controller", body)


def test_an_erased_payload_needs_an_event_that_says_so() -> None:
    log = memory_log()
    recorded_history(log)
    log.append([change(redaction(2))], NOON_US)
    sign(log, 1, adopt(log))
    assert said_of(log) == "ok: all 13 events of the log"
    assert said_of(log, erased=2) == "ok: all 13 events of the log, 1 payloads were redacted"
    with pytest.raises(verify_export.Fault, match="position 3: its body was erased") as found:
        said_of(log, erased=3)
    assert found.value.kind == "payload"


def test_a_redaction_of_more_than_there_is_takes_no_time() -> None:
    log = memory_log()
    recorded_history(log)
    body = json.dumps({"seq": -(10**15), "last": 10**15}).encode()
    log.append([change(Event(PAYLOAD_REDACTED, SYSTEM_KEY, 1, "/", "x", body))], NOON_US)
    sign(log, 1, adopt(log))
    assert said_of(log, erased=2) == "ok: all 13 events of the log, 1 payloads were redacted"


def test_a_witness_may_have_signed_too_by_whatever_means() -> None:
    log = memory_log()
    note = sign(log, 1, adopt(log)).note
    witnessed = f"{note}\u2014 witness {b64encode(bytes(2424)).decode()}\n"
    key = verify_export.Key(str(log_key(log).verifier))
    assert verify_export.signed_by(key, witnessed)
    assert not verify_export.signed_by(key, witnessed.replace("\n2\n", "\n3\n"))


def test_a_redaction_of_who_does_not_excuse_a_body() -> None:
    log = memory_log()
    recorded_history(log)
    log.append([change(redaction(2, part="who"))], NOON_US)
    sign(log, 1, adopt(log))
    with pytest.raises(verify_export.Fault, match="position 2: its body was erased"):
        said_of(log, erased=2)


@pytest.mark.parametrize(
    "body", [b"", b"\x00\xff", b'{"a":\n1}', b'{"a": 1}', b'"text"', b"null", b"[1, 2]", b"1e5"]
)
def test_a_body_of_any_octets_is_exported_and_verified(body: bytes) -> None:
    log = memory_log()
    log.append([change(applied("www", body=body))], NOON_US)
    sign(log, 1, adopt(log))
    assert said_of(log) == "ok: all 3 events of the log"


@pytest.mark.parametrize(
    "more",
    [
        b'"note":"approved by root"',
        b'"seq":1',
        b'"bodyBase64":"e30="',
        b'"body":{"forged":true}',
        b'"size":1',
        b'"events":1',
    ],
)
@pytest.mark.parametrize("line", [0, 1, -1])
def test_a_field_that_nothing_vouches_for_is_refused(line: int, more: bytes) -> None:
    """Whoever reads the file would take it for one that was verified, as those beside it."""
    log = memory_log()
    recorded_history(log)
    sign(log, 1, adopt(log))
    lines = lines_of(log)
    said_of_text(b"".join(lines))
    for changed in (b"{" + more + b"," + lines[line][1:], lines[line][:-2] + b"," + more + b"}\n"):
        forged = list(lines)
        forged[line] = changed
        with pytest.raises(verify_export.Fault):
            said_of_text(b"".join(forged))


def test_a_payload_is_not_there_in_two_ways() -> None:
    """The one would be verified, and the other read."""
    log = memory_log()
    log.append([change(applied("www", body=b"\x00"))], NOON_US)
    sign(log, 1, adopt(log))
    octets = b"".join(lines_of(log))
    assert octets.count(b'"bodyBase64":"AA=="') == 1
    forged = octets.replace(b'"bodyBase64"', b'"body":{"forged":true},"bodyBase64"')
    with pytest.raises(verify_export.Fault, match="twice"):
        said_of_text(forged)


def test_a_log_began_with_the_name_that_its_events_say() -> None:
    """The heads follow from that name and no signature is over them: who owns the file can compute
    them anew."""
    log = memory_log()
    recorded_history(log)
    sign(log, 1, adopt(log))
    lines = lines_of(log, began="kudurru/another/1")
    before = genesis("kudurru/another/1")
    for at, row in enumerate(log.rows(0), 1):
        before = head_after(before, row.leaf)
        lines[at] = event_line(msgspec.structs.replace(row, head=before))
    with pytest.raises(verify_export.Fault, match="by its events") as found:
        said_of_text(b"".join(lines))
    assert found.value.kind == "chain"


def test_what_a_selection_was_chosen_by_is_not_anything_that_its_writer_likes() -> None:
    line = b'{"filter":{"everything, says the auditor":""},"keys":[],"kudurru":"export",'
    line += b'"origin":"kudurru/x/1","size":1,"version":1}\n'
    with pytest.raises(verify_export.Fault, match="this is no export"):
        said_of_text(line)


def test_what_is_not_there_is_said_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing"
    assert verify_export.main([str(missing)]) == 1
    assert capsys.readouterr().err == f"{missing}: cannot be read: No such file or directory\n"
