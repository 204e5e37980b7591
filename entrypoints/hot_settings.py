"""Which part of a server takes which settings while it runs, and in which order.

A key that is marked hot in the table of settings is of a part here, or is read where it is used:
`health.lameduck` when the server stops, `cache.persistMaxAge` and `lists.startup` when it starts.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kudurru.adapters.metrics import Sample
from kudurru.domain.filtering.policies import BlockDefaults
from kudurru.domain.settings import Settings
from kudurru.entrypoints import logs
from kudurru.entrypoints.cache_keeping import CacheKeeper
from kudurru.entrypoints.checkpoints import Checkpointer, CheckpointPolicy
from kudurru.entrypoints.list_keeper import ListKeeper
from kudurru.entrypoints.list_options import list_options
from kudurru.entrypoints.live_settings import LiveSettings
from kudurru.entrypoints.query_logging import QueryLog
from kudurru.entrypoints.resolving import Resolving, check_upstreams
from kudurru.entrypoints.writer import Writer
from kudurru.projections.pipeline.ratelimit import RateLimiter
from kudurru.projections.policy_view import PolicyView

if TYPE_CHECKING:
    from kudurru.adapters.certificates import Certificates


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Of one running server."""

    limiter: RateLimiter
    resolving: Resolving
    cache: CacheKeeper
    policies: PolicyView
    lists: ListKeeper
    query_log: QueryLog | None
    checkpointer: Checkpointer | None
    certificates: "Certificates | None"
    writer: Writer
    invalidate: Callable[[], None]  # answers that were remembered

    def subscribe(self, live: LiveSettings) -> None:
        live.check(lambda settings: check_upstreams(settings.upstreams))
        live.subscribe(["ratelimit"], lambda s: self.limiter.configure(s.ratelimit))
        live.subscribe(["acl", "upstreams", "resolver", "cache"], self._resolve)
        live.subscribe(["blocking"], lambda s: self.policies.configure(block_defaults(s)))
        live.subscribe(["lists", "upstreams"], lambda s: self.lists.configure(list_options(s)))
        live.subscribe(["querylog"], self._log_queries)
        live.subscribe(["audit.checkpoint"], self._sign)
        live.subscribe(["log.level"], lambda s: logs.set_level(s.log.level))
        live.subscribe(["tls"], self._certify)
        live.subscribe(["zones.coalesce"], self._coalesce)

    def _resolve(self, settings: Settings) -> None:
        """What is cached stays as far as the new bounds let it."""
        self.resolving.configure(
            settings.upstreams, settings.resolver, settings.cache, settings.acl
        )
        self.cache.configure(settings.cache.persist_interval.total_seconds())
        self.invalidate()

    def _log_queries(self, settings: Settings) -> None:
        if self.query_log is not None:
            self.query_log.configure(settings.querylog)

    def _sign(self, settings: Settings) -> None:
        if self.checkpointer is not None:
            self.checkpointer.policy = checkpoint_policy(settings)
            self.writer.on_recorded.set()  # whoever waits for the next one looks at the clock again

    def _certify(self, settings: Settings) -> None:
        if self.certificates is not None:
            self.certificates.use(settings.tls.cert, settings.tls.key)

    def _coalesce(self, settings: Settings) -> None:
        self.writer.coalesce_s = settings.zones.coalesce.total_seconds()


def block_defaults(settings: Settings) -> BlockDefaults:
    return BlockDefaults(settings.blocking.mode, int(settings.blocking.ttl.total_seconds()))


def checkpoint_policy(settings: Settings) -> CheckpointPolicy:
    checkpoint = settings.audit.checkpoint
    return CheckpointPolicy(
        events=checkpoint.events,
        interval_s=checkpoint.interval.total_seconds(),
        publish=checkpoint.publish,
    )


def settings_samples(live: LiveSettings) -> Iterable[Sample]:
    yield Sample("config_last_reload_successful", (), not live.problem)
    yield Sample("config_last_reload_timestamp_seconds", (), live.reloaded_us / 1_000_000)
    yield Sample("config_restart_pending", (), len(live.waiting))
