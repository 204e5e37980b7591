"""Queries on their way to the query log: noted beside the answering, handed over in batches.

Noting costs an append. When the log cannot keep up, what is over the limit is dropped and counted:
DNS never waits. Where only some are logged, what engines will repeat is noted all the same.
"""

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from kudurru.domain.query_log import EVERY, Answered, Fact, Repeat, Seen

NOTES_MAX = 65_536
"""Notes held at once: about a second of all that this process can answer, some 20 MB."""

BATCH_MAX = 2_000
"""Notes in one batch: making a frame of them takes less than a millisecond."""


Note = TypeVar("Note")


class QueryLogStatistics(msgspec.Struct, frozen=True, kw_only=True):
    noted: int
    dropped: int
    waiting: int


class QueryNotes:
    """Facts of the pipeline and what engines answered, until they are taken. One thread."""

    def __init__(self, notes_max: int = NOTES_MAX) -> None:
        self._notes_max = notes_max
        self._facts: list[Fact] = []
        self._repeats: dict[str, list[Repeat]] = {}  # by protocol
        self._answers: list[Answered] = []
        self._noted = self._dropped = 0
        self.sampler = EVERY
        """Picks those that are logged, of the queries that threads of the core do not answer."""

    def weigh(self) -> int:
        """For how many queries the one stands that comes now; 0: it is not logged."""
        return self.sampler.weigh()

    def note(self, fact: Fact) -> bool:
        """False: there is no room, and it is dropped."""
        is_logged = fact.weight > 0
        if len(self) >= self._notes_max:
            self._dropped += is_logged
            return False
        self._facts.append(fact)
        self._noted += is_logged
        return True

    def repeated(self, proto: str, repeats: Iterable[Repeat]) -> None:
        """Note queries that an engine answered by itself."""
        self._add(self._repeats.setdefault(proto, []), list(repeats))

    def answered(self, answers: Iterable[Answered]) -> None:
        """Note queries that an engine answered from the zones."""
        self._add(self._answers, list(answers))

    def _add(self, notes: list[Note], found: list[Note]) -> None:
        room = max(self._notes_max - len(self), 0)
        if room < len(found):
            self._dropped += len(found) - room
            found = found[:room]
        notes += found
        self._noted += len(found)

    def missed(self, count: int) -> None:
        """Count queries that an engine answered and had no room to tell of."""
        self._dropped += count

    def __len__(self) -> int:
        repeats = sum(map(len, self._repeats.values()))
        return len(self._facts) + repeats + len(self._answers)

    def take(self, now_us: int) -> Seen | None:
        """The oldest notes, at most BATCH_MAX of each kind, which are facts, answers and the
        repeats of each protocol; None when there are none."""
        if not len(self):
            return None
        answers, self._answers = self._answers[:BATCH_MAX], self._answers[BATCH_MAX:]
        facts, self._facts = self._facts[:BATCH_MAX], self._facts[BATCH_MAX:]
        # A repeat is of a fact that was noted before it: never ahead of one that is left.
        repeats: dict[str, list[Repeat]] = {}
        if not self._facts:
            all_, self._repeats = self._repeats, {}
            for proto, noted in all_.items():
                repeats[proto] = noted[:BATCH_MAX]
                if len(noted) > BATCH_MAX:
                    self._repeats[proto] = noted[BATCH_MAX:]
        return Seen(now_us, facts, repeats, answers)

    def lost(self, count: int) -> None:
        """Count notes that were taken and could not be handed over."""
        self._dropped += count
        self._noted -= count

    def statistics(self) -> QueryLogStatistics:
        return QueryLogStatistics(noted=self._noted, dropped=self._dropped, waiting=len(self))
