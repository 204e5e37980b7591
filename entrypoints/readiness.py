"""Whether queries should be sent to this node, and why not: what `/readyz` and the health name say.

Lameduck is the wish that nobody sends queries here any more: those that come are answered all the
same. A person asks for it and may take it back; a server that stops is in it for good.
"""

import asyncio
from collections.abc import Callable, Iterable

Look = Callable[[], Iterable[str]]


class Readiness:
    """On one event loop. `on_change` is told when the health name answers something else."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self._obstacles: list[Look] = []
        self._warnings: list[Look] = []
        self._is_lameduck_asked = False
        self.is_stopping = False
        self.synced = asyncio.Event()
        """Set once everything that was to be replayed was."""

    @property
    def is_synced(self) -> bool:
        return self.synced.is_set()

    @property
    def is_lameduck(self) -> bool:
        return self.is_stopping or self._is_lameduck_asked

    def ask_lameduck(self, is_wanted: bool) -> None:
        """Begin or end it, for as long as the server runs."""
        self._is_lameduck_asked = is_wanted
        self._on_change()

    def stop(self) -> None:
        self.is_stopping = True
        self._on_change()

    def add_obstacles(self, look: Look) -> None:
        """Ask this too for reasons not to send queries here."""
        self._obstacles.append(look)

    def add_warnings(self, look: Look) -> None:
        self._warnings.append(look)

    def why_not(self) -> list[str]:
        """Reasons not to send queries here; none when it is ready."""
        reasons = []
        if not self.is_synced:
            reasons.append("NotSynced: the log is being replayed")
        if self.is_stopping:
            reasons.append("Lameduck: the server is stopping")
        elif self.is_lameduck:
            reasons.append("Lameduck: somebody asked for it; `kudurru lameduck --cancel` ends it")
        return reasons + [reason for look in self._obstacles for reason in look()]

    def warnings(self) -> list[str]:
        """What an operator should see to, though queries are answered."""
        return [warning for look in self._warnings for warning in look()]
