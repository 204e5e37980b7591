"""The dashboard and the alert rules use metrics and labels that there are; each rule fires."""

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from kudurru.adapters.metrics import METRICS, PARTS
from kudurru.entrypoints import dashboards
from kudurru.entrypoints.dashboards import ALERTS
from tests.absent import absent
from tests.blackbox.program import serving

OF_PROMETHEUS = {"instance", "job", "le"}


def tool(name: str) -> str:
    found = shutil.which(name)
    return found or absent(f"{name} is not installed: Debian's package prometheus has it")


def labels_of(name: str) -> set[str]:
    whole = name if name in METRICS else name.rpartition("_")[0]
    assert name in METRICS or "_" + name.rpartition("_")[2] in PARTS[METRICS[whole].kind]
    return {*METRICS[whole].labels, *OF_PROMETHEUS}


@pytest.mark.parametrize("expr", list(dashboards.expressions()))
def test_an_expression_uses_labels_that_its_metrics_have(expr: str) -> None:
    found = re.findall(r"kudurru_(\w+)", expr)
    asked = {label for by in re.findall(r"by \(([^)]*)\)", expr) for label in by.split(", ")}
    assert found or "process_" in expr
    for name in found:
        assert asked <= labels_of(name)
    for name, label in re.findall(r'kudurru_(\w+)\{(\w+)[=!~]+"', expr):
        assert label in labels_of(name)


def test_every_alert_says_where_and_what_to_do() -> None:
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)
    for alert in ALERTS:
        assert "{{ $labels." in alert.summary, alert.name
        assert alert.action.endswith("."), alert.name


MINUTES = 100
A_DAY = {"KudurruCheckpointNotPublished": 30 * 60}
FIRES = {
    "KudurruListenerSilent": {'listener_answers{listener="127.0.0.1:53"}': "1x2 0x1800"},
    "KudurruLogNotWritable": {"log_writable": "0x1800"},
    "KudurruLogDoesNotVerify": {"log_verify_failures_total": "0 1x1800"},
    "KudurruNoUpstream": {
        'upstream_healthy{upstream="one"}': "0x1800",
        'upstream_healthy{upstream="two"}': "0x1800",
    },
    "KudurruNoLeader": {'leader{role="serve"}': "0x1800"},
    "KudurruManyFailures": {
        'dns_responses_total{rcode="SERVFAIL"}': "0+6x1800",
        'dns_responses_total{rcode="NOERROR"}': "0+94x1800",
    },
    "KudurruQueriesDropped": {'dns_dropped_total{reason="full"}': "0+90x1800"},
    "KudurruUpstreamSilent": {
        'upstream_healthy{upstream="one"}': "0x1800",
        'upstream_healthy{upstream="two"}': "1x1800",
    },
    "KudurruViewBehind": {'projection_lag_events{projection="objects"}': "1001x1800"},
    "KudurruCheckpointMissing": {"log_position": "100x1800", "log_checkpoint_size": "99x1800"},
    "KudurruCheckpointNotPublished": {
        "log_checkpoint_published_timestamp_seconds": "60x1800",
    },
    "KudurruBlockListFails": {'blocklist_status{list="ads", status="Failed"}': "1x1800"},
    "KudurruSecondaryExpired": {"secondary_zones_expired": "1x1800"},
    "KudurruSerialsDiffer": {
        'zone_serial{zone="a.example.", node="1"}': "7x1800",
        'zone_serial{zone="a.example.", node="2"}': "8x1800",
    },
    "KudurruCertificateExpires": {"tls_certificate_expiry_timestamp_seconds": "604800x1800"},
    "KudurruSettingsRefused": {"config_last_reload_successful": "0x1800"},
    "KudurruChangesRefused": {
        "changes_refused_total": "0+1x1800",
        "changes_failed_total": "0x1800",
    },
    "KudurruFaults": {"unhandled_exceptions_total": "0+1x1800"},
    "KudurruQueryLogIncomplete": {'querylog_dropped_total{reason="disk"}': "0+9x1800"},
    "KudurruDeletionsHeld": {"cluster_deletions_held": "7x1800"},
    "KudurruObjectsUnreadable": {"cluster_objects_unreadable": "1x1800"},
    "KudurruFollowerBehind": {"follower_silence_seconds": "0+60x1800"},
}  # fmt: skip
"""Series, a value each minute, that an operator has to hear of."""

ALSO = {"KudurruNoUpstream": ["KudurruUpstreamSilent"]}

QUIET = {
    'listener_answers{listener="127.0.0.1:53"}': "1 1 0 1x1800",
    "log_writable": "1x1800",
    "log_verify_failures_total": "0x1800",
    'upstream_healthy{upstream="one"}': "1x1800",
    'upstream_healthy{upstream="two"}': "1 0 0 1x1800",
    'leader{role="serve", node="1"}': "0x1800",
    'leader{role="serve", node="2"}': "1x1800",
    'dns_responses_total{rcode="SERVFAIL"}': "0+4x1800",
    'dns_responses_total{rcode="NOERROR"}': "0+96x1800",
    'dns_dropped_total{reason="full"}': "0 9x1800",
    'dns_dropped_total{reason="malformed"}': "0+9000x1800",
    'projection_lag_events{projection="objects"}': "0 5000 0x1800",
    "log_position": "0+100x1800",
    "log_checkpoint_size": "0 0+100x1800",
    "log_checkpoint_published_timestamp_seconds": "0x1800",
    'blocklist_status{list="ads", status="Failed"}': "0x1800",
    'blocklist_status{list="ads", status="Stale"}': "1x1800",
    "secondary_zones_expired": "0x1800",
    'zone_serial{zone="a.example.", node="1"}': "7 8x1800",
    'zone_serial{zone="a.example.", node="2"}': "7 7 8x1800",
    "tls_certificate_expiry_timestamp_seconds": "9000000x1800",
    "config_last_reload_successful": "1 0 1x1800",
    "changes_refused_total": "5x1800",
    "changes_failed_total": "5x1800",
    "unhandled_exceptions_total": "0x1800",
    'role_restarts_total{role="a"}': "0 1x1800",
    'querylog_dropped_total{reason="disk"}': "0x1800",
    "cluster_deletions_held": "0 3 0x1800",
    "cluster_objects_unreadable": "0 1 0x1800",
    "follower_silence_seconds": "5x1800",
    "follower_lag_events": "0 20000 0x1800",
}
"""Of a node that is well, with the troubles of a moment."""


def alert_case(series: dict[str, str], minutes: int, alerts: list[str]) -> dict[str, Any]:
    named = []
    for name, values in series.items():
        metric, _, labels = name.rstrip("}").partition("{")
        every = ", ".join(filter(None, (labels, 'job="kudurru", instance="node"')))
        named.append({"series": f"kudurru_{metric}{{{every}}}", "values": values})
    expected = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in alerts]
    firing = {
        "expr": 'max by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": f"{minutes}m",
        "exp_samples": expected,
    }
    return {"interval": "1m", "input_series": named, "promql_expr_test": [firing]}


def test_each_alert_fires_alone_when_it_should_and_none_on_a_node_that_is_well(
    tmp_path: Path,
) -> None:
    promtool = tool("promtool")
    assert set(FIRES) == {alert.name for alert in ALERTS}
    (tmp_path / "rules.yaml").write_text(dashboards.alert_rules())
    tests = [alert_case(QUIET, MINUTES, [])]
    tests += [
        alert_case(series, A_DAY.get(name, MINUTES), [name, *ALSO.get(name, [])])
        for name, series in FIRES.items()
    ]
    cases = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump(cases))
    done = subprocess.run(
        [promtool, "test", "rules", "cases.yaml"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """Prometheus beside a server; the address of its API."""
    program = tool("prometheus")
    scrape = {"job_name": "kudurru", "static_configs": [{"targets": [target]}]}
    settings = {"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]}
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(settings))
    with (folder / "prometheus.log").open("w+") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'series'}",
                "--web.listen-address=127.0.0.1:0",
                "--log.format=json",
            ],
            stderr=log,
            stdout=subprocess.DEVNULL,
        )
        try:
            yield said_address(folder / "prometheus.log", process)
        finally:
            process.terminate()
            process.wait(60)


def said_address(log: Path, process: subprocess.Popen[Any]) -> str:
    """Where it listens, once it answers there."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text()
        found = re.search(r'"address":"(127\.0\.0\.1:\d+)".*"Listening on"', log.read_text())
        if found and is_ready(found[1]):
            return found[1]
        time.sleep(0.05)
    raise AssertionError(f"Prometheus does not answer:\n{log.read_text()}")


def is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/-/ready"):
            return True
    except OSError:
        return False


def asked(prometheus_at: str, expr: str) -> list[Any]:
    query = urllib.parse.urlencode({"query": expr})
    with urllib.request.urlopen(f"http://{prometheus_at}/api/v1/query?{query}") as answer:
        found = json.load(answer)
    assert found["status"] == "success"
    return list(found["data"]["result"])


@pytest.mark.slow
def test_prometheus_reads_a_server_and_understands_every_expression(tmp_path: Path) -> None:
    def on(node: str, expr: str) -> list[Any]:
        return asked(node, expr.replace("$__rate_interval", "1m").replace("$instance", ".*"))

    with (
        serving(tmp_path / "data", "--demo") as server,
        prometheus(tmp_path, server.addresses["metrics"]) as node,
    ):
        until = time.monotonic() + 90
        glance = list(dashboards.expressions_of("At a glance"))
        while silent := [expr for expr in glance if not on(node, expr)]:
            assert time.monotonic() < until, f"nothing is seen of {silent}"
            server.ask("www.demo.example", "TXT")
            time.sleep(0.1)
        for expr in dashboards.expressions():
            on(node, expr)
