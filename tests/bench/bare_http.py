"""The least that an answer over HTTP costs here: httptools on an asyncio protocol, no more.

    python -m tests.bench.bare_http

Answers whatever it is asked with as many octets as a record set takes, and prints its address.
`tests.bench.api` runs it as a process of its own, to tell what is ours of the cost of the API.
"""

import asyncio
from typing import cast

import httptools

HEAD = b"HTTP/1.1 201 Created\r\nX-Like: " + b"-" * 250 + b"\r\nContent-Length: 440\r\n\r\n"
ANSWER = HEAD + b"-" * 440


class Bare(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)
        self._headers: list[tuple[bytes, bytes]] = []

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_message_complete(self) -> None:
        self._headers.clear()
        self._transport.write(ANSWER)


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", 0)
    print(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve())
