"""Secondary zones: when who is asked for what, and what the status says."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.dns import names
from kudurru.domain.dns.soa import Soa
from kudurru.domain.dns.transfer import Version
from kudurru.domain.reconcile import secondaries as rules
from kudurru.domain.reconcile.secondaries import AskSerial, Failure, Fetch, Refresh, Settled
from kudurru.domain.reconcile.zones import stamped_status

S = 1_000_000
SOA = Soa(
    mname=names.from_text("ns.example."),
    rname=names.from_text("h.example."),
    refresh=7200,
    retry=900,
    expire=86400,
    minimum=300,
    ttl=60,
)
NOW_S = 1_760_000_000


def test_an_expiry_below_the_time_of_a_refresh_and_a_retry_is_held_to_that() -> None:
    hasty = msgspec.structs.replace(SOA, expire=0)
    shortest_s = hasty.refresh + hasty.retry
    assert rules.begin(hasty, 0, 0).expires_us == shortest_s * S
    schedule = rules.refreshed(rules.begin(hasty, 0, 0), hasty, 0, 5 * S, 0)
    assert schedule.expires_us == (5 + shortest_s) * S
    assert schedule.next_us < schedule.expires_us


def test_a_zone_is_asked_for_at_once_and_expires_so_long_after_it_was_right() -> None:
    first = rules.begin(SOA, 400, 5 * S)
    assert (first.next_us, first.expires_us) == (5 * S, (5 + 86000) * S)
    assert rules.begin(None, 0, 5 * S).expires_us is None
    late = rules.begin(SOA, 10**9, 5 * S)
    assert late.expires_us is not None
    assert late.expires_us < 5 * S


def test_a_clock_that_went_back_while_the_server_was_down_lengthens_nothing() -> None:
    assert rules.begin(SOA, -1000, 0).expires_us == 86400 * S


def test_a_refresh_is_followed_by_the_next_and_zones_drift_apart() -> None:
    schedule = rules.begin(SOA, 0, 0)
    found = [
        rules.refreshed(schedule, SOA, 1, 10 * S, chance).next_us for chance in (0.0, 0.5, 1.0)
    ]
    assert found == [(10 + 7200) * S, (10 + 6840) * S, (10 + 6480) * S]
    assert rules.refreshed(schedule, SOA, 1, 10 * S, 0).first == 1
    assert rules.refreshed(schedule, SOA, 1, 10 * S, 0).expires_us == (10 + 86400) * S


def test_failures_are_tried_again_ever_more_rarely_and_never_more_rarely_than_refreshes() -> None:
    schedule, waits = rules.begin(SOA, 0, 0), []
    for _ in range(20):
        schedule = rules.failed(schedule, SOA, 0, 0)
        waits.append(schedule.next_us // S)
    assert waits[:5] == [900, 1800, 3600, 7200, 7200]
    assert max(waits) == 7200
    assert schedule.expires_us == 86400 * S
    assert rules.refreshed(schedule, SOA, 0, 0, 0).failures == 0


def test_a_zone_without_a_soa_is_tried_often_at_first() -> None:
    schedule, waits = rules.begin(None, 0, 0), []
    for _ in range(12):
        schedule = rules.failed(schedule, None, 0, 0)
        waits.append(schedule.next_us // S)
    assert waits[:4] == [2, 4, 8, 16]
    assert max(waits) == 512


def test_times_of_a_soa_are_held_within_reason() -> None:
    odd = Soa(**{f: getattr(SOA, f) for f in SOA.__struct_fields__} | {"refresh": 0, "retry": 0})
    assert rules.refreshed(rules.begin(odd, 0, 0), odd, 0, 0, 0).next_us == S
    assert rules.failed(rules.begin(odd, 0, 0), odd, 0, 0).next_us == S


def test_a_notify_is_followed_at_once_and_during_a_refresh_right_after_it() -> None:
    schedule = rules.refreshed(rules.begin(SOA, 0, 0), SOA, 0, 0, 0)
    idle = rules.notified(schedule, 2, 9 * S, is_busy=False)
    assert (idle.next_us, idle.first) == (9 * S, 2)
    busy = rules.notified(schedule, 2, 9 * S, is_busy=True)
    assert busy.next_us == schedule.next_us
    assert rules.refreshed(busy, SOA, 0, 11 * S, 0).next_us == 12 * S
    assert rules.failed(busy, SOA, 11 * S, 0).next_us == 12 * S
    assert not rules.refreshed(busy, SOA, 0, 11 * S, 0).is_notified


def test_a_flood_of_notifies_leads_to_a_refresh_a_second() -> None:
    schedule = rules.refreshed(rules.begin(SOA, 0, 0), SOA, 0, 10 * S, 0)
    for at_us in (10 * S, 10 * S + 1, 10 * S + 500_000):
        assert rules.notified(schedule, 0, at_us, is_busy=False).next_us == 11 * S
    assert rules.notified(schedule, 0, 12 * S, is_busy=False).next_us == 12 * S


# --- one refresh -----------------------------------------------------------------------------


def a_refresh(serial: int | None = 10, *, first: int = 0, needs_whole: bool = False) -> Refresh:
    return Refresh(["a:53", "b:53", "c:53"], first, serial, needs_whole=needs_whole)


@pytest.mark.parametrize(
    ("ours", "theirs", "step"),
    [
        (None, 10, Fetch(0, is_incremental=False)),
        (10, 11, Fetch(0, is_incremental=True)),
        (2**32 - 1, 1, Fetch(0, is_incremental=True)),
        (10, 10, Settled(0)),
        (10, 9, AskSerial(1)),
        (10, 10 + 2**31, AskSerial(1)),
    ],
)
def test_a_serial_says_what_to_do(ours: int | None, theirs: int, step: object) -> None:
    refresh = a_refresh(ours)
    refresh.serial_is(theirs)
    assert refresh.step == step


def test_a_zone_that_is_not_as_it_should_be_is_fetched_whole_and_never_an_older_one() -> None:
    for theirs, step in ((10, Fetch(0, False)), (11, Fetch(0, False)), (9, AskSerial(1))):
        refresh = a_refresh(10, needs_whole=True)
        refresh.serial_is(theirs)
        assert refresh.step == step


def test_differences_that_fail_are_followed_by_the_whole_zone_and_then_by_the_next_primary() -> (
    None
):
    refresh = a_refresh()
    refresh.serial_is(11)
    refresh.failed("BadTransfer", "deletes what is not there")
    assert refresh.step == Fetch(0, is_incremental=False)
    refresh.failed("Refused", "no")
    assert refresh.step == AskSerial(1)
    refresh.serial_is(12)
    refresh.done()
    assert refresh.step == Settled(1)
    assert [f.message for f in refresh.failures] == ["a:53: deletes what is not there", "a:53: no"]


def test_who_does_not_answer_is_not_asked_for_the_whole_zone() -> None:
    refresh = a_refresh()
    refresh.serial_is(11)
    refresh.failed("Unreachable", "stalls")
    assert refresh.step == AskSerial(1)


def test_all_primaries_are_asked_in_turn_from_the_one_that_was_good_last() -> None:
    refresh, asked = a_refresh(first=2), []
    while not isinstance(refresh.step, Settled):
        asked.append(refresh.step.primary)
        refresh.failed("Unreachable", "does not answer")
    assert asked == [2, 0, 1]
    assert refresh.step == Settled(None)


def test_a_list_of_primaries_that_became_shorter_is_begun_from_its_start() -> None:
    assert a_refresh(first=7).step == AskSerial(0)


@given(st.lists(st.sampled_from(["serial", "fail", "unreachable", "done"]), max_size=30))
def test_a_refresh_ends_whatever_comes(answers: list[str]) -> None:
    refresh, steps = a_refresh(), 0
    for answer in [*answers, *["unreachable"] * 9]:
        if isinstance(refresh.step, Settled):
            break
        steps += 1
        if answer == "serial" and isinstance(refresh.step, AskSerial):
            refresh.serial_is(11)
        elif answer == "done" and isinstance(refresh.step, Fetch):
            refresh.done()
        else:
            refresh.failed("BadTransfer" if answer == "fail" else "Unreachable", "no")
    assert isinstance(refresh.step, Settled)
    assert steps <= 9


# --- status ----------------------------------------------------------------------------------


def a_status(before: dict[str, Any] | None = None, now_s: int = NOW_S) -> dict[str, Any]:
    return rules.transferred(
        before,
        Version(7, SOA),
        content_hash="abc",
        record_count=3,
        generation=2,
        primary="192.0.2.1:53",
        now_s=now_s,
    )


def conditions(status: dict[str, Any]) -> dict[str, tuple[str, str, str]]:
    return {
        c["type"]: (c["status"], c["reason"], c["lastTransitionTime"]) for c in status["conditions"]
    }


def test_the_status_holds_the_version_and_its_soa_as_the_primary_has_it() -> None:
    status = a_status()
    assert (status["serial"], status["primary"]) == (7, "192.0.2.1:53")
    assert rules.soa_from_status(status) == SOA
    assert rules.refreshed_s(status) == NOW_S
    assert not rules.is_expired(status)
    assert conditions(status)["Ready"][:2] == ("True", "AsExpected")


@pytest.mark.parametrize(
    "status",
    [
        None,
        {},
        {"soa": None},
        {"soa": {"mname": "a"}},
        {"soa": {**a_status()["soa"], "mname": ".."}},
    ],
)
def test_a_status_that_holds_no_soa_of_ours_is_none(status: dict[str, Any] | None) -> None:
    assert rules.soa_from_status(status) is None


def test_trouble_is_said_once_for_each_reason_with_the_words_of_its_beginning() -> None:
    before = a_status()
    first = rules.troubled(before, Failure(0, "Unreachable", "first"), NOW_S + 60, generation=2)
    assert not rules.says_the_same(before, first)
    again = rules.troubled(first, Failure(0, "Unreachable", "second"), NOW_S + 120, generation=2)
    assert rules.says_the_same(first, again)
    other = rules.troubled(first, Failure(0, "Refused", "third"), NOW_S + 180, generation=2)
    assert not rules.says_the_same(first, other)
    since = "2025-10-09T08:54:20Z"
    assert conditions(other)["Refreshed"] == ("False", "Refused", since)  # false since then
    assert conditions(other)["Ready"][0] == "True"


def test_a_zone_that_never_came_is_not_ready_and_says_why() -> None:
    status = rules.troubled(None, Failure(0, "Refused", "no"), NOW_S, generation=1)
    assert conditions(status)["Ready"][:2] == ("False", "NotTransferred")
    assert conditions(status)["Refreshed"][:2] == ("False", "Refused")


def test_expiry_is_in_the_status_until_a_primary_answers_again() -> None:
    gone = rules.expired(a_status(), NOW_S + 86400, generation=2)
    assert rules.is_expired(gone)
    assert conditions(gone)["Ready"][:2] == ("False", "Expired")
    assert rules.soa_from_status(gone) == SOA
    back = rules.served(gone, NOW_S + 90000, generation=2)
    assert not rules.is_expired(back)
    assert conditions(back)["Ready"][0] == "True"


def test_a_refresh_alone_says_nothing_new() -> None:
    before = a_status()
    assert rules.says_the_same(before, rules.served(before, NOW_S + 7200, generation=2))


def test_a_secondary_that_becomes_a_primary_forgets_where_it_came_from() -> None:
    status = stamped_status(a_status(), serial=8, content_hash="d", record_count=4, generation=3)
    assert set(status) == {"observedGeneration", "serial", "contentHash", "recordCount"}
