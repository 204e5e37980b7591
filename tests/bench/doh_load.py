"""Asks over HTTP/2 as fast as a server answers, and unlike dnsperf 2.10 reads several responses in
one TLS record."""

import socket
import ssl
import time
from collections.abc import Sequence

import hpack

from tests.packets import query

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
FRAME_HEAD = 9
WINDOW = 1 << 30  # more than all answers of a run


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body


class DohClient:
    """One connection, with POST as browsers ask. Raises RuntimeError when the server ends it."""

    def __init__(self, port: int) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        self._sock = context.wrap_socket(socket.create_connection(("127.0.0.1", port)))
        self._encoder = hpack.Encoder()
        self._stream = 1
        self._left = bytearray()
        settings = b"\0\4" + (1 << 24).to_bytes(4, "big")  # INITIAL_WINDOW_SIZE
        update = (WINDOW - 65_535).to_bytes(4, "big")
        self._sock.sendall(PREFACE + frame(SETTINGS, 0, 0, settings))
        self._sock.sendall(frame(WINDOW_UPDATE, 0, 0, update))

    def ask(self, packets: Sequence[bytes]) -> None:
        """Send all, and read as many answers."""
        sent = bytearray()
        for packet in packets:
            fields = [
                (":method", "POST"), (":scheme", "https"), (":authority", "dns.example"),
                (":path", "/dns-query"), ("accept", "application/dns-message"),
                ("content-type", "application/dns-message"), ("content-length", str(len(packet))),
            ]  # fmt: skip
            sent += frame(HEADERS, END_HEADERS, self._stream, self._encoder.encode(fields))
            sent += frame(DATA, END_STREAM, self._stream, packet)
            self._stream += 2
        self._sock.sendall(sent)
        left = len(packets)
        while left > 0:
            left -= self._read()

    def _read(self) -> int:
        """Streams that the next read has ended."""
        got = self._sock.recv(1 << 16)
        if not got:
            raise RuntimeError("the server closed the connection")
        self._left += got
        ended = at = 0
        while len(self._left) >= at + FRAME_HEAD:
            size = int.from_bytes(self._left[at : at + 3], "big")
            if len(self._left) < at + FRAME_HEAD + size:
                break
            kind, flags = self._left[at + 3], self._left[at + 4]
            if kind == GOAWAY:
                raise RuntimeError("the server wants no more")
            if kind == SETTINGS and not flags & ACK:
                self._sock.sendall(frame(SETTINGS, ACK, 0))
            ended += kind in (DATA, HEADERS) and flags & END_STREAM
            at += FRAME_HEAD + size
        del self._left[:at]
        return ended

    def close(self) -> None:
        self._sock.close()


def ask_for(port: int, seconds: float, *, names: int, clients: int = 4, at_once: int = 10) -> int:
    """Answers that came."""
    opened = [DohClient(port) for _ in range(clients)]
    packets = [query(f"host{number}.home.example", ident=0) for number in range(names)]
    done = 0
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            for client in opened:
                first = done % names
                asked = packets[first : first + at_once]
                client.ask(asked)
                done += len(asked)
    finally:
        for client in opened:
            client.close()
    return done
