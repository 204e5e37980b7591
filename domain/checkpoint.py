"""Checkpoints: what a key holder says of a whole log, in a few lines that can go elsewhere.

A checkpoint (c2sp.org/tlog-checkpoint) is a signed note of origin, size and tree root. Its last
leaf is a `checkpoint.state.v1` event with digests of what the log before it means, so the same
signature covers the state. The note is stored in the transaction of that event: where one is
without the other, somebody took it away.

Which key may sign is in the log too: the first `key.adopted.v1` names the first key, each further
one is signed by the key before and by the new one. Whoever audits keeps a key of that row outside
of the log, and trusts it and its successors.
"""

import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256

import msgspec

from kudurru.domain.codec import canonical
from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.events import CHECKPOINT_STATE, KEY_ADOPTED, Recorded, Who
from kudurru.domain.ports import StoredCheckpoint
from kudurru.domain.signed_note import (
    CheckSignature,
    SignedNote,
    SigningKey,
    VerifierKey,
    from_base64,
    parse_key,
    parse_note,
    sign_note,
)
from kudurru.domain.tree import HASH_SIZE, Edge

SOURCE = "checkpoint"
"""`who.source` of checkpoints, of their publication, and of what a publication leads to."""

_ADOPTION = "kudurru-key-adoption"
_FIRST = "none"


class Checkpoint(msgspec.Struct, frozen=True):
    """A note that was read: nothing about its signatures is known yet."""

    origin: str
    size: int
    root: bytes
    note: SignedNote


class StateBody(msgspec.Struct, frozen=True):
    """Body of checkpoint.state.v1: digests of the state after the event before it."""

    all: str  # of all objects
    groups: dict[str, str]
    """By "zone/NAME" and "kind/NAME", of those that changed since the checkpoint before; "" for
    one that has no objects any more."""

    def encode(self) -> bytes:
        return canonical(self)


class AdoptionBody(msgspec.Struct, frozen=True):
    """Body of key.adopted.v1."""

    note: str


class Adoption(msgspec.Struct, frozen=True):
    """What a key.adopted.v1 says."""

    seq: int
    origin: str
    previous: VerifierKey | None
    key: VerifierKey
    note: SignedNote


# --- writing ----------------------------------------------------------------------------------


def checkpoint_of(origin: str, edge: Edge, key: SigningKey, state: bytes) -> StoredCheckpoint:
    """The signed checkpoint of a tree, whose last leaf has the body `state`."""
    root = b64encode(edge.root()).decode()
    note = sign_note(f"{origin}\n{edge.size}\n{root}\n", key)
    return StoredCheckpoint(edge.size, note, b"".join(edge.frontier()), sha256(state).digest())


def adoption_note(origin: str, key: SigningKey, previous: SigningKey | None) -> str:
    """Says that `key` signs from here on; signed by it and by the one before."""
    before = str(previous.verifier) if previous else _FIRST
    text = f"{_ADOPTION}\n{origin}\n{before}\n{key.verifier}\n"
    return sign_note(text, key) if previous is None else sign_note(text, previous, key)


# --- reading ----------------------------------------------------------------------------------


def parse_checkpoint(text: str) -> Checkpoint:
    """Raises: Invalid when it is no checkpoint. Extension lines are let pass, as the format
    wants."""
    note = parse_note(text)
    lines = note.text.removesuffix("\n").split("\n")
    root = from_base64(lines[2]) if len(lines) > 2 else None
    is_size = len(lines) > 1 and lines[1].isascii() and lines[1].isdigit()
    if not is_size or root is None or len(root) != HASH_SIZE or not all(lines):
        raise Invalid("checkpoint", [Cause("", "the note is not origin, size and root hash")])
    if str(int(lines[1])) != lines[1] or len(lines[1]) > 18:
        raise Invalid("checkpoint", [Cause("", f"{lines[1]!r} is no tree size")])
    return Checkpoint(lines[0], int(lines[1]), root, note)


def parse_adoption(seq: int, body: bytes) -> Adoption:
    """Raises: Invalid when the body is no adoption."""
    try:
        note = parse_note(msgspec.json.decode(body, type=AdoptionBody).note)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Invalid("key adoption", [Cause("", str(error))]) from error
    lines = note.text.split("\n")
    if len(lines) != 5 or lines[0] != _ADOPTION:
        raise Invalid("key adoption", [Cause("", "the note is of something else")])
    previous = None if lines[2] == _FIRST else parse_key(lines[2])
    return Adoption(seq, lines[1], previous, parse_key(lines[3]), note)


class _Adopted(msgspec.Struct, frozen=True):
    seq: int
    key: VerifierKey | None  # None: an epoch begins
    is_trusted: bool  # it is one of the auditor's, or follows from one


class KeyChain:
    """The keys of a log, in the order in which they were adopted, and which of them are trusted."""

    def __init__(
        self, origin: str, check: CheckSignature, trusted: Iterable[VerifierKey] = ()
    ) -> None:
        self.origin = origin
        self._check = check
        self._trusted = frozenset(trusted)
        self._keys: list[_Adopted] = []

    @property
    def is_checked(self) -> bool:
        """Whether there are keys from outside to hold the log against."""
        return bool(self._trusted)

    @property
    def has_begun(self) -> bool:
        """Whether the log ever adopted a key."""
        return any(one.key is not None for one in self._keys)

    @property
    def current(self) -> VerifierKey | None:
        return self._keys[-1].key if self._keys else None

    def begin_epoch(self, seq: int, origin: str) -> None:
        """From here on the log has another name, and no key yet."""
        self.origin = origin
        self._keys.append(_Adopted(seq, None, is_trusted=False))

    def adopt(self, seq: int, body: bytes | None) -> str | None:
        """Take in an adoption, in order; what is wrong with it, None when nothing is."""
        if body is None:
            return "the adoption of a key was erased"
        try:
            adoption = parse_adoption(seq, body)
        except Invalid as error:
            return f"the adoption of a key cannot be read: {error}"
        if adoption.origin != self.origin:
            return f"the adoption of a key is of another log, {adoption.origin}"
        if adoption.previous != self.current:
            return f"{adoption.key} follows another key than {self.current or 'none'}"
        for key in (adoption.key, self.current):
            if key is not None and not adoption.note.signed_by(key, self._check):
                return f"the adoption of {adoption.key} is not signed by {key}"
        follows = bool(self._keys) and self._keys[-1].is_trusted
        is_trusted = follows or adoption.key in self._trusted
        self._keys.append(_Adopted(seq, adoption.key, is_trusted=is_trusted))
        return None

    def key_at(self, size: int) -> VerifierKey | None:
        """The key that signs a checkpoint of that size."""
        found = self._at(size)
        return found.key if found else None

    def trusts(self, size: int) -> bool:
        """Whether the key that signs at that size is a trusted one, or follows from one."""
        found = self._at(size)
        return found is not None and found.is_trusted

    def _at(self, size: int) -> "_Adopted | None":
        return next((one for one in reversed(self._keys) if one.seq <= size), None)

    def is_signed(self, checkpoint: Checkpoint) -> bool:
        """By the key that signs at its size, of this log's own chain."""
        key = self.key_at(checkpoint.size)
        return key is not None and checkpoint.note.signed_by(key, self._check)

    def is_signed_by_trusted(self, checkpoint: Checkpoint) -> bool:
        """By one of the keys from outside: of a checkpoint that this log may not know."""
        return any(checkpoint.note.signed_by(key, self._check) for key in self._trusted)


# --- what asks for a checkpoint ---------------------------------------------------------------


def is_activity(event: Recorded) -> bool:
    """Whether an event asks for a checkpoint: checkpoints do not, nor does their publication, or
    an idle log would grow for ever."""
    if event.type in (CHECKPOINT_STATE, KEY_ADOPTED):
        return False
    if event.who is None:
        return True
    return msgspec.json.decode(event.who, type=Who).source != SOURCE


def decode_state(body: bytes) -> StateBody:
    return msgspec.json.decode(body, type=StateBody)


def frontier_hashes(frontier: bytes) -> Sequence[bytes]:
    return [frontier[i : i + HASH_SIZE] for i in range(0, len(frontier), HASH_SIZE)]


# --- proofs that can be carried away ----------------------------------------------------------


def tlog_proof(index: int, path: Sequence[bytes], note: str, extra: bytes = b"") -> str:
    """A proof file (c2sp.org/tlog-proof) that leaf `index` is in the tree of the note."""
    lines = ["c2sp.org/tlog-proof@v1"]
    if extra:
        lines.append(f"extra {b64encode(extra).decode()}")
    lines.append(f"index {index}")
    lines += [b64encode(node).decode() for node in path]
    return "\n".join(lines) + "\n\n" + note


def txt_target(note: str) -> str:
    """A note as the text of a TXT record: one character-string a line (RFC 1035 section 5.1)."""
    return " ".join(f'"{_escaped(line)}"' for line in note.removesuffix("\n").split("\n"))


def _escaped(line: str) -> str:
    return "".join(
        chr(octet) if 0x20 <= octet < 0x7F and octet not in b'"\\' else f"\\{octet:03d}"
        for octet in line.encode()
    )


def note_of_txt(text: str) -> str:
    """The note of a TXT record as `dig +short` prints it; any other text as it is."""
    strings = _TXT_STRING.findall(text)
    if not text.startswith('"') or not strings:
        return text
    lines = [_TXT_ESCAPE.sub(_unescaped, string.encode()) for string in strings]
    return b"".join(line + b"\n" for line in lines).decode(errors="replace")


def _unescaped(found: re.Match[bytes]) -> bytes:
    digits, other = found.groups()
    return bytes((int(digits) & 0xFF,)) if digits else other


_TXT_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_TXT_ESCAPE = re.compile(rb"\\(?:(\d{3})|(.))")
