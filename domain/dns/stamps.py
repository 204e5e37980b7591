"""DNS stamps, `sdns://…`: a resolver and how to know it, in one line of text.

Format: https://dnscrypt.info/stamps-specifications. After the octet of the protocol come eight
octets of properties, then fields with an octet of length each.
"""

import base64
import binascii
from typing import Literal

import msgspec

SCHEME = "sdns://"
TEXT_MAX = 4096
HASH_SIZE = KEY_SIZE = 32

Protocol = Literal[
    "plain", "dnscrypt", "doh", "dot", "doq", "odoh-target", "dnscrypt-relay", "odoh-relay"
]
_PROTOCOLS: dict[int, Protocol] = {
    0x00: "plain", 0x01: "dnscrypt", 0x02: "doh", 0x03: "dot", 0x04: "doq",
    0x05: "odoh-target", 0x81: "dnscrypt-relay", 0x85: "odoh-relay",
}  # fmt: skip
_PROPERTIES = {1: "dnssec", 2: "nolog", 4: "nofilter"}
_MORE = 0x80  # another element of a list follows


class Stamp(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that a protocol does not have are empty."""

    protocol: Protocol
    properties: tuple[str, ...] = ()
    address: str = ""  # IP address with or without port, as written
    public_key: bytes = b""  # of a DNSCrypt provider
    provider: str = ""
    hashes: tuple[bytes, ...] = ()  # SHA-256 of a certificate (its TBS part) in the chain
    host: str = ""  # with or without port
    path: str = ""
    bootstrap: tuple[str, ...] = ()


class BadStamp(ValueError):
    """A text that is no stamp; the message says why."""


def parse_stamp(text: str) -> Stamp:
    """Raises BadStamp."""
    if not text.startswith(SCHEME):
        raise BadStamp("a DNS stamp begins with sdns://")
    if len(text) > TEXT_MAX:
        raise BadStamp(f"the stamp is longer than {TEXT_MAX} characters")
    reader = _Reader(_decoded(text.removeprefix(SCHEME).rstrip("=")))
    number = reader.octet("protocol")
    protocol = _PROTOCOLS.get(number)
    if protocol is None:
        raise BadStamp(f"the stamp is of an unknown protocol 0x{number:02x}")
    stamp = _fields(protocol, reader)
    if reader.at != len(reader.octets):
        raise BadStamp("octets after the last field of the stamp")
    return stamp


def _decoded(text: str) -> bytes:
    try:
        octets = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise BadStamp("the stamp is no base64url") from None
    if not octets:
        raise BadStamp("the stamp is empty")
    return octets


def _fields(protocol: Protocol, reader: "_Reader") -> Stamp:
    if protocol == "dnscrypt-relay":
        return Stamp(protocol=protocol, address=reader.text("address"))
    properties = reader.properties()
    if protocol == "odoh-target":
        return Stamp(
            protocol=protocol,
            properties=properties,
            host=reader.needed("host name"),
            path=reader.text("path"),
        )
    address = reader.text("address")
    if protocol == "plain":
        return Stamp(protocol=protocol, properties=properties, address=address)
    if protocol == "dnscrypt":
        key = reader.field("public key")
        if len(key) != KEY_SIZE:
            raise BadStamp(f"the public key has {len(key)} octets, not {KEY_SIZE}")
        provider = reader.needed("provider name")
        return Stamp(
            protocol=protocol,
            properties=properties,
            address=address,
            public_key=key,
            provider=provider,
        )
    hashes = reader.hashes()
    host = reader.needed("host name")
    path = reader.text("path") if protocol in ("doh", "odoh-relay") else ""
    return Stamp(
        protocol=protocol,
        properties=properties,
        address=address,
        hashes=hashes,
        host=host,
        path=path,
        bootstrap=tuple(map(_ascii, reader.list("bootstrap addresses"))) if reader.is_left else (),
    )


class _Reader:
    def __init__(self, octets: bytes) -> None:
        self.octets = octets
        self.at = 0

    @property
    def is_left(self) -> bool:
        return self.at < len(self.octets)

    def octet(self, what: str) -> int:
        return self._take(1, what)[0]

    def properties(self) -> tuple[str, ...]:
        bits = int.from_bytes(self._take(8, "properties"), "little")
        return tuple(name for bit, name in _PROPERTIES.items() if bits & bit)

    def field(self, what: str) -> bytes:
        return self._take(self.octet(what), what)

    def text(self, what: str) -> str:
        return _ascii(self.field(what))

    def needed(self, what: str) -> str:
        found = self.text(what)
        if not found:
            raise BadStamp(f"the stamp has no {what}")
        return found

    def list(self, what: str) -> list[bytes]:
        found = []
        while True:
            size = self.octet(what)
            found.append(self._take(size & ~_MORE, what))
            if not size & _MORE:
                return [one for one in found if one]

    def hashes(self) -> tuple[bytes, ...]:
        found = self.list("certificate hashes")
        for one in found:
            if len(one) != HASH_SIZE:
                raise BadStamp(f"a certificate hash has {len(one)} octets, not {HASH_SIZE}")
        return tuple(found)

    def _take(self, size: int, what: str) -> bytes:
        found = self.octets[self.at : self.at + size]
        if len(found) != size:
            raise BadStamp(f"the stamp ends inside its {what}")
        self.at += size
        return found


def _ascii(octets: bytes) -> str:
    text = octets.decode("ascii", "replace")
    if not text.isprintable() or not text.isascii():
        raise BadStamp("a text of the stamp is not printable ASCII")
    return text
