"""A record set that has its owner to itself is taken in by a short way. It leads where the long one
does, whatever the zone, the objects and the past are."""

from hypothesis import HealthCheck, given, settings

from kudurru.adapters.memory.clock import SeededEntropy
from kudurru.entrypoints import directory
from kudurru.entrypoints.wiring import Node
from kudurru.projections.zone_view import ZoneView
from tests.histories import histories
from tests.projections.test_snapshots import shown

few = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


class LongWay(ZoneView):
    def _apply_plain(self, *_: object) -> bool:
        return False


def replayed(node: Node, *, short: bool) -> Node:
    other = Node(node.log, node.clock, SeededEntropy(4))
    if not short:
        other.zones.__class__ = LongWay
    directory.replay(other)
    return other


@few
@given(histories())
def test_the_short_way_leads_where_the_long_one_does(node: Node) -> None:
    assert shown(replayed(node, short=True)) == shown(replayed(node, short=False))


@few
@given(histories())
def test_what_is_told_to_be_judged_again_is_the_same_either_way(node: Node) -> None:
    told: list[set[str]] = []
    for short in (True, False):
        heard: set[str] = set()
        other = Node(node.log, node.clock, SeededEntropy(4))
        if not short:
            other.zones.__class__ = LongWay
        other.zones.on_judged = heard.add
        directory.replay(other)
        told.append(heard)
    assert told[0] == told[1]
