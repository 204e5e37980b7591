"""What a pruning keeps is what state needs: views of the rest are those of the whole."""

from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.domain import zone_export
from kudurru.domain.codec import canonical
from kudurru.domain.events import (
    LOG_PRUNED,
    OBJECT_APPLIED,
    OBJECT_MOVED,
    OBJECT_STATUS,
    PRUNING_KEY,
    ChangeSet,
    Event,
    Position,
    Recorded,
)
from kudurru.domain.kinds.validation import Manifest
from kudurru.domain.object_store import CONTROLLER
from kudurru.domain.objects import ref_of
from kudurru.domain.ports import Anchor, Upkeep
from kudurru.domain.pruning import Keeper, PrunedBody, digest_of, limit
from kudurru.domain.restore import Scope
from kudurru.entrypoints.wiring import Node, Views
from kudurru.projections import as_of
from kudurru.projections.zones_as_of import ZonesAsOf
from tests.histories import KEYS, histories, targets_of
from tests.nodes import TESTER, a_change, memory_node
from tests.objects import drop, endpoint, manifest, put

SCOPES = [
    Scope(everything=True),
    Scope(kind="DNSZone"),
    Scope(selector="team=x"),
    Scope(namespace="team"),
    Scope(zone="east"),
    Scope(zone="west", namespace="default"),
]
few = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def keeper_of(events: Iterable[Recorded]) -> Keeper:
    keeper = Keeper()
    for event in events:
        keeper.feed(event)
    return keeper


def is_kept(kept: bytes, seq: int) -> bool:
    return bool(kept[(seq - 1) >> 3] >> ((seq - 1) & 7) & 1)


def pruned_event(newest: Recorded, upto: int) -> Recorded:
    body = canonical(PrunedBody(upto, upto + 1, "", 0))
    return msgspec.structs.replace(
        newest, seq=Position(newest.seq + 1), type=LOG_PRUNED, key=PRUNING_KEY, ver=1, body=body
    )


def views_of(events: list[Recorded], oldest: int) -> Views:
    by_seq = {event.seq: event for event in events}
    views = Views(by_seq.get, 1, oldest=lambda: Position(oldest))
    views.follower.feed(events)
    return views


@given(histories(), st.data())
@few
def test_views_built_from_what_is_kept_are_those_of_the_whole_log(
    node: Node, data: st.DataObject
) -> None:
    events = list(node.log.read())
    upto = data.draw(st.integers(1, len(events)))
    # Mostly at once: a stamp that comes later hides what was not told right before.
    last = data.draw(st.one_of(st.just(upto), st.just(upto), st.integers(upto, len(events))))
    kept = keeper_of(events[:upto]).kept()
    whole = [*events[:last], pruned_event(events[last - 1], upto)]
    left = [event for event in whole if event.seq > upto or is_kept(kept, event.seq)]
    assert views_of(left, upto).digests() == views_of(whole, 0).digests()


@given(histories(), st.data())
@few
def test_who_was_behind_when_rows_went_ends_with_the_same_views(
    node: Node, data: st.DataObject
) -> None:
    events = list(node.log.read())
    upto = data.draw(st.integers(1, len(events)))
    at = data.draw(st.integers(0, upto))
    kept = keeper_of(events[:upto]).kept()
    whole = [*events, pruned_event(events[-1], upto)]
    by_seq = {event.seq: event for event in whole}
    # Who shares a log holds the bodies of what it has seen.
    behind = Views(by_seq.get, 1, oldest=lambda: Position(upto))
    behind.follower.feed(events[:at])
    behind.follower.feed(e for e in whole[at:] if e.seq > upto or is_kept(kept, e.seq))
    assert behind.digests() == views_of(whole, 0).digests()


def read_back(node: Node, first: int, last: int) -> dict[str, object]:
    """What is told of two positions, by every way to ask."""
    log = node.log
    zones = ZonesAsOf(log, first)
    names = sorted(ref_of(event.key).name for event in log.births("DNSZone", first))
    states = [zones.load(name) for name in names]
    served = [s.zone for s in states if s.zone and zones.is_elected(s.apex, s.name)]
    return {
        "objects": [as_of.objects(log, scope, first) for scope in SCOPES],
        "between": [as_of.between(log, scope, first, last).now for scope in SCOPES],
        "one": [as_of.state(log, key, first) for key in KEYS],
        "serials": [as_of.last_serial(log, key, first) for key in KEYS],
        "zones": [(zone.digest(), list(zone_export.lines(zone))) for zone in served],
    }


@given(histories(), st.data())
@few
def test_what_is_told_of_a_moment_since_is_what_the_whole_log_tells(
    node: Node, data: st.DataObject
) -> None:
    log, newest = node.log, node.log.head()
    assume(newest.seq >= 8)
    upto = 8 * data.draw(st.integers(1, newest.seq // 8))  # as an anchor has whole octets
    since = st.sampled_from([seq for seq in targets_of(node) if seq >= upto])
    first, last = sorted(data.draw(since) for _ in range(2))
    before = read_back(node, first, last)
    assert isinstance(log, MemoryEventLog)
    anchor = Anchor(newest.seq, keeper_of(log.read(0, upto)).kept())
    body = canonical(PrunedBody(upto, newest.seq, digest_of(anchor), 0))
    pruned = Event(LOG_PRUNED, PRUNING_KEY, 1, "/", CONTROLLER, body)
    log.append_signed([ChangeSet((pruned,), TESTER)], newest.ts, None, Upkeep(prune=anchor))
    assert read_back(node, first, last) == before


def zone_manifest() -> Manifest:
    return manifest("DNSZone", "east", {"zoneName": "a.test."})


def www(address: str, zone: str = "east") -> Manifest:
    endpoints = [endpoint("www.a.test.", "A", address)]
    return manifest("DNSRecordSet", "www", {"zoneRef": {"name": zone}, "endpoints": endpoints})


def kept_of(node: Node, upto: int) -> list[int]:
    kept = keeper_of(node.log.read(0, upto)).kept()
    return [seq for seq in range(1, upto + 1) if is_kept(kept, seq)]


def test_what_a_serial_names_is_kept_beside_what_came_after_it() -> None:
    node = memory_node()
    node.commit(a_change(put(zone_manifest()), put(www("192.0.2.1"))))
    node.commit(a_change(put(www("192.0.2.2"))))
    # 1 zone, 2 www, 3 its stamp, 4 www again, 5 the next stamp.
    assert kept_of(node, 4) == [1, 2, 3, 4]
    assert kept_of(node, 5) == [1, 4, 5]
    events = list(node.log.read(0, 4))
    whole = [*events, pruned_event(events[-1], 4)]
    without = [event for event in whole if event.seq != 2]
    assert views_of(without, 4).digests() != views_of(whole, 0).digests()


def test_the_scope_that_an_object_left_since_the_stamp_is_kept() -> None:
    node = memory_node()
    node.commit(a_change(put(zone_manifest()), put(www("192.0.2.1"))))
    node.commit(a_change(put(www("192.0.2.1", zone="west"))))
    types = [event.type for event in node.log.read(3)]
    # That there is no zone for www any more is said of it before the stamp of the zone it left.
    assert types == [OBJECT_MOVED, OBJECT_APPLIED, OBJECT_STATUS, OBJECT_STATUS]
    assert kept_of(node, 6) == [1, 2, 3, 4, 5, 6]
    assert kept_of(node, 7) == [1, 5, 6, 7]


def test_a_zone_that_was_no_primary_for_a_while_has_no_serial_at_first_in_every_history() -> None:
    node = memory_node()
    forward = {"zoneName": "a.test.", "type": "Forward", "forward": {"upstreams": ["192.0.2.53"]}}
    node.commit(a_change(put(zone_manifest())))
    node.commit(a_change(put(manifest("DNSZone", "east", forward))))
    node.commit(a_change(put(zone_manifest())))
    # 1 zone, 2 its stamp, 3 forward, 4 primary again, 5 the next stamp.
    events = list(node.log.read(0, 5))
    for upto in (3, 4, 5):
        left = [e for e in events if e.seq > upto or e.seq in kept_of(node, upto)]
        pruned = pruned_event(events[-1], upto)
        assert views_of([*left, pruned], upto).digests() == views_of([*events, pruned], 0).digests()


def test_of_a_zone_that_is_gone_its_last_serial_is_kept() -> None:
    node = memory_node()
    node.commit(a_change(put(zone_manifest()), put(www("192.0.2.1"))))
    node.commit(a_change(put(www("192.0.2.2"))))
    node.commit(a_change(drop(zone_manifest().key)))
    assert kept_of(node, 6) == [1, 4, 5, 6]


@pytest.mark.parametrize(
    ("before", "newest", "upto"),
    [(1, 9_999, 0), (256, 9_999, 0), (257, 9_999, 256), (9_999, 257, 256), (9_999, 256, 0)],
)
def test_whole_tiles_go_and_never_up_to_the_newest_checkpoint(
    before: int, newest: int, upto: int
) -> None:
    assert limit(before, newest) == upto
