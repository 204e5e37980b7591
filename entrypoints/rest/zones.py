"""Zones at length, over HTTP: their records page by page, and zone files read into objects.

Records are told from the record sets that hold them, also those that are switched off, so that
whoever reads one knows which object to change.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from kudurru.domain.access import Rights
from kudurru.domain.dns import names, records
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.record_types import SOA
from kudurru.domain.dns.zone_tree import Zone
from kudurru.domain.errors import Cause, Invalid, NotFound
from kudurru.domain.kinds.meta import DEFAULT_NAMESPACE, is_dns_label
from kudurru.domain.kinds.recordset import DNSRecordSetSpec, Endpoint
from kudurru.domain.kinds.registry import DNS_RECORD_SET, DNS_ZONE
from kudurru.domain.kinds.stored import read_record_set
from kudurru.domain.kinds.validation import Manifest
from kudurru.domain.object_store import StoredObject, manifest_of
from kudurru.domain.objects import Key, key_of, ref_of
from kudurru.domain.zone_import import Present, may_share_names, zone_object_name
from kudurru.entrypoints.rest.calls import Call, Param
from kudurru.entrypoints.rest.naming import may_see, settled
from kudurru.entrypoints.rest.routes import Route
from kudurru.entrypoints.rest.status import BadRequest
from kudurru.entrypoints.rest.writing import BATCH_MAX
from kudurru.entrypoints.service import manifest_to_wire
from kudurru.entrypoints.wiring import Node
from kudurru.entrypoints.zone_files import ZoneFile, read_zone_text, to_manifests
from kudurru.projections.zone_state import ZoneState

NAMES_MAX = 500
"""Names of one page."""

GENERATED_MAX = 65_536
"""Records that $GENERATE makes in a file that comes this way."""

ZONE_FILE = "text/dns"  # RFC 4027


class RecordRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Records of one name and type in one object. `object` is that of the record set; a row without
    one is the zone's own."""

    dns_name: str
    record_type: str
    targets: list[str]
    record_ttl: int | None = msgspec.field(name="recordTTL", default=None)  # None: the zone's
    set_identifier: str = ""
    disabled: bool = False
    expires_at: str = ""
    object: str = ""  # NAMESPACE/NAME
    index: int | None = None  # of spec.endpoints there
    manager: str = ""
    resource_version: str = ""


class RecordPage(msgspec.Struct, frozen=True, kw_only=True, rename={"continue_": "continue"}):
    """Records in canonical order of their names. `names` is how many the zone has, or how many
    match; `continue` is given back for those after, and empty at the end."""

    items: list[RecordRow]
    names: int
    continue_: str = ""


class ReadZone(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a zone file means, as `POST /batch` takes it: nothing was written. `surplus` are record
    sets of the zone that the file does not have."""

    zone: str
    name: str
    records: int
    apply: list[dict[str, Any]]
    surplus: list[dict[str, str]]
    imported_serials: dict[str, int]
    warnings: list[str]


def routes() -> Iterator[Route]:
    yield Route(
        method="GET", path=f"/{DNS_ZONE.plural}/{{name}}/records", right="objects.read",
        handler=list_records, tag="dnszones", reply=RecordPage,
        about="Records of a zone, by object name or DNS name, a page of names at a time.",
        params=(
            Param("search", "text", "Of names that have this in them."),
            Param("dnsName", "text", "Of this name alone."),
            Param("limit", "count", f"Names of one page, at most {NAMES_MAX}; 100 when left out."),
            Param("continue", "text", "The next page, as the one before says."),
        ),
    )  # fmt: skip
    yield Route(
        method="POST", path=f"/{DNS_ZONE.plural}:read", right="objects.write",
        handler=read_file, tag="dnszones", reply=ReadZone,
        about="Read a zone file (RFC 1035) into the objects that mean the same, and write nothing: "
        f"`POST /batch` takes them. $INCLUDE is refused, and more than {BATCH_MAX} objects are.",
        params=(
            Param("zone", "text", "Its DNS name; else the file has to say."),
            Param("namespace", "text", f"Of its record sets; {DEFAULT_NAMESPACE} when left out."),
        ),
        body={"type": "string"}, body_types=(ZONE_FILE,),
    )  # fmt: skip


# --- records --------------------------------------------------------------------------------


async def list_records(call: Call) -> RecordPage:
    await settled(call)
    state = _zone_seen(call)
    limit = min(call.count("limit", 100) or NAMES_MAX, NAMES_MAX)
    text, start = call.text("search").lower(), _name(call, "continue")
    if start is not None and not names.is_within(start, state.apex):
        raise Invalid("query", [Cause("continue", "not of this list: begin without it")])
    if (one := _name(call, "dnsName")) is not None:
        sources = {one: state.sources[one]} if one in state.sources else {}
    else:
        sources = dict(state.sources)
    # A zone that is served has a SOA, and maybe nothing else.
    has_apex = state.zone is not None and one in (None, state.apex)
    owners = partial(_owners, sources, state, call.principal.rights, has_apex=has_apex)
    page, count = await call.aside(partial(_page_of, owners, state.apex, text, start, limit))
    more = names.to_text(page[limit]) if len(page) > limit else ""
    rows = _Rows(call, state)
    items = [row for owner in page[:limit] for row in rows.of(owner)]
    return RecordPage(items=items, names=count, continue_=more)


def _zone_seen(call: Call) -> ZoneState:
    name = call.names["name"]
    state = call.context.node.zones.find(name)
    if state is None or not call.principal.rights.may_see(state.key, f"/{state.name}"):
        raise NotFound(f"there is no zone {name!r} here")
    return state


def _name(call: Call, param: str) -> Name | None:
    """A DNS name that a parameter gives. Raises: Invalid."""
    if not (text := call.text(param)):
        return None
    try:
        return names.key(names.from_text(text))
    except names.BadName as error:
        raise Invalid("query", [Cause(param, str(error))]) from None


def _owners(
    sources: Mapping[Name, Key | tuple[Key, ...]],
    state: ZoneState,
    rights: Rights,
    *,
    has_apex: bool,
) -> Iterator[Name]:
    """Names that the zone has records at, or had them switched off, as far as they may be seen."""
    if has_apex:
        yield state.apex
    for owner, keys in sources.items():
        held = keys if isinstance(keys, tuple) else (keys,)
        if not rights.is_limited or any(
            rights.may_see(key, f"{ref_of(key).namespace}/{state.name}") for key in held
        ):
            yield owner


def _page_of(
    owners: partial[Iterator[Name]], apex: Name, text: str, start: Name | None, limit: int
) -> tuple[list[Name], int]:
    """Names that a page begins with, one more than it takes, and how many there are in all."""
    found = {owner for owner in owners() if not text or text in names.to_text(owner)}
    ordered = ((_order(owner, apex), owner) for owner in found)
    if start is not None:
        first = _order(start, apex)
        ordered = (one for one in ordered if one[0] >= first)
    return [owner for _, owner in heapq.nsmallest(limit + 1, ordered)], len(found)


def _order(owner: Name, apex: Name) -> tuple[bytes, ...]:
    """Canonical order within a zone: nearly all of its names are one label below it."""
    below = owner[: -len(apex)]
    if below and below[0] == len(below) - 1:
        return (below[1:],)
    return names.canonical_order(below + names.ROOT)


class _Rows:
    """Rows of names, for one request: an object that holds many of them is read once."""

    def __init__(self, call: Call, state: ZoneState) -> None:
        self._call = call
        self._state = state
        self._sets: dict[Key, dict[bytes, list[RecordRow]]] = {}

    def of(self, owner: Name) -> Iterator[RecordRow]:
        if owner == self._state.apex and self._state.zone is not None:
            yield from _own_rows(self._state, self._state.zone)
        for key in self._state.sources_of(owner):
            if key not in self._sets:
                self._sets[key] = self._read(key)
            yield from self._sets[key].get(owner, ())

    def _read(self, key: Key) -> dict[bytes, list[RecordRow]]:
        stored = self._call.context.node.objects.find(key)
        if stored is None or not may_see(self._call, stored):
            return {}
        found: dict[bytes, list[RecordRow]] = {}
        spec: DNSRecordSetSpec = read_record_set(stored.body.spec)
        for index, endpoint in enumerate(spec.endpoints):
            owner = names.key(names.from_text(endpoint.dns_name))
            found.setdefault(owner, []).append(_row(stored, index, endpoint))
        return found


def _row(stored: StoredObject, index: int, endpoint: Endpoint) -> RecordRow:
    ref = ref_of(stored.key)
    return RecordRow(
        dns_name=endpoint.dns_name,
        record_type=endpoint.record_type,
        targets=endpoint.targets,
        record_ttl=endpoint.record_ttl,
        set_identifier=endpoint.set_identifier,
        disabled=endpoint.disabled,
        expires_at=endpoint.expires_at or "",
        object=f"{ref.namespace}/{ref.name}",
        index=index,
        manager=stored.manager,
        resource_version=stored.resource_version,
    )


def _own_rows(state: ZoneState, zone: Zone) -> Iterator[RecordRow]:
    """What the zone says of itself: its SOA, and the name servers of its DNSZone."""
    apex, soa = names.to_text(zone.apex), zone.stamped_soa or zone.soa
    yield RecordRow(
        dns_name=apex,
        record_type="SOA",
        targets=[records.rdata_to_text(SOA, soa.rdata(zone.serial))],
        record_ttl=soa.ttl,
    )
    if state.spec.nameservers:
        yield RecordRow(
            dns_name=apex,
            record_type="NS",
            targets=state.spec.nameservers,
            record_ttl=state.spec.nameserver_ttl,
        )


# --- zone files -----------------------------------------------------------------------------


async def read_file(call: Call) -> ReadZone:
    namespace = call.text("namespace", DEFAULT_NAMESPACE)
    if not is_dns_label(namespace):
        raise BadRequest("query", [Cause("namespace", f"{namespace!r} is no namespace name")])
    file: ZoneFile = await call.aside(partial(_read, call))
    await settled(call)
    node = call.context.node
    state = node.zones.find(names.to_text(file.apex))
    if state is not None and not call.principal.rights.may_see(state.key, f"/{state.name}"):
        state = None
    present = _present(node, file, state, namespace)
    held = state.record_sets() if state is not None else set()
    rights, scope = call.principal.rights, f"{namespace}/{state.name if state else ''}"
    ours = {
        key for key in held if ref_of(key).namespace == namespace and rights.may_see(key, scope)
    }
    found: ReadZone = await call.aside(partial(_as_objects, file, namespace, present, ours))
    return found


def _read(call: Call) -> ZoneFile:
    """Raises: Invalid, with the line of each fault as its field."""
    body, zone = call.request.body, call.text("zone") or None
    try:
        return read_zone_text(body, file="line", zone=zone, generated_max=GENERATED_MAX)
    except Invalid as error:
        causes = [Cause(cause.at or cause.field, cause.message) for cause in error.causes]
        raise Invalid("zone file", causes) from None


def _present(node: Node, file: ZoneFile, state: ZoneState | None, namespace: str) -> Present:
    name = state.name if state is not None else zone_object_name(file.apex)
    stored = node.objects.find(state.key) if state is not None else None
    zone = _manifest(stored) if stored is not None else None
    rivals = [
        one for one in node.zones.states() if one.name != name and may_share_names(name, one.name)
    ]
    if not rivals:
        return Present(zone)
    ours = _names_in(namespace, [state] if state is not None else [])
    return Present(zone, ours, _names_in(namespace, rivals))


def _manifest(stored: StoredObject) -> Manifest:
    body = stored.body
    return manifest_of(stored.key, body.spec, body.labels, body.annotations)


def _names_in(namespace: str, states: Iterable[ZoneState]) -> frozenset[str]:
    refs = (ref_of(key) for state in states for key in state.record_sets())
    return frozenset(ref.name for ref in refs if ref.namespace == namespace)


def _as_objects(file: ZoneFile, namespace: str, present: Present, ours: set[Key]) -> ReadZone:
    found = to_manifests(file, namespace=namespace, present=present)
    if len(found) > BATCH_MAX:
        why = f"{len(found)} objects; at most {BATCH_MAX}: run `kudurru zone import` at the server"
        raise Invalid("zone file", [Cause("", why)])
    kept = {key_of(DNS_RECORD_SET.name, one.meta.namespace, one.meta.name) for one in found[1:]}
    gone = [ref_of(key) for key in sorted(ours - kept)]
    name = found[0].meta.name
    return ReadZone(
        zone=names.to_text(file.apex),
        name=name,
        records=len(file.records),
        apply=[manifest_to_wire(manifest) for manifest in found],
        surplus=[{"kind": ref.kind, "namespace": ref.namespace, "name": ref.name} for ref in gone],
        imported_serials={name: file.soa[2]},
        warnings=[str(warning) for warning in file.warnings],
    )
