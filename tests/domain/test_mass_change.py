"""Which records count as changed, and how many are too many."""

import pytest

from kudurru.domain.errors import MassChange
from kudurru.domain.mass_change import Losses, changed, check, records_of
from kudurru.domain.objects import Key
from tests.objects import endpoint, record_set


def records(*endpoints, ttl: int = 300):
    return records_of([record_set("x", *endpoints).spec], ttl)


A1 = endpoint("a.example.org", "A", "192.0.2.1", "192.0.2.2")


@pytest.mark.parametrize(
    ("after", "count"),
    [
        ((A1,), 0),
        ((endpoint("A.example.ORG", "A", "192.0.2.2", "192.0.2.1"),), 0),
        ((A1, endpoint("b.example.org", "A", "192.0.2.3")), 0),  # what comes counts nothing
        ((endpoint("a.example.org", "A", "192.0.2.1"),), 1),
        ((endpoint("a.example.org", "A", "192.0.2.1", "192.0.2.9"),), 1),
        ((endpoint("a.example.org", "A", "192.0.2.1", "192.0.2.2", recordTTL=60),), 2),
        ((endpoint("a.example.org", "A", "192.0.2.1", "192.0.2.2", recordTTL=300),), 0),
        ((endpoint("a.example.org", "A", "192.0.2.1", "192.0.2.2", disabled=True),), 2),
        ((endpoint("b.example.org", "A", "192.0.2.1", "192.0.2.2"),), 2),
        ((), 2),
    ],
)
def test_a_record_that_goes_or_changes_counts_once(after, count: int) -> None:
    assert changed(records(A1), records(*after)) == count


def test_another_default_ttl_changes_the_records_that_have_none() -> None:
    own = endpoint("b.example.org", "A", "192.0.2.3", recordTTL=60)
    assert changed(records(A1, own), records(A1, own, ttl=600)) == 2


@pytest.mark.parametrize(
    ("changed", "total", "is_refused"),
    [(9, 9, False), (3, 10, False), (4, 10, True), (30, 100, False), (31, 100, True),
     (10, 10, True), (0, 10, False)],
)  # fmt: skip
def test_more_than_30_percent_of_10_or_more_is_refused(changed, total, is_refused) -> None:
    if not is_refused:
        check("example.org.", changed, total, 0)
        return
    with pytest.raises(MassChange, match=f"{changed} of the {total} records of example.org"):
        check("example.org.", changed, total, 0)


def test_losses_count_for_as_long_as_the_window_and_not_when_they_are_back() -> None:
    losses = Losses(window_us=100)
    losses.add(Key("a"), "one", 3, now_us=0)
    losses.add(Key("b"), "one", 2, now_us=50)
    losses.add(Key("c"), "two", 4, now_us=50)
    assert losses.by_zone(99) == {"one": 5, "two": 4}
    assert losses.by_zone(100) == {"one": 2, "two": 4}
    assert losses.is_back(Key("c"))
    assert not losses.is_back(Key("a")), "it is forgotten already"
    assert losses.by_zone(149) == {"one": 2}
    assert losses.by_zone(150) == {}
