"""The certificate of the encrypted listeners: read from files, checked, and read again on change.

What is served is always a pair that was whole: a new one takes over only when it is readable, fits
its key and is valid now. Until then the old one stays, and the operator is told once per reason.

A server starts with a certificate out of its time all the same, and says so. Clients refuse it, but
DNS in the clear goes on: without that nobody could renew the certificate, and a machine that wakes
in 1970 could not find a time server.
"""

import logging
import os
import ssl
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from kudurru.adapters.dns.tls_stream import note_name
from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.ports import Clock

log = logging.getLogger("kudurru.tls")

CHECK_S = 1.0  # how late a renewed file may be noticed; a check is two calls of stat
FILE_MAX = 1 << 20  # octets; a chain has some thousand

_T = TypeVar("_T")
_Stamp = tuple[tuple[int, int, int], ...]  # inode, size and time of each file


class Certificate(msgspec.Struct, frozen=True):
    """A chain with its key, whole when it was read."""

    chain: tuple[x509.Certificate, ...]
    key: PrivateKeyTypes
    cert_file: str
    key_file: str

    @property
    def expires_at_s(self) -> int:
        return int(self.chain[0].not_valid_after_utc.timestamp())

    def untimely(self, now_s: int) -> str:
        """Why clients refuse it at a moment; "" when they do not."""
        leaf = self.chain[0]
        now = datetime.fromtimestamp(now_s, UTC)
        if now >= leaf.not_valid_after_utc:
            return f"{self.cert_file} expired at {leaf.not_valid_after_utc.isoformat()}: renew it"
        if now < leaf.not_valid_before_utc:
            since = leaf.not_valid_before_utc.isoformat()
            return f"{self.cert_file} is not valid before {since}: is the clock right?"
        return ""


class CertificateStatistics(msgspec.Struct, frozen=True, kw_only=True):
    expires_at_s: int
    reloads: int
    failures: int


class Certificates:
    """The certificate that new connections get. `check` looks whether there is a newer one."""

    def __init__(self, cert_file: str, key_file: str, clock: Clock, ca_file: str = "") -> None:
        """With a `ca_file` clients have to have a certificate of it. Raises Invalid with every
        fault: a server does not start with a broken pair."""
        self._files = (cert_file, key_file, ca_file)
        self._clock = clock
        self._stamp = self._look()
        self.current = read_certificate(cert_file, key_file)
        # By protocols. The first is for nobody: it shows faults that only OpenSSL sees.
        self._contexts: dict[tuple[str, ...], ssl.SSLContext] = {
            (): self._context_of(self.current, ())
        }
        self._refused = ""  # why the files are not what is served
        self.problem = ""
        """`_refused`, or why clients refuse what is served; "" when all is well."""
        self._reloads = self._failures = 0
        self._tell(self.current.untimely(self._now_s()))

    def context(self, *alpn: str) -> Callable[[], ssl.SSLContext]:
        """What gives the context for a new connection that speaks one of these protocols."""
        self._contexts[alpn] = self._context_of(self.current, alpn)
        return lambda: self._contexts[alpn]

    def use(self, cert_file: str, key_file: str, ca_file: str = "") -> None:
        """Serve the pair in other files, if it can be; else the one before stays."""
        if (cert_file, key_file, ca_file) != self._files:
            self._files = (cert_file, key_file, ca_file)
            self._stamp = ()
            self.check()

    def check(self) -> bool:
        """Take over what has changed. True when there is a new certificate."""
        stamp = self._look()
        is_new = stamp != self._stamp and self._take_over()
        self._stamp = stamp
        self._tell(self._refused or self.current.untimely(self._now_s()))
        return is_new

    def _take_over(self) -> bool:
        try:
            found = read_certificate(*self._files[:2])
            contexts = {alpn: self._context_of(found, alpn) for alpn in self._contexts}
        except Invalid as fault:
            return self._refuse("; ".join(str(cause) for cause in fault.causes))
        if untimely := found.untimely(self._now_s()):
            return self._refuse(untimely)
        self.current, self._contexts = found, contexts
        self._refused = ""
        self._reloads += 1
        log.info("the certificate in %s is served now", self._files[0])
        return True

    def _refuse(self, why: str) -> bool:
        self._refused = why
        self._failures += 1
        return False

    def statistics(self) -> CertificateStatistics:
        return CertificateStatistics(
            expires_at_s=self.current.expires_at_s,
            reloads=self._reloads,
            failures=self._failures,
        )

    def _tell(self, problem: str) -> None:
        if problem and problem != self.problem:
            what = "that was read before" if self._refused else "all the same"
            log.error("serving the certificate %s: %s", what, problem)
        self.problem = problem

    def _now_s(self) -> int:
        return self._clock.now_us() // 1_000_000

    def _look(self) -> _Stamp:
        return tuple(_stamp_of(path) for path in self._files if path)

    def _context_of(self, certificate: Certificate, alpn: Sequence[str]) -> ssl.SSLContext:
        """Raises Invalid where OpenSSL refuses the files."""
        context = _context_of(certificate, alpn)
        if ca_file := self._files[2]:
            try:
                context.load_verify_locations(cafile=ca_file)
            except (ssl.SSLError, OSError) as fault:
                why = f"{ca_file} holds no certificate in PEM: {fault.args[-1]}"
                raise Invalid("certificate", [Cause("tls.internal.ca", why)]) from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def read_certificate(cert_file: str, key_file: str) -> Certificate:
    """Read and check a pair of PEM files. Raises Invalid with every fault found."""
    causes: list[Cause] = []
    chain = _read("tls.cert", cert_file, x509.load_pem_x509_certificates, causes) or []
    key = _read("tls.key", key_file, lambda pem: load_pem_private_key(pem, None), causes)
    if chain and key is not None and _public(chain[0].public_key()) != _public(key.public_key()):
        message = f"{key_file} is not the key of the certificate in {cert_file}: give its own"
        causes.append(Cause("tls.key", message))
    if causes or key is None:
        raise Invalid("certificate", causes)
    return Certificate(tuple(chain), key, cert_file, key_file)


def _read(field: str, path: str, parse: Callable[[bytes], _T], causes: list[Cause]) -> _T | None:
    try:
        with Path(path).open("rb") as file:
            pem = file.read(FILE_MAX)
    except OSError as fault:
        message = f"{path} cannot be read: {fault.strerror}; check the path and its rights"
        causes.append(Cause(field, message))
        return None
    try:
        return parse(pem)
    except TypeError:
        causes.append(Cause(field, f"{path} is encrypted: give a key without a passphrase"))
    except ValueError:
        kind = "certificate chain" if field == "tls.cert" else "private key"
        causes.append(Cause(field, f"{path} holds no {kind} in PEM"))
    return None


def _public(key: object) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined, no-any-return]  # the union of all kinds of keys


def _context_of(certificate: Certificate, alpn: Sequence[str]) -> ssl.SSLContext:
    """Raises Invalid where OpenSSL refuses the pair, or the files are other ones by now."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A client that renegotiates makes us do the dear half of a handshake again and again.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.sni_callback = note_name
    if alpn:
        context.set_alpn_protocols(list(alpn))
    try:
        context.load_cert_chain(certificate.cert_file, certificate.key_file)
    except (ssl.SSLError, OSError) as fault:
        message = f"OpenSSL refuses {certificate.cert_file}: {fault.args[-1]}"
        raise Invalid("certificate", [Cause("tls.cert", message)]) from None
    return context


def _stamp_of(path: str) -> tuple[int, int, int]:
    try:
        found = os.stat(path)  # noqa: PTH116  # follows links, as a mounted Secret is one
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_size, found.st_mtime_ns
