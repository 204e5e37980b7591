"""What a node says of itself: readiness and metrics, from the statistics of its parts."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from kudurru import __version__
from kudurru.adapters.metrics import Metrics, Sample, engine_samples, times_samples
from kudurru.domain.dns import names
from kudurru.domain.errors import LogDamaged
from kudurru.domain.ports import PacketEngine
from kudurru.domain.reconcile.notifies import NotifyStatistics
from kudurru.entrypoints.controllers import ControllerStatistics
from kudurru.entrypoints.list_keeper import Statistics as ListStatistics
from kudurru.entrypoints.list_service import ListRow
from kudurru.entrypoints.live_settings import LiveSettings
from kudurru.entrypoints.runner import RunnerStatus
from kudurru.entrypoints.store_counts import StoreStatistics
from kudurru.entrypoints.watches import WatchStatistics
from kudurru.entrypoints.wiring import Node
from kudurru.entrypoints.writer import Writer
from kudurru.projections.pipeline.pipeline import NO_REPLY, Pipeline
from kudurru.projections.pipeline.ratelimit import RateLimiter
from kudurru.projections.pipeline.transfers import Transfers

NO_LISTENER = "none"
"""Label of what is counted for all listeners together, or came from inside of this process."""


def metrics_of(
    node: Node,
    pipeline: Pipeline,
    limiter: RateLimiter,
    engines: Sequence[tuple[str, PacketEngine]],
    writer: Writer,
    is_synced: Callable[[], bool],
) -> Metrics:
    """All metrics of a server. `engines` are (protocol, engine)."""
    metrics = Metrics(__version__)
    metrics.add(lambda: _pipeline_samples(pipeline))
    metrics.add(lambda: _limiter_samples(limiter))
    metrics.add(lambda: _engines_samples(engines, pipeline.statistics().questions))
    metrics.add(lambda: _log_samples(node, writer))
    metrics.add(lambda: zone_samples(node, is_synced=is_synced()))
    return metrics


def _pipeline_samples(pipeline: Pipeline) -> Iterable[Sample]:
    seen = pipeline.statistics()
    for (where, rcode, source), count in seen.answers.items():
        yield Sample("dns_responses_total", (_listener(where), rcode, source), count)
    for source, times in seen.times.items():
        yield from times_samples("dns_request_duration_seconds", (source,), times)
    yield from (Sample("dns_dropped_total", (r,), n) for r, n in seen.dropped.items())
    yield Sample("unhandled_exceptions_total", (), seen.unhandled_exceptions)
    if seen.policy is not None:
        yield Sample("rewritten_total", (), seen.policy.rewritten)
        yield from (Sample("blocked_total", by, n) for by, n in seen.policy.blocked.items())
    yield from (Sample("tsig_queries_total", (error,), n) for error, n in seen.signed.items())


def _engines_samples(
    engines: Iterable[tuple[str, PacketEngine]], questions: Mapping[tuple[str, str], int]
) -> Iterator[Sample]:
    asked: dict[str, dict[str, int]] = {}
    for (where, qtype), count in questions.items():
        asked.setdefault(where, {})[qtype] = count
    for proto, engine in engines:
        listener = engine.addresses[0]
        of_listener = asked.get(f"{proto}/{listener}", {})
        yield from engine_samples(proto, listener, engine.statistics(), of_listener)


def _listener(where: str) -> str:
    """The address in what the pipeline calls a listener."""
    return where.partition("/")[2] or NO_LISTENER


def transfer_samples(transfers: Transfers) -> Iterable[Sample]:
    seen = transfers.statistics()
    yield Sample("transfers_out_total", ("full",), seen.full)
    yield Sample("transfers_out_total", ("incremental",), seen.incremental)
    yield Sample("transfers_out_total", ("up_to_date",), seen.up_to_date)
    yield Sample("transfers_out_total", ("refused",), seen.refused)
    yield Sample("transfers_out_total", ("busy",), seen.busy)
    yield Sample("transfers_out_total", ("failed",), seen.failed)
    yield Sample("transfers_out_active", (), seen.active)
    yield Sample("transfers_out_octets_total", (), seen.octets)


def notify_samples(seen: NotifyStatistics) -> Iterable[Sample]:
    yield Sample("notifies_out_total", ("sent",), seen.sent)
    yield Sample("notifies_out_total", ("acknowledged",), seen.acknowledged)
    yield Sample("notifies_out_total", ("refused",), seen.refused)
    yield Sample("notifies_out_total", ("given_up",), seen.given_up)
    yield Sample("notifies_out_pending", (), seen.pending)


def settings_samples(live: LiveSettings) -> Iterable[Sample]:
    yield Sample("config_last_reload_successful", (), not live.problem)
    yield Sample("config_last_reload_timestamp_seconds", (), live.reloaded_us / 1_000_000)
    yield Sample("config_restart_pending", (), len(live.waiting))


def controller_samples(seen: ControllerStatistics) -> Iterator[Sample]:
    passes: Counter[str] = Counter()
    for (kind, result), count in seen.reconciles.items():
        yield Sample("controller_reconciles_total", (kind, result), count)
        passes[kind] += count
    for kind, seconds in seen.seconds.items():
        yield Sample("controller_reconcile_duration_seconds_sum", (kind,), seconds)
        yield Sample("controller_reconcile_duration_seconds_count", (kind,), passes[kind])
    for kind, count in seen.status_writes.items():
        yield Sample("controller_status_writes_total", (kind,), count)
    for kind, count in seen.resyncs.items():
        yield Sample("controller_resyncs_total", (kind,), count)
    for kind, count in seen.waiting.items():
        yield Sample("controller_waiting", (kind,), count)


def store_samples(seen: StoreStatistics, watches: WatchStatistics) -> Iterator[Sample]:
    calls: Counter[str] = Counter()
    for (op, result), count in seen.operations.items():
        yield Sample("store_operations_total", (op, result), count)
        calls[op] += count
    for op, seconds in seen.seconds.items():
        yield Sample("store_operation_duration_seconds_sum", (op,), seconds)
        yield Sample("store_operation_duration_seconds_count", (op,), calls[op])
    yield Sample("store_watchers", (), watches.watchers)
    for kind, count in seen.relists.items():
        yield Sample("store_watch_resyncs_total", (kind,), count)
    for kind, count in watches.catch_ups.items():
        yield Sample("store_watch_catchups_total", (kind,), count)


def list_samples(rows: Iterable[ListRow], seen: ListStatistics) -> Iterator[Sample]:
    for row in rows:
        name = f"{row.namespace}/{row.name}"
        yield Sample("blocklist_entries", (name,), row.entries)
        for phase, count in Counter(source.phase for source in row.sources).items():
            yield Sample("blocklist_status", (name, phase), count)
    for result, count in seen.fetches.items():
        yield Sample("blocklist_fetches_total", (result,), count)
    for result, count in seen.builds.items():
        yield Sample("blocklist_builds_total", (result,), count)
    yield Sample("blocklist_table_bytes", (), seen.bytes)


def runner_samples(seen: RunnerStatus) -> Iterable[Sample]:
    yield Sample("leader", (seen.role,), seen.is_leader)
    for one in seen.runnables:
        yield Sample("role_active", (one.name,), one.state == "running")
        yield Sample("role_restarts_total", (one.name,), one.restarts)


def _limiter_samples(limiter: RateLimiter) -> Iterable[Sample]:
    seen = limiter.statistics()
    yield Sample("ratelimit_verdicts_total", ("slip",), seen.slipped)
    yield Sample("ratelimit_verdicts_total", ("drop",), seen.dropped)
    yield Sample("ratelimit_buckets", (), seen.buckets)
    yield Sample("dns_responses_total", (NO_LISTENER, "NOERROR", "ratelimit"), seen.slipped)
    yield Sample("dns_responses_total", (NO_LISTENER, NO_REPLY, "ratelimit"), seen.dropped)
    yield Sample("dns_dropped_total", ("ratelimit",), seen.dropped)


def _log_samples(node: Node, writer: Writer) -> Iterable[Sample]:
    seen = writer.statistics()
    yield Sample("log_position", (), node.objects.position)
    yield from times_samples("log_append_duration_seconds", (), seen.append_times)
    yield Sample("log_verify_failures_total", (), isinstance(node.why_not_writable, LogDamaged))
    if seen.checkpoint_size is not None:
        yield Sample("log_checkpoint_size", (), seen.checkpoint_size)
    if seen.published_us:
        yield Sample(
            "log_checkpoint_published_timestamp_seconds", (), seen.published_us / 1_000_000
        )
    yield Sample("changes_total", (), seen.changes)
    yield Sample("change_groups_total", (), seen.groups)
    yield Sample("changes_refused_total", (), seen.refused_full)
    yield Sample("changes_failed_total", (), seen.failed)
    yield Sample("log_writable", (), node.why_not_whole is None)
    yield Sample("catch_ups_failed_total", (), seen.catch_ups_failed)
    head = node.known_head()
    for projection in node.views.follower.projections:
        yield Sample("projection_position", (projection.name,), projection.position)
        yield Sample("projection_lag_events", (projection.name,), head - projection.position)


def zone_samples(node: Node, *, is_synced: bool) -> Iterable[Sample]:
    """Before the first sync they would be of a half-built view: rather none than wrong ones."""
    for zone in node.zones.served if is_synced else ():
        name = names.to_text(zone.key)
        yield Sample("zone_serial", (name,), zone.serial)
        yield Sample("zone_records", (name, "records"), zone.record_count + 1)  # and the SOA
        yield Sample("zone_records", (name, "names"), zone.name_count)
