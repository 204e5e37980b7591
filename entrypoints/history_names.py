"""Which changes concern a DNS name: what record sets and zones held there, whichever it was.

An object can hold many names, and a change of it is one of this name where what it holds there
differs from what it held before. So a name that moved from one record set to another has the
changes of both.

Only what zones have that can have the name is looked at (`changes_near`): what a record set says of
a name outside of its zone is served nowhere, and no change of the name.
"""

from collections.abc import Iterator
from contextlib import suppress
from heapq import merge

import msgspec

from kudurru.domain.dns import names, record_types
from kudurru.domain.dns.names import Name
from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.events import OBJECT_APPLIED, OBJECT_DELETED, OBJECT_MOVED, Recorded
from kudurru.domain.kinds.recordset import Endpoint
from kudurru.domain.kinds.registry import DNS_RECORD_SET, DNS_ZONE
from kudurru.domain.kinds.stored import read_record_set_body, read_zone
from kudurru.domain.object_store import decode_body
from kudurru.domain.objects import ref_of
from kudurru.domain.ports import EventLog
from kudurru.entrypoints.history import Sees, all_of_it
from kudurru.projections import as_of

_CONTENT = (OBJECT_APPLIED, OBJECT_DELETED)
_KINDS = (DNS_RECORD_SET.name, DNS_ZONE.name)


class NameChanges(msgspec.Struct, frozen=True):
    """What changed at a name, of one type or of all (None)."""

    owner: Name
    rtype: int | None = None

    def differs(self, before: Recorded | None, after: Recorded) -> bool:
        """Whether an object has something else there by one content than by another."""
        return self._held(after) != (self._held(before) if before is not None else [])

    def _held(self, event: Recorded) -> list[bytes]:
        """What an object has at the name: in any order, since that of endpoints says nothing."""
        if event.body is None or event.type != OBJECT_APPLIED:
            return []
        if ref_of(event.key).kind == DNS_ZONE.name:
            return self._held_by_zone(event.body)
        _, spec = read_record_set_body(event.body)
        zone = spec.zone_ref.name.encode()  # the same records in another zone are others
        return sorted(zone + b"/" + msgspec.json.encode(one) for one in self._at(spec.endpoints))

    def _held_by_zone(self, body: bytes) -> list[bytes]:
        """Of a zone, its spec where the name is its apex: SOA and NS come of that."""
        spec = decode_body(body).spec
        is_apex = _is_same(read_zone(spec).zone_name, self.owner)
        wanted = (None, record_types.SOA, record_types.NS)
        return [bytes(spec)] if is_apex and self.rtype in wanted else []

    def _at(self, endpoints: list[Endpoint]) -> Iterator[Endpoint]:
        for endpoint in endpoints:
            if _is_same(endpoint.dns_name, self.owner) and self._is_of_type(endpoint.record_type):
                yield endpoint

    def _is_of_type(self, text: str) -> bool:
        if self.rtype is None:
            return True
        with suppress(record_types.BadRecord):  # of a version that knew more of them
            return record_types.type_from_text(text) == self.rtype
        return False


def name_changes(name: str, rtype: str) -> NameChanges | None:
    """Of what a person wrote; None where no name is asked for. Raises: Invalid."""
    if not name:
        if rtype:
            why = "a record type is that of a name: give the name too"
            raise Invalid("history", [Cause("", why)])
        return None
    faults = []
    owner, number = names.ROOT, None
    try:
        owner = names.from_text(name)
    except names.BadName as error:
        faults.append(Cause("", f"{name!r}: {error}"))
    try:
        number = record_types.type_from_text(rtype) if rtype else None
    except record_types.BadRecord as error:
        faults.append(Cause("", str(error)))
    if faults:
        raise Invalid("history", faults)
    return NameChanges(Name(names.key(owner)), number)


def changes_near(
    wanted: NameChanges | None, log: EventLog, after: int, upto: int | None
) -> Iterator[Recorded]:
    """Events among which those at the name are, newest first: those in zones that can have it, by
    the log's index of them. Where no name is asked for, all events."""
    if wanted is None:
        return log.read(after, upto, newest_first=True)
    first = max(after - 1, 0)  # it may say what moved to where the next event is
    reads = [
        log.read(first, upto, scope=scope, newest_first=True)
        for scope in _scopes_near(wanted.owner, log)
    ]
    found = _with_moved(merge(*reads, key=lambda event: -event.seq), log, upto)
    return (event for event in found if event.seq > after)


def _scopes_near(owner: Name, log: EventLog) -> list[str]:
    """Scopes of zones, but for those of which it is known that they never had the name. What was
    deleted, or was never there, may have been any zone."""
    elsewhere = set()
    for born in as_of.zone_births(log, log.head().seq):
        apex = as_of.apex_of(born) if born.ver == 1 else None
        if apex is not None and not names.is_within(owner, apex):
            elsewhere.add(ref_of(born.key).name)
    zones = ((scope, scope.partition("/")[2]) for scope in log.scopes())
    return [scope for scope, zone in zones if zone and zone not in elsewhere]


def _with_moved(events: Iterator[Recorded], log: EventLog, upto: int | None) -> Iterator[Recorded]:
    """With the change that took a record set into another zone, and the name with it: it comes
    right after the event that says so, and is in the scope of that zone."""
    newest = None
    for event in events:
        if event.type == OBJECT_MOVED and event.seq + 1 != newest:
            came = log.get(event.seq + 1)
            if came is not None and came.key == event.key and came.seq <= (upto or came.seq):
                yield came
        newest = event.seq
        yield event


def is_wanted(
    wanted: NameChanges | None, event: Recorded, log: EventLog, sees: Sees = all_of_it
) -> bool:
    """Whether an event is a change at the name; where none is asked for, each is. What was before
    and may not be seen counts as nothing."""
    if wanted is None:
        return True
    if event.type not in _CONTENT or ref_of(event.key).kind not in _KINDS:
        return False
    before = _content_before(event, log)
    return wanted.differs(before if before is not None and sees(before) else None, event)


def _content_before(event: Recorded, log: EventLog) -> Recorded | None:
    if event.ver == 1:
        return None
    earlier = log.read(0, event.seq - 1, key=event.key, newest_first=True)
    return next((one for one in earlier if one.type in _CONTENT), None)


def _is_same(text: str, owner: Name) -> bool:
    with suppress(names.BadName):  # what an older version took
        return names.key(names.from_text(text)) == owner
    return False
