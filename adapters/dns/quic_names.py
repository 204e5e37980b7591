"""The name that a QUIC client asks for (RFC 6066 section 3), which aioquic reads and does not keep.

It stands in the ClientHello, the first message that a connection's TLS context is given; so it is
looked at on its way there, once, and only after the context has found nothing wrong with it.
"""

from aioquic.buffer import Buffer  # type: ignore[attr-defined]  # public by its documentation
from aioquic.quic.connection import QuicConnection
from aioquic.tls import Context, Epoch, pull_client_hello

HELLO_MAX = 16 << 10
"""Octets of a ClientHello that are looked at. Honest ones have some hundreds, with post-quantum
keys some thousands."""


class NamedConnection(QuicConnection):
    """A server's connection. `asked_name` is there when the handshake is; empty: none was asked."""

    asked_name = ""
    _context: Context
    _hello = b""

    @property
    def tls(self) -> Context:
        return self._context

    @tls.setter
    def tls(self, context: Context) -> None:
        """aioquic makes the context when the first packet comes."""
        self._context = context
        context.handle_message = self._note_hello  # type: ignore[method-assign]  # until it is read

    def _note_hello(self, input_data: bytes, output_buf: dict[Epoch, Buffer]) -> None:
        del self._context.handle_message  # ours: the class's own is behind it
        self._context.handle_message(input_data, output_buf)
        hello = self._hello = self._hello + input_data
        size = 4 + int.from_bytes(hello[1:4], "big")
        if len(hello) >= max(4, size):
            self._hello = b""
            self.asked_name = pull_client_hello(Buffer(data=hello[:size])).server_name or ""
        elif len(hello) <= HELLO_MAX:
            self._context.handle_message = self._note_hello  # type: ignore[method-assign]  # more
