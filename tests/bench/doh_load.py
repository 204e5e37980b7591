"""Asks over HTTP/1.1 and HTTP/2 as fast as a server answers, with requests made beforehand: with a
client that costs more than the server it would wait, and wake up for each request anew. Unlike
dnsperf 2.10 it reads several responses in one TLS record.

All connections have asked before the answers of the first are read, so that the server finds as
much to do as there is.
"""

import base64
import socket
import ssl
import struct
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import hpack
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

from tests.packets import query

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, GOAWAY, WINDOW_UPDATE = 0, 1, 4, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
FRAME_HEAD = 9
WINDOW = 1 << 30  # more than all answers of a run
HEAD = struct.Struct("!HBBBI")
READ_MAX = 1 << 16
CLIENTS = 4
AHEAD = 1300  # requests of a connection that are made beforehand

MEDIA_TYPE = "application/dns-message"


class Manner(NamedTuple):
    """How a client asks. `at_once`: requests of a connection before it reads answers."""

    method: str = "POST"
    at_once: int = 10
    is_http1: bool = False
    is_indexed: bool = False
    """GET puts each path into the table of HPACK, as Go does; browsers and nghttp2 do not."""


class _Client(Protocol):
    def send(self, packets: Sequence[int]) -> None: ...

    def read(self, count: int) -> None: ...

    def close(self) -> None: ...


def _connect(port: int, protocol: str) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([protocol])
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return context.wrap_socket(sock)


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return HEAD.pack(len(body) >> 8, len(body) & 0xFF, kind, flags, stream) + body


def _path(packet: bytes) -> str:
    return "/dns-query?dns=" + base64.urlsafe_b64encode(packet).rstrip(b"=").decode()


class Http2Client:
    """One connection. Raises ConnectionError when the server ends it."""

    def __init__(self, port: int, packets: Sequence[bytes], manner: Manner) -> None:
        self._sock = _connect(port, "h2")
        self._encoder = hpack.Encoder()
        self._manner = manner
        self._packets = packets
        self._stream = 1
        self._left = b""
        self._blocks: list[bytes] = []
        settings = b"\0\4" + (1 << 24).to_bytes(4, "big")  # INITIAL_WINDOW_SIZE
        update = (WINDOW - 65_535).to_bytes(4, "big")
        self._sock.sendall(
            PREFACE + frame(SETTINGS, 0, 0, settings) + frame(WINDOW_UPDATE, 0, 0, update)
        )
        # The first one fills the table of HPACK, and all others point there.
        self._sock.sendall(self._request(0))
        self.read(1)
        if not manner.is_indexed:
            self._blocks = [self._block(number) for number in range(len(packets))]
        # What a block says hangs on those before it, so these are for one order of requests.
        ahead = (self._request(1 + number % (len(packets) - 1)) for number in range(AHEAD))
        self._ahead = deque(ahead if manner.is_indexed else ())

    def _block(self, number: int) -> bytes:
        packet = self._packets[number]
        method = self._manner.method
        before = [(":method", method), (":scheme", "https"), (":authority", "dns.example")]
        behind = [("accept", MEDIA_TYPE)]
        if method == "POST":
            before.append((":path", "/dns-query"))
            behind.append(("content-type", MEDIA_TYPE))
            size = b"%d" % len(packet)
            literal = b"\x0f\x0d%c%b" % (len(size), size)
        elif self._manner.is_indexed:
            return self._encoder.encode([*before, (":path", _path(packet)), *behind])
        else:
            value = _huffman.encode(_path(packet).encode())
            literal = b"\x04" + _huffman_size(len(value)) + value
        # What differs is not indexed, as nghttp2 has it.
        return self._encoder.encode(before) + literal + self._encoder.encode(behind)

    def _request(self, number: int) -> bytes:
        stream = self._stream
        self._stream += 2
        block = self._blocks[number] if self._blocks else self._block(number)
        if self._manner.method == "GET":
            return frame(HEADERS, END_HEADERS | END_STREAM, stream, block)
        return frame(HEADERS, END_HEADERS, stream, block) + frame(
            DATA, END_STREAM, stream, self._packets[number]
        )

    def send(self, packets: Sequence[int]) -> None:
        if self._manner.is_indexed:
            sent = [self._ahead.popleft() for _ in packets]
        else:
            sent = list(map(self._request, packets))
        self._sock.sendall(b"".join(sent))

    def read(self, count: int) -> None:
        while count > 0:
            count -= self._read()

    def _read(self) -> int:
        """Streams that the next read has ended."""
        got = self._sock.recv(READ_MAX)
        if not got:
            raise ConnectionError("the server closed the connection")
        arrived = self._left + got if self._left else got
        ended = at = 0
        while len(arrived) >= at + FRAME_HEAD:
            high, low, kind, flags, _ = HEAD.unpack_from(arrived, at)
            end = at + FRAME_HEAD + (high << 8 | low)
            if len(arrived) < end:
                break
            if kind == GOAWAY:
                raise ConnectionError("the server wants no more")
            if kind == SETTINGS and not flags & ACK:
                self._sock.sendall(frame(SETTINGS, ACK, 0))
            ended += kind <= HEADERS and flags & END_STREAM
            at = end
        self._left = arrived[at:]
        return ended

    def close(self) -> None:
        self._sock.close()


_huffman = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)


def _huffman_size(size: int) -> bytes:
    """Of a string in Huffman's code, of less than 255 octets (RFC 7541 section 5.2)."""
    return bytes((0x80 | size,)) if size < 127 else bytes((0xFF, size - 127))


class Http1Client:
    """One connection over HTTP/1.1, kept alive; requests behind each other where several are."""

    def __init__(self, port: int, packets: Sequence[bytes], manner: Manner) -> None:
        self._sock = _connect(port, "http/1.1")
        self._left = bytearray()
        common = f"Host: dns.example\r\nAccept: {MEDIA_TYPE}\r\n"
        posted = f"POST /dns-query HTTP/1.1\r\n{common}Content-Type: {MEDIA_TYPE}\r\n"
        self._requests = [
            f"{posted}Content-Length: {len(packet)}\r\n\r\n".encode() + packet
            if manner.method == "POST"
            else f"GET {_path(packet)} HTTP/1.1\r\n{common}\r\n".encode()
            for packet in packets
        ]

    def send(self, packets: Sequence[int]) -> None:
        self._sock.sendall(b"".join([self._requests[number] for number in packets]))

    def read(self, count: int) -> None:
        while count > 0:
            got = self._sock.recv(READ_MAX)
            if not got:
                raise ConnectionError("the server closed the connection")
            self._left += got
            while (head := self._left.find(b"\r\n\r\n")) >= 0:
                fields = bytes(self._left[:head]).lower()
                size = int(fields.partition(b"content-length:")[2].split(b"\r\n")[0])
                if len(self._left) < head + 4 + size:
                    break
                del self._left[: head + 4 + size]
                count -= 1

    def close(self) -> None:
        self._sock.close()


class Asking:
    """Clients that are connected and have asked all questions once. Raises ConnectionError where
    the server does not speak it."""

    def __init__(self, port: int, *, names: int, manner: Manner) -> None:
        packets = [query(f"host{number}.home.example", ident=0) for number in range(names)]
        make = Http1Client if manner.is_http1 else Http2Client
        self._names, self._at_once = names, manner.at_once
        self._clients: list[_Client] = [make(port, packets, manner) for _ in range(CLIENTS)]
        self._asked = 0
        self.ask(names)

    def ask(self, count: int) -> None:
        """Ask at least so many, and wait for the answers."""
        end = self._asked + count
        while self._asked < end:
            for client in self._clients:
                first = self._asked
                self._asked += self._at_once
                client.send([number % self._names for number in range(first, self._asked)])
            for client in self._clients:
                client.read(self._at_once)

    def close(self) -> None:
        for client in self._clients:
            client.close()
