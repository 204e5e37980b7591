"""Queries by DNSCrypt version 2, over UDP and TCP (https://dnscrypt.info/protocol).

A connection begins with a question in the clear: the provider's certificates, TXT records signed by
the key that the stamp names. The newest valid one gives the key and the magic number for queries.
Each query is encrypted for that key with X25519, XSalsa20 and Poly1305; our own key is made for the
connection and forgotten with it. Responses are told apart by their nonces.

Known gap: certificates for XChaCha20 only are not understood; servers offer the other too.
"""

import asyncio
import struct
from collections.abc import Callable
from typing import cast

import nacl.exceptions
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from nacl.public import Box, PrivateKey, PublicKey

from kudurru.adapters.dns.upstream.connecting import (
    OUTSTANDING_MAX,
    Connection,
    Dial,
    Sink,
    Target,
    Unreachable,
    framed,
)
from kudurru.domain.chance import Chance
from kudurru.domain.dns import names
from kudurru.domain.dns.messages import RD
from kudurru.domain.dns.queries import build_query
from kudurru.domain.dns.record_types import TXT
from kudurru.domain.dns.records import CLASS_IN
from kudurru.domain.dns.responses import (
    Malformed,
    is_answer_to,
    is_truncated,
    read_response,
    strings_of,
)
from kudurru.domain.dns.upstreams import UpstreamAddress
from kudurru.domain.ports import Clock, Exchange

CERTIFICATE_S = 3600  # after so long a connection is replaced, and certificates are asked for anew
ASKED_AGAIN_S = 1.0  # for certificates over UDP, when the question or the answer was lost
BLOCK = 64  # queries are padded to a multiple of it
UDP_MIN = 256  # octets of a query over UDP at least, so that answers are no amplification
RESPONSE_MAGIC = b"r6fnvWj8"
NONCE = 12  # octets of either side's half

_CERTIFICATE = struct.Struct("!4sHH64s32s8sIII")
_CERTIFICATE_MAGIC = b"DNSC"
_XSALSA20 = 1
_SIGNED_FROM = 8 + 64


class Certificate:
    """What a provider signed: a key of its resolver for some time."""

    def __init__(self, octets: bytes, provider_key: bytes) -> None:
        """Raises ValueError where it is none that we can use."""
        if len(octets) < _CERTIFICATE.size:
            raise ValueError("it is too short")
        magic, version, _, signature, key, client_magic, serial, since, until = (
            _CERTIFICATE.unpack_from(octets)
        )
        if magic != _CERTIFICATE_MAGIC or version != _XSALSA20:
            raise ValueError("another format or cipher")
        try:
            signed = octets[_SIGNED_FROM:]
            Ed25519PublicKey.from_public_bytes(provider_key).verify(signature, signed)
        except InvalidSignature:
            raise ValueError("the signature is not the provider's") from None
        self.key, self.client_magic, self.serial = key, client_magic, serial
        self.since_s: int = since
        self.until_s: int = until

    def is_valid(self, now_s: int) -> bool:
        return self.since_s <= now_s <= self.until_s


class Session:
    """The keys between us and a resolver."""

    def __init__(self, certificate: Certificate, chance: Chance) -> None:
        own = PrivateKey(chance.octets(32))
        self._box = Box(own, PublicKey(certificate.key))
        self._head = certificate.client_magic + bytes(own.public_key)
        self._chance = chance

    def encrypt(self, packet: bytes, size_min: int) -> tuple[int, bytes]:
        """Number of the query, and what to send."""
        nonce = self._chance.octets(NONCE)
        size = max(size_min, len(packet) + 1)
        padded = packet + b"\x80" + bytes(size - len(packet) - 1 + -size % BLOCK)
        sealed = self._box.encrypt(padded, nonce + bytes(NONCE)).ciphertext
        return int.from_bytes(nonce, "big"), self._head + nonce + sealed

    def decrypt(self, octets: bytes) -> tuple[int, bytes] | None:
        """Number of the query and its response; None of what is not from the resolver."""
        start = len(RESPONSE_MAGIC)
        nonce, sealed = octets[start : start + 2 * NONCE], octets[start + 2 * NONCE :]
        if not octets.startswith(RESPONSE_MAGIC) or len(nonce) < 2 * NONCE:
            return None
        try:
            padded = self._box.decrypt(sealed, nonce)
        except (nacl.exceptions.CryptoError, ValueError):
            return None
        packet, mark, padding = padded.rpartition(b"\x80")
        if not mark or padding.strip(b"\0"):
            return None
        return int.from_bytes(nonce[:NONCE], "big"), packet


def newest(records: list[bytes], provider_key: bytes, now_s: int) -> Certificate:
    """The certificate to use. Raises Unreachable where none is any good."""
    found = []
    for octets in records:
        try:
            certificate = Certificate(octets, provider_key)
        except ValueError:
            continue
        if certificate.is_valid(now_s):
            found.append(certificate)
    if not found:
        raise Unreachable("certificate")
    return max(found, key=lambda certificate: certificate.serial)


def dnscrypt_dial(
    address: UpstreamAddress, chance: Chance, clock: Clock, *, over_tcp: bool
) -> Dial:
    async def dial(target: Target, sink: Sink) -> Connection:
        loop = asyncio.get_running_loop()
        made: _Tcp | _Udp
        if over_tcp:
            _, made = await loop.create_connection(lambda: _Tcp(sink), *target)
        else:
            _, made = await loop.create_datagram_endpoint(lambda: _Udp(sink), remote_addr=target)
        try:
            await made.begin(address, chance, clock)
        except BaseException:
            made.close()
            raise
        return made

    return dial


class _Dnscrypt:
    """What is the same over both. Implements `Connection`."""

    size_min = 0

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._session: Session | None = None
        self._clear: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting: set[int] = set()
        self._until_s = 0.0
        self._is_answer: Callable[[bytes], bool] = lambda _: False
        self.transport: asyncio.BaseTransport

    @property
    def is_open(self) -> bool:
        return not self.transport.is_closing() and self._loop.time() < self._until_s

    @property
    def room(self) -> int:
        return OUTSTANDING_MAX - len(self._waiting)

    async def begin(self, address: UpstreamAddress, chance: Chance, clock: Clock) -> None:
        """Ask for the certificates. Raises Unreachable."""
        name = names.key(names.from_text(address.provider))
        question = name + TXT.to_bytes(2, "big") + CLASS_IN.to_bytes(2, "big")
        query = chance.octets(2) + build_query(question, RD, udp_size=1232)[2:]
        # What somebody else throws in does not end the wait.
        self._is_answer = lambda octets: octets[:2] == query[:2] and is_answer_to(question, octets)
        packet = await self._exchange(query)
        if is_truncated(packet):
            raise Unreachable("certificate")
        try:
            records = strings_of(read_response(question, packet))
        except Malformed:
            raise Unreachable("certificate") from None
        now_s = clock.now_us() // 1_000_000
        certificate = newest(records, address.public_key, now_s)
        self._session = Session(certificate, chance)
        left_s = min(CERTIFICATE_S, certificate.until_s - now_s)
        self._until_s = self._loop.time() + left_s

    async def _exchange(self, query: bytes) -> bytes:
        self.write(query)
        return await self._clear

    def send(self, exchange: Exchange) -> int:
        assert self._session is not None
        number, octets = self._session.encrypt(exchange.packet, self.size_min)
        self._waiting.add(number)
        self.write(octets)
        return number

    def cancel(self, number: int) -> None:
        self._waiting.discard(number)

    def close(self) -> None:
        cast(asyncio.Transport, self.transport).abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, _exc: Exception | None) -> None:
        if not self._clear.done():
            # Not cancelled: that would look as if whoever dials had been.
            self._clear.set_exception(Unreachable("closed"))
            self._clear.exception()  # seen, also where nobody waits any more
        self._sink.lost()

    def take(self, octets: bytes) -> None:
        """A whole message of the upstream."""
        if self._session is None:
            if not self._clear.done() and self._is_answer(octets):
                self._clear.set_result(octets)
            return
        found = self._session.decrypt(octets)
        if found is not None and found[0] in self._waiting:
            number, packet = found
            self._waiting.discard(number)
            self._sink.answered(number, b"\0\0" + packet[2:])

    def write(self, octets: bytes) -> None:
        raise NotImplementedError


class _Udp(_Dnscrypt, asyncio.DatagramProtocol):
    size_min = UDP_MIN

    async def _exchange(self, query: bytes) -> bytes:
        while True:
            self.write(query)
            try:
                async with asyncio.timeout(ASKED_AGAIN_S):
                    return await asyncio.shield(self._clear)
            except TimeoutError:
                continue  # whoever dials has the last word

    def write(self, octets: bytes) -> None:
        cast(asyncio.DatagramTransport, self.transport).sendto(octets)

    def datagram_received(self, data: bytes, _addr: object) -> None:
        self.take(data)

    def error_received(self, exc: Exception) -> None:
        del exc
        self.close()


class _Tcp(_Dnscrypt, asyncio.Protocol):
    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self._arrived = bytearray()

    def write(self, octets: bytes) -> None:
        cast(asyncio.Transport, self.transport).write(framed(octets))

    def data_received(self, data: bytes) -> None:
        arrived = self._arrived
        arrived += data
        while len(arrived) >= 2:
            end = 2 + int.from_bytes(arrived[:2], "big")
            if len(arrived) < end:
                return
            octets = bytes(arrived[2:end])
            del arrived[:end]
            self.take(octets)
