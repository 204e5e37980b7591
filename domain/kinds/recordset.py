"""DNSRecordSet: records of a zone, close to external-dns' DNSEndpoint."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec
from msgspec import Meta

from kudurru.domain.dns import names, record_types, records
from kudurru.domain.errors import Cause
from kudurru.domain.kinds.meta import (
    Condition,
    Reason,
    Spec,
    StrictSpec,
    Text,
    Ttl,
    is_dns_subdomain,
)

TARGET_MAX = 262_144
"""Characters of one target: 65,535 octets of a TXT take at most four each, as \\DDD, and each
string of 255 of them two quotes and a space."""

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)\Z", re.ASCII)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ZoneRef(StrictSpec, frozen=True, kw_only=True):
    name: Text  # metadata.name of the DNSZone


class Endpoint(StrictSpec, frozen=True, kw_only=True):
    """One RRset, or the part of one that `setIdentifier` names. Names are absolute, with or
    without the final dot; targets are presentation format, one record each."""

    dns_name: Text
    record_type: Text
    targets: Annotated[
        list[Annotated[str, Meta(max_length=TARGET_MAX)]], Meta(min_length=1, max_length=256)
    ]
    record_ttl: Ttl | None = msgspec.field(name="recordTTL", default=None)
    set_identifier: Annotated[str, Meta(max_length=128)] = ""
    disabled: bool = False
    expires_at: str | None = None  # RFC 3339


class DNSRecordSetSpec(StrictSpec, frozen=True, kw_only=True):
    zone_ref: ZoneRef
    endpoints: Annotated[list[Endpoint], Meta(max_length=256)]


class EndpointProblem(Spec, frozen=True, kw_only=True):
    dns_name: str
    record_type: str
    set_identifier: str = ""
    reason: Reason
    message: str


class DNSRecordSetStatus(Spec, frozen=True, kw_only=True):
    observed_generation: int = 0
    conditions: list[Condition] = []
    problems: list[EndpointProblem] = []


def expiry_s(text: str) -> int:
    """Seconds UTC of an RFC 3339 time, a fraction cut off. Raises ValueError."""
    if not _RFC3339.match(text):  # fromisoformat takes more forms, and other ones each year
        raise ValueError(f"{text!r} is no RFC 3339 time; write for example 2027-01-31T12:00:00Z")
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(seconds=1)


def recordset_faults(spec: DNSRecordSetSpec) -> Iterator[Cause]:
    if not is_dns_subdomain(spec.zone_ref.name):
        yield Cause("spec.zoneRef.name", f"{spec.zone_ref.name!r} is no object name")
    identities: dict[tuple[bytes, int, str], int] = {}
    singles: dict[tuple[bytes, int], int] = {}
    types_at: dict[bytes, dict[int, int]] = {}
    for i, endpoint in enumerate(spec.endpoints):
        where = f"spec.endpoints[{i}]"
        owner = rtype = None
        try:
            owner = names.key(names.from_text(endpoint.dns_name))
        except names.BadName as error:
            yield Cause(f"{where}.dnsName", str(error))
        try:
            rtype = record_types.type_from_text(endpoint.record_type)
        except record_types.BadRecord as error:
            yield Cause(f"{where}.recordType", str(error))
        if rtype is not None:
            yield from _target_faults(where, rtype, endpoint)
        if endpoint.expires_at is not None:
            try:
                expiry_s(endpoint.expires_at)
            except ValueError as error:
                yield Cause(f"{where}.expiresAt", str(error))
        if owner is None or rtype is None or len(spec.endpoints) == 1:
            continue  # one is in nobody's way
        first = identities.setdefault((owner, rtype, endpoint.set_identifier), i)
        if first != i:
            yield Cause(
                where,
                f"the same name, type and set identifier as spec.endpoints[{first}]; "
                "put the targets into one",
            )
        if rtype in record_types.SINGLETON_TYPES and not endpoint.disabled:
            first = singles.setdefault((owner, rtype), i)
            if first != i:
                yield Cause(where, f"a second {endpoint.record_type} at one name")
        if not endpoint.disabled:
            types_at.setdefault(owner, {}).setdefault(rtype, i)
    for types in types_at.values():
        yield from _cname_faults(types)


def _target_faults(where: str, rtype: int, endpoint: Endpoint) -> Iterator[Cause]:
    if rtype == record_types.SOA:
        yield Cause(f"{where}.recordType", "the SOA is written in the DNSZone, as spec.soa")
        return
    if record_types.is_meta_type(rtype):
        yield Cause(f"{where}.recordType", f"{endpoint.record_type} is no type of stored data")
        return
    if rtype in record_types.SINGLETON_TYPES and len(endpoint.targets) > 1:
        yield Cause(f"{where}.targets", f"a name has one {endpoint.record_type} at most")
    for j, target in enumerate(endpoint.targets):
        try:
            records.target_from_text(rtype, target)
        except record_types.BadRecord as error:
            yield Cause(f"{where}.targets[{j}]", str(error))


def _cname_faults(types: dict[int, int]) -> Iterator[Cause]:
    """RFC 2181 section 10.1: a CNAME stands alone, but for DNSSEC's own records."""
    at = types.get(record_types.CNAME)
    if at is None:
        return
    for rtype, i in types.items():
        if rtype != record_types.CNAME and rtype not in record_types.BESIDE_CNAME:
            yield Cause(
                f"spec.endpoints[{i}]",
                f"{record_types.type_to_text(rtype)} beside the CNAME of spec.endpoints[{at}]; "
                "a CNAME stands alone at its name (RFC 2181 section 10.1)",
            )
