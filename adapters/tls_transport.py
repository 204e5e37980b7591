"""TLS below a protocol that knows nothing of it: octets are decrypted before it sees them.

Not asyncio's own: that shows a connection only when the handshake is done, so what shakes hands for
ever could be neither counted nor cut, and it cannot say in the clear that it speaks TLS.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, cast

from kudurru.adapters.dns.tls_stream import TlsStream

HANDSHAKE = 0x16
"""First octet of a connection over TLS: the type of its first record (RFC 8446 section 5.1)."""


class SecureProtocol(asyncio.Protocol):
    """Stands between a transport and `inner`, which gets a transport of its own. `on_plain` is what
    is sent, in the clear, to a client that begins with anything but a handshake."""

    def __init__(
        self,
        inner: asyncio.Protocol,
        context: ssl.SSLContext,
        *,
        on_plain: bytes,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        self._inner = inner
        self._stream = TlsStream(context)
        self._on_plain = on_plain
        self._on_ready = on_ready
        self._has_begun = False
        self._raw: asyncio.Transport
        self._shown: SecureTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)
        self._shown = SecureTransport(self._raw, self._stream)
        self._inner.connection_made(self._shown)

    def data_received(self, data: bytes) -> None:
        if self._raw.is_closing() or self._shown.is_shut:
            return  # what still comes is read so that the end of it is heard
        if not self._has_begun and data[0] != HANDSHAKE:
            self._raw.write(self._on_plain)
            self._raw.close()
            return
        self._has_begun = True
        was_ready = self._stream.is_ready
        try:
            plain = self._stream.receive(data)
        except ssl.SSLError:
            self._raw.write(self._stream.pending())  # the alert, which says what it is
            self._raw.close()
            return
        if pending := self._stream.pending():
            self._raw.write(pending)
        if self._stream.is_ready and not was_ready:
            self._on_ready()
        if plain:
            self._inner.data_received(plain)
        if self._stream.has_ended and not self._inner.eof_received():
            self._shown.close()

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()


class SecureTransport(asyncio.Transport):
    """The transport that a protocol sees: what it writes is encrypted, what it asks is answered by
    the connection below."""

    def __init__(self, raw: asyncio.Transport, stream: TlsStream) -> None:
        super().__init__()
        self._raw = raw
        self._stream = stream
        self.is_shut = False  # nothing more is written

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.is_shut and not self._raw.is_closing():
            self._raw.write(self._stream.send(bytes(data)))

    def write_eof(self) -> None:
        self._say_end()
        self._raw.write_eof()

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self._say_end()
        self._raw.close()

    def _say_end(self) -> None:
        if not self.is_shut and not self._raw.is_closing():
            self.is_shut = True
            if end := self._stream.close():
                self._raw.write(end)

    def abort(self) -> None:
        self._raw.abort()

    def is_closing(self) -> bool:
        return self._raw.is_closing()

    def pause_reading(self) -> None:
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._raw.resume_reading()

    def is_reading(self) -> bool:
        return self._raw.is_reading()

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self._stream.object
        return self._raw.get_extra_info(name, default)
