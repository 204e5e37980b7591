"""The contract of `EventLog`, on every adapter."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.domain.chain import genesis, origin_of
from kudurru.domain.errors import Conflict
from kudurru.domain.events import OBJECT_DELETED, ChangeSet, Event, Recorded, SecretWrite, Who
from kudurru.domain.objects import Key
from kudurru.domain.ports import VerifiableLog
from kudurru.domain.verify import verify
from tests.logs import (
    NOON_US,
    applied,
    change,
    history,
    key,
    memory_log,
    recorded_history,
    sqlite_log,
)
from tests.postgres import postgres_log

ADAPTERS = ["memory", "sqlite", "postgres"]
SECOND = 1_000_000


def new_log(adapter: str, folder: Path) -> VerifiableLog:
    match adapter:
        case "memory":
            return memory_log()
        case "sqlite":
            return sqlite_log(folder / "log.db")
        case _:
            return postgres_log()


@pytest.fixture(params=ADAPTERS)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[VerifiableLog]:
    log = new_log(request.param, tmp_path)
    yield log
    log.close()


def test_an_empty_log_stands_before_its_first_event(log: VerifiableLog) -> None:
    head = log.head()
    assert (head.seq, head.ts) == (0, 0)
    assert head.hash == genesis(origin_of(log.log_id, log.epoch))
    assert list(log.read()) == []
    assert log.get(1) is None
    assert log.position_at(NOON_US) == 0
    assert verify(log).is_whole


def test_an_append_of_nothing_records_nothing(log: VerifiableLog) -> None:
    assert log.append([], NOON_US) == []
    assert log.append([change()], NOON_US) == []
    assert log.head().seq == 0


def test_positions_begin_at_one_and_name_their_change_set(log: VerifiableLog) -> None:
    recorded = log.append(history(), NOON_US)
    assert [event.seq for event in recorded] == list(range(1, 11))
    assert [event.txn for event in recorded] == [1, 1, 1, 4, 5, 6, 6, 6, 6, 10]
    assert [event.n for event in recorded] == [3, 3, 3, 1, 1, 4, 4, 4, 4, 1]
    assert list(log.read()) == recorded


def test_whoever_asked_is_told_once_that_an_append_only_waits(log: VerifiableLog) -> None:
    """When it does: a log in memory need not. Nobody reads what may still be refused."""
    seen: list[int] = []
    log.on_wait(lambda: seen.append(log.head().seq))
    log.append(history(), NOON_US)
    log.append([change(applied("one-more"))], NOON_US)
    assert seen == ([] if isinstance(log, MemoryEventLog) else [0, 10])


def test_what_is_recorded_is_what_was_decided(log: VerifiableLog) -> None:
    event = applied('wörter/"quoted"\\\n\x00', scope="näme/space", body=b'{"\xf0\x9f\xa6\x86":1}')
    (recorded,) = log.append([change(event, actor="näm\te")], NOON_US)
    assert log.get(1) == recorded
    assert (recorded.key, recorded.ver, recorded.type) == (event.key, 1, event.type)
    assert (recorded.scope, recorded.manager, recorded.body) == (
        event.scope,
        "kudurru",
        event.body,
    )
    assert recorded.who == (
        b'{"actor":"n\xc3\xa4m\\te","cause":"","reason":"because","source":"test",'
        b'"wall":%d}' % NOON_US
    )


def test_time_never_goes_back(log: VerifiableLog) -> None:
    log.append([change(applied("a"))], NOON_US)
    (second,) = log.append([change(applied("b"))], NOON_US - 3600 * SECOND)
    (third,) = log.append([change(applied("c"))], NOON_US + 1)
    assert (second.ts, third.ts) == (NOON_US, NOON_US + 1)


@pytest.mark.parametrize(
    "change_sets",
    [
        pytest.param([change(applied("www", 1))], id="a version that is there"),
        pytest.param([change(applied("www", 4))], id="a version that leaves a gap"),
        pytest.param([change(applied("new", 2))], id="a stream that begins at two"),
        pytest.param([change(applied("new", 0))], id="a stream that begins at zero"),
        pytest.param([change(applied("a"), applied("a"))], id="twice in one change set"),
        pytest.param([change(applied("a"), applied("a", 3))], id="a gap in one change set"),
        pytest.param([change(applied("a")), change(applied("a"))], id="twice in one append"),
        pytest.param(
            [change(applied("www", 3)), change(applied("b")), change(applied("www", 3))],
            id="the last of three change sets",
        ),
    ],
)
def test_a_stream_that_moved_is_a_conflict_and_nothing_is_recorded(
    log: VerifiableLog, change_sets: list[ChangeSet]
) -> None:
    log.append([change(applied("www")), change(applied("www", 2))], NOON_US)
    head = log.head()
    with pytest.raises(Conflict, match="read it again and decide again"):
        log.append(change_sets, NOON_US)
    assert log.head() == head
    assert [event.seq for event in log.read()] == [1, 2]
    assert log.append([change(applied("www", 3))], NOON_US)[0].seq == 3


def test_a_decision_that_the_log_overtook_is_a_conflict(log: VerifiableLog) -> None:
    log.append([change(applied("www"))], NOON_US, head_seq=0)
    with pytest.raises(Conflict, match="went on from position 0 to 1"):
        log.append([change(applied("mail"))], NOON_US, head_seq=0)
    assert log.head().seq == 1
    assert log.append([change(applied("mail"))], NOON_US, head_seq=1)[0].seq == 2


def test_a_conflict_names_the_stream_and_both_versions(log: VerifiableLog) -> None:
    log.append([change(applied("www"))], NOON_US)
    with pytest.raises(Conflict, match=r"default/www is at version 1 .* continues 0"):
        log.append([change(applied("www", 1))], NOON_US)


def test_of_eight_racing_writers_one_wins_each_version(log: VerifiableLog) -> None:
    barrier = threading.Barrier(8)

    def race(writer: int) -> int:
        won = 0
        for ver in range(1, 21):
            barrier.wait()
            try:
                log.append([change(applied("www", ver), actor=f"user:{writer}")], NOON_US)
                won += 1
            except Conflict:
                pass
        return won

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(race, range(8))) == 20
    assert log.stream_version(key("www")) == 20
    assert verify(log).is_whole


def test_a_reader_in_another_thread_sees_a_prefix_without_gaps(log: VerifiableLog) -> None:
    done = threading.Event()
    seen: list[int] = []

    def follow() -> None:
        while not done.is_set() or len(seen) < 300:
            seen.extend(event.seq for event in log.read(len(seen)))

    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow)
        for number in range(100):
            names = [applied(f"{number}-{part}") for part in range(3)]
            log.append([change(*names)], NOON_US)
        done.set()
        following.result()
    assert seen == list(range(1, 301))


def test_a_read_crosses_batches_in_both_directions(log: VerifiableLog) -> None:
    log.append([change(*(applied("www", ver) for ver in range(1, 2501)))], NOON_US)
    for scope, stream in [(None, None), ("default/example.org", None), (None, key("www"))]:
        forward = [event.seq for event in log.read(scope=scope, key=stream)]
        backward = [event.seq for event in log.read(scope=scope, key=stream, newest_first=True)]
        assert forward == list(range(1, 2501))
        assert backward == forward[::-1]


NAMES = ["a", "b", "c"]
SCOPES = ["default/example.org", "team/example.org", ""]
bounds = st.none() | st.integers(-1, 40)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_every_read_is_a_filter_of_the_whole(
    adapter: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    @settings(max_examples=10 if adapter == "postgres" else 40, deadline=None)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        with closing(new_log(adapter, tmp_path_factory.mktemp("log"))) as log:
            check_reads(log, data)

    check()


def check_reads(log: VerifiableLog, data: st.DataObject) -> None:
    picks = data.draw(
        st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(SCOPES)), max_size=30)
    )
    versions = dict.fromkeys(NAMES, 0)
    whole: list[Recorded] = []
    for step, (name, scope) in enumerate(picks):
        versions[name] += 1
        event = applied(name, versions[name], scope=scope)
        whole += log.append([change(event)], NOON_US + step // 2)
    for _ in range(10):
        after, upto = data.draw(st.integers(-1, 40)), data.draw(bounds)
        scope = data.draw(st.none() | st.sampled_from([*SCOPES, "absent"]))
        stream = data.draw(st.none() | st.sampled_from([key(n) for n in [*NAMES, "absent"]]))
        newest_first = data.draw(st.booleans())
        expected = [
            event
            for event in whole
            if event.seq > after
            and (upto is None or event.seq <= upto)
            and scope in (None, event.scope)
            and stream in (None, event.key)
        ]
        got = log.read(after, upto, scope=scope, key=stream, newest_first=newest_first)
        assert list(got) == (expected[::-1] if newest_first else expected)
    assert [log.get(event.seq) for event in whole] == whole
    assert {n: log.stream_version(key(n)) for n in NAMES} == versions
    assert verify(log).is_whole


def test_a_time_names_the_last_event_at_or_before_it(log: VerifiableLog) -> None:
    recorded_history(log)
    cases = [
        (NOON_US - 1, 0),
        (NOON_US, 3),
        (NOON_US + SECOND - 1, 3),
        (NOON_US + SECOND, 4),
        (NOON_US + 3 * SECOND, 9),
        (NOON_US + 99 * SECOND, 10),
    ]
    assert [(ts, log.position_at(ts)) for ts, _ in cases] == cases


def test_the_tail_verifies_from_the_edge_of_the_tile_before_it(log: VerifiableLog) -> None:
    log.append([change(applied(f"h{i}")) for i in range(600)], NOON_US)
    for tail, rows in ((1, 88), (88, 88), (89, 344), (344, 344), (345, 600), (700, 600)):
        verified = verify(log, tail=tail)
        assert verified.is_whole
        assert (verified.rows, verified.newest) == (rows, 600)


def test_the_same_events_make_the_same_chain_in_every_adapter(tmp_path: Path) -> None:
    heads = set()
    for adapter in ADAPTERS:
        log = new_log(adapter, tmp_path)
        recorded_history(log)
        heads.add(log.head())
        log.close()
    assert len(heads) == 1


def test_every_scope_that_was_ever_used_is_known(log: VerifiableLog) -> None:
    assert log.scopes() == []
    recorded_history(log)
    assert sorted(log.scopes()) == ["", "default/example.org", "team/internal.test"]


def test_births_are_the_first_events_of_the_lives_that_last(log: VerifiableLog) -> None:
    def deleted(name: str, ver: int) -> Event:
        return msgspec.structs.replace(applied(name, ver), type=OBJECT_DELETED)

    sets = [[applied("a"), applied("b")], [applied("a", 2), deleted("b", 2)], [applied("b", 3)],
            [applied("b", 4), deleted("a", 3)]]  # fmt: skip
    other = msgspec.structs.replace(applied("x"), key=Key("DNSRecordSetting//x"))
    for events in [*sets, [other]]:
        log.append([change(*events)], NOON_US)
    births = [sorted(event.seq for event in log.births("DNSRecordSet", upto)) for upto in range(9)]
    assert births == [[], [1], [1, 2], [1, 2], [1], [1, 5], [1, 5], [5], [5]]
    assert [log.get(5)] == list(log.births("DNSRecordSet", 8))
    assert list(log.births("DNSZone", 8)) == []


def with_secret(event: Event, sealed: bytes | None) -> ChangeSet:
    return ChangeSet((event,), Who(actor="test"), (SecretWrite(event.key, sealed),))


def test_a_secret_is_written_with_its_events_and_taken_away_with_others(
    log: VerifiableLog,
) -> None:
    assert log.secret(key("a")) is None
    log.append([with_secret(applied("a"), b"\x00sealed"), change(applied("b"))], NOON_US)
    assert log.secret(key("a")) == b"\x00sealed"
    assert log.secret(key("b")) is None
    log.append([with_secret(applied("a", 2), b"other")], NOON_US)
    assert log.secret(key("a")) == b"other"
    log.append([change(applied("a", 3))], NOON_US)
    assert log.secret(key("a")) == b"other"
    log.append([with_secret(applied("a", 4), None)], NOON_US)
    assert log.secret(key("a")) is None
    assert verify(log).is_whole


def test_a_secret_whose_events_are_refused_is_not_written(log: VerifiableLog) -> None:
    log.append([with_secret(applied("a"), b"first")], NOON_US)
    with pytest.raises(Conflict):
        log.append([with_secret(applied("a"), b"second")], NOON_US)
    with pytest.raises(Conflict):
        log.append([with_secret(applied("a", 2), b"third")], NOON_US, head_seq=7)
    assert log.secret(key("a")) == b"first"


def test_a_secret_is_in_no_row_of_the_log(log: VerifiableLog) -> None:
    log.append([with_secret(applied("a"), b"sealed octets")], NOON_US)
    assert all(b"sealed octets" not in msgspec.msgpack.encode(row) for row in log.rows())
