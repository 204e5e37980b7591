"""The guard against losing much of a zone by accident.

Counted are resource records; the SOA is not, as it is another one after each change. A record that
goes, or whose rdata or TTL changes, counts once; records that come count nothing, because nobody
loses an answer by them. The name servers of a zone count when they go, and in the size of the zone.
Their TTL does not count, nor do they make a zone large enough for the guard: a small zone moves to
other name servers without more ado.
"""

from collections import Counter
from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from kudurru.domain import zone_model
from kudurru.domain.dns import names, records
from kudurru.domain.dns.names import Name
from kudurru.domain.errors import MassChange
from kudurru.domain.kinds.recordset import DNSRecordSetSpec
from kudurru.domain.kinds.zone import DNSZoneSpec
from kudurru.domain.objects import Key, ref_of

PERCENT_MAX = 30
RECORDS_MIN = 10
"""In a zone with fewer records, beside its name servers, everything is a large part of it."""

Identity = tuple[Name, int]
"""Owner and type."""
Records = dict[Identity, dict[bytes, int]]
"""Rdata in canonical form -> TTL, by owner and type."""


def records_of(specs: Iterable[DNSRecordSetSpec], default_ttl: int) -> Records:
    """Records that are switched on, as they are served when nothing contests them."""
    found: Records = {}
    for spec in specs:
        add_records(found, spec, default_ttl)
    return found


def add_records(found: Records, spec: DNSRecordSetSpec, default_ttl: int) -> None:
    for owner, endpoints in zone_model.parse_endpoints(spec).items():
        for endpoint in endpoints:
            if endpoint.disabled:
                continue
            ttl = default_ttl if endpoint.ttl is None else endpoint.ttl
            rdatas = found.setdefault((owner, endpoint.rtype), {})
            for rdata in endpoint.rdatas:
                rdatas[records.canonical_rdata(endpoint.rtype, rdata)] = ttl


def nameservers_of(zone: DNSZoneSpec | None) -> Records:
    """The records that a DNSZone holds itself; none where there is no zone. Raises: BadName of a
    spec that was not checked."""
    if zone is None:
        return {}
    apex = names.key(names.from_text(zone.zone_name))
    return {
        (apex, rrset.rtype): {
            records.canonical_rdata(rrset.rtype, rdata): rrset.ttl for rdata in rrset.rdatas
        }
        for rrset in zone_model.apex_rrsets(zone)
    }


def size_of(spec: DNSRecordSetSpec) -> int:
    """Records of a set at most, without parsing one."""
    return sum(len(endpoint.targets) for endpoint in spec.endpoints)


def reaches_all(before: DNSZoneSpec, after: DNSZoneSpec | None) -> bool:
    """Whether every record of a zone may be another by a change of its DNSZone; `after` is None
    when it serves none any more."""
    return after is None or (before.default_ttl, before.allowed_namespaces) != (
        after.default_ttl,
        after.allowed_namespaces,
    )


def allows(zone: DNSZoneSpec, key: Key) -> bool:
    """Whether a record set is of a namespace that may have records in a zone."""
    allowed = zone.allowed_namespaces
    return allowed is None or ref_of(key).namespace in allowed


def count(found: Records) -> int:
    return sum(map(len, found.values()))


def changed(before: Records, after: Records) -> int:
    """How many records go, or are not what they were."""
    return sum(
        after.get(identity, {}).get(rdata) != ttl
        for identity, rdatas in before.items()
        for rdata, ttl in rdatas.items()
    )


def lost(before: Records, after: Records, nameservers: AbstractSet[Identity]) -> int:
    """The same as the guard counts: name servers when they go."""
    own = nameservers & before.keys() & after.keys()
    return changed(before, after) - sum(
        rdata in after[one] and after[one][rdata] != ttl
        for one in own
        for rdata, ttl in before[one].items()
    )


class Losses:
    """Records that went from zones a short time ago, by the record set that had them: so that what
    goes bit by bit is held against the guard as what goes at once."""

    def __init__(self, window_us: int) -> None:
        self._window_us = window_us
        self._went: dict[Key, tuple[int, str, int]] = {}  # when, from which zone, how many

    def add(self, key: Key, zone: str, count: int, now_us: int) -> None:
        self._went[key] = now_us, zone, count

    def is_back(self, key: Key) -> bool:
        """A record set was made again. Whether it was one of those."""
        return self._went.pop(key, None) is not None

    def by_zone(self, now_us: int) -> Counter[str]:
        """What went within the window, by the name of the DNSZone."""
        self._went = {
            key: one for key, one in self._went.items() if now_us - one[0] < self._window_us
        }
        found: Counter[str] = Counter()
        for _, zone, count in self._went.values():
            found[zone] += count
        return found


def is_much(changed: int, total: int, nameservers: int) -> bool:
    """Of a zone's records; so many of the total are its name servers."""
    return total - nameservers >= RECORDS_MIN and changed * 100 > PERCENT_MAX * total


def check(zone: str, changed: int, total: int, nameservers: int) -> None:
    """Raises MassChange."""
    if is_much(changed, total, nameservers):
        raise MassChange(zone, changed, total)
