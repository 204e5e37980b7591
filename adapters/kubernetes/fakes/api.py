"""The API server: objects, their versions, conditional writes, server-side apply, lists in pages,
watches. What it answers is what the table of tests/kube says, on the real one and on this.

It checks no schemas. It can be told to forbid verbs, to answer in some other way, to forget old
versions, and to let a write land late.
"""

import asyncio
import copy
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from itertools import count
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from kudurru.adapters.kubernetes.crds import crds
from kudurru.adapters.kubernetes.fakes import ownership
from kudurru.adapters.kubernetes.fakes.network import Request, Response
from kudurru.adapters.kubernetes.fakes.reviews import Reviews
from kudurru.adapters.kubernetes.times import seconds_text
from kudurru.domain.ports import Clock
from kudurru.domain.selectors import parse_selector

PAGES_MAX = 64
BOOKMARK_S = 60.0
EVENTS_LAST_US = 3600 * 1_000_000
_META_V1 = "meta.k8s.io/v1"

Object = dict[str, Any]


class Resource(msgspec.Struct, frozen=True):
    prefix: str  # "/api/v1", "/apis/kudurru.io/v1alpha1"
    kind: str
    plural: str
    namespaced: bool = True
    has_status: bool = False  # as a subresource; then content counts generations

    @property
    def api_version(self) -> str:
        return self.prefix.split("/", 2)[2]

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    @property
    def qualified(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


def _own_kinds() -> Iterator[Resource]:
    for definition in crds():
        spec = definition["spec"]
        prefix = f"/apis/{spec['group']}/{spec['versions'][0]['name']}"
        names = spec["names"]
        scoped = spec["scope"] == "Namespaced"
        yield Resource(prefix, names["kind"], names["plural"], scoped, has_status=True)


BUILT_IN = (
    Resource("/api/v1", "Namespace", "namespaces", namespaced=False),
    Resource("/api/v1", "ConfigMap", "configmaps"),
    Resource("/api/v1", "Secret", "secrets"),
    Resource("/api/v1", "Event", "events"),
    Resource(
        "/apis/apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        namespaced=False,
    ),
    Resource("/apis/coordination.k8s.io/v1", "Lease", "leases"),
    Resource("/apis/discovery.k8s.io/v1", "EndpointSlice", "endpointslices"),
    Resource("/apis/externaldns.k8s.io/v1alpha1", "DNSEndpoint", "dnsendpoints", has_status=True),
)
_REVIEWS = tuple(
    Resource(prefix, kind, f"{kind.lower()}s", namespaced=False)
    for prefix, kind in (
        ("/apis/authentication.k8s.io/v1", "TokenReview"),
        ("/apis/authorization.k8s.io/v1", "SubjectAccessReview"),
        ("/apis/authorization.k8s.io/v1", "SelfSubjectRulesReview"),
    )
)
"""They are made, answered and kept nowhere."""


class _Refusal(Exception):
    def __init__(self, code: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
        self.body = body | {"reason": reason, "message": message, "details": details}


class _Change(msgspec.Struct, frozen=True):
    version: int
    type: str
    resource: Resource
    object: Object


class _Call(msgspec.Struct, frozen=True):
    """A request, taken apart."""

    method: str
    resource: Resource
    namespace: str
    name: str
    part: str  # "status", or ""
    query: dict[str, str]
    body: Any
    form: str
    accept: str = ""

    @property
    def as_kind(self) -> str:
        """What each object of the answer is to be given as: "" as it is."""
        found = re.search(r";as=(\w+)", self.accept)
        return found[1] if found else ""

    @property
    def verb(self) -> str:
        match self.method:
            case "GET" if self.query.get("watch") in ("1", "true"):
                return "watch"
            case "GET":
                return "get" if self.name else "list"
        return {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[
            self.method
        ]

    @property
    def key(self) -> tuple[str, str, str]:
        return self.resource.qualified, self.namespace, self.name

    @property
    def manager(self) -> str:
        return self.query.get("fieldManager") or "unknown"


class FakeApi:
    """Give `handle` to a `MemoryServer`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._objects: dict[tuple[str, str, str], Object] = {}
        self._version = 100
        self._compacted = 0
        self._changes: deque[_Change] = deque()
        self._changed = asyncio.Event()
        self._numbers = count(1)
        self._pages: dict[str, tuple[list[Object], str]] = {}
        self._late: list[_Call] = []
        self._events_written: dict[tuple[str, str, str], int] = {}
        self._watching = 0
        known = (*BUILT_IN, *_REVIEWS, *_own_kinds())
        self.resources = {(one.prefix, one.plural): one for one in known}
        self.reviews = Reviews()
        self.forbidden: set[tuple[str, str]] = set()
        """(verb, plural) that are answered 403."""
        self.absent: set[str] = set()
        """Plurals of definitions that are not installed."""
        self.interfere: Callable[[str, str, str], Response | None] | None = None
        """(verb, plural, name) to an answer in place of the real one; nothing is done then."""
        self.late: Callable[[str, str], bool] | None = None
        """(verb, plural): whether the write is not answered, and lands after the next read."""
        self.events_of_watches: Callable[[list[bytes]], list[bytes]] | None = None
        """What a watch brings at once, to what it brings instead."""
        self.calls: list[tuple[str, str, str]] = []
        """(verb, plural, name) of each request that was understood."""
        self.seed("namespaces", "", "kube-system")
        self.seed("namespaces", "", "default")

    async def handle(self, request: Request) -> Response:
        try:
            if (found := self._discovered(request)) is not None:
                return Response(200, msgspec.json.encode(found))
            call = self._understood(request)
            self.calls.append((call.verb, call.resource.plural, call.name))
            if self.interfere and (
                answer := self.interfere(call.verb, call.resource.plural, call.name)
            ):
                return answer
            if (call.verb, call.resource.plural) in self.forbidden:
                raise _forbidden(call)
            if call.verb == "watch":
                return Response(200, stream=self._watched(call))
            return await self._answered(call)
        except _Refusal as refusal:
            return Response(refusal.code, msgspec.json.encode(refusal.body))

    # What a test does to it, and sees of it.

    def compact(self) -> None:
        """Forget all older versions: watches and pages that need them are gone. Watches that are
        open have seen them."""
        self._compacted = self._version
        self._changes.clear()
        self._pages.clear()
        self._wake()

    def end_watches(self) -> None:
        """As a server does that is asked for a while at most, or is about to restart."""
        self._watching += 1
        self._wake()

    def objects(self, plural: str) -> dict[str, Object]:
        """By name, or namespace and name."""
        resource = next(one for one in self.resources.values() if one.plural == plural)
        return {
            f"{namespace}/{name}".lstrip("/"): copy.deepcopy(found)
            for (qualified, namespace, name), found in self._objects.items()
            if qualified == resource.qualified
        }

    def rolled_back(self, objects: Mapping[tuple[str, str, str], Object], version: int) -> None:
        """Be as a backup was."""
        self._objects = {key: copy.deepcopy(value) for key, value in objects.items()}
        self._version = version
        self.compact()

    def backup(self) -> tuple[dict[tuple[str, str, str], Object], int]:
        return {key: copy.deepcopy(value) for key, value in self._objects.items()}, self._version

    # Requests.

    async def _answered(self, call: _Call) -> Response:
        self._expire_events()
        if call.verb in ("get", "list"):
            body = self._get(call) if call.name else self._list(call)
            late, self._late = self._late, []
            for write in late:
                self._write(write)
            return Response(200, msgspec.json.encode(body))
        if self.late and self.late(call.verb, call.resource.plural):
            self._late.append(call)
            await asyncio.get_running_loop().create_future()
        code, body = self._write(call)
        return Response(code, msgspec.json.encode(body))

    def _write(self, call: _Call) -> tuple[int, Object]:
        match call.verb:
            case "create" if call.resource in _REVIEWS:
                kind = call.resource.kind
                return 201, self.reviews.answer(kind, self._sent(call), self.forbidden)
            case "create":
                return 201, self._create(call)
            case "update":
                return 200, self._update(call)
            case "delete":
                return 200, self._delete(call)
        if call.form.startswith("application/apply-patch"):
            return self._apply(call)
        if call.form.startswith("application/merge-patch"):
            return 200, self._merge(call)
        raise _Refusal(415, "UnsupportedMediaType", f"{call.form} is no patch that is known here")

    def _get(self, call: _Call) -> Object:
        found = self._objects.get(call.key)
        if found is None:
            raise _not_found(call)
        return found

    def _list(self, call: _Call) -> Object:
        token = call.query.get("continue", "")
        if token:
            if token not in self._pages:
                raise _expired()
            items, version = self._pages.pop(token)
        else:
            chosen = _chooser(call)
            items = [value for key, value in sorted(self._of(call)) if chosen(value)]
            version = str(self._version)
        limit = int(call.query.get("limit") or 0) or len(items)
        page, rest = items[:limit], items[limit:]
        metadata: Object = {"resourceVersion": version}
        if rest:
            metadata["continue"] = f"page-{next(self._numbers)}"
            metadata["remainingItemCount"] = len(rest)
            self._pages[metadata["continue"]] = (rest, version)
            while len(self._pages) > PAGES_MAX:
                del self._pages[next(iter(self._pages))]
        if call.as_kind:
            page = [_metadata_of(one) for one in page]
        return {
            "kind": call.as_kind or f"{call.resource.kind}List",
            "apiVersion": _META_V1 if call.as_kind else call.resource.api_version,
            "metadata": metadata,
            "items": page,
        }

    def _create(self, call: _Call) -> Object:
        new = self._sent(call)
        if call.resource.plural == "events":
            _check_event(call, new)
        metadata = new["metadata"]
        if not metadata.get("name") and (prefix := metadata.get("generateName")):
            metadata["name"] = f"{prefix}{next(self._numbers):05x}"
        call = msgspec.structs.replace(call, name=metadata.get("name", ""))
        if metadata.get("resourceVersion"):
            raise _Refusal(
                400, "BadRequest", "resourceVersion should not be set on objects to be created"
            )
        if call.key in self._objects:
            raise _Refusal(
                409, "AlreadyExists", f'{call.resource.qualified} "{call.name}" already exists'
            )
        return self._made(call, new, "Update")

    def _update(self, call: _Call) -> Object:
        new = self._sent(call)
        before = self._get(call)
        self._check(call, new["metadata"], before, uid_code=409)
        if call.part == "status":
            after = {**before, "status": new.get("status", {})}
        else:
            after = new
            after["metadata"] = {**_kept(before), **_peoples(new)}
            after.pop("status", None) if call.resource.has_status else None
            if "status" in before and call.resource.has_status:
                after["status"] = before["status"]
        return self._stored(call, before, after, "Update")

    def _merge(self, call: _Call) -> Object:
        before = self._get(call)
        patch = call.body if isinstance(call.body, dict) else {}
        self._check(call, patch.get("metadata", {}), before, uid_code=409)
        after = _merged(before, patch)
        if call.part == "status":
            after = {**before, "status": after.get("status", {})}
        elif call.resource.has_status and "status" in before:
            after["status"] = before["status"]
        managed = after["metadata"].get("managedFields")
        after["metadata"] = {**_kept(before), **_peoples(after)}
        return self._stored(call, before, after, "Update", managed)

    def _delete(self, call: _Call) -> Object:
        before = self._get(call)
        wanted = (call.body or {}).get("preconditions") or {}
        for field in ("uid", "resourceVersion"):
            if wanted.get(field) not in (None, before["metadata"][field]):
                raise _conflict(call, f"Precondition failed: {field}")
        if before["metadata"].get("finalizers"):
            return self._marked(call, before)
        self._version += 1
        last = copy.deepcopy(before)
        last["metadata"]["resourceVersion"] = str(self._version)
        self._remove(call, last)
        return {
            "kind": "Status",
            "status": "Success",
            "details": {"uid": before["metadata"]["uid"]},
        }

    def _marked(self, call: _Call, before: Object) -> Object:
        """It stays until nothing holds it any more."""
        if "deletionTimestamp" in before["metadata"]:
            return before
        after = copy.deepcopy(before)
        metadata = after["metadata"]
        metadata["deletionTimestamp"] = seconds_text(self._clock.now_us())
        metadata["deletionGracePeriodSeconds"] = 0
        if "generation" in metadata:
            metadata["generation"] += 1
        return self._put(call, "MODIFIED", after, _Owners(before))

    def _remove(self, call: _Call, last: Object) -> None:
        del self._objects[call.key]
        self._announce("DELETED", call.resource, last)

    def _apply(self, call: _Call) -> tuple[int, Object]:
        new = self._sent(call)
        metadata = new["metadata"]
        before = self._objects.get(call.key)
        if before is None:
            if metadata.get("uid"):
                raise _conflict(call, "uid mismatch: the object is not there")
            if ("create", call.resource.plural) in self.forbidden:
                raise _forbidden(msgspec.structs.replace(call, method="POST"))
            new["metadata"] = {"name": call.name, **_peoples(new)}
            return 201, self._made(call, new, "Apply")
        self._check(call, metadata, before, uid_code=422)
        return 200, self._applied(call, before, new)

    def _applied(self, call: _Call, before: Object, new: Object) -> Object:
        owners = _Owners(before)
        mine = (call.manager, "Apply", call.part)
        wanted = {
            path for path in ownership.fields(new) if (path[0] == "status") == bool(call.part)
        }
        conflicts = [
            (who, path)
            for who, theirs in owners.sets.items()
            for path in sorted(theirs & wanted)
            if who != mine and ownership.value_at(before, path) != ownership.value_at(new, path)
        ]
        if conflicts and call.query.get("force") != "true":
            raise _field_conflict(call, conflicts)
        after = copy.deepcopy(before)
        for path in owners.sets.get(mine, set()) - wanted:
            if not any(path in theirs for who, theirs in owners.sets.items() if who != mine):
                ownership.remove(after, path)
        for path in wanted:
            ownership.put(after, path, copy.deepcopy(ownership.value_at(new, path)))
        for who, path in conflicts:
            owners.sets[who].discard(path)
        owners.sets[mine] = wanted
        return self._kept_if_same(call, before, after, owners)

    # State.

    def _made(self, call: _Call, new: Object, operation: str) -> Object:
        metadata = new["metadata"]
        if call.resource.namespaced:
            metadata["namespace"] = call.namespace
        metadata["uid"] = f"00000000-0000-4000-8000-{next(self._numbers):012x}"
        metadata["creationTimestamp"] = seconds_text(self._clock.now_us())
        metadata.pop("managedFields", None)
        if call.resource.has_status:
            new.pop("status", None)
            metadata["generation"] = 1
        owners = _Owners(new)
        owners.sets[(call.manager, operation, "")] = ownership.fields(new)
        return self._put(call, "ADDED", new, owners)

    def _stored(
        self,
        call: _Call,
        before: Object,
        after: Object,
        operation: str,
        managed: list[Object] | None = None,
    ) -> Object:
        """After an update: its sender owns what it changed."""
        owners = _Owners(before)
        if managed is not None:
            owners = _Owners({"metadata": {"managedFields": managed}})
        then, now = ownership.fields(before), ownership.fields(after)
        changed = {
            path
            for path in now
            if ownership.value_at(before, path) != ownership.value_at(after, path)
        }
        for theirs in owners.sets.values():
            theirs -= changed | (then - now)
        if changed:
            owners.sets.setdefault((call.manager, operation, call.part), set()).update(changed)
        return self._kept_if_same(call, before, after, owners)

    def _kept_if_same(
        self, call: _Call, before: Object, after: Object, owners: "_Owners"
    ) -> Object:
        after["metadata"]["managedFields"] = owners.rendered(call.resource)
        if after == before:
            return before
        content = [
            {k: v for k, v in one.items() if k not in ("metadata", "status")}
            for one in (before, after)
        ]
        if call.resource.has_status and content[0] != content[1]:
            after["metadata"]["generation"] = before["metadata"]["generation"] + 1
        return self._put(call, "MODIFIED", after, owners)

    def _put(self, call: _Call, type_: str, new: Object, owners: "_Owners") -> Object:
        metadata = new["metadata"]
        metadata["managedFields"] = owners.rendered(call.resource)
        if call.query.get("dryRun") == "All":
            return new
        self._version += 1
        metadata["resourceVersion"] = str(self._version)
        found = {"apiVersion": call.resource.api_version, "kind": call.resource.kind, **new}
        if "deletionTimestamp" in metadata and not metadata.get("finalizers"):
            self._remove(call, found)
            return found
        self._objects[call.key] = found
        if call.resource.plural == "events":
            self._events_written[call.key] = self._clock.now_us()
        self._announce(type_, call.resource, found)
        return found

    def _announce(self, type_: str, resource: Resource, found: Object) -> None:
        self._changes.append(_Change(self._version, type_, resource, copy.deepcopy(found)))
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def seed(self, plural: str, namespace: str, name: str) -> None:
        """Make an object that says nothing."""
        resource = next(one for one in BUILT_IN if one.plural == plural)
        call = _Call("POST", resource, namespace, name, "", {}, None, "")
        self._made(call, {"metadata": {"name": name}}, "Update")

    def _of(self, call: _Call) -> Iterator[tuple[tuple[str, str, str], Object]]:
        for key, value in self._objects.items():
            if key[0] == call.resource.qualified and call.namespace in ("", key[1]):
                yield key, value

    def _check(self, call: _Call, sent: Object, before: Object, *, uid_code: int) -> None:
        uid, version = sent.get("uid"), sent.get("resourceVersion")
        if uid and uid != before["metadata"]["uid"]:
            if uid_code == 422:
                cause = {"reason": "FieldValueInvalid", "field": "metadata.uid"}
                raise _Refusal(422, "Invalid", "metadata.uid: field is immutable", causes=[cause])
            raise _conflict(call, "Precondition failed: UID")
        if version and version != before["metadata"]["resourceVersion"]:
            raise _conflict(
                call,
                "the object has been modified; please apply your changes to the latest version",
            )

    def _expire_events(self) -> None:
        # An hour after its last write the real one deletes an event.
        now_us = self._clock.now_us()
        for key in [key for key in self._objects if key[0] == "events"]:
            if now_us - self._events_written[key] > EVENTS_LAST_US:
                del self._objects[key], self._events_written[key]

    # Watches.

    async def _watched(self, call: _Call) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        end = loop.time() + float(call.query.get("timeoutSeconds") or 1800)
        seen = int(call.query.get("resourceVersion") or 0)
        chosen, watching = _chooser(call), self._watching
        while watching == self._watching:
            if seen < self._compacted:
                yield _line("ERROR", _expired().body)
                return
            wake = self._changed
            found = [
                one
                for one in self._changes
                if one.version > seen
                and one.resource == call.resource
                and call.namespace in ("", one.object["metadata"].get("namespace", ""))
                and chosen(one.object)
            ]
            told = _metadata_of if call.as_kind else _whole
            lines = [_line(one.type, told(one.object)) for one in found]
            if self.events_of_watches:
                lines = self.events_of_watches(lines)
            seen = max(seen, self._version)
            if lines:
                yield b"".join(lines)
            left = end - loop.time()
            if left <= 0:
                return
            try:
                async with asyncio.timeout(min(left, BOOKMARK_S)):
                    await wake.wait()
            except TimeoutError:
                wanted = call.query.get("allowWatchBookmarks") == "true"
                # A watch from a version that is still to come brings nothing until it has come.
                if wanted and left > BOOKMARK_S and seen == self._version:
                    metadata = {"resourceVersion": str(seen)}
                    yield _line("BOOKMARK", {"kind": call.resource.kind, "metadata": metadata})

    # Requests taken apart.

    def _discovered(self, request: Request) -> Object | None:
        """Versions of a group, or resources of a version; None when something else is asked."""
        parts = urlsplit(request.target).path.strip("/").split("/")
        if request.method != "GET" or parts[0] != "apis" or len(parts) not in (2, 3):
            return None
        below = "/".join(["", *parts, ""])
        found = [
            one
            for one in self.resources.values()
            if f"{one.prefix}/".startswith(below) and one.plural not in self.absent
        ]
        if not found:
            raise _Refusal(404, "NotFound", "the server could not find the requested resource")
        if len(parts) == 2:
            versions = sorted({one.prefix.rpartition("/")[2] for one in found})
            return {"kind": "APIGroup", "versions": [{"version": one} for one in versions]}
        names = [one.plural for one in found]
        names += [f"{one.plural}/status" for one in found if one.has_status]
        return {"kind": "APIResourceList", "resources": [{"name": one} for one in sorted(names)]}

    def _understood(self, request: Request) -> _Call:
        split = urlsplit(request.target)
        parts = [unquote(part) for part in split.path.strip("/").split("/")]
        size = 2 if parts[0] == "api" else 3
        prefix, parts = "/" + "/".join(parts[:size]), parts[size:]
        namespace = ""
        if len(parts) > 2 and parts[0] == "namespaces":
            namespace, parts = parts[1], parts[2:]
        plural, name, part = (*parts, "", "", "")[:3]
        resource = self.resources.get((prefix, plural))
        if resource is None or plural in self.absent:
            raise _Refusal(404, "NotFound", "the server could not find the requested resource")
        try:
            body = msgspec.json.decode(request.body) if request.body else None
        except msgspec.DecodeError as error:
            raise _Refusal(400, "BadRequest", str(error)) from None
        query = dict(parse_qsl(split.query))
        form, accept = (request.headers.get(name, "") for name in ("content-type", "accept"))
        return _Call(request.method, resource, namespace, name, part, query, body, form, accept)

    def _sent(self, call: _Call) -> Object:
        if not isinstance(call.body, dict):
            raise _Refusal(400, "BadRequest", "the body is no object")
        new = copy.deepcopy(call.body)
        new.setdefault("metadata", {})
        if call.verb == "update" and not new.get("kind"):
            raise _Refusal(400, "BadRequest", "Object 'Kind' is missing")
        return new


class _Owners:
    """managedFields, as sets."""

    def __init__(self, document: Object) -> None:
        self.sets: dict[tuple[str, str, str], set[ownership.Path]] = {}
        for entry in document["metadata"].get("managedFields") or ():
            who = (entry["manager"], entry["operation"], entry.get("subresource", ""))
            found = ownership.from_fields_v1(entry.get("fieldsV1") or {})
            self.sets.setdefault(who, set()).update(found)

    def rendered(self, resource: Resource) -> list[Object]:
        return [
            {
                "manager": manager,
                "operation": operation,
                "apiVersion": resource.api_version,
                "fieldsType": "FieldsV1",
                "fieldsV1": ownership.to_fields_v1(paths),
            }
            | ({"subresource": part} if part else {})
            for (manager, operation, part), paths in sorted(self.sets.items())
            if paths
        ]


def _kept(before: Object) -> Object:
    """Metadata that only the server writes."""
    names = (
        "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp",
        "deletionTimestamp", "deletionGracePeriodSeconds",
    )  # fmt: skip
    return {name: before["metadata"][name] for name in names if name in before["metadata"]}


def _peoples(document: Object) -> Object:
    names = ("labels", "annotations", "generateName", "ownerReferences", "finalizers")
    metadata = document["metadata"]
    return {name: metadata[name] for name in names if metadata.get(name)}


def _merged(target: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    found = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = _merged(found.get(key), value)
    return found


def _chooser(call: _Call) -> Callable[[Object], bool]:
    selector = parse_selector(call.query.get("labelSelector", ""))
    field, _, wanted = call.query.get("fieldSelector", "").partition("=")
    if field not in ("", "metadata.name"):
        raise _Refusal(400, "BadRequest", f"field label not supported: {field}")

    def chosen(found: Object) -> bool:
        metadata = found["metadata"]
        return (not field or metadata["name"] == wanted) and selector(metadata.get("labels", {}))

    return chosen


def _check_event(call: _Call, new: Object) -> None:
    if (new.get("involvedObject", {}).get("namespace") or "default") != call.namespace:
        raise _Refusal(422, "Invalid", "involvedObject.namespace: does not match event.namespace")


def _line(type_: str, found: Object) -> bytes:
    return msgspec.json.encode({"type": type_, "object": found}) + b"\n"


def _whole(found: Object) -> Object:
    return found


def _metadata_of(found: Object) -> Object:
    metadata = found["metadata"]
    return {"kind": "PartialObjectMetadata", "apiVersion": _META_V1, "metadata": metadata}


def _expired() -> _Refusal:
    return _Refusal(410, "Expired", "The resourceVersion for the provided watch is too old.")


def _not_found(call: _Call) -> _Refusal:
    return _Refusal(404, "NotFound", f'{call.resource.qualified} "{call.name}" not found')


def _conflict(call: _Call, why: str) -> _Refusal:
    what = f'Operation cannot be fulfilled on {call.resource.qualified} "{call.name}"'
    return _Refusal(409, "Conflict", f"{what}: {why}")


def _field_conflict(
    call: _Call, conflicts: list[tuple[tuple[str, str, str], ownership.Path]]
) -> _Refusal:
    causes = []
    for (manager, operation, part), path in conflicts:
        using = f" using {call.resource.api_version}" if operation == "Update" else ""
        with_part = f' with subresource "{part}"' if part else ""
        message = f'conflict with "{manager}"{with_part}{using}'
        field = "." + ".".join(path)
        causes.append({"reason": "FieldManagerConflict", "message": message, "field": field})
    what = f"Apply failed with {len(causes)} conflicts: {causes[0]['message']}"
    return _Refusal(409, "Conflict", what, causes=causes)


def _forbidden(call: _Call) -> _Refusal:
    where = f'in the namespace "{call.namespace}"' if call.namespace else "at the cluster scope"
    return _Refusal(
        403,
        "Forbidden",
        f'{call.resource.qualified} is forbidden: User "account" cannot {call.verb} resource '
        f'"{call.resource.plural}" in API group "{call.resource.group}" {where}',
    )
