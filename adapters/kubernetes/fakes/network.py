"""HTTP/1.1 over connections in memory, that can be cut."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import h11
import httpcore
import msgspec

from kudurru.adapters.kubernetes.access import Access
from kudurru.adapters.kubernetes.client import Client, Transport
from kudurru.domain.ports import Clock

HOST = "apiserver.test"


class Request(msgspec.Struct, frozen=True):
    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class Response(msgspec.Struct, frozen=True):
    """`body` is whole, or what `stream` brings as it comes. `cut_after` octets of it the
    connection breaks, as when a server dies while it answers."""

    code: int
    body: bytes = b""
    headers: dict[str, str] = {}
    stream: AsyncIterator[bytes] | None = None
    cut_after: int | None = None


Handler = Callable[[Request], Awaitable[Response]]


class MemoryServer:
    """Answers over connections in memory. `down` is a stopped process: its connections end, and
    new ones are refused."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._tasks: dict[asyncio.Task[None], _Connection] = {}
        self.is_down = False
        self.requests: list[tuple[str, str]] = []
        """Method and target of each that was read whole."""

    def down(self) -> None:
        self.is_down = True
        for task, connection in self._tasks.items():
            connection.close()
            task.cancel()

    def up(self) -> None:
        self.is_down = False

    async def close(self) -> None:
        """End all that this server started."""
        self.down()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def accept(self) -> "MemoryStream":
        """The client's end of a new connection. Raises: ConnectionRefusedError."""
        if self.is_down:
            raise ConnectionRefusedError("connection refused")
        ours, theirs = asyncio.StreamReader(), asyncio.StreamReader()
        connection = _Connection(ours, theirs)
        task = asyncio.ensure_future(self._serve(connection))
        self._tasks[task] = connection
        task.add_done_callback(self._tasks.pop)
        return MemoryStream(theirs, ours, connection, task)

    async def _serve(self, connection: "_Connection") -> None:
        try:
            while (request := await connection.request()) is not None:
                self.requests.append((request.method, request.target))
                if not await connection.respond(await self._handler(request)):
                    return
        finally:
            connection.close()


class Link(httpcore.AsyncNetworkBackend):
    """One client's way to a server. While it is `cut` nothing passes: what was sent is lost, and
    so are answers; after `mend` connections of before are broken."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self._streams: list[MemoryStream] = []
        self.is_cut = False

    def cut(self) -> None:
        self.is_cut = True
        for stream in self._streams:
            stream.is_cut = True
        self._streams.clear()

    def mend(self) -> None:
        self.is_cut = False

    async def connect_tcp(
        self,
        host: str,  # noqa: ARG002  # there is one server
        port: int,  # noqa: ARG002
        timeout: float | None = None,
        local_address: str | None = None,  # noqa: ARG002
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002
    ) -> httpcore.AsyncNetworkStream:
        if self.is_cut:
            await _silence(timeout, httpcore.ConnectTimeout)
        try:
            stream = self._server.accept()
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        self._streams.append(stream)
        return stream


class MemoryStream(httpcore.AsyncNetworkStream):
    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamReader,
        connection: "_Connection",
        task: "asyncio.Task[None]",
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._connection = connection
        self._task = task
        self.is_cut = False

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            async with asyncio.timeout(timeout):
                octets = await self._reader.read(max_bytes)
        except TimeoutError as error:
            raise httpcore.ReadTimeout("nothing was read") from error
        if self.is_cut:
            await _silence(timeout, httpcore.ReadTimeout)
        return octets

    async def write(
        self,
        buffer: bytes,
        timeout: float | None = None,  # noqa: ARG002  # it never waits
    ) -> None:
        if self._connection.is_closed:
            raise httpcore.WriteError("connection reset")
        if not self.is_cut:
            self._writer.feed_data(buffer)

    async def aclose(self) -> None:
        self._connection.close()
        self._task.cancel()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        raise NotImplementedError("memory needs no TLS: the scheme is http")

    def get_extra_info(self, info: str) -> Any:
        # A pooled connection is asked whether its other end has hung up.
        return self._connection.is_closed if info == "is_readable" else None


class _Connection:
    """The server's end."""

    def __init__(self, reader: asyncio.StreamReader, peer: asyncio.StreamReader) -> None:
        self._reader = reader
        self._peer = peer
        self._http = h11.Connection(h11.SERVER)
        self.is_closed = False

    async def request(self) -> Request | None:
        """The next request, whole; None when the peer is gone."""
        head: h11.Request | None = None
        body = bytearray()
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(65536))
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                headers = {name.decode(): value.decode() for name, value in head.headers}
                return Request(head.method.decode(), head.target.decode(), headers, bytes(body))
            else:
                return None

    async def respond(self, response: Response) -> bool:
        """False when the connection is not to be used again."""
        headers = {"content-type": "application/json", **response.headers}
        if response.stream is None:
            headers["content-length"] = str(len(response.body))
        self._send(h11.Response(status_code=response.code, headers=list(headers.items())))
        if response.cut_after is not None:
            self._send(h11.Data(data=response.body[: response.cut_after]))
            return False
        if response.stream is None:
            self._send(h11.Data(data=response.body))
        else:
            async for part in response.stream:
                self._send(h11.Data(data=part))
        self._send(h11.EndOfMessage())
        if self._http.our_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._peer.feed_eof()

    def _send(self, event: Any) -> None:
        if not self.is_closed:
            self._peer.feed_data(self._http.send(event) or b"")


def client_of(server: MemoryServer | Link, clock: Clock, token: str = "") -> Client:
    """A client whose requests reach a server in memory."""

    async def credentials() -> str:
        return f"Bearer {token}" if token else ""

    link = server if isinstance(server, Link) else Link(server)
    access = Access(f"http://{HOST}", None, credentials)
    return Client(transport=Transport(access, clock, backend=link))


async def _silence(timeout: float | None, raised: type[Exception]) -> None:
    """Nothing comes, for as long as the caller waits."""
    try:
        async with asyncio.timeout(timeout):
            await asyncio.get_running_loop().create_future()
    except TimeoutError as error:
        raise raised("nothing was heard") from error
