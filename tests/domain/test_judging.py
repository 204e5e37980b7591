"""What statuses say, from facts: pure, so that one table shows it."""

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.adapters.event_sinks import LogSink, SeveralSinks
from kudurru.adapters.memory.sink import MemorySink
from kudurru.domain.kinds.blocklist import BlockListSource, BlockListSpec, SourceStatus
from kudurru.domain.kinds.recordset import EndpointProblem
from kudurru.domain.objects import Key
from kudurru.domain.ports import Notice
from kudurru.domain.reconcile import judging
from kudurru.domain.reconcile.conditions import Fault, Said, condition, judged, status_with

NOW_S = 1_700_000_000
URL = "https://lists.example/a"


def summary(said: tuple[Said, ...]) -> dict[str, tuple[str, str]]:
    return {one.type: (one.status, one.reason) for one in said}


def test_the_time_of_a_condition_moves_with_its_status_only() -> None:
    def after(before: dict[str, Any] | None, faults: list[Fault], now_s: int) -> dict[str, Any]:
        return status_with(before, judged(faults, works=False), generation=1, now_s=now_s)

    first = after(None, [Fault("Invalid", "a")], NOW_S)
    again = after(first, [Fault("Duplicated", "b")], NOW_S + 60)
    mended = after(again, [], NOW_S + 120)
    times = [(condition(s, "Ready") or {})["lastTransitionTime"] for s in (first, again, mended)]
    assert times == ["2023-11-14T22:13:20Z", "2023-11-14T22:13:20Z", "2023-11-14T22:15:20Z"]
    assert (condition(again, "Ready") or {})["reason"] == "Duplicated"


def test_a_condition_stands_once_and_is_replaced_where_it_stands() -> None:
    status: dict[str, Any] | None = None
    for faults in ([], [Fault("Invalid", "a")], []):
        status = status_with(status, judged(faults), generation=1, now_s=NOW_S)
        assert [c["type"] for c in status["conditions"]] == ["Degraded", "Ready"]
    again = status_with(status, judged([]), generation=1, now_s=NOW_S + 60)
    assert again == status, "what is worked out again is the same, its times too"


def test_a_new_message_is_no_transition_and_a_new_status_or_reason_is_one() -> None:
    def status(*faults: Fault) -> dict[str, Any]:
        return status_with(None, judged(faults), generation=1, now_s=NOW_S)

    before = status(Fault("Invalid", "3 of 9"))
    for after, expected in (
        (status(Fault("Invalid", "4 of 9")), False),
        (status(Fault("Duplicated", "3 of 9")), True),
        (status(), True),
    ):
        assert judging.is_new(before, after, "Degraded") is expected
    assert judging.is_new(None, before, "Degraded")


def test_what_others_say_in_a_status_stays() -> None:
    told = {"type": "SecondariesTold", "status": "True", "reason": "AsExpected"}
    before = {"serial": 7, "conditions": [told, {"type": "Disabled", "status": "True"}]}
    after = status_with(before, judged([]), generation=3, now_s=NOW_S)
    assert after["serial"] == 7
    assert after["observedGeneration"] == 3
    assert [c["type"] for c in after["conditions"]] == ["Degraded", "Ready", "SecondariesTold"]
    assert condition(after, "SecondariesTold") == told


def test_a_message_names_three_faults_and_counts_the_others() -> None:
    said = judged([Fault("Invalid", f"fault {i}") for i in range(5)])
    assert said[1].message == "fault 0; fault 1; fault 2; and 2 more"
    assert len(judged([Fault("Invalid", "x" * 5_000)])[1].message) == 1_024


@pytest.mark.parametrize(
    "status",
    [{"conditions": 1}, {"conditions": [1, None, {}]}, {"conditions": {"a": 1}}, {}, None],
)
def test_a_status_of_another_version_is_written_anew(status: dict[str, Any] | None) -> None:
    after = status_with(status, judged([]), generation=1, now_s=NOW_S)
    assert (condition(after, "Ready") or {})["status"] == "True"


problems = st.lists(
    st.builds(
        EndpointProblem,
        dns_name=st.sampled_from(["a.example.", "b.example."]),
        record_type=st.sampled_from(["", "A", "TXT"]),
        reason=st.sampled_from(["Duplicated", "OutsideZone", "ZoneNotFound"]),
        message=st.text(max_size=5),
    ),
    max_size=4,
)


@given(problems, problems, st.integers(1, 3))
def test_a_status_that_says_what_is_so_is_given_back_as_it_is(
    first: list[EndpointProblem], second: list[EndpointProblem], generation: int
) -> None:
    status: dict[str, Any] | None = None
    for i, found in enumerate((first, second, second)):
        before = status
        status = judging.record_set_status(
            before, found, endpoints=3, generation=generation, now_s=NOW_S + i
        )
    assert status == before
    assert judging.new_problems(before, status) == []
    assert ("problems" in (status or {})) == bool(second)


def source(phase: Any, error: str = "") -> SourceStatus:
    return SourceStatus(source=URL, phase=phase, error=error)


@pytest.mark.parametrize(
    ("sources", "found", "expected"),
    [
        ([BlockListSource(inline=["a"])], [], (("True", "AsExpected"), ("False", "AsExpected"))),
        (
            [BlockListSource(url=URL)],
            [source("Fresh")],
            (("True", "AsExpected"), ("False", "AsExpected")),
        ),
        (
            [BlockListSource(url=URL)],
            [source("Stale", "no answer")],
            (("True", "AsExpected"), ("True", "Unreachable")),
        ),
        (
            [BlockListSource(url=URL)],
            [source("Failed", "no answer")],
            (("False", "Unreachable"), ("True", "Unreachable")),
        ),
        (
            [BlockListSource(url=URL), BlockListSource(inline=["a"])],
            [source("Failed", "no answer")],
            (("True", "AsExpected"), ("True", "Unreachable")),
        ),
        ([BlockListSource(url=URL)], [], (("Unknown", "NotFetched"), ("False", "AsExpected"))),
    ],
)
def test_a_list_is_as_its_sources_are(
    sources: list[BlockListSource],
    found: list[SourceStatus],
    expected: tuple[tuple[str, str], tuple[str, str]],
) -> None:
    said = summary(judging.block_list_said(BlockListSpec(sources=sources), found))
    assert (said["Ready"], said["Degraded"]) == expected


def test_notices_go_to_every_sink_and_the_memory_keeps_the_newest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = MemorySink(limit=2)
    sink = SeveralSinks(LogSink(logging.getLogger("kudurru")), kept)
    key = Key("DNSRecordSet/default/www")
    with caplog.at_level(logging.INFO, logger="kudurru"):
        for i in range(3):
            sink.post(Notice(key=key, uid="u", type="Warning", reason="Invalid", message=f"{i}"))
        sink.post(Notice(key=key, uid="u", type="Normal", reason="SerialBumped", message="3"))
    assert [notice.message for notice in kept.notices] == ["2", "3"]
    assert kept.dropped == 2
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3 + ["INFO"]
    assert caplog.messages[0] == "DNSRecordSet default/www: Invalid: 0"
