"""The queue of the controllers, on times that are plain numbers."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.objects import Key
from kudurru.domain.reconcile.queue import (
    RETRIES_BURST,
    RETRIES_PER_S,
    RETRY_FIRST_US,
    RETRY_MAX_US,
    RetryLimit,
    WorkQueue,
)

SECOND = 1_000_000
A, B = Key("DNSZone//a"), Key("DNSZone//b")


def queue() -> WorkQueue:
    return WorkQueue(RetryLimit())


def test_what_is_added_twice_is_worked_on_once() -> None:
    work = queue()
    for key in (A, B, A):
        work.add(key)
    assert [work.take(0), work.take(0), work.take(0)] == [A, B, None]


def test_one_object_is_worked_on_by_one_and_again_when_it_was_added_meanwhile() -> None:
    work = queue()
    work.add(A)
    assert work.take(0) == A
    work.add(A)
    work.add(A)
    assert work.take(0) is None
    work.done(A)
    assert work.take(0) == A
    work.done(A)
    assert work.take(0) is None
    assert len(work) == 0


def test_it_is_known_when_what_is_ready_now_was_taken() -> None:
    work = queue()
    work.add(A)
    work.add(B)
    until = work.takes_until_empty
    assert work.take(0) == A
    work.done(A)
    work.add(A)  # which comes after what was ready before
    assert work.takes < until
    assert work.take(0) == B
    assert work.takes == until


def test_of_several_times_the_earliest_counts() -> None:
    work = queue()
    work.add_at(A, 3 * SECOND)
    work.add_at(A, 1 * SECOND)
    work.add_at(A, 2 * SECOND)
    assert work.next_due_us() == SECOND
    assert work.take(SECOND - 1) is None
    assert work.take(SECOND) == A
    work.done(A)
    assert work.next_due_us() is None
    assert work.take(4 * SECOND) is None


def test_failures_come_back_later_each_time_until_one_succeeds() -> None:
    work, now_us, waits = queue(), 0, []
    for _ in range(20):
        now_us += 1_000 * SECOND  # time enough for the limit over all
        work.retry(A, now_us)
        due_us = work.next_due_us()
        assert due_us is not None
        waits.append(due_us - now_us)
        now_us = due_us
        assert work.take(now_us) == A
        work.done(A)
    assert waits[:4] == [RETRY_FIRST_US << i for i in range(4)]
    assert waits[-1] == RETRY_MAX_US == 1_000 * SECOND
    work.succeeded(A)
    work.retry(A, now_us)
    assert work.next_due_us() == now_us + RETRY_FIRST_US


def test_failures_of_many_come_back_ten_a_second_after_a_burst() -> None:
    limit = RetryLimit()
    work, other = WorkQueue(limit), WorkQueue(limit)
    for i in range(300):
        (work if i % 2 else other).retry(Key(f"DNSZone//{i}"), 0)
    come_back = []
    for now_us in range(0, 30 * SECOND, SECOND // 10):
        for one in (work, other):
            while one.take(now_us) is not None:
                come_back.append(now_us)
    assert sum(at <= SECOND // 10 for at in come_back) <= RETRIES_BURST + 1
    assert len(come_back) == 300
    by_second = Counter(at // SECOND for at in come_back if at > SECOND)
    assert max(by_second.values()) <= RETRIES_PER_S


def test_the_burst_is_there_again_after_a_pause() -> None:
    limit = RetryLimit()
    assert [limit.wait_us(0) for _ in range(RETRIES_BURST + 1)][-2:] == [0, SECOND // 10]
    later_us = 3_600 * SECOND
    waits = [limit.wait_us(later_us) for _ in range(RETRIES_BURST + 1)]
    assert waits == [0] * RETRIES_BURST + [SECOND // 10]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "later", "retry", "take", "done", "wait"]),
        st.sampled_from([A, B, Key("DNSZone//c")]),
        st.integers(0, 5 * SECOND),
    ),
    max_size=60,
)


@given(STEPS)
def test_nothing_that_was_added_is_lost_and_nobody_works_on_what_another_does(
    steps: list[tuple[str, Key, int]],
) -> None:
    work, now_us = queue(), 0
    taken: set[Key] = set()
    owed: set[Key] = set()  # added, and not taken since
    for what, key, number in steps:
        match what:
            case "add":
                work.add(key)
                owed.add(key)
            case "later":
                work.add_at(key, now_us + number)
                owed.add(key)
            case "retry":
                work.retry(key, now_us)
                owed.add(key)
            case "take" if (got := work.take(now_us)) is not None:
                assert got not in taken
                taken.add(got)
                owed.discard(got)
            case "done" if key in taken:
                work.done(key)
                taken.remove(key)
            case "wait":
                now_us += number
    for key in taken:
        work.done(key)
    left = set()
    while (got := work.take(now_us + 2 * RETRY_MAX_US)) is not None:
        assert got not in left
        left.add(got)
    assert owed <= left
