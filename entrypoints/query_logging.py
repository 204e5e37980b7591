"""The query log of a server: what the settings say of it, and its parts put together."""

import random
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path

from kudurru.adapters.metrics import Sample
from kudurru.adapters.query_log.process import QueryLogProcess
from kudurru.domain.ports import Clock
from kudurru.domain.query_log import Privacy, Retention, Sampler
from kudurru.domain.settings import QuerylogSettings
from kudurru.projections.query_log import QueryNotes


class QueryLog:
    """`notes` go to the pipeline; `process.run` is the task that writes them."""

    def __init__(self, path: Path, settings: QuerylogSettings, clock: Clock) -> None:
        self.notes = QueryNotes()
        self._chance = random.Random(secrets.randbits(64))  # noqa: S311  # which query is picked is no secret
        self._sample(settings.sample)
        self.process = QueryLogProcess(
            path,
            lambda: self.notes.take(clock.now_us()),
            self.notes.lost,
            privacy_of(settings),
            retention_of(settings),
            lambda: self.forget(),
        )
        self.forget: Callable[[], None] = lambda: None
        """Has the engines ask everything again. Whoever has engines puts it here."""

    def configure(self, settings: QuerylogSettings) -> None:
        """Take new settings, at once."""
        self.process.configure(privacy_of(settings), retention_of(settings))
        self._sample(settings.sample)

    def _sample(self, one_in: int) -> None:
        self.notes.sampler = Sampler(one_in, self._chance.randrange)

    def samples(self) -> Iterable[Sample]:
        noted, written = self.notes.statistics(), self.process.statistics
        yield Sample("querylog_dropped_total", ("full",), noted.dropped)
        yield Sample("querylog_dropped_total", ("disk",), written.failed)
        yield Sample("querylog_dropped_total", ("unknown",), written.unknown)
        yield Sample("querylog_written_total", (), written.written)
        yield Sample("querylog_waiting", (), noted.waiting)
        yield Sample("querylog_restarts_total", (), self.process.restarts)


def privacy_of(settings: QuerylogSettings) -> Privacy:
    return Privacy(
        level=settings.privacy_level,
        ipv4_bits=settings.truncate.ipv4,
        ipv6_bits=settings.truncate.ipv6,
        ignore=tuple(settings.ignore),
    )


def retention_of(settings: QuerylogSettings) -> Retention:
    return Retention(
        age_s=int(settings.retention.total_seconds()), bytes_max=int(settings.max_bytes)
    )
