"""Requests to an API server: JSON over HTTP/1.1, decoded by msgspec, on the event loop.

Every wait has an end. A request is given up as a whole after `limit_s`, and giving it up closes its
connection there and then, so that nothing of it is sent later; what the server makes of what it has
received is another matter, and only an answer tells. See docs/decisions/0032.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import httpcore
import msgspec

from kudurru import __version__
from kudurru.adapters.kubernetes.access import Access
from kudurru.adapters.kubernetes.answers import (
    Refused,
    Throttled,
    TooLarge,
    Unanswered,
    decoded,
    refusal,
)
from kudurru.domain.ports import Clock

CONNECT_S = 5.0
HEADERS_S = 10.0
REQUEST_S = 30.0
IDLE_S = 30.0
QUIET_S = 150.0
"""How long a watch may bring nothing: the server sends a bookmark every minute or so."""
WAITS_S = 10
"""What a request may wait in all because of 429, before its caller is told."""
RATE, BURST = 50.0, 100
"""Requests a second, and at once. client-go's 5 would make a restore of 1,000 objects take
minutes."""
CONNECTIONS_MAX = 32
DRAINED_MAX = 4 << 20
ANSWER_MAX = 64 << 20
"""An object has less than 2 MiB; a page that is larger is asked for again as smaller ones."""
LINE_MAX = 16 << 20
"""One event of a watch: an object of etcd's largest size, twice over, and then some."""

JSON = "application/json"
_METADATA_OF_LIST = f"{JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_METADATA_OF_WATCH = f"{JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"  # JSON is YAML

T = TypeVar("T")
Headers = dict[bytes | str, bytes | str]


class Outcome(msgspec.Struct, frozen=True):
    """How one request ended, its waits for 429 included."""

    method: str
    path: str
    code: int  # 0: no answer
    error: Exception | None


class Pace:
    """A bucket of tokens on the loop's clock, shared by all clients of a transport."""

    def __init__(self, rate: float = RATE, burst: int = BURST) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._tokens = float(burst)
        self._at: float | None = None

    async def take(self) -> None:
        """Wait until one more request may be sent: in order, since each takes its token before it
        waits, in advance."""
        now = asyncio.get_running_loop().time()
        if self._at is not None:
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        self._tokens -= 1
        if self._tokens < 0:
            await asyncio.sleep(-self._tokens / self._rate)


class Transport:
    """Connections to one API server, and when it was last heard of."""

    def __init__(
        self, access: Access, clock: Clock, *, backend: httpcore.AsyncNetworkBackend | None = None
    ) -> None:
        self.access = access
        self.clock = clock
        self.last_contact_us = 0  # 0: never
        self.requests = 0  # sent
        self._pool = httpcore.AsyncConnectionPool(
            access.tls,
            max_connections=CONNECTIONS_MAX,
            keepalive_expiry=IDLE_S,
            retries=0,  # a retry of its own would pass the write guard by
            network_backend=backend or Network(),
            socket_options=_KEEPALIVE,
        )

    def heard(self) -> None:
        self.last_contact_us = self.clock.now_us()

    @asynccontextmanager
    async def send(
        self,
        method: str,
        path: str,
        content: bytes,
        content_type: str,
        read_s: float,
        accept: str = JSON,
    ) -> AsyncIterator["Answer"]:
        """One request, once. Raises: Unanswered."""
        wait_s = {"connect": CONNECT_S, "read": HEADERS_S, "write": HEADERS_S, "pool": HEADERS_S}
        extensions: dict[str, Any] = {"timeout": wait_s}
        if self.access.server_name:
            extensions["sni_hostname"] = self.access.server_name
        with _unanswered(method, path):
            headers = await self._headers(content, content_type, accept)
            self.requests += 1
            url = self.access.server + path
            response = await self._pool.handle_async_request(
                httpcore.Request(
                    method, url, headers=headers, content=content or None, extensions=extensions
                )
            )
        wait_s["read"] = read_s  # from here on: it is looked at when the body is first read
        try:
            yield Answer(self, method, path, response)
        finally:
            await response.aclose()

    async def close(self) -> None:
        await self._pool.aclose()

    async def _headers(self, content: bytes, content_type: str, accept: str) -> Headers:
        host = self.access.server.partition("://")[2]
        headers: Headers = {"Host": host, "Accept": accept, "User-Agent": f"kudurru/{__version__}"}
        if content:
            headers["Content-Type"] = content_type
            headers["Content-Length"] = str(len(content))
        if authorization := await self.access.credentials():
            headers["Authorization"] = authorization
        return headers


class Network(httpcore.AsyncNetworkBackend):
    """Connections over TCP, which are closed also when a request is given up in the middle of
    their TLS handshake: httpcore leaves those to the garbage collector."""

    def __init__(self) -> None:
        self._backend = httpcore.AnyIOBackend()

    async def connect_tcp(self, *args: Any, **named: Any) -> httpcore.AsyncNetworkStream:
        return _Plain(await self._backend.connect_tcp(*args, **named))


class _Plain(httpcore.AsyncNetworkStream):
    """A connection without TLS, yet."""

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream

    async def start_tls(self, *args: Any, **named: Any) -> httpcore.AsyncNetworkStream:
        try:
            return await self._stream.start_tls(*args, **named)
        except BaseException:
            await self._stream.aclose()
            raise

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class Answer:
    """What came back, its body still to be read."""

    def __init__(
        self, transport: Transport, method: str, path: str, response: httpcore.Response
    ) -> None:
        self._transport = transport
        self._method = method
        self._path = path
        self._response = response
        self.code = response.status
        self._heard()

    async def parts(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises: Unanswered."""
        with _unanswered(self._method, self._path):
            async for part in self._response.aiter_stream():
                self._heard()
                yield part

    async def body(self, size: int) -> bytes:
        """The whole body, so that the connection can be used again; of one that is larger than
        `size` the beginning, and its connection is closed. Raises: Unanswered."""
        parts: list[bytes] = []
        length = 0
        async for part in self.parts():
            parts.append(part)
            length += len(part)
            if length > size:
                break
        return b"".join(parts)

    async def check(self) -> None:
        """Raises: Refused, when it is not 2xx."""
        if not 200 <= self.code <= 299:
            header = dict(self._response.headers).get(b"retry-after", b"").decode("latin-1")
            body = await self.body(DRAINED_MAX)
            raise refusal(self._method, self._path, self.code, body, header)

    def _heard(self) -> None:
        if self.code < 500:
            self._transport.heard()


@dataclass(frozen=True, kw_only=True)
class Client:
    """Requests over one transport, under rules of whoever sends them: `with_…` gives a client that
    shares everything else."""

    transport: Transport
    limit_s: float = REQUEST_S
    pace: Pace | None = field(default_factory=Pace)
    guard: Callable[[], None] | None = None
    """Called before every send that is no GET; what it raises is the outcome."""
    observer: Callable[[Outcome], None] | None = None
    is_metadata_only: bool = False
    """Lists and watches bring of each object what it says of itself, and nothing of its content."""
    waits_end: asyncio.Event | None = None
    """Once set nobody waits for 429 any more; what was sent is waited for all the same, so that
    its sender knows what became of it."""

    def with_guard(self, guard: Callable[[], None]) -> "Client":
        return replace(self, guard=guard)

    def with_observer(self, observer: Callable[[Outcome], None]) -> "Client":
        return replace(self, observer=observer)

    def with_limit(self, limit_s: float) -> "Client":
        return replace(self, limit_s=limit_s)

    def with_waits_until(self, end: asyncio.Event) -> "Client":
        return replace(self, waits_end=end)

    def with_metadata_only(self) -> "Client":
        return replace(self, is_metadata_only=True)

    def without_pace(self) -> "Client":
        """For requests that must not queue behind others: those of an election."""
        return replace(self, pace=None)

    async def get(self, path: str, type_: type[T]) -> T:
        return await self.request("GET", path, type_=type_)

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        type_: type[T] = dict,  # type: ignore[assignment]  # mypy: defaults of type variables
        content_type: str = JSON,
    ) -> T:
        """Send it, and again after a 429 that says how long to wait. Raises: Refused and what is
        below it; Unanswered; what the guard raises."""
        with self._observed(method, path) as ended:
            code, octets = await self._patiently(method, path, body, content_type)
            answer: T = await decoded(method, path, octets, type_)
            ended(code)
        return answer

    @asynccontextmanager
    async def lines(
        self, path: str, *, quiet_s: float = QUIET_S
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """A watch: the lines of an answer as they come, until the server ends it. Raises on entry
        what `request` raises, without waits; later Unanswered. The observer hears how it began."""
        async with AsyncExitStack() as stack:
            with self._observed("GET", path) as ended:
                await self._turn()
                accept = _METADATA_OF_WATCH if self.is_metadata_only else JSON
                send = self.transport.send("GET", path, b"", JSON, quiet_s, accept)
                answer = await stack.enter_async_context(send)
                await answer.check()
                ended(answer.code)
            yield _lines(path, answer)

    @contextmanager
    def _observed(self, method: str, path: str) -> Iterator[Callable[[int], None]]:
        """Tells the observer how a request ended. A cancelled one has an outcome for nobody: its
        caller is gone."""
        code = 0

        def ended(with_code: int) -> None:
            nonlocal code
            code = with_code

        error: Exception | None = None
        try:
            yield ended
        except Refused as refused:
            code, error = refused.code, refused
            raise
        except Exception as other:
            error = other
            raise
        finally:
            if self.observer and (code or error):
                self.observer(Outcome(method, path, code, error))

    async def _patiently(
        self, method: str, path: str, body: Any, content_type: str
    ) -> tuple[int, bytes]:
        content = b"" if body is None else msgspec.json.encode(body)
        waited = 0
        while True:
            await self._turn()
            if self.guard and method != "GET":
                self.guard()
            try:
                return await self._once(method, path, content, content_type)
            except Throttled as throttled:
                wait = max(1, throttled.retry_after_s)
                waited += wait
                if waited > WAITS_S or not await self._waited(wait):
                    raise

    async def _once(
        self, method: str, path: str, content: bytes, content_type: str
    ) -> tuple[int, bytes]:
        accept = _METADATA_OF_LIST if self.is_metadata_only else JSON
        send = self.transport.send(method, path, content, content_type, HEADERS_S, accept)
        try:
            # Over the body too: a server that sends an octet now and then would hold us for ever.
            async with asyncio.timeout(self.limit_s), send as answer:
                await answer.check()
                octets = await answer.body(ANSWER_MAX)
                if len(octets) > ANSWER_MAX:
                    raise TooLarge(method, path, f"its answer is over {ANSWER_MAX} octets")
                return answer.code, octets
        except TimeoutError as error:
            raise Unanswered(method, path, f"nothing whole within {self.limit_s:g} s") from error

    async def _turn(self) -> None:
        if self.pace:
            await self.pace.take()

    async def _waited(self, seconds: float) -> bool:
        """False when the wait was ended by `waits_end`."""
        if self.waits_end is None:
            await asyncio.sleep(seconds)
            return True
        try:
            async with asyncio.timeout(seconds):
                await self.waits_end.wait()
        except TimeoutError:
            return True
        return False


async def _lines(path: str, answer: Answer) -> AsyncIterator[bytes]:
    rest: list[bytes] = []
    held = 0
    async for part in answer.parts():
        first, *more = part.split(b"\n")
        rest.append(first)
        held += len(first)
        if held > LINE_MAX:
            raise Unanswered("GET", path, f"a line of the watch is over {LINE_MAX} octets")
        for line in more:
            whole = b"".join(rest)
            rest, held = [line], len(line)
            if whole:
                yield whole


_KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]
"""A machine that fails sends neither FIN nor RST; this finds out within 40 s."""


@contextmanager
def _unanswered(method: str, path: str) -> Iterator[None]:
    """What goes wrong with a connection, as `Unanswered`."""
    try:
        yield
    except httpcore.TimeoutException as error:
        raise Unanswered(method, path, f"{_why(error)}, in time") from error
    except (OSError, ValueError, httpcore.NetworkError, httpcore.ProtocolError) as error:
        raise Unanswered(method, path, _why(error)) from error


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__
