"""A `Service` at the other end of the API: what commands use with --server."""

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import quote

import msgspec

from kudurru.adapters.api_client import ApiClient, Given
from kudurru.domain.errors import Cause, Invalid, KudurruError, Unreachable
from kudurru.domain.events import Position
from kudurru.domain.filtering.explain import Explanation
from kudurru.domain.kinds.meta import NOT_UNICODE
from kudurru.domain.kinds.registry import API_TOKEN, KINDS, TSIG_KEY
from kudurru.domain.object_store import Outcome
from kudurru.domain.objects import Key, key_of, ref_of
from kudurru.domain.restore import Scope
from kudurru.entrypoints.differing import Difference
from kudurru.entrypoints.doctor_report import Report
from kudurru.entrypoints.exporting import Format, Wanted
from kudurru.entrypoints.filtering import BlockingRequest, BlockingState, ExplainRequest
from kudurru.entrypoints.keyring import KeyRequest, KeyState
from kudurru.entrypoints.list_service import ListRow
from kudurru.entrypoints.live_settings import PatchReply, PatchRequest
from kudurru.entrypoints.rest.past import UNSIGNED
from kudurru.entrypoints.rest.status import Status, error_from
from kudurru.entrypoints.rest.writing import BATCH_MAX, BatchReply
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
    manifest_to_wire,
)
from kudurru.entrypoints.tokens import NewToken, TokenRequest, TokenState
from kudurru.entrypoints.upkeep import PruneRequest, RedactRequest
from kudurru.entrypoints.wiring import Result

PREFIX = "/api/v1"
Params = Mapping[str, str | int | bool]

_T = TypeVar("_T")


class Export(NamedTuple):
    """An export of the log on its way."""

    left_out: int  # of the newest events, since no checkpoint is over them yet
    parts: Iterator[bytes]


class ApiService:
    """Implements `Service` over HTTP, and asks for what was at a moment too."""

    def __init__(self, url: str, token: str, ca: str = "") -> None:
        """As `ApiClient`. Raises: Invalid."""
        self._client = ApiClient(url, token, ca)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()

    # --- objects ------------------------------------------------------------------------

    def change(self, request: ChangeRequest) -> Result:
        if len(request.apply) + len(request.delete) > BATCH_MAX:
            fault = f"more than {BATCH_MAX} objects: do it where the data directory is, with --data"
            raise Invalid("--server", [Cause("", fault)])
        body = {
            "apply": [manifest_to_wire(manifest) for manifest in request.apply],
            "delete": [_named(key) for key in request.delete],
            "manager": request.manager,
            "force": request.force,
            "dryRun": request.dry_run,
            "reason": request.reason,
            "allowMassChange": request.allow_mass_change,
            "importedSerials": request.imported_serials,
            "isVersioned": request.is_versioned,
        }
        if request.delete and all(_is_internal(key) for key in request.delete):
            return self._revoke(request)
        reply = msgspec.convert(self._call("POST", "/batch", body=body), BatchReply)
        outcomes = [
            Outcome(
                one.verb,  # type: ignore[arg-type]  # a verb, as the server has them
                key_of(one.kind, one.namespace, one.name),
                one.resource_version,
                tuple(one.warnings),
            )
            for one in reply.outcomes
        ]
        return Result(outcomes, Position(reply.position))

    def _revoke(self, request: ChangeRequest) -> Result:
        """Tokens and keys have ways of their own, one by one."""
        if request.apply or request.dry_run:
            fault = "tokens and keys are deleted by themselves, and not for a try"
            raise Invalid("--server", [Cause("", fault)])
        at = 0
        for key in request.delete:
            ref = ref_of(key)
            path = "/tokens" if ref.kind == API_TOKEN.name else "/tsigkeys"
            done = self._call("DELETE", f"{path}/{quote(ref.name)}", {"reason": request.reason})
            at = done["details"].get("position", 0)
        return Result([Outcome("deleted", key) for key in request.delete], Position(at))

    def get(self, key: Key, *, at: str = "") -> dict[str, Any]:
        found: dict[str, Any] = self._call("GET", _path(key), _at(at))
        return found

    def list_objects(self, request: ListRequest, *, at: str = "") -> ListReply:
        kind = KINDS[request.kind]
        if kind.is_internal:
            fault = "tokens and keys are listed by `kudurru token list` and `kudurru tsig list`"
            raise Invalid("--server", [Cause("", fault)])
        where = "" if request.namespace is None else f"/namespaces/{quote(request.namespace)}"
        params: dict[str, str | int | bool] = {"limit": request.limit, **_at(at)}
        if request.selector:
            params["labelSelector"] = request.selector
        if request.start:
            params["continue"] = request.start
        page = self._call("GET", f"{where}/{kind.plural}", params)
        meta = page["metadata"]
        return ListReply(
            items=page["items"],
            resource_version=meta["resourceVersion"],
            next_key=meta.get("continue"),
        )

    def problems(self, key: Key) -> list[dict[str, Any]]:
        return self._call("GET", f"{_path(key)}/problems")  # type: ignore[no-any-return]  # JSON

    def conditions(self, key: Key) -> list[dict[str, Any]]:
        return self._call("GET", f"{_path(key)}/conditions")  # type: ignore[no-any-return]  # JSON

    def export(self, zone: str, *, at: str = "") -> list[str]:
        given = self._given("GET", f"/dnszones/{quote(zone, safe='')}/export", _at(at))
        return given.body.decode().splitlines(keepends=True)

    def refresh_zone(self, zone: str) -> str:
        done = self._call("POST", f"/dnszones/{quote(zone, safe='')}:refresh")
        return str(done["message"]).partition(":")[0]

    # --- answers ------------------------------------------------------------------------

    def query(self, packet: bytes, client: str = LOOPBACK, *, at: str = "") -> bytes:
        params = {"client": client, **_at(at)}
        dns = "application/dns-message"
        return self._given("POST", "/query", params, body=packet, content_type=dns).body

    def explain(self, request: ExplainRequest, *, at: str = "") -> Explanation:
        params = {
            "name": request.name, "type": request.type, "client": request.client,
            "mac": request.mac, "clientID": request.client_id, "listener": request.listener,
            **_at(at),
        }  # fmt: skip
        return msgspec.convert(self._call("GET", "/explain", params), Explanation)

    def blocking(self) -> BlockingState:
        return msgspec.convert(self._call("GET", "/blocking"), BlockingState)

    def set_blocking(self, request: BlockingRequest) -> BlockingState:
        body = msgspec.to_builtins(request)
        return msgspec.convert(self._call("PUT", "/blocking", body=body), BlockingState)

    def purge_queries(self, before_us: int | None) -> int:
        params = {} if before_us is None else {"before": _moment(before_us)}
        return int(self._call("DELETE", "/querylog", params)["deleted"])

    def lists(self) -> list[ListRow]:
        return msgspec.convert(self._call("GET", "/lists"), list[ListRow])

    def refresh_lists(self, names: Sequence[Key]) -> list[Key]:
        paths = [f"{_path(key)}:refresh" for key in names] or ["/lists:refresh"]
        found: list[str] = []
        for path in paths:
            found += self._call("POST", path)["lists"]
        return [key_of("BlockList", *name.split("/", 1)) for name in found]

    def cache_stats(self) -> dict[str, int]:
        return msgspec.convert(self._call("GET", "/cache"), dict[str, int])

    def cache_flush(self, name: str, *, subtree: bool = False) -> int:
        params: dict[str, str | bool] = {"subtree": subtree}
        if name:
            params["name"] = name
        return int(self._call("DELETE", "/cache", params)["deleted"])

    # --- the log ------------------------------------------------------------------------

    def events(self, params: Params, limit: int) -> list[dict[str, Any]]:
        """Newest first, from as many pages as it takes."""
        found: list[dict[str, Any]] = []
        more: dict[str, str] = {}
        while len(found) < limit:
            page = self._call("GET", "/events", {**params, "limit": limit - len(found), **more})
            found += page["items"]
            if not page["continue"]:
                break
            more = {"continue": page["continue"]}
        return found[:limit]

    def info(self, *, digests: bool = False) -> Info:
        found = self._call("GET", "/info", {"digests": digests})
        return Info(
            version=found["version"],
            log_id=found["logId"],
            position=found["position"],
            digests=found["digests"],
        )

    def checkpoint(self) -> str:
        return str(self._call("POST", "/checkpoint")["note"])

    def rotate_key(self, reason: str) -> str:
        return str(self._call("POST", "/checkpoint:rotate", body={"reason": reason})["note"])

    def differing(self, first: str, last: str | None, zone: str | None) -> list[Difference]:
        """Objects that differ between two moments; None: now, and all."""
        given = {"from": first, "to": last, "zone": zone}
        params = {name: text for name, text in given.items() if text is not None}
        return msgspec.convert(self._call("GET", "/diff", params), list[Difference])

    def audit_export(self, wanted: Wanted, format_: Format) -> Export:
        said = {k: text for k, text in msgspec.structs.asdict(wanted).items() if text is not None}
        path = f"{PREFIX}/events/export"
        given, parts = self._client.stream(path, {"format": format_.value, **said})
        self._check(given)
        return Export(int(given.headers.get(UNSIGNED, 0)), parts)

    def restore(self, request: RestoreRequest) -> Carried:
        at = "" if request.resume else str(request.target)
        return self.restore_to(request, request.scope, at=at)

    def restore_to(
        self,
        request: RestoreRequest,
        scope: Scope,
        *,
        at: str,
        before_event: int | None = None,
        apply: bool = True,
    ) -> Carried:
        """A restore, or only its plan, of which the server finds the target in its log. The zone of
        `scope` is as a person writes it; target and scope of the request do not count."""
        body = {
            "at": at,
            "beforeEvent": before_event,
            "resume": request.resume,
            "scope": {
                "zone": scope.zone,
                "namespace": scope.namespace,
                "kind": scope.kind,
                "selector": scope.selector,
                "objects": [str(key).replace("//", "/") for key in scope.keys],
                "all": scope.everything,
            },
            "apply": apply,
            "planDigest": request.plan_digest,
            "force": request.force,
            "allowMassChange": request.allow_mass_change,
            "reason": request.reason,
        }
        return msgspec.convert(self._call("POST", "/restore", body=body), Carried)

    def undo(self, request: UndoRequest, *, apply: bool = True) -> Carried:
        body = {
            "what": request.what,
            "apply": apply,
            "skipConflicts": request.skip_conflicts,
            "allowMassChange": request.allow_mass_change,
            "reason": request.reason,
        }
        return msgspec.convert(self._call("POST", "/undo", body=body), Carried)

    def mark(self, request: MarkRequest) -> int:
        body = {"name": request.name, "reason": request.reason}
        return int(self._call("POST", "/marks", body=body)["position"])

    def redact(self, request: RedactRequest) -> Erased:
        part = "who" if request.who else "body"
        body = {"position": request.seq, "part": part, "reason": request.reason}
        return msgspec.convert(self._call("POST", "/events:redact", body=body), Erased)

    def prune(self, request: PruneRequest) -> Pruned:
        body = {
            "before": str(request.before), "dryRun": request.dry_run, "reason": request.reason,
        }  # fmt: skip
        return msgspec.convert(self._call("POST", "/events:prune", body=body), Pruned)

    # --- the node itself ----------------------------------------------------------------

    def settings(self) -> list[dict[str, Any]]:
        return self._call("GET", "/settings")  # type: ignore[no-any-return]  # JSON

    def patch_settings(self, request: PatchRequest) -> PatchReply:
        params = {"reason": request.reason} if request.reason else {}
        found = self._call("PATCH", "/settings", params, body=request.set)
        return msgspec.convert(found, PatchReply)

    def doctor(self) -> Report:
        return msgspec.convert(self._call("GET", "/doctor"), Report)

    # --- keys and tokens ----------------------------------------------------------------

    def create_key(self, request: KeyRequest) -> Result:
        body = {
            "name": request.name,
            "secret": b64encode(request.secret).decode(),
            "algorithm": request.algorithm,
            "updates": request.updates,
            "replace": request.replace,
            "reason": request.reason,
        }
        given = self._given("POST", "/tsigkeys", body=msgspec.json.encode(body))
        key = key_of(TSIG_KEY.name, "", request.name.lower().removesuffix("."))
        at = int(given.headers.get("X-Kudurru-Position", 0))
        return Result([Outcome("created", key)], Position(at))

    def revoke_key(self, name: str, reason: str) -> Result:
        key = key_of(TSIG_KEY.name, "", name.lower().removesuffix("."))
        return self._revoke(ChangeRequest(delete=[key], reason=reason))

    def key_states(self) -> list[KeyState]:
        return msgspec.convert(self._call("GET", "/tsigkeys"), list[KeyState])

    def create_token(self, request: TokenRequest) -> NewToken:
        body = msgspec.to_builtins(request)
        return msgspec.convert(self._call("POST", "/tokens", body=body), NewToken)

    def revoke_token(self, name: str, reason: str) -> Result:
        return self._revoke(ChangeRequest(delete=[key_of(API_TOKEN.name, "", name)], reason=reason))

    def token_states(self) -> list[TokenState]:
        return msgspec.convert(self._call("GET", "/tokens"), list[TokenState])

    # --- requests -----------------------------------------------------------------------

    def _call(
        self, method: str, path: str, params: Params | None = None, *, body: Any = None
    ) -> Any:
        octets = None
        if body is not None:
            try:
                octets = msgspec.json.encode(body)
            except UnicodeEncodeError:
                fault = f"a text holds {NOT_UNICODE}"
                raise Invalid("request", [Cause("", fault)]) from None
        given = self._given(method, path, params, body=octets)
        try:
            return msgspec.json.decode(given.body)
        except msgspec.DecodeError:
            raise self._strange(given) from None

    def _given(self, method: str, path: str, params: Params | None = None, **how: Any) -> Given:
        """Raises: the error that the server tells."""
        try:
            given = self._client.ask(method, PREFIX + path, params, **how)
        except UnicodeEncodeError:
            raise Invalid("request", [Cause("", f"a text holds {NOT_UNICODE}")]) from None
        self._check(given)
        return given

    def _check(self, given: Given) -> None:
        """Raises: the error that the server tells."""
        if given.code < 400:
            return
        try:
            status = msgspec.json.decode(given.body, type=Status)
        except msgspec.MsgspecError:
            raise self._strange(given) from None
        raise error_from(status)

    def _strange(self, given: Given) -> KudurruError:
        what = f"it answered {given.code} with something else than the API has"
        return Unreachable(f"{self._client.url} is no kudurru of this version: {what}")


def _at(at: str) -> dict[str, str]:
    return {"at": at} if at else {}


def _moment(us: int) -> str:
    from kudurru.domain.notation import time_text

    return time_text(us)


def _path(key: Key) -> str:
    ref = ref_of(key)
    kind = KINDS[ref.kind]
    if kind.is_internal:
        fault = f"a {kind.name} is not read through the API; see `kudurru token` and `kudurru tsig`"
        raise Invalid("--server", [Cause("", fault)])
    where = f"/namespaces/{quote(ref.namespace, safe='')}" if kind.namespaced else ""
    return f"{where}/{kind.plural}/{quote(ref.name, safe='')}"


def _named(key: Key) -> dict[str, str]:
    ref = ref_of(key)
    return {"kind": ref.kind, "namespace": ref.namespace, "name": ref.name}


def _is_internal(key: Key) -> bool:
    return KINDS[ref_of(key).kind].is_internal
