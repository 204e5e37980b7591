"""Who is told of which serial, and how often: on a clock that a test moves."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kudurru.domain.dns import names
from kudurru.domain.reconcile import notifies
from kudurru.domain.reconcile.notifies import Due, GivenUp, Notifies, Target, status_with

unhurried = settings(deadline=None)  # the machine may be busy

APEX = names.from_text("example.org.")
ONE, TWO = Target("192.0.2.1", 53), Target("2001:db8::1", 5353)
SECOND = 1_000_000


class Told:
    """Notifies on a clock of its own."""

    def __init__(self) -> None:
        self.notifies = Notifies()
        self.now_us = 0

    def want(self, serial: int, *targets: Target) -> None:
        self.notifies.want([(APEX, serial, targets)], self.now_us)

    def due(self) -> list[Due | GivenUp]:
        return list(self.notifies.due(self.now_us))

    def sent(self) -> list[tuple[Target, int]]:
        return [(one.target, one.serial) for one in self.due() if isinstance(one, Due)]

    def answer(self, target: Target = ONE, rcode: int = 0) -> str | None:
        return self.notifies.answered(APEX, target, rcode, self.now_us)

    def wait(self) -> int | None:
        """Go to the next timer; how many seconds that was."""
        due_us = self.notifies.next_due_us()
        if due_us is None:
            return None
        passed, self.now_us = due_us - self.now_us, due_us
        return passed // SECOND


@pytest.fixture
def told() -> Told:
    return Told()


def test_every_target_is_told_of_a_version_once(told: Told) -> None:
    told.want(1, ONE, TWO)
    assert told.sent() == [(ONE, 1), (TWO, 1)]
    assert told.answer(ONE) == told.answer(TWO) == "acknowledged"
    told.want(1, ONE, TWO)
    assert (told.sent(), told.wait()) == ([], None)
    told.want(2, ONE, TWO)
    assert told.sent() == [(ONE, 2), (TWO, 2)]


def test_who_does_not_answer_is_told_again_ever_more_rarely_and_then_left_alone(told: Told) -> None:
    told.want(1, ONE)
    waits = []
    while sent := told.sent():
        assert sent == [(ONE, 1)]
        waits.append(told.wait())
    assert waits == [2, 4, 8, 16, 32, 64]
    assert told.notifies.statistics().given_up == 1
    told.want(1, ONE)
    assert told.sent() == []
    told.want(2, ONE)
    assert told.sent() == [(ONE, 2)]


def test_giving_up_says_what_the_last_answer_was(told: Told) -> None:
    told.want(1, ONE)
    for _ in range(notifies.ATTEMPTS_MAX):
        told.sent()
        assert told.answer(rcode=5) == "refused"
        told.wait()
    (given_up,) = told.due()
    assert given_up == GivenUp(APEX, ONE, 1, 5)


def test_a_target_that_does_not_know_notify_is_not_told_again(told: Told) -> None:
    told.want(1, ONE)
    told.sent()
    assert told.answer(rcode=4) == "unsupported"
    assert told.wait() is None


def test_versions_that_come_while_an_answer_is_due_are_told_as_one(told: Told) -> None:
    told.want(1, ONE)
    told.sent()
    told.want(2, ONE)
    told.want(3, ONE)
    assert told.sent() == []
    told.answer()
    assert told.sent() == [(ONE, 3)]


def test_a_version_takes_the_place_of_one_that_is_not_answered(told: Told) -> None:
    told.want(1, ONE)
    told.sent()
    told.want(2, ONE)
    assert told.wait() == 2
    assert told.sent() == [(ONE, 2)]
    told.answer()
    assert told.wait() is None or told.sent() == []


def test_a_target_that_is_taken_off_the_list_is_not_told_any_more(told: Told) -> None:
    told.want(1, ONE, TWO)
    told.sent()
    told.want(1, TWO)
    assert told.answer(ONE) is None
    told.wait()
    assert told.sent() == [(TWO, 1)]


def test_an_answer_that_nobody_asked_for_changes_nothing(told: Told) -> None:
    assert told.answer() is None
    told.want(1, ONE)
    assert told.answer() is None
    assert told.sent() == [(ONE, 1)]


def test_so_many_are_told_at_once_and_the_others_when_there_is_room(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifies, "IN_FLIGHT_MAX", 3)
    targets = [Target("192.0.2.9", port) for port in range(1, 9)]
    told.want(1, *targets)
    first = [target for target, _ in told.sent()]
    assert len(first) == 3
    assert told.sent() == []
    told.answer(first[0])
    assert len(told.sent()) == 1
    seen = set(first)
    for _ in range(1000):
        if told.wait() is None:
            break
        seen |= {target for target, _ in told.sent()}
    assert seen == set(targets)


@unhurried
@given(
    st.lists(st.tuples(st.sampled_from(("want", "answer", "refuse", "wait")), st.integers(1, 4)))
)
def test_whatever_happens_every_target_is_told_the_newest_or_given_up(
    script: Iterable[tuple[str, int]],
) -> None:
    told, newest = Told(), 1
    told.want(newest, ONE, TWO)
    heard: dict[Target, int] = {}
    gone: set[Target] = set()

    def take() -> None:
        for one in told.due():
            if isinstance(one, GivenUp):
                gone.add(one.target)
            else:
                heard[one.target] = one.serial
                gone.discard(one.target)

    take()
    for what, number in script:
        match what:
            case "want":
                newest += number
                told.want(newest, ONE, TWO)
            case "answer":
                told.answer((ONE, TWO)[number % 2])
            case "refuse":
                told.answer((ONE, TWO)[number % 2], 5)
            case "wait":
                told.wait()
        take()
    for _ in range(100):
        if told.wait() is None:
            break
        take()
    assert told.notifies.statistics().pending == 0
    assert all(target in gone or heard[target] == newest for target in (ONE, TWO))


def test_targets_are_shown_as_addresses() -> None:
    assert (str(ONE), str(TWO)) == ("192.0.2.1:53", "[2001:db8::1]:5353")


def test_a_zone_without_trouble_says_nothing_of_its_secondaries() -> None:
    assert status_with(None, {}, 0, generation=1) is None
    assert status_with({"serial": 1}, {}, 0, generation=1) is None


def test_the_status_says_once_who_could_not_be_told_and_when_it_was_over() -> None:
    other = {"type": "Ready", "status": "True", "reason": "AsExpected"}
    first = status_with({"serial": 1, "conditions": [other]}, {ONE: "no"}, 10, generation=2)
    assert first is not None
    ready, told = first["conditions"]
    assert (first["serial"], ready) == (1, other)
    assert told["message"] == "192.0.2.1:53: no"
    assert told["lastTransitionTime"] == "1970-01-01T00:00:10Z"
    assert status_with(first, {ONE: "no"}, 20, generation=2) is None
    second = status_with(first, {ONE: "no", TWO: "neither"}, 20, generation=2)
    assert second is not None
    assert second["conditions"][1]["lastTransitionTime"] == "1970-01-01T00:00:10Z"
    third = status_with(second, {}, 30, generation=2)
    assert third is not None
    assert third["conditions"][1]["status"] == "True"
    assert third["conditions"][1]["lastTransitionTime"] == "1970-01-01T00:00:30Z"


def test_a_long_list_of_secondaries_is_cut() -> None:
    many = {Target("192.0.2.1", port): "no" for port in range(1, 60)}
    status = status_with(None, many, 0, generation=1)
    assert status is not None
    assert status["conditions"][0]["message"].endswith("; and 51 more")
