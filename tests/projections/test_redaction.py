"""Views of a log that was redacted are the same, whether they saw what was erased or not."""

from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.domain.dns import names
from kudurru.domain.errors import Conflict, KudurruError, Redacted
from kudurru.domain.events import OBJECT_APPLIED
from kudurru.domain.kinds.validation import Manifest
from kudurru.domain.verify import verify
from kudurru.entrypoints import upkeep
from kudurru.entrypoints.upkeep import RedactRequest
from kudurru.entrypoints.wiring import Node
from kudurru.projections import as_of
from kudurru.projections.zones_as_of import ZonesAsOf
from tests.histories import histories, operations, run
from tests.nodes import TESTER, a_change, memory_node, rebuilt
from tests.objects import drop, endpoint, manifest, put

few = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def redact(node: Node, seq: int, *, who: bool = False) -> None:
    log = node.log
    assert isinstance(log, MemoryEventLog)
    now_us = node.clock.now_us()
    redaction = upkeep.redaction(node, RedactRequest(seq=seq, who=who, reason="secret"))
    change_set = redaction.change_set(TESTER, now_us)
    at_us = node.time_for_events_us(now_us)
    node.take_in(log.append_signed([change_set], at_us, None, redaction.upkeep))


@given(histories(), st.data())
@few
def test_views_are_those_of_a_replay_after_any_redactions(node: Node, data: st.DataObject) -> None:
    contents = [event.seq for event in node.log.read() if event.type == OBJECT_APPLIED]
    for seq in data.draw(st.lists(st.sampled_from(contents), min_size=1, max_size=4)):
        # What is live, or was redacted before, is refused.
        with suppress(KudurruError):
            redact(node, seq, who=data.draw(st.booleans()))
    assert rebuilt(node).views.digests() == node.views.digests()
    run(node, data.draw(operations()))
    assert rebuilt(node).views.digests() == node.views.digests()
    assert verify(node.log).is_whole  # type: ignore[arg-type]  # a log of ours


def www(address: str, **labels: str) -> Manifest:
    endpoints = [endpoint("www.a.test.", "A", address)]
    spec = {"zoneRef": {"name": "east"}, "endpoints": endpoints}
    return manifest("DNSRecordSet", "www", spec, labels=labels)


def test_what_the_newest_serial_names_is_not_redacted() -> None:
    node = memory_node()
    east = manifest("DNSZone", "east", {"zoneName": "a.test."})
    node.commit(a_change(put(east), put(www("192.0.2.1"))))  # 1, 2, stamp 3
    node.commit(a_change(put(www("192.0.2.1", team="x"))))  # 4, which changes no record
    with pytest.raises(Conflict, match="serial 1700000000 names"):
        redact(node, 2)
    node.commit(a_change(put(www("192.0.2.2"))))  # 5, stamp 6
    redact(node, 2)
    assert rebuilt(node).views.digests() == node.views.digests()


def test_what_a_zone_held_that_is_served_no_more_is_redacted() -> None:
    node = memory_node()
    node.commit(a_change(put(manifest("DNSZone", "east", {"zoneName": "a.test."}))))
    node.commit(a_change(put(www("192.0.2.1"))))
    www_is_at = node.log.head().seq - 1
    forward = {"zoneName": "a.test.", "type": "Forward", "forward": {"upstreams": ["192.0.2.53"]}}
    node.commit(a_change(put(manifest("DNSZone", "east", forward))))
    node.commit(a_change(drop(www("192.0.2.1").key)))
    redact(node, www_is_at)
    assert rebuilt(node).views.digests() == node.views.digests()


def test_a_zone_whose_first_content_was_erased_is_found_at_any_moment() -> None:
    node = memory_node()
    for ttl in (300, 600, 900):  # 1 with stamp 2, 3 with stamp 4, 5 with stamp 6
        east = manifest("DNSZone", "east", {"zoneName": "a.test.", "defaultTTL": ttl})
        node.commit(a_change(put(east)))
    redact(node, 1)
    for upto in (2, 6):
        assert as_of.zone_named(node.log, "a.test", upto) == "east"
        assert ZonesAsOf(node.log, upto).is_elected(names.key(names.from_text("a.test.")), "east")
    assert ZonesAsOf(node.log, 6).load("east").zone is not None
    with pytest.raises(Redacted, match="at position 2 was redacted"):
        ZonesAsOf(node.log, 2).load("east")


def test_the_last_content_of_a_zone_that_is_gone_says_whose_its_serial_was() -> None:
    node = memory_node()
    east = manifest("DNSZone", "east", {"zoneName": "a.test."})
    node.commit(a_change(put(east)))
    node.commit(a_change(drop(east.key)))
    with pytest.raises(Conflict, match="serial 1700000000 names"):
        redact(node, 1)
