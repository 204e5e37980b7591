"""From a dynamic update to commands: what the record sets of the key have to become.

A key has one record set per owner name, of manager `update:<key>`. What an owner holds beside it
belongs to others: an update sees it, and is refused where it would change it.
"""

from kudurru.domain import zone_import
from kudurru.domain.commands import Apply, Command, Delete
from kudurru.domain.dns import names
from kudurru.domain.dns.lookup import REFUSED
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.record_types import NS, SOA
from kudurru.domain.dns.update import Changed, UpdateRefused, differs
from kudurru.domain.dns.zone_tree import Zone
from kudurru.domain.errors import Invalid
from kudurru.domain.kinds.recordset import DNSRecordSetSpec, ZoneRef
from kudurru.domain.kinds.registry import DNS_RECORD_SET
from kudurru.domain.kinds.validation import Manifest
from kudurru.domain.objects import Key
from kudurru.domain.zone_import import RRs
from kudurru.projections.objects_view import ObjectsView
from kudurru.projections.transferred import Naming, held
from kudurru.projections.zone_state import ZoneState

MANAGER_PREFIX = "update:"


def manager_of(key: str) -> str:
    """Manager and actor of what a TSIG key writes; `key` is its name."""
    return MANAGER_PREFIX + key


def read_owner(zone: Zone, key: Name) -> RRs:
    """What an owner holds, the SOA of the zone among it."""
    rrs = held(zone, key)
    if key == zone.key:
        soa = zone.stamped_soa or zone.soa
        rdata = soa.rdata(zone.serial)
        rrs[SOA] = (soa.ttl, {rdata: rdata})
    return rrs


def commands_of(
    changed: Changed, state: ZoneState, objects: ObjectsView, key: str
) -> list[Command]:
    """Commands for the owners that an update changes. Raises: UpdateRefused where one of them
    belongs to another manager, or would hold more than an object can."""
    assert state.zone is not None
    manager = manager_of(key)
    naming = Naming(state, objects, manager=manager)
    commands: list[Command] = []
    for owner_key, (owner, rrs) in changed.items():
        before = read_owner(state.zone, owner_key)
        if not differs(before, rrs):
            continue
        of_zone = (SOA, NS) if owner_key == state.apex else ()
        if any(before.get(rtype) != rrs.get(rtype) for rtype in of_zone):
            raise UpdateRefused(REFUSED, "SOA and name servers of the zone are in its DNSZone")
        mine = _own(state, objects, owner_key, manager)
        rest = {rtype: rrset for rtype, rrset in rrs.items() if rtype not in of_zone}
        if rest:
            written = state.zone.cased.get(owner_key, owner_key) if mine else owner
            commands.append(_apply(naming, Name(written), rest))
        elif mine is not None:
            commands.append(Delete(key=mine, manager=manager))
    return commands


def _own(state: ZoneState, objects: ObjectsView, owner: Name, manager: str) -> Key | None:
    """The record set of a manager at an owner, where all of it is theirs. Raises: UpdateRefused
    where others have a part in it, if only a disabled one."""
    sources = state.sources_of(owner)
    found = [objects.find(key) for key in sources]
    if not sources:
        return None
    others = [stored.manager for stored in found if stored and stored.manager != manager]
    if others:
        raise UpdateRefused(REFUSED, f"{names.to_text(owner)} belongs to {others[0]}")
    return sources[0]


def _apply(naming: Naming, owner: Name, rrs: RRs) -> Apply:
    spec = DNSRecordSetSpec(
        zone_ref=ZoneRef(name=naming.zone), endpoints=zone_import.endpoints_of(owner, rrs)
    )
    manifest = Manifest(kind=DNS_RECORD_SET, meta=naming.meta_of(owner), spec=spec)
    try:
        zone_import.check_bounds(manifest)
    except Invalid as error:
        raise UpdateRefused(REFUSED, str(error)) from error
    return Apply(manifest=manifest, manager=naming.manager)
