"""Secondary zones: when to ask which primary for what, and what their status says.

Times of the SOA (RFC 1034 section 4.3.5): a zone is refreshed every `refresh` seconds, a failure
is tried again after `retry`, and when nothing was heard for `expire` seconds the zone is not served
any more. All of it is plain values: the state and the time lead to the next state. `now_us` is
monotonic, so that a clock that jumps expires no zone; `chance` is a number from 0 to 1 by which
zones that were loaded together do not come back together.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from kudurru.domain.dns import names
from kudurru.domain.dns.serials import is_newer
from kudurru.domain.dns.soa import Soa
from kudurru.domain.dns.transfer import Version
from kudurru.domain.kinds.zone import TransferredSoa

REFRESH_MIN_S, REFRESH_MAX_S = 1, 28 * 86_400
RETRY_MIN_S, RETRY_MAX_S = 1, 14 * 86_400
"""What the SOA says is held to these: zero would ask without a pause, and a month without a
look is a slip of somebody's finger."""

FIRST_RETRY_S, FIRST_RETRY_MAX_S = 2, 600
"""A zone that was never transferred has no SOA that says when to try again."""

NOTIFY_GAP_S = 1
"""Between two refreshes that NOTIFY leads to: whoever forges a primary's address must not make us
ask it without a pause."""

BACK_OFF_MAX = 8
"""Doublings of the retry time while a zone's primaries fail."""

_S = 1_000_000


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """When one zone is due. Microseconds of a monotonic clock."""

    next_us: int
    expires_us: int | None  # None: it holds nothing that could expire
    failures: int = 0  # refreshes in a row that no primary answered
    first: int = 0  # primary to begin with
    asked_us: int | None = None  # when the last refresh ended
    is_notified: bool = False  # a NOTIFY came during a refresh: look again right after it


def manager_of(zone: str) -> str:
    """The manager and actor of a secondary zone's record sets; `zone` is the DNSZone's name."""
    return f"secondary:{zone}"


def begin(soa: Soa | None, age_s: int, now_us: int) -> Schedule:
    """Of a zone that is met for the first time, or after a start: it is refreshed at once. `age_s`
    is how long ago it was last known to be right; less than nothing counts as nothing."""
    if soa is None:
        return Schedule(next_us=now_us, expires_us=None)
    left_s = expire_s(soa) - max(0, age_s)
    return Schedule(next_us=now_us, expires_us=now_us + left_s * _S)


def expire_s(soa: Soa) -> int:
    """How long a zone is served that nobody confirms: as long as its SOA says, and no less than one
    refresh and one retry after it take (RFC 1912 section 2.2). Else it would go before anybody was
    asked, come back with the answer, and each time write that into the log."""
    refresh_s = _within(soa.refresh, REFRESH_MIN_S, REFRESH_MAX_S)
    retry_s = _within(soa.retry, RETRY_MIN_S, RETRY_MAX_S)
    return max(soa.expire, refresh_s + retry_s)


def refreshed(schedule: Schedule, soa: Soa, first: int, now_us: int, chance: float) -> Schedule:
    """A primary, `first`, has what we have, or we have now what it has."""
    refresh_s = _within(soa.refresh, REFRESH_MIN_S, REFRESH_MAX_S)
    wait_us = NOTIFY_GAP_S * _S if schedule.is_notified else _spread(refresh_s, chance)
    return Schedule(
        next_us=now_us + wait_us,
        expires_us=now_us + expire_s(soa) * _S,
        first=first,
        asked_us=now_us,
    )


def failed(schedule: Schedule, soa: Soa | None, now_us: int, chance: float) -> Schedule:
    """None of the primaries would do. Retries become rarer, and never rarer than refreshes."""
    if soa is None:
        wait_s = min(FIRST_RETRY_S << min(schedule.failures, BACK_OFF_MAX), FIRST_RETRY_MAX_S)
    else:
        retry_s = _within(soa.retry, RETRY_MIN_S, RETRY_MAX_S)
        refresh_s = _within(soa.refresh, REFRESH_MIN_S, REFRESH_MAX_S)
        backed_off = retry_s << min(schedule.failures, BACK_OFF_MAX)
        wait_s = min(backed_off, max(retry_s, refresh_s))
    wait_us = NOTIFY_GAP_S * _S if schedule.is_notified else _spread(wait_s, chance)
    return msgspec.structs.replace(
        schedule,
        next_us=now_us + wait_us,
        failures=schedule.failures + 1,
        first=0,
        asked_us=now_us,
        is_notified=False,
    )


def notified(schedule: Schedule, primary: int, now_us: int, *, is_busy: bool) -> Schedule:
    """A primary says that there is something new. Many such come to one refresh."""
    if is_busy:
        return msgspec.structs.replace(schedule, is_notified=True)
    soon_us = now_us
    if schedule.asked_us is not None:
        soon_us = max(now_us, schedule.asked_us + NOTIFY_GAP_S * _S)
    return msgspec.structs.replace(schedule, next_us=min(schedule.next_us, soon_us), first=primary)


def _within(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)


def _spread(wait_s: int, chance: float) -> int:
    """Up to a tenth less, so that zones drift apart and none is late."""
    return int(wait_s * _S * (1 - chance / 10))


# --- one refresh ----------------------------------------------------------------------------


class AskSerial(msgspec.Struct, frozen=True):
    """Ask a primary for its SOA."""

    primary: int


class Fetch(msgspec.Struct, frozen=True):
    """Transfer from a primary: differences to what we have, or the zone whole."""

    primary: int
    is_incremental: bool


class Settled(msgspec.Struct, frozen=True):
    """The refresh is over. `primary` is the one that had an answer, None: none would do."""

    primary: int | None


Reason = Literal["Unreachable", "Refused", "BadTransfer", "Behind"]


class Failure(msgspec.Struct, frozen=True):
    """Why a primary would not do."""

    primary: int
    reason: Reason
    message: str


class Refresh:
    """One round of the primaries, from `first` on: each is asked for its serial, and where that is
    newer for the differences, and where those will not do for the whole zone.

    `step` says what to do; the answer goes in by one of the methods below it.
    """

    def __init__(
        self, primaries: Sequence[str], first: int, serial: int | None, *, needs_whole: bool
    ) -> None:
        """`serial` is ours, None without a version; `needs_whole` that ours is not as its serial
        says, so that it is fetched again whole, also under the same serial."""
        self._addresses = primaries
        count = len(primaries)
        first = first if first < count else 0
        self._left = [(first + i) % count for i in range(count)]
        self._serial = serial
        self._needs_whole = needs_whole
        self.failures: list[Failure] = []
        self.step: AskSerial | Fetch | Settled = AskSerial(self._left.pop(0))

    def why_not(self) -> Failure:
        """Of a refresh that failed: what says most. That one primary does not answer says less
        than what another answers."""
        said = [failure for failure in self.failures if failure.reason != "Unreachable"]
        return (said or self.failures)[-1]

    def serial_is(self, serial: int) -> None:
        """A primary's answer to AskSerial."""
        ours, primary = self._serial, self._primary()
        if ours is None or (self._needs_whole and (serial == ours or is_newer(serial, ours))):
            self.step = Fetch(primary, is_incremental=False)
        elif serial == ours:
            self.step = Settled(primary)
        elif is_newer(serial, ours):
            self.step = Fetch(primary, is_incremental=True)
        else:
            self.failed("Behind", f"it is at serial {serial}, behind ours, {ours}")

    def done(self) -> None:
        """What was fetched is recorded, or there was nothing new."""
        self.step = Settled(self._primary())

    def failed(self, reason: Reason, message: str) -> None:
        """The primary would not do. Differences that fail are followed by the whole zone, unless
        nobody answered there."""
        step, primary = self.step, self._primary()
        text = f"{self._addresses[primary]}: {message}"
        self.failures.append(Failure(primary, reason, text))
        if isinstance(step, Fetch) and step.is_incremental and reason != "Unreachable":
            self.step = Fetch(primary, is_incremental=False)
        elif self._left:
            self.step = AskSerial(self._left.pop(0))
        else:
            self.step = Settled(None)

    def _primary(self) -> int:
        assert self.step.primary is not None, "the refresh is over"
        return self.step.primary


# --- status ---------------------------------------------------------------------------------

_TRANSFERRED = ("soa", "primary", "refreshedAt", "expired")
"""Fields of the status that only a secondary zone has."""

READY, REFRESHED = "Ready", "Refreshed"

NOTHING_TRANSFERRED = "nothing was transferred yet"
NOT_CONFIRMED = "no primary confirmed the zone for as long as its SOA allows"


def soa_to_status(soa: Soa) -> dict[str, Any]:
    return {
        "mname": names.to_text(soa.mname),
        "rname": names.to_text(soa.rname),
        "refresh": soa.refresh,
        "retry": soa.retry,
        "expire": soa.expire,
        "minimum": soa.minimum,
        "ttl": soa.ttl,
    }


def soa_from_status(status: dict[str, Any] | None) -> Soa | None:
    """The SOA that a secondary zone was transferred with; None where there is none, or what is
    there is none of ours."""
    try:
        said = msgspec.convert((status or {}).get("soa"), TransferredSoa)
        return Soa(
            mname=names.from_text(said.mname),
            rname=names.from_text(said.rname),
            refresh=said.refresh,
            retry=said.retry,
            expire=said.expire,
            minimum=said.minimum,
            ttl=said.ttl,
        )
    except (msgspec.ValidationError, names.BadName):
        return None


def is_expired(status: dict[str, Any] | None) -> bool:
    return (status or {}).get("expired") is True


def refreshed_s(status: dict[str, Any] | None) -> int | None:
    """Unix time at which the zone was known to be right, as far as the log says it."""
    text = (status or {}).get("refreshedAt")
    try:
        return int(datetime.fromisoformat(text).timestamp()) if isinstance(text, str) else None
    except ValueError:
        return None


def transferred(
    before: dict[str, Any] | None,
    version: Version,
    *,
    content_hash: str,
    record_count: int,
    generation: int,
    primary: str,
    now_s: int,
) -> dict[str, Any]:
    """The status with a version that was transferred."""
    return {
        **served(before, now_s, generation=generation),
        "observedGeneration": generation,
        "serial": version.serial,
        "soa": soa_to_status(version.soa),
        "contentHash": content_hash,
        "recordCount": record_count,
        "primary": primary,
    }


def served(before: dict[str, Any] | None, now_s: int, *, generation: int) -> dict[str, Any]:
    """The status of a zone that a primary has just confirmed."""
    status = {k: v for k, v in (before or {}).items() if k != "expired"}
    status["refreshedAt"] = _rfc3339(now_s)
    conditions = [
        (READY, "True", "AsExpected", ""),
        (REFRESHED, "True", "AsExpected", ""),
    ]
    return _with(status, conditions, now_s, generation)


def troubled(
    before: dict[str, Any] | None, failure: Failure, now_s: int, *, generation: int
) -> dict[str, Any]:
    """The status of a zone whose primaries will not do. It says why, once for each reason: the
    text of a condition that holds on is that of its beginning."""
    conditions: list[_Said] = [(REFRESHED, "False", failure.reason, failure.message)]
    if soa_from_status(before) is None:
        conditions.append((READY, "False", "NotTransferred", NOTHING_TRANSFERRED))
    return _with(before or {}, conditions, now_s, generation)


def expired(before: dict[str, Any] | None, now_s: int, *, generation: int) -> dict[str, Any]:
    """The status of a zone that was not confirmed for too long."""
    conditions = [(READY, "False", "Expired", NOT_CONFIRMED)]
    return {**_with(before or {}, conditions, now_s, generation), "expired": True}


def without_transfer(status: dict[str, Any] | None) -> dict[str, Any]:
    """What a zone that is no secondary any more keeps of its status."""
    if not status or "soa" not in status:
        return status or {}
    return {k: v for k, v in status.items() if k not in (*_TRANSFERRED, "conditions")}


def with_condition(
    status: dict[str, Any] | None, said: "_Said", now_s: int, *, generation: int
) -> dict[str, Any]:
    """The status with one condition: type, status, reason and message, which may change alone."""
    kind, _, _, message = said
    after = _with(status or {}, [said], now_s, generation)
    conditions = [
        {**c, "message": message} if c["type"] == kind else c for c in after["conditions"]
    ]
    return {**after, "conditions": conditions}


def says_the_same(before: dict[str, Any] | None, after: dict[str, Any]) -> bool:
    """Whether a status differs in no more than the time of its writing."""
    return _essence(before or {}) == _essence(after)


def _essence(status: dict[str, Any]) -> dict[str, Any]:
    return {
        **status,
        "refreshedAt": None,
        "conditions": [(c["type"], c["status"], c["reason"]) for c in status.get("conditions", [])],
    }


_Said = tuple[str, str, str, str]
"""Type, status, reason and message of a condition."""


def _with(
    status: dict[str, Any],
    conditions: Sequence[_Said],
    now_s: int,
    generation: int,
) -> dict[str, Any]:
    """The status with these conditions. The time of one moves only with what it says."""
    there = {c["type"]: c for c in status.get("conditions", []) if isinstance(c, dict)}
    for kind, value, reason, message in conditions:
        old = there.get(kind, {})
        if (old.get("status"), old.get("reason")) == (value, reason):
            continue
        since = old.get("lastTransitionTime") if old.get("status") == value else None
        there[kind] = {
            "type": kind,
            "status": value,
            "reason": reason,
            "message": message,
            "observedGeneration": generation,
            "lastTransitionTime": since or _rfc3339(now_s),
        }
    return {**status, "conditions": [there[kind] for kind in sorted(there)]}


def _rfc3339(now_s: int) -> str:
    return datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
