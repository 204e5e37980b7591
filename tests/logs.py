"""What tests of logs share: clocks that stand, chance that repeats, events to record."""

import random
from collections.abc import Iterable
from pathlib import Path

from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.adapters.sqlite.log import SQLiteEventLog
from kudurru.domain.events import OBJECT_APPLIED, ChangeSet, Event, Who
from kudurru.domain.objects import Key
from kudurru.domain.ports import LogRow, VerifiableLog

NOON_US = 1_760_000_000_000_000


class StillClock:
    """Moves when told to."""

    def __init__(self, now_us: int = NOON_US) -> None:
        self.wall_us = now_us
        self.since_us = 0

    def now_us(self) -> int:
        return self.wall_us

    def monotonic_us(self) -> int:
        return self.since_us

    def advance(self, us: int) -> None:
        self.wall_us += us
        self.since_us += us


class SeededEntropy:
    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)

    def token(self, size: int) -> bytes:
        return self._random.randbytes(size)


def memory_log() -> MemoryEventLog:
    return MemoryEventLog(entropy=SeededEntropy(), clock=StillClock())


def sqlite_log(path: Path, *, create: bool = True) -> SQLiteEventLog:
    return SQLiteEventLog.open(path, entropy=SeededEntropy(), clock=StillClock(), create=create)


def key(name: str) -> Key:
    return Key(f"DNSRecordSet/default/{name}")


def applied(
    name: str, ver: int = 1, *, scope: str = "default/example.org", body: bytes | None = None
) -> Event:
    return Event(
        type=OBJECT_APPLIED,
        key=key(name),
        ver=ver,
        scope=scope,
        manager="kudurru",
        body=b'{"name":"%s","ver":%d}' % (name.encode(), ver) if body is None else body,
    )


def change(*events: Event, actor: str = "user:1000") -> ChangeSet:
    return ChangeSet(events, Who(actor=actor, source="test", reason="because", wall=NOON_US))


def history() -> list[ChangeSet]:
    """Five change sets, ten events: streams of several versions, three scopes."""
    return [
        change(applied("www"), applied("mail"), applied("db", scope="team/internal.test")),
        change(applied("www", 2)),
        change(applied("mail", 2, body=b'{"text":"\xc3\xa9"}'), actor="token:ci"),
        change(applied("www", 3), applied("api"), applied("ftp", scope=""), applied("www", 4)),
        change(applied("db", 2, scope="team/internal.test")),
    ]


def recorded_history(log: VerifiableLog, change_sets: Iterable[ChangeSet] | None = None) -> None:
    """One append a change set, a second apart."""
    for second, change_set in enumerate(history() if change_sets is None else change_sets):
        log.append([change_set], NOON_US + second * 1_000_000)


def rows_of(log: VerifiableLog) -> list[LogRow]:
    return list(log.rows())
