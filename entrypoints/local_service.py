"""A node that this process alone has, as a `Service`: where no server runs on a data directory."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kudurru import __version__
from kudurru.adapters.clock import SystemEntropy
from kudurru.domain.errors import Busy, KudurruError, NotFound
from kudurru.domain.events import Who
from kudurru.domain.filtering.explain import Explanation
from kudurru.domain.objects import Key
from kudurru.domain.ports import VerifiableLog
from kudurru.domain.settings import Settings
from kudurru.entrypoints import restoring, upkeep
from kudurru.entrypoints.answering import answer
from kudurru.entrypoints.checkpoints import Checkpointer, Plan
from kudurru.entrypoints.filtering import (
    BlockingRequest,
    BlockingState,
    ExplainRequest,
    read_blocking,
    to_blocking,
)
from kudurru.entrypoints.keyring import KeyRequest, Keyring, KeyState, revocation
from kudurru.entrypoints.list_service import ListRow, stored_rows, take_up_lists
from kudurru.entrypoints.restoring import Carried, RestoreRequest, UndoRequest
from kudurru.entrypoints.service import (
    LOOPBACK,
    ChangeRequest,
    Erased,
    Info,
    ListReply,
    ListRequest,
    MarkRequest,
    Pruned,
    because,
    erased,
    export_zone,
    pruned,
    read_conditions,
    read_info,
    read_list,
    read_object,
    read_problems,
    to_change,
    to_mark,
)
from kudurru.entrypoints.settings import Sources
from kudurru.entrypoints.tokens import NewToken, TokenRequest, Tokens, TokenState
from kudurru.entrypoints.upkeep import PruneRequest, RedactRequest
from kudurru.entrypoints.wiring import Node, Result

if TYPE_CHECKING:
    from kudurru.entrypoints.live_settings import LiveSettings, PatchReply, PatchRequest

NO_SOURCES = Sources(None, {})

NO_CACHE = "no server runs on this data directory, and only a running one has a cache"


class LocalService:
    """A `Service` in this process."""

    def __init__(
        self,
        node: Node,
        who: Who,
        checkpointer: Checkpointer | None = None,
        keyring: Keyring | None = None,
        *,
        lists: Path | None = None,
        query_log: Path | None = None,
        forget: Callable[[], None] = lambda: None,
        sources: Sources = NO_SOURCES,
        settings: Settings | None = None,
    ) -> None:
        """`lists` is the folder of what a server fetched; without it only inline sources count.
        `forget` takes away what was derived from the log and may hold what was erased."""
        self._node = node
        self._query_log = query_log
        self._who = who
        self._checkpointer = checkpointer
        self._lists = lists
        self._keyring = keyring
        self._forget = forget
        self._sources = sources
        self._settings = settings

    def change(self, request: ChangeRequest) -> Result:
        return self._node.commit(to_change(request, self._who))

    def get(self, key: Key) -> dict[str, Any]:
        return read_object(self._node, key)

    def list_objects(self, request: ListRequest) -> ListReply:
        return read_list(self._node, request)

    def problems(self, key: Key) -> list[dict[str, Any]]:
        return read_problems(self._node, key)

    def conditions(self, key: Key) -> list[dict[str, Any]]:
        return read_conditions(self._node, key)

    def query(self, packet: bytes, client: str = LOOPBACK) -> bytes:
        self._take_up_lists()
        return answer(self._node, packet, client)

    def explain(self, request: ExplainRequest) -> Explanation:
        self._take_up_lists()
        from kudurru.entrypoints.explaining import explain_unserved  # the resolver, for this alone

        return explain_unserved(self._node, request, self._settings)

    def _take_up_lists(self) -> None:
        """Filter by what the last server of this directory had fetched."""
        if self._lists is not None:
            take_up_lists(self._node, self._lists)
            self._lists = None

    def lists(self) -> list[ListRow]:
        return stored_rows(self._node)

    def refresh_lists(self, names: Sequence[Key]) -> list[Key]:  # noqa: ARG002  # of the protocol
        raise Busy("no server runs here: lists are fetched by `kudurru serve`, when it starts")

    def blocking(self) -> BlockingState:
        return read_blocking(self._node)

    def set_blocking(self, request: BlockingRequest) -> BlockingState:
        self._node.commit(to_blocking(self._node, request, self._who))
        return read_blocking(self._node)

    def purge_queries(self, before_us: int | None) -> int:
        if self._query_log is None:
            raise NotFound("there is no query log here")
        from kudurru.adapters.query_log.store import purge  # sqlite-utils, for this alone

        return purge(self._query_log, before_us)

    def export(self, zone: str) -> list[str]:
        return list(export_zone(self._node, zone))

    def checkpoint(self) -> str:
        checkpointer = self._signer()
        found = checkpointer.current() or checkpointer.take(checkpointer.plan)
        return found.note

    def rotate_key(self, reason: str) -> str:
        checkpointer = self._signer()
        who = because(self._who, reason)
        return checkpointer.take(lambda now_us: checkpointer.rotation(who, now_us)).note

    def _signer(self) -> Checkpointer:
        assert self._checkpointer is not None, "opened to read, and asked to write"
        return self._checkpointer

    def info(self, *, digests: bool = False) -> Info:
        return read_info(self._node, __version__, digests=digests)

    def cache_stats(self) -> dict[str, int]:
        raise NotFound(NO_CACHE)

    def cache_flush(self, name: str, *, subtree: bool = False) -> int:
        del name, subtree
        raise NotFound(NO_CACHE)

    def refresh_zone(self, zone: str) -> str:
        raise NotFound(f"no server holds the directory, and only a server fetches {zone!r}")

    def restore(self, request: RestoreRequest) -> Carried:
        who = because(self._who, request.reason)
        log = self._node.log
        return self._carry_out(restoring.prepare_restore(log, request, self._node.new_id(), who))

    def undo(self, request: UndoRequest) -> Carried:
        who = because(self._who, request.reason)
        log = self._node.log
        return self._carry_out(restoring.prepare_undo(log, request, self._node.new_id(), who))

    def _carry_out(self, undertaking: restoring.Undertaking) -> Carried:
        node = self._node
        document = restoring.describe(node.log, undertaking.plan, node.clock.now_us() // 1_000_000)
        seqs: list[int] = []
        for change in undertaking.changes:
            try:
                seqs.append(node.commit(change).seq)
            except KudurruError as error:
                raise restoring.cut_off(undertaking, len(seqs), error) from error
        return Carried(id=undertaking.id, seq=seqs[-1] if seqs else 0, plan=document)

    def settings(self) -> list[dict[str, Any]]:
        return self._live_settings().rows()

    def patch_settings(self, request: "PatchRequest") -> "PatchReply":
        live = self._live_settings()
        planned = live.plan(request, self._who)
        if planned.change is None:
            return planned.reply
        with planned.draft or nullcontext():
            return live.finish(planned, self._node.commit(planned.change))

    def _live_settings(self) -> "LiveSettings":
        """As a server would have them."""
        from kudurru.entrypoints.live_settings import LiveSettings

        live = LiveSettings(self._sources, self._node.clock)
        live.take_up(self._node.log)
        return live

    def create_key(self, request: KeyRequest) -> Result:
        who = because(self._who, request.reason)
        return self._node.commit(self._keys().creation(request, who, SystemEntropy()))

    def revoke_key(self, name: str, reason: str) -> Result:
        return self._node.commit(revocation(self._node, name, because(self._who, reason)))

    def key_states(self) -> list[KeyState]:
        return self._keys().states()

    def _keys(self) -> Keyring:
        assert self._keyring is not None, "a node without a data directory has no keys"
        return self._keyring

    def create_token(self, request: TokenRequest) -> NewToken:
        who = because(self._who, request.reason)
        change, new = Tokens(self._node).creation(request, who, SystemEntropy())
        self._node.commit(change)
        return new

    def revoke_token(self, name: str, reason: str) -> Result:
        who = because(self._who, reason)
        return self._node.commit(Tokens(self._node).revocation(name, who))

    def token_states(self) -> list[TokenState]:
        return Tokens(self._node).states()

    def mark(self, request: MarkRequest) -> int:
        return self._node.commit(to_mark(request, self._who)).seq

    def redact(self, request: RedactRequest) -> Erased:
        node, signer = self._node, self._signer()
        who = because(self._who, request.reason)
        done: list[upkeep.Redaction] = []

        def make(now_us: int) -> Plan:  # again where another node was faster
            redaction = upkeep.redaction(node, request)
            done[:] = [redaction]
            return signer.upkeep(redaction.change_set(who, now_us), redaction.upkeep, now_us)

        signer.take(make)
        self._forget()
        return erased(done[0])

    def prune(self, request: PruneRequest) -> Pruned:
        node, signer = self._node, self._signer()
        who = because(self._who, request.reason)
        log: VerifiableLog = node.log  # type: ignore[assignment]  # every log of ours is
        pruning = upkeep.plan_pruning(log, request.before)
        if pruning is not None and not request.dry_run:
            change_set = partial(pruning.change_set, node, who)
            signer.take(lambda now: signer.upkeep(change_set(now), pruning.upkeep, now))
        return pruned(pruning)
