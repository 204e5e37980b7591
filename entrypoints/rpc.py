"""Commands through a running server: frames over the socket in its data directory.

A frame is a length (4 octets, most significant first) and MessagePack. The client sends
`[method, argument]` and gets `["ok", value]` or `["error", ...]`; a change is followed by frames of
objects, so that a zone of a million records needs no frame of a gigabyte. The socket is 0600 in a
0700 folder: who may open it is an admin, and the log records the user that the kernel reports.
"""

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Self

import msgspec

from kudurru.domain import errors
from kudurru.domain.errors import (
    Busy,
    Cause,
    Invalid,
    KudurruError,
    ManagedBy,
    MassChange,
    Pruned,
    StorageFailed,
)
from kudurru.domain.events import Who
from kudurru.domain.filtering.explain import Explanation
from kudurru.domain.kinds.meta import NOT_UNICODE
from kudurru.domain.kinds.validation import Manifest
from kudurru.domain.objects import Key
from kudurru.entrypoints import service
from kudurru.entrypoints.actors import actor_of
from kudurru.entrypoints.doctor_report import Report
from kudurru.entrypoints.filtering import BlockingRequest, BlockingState, ExplainRequest
from kudurru.entrypoints.keyring import KeyRequest, KeyState
from kudurru.entrypoints.list_service import ListRow
from kudurru.entrypoints.live_settings import PatchReply, PatchRequest
from kudurru.entrypoints.restoring import Carried, RestoreRequest, UndoRequest
from kudurru.entrypoints.service import (
    LOOPBACK,
    ChangeRequest,
    Erased,
    FlushRequest,
    Info,
    ListReply,
    ListRequest,
    MarkRequest,
    Promoted,
    PromoteRequest,
    as_key,
    manifest_from_wire,
    manifest_to_wire,
)
from kudurru.entrypoints.steps import PER_STEP, no_collections
from kudurru.entrypoints.tokens import NewToken, TokenRequest, TokenState
from kudurru.entrypoints.upkeep import PruneRequest, RedactRequest
from kudurru.entrypoints.wiring import Result

log = logging.getLogger("kudurru")

FRAME_MAX = 32 << 20
OBJECTS_PER_FRAME = 500
OBJECTS_MAX = 2_000_000
CONNECTIONS_MAX = 64
CONNECT_TIMEOUT_S = 5.0
DRAIN_S = 5.0
"""At the end of the server, for answers to commands that are under way."""

_LENGTH = struct.Struct("!I")
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: struct ucred


class ChangeHeader(msgspec.Struct, frozen=True, kw_only=True):
    """A change but for its objects: `frames` of those follow."""

    frames: int
    delete: list[Key]
    manager: str
    force: bool
    dry_run: bool
    reason: str
    imported_serials: dict[str, int]
    allow_mass_change: bool = False
    is_versioned: bool = False


# --- client -----------------------------------------------------------------------------------


def connect(path: Path) -> "RemoteService | None":
    """The server behind a socket; None when none answers there."""
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.settimeout(CONNECT_TIMEOUT_S)
    try:
        stream.connect(str(path))
    except OSError:
        stream.close()
        return None
    # A large change takes as long as it takes; the server bounds what it does.
    stream.settimeout(None)
    return RemoteService(stream)


class RemoteService:
    """A `Service` in another process."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.close()

    def change(self, request: ChangeRequest) -> Result:
        objects = [
            request.apply[i : i + OBJECTS_PER_FRAME]
            for i in range(0, len(request.apply), OBJECTS_PER_FRAME)
        ]
        header = ChangeHeader(
            frames=len(objects),
            delete=request.delete,
            manager=request.manager,
            force=request.force,
            dry_run=request.dry_run,
            reason=request.reason,
            imported_serials=request.imported_serials,
            allow_mass_change=request.allow_mass_change,
            is_versioned=request.is_versioned,
        )
        self._send(["change", msgspec.to_builtins(header)])
        for part in objects:
            self._send([manifest_to_wire(manifest) for manifest in part])
        return msgspec.convert(self._receive(), Result)

    def get(self, key: Key) -> dict[str, Any]:
        return self._call("get", key)  # type: ignore[no-any-return]  # as the server sent it

    def list_objects(self, request: ListRequest) -> ListReply:
        return msgspec.convert(self._call("list", msgspec.to_builtins(request)), ListReply)

    def problems(self, key: Key) -> list[dict[str, Any]]:
        return self._call("problems", key)  # type: ignore[no-any-return]  # as the server sent it

    def conditions(self, key: Key) -> list[dict[str, Any]]:
        return self._call("conditions", key)  # type: ignore[no-any-return]  # as the server sent it

    def query(self, packet: bytes, client: str = LOOPBACK) -> bytes:
        return self._call("query", [packet, client])  # type: ignore[no-any-return]  # as the server sent it

    def explain(self, request: ExplainRequest) -> Explanation:
        return msgspec.convert(self._call("explain", msgspec.to_builtins(request)), Explanation)

    def blocking(self) -> BlockingState:
        return msgspec.convert(self._call("blocking", None), BlockingState)

    def set_blocking(self, request: BlockingRequest) -> BlockingState:
        found = self._call("set-blocking", msgspec.to_builtins(request))
        return msgspec.convert(found, BlockingState)

    def purge_queries(self, before_us: int | None) -> int:
        return msgspec.convert(self._call("purge-queries", before_us), int)

    def lists(self) -> list[ListRow]:
        return msgspec.convert(self._call("lists", None), list[ListRow])

    def refresh_lists(self, names: Sequence[Key]) -> list[Key]:
        return self._call("refresh-lists", list(names))  # type: ignore[no-any-return]  # keys

    def export(self, zone: str) -> list[str]:
        return self._call("export", zone)  # type: ignore[no-any-return]  # as the server sent it

    def info(self, *, digests: bool = False) -> Info:
        return msgspec.convert(self._call("info", digests), Info)

    def checkpoint(self) -> str:
        return self._call("checkpoint", None)  # type: ignore[no-any-return]  # as the server sent it

    def rotate_key(self, reason: str) -> str:
        return self._call("rotate-key", reason)  # type: ignore[no-any-return]  # as the server sent it

    def restore(self, request: RestoreRequest) -> Carried:
        return msgspec.convert(self._call("restore", msgspec.to_builtins(request)), Carried)

    def promote(self, request: PromoteRequest) -> Promoted:
        return msgspec.convert(self._call("promote", msgspec.to_builtins(request)), Promoted)

    def undo(self, request: UndoRequest) -> Carried:
        return msgspec.convert(self._call("undo", msgspec.to_builtins(request)), Carried)

    def cache_stats(self) -> dict[str, int]:
        return msgspec.convert(self._call("cache-stats", None), dict[str, int])

    def refresh_zone(self, zone: str) -> str:
        return msgspec.convert(self._call("refresh-zone", zone), str)

    def cache_flush(self, name: str, *, subtree: bool = False) -> int:
        return msgspec.convert(self._call("cache-flush", FlushRequest(name, subtree)), int)

    def doctor(self) -> Report:
        return msgspec.convert(self._call("doctor", None), Report)

    def settings(self) -> list[dict[str, Any]]:
        return self._call("settings", None)  # type: ignore[no-any-return]  # as the server sent it

    def patch_settings(self, request: PatchRequest) -> PatchReply:
        found = self._call("settings-patch", msgspec.to_builtins(request))
        return msgspec.convert(found, PatchReply)

    def create_key(self, request: KeyRequest) -> Result:
        return msgspec.convert(self._call("create-key", msgspec.to_builtins(request)), Result)

    def revoke_key(self, name: str, reason: str) -> Result:
        return msgspec.convert(self._call("revoke-key", [name, reason]), Result)

    def key_states(self) -> list[KeyState]:
        return msgspec.convert(self._call("key-states", None), list[KeyState])

    def create_token(self, request: TokenRequest) -> NewToken:
        return msgspec.convert(self._call("create-token", msgspec.to_builtins(request)), NewToken)

    def revoke_token(self, name: str, reason: str) -> Result:
        return msgspec.convert(self._call("revoke-token", [name, reason]), Result)

    def token_states(self) -> list[TokenState]:
        return msgspec.convert(self._call("token-states", None), list[TokenState])

    def mark(self, request: MarkRequest) -> int:
        return msgspec.convert(self._call("mark", msgspec.to_builtins(request)), int)

    def redact(self, request: RedactRequest) -> Erased:
        return msgspec.convert(self._call("redact", msgspec.to_builtins(request)), Erased)

    def prune(self, request: PruneRequest) -> service.Pruned:
        return msgspec.convert(self._call("prune", msgspec.to_builtins(request)), service.Pruned)

    def _call(self, method: str, argument: Any) -> Any:
        self._send([method, argument])
        return self._receive()

    def _send(self, value: Any) -> None:
        try:
            data = msgspec.msgpack.encode(value)
        except UnicodeEncodeError:
            raise Invalid("request", [Cause("", f"a text holds {NOT_UNICODE}")]) from None
        try:
            self._stream.sendall(_LENGTH.pack(len(data)) + data)
        except OSError:
            # The server may have refused already and closed: its answer says why.
            return

    def _receive(self) -> Any:
        size = _LENGTH.unpack(self._exactly(_LENGTH.size))[0]
        word, value = msgspec.msgpack.decode(self._exactly(size))
        if word == "ok":
            return value
        raise decode_error(value)

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            try:
                part = self._stream.recv(min(size, 1 << 20))
            except OSError:
                part = b""  # it went away without a word
            if not part:
                raise Busy(
                    "the server closed the connection before it answered; look at its log, "
                    "and with `kudurru history` whether the change is there"
                )
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def encode_error(error: KudurruError) -> dict[str, Any]:
    match error:
        case Invalid():
            causes = [[cause.field, cause.message] for cause in error.causes]
            return {"type": "Invalid", "what": error.what, "causes": causes}
        case ManagedBy():
            return {"type": "ManagedBy", "what": error.what, "owner": error.owner}
        case MassChange() | Pruned():
            return {"type": type(error).__name__, **vars(error)}
        case _:
            return {"type": type(error).__name__, "message": str(error)}


def decode_error(value: dict[str, Any]) -> KudurruError:
    match value:
        case {"type": "Invalid", "what": str(what), "causes": list(causes)}:
            return Invalid(what, [Cause(field, message) for field, message in causes])
        case {"type": "ManagedBy", "what": str(what), "owner": str(owner)}:
            return ManagedBy(what, owner)
        case {"type": "MassChange", "zone": str(zone), "changed": int(part), "total": int(total)}:
            return MassChange(zone, part, total)
        case {"type": "Pruned", "what": str(what), "oldest": int(oldest)}:
            return Pruned(what, oldest)
        case {"type": str(name), "message": str(message)}:
            kind = getattr(errors, name, None)
            simple = (
                errors.NotFound,
                errors.Redacted,
                errors.Conflict,
                errors.Busy,
                errors.StorageFailed,
                errors.StorageBroken,
            )
            return kind(message) if kind in simple else KudurruError(message)
        case _:
            return KudurruError("the server sent an error that this version does not know")


# --- server -----------------------------------------------------------------------------------

Handler = Callable[[str, Any, Who], Awaitable[Any]]
"""(method, argument, who) to the value that is sent back. Raises KudurruError."""


class RpcServer:
    """Serves the socket of a data directory. `handler` does the work."""

    def __init__(self, path: Path, handler: Handler) -> None:
        self._path = path
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._busy: set[asyncio.Task[None]] = set()  # those with a command under way
        self._is_stopping = False

    async def start(self) -> None:
        """Bind, in place of a stale socket: the caller holds the directory's lock. Raises:
        StorageFailed."""
        before = os.umask(0o177)
        try:
            self._path.unlink(missing_ok=True)
            self._server = await asyncio.start_unix_server(
                self._connected, str(self._path), limit=1 << 20
            )
        except OSError as error:
            raise StorageFailed(f"{self._path} cannot be made: {error.strerror}") from None
        finally:
            os.umask(before)

    async def run(self) -> None:
        """Once it has started, until it is cancelled."""
        try:
            await asyncio.Event().wait()
        finally:
            await self.stop()

    async def stop(self) -> None:
        """Commands that are under way get DRAIN_S for their answers."""
        self._is_stopping = True
        if self._server is not None:
            self._server.close()
        if self._busy:
            await asyncio.wait(self._busy, timeout=DRAIN_S)
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        with suppress(OSError):  # a stale socket does no harm: see `start`
            self._path.unlink(missing_ok=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) > CONNECTIONS_MAX:
                busy = Busy(f"{CONNECTIONS_MAX} commands are being served; try again")
                await _send(writer, ["error", encode_error(busy)])
                return
            who = Who(actor=_peer(writer), source="socket")
            while not self._is_stopping:
                message = await _receive(reader)
                self._busy.add(task)
                await self._serve_one(message, reader, writer, who)
                self._busy.discard(task)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            return
        finally:
            self._connections.discard(task)
            self._busy.discard(task)
            writer.close()

    async def _serve_one(
        self,
        message: Any,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        who: Who,
    ) -> None:
        try:
            method, argument = _as_call(message)
            if method == "change":
                argument = await _receive_change(reader, argument)
            value = await self._handler(method, argument, who)
        except (ConnectionError, asyncio.IncompleteReadError):
            raise
        except KudurruError as error:
            await _send(writer, ["error", encode_error(error)])
        except msgspec.ValidationError as error:
            invalid = Invalid("request", [Cause("", str(error))])
            await _send(writer, ["error", encode_error(invalid)])
        except Exception as error:
            # A fault of ours in one command; the others and DNS go on.
            log.exception("a command failed")
            fault = KudurruError(f"{type(error).__name__}: {error}; look at the server's log")
            await _send(writer, ["error", encode_error(fault)])
        else:
            await _send(writer, ["ok", value])


def _as_call(value: Any) -> tuple[str, Any]:
    match value:
        case [str(method), argument]:
            return method, argument
        case _:
            raise Invalid("request", [Cause("", "not [method, argument]")])


async def _receive_change(reader: asyncio.StreamReader, argument: Any) -> ChangeRequest:
    """The change and its frames of objects. Every frame is read even after a fault, so that the
    connection stays in step and the client gets the answer."""
    header = msgspec.convert(argument, ChangeHeader)
    causes: list[Cause] = []
    manifests: list[Manifest] = []
    left = OBJECTS_MAX
    if header.frames > OBJECTS_MAX:  # more than one for each object: they would never end
        raise ConnectionError("more frames than there may be objects")
    with no_collections() if header.frames > 1 else nullcontext():
        for _ in range(header.frames):
            values = await _receive(reader)
            if not isinstance(values, list):
                raise ConnectionError("a frame that is no list of objects")
            left -= len(values)
            if left < 0:
                manifests.clear()
                continue
            for i, value in enumerate(values, 1):
                try:
                    manifests.append(manifest_from_wire(value))
                except Invalid as error:
                    causes += [Cause(f"{error.what}: {c.field}", c.message) for c in error.causes]
                if i % PER_STEP == 0:
                    await asyncio.sleep(0)
    if left < 0:
        fault = f"{OBJECTS_MAX - left} objects; at most {OBJECTS_MAX} in one change"
        raise Invalid("request", [Cause("", fault)])
    if causes:
        raise Invalid("request", causes[:100])
    return ChangeRequest(
        apply=manifests,
        delete=[as_key(key) for key in header.delete],
        manager=header.manager,
        force=header.force,
        dry_run=header.dry_run,
        reason=header.reason,
        imported_serials=header.imported_serials,
        allow_mass_change=header.allow_mass_change,
        is_versioned=header.is_versioned,
    )


async def _receive(reader: asyncio.StreamReader) -> Any:
    size = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))[0]
    if size > FRAME_MAX:
        raise ConnectionError(f"a frame of {size} octets")
    try:
        return msgspec.msgpack.decode(await reader.readexactly(size))
    except msgspec.DecodeError as error:
        raise ConnectionError(str(error)) from None


async def _send(writer: asyncio.StreamWriter, value: Any) -> None:
    data = msgspec.msgpack.encode(value)
    writer.write(_LENGTH.pack(len(data)) + data)
    await writer.drain()


def _peer(writer: asyncio.StreamWriter) -> str:
    """Who is at the other end, as the kernel says."""
    stream = writer.get_extra_info("socket")
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return actor_of(os.getuid())  # the folder is 0700: it can only be our own user
    raw = stream.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size)
    return actor_of(_CREDENTIALS.unpack(raw)[1])
