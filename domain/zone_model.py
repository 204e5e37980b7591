"""From objects to records: what one owner name serves, and what is wrong with what was asked.

Pure functions of the specs involved, so that every node and every replay agrees. Record sets are
ordered by creation time (whole seconds, as Kubernetes has it), then namespace and name; the earlier
keeps a contested identity (owner name, type, set identifier) and the later gets a problem. A
disabled or expired endpoint still holds its identity, or switching one off would hand its name to
somebody else.
"""

from collections.abc import Sequence

import msgspec

from kudurru.domain.dns import names, record_types, records
from kudurru.domain.dns.images import RRset
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.soa import Soa
from kudurru.domain.kinds.meta import Reason
from kudurru.domain.kinds.recordset import DNSRecordSetSpec, EndpointProblem, expiry_s
from kudurru.domain.kinds.zone import DNSZoneSpec
from kudurru.domain.objects import Key


class Parsed(msgspec.Struct, frozen=True, gc=False):
    """One endpoint in wire form."""

    owner: Name
    rtype: int
    rdatas: tuple[bytes, ...]
    ttl: int | None
    set_identifier: str
    disabled: bool
    expires_at_s: int | None


class Contribution(msgspec.Struct, frozen=True, gc=False):
    """What one record set has at one owner. Contributions sort in order of precedence."""

    created: str
    key: Key
    endpoints: tuple[Parsed, ...]


class Resolved(msgspec.Struct, frozen=True):
    """What an owner serves now. `owner` is its name as the first endpoint that is served writes
    it, None when nothing is; `next_expiry_s` is when to ask again."""

    owner: Name | None
    rrsets: list[RRset]
    problems: dict[Key, list[EndpointProblem]]
    next_expiry_s: int | None


_Plain = tuple[Name, Name, list[RRset]]


def parse_endpoints(spec: DNSRecordSetSpec) -> dict[Name, tuple[Parsed, ...]]:
    """Endpoints by owner key. The spec is validated; a text that no longer parses (a log of an
    older version with laxer rules) is left out rather than stop the zone."""
    found: dict[Name, tuple[Parsed, ...]] = {}
    for endpoint in spec.endpoints:
        try:
            owner = names.from_text(endpoint.dns_name)
            rtype = record_types.type_from_text(endpoint.record_type)
            rdatas = [records.target_from_text(rtype, text) for text in endpoint.targets]
            expires = expiry_s(endpoint.expires_at) if endpoint.expires_at else None
        except ValueError:
            continue
        parsed = Parsed(
            owner,
            rtype,
            tuple(rdatas),
            endpoint.record_ttl,
            endpoint.set_identifier,
            endpoint.disabled,
            expires,
        )
        key = names.key(owner)
        found[key] = (*found[key], parsed) if key in found else (parsed,)
    return found


def plain_rrsets(spec: DNSRecordSetSpec, apex_key: Name, default_ttl: int) -> _Plain | None:
    """Owner, its key and RRsets of a record set that is served as it stands when it has its owner
    to itself: endpoints of one name below the apex that are not off, do not expire and can stand
    beside each other. Nearly all are such, and what `parse_endpoints` and `resolve_owner` would
    make of them is the same. None for others."""
    endpoints = spec.endpoints
    if not endpoints:
        return None
    name, is_alone = endpoints[0].dns_name, len(endpoints) == 1
    rrsets = []
    try:
        owner = names.from_text(name)
        for endpoint in endpoints:
            if endpoint.disabled or endpoint.expires_at is not None or endpoint.dns_name != name:
                return None
            rtype = record_types.type_from_text(endpoint.record_type)
            if not is_alone and rtype in record_types.SINGLETON_TYPES:
                return None
            rdatas = tuple([records.target_from_text(rtype, text) for text in endpoint.targets])
            ttl = endpoint.record_ttl
            rrsets.append(RRset(rtype, default_ttl if ttl is None else ttl, rdatas))
    except ValueError:
        return None
    key = names.key(owner)
    if key == apex_key or not names.is_within(key, apex_key):
        return None
    return owner, key, rrsets


def resolve_owner(
    contributions: Sequence[Contribution],
    *,
    owner_key: Name,
    apex_key: Name,
    default_ttl: int,
    now_s: int,
    takes_apex_ns: bool = False,
) -> Resolved:
    """Which RRsets one owner serves at a moment, out of what all record sets want there: none
    outside the zone. `takes_apex_ns`: the zone's name servers are in a record set, as they are
    where it was transferred, and not in the DNSZone."""
    if len(contributions) > 1:
        contributions = sorted(contributions, key=lambda c: (c.created, c.key))
    owner: Name | None = None
    holders: dict[tuple[int, str], Key] = {}
    rrsets: list[RRset] = []
    served: dict[int, Key] = {}
    problems: dict[Key, list[EndpointProblem]] = {}
    expiries: list[int] = []
    outside = None if names.is_within(owner_key, apex_key) else _outside(apex_key)
    for contribution in contributions:
        for parsed in contribution.endpoints:
            key, expires = contribution.key, parsed.expires_at_s
            is_on = not parsed.disabled and (expires is None or expires > now_s)
            if is_on and expires is not None:
                expiries.append(expires)
            holder = holders.setdefault((parsed.rtype, parsed.set_identifier), key)
            fault = outside
            if fault is None and (holder != key or is_on):
                is_apex = owner_key == apex_key
                fault = _fault(parsed, holder, key, is_apex, served, takes_apex_ns)
            if fault is not None:
                problems.setdefault(key, []).append(_problem(parsed, *fault))
            elif is_on:
                owner = owner or parsed.owner
                served.setdefault(parsed.rtype, key)
                ttl = default_ttl if parsed.ttl is None else parsed.ttl
                rrsets.append(RRset(parsed.rtype, ttl, parsed.rdatas, expires))
    return Resolved(owner, rrsets, problems, min(expiries, default=None))


def _problem(parsed: Parsed, reason: Reason, message: str) -> EndpointProblem:
    return EndpointProblem(
        dns_name=names.to_text(parsed.owner),
        record_type=record_types.type_to_text(parsed.rtype),
        set_identifier=parsed.set_identifier,
        reason=reason,
        message=message,
    )


def _outside(apex_key: Name) -> tuple[Reason, str]:
    return "OutsideZone", f"outside the zone {names.to_text(apex_key)}"


def _fault(
    parsed: Parsed,
    holder: Key,
    key: Key,
    is_apex: bool,
    served: dict[int, Key],
    takes_apex_ns: bool,
) -> tuple[Reason, str] | None:
    """Reason and message of what is wrong with an endpoint inside the zone. One that is off or
    expired holds its identity and is in nobody's way otherwise: it is not asked about here."""
    if holder != key:
        return "Duplicated", f"{holder} came first with this name, type and set identifier"
    if is_apex and parsed.rtype == record_types.NS and not takes_apex_ns:
        return "Invalid", "name servers of the zone are written in spec.nameservers of the DNSZone"
    if is_apex and parsed.rtype == record_types.CNAME:
        return "Invalid", "a CNAME cannot stand beside the SOA of the zone"
    if not served:
        return None
    if parsed.rtype in record_types.SINGLETON_TYPES and parsed.rtype in served:
        name = record_types.type_to_text(parsed.rtype)
        return "Invalid", f"{served[parsed.rtype]} has a {name} here, and a name has one at most"
    if parsed.rtype not in record_types.BESIDE_CNAME:
        for other, other_key in served.items():
            alone = record_types.CNAME in (parsed.rtype, other)
            if alone and other != parsed.rtype and other not in record_types.BESIDE_CNAME:
                there = f"{record_types.type_to_text(other)} of {other_key} is here"
                return "Invalid", f"{there}, and a CNAME stands alone (RFC 2181 section 10.1)"
    return None


def apex_rrsets(spec: DNSZoneSpec) -> list[RRset]:
    """The NS RRset at the apex, as the DNSZone writes it. That of a secondary comes with the
    transfer."""
    if spec.type == "Secondary":
        return []
    # RFC 9432 section 4: a catalog has a name server, which nobody asks for, and it is "invalid.".
    if not spec.nameservers and spec.catalog is not None:
        return [RRset(record_types.NS, 0, (names.from_text("invalid."),))]
    if not spec.nameservers:
        return []
    ttl = spec.default_ttl if spec.nameserver_ttl is None else spec.nameserver_ttl
    return [RRset(record_types.NS, ttl, tuple(names.from_text(text) for text in spec.nameservers))]


def soa_of(spec: DNSZoneSpec) -> Soa:
    """The SOA of a zone, defaults filled in."""
    apex = names.from_text(spec.zone_name)
    first = spec.nameservers[0] if spec.nameservers else None
    mname = spec.soa.mname or first
    return Soa(
        mname=names.from_text(mname) if mname else _below(b"ns", apex),
        rname=names.from_text(spec.soa.rname) if spec.soa.rname else _below(b"hostmaster", apex),
        refresh=spec.soa.refresh,
        retry=spec.soa.retry,
        expire=spec.soa.expire,
        minimum=spec.soa.minimum,
        ttl=spec.default_ttl if spec.soa.ttl is None else spec.soa.ttl,
    )


def _below(label: bytes, apex: Name) -> Name:
    wire = bytes((len(label),)) + label + apex
    return Name(wire) if len(wire) <= names.NAME_MAX else apex
