"""Which part of a server takes which settings while it runs, and in which order.

A key that is marked hot in the table of settings is of a part here, or is read where it is used:
`health.lameduck` when the server stops, `audit.trustedKeys` when doctor looks at the log. One that
counts only while a server starts is none.
"""

from typing import TYPE_CHECKING

from kudurru.domain.filtering.policies import BlockDefaults
from kudurru.domain.settings import Settings
from kudurru.entrypoints import logs
from kudurru.entrypoints.checkpoints import CheckpointPolicy
from kudurru.entrypoints.front import Front
from kudurru.entrypoints.list_options import list_options
from kudurru.entrypoints.live_settings import LiveSettings
from kudurru.entrypoints.parts import Parts
from kudurru.entrypoints.resolving import check_upstreams

if TYPE_CHECKING:
    from kudurru.adapters.certificates import Certificates


def follow_settings(
    live: LiveSettings, parts: Parts, front: Front, certificates: "Certificates | None"
) -> None:
    """From here on parts hear of settings that change, also of those in the log."""
    writer, query_log = parts.writer, parts.query_log

    def resolve(settings: Settings) -> None:
        # What is cached stays, as far as the new bounds let it.
        front.resolving.configure(
            settings.upstreams, settings.resolver, settings.cache, settings.acl
        )
        front.udp.admit(settings.acl)
        front.cache_keeper.configure(settings.cache.persist_interval.total_seconds())
        front.invalidate()

    def log_queries(settings: Settings) -> None:
        if query_log is not None:
            query_log.configure(settings.querylog)
            front.udp.sample(settings.querylog.sample)

    def sign(settings: Settings) -> None:
        if parts.checkpointer is not None:
            parts.checkpointer.policy = checkpoint_policy(settings)
            writer.on_recorded.set()  # who waits until one is due looks at the clock again

    def certify(settings: Settings) -> None:
        if certificates is not None:
            certificates.use(settings.tls.cert, settings.tls.key)
        if front.peer_certificates is not None:
            internal = settings.tls.internal
            front.peer_certificates.use(internal.cert, internal.key, internal.ca)

    def coalesce(settings: Settings) -> None:
        writer.coalesce_s = settings.zones.coalesce.total_seconds()
        parts.controllers.coalesce_us = round(writer.coalesce_s * 1_000_000)

    policies = parts.node.views.policies
    live.check(lambda settings: check_upstreams(settings.upstreams))
    live.subscribe(["ratelimit"], lambda s: front.limiter.configure(s.ratelimit))
    live.subscribe(["acl", "upstreams", "resolver", "cache"], resolve)
    live.subscribe(["blocking"], lambda s: policies.configure(block_defaults(s)))
    live.subscribe(["lists", "upstreams"], lambda s: parts.lists.configure(list_options(s)))
    live.subscribe(["querylog"], log_queries)
    live.subscribe(["audit.checkpoint"], sign)
    live.subscribe(["log.level"], lambda s: logs.set_level(s.log.level))
    live.subscribe(["tls"], certify)
    live.subscribe(["zones.coalesce"], coalesce)
    writer.listeners.append(live.recorded)


def block_defaults(settings: Settings) -> BlockDefaults:
    return BlockDefaults(settings.blocking.mode, int(settings.blocking.ttl.total_seconds()))


def checkpoint_policy(settings: Settings) -> CheckpointPolicy:
    checkpoint = settings.audit.checkpoint
    return CheckpointPolicy(
        events=checkpoint.events,
        interval_s=checkpoint.interval.total_seconds(),
        publish=checkpoint.publish,
    )
