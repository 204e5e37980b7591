"""Clients of ours, and the API server of a test."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpcore

from kudurru.adapters.clock import SystemClock
from kudurru.adapters.kubernetes.access import Access
from kudurru.adapters.kubernetes.client import Client, Transport
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
