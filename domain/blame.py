"""Who last changed each record of a zone, when and why.

A record is blamed on the event that brought it, with this TTL, into the object that holds it: an
object that is written again for another of its records does not take the blame for this one.
"""

from collections.abc import Iterable, Iterator

import msgspec

from kudurru.domain.dns import names, record_types, records
from kudurru.domain.dns.names import Name
from kudurru.domain.events import OBJECT_APPLIED, OBJECT_DELETED, OBJECT_MOVED, Recorded
from kudurru.domain.kinds.registry import DNS_RECORD_SET, DNS_ZONE
from kudurru.domain.kinds.stored import read_record_set, read_zone
from kudurru.domain.object_store import decode_body
from kudurru.domain.objects import Key
from kudurru.domain.zone_model import parse_endpoints, soa_of

_Record = tuple[Name, int, bytes]
"""Owner key, type, canonical rdata. The serial of a SOA is left out: it follows the others."""
_Held = dict[_Record, "Blamed"]


class Blamed(msgspec.Struct, frozen=True, kw_only=True):
    """A record, and the event that brought it."""

    owner: Name
    ttl: int | None  # None: the zone's default
    rtype: int
    rdata: bytes
    key: Key  # the object that holds it
    event: Recorded

    @property
    def data(self) -> str:
        return records.rdata_to_text(self.rtype, self.rdata)


def blame(events: Iterable[Recorded]) -> list[Blamed]:
    """Records of a zone, in canonical order of their owners. `events` are those of its scopes, in
    order."""
    held: dict[Key, _Held] = {}
    for event in events:
        if event.type in (OBJECT_DELETED, OBJECT_MOVED):
            held.pop(event.key, None)
        elif event.type == OBJECT_APPLIED and event.body is not None:
            held[event.key] = _taken_in(held.get(event.key, {}), event, event.body)
    found = [blamed for own in held.values() for blamed in own.values()]
    return sorted(found, key=_order)


def _order(blamed: Blamed) -> tuple[object, ...]:
    is_soa = blamed.rtype == record_types.SOA
    owner = names.canonical_order(names.key(blamed.owner))
    return owner, not is_soa, blamed.rtype, blamed.rdata, blamed.key


def _taken_in(before: _Held, event: Recorded, body: bytes) -> _Held:
    """What an object holds after an event; what it held already keeps its blame."""
    found: _Held = {}
    for new in _records(event, decode_body(body).spec):
        rdata = records.canonical_rdata(new.rtype, new.rdata)
        identity = (names.key(new.owner), new.rtype, rdata)
        old = before.get(identity)
        found[identity] = old if old is not None and old.ttl == new.ttl else new
    return found


def _records(event: Recorded, spec: msgspec.Raw) -> Iterator[Blamed]:
    if event.key.startswith(f"{DNS_RECORD_SET.name}/"):
        record_set = read_record_set(spec)
        for endpoints in parse_endpoints(record_set).values():
            for endpoint in endpoints:
                for rdata in () if endpoint.disabled else endpoint.rdatas:
                    yield _blamed(event, endpoint.owner, endpoint.ttl, endpoint.rtype, rdata)
    elif event.key.startswith(f"{DNS_ZONE.name}/"):
        zone = read_zone(spec)
        apex = names.from_text(zone.zone_name)
        soa = soa_of(zone)
        yield _blamed(event, apex, soa.ttl, record_types.SOA, soa.rdata(0))
        for text in zone.nameservers:
            rdata = names.from_text(text)
            yield _blamed(event, apex, zone.nameserver_ttl, record_types.NS, rdata)


def _blamed(event: Recorded, owner: Name, ttl: int | None, rtype: int, rdata: bytes) -> Blamed:
    return Blamed(owner=owner, ttl=ttl, rtype=rtype, rdata=rdata, key=event.key, event=event)
