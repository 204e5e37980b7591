"""What commands ask of a node: one interface, in this process or through a server's socket.

Requests and replies are plain values, so that both ways are the same: `LocalService` works on a
node, `entrypoints.rpc.RemoteService` sends the request to the server that holds the directory.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from kudurru.domain import targets, zone_export
from kudurru.domain.commands import Apply, Command, Delete
from kudurru.domain.dns import names
from kudurru.domain.errors import Cause, Invalid, NotFound
from kudurru.domain.events import SecretWrite, Who
from kudurru.domain.filtering.explain import Explanation
from kudurru.domain.kinds.meta import API_VERSION, DEFAULT_NAMESPACE, NOT_UNICODE, is_unicode
from kudurru.domain.kinds.registry import DNS_ZONE, KINDS
from kudurru.domain.kinds.validation import Manifest, parse_manifest
from kudurru.domain.object_store import (
    DEFAULT_MANAGER,
    manager_faults,
    resource_version,
    to_document,
)
from kudurru.domain.objects import Key, ref_of
from kudurru.domain.selectors import parse_selector
from kudurru.entrypoints.keyring import KeyRequest, KeyState
from kudurru.entrypoints.restoring import Carried, RestoreRequest, UndoRequest
from kudurru.entrypoints.tokens import NewToken, TokenRequest, TokenState
from kudurru.entrypoints.upkeep import PruneRequest, Pruning, Redaction, RedactRequest
from kudurru.entrypoints.wiring import Change, Node, Result

if TYPE_CHECKING:
    from kudurru.entrypoints.filtering import BlockingRequest, BlockingState, ExplainRequest
    from kudurru.entrypoints.list_service import ListRow
    from kudurru.entrypoints.live_settings import PatchReply, PatchRequest

PAGE_MAX = 500
LOOPBACK = "127.0.0.1"
REASON_MAX = 1024


class ChangeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Objects to apply and keys to delete, together or not at all."""

    apply: list[Manifest] = []
    delete: list[Key] = []
    manager: str = DEFAULT_MANAGER
    force: bool = False
    dry_run: bool = False
    reason: str = ""
    imported_serials: dict[str, int] = {}
    allow_mass_change: bool = False
    is_versioned: bool = False
    """Objects are applied only onto the resourceVersion that they name."""


class ListRequest(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    namespace: str | None = None  # None: all
    selector: str = ""
    limit: int = PAGE_MAX
    start: str = ""  # key where the page begins


class MarkRequest(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    reason: str = ""


class Erased(msgspec.Struct, frozen=True, kw_only=True):
    """What a redaction has erased: `part` of the rows from `first` to `last`."""

    first: int
    last: int
    part: str
    others: list[int]  # positions of the same object whose content is still there


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """What a pruning has taken away, or would: `rows` of those up to `upto`."""

    upto: int = 0  # 0: nothing
    anchor: int = 0  # size of the checkpoint that the log begins with
    rows: int = 0
    kept: int = 0


class PromoteRequest(msgspec.Struct, frozen=True, kw_only=True):
    force: bool = False  # though the leader takes writes, or a peer cannot be asked
    reason: str = ""


class Promoted(msgspec.Struct, frozen=True, kw_only=True):
    origin: str  # of the log from here on
    position: int  # of the event that begins it
    followed: str  # URL of the leader before
    warnings: list[str] = []


class ListReply(msgspec.Struct, frozen=True, kw_only=True):
    items: list[dict[str, Any]]
    resource_version: str
    next_key: str | None


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """What a node is and holds."""

    version: str
    log_id: str
    position: int
    digests: dict[str, str]


class FlushRequest(msgspec.Struct, frozen=True):
    name: str = ""  # empty: everything
    subtree: bool = False


class Service(Protocol):
    def change(self, request: ChangeRequest) -> Result: ...

    def get(self, key: Key) -> dict[str, Any]:
        """The object as a document. Raises NotFound."""
        ...

    def list_objects(self, request: ListRequest) -> ListReply: ...

    def problems(self, key: Key) -> list[dict[str, Any]]:
        """What is wrong with the endpoints of a record set."""
        ...

    def conditions(self, key: Key) -> list[dict[str, Any]]:
        """What is to be said of an object now, whether it stands in its status already or not.
        Raises NotFound."""
        ...

    def query(self, packet: bytes, client: str = LOOPBACK) -> bytes:
        """Answer to a DNS query, as a client of that address gets it; a drop is answered SERVFAIL.
        The query log has nothing of it. Raises Invalid."""
        ...

    def explain(self, request: "ExplainRequest") -> Explanation:
        """Why a client gets what it gets. Raises Invalid."""
        ...

    def blocking(self) -> "BlockingState": ...

    def set_blocking(self, request: "BlockingRequest") -> "BlockingState":
        """Pause or resume. Raises Invalid, NotFound."""
        ...

    def purge_queries(self, before_us: int | None) -> int:
        """Delete logged queries from before a moment, None: all; how many. Raises: NotFound where
        there is no query log."""
        ...

    def lists(self) -> "list[ListRow]": ...

    def refresh_lists(self, names: Sequence[Key]) -> list[Key]:
        """Fetch these lists now, or all; keys of what is fetched. Raises NotFound, Conflict for one
        that is disabled, Busy without a server."""
        ...

    def export(self, zone: str) -> list[str]:
        """Lines of a master file: the version that the zone's serial names."""
        ...

    def info(self, *, digests: bool = False) -> Info: ...

    def checkpoint(self) -> str:
        """The signed checkpoint of the whole log, made when there is none. Raises: NotFound when
        there is no key to sign with."""
        ...

    def rotate_key(self, reason: str) -> str:
        """The first checkpoint of a new key. Raises: NotFound when the key before is missing."""
        ...

    def restore(self, request: RestoreRequest) -> Carried:
        """Raises Conflict when the plan is stale; what the changes are refused with."""
        ...

    def undo(self, request: UndoRequest) -> Carried:
        """Raises Conflict when objects changed since; what the changes are refused with."""
        ...

    def cache_stats(self) -> dict[str, int]:
        """Raises NotFound without a running server."""
        ...

    def cache_flush(self, name: str, *, subtree: bool = False) -> int:
        """How many answers were forgotten; an empty name is all. Raises NotFound without a running
        server."""
        ...

    def refresh_zone(self, zone: str) -> str:
        """Ask the primaries of a secondary zone now; its DNS name. Raises NotFound for a zone that
        is no secondary, and without a running server."""
        ...

    def settings(self) -> list[dict[str, Any]]:
        """A row for each key: key, value, source, changes, scope; running, where a restart is
        needed for what is configured."""
        ...

    def patch_settings(self, request: "PatchRequest") -> "PatchReply":
        """Raises: Invalid with every fault; ManagedBy; Conflict when another node was faster;
        StorageFailed where the settings file cannot be written."""
        ...

    def create_key(self, request: KeyRequest) -> Result:
        """Make a TSIG key, or give its secret again. Raises: Invalid; Conflict when it is there
        and works."""
        ...

    def revoke_key(self, name: str, reason: str) -> Result:
        """Raises: NotFound."""
        ...

    def key_states(self) -> list[KeyState]: ...

    def create_token(self, request: TokenRequest) -> NewToken:
        """Raises: Invalid; Conflict where the name is taken."""
        ...

    def revoke_token(self, name: str, reason: str) -> Result:
        """Raises: NotFound."""
        ...

    def token_states(self) -> list[TokenState]: ...

    def mark(self, request: MarkRequest) -> int:
        """Position of the mark. Raises Conflict when the name is taken."""
        ...

    def redact(self, request: RedactRequest) -> Erased:
        """Raises: NotFound, Conflict or Invalid for what cannot be erased."""
        ...

    def prune(self, request: PruneRequest) -> Pruned:
        """Raises: NotFound without a key to sign with."""
        ...


def to_change(request: ChangeRequest, who: Who) -> Change:
    """The commands of a request. Raises Invalid for a manager or reason that may not be, and for
    objects with a secret part, which are made otherwise."""
    causes = list(manager_faults(request.manager))
    if causes:
        raise Invalid("manager", causes)
    for manifest in request.apply:
        if manifest.kind.is_internal:
            fault = _MADE_OTHERWISE.format(manifest.kind.made_by)
            raise Invalid(str(ref_of(manifest.key)), [Cause("kind", fault)])
    commands: list[Command] = [
        Apply(
            manifest=manifest,
            manager=request.manager,
            force=request.force,
            expected=manifest.meta.resource_version if request.is_versioned else None,
        )
        # Zones first: record sets are held against them, wherever they stand in a file.
        for manifest in sorted(request.apply, key=lambda manifest: manifest.kind is not DNS_ZONE)
    ]
    commands += [
        Delete(key=key, manager=request.manager, force=request.force) for key in request.delete
    ]
    return Change(
        commands=tuple(commands),
        who=because(who, request.reason),
        dry_run=request.dry_run,
        imported_serials=request.imported_serials,
        allow_mass_change=request.allow_mass_change,
        secrets=tuple(
            SecretWrite(key, None) for key in request.delete if KINDS[ref_of(key).kind].is_internal
        ),
    )


_MADE_OTHERWISE = "it has a secret, which no file should hold: make it with `{}`"


def to_mark(request: MarkRequest, who: Who) -> Change:
    return Change(commands=(targets.mark_command(request.name),), who=because(who, request.reason))


def erased(redaction: Redaction) -> Erased:
    erasure = redaction.erasure
    return Erased(
        first=erasure.first, last=erasure.last, part=erasure.part, others=redaction.others
    )


def pruned(pruning: Pruning | None) -> Pruned:
    if pruning is None:
        return Pruned()
    anchor = pruning.anchor
    return Pruned(upto=anchor.upto, anchor=anchor.size, rows=pruning.rows, kept=pruning.kept)


def because(who: Who, reason: str) -> Who:
    """Raises Invalid for a reason that cannot be written down."""
    if not reason and not who.reason:
        return who
    if not is_unicode(reason):
        raise Invalid("request", [Cause("reason", NOT_UNICODE)])
    if len(reason) > REASON_MAX:
        fault = f"{len(reason)} characters; at most {REASON_MAX}"
        raise Invalid("request", [Cause("reason", fault)])
    return msgspec.structs.replace(who, reason=reason)


def as_key(value: Any) -> Key:
    """A key that a client sent. Raises: Invalid."""
    if isinstance(value, str) and value.count("/") == 2 and value.partition("/")[0] in KINDS:
        return Key(value)
    raise Invalid("request", [Cause("", f"{value!r} is no key of an object")])


def manifest_to_wire(manifest: Manifest) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": manifest.kind.name,
        "metadata": msgspec.to_builtins(manifest.meta),
        "spec": msgspec.to_builtins(manifest.spec),
    }


def manifest_from_wire(value: dict[str, Any]) -> Manifest:
    return parse_manifest(value, what="request", default_namespace=DEFAULT_NAMESPACE)


def read_list(node: Node, request: ListRequest) -> ListReply:
    selector = parse_selector(request.selector) if request.selector else None
    page = node.objects.list(
        request.kind,
        request.namespace,
        selector,
        limit=min(request.limit, PAGE_MAX),
        start=request.start,
    )
    return ListReply(
        items=[to_document(stored) for stored in page.objects],
        resource_version=resource_version(node.log.epoch, node.objects.position),
        next_key=page.next_key,
    )


def read_object(node: Node, key: Key) -> dict[str, Any]:
    stored = node.objects.find(key)
    if stored is None:
        raise NotFound(f"{ref_of(key)} does not exist")
    return to_document(stored)


def read_problems(node: Node, key: Key) -> list[dict[str, Any]]:
    return [msgspec.to_builtins(problem) for problem in node.zones.problems(key)]


def read_conditions(node: Node, key: Key) -> list[dict[str, Any]]:
    stored = node.objects.find(key)
    if stored is None:
        raise NotFound(f"{ref_of(key)} does not exist")
    now_s = node.clock.now_us() // 1_000_000
    status = node.views.statuses.status_of(stored, stored.status, now_s, is_asked=True)
    found: list[dict[str, Any]] = (status or {}).get("conditions", [])
    return found


def export_zone(node: Node, zone: str) -> Iterator[str]:
    """Lines that are made when they are asked for, of the zone as it is now. Raises NotFound for a
    zone that is not served."""
    state = node.zones.find(zone)
    if state is None or state.zone is None:
        served = ", ".join(sorted(names.to_text(z.apex) for z in node.zones.served)) or "none"
        raise NotFound(f"zone {zone!r} is not served here; there are: {served}")
    return zone_export.lines(state.zone)


def read_info(node: Node, version: str, *, digests: bool) -> Info:
    return Info(
        version=version,
        log_id=node.log.log_id,
        position=node.objects.position,
        digests=node.views.digests() if digests else {},
    )


def collect(service: Service, request: ListRequest) -> list[dict[str, Any]]:
    """All pages of a list."""
    return collect_pages(service.list_objects, request)


def collect_pages(
    read: Callable[[ListRequest], ListReply], request: ListRequest
) -> list[dict[str, Any]]:
    """All pages of a list, however one is read."""
    reply = read(request)
    items = reply.items
    while reply.next_key is not None:
        reply = read(msgspec.structs.replace(request, start=reply.next_key))
        items = items + reply.items
    return items
