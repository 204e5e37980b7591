"""The operations surface: health and metrics over HTTP/1.1, GET and HEAD only.

Small on purpose: h11 speaks the protocol, routes are callables that the wiring gives, and a
request costs one of them. Every refusal has the shape of a Kubernetes `Status`.

A browser can be made to ask this listener through a name that an attacker points at it (DNS
rebinding), so Host must be a name or an address that is ours, and Origin too when it is there.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address
from itertools import chain
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import h11
import msgspec

from kudurru.adapters.connections import ConnectionLimits, ConnectionServer
from kudurru.domain.errors import Cause

HEADERS_MAX = 32 << 10  # octets of request line and headers
READ_MAX = 64 << 10
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
JSON = "application/json"
LAMEDUCK = "/lameduck"

REASONS = {413: "RequestEntityTooLarge", 500: "InternalError", 503: "Busy"}
"""Where they are not the phrase of the code in one word, or the phrase is not the same in every
Python."""


class Response(msgspec.Struct, frozen=True):
    code: int
    body: bytes
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()  # beside those that every response has
    caching: str = "no-store"  # what Cache-Control says


class Asked(NamedTuple):
    """Of a request that changes something."""

    peer: str  # address without port
    headers: Mapping[bytes, bytes]  # names in lower case


Route = Callable[[], Response]
Action = Callable[[Asked], Response]
Actions = Mapping[tuple[str, str], Action]
"""By method and path, where they are neither GET nor HEAD."""


class HttpLimits(ConnectionLimits, frozen=True, kw_only=True):
    """`request_s` is from one request to the end of the next, idle time included."""

    connections: int = 100


class HttpStatistics(msgspec.Struct, frozen=True, kw_only=True):
    connections: int
    connections_accepted: int
    connections_refused: int
    connections_timed_out: int
    unhandled_exceptions: int


def failure(code: int, message: str, causes: Iterable[Cause] = (), *, reason: str = "") -> Response:
    """A `Status` that says what went wrong, in the shape of every refusal of the API."""
    phrase = "".join(word.capitalize() for word in HTTPStatus(code).phrase.split())
    status = {
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "reason": reason or REASONS.get(code, phrase),
        "code": code,
        "message": message,
        "details": {"causes": [{"field": one.field, "message": one.message} for one in causes]},
    }
    return Response(code, msgspec.json.encode(status))


def health_routes(
    reasons: Callable[[], Sequence[str]], warnings: Callable[[], Sequence[str]] = tuple
) -> dict[str, Route]:
    """Live while the loop turns; ready when `reasons()`, why not to send queries here, is empty.
    `warnings()` are shown beside that, and change nothing."""
    fine = Response(200, b'{"status":"ok"}')

    def live() -> Response:
        return fine

    def ready() -> Response:
        if causes := [Cause("", reason) for reason in reasons()]:
            return failure(503, "not ready", causes, reason="ServiceUnavailable")
        if found := warnings():
            return Response(200, msgspec.json.encode({"status": "ok", "warnings": found}))
        return fine

    return {
        **dict.fromkeys(("/healthz/live", "/livez", "/health"), live),
        **dict.fromkeys(("/healthz/ready", "/readyz", "/ready"), ready),
    }


def lameduck_routes(is_lameduck: Callable[[], bool]) -> dict[str, Route]:
    return {LAMEDUCK: lambda: _lameduck(is_lameduck())}


def lameduck_actions(
    is_lameduck: Callable[[], bool], ask_lameduck: Callable[[bool], None]
) -> Actions:
    """POST begins, DELETE ends it. This listener knows no passwords, so both are for processes on
    this machine, and no browser: a page cannot send the header without being asked first."""

    def act(is_wanted: bool, asked: Asked) -> Response:
        if not _is_loopback(asked.peer):
            return failure(403, "only a process on this machine may ask for that, over loopback")
        if asked.headers.get(b"x-kudurru") != b"1":
            return failure(403, "the header X-Kudurru: 1 is missing")
        ask_lameduck(is_wanted)
        return _lameduck(is_lameduck())

    return {
        ("POST", LAMEDUCK): partial(act, True),
        ("DELETE", LAMEDUCK): partial(act, False),
    }


def _lameduck(is_lameduck: bool) -> Response:
    return Response(200, msgspec.json.encode({"lameduck": is_lameduck}))


def _is_loopback(peer: str) -> bool:
    address = ip_address(peer.partition("%")[0])
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


class HttpServer(ConnectionServer["_Connection"]):
    """Serves routes on sockets that listen already."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        sockets: Sequence[socket.socket],
        *,
        actions: Actions | None = None,
        names: Iterable[str] = (),
        limits: HttpLimits | None = None,
    ) -> None:
        """`names`: host names by which this listener may be asked, beside its addresses."""
        self.limits = limits or HttpLimits()
        super().__init__(sockets, self.limits)
        self._routes = dict(routes)
        self._actions = dict(actions or {})
        self._names = LOOPBACK | {name.lower() for name in names}
        self._exceptions = 0

    def make_protocol(self) -> "_Connection":
        return _Connection(self)

    def statistics(self) -> HttpStatistics:
        return HttpStatistics(unhandled_exceptions=self._exceptions, **self.connections.counts())

    def respond(self, request: h11.Request, local_address: str, peer: str) -> Response:
        """Answer one request that came to `local_address` from `peer` (without ports)."""
        headers = dict(request.headers)
        ours = self._names | {local_address}
        # Without Host it is HTTP/1.0 (h11 refuses others), which no browser speaks.
        if b"host" in headers and _host_of(b"//" + headers[b"host"]) not in ours:
            return failure(421, "Host is no name or address of this listener")
        if b"origin" in headers and _host_of(headers[b"origin"]) not in ours:
            return failure(403, "Origin is no name or address of this listener")
        path = request.target.decode("ascii", "replace").partition("?")[0]
        method = request.method.decode("ascii", "replace")
        route = self._route(method, path, Asked(peer, headers))
        if isinstance(route, Response):
            return route
        try:
            return route()
        except Exception as fault:
            self._exceptions += 1
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"the route {path} failed", "exception": fault}
            )
            return failure(500, "a fault of this server; its log has more")

    def _route(self, method: str, path: str, asked: Asked) -> Route | Response:
        """What answers, or why nothing does."""
        action = self._actions.get((method, path))
        if action is not None:
            return partial(action, asked)
        route = self._routes.get(path)
        if route is None:
            known = ", ".join(self._routes)
            return failure(404, f"nothing is served at this path; there are {known}")
        if method not in ("GET", "HEAD"):
            others = [one for one, at in self._actions if at == path]
            allowed = ", ".join(["GET", "HEAD", *others])
            refused = failure(405, f"{allowed} only")
            return msgspec.structs.replace(refused, headers=(("Allow", allowed),))
        return route


def _host_of(url: bytes) -> str | None:
    try:
        return urlsplit(url.decode("ascii")).hostname  # lower-case, without port and brackets
    except ValueError:
        return None


class _Connection(asyncio.Protocol):
    """One client. Requests are answered one after the other, one a turn of the loop, and the next
    only when the client has taken the answer."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADERS_MAX)
        self._transport: asyncio.Transport
        self._local_address = self._peer = self.network = ""
        self._is_waiting_for_client = False
        self.deadline_s = self._loop.time() + server.limits.request_s

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")  # None: it is gone already
        self._peer = peer[0] if peer else ""
        self.network = self._server.network_of(self._peer) if peer else ""
        if not peer or not self._server.connections.add(self):
            self._transport.abort()
            return
        self._local_address = transport.get_extra_info("sockname")[0]

    def connection_lost(self, _exc: Exception | None) -> None:
        self._server.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        self._http.receive_data(data)
        self._transport.pause_reading()  # until all of it is answered
        self._work()

    def eof_received(self) -> None:
        """Returns None: the transport sends what is written and closes."""

    def pause_writing(self) -> None:
        self._is_waiting_for_client = True

    def resume_writing(self) -> None:
        self._is_waiting_for_client = False
        self._work()

    def expire(self) -> None:
        self._transport.abort()

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def _work(self) -> None:
        """Answer the next request, if it is whole."""
        if self._is_waiting_for_client or self._transport.is_closing():
            return
        try:
            request = self._http.next_event()
            if not isinstance(request, h11.Request):
                self._transport.resume_reading()
                return
            has_body = not isinstance(self._http.next_event(), h11.EndOfMessage)
        except h11.RemoteProtocolError as fault:
            self._send(failure(fault.error_status_hint, str(fault)), is_last=True)
            return
        refused = failure(413, "no body is taken here") if has_body else None
        # h11 holds its limit only against a head that is not whole yet.
        if len(request.target) + sum(map(len, chain(*request.headers))) > HEADERS_MAX:
            refused = failure(431, f"at most {HEADERS_MAX} octets of headers")
        if refused is not None:
            self._send(refused, is_last=True)
            return
        response = self._server.respond(request, self._local_address, self._peer)
        self._send(response, is_head=request.method == b"HEAD")
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
            self.deadline_s = self._loop.time() + self._server.limits.request_s
            self._loop.call_soon(self._work)

    def _send(self, response: Response, *, is_head: bool = False, is_last: bool = False) -> None:
        headers = [
            ("Date", formatdate(usegmt=True)),
            ("Content-Type", response.content_type),
            ("Content-Length", str(len(response.body))),
            ("Cache-Control", response.caching),
            ("X-Content-Type-Options", "nosniff"),
            *response.headers,
        ]
        if is_last:
            headers.append(("Connection", "close"))
        reason = HTTPStatus(response.code).phrase
        events: list[h11.Event] = [
            h11.Response(status_code=response.code, reason=reason.encode(), headers=headers)
        ]
        if not is_head:
            events.append(h11.Data(data=response.body))
        events.append(h11.EndOfMessage())
        self._transport.write(b"".join(self._http.send(event) or b"" for event in events))
        if is_last or self._http.our_state is h11.MUST_CLOSE:
            self._transport.close()
