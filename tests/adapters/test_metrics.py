from prometheus_client.parser import text_string_to_metric_families

from kudurru.adapters.metrics import (
    METRICS,
    Metrics,
    Sample,
    engine_samples,
    metrics_routes,
    rcode_label,
)
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
        ends = ("_sum", "_count") if declared.kind == "summary" else ("",)
        samples = [Sample(name + end, labels, 7) for end in ends]
        metrics.add(lambda samples=samples: samples)
    seen = scraped(metrics)
    for name, declared in METRICS.items():
        labels = tuple(sorted((label, f"{label}!") for label in declared.labels))
        for end in ("_sum", "_count") if declared.kind == "summary" else ("",):
            assert seen[f"kudurru_{name}{end}", labels] == 7


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
    hits = (5, 0, 0, 2, *([0] * 12))
    udp = EngineStatistics(received=20, memo_hits=hits, dropped_malformed=3, dropped_full=1)
    tcp = EngineStatistics(received=4, connections=2, connections_accepted=9)
    metrics = Metrics("1")
    metrics.add(lambda: engine_samples("udp", udp))
    metrics.add(lambda: engine_samples("tcp", tcp))
    seen = {
        (name.removeprefix("kudurru_dns_"), *(value for _, value in labels)): number
        for (name, labels), number in scraped(metrics).items()
    }
    assert seen["requests_total", "udp"] == 20
    assert seen["requests_total", "tcp"] == 4
    assert seen["responses_total", "NOERROR"] == 5
    assert seen["responses_total", "NXDOMAIN"] == 2
    assert seen["responses_total", "none"] == 3
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
    metrics.add(lambda: [Sample("event_log_sequence", (), position[0])])
    route = metrics_routes(metrics)["/metrics"]
    assert b"\nkudurru_event_log_sequence 3.0\n" in route().body
    position[0] = 4
    response = route()
    assert b"\nkudurru_event_log_sequence 4.0\n" in response.body
    assert response.content_type == "text/plain; version=0.0.4; charset=utf-8"
