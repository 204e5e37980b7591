"""The other end of the internal listener of a node: one question over mutual TLS."""

import http.client
import socket
import ssl
from typing import NamedTuple

from kudurru.adapters.sockets import split_address
from kudurru.domain.errors import Cause, Invalid, Unreachable, Unsupported

PEER_NAME = "kudurru.internal"
"""DNS name that the certificate of every node has: its address says nothing of who it is."""

PATIENCE_S = 10.0
ANSWER_MAX = 64 << 20
"""Octets: of half a million zones."""


class PeerFiles(NamedTuple):
    """PEM files: the CA of all nodes, and this one's certificate and key."""

    ca: str
    cert: str
    key: str


def ask_peer(address: str, path: str, files: PeerFiles) -> bytes:
    """What a node at `host:port` answers. Raises: Unreachable; Unsupported where it has no such
    path; Invalid for files that are no certificate."""
    context = _context(files)
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
    try:
        plain = socket.create_connection(split_address(address), PATIENCE_S)
        with plain, context.wrap_socket(plain, server_hostname=PEER_NAME) as stream:
            connection.sock = stream
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read(ANSWER_MAX)
    except ssl.SSLCertVerificationError as error:
        why = f"its certificate is not that of a node: {error.verify_message}"
        raise Unreachable(f"{address}: {why}") from None
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(
            f"{address} does not answer: {str(error) or type(error).__name__}"
        ) from None
    if response.status == http.client.NOT_FOUND:
        raise Unsupported(f"{address} is of a version that does not know {path}: update it")
    if response.status != http.client.OK:
        raise Unreachable(f"{address} answers {response.status} at {path}")
    return body


def _context(files: PeerFiles) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=files.ca)
        context.load_cert_chain(files.cert, files.key)
    except (OSError, ssl.SSLError) as error:
        why = error.strerror or str(error)
        raise Invalid("tls.internal", [Cause("", f"{', '.join(files)}: {why}")]) from None
    return context
