"""From a transfer to commands: what a secondary zone's record sets have to become.

There is one record set per owner name, named as `zone import` names it, and only what differs is
written. The DNSZone stays as people wrote it: serial, SOA and the rest of what the primary says are
in its status, which is the last command, so that no replay sees the records without their version.
"""

from collections.abc import Generator, Iterator

import msgspec

from kudurru.domain import zone_import
from kudurru.domain.commands import Apply, Command, Delete, UpdateStatus
from kudurru.domain.dns import names, records
from kudurru.domain.dns.images import EMPTY, RRset, pack, unpack, unpack_records
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.transfer import Differences, Version, Whole, apply_steps
from kudurru.domain.dns.zone_tree import Zone
from kudurru.domain.kinds.meta import DEFAULT_NAMESPACE, ObjectMeta
from kudurru.domain.kinds.recordset import DNSRecordSetSpec, ZoneRef
from kudurru.domain.kinds.registry import DNS_RECORD_SET
from kudurru.domain.kinds.validation import Manifest
from kudurru.domain.objects import Key, key_of, ref_of
from kudurru.domain.reconcile.secondaries import manager_of, transferred
from kudurru.domain.zone_import import RRs
from kudurru.projections.objects_view import ObjectsView
from kudurru.projections.zone_state import ZoneState

PER_STEP = 100

Commands = tuple[Command, ...]


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where a transfer came from, and when."""

    primary: str
    now_s: int


def ours_of(state: ZoneState) -> Version | None:
    """The version that a secondary zone holds."""
    zone = state.zone
    if zone is None or zone.stamped_soa is None:
        return None
    return Version(zone.serial, zone.stamped_soa)


def is_sound(state: ZoneState) -> bool:
    """Whether the zone holds what its serial says. It does not before its first transfer, when
    there may be record sets of others, and when a restore or an undo changed its records."""
    return state.zone is not None and not state.zone.has_unstamped_changes()


def command_steps(
    received: Whole | Differences,
    state: ZoneState,
    objects: ObjectsView,
    source: Source,
) -> Generator[None, None, Commands]:
    """Commands that make the zone what was received, in steps. Raises: BadTransfer where
    differences do not fit; Invalid where a name has more records than an object holds."""
    # Cases: a name as it was; one that changes; one that holds nothing any more. Of a whole zone
    # also what is not in it: names that went, and record sets that stand in no name's place.
    zone, stored = state.zone, objects.find(state.key)
    assert zone is not None
    assert stored is not None, "the zone is served"
    thorough = not is_sound(state)
    if isinstance(received, Whole):
        owners = received.owners
    else:
        owners = yield from apply_steps(received.steps, lambda key: held(zone, key))
    naming = Naming(state, objects, manager=manager_of(state.name), thorough=thorough)
    foresight = zone.foresee(received.version.soa)
    commands: list[Command] = []
    kept: set[Key] = set()
    for i, (key, (owner, rrs)) in enumerate(owners.items(), 1):
        if i % PER_STEP == 0:
            yield
        image = _image(rrs)
        if isinstance(received, Differences):
            owner = zone.cased.get(key, key) if key in zone.nodes else owner
        is_same = zone.nodes.get(key, EMPTY) == image
        if is_same and zone.cased.get(key, key) == owner and not thorough:
            kept.update(state.sources_of(key))
            continue
        if not is_same:
            foresight.replace(key, image)
        if rrs:
            manifest = _manifest(naming, Name(owner), rrs)
            kept.add(manifest.key)
            commands.append(Apply(manifest=manifest, manager=naming.manager, force=True))
        else:
            commands += _deletions(state.sources_of(key), naming.manager)
    if isinstance(received, Whole):
        surplus = (state.record_sets() | state.unselected) - kept
        commands += _deletions(sorted(surplus), naming.manager)
        for i, gone in enumerate([key for key in zone.nodes if key not in owners], 1):
            foresight.replace(gone, EMPTY)
            if i % PER_STEP == 0:
                yield
    status = transferred(
        stored.status,
        received.version,
        content_hash=foresight.digest(),
        record_count=foresight.record_count + 1,  # and the SOA, as a zone file has it
        generation=stored.body.generation,
        primary=source.primary,
        now_s=source.now_s,
    )
    expected = stored.resource_version
    return (*commands, UpdateStatus(key=state.key, status=status, expected=expected))


def _deletions(keys: "tuple[Key, ...] | list[Key]", manager: str) -> Iterator[Command]:
    return (Delete(key=key, manager=manager, force=True) for key in keys)


def held(zone: Zone, key: Name) -> RRs:
    """What an owner holds, as transfers have it."""
    found: RRs = {}
    for rrset in unpack(zone.nodes.get(key, EMPTY)):
        for rtype, ttl, rdata in unpack_records(rrset.wire):
            rdatas = found.setdefault(rtype, (ttl, {}))[1]
            rdatas[records.canonical_rdata(rtype, rdata)] = rdata
    return found


def _image(rrs: RRs) -> bytes:
    return pack([RRset(rtype, ttl, tuple(rdatas.values())) for rtype, (ttl, rdatas) in rrs.items()])


def _manifest(naming: "Naming", owner: Name, rrs: RRs) -> Manifest:
    spec = DNSRecordSetSpec(
        zone_ref=ZoneRef(name=naming.zone), endpoints=zone_import.endpoints_of(owner, rrs)
    )
    manifest = Manifest(kind=DNS_RECORD_SET, meta=naming.meta_of(owner), spec=spec)
    zone_import.check_bounds(manifest)
    return manifest


class Naming:
    """What the record sets are called that a manager writes into a zone, one per owner."""

    def __init__(
        self, state: ZoneState, objects: ObjectsView, *, manager: str, thorough: bool = False
    ) -> None:
        """`thorough`: record sets that are there are not taken to be the manager's."""
        self.zone = state.name
        self.manager = manager
        allowed = state.spec.allowed_namespaces
        self._namespace = allowed[0] if allowed else DEFAULT_NAMESPACE
        self._state = state
        self._objects = objects
        self._thorough = thorough

    def meta_of(self, owner: Name) -> ObjectMeta:
        sources = self._state.sources_of(names.key(owner))
        if sources and not self._thorough:
            ref = ref_of(sources[0])
            return ObjectMeta(name=ref.name, namespace=ref.namespace)
        name = zone_import.record_set_name(owner, self._state.apex, self.zone)
        there = self._objects.find(key_of(DNS_RECORD_SET.name, self._namespace, name))
        scope = f"{self._namespace}/{self.zone}"
        if there is not None and (there.scope, there.manager) != (scope, self.manager):
            # example.org and sub.example.org may both hold ns.sub.example.org.
            name = zone_import.second_name(name, owner, self.zone)
        return ObjectMeta(name=name, namespace=self._namespace)
