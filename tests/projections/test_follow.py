"""The follower: each event reaches each projection once, in order; an unknown one stops it."""

import pytest

from kudurru.domain.errors import LogDamaged, LogNewer
from kudurru.domain.events import ChangeSet, Event, Position, Recorded, Who
from kudurru.projections.follow import Follower
from tests.logs import applied, change, memory_log, recorded_history
from tests.nodes import a_change, memory_node
from tests.objects import WWW_KEY, ZONE_KEY, put, www, zone

FUTURE = "obj.frozen.v1"


class Notes:
    """A projection that keeps what it was told, and what another had at that moment."""

    name = "notes"

    def __init__(self, beside: "Notes | None" = None) -> None:
        self._beside = beside
        self.reset()

    def reset(self) -> None:
        self.position = Position(0)
        self.now_s = 0
        self.seen: list[tuple[int, int]] = []

    def apply(self, event: Recorded) -> None:
        self.position = event.seq
        self.seen.append((event.seq, self._beside.position if self._beside else -1))

    def advance(self, now_s: int) -> None:
        self.now_s = now_s

    def digest(self) -> str:
        return str(self.seen)


def future(name: str, ver: int = 1) -> Event:
    event = applied(name, ver)
    return Event(FUTURE, event.key, event.ver, event.scope, event.manager, b"{}")


def test_every_event_reaches_all_projections_before_the_next_one_does() -> None:
    log = memory_log()
    recorded_history(log)
    last = Notes()
    first = Notes(beside=last)
    last._beside = first
    assert Follower([first, last]).catch_up(log) == 10
    # The first sees the last one before the event, the last sees the first one after it.
    assert first.seen == [(seq, seq - 1) for seq in range(1, 11)]
    assert last.seen == [(seq, seq) for seq in range(1, 11)]


def test_a_projection_that_is_ahead_is_told_nothing_twice() -> None:
    log = memory_log()
    recorded_history(log)
    ahead, behind = Notes(), Notes()
    Follower([ahead]).catch_up(log, upto=6)
    follower = Follower([ahead, behind])
    assert follower.position == 0
    follower.catch_up(log)
    assert [seq for seq, _ in ahead.seen] == list(range(1, 11))
    assert [seq for seq, _ in behind.seen] == list(range(1, 11))


def test_catching_up_stops_at_the_position_that_is_asked_for() -> None:
    log = memory_log()
    recorded_history(log)
    notes = Notes()
    follower = Follower([notes])
    assert follower.catch_up(log, upto=4) == 4
    assert follower.position == 4
    assert follower.catch_up(log) == 6
    assert follower.catch_up(log) == 0


def test_a_gap_in_the_log_never_passes() -> None:
    log = memory_log()
    recorded_history(log)
    follower = Follower([Notes()])
    second = log.get(2)
    assert second is not None
    with pytest.raises(LogDamaged, match="position 1: row 1 is missing"):
        follower.apply(second)


def test_an_unknown_type_stops_the_follower_where_it_stands() -> None:
    log = memory_log()
    log.append([change(applied("a")), change(future("b")), change(applied("c"))], 1)
    notes = Notes()
    follower = Follower([notes])
    assert follower.catch_up(log) == 1
    assert follower.stopped_at == log.get(2)
    assert follower.catch_up(log) == 0
    third = log.get(3)
    assert third is not None
    follower.apply(third)
    assert [seq for seq, _ in notes.seen] == [1]


def test_time_goes_on_for_a_follower_that_stopped() -> None:
    notes = Notes()
    follower = Follower([notes])
    log = memory_log()
    log.append([change(future("a"))], 1)
    follower.catch_up(log)
    follower.advance(17)
    assert notes.now_s == 17


def test_a_reset_follower_begins_again() -> None:
    log = memory_log()
    log.append([change(applied("a")), change(future("b"))], 1)
    follower = Follower([Notes()])
    follower.catch_up(log)
    follower.reset()
    assert (follower.position, follower.stopped_at) == (0, None)
    assert follower.catch_up(log) == 1


def test_a_node_serves_on_as_of_an_unknown_event_and_takes_no_writes() -> None:
    node = memory_node()
    node.commit(a_change(put(zone()), put(www())))
    before = node.views.digests()
    event = Event(FUTURE, WWW_KEY, node.objects.version(WWW_KEY) + 1, "default/x", "new", b"{}")
    node.take_in(node.log.append([ChangeSet((event,), Who(actor="new"))], node.clock.now_us()))
    assert node.views.digests() == before
    assert node.objects.find(ZONE_KEY) is not None
    assert len(node.zones.served) == 1
    with pytest.raises(LogNewer, match=f"position 4 .*{FUTURE}.* upgrade kudurru"):
        node.commit(a_change(put(www("192.0.2.2"))))
    assert node.log.head().seq == 4
