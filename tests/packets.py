"""Queries in wire form for tests of what carries them, made by hand so that each octet is known."""

import contextlib
import socket
import struct

import pytest


def name(text: str) -> bytes:
    labels = [label.encode() for label in text.split(".") if label]
    return b"".join(bytes((len(label),)) + label for label in labels) + b"\0"


def query(
    text: str,
    qtype: int = 1,
    qclass: int = 1,
    *,
    ident: int = 7,
    flags: int = 0x0100,
    rest: bytes = b"",
) -> bytes:
    additional = 1 if rest else 0
    header = struct.pack("!6H", ident, flags, 1, 0, 0, additional)
    return header + name(text) + struct.pack("!2H", qtype, qclass) + rest


def edns(size: int = 1232) -> bytes:
    return b"\0" + struct.pack("!2HIH", 41, size, 0, 0)


def edns_with(code: int, data: bytes) -> bytes:
    option = struct.pack("!2H", code, len(data)) + data
    return edns()[:-2] + struct.pack("!H", len(option)) + option


def ident(packet: bytes) -> int:
    return int.from_bytes(packet[:2], "big")


def _has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        sock.bind(("::1", 0))
        return True
    return False


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6 loopback")
