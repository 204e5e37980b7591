"""What a pipeline has counted: questions and answers by listener, and how long answers took.

Everything is bounded: listeners are configured, sources are stages, types without a mnemonic are
counted as one.
"""

from collections import defaultdict

from kudurru.domain.dns.record_types import counted_as
from kudurru.domain.histogram import Histogram, Times

SERVER = "server"
"""Source of answers that no stage gave: about the server itself, and of refused messages."""


class Counts:
    """`where` is protocol and address of a listener, as in `Course.listener`."""

    def __init__(self) -> None:
        self.questions: dict[tuple[str, int], int] = defaultdict(int)  # by type as counted
        self.answers: dict[tuple[str, int | None, str], int] = defaultdict(int)
        """By RCODE, None for a drop, and source."""
        self._times: dict[str, Histogram] = defaultdict(Histogram)

    def question(self, where: str, rtype: int) -> None:
        self.questions[where, counted_as(rtype)] += 1

    def answer(self, where: str, rcode: int | None, source: str = "") -> None:
        self.answers[where, rcode, source or SERVER] += 1

    def took(self, source: str, us: int) -> None:
        self._times[source or SERVER].add(us)

    def responses(self) -> dict[int | None, int]:
        """Answers by RCODE alone."""
        found: dict[int | None, int] = defaultdict(int)
        for (_, rcode, _), count in self.answers.items():
            found[rcode] += count
        return found

    def times(self) -> dict[str, Times]:
        return {source: histogram.times() for source, histogram in self._times.items()}
