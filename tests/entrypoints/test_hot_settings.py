"""Every key of the settings, changed on a running node."""

import asyncio
import gc
import json
import logging
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kudurru.adapters.clock import SystemClock
from kudurru.domain.dns import names
from kudurru.domain.dns.record_types import A
from kudurru.domain.errors import Invalid
from kudurru.domain.ports import VerifiableLog
from kudurru.domain.settings import KEYS
from kudurru.entrypoints.cli.serve import serve_options
from kudurru.entrypoints.doctor import log_check
from kudurru.entrypoints.front import Front
from kudurru.entrypoints.live_settings import LiveSettings
from kudurru.entrypoints.parts import Parts
from kudurru.entrypoints.server import Server
from kudurru.entrypoints.settings import Sources
from tests.certificates import write_pair

CLIENT, OTHER = ip_address("198.51.100.7").packed, ip_address("2001:db8::7").packed
QUERY = bytes(2) + bytes.fromhex("01000001000000000000") + b"\1x\0\0\1\0\1"  # without its ID


class Node(NamedTuple):
    """What probes look at."""

    parts: Parts
    front: Front
    live: LiveSettings


Probe = Callable[[Node], Any]


class Hot(NamedTuple):
    """A new value of a key, and what it changes: `probe` gives `after` once it runs, and something
    else before. `beside` are keys that the value makes no sense without."""

    value: Any
    probe: Probe
    after: Any
    beside: dict[str, Any] = {}


def admitted(client: bytes) -> Probe:
    """How many of 10,000 queries of one client get through at once."""

    def probe(node: Node) -> int:
        limiter = node.front.limiter
        verdicts = limiter.admit([client] * 10_000, [QUERY] * 10_000)
        return 10_000 if verdicts is None else sum(one is None for one in verdicts)

    return probe


def slipped(node: Node) -> int:
    """Of queries over the limit, how many of a hundred get an answer."""
    verdicts = node.front.limiter.admit([CLIENT] * 10_000, [QUERY] * 10_000) or [None]
    return sum(bool(one) for one in verdicts[-100:])


def remembered(node: Node) -> int:
    for i in range(100):
        node.front.limiter.admit([(i << 8).to_bytes(4, "big")], [QUERY])
    return node.front.limiter.statistics().buckets


def way(name: str) -> Probe:
    """What becomes of a question: the way it goes, and who is asked."""
    key = names.key(names.from_text(name))

    def probe(node: Node) -> tuple[str, list[str]]:
        found, upstreams = node.front.resolving.way_of(key, A, "127.0.0.1", ())
        return found, list(upstreams)

    return probe


def inside(part: str, *path: str) -> Probe:
    """What a part holds of a setting."""

    def probe(node: Node) -> Any:
        found = getattr(node.parts if hasattr(node.parts, part) else node.front, part)
        for name in path:
            found = getattr(found, name)
        return found

    return probe


def current(*path: str) -> Probe:
    """Of a key that is read where it is used."""

    def probe(node: Node) -> Any:
        found: Any = node.live.current
        for name in path:
            found = getattr(found, name)
        return found

    return probe


def upstream_names(*path: str) -> Probe:
    probe = inside("resolving", *path)
    return lambda node: [upstream.address.text for upstream in probe(node)]


def fallbacks(node: Node) -> list[str]:
    routes = node.front.resolving.resolver.routes()
    return [upstream.address.text for route in routes for upstream in route.group.fallback]


def log_says(node: Node) -> str:
    """What doctor finds of the log, held against the trusted keys."""
    log: VerifiableLog = node.parts.node.log  # type: ignore[assignment]  # every log of ours is
    try:
        return log_check(log, node.live.current.audit.trusted_keys).status
    except Invalid:
        return "no key"


FORWARDED = "forward", ["192.0.2.1"]
DEFAULT_GROUP = {"upstreams.groups": {"default": ["192.0.2.1"]}}

OTHER_PAIR = {"tls.cert": "b.pem", "tls.key": "b.key"}
INTERNAL = {f"tls.internal.{name}": f"/{name}.pem" for name in ("ca", "cert", "key")}

HOT: dict[str, Hot] = {
    "tls.cert": Hot("b.pem", inside("certificates", "current", "cert_file"), "b.pem", OTHER_PAIR),
    "tls.key": Hot("b.key", inside("certificates", "current", "key_file"), "b.key", OTHER_PAIR),
    **{
        f"tls.internal.{name}": Hot(
            f"/{name}.pem",
            current("tls", "internal", name),
            f"/{name}.pem",
            INTERNAL,
        )
        for name in ("ca", "cert", "key")
    },
    "acl.recursion": Hot("all", lambda n: n.front.resolving.admits("192.0.2.1"), after=True),
    "ratelimit.enabled": Hot(False, admitted(CLIENT), 10_000),
    "ratelimit.ipv4": Hot({"32": 5}, admitted(CLIENT), 5),
    "ratelimit.ipv6": Hot({"128": 5}, admitted(OTHER), 5),
    "ratelimit.slip": Hot(100, slipped, 100),
    "ratelimit.exempt": Hot(["198.51.100.0/24"], admitted(CLIENT), 10_000),
    "ratelimit.maxBuckets": Hot(64, remembered, 64),
    "upstreams.groups": Hot(
        {"default": ["192.0.2.1"]}, way("example.com"), ("forward", ["192.0.2.1"])
    ),
    "upstreams.strategy": Hot("strict", inside("resolving", "_forwarder", "strategy"), "strict"),
    "upstreams.timeout": Hot("3s", inside("resolving", "_forwarder", "timeout_us"), 3_000_000),
    "upstreams.bootstrap": Hot(
        ["192.0.2.2"], upstream_names("_bootstrap", "upstreams"), ["192.0.2.2"]
    ),
    "upstreams.fallback": Hot(
        ["192.0.2.3"],
        lambda n: [
            u.address.text for r in n.front.resolving.resolver.routes() for u in r.group.fallback
        ],
        ["192.0.2.3"],
        DEFAULT_GROUP,
    ),
    "upstreams.conditional": Hot(
        {"corp.example": ["192.0.2.4"]}, way("x.corp.example"), ("forward", ["192.0.2.4"])
    ),
    "upstreams.ca": Hot("/ca.pem", inside("resolving", "_carriers", "ca"), "/ca.pem"),
    "resolver.specialNames": Hot(False, way("x.invalid"), FORWARDED, DEFAULT_GROUP),
    "resolver.browserCanary": Hot(False, way("use-application-dns.net"), FORWARDED, DEFAULT_GROUP),
    "resolver.designation": Hot(False, way("_dns.resolver.arpa"), FORWARDED, DEFAULT_GROUP),
    "resolver.rebindProtection": Hot(
        False, inside("resolving", "resolver", "_rules", "rebind_protection"), after=False
    ),
    "resolver.privateDomains": Hot(
        ["Corp.example"],
        inside("resolving", "resolver", "_rules", "private_domains"),
        frozenset({names.key(names.from_text("corp.example"))}),
    ),
    "cache.maxEntries": Hot(5, inside("resolving", "cache", "_entries_max"), 5),
    "cache.maxBytes": Hot("64 KiB", inside("resolving", "cache", "_bytes_max"), 1024),
    "cache.minTTL": Hot("7s", inside("resolving", "cache", "_low_s"), 7),
    "cache.maxTTL": Hot("1h", inside("resolving", "cache", "_high_s"), 3600),
    "cache.negativeTTL": Hot("1m", inside("resolving", "cache", "_negative_s"), 60),
    "cache.prefetch": Hot(False, inside("resolving", "cache", "_prefetch"), after=False),
    "cache.serveStale.enabled": Hot(
        False, inside("resolving", "resolver", "_rules", "is_stale_served"), after=False
    ),
    "cache.serveStale.maxAge": Hot("1h", inside("resolving", "cache", "_stale_us"), 3_600_000_000),
    "cache.serveStale.answerTTL": Hot(
        "9s", inside("resolving", "resolver", "_rules", "stale_ttl_s"), 9
    ),
    "cache.serveStale.clientTimeout": Hot(
        "9ms", inside("resolving", "resolver", "_rules", "client_timeout_us"), 9_000
    ),
    "cache.persistInterval": Hot("1m", inside("cache_keeper", "_interval_s"), 60.0),
    "blocking.mode": Hot(
        "nxdomain", inside("node", "views", "policies", "_defaults", "mode"), "nxdomain"
    ),
    "blocking.ttl": Hot("9s", inside("node", "views", "policies", "_defaults", "ttl_s"), 9),
    "lists.maxBytes": Hot("1 MiB", inside("lists", "_options", "max_bytes"), 1 << 20),
    "lists.concurrency": Hot(3, inside("lists", "_room", "_value"), 3),
    "lists.allowPrivate": Hot(True, inside("lists", "_options", "allow_private"), after=True),
    "querylog.privacyLevel": Hot(
        2, inside("query_log", "process", "_settings", "privacy", "level"), 2
    ),
    "querylog.sample": Hot(100, inside("query_log", "notes", "sampler", "one_in"), 100),
    "querylog.truncate.ipv4": Hot(
        16, inside("query_log", "process", "_settings", "privacy", "ipv4_bits"), 16
    ),
    "querylog.truncate.ipv6": Hot(
        48, inside("query_log", "process", "_settings", "privacy", "ipv6_bits"), 48
    ),
    "querylog.ignore": Hot(
        ["lan"], inside("query_log", "process", "_settings", "privacy", "ignore"), ("lan",)
    ),
    "querylog.retention": Hot(
        "1h", inside("query_log", "process", "_settings", "retention", "age_s"), 3600
    ),
    "querylog.maxBytes": Hot(
        "2 MiB", inside("query_log", "process", "_settings", "retention", "bytes_max"), 2 << 20
    ),
    "audit.retention": Hot(
        "9d", lambda node: inside("old_rows", "_retention")(node)(), timedelta(days=9)
    ),
    "audit.trustedKeys": Hot(["a"], log_says, "no key"),
    "audit.checkpoint.events": Hot(9, inside("checkpointer", "policy", "events"), 9),
    "audit.checkpoint.interval": Hot("9s", inside("checkpointer", "policy", "interval_s"), 9.0),
    "audit.checkpoint.publish": Hot(["/p"], inside("checkpointer", "policy", "publish"), ("/p",)),
    "health.lameduck": Hot("1s", current("health", "lameduck"), timedelta(seconds=1)),
    "log.level": Hot("error", lambda _: logging.getLogger().level, logging.ERROR),
    "zones.coalesce": Hot("1s", inside("writer", "coalesce_s"), 1.0),
}

RESTART: dict[str, Any] = {
    "settingsFile": "/other.yaml",
    "store": "sqlite",
    "node.name": "other",
    "node.dataDir": "/other",
    "node.secretsKey": "/other.key",
    "listeners": [{"proto": "udp", "address": "127.0.0.1:0"}],
    "listeners.sockets": 2,
    "listeners.freebind": True,
    "listeners.internal": "127.0.0.1:0",
    "api.address": "127.0.0.1:1",
    "api.maxBodyBytes": "1 MiB",
    "api.tls": True,
    "api.page": False,
    "api.names": ["dns.lan"],
    "externalDNS.listen": "127.0.0.1:1",
    "externalDNS.clients": ["192.0.2.0/24"],
    "externalDNS.domains": ["example.org"],
    "externalDNS.namespace": "dns",
    "externalDNS.policy": "upsert-only",
    "externalDNS.dryRun": True,
    "externalDNS.allowMassChange": True,
    "ops.address": "127.0.0.1:1",
    "metrics.address": "127.0.0.1:1",
    "cache.persistMaxAge": "1m",
    "blocking.allowDegraded": False,
    "blocking.refreshInterval": "1h",
    "lists.startup": "blocking",
    "querylog.enabled": False,
    "querylog.sink": None,  # there is one, so it cannot be another
    "auth.tokens.maxLifetime": "1d",
    "log.format": "json",
    "kubernetes.enabled": True,
    "dns.engine": "python",
    "dns.engineZones": False,
    "dns.joinAnswers": False,
    "kubernetes.owner": "cluster",
    "kubernetes.namespaces": ["a"],
    "kubernetes.server": "https://k",
    "kubernetes.kubeconfig": "/k.yaml",
    "kubernetes.context": "c",
    "kubernetes.clusterID": "u",
    "kubernetes.startupTimeout": "1s",
    "kubernetes.dnsEndpoints": True,
    "kubernetes.allowMassChange": True,
    "kubernetes.reach": "any",
    "follow.url": "https://ns1.example:8080",
    "follow.token": "file:/follower.token",
    "follow.ca": "file:/ca.pem",
    "follow.peers": ["https://ns2.example:8080"],
    "follow.forwardWrites": False,
    "kubernetes.lease.duration": "20s",
    "kubernetes.lease.renew": "9s",
    "kubernetes.lease.retry": "1s",
    "snapshots.interval": "1h",
    "tsig.allowOld": True,
    "tsig.allowTruncated": True,
}


def test_every_key_has_an_effect_here_or_waits_for_a_restart() -> None:
    assert {path for path, key in KEYS.items() if not key.marks.restart} == HOT.keys()
    assert {path for path, key in KEYS.items() if key.marks.restart} == RESTART.keys()


@pytest.fixture
def process_settings() -> Iterator[None]:
    """What a server sets for its whole process, put back."""
    before = gc.get_threshold(), sys.getswitchinterval(), logging.getLogger().level
    yield
    gc.set_threshold(*before[0])
    sys.setswitchinterval(before[1])
    logging.getLogger().setLevel(before[2])


class Running:
    """A server in this process, whose node file can be changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "node.yaml"
        for name, path in zip(("b.pem", "b.key"), write_pair(folder), strict=True):
            path.rename(folder / name)
        cert, key = write_pair(folder)
        self.base: dict[str, Any] = {
            "node.dataDir": str(folder / "data"),
            "listeners": [
                {"proto": proto, "address": "127.0.0.1:0"} for proto in ("udp", "tcp", "tls")
            ],
            "tls.cert": str(cert),
            "tls.key": str(key),
            "health.lameduck": "1h",
            **{f"{name}.address": "127.0.0.1:0" for name in ("api", "ops", "metrics")},
        }
        self.write({})
        self.live = LiveSettings(Sources(self.file, {}), SystemClock())
        options = partial(serve_options, with_demo=False, strict=False, pid_file=None)
        self.server = Server(self.live, options)
        self.said: list[str] = []

    def write(self, values: dict[str, Any]) -> None:
        self.file.write_text(json.dumps(self.base | values))

    def change(self, values: dict[str, Any]) -> None:
        self.said.clear()
        self.write(values)
        self.live.reload()
        assert self.live.problem == ""

    async def use(self, test: Callable[["Running"], None]) -> None:
        """Run the test once the server is ready, and stop."""
        handler = logging.Handler()
        handler.emit = lambda record: self.said.append(record.getMessage())  # type: ignore[method-assign]  # a list is all it takes
        logging.getLogger("kudurru.settings").addHandler(handler)
        logging.getLogger("kudurru.settings").setLevel(logging.INFO)
        try:
            async with asyncio.timeout(240):  # below that of a test, and many times what it takes
                await self.server.run(lambda _: self._tested(test))
        finally:
            logging.getLogger("kudurru.settings").removeHandler(handler)

    def _tested(self, test: Callable[["Running"], None]) -> None:
        try:
            test(self)
        finally:
            self.change({"health.lameduck": "0s"})  # or it would not end in this hour
            self.server.stop()


@pytest.mark.usefixtures("process_settings")
def test_a_hot_key_is_in_effect_at_once_and_the_others_say_that_they_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    running = Running(tmp_path)
    asyncio.run(running.use(_change_every_key))


def _change_every_key(running: Running) -> None:
    server = running.server
    assert server._parts is not None
    assert server._front is not None
    node = Node(server._parts, server._front, running.live)
    for path, hot in HOT.items():
        if path not in hot.beside:
            running.change(hot.beside)
        assert hot.probe(node) != hot.after, path
        running.change({**hot.beside, path: hot.value})
        assert hot.probe(node) == hot.after, path
        assert [line for line in running.said if line.startswith(f"setting {path} is ")], path
        assert running.live.waiting == []
        running.change({})
        assert hot.probe(node) != hot.after, path
    before = running.live.current
    for path, value in RESTART.items():
        if value is None:
            continue
        beside = INTERNAL if path == "listeners.internal" else {}
        running.change({**beside, path: value})
        assert running.live.waiting == [path]
        line = next(line for line in running.said if line.startswith(f"setting {path} is "))
        assert line.endswith("it takes effect after a restart")
        running.change({})
        assert running.live.waiting == []
        assert running.live.current == before
