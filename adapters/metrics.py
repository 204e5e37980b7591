"""Metrics in Prometheus' text form, rendered from what the parts have counted.

Parts count for themselves and show it as `statistics()`. The wiring turns those into samples with
callables that are asked at each scrape; METRICS declares every name once, with its labels.
Samples of one name and one set of labels from several parts are added up.
"""

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from kudurru.adapters.http_ops import Response, Route
from kudurru.domain.dns.record_types import type_label
from kudurru.domain.histogram import BOUNDS_US, Times
from kudurru.domain.ports import EngineStatistics

PREFIX: Final = "kudurru_"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Declared(msgspec.Struct, frozen=True):
    kind: Literal["counter", "gauge", "histogram", "summary"]
    help: str
    labels: tuple[str, ...] = ()


METRICS: Final = {
    "build_info": Declared("gauge", "1, with what runs", ("version", "revision", "python")),
    "dns_requests_total": Declared(
        "counter", "Queries received", ("listener", "proto", "family", "qtype")
    ),
    "dns_responses_total": Declared(
        "counter", 'Answers, rcode "none" for drops', ("listener", "rcode", "source")
    ),
    "dns_request_duration_seconds": Declared(
        "histogram", "Time that answers took, but for those of the engine", ("source",)
    ),
    "dns_dropped_total": Declared("counter", "Queries left without an answer", ("reason",)),
    "dns_unread_total": Declared(
        "counter", "Datagrams that the system dropped before they were read", ("proto",)
    ),
    "dns_memo_hits_total": Declared("counter", "Answers given from the memo", ("proto",)),
    "dns_engine_zones": Declared("gauge", "Zones that the native engine knows, or not", ("state",)),
    "dns_engine_names": Declared("gauge", "Names of those that it knows"),
    "dns_engine_bytes": Declared("gauge", "Memory that they take"),
    "dns_engine_faults_total": Declared(
        "counter", "Times that the native engine left all zones to Python because of a fault"
    ),
    "dns_send_errors_total": Declared("counter", "Answers the system refused to send", ("proto",)),
    "dns_connections": Declared("gauge", "Open connections", ("proto",)),
    "dns_connections_refused_total": Declared("counter", "Connections over a limit", ("proto",)),
    "dns_connections_timed_out_total": Declared("counter", "Connections cut late", ("proto",)),
    "ratelimit_verdicts_total": Declared("counter", "Queries over the limit", ("action",)),
    "ratelimit_buckets": Declared("gauge", "Networks that the limiter remembers"),
    "listener_answers": Declared("gauge", "0 when it does not answer this node", ("listener",)),
    "dns_handshakes_failed_total": Declared("counter", "TLS handshakes that failed", ("proto",)),
    "log_position": Declared("gauge", "Position of the newest event"),
    "log_append_duration_seconds": Declared("histogram", "Time until changes were durable"),
    "log_verify_failures_total": Declared("counter", "Times that the log did not verify"),
    "log_checkpoint_size": Declared("gauge", "Events under the newest signed checkpoint"),
    "log_checkpoint_published_timestamp_seconds": Declared(
        "gauge", "When a file, folder or zone last got a checkpoint"
    ),
    "api_requests_total": Declared("counter", "Requests to the API that were answered", ("code",)),
    "external_dns_requests_total": Declared(
        "counter", "Requests of external-dns that were answered", ("path", "code")
    ),
    "dnsendpoints": Declared(
        "gauge", "DNSEndpoint objects, by what the node that leads made of them", ("state",)
    ),
    "internal_requests_total": Declared(
        "counter", "Requests of other nodes that were answered", ("route", "code")
    ),
    "api_denied_total": Declared("counter", "Requests with a token or right that does not do"),
    "changes_total": Declared("counter", "Changes asked for, refused ones included"),
    "change_groups_total": Declared("counter", "Groups of changes that were one transaction"),
    "changes_refused_total": Declared("counter", "Changes refused because the queue was full"),
    "changes_failed_total": Declared("counter", "Changes that the storage refused"),
    "catch_ups_failed_total": Declared(
        "counter", "Times that the log which nodes share could not be read"
    ),
    "follower_connected": Declared("gauge", "1 while the leader's log is copied"),
    "follower_lag_events": Declared("gauge", "Events that the leader had and this node has not"),
    "follower_silence_seconds": Declared("gauge", "Time since the leader was heard last"),
    "follower_events_total": Declared("counter", "Events copied and verified"),
    "follower_sessions_total": Declared("counter", "Times that copying began"),
    "follower_refused_total": Declared("counter", "Times that the leader's log was refused"),
    "follower_forwarded_total": Declared(
        "counter", "Requests that the leader answered for this node", ("code",)
    ),
    "follower_forwards_refused_total": Declared(
        "counter", "Requests not passed on to the leader because too many were under way"
    ),
    "followers": Declared("gauge", "Nodes that are sent the log"),
    "log_writable": Declared("gauge", "0 when nothing is written until a person acts"),
    "projection_position": Declared(
        "gauge", "Position of the newest event in a view", ("projection",)
    ),
    "projection_lag_events": Declared("gauge", "Events a view has not taken in", ("projection",)),
    "views_snapshot_sequence": Declared("gauge", "Position of the newest snapshot of the views"),
    "zone_records": Declared("gauge", "Records and names served", ("zone", "kind")),
    "zone_serial": Declared("gauge", "Serial of the stamped version", ("zone",)),
    "blocklist_entries": Declared("gauge", "Rules of a list", ("list",)),
    "blocklist_status": Declared("gauge", "Sources of a list by phase", ("list", "status")),
    "blocklist_fetches_total": Declared("counter", "Attempts to fetch a source", ("result",)),
    "blocklist_builds_total": Declared("counter", "Tables of lists built", ("result",)),
    "blocklist_table_bytes": Declared("gauge", "Memory that look-ups in lists touch"),
    "tsig_queries_total": Declared("counter", "Signed queries, by TSIG error", ("error",)),
    "transfers_out_total": Declared("counter", "Transfer queries answered", ("result",)),
    "transfers_out_active": Declared("gauge", "Transfers being sent"),
    "transfers_out_octets_total": Declared("counter", "Octets of transfers sent"),
    "notifies_out_total": Declared("counter", "NOTIFY messages to secondaries", ("result",)),
    "notifies_out_pending": Declared("gauge", "Secondaries that have not answered a NOTIFY yet"),
    "secondary_refreshes_total": Declared("counter", "Refreshes of secondary zones"),
    "secondary_zones_expired": Declared("gauge", "Secondary zones that no primary confirms"),
    "transfers_in_total": Declared("counter", "Transfers received", ("kind",)),
    "transfers_in_failed_total": Declared("counter", "Primaries that would not do", ("reason",)),
    "notifies_in_total": Declared("counter", "NOTIFY messages received", ("result",)),
    "dns_updates_total": Declared("counter", "Dynamic updates answered", ("rcode",)),
    "tls_certificate_expiry_timestamp_seconds": Declared("gauge", "When the one served expires"),
    "tls_certificate_reloads_total": Declared("counter", "Changed files looked at", ("result",)),
    "cache_entries": Declared("gauge", "Answers of upstreams that are kept"),
    "cache_bytes": Declared("gauge", "Memory of the cache"),
    "cache_hits_total": Declared("counter", "Questions answered from the cache", ("type",)),
    "cache_misses_total": Declared("counter", "Questions that were not"),
    "cache_served_stale_total": Declared("counter", "Answers given after they expired"),
    "cache_prefetch_total": Declared("counter", "Answers fetched again before they expired"),
    "cache_evictions_total": Declared("counter", "Answers dropped to make room"),
    "resolver_waiting": Declared("gauge", "Clients that wait for upstreams"),
    "resolver_refused_full_total": Declared("counter", "Questions refused because many wait"),
    "resolver_rebind_blocked_total": Declared(
        "counter", "Answers of upstreams that led to private addresses"
    ),
    "upstream_requests_total": Declared("counter", "Queries sent", ("upstream", "proto")),
    "upstream_responses_total": Declared("counter", "Answers taken", ("upstream", "rcode")),
    "upstream_failures_total": Declared("counter", "Queries without", ("upstream", "reason")),
    "upstream_mismatched_total": Declared(
        "counter", "Responses that answered nothing we asked", ("upstream",)
    ),
    "upstream_cookies": Declared("gauge", "1 where answers have to show a cookie", ("upstream",)),
    "upstream_inflight": Declared("gauge", "Questions under way", ("upstream",)),
    "upstream_latency_seconds_total": Declared(
        "counter", "Time that answers took, to be divided by their number", ("upstream",)
    ),
    "upstream_healthy": Declared("gauge", "0 while it is not answering", ("upstream",)),
    "blocked_total": Declared("counter", "Questions blocked", ("policy", "list")),
    "rewritten_total": Declared("counter", "Questions answered by rewrites"),
    "querylog_dropped_total": Declared(
        "counter", "Queries that were to be logged and were not", ("reason",)
    ),
    "querylog_written_total": Declared("counter", "Queries logged"),
    "querylog_waiting": Declared("gauge", "Queries noted and not handed over yet"),
    "querylog_restarts_total": Declared("counter", "Times that its process ended by itself"),
    "config_last_reload_successful": Declared("gauge", "0 while changed settings are not used"),
    "config_last_reload_timestamp_seconds": Declared("gauge", "When settings were taken last"),
    "config_restart_pending": Declared("gauge", "Changed settings that wait for a restart"),
    "leader": Declared("gauge", "1 on the node that does what one of them does", ("role",)),
    "role_active": Declared("gauge", "1 while a part of the server runs here", ("role",)),
    "role_restarts_total": Declared("counter", "Times that a part began again", ("role",)),
    "unhandled_exceptions_total": Declared("counter", "Faults of this program"),
    "controller_reconciles_total": Declared("counter", "Objects looked at", ("kind", "result")),
    "controller_reconcile_duration_seconds": Declared("summary", "Time that it took", ("kind",)),
    "controller_status_writes_total": Declared("counter", "Statuses written", ("kind",)),
    "controller_resyncs_total": Declared("counter", "Times that all were looked at", ("kind",)),
    "controller_waiting": Declared("gauge", "Objects to be looked at", ("kind",)),
    "store_operations_total": Declared("counter", "Calls of the store", ("op", "result")),
    "store_operation_duration_seconds": Declared("summary", "Time that they took", ("op",)),
    "store_snapshot_serving": Declared(
        "gauge", "1 while answers come from the log and the cluster was not read yet"
    ),
    "store_snapshot_age_seconds": Declared("gauge", "How old that is"),
    "informer_reopened_total": Declared("counter", "Watches of the cluster opened anew", ("kind",)),
    "events_dropped_total": Declared(
        "counter", "Events for people that were not written", ("reason",)
    ),
    "cluster_requests_total": Declared("counter", "Requests sent to the API server"),
    "cluster_synced": Declared("gauge", "1 while every watch of the cluster is open"),
    "cluster_deletions_held": Declared(
        "gauge", "Objects that the cluster has not, and that are served all the same"
    ),
    "cluster_objects_unreadable": Declared(
        "gauge", "Objects of the cluster that are kept out because they cannot be read"
    ),
    "cluster_objects_refused": Declared(
        "gauge", "Objects of the cluster that are kept out because of what they ask for"
    ),
    "store_watchers": Declared("gauge", "Open watches"),
    "store_watch_resyncs_total": Declared(
        "counter", "Watches that began with all that is there", ("kind",)
    ),
    "store_watch_catchups_total": Declared(
        "counter", "Times that a slow watch was caught up from the log", ("kind",)
    ),
}

SERVER: Final = "server"
"""Source of answers that no stage gave."""

RCODES: Final = (
    *("NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED"),
    *("YXDOMAIN", "YXRRSET", "NXRRSET", "NOTAUTH", "NOTZONE"),
)
"""Label of an RCODE by number (RFC 6895 section 2.3); others are shown as RCODEn."""


PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "histogram": ("_bucket", "_sum"),
    "summary": ("_sum", "_count"),
}
"""Ends of the names of samples, for kinds that are made of several."""

_SAMPLED: Final = [
    name + end for name, declared in METRICS.items() for end in PARTS.get(declared.kind, ("",))
]


class Sample(NamedTuple):
    name: str  # of METRICS; with an end of PARTS behind it, and the label le after _bucket
    labels: tuple[str, ...]  # values, in the order declared there
    value: float


Source = Callable[[], Iterable[Sample]]


class Metrics(Collector):
    """All metrics of one process, on a registry of its own."""

    def __init__(self, version: str, revision: str = "") -> None:
        self._sources: list[Source] = [
            lambda: [Sample("build_info", (version, revision, platform.python_version()), 1)]
        ]
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)  # process_*, the names every dashboard knows

    def add(self, source: Source) -> None:
        """Ask `source` at each scrape, on the thread that renders."""
        self._sources.append(source)

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def describe(self) -> Iterator[Metric]:
        """Names only: the registry looks for collisions without asking the sources."""
        return (_family(name, declared) for name, declared in METRICS.items())

    def collect(self) -> Iterator[Metric]:
        values: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in _SAMPLED}
        for source in self._sources:
            for name, labels, value in source():
                of_name = values[name]
                of_name[labels] = of_name.get(labels, 0) + value
        for name, declared in METRICS.items():
            family = _family(name, declared)
            if isinstance(family, HistogramMetricFamily):
                for labels, seconds in values[f"{name}_sum"].items():
                    family.add_metric(labels, _buckets(labels, values[f"{name}_bucket"]), seconds)
            elif isinstance(family, SummaryMetricFamily):
                for labels, seconds in values[f"{name}_sum"].items():
                    count = values[f"{name}_count"].get(labels, 0)
                    family.add_metric(labels, count_value=int(count), sum_value=seconds)
            else:
                for labels, value in values[name].items():
                    family.add_metric(labels, value)
            if family.samples:
                yield family


def metrics_routes(metrics: Metrics) -> dict[str, Route]:
    return {"/metrics": lambda: Response(200, metrics.render(), CONTENT_TYPE)}


def times_samples(name: str, labels: tuple[str, ...], seen: Times) -> Iterator[Sample]:
    """Samples of a histogram."""
    total = 0
    for bound_us, count in zip((*BOUNDS_US, None), seen.counts, strict=True):
        total += count
        le = "+Inf" if bound_us is None else f"{bound_us / 1_000_000:g}"
        yield Sample(f"{name}_bucket", (*labels, le), total)
    yield Sample(f"{name}_sum", labels, seen.sum_us / 1_000_000)


def _buckets(
    labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]
) -> list[tuple[str, float]]:
    """Those of one set of labels, as they were told: by rising bound."""
    return [(found[-1], count) for found, count in values.items() if found[:-1] == labels]


def rcode_label(rcode: int) -> str:
    return RCODES[rcode] if rcode < len(RCODES) else f"RCODE{rcode}"


_TALLIES = {
    "blocked": "blocked_total",
    "cache": "cache_hits_total",
    "rewritten": "rewritten_total",
}
"""What repeats are counted as, which are the pipeline's and the cache's to count else."""


def engine_samples(
    proto: str,
    listener: str,
    seen: EngineStatistics,
    asked: Mapping[str, int] = MappingProxyType({}),
) -> list[Sample]:
    """What a packet engine shows. The handler counts its own answers by RCODE and its own drops by
    reason; answers of the engine and drops before the handler are counted here only. `asked` are
    the questions by type that the handler had of this listener: what is left had none that could be
    read, or none that was looked at."""
    family = "ipv6" if listener.startswith("[") else "ipv4"
    types = Counter(asked)
    for answers in (seen.memo_hits, seen.zone_answers):
        for (rtype, _), hits in answers.items():
            types[type_label(rtype)] += hits
    types["none"] = max(0, seen.received - types.total())
    malformed, full = seen.dropped_malformed, seen.dropped_full + seen.dropped_busy
    unheard = malformed + seen.dropped_proxyproto + seen.dropped_busy + seen.memo_unsent
    samples = [
        Sample("dns_unread_total", (proto,), seen.dropped_unread),
        Sample("dns_memo_hits_total", (proto,), sum(seen.memo_hits.values())),
        Sample("dns_dropped_total", ("malformed",), malformed),
        Sample("dns_dropped_total", ("full",), full),
        Sample("dns_dropped_total", ("proxyproto",), seen.dropped_proxyproto),
        Sample(
            "dns_responses_total", (listener, "none", SERVER), unheard + seen.unhandled_exceptions
        ),
        Sample("dns_send_errors_total", (proto,), seen.send_errors),
        Sample("unhandled_exceptions_total", (), seen.unhandled_exceptions + seen.faults),
    ]
    samples += [
        Sample("dns_requests_total", (listener, proto, family, qtype), count)
        for qtype, count in types.items()
    ]
    samples += [
        Sample("dns_responses_total", (listener, rcode_label(rcode), source), hits)
        for source, answers in (("memo", seen.memo_hits), ("authoritative", seen.zone_answers))
        for (_, rcode), hits in answers.items()
    ]
    for (kind, *labels), hits in seen.memo_tallies.items():
        samples.append(Sample(_TALLIES[kind], tuple(labels), hits))
    return samples + _connection_samples(proto, seen)


def _connection_samples(proto: str, seen: EngineStatistics) -> list[Sample]:
    if not seen.connections_accepted and not seen.connections_refused:
        return []
    return [
        Sample("dns_connections", (proto,), seen.connections),
        Sample("dns_connections_refused_total", (proto,), seen.connections_refused),
        Sample("dns_connections_timed_out_total", (proto,), seen.connections_timed_out),
        Sample("dns_handshakes_failed_total", (proto,), seen.handshakes_failed),
    ]


Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily | SummaryMetricFamily
_FAMILIES: Final[Mapping[str, type[Family]]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
    "summary": SummaryMetricFamily,
}


def _family(name: str, declared: Declared) -> Family:
    return _FAMILIES[declared.kind](PREFIX + name, declared.help, labels=declared.labels)
