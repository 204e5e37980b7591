"""What the domain needs from outside, as Protocols. Adapters implement them; one contract suite
per port (tests/contracts) runs on every adapter."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import msgspec

from kudurru.domain.events import ChangeSet, Position, Recorded
from kudurru.domain.objects import Key
from kudurru.domain.tree import Edge


class Clock(Protocol):
    def now_us(self) -> int:
        """Wall time, microseconds UTC. It may jump: use it for when, never for how long."""
        ...

    def monotonic_us(self) -> int:
        """Microseconds since some start. It never goes back: use it for how long."""
        ...


class Entropy(Protocol):
    def token(self, size: int) -> bytes:
        """`size` unpredictable bytes."""
        ...


class LogHead(msgspec.Struct, frozen=True):
    """The newest place of a log."""

    seq: Position
    ts: int  # microseconds UTC of the newest event, 0 when empty
    hash: bytes  # head of the chain, 32 bytes


class StoredCheckpoint(msgspec.Struct, frozen=True):
    """A signed checkpoint as it is kept beside the log."""

    size: int  # events that it covers
    note: str  # C2SP signed note
    frontier: bytes  # roots of the full subtrees of the tree, 32 octets each, the largest first
    state: bytes | None = None  # SHA-256 of the body of its checkpoint.state.v1


class EventLog(Protocol):
    """The append-only, hash-chained log: the one source of truth.

    One process appends at a time (SQLite), or the counter row orders several (PostgreSQL).
    """

    @property
    def log_id(self) -> str:
        """Random name given at creation; part of the chain's origin."""
        ...

    @property
    def epoch(self) -> int: ...

    def append(self, change_sets: Sequence[ChangeSet], now_us: int) -> list[Recorded]:
        """Record all change sets in order, in one transaction. Durable when it returns.

        `ts` of every event is max(newest ts, now_us).
        Raises: Conflict when a stream is not at the version the events continue (nothing is
        recorded); StorageFailed when the storage refuses (nothing is recorded); StorageBroken
        when the file is damaged, or a commit failed in a way that leaves it open what is
        recorded: then every later append is refused until the log is opened again; LogDamaged
        when the row that this process wrote or read last is gone or has another head.
        """
        ...

    def read(
        self,
        after: int = 0,
        upto: int | None = None,
        *,
        scope: str | None = None,
        key: Key | None = None,
        newest_first: bool = False,
    ) -> Iterator[Recorded]:
        """Events with after < seq <= upto in order of seq, streamed in bounded batches.
        Events appended after the call may be left out."""
        ...

    def get(self, seq: int) -> Recorded | None: ...

    def head(self) -> LogHead: ...

    def stream_version(self, key: Key) -> int:
        """Version of the newest event of the stream, 0 when there is none."""
        ...

    def position_at(self, ts_us: int) -> Position:
        """Seq of the last event at or before a time, 0 when there is none."""
        ...

    def scopes(self) -> list[str]:
        """Every scope that an event was ever recorded in."""
        ...

    def checkpoints(self, after: int = 0) -> Iterator[StoredCheckpoint]:
        """In order of size, those of more than `after` events."""
        ...

    def births(self, kind: str, upto: int) -> Iterator[Recorded]:
        """For each object of a kind that is there at a position, the event that made it: the
        first of its stream, or the first after its last deletion. In no order."""
        ...

    def close(self) -> None: ...


class LogRow(msgspec.Struct, frozen=True, gc=False):
    """A stored row, column by column, as the verifier reads it. None is a stored NULL."""

    seq: int
    txn: int
    ts: int
    obj: str | None  # key by the streams table, None when that row is missing
    ver: int
    scope: str | None  # by the scopes table
    type: str
    entry: bytes
    salt: bytes | None
    body: bytes | None
    who_salt: bytes | None
    who: bytes | None
    leaf: bytes
    head: bytes


SignTree = Callable[[Edge, bytes], StoredCheckpoint]
"""(tree after an append, body of its last event) to the checkpoint that is stored with it."""


class VerifiableLog(EventLog, Protocol):
    """A log whose rows, tree and checkpoints can be read as they are stored."""

    def rows(self, after: int = 0, upto: int | None = None) -> Iterator[LogRow]:
        """Raw rows in order of seq, streamed, nothing checked."""
        ...

    def append_signed(
        self, change_sets: Sequence[ChangeSet], now_us: int, sign: SignTree
    ) -> list[Recorded]:
        """`append`, and in the same transaction the checkpoint that `sign` makes of the tree."""
        ...

    def hashes(self, level: int, first: int, last: int) -> Sequence[bytes]:
        """Stored hashes of one tile, see `domain.tree.ReadHashes`. Fewer where some are
        missing."""
        ...

    def newest_checkpoint(self) -> StoredCheckpoint | None: ...


STREAM_IDLE_S = 10
"""How long a connection that carries DNS may be idle (RFC 7766 section 6.2.3: some seconds).
Answers tell it to clients that ask (RFC 7828)."""


class Reply(NamedTuple):
    """An answer of the pipeline, ready to send."""

    wire: bytes
    memo: bool
    """The same octets, but for the ID and the letter case of the question, may be given to
    anybody who sends the same query over the same kind of transport, until `invalidate()`."""


class QueryHandler(Protocol):
    def handle(self, packet: bytes, client: str, proto: str) -> Reply | None:
        """Answer one DNS message of at least 12 octets.

        `client` is the address in text without port, `proto` a listener's protocol ("udp",
        "tcp", "tls", "https", "h3", "quic"). A reply over UDP has at most 4,096 octets. None: send
        nothing (a drop).
        """
        ...


class QueryLimiter(Protocol):
    def admit(
        self, clients: Sequence[bytes], queries: Sequence[bytes]
    ) -> Sequence[bytes | None] | None:
        """Charge queries that arrived together, one or more, before anything else sees them.

        `clients` are addresses of 4 or 16 octets; `queries` are messages without their ID, of any
        length. None: answer all of them. Else a verdict for each: None, answer it; octets, send
        those behind its ID; no octets, send nothing.
        """
        ...


class EngineStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a packet engine has counted since it was made."""

    received: int = 0
    answered: int = 0  # answers that the system took
    memo_hits: tuple[int, ...] = (0,) * 16  # answers from the memo, by RCODE
    dropped_malformed: int = 0  # too short to answer, or longer than any query we take
    dropped_proxyproto: int = 0  # without the PROXY header that is due, or with one that is not
    dropped_full: int = 0  # the system had no room for the answer
    dropped_by_handler: int = 0
    send_errors: int = 0
    unhandled_exceptions: int = 0  # raised by the handler; the query got no answer
    connections: int = 0  # open now; this and the rest are 0 on UDP
    connections_accepted: int = 0
    connections_refused: int = 0
    connections_timed_out: int = 0
    handshakes_failed: int = 0


class PacketEngine(Protocol):
    """Takes queries from sockets, answers repeats itself, asks the handler for the rest.

    It is given sockets that are bound, owns them from then on, and knows nothing of zones.
    """

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where it serves, "192.0.2.1:53" or "[2001:db8::1]:53", one of each."""
        ...

    async def start(self) -> None:
        """Serve. Call once, on the loop that will run it."""
        ...

    async def stop(self) -> None:
        """Stop, close every socket. Harmless when already stopped."""
        ...

    def invalidate(self) -> None:
        """Forget every remembered answer. When it returns, no later query is answered with
        octets that the handler gave before. May be called from any thread."""
        ...

    def statistics(self) -> EngineStatistics: ...
