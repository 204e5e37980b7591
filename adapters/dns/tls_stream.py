"""TLS of one connection without I/O: octets from the wire in, octets for the wire out.

The connection drives it from its own callbacks. asyncio's TLS shows a connection only when the
handshake is done, so what shakes hands for ever could be neither counted nor cut.
"""

import contextlib
import ssl
from collections.abc import Iterable

READ_MAX = 64 << 10
LABEL_MAX = 63


def note_name(tls: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
    """Keep the name that a client asks for (RFC 6066 section 3) with its connection: the callback
    of a context."""
    tls.asked_name = name  # type: ignore[attr-defined]  # nothing else keeps it


def client_id_of(name: str | None) -> str:
    """What a client calls itself, by the name that it asked for: `anna-phone.dns.example`."""
    label, dot, _ = (name or "").partition(".")
    return label if dot and len(label) <= LABEL_MAX else ""


class TlsStream:
    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.is_ready = False  # the handshake is done
        self.has_ended = False  # the client sends no more

    @property
    def client_id(self) -> str:
        """First label of the name that the client asked for; "" where it asked for none."""
        return client_id_of(getattr(self._tls, "asked_name", None))

    @property
    def object(self) -> ssl.SSLObject:
        return self._tls

    @property
    def alpn(self) -> str | None:
        return self._tls.selected_alpn_protocol()

    def receive(self, octets: bytes | bytearray) -> bytes:
        """What the client said, as far as it is whole. Raises ssl.SSLError; then `pending` has the
        alert."""
        self._incoming.write(octets)
        parts = []
        try:
            if not self.is_ready:
                self._tls.do_handshake()
                self.is_ready = True
            while part := self._tls.read(READ_MAX):
                parts.append(part)
                if not self._incoming.pending and not self._tls.pending():
                    break  # to be told so costs more than all the rest
            else:
                self.has_ended = True
        except ssl.SSLWantReadError:
            pass
        return b"".join(parts)

    def send(self, octets: bytes | bytearray) -> bytes:
        """What to put on the wire for an answer."""
        self._tls.write(octets)
        return self._outgoing.read()

    def send_each(self, parts: Iterable[bytes]) -> bytes:
        """The same for several, each in a record of its own."""
        for part in parts:
            self._tls.write(part)
        return self._outgoing.read()

    def pending(self) -> bytes:
        """What the protocol itself wants to say: handshake, alerts, key updates."""
        return self._outgoing.read()

    def close(self) -> bytes:
        """The end, so that the client can tell it from a cut (RFC 8446 section 6.1)."""
        with contextlib.suppress(ssl.SSLError):  # it has not said its own end, or never shook hands
            self._tls.unwrap()
        return self._outgoing.read()
