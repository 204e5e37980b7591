"""The cache on disk, so that a restart does not begin with an empty one.

    KDRC | version | flags | written-at, microseconds UTC, 8 octets | payload

The payload is MessagePack, compressed at gzip's fastest where flag 1 is set; gzip's own checksum
tells damage. A dump is a convenience: each fault has its own error, and the server starts empty.
"""

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kudurru.adapters.secret_files import write_private
from kudurru.domain.dns.responses import KeptAnswer
from kudurru.domain.errors import KudurruError

MAGIC = b"KDRC"
VERSION = 1
GZIP = 1
HEADER_SIZE = len(MAGIC) + 2 + 8
PAYLOAD_MAX = 1 << 30
"""Octets of a payload that is read: many times what a cache of the usual size has."""

PART = 500
"""Answers that are put into octets at a time: about a millisecond."""


class DumpStale(KudurruError):
    """The dump is older than wanted."""


class DumpIncompatible(KudurruError):
    """Another version wrote it, or something else."""


class DumpDamaged(KudurruError):
    """It is not what was written."""


class Dump(msgspec.Struct, frozen=True):
    answers: list[KeptAnswer]
    written_us: int
    size: int  # octets of the file


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[KeptAnswer])


def encode_part(answers: Sequence[KeptAnswer]) -> bytes:
    """A part of the payload, with its length before it."""
    octets = _encoder.encode(answers)
    return len(octets).to_bytes(4, "big") + octets


def write_dump(path: Path, parts: Sequence[bytes], written_us: int) -> int:
    """Write a dump in the place of the last one, mode 0600, whole or not at all; its size.
    Compressing and writing leave the interpreter, so a thread may do it beside a serving loop.
    Raises OSError."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)  # 31: with gzip's header and checksum
    payload = b"".join([*map(packer.compress, parts), packer.flush()])
    head = MAGIC + bytes((VERSION, GZIP)) + written_us.to_bytes(8, "big")
    write_private(path, head + payload)
    return len(head) + len(payload)


def read_dump(path: Path, now_us: int, max_age_us: int) -> Dump | None:
    """The dump at a path, None where there is none. Raises: DumpStale, DumpIncompatible,
    DumpDamaged; OSError."""
    try:
        octets = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(octets) < HEADER_SIZE or octets[:4] != MAGIC:
        raise DumpIncompatible(f"{path} is no dump of a cache")
    version, flags = octets[4], octets[5]
    if version != VERSION or flags & ~GZIP:
        raise DumpIncompatible(f"{path} is a dump of version {version}; this is {VERSION}")
    written_us = int.from_bytes(octets[6:HEADER_SIZE], "big")
    age_us = now_us - written_us
    if age_us > max_age_us:
        raise DumpStale(
            f"{path} was written {age_us // 1_000_000} s ago; at most {max_age_us // 1_000_000} s"
        )
    return Dump(_answers(path, octets[HEADER_SIZE:], flags), written_us, len(octets))


def _answers(path: Path, payload: bytes, flags: int) -> list[KeptAnswer]:
    try:
        if flags & GZIP:
            payload = _unpacked(payload)
        answers: list[KeptAnswer] = []
        at = 0
        while at < len(payload):
            size = int.from_bytes(payload[at : at + 4], "big")
            answers += _decoder.decode(payload[at + 4 : at + 4 + size])
            at += 4 + size
    except (gzip.BadGzipFile, zlib.error, EOFError, msgspec.MsgspecError) as fault:
        raise DumpDamaged(f"{path} is damaged: {fault}") from fault
    if not all(map(_is_sound, answers)):
        raise DumpDamaged(f"{path} is damaged: an answer does not fit its own offsets")
    return answers


def _unpacked(payload: bytes) -> bytes:
    unpacker = zlib.decompressobj(31)
    octets = unpacker.decompress(payload, PAYLOAD_MAX)
    if not unpacker.eof or unpacker.unused_data:
        raise EOFError("the compressed data is cut short or followed by something else")
    return octets


def _is_sound(kept: KeptAnswer) -> bool:
    """Whether what is served of it stays within it."""
    message = kept.message
    last = len(message.body) - 6
    return all(0 <= at <= last for at in message.ttls_at) and 0 <= message.rcode < 1 << 12
