"""What keeping lists takes from the settings, and what it shows in metrics."""

from datetime import timedelta

from kudurru.adapters.lists.jobs import Nameserver
from kudurru.adapters.metrics import METRICS
from kudurru.domain.kinds.blocklist import BlockListStatus, SourceStatus
from kudurru.domain.object_store import StoredBody, StoredObject
from kudurru.domain.objects import Key
from kudurru.domain.settings import BlockingSettings, Settings, Upstream, UpstreamSettings
from kudurru.entrypoints.health import list_samples
from kudurru.entrypoints.list_keeper import Statistics
from kudurru.entrypoints.list_options import list_options
from kudurru.entrypoints.list_service import ListRow, list_key, status_of


def test_servers_of_lists_are_looked_up_by_bootstrap_and_upstreams_that_have_addresses() -> None:
    upstreams = UpstreamSettings(
        bootstrap=(Upstream("192.0.2.1"), Upstream("tls://192.0.2.2#name=dns.example")),
        groups={
            "default": (
                Upstream("[2001:db8::1]:5353"),
                Upstream("https://dns.example/dns-query"),
                Upstream("[/corp.example/]192.0.2.9"),
            ),
            "other": (Upstream("192.0.2.8"),),
        },
    )
    options = list_options(Settings(upstreams=upstreams))
    assert options.nameservers == (
        Nameserver("192.0.2.1", 53),
        Nameserver("192.0.2.2", 853, "dns.example"),
        Nameserver("2001:db8::1", 5353),
    )
    assert options.interval == timedelta(hours=24)
    assert not options.allow_private


def test_a_node_that_must_not_serve_without_lists_waits_for_them() -> None:
    degraded = Settings(blocking=BlockingSettings(allow_degraded=False))
    assert list_options(degraded).startup == "blocking"
    assert list_options(Settings()).startup == "fast"


def test_metrics_of_lists_are_declared_and_name_lists_only() -> None:
    source = SourceStatus(source="https://secret.example/", phase="Stale", error="secret")
    row = ListRow(namespace="default", name="one", enabled=True, entries=5, sources=[source])
    samples = list(list_samples([row], Statistics({"new": 1}, {"done": 2}, 5, 800)))
    for sample in samples:
        assert len(sample.labels) == len(METRICS[sample.name].labels)
        assert "secret" not in str(sample)
    assert ("blocklist_status", ("default/one", "Stale"), 1) in samples


def test_a_list_is_named_with_or_without_its_namespace() -> None:
    assert list_key("one", "default") == list_key("default/one", "other")


def test_a_status_that_another_version_wrote_is_none() -> None:
    stored = StoredObject(
        key=Key("BlockList/default/one"),
        ver=1,
        resource_version="1",
        manager="m",
        scope="",
        body=StoredBody(uid="u", generation=1, creation_timestamp=""),
        status={"sources": [{"phase": "Better"}], "entries": "5"},
    )
    assert status_of(stored) == BlockListStatus()
    assert status_of(None) == BlockListStatus()
