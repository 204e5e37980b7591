"""What a pruning keeps is what state needs: views of the rest are those of the whole."""

from collections.abc import Iterable

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kudurru.domain.codec import canonical
from kudurru.domain.events import LOG_PRUNED, PRUNING_KEY, Position, Recorded
from kudurru.domain.pruning import Keeper, PrunedBody
from kudurru.entrypoints.wiring import Node, Views
from tests.histories import histories

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
    last = data.draw(st.integers(upto, len(events)))
    kept = keeper_of(events[:upto]).kept()
    whole = [*events[:last], pruned_event(events[last - 1], upto)]
    left = [event for event in whole if event.seq > upto or is_kept(kept, event.seq)]
    assert views_of(left, upto).digests() == views_of(whole, 0).digests()
