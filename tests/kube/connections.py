"""Clients of ours, and the API server of a test."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpcore

from kudurru.adapters.clock import SystemClock
from kudurru.adapters.kubernetes.access import Access
from kudurru.adapters.kubernetes.client import Client, Network, Transport
from tests.kube.server import ApiServer


@asynccontextmanager
async def connected(
    server: ApiServer,
    user: str = "account",
    *,
    backend: httpcore.AsyncNetworkBackend | None = None,
) -> AsyncIterator[Client]:
    async def credentials() -> str:
        return f"Bearer {server.tokens[user]}"

    tls = ssl.create_default_context(cafile=server.ca)
    transport = Transport(Access(server.url, tls, credentials), SystemClock(), backend=backend)
    try:
        yield Client(transport=transport)
    finally:
        await transport.close()


class Cuttable(httpcore.AsyncNetworkBackend):
    """The way to a real server, that can be cut: connections break, and no new ones are made."""

    def __init__(self) -> None:
        self._backend = Network()
        self._streams: list[httpcore.AsyncNetworkStream] = []
        self.is_cut = False

    async def cut(self) -> None:
        self.is_cut = True
        streams, self._streams = self._streams, []
        for stream in streams:
            await stream.aclose()

    async def connect_tcp(self, *args: Any, **named: Any) -> httpcore.AsyncNetworkStream:
        if self.is_cut:
            raise httpcore.ConnectError("cut")
        stream = await self._backend.connect_tcp(*args, **named)
        self._streams.append(stream)
        return stream
