"""How much of each zone a change takes away or alters: what the mass-change guard asks."""

from collections.abc import Generator, Iterable, Mapping

from kudurru.domain import mass_change
from kudurru.domain.dns import names
from kudurru.domain.kinds.recordset import DNSRecordSetSpec
from kudurru.domain.kinds.registry import DNS_RECORD_SET, DNS_ZONE
from kudurru.domain.kinds.stored import read_record_set, read_zone
from kudurru.domain.kinds.zone import DNSZoneSpec
from kudurru.domain.object_store import ObjectState, StoredObject
from kudurru.domain.objects import Key, ref_of
from kudurru.projections.zone_state import ZoneState
from kudurru.projections.zone_view import ZoneView

PER_STEP = 100


def check_steps(
    before: ObjectState, after: ObjectState, touched: Iterable[Key], zones: ZoneView
) -> Generator[None, None, None]:
    """Refuse a change of the `touched` objects that is too much for one of the zones; in steps,
    because a large change is parsed whole. Raises MassChange."""
    for name, keys in (yield from _by_zone(before, touched)).items():
        state = zones.state(name)
        if state is None or state.zone is None:
            continue
        total = size_of(state)
        zone_after = _zone_spec(after.find(state.key))
        if mass_change.reaches_all(state.spec, zone_after):
            keys = keys | state.record_sets()
        specs: dict[Key, DNSRecordSetSpec | None] = {}
        for i, key in enumerate(keys, 1):
            specs[key] = _set_spec(before.find(key))
            if i % PER_STEP == 0:
                yield
        old, new = mass_change.nameservers_of(state.spec), mass_change.nameservers_of(zone_after)
        servers, count = frozenset(old), mass_change.count(old)
        # Most changes are small, and seen to be without parsing a record.
        size = sum(mass_change.size_of(spec) for spec in specs.values() if spec)
        if not mass_change.is_much(size + mass_change.lost(old, new, servers), total, count):
            continue
        for i, (key, was) in enumerate(specs.items(), 1):
            if was is not None:
                mass_change.add_records(old, was, state.spec.default_ttl)
            if zone_after is not None and mass_change.allows(zone_after, key):
                is_now = _set_spec(after.find(key))
                if is_now is not None and is_now.zone_ref.name == name:
                    mass_change.add_records(new, is_now, zone_after.default_ttl)
            if i % PER_STEP == 0:
                yield
        apex = names.to_text(state.apex)
        mass_change.check(apex, mass_change.lost(old, new, servers), total, count)


def size_of(state: ZoneState) -> int:
    """Records of a zone that the guard counts."""
    return state.zone.record_count if state.zone else 0


def check_losses(going: Mapping[str, int], went: Mapping[str, int], zones: ZoneView) -> None:
    """What is to go from each zone, held against the guard with what went before. Raises
    MassChange."""
    for name, count in going.items():
        before, state = went.get(name, 0), zones.state(name)
        if before and state is not None:
            apex = names.to_text(state.apex)
            servers = mass_change.count(mass_change.nameservers_of(state.spec))
            mass_change.check(apex, count + before, size_of(state) + before, servers)


def _by_zone(
    before: ObjectState, touched: Iterable[Key]
) -> Generator[None, None, dict[str, set[Key]]]:
    """Record sets that there were, by the zone they were in; zones without any are given too."""
    found: dict[str, set[Key]] = {}
    for i, key in enumerate(touched, 1):
        if i % PER_STEP == 0:
            yield
        ref = ref_of(key)
        if ref.kind == DNS_ZONE.name:
            found.setdefault(ref.name, set())
        elif ref.kind == DNS_RECORD_SET.name and (stored := before.find(key)) is not None:
            found.setdefault(stored.scope.partition("/")[2], set()).add(key)
    return found


def _zone_spec(stored: StoredObject | None) -> DNSZoneSpec | None:
    """The zone as it serves records; None when it does not."""
    if stored is None:
        return None
    spec = read_zone(stored.body.spec)
    return spec if spec.type == "Primary" else None


def _set_spec(stored: StoredObject | None) -> DNSRecordSetSpec | None:
    return read_record_set(stored.body.spec) if stored else None
