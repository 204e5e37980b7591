"""What tests of logs share: clocks that stand, chance that repeats, events to record."""

import random
from collections.abc import Iterable
from pathlib import Path

import msgspec

from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.adapters.signing import check_signature, signing_key
from kudurru.adapters.sqlite.log import SQLiteEventLog
from kudurru.domain.chain import origin_of
from kudurru.domain.checkpoint import AdoptionBody, Checkpoint, adoption_note, checkpoint_of
from kudurru.domain.events import (
    CHECKPOINT_KEY,
    CHECKPOINT_STATE,
    KEY_ADOPTED,
    OBJECT_APPLIED,
    SIGNING_KEY,
    ChangeSet,
    Event,
    Who,
)
from kudurru.domain.objects import Key
from kudurru.domain.ports import LogRow, StoredCheckpoint, Upkeep, VerifiableLog
from kudurru.domain.signed_note import SigningKey
from kudurru.domain.tree import Edge
from kudurru.domain.verify_tree import Trust

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


def log_key(log: VerifiableLog, number: int = 1) -> SigningKey:
    """Key `number` of a log."""
    return signing_key(origin_of(log.log_id, log.epoch), bytes([number]) * 32)


def adopt(log: VerifiableLog, number: int = 1, before: int | None = None) -> ChangeSet:
    """What lets a key sign from here on."""
    previous = log_key(log, before) if before else None
    note = adoption_note(origin_of(log.log_id, log.epoch), log_key(log, number), previous)
    body = msgspec.json.encode(AdoptionBody(note))
    version = log.stream_version(SIGNING_KEY) + 1
    return change(Event(KEY_ADOPTED, SIGNING_KEY, version, "/", "kudurru-controller", body))


def sign(
    log: VerifiableLog, number: int = 1, *before: ChangeSet, upkeep: Upkeep | None = None
) -> StoredCheckpoint:
    """A checkpoint of a log by key `number`, after more change sets and what they take away."""
    version = log.stream_version(CHECKPOINT_KEY) + 1
    state = Event(CHECKPOINT_STATE, CHECKPOINT_KEY, version, "/", "kudurru-controller", b"{}")

    def signed(edge: Edge, body: bytes) -> StoredCheckpoint:
        return checkpoint_of(origin_of(log.log_id, log.epoch), edge, log_key(log, number), body)

    log.append_signed([*before, change(state)], NOON_US, signed, upkeep)
    found = log.newest_checkpoint()
    assert found is not None
    return found


def trust(log: VerifiableLog, *numbers: int, checkpoint: Checkpoint | None = None) -> Trust:
    keys = tuple(log_key(log, number).verifier for number in numbers)
    return Trust(check_signature, keys, checkpoint)
