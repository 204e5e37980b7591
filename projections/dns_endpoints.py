"""From the DNSEndpoint objects of external-dns to record sets, one for each zone that has a name of
theirs. Decision 0050.

They are of manager `dnsendpoint:NAMESPACE/NAME`, in the namespace of their DNSEndpoint. An object
with a fault changes nothing. Names of zones that are not served here are somebody else's, and no
fault. Whoever has a name and type first keeps it.
"""

import re
from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from kudurru.domain import zone_import
from kudurru.domain.codec import canonical
from kudurru.domain.commands import ABSENT, Apply, Command, Delete
from kudurru.domain.dns import names, record_types
from kudurru.domain.dns.names import Name
from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.kinds.recordset import Endpoint
from kudurru.domain.kinds.registry import DNS_RECORD_SET
from kudurru.domain.kinds.validation import CAUSES_MAX
from kudurru.domain.object_store import StoredObject
from kudurru.domain.objects import Key, key_of, ref_of
from kudurru.projections.external_dns import (
    Identity,
    Terms,
    Wanted,
    document_of,
    domains_of,
    endpoints_in,
    identity_of,
    is_inside,
    manifest_with,
    owner_of,
)
from kudurru.projections.objects_view import ObjectsView
from kudurru.projections.zone_state import ZoneState
from kudurru.projections.zone_view import ZoneView

MANAGER_PREFIX = "dnsendpoint:"

ENDPOINTS_MAX = 1_024
"""Of one object. A record set, and so one zone, takes 256 of them."""

_PLACE = re.compile(r"spec\.endpoints\[(\d+)\]")


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """A DNSEndpoint as the API server has it."""

    namespace: str
    name: str
    uid: str
    generation: int
    observed: int  # generation that its status names, 0: none
    writer: str  # field manager of the newest write to it
    endpoints: tuple[Wanted | None, ...]

    @property
    def title(self) -> str:
        return f"DNSEndpoint {self.namespace}/{self.name}"


class Unplannable(Invalid):
    """A DNSEndpoint that cannot be carried out. `in_the_way` are record sets of others that have
    what it wants: without one of them it may be another matter."""

    def __init__(self, what: str, causes: list[Cause], in_the_way: frozenset[Key]) -> None:
        super().__init__(what, causes)
        self.in_the_way = in_the_way


class Plan(msgspec.Struct, frozen=True):
    commands: list[Command]  # none where all is as it should be
    is_here: bool  # whether a name of it is in a zone of ours


def manager_of(name: str) -> str:
    """`name` is NAMESPACE/NAME of a DNSEndpoint."""
    return f"{MANAGER_PREFIX}{name}"


def source_of(key: Key, manager: str | None) -> str | None:
    """NAMESPACE/NAME of the DNSEndpoint that a record set is of; None where it is of none. One of
    another namespace only says so."""
    if manager is None or not manager.startswith(MANAGER_PREFIX):
        return None
    name = manager.removeprefix(MANAGER_PREFIX)
    return name if name.partition("/")[0] == ref_of(key).namespace else None


def declared(document: dict[str, Any]) -> Declared:
    """Raises: ValueError, with every fault."""
    metadata = document["metadata"]
    spec, status = document.get("spec") or {}, document.get("status") or {}
    given = spec.get("endpoints") if isinstance(spec, dict) else None
    if not isinstance(given, list | None):
        raise ValueError("spec.endpoints: a list is wanted")
    if len(given or ()) > ENDPOINTS_MAX:
        raise ValueError(f"spec.endpoints: more than {ENDPOINTS_MAX}; divide it into several")
    endpoints: list[Wanted | None] = []
    faults = []
    for i, one in enumerate(given or ()):
        try:
            endpoints.append(msgspec.convert(one, Wanted | None))
        except msgspec.ValidationError as error:
            faults.append(f"spec.endpoints[{i}]: {error}")
    if faults:
        raise ValueError("; ".join(faults[:CAUSES_MAX]))
    observed = status.get("observedGeneration") if isinstance(status, dict) else 0
    return Declared(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        observed=observed if isinstance(observed, int) else 0,
        writer=_writer_of(metadata.get("managedFields") or []),
        endpoints=tuple(endpoints),
    )


def plan(
    it: Declared, mine: Collection[Key], zones: ZoneView, objects: ObjectsView, terms: Terms
) -> Plan:
    """What makes the record sets what a DNSEndpoint says; `mine` are those that are its own now.

    Raises: Unplannable with every fault, records that another manager has among them.
    """
    causes: list[Cause] = []
    parts = _by_zone(it, zones, terms, causes)
    commands: list[Command] = []
    in_the_way: set[Key] = set()
    for part in parts.values():
        commands += _commands_of(part, it, mine, objects, terms, causes, in_the_way)
    if causes:
        raise Unplannable(it.title, causes[:CAUSES_MAX], frozenset(in_the_way))
    commands += _left_over(it, mine, zones, objects, parts) if terms.deletes else []
    return Plan(commands, bool(parts))


class _Part(msgspec.Struct):
    """What goes into one zone: places in the DNSEndpoint, and what stands there."""

    state: ZoneState
    wanted: dict[int, tuple[Name, Wanted]] = {}


def _by_zone(it: Declared, zones: ZoneView, terms: Terms, causes: list[Cause]) -> dict[str, _Part]:
    within = domains_of(terms)
    parts: dict[str, _Part] = {}
    for i, wanted in enumerate(it.endpoints):
        if wanted is None:  # external-dns skips it too
            continue
        where = f"spec.endpoints[{i}]"
        try:
            owner = owner_of(wanted.dns_name)
        except names.BadName as error:
            causes.append(Cause(f"{where}.dnsName", str(error)))
            continue
        state = _zone_of(owner, zones)
        if state is None or not is_inside(owner, within):
            continue
        if why := _refusal(state, it.namespace):
            causes.append(Cause(f"{where}.dnsName", f"{wanted.dns_name!r}: {why}"))
            continue
        if not (wanted.record_type and wanted.targets):
            lacking = "targets" if wanted.record_type else "recordType"
            causes.append(Cause(f"{where}.{lacking}", "missing"))
            continue
        parts.setdefault(state.name, _Part(state)).wanted[i] = owner, wanted
    return parts


def _zone_of(owner: Name, zones: ZoneView) -> ZoneState | None:
    """The closest zone at or above a name, where that is a primary one."""
    at = owner
    while (state := zones.holder(at)) is None:
        if at == names.ROOT:
            return None
        at = names.parent(at)
    return state if _takes_records(state) else None


def _takes_records(state: ZoneState) -> bool:
    return state.spec.type == "Primary" and state.zone is not None


def _refusal(state: ZoneState, namespace: str) -> str:
    """Why a namespace may have no records in a zone; "" where it may."""
    if state.spec.catalog is not None:
        return f"{state.name} is a catalog, which lists zones and is not for everybody to change"
    allowed = state.spec.allowed_namespaces
    if allowed is not None and namespace not in allowed:
        return f"the zone {state.name} takes no records of the namespace {namespace}"
    return ""


def _commands_of(
    part: _Part,
    it: Declared,
    mine: Collection[Key],
    objects: ObjectsView,
    terms: Terms,
    causes: list[Cause],
    in_the_way: set[Key],
) -> list[Command]:
    """For one zone. Faults go into `causes`, what others have into `in_the_way`, and no command
    comes of them."""
    zone = part.state.name
    key = key_of(DNS_RECORD_SET.name, it.namespace, _set_name(it.name, zone))
    stored = objects.find(key)
    if stored is not None and key not in mine:
        causes.append(Cause("", f"{ref_of(key)} is managed by {stored.manager!r}"))
        in_the_way.add(key)
        return []
    held = endpoints_in(stored)
    faults = []
    for theirs, fault in _contested(part, mine, held, objects):
        faults.append(fault)
        in_the_way.add(theirs)
    places = list(part.wanted)
    documents = [document_of(wanted) for _, wanted in part.wanted.values()]
    if not terms.deletes:
        documents += [msgspec.to_builtins(one) for one in _kept(part, held)]
    try:
        manifest = manifest_with(key, zone, stored, documents)
    except Invalid as error:
        causes += [*faults, *(_placed(cause, places) for cause in error.causes)]
        return []
    if faults:
        causes += faults
        return []
    if stored is not None and bytes(stored.body.spec) == canonical(manifest.spec):
        return []
    expected = stored.resource_version if stored is not None else ABSENT
    manager = manager_of(f"{it.namespace}/{it.name}")
    return [Apply(manifest=manifest, manager=manager, expected=expected)]


def _contested(
    part: _Part, mine: Collection[Key], held: list[Endpoint], objects: ObjectsView
) -> Iterator[tuple[Key, Cause]]:
    """Records that others have, each with its record set, and that were not here before them."""
    ours = {(owner_of(one.dns_name), _type_of(one)) for one in held}
    theirs: dict[Key, dict[Name, set[str]]] = {}
    for i, (owner, wanted) in part.wanted.items():
        rtype = _type_of(wanted)
        if (owner, rtype) in ours:
            continue
        for key in part.state.sources_of(owner):
            stored = objects.find(key) if key not in mine else None
            if stored is None:
                continue
            if key not in theirs:
                theirs[key] = _types_by_owner(stored)
            found = [one for one in theirs[key].get(owner, ()) if _exclude(rtype, one)]
            if found:
                what = f"{wanted.dns_name} {min(found)} is managed by {stored.manager!r}, in"
                yield key, Cause(f"spec.endpoints[{i}]", f"{what} {ref_of(key)}")


def _types_by_owner(stored: StoredObject) -> dict[Name, set[str]]:
    found: dict[Name, set[str]] = {}
    for one in endpoints_in(stored):
        found.setdefault(owner_of(one.dns_name), set()).add(_type_of(one))
    return found


def _type_of(one: Endpoint | Wanted) -> str:
    """As everybody writes it; one that is none as it is."""
    try:
        return record_types.type_to_text(record_types.type_from_text(one.record_type))
    except record_types.BadRecord:
        return one.record_type


def _exclude(one: str, other: str) -> bool:
    """Whether two managers cannot both have these types at a name."""
    if one == other:
        return True
    pair = {one, other}
    return "CNAME" in pair and not (pair & _BESIDE_CNAME)


_BESIDE_CNAME = {record_types.type_to_text(rtype) for rtype in record_types.BESIDE_CNAME}


def _kept(part: _Part, held: list[Endpoint]) -> Iterator[Endpoint]:
    """Where nothing is deleted: what is there, and is not given anew."""
    given: set[tuple[Name, Identity]] = {
        (owner, identity_of(wanted)) for owner, wanted in part.wanted.values()
    }
    return (one for one in held if (owner_of(one.dns_name), identity_of(one)) not in given)


def _left_over(
    it: Declared,
    mine: Collection[Key],
    zones: ZoneView,
    objects: ObjectsView,
    parts: dict[str, _Part],
) -> Iterator[Command]:
    """Deletions of record sets that nothing is in any more. Those of a zone that is not served here
    now stay, for when it comes back."""
    for key in sorted(mine):
        stored = objects.find(key)
        if stored is None:
            continue
        zone = stored.scope.partition("/")[2]
        is_wanted = zone in parts and ref_of(key).name == _set_name(it.name, zone)
        state = zones.state(zone)
        if not is_wanted and state is not None and _takes_records(state):
            yield Delete(key=key, manager=stored.manager, expected=stored.resource_version)


def _set_name(name: str, zone: str) -> str:
    """Of the record set that a DNSEndpoint has in a zone: none that people would choose."""
    return zone_import.suffixed(f"{name}.{zone}", f"{MANAGER_PREFIX}{name}/{zone}".encode())


def _placed(cause: Cause, places: list[int]) -> Cause:
    """With places in the DNSEndpoint, of which a record set has a part."""

    def place(found: re.Match[str]) -> str:
        at = int(found[1])
        return f"spec.endpoints[{places[at]}]" if at < len(places) else found[0]

    field, message = (_PLACE.sub(place, text) for text in (cause.field, cause.message))
    return Cause(field, message)


def _writer_of(managed: list[dict[str, Any]]) -> str:
    """Who wrote last, as far as the API server says."""
    entries = [entry for entry in managed if not entry.get("subresource")]
    newest = max(entries, key=lambda entry: entry.get("time", ""), default={})
    return str(newest.get("manager", ""))
