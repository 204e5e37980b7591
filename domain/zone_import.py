"""From a master file's records to objects: one DNSZone, and one DNSRecordSet per owner name."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import sha256

from kudurru.domain.dns import names, record_types, records
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.zone_tree import Soa
from kudurru.domain.kinds.meta import ObjectMeta, is_dns_subdomain
from kudurru.domain.kinds.recordset import DNSRecordSetSpec, Endpoint, ZoneRef
from kudurru.domain.kinds.registry import DNS_RECORD_SET, DNS_ZONE
from kudurru.domain.kinds.validation import Manifest
from kudurru.domain.kinds.zone import SOA, DNSZoneSpec

OBJECT_NAME_MAX = 200
TARGETS_MAX = 256

_OFFENDING = re.compile(r"[^a-z0-9.-]")

RRs = dict[int, tuple[int, dict[bytes, bytes]]]
"""Of one owner: type -> (TTL, canonical rdata -> rdata)."""


def zone_object_name(apex: Name) -> str:
    text = names.to_text(names.key(apex), final_dot=False)
    return _object_name(text, apex) if text != "." else "root"


def record_set_name(owner: Name, apex: Name, zone: str) -> str:
    """Object name for an owner, stable from one import to the next and never shared by two."""
    key = names.key(owner)
    if key == names.key(apex):
        return _object_name(f"apex.{zone}", key)
    relative = names.to_text(key[: len(key) - len(apex)] + b"\x00", final_dot=False)
    first, dot, rest = relative.partition(".")
    if first == "*":
        return _object_name(f"wildcard{dot}{rest}.{zone}", key)
    text = f"{relative}.{zone}"
    # Owners that are really called "apex" or "wildcard" must not meet the two above.
    return _object_name(text, key, is_taken=relative == "apex" or first == "wildcard")


def _object_name(text: str, key: Name, *, is_taken: bool = False) -> str:
    if not is_taken and len(text) <= OBJECT_NAME_MAX and is_dns_subdomain(text):
        return text
    suffix = "-" + sha256(key).hexdigest()[:10]
    plain = ".".join(part.strip("-") or "x" for part in _OFFENDING.sub("-", text).split("."))
    return plain[: OBJECT_NAME_MAX - len(suffix)].rstrip("-.") + suffix


def group_by_owner(found: Iterable[tuple[Name, int, int, bytes]]) -> dict[Name, tuple[Name, RRs]]:
    """Records (owner, type, TTL, rdata) by owner key; duplicates go, the smallest TTL of an RRset
    counts (RFC 2181 section 5.2)."""
    owners: dict[Name, tuple[Name, RRs]] = {}
    for owner, rtype, ttl, rdata in found:
        key = names.key(owner)
        known = owners.get(key)
        if known is None:
            owners[key] = (owner, {rtype: (ttl, {records.canonical_rdata(rtype, rdata): rdata})})
            continue
        rrs = known[1]
        least, rdatas = rrs.get(rtype, (ttl, {}))
        rdatas.setdefault(records.canonical_rdata(rtype, rdata), rdata)
        rrs[rtype] = (min(ttl, least), rdatas)
    return owners


def manifests(
    owners: dict[Name, tuple[Name, RRs]],
    apex: Name,
    *,
    soa: tuple[int, Soa],
    default_ttl: int | None,
    namespace: str,
    zone: str | None = None,
) -> list[Manifest]:
    """The DNSZone first, then its record sets in order of the file.

    `soa` is the TTL and value of the SOA; `zone` the object name when the DNSZone exists under
    another than the usual.
    """
    name = zone or zone_object_name(apex)
    apex_key = names.key(apex)
    rrs = owners.get(apex_key, (apex, {}))[1]
    ns = rrs.get(record_types.NS)
    if default_ttl is None:
        default_ttl = _usual_ttl(owners)
    found = [
        Manifest(
            kind=DNS_ZONE,
            meta=ObjectMeta(name=name),
            spec=_zone_spec(apex, soa, ns, default_ttl),
        )
    ]
    ref = ZoneRef(name=name)
    for key, (owner, of_owner) in owners.items():
        skipped = (record_types.SOA, record_types.NS) if key == apex_key else ()
        endpoints = _endpoints(owner, of_owner, skipped, default_ttl)
        if endpoints:
            meta = ObjectMeta(name=record_set_name(owner, apex, name), namespace=namespace)
            spec = DNSRecordSetSpec(zone_ref=ref, endpoints=endpoints)
            found.append(Manifest(kind=DNS_RECORD_SET, meta=meta, spec=spec))
    return found


def _usual_ttl(owners: dict[Name, tuple[Name, RRs]]) -> int:
    counts: Counter[int] = Counter(ttl for _, rrs in owners.values() for ttl, _ in rrs.values())
    return counts.most_common(1)[0][0] if counts else 300


def _zone_spec(
    apex: Name,
    soa: tuple[int, Soa],
    ns: tuple[int, dict[bytes, bytes]] | None,
    default_ttl: int,
) -> DNSZoneSpec:
    ttl, value = soa
    ns_ttl = ns[0] if ns else default_ttl
    return DNSZoneSpec(
        zone_name=names.to_text(apex),
        default_ttl=default_ttl,
        soa=SOA(
            mname=names.to_text(value.mname),
            rname=names.to_text(value.rname),
            refresh=value.refresh,
            retry=value.retry,
            expire=value.expire,
            minimum=value.minimum,
            ttl=None if ttl == default_ttl else ttl,
        ),
        nameservers=[names.to_text(rdata) for rdata in ns[1].values()] if ns else [],
        nameserver_ttl=None if ns_ttl == default_ttl else ns_ttl,
    )


def _endpoints(owner: Name, rrs: RRs, skipped: Sequence[int], default_ttl: int) -> list[Endpoint]:
    text = names.to_text(owner)
    found: list[Endpoint] = []
    for rtype, (ttl, rdatas) in rrs.items():
        if rtype in skipped:
            continue
        record_type = record_types.type_to_text(rtype)
        targets = [records.rdata_to_text(rtype, rdata) for rdata in rdatas.values()]
        # An RRset larger than one endpoint may be is split; the parts are served as one.
        found.extend(
            Endpoint(
                dns_name=text,
                record_type=record_type,
                targets=targets[i : i + TARGETS_MAX],
                record_ttl=None if ttl == default_ttl else ttl,
                set_identifier=str(i // TARGETS_MAX) if i else "",
            )
            for i in range(0, len(targets), TARGETS_MAX)
        )
    return found
