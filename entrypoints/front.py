"""What clients and operators see of a server: its listeners, and what answers behind them."""

import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import TYPE_CHECKING

from kudurru import __version__
from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.http_api import ApiServer
from kudurru.adapters.http_ops import HttpServer, health_routes, lameduck_actions, lameduck_routes
from kudurru.adapters.metrics import Metrics, metrics_routes
from kudurru.adapters.sockets import Bound, Listener, bind_all
from kudurru.adapters.timers import LoopTimers
from kudurru.domain.ports import CACHE, Origins, PacketEngine
from kudurru.entrypoints.answering import pipeline_of
from kudurru.entrypoints.api import Api
from kudurru.entrypoints.cache_keeping import CacheKeeper
from kudurru.entrypoints.dashboard import PREFIX as PAGE
from kudurru.entrypoints.early import EarlyHandler
from kudurru.entrypoints.external_dns import ExternalDns
from kudurru.entrypoints.health import (
    list_samples,
    metrics_of,
    notify_samples,
    settings_samples,
    transfer_samples,
)
from kudurru.entrypoints.listeners import (
    Udp,
    bind_listeners,
    certificate_samples,
    close,
    engines_of,
    image_samples,
    peer_certificates_of,
    stop_all,
)
from kudurru.entrypoints.parts import Parts
from kudurru.entrypoints.peers import PeersApp
from kudurru.entrypoints.readiness import Readiness
from kudurru.entrypoints.resolving import Resolving
from kudurru.entrypoints.selfcheck import SelfCheck, probes_of
from kudurru.entrypoints.serve_options import ServeOptions
from kudurru.projections.pipeline.ingress import Identity
from kudurru.projections.pipeline.pipeline import Pipeline
from kudurru.projections.pipeline.transfers import Transfers

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from kudurru.adapters.certificates import Certificates

log = logging.getLogger("kudurru")

MICROSECOND = timedelta(microseconds=1)


class Front:
    """Made with every socket of every listener bound, or not at all; `start` serves them. `stack`
    stops and closes everything, the listeners before what they ask."""

    def __init__(
        self,
        options: ServeOptions,
        parts: Parts,
        readiness: Readiness,
        certificates: "Certificates | None",
        stack: AsyncExitStack,
    ) -> None:
        self._options = options
        self._parts = parts
        self._readiness = readiness
        self.certificates = certificates
        self._stack = stack
        pairs = [(one.proto, str(one.address)) for one in options.listeners]
        udp = self.udp = Udp(
            options.engine,
            options.sockets,
            parts.cookies,
            has_zones=options.engine_zones,
            joins_answers=options.join_answers,
        )
        udp.admit(options.acl)
        udp.sample(options.querylog.sample)
        self.bound = bind_listeners(pairs, udp.sockets, freebind=options.freebind)
        for one in self.bound:
            stack.callback(close, one)
        self._health = health_routes(readiness.why_not, readiness.warnings)
        self.api = Api(options, parts, self._health)
        self._web = self._bound(options.http)
        self._ops = self._bound(options.ops)
        self._scraped = self._bound(options.metrics)
        self.resolving = self._resolving()
        self.resolving.on_flush = lambda: self.invalidate((CACHE,))
        self.cache_keeper = self._cache_keeper()
        self._transfers = Transfers(parts.node.zones)
        self.pipeline = self._pipeline()
        self.pipeline.keeps_for_a_while = udp.is_native
        if udp.images is not None:
            view, pipeline = parts.node.zones, self.pipeline
            udp.images.follow(view.served, lambda: view.forwards, lambda: pipeline.has_plain_zones)
        self.limiter = udp.limiter(options.ratelimit, SystemClock(), parts.cookies)
        self.early = EarlyHandler(self.pipeline)
        self.engines = engines_of(
            options.listeners, self.bound, self.early, udp, self.limiter, certificates
        )
        if parts.query_log is not None:
            parts.query_log.forget = self.invalidate
        id_ = int.from_bytes(SystemEntropy().token(2), "big")
        self.selfcheck = SelfCheck(probes_of(options.listeners, self.bound, id_), LoopTimers())
        readiness.add_obstacles(self.selfcheck.problems)
        self.peers = PeersApp(parts.node, options.node_name, readiness.synced.is_set)
        self.peer_certificates = self._peer_certificates()
        self._internal = self._bound(options.internal) if options.internal else None
        self._webhook = ExternalDns(
            options.external_dns, parts.node, parts.writer, readiness.synced.is_set,
            options.api_names,
        )  # fmt: skip
        listen = options.external_dns.listen
        self._for_webhook = self._bound(str(listen)) if listen is not None else None
        self.metrics = self._metrics()

    async def start(self) -> str:
        """Serve. Returns the ready line."""
        readiness, options, health = self._readiness, self._options, self._health
        shown = lameduck_routes(lambda: readiness.is_lameduck)
        actions = lameduck_actions(lambda: readiness.is_lameduck, readiness.ask_lameduck)
        names = [options.node_name] if options.node_name else []
        servers: list[HttpServer | ApiServer | PacketEngine] = [
            self.api.server(self._web.sockets, self._api_tls()),
            HttpServer(health | shown, self._ops.sockets, actions=actions, names=names),
            HttpServer(metrics_routes(self.metrics), self._scraped.sockets, names=names),
            *(engine for _, engine in self.engines),
        ]
        addresses = _shown(self.bound)
        if self._internal is not None and self.peer_certificates is not None:
            servers.append(self.peers.server(self._internal, self.peer_certificates))
            addresses["internal"] = self._internal.address
        if self._for_webhook is not None:
            servers.append(self._webhook.server(self._for_webhook, options.api_body_bytes))
            addresses["external-dns"] = self._for_webhook.address
        self._stack.push_async_callback(stop_all, servers)
        for server in servers:
            await server.start()
        for name, one in (("http", self._web), ("ops", self._ops), ("metrics", self._scraped)):
            addresses[name] = one.address
        if options.api_page:
            scheme = "https" if options.api_tls else "http"
            addresses["page"] = f"{scheme}://{self._web.address}{PAGE}"
        return "ready " + " ".join(f"{name}={address}" for name, address in addresses.items())

    def _api_tls(self) -> "Callable[[], ssl.SSLContext] | None":
        if not self._options.api_tls:
            return None
        assert self.certificates is not None, "there is one where something wants it"
        return self.certificates.context("http/1.1")

    def invalidate(self, changed: Origins = None) -> None:
        """Forget remembered answers that come of what changed."""
        for _, engine in self.engines:
            engine.invalidate(changed)
        if self.udp.images is not None:
            self.udp.images.changed(changed)

    # --- making -------------------------------------------------------------------------

    def _bound(self, address: str) -> Bound:
        bound = bind_all([Listener("tcp", address)])[0]
        self._stack.callback(close, bound)
        return bound

    def _peer_certificates(self) -> "Certificates | None":
        """Raises Invalid when a listener for other nodes is wanted, and has none."""
        if not self._options.internal:
            return None
        found = peer_certificates_of(self._options.tls.internal, SystemClock())
        self._readiness.add_warnings(
            lambda: [f"Certificate for other nodes: {found.problem}"] if found.problem else []
        )
        return found

    def _resolving(self) -> Resolving:
        options, node = self._options, self._parts.node
        resolving = Resolving(
            options.upstreams, options.resolver, options.cache, options.acl, node.clock
        )
        resolving.take_zones(node.zones.forwards)
        self._stack.push_async_callback(resolving.close)
        return resolving

    def _cache_keeper(self) -> CacheKeeper:
        settings, directory = self._options.cache, self._parts.directory
        keeper = CacheKeeper(self.resolving.cache, directory.cache_dump, self._parts.node.clock)
        keeper.configure(settings.persist_interval.total_seconds())
        if settings.persist_interval:
            keeper.restore(settings.persist_max_age // MICROSECOND)
        self._stack.push_async_callback(keeper.dump_last)
        return keeper

    def _pipeline(self) -> Pipeline:
        parts, readiness = self._parts, self._readiness
        hostname = self._options.node_name
        return pipeline_of(
            parts.node,
            resolver=self.resolving.resolver,
            route_of=self.resolving.route_of,
            notes=parts.query_log.notes if parts.query_log is not None else None,
            is_synced=readiness.synced.is_set,
            is_lameduck=lambda: readiness.is_lameduck,
            identity=Identity(version=f"kudurru {__version__}", hostname=hostname),
            on_exception=lambda error: log.error("a query failed", exc_info=error),
            cookies=parts.cookies,
            neighbours=parts.neighbours,
            signatures=parts.signatures,
            transfers=self._transfers,
            control=parts.inbound.control,
        )

    def _metrics(self) -> Metrics:
        parts, is_synced = self._parts, self._readiness.synced.is_set
        metrics = metrics_of(
            parts.node, self.pipeline, self.limiter, self.engines, parts.writer, is_synced
        )
        metrics.add(self.early.samples)
        metrics.add(self.selfcheck.samples)
        metrics.add(parts.snapshots.samples)
        metrics.add(self.resolving.samples)
        metrics.add(lambda: list_samples(parts.lists.rows(), parts.lists.statistics()))
        if parts.query_log is not None:
            metrics.add(parts.query_log.samples)
        metrics.add(lambda: transfer_samples(self._transfers))
        metrics.add(parts.inbound.samples)
        metrics.add(self.api.samples)
        metrics.add(self.peers.samples)
        metrics.add(self._webhook.samples)
        metrics.add(lambda: notify_samples(parts.notifier.statistics()))
        metrics.add(lambda: settings_samples(parts.settings))
        images = self.udp.images
        if images is not None:
            metrics.add(lambda: image_samples(images))
        certificates = self.certificates
        if certificates is not None:
            metrics.add(lambda: certificate_samples(certificates))
        return metrics


def _shown(bound: Sequence[Bound]) -> dict[str, str]:
    """Addresses for the ready line: "dns" for UDP and TCP, else by protocol."""
    shown: dict[str, dict[str, None]] = {}
    for one in bound:
        name = "dns" if one.listener.proto in ("udp", "tcp") else one.listener.proto
        shown.setdefault(name, {})[one.address] = None
    return {name: ",".join(addresses) for name, addresses in shown.items()}
