"""Engines on loopback for tests of one transport each."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

from kudurru.adapters.certificates import Certificates
from kudurru.adapters.clock import SystemClock
from kudurru.adapters.dns.engine_python import PythonEngine
from kudurru.adapters.dns.https import ALPN, HttpsServer
from kudurru.adapters.dns.memo import Keeper, Memo
from kudurru.adapters.dns.quic import QuicServer
from kudurru.adapters.dns.streams import StreamLimits
from kudurru.adapters.dns.tcp import TcpServer
from kudurru.adapters.networks import Networks
from kudurru.adapters.sockets import Listener, bind_all
from kudurru.domain.notation import parse_network
from kudurru.domain.ports import PacketEngine, QueryHandler
from tests.certificates import write_pair

LOOPBACK = Networks([parse_network("127.0.0.0/8"), parse_network("::1/128")])
DEADLINE_S = 60


@cache
def certificates() -> Certificates:
    """One for all, with its contexts made while the files are there."""
    with tempfile.TemporaryDirectory() as folder:
        cert, key = write_pair(Path(folder))
        found = Certificates(str(cert), str(key), SystemClock())
        found.context("dot")
        found.context(*ALPN)
    return found


def make_engine(
    proto: str,
    handler: QueryHandler,
    *,
    address: str = "127.0.0.1:0",
    limits: StreamLimits | None = None,
    proxies: Networks | None = None,
    trusted: Networks | None = None,
    memo: Memo | Keeper | None = None,
) -> Any:
    """An engine for one protocol, of the class that speaks it."""
    (bound,) = bind_all([Listener(proto, address)])
    sockets = bound.sockets
    if proto == "udp":
        return PythonEngine(handler, sockets, proxies=proxies)
    if proto in ("tcp", "tls"):
        tls = (lambda: certificates()._contexts[("dot",)]) if proto == "tls" else None
        return TcpServer(handler, sockets, tls=tls, proxies=proxies, limits=limits, memo=memo)
    if proto == "https":
        return HttpsServer(
            handler,
            sockets,
            tls=lambda: certificates()._contexts[ALPN],
            proxies=proxies,
            trusted=trusted,
            limits=limits,
            memo=memo,
        )
    return QuicServer(
        handler,
        sockets,
        proto=proto,
        certificate=lambda: certificates().current,
        trusted=trusted,
        limits=limits,
        memo=memo,
    )


@asynccontextmanager
async def serving(proto: str, handler: QueryHandler, **options: Any) -> AsyncIterator[Any]:
    """Such an engine while it runs. Fails when something fell through to the loop."""
    faults: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, fault: faults.append(fault))
    engine: PacketEngine = make_engine(proto, handler, **options)
    async with asyncio.timeout(DEADLINE_S):
        await engine.start()
        try:
            yield engine
        finally:
            await engine.stop()
    assert not faults, faults


async def until(condition: Any) -> None:
    """Let the loop turn until it holds; the deadline of `serving` bounds it."""
    while not condition():
        await asyncio.sleep(0)
