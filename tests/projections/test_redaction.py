"""Views of a log that was redacted are the same, whether they saw what was erased or not."""

from contextlib import suppress

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.domain.errors import KudurruError
from kudurru.domain.events import OBJECT_APPLIED
from kudurru.domain.verify import verify
from kudurru.entrypoints import upkeep
from kudurru.entrypoints.upkeep import RedactRequest
from kudurru.entrypoints.wiring import Node
from tests.histories import histories, operations, run
from tests.nodes import TESTER, rebuilt

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
