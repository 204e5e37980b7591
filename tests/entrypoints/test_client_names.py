"""Clients that name the server in their handshake, as all do that look at certificates: only a name
that a client group has as a client ID makes them others than their address."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import pytest

from kudurru.adapters.dns import engine_native
from kudurru.adapters.dns.engine_native import AnswerTable
from kudurru.adapters.memory.clock import ManualClock, SeededEntropy
from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.adapters.sockets import split_address
from kudurru.domain.ports import Origins
from kudurru.entrypoints.answering import pipeline_of
from kudurru.entrypoints.listeners import AtListener
from kudurru.entrypoints.wiring import Node
from tests.dns_clients import (
    framed,
    open_doq,
    open_http2,
    open_http3,
    open_tls,
    post,
    quic_configuration,
    read_message,
)
from tests.engines import serving
from tests.nodes import a_change, commit_as_server
from tests.objects import manifest, put
from tests.packets import query

PACKET = query("tv.example", ident=0)
HERE, ANNAS = bytes([192, 0, 2, 1]), bytes([192, 0, 2, 2])
"""What policies answer to this address, and to whom the group names."""

needs_table = pytest.mark.skipif(
    not engine_native.is_available(), reason="the native engine was not built"
)
Ask = Callable[[], Awaitable[bytes]]


@asynccontextmanager
async def over_tls(target: Any, name: str) -> Any:
    reader, writer = await open_tls(target, name=name)

    async def ask() -> bytes:
        writer.write(framed(PACKET))
        return await read_message(reader)

    yield ask
    writer.close()


@asynccontextmanager
async def over_http2(target: Any, name: str, path: bytes = b"/dns-query") -> Any:
    async with open_http2(target, name) as client:
        yield partial(body_of, client, path)


@asynccontextmanager
async def over_http3(target: Any, name: str) -> Any:
    configuration = quic_configuration("h3")
    configuration.server_name = name
    async with open_http3(target, configuration) as client:
        yield partial(body_of, client, b"/dns-query")


@asynccontextmanager
async def over_quic(target: Any, name: str) -> Any:
    configuration = quic_configuration("doq")
    configuration.server_name = name
    async with open_doq(target, configuration=configuration) as client:
        yield partial(client.ask, PACKET)


@asynccontextmanager
async def over_a_path(target: Any, name: str) -> Any:
    """DoH whose client says in the path who it is."""
    path = b"/dns-query/" + name.partition(".")[0].encode()
    async with over_http2(target, "localhost", path) as ask:
        yield ask


async def body_of(client: Any, path: bytes) -> bytes:
    found = await client.request(*post(PACKET, path))
    assert (found.status, found.headers[b"cache-control"]) == (200, b"private, max-age=30")
    body: bytes = found.body
    return body


WAYS: dict[str, tuple[str, Callable[[Any, str], AbstractAsyncContextManager[Ask]]]] = {
    "tls": ("tls", over_tls),
    "http2": ("https", over_http2),
    "path": ("https", over_a_path),
    "http3": ("h3", over_http3),
    "quic": ("quic", over_quic),
}


class Served:
    """A node whose policies tell this address and Anna apart, and its engine."""

    def __init__(self) -> None:
        log = MemoryEventLog(entropy=SeededEntropy(1), clock=ManualClock())
        self.engine: Any = None
        self.node = Node(log, ManualClock(), SeededEntropy(2), on_change=self._forget)
        self.pipeline = pipeline_of(self.node)
        self.pipeline.keeps_for_a_while = True
        self.put("ClientGroup", "here", clients=[{"cidr": "127.0.0.0/8"}])
        self.name_anna("192.0.2.99")
        for priority, (name, target) in enumerate(
            {"here": "192.0.2.1", "anna": "192.0.2.2"}.items()
        ):
            rewrites = [{"name": "tv.example", "targets": [target]}]
            self.put("Policy", name, clientGroupRefs=[name], rewrites=rewrites, priority=priority)

    def name_anna(self, address: str = "", client_id: str = "") -> None:
        client = {"ip": address} if address else {"clientID": client_id}
        self.put("ClientGroup", "anna", clients=[client])

    def put(self, kind: str, name: str, **spec: Any) -> None:
        commit_as_server(self.node, a_change(put(manifest(kind, name, spec))))

    def _forget(self, changed: Origins) -> None:
        if self.engine is not None:
            self.engine.invalidate(changed)

    async def told(self, ask: Ask) -> tuple[bytes, int]:
        """What three queries in a row get, and how many of them the engine answered by itself."""
        before = sum(self.engine.statistics().memo_hits.values())
        found = {(await ask())[-4:] for _ in range(3)}
        assert len(found) == 1
        return found.pop(), sum(self.engine.statistics().memo_hits.values()) - before


@needs_table
@pytest.mark.parametrize("way", WAYS)
def test_who_calls_itself_what_no_group_names_is_as_its_address_is(way: str) -> None:
    """On connections that see groups come and go."""
    proto, opened = WAYS[way]

    async def main() -> None:
        served = Served()
        handler = AtListener(served.pipeline, "127.0.0.1:853")
        async with serving(proto, handler, memo=AnswerTable().new_scope()) as engine:
            served.engine = engine
            target = split_address(engine.addresses[0])
            async with (
                opened(target, "anna.dns.example") as anna,
                opened(target, "dns.x.example") as dns,
            ):
                assert await served.told(anna) == (HERE, 2)
                assert await served.told(dns) == (HERE, 3)
                served.name_anna(client_id="Anna")
                assert await served.told(anna) == (ANNAS, 0)
                assert await served.told(dns) == (HERE, 2)
                assert await served.told(anna) == (ANNAS, 0)
                served.name_anna(client_id="somebody")
                assert await served.told(anna) == (HERE, 2)
                assert await served.told(dns) == (HERE, 3)

    asyncio.run(main())
