"""Event log in memory: the same contract and the same chain as on disk, gone with the process.

For tests, for `--store memory`, and as the shortest statement of what a log is.
"""

import asyncio
import threading
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence

from msgspec.structs import replace

from kudurru.adapters.memory.elector import MemoryElector
from kudurru.adapters.recorder import RecordedLog, check_head, continue_streams, secret_writes
from kudurru.domain.chain import Sealed, genesis, origin_of, row_of, salts_size, seal
from kudurru.domain.events import ChangeSet, Position, Recorded
from kudurru.domain.leadership import checked_role
from kudurru.domain.objects import Key
from kudurru.domain.ports import (
    Anchor,
    Clock,
    Entropy,
    LogHead,
    LogRow,
    SignTree,
    StoredCheckpoint,
    Upkeep,
)
from kudurru.domain.tree import TILE_WIDTH, Edge


class MemoryEventLog(RecordedLog):
    def __init__(self, *, entropy: Entropy, clock: Clock, epoch: int = 1) -> None:
        super().__init__(clock)
        self.log_id = entropy.token(16).hex()
        self.epoch = epoch
        self._entropy = entropy
        self._lock = threading.Lock()
        self._rows: list[Sealed | None] = []  # row of seq at seq - 1; None where it was pruned
        self._newest: Sealed | None = None
        self._anchor: Anchor | None = None
        self._streams: dict[Key, list[int]] = {}  # key to the seqs of its events
        self._scopes: dict[str, list[int]] = {}
        self._leaders: dict[str, asyncio.Lock] = {}
        self._genesis = genesis(origin_of(self.log_id, epoch))
        self._edge = Edge()
        self._tiles: dict[tuple[int, int], tuple[bytes, ...]] = {}
        self._checkpoints: list[StoredCheckpoint] = []
        self._secrets: dict[Key, bytes] = {}

    def insert(
        self,
        change_sets: Sequence[ChangeSet],
        now_us: int,
        first: Collection[int],
        *,
        head_seq: int | None = None,
        sign: SignTree | None = None,
        upkeep: Upkeep | None = None,
    ) -> list[Recorded]:
        with self._lock:
            check_head(len(self._rows), head_seq)
            continue_streams(change_sets, self._version, first)
            salts = self._entropy.token(salts_size(change_sets))
            sealed = seal(change_sets, self.head(), now_us, salts)
            edge, tiles = self._edge.extended([row.leaf for row in sealed])
            if sign is not None:
                self._checkpoints.append(sign(edge, sealed[-1].event.body or b""))
            self._edge = edge
            self._tiles.update({(tile.level, tile.index): tile.hashes for tile in tiles})
            for key, secret in secret_writes(change_sets).items():
                if secret is None:
                    self._secrets.pop(key, None)
                else:
                    self._secrets[key] = secret
            for row in sealed:
                event = row.event
                self._streams.setdefault(event.key, []).append(event.seq)
                self._scopes.setdefault(event.scope, []).append(event.seq)
            self._rows += sealed  # last: who finds a seq in an index finds the row too
            self._newest = sealed[-1] if sealed else self._newest
            if upkeep is not None:
                self._take_away(upkeep)
        return [row.event for row in sealed]

    def secret(self, key: Key) -> bytes | None:
        return self._secrets.get(key)

    def _take_away(self, upkeep: Upkeep) -> None:
        for erasure in upkeep.erase:
            for at in range(erasure.first - 1, erasure.last):
                self._rows[at] = _erased(self._rows[at], erasure.part)
        self.epoch = upkeep.epoch or self.epoch
        if upkeep.prune is not None:
            self._anchor = upkeep.prune
            for first, last in upkeep.prune.runs():
                self._rows[first - 1 : last] = [None] * (last - first + 1)

    def anchor(self) -> Anchor | None:
        return self._anchor

    def _version(self, key: Key) -> int | None:
        # The newest row of a stream is never pruned.
        event = self._event(seqs[-1]) if (seqs := self._streams.get(key)) else None
        return event.ver if event is not None else None

    def head(self) -> LogHead:
        row = self._newest
        if row is None:
            return LogHead(Position(0), 0, self._genesis)
        return LogHead(row.event.seq, row.event.ts, row.head)

    def get(self, seq: int) -> Recorded | None:
        return self._event(seq)

    def _event(self, seq: int) -> Recorded | None:
        row = self._rows[seq - 1] if 0 < seq <= len(self._rows) else None
        return row.event if row is not None else None

    def read(
        self,
        after: int = 0,
        upto: int | None = None,
        *,
        scope: str | None = None,
        key: Key | None = None,
        newest_first: bool = False,
    ) -> Iterator[Recorded]:
        last = len(self._rows) if upto is None else min(upto, len(self._rows))
        seqs: Sequence[int] = range(max(after, 0) + 1, last + 1)
        if key is not None or scope is not None:
            found = self._streams.get(key) if key is not None else self._scopes.get(scope or "")
            found = found or []
            seqs = found[bisect_right(found, after) : bisect_right(found, last)]
        for seq in reversed(seqs) if newest_first else seqs:
            event = self._event(seq)
            if event is not None and (scope is None or event.scope == scope):
                yield event

    def stream_version(self, key: Key) -> int:
        return self._version(key) or 0

    def scopes(self) -> list[str]:
        return list(self._scopes)

    def rows(self, after: int = 0, upto: int | None = None) -> Iterator[LogRow]:
        last = len(self._rows) if upto is None else min(upto, len(self._rows))
        found = (self._rows[seq - 1] for seq in range(max(after, 0) + 1, last + 1))
        return (row_of(row) for row in found if row is not None)

    def hashes(self, level: int, first: int, last: int) -> Sequence[bytes]:
        index, at = divmod(first, TILE_WIDTH)
        tile = self._tiles.get((level, index))
        if tile is None and level == 0:
            return [row.leaf for row in self._rows[first:last] if row is not None]
        return (tile or ())[at : at + last - first]

    def checkpoints(self, after: int = 0) -> Iterator[StoredCheckpoint]:
        return (found for found in tuple(self._checkpoints) if found.size > after)

    def newest_checkpoint(self) -> StoredCheckpoint | None:
        return self._checkpoints[-1] if self._checkpoints else None

    def elector(self, name: str) -> MemoryElector:
        return MemoryElector(self._leaders.setdefault(checked_role(name), asyncio.Lock()))

    def close(self) -> None:
        """Nothing is held but memory."""


def _erased(row: Sealed | None, part: str) -> Sealed | None:
    if row is None:
        return None
    if part == "body":
        return replace(row, event=replace(row.event, body=None), salt=None)
    return replace(row, event=replace(row.event, who=None), who_salt=None)
