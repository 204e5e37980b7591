"""Objects that are nested deeper than Python reads, as a real API server keeps them."""

from collections.abc import AsyncIterator

import msgspec

from kudurru.adapters.kubernetes.fakes.network import MemoryServer, Request, Response

DEEP = "@deep@"
"""Text that stands for it, since the fake encodes what it answers."""
LEVELS = 2_000
_VALUE = b'{"f:x":[' * LEVELS + b"]}" * LEVELS
_DEEP = b'"deep":' + _VALUE


def nest(server: MemoryServer, *, everywhere: bool = False) -> None:
    """From now on the server answers with the real thing; `everywhere`: all metadata has some."""
    handle = server._handler
    head = b'"metadata":{'

    def nested(octets: bytes) -> bytes:
        if everywhere:
            octets = octets.replace(head + b"}", head + _DEEP + b"}")
            octets = octets.replace(head + b'"', head + _DEEP + b',"')
        return octets.replace(msgspec.json.encode(DEEP), _VALUE)

    async def streamed(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for part in parts:
            yield nested(part)

    async def answer(request: Request) -> Response:
        found = await handle(request)
        stream = streamed(found.stream) if found.stream is not None else None
        return msgspec.structs.replace(found, body=nested(found.body), stream=stream)

    server._handler = answer
