"""NOTIFY to secondaries (RFC 1996), as a state machine without I/O: who is to be told of which
serial, when to say it again, when to give up.

A secondary that does not answer is told again after 2, 4, 8, 16 and 32 seconds and then left alone
until the next version: it has its own refresh timer. There is one message on its way to a target
for a zone at any time; a version that comes meanwhile takes its place the next time.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from kudurru.domain.dns.names import Name
from kudurru.domain.kinds.meta import Condition

ATTEMPTS_MAX = 6
WAIT_FIRST_US = 2_000_000
IN_FLIGHT_MAX = 256
"""Messages on their way at once: after a start with many zones the others wait for their turn."""

Result = str
ACKNOWLEDGED, UNSUPPORTED, REFUSED = "acknowledged", "unsupported", "refused"


class Target(msgspec.Struct, frozen=True):
    """A secondary, and the key that it is told with."""

    address: str
    port: int
    key: Name | None = None

    def __str__(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"


class Due(NamedTuple):
    """A message to send now."""

    apex: Name
    target: Target
    serial: int


class GivenUp(NamedTuple):
    apex: Name
    target: Target
    serial: int
    last_rcode: int | None  # None: no answer at all


class _Telling:
    """What one target is told of one zone. `sent` is the serial of the message on its way, None
    while there is none."""

    __slots__ = ("attempts", "due_us", "last_rcode", "sent", "serial")

    def __init__(self, serial: int, due_us: int) -> None:
        self.serial = serial
        self.due_us = due_us
        self.attempts = 0
        self.sent: int | None = None
        self.last_rcode: int | None = None


CONDITION = "SecondariesTold"
SHOWN_MAX = 8
"""Targets that a condition names: what does not fit is counted."""


def status_with(
    status: dict[str, Any] | None, failures: Mapping[Target, str], now_s: int, *, generation: int
) -> dict[str, Any] | None:
    """The status of a zone whose secondaries could not be told (and why), or were told again; None
    where it says so already. A zone that never had trouble says nothing."""
    conditions = list((status or {}).get("conditions", []))
    before = next((c for c in conditions if c["type"] == CONDITION), None)
    if before is None and not failures:
        return None
    parts = sorted(f"{target}: {why}" for target, why in failures.items())
    message = "; ".join(parts[:SHOWN_MAX])
    if len(parts) > SHOWN_MAX:
        message += f"; and {len(parts) - SHOWN_MAX} more"
    is_told = "False" if failures else "True"
    if before is not None and (before["status"], before.get("message", "")) == (is_told, message):
        return None
    since = datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if before is not None and before["status"] == is_told:
        since = before["lastTransitionTime"]
    after = Condition(
        type=CONDITION,
        status=is_told,  # type: ignore[arg-type]  # one of the two above
        reason="NoAnswer" if failures else "AsExpected",
        message=message,
        observed_generation=generation,
        last_transition_time=since,
    )
    others = [c for c in conditions if c["type"] != CONDITION]
    return {**(status or {}), "conditions": [*others, msgspec.to_builtins(after)]}


class NotifyStatistics(msgspec.Struct, frozen=True, kw_only=True):
    sent: int
    acknowledged: int
    refused: int  # answers with an error code
    given_up: int
    pending: int


_NOERROR, _NOTIMP = 0, 4
_Pair = tuple[Name, Target]
_Timer = tuple[int, Name, str, _Pair]
"""When it is due; then what orders timers of one moment."""


class Notifies:
    """Times are monotonic microseconds."""

    def __init__(self) -> None:
        self._told: dict[_Pair, int] = {}  # serial that is not to be told again
        self._telling: dict[_Pair, _Telling] = {}
        self._timers: list[_Timer] = []  # heap; entries may be outdated
        self._in_flight = 0
        self._sent = self._acknowledged = self._refused = self._given_up = 0

    def statistics(self) -> NotifyStatistics:
        return NotifyStatistics(
            sent=self._sent,
            acknowledged=self._acknowledged,
            refused=self._refused,
            given_up=self._given_up,
            pending=len(self._telling),
        )

    def want(self, zones: Iterable[tuple[Name, int, Iterable[Target]]], now_us: int) -> None:
        """All zones with the serial that they have and the targets that shall know it. What is
        not named any more is forgotten."""
        wanted = {(apex, target): serial for apex, serial, targets in zones for target in targets}
        for pair in [pair for pair in self._told if pair not in wanted]:
            del self._told[pair]
        for pair in [pair for pair in self._telling if pair not in wanted]:
            self._finish(pair)
        for pair, serial in wanted.items():
            self._want(pair, serial, now_us)

    def _want(self, pair: _Pair, serial: int, now_us: int) -> None:
        telling = self._telling.get(pair)
        if telling is not None:
            if telling.serial != serial:
                telling.serial, telling.attempts = serial, 0
        elif self._told.get(pair) != serial:
            self._telling[pair] = _Telling(serial, now_us)
            self._set_timer(pair, now_us)

    def due(self, now_us: int) -> Iterator[Due | GivenUp]:
        """What to send now, and whom not to tell again. Each is noted as it is taken."""
        waiting = []
        while self._timers and self._timers[0][0] <= now_us:
            timer = heapq.heappop(self._timers)
            if self._is_outdated(timer):
                continue
            pair = timer[-1]
            telling = self._telling[pair]
            if telling.attempts >= ATTEMPTS_MAX:
                self._given_up += 1
                self._told[pair] = telling.serial
                self._finish(pair)
                yield GivenUp(*pair, telling.serial, telling.last_rcode)
            elif telling.sent is None and self._in_flight >= IN_FLIGHT_MAX:
                waiting.append(timer)
            else:
                self._in_flight += telling.sent is None
                self._sent += 1
                telling.sent = telling.serial
                self._set_timer(pair, now_us + (WAIT_FIRST_US << telling.attempts))
                telling.attempts += 1
                yield Due(*pair, telling.serial)
        for timer in waiting:
            heapq.heappush(self._timers, timer)

    def next_due_us(self) -> int | None:
        """When to ask `due` again, if nothing else happens."""
        if self._in_flight >= IN_FLIGHT_MAX:
            # Those that wait for room are due already; what makes room is an answer or a timer.
            times = [t.due_us for t in self._telling.values() if t.sent is not None]
            return min(times, default=None)
        while self._timers and self._is_outdated(self._timers[0]):
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def _is_outdated(self, timer: _Timer) -> bool:
        telling = self._telling.get(timer[-1])
        return telling is None or telling.due_us != timer[0]

    def answered(self, apex: Name, target: Target, rcode: int, now_us: int) -> Result | None:
        """An answer that holds came to what was sent last. None: nothing was asked. An error code
        does not end it: a secondary may be told of its zone in a moment."""
        pair = apex, target
        telling = self._telling.get(pair)
        if telling is None or telling.sent is None:
            return None
        if rcode not in (_NOERROR, _NOTIMP):
            self._refused += 1
            telling.last_rcode = rcode
            return REFUSED
        self._acknowledged += 1
        if telling.serial == telling.sent:
            self._told[pair] = telling.serial
            self._finish(pair)
        else:
            self._in_flight -= 1
            telling.sent, telling.attempts = None, 0
            self._set_timer(pair, now_us)
        return ACKNOWLEDGED if rcode == _NOERROR else UNSUPPORTED

    def _set_timer(self, pair: _Pair, due_us: int) -> None:
        self._telling[pair].due_us = due_us
        apex, target = pair
        heapq.heappush(self._timers, (due_us, apex, str(target), pair))

    def _finish(self, pair: _Pair) -> None:
        telling = self._telling.pop(pair)
        self._in_flight -= telling.sent is not None
