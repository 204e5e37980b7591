import pytest
from prometheus_client.parser import text_string_to_metric_families

from kudurru.adapters.metrics import (
    METRICS,
    PARTS,
    Metrics,
    Sample,
    engine_samples,
    metrics_routes,
    rcode_label,
    times_samples,
)
from kudurru.domain.histogram import Histogram
from kudurru.domain.ports import EngineStatistics


def scraped(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_every_declared_metric_registers_once_and_renders_with_its_labels() -> None:
    metrics = Metrics("1.2.3")
    for name, declared in METRICS.items():
        labels = tuple(f"{label}!" for label in declared.labels)
        if declared.kind == "histogram":
            histogram = Histogram()
            histogram.add(7_000_000)
            samples = list(times_samples(name, labels, histogram.times()))
        else:
            samples = [Sample(name + end, labels, 7) for end in PARTS.get(declared.kind, ("",))]
        metrics.add(lambda samples=samples: samples)
    seen = scraped(metrics)
    for name, declared in METRICS.items():
        labels = tuple(sorted((label, f"{label}!") for label in declared.labels))
        for end in set(PARTS.get(declared.kind, ("",))) - {"_bucket"}:
            assert seen[f"kudurru_{name}{end}", labels] == 7


CONTRACT = {
    "dns_requests_total": ("listener", "proto", "family", "qtype"),
    "dns_responses_total": ("listener", "rcode", "source"),
    "dns_request_duration_seconds": ("source",),
    "dns_dropped_total": ("reason",),
    "cache_entries": (),
    "cache_hits_total": ("type",),
    "cache_misses_total": (),
    "upstream_requests_total": ("upstream", "proto"),
    "upstream_responses_total": ("upstream", "rcode"),
    "upstream_inflight": ("upstream",),
    "blocklist_entries": ("list",),
    "blocklist_status": ("list", "status"),
    "blocked_total": ("policy", "list"),
    "ratelimit_buckets": (),
    "ratelimit_verdicts_total": ("action",),
    "zone_serial": ("zone",),
    "zone_records": ("zone", "kind"),
    "leader": ("role",),
    "role_active": ("role",),
    "log_position": (),
    "log_append_duration_seconds": (),
    "log_verify_failures_total": (),
    "log_checkpoint_published_timestamp_seconds": (),
    "projection_position": ("projection",),
    "projection_lag_events": ("projection",),
    "store_operations_total": ("op", "result"),
    "store_operation_duration_seconds": ("op",),
    "store_watchers": (),
    "store_watch_resyncs_total": ("kind",),
    "store_watch_catchups_total": ("kind",),
    "controller_reconciles_total": ("kind", "result"),
    "controller_reconcile_duration_seconds": ("kind",),
    "controller_status_writes_total": ("kind",),
    "controller_resyncs_total": ("kind",),
    "querylog_dropped_total": ("reason",),
    "config_last_reload_successful": (),
    "config_last_reload_timestamp_seconds": (),
    "build_info": ("version", "revision", "python"),
    "unhandled_exceptions_total": (),
}
"""What dashboards and alerts are written against: a name or label that goes breaks them."""


def test_the_names_and_labels_that_people_rely_on_are_there() -> None:
    assert {name: METRICS[name].labels for name in CONTRACT} == CONTRACT


def test_times_are_shown_as_classes_and_their_sum() -> None:
    histogram = Histogram()
    for us in (50, 100, 101, 3_000_000, 9_000_000):
        histogram.add(us)
    metrics = Metrics("1")
    metrics.add(
        lambda: times_samples("dns_request_duration_seconds", ("cache",), histogram.times())
    )
    seen = scraped(metrics)
    name = "kudurru_dns_request_duration_seconds"
    counts = {dict(labels)["le"]: n for (of, labels), n in seen.items() if of == f"{name}_bucket"}
    picked = [counts[le] for le in ("0.0001", "0.00025", "1", "5", "+Inf")]
    assert picked == [2, 3, 3, 4, 5]
    assert seen[f"{name}_count", (("source", "cache"),)] == 5
    assert seen[f"{name}_sum", (("source", "cache"),)] == pytest.approx(12.000251)


def test_names_end_as_their_kind_does() -> None:
    for name, declared in METRICS.items():
        assert name.endswith("_total") == (declared.kind == "counter")


def test_the_build_and_the_process_are_shown() -> None:
    seen = scraped(Metrics("1.2.3", "abc"))
    names = {name for name, _ in seen}
    assert {"kudurru_build_info", "process_cpu_seconds_total"} <= names
    (labels,) = [dict(labels) for name, labels in seen if name == "kudurru_build_info"]
    assert (labels["version"], labels["revision"]) == ("1.2.3", "abc")


def test_samples_of_several_parts_are_added_up_at_each_scrape() -> None:
    metrics = Metrics("1")
    counted = {"a": 1, "b": 10}
    for part in counted:
        metrics.add(lambda part=part: [Sample("dns_dropped_total", ("malformed",), counted[part])])
    key = ("kudurru_dns_dropped_total", (("reason", "malformed"),))
    assert scraped(metrics)[key] == 11
    counted["a"] = 5
    assert scraped(metrics)[key] == 15


def test_names_from_outside_are_escaped() -> None:
    metrics = Metrics("1")
    zone = 'evil"} 1\nkudurru_fake 2 \\'
    metrics.add(lambda: [Sample("zone_serial", (zone,), 3)])
    seen = scraped(metrics)
    assert seen["kudurru_zone_serial", (("zone", zone),)] == 3
    assert not any(name == "kudurru_fake" for name, _ in seen)


def test_an_engine_is_shown_by_protocol_rcode_and_reason() -> None:
    hits = {(1, 0): 4, (28, 0): 1, (0, 3): 2}
    answers = {(1, 3): 5, (16, 0): 1}
    udp = EngineStatistics(
        received=26, memo_hits=hits, zone_answers=answers, dropped_malformed=3, dropped_full=1
    )
    tcp = EngineStatistics(received=4, connections=2, connections_accepted=9)
    metrics = Metrics("1")
    metrics.add(lambda: engine_samples("udp", "192.0.2.1:53", udp, {"A": 6}))
    metrics.add(lambda: engine_samples("tcp", "[2001:db8::1]:53", tcp))
    seen = {
        (name.removeprefix("kudurru_dns_"), *(value for _, value in labels)): number
        for (name, labels), number in scraped(metrics).items()
    }
    # Labels in alphabetical order: family, listener, proto, qtype; listener, rcode, source.
    requests = {key[-1]: n for key, n in seen.items() if key[:2] == ("requests_total", "ipv4")}
    assert requests == {"A": 15, "AAAA": 1, "TXT": 1, "other": 2, "none": 7}
    assert seen["requests_total", "ipv6", "[2001:db8::1]:53", "tcp", "none"] == 4
    assert seen["responses_total", "192.0.2.1:53", "NOERROR", "memo"] == 5
    assert seen["responses_total", "192.0.2.1:53", "NXDOMAIN", "memo"] == 2
    assert seen["responses_total", "192.0.2.1:53", "NOERROR", "authoritative"] == 1
    assert seen["responses_total", "192.0.2.1:53", "NXDOMAIN", "authoritative"] == 5
    assert seen["responses_total", "192.0.2.1:53", "none", "server"] == 3
    assert seen["dropped_total", "malformed"] == 3
    assert seen["dropped_total", "full"] == 1
    assert seen["memo_hits_total", "udp"] == 7
    assert seen["connections", "tcp"] == 2
    assert ("connections", "udp") not in seen


def test_an_rcode_without_a_name_keeps_its_number() -> None:
    assert [rcode_label(rcode) for rcode in (0, 5, 10, 11, 15)] == [
        "NOERROR", "REFUSED", "NOTZONE", "RCODE11", "RCODE15",
    ]  # fmt: skip


def test_the_route_renders_what_is_counted_now() -> None:
    metrics = Metrics("1")
    position = [3]
    metrics.add(lambda: [Sample("log_position", (), position[0])])
    route = metrics_routes(metrics)["/metrics"]
    assert b"\nkudurru_log_position 3.0\n" in route().body
    position[0] = 4
    response = route()
    assert b"\nkudurru_log_position 4.0\n" in response.body
    assert response.content_type == "text/plain; version=0.0.4; charset=utf-8"
