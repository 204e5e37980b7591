"""The Grafana dashboard, the alert rules and the page of metrics, made from the names that
`kudurru.adapters.metrics` declares. `just schemas` writes them into the tree."""

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import yaml

from kudurru.adapters.metrics import METRICS, PARTS, PREFIX

_SELECTED = '{instance=~"$instance"}'
_OVER = "[$__rate_interval]"
_WIDTH = 8  # of 24


class Panel(msgspec.Struct, frozen=True):
    title: str
    unit: str  # of Grafana's
    queries: dict[str, str]
    """PromQL by legend; M(...) is a metric of the chosen nodes, R(...) its rate."""


def _quantiles(histogram: str) -> dict[str, str]:
    return {
        f"{part:g}": f"histogram_quantile({part:g}, sum by (le) (R({histogram}_bucket)))"
        for part in (0.5, 0.9, 0.99)
    }


_CACHE_SHARE: Final = (
    "sum by (instance) (R(cache_hits_total)) / "
    "(sum by (instance) (R(cache_hits_total)) + sum by (instance) (R(cache_misses_total)))"
)
_UPSTREAM_TIME: Final = (
    "sum by (upstream) (R(upstream_latency_seconds_total)) / "
    "sum by (upstream) (R(upstream_responses_total))"
)

_ROWS: Final = {
    "At a glance": (
        Panel("Queries", "reqps", {"{{instance}}": "sum by (instance) (R(dns_requests_total))"}),
        Panel("Answers by code", "reqps", {"{{rcode}}": "sum by (rcode) (R(dns_responses_total))"}),
        Panel(
            "Answers by where they came from",
            "reqps",
            {"{{source}}": "sum by (source) (R(dns_responses_total))"},
        ),
        Panel("Time of answers", "s", _quantiles("dns_request_duration_seconds")),
        Panel("Unanswered", "reqps", {"{{reason}}": "sum by (reason) (R(dns_dropped_total))"}),
        Panel(
            "Listeners that answer", "short", {"{{instance}} {{listener}}": "M(listener_answers)"}
        ),
    ),
    "Resolver": (
        Panel("Share answered from the cache", "percentunit", {"{{instance}}": _CACHE_SHARE}),
        Panel(
            "Upstreams: queries",
            "reqps",
            {"{{upstream}}": "sum by (upstream) (R(upstream_requests_total))"},
        ),
        Panel("Upstreams: mean time", "s", {"{{upstream}}": _UPSTREAM_TIME}),
        Panel("Upstreams: answering", "short", {"{{upstream}}": "M(upstream_healthy)"}),
        Panel(
            "Upstreams: failures",
            "reqps",
            {"{{upstream}} {{reason}}": "sum by (upstream, reason) (R(upstream_failures_total))"},
        ),
        Panel("Cache", "bytes", {"{{instance}}": "M(cache_bytes)"}),
    ),
    "Filter": (
        Panel(
            "Blocked",
            "reqps",
            {"{{policy}} {{list}}": "sum by (policy, list) (R(blocked_total))"},
        ),
        Panel("Rules", "short", {"{{list}}": "max by (list) (M(blocklist_entries))"}),
        Panel(
            "Sources by phase",
            "short",
            {"{{list}} {{status}}": "max by (list, status) (M(blocklist_status))"},
        ),
    ),
    "Zones": (
        Panel("Records", "short", {"{{zone}} {{kind}}": "max by (zone, kind) (M(zone_records))"}),
        Panel("Serials", "none", {"{{zone}} {{instance}}": "M(zone_serial)"}),
        Panel(
            "Transfers",
            "reqps",
            {
                "out {{result}}": "sum by (result) (R(transfers_out_total))",
                "in {{kind}}": "sum by (kind) (R(transfers_in_total))",
                "failed {{reason}}": "sum by (reason) (R(transfers_in_failed_total))",
            },
        ),
    ),
    "The log": (
        Panel(
            "Changes",
            "wps",
            {
                "asked for": "sum(R(changes_total))",
                "refused, full": "sum(R(changes_refused_total))",
                "refused, storage": "sum(R(changes_failed_total))",
            },
        ),
        Panel("Time until a change is durable", "s", _quantiles("log_append_duration_seconds")),
        Panel(
            "Not yet under a signed checkpoint",
            "short",
            {"{{instance}}": "M(log_position) - M(log_checkpoint_size)"},
        ),
        Panel(
            "Events that a view has not taken in",
            "short",
            {"{{instance}} {{projection}}": "M(projection_lag_events)"},
        ),
        Panel("Leads", "short", {"{{instance}}": "M(leader)"}),
        Panel(
            "Requests to the API", "reqps", {"{{code}}": "sum by (code) (R(api_requests_total))"}
        ),
    ),
    "The process": (
        Panel(
            "CPU",
            "percentunit",
            {"{{instance}}": f"rate(process_cpu_seconds_total{_SELECTED}{_OVER})"},
        ),
        Panel("Memory", "bytes", {"{{instance}}": f"process_resident_memory_bytes{_SELECTED}"}),
        Panel("Faults", "short", {"{{instance}}": "M(unhandled_exceptions_total)"}),
    ),
}


class Alert(msgspec.Struct, frozen=True):
    name: str
    expr: str  # names without the prefix: N(...) stands for a metric
    for_: str
    severity: str  # critical: people get no answers or lose changes; warning: by day
    summary: str
    action: str


_SHARE_FAILED = (
    'sum by (instance) (rate(N(dns_responses_total){rcode="SERVFAIL"}[5m])) / '
    "sum by (instance) (rate(N(dns_responses_total)[5m])) > 0.05"
)

ALERTS: Final = (
    Alert(
        "KudurruListenerSilent",
        "N(listener_answers) == 0",
        "1m",
        "critical",
        "{{ $labels.instance }} does not answer its own question on {{ $labels.listener }}",
        "Read `kudurru doctor` on that node; restart it when the listener does not come back.",
    ),
    Alert(
        "KudurruLogNotWritable",
        "N(log_writable) == 0",
        "1m",
        "critical",
        "{{ $labels.instance }} writes nothing until a person acts; it answers on",
        "Its log says why, with what to do. See docs/operate.md, trouble.",
    ),
    Alert(
        "KudurruLogDoesNotVerify",
        "N(log_verify_failures_total) > 0",
        "0m",
        "critical",
        "The log of {{ $labels.instance }} does not verify",
        "Keep the data directory as it is and run `kudurru audit verify`: it names the position.",
    ),
    Alert(
        "KudurruNoUpstream",
        "max by (instance) (N(upstream_healthy)) == 0",
        "1m",
        "critical",
        "No upstream of {{ $labels.instance }} answers",
        "Look at the network and at `kudurru doctor`; expired answers are served meanwhile.",
    ),
    Alert(
        "KudurruNoLeader",
        "sum by (job, role) (N(leader)) == 0",
        "2m",
        "critical",
        "No node of {{ $labels.job }} leads: no serials, statuses, refreshes of lists or NOTIFY",
        "Look at the database or the Lease that the nodes share.",
    ),
    Alert(
        "KudurruManyFailures",
        _SHARE_FAILED,
        "10m",
        "warning",
        "More than 5 % of the answers of {{ $labels.instance }} are SERVFAIL",
        "`kudurru queries --rcode SERVFAIL` shows names; `kudurru explain NAME` shows why.",
    ),
    Alert(
        "KudurruQueriesDropped",
        'rate(N(dns_dropped_total){reason="full"}[5m]) > 1',
        "5m",
        "warning",
        "{{ $labels.instance }} drops queries because too many wait",
        "Look at CPU, at upstreams, and for a flood: `kudurru top`.",
    ),
    Alert(
        "KudurruUpstreamSilent",
        "N(upstream_healthy) == 0",
        "10m",
        "warning",
        "{{ $labels.upstream }} does not answer {{ $labels.instance }}",
        "Others are asked instead. Take it out when it is gone for good.",
    ),
    Alert(
        "KudurruViewBehind",
        "N(projection_lag_events) > 1000",
        "5m",
        "warning",
        "{{ $labels.projection }} of {{ $labels.instance }} is behind its log",
        "Look at CPU and at the log of that node.",
    ),
    Alert(
        "KudurruCheckpointMissing",
        "N(log_checkpoint_size) < N(log_position) offset 15m",
        "1m",
        "warning",
        "Changes on {{ $labels.instance }} are not under a signed checkpoint",
        "Its key may be lost or unreadable: `kudurru audit key`.",
    ),
    Alert(
        "KudurruCheckpointNotPublished",
        "time() - (N(log_checkpoint_published_timestamp_seconds) > 0) > 86400",
        "1h",
        "warning",
        "{{ $labels.instance }} has not published a checkpoint for a day",
        "Look at `audit.checkpoint.publish`: the file, folder or zone cannot be written.",
    ),
    Alert(
        "KudurruBlockListFails",
        'max by (job, list) (N(blocklist_status){status="Failed"}) > 0',
        "1h",
        "warning",
        "A source of the list {{ $labels.list }} cannot be had; what was had before is used",
        "`kudurru describe blocklist` names the source and the fault.",
    ),
    Alert(
        "KudurruSecondaryExpired",
        "N(secondary_zones_expired) > 0",
        "5m",
        "critical",
        "A secondary zone of {{ $labels.instance }} expired and is no longer served",
        "No primary confirms it: `kudurru get zones`, then look at the primaries.",
    ),
    Alert(
        "KudurruSerialsDiffer",
        "max by (job, zone) (N(zone_serial)) != min by (job, zone) (N(zone_serial))",
        "5m",
        "warning",
        "Nodes of {{ $labels.job }} serve different versions of {{ $labels.zone }}",
        "One node does not follow: see KudurruViewBehind and `kudurru doctor`.",
    ),
    Alert(
        "KudurruCertificateExpires",
        "N(tls_certificate_expiry_timestamp_seconds) - time() < 7 * 86400",
        "1h",
        "warning",
        "The certificate of {{ $labels.instance }} expires within a week",
        "Renew it in place: changed files are taken without a restart.",
    ),
    Alert(
        "KudurruSettingsRefused",
        "N(config_last_reload_successful) == 0",
        "5m",
        "warning",
        "{{ $labels.instance }} refused changed settings and goes on with the last good ones",
        "`kudurru config check` names every fault.",
    ),
    Alert(
        "KudurruChangesRefused",
        "increase(N(changes_refused_total)[5m]) + increase(N(changes_failed_total)[5m]) > 0",
        "5m",
        "warning",
        "{{ $labels.instance }} refuses changes: too many wait, or the storage fails",
        "Look at the disk, and at who writes: `kudurru audit tail`.",
    ),
    Alert(
        "KudurruFaults",
        "increase(N(unhandled_exceptions_total)[15m]) > 0 "
        "or increase(N(role_restarts_total)[15m]) > 3",
        "0m",
        "warning",
        "A fault of the program on {{ $labels.instance }}",
        "Its log has the place; please report it.",
    ),
    Alert(
        "KudurruQueryLogIncomplete",
        "rate(N(querylog_dropped_total)[10m]) > 0",
        "10m",
        "warning",
        "Queries of {{ $labels.instance }} are not in its query log ({{ $labels.reason }})",
        "`disk`: free space. `full`: log fewer, see `querylog.*`.",
    ),
    Alert(
        "KudurruDeletionsHeld",
        "N(cluster_deletions_held) > 0",
        "10m",
        "warning",
        "{{ $labels.instance }} serves {{ $value }} objects that its cluster has not",
        "`kudurru doctor` says why, and what to set when they are to go.",
    ),
    Alert(
        "KudurruObjectsUnreadable",
        "N(cluster_objects_unreadable) > 0",
        "10m",
        "warning",
        "{{ $labels.instance }} cannot read {{ $value }} objects of its cluster",
        "`kudurru doctor` names them; what they were before is served.",
    ),
    Alert(
        "KudurruFollowerBehind",
        "N(follower_silence_seconds) > 60 or N(follower_lag_events) > 10000",
        "5m",
        "warning",
        "{{ $labels.instance }} does not hear from its leader, or is far behind",
        "`kudurru doctor` on it says why; docs/ha.md has what to do when the leader is gone.",
    ),
)  # fmt: skip


def dashboard() -> str:
    """A dashboard in Grafana's JSON (schema 39), for any Prometheus data source."""
    instance = {
        "name": "instance",
        "label": "Node",
        "type": "query",
        "query": f"label_values({PREFIX}build_info, instance)",
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "datasource": _source(),
    }
    return _json(
        {
            "uid": "kudurru",
            "title": "kudurru",
            "tags": ["dns", "kudurru"],
            "schemaVersion": 39,
            "editable": True,
            "refresh": "30s",
            "time": {"from": "now-6h", "to": "now"},
            "templating": {
                "list": [
                    {
                        "name": "source",
                        "label": "Prometheus",
                        "type": "datasource",
                        "query": "prometheus",
                    },
                    instance,
                ]
            },
            "panels": list(_panels()),
        }
    )


def _panels() -> Iterator[dict[str, Any]]:
    number = y = 0
    for title, panels in _ROWS.items():
        number += 1
        place = {"h": 1, "w": 24, "x": 0, "y": y}
        yield {"id": number, "type": "row", "title": title, "gridPos": place, "panels": []}
        y, x = y + 1, 0
        for panel in panels:
            number += 1
            yield {
                "id": number,
                "type": "timeseries",
                "title": panel.title,
                "datasource": _source(),
                "gridPos": {"h": 8, "w": _WIDTH, "x": x, "y": y},
                "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
                "targets": [
                    {"refId": chr(ord("A") + i), "legendFormat": legend, "expr": _chosen(expr)}
                    for i, (legend, expr) in enumerate(panel.queries.items())
                ],
            }
            x += _WIDTH
            if x >= 24:
                x, y = 0, y + 8
        y += 8 if x else 0


def _source() -> dict[str, str]:
    return {"type": "prometheus", "uid": "${source}"}


def alert_rules() -> str:
    """A rule file of Prometheus; `groups` is also the spec of a PrometheusRule."""
    rules = [
        {
            "alert": alert.name,
            "expr": _named(alert.expr),
            "for": alert.for_,
            "labels": {"severity": alert.severity},
            "annotations": {"summary": alert.summary, "description": alert.action},
        }
        for alert in ALERTS
    ]
    return "# Generated from the code (`just schemas`).\n" + yaml.safe_dump(
        {"groups": [{"name": "kudurru", "rules": rules}]}, sort_keys=False, width=100
    )


def expressions() -> Iterator[str]:
    """Every PromQL expression of the dashboard and of the rules."""
    for title in _ROWS:
        yield from expressions_of(title)
    yield from (_named(alert.expr) for alert in ALERTS)


def expressions_of(row: str) -> Iterator[str]:
    """Those of one row of the dashboard. Raises KeyError."""
    yield from (_chosen(expr) for panel in _ROWS[row] for expr in panel.queries.values())


def metrics_reference() -> str:
    rows = [
        f"| `{PREFIX}{name}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels)} | "
        f"{one.help} |"
        for name, one in METRICS.items()
    ]
    return "\n".join([_METRICS_HEAD, *rows, ""])


_METRICS_HEAD = """# Metrics

Generated from the code (`just schemas`). Served at `/metrics` of the metrics listener
(127.0.0.1:9153), with `process_*` beside them. Histograms have `_bucket`, `_sum` and `_count`,
summaries `_sum` and `_count`. A metric without samples is not shown. What clients ask for is in no
label. `deploy/grafana/kudurru.json` is a dashboard and `deploy/alerts/kudurru.yaml` are alert rules
of these names.

| name | kind | labels | |
|---|---|---|---|"""


def _named(expr: str) -> str:
    return _replaced(expr, "N", lambda name: name)


def _chosen(expr: str) -> str:
    expr = _replaced(expr, "M", lambda name: name + _SELECTED)
    return _replaced(expr, "R", lambda name: f"rate({name}{_SELECTED}{_OVER})")


def _replaced(expr: str, mark: str, form: Callable[[str], str]) -> str:
    return re.sub(rf"\b{mark}\((\w+)\)", lambda found: form(PREFIX + _declared(found[1])), expr)


def _declared(name: str) -> str:
    """The name, when a metric has it. Raises KeyError."""
    if name in METRICS:
        return name
    whole, _, end = name.rpartition("_")
    if f"_{end}" in PARTS[METRICS[whole].kind]:
        return name
    raise KeyError(name)


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode() + "\n"
