"""From a master file's records to objects: one DNSZone, and one DNSRecordSet per owner name.

The same records make the same objects in whatever order they stand in the file, so that importing
again changes only what differs.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import sha256

import msgspec

from kudurru.domain.dns import names, record_types, records
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.soa import Soa
from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.kinds.meta import ObjectMeta, is_dns_subdomain
from kudurru.domain.kinds.recordset import DNSRecordSetSpec, Endpoint, ZoneRef
from kudurru.domain.kinds.registry import DNS_RECORD_SET, DNS_ZONE
from kudurru.domain.kinds.validation import Manifest, size_faults
from kudurru.domain.kinds.zone import SOA, ZONE_DEFAULT_TTL_S, DNSZoneSpec
from kudurru.domain.objects import ref_of

OBJECT_NAME_MAX = 200
TARGETS_MAX = 256
ENDPOINTS_MAX = 256
NAMESERVERS_MAX = 32
FEW = 3
"""Targets that always fit into one object: four of the longest fill its mebibyte."""

_OFFENDING = re.compile(r"[^a-z0-9.-]")

RRs = dict[int, tuple[int, dict[bytes, bytes]]]
"""Of one owner: type -> (TTL, canonical rdata -> rdata)."""


class Present(msgspec.Struct, frozen=True):
    """What is there already: the DNSZone of this zone, and in the namespace the names of its
    record sets and of those of zones whose names could meet."""

    zone: Manifest | None = None
    ours: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()

    def name_for(self, owner: Name, apex: Name, zone: str) -> str:
        """`record_set_name`, or another where a zone above or below this one has that: both
        example.org and sub.example.org may hold ns.sub.example.org."""
        name = record_set_name(owner, apex, zone)
        if not self.others:
            return name
        second = second_name(name, owner, zone)
        is_second = name in self.others or (second in self.ours and name not in self.ours)
        return second if is_second else name


def zone_object_name(apex: Name) -> str:
    key = names.key(apex)
    return _object_name(names.to_text(key, final_dot=False), key) if key != names.ROOT else "root"


def may_share_names(zone: str, other: str) -> bool:
    """Whether record sets of two DNSZones, by object name, could get one name."""
    return f".{zone}".endswith(f".{other}") or f".{other}".endswith(f".{zone}")


def record_set_name(owner: Name, apex: Name, zone: str) -> str:
    """Object name for an owner, stable from one import to the next and never shared by two of the
    zone."""
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


def second_name(name: str, owner: Name, zone: str) -> str:
    """Object name for an owner where another zone's record set has its first."""
    return suffixed(name, names.key(owner) + zone.encode())


def _object_name(text: str, key: Name, *, is_taken: bool = False) -> str:
    if not is_taken and len(text) <= OBJECT_NAME_MAX and is_dns_subdomain(text):
        return text
    return suffixed(text, key)


def suffixed(text: str, seed: bytes) -> str:
    """An object name that can be told from others by its seed, and begins as the text does."""
    suffix = "-" + sha256(seed).hexdigest()[:10]
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
    namespace: str,
    present: Present = Present(),  # noqa: B008  # frozen
) -> list[Manifest]:
    """The DNSZone first, then its record sets in order of the file. `soa` is the TTL and value of
    the SOA. A DNSZone that is there keeps what a master file does not say.

    Raises: Invalid for a zone that is no primary, and for an owner with more records than an
    object holds.
    """
    zone = _zone_manifest(owners, apex, soa, present.zone)
    assert isinstance(zone.spec, DNSZoneSpec)
    name, default_ttl = zone.meta.name, zone.spec.default_ttl
    found = [zone]
    ref = ZoneRef(name=name)
    for key, (owner, of_owner) in owners.items():
        skipped = (record_types.SOA, record_types.NS) if key == names.key(apex) else ()
        endpoints = endpoints_of(owner, of_owner, skipped=skipped, default_ttl=default_ttl)
        if endpoints:
            meta = ObjectMeta(name=present.name_for(owner, apex, name), namespace=namespace)
            spec = DNSRecordSetSpec(zone_ref=ref, endpoints=endpoints)
            found.append(Manifest(kind=DNS_RECORD_SET, meta=meta, spec=spec))
    for manifest in found:
        check_bounds(manifest)
    return found


def check_bounds(manifest: Manifest) -> None:
    """Objects made here have not gone through `parse_manifest`; of its bounds only these can be
    passed by what is a zone. Raises Invalid."""
    spec = manifest.spec
    causes: list[Cause] = []
    if isinstance(spec, DNSZoneSpec) and len(spec.nameservers) > NAMESERVERS_MAX:
        count = len(spec.nameservers)
        causes.append(Cause("spec.nameservers", f"{count} entries; at most {NAMESERVERS_MAX}"))
    if isinstance(spec, DNSRecordSetSpec) and sum(len(e.targets) for e in spec.endpoints) > FEW:
        if len(spec.endpoints) > ENDPOINTS_MAX:
            count = len(spec.endpoints)
            causes.append(Cause("spec.endpoints", f"{count} entries; at most {ENDPOINTS_MAX}"))
        causes += size_faults(manifest)
    if causes:
        raise Invalid(str(ref_of(manifest.key)), causes)


def _usual_ttl(owners: dict[Name, tuple[Name, RRs]]) -> int:
    counts: Counter[int] = Counter(ttl for _, rrs in owners.values() for ttl, _ in rrs.values())
    return min(counts, key=lambda ttl: (-counts[ttl], ttl), default=ZONE_DEFAULT_TTL_S)


def _zone_manifest(
    owners: dict[Name, tuple[Name, RRs]],
    apex: Name,
    soa: tuple[int, Soa],
    present: Manifest | None,
) -> Manifest:
    ns = owners.get(names.key(apex), (apex, {}))[1].get(record_types.NS)
    if present is None:
        spec = _zone_spec(apex, soa, ns, _usual_ttl(owners))
        return Manifest(kind=DNS_ZONE, meta=ObjectMeta(name=zone_object_name(apex)), spec=spec)
    before = present.spec
    assert isinstance(before, DNSZoneSpec)
    if before.type != "Primary":
        what = f"the zone is {before.type}; records are imported into a Primary"
        raise Invalid(str(ref_of(present.key)), [Cause("spec.type", what)])
    said = _zone_spec(apex, soa, ns, before.default_ttl)
    spec = msgspec.structs.replace(
        before, soa=said.soa, nameservers=said.nameservers, nameserver_ttl=said.nameserver_ttl
    )
    return msgspec.structs.replace(present, spec=spec)


def _zone_spec(
    apex: Name,
    soa: tuple[int, Soa],
    ns: tuple[int, dict[bytes, bytes]] | None,
    default_ttl: int,
) -> DNSZoneSpec:
    ttl, value = soa
    ns_ttl = ns[0] if ns else default_ttl
    return DNSZoneSpec(
        zone_name=names.to_text(apex, final_dot=False),
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
        nameservers=[names.to_text(rdata) for rdata in _in_order(ns[1])] if ns else [],
        nameserver_ttl=None if ns_ttl == default_ttl else ns_ttl,
    )


def endpoints_of(
    owner: Name, rrs: RRs, *, skipped: Sequence[int] = (), default_ttl: int | None = None
) -> list[Endpoint]:
    """Endpoints of one owner. Those with the TTL `default_ttl` leave it to the zone."""
    text = names.to_text(owner)
    found: list[Endpoint] = []
    for rtype, (ttl, rdatas) in sorted(rrs.items()):
        if rtype in skipped:
            continue
        record_type = record_types.type_to_text(rtype)
        targets = [records.rdata_to_text(rtype, rdata) for rdata in _in_order(rdatas)]
        own_ttl = None if ttl == default_ttl else ttl
        if len(targets) <= TARGETS_MAX:
            found.append(
                Endpoint(
                    dns_name=text, record_type=record_type, targets=targets, record_ttl=own_ttl
                )
            )
            continue
        # An RRset larger than one endpoint may be is split; the parts are served as one.
        found.extend(
            Endpoint(
                dns_name=text,
                record_type=record_type,
                targets=targets[i : i + TARGETS_MAX],
                record_ttl=own_ttl,
                set_identifier=str(i // TARGETS_MAX) if i else "",
            )
            for i in range(0, len(targets), TARGETS_MAX)
        )
    return found


def _in_order(rdatas: dict[bytes, bytes]) -> list[bytes]:
    if len(rdatas) == 1:
        return list(rdatas.values())
    return [rdatas[canonical] for canonical in sorted(rdatas)]
