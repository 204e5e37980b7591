"""How an upstream is known by its certificate (RFC 7858 section 4, RFC 8310): by a name that a CA
vouches for, by a pin of its public key, or by the hash of a certificate in its chain, as stamps
have it."""

import hashlib
import ssl
from functools import cache
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from kudurru.adapters.dns.upstream.connecting import Unreachable
from kudurru.domain.dns.upstreams import UpstreamAddress


@cache
def client_context(ca: str, *alpn: str, has_pins: bool) -> ssl.SSLContext:
    """`ca` is a file of further CAs, empty for those of the system. With pins no CA is asked."""
    context = ssl.create_default_context()
    if ca:
        context.load_verify_locations(ca)
    if has_pins:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # the pin is checked instead, in `Tls.check`
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context


class Tls:
    """What a connection to an upstream must show."""

    def __init__(self, address: UpstreamAddress, ca: str, *alpn: str) -> None:
        self._address = address
        self._alpn = alpn
        self.context = client_context(ca, *alpn, has_pins=bool(address.pins))
        self.name = address.name or address.host

    def check(self, shown: ssl.SSLObject) -> None:
        """Look at a connection whose handshake is done. Raises Unreachable."""
        if self._alpn and shown.selected_alpn_protocol() not in self._alpn:
            raise Unreachable("alpn")
        if self._address.pins or self._address.hashes:
            self.check_chain(_chain(shown))

    def check_chain(self, chain: list[bytes]) -> None:
        """The certificates in DER, the server's own first. Raises Unreachable."""
        address = self._address
        found = [x509.load_der_x509_certificate(octets) for octets in chain]
        if address.pins and not any(spki_pin(one) in address.pins for one in found[:1]):
            raise Unreachable("pin")
        hashes = {hashlib.sha256(one.tbs_certificate_bytes).digest() for one in found}
        if address.hashes and hashes.isdisjoint(address.hashes):
            raise Unreachable("pin")


def spki_pin(certificate: x509.Certificate) -> bytes:
    """SHA-256 of the public key (RFC 7858 section 4.2)."""
    key = certificate.public_key()
    octets = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(octets).digest()


def _chain(shown: ssl.SSLObject) -> list[bytes]:
    own = shown.getpeercert(binary_form=True)
    if own is None:
        raise Unreachable("certificate")
    # Public from Python 3.13 on; before, the rest of the chain has no public name.
    inner: Any = getattr(shown, "_sslobj", None)
    rest = inner.get_unverified_chain() if hasattr(inner, "get_unverified_chain") else None
    return [own, *(ssl.PEM_cert_to_DER_cert(one.public_bytes()) for one in (rest or ())[1:])]
