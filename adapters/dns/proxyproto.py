"""PROXY protocol version 2 (HAProxy's proxy-protocol.txt section 2.2): who a balancer asks for.

A listener has networks whose peers are believed. Those must send a header, and nobody else may: to
guess would let a client choose its address. What breaks the rules is dropped and counted.
"""

from functools import cache
from ipaddress import ip_address

from kudurru.adapters.networks import client_text

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
HEADER_MAX = 4096  # octets; addresses take at most 216, the rest is for what balancers add
_FIXED = 16
_CRC32C = 0x03  # PP2_TYPE_CRC32C

# By address family: octets of the address block, octets of one IP address.
_BLOCKS = {0: (0, 0), 1: (12, 4), 2: (36, 16), 3: (216, 0)}


class Malformed(Exception):
    """A header where none may be, none where one is due, or one that breaks the rules."""


def read_header(octets: bytes | bytearray) -> tuple[int, str | None] | None:
    """Size of the header that starts a stream or datagram, and the client's address in text; None
    for the address where the peer speaks for itself (LOCAL) or the family has no IP address. None
    when more octets are needed. Raises Malformed."""
    if octets[:12] != SIGNATURE[: len(octets)]:
        raise Malformed
    if len(octets) < _FIXED:
        return None
    version_and_command, family_and_protocol = octets[12], octets[13]
    size = _FIXED + int.from_bytes(octets[14:16], "big")
    if version_and_command not in (0x20, 0x21) or size > HEADER_MAX:
        raise Malformed
    if len(octets) < size:
        return None
    if version_and_command == 0x20:
        return size, None  # what else a LOCAL header holds is to be skipped
    return size, _client(family_and_protocol, bytes(octets[:size]))


def unwrap(datagram: bytes, peer: str, *, is_believed: bool) -> tuple[bytes, str]:
    """The message in a datagram and the client that it is from. Raises Malformed."""
    if not is_believed:
        refuse_header(datagram)
        return datagram, peer
    found = read_header(datagram)
    if found is None:
        raise Malformed
    size, client = found
    return datagram[size:], client or peer


def refuse_header(octets: bytes | bytearray) -> bool:
    """For peers that may not send one: whether the octets are enough to see that it is none.
    Raises Malformed when it is one."""
    if octets[:12] != SIGNATURE[: len(octets)]:
        return True
    if len(octets) >= len(SIGNATURE):
        raise Malformed
    return False


def _client(family_and_protocol: int, header: bytes) -> str | None:
    family, protocol = family_and_protocol >> 4, family_and_protocol & 15
    if family not in _BLOCKS or protocol > 2:
        raise Malformed
    if not family or not protocol:
        return None  # AF_UNSPEC: what follows is to be ignored
    block, size = _BLOCKS[family]
    if len(header) < _FIXED + block:
        raise Malformed
    _check_extras(header, _FIXED + block)
    if not size:
        return None
    return client_text(ip_address(header[_FIXED : _FIXED + size]))


def _check_extras(header: bytes, at: int) -> None:
    """Type, length and value vectors behind the addresses; a checksum among them must be right."""
    while at < len(header):
        start = at + 3
        at = start + int.from_bytes(header[at + 1 : start], "big")
        if start > len(header) or at > len(header):
            raise Malformed
        if header[start - 3] == _CRC32C:
            blank = header[:start] + bytes(4) + header[start + 4 :]
            if at != start + 4 or _crc32c(blank).to_bytes(4, "big") != header[start:at]:
                raise Malformed


def _crc32c(octets: bytes) -> int:
    table = _crc32c_table()
    crc = 0xFFFFFFFF
    for octet in octets:
        crc = table[(crc ^ octet) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


@cache
def _crc32c_table() -> tuple[int, ...]:
    """RFC 3720 appendix B.4, reflected."""
    table = []
    for octet in range(256):
        for _ in range(8):
            octet = octet >> 1 ^ (0x82F63B78 if octet & 1 else 0)
        table.append(octet)
    return tuple(table)
