"""From what external-dns wants to commands, and from zones to what it is told of them.

The shapes are those of its webhook provider: `plan.Changes` and `endpoint.Endpoint` as JSON. What
it makes is one record set per owner name, of manager `external-dns`. Records of others are told,
so that it leaves them alone, and a change of one is refused.
"""

from collections.abc import Collection, Generator, Iterable, Sequence
from typing import Any

import msgspec

from kudurru.domain import zone_import
from kudurru.domain.commands import ABSENT, Apply, Command, Delete
from kudurru.domain.dns import names
from kudurru.domain.dns.names import Name
from kudurru.domain.errors import Cause, Invalid, ManagedBy
from kudurru.domain.kinds.meta import API_VERSION
from kudurru.domain.kinds.recordset import Endpoint
from kudurru.domain.kinds.registry import DNS_RECORD_SET
from kudurru.domain.kinds.stored import read_record_set
from kudurru.domain.kinds.validation import CAUSES_MAX, Manifest, parse_manifest
from kudurru.domain.object_store import StoredObject
from kudurru.domain.objects import Key, key_of, ref_of
from kudurru.projections.objects_view import ObjectsView
from kudurru.projections.zone_state import ZoneState
from kudurru.projections.zone_view import ZoneView

MANAGER = "external-dns"

PER_STEP = 100

RECORDS_MAX = 60_000
"""Endpoints that are told at once: external-dns reads 32 MiB at most, which is about as many."""

CHANGES_MAX = 10_000
"""Endpoints of one request, as objects of a batch of the API."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An Endpoint of external-dns. Its `labels` are for itself, and stand in its TXT records, but
    for OWNED; `providerSpecific` means nothing here."""

    dns_name: str = ""
    record_type: str = ""
    targets: list[str] | None = None
    record_ttl: int = msgspec.field(name="recordTTL", default=0)  # 0: that of the zone
    set_identifier: str = ""
    labels: dict[str, str] | None = None


class Changes(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A plan of external-dns. `updateOld` and `updateNew` are pairs."""

    create: list[Wanted] | None = None
    update_old: list[Wanted] | None = None
    update_new: list[Wanted] | None = None
    delete: list[Wanted] | None = None


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """How changes are carried out. Of no domains: those of all primary zones."""

    namespace: str = "default"
    domains: tuple[str, ...] = ()
    deletes: bool = True


OWNED = "ownedRecord"
"""Label of a TXT record of its registry: the name whose owner it tells."""

Identity = tuple[str, str]  # recordType in capitals, setIdentifier


class _Change(msgspec.Struct):
    """Of one owner name: identities that go, and what comes."""

    state: ZoneState
    gone: dict[Identity, None] = {}
    new: dict[Identity, Wanted] = {}


def filters(zones: ZoneView, terms: Terms) -> list[str]:
    """Domains that external-dns may ask for: those of the settings, else the primary zones."""
    if terms.domains:
        return sorted({_plain(domain) for domain in terms.domains})
    return sorted(names.to_text(state.apex, final_dot=False) for state in _primaries(zones))


def endpoint_steps(
    zones: ZoneView, objects: ObjectsView, terms: Terms
) -> Generator[None, None, list[dict[str, Any]]]:
    """Enabled endpoints of the primary zones, whoever manages them, in steps. Raises: Invalid
    where they are more than external-dns reads."""
    within = domains_of(terms)
    found: dict[tuple[Name, Identity], dict[str, Any]] = {}
    for state in _primaries(zones):
        for i, key in enumerate(sorted(state.record_sets()), 1):
            if i % PER_STEP == 0:
                yield
            for endpoint in endpoints_in(objects.find(key)):
                owner = owner_of(endpoint.dns_name)
                if endpoint.disabled or not is_inside(owner, within):
                    continue
                told = found.setdefault((owner, identity_of(endpoint)), _told(endpoint))
                told["targets"] += [t for t in endpoint.targets if t not in told["targets"]]
        if len(found) > RECORDS_MAX:
            fault = f"more than {RECORDS_MAX} endpoints; name fewer domains in externalDNS.domains"
            raise Invalid("records", [Cause("", fault)])
    return list(found.values())


def unowned(changes: Changes, zones: ZoneView, terms: Terms) -> set[Name]:
    """Names that external-dns would make and could not keep, since the TXT record that says whose
    they are would be in no zone of ours: without a prefix that ends with a dot, that is so for the
    apex. Their records are left out, for it would take them for somebody else's afterwards; what
    else it plans is carried out."""
    primaries, within = {state.apex: state for state in _primaries(zones)}, domains_of(terms)
    found = set()
    for wanted in changes.create or ():
        owned = (wanted.labels or {}).get(OWNED)
        if owned is None or wanted.record_type.upper() != "TXT":
            continue
        try:
            at, owner = owner_of(wanted.dns_name), owner_of(owned)
        except names.BadName:
            continue  # told with all other faults
        if _zone_of(at, primaries) is None or not is_inside(at, within):
            found.add(owner)
    return found


def _is_left_out(wanted: Wanted, unowned: Collection[Name]) -> bool:
    owned = (wanted.labels or {}).get(OWNED, wanted.dns_name)
    return bool(unowned) and owner_of(owned) in unowned


def command_steps(
    changes: Changes, zones: ZoneView, objects: ObjectsView, terms: Terms
) -> Generator[None, None, list[Command]]:
    """Commands that carry out a plan, in steps; each names the version that it was decided from.

    Raises: Invalid with every fault, ManagedBy for records of another manager.
    """
    by_owner = _by_owner(changes, zones, terms)
    commands: list[Command] = []
    causes: list[Cause] = []
    for i, (owner, change) in enumerate(by_owner.items(), 1):
        if i % PER_STEP == 0:
            yield
        try:
            commands += _commands_of(owner, change, objects, terms)
        except Invalid as error:
            causes += [
                Cause(f"{names.to_text(owner)}: {cause.field}", cause.message)
                for cause in error.causes
            ]
    if causes:
        raise Invalid("changes", causes[:CAUSES_MAX])
    return commands


def _by_owner(changes: Changes, zones: ZoneView, terms: Terms) -> dict[Name, _Change]:
    """Raises: Invalid for names that are none, and those of no zone of ours."""
    lists = {
        "create": changes.create, "updateOld": changes.update_old,
        "updateNew": changes.update_new, "delete": changes.delete,
    }  # fmt: skip
    if sum(len(part or ()) for part in lists.values()) > CHANGES_MAX:
        raise Invalid("changes", [Cause("", f"more than {CHANGES_MAX} endpoints")])
    within = domains_of(terms)
    primaries = {state.apex: state for state in _primaries(zones)}
    left_out = unowned(changes, zones, terms)
    found: dict[Name, _Change] = {}
    causes: list[Cause] = []
    for part, endpoints in lists.items():
        if part == "delete" and not terms.deletes:
            continue
        for i, wanted in enumerate(endpoints or ()):
            where = f"{part}[{i}].dnsName"
            try:
                owner = owner_of(wanted.dns_name)
            except names.BadName as error:
                causes.append(Cause(where, str(error)))
                continue
            if part == "create" and _is_left_out(wanted, left_out):
                continue
            state = _zone_of(owner, primaries)
            if state is None or not is_inside(owner, within):
                causes.append(Cause(where, f"{wanted.dns_name!r} is in no primary zone for this"))
                continue
            change = found.setdefault(owner, _Change(state))
            if part in ("create", "updateNew"):
                change.new[identity_of(wanted)] = wanted
            elif part == "delete" or terms.deletes:
                change.gone[identity_of(wanted)] = None
    if causes:
        raise Invalid("changes", causes[:CAUSES_MAX])
    return found


def _commands_of(owner: Name, change: _Change, objects: ObjectsView, terms: Terms) -> list[Command]:
    """Cases: endpoints that go from the record sets which have them; one that takes what comes;
    record sets that are empty then. Raises: Invalid, ManagedBy."""
    state = change.state
    touched = change.gone.keys() | change.new.keys()
    rtypes = {rtype for rtype, _ in touched}
    mine: dict[Key, list[Endpoint]] = {}
    for key in state.sources_of(owner):
        stored = objects.find(key)
        endpoints = endpoints_in(stored)
        at_owner = [e for e in endpoints if owner_of(e.dns_name) == owner]
        if stored is not None and stored.manager == MANAGER:
            mine[key] = [e for e in endpoints if e not in at_owner or identity_of(e) not in touched]
        elif stored is not None:
            for theirs in at_owner:
                if identity_of(theirs)[0] in rtypes:
                    what = f"{names.to_text(owner)} {theirs.record_type} in {ref_of(key)}"
                    raise ManagedBy(what, stored.manager)
    added = [document_of(wanted) for wanted in change.new.values()]
    home = next(iter(mine), None) or _new_key(owner, state, objects, terms)
    if added:
        mine.setdefault(home, [])
    commands: list[Command] = []
    for key, kept in mine.items():
        documents = [msgspec.to_builtins(e) for e in kept] + (added if key == home else [])
        commands.append(_command(key, state, objects.find(key), documents))
    return commands


def _command(
    key: Key, state: ZoneState, stored: StoredObject | None, endpoints: Sequence[dict[str, Any]]
) -> Command:
    expected = stored.resource_version if stored is not None else ABSENT
    if not endpoints:
        return Delete(key=key, manager=MANAGER, expected=expected)
    return Apply(
        manifest=manifest_with(key, state.name, stored, endpoints),
        manager=MANAGER,
        expected=expected,
    )


def manifest_with(
    key: Key, zone: str, stored: StoredObject | None, endpoints: Sequence[dict[str, Any]]
) -> Manifest:
    """A record set of these endpoints, with the labels that it has. Raises: Invalid."""
    ref = ref_of(key)
    document = {
        "apiVersion": API_VERSION,
        "kind": DNS_RECORD_SET.name,
        "metadata": {
            "name": ref.name,
            "namespace": ref.namespace,
            "labels": stored.body.labels if stored is not None else {},
        },
        "spec": {"zoneRef": {"name": zone}, "endpoints": list(endpoints)},
    }
    return parse_manifest(document, what=str(ref), default_namespace=ref.namespace)


def _new_key(owner: Name, state: ZoneState, objects: ObjectsView, terms: Terms) -> Key:
    """The name that `zone import` would give; another one where somebody has that."""
    name = zone_import.record_set_name(owner, state.apex, state.name)
    key = key_of(DNS_RECORD_SET.name, terms.namespace, name)
    stored = objects.find(key)
    if stored is None or stored.manager == MANAGER:
        return key
    second = zone_import.second_name(name, owner, MANAGER)
    return key_of(DNS_RECORD_SET.name, terms.namespace, second)


def document_of(wanted: Wanted) -> dict[str, Any]:
    found: dict[str, Any] = {
        "dnsName": wanted.dns_name,
        "recordType": wanted.record_type,
        "targets": wanted.targets or [],
    }
    if wanted.record_ttl:
        found["recordTTL"] = wanted.record_ttl
    if wanted.set_identifier:
        found["setIdentifier"] = wanted.set_identifier
    return found


def _told(endpoint: Endpoint) -> dict[str, Any]:
    """As external-dns writes names: without the final dot."""
    found: dict[str, Any] = {
        "dnsName": endpoint.dns_name.removesuffix("."),
        "recordType": endpoint.record_type,
        "targets": [],
    }
    if endpoint.record_ttl:
        found["recordTTL"] = endpoint.record_ttl
    if endpoint.set_identifier:
        found["setIdentifier"] = endpoint.set_identifier
    return found


def _primaries(zones: ZoneView) -> list[ZoneState]:
    found = (zones.serving(zone.key) for zone in zones.served)
    return [state for state in found if state is not None and state.spec.type == "Primary"]


def _zone_of(owner: Name, primaries: dict[Name, ZoneState]) -> ZoneState | None:
    """The closest zone at or above a name."""
    at = owner
    while at not in primaries:
        if at == names.ROOT:
            return None
        at = names.parent(at)
    return primaries[at]


def domains_of(terms: Terms) -> list[Name]:
    return [owner_of(domain) for domain in terms.domains] or [names.ROOT]


def is_inside(owner: Name, within: Iterable[Name]) -> bool:
    return any(names.is_within(owner, domain) for domain in within)


def endpoints_in(stored: StoredObject | None) -> list[Endpoint]:
    return read_record_set(stored.body.spec).endpoints if stored is not None else []


def identity_of(one: Endpoint | Wanted) -> Identity:
    return one.record_type.upper(), one.set_identifier


def owner_of(text: str) -> Name:
    return names.key(names.from_text(text))


def _plain(domain: str) -> str:
    return domain.lower().removesuffix(".")
