"""Objects over HTTP: applied, patched, deleted, one by one or together.

A write is decided by the one writer like every other. What a limited token may write is decided
here, from the object as it is; the version that this was decided from goes with the command, so
that an object which moves meanwhile is refused and not written.
"""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec

from kudurru.adapters.http_ops import Response
from kudurru.domain.commands import ABSENT, Apply, Command, Delete
from kudurru.domain.errors import Cause, Conflict, Invalid, NotFound
from kudurru.domain.kinds.meta import (
    API_VERSION,
    DEFAULT_NAMESPACE,
    MANAGED_BY,
    PEOPLES_ANNOTATIONS,
)
from kudurru.domain.kinds.registry import DNS_ZONE, Kind, kind_by_word
from kudurru.domain.kinds.validation import (
    CAUSES_MAX,
    Manifest,
    parse_manifest,
    plain_manifest,
)
from kudurru.domain.object_store import (
    DEFAULT_MANAGER,
    Outcome,
    StoredObject,
    annotations_after,
    manager_faults,
    scope_of,
    to_document,
    to_encodable,
)
from kudurru.domain.objects import Key, key_of, ref_of
from kudurru.entrypoints.rest.calls import (
    ASIDE_MIN,
    MERGE_PATCH,
    OBJECTS_VALUES_MAX,
    Answer,
    Call,
    Told,
    converted,
)
from kudurru.entrypoints.rest.naming import check_names, document_reply, key_in, may_see
from kudurru.entrypoints.rest.people import MayNotMake, review
from kudurru.entrypoints.rest.reach import check_reach
from kudurru.entrypoints.rest.status import (
    BadRequest,
    Forbidden,
    PreconditionFailed,
    Status,
    success,
)
from kudurru.entrypoints.service import because
from kudurru.entrypoints.wiring import Change, Result

BATCH_MAX = 10_000
PATCH_TRIES = 5
"""As `Store.apply` gives up: somebody else writes the object all the time."""


class BatchDelete(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: str
    name: str
    namespace: str = ""


class Batch(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Objects to apply and to delete, together or not at all. `isVersioned`: an object that has a
    resourceVersion is applied only where it still has that."""

    apply: list[dict[str, Any]] = []
    delete: list[BatchDelete] = []
    manager: str = DEFAULT_MANAGER
    force: bool = False
    dry_run: bool = False
    reason: str = ""
    allow_mass_change: bool = False
    imported_serials: dict[str, Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]] = {}
    is_versioned: bool = False


class OutcomeReply(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    verb: str
    kind: str
    namespace: str
    name: str
    resource_version: str
    warnings: list[str] = []


class BatchReply(msgspec.Struct, frozen=True, kw_only=True):
    """What became of each object, and the position of the change; 0: nothing was written."""

    outcomes: list[OutcomeReply]
    position: int


def prepared_put(kind: Kind, call: Call) -> tuple[Change, Told] | None:
    """As `put`, of an object that is small and not a cluster's to write."""
    if len(call.request.body) >= ASIDE_MIN or call.context.writer.elsewhere is not None:
        return None
    key = key_in(kind, call)
    manifest = _read(kind, key, call)
    manager, expected = _manager(call), _precondition(call, key)
    stored = call.context.node.objects.find(key)
    command = _apply_command(call, manifest, stored, manager, expected, force=call.has("force"))

    def told(result: Result | BaseException) -> Response:
        if isinstance(result, BaseException):
            raise _as_asked(call, result)
        return _written(call, result, manifest, stored, manager)

    return _change(call, [command]), told


async def put(kind: Kind, call: Call) -> Answer:
    key = key_in(kind, call)

    manifest = await call.reading(partial(_read, kind, key, call))
    may_not_make = await review(call, applied=[key])
    expected = _precondition(call, key)
    return await _apply(call, manifest, _manager(call), expected, may_not_make)


def _read(kind: Kind, key: Key, call: Call) -> Manifest:
    ref = ref_of(key)
    manifest = plain_manifest(call.request.body, kind, ref.namespace, ref.name)
    if manifest is None:
        document = call.document(values_max=OBJECTS_VALUES_MAX)
        manifest = _manifest(_named(document, kind, key), str(ref))
    return manifest


async def _apply(
    call: Call,
    manifest: Manifest,
    manager: str,
    expected: str | None,
    may_not_make: MayNotMake | None = None,
) -> Answer:
    stored = call.context.node.objects.find(manifest.key)
    expected = _at_least_there(manifest.key, stored, expected, may_not_make or {})
    command = _apply_command(call, manifest, stored, manager, expected, force=call.has("force"))
    result = await _submit(call, [command])
    return _written(call, result, manifest, stored, manager)


def _at_least_there(
    key: Key, stored: StoredObject | None, expected: str | None, may_not_make: MayNotMake
) -> str | None:
    """What the command has to expect, so that it makes nothing that may not be made. Raises:
    Forbidden."""
    if key not in may_not_make:
        return expected
    if stored is None or expected == ABSENT:
        raise Forbidden(may_not_make[key])
    return stored.resource_version if expected is None else expected


def _apply_command(
    call: Call,
    manifest: Manifest,
    stored: StoredObject | None,
    manager: str,
    expected: str | None,
    *,
    force: bool,
) -> Apply:
    """Raises: Forbidden."""
    key = manifest.key
    _check_may_write(call, key, stored, scope_of(manifest))
    check_reach(call, key, manifest.spec, stored)
    if expected is None and call.principal.rights.zones:
        expected = stored.resource_version if stored is not None else ABSENT
    return Apply(manifest=manifest, manager=manager, force=force, expected=expected)


async def patch(kind: Kind, call: Call) -> Answer:
    key = key_in(kind, call)
    change = await call.reading(partial(call.document, MERGE_PATCH, values_max=OBJECTS_VALUES_MAX))
    if not isinstance(change, dict):
        raise Invalid(str(ref_of(key)), [Cause("", "a merge patch is an object (RFC 7396)")])
    expected = _precondition(call, key)
    await review(call, changed=[key])
    for left in reversed(range(PATCH_TRIES)):
        stored = call.context.node.objects.find(key)
        if stored is None or not may_see(call, stored):
            raise NotFound(f"{ref_of(key)} does not exist")
        manager = stored.manager if _is_peoples(change) else _manager(call)
        manifest = await call.reading(partial(_patched, kind, stored, change))
        try:
            return await _apply(call, manifest, manager, expected or stored.resource_version)
        except Conflict:
            if not left or expected is not None:
                raise
    raise AssertionError("the last try returns or raises")


def _patched(kind: Kind, stored: StoredObject, change: dict[str, Any]) -> Manifest:
    document = _named(merged(to_document(stored), change), kind, stored.key)
    return _manifest(document, str(ref_of(stored.key)))


def merged(value: Any, change: Any) -> Any:
    """A value with a merge patch applied (RFC 7396 section 2)."""
    if not isinstance(change, dict):
        return change
    found = dict(value) if isinstance(value, dict) else {}
    for name, part in change.items():
        if part is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), part)
    return found


def _is_peoples(change: dict[str, Any]) -> bool:
    """Whether a patch changes nothing but annotations that belong to people."""
    match change:
        case {"metadata": {"annotations": dict(annotations), **others}, **rest}:
            return not others and not rest and annotations.keys() <= set(PEOPLES_ANNOTATIONS)
        case _:
            return False


async def delete(kind: Kind, call: Call) -> Status:
    key = key_in(kind, call)
    expected = _precondition(call, key)
    await review(call, deleted=[key])
    command = _delete_command(call, key, _manager(call), expected, force=call.has("force"))
    result = await _submit(call, [command])
    return success(f"{ref_of(key)} deleted", position=result.seq)


def _delete_command(
    call: Call, key: Key, manager: str, expected: str | None, *, force: bool
) -> Delete:
    stored = call.context.node.objects.find(key)
    if stored is None or not may_see(call, stored):
        raise NotFound(f"{ref_of(key)} does not exist")
    _check_may_write(call, key, stored, None)
    if expected is None and call.principal.rights.zones:
        expected = stored.resource_version
    return Delete(key=key, manager=manager, force=force, expected=expected)


async def batch(call: Call) -> BatchReply:
    wanted, manifests = await call.reading(partial(_read_batch, call))
    _check_serials(call, wanted, manifests)
    deleted = [_deleted_key(one, f"delete[{i}]") for i, one in enumerate(wanted.delete)]
    may_not_make = await review(call, applied=[one.key for one in manifests], deleted=deleted)
    # Zones first: record sets are held against them, wherever they stand in the batch.
    order = sorted(range(len(manifests)), key=lambda i: manifests[i].kind is not DNS_ZONE)
    commands: list[Command] = []
    for manifest in (manifests[i] for i in order):
        stored = call.context.node.objects.find(manifest.key)
        expected = manifest.meta.resource_version if wanted.is_versioned else None
        expected = _at_least_there(manifest.key, stored, expected, may_not_make)
        commands.append(
            _apply_command(call, manifest, stored, wanted.manager, expected, force=wanted.force)
        )
    commands += [
        _delete_command(call, key, wanted.manager, None, force=wanted.force) for key in deleted
    ]
    if not commands:
        return BatchReply(outcomes=[], position=0)
    change = Change(
        commands=tuple(commands),
        who=because(call.who, wanted.reason),
        dry_run=wanted.dry_run,
        allow_mass_change=wanted.allow_mass_change,
        imported_serials=wanted.imported_serials,
    )
    result = await call.context.writer.submit(change)
    at = {index: place for place, index in enumerate(order)}
    outcomes = [result.outcomes[at[i]] for i in range(len(order))] + result.outcomes[len(order) :]
    return BatchReply(outcomes=[_outcome(one) for one in outcomes], position=result.seq)


def _read_batch(call: Call) -> tuple[Batch, list[Manifest]]:
    """Raises: BadRequest, Invalid, Forbidden."""
    document = call.document(values_max=OBJECTS_VALUES_MAX)
    parts = (
        [document.get(name) for name in ("apply", "delete")] if isinstance(document, dict) else []
    )
    if sum(len(part) for part in parts if isinstance(part, list)) > BATCH_MAX:
        raise Invalid("batch", [Cause("", f"more than {BATCH_MAX} objects: send several")])
    wanted = converted(document, Batch)
    if wanted.force:
        call.demand("objects.force")
    _check_manager(wanted.manager)
    return wanted, _manifests(wanted.apply)


def _check_serials(call: Call, wanted: Batch, manifests: Sequence[Manifest]) -> None:
    """A serial far ahead is one that secondaries hold against us for years. Raises: Forbidden,
    Invalid."""
    if not wanted.imported_serials:
        return
    if call.principal.rights.is_limited or call.principal.user is not None:
        raise Forbidden("importedSerials: a token with limits gives no serials")
    applied = {manifest.key for manifest in manifests}
    causes = [
        Cause(f"importedSerials.{name}", "the batch applies no DNSZone of this name")
        for name in wanted.imported_serials
        if key_of(DNS_ZONE.name, "", name) not in applied
    ]
    if causes:
        raise Invalid("batch", causes[:CAUSES_MAX])


def _manifests(documents: Sequence[dict[str, Any]]) -> list[Manifest]:
    """Raises: Invalid with every fault of all of them, up to CAUSES_MAX."""
    found: list[Manifest] = []
    causes: list[Cause] = []
    seen: set[Key] = set()
    for i, document in enumerate(documents):
        if len(causes) >= CAUSES_MAX:
            break
        try:
            manifest = _manifest(document, f"apply[{i}]")
        except Invalid as error:
            causes += [
                Cause(f"apply[{i}].{cause.field}".rstrip("."), cause.message)
                for cause in error.causes
            ]
            continue
        if manifest.key in seen:
            causes.append(Cause(f"apply[{i}]", f"{ref_of(manifest.key)} is given twice"))
        seen.add(manifest.key)
        found.append(manifest)
    if causes:
        raise Invalid("batch", causes[:CAUSES_MAX])
    return found


def _deleted_key(one: BatchDelete, where: str) -> Key:
    try:
        kind = kind_by_word(one.kind)
    except Invalid as error:
        raise Invalid("batch", [Cause(f"{where}.kind", error.causes[0].message)]) from None
    if kind.is_internal:
        _refuse_internal(kind, f"{where}.kind")
    namespace = (one.namespace or DEFAULT_NAMESPACE) if kind.namespaced else ""
    return check_names(kind, {"namespace": namespace, "name": one.name})


def _outcome(outcome: Outcome) -> OutcomeReply:
    ref = ref_of(outcome.key)
    return OutcomeReply(
        verb=outcome.verb,
        kind=ref.kind,
        namespace=ref.namespace,
        name=ref.name,
        resource_version=outcome.resource_version,
        warnings=list(outcome.warnings),
    )


async def _submit(call: Call, commands: Sequence[Command]) -> Result:
    try:
        return await call.context.writer.submit(_change(call, commands))
    except Conflict as error:
        raise _as_asked(call, error) from None


def _change(call: Call, commands: Sequence[Command]) -> Change:
    return Change(
        commands=tuple(commands),
        who=because(call.who, call.text("reason")),
        dry_run=call.has("dryRun"),
        allow_mass_change=call.has("allowMassChange"),
    )


def _as_asked(call: Call, error: BaseException) -> BaseException:
    """An error as its caller is told it."""
    is_conditional = not {"if-match", "if-none-match"}.isdisjoint(call.request.headers)
    if isinstance(error, Conflict) and is_conditional:
        return PreconditionFailed(str(error))
    return error


def _written(
    call: Call, result: Result, manifest: Manifest, before: StoredObject | None, manager: str
) -> Response:
    """The object as it is now; of a dry run as it would be."""
    outcome = result.outcomes[0]
    is_dry = call.has("dryRun")
    stored = call.context.node.objects.find(outcome.key)
    if is_dry or stored is None:
        document = _as_it_would_be(manifest, before, manager)
    else:
        document = to_encodable(stored)
    headers = (
        ("X-Kudurru-Verb", outcome.verb),
        ("X-Kudurru-Position", str(result.seq)),
        *_warning(outcome.warnings),
    )
    code = 201 if outcome.verb == "created" and not is_dry else 200
    return document_reply(document, code, headers)


def _warning(texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The Warning header (RFC 7234 section 5.5), as the API of Kubernetes has it: clients there
    show it to people."""
    if texts:
        yield "Warning", ", ".join(f'299 - "{_QUOTED.sub(_escaped, text)}"' for text in texts)


_QUOTED = re.compile(r'[^ -~]|["\\]')


def _escaped(match: re.Match[str]) -> str:
    """A quoted pair (RFC 9110 section 5.6.4); what no header may have as `?`."""
    return f"\\{match[0]}" if match[0] in '"\\' else "?"


def _as_it_would_be(
    manifest: Manifest, before: StoredObject | None, manager: str
) -> dict[str, Any]:
    meta = manifest.meta
    found: dict[str, Any] = to_document(before) if before is not None else {}
    kept = {k: v for k, v in found.get("metadata", {}).items() if k not in ("labels",)}
    annotations = annotations_after(meta.annotations, before.body.annotations if before else {})
    metadata = {**kept, "name": meta.name}
    if meta.namespace:
        metadata["namespace"] = meta.namespace
    if meta.labels:
        metadata["labels"] = meta.labels
    metadata["annotations"] = {MANAGED_BY: manager, **annotations}
    document = {
        "apiVersion": API_VERSION,
        "kind": manifest.kind.name,
        "metadata": metadata,
        "spec": msgspec.to_builtins(manifest.spec),
    }
    return document | ({"status": found["status"]} if "status" in found else {})


# --- what a request says --------------------------------------------------------------------


def _named(document: Any, kind: Kind, key: Key) -> Any:
    """The document, with what the path says of it where it is silent. Raises: BadRequest where
    they disagree."""
    if not isinstance(document, dict) or not isinstance(document.get("metadata", {}), dict):
        return document  # which is refused with all its faults
    ref = ref_of(key)
    meta = document.get("metadata", {})
    said = {
        "apiVersion": (document.get("apiVersion", API_VERSION), API_VERSION),
        "kind": (document.get("kind", kind.name), kind.name),
        "metadata.name": (meta.get("name", ref.name), ref.name),
        "metadata.namespace": (meta.get("namespace", ref.namespace) or "", ref.namespace),
    }
    causes = [
        Cause(field, f"{given!r}, and the path says {meant!r}")
        for field, (given, meant) in said.items()
        if given != meant
    ]
    if causes:
        raise BadRequest(str(ref), causes)
    named = {**meta, "name": ref.name}
    if ref.namespace:
        named["namespace"] = ref.namespace
    return {**document, "apiVersion": API_VERSION, "kind": kind.name, "metadata": named}


def _manifest(document: Any, what: str) -> Manifest:
    manifest = parse_manifest(document, what=what, default_namespace=DEFAULT_NAMESPACE)
    if manifest.kind.is_internal:
        _refuse_internal(manifest.kind, "kind")
    return manifest


def _refuse_internal(kind: Kind, where: str) -> None:
    fault = f"it has a secret and goes through /tokens or /tsigkeys, see `{kind.made_by}`"
    raise Invalid(kind.name, [Cause(where, fault)])


def _manager(call: Call) -> str:
    """Raises: Invalid, Forbidden."""
    if call.has("force"):
        call.demand("objects.force")
    return _check_manager(call.text("fieldManager", DEFAULT_MANAGER))


def _check_manager(manager: str) -> str:
    if manager != DEFAULT_MANAGER and (causes := list(manager_faults(manager))):
        raise Invalid("fieldManager", causes)
    return manager


def _check_may_write(call: Call, key: Key, stored: StoredObject | None, after: str | None) -> None:
    before = stored.scope if stored is not None else None
    if why := call.principal.rights.why_not_write(key, before, after):
        raise Forbidden(why)


def _precondition(call: Call, key: Key) -> str | None:
    """What If-Match and If-None-Match demand of the object. Raises: BadRequest,
    PreconditionFailed."""
    headers = call.request.headers
    match_, none_match = headers.get("if-match"), headers.get("if-none-match")
    if none_match is not None:
        if none_match.strip() != "*" or match_ is not None:
            raise BadRequest("If-None-Match", [Cause("", "only *, and not beside If-Match")])
        return ABSENT
    if match_ is None:
        return None
    version = match_.strip()
    if version == "*":
        stored = call.context.node.objects.find(key)
        if stored is None or not may_see(call, stored):
            raise PreconditionFailed(f"{ref_of(key)} does not exist")
        return stored.resource_version
    version = version.removeprefix('"').removesuffix('"')
    if not version or '"' in version or "," in version:
        raise BadRequest("If-Match", [Cause("", "one resourceVersion, as ETag has it")])
    return version
