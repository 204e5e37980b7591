"""Which of two nodes with a common beginning may write: both come to the same answer."""

import pytest

from kudurru.domain.lineage import Began, why_not_ours

E1 = Began(position=10, origin="kudurru/a/2", at=1_000_000, head="aa")
E2 = Began(position=12, origin="kudurru/a/2", at=2_000_000, head="bb")
E3 = Began(position=40, origin="kudurru/a/3", at=3_000_000, head="cc")
SAME_TIME = Began(position=10, origin="kudurru/a/2", at=1_000_000, head="ab")


@pytest.mark.parametrize(
    ("first", "second", "loser"),
    [
        ([], [], None),
        ([E1], [E1], None),
        ([], [E1], 0),  # the old leader, which was left behind
        ([E1], [E1, E3], 0),
        ([E1], [E2], 1),  # promoted later
        ([E1, E3], [E2], 1),  # and so was whatever followed from it
        ([E1], [E2, E3], 1),
        ([E1], [SAME_TIME], 1),  # somebody has to be
    ],
)
def test_one_of_two_may_not_write_and_both_know_which(
    first: list[Began], second: list[Began], loser: int | None
) -> None:
    for ours, theirs, number in ((first, second, 0), (second, first, 1)):
        why = why_not_ours(ours, theirs, "https://other")
        assert bool(why) == (number == loser)
        if why:
            assert why.startswith("https://other was promoted at position ")


def test_it_is_said_when_each_of_them_was_promoted() -> None:
    why = why_not_ours([E2], [E1], "https://other")
    assert "position 10, 1970-01-01T00:00:01" in why
    assert "position 12, 1970-01-01T00:00:02" in why
