"""When sources are due, and what an attempt leaves behind."""

import msgspec
import pytest

from kudurru.domain.kinds.blocklist import BlockListSource, BlockListSpec, ConfigMapRef
from kudurru.domain.lists.body import Facts
from kudurru.domain.lists.rules import SUBTREE, Context, Reason
from kudurru.domain.objects import Key
from kudurru.domain.reconcile.blocklists import (
    NEVER_FETCHED,
    RETRY_US,
    Arrived,
    Missed,
    SourceState,
    Want,
    after,
    due_us,
    is_worth_writing,
    plan,
    sources_status,
    wants_of,
)

LIST = Key("BlockList/default/one")
NOW = 1_760_000_000_000_000
HOUR = 3_600_000_000
DAY = 24 * HOUR


def want(title: str = "https://a.example/", interval_us: int = DAY) -> Want:
    return Want(LIST, 0, title, Context(), interval_us, 1 << 20)


def test_a_source_that_was_never_tried_is_due_and_then_once_an_interval() -> None:
    assert due_us(want(), NEVER_FETCHED, NOW) == NOW
    state = after(NEVER_FETCHED, Arrived("d1", Facts(5)), NOW)
    assert due_us(want(), state, NOW) == NOW + DAY
    assert due_us(want(interval_us=HOUR), state, NOW) == NOW + HOUR


def test_failures_are_tried_again_ever_more_rarely_and_as_the_server_asks() -> None:
    state = NEVER_FETCHED
    waits = []
    for _ in range(9):
        state = after(state, Missed("broken"), NOW)
        waits.append((due_us(want(), state, NOW) - NOW) // RETRY_US)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    state = after(state, Missed("busy", wait_us=5 * HOUR), NOW)
    assert due_us(want(), state, NOW) == NOW + 5 * HOUR
    for _ in range(100):
        state = after(state, Missed("broken"), NOW)
    assert due_us(want(), state, NOW) == NOW + HOUR


def test_a_clock_that_went_back_makes_a_source_due() -> None:
    state = after(NEVER_FETCHED, Arrived("d1", Facts(5)), NOW + DAY)
    assert due_us(want(), state, NOW) == NOW


def test_what_failed_keeps_its_copy_and_says_so() -> None:
    good = after(NEVER_FETCHED, Arrived("d1", Facts(5, {Reason.NAME: 2}), '"v1"', "then"), NOW)
    assert (good.phase, good.entries, good.invalid, good.etag) == ("Fresh", 5, 2, '"v1"')
    stale = after(good, Missed("the disk refuses"), NOW + DAY)
    assert (stale.phase, stale.digest, stale.error) == ("Stale", "d1", "the disk refuses")
    assert after(NEVER_FETCHED, Missed("x" * 999), NOW).phase == "Failed"
    assert len(after(NEVER_FETCHED, Missed("x" * 999), NOW).error) == 256
    again = after(stale, Arrived(), NOW + DAY)
    assert (again.phase, again.error, again.failures, again.etag) == ("Unchanged", "", 0, '"v1"')
    assert after(good, Arrived("d1", Facts(5)), NOW).phase == "Unchanged"
    assert after(good, Arrived("d2", Facts(6)), NOW).phase == "Fresh"


def test_a_plan_fetches_what_is_due_or_forced_once_and_tells_when_the_next_is() -> None:
    fresh = after(NEVER_FETCHED, Arrived("d1"), NOW - HOUR)
    a, b, c = want("https://a/"), want("https://b/"), want("https://c/")
    states = {a.id: fresh, b.id: fresh}
    assert plan([a, b, c, c], states, NOW) == plan([a, b, c], states, NOW)
    assert plan([a, b, c], states, NOW).fetch == (c,)
    assert plan([a, b, c], states, NOW).next_us == NOW + DAY - HOUR
    assert plan([a, b, c], states, NOW, forced={a.id}).fetch == (a, c)
    assert plan([a, b, c], states, NOW, busy={c.id}).fetch == ()
    assert plan([], states, NOW).next_us is None


def spec(*sources: BlockListSource, **more: object) -> BlockListSpec:
    return BlockListSpec(sources=list(sources), **more)  # type: ignore[arg-type]  # of each test


MIXED = spec(
    BlockListSource(url="https://a.example/"),
    BlockListSource(inline=["a.example"]),
    BlockListSource(config_map_ref=ConfigMapRef(name="x", key="y")),
    match="subtree",
    kind="allow",
    refresh_interval="10s",
    max_bytes=1 << 30,
)


def test_what_has_to_be_fetched_keeps_to_the_bounds_of_the_settings() -> None:
    found = list(wants_of(LIST, MIXED, interval_us=DAY, max_bytes=1 << 20))
    assert [(one.index, one.title) for one in found] == [
        (0, "https://a.example/"),
        (2, "configMap:x/y"),
    ]
    assert found[0].context == Context(covers=SUBTREE, is_allow=True)
    assert found[0].interval_us == 60_000_000  # more often is impolite
    assert found[0].max_bytes == 1 << 20


def test_a_status_names_every_source_that_was_tried() -> None:
    states = {"auto https://a.example/": after(NEVER_FETCHED, Arrived("d1", Facts(5)), NOW)}
    found = sources_status(LIST, MIXED, states, {1: Facts(1)})
    assert [(one.source, one.entries, one.phase) for one in found] == [
        ("https://a.example/", 5, "Fresh"),
        ("inline", 1, "Fresh"),
    ]
    assert found[0].digest == "sha256:d1"
    assert found[0].last_success == "2025-10-09T08:53:20Z"


@pytest.mark.parametrize(
    ("outcome", "is_worth"),
    [(Arrived("d1", Facts(5)), True), (Arrived("d2", Facts(5)), True), (Missed("x"), True)],
)
def test_a_new_phase_digest_or_error_is_worth_an_event(
    outcome: Arrived | Missed, is_worth: bool
) -> None:
    before = after(NEVER_FETCHED, Arrived("d1", Facts(5)), NOW)
    assert is_worth_writing(status(before), status(after(before, outcome, NOW + DAY))) is is_worth


def test_a_new_time_alone_is_not_worth_an_event() -> None:
    before = after(NEVER_FETCHED, Arrived("d1", Facts(5)), NOW)
    unchanged = after(before, Arrived(), NOW + DAY)
    assert not is_worth_writing(
        status(unchanged), status(after(unchanged, Arrived(), NOW + 2 * DAY))
    )
    failed = after(before, Missed("x"), NOW)
    assert not is_worth_writing(status(failed), status(after(failed, Missed("x"), NOW + HOUR)))


def status(state: SourceState) -> list[object]:
    found = sources_status(LIST, MIXED, {"auto https://a.example/": state}, {})
    return [msgspec.structs.replace(one) for one in found]
