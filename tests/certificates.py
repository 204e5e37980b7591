"""Certificates for tests, made on the spot."""

import datetime
import ipaddress
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from kudurru.adapters.certificates import Certificate

SERVER_NAME = "dns.test"
DAY = datetime.timedelta(days=1)
Pair = tuple[bytes, bytes]  # certificate and key in PEM


def make_pair(
    name: str = SERVER_NAME, *, kind: str = "ec", since_days: float = -1, until_days: float = 30
) -> Pair:
    """A certificate that signs itself, and its key, valid from and until days from now on."""
    key: CertificateIssuerPrivateKeyTypes
    if kind == "rsa":
        key = rsa.generate_private_key(65537, 2048)
    else:
        key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    alternatives = [x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + since_days * DAY)
        .not_valid_after(now + until_days * DAY)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM), pem


@cache
def pair() -> Pair:
    """One pair for all tests that do not look at it."""
    return make_pair()


def write_pair(folder: Path, made: Pair | None = None) -> tuple[Path, Path]:
    """Files of a certificate and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    for path, pem in zip((cert, key), made or pair(), strict=True):
        path.write_bytes(pem)
    return cert, key


def names_of(certificate: Certificate) -> list[str]:
    return [str(one.value) for one in certificate.chain[0].subject]
