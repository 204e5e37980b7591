"""Catalog zones (RFC 9432): a zone that lists the zones that its secondaries shall have.

A consumer reads one that was transferred to it and keeps a Secondary DNSZone for each member; a
producer keeps the records of one from the primaries that a selector names. Both are plain
functions of what there is.

    version.<catalog>                    TXT  "2"
    <unique>.zones.<catalog>             PTR  the member zone
    group.<unique>.zones.<catalog>       TXT  a group that the consumer knows
    coo.<unique>.zones.<catalog>         PTR  the catalog that the member moves to
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kudurru.domain.commands import Apply, Command, Delete
from kudurru.domain.dns import names, records
from kudurru.domain.dns.names import BadName, Name
from kudurru.domain.dns.record_types import PTR, TXT
from kudurru.domain.kinds.meta import DEFAULT_NAMESPACE, GROUP, ObjectMeta
from kudurru.domain.kinds.recordset import DNSRecordSetSpec, Endpoint, ZoneRef
from kudurru.domain.kinds.registry import DNS_RECORD_SET, DNS_ZONE
from kudurru.domain.kinds.validation import Manifest
from kudurru.domain.kinds.zone import DNSZoneSpec, Secondary
from kudurru.domain.objects import Key, key_of
from kudurru.domain.zone_import import RRs, zone_object_name

VERSION = b"\x012"
"""The TXT record that says how to read the rest (RFC 9432 section 4.2.1): one string, 2."""

MEMBERS_MAX = 10_000
"""Of one catalog; a name server with more zones has several."""

MEMBER = f"{GROUP}/catalog-member"
"""Annotation of a member zone: the label under which its catalog lists it."""
CATALOG_GROUP = f"{GROUP}/catalog-group"
"""Annotation of a primary: the group that its catalog says it belongs to."""
CATALOG_MOVES_TO = f"{GROUP}/catalog-moves-to"
"""Annotation of a primary: the catalog that takes its secondaries over."""

_VERSION_LABEL, _ZONES_LABEL, _GROUP_LABEL, _COO_LABEL = b"version", b"zones", b"group", b"coo"


class BrokenCatalog(ValueError):
    """A catalog that must not be followed (RFC 9432 section 5.1); the text says why. What was
    there before stays."""


class Member(NamedTuple):
    unique: str  # its label, as text
    zone: Name
    groups: tuple[str, ...] = ()
    moves_to: Name | None = None  # key of the catalog


def manager_of(catalog: str) -> str:
    """Manager and actor of what a catalog makes; `catalog` is the name of its DNSZone."""
    return f"catalog:{catalog}"


# --- consuming ------------------------------------------------------------------------------


def read_catalog(apex: Name, owners: Iterable[tuple[Name, RRs]]) -> dict[Name, Member]:
    """Members by the key of their zone. Raises: BrokenCatalog."""
    apex = names.key(apex)
    zones = _below(_ZONES_LABEL, apex)
    versions: list[bytes] = []
    listed: dict[bytes, Name] = {}
    groups: dict[bytes, tuple[str, ...]] = {}
    moves: dict[bytes, Name] = {}
    for owner, rrs in owners:
        key = names.key(owner)
        if key == _below(_VERSION_LABEL, apex):
            versions += _rdatas(rrs, TXT)
        elif key != zones and names.is_within(key, zones):
            parts = names.labels(key[: len(key) - len(zones)] + b"\x00")
            if len(parts) == 1 and PTR in rrs:
                listed[parts[0]] = _only_name(rrs, key)
            elif len(parts) == 2 and parts[0] == _GROUP_LABEL:
                groups[parts[1]] = tuple(_text(rdata) for rdata in _rdatas(rrs, TXT))
            elif len(parts) == 2 and parts[0] == _COO_LABEL and PTR in rrs:
                moves[parts[1]] = names.key(_only_name(rrs, key))
    if versions != [VERSION]:
        raise BrokenCatalog("it does not say that it is of version 2, the one that is known")
    if len(listed) > MEMBERS_MAX:
        raise BrokenCatalog(f"it lists {len(listed)} zones; at most {MEMBERS_MAX}")
    return _members(listed, groups, moves)


def _members(
    listed: Mapping[bytes, Name],
    groups: Mapping[bytes, tuple[str, ...]],
    moves: Mapping[bytes, Name],
) -> dict[Name, Member]:
    found: dict[Name, Member] = {}
    for label, zone in sorted(listed.items()):
        key = names.key(zone)
        if key in found:
            raise BrokenCatalog(f"it lists {names.to_text(zone)} twice")
        unique = names.to_text(names.from_labels([label]), final_dot=False)
        found[key] = Member(unique, zone, groups.get(label, ()), moves.get(label))
    return found


def _only_name(rrs: RRs, owner: Name) -> Name:
    rdatas = _rdatas(rrs, PTR)
    if len(rdatas) != 1:
        raise BrokenCatalog(f"{names.to_text(owner)} has {len(rdatas)} PTR records, not one")
    return Name(rdatas[0])


def _rdatas(rrs: RRs, rtype: int) -> list[bytes]:
    return sorted(rrs[rtype][1].values()) if rtype in rrs else []


def _text(rdata: bytes) -> str:
    """Of the first string of a TXT."""
    return rdata[1 : 1 + rdata[0]].decode("utf-8", "replace") if rdata else ""


class Present(NamedTuple):
    """A DNSZone that is there."""

    key: Key
    zone: Name  # key of the zone name
    manager: str
    unique: str  # its MEMBER annotation


class Consumed(NamedTuple):
    commands: list[Command]
    problems: list[str]


def consume(
    catalog: str,
    apex: Name,
    spec: DNSZoneSpec,
    members: Mapping[Name, Member],
    present: Sequence[Present],
    moving: Mapping[Name, Name],
) -> Consumed:
    """Commands that make the DNSZones of a catalog those of its members.

    A zone that somebody else has is left alone, and is a problem; one of another catalog is taken
    over when that one says so: `moving` maps such zones to the catalog that they move to.
    """
    manager = manager_of(catalog)
    by_zone: dict[Name, Present] = {}
    for one in present:
        by_zone.setdefault(one.zone, one)
    by_key = {one.key: one for one in present}
    commands: list[Command] = []
    problems: list[str] = []
    for one in by_zone.values():
        member = members.get(one.zone)
        if one.manager == manager and (member is None or member.unique != one.unique):
            # RFC 9432 section 5.4: under another label it is another zone of the same name.
            commands.append(Delete(key=one.key, manager=manager))
    for key, member in members.items():
        there = by_zone.get(key)
        is_taken = there is not None and there.manager != manager
        if is_taken and member.moves_to is not None:
            continue  # it has moved, and is not listed any more when the other side knows
        may_take = moving.get(key) == names.key(apex)
        problem = _in_the_way(apex, member, there if is_taken and not may_take else None)
        if there is None:
            problem = problem or _without_place(member, by_key)
        if problem:
            problems.append(problem)
            continue
        if there is not None and is_taken and there.unique != member.unique:
            commands.append(Delete(key=there.key, manager=manager, force=True))
        manifest = _member_zone(spec, member, there)
        commands.append(Apply(manifest=manifest, manager=manager, force=is_taken))
    return Consumed(commands, problems)


def _in_the_way(apex: Name, member: Member, holder: Present | None) -> str:
    """Why a member cannot be had; empty where it can."""
    if names.key(member.zone) == names.key(apex):
        return "it lists itself"
    if holder is not None:
        shown = names.to_text(member.zone)
        return f"{shown} is there already and managed by {holder.manager!r}"
    return ""


def _without_place(member: Member, by_key: Mapping[Key, Present]) -> str:
    """Why a new DNSZone cannot have its name; empty where it can."""
    name = zone_object_name(member.zone)
    named = by_key.get(key_of(DNS_ZONE.name, "", name))
    if named is None:
        return ""
    zone = names.to_text(named.zone)
    return f"{names.to_text(member.zone)} has no place: DNSZone {name} is of zone {zone}"


def _member_zone(spec: DNSZoneSpec, member: Member, there: Present | None) -> Manifest:
    name = there.key.rpartition("/")[2] if there is not None else zone_object_name(member.zone)
    meta = ObjectMeta(name=name, annotations={MEMBER: member.unique})
    made = DNSZoneSpec(
        zone_name=names.to_text(member.zone),
        type="Secondary",
        secondary=_source(spec, member.groups),
        transfer=spec.catalog.transfer if spec.catalog is not None else None,
    )
    return Manifest(kind=DNS_ZONE, meta=meta, spec=made)


def _source(spec: DNSZoneSpec, groups: Iterable[str]) -> Secondary:
    """Where a member is fetched: from the servers of its first group that is known here, else from
    those for all members, else from where the catalog came."""
    assert spec.catalog is not None
    assert spec.secondary is not None
    known = {group.name: group.secondary for group in spec.catalog.groups}
    found = next((known[group] for group in groups if group in known), None)
    return found or spec.catalog.secondary or spec.secondary


# --- producing ------------------------------------------------------------------------------


class Listed(NamedTuple):
    """A primary zone that a catalog lists."""

    uid: str  # of its DNSZone, made anew with it: so the unique label is, too
    zone: str
    group: str = ""
    moves_to: str = ""


def produce(
    catalog: str, zone_name: str, listed: Iterable[Listed], ours: Iterable[Key]
) -> list[Command]:
    """Commands that make the record sets of a catalog, `ours` so far, those of its members."""
    manager = manager_of(catalog)
    apex = zone_name.rstrip(".")
    version = Endpoint(
        dns_name=f"version.{apex}.", record_type="TXT", targets=['"2"'], record_ttl=0
    )
    manifests = [_record_set(catalog, f"version.{catalog}", [version])]
    for one in listed:
        endpoints = _endpoints(one, apex)
        manifests.append(_record_set(catalog, f"{one.uid}.{catalog}", endpoints))
    kept = {manifest.key for manifest in manifests}
    commands: list[Command] = [Delete(key=k, manager=manager) for k in ours if k not in kept]
    commands += [Apply(manifest=manifest, manager=manager) for manifest in manifests]
    return commands


def _endpoints(one: Listed, apex: str) -> list[Endpoint]:
    below = f"{one.uid}.zones.{apex}."
    made = [
        Endpoint(dns_name=below, record_type="PTR", targets=[_absolute(one.zone)], record_ttl=0)
    ]
    if one.group:
        text = records.rdata_to_text(TXT, records.target_from_text(TXT, one.group))
        made.append(
            Endpoint(dns_name=f"group.{below}", record_type="TXT", targets=[text], record_ttl=0)
        )
    if _is_name(one.moves_to):
        target = _absolute(one.moves_to)
        made.append(
            Endpoint(dns_name=f"coo.{below}", record_type="PTR", targets=[target], record_ttl=0)
        )
    return made


def _record_set(catalog: str, name: str, endpoints: list[Endpoint]) -> Manifest:
    spec = DNSRecordSetSpec(zone_ref=ZoneRef(name=catalog), endpoints=endpoints)
    meta = ObjectMeta(name=name, namespace=DEFAULT_NAMESPACE)
    return Manifest(kind=DNS_RECORD_SET, meta=meta, spec=spec)


def _absolute(text: str) -> str:
    return text.rstrip(".") + "."


def _is_name(text: str) -> bool:
    try:
        names.from_text(text)
    except BadName:
        return False
    return True


def _below(label: bytes, apex: Name) -> Name:
    return Name(bytes((len(label),)) + label + apex)
