"""What a node can be asked, by the name of the method: one table, for every way in.

`RpcServer` asks through the command socket, an HTTP API may through its routes. Arguments and
results are plain values, so that they can be sent; who asks is known by the caller and is recorded.
Whether somebody may ask is up to the way in: nothing here looks at rights.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from kudurru import __version__
from kudurru.adapters.clock import SystemEntropy
from kudurru.domain.errors import Cause, Invalid, KudurruError, NotFound
from kudurru.domain.events import Who
from kudurru.domain.ports import Neighbours
from kudurru.entrypoints import restoring
from kudurru.entrypoints.doctor_report import Report
from kudurru.entrypoints.filtering import (
    BlockingRequest,
    ExplainRequest,
    checked_client,
    read_blocking,
    read_explanation,
    to_blocking,
)
from kudurru.entrypoints.inbound import Inbound
from kudurru.entrypoints.keyring import KeyRequest, Keyring, revocation
from kudurru.entrypoints.list_keeper import ListKeeper
from kudurru.entrypoints.live_settings import LiveSettings, PatchRequest
from kudurru.entrypoints.promoting import check_follows
from kudurru.entrypoints.query_logging import QueryLog
from kudurru.entrypoints.resolving import Resolving, resolved
from kudurru.entrypoints.restoring import Carried, RestoreRequest, Undertaking, UndoRequest
from kudurru.entrypoints.service import (
    ChangeRequest,
    FlushRequest,
    ListRequest,
    MarkRequest,
    Promoted,
    PromoteRequest,
    as_key,
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
from kudurru.entrypoints.snapshot_job import SnapshotJob
from kudurru.entrypoints.tokens import TokenRequest, Tokens
from kudurru.entrypoints.upkeep import PruneRequest, RedactRequest
from kudurru.entrypoints.waiting import Threads
from kudurru.entrypoints.wiring import Node
from kudurru.entrypoints.writer import Writer
from kudurru.projections.pipeline.pipeline import Pipeline


@dataclass(frozen=True, kw_only=True)
class Operations:
    """Of one running node. Each method takes its argument and who asks, and returns builtins."""

    node: Node
    writer: Writer
    pipeline: Pipeline
    resolving: Resolving
    lists: ListKeeper
    keyring: Keyring
    tokens: Tokens
    inbound: Inbound
    snapshots: SnapshotJob
    neighbours: Neighbours
    query_log: QueryLog | None
    settings: LiveSettings
    examine: Callable[[str], Awaitable[Report]]
    check_leads: Callable[[], Awaitable[None]]
    """Raises: Conflict, Busy where another node leads, or none."""
    promotion: Callable[[PromoteRequest, Who], Awaitable[Promoted]] | None = None
    """Where the node follows another."""
    planning: Threads = field(default_factory=lambda: Threads(1, "kudurru-plan"))
    """Plans are made one at a time."""

    async def handle(self, method: str, argument: Any, who: Who) -> Any:
        """Raises: Invalid for what is no method, and what the method does; msgspec.ValidationError
        for an argument of another shape."""
        operation = METHODS.get(method)
        if operation is None:
            raise Invalid("request", [Cause("", f"unknown method {method!r}")])
        async with self.writer.applying:
            pass  # what is read next is no part of a change
        return await operation(self, argument, who)

    # --- objects ------------------------------------------------------------------------

    async def change(self, argument: ChangeRequest, who: Who) -> Any:
        return msgspec.to_builtins(await self.writer.submit(to_change(argument, who)))

    async def get(self, argument: Any, _who: Who) -> Any:
        return read_object(self.node, as_key(argument))

    async def list_objects(self, argument: Any, _who: Who) -> Any:
        request = msgspec.convert(argument, ListRequest)
        return msgspec.to_builtins(read_list(self.node, request))

    async def problems(self, argument: Any, _who: Who) -> Any:
        return read_problems(self.node, as_key(argument))

    async def conditions(self, argument: Any, _who: Who) -> Any:
        return read_conditions(self.node, as_key(argument))

    async def export(self, argument: Any, _who: Who) -> Any:
        return await asyncio.to_thread(list, export_zone(self.node, msgspec.convert(argument, str)))

    async def refresh_zone(self, argument: Any, _who: Who) -> Any:
        return self.inbound.refresh(msgspec.convert(argument, str))

    # --- answering and filtering --------------------------------------------------------

    async def query(self, argument: Any, _who: Who) -> Any:
        packet, client = msgspec.convert(argument, tuple[bytes, str])
        return await resolved(self.pipeline, packet, checked_client(client))

    async def explain(self, argument: Any, _who: Who) -> Any:
        question = msgspec.convert(argument, ExplainRequest)
        found = read_explanation(self.node, question, self.neighbours, self.resolving)
        return msgspec.to_builtins(found)

    async def cache_stats(self, _argument: Any, _who: Who) -> Any:
        return msgspec.to_builtins(self.resolving.cache.statistics())

    async def cache_flush(self, argument: Any, _who: Who) -> Any:
        request = msgspec.convert(argument, FlushRequest)
        return self.resolving.flush(request.name, subtree=request.subtree)

    async def blocking(self, _argument: Any, _who: Who) -> Any:
        return msgspec.to_builtins(read_blocking(self.node))

    async def set_blocking(self, argument: Any, who: Who) -> Any:
        request = msgspec.convert(argument, BlockingRequest)
        await self.writer.submit(to_blocking(self.node, request, who))
        return msgspec.to_builtins(read_blocking(self.node))

    async def list_rows(self, _argument: Any, _who: Who) -> Any:
        return msgspec.to_builtins(self.lists.rows())

    async def refresh_lists(self, argument: Any, _who: Who) -> Any:
        """By the leader: where that gets something new, the others fetch it too."""
        keys = [as_key(key) for key in msgspec.convert(argument, list[str])]
        self.lists.check(keys)
        await self.check_leads()
        return self.lists.refresh(keys)

    async def purge_queries(self, argument: Any, _who: Who) -> Any:
        if self.query_log is None:
            raise NotFound("this server keeps no query log")
        return await self.query_log.process.purge(msgspec.convert(argument, int | None))

    # --- the log ------------------------------------------------------------------------

    async def info(self, argument: Any, _who: Who) -> Any:
        return msgspec.to_builtins(read_info(self.node, __version__, digests=bool(argument)))

    async def checkpoint(self, _argument: Any, _who: Who) -> Any:
        return (await self.writer.checkpoint()).note

    async def rotate_key(self, argument: Any, who: Who) -> Any:
        reason = msgspec.convert(argument, str)
        return (await self.writer.rotate_key(because(who, reason))).note

    async def restore(self, argument: Any, who: Who) -> Any:
        request = msgspec.convert(argument, RestoreRequest)
        prepare = partial(restoring.prepare_restore, self.node.log, request)
        carried = await self._carry_out(prepare, because(who, request.reason))
        return msgspec.to_builtins(carried)

    async def undo(self, argument: Any, who: Who) -> Any:
        request = msgspec.convert(argument, UndoRequest)
        prepare = partial(restoring.prepare_undo, self.node.log, request)
        carried = await self._carry_out(prepare, because(who, request.reason))
        return msgspec.to_builtins(carried)

    async def mark(self, argument: Any, who: Who) -> Any:
        mark = to_mark(msgspec.convert(argument, MarkRequest), who)
        return (await self.writer.submit(mark)).seq

    async def redact(self, argument: Any, who: Who) -> Any:
        request = msgspec.convert(argument, RedactRequest)
        redaction = await self.writer.redact(request, because(who, request.reason))
        await self.snapshots.forget()
        return msgspec.to_builtins(erased(redaction))

    async def prune(self, argument: Any, who: Who) -> Any:
        request = msgspec.convert(argument, PruneRequest)
        pruning = await self.writer.prune(request, because(who, request.reason))
        return msgspec.to_builtins(pruned(pruning))

    # --- the node itself ----------------------------------------------------------------

    async def promote(self, argument: Any, who: Who) -> Any:
        check_follows(self.node)
        assert self.promotion is not None, "there is one where a node follows"
        request = msgspec.convert(argument, PromoteRequest)
        return msgspec.to_builtins(await self.promotion(request, because(who, request.reason)))

    async def read_settings(self, _argument: Any, _who: Who) -> Any:
        return self.settings.rows()

    async def patch_settings(self, argument: Any, who: Who) -> Any:
        request = msgspec.convert(argument, PatchRequest)
        return msgspec.to_builtins(await self.settings.patch(request, who, self.writer.submit))

    async def doctor(self, argument: Any, who: Who) -> Any:
        """The argument says with which rights it is asked, for the report."""
        rights = msgspec.convert(argument, str | None) or f"admin, through the {who.source}"
        return msgspec.to_builtins(await self.examine(f"{who.actor}: {rights}"))

    # --- keys ---------------------------------------------------------------------------

    async def create_key(self, argument: Any, who: Who) -> Any:
        request = msgspec.convert(argument, KeyRequest)
        made = self.keyring.creation(request, because(who, request.reason), SystemEntropy())
        return msgspec.to_builtins(await self.writer.submit(made))

    async def revoke_key(self, argument: Any, who: Who) -> Any:
        name, reason = msgspec.convert(argument, tuple[str, str])
        gone = revocation(self.node, name, because(who, reason))
        return msgspec.to_builtins(await self.writer.submit(gone))

    async def key_states(self, _argument: Any, _who: Who) -> Any:
        return msgspec.to_builtins(self.keyring.states())

    # --- tokens -------------------------------------------------------------------------

    async def create_token(self, argument: Any, who: Who) -> Any:
        request = msgspec.convert(argument, TokenRequest)
        change, new = self.tokens.creation(request, because(who, request.reason), SystemEntropy())
        await self.writer.submit(change)
        return msgspec.to_builtins(new)

    async def revoke_token(self, argument: Any, who: Who) -> Any:
        name, reason = msgspec.convert(argument, tuple[str, str])
        gone = self.tokens.revocation(name, because(who, reason))
        return msgspec.to_builtins(await self.writer.submit(gone))

    async def token_states(self, _argument: Any, _who: Who) -> Any:
        return msgspec.to_builtins(self.tokens.states())

    # --- helpers ------------------------------------------------------------------------

    async def _carry_out(self, prepare: Callable[[str, Who], Undertaking], who: Who) -> Carried:
        """Plan in a thread, as that reads much of the log, and let the writer decide."""
        node = self.node

        def planned() -> tuple[Undertaking, Any]:
            undertaking = prepare(node.new_id(), who)
            now_s = node.clock.now_us() // 1_000_000
            return undertaking, restoring.describe(node.log, undertaking.plan, now_s)

        undertaking, document = await self.planning.run(planned)
        seqs: list[int] = []
        for change in undertaking.changes:
            try:
                seqs.append((await self.writer.submit(change)).seq)
            except KudurruError as error:
                raise restoring.cut_off(undertaking, len(seqs), error) from error
        if seqs:
            with suppress(KudurruError):  # without a key; or it is made with the next change
                await self.writer.checkpoint()
        return Carried(id=undertaking.id, seq=seqs[-1] if seqs else 0, plan=document)


Operation = Callable[[Operations, Any, Who], Awaitable[Any]]

METHODS: Mapping[str, Operation] = {
    "change": Operations.change,
    "get": Operations.get,
    "list": Operations.list_objects,
    "problems": Operations.problems,
    "conditions": Operations.conditions,
    "export": Operations.export,
    "refresh-zone": Operations.refresh_zone,
    "query": Operations.query,
    "explain": Operations.explain,
    "cache-stats": Operations.cache_stats,
    "cache-flush": Operations.cache_flush,
    "blocking": Operations.blocking,
    "set-blocking": Operations.set_blocking,
    "lists": Operations.list_rows,
    "refresh-lists": Operations.refresh_lists,
    "purge-queries": Operations.purge_queries,
    "info": Operations.info,
    "checkpoint": Operations.checkpoint,
    "rotate-key": Operations.rotate_key,
    "restore": Operations.restore,
    "undo": Operations.undo,
    "mark": Operations.mark,
    "redact": Operations.redact,
    "prune": Operations.prune,
    "promote": Operations.promote,
    "doctor": Operations.doctor,
    "settings": Operations.read_settings,
    "settings-patch": Operations.patch_settings,
    "create-key": Operations.create_key,
    "revoke-key": Operations.revoke_key,
    "key-states": Operations.key_states,
    "create-token": Operations.create_token,
    "revoke-token": Operations.revoke_token,
    "token-states": Operations.token_states,
}
"""By the name that a way in has for it."""
