#!/usr/bin/env python3
"""kudurru-verify: checks what `kudurru audit export` and `kudurru audit prove` wrote.

One file, standard library only: copy it to a machine that has Python 3.9 or later and no kudurru,
read it (it is meant to be), and run

    python3 verify_export.py EXPORT.jsonl --key 'kudurru/…+…+…'

The key comes from `kudurru audit key`, kept by whoever audits since before what is to be proven.
Without it the file is only shown to agree with itself.

Exit codes: 0 right; 1 cannot be read; 2 usage; 10 gap, 11 payload, 12 entry, 13 chain, 14 tree,
15 signature, 16 truncation: those of `kudurru audit verify`. The first fault ends it.

What is checked: `body` and `who` against the salted commitments in the entry, entries against the
leaves (SHA-256, RFC 6962 section 2.1), leaves against the chain and the tree, the root of the tree
against the checkpoint (c2sp.org/tlog-checkpoint), its Ed25519 signature (RFC 8032) against the key,
and each change of keys against the signature of the key before.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import hashlib
import io
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

EXIT_CODES = {
    "gap": 10,
    "payload": 11,
    "entry": 12,
    "chain": 13,
    "tree": 14,
    "signature": 15,
    "truncation": 16,
}


class Fault(Exception):
    """What is wrong: a kind of EXIT_CODES, "file" for what is no export at all."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def sha256(octets: bytes) -> bytes:
    return hashlib.sha256(octets).digest()


def shown(text: str) -> str:
    """Text of a file that somebody else wrote, as it may be printed: what could move a cursor or
    turn the direction of writing would let it say what it likes of itself."""
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


# --- Ed25519 (RFC 8032 section 5.1), verification only ----------------------------------

Point = tuple[int, int, int, int]
"""Extended coordinates: x = X/Z, y = Y/Z, xy = T/Z."""

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P
SQRT_M1 = pow(2, (P - 1) // 4, P)


def recover_x(y: int, sign: int) -> int | None:
    """x of a point, None where there is none."""
    if y >= P:
        return None
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * SQRT_M1 % P
    if (x * x - square) % P or (x == 0 and sign):
        return None
    return P - x if x & 1 != sign else x


def decompress(octets: bytes) -> Point | None:
    number = int.from_bytes(octets, "little")
    y, sign = number & (1 << 255) - 1, number >> 255
    x = recover_x(y, sign)
    return None if x is None else (x, y, 1, x * y % P)


def add(p: Point, q: Point) -> Point:
    a = (p[1] - p[0]) * (q[1] - q[0]) % P
    b = (p[1] + p[0]) * (q[1] + q[0]) % P
    c = 2 * p[3] * q[3] * D % P
    d = 2 * p[2] * q[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P


def multiply(scalar: int, point: Point) -> Point:
    result = (0, 1, 1, 0)
    while scalar:
        if scalar & 1:
            result = add(result, point)
        point = add(point, point)
        scalar >>= 1
    return result


BASE = decompress((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))


def is_signed(public: bytes, signature: bytes, message: bytes) -> bool:
    """Whether an Ed25519 signature is right."""
    if len(public) != 32 or len(signature) != 64:
        return False
    a, r = decompress(public), decompress(signature[:32])
    s = int.from_bytes(signature[32:], "little")
    if a is None or r is None or BASE is None or s >= L:
        return False
    h = int.from_bytes(hashlib.sha512(signature[:32] + public + message).digest(), "little") % L
    left, right = multiply(s, BASE), add(r, multiply(h, a))
    return (left[0] * right[2] - right[0] * left[2]) % P == 0 and (
        left[1] * right[2] - right[1] * left[2]
    ) % P == 0


# --- signed notes and keys (c2sp.org/signed-note) ---------------------------------------


class Key:
    """A verification key: NAME+ID+BASE64."""

    def __init__(self, text: str) -> None:
        parts = text.strip().split("+", 2)
        octets = unbase64(parts[2]) if len(parts) == 3 else None
        if octets is None or len(octets) != 33 or octets[:1] != b"\x01":
            raise ValueError(f"{text!r} is no verification key, as `kudurru audit key` prints it")
        self.name, self.public = parts[0], octets[1:]
        self.id = sha256(self.name.encode() + b"\n" + octets)[:4]
        if self.id.hex() != parts[1]:
            raise ValueError(f"{text!r} does not belong together: name, id and key")
        self.text = "+".join(parts)


def unbase64(text: str) -> bytes | None:
    """Octets of the one way to write them, None for anything else."""
    try:
        octets = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return octets if base64.b64encode(octets).decode() == text else None


def split_note(note: str) -> tuple[str, list[tuple[str, bytes, bytes]]]:
    """Text of a signed note, and its signatures as (name, key id, octets)."""
    text, gap, tail = note.rpartition("\n\n")
    signatures = []
    for line in tail.removesuffix("\n").split("\n"):
        parts = line.split(" ")
        octets = unbase64(parts[2]) if len(parts) == 3 and parts[0] == "—" else None
        if octets is None or len(octets) <= 4:  # others than Ed25519 may have signed too
            raise Fault("signature", f"{line!r} is no signature")
        signatures.append((parts[1], octets[:4], octets[4:]))
    if not gap or not signatures:
        raise Fault("signature", "a note without signatures")
    return text + "\n", signatures


def signed_by(key: Key, note: str) -> bool:
    text, signatures = split_note(note)
    named = [s for name, key_id, s in signatures if (name, key_id) == (key.name, key.id)]
    return bool(named) and all(is_signed(key.public, s, text.encode()) for s in named)


class Keys:
    """The keys of a log, each adopted by a note that the one before has signed too."""

    def __init__(self, origin: str, adoptions: list[str], trusted: list[Key]) -> None:
        self.current: Key | None = None
        self.is_trusted, self.trusted = False, trusted
        for note in adoptions:
            self._adopt(origin, note)

    def _adopt(self, origin: str, note: str) -> None:
        lines = split_note(note)[0].split("\n")
        if len(lines) != 5 or lines[:2] != ["kudurru-key-adoption", origin]:
            raise Fault("signature", "the adoption of a key is of another log")
        before = self.current.text if self.current else "none"
        if lines[2] != before:
            raise Fault("signature", f"a key follows {lines[2]} and not {before}")
        try:
            key = Key(lines[3])
        except ValueError as error:
            raise Fault("signature", str(error)) from None
        for signer in (key, self.current):
            if signer is not None and not signed_by(signer, note):
                raise Fault("signature", f"{key.text} was not adopted by {signer.text}")
        self.current = key
        self.is_trusted = self.is_trusted or key.text in [one.text for one in self.trusted]


def check_checkpoint(note: str, origin: str, size: int, root: bytes | None, keys: Keys) -> None:
    """That the note is a checkpoint of this tree, signed as it should be."""
    lines = split_note(note)[0].split("\n")
    if len(lines) < 4 or lines[0] != origin:
        raise Fault("signature", f"the checkpoint is not of {origin}")
    if lines[1] != str(size):
        raise Fault("truncation", f"the checkpoint is of {lines[1]} events, and here are {size}")
    if keys.current is None or not signed_by(keys.current, note):
        signer = keys.current.text if keys.current else "a key that the log names"
        raise Fault("signature", f"the checkpoint is not signed by {signer}")
    if keys.trusted and not keys.is_trusted:
        raise Fault(
            "signature",
            f"signed by {keys.current.text}, which is not the key given and was not adopted "
            "under it",
        )
    if unbase64(lines[2]) != root:
        raise Fault("tree", f"the root that was signed is not that of these {size} events")


# --- the tree (RFC 6962 section 2.1) ----------------------------------------------------


def node(left: bytes, right: bytes) -> bytes:
    return sha256(b"\x01" + left + right)


class Tree:
    """Leaves as they come; keeps the roots of full subtrees only."""

    def __init__(self) -> None:
        self.size = 0
        self.roots: list[bytes] = []

    def add(self, leaf: bytes) -> None:
        self.size += 1
        size = self.size
        while not size & 1:
            leaf = node(self.roots.pop(), leaf)
            size >>= 1
        self.roots.append(leaf)

    def root(self) -> bytes:
        if not self.roots:
            return sha256(b"")
        found = self.roots[-1]
        for left in reversed(self.roots[:-1]):
            found = node(left, found)
        return found


def root_by_proof(leaf: bytes, index: int, size: int, proof: Sequence[bytes]) -> bytes | None:
    """The root that an audit path leads to (RFC 9162 section 2.1.3.2), None when it fits none."""
    number, last, found = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            return None
        if number & 1 or number == last:
            found = node(sibling, found)
            while not number & 1 and number:
                number, last = number >> 1, last >> 1
        else:
            found = node(found, sibling)
        number, last = number >> 1, last >> 1
    return found if last == 0 and 0 <= index < size else None


# --- the file ---------------------------------------------------------------------------

SCAN = json.JSONDecoder().raw_decode

UNREADABLE = (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError)
"""What reading raises where the text is not what it should be."""


def fields_of(line: str) -> dict[str, str]:
    """Fields of an object on one line, as the very text that stands there: what was hashed."""
    fields: dict[str, str] = {}
    at = 1
    if line[:1] != "{" or line[-1:] != "}":
        raise ValueError("no JSON object on a line")
    while line[at - 1] != "}":
        name, at = SCAN(line, at)
        if line[at] != ":" or name in fields:
            raise ValueError("no field")
        _, end = SCAN(line, at + 1)
        fields[name] = line[at + 1 : end]
        at = end + 1
        if line[end] not in ",}":
            raise ValueError("no field")
    if at != len(line):
        raise ValueError("text after the object")
    return fields


def read_only(given: Iterable[str], wanted: Iterable[str], optional: str = "") -> None:
    """What nothing vouches for would be read like what is verified: so there is nothing else."""
    left = set(given)
    if len(set(wanted) - left) or left - {*wanted, optional}:
        raise ValueError(f"fields {sorted(left)}, and {sorted(wanted)} belong here")


def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object, for `json.loads`: of a field that is there twice readers may take either."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a field is there twice")
    return found


def octets_of(fields: dict[str, str], name: str) -> bytes | None:
    """Octets of entry, body or who; None where erased."""
    if name + "Base64" in fields:
        return unbase64(json.loads(fields[name + "Base64"]))
    return None if fields[name] == "null" else fields[name].encode(errors="surrogateescape")


def hex_of(fields: dict[str, str], name: str) -> bytes | None:
    value = json.loads(fields[name])
    return None if value is None else unhex(value)


def unhex(text: str) -> bytes:
    octets = bytes.fromhex(text)
    if octets.hex() != text:
        raise ValueError("hexadecimal is written in small letters")
    return octets


class Event:
    """A line, its hashes and its header."""

    def __init__(self, line: str, number: int) -> None:
        try:
            fields = fields_of(line)
            place = "proof" if "proof" in fields else "head"
            names = {name.removesuffix("Base64") for name in fields}
            read_only(names, ("entry", "salt", "body", "whoSalt", "who", "leaf", place))
            if len(names) != len(fields):
                raise ValueError("a payload is there twice")
            self.entry = octets_of(fields, "entry") or b""
            self.header = json.loads(self.entry)
            self.seq: int = self.header["seq"]
            self.payloads = {
                part: (hex_of(fields, salt), octets_of(fields, part), self.header[part])
                for part, salt in (("body", "salt"), ("who", "whoSalt"))
            }
            self.leaf = hex_of(fields, "leaf")
            self.head = hex_of(fields, "head") if "head" in fields else None
            self.proof = [unhex(text) for text in json.loads(fields.get("proof", "[]"))]
            self.txn, self.n, self.type = (self.header[name] for name in ("txn", "n", "type"))
            if not all(isinstance(number, int) for number in (self.seq, self.txn, self.n)):
                raise ValueError("seq, txn and n are numbers")
        except UNREADABLE as error:
            raise Fault("entry", f"line {number} is no event: {error!r}") from None
        self.computed = sha256(b"\x00" + self.entry)

    def check_payloads(self, erased: set[tuple[int, str]], redacted: set[tuple[int, str]]) -> None:
        for part, (salt, octets, committed) in self.payloads.items():
            if salt is None and octets is None:
                erased.add((self.seq, part))
            elif (
                salt is None
                or octets is None
                or len(salt) != 16
                or sha256(b"\x10" + salt + octets).hex() != committed
            ):
                raise Fault("payload", f"position {self.seq}: its {part} is not what was recorded")
        body = self.payloads["body"][1]
        if self.type == "payload.redacted.v1" and body is not None:
            said = json.loads(body)
            if isinstance(said, dict) and isinstance(said.get("seq"), int):
                first, part, last = said["seq"], str(said.get("part", "body")), said.get("last", 0)
                last = min(max(first, last) if isinstance(last, int) else first, self.seq - 1)
                redacted.update((seq, part) for seq in range(max(first, 1), last + 1))

    def origin_after(self, origin: str) -> str:
        """The name of the log behind this event: another one where an epoch begins."""
        if self.type != "log.epoch.v1":
            return origin
        try:
            said = json.loads(self.payloads["body"][1] or b"")
            before, after = said["origin"], str(said["to"])
        except UNREADABLE:
            raise Fault("chain", f"position {self.seq}: no epoch begins there") from None
        if before != origin:
            raise Fault("chain", f"position {self.seq}: an epoch of {before} begins in {origin}")
        return after

    def check_links(self, before: bytes) -> None:
        """Leaf and head, after the head before."""
        if self.head == sha256(b"\x02" + before + self.computed):
            if self.leaf != self.computed:
                raise Fault("chain", f"position {self.seq}: the leaf is not that of the entry")
        elif self.leaf == self.computed:
            raise Fault("chain", f"position {self.seq}: the head does not follow the one before")
        else:
            raise Fault("entry", f"position {self.seq}: the entry is not what was recorded")


HEADER_FIELDS = ("kudurru", "version", "origin", "size", "filter", "keys")
FILTERS = {"since", "until", "kind", "zone", "actor", "pruned"}


class Export:
    """The lines of an export, read one by one."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self.number = 0
        header = self._next()
        try:
            said = json.loads(header, object_pairs_hook=once)
            is_ours = said["kudurru"] == "export" and said["version"] == 1
            if is_ours:
                read_only(said, HEADER_FIELDS, "began")
            self.origin, self.size = str(said["origin"]), int(said["size"])
            self.began = str(said.get("began", said["origin"]))
            self.filter = dict(said["filter"] or {})
            if is_ours and not self.filter.keys() <= FILTERS:
                raise ValueError("chosen by what no export is chosen by")
            self.keys = [str(note) for note in said["keys"]]
        except UNREADABLE:
            raise Fault("file", "this is no export of kudurru: the first line is none") from None
        if not is_ours:
            raise Fault("file", "this is no export that this verifier knows; use a newer one")

    def _next(self) -> str:
        self.number += 1
        line = next(self._lines, "")
        if not line.endswith("\n"):
            raise Fault("truncation", f"the file was cut short in line {self.number}")
        return line[:-1]

    def events(self) -> Iterator[Event]:
        """Events up to the last line, of which checkpoint and count are kept."""
        while True:
            line = self._next()
            if line.startswith('{"checkpoint":'):
                try:
                    last = json.loads(line, object_pairs_hook=once)
                    read_only(last, ("checkpoint", "events"))
                    self.note, self.count = str(last["checkpoint"]), last["events"]
                except UNREADABLE:
                    raise Fault("truncation", "the last line cannot be read") from None
                if next(self._lines, ""):
                    raise Fault("entry", "there is more after the checkpoint")
                return
            yield Event(line, self.number)


def verify_whole(export: Export, trusted: list[Key]) -> tuple[str, Keys]:
    """Every event of a log, in order, and the tree of all of them."""
    tree, seq, head = Tree(), 0, sha256(b"\x03" + export.began.encode())
    origin = export.began
    erased: set[tuple[int, str]] = set()
    redacted: set[tuple[int, str]] = set()
    set_end = 0
    for event in export.events():
        if event.seq != seq + 1:
            raise Fault(
                "gap", f"position {seq + 1} is missing, line {export.number} has {event.seq}"
            )
        seq += 1
        event.check_links(head)
        event.check_payloads(erased, redacted)
        if (event.txn == seq) != (seq > set_end) or not event.txn <= seq < event.txn + event.n:
            raise Fault("gap", f"position {seq}: a change set is cut")
        set_end = event.txn + event.n - 1
        origin = event.origin_after(origin)
        head = event.head or b""
        tree.add(event.computed)
    if seq != export.size or seq != export.count:
        raise Fault("truncation", f"the export says {export.size} events and has {seq}")
    if seq < set_end:
        raise Fault("gap", f"position {seq + 1} is missing: a change set is cut")
    for seq_erased, part in sorted(erased - redacted):
        message = f"position {seq_erased}: its {part} was erased, and no event says by whom"
        raise Fault("payload", message)
    if origin != export.origin:
        raise Fault("chain", f"the log is {origin} by its events, and {export.origin} by the file")
    keys = Keys(export.origin, export.keys, trusted)
    check_checkpoint(export.note, export.origin, tree.size, tree.root(), keys)
    erasures = f", {len(erased)} payloads were redacted" if erased else ""
    return f"ok: all {tree.size} events of the log{erasures}", keys


def verify_selection(export: Export, trusted: list[Key]) -> tuple[str, Keys]:
    """Events that were picked out: each is in the log, and more is not said."""
    root: bytes | None = None
    count = before = 0
    erased: set[tuple[int, str]] = set()
    for event in export.events():
        if event.seq <= before:
            raise Fault("gap", f"line {export.number}: position {event.seq} is out of order")
        before, count = event.seq, count + 1
        if event.leaf != event.computed:
            raise Fault("entry", f"position {event.seq}: the entry is not what was recorded")
        event.check_payloads(erased, set())
        found = root_by_proof(event.computed, event.seq - 1, export.size, event.proof)
        if found is None or root not in (None, found):
            raise Fault("tree", f"position {event.seq}: the proof does not lead to the root")
        root = found
    if count != export.count:
        raise Fault("truncation", f"the export says {export.count} events and has {count}")
    keys = Keys(export.origin, export.keys, trusted)
    if root is None:
        root = unbase64([*export.note.split("\n"), "", "", ""][2])
    check_checkpoint(export.note, export.origin, export.size, root, keys)
    chosen = " ".join(f"{name}={value}" for name, value in sorted(export.filter.items()))
    without = (
        f", {len(erased)} payloads are not in the file, and nothing says why" if erased else ""
    )
    by = f"chosen, says whoever wrote the file, by {chosen}"
    return f"ok: these {count} events are in the log of {export.size} events ({by}){without}", keys


def verify_proof(text: str, trusted: list[Key]) -> tuple[str, Keys]:
    """A file of `audit prove`: c2sp.org/tlog-proof, the entry in `extra`."""
    head, _, note = text.partition("\n\n")
    lines = head.split("\n")[1:]
    try:
        entry = unbase64(lines.pop(0).removeprefix("extra ")) or b""
        index = int(lines.pop(0).removeprefix("index "))
        header = json.loads(entry)
        path = [unbase64(line) or b"" for line in lines]
        origin, size = note.split("\n")[0], int(note.split("\n")[1])
    except UNREADABLE:
        raise Fault("file", "this is no proof with its entry") from None
    root = root_by_proof(sha256(b"\x00" + entry), index, size, path)
    if root is None or header.get("seq") != index + 1:
        raise Fault("tree", "the proof is not that of the entry in it")
    keys = Keys(origin, [], trusted)
    signer = [key for key in trusted if signed_by(key, note)]
    if trusted and not signer:
        raise Fault("signature", "the checkpoint is not signed by the key given")
    if not trusted:
        raise Fault("signature", "a proof says nothing without a key: give --key")
    keys.current, keys.is_trusted = signer[0], True
    check_checkpoint(note, origin, size, root, keys)
    print(shown(entry.decode()))
    return f"ok: this entry is number {index + 1} of {size} in {origin}", keys


def verify(file: TextIO, trusted: list[Key]) -> tuple[str, Keys]:
    """The lines of a file to what can be said of it. Raises Fault."""
    first = file.readline()
    if first == "c2sp.org/tlog-proof@v1\n":
        return verify_proof(first + file.read(), trusted)

    def lines() -> Iterator[str]:
        yield first
        yield from file

    export = Export(lines())
    return (verify_selection if export.filter else verify_whole)(export, trusted)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="kudurru-verify", description="Check what `kudurru audit export` wrote."
    )
    parser.add_argument("file", help="the export or .tlog-proof, - for standard input")
    parser.add_argument(
        "--key", action="append", default=[], help="key that must have signed; may repeat"
    )
    options = parser.parse_args(arguments)
    try:
        trusted = [Key(text) for text in options.key]
    except ValueError as error:
        parser.error(str(error))
    try:
        if options.file == "-":
            with io.TextIOWrapper(sys.stdin.buffer, "utf-8", "surrogateescape", "\n") as file:
                message, keys = verify(file, trusted)
        else:
            with Path(options.file).open("r", -1, "utf-8", "surrogateescape", "\n") as file:
                message, keys = verify(file, trusted)
    except Fault as fault:
        print(shown(f"{fault.kind}: {fault}"), file=sys.stderr)
        return EXIT_CODES.get(fault.kind, 1)
    except (OSError, *UNREADABLE) as error:
        why = getattr(error, "strerror", None) or error
        print(shown(f"{options.file}: cannot be read: {why}"), file=sys.stderr)
        return 1
    signer = shown(keys.current.text) if keys.current else ""
    print(shown(message))
    if keys.is_trusted:
        print(f"signed by {signer}, which is trusted")
    else:
        print(f"consistent; signed by {signer}, which was not checked against anything")
    return 0


def run() -> None:
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
