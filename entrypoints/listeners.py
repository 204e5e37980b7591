"""The DNS listeners that the settings name: their sockets, their certificate, their engines.

What encrypted listeners need is imported when there is one: a plain server does without.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NoReturn, Protocol

from kudurru.adapters.cpus import usable_cpus
from kudurru.adapters.dns import engine_native
from kudurru.adapters.dns.engine_native import AnswerTable, NativeEngine
from kudurru.adapters.dns.engine_python import PythonEngine
from kudurru.adapters.dns.memo import Keeper, Memo
from kudurru.adapters.dns.tcp import TcpServer
from kudurru.adapters.dns.zone_images import ZoneImages
from kudurru.adapters.metrics import Sample
from kudurru.adapters.networks import Networks
from kudurru.adapters.sockets import CARRIERS, Bound, Listener, bind_all
from kudurru.adapters.turns import Turns
from kudurru.domain.dns.cookies import Cookies
from kudurru.domain.errors import Busy, Cause, Invalid, KudurruError
from kudurru.domain.extras import how_to_install
from kudurru.domain.later import Later
from kudurru.domain.ports import Clock, PacketEngine, QueryHandler, Reply
from kudurru.domain.settings import (
    ENCRYPTED,
    AclSettings,
    InternalTlsSettings,
    RatelimitSettings,
    TlsSettings,
)
from kudurru.domain.settings import Listener as Configured
from kudurru.entrypoints.early import EarlyHandler
from kudurru.projections.pipeline.pipeline import Pipeline
from kudurru.projections.pipeline.ratelimit import RateLimiter

if TYPE_CHECKING:
    from kudurru.adapters.certificates import Certificates

PORT_TRIES = 10
"""Ports asked for before a listener on any port gives up."""

PARTNERS = {"udp": "tcp", "tcp": "udp", "tls": "quic", "quic": "tls", "https": "h3", "h3": "https"}
"""Protocols that clients expect on one port, over TCP and over UDP."""


class AtListener:
    """The pipeline as one listener asks it: with the listener's address, which client groups may
    name. Implements `domain.ports.IdentifyingHandler` and `RepeatListener`."""

    takes_client_ids = True

    def __init__(self, pipeline: Pipeline | EarlyHandler, address: str) -> None:
        self._pipeline = pipeline
        self._address = address
        self.hears_repeats = pipeline.hears_repeats
        self.weigh = pipeline.weigh
        self.repeated = pipeline.repeated
        self.answered = pipeline.answered
        self.missed = pipeline.missed
        self.names_id = pipeline.names_id

    @property
    def tells_clients_apart(self) -> bool:
        return self._pipeline.tells_clients_apart

    def handle(
        self, packet: bytes, client: str, proto: str, client_id: str = ""
    ) -> Reply | Later[Reply | None] | None:
        return self._pipeline.handle(packet, client, proto, client_id, self._address)


class Udp:
    """What engines over UDP are made of. `is_native`: repeats are answered by threads in C, from
    one table and with one limiter for all listeners. Engines over connections have them from the
    same table."""

    def __init__(
        self,
        wanted: Literal["auto", "native", "python"],
        sockets: int,
        cookies: Cookies | None = None,
        *,
        has_zones: bool = True,
        joins_answers: bool = True,
    ) -> None:
        """Raises Invalid when the native engine is wanted and was not built. `sockets`: for each
        address; 0: as many as are of use."""
        if wanted == "native" and not engine_native.is_available():
            hint = (
                "the native engine was not built when kudurru was installed; install a C compiler "
                "and Python's headers and install it again, or set dns.engine to auto"
            )
            raise Invalid("dns.engine", [Cause("", hint)])
        self.is_native = wanted != "python" and engine_native.is_available()
        # The engine in Python reads all sockets on one loop.
        self.sockets = sockets or (usable_cpus() if self.is_native else 1)
        self._joins_answers = joins_answers
        self._table = AnswerTable(cookies=cookies) if self.is_native else None
        self.images = ZoneImages(self._table) if self._table is not None and has_zones else None
        """The zones as the threads have them, where there are any and `has_zones`."""

    def admit(self, acl: AclSettings) -> None:
        """From now on answers for those who may recurse are for these."""
        if self._table is not None:
            self._table.admit(acl.recursion)

    def sample(self, one_in: int) -> None:
        """From now on the query log hears of one query in so many that the threads answer."""
        if self._table is not None:
            self._table.sample(one_in)

    def limiter(
        self, settings: RatelimitSettings, clock: Clock, cookies: Cookies | None
    ) -> RateLimiter:
        buckets = engine_native.new_buckets() if self.is_native else None
        return RateLimiter(settings, clock, cookies, buckets)

    def engine(
        self,
        handler: QueryHandler,
        bound: Bound,
        limiter: RateLimiter,
        proxies: Networks | None,
    ) -> PacketEngine:
        # PROXY headers are read in Python.
        table, zones = self._table, self.images.core if self.images is not None else None
        if table is None or table.is_full or proxies is not None:
            return PythonEngine(handler, bound.sockets, limiter=limiter, proxies=proxies)
        return NativeEngine(
            handler,
            bound.sockets,
            limiter=limiter,
            table=table,
            zones=zones,
            joins_answers=self._joins_answers,
        )

    def memo(self) -> Memo | Keeper:
        """What an engine over connections remembers: the same table, where there is one."""
        table = self._table
        return Memo() if table is None or table.is_full else table.new_scope()


class Stoppable(Protocol):
    async def stop(self) -> None: ...


def bind_listeners(
    listeners: Sequence[tuple[str, str]], sockets: int, *, freebind: bool = False
) -> list[Bound]:
    """All sockets of all listeners (protocol and address), or none; UDP and TCP open `sockets`
    each, with `freebind` also at addresses that no interface has. Partners that name one address
    with port 0 get one port between them, whatever it turns out to be. Raises what binding raises;
    Invalid for a protocol that is not spoken."""
    unknown = sorted({proto for proto, _ in listeners} - CARRIERS.keys())
    if unknown:
        fault = f"this version serves {', '.join(CARRIERS)}, not {', '.join(unknown)}"
        raise Invalid("listeners", [Cause("", fault)])
    for _ in range(PORT_TRIES):
        try:
            return _bind_once(listeners, sockets, freebind)
        except Busy:
            # A port that was free for UDP may be taken for TCP, by anybody's connection: the
            # system is asked for another one, where it was asked for any.
            if not any(address.endswith(":0") for _, address in listeners):
                raise
    return _bind_once(listeners, sockets, freebind)


def _bind_once(listeners: Sequence[tuple[str, str]], sockets: int, freebind: bool) -> list[Bound]:
    bound: list[Bound] = []
    chosen: dict[tuple[str, str], str] = {}  # protocol and address as given -> address as bound
    try:
        for proto, address in listeners:
            listener = Listener(proto, chosen.pop((proto, address), address), freebind)
            one = bind_all([listener], sockets if proto in ("udp", "tcp") else 1)[0]
            chosen.setdefault((PARTNERS[proto], address), one.address)
            bound.append(one)
    except KudurruError:
        for one in bound:
            close(one)
        raise
    return bound


def close(bound: Bound) -> None:
    for sock in bound.sockets:
        sock.close()


def certificates_of(
    listeners: Iterable[Configured], tls: TlsSettings, clock: Clock, *, with_api: bool = False
) -> "Certificates | None":
    """The certificate, when a listener wants one. Raises Invalid when it cannot be served."""
    if not with_api and not any(one.proto in ENCRYPTED for one in listeners):
        return None
    from kudurru.adapters.certificates import Certificates

    return Certificates(tls.cert, tls.key, clock)


def peer_certificates_of(tls: InternalTlsSettings, clock: Clock) -> "Certificates":
    """That of the listener for other nodes, which have to have one of the same CA. Raises Invalid
    when it cannot be served."""
    from kudurru.adapters.certificates import Certificates

    return Certificates(tls.cert, tls.key, clock, tls.ca)


async def keep_fresh(certificates: "Certificates") -> NoReturn:
    """Take over renewed certificates, until cancelled."""
    from kudurru.adapters.certificates import CHECK_S

    while True:
        await asyncio.sleep(CHECK_S)
        certificates.check()


def certificate_samples(certificates: "Certificates") -> Iterable[Sample]:
    seen = certificates.statistics()
    yield Sample("tls_certificate_expiry_timestamp_seconds", (), seen.expires_at_s)
    yield Sample("tls_certificate_reloads_total", ("done",), seen.reloads)
    yield Sample("tls_certificate_reloads_total", ("failed",), seen.failures)


def image_samples(images: ZoneImages) -> Iterable[Sample]:
    seen = images.statistics()
    yield Sample("dns_engine_zones", ("answered",), seen.answered)
    yield Sample("dns_engine_zones", ("left",), seen.left - seen.full)
    yield Sample("dns_engine_zones", ("full",), seen.full)
    yield Sample("dns_engine_names", (), seen.names)
    yield Sample("dns_engine_bytes", (), seen.bytes)
    yield Sample("dns_engine_faults_total", (), seen.faults)


def engines_of(
    listeners: Iterable[Configured],
    bound: Iterable[Bound],
    pipeline: Pipeline | EarlyHandler,
    udp: Udp,
    limiter: RateLimiter,
    certificates: "Certificates | None",
) -> list[tuple[str, PacketEngine]]:
    """An engine for each listener, on its sockets, with its protocol."""
    engines: list[tuple[str, PacketEngine]] = []
    turns = Turns()
    for listener, one in zip(listeners, bound, strict=True):
        handler = AtListener(pipeline, one.address)
        if listener.proto in ENCRYPTED:
            assert certificates is not None
            engine = _encrypted(listener, one, handler, certificates, turns, udp.memo())
        else:
            engine = _plain(listener, one, handler, udp, limiter, turns)
        engines.append((listener.proto, engine))
    return engines


def _plain(
    listener: Configured,
    bound: Bound,
    handler: QueryHandler,
    udp: Udp,
    limiter: RateLimiter,
    turns: Turns,
) -> PacketEngine:
    proxies = _networks(listener)
    if listener.proto == "tcp":
        return TcpServer(handler, bound.sockets, proxies=proxies, memo=udp.memo(), turns=turns)
    return udp.engine(handler, bound, limiter, proxies)


def _encrypted(
    listener: Configured,
    bound: Bound,
    handler: QueryHandler,
    certificates: "Certificates",
    turns: Turns,
    memo: Memo | Keeper,
) -> PacketEngine:
    trusted = Networks(listener.trusted_proxies)
    proxies = _networks(listener)
    if listener.proto == "tls":
        context = certificates.context("dot")
        return TcpServer(
            handler, bound.sockets, tls=context, proxies=proxies, memo=memo, turns=turns
        )
    if listener.proto == "https":
        from kudurru.adapters.dns.https import ALPN, HttpsServer

        return HttpsServer(
            handler,
            bound.sockets,
            tls=certificates.context(*ALPN),
            trusted=trusted,
            proxies=proxies,
            memo=memo,
            turns=turns,
        )
    try:
        from kudurru.adapters.dns.quic import QuicServer
    except ImportError as fault:
        hint = f"{listener.proto} wants the extra quic: {how_to_install('quic')} ({fault})"
        raise Invalid("listeners", [Cause("", hint)]) from None
    return QuicServer(
        handler,
        bound.sockets,
        proto=listener.proto,
        certificate=lambda: certificates.current,
        trusted=trusted,
        memo=memo,
        turns=turns,
    )


async def stop_all(parts: Sequence[Stoppable]) -> None:
    """Stop parts together, each with the time that it takes; then raises the first fault."""
    results = await asyncio.gather(*(part.stop() for part in parts), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


def _networks(listener: Configured) -> Networks | None:
    return Networks(listener.proxy_protocol) if listener.proxy_protocol else None
