"""Event log in memory: the same contract and the same chain as on disk, gone with the process.

For tests, for `--store memory`, and as the shortest statement of what a log is.
"""

import asyncio
import threading
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence

from kudurru.adapters.memory.elector import MemoryElector
from kudurru.adapters.recorder import RecordedLog, check_head, continue_streams, secret_writes
from kudurru.domain.chain import Sealed, genesis, origin_of, row_of, salts_size, seal
from kudurru.domain.events import ChangeSet, Position, Recorded
from kudurru.domain.objects import Key
from kudurru.domain.ports import Clock, Entropy, LogHead, LogRow, SignTree, StoredCheckpoint
from kudurru.domain.tree import TILE_WIDTH, Edge


class MemoryEventLog(RecordedLog):
    def __init__(self, *, entropy: Entropy, clock: Clock, epoch: int = 1) -> None:
        super().__init__(clock)
        self.log_id = entropy.token(16).hex()
        self.epoch = epoch
        self._entropy = entropy
        self._lock = threading.Lock()
        self._rows: list[Sealed] = []  # row of seq at seq - 1; only ever appended to
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
        return [row.event for row in sealed]

    def secret(self, key: Key) -> bytes | None:
        return self._secrets.get(key)

    def _version(self, key: Key) -> int | None:
        seqs = self._streams.get(key)
        return self._rows[seqs[-1] - 1].event.ver if seqs else None

    def head(self) -> LogHead:
        if not self._rows:
            return LogHead(Position(0), 0, self._genesis)
        row = self._rows[-1]
        return LogHead(row.event.seq, row.event.ts, row.head)

    def get(self, seq: int) -> Recorded | None:
        return self._rows[seq - 1].event if 0 < seq <= len(self._rows) else None

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
            event = self._rows[seq - 1].event
            if scope is None or event.scope == scope:
                yield event

    def stream_version(self, key: Key) -> int:
        return self._version(key) or 0

    def position_at(self, ts_us: int) -> Position:
        return Position(bisect_right(self._rows, ts_us, key=lambda row: row.event.ts))

    def scopes(self) -> list[str]:
        return list(self._scopes)

    def rows(self, after: int = 0, upto: int | None = None) -> Iterator[LogRow]:
        last = len(self._rows) if upto is None else min(upto, len(self._rows))
        return (row_of(self._rows[seq - 1]) for seq in range(max(after, 0) + 1, last + 1))

    def hashes(self, level: int, first: int, last: int) -> Sequence[bytes]:
        if level == 0:
            return [row.leaf for row in self._rows[first:last]]
        index, at = divmod(first, TILE_WIDTH)
        return self._tiles.get((level, index), ())[at : at + last - first]

    def checkpoints(self, after: int = 0) -> Iterator[StoredCheckpoint]:
        return (found for found in tuple(self._checkpoints) if found.size > after)

    def newest_checkpoint(self) -> StoredCheckpoint | None:
        return self._checkpoints[-1] if self._checkpoints else None

    def elector(self, name: str) -> MemoryElector:
        return MemoryElector(self._leaders.setdefault(name, asyncio.Lock()))

    def close(self) -> None:
        """Nothing is held but memory."""
