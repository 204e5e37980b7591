"""Signed notes and their keys (c2sp.org/signed-note), as far as a log needs them: Ed25519.

    text, ends in a newline
    <empty line>
    — <key name> base64(key id ‖ signature)

Signatures are made and checked outside: by `Sign` and `CheckSignature`.
"""

import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable
from hashlib import sha256

import msgspec

from kudurru.domain.errors import Cause, Invalid

ED25519 = b"\x01"
SIGNATURES_MAX = 16
NOTE_MAX = 64 * 1024
"""Octets of a note that are looked at: sixteen post-quantum signatures fit."""

_KEY_NAME = re.compile(r"[^\s+\x00-\x1f]{1,255}\Z")

CheckSignature = Callable[[bytes, bytes, bytes], bool]
"""(public key, signature, message): whether Ed25519 (RFC 8032) accepts it."""


class VerifierKey(msgspec.Struct, frozen=True):
    """A public key and its name, written `<name>+<key id>+<base64>`."""

    name: str
    public: bytes  # 32 octets

    @property
    def id(self) -> bytes:
        return sha256(self.name.encode() + b"\n" + ED25519 + self.public).digest()[:4]

    def __str__(self) -> str:
        return f"{self.name}+{self.id.hex()}+{b64encode(ED25519 + self.public).decode()}"


class SigningKey(msgspec.Struct, frozen=True):
    """A key that signs. `sign` gives the 64 octets of a signature."""

    verifier: VerifierKey
    sign: Callable[[bytes], bytes]


class Signature(msgspec.Struct, frozen=True):
    name: str
    key_id: bytes
    octets: bytes


class SignedNote(msgspec.Struct, frozen=True):
    text: str
    signatures: tuple[Signature, ...]

    def signed_by(self, key: VerifierKey, check: CheckSignature) -> bool:
        """Whether the key has signed, and no signature in its name is wrong."""
        named = [s for s in self.signatures if (s.name, s.key_id) == (key.name, key.id)]
        message = self.text.encode()
        return bool(named) and all(check(key.public, s.octets, message) for s in named)


def sign_note(text: str, *keys: SigningKey) -> str:
    """The note with one signature of each key."""
    lines = [
        f"— {key.verifier.name} {b64encode(key.verifier.id + key.sign(text.encode())).decode()}\n"
        for key in keys
    ]
    return f"{text}\n{''.join(lines)}"


def parse_note(note: str) -> SignedNote:
    """Raises: Invalid when it is none."""
    if len(note) > NOTE_MAX:
        raise _no_note(f"it is longer than {NOTE_MAX} characters")
    if any(c < " " and c != "\n" for c in note):
        raise _no_note("it has control characters")
    text, gap, tail = note.rpartition("\n\n")
    lines = tail.removesuffix("\n").split("\n")
    if not gap or not text or not tail.endswith("\n"):
        raise _no_note("it has no signatures after an empty line")
    if len(lines) > SIGNATURES_MAX:
        raise _no_note(f"it has more than {SIGNATURES_MAX} signatures")
    return SignedNote(text + "\n", tuple(_signature(line) for line in lines))


def _signature(line: str) -> Signature:
    parts = line.split(" ")
    if len(parts) != 3 or parts[0] != "—" or not _KEY_NAME.match(parts[1]):
        raise _no_note(f"{line!r} is no signature")
    octets = from_base64(parts[2])
    if octets is None or len(octets) <= 4:
        raise _no_note(f"{line!r} is no signature")
    return Signature(parts[1], octets[:4], octets[4:])


def parse_key(text: str) -> VerifierKey:
    """Raises: Invalid when it is no Ed25519 verifier key."""
    parts = text.strip().split("+", 2)  # the base64 may have a + too
    octets = from_base64(parts[2]) if len(parts) == 3 else None
    if octets is None or not _KEY_NAME.match(parts[0]) or len(octets) != 33:
        raise _no_key(text, "is no verification key: NAME+ID+BASE64, as `kudurru audit key` prints")
    if octets[:1] != ED25519:
        raise _no_key(text, "is no Ed25519 key")
    key = VerifierKey(parts[0], octets[1:])
    if key.id.hex() != parts[1]:
        raise _no_key(text, "does not belong together: its id is not that of name and key")
    return key


def from_base64(text: str) -> bytes | None:
    """Octets of the one way to write them (RFC 4648 section 4), None for anything else."""
    try:
        octets = b64decode(text, validate=True)
    except (Base64Error, ValueError):
        return None
    return octets if b64encode(octets).decode() == text else None


def _no_note(why: str) -> Invalid:
    return Invalid("note", [Cause("", f"{why}; give a signed note as `audit checkpoint` writes")])


def _no_key(text: str, why: str) -> Invalid:
    return Invalid("key", [Cause("", f"{text!r} {why}")])
