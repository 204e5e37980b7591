"""What the domain needs from outside, as Protocols. Adapters implement them; one contract suite
per port (tests/contracts, for stores tests/conformance/store) runs on every adapter."""

import builtins
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import msgspec

from kudurru.domain.dns.upstreams import UpstreamAddress
from kudurru.domain.events import ChangeSet, Position, Recorded
from kudurru.domain.later import Later
from kudurru.domain.object_store import Outcome
from kudurru.domain.objects import Key
from kudurru.domain.query_log import Answered, Repeat
from kudurru.domain.tree import Edge, Tile


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


class SecretBox(Protocol):
    """Seals secrets with the key of this node, and opens what was sealed with it."""

    @property
    def id(self) -> str:
        """Names the node key; "" while there is none."""
        ...

    def seal(self, owner: Key, secret: bytes) -> bytes:
        """Raises: StorageFailed, Invalid when there is no key to seal with."""
        ...

    def open(self, owner: Key, sealed: bytes) -> bytes | None:
        """None when it was sealed with another key, for another owner, or is damaged."""
        ...

    def id_of(self, sealed: bytes) -> str:
        """Which node key sealed this; "" when that cannot be told."""
        ...


class LogHead(msgspec.Struct, frozen=True):
    """The newest place of a log."""

    seq: Position
    ts: int  # microseconds UTC of the newest event, 0 when empty
    hash: bytes  # head of the chain, 32 bytes


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

    @property
    def is_shared(self) -> bool:
        """Other nodes append too, over a network: reading it may take long, or fail."""
        ...

    @property
    def last_contact_us(self) -> int:
        """Microseconds UTC, when the other end of that network last answered; 0 for a local
        log."""
        ...

    def append(
        self, change_sets: Sequence[ChangeSet], now_us: int, *, head_seq: int | None = None
    ) -> list[Recorded]:
        """Record all change sets in order, in one transaction. Durable when it returns.

        `ts` of every event is max(newest ts, now_us). `head_seq` is the position that the change
        was decided at, where it depends on more than the streams that it continues.
        Raises: Conflict when a stream is not at the version the events continue, or the log is
        not at `head_seq` (nothing is recorded); Busy when other nodes hold the log for too long;
        StorageFailed when the storage refuses (nothing is recorded, unless the message says that
        this is open); StorageBroken when the file is damaged, or a commit failed in a way that
        leaves it open what is recorded: then every later append is refused until the log is
        opened again; LogDamaged when the row that this process wrote or read last is gone or has
        another head.
        """
        ...

    def on_wait(self, wake: Callable[[], None]) -> None:
        """From now on call this, in the thread of an append, once all that is left of it is to wait
        for the storage. It must not raise. A log that need not wait never calls."""
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

    def check_storage(self) -> None:
        """Hold what the storage keeps beside the rows, its indexes, against them. As slow as
        reading all of it. Raises: LogDamaged."""
        ...

    def secret(self, key: Key) -> bytes | None:
        """The secret part of an object, sealed, as a change set wrote it last; None when there is
        none: it is kept beside the log, and a log may come without it."""
        ...

    def scopes(self) -> list[str]:
        """Every scope that an event was ever recorded in."""
        ...

    def oldest(self) -> Position:
        """The first position whose state can be told: 0, or where the newest pruning ended."""
        ...

    def births(self, kind: str, upto: int) -> Iterator[Recorded]:
        """For each object of a kind that is there at a position, the event that made it: the
        first of its stream, or the first after its last deletion; after a pruning the first that
        is left. In no order."""
        ...

    def follow(self, wake: Callable[[], None]) -> None:
        """Call `wake`, from any thread and until `close`, when other processes may have appended.
        Nobody calls it where no other process appends."""
        ...

    def elector(self, name: str) -> "Elector":
        """Of one leader among all who use this log. Raises: Invalid, see `checked_role`."""
        ...

    def close(self) -> None: ...


class Elector(Protocol):
    """One leader per store and name. A term is from the end of `campaign` to the end of `lost`; who
    led then ends its work and resigns, and may campaign again."""

    async def campaign(self) -> None:
        """Wait until this process leads. A round that fails is followed by another. Raises:
        KudurruError when it cannot run at all."""
        ...

    async def lost(self) -> None:
        """Wait until it leads no more. Another may lead already by then: a leader's writes carry
        the versions that they were decided on."""
        ...

    async def resign(self) -> None:
        """Let another lead. Idempotent."""
        ...


@runtime_checkable
class NamesLeader(Protocol):
    """What an elector may also be able to do: tell who leads, wherever that is."""

    node_name: str
    """By which this process is known to the others. Set before it campaigns."""

    async def leader(self) -> str | None:
        """Name of the node that leads, None: none does. Raises: StorageFailed."""
        ...


class LogRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A stored row, column by column, as the verifier reads it and as followers are sent it. None
    is a stored NULL."""

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


class StoredCheckpoint(msgspec.Struct, frozen=True, array_like=True):
    """A signed checkpoint as it is kept beside the log."""

    size: int  # events that it covers
    note: str  # C2SP signed note
    frontier: bytes  # roots of the full subtrees of the tree, 32 octets each, the largest first
    state: bytes | None = None
    """SHA-256 of the body of its checkpoint.state.v1; of an anchor the rows kept, see `Anchor`."""


class Erasure(msgspec.Struct, frozen=True):
    """A payload to erase, salt and all, in the rows first <= seq <= last."""

    first: int
    last: int
    part: Literal["body", "who"]


class Anchor(msgspec.Struct, frozen=True, array_like=True):
    """Where a pruned log begins: a checkpoint, and the rows before it that are still needed."""

    size: int  # of the first checkpoint after the rows that went
    kept: bytes  # one bit a row, the first row in the lowest bit of the first octet

    @property
    def upto(self) -> Position:
        """Rows up to here went, but for those that are kept; a multiple of TILE_WIDTH, so that
        the tiles have all their leaves."""
        return Position(len(self.kept) * 8)

    def keeps(self, seq: int) -> bool:
        return bool(self.kept[(seq - 1) >> 3] >> ((seq - 1) & 7) & 1)

    def runs(self) -> Iterator[tuple[int, int]]:
        """First and last position of each run of rows that go, in order."""
        first = 0
        for seq in range(1, self.upto + 1):
            if self.keeps(seq):
                if first:
                    yield first, seq - 1
                first = 0
            else:
                first = first or seq
        if first:
            yield first, self.upto


class Upkeep(msgspec.Struct, frozen=True):
    """What an append takes away in its transaction. The events of that append say so."""

    erase: tuple[Erasure, ...] = ()
    prune: Anchor | None = None
    epoch: int = 0  # that the log is in from then on; 0: as before


SignTree = Callable[[Edge, bytes], StoredCheckpoint]
"""(tree after an append, body of its last event) to the checkpoint that is stored with it."""


class VerifiableLog(EventLog, Protocol):
    """A log whose rows, tree and checkpoints can be read as they are stored."""

    def rows(self, after: int = 0, upto: int | None = None) -> Iterator[LogRow]:
        """Raw rows in order of seq, streamed, nothing checked."""
        ...

    def append_signed(
        self,
        change_sets: Sequence[ChangeSet],
        now_us: int,
        sign: SignTree | None,
        upkeep: Upkeep | None = None,
        *,
        head_seq: int | None = None,
    ) -> list[Recorded]:
        """`append`, and in the same transaction the checkpoint that `sign` makes of the tree, and
        what `upkeep` takes away."""
        ...

    def anchor(self) -> Anchor | None:
        """Of the newest pruning, None when there was none."""
        ...

    def hashes(self, level: int, first: int, last: int) -> Sequence[bytes]:
        """Stored hashes of one tile, see `domain.tree.ReadHashes`. Fewer where some are
        missing."""
        ...

    def checkpoints(self, after: int = 0) -> Iterator[StoredCheckpoint]:
        """In order of size, those of more than `after` events."""
        ...

    def newest_checkpoint(self) -> StoredCheckpoint | None: ...


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of another node's log that were checked, and all that is stored with them."""

    rows: Sequence[LogRow]  # in order; where they leave positions out, those were pruned there
    tiles: Sequence[Tile]
    checkpoints: Sequence[StoredCheckpoint]
    upkeep: Upkeep  # what these rows say was taken away
    secrets: Sequence[tuple[Key, bytes | None]] = ()
    head: LogHead  # of the log that ends with them
    edge: Edge
    is_whole: bool  # no change set is cut, no gap is unexplained: it is to be made durable


Document = Mapping[str, Any]
"""An object as people see it: apiVersion, kind, metadata, spec, status."""


class ListPage(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a list, as the store was at `resource_version`."""

    items: list[dict[str, Any]]
    resource_version: str
    continue_: str = ""  # give it back for the next page; empty: this is the last


class WatchEvent(msgspec.Struct, frozen=True):
    """Added and Modified both mean "this is how the object is now"; Deleted has it as it was last.
    The one Bookmark has no object: what was there when the watch began has been delivered."""

    type: Literal["Added", "Modified", "Deleted", "Bookmark"]
    resource_version: str  # where a later watch may resume
    object: dict[str, Any] | None = None


class Watch(Protocol):
    """A stream of changes. When it ends by itself the consumer has to watch again."""

    def __aiter__(self) -> AsyncIterator[WatchEvent]: ...

    async def __anext__(self) -> WatchEvent: ...

    async def stop(self) -> None:
        """End the stream; it has ended when this returns. Idempotent."""
        ...


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Every object as of one version of the store."""

    cluster_id: str
    resource_version: str
    objects: list[dict[str, Any]]


class StoreInfo(msgspec.Struct, frozen=True, kw_only=True):
    driver: str  # memory, sqlite, postgres, kubernetes
    atomic_batches: bool  # apply_many is all or nothing; else it may end PartiallyApplied
    cluster_id: str  # of whoever shares the objects: the log, the cluster
    resource_version: str
    last_contact: int = 0  # microseconds UTC, when the backing store last answered; 0: local


class Store(Protocol):
    """The objects, whatever keeps them. Its rules are in tests/conformance/store.

    Belongs to one event loop. Every call raises Closed after `close`, and StorageFailed when the
    backing store cannot be asked.
    """

    async def apply(
        self,
        object: Document,  # noqa: A002  # what else it would be called
        manager: str,
        *,
        force: bool = False,
        expected_resource_version: str | None = None,
        dry_run: bool = False,
        reason: str = "",
        allow_mass_change: bool = False,
    ) -> Outcome:
        """Create the object, or replace its spec, labels and annotations; its status stays.

        Raises: Invalid with a cause per fault; ManagedBy unless `force`, which takes over the
        object whole; Conflict when it is not at the expected version, or absent; MassChange when
        much of a zone would be lost, unless `allow_mass_change`.
        """
        ...

    async def update_status(self, object: Document, manager: str) -> Outcome:  # noqa: A002
        """Replace the status, and nothing else. Raises: NotFound; Conflict when the object's
        resourceVersion is not the one that the store has; Invalid when it has none."""
        ...

    async def delete(
        self,
        ref: Key,
        *,
        expected_resource_version: str | None = None,
        manager: str | None = None,
        force: bool = False,
        reason: str = "",
        allow_mass_change: bool = False,
    ) -> None:
        """Raises: NotFound; Conflict; MassChange; ManagedBy when `manager` is given and another,
        unless `force`."""
        ...

    async def apply_many(
        self,
        objects: Sequence[Document],
        manager: str,
        *,
        delete: Sequence[Key] = (),
        force: bool = False,
        dry_run: bool = False,
        reason: str = "",
        allow_mass_change: bool = False,
    ) -> list[Outcome]:
        """One change set: all or nothing where `info().atomic_batches`. Outcomes in the order
        given, applied first. Raises what `apply` and `delete` do; PartiallyApplied when some of
        it was written."""
        ...

    async def get(self, ref: Key) -> dict[str, Any]:
        """Raises: NotFound."""
        ...

    async def list(
        self,
        kind: str,
        namespace: str | None = None,
        label_selector: str = "",
        *,
        limit: int | None = None,
        continue_: str = "",
    ) -> ListPage:
        """Objects of a kind, in order of namespace and name. All pages of a list show one moment.
        Raises: Invalid; Conflict when that moment is too long ago: begin again."""
        ...

    async def watch(
        self, kind: str, namespace: str | None = None, resource_version: str = ""
    ) -> Watch:
        """What is there as Added, then a Bookmark, then changes as they come. A write that was
        done before the call is in the first part. With a `resource_version` that the store can
        resume after, the first part is what changed since; otherwise it is a hint and ignored.
        """
        ...

    async def snapshot(self, *, safe: bool = False) -> Snapshot:
        """`safe` leaves out kinds that hold secrets."""
        ...

    async def restore(
        self, snapshot: Snapshot, *, dry_run: bool = False, reason: str = ""
    ) -> builtins.list[Outcome]:
        """Make objects what the snapshot says, spec, labels and annotations, each as its owner
        there, and delete the others of the kinds in it. Outcomes of what it changes."""
        ...

    def elector(self, name: str) -> Elector: ...

    async def info(self) -> StoreInfo: ...

    async def close(self) -> None:
        """End every watch. Idempotent."""
        ...


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """Something about an object that a person may want to hear of when it happens."""

    key: Key
    uid: str
    type: Literal["Normal", "Warning"]
    reason: str
    message: str


class EventSink(Protocol):
    """Where notices go. What it cannot take it drops, and counts."""

    def post(self, notice: Notice) -> None:
        """Never waits and never raises."""
        ...


class Peer(NamedTuple):
    """Another server, and how to talk to it."""

    address: str
    port: int
    is_tls: bool = False
    server_name: str | None = None  # that its certificate must be for; None: any will do

    def __str__(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"


class TransferClient(Protocol):
    """Asks other servers for their zones. Every wait has an end."""

    async def ask(self, peer: Peer, query: bytes, *, stream: bool = False) -> bytes:
        """The answer to one question, over UDP, or over a connection where `stream` says so or the
        peer takes nothing else. Raises: Unreachable."""
        ...

    def fetch(self, peer: Peer, query: bytes) -> AsyncGenerator[bytes, None]:
        """Messages of the answer over one connection, until the peer closes it or the caller the
        iterator. Raises: Unreachable before the first message, and where one is waited for too
        long."""
        ...


STREAM_IDLE_S = 10
"""How long a connection that carries DNS may be idle (RFC 7766 section 6.2.3: some seconds).
Answers tell it to clients that ask (RFC 7828)."""


FILTERS = b"filters"
"""What filters: policies, groups of clients, lists, and their settings."""
CACHE = b"cache"
"""What upstreams said."""

Origins = Collection[bytes] | None
"""What answers come of: zones, by the keys of their names, FILTERS and CACHE, which are no keys.
None: any of all that is served. Which zones there are at all, and settings, every answer comes of:
when they change, None changes."""

CLIENT_CLASSES_MAX = 127
"""Numbers of classes of clients that an engine knows."""


class Keep(NamedTuple):
    """How a reply may be repeated by an engine that knows the time and its clients: until what it
    comes of changes, and no longer than `until_us` of monotonic time, 0: no end.

    The TTLs at `ttls_at` in the message count down: at a time t they are less by the whole seconds
    between `stored_us` and t, of which `aged_s` were taken off already.
    """

    is_restricted: bool = False  # only for clients who may recurse
    until_us: int = 0
    stored_us: int = 0
    aged_s: int = 0
    ttls_at: tuple[int, ...] = ()
    tally: tuple[str, ...] = ()
    """What each repeat is counted as, beside its type and RCODE: ("blocked", policy, list),
    ("rewritten",) or ("cache", "positive" or "negative")."""
    cookie_at: int = 0
    """Offset in the message of a DNS cookie (RFC 7873), which is made anew for each client by the
    rules of `domain.dns.cookies`; 0: there is none."""
    client_class: int = 0
    """Only for clients of one class, 1 to CLIENT_CLASSES_MAX, of which `client` is one: those to
    whom the same policies apply, until FILTERS change. 0: for all."""
    client: bytes = b""


class Reply(NamedTuple):
    """An answer of the pipeline, ready to send."""

    wire: bytes
    memo: bool
    """The same octets, but for the ID and the letter case of the question, may be given to
    anybody who sends the same query over the same kind of transport, until what it comes of
    changes."""
    more: Iterator[bytes] | None = None
    """Messages that follow, of a transfer, each made when it is asked for; on "tcp" and "tls"
    there may be any number, elsewhere none."""
    keep: Keep | None = None
    """How it may be repeated by an engine that can do more than `memo` says."""
    origins: Origins = None
    """What it comes of: it is as good as new until one of these changes."""


class SharedTexts(msgspec.Struct, frozen=True):
    """What a cluster keeps under one name, as a ConfigMap does: texts by key, of one version."""

    version: str
    texts: dict[str, bytes]


class ConfigMaps(Protocol):
    """Texts that a cluster keeps for those who run in it."""

    def follow(self, namespaces: Collection[str], changed: Callable[[str, str], None]) -> None:
        """From now on tell of what is new, changed or gone in these namespaces, as far as they can
        be followed: (namespace, name). What is there is told once at first."""
        ...

    async def read(self, namespace: str, name: str) -> SharedTexts:
        """As it is now. Raises: NotFound, StorageFailed."""
        ...


class ClusterUser(msgspec.Struct, frozen=True):
    """Somebody whom a cluster knows, as it knows him."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, list[str]] = {}


class ClusterReviews(Protocol):
    """Whom a cluster knows, and what it lets them do. What it said holds for some seconds."""

    async def user(self, token: str) -> ClusterUser | None:
        """Whose token it is; None where it is nobody's, or not meant for us. Raises:
        StorageFailed when that cannot be told."""
        ...

    async def refusal(self, user: ClusterUser, verb: str, key: Key) -> str:
        """Why somebody may not do that with an object, a sentence; "" where he may. `verb` is the
        cluster's: get, list, create, patch, delete. Raises: StorageFailed when that cannot be
        told."""
        ...


class Neighbours(Protocol):
    """Hardware addresses of the hosts on the same links."""

    def mac_of(self, address: bytes) -> bytes:
        """6 octets for an address of 4 or 16, empty when it is not known. Answers from memory: it
        is asked for every query."""
        ...


class QueryHandler(Protocol):
    def handle(self, packet: bytes, client: str, proto: str) -> Reply | Later[Reply | None] | None:
        """Answer one DNS message of at least 12 octets, at once or later. A reply to come is
        settled within some seconds, whatever happens; who does not want it any more cancels it.

        `client` is the address in text without port, `proto` a listener's protocol ("udp",
        "tcp", "tls", "https", "h3", "quic"). A reply over UDP has at most 4,096 octets. None: send
        nothing (a drop).
        """
        ...


class IdentifyingHandler(Protocol):
    """A query handler that also wants to know what clients call themselves."""

    takes_client_ids: bool

    def handle(
        self, packet: bytes, client: str, proto: str, client_id: str = ""
    ) -> Reply | Later[Reply | None] | None:
        """As `QueryHandler.handle`. `client_id` is one label: of the path of DoH, else the first
        of the name that the client asked for in its TLS handshake."""
        ...

    def names_id(self, client_id: str) -> bool:
        """Whether anything is for those who call themselves so: until FILTERS change, answers to
        all others are those to their addresses."""
        ...

    @property
    def tells_clients_apart(self) -> bool:
        """Whether an answer that is of no zone here may be another one for another client."""
        ...


class RepeatListener(Protocol):
    """A query handler that also wants to hear of the queries that engines answer by themselves."""

    hears_repeats: bool

    def weigh(self) -> int:
        """For how many queries the one stands that is answered now; 0: it is not told of. An engine
        that asks does so for each; one that does not goes by the same setting."""
        ...

    def repeated(self, proto: str, repeats: Iterable[Repeat]) -> None:
        """Queries that got a reply which the handler had given before. Costs what an append
        costs."""
        ...

    def answered(self, answers: Iterable[Answered]) -> None:
        """Queries that an engine answered from the zones, as the handler would have."""
        ...

    def missed(self, count: int) -> None:
        """So many more were answered, of which an engine could not tell."""
        ...


class QueryLimiter(Protocol):
    def admit(
        self,
        clients: Sequence[bytes],
        queries: Sequence[bytes],
        *,
        unknown: Sequence[bytes] | None = None,
    ) -> Sequence[bytes | None] | None:
        """Charge queries that arrived together, one or more, before anything else sees them.

        `clients` are addresses of 4 or 16 octets; `queries` are messages without their ID, of any
        length. `unknown` are those of them that the engine remembers no answer to, None: all of
        them; what is never charged is never remembered, so it is among them. The result is None:
        answer all of them. Else a verdict for each: None, answer it; octets, send those behind its
        ID; no octets, send nothing.
        """
        ...


class EngineStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a packet engine has counted since it was made."""

    received: int = 0
    answered: int = 0  # answers that the system took
    memo_hits: Mapping[tuple[int, int], int] = {}
    """Answers from the memo that were sent, by type (as `record_types.counted_as` has it) and
    RCODE."""
    memo_tallies: Mapping[tuple[str, ...], int] = {}
    """The same by `Keep.tally`, where there was one."""
    memo_unsent: int = 0  # those that the system did not send, and those from the zones
    zone_answers: Mapping[tuple[int, int], int] = {}
    """Answers that the engine took from the zones, counted likewise."""
    dropped_malformed: int = 0  # too short to answer, or longer than any query we take
    dropped_proxyproto: int = 0  # without the PROXY header that is due, or with one that is not
    dropped_full: int = 0  # the system had no room for the answer
    dropped_busy: int = 0  # the handler had too much to do, and was not asked
    dropped_by_handler: int = 0
    dropped_unread: int = 0  # by the system, which had no room; they were never received
    waiting: int = 0  # queries whose answers are to come
    send_errors: int = 0
    unhandled_exceptions: int = 0  # faults of ours; each cost a query its answer
    faults: int = 0  # of ours, that cost none
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

    def invalidate(self, changed: Origins = None) -> None:
        """Forget the answers that come of what changed. When it returns, no later query is answered
        with octets that the handler gave before and that come of it. May be called from any
        thread."""
        ...

    def statistics(self) -> EngineStatistics: ...


class Timer(Protocol):
    def cancel(self) -> None:
        """Harmless when it is over."""
        ...


class Timers(Protocol):
    def call_later(self, delay_us: int, callback: Callable[[], None]) -> Timer:
        """Call back once, after so many microseconds of monotonic time."""
        ...


class Exchange(Protocol):
    """One query to an upstream, while it is under way."""

    @property
    def packet(self) -> bytes:
        """The query, with ID 0: each carrier sets its own."""
        ...

    def received(self, packet: bytes) -> bool:
        """A response with the ID of the query came, whatever that is. False: it is no answer to
        it, and the wait goes on."""
        ...

    def failed(self, why: str) -> None:
        """No response will come. Said at most once."""
        ...


class Carrier(Protocol):
    """A way to one upstream over one transport. Belongs to one event loop."""

    def send(self, exchange: Exchange) -> None:
        """Send the query. Never raises: what goes wrong is told to the exchange, later. How long
        to wait is up to the caller, who then forgets it."""
        ...

    def forget(self, exchange: Exchange) -> None:
        """The caller waits no more. Harmless when it is over."""
        ...

    async def close(self) -> None: ...


class Carriers(Protocol):
    def open(self, address: UpstreamAddress, *, over_tcp: bool = False) -> Carrier:
        """A carrier to an upstream. `over_tcp`: where it answers over UDP too, so that what was
        truncated can be asked again."""
        ...
