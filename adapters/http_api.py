"""HTTP/1.1 for the API: requests with bodies, answers that take time, streams.

httptools (llhttp, what Node.js reads requests with) parses, as decision 0026 says why; connections
are bounded as those of every other listener here. A request is shown to the application twice: its
head before any octet of a body is taken, so that nobody who may not ask fills memory, and then
whole. Requests of a connection are answered one after the other.
"""

import asyncio
import hmac
import socket
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from email.utils import formatdate
from functools import lru_cache, partial
from http import HTTPStatus
from itertools import chain
from typing import Any, NamedTuple, Protocol, cast

import httptools
import msgspec

from kudurru.adapters.connections import ConnectionLimits, ConnectionServer
from kudurru.adapters.http_ops import HEADERS_MAX, HttpStatistics, Response, failure
from kudurru.adapters.tls_transport import SecureProtocol

PIPELINED_MAX = 32
"""Requests that one connection may send ahead: no client of ours sends any."""

BUFFERED_MAX = 64 << 20
"""Octets of bodies that all connections hold together, before they are read as JSON."""

SINGLE = frozenset({"host", "origin", "authorization", "x-api-key", "content-type", "if-match"})
"""Headers whose second appearance would let two readers of a request disagree about it."""

HEADERS_COUNT_MAX = 100

HEADERS_KEPT_MAX = 2 << 10
"""Octets of headers that a connection keeps, as the next request is likely to have the same."""

ANSWER_S = 30.0
"""For the application to answer. What it does then goes on: half of it would be worse."""

LINGER_S = 5.0
"""For a client to read why it was refused, while what it goes on sending is thrown away."""


class Request(msgspec.Struct, kw_only=True):
    """A request. `path` and `query` are as they were sent, percent-encoded."""

    method: str
    path: str
    query: str
    headers: dict[str, str]  # names in lower case; not to be changed
    peer: str  # address of the client
    local: str  # address that it came to
    body: bytes = b""
    context: Any = None
    """What the application found out from the head."""
    body_max: int | None = None
    """Octets of a body that the application takes of it, where that are fewer than of others."""
    too_large: Response | None = None
    """What to answer where it has more."""
    limit_s: float = ANSWER_S
    """How long the application may take; infinite for what must not be cut off."""
    is_overdue: bool = False
    """Its client was told so, and hears no more."""
    headers_number: int = 0
    """Requests of one connection with the same number, if it is not 0, have the same headers."""
    kept: dict[str, Any] = {}
    """What the application keeps of the connection: the same of each request that it brings."""

    @property
    def has_body(self) -> bool:
        """Whether the head announces one."""
        length = self.headers.get("content-length", "")
        return bool(length.strip("0")) or "transfer-encoding" in self.headers


class Reply(Response, frozen=True, kw_only=True):
    """An answer with headers of its own."""

    headers: tuple[tuple[str, str], ...] = ()


class CutShort(Exception):
    """What the parts of a stream raise to end it so that its reader sees that it is not whole."""


class Stream(msgspec.Struct, frozen=True):
    """An answer without an end: parts are sent as they come, until the iterator or the client
    ends. The iterator is closed then. It raises CutShort, or what else it raises is a fault."""

    content_type: str
    parts: AsyncIterator[bytes]
    headers: tuple[tuple[str, str], ...] = ()


Answered = Callable[[Callable[[], Response]], None]
"""Takes what makes an answer. That may raise: a fault of the application is answered 500."""


class Application(Protocol):
    def admit(self, request: Request) -> Response | None:
        """Refuse by the head alone, before there is a body; None to go on."""
        ...

    def begin(self, request: Request, answered: Answered) -> bool:  # noqa: ARG002  # of the others
        """Carry out what needs no task of its own: `answered` is called once, now or later, also
        where the client goes away. False: nothing was done, and it is asked to `answer`."""
        return False

    async def answer(self, request: Request) -> Response | Stream:
        """Must not raise: a fault of the application is answered 500. It goes on where the client
        goes away, or is told that it takes too long."""
        ...

    def overdue(self, request: Request) -> Response:
        """What to tell a client whose request takes longer than its `limit_s`."""
        ...


class ApiLimits(ConnectionLimits, frozen=True, kw_only=True):
    """`request_s` is for a request to arrive, and for a client to take what it is sent."""

    connections: int = 512  # half of them watches, at most
    connections_per_network: int = 400
    handshake_s: float = 5
    body_bytes: int = 8 << 20


class ApiServer(ConnectionServer["_Connection"]):
    """Serves an application on sockets that listen already; over TLS where `tls` gives a context
    for each connection, and then who speaks in the clear is told so."""

    def __init__(
        self,
        application: Application,
        sockets: Sequence[socket.socket],
        *,
        limits: ApiLimits | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self._tls = tls
        self.limits = limits or ApiLimits()
        super().__init__(sockets, self.limits)
        self.application = application
        self.buffered = 0
        self.exceptions = 0
        self._date = (0, "")

    def make_protocol(self) -> asyncio.Protocol:
        connection = _Connection(self)
        if self._tls is None:
            return connection
        usual_s = connection.deadline_s
        connection.deadline_s = usual_s - self.limits.request_s + self.limits.handshake_s

        def shook_hands() -> None:
            connection.deadline_s = usual_s

        return SecureProtocol(
            connection, self._tls(), on_plain=self._plain_refusal(), on_ready=shook_hands
        )

    def _plain_refusal(self) -> bytes:
        body = failure(400, "this listener speaks HTTPS only: ask for https://…").body
        head = (
            f"HTTP/1.1 400 Bad Request\r\nDate: {self.date()}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        return head.encode() + body

    def statistics(self) -> HttpStatistics:
        return HttpStatistics(unhandled_exceptions=self.exceptions, **self.connections.counts())

    def date(self) -> str:
        now_s = int(time.time())
        if self._date[0] != now_s:
            self._date = (now_s, formatdate(now_s, usegmt=True))
        return self._date[1]


_LONG_HEAD = failure(431, f"at most {HEADERS_MAX} octets of headers")


class _Headers(NamedTuple):
    """Those of a request, read. They are shown nowhere."""

    sent: bytes
    read: dict[str, str]
    octets: int  # of names and values
    number: int  # of its connection

    def __repr__(self) -> str:
        return f"_Headers({len(self.read)})"


_NO_HEADERS = _Headers(b"", {}, 0, 0)


class _Refused(Exception):
    """Ends the parsing of a connection: it was answered, and is closed."""


class _Connection(asyncio.Protocol):
    """One client. While a request is answered the next ones wait in `_waiting`; once there are any,
    nothing more is read. Answers are taken before the next one is begun, refusals too, or what
    nobody reads would fill memory."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[tuple[Request, bool]] = deque()  # and whether the connection stays
        self._kept: dict[str, Any] = {}
        self._before = _NO_HEADERS
        self._numbers = 0  # of different headers
        self._is_busy = False  # with a request, until its answer is taken
        self._task: asyncio.Task[None] | None = None  # that answers it, where it needs one
        self._answering: Request | None = None  # by the application
        self._untaken: tuple[Request, bool] | None = None  # whose answer its client is to take
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._is_closing = False
        self._is_refused = False
        self._is_streaming = False
        self._is_paused = False
        self._head_octets = 0  # read since the request before
        self._own_head = 0  # octets of its head and trailers
        self._has_head = False
        self._body = bytearray()  # not a list: a chunk of two octets would cost fifty
        self._refusal: Response | None = None
        self.network = ""
        self.deadline_s = self._loop.time() + server.limits.request_s

    # --- of the connection --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")  # None: it is gone already
        self.network = self._server.network_of(peer[0]) if peer else ""
        if not peer or not self._server.connections.add(self):
            self._is_closing = True
            self._transport.abort()
            return
        self._peer = peer[0]
        self._local = transport.get_extra_info("sockname")[0]

    def connection_lost(self, _exc: Exception | None) -> None:
        self._is_closing = True
        self._server.connections.discard(self)
        self._let_go_of_body()
        self._server.buffered -= sum(len(request.body) for request, _ in self._waiting)
        self._waiting.clear()
        self.resume_writing()
        if self._task is not None and self._is_streaming:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._can_write.clear()
        if not self._is_streaming:  # there a client that goes is to be seen
            self._pause()

    def resume_writing(self) -> None:
        self._can_write.set()
        if self._untaken is not None:
            self._loop.call_soon(self._taken)  # not in the middle of the transport's own work

    def expire(self) -> None:
        late, self._answering = self._answering, None
        if late is None:
            self._transport.abort()
            return
        self._is_closing = late.is_overdue = True
        self._write(late, self._server.application.overdue(late), stays=False)
        self.deadline_s = self._loop.time() + LINGER_S
        self._transport.close()

    def close(self) -> None:
        """What is being answered may end; a stream may not."""
        self._is_closing = True
        if not self._is_busy:
            self._transport.close()
        elif self._task is not None and self._is_streaming:
            self._task.cancel()

    def abort(self) -> None:
        self._transport.abort()

    # --- reading ------------------------------------------------------------------------

    def eof_received(self) -> bool:
        """A client that sends no more may still wait for its answer; one of a stream is gone."""
        self._is_closing = True
        return not self._is_streaming and (self._is_busy or bool(self._waiting))

    def data_received(self, data: bytes) -> None:
        if self._is_closing or self._is_refused or self._is_streaming:
            return
        if self._is_busy:
            # It sends ahead: what is here is enough. To stop for each request would cost two calls
            # of the system, for clients that wait for their answer anyway.
            self._pause()
        self._head_octets += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # RFC 9110 section 7.8: an upgrade may be ignored. What follows is no HTTP for us.
            self._close_after_last()
        except httptools.HttpParserCallbackError:
            self._refuse(self._refusal or failure(400, "not understood"))
        except httptools.HttpParserError as error:
            self._refuse(self._refusal or failure(400, f"no HTTP/1.1: {error}"))
        else:
            # The parser keeps a head that is not whole yet, of any size.
            if not self._has_head and self._head_octets > HEADERS_MAX:
                self._refuse(_LONG_HEAD)
        self._work()

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._has_head = False
        if self._body:
            self._let_go_of_body()
        self._refusal = None
        if not self._is_busy:
            self.deadline_s = self._loop.time() + self._server.limits.request_s

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # They come out of one read, or of some that are counted in `data_received`.
        self._headers.append((name, value))
        if self._has_head:
            self._drop_trailer()

    def _drop_trailer(self) -> None:
        """RFC 9110 section 6.5.1: it may be ignored."""
        self._own_head += sum(map(len, self._headers.pop()))
        if self._own_head > HEADERS_MAX:
            self._stop(_LONG_HEAD)

    def on_headers_complete(self) -> None:
        self._has_head = True
        if len(self._waiting) >= PIPELINED_MAX:
            self._stop(_busy(f"at most {PIPELINED_MAX} requests sent ahead"))
        self._request = self._read_head()
        length = self._request.headers.get("content-length", "")
        if length and int(length) > self._server.limits.body_bytes:  # the parser saw digits
            self._stop(self._too_large())
        refusal = self._server.application.admit(self._request)
        has_body = self._request.has_body
        if refusal is not None and has_body:
            self._stop(refusal)
        self._refusal = refusal  # without a body the connection may stay
        expects = self._request.headers.get("expect", "").lower() == "100-continue" and has_body
        if expects and not self._is_busy and not self._waiting:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _read_head(self) -> Request:
        headers = self._read_headers()
        self._own_head = len(self._url) + headers.octets
        if self._own_head > HEADERS_MAX:
            self._stop(_LONG_HEAD)
        path, _, query = self._url.decode("latin-1").partition("?")
        if not path.startswith("/"):
            self._stop(failure(400, "the target of a request is a path here"))
        return Request(
            method=self._parser.get_method().decode("ascii"),
            path=path,
            query=query,
            headers=headers.read,
            headers_number=headers.number,
            peer=self._peer,
            local=self._local,
            kept=self._kept,
        )

    def _read_headers(self) -> _Headers:
        """Most clients send the same ones with each request."""
        # Neither names nor values hold a line feed. A token is among them: whoever shares a
        # connection with others is not to find it out octet by octet.
        sent = b"\n".join(chain.from_iterable(self._headers))
        if hmac.compare_digest(sent, self._before.sent):
            return self._before
        found = self._read_new(sent)
        if len(sent) <= HEADERS_KEPT_MAX:
            self._before = found
        return found

    def _read_new(self, sent: bytes) -> _Headers:
        read: dict[str, str] = {}
        octets = 0
        if len(self._headers) > HEADERS_COUNT_MAX:
            self._stop(failure(431, f"at most {HEADERS_COUNT_MAX} headers"))
        for name, value in self._headers:
            octets += len(name) + len(value)
            key, text = _lowered(name), value.decode("latin-1")
            if key in read:
                if key in SINGLE:
                    self._stop(failure(400, f"the header {key} is given twice"))
                text = f"{read[key]}, {text}"  # RFC 9110 section 5.3
            read[key] = text
        self._numbers += 1
        return _Headers(sent, read, octets, self._numbers)

    def on_body(self, body: bytes) -> None:
        self._body += body
        self._server.buffered += len(body)
        size, request = len(self._body), self._request
        if request.body_max is not None and size > request.body_max:
            self._stop(request.too_large or self._too_large())
        if size > self._server.limits.body_bytes:
            self._stop(self._too_large())
        if self._server.buffered > BUFFERED_MAX:
            self._stop(_busy("too many large requests at once; try again"))

    def _too_large(self) -> Response:
        return failure(413, f"a body has at most {self._server.limits.body_bytes} octets")

    def on_message_complete(self) -> None:
        request = self._request
        if self._refusal is not None:
            request.context = self._refusal
        request.body = bytes(self._body)
        self._body = bytearray()  # counted on until it is answered
        self._waiting.append((request, bool(self._parser.should_keep_alive())))
        self._head_octets = 0

    def _stop(self, refusal: Response) -> None:
        self._refusal = refusal
        raise _Refused

    def _refuse(self, refusal: Response) -> None:
        """Answer what is before it, then this, and close."""
        self._is_refused = True
        self._let_go_of_body()
        request = Request(method="GET", path="", query="", headers={}, peer="", local="")
        request.context = refusal
        self._waiting.append((request, False))

    def _close_after_last(self) -> None:
        if self._waiting:
            self._waiting[-1] = (self._waiting[-1][0], False)
        self._is_refused = True

    def _let_go_of_body(self) -> None:
        self._server.buffered -= len(self._body)
        self._body = bytearray()

    # --- answering ----------------------------------------------------------------------

    def _work(self) -> None:
        """Begin with the next request, if none is being answered."""
        if self._is_busy or not self._waiting or self._transport.is_closing():
            return
        request, stays = self._waiting.popleft()
        self._is_busy = True
        self._answering = request
        self.deadline_s = self._loop.time() + request.limit_s
        if isinstance(request.context, Response):  # refused by its head
            self._tell(request, stays, request.context)
        elif not self._has_begun(request, stays):
            self._task = self._loop.create_task(self._answer(request, stays))

    def _has_begun(self, request: Request, stays: bool) -> bool:
        try:
            answered = partial(self._answered, request, stays)
            return self._server.application.begin(request, answered)
        except Exception as fault:
            self._tell(request, stays, self._fault(request, fault))
            return True

    def _answered(self, request: Request, stays: bool, make: Callable[[], Response]) -> None:
        try:
            answer = make()
        except Exception as fault:
            answer = self._fault(request, fault)
        self._tell(request, stays, answer)

    async def _answer(self, request: Request, stays: bool) -> None:
        try:
            answer = await self._answer_to(request)
            if isinstance(answer, Stream):
                self._answering = None
                await self._stream(request, answer)
        except asyncio.CancelledError:
            answer = None
        self._task = None
        if isinstance(answer, Response):
            self._tell(request, stays, answer)
        else:
            self._ended(request, stays=False)

    async def _answer_to(self, request: Request) -> Response | Stream:
        try:
            return await self._server.application.answer(request)
        except Exception as fault:
            return self._fault(request, fault)

    def _fault(self, request: Request, fault: Exception) -> Response:
        self._note_fault(request, fault)
        return failure(500, "a fault of this server; its log has more")

    def _note_fault(self, request: Request, fault: Exception) -> None:
        self._server.exceptions += 1
        self._loop.call_exception_handler(
            {"message": f"the API at {request.path} failed", "exception": fault}
        )

    def _tell(self, request: Request, stays: bool, answer: Response) -> None:
        self._answering = None
        stays = stays and not self._is_closing
        self._write(request, answer, stays)
        if self._can_write.is_set():
            self._ended(request, stays)
        else:
            self.deadline_s = self._loop.time() + self._server.limits.request_s
            self._untaken = request, stays

    def _taken(self) -> None:
        untaken, self._untaken = self._untaken, None
        if untaken is not None:
            self._ended(*untaken)

    def _ended(self, request: Request, stays: bool) -> None:
        self._is_busy = False
        self._server.buffered -= len(request.body)
        if not stays or self._is_closing:
            self._end()
            return
        self.deadline_s = self._loop.time() + self._server.limits.request_s
        if self._waiting:
            self._loop.call_soon(self._work)  # others get their turn
        else:
            self._resume()

    def _pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    def _end(self) -> None:
        """Close. Octets that nobody read would make the system reset the connection, and the
        client would not see why it was refused: they are read and dropped for a while."""
        self._is_closing = True
        if not self._is_refused or self._transport.is_closing() or self.network == "":
            self._transport.close()
            return
        self.deadline_s = self._loop.time() + LINGER_S
        self._transport.write_eof()
        self._resume()

    def _write(self, request: Request, answer: Response, stays: bool) -> None:
        if self._transport.is_closing():
            return
        head = self._head(answer.code, answer.content_type, stays, answer.caching)
        more = "".join([f"{name}: {value}\r\n" for name, value in answer.headers])
        octets = f"{head}{more}Content-Length: {len(answer.body)}\r\n\r\n".encode("latin-1")
        if request.method != "HEAD" and answer.code not in (204, 304):
            octets += answer.body
        self._transport.write(octets)

    def _head(self, code: int, content_type: str, stays: bool, caching: str = "no-store") -> str:
        return f"{_head(code, content_type, stays, caching)}Date: {self._server.date()}\r\n"

    async def _stream(self, request: Request, answer: Stream) -> None:
        """Parts as they come, each as a chunk. A client that takes nothing for `request_s` is cut
        off; one that only waits is not."""
        self._is_streaming = True
        self._resume()  # to see it go; what it sends is dropped
        try:
            if self._is_closing:  # it is gone already
                return
            head = self._head(200, answer.content_type, stays=False)
            head += "".join([f"{name}: {value}\r\n" for name, value in answer.headers])
            self._transport.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode("latin-1"))
            if request.method == "HEAD":
                return
            async for part in answer.parts:
                if self._transport.is_closing():
                    return
                self._transport.write(b"%x\r\n%b\r\n" % (len(part), part))
                self.deadline_s = self._loop.time() + self._server.limits.request_s
                await self._can_write.wait()
                self.deadline_s = float("inf")
            self._transport.write(b"0\r\n\r\n")
        except CutShort:  # without the last chunk
            return
        except Exception as fault:
            self._note_fault(request, fault)
        finally:
            self.deadline_s = self._loop.time() + self._server.limits.request_s
            self._is_streaming = False
            with suppress(asyncio.CancelledError):
                await answer.parts.aclose()  # type: ignore[attr-defined]  # generators have it


@lru_cache(256)  # clients send a few, of some octets
def _lowered(name: bytes) -> str:
    return name.decode("latin-1").lower()


@lru_cache(256)  # a few types, a few codes
def _head(code: int, content_type: str, stays: bool, caching: str) -> str:
    lines = (
        f"HTTP/1.1 {code} {HTTPStatus(code).phrase}",
        f"Content-Type: {content_type}",
        f"Cache-Control: {caching}",
        "X-Content-Type-Options: nosniff",
        "X-Frame-Options: DENY",
        "Referrer-Policy: no-referrer",
        f"Connection: {'keep-alive' if stays else 'close'}",
    )
    return "".join([f"{line}\r\n" for line in lines])


def _busy(message: str) -> Response:
    return msgspec.structs.replace(failure(503, message), headers=(("Retry-After", "1"),))
