"""The query log's file: what is in it, what is not, and what becomes of a bad disk."""

import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from kudurru.adapters.query_log.reader import Logged, Wanted, open_reader
from kudurru.adapters.query_log.schema import open_log
from kudurru.adapters.query_log.store import HOUR_US, QueryLogStore, purge
from kudurru.domain.dns import names
from kudurru.domain.errors import NotFound
from kudurru.domain.filtering.clients import packed_address
from kudurru.domain.query_log import Fact, Privacy, Repeat, Retention, Seen

NOON_US = 1_760_000_000_000_000
CLIENT, OTHER = "192.0.2.77", "2001:db8:77::1"
SECOND = 1_000_000


class Keys:
    """Keys that differ each time."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, size: int) -> bytes:
        self.made += 1
        return bytes([self.made]) * size


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "querylog.db"


@pytest.fixture
def store(path: Path) -> Iterator[QueryLogStore]:
    found = QueryLogStore(path, Keys())
    yield found
    found.close()


def fact(
    name: str = "www.example",
    client: str = CLIENT,
    ts_us: int = NOON_US,
    source: str = "forward",
    **more: object,
) -> Fact:
    wire = names.from_text(name)
    return Fact(ts_us, packed_address(client), wire, 1, "udp", 0, source, **more)  # type: ignore[arg-type]  # fields by name


def seen(*facts: Fact, repeats: tuple[Repeat, ...] = (), now_us: int = NOON_US) -> Seen:
    return Seen(now_us, facts, {"udp": repeats})


def logged(path: Path, limit: int = 100, **wanted: object) -> list[Logged]:
    with open_reader(path) as reader:
        return list(reader.queries(Wanted(**wanted), limit))  # type: ignore[arg-type]  # fields by name


def octets(path: Path) -> bytes:
    """Everything that the log has on the disk."""
    return b"".join(p.read_bytes() for p in path.parent.iterdir() if p.name.startswith(path.name))


def test_what_was_asked_is_read_back(path: Path, store: QueryLogStore) -> None:
    store.write(
        seen(
            fact(upstream="udp://192.0.2.53", duration_us=1500),
            fact("ads.example", OTHER, source="blocked", reason="list-deny", policy="home/kids",
                 list="home/ads", rule="||ads.example^"),
        )
    )  # fmt: skip
    newest, first = logged(path)
    assert (first.name, first.client, first.upstream, first.duration_us, first.count) == (
        "www.example",
        CLIENT,
        "udp://192.0.2.53",
        1500,
        1,
    )
    assert (newest.reason, newest.policy, newest.list, newest.rule) == (
        "list-deny",
        "home/kids",
        "home/ads",
        "||ads.example^",
    )


def test_the_file_is_for_its_owner_only(path: Path, store: QueryLogStore) -> None:
    store.write(seen(fact()))
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


@pytest.mark.parametrize(
    ("wanted", "names_"),
    [
        ({"name": "example"}, ["ads.example", "www.example"]),
        ({"name": "www.example"}, ["www.example"]),
        ({"name": "ww.example"}, []),
        ({"client": OTHER}, ["ads.example"]),
        ({"source": "blocked"}, ["ads.example"]),
        ({"rtype": 28}, []),
        ({"policy": "home/kids"}, ["ads.example"]),
        ({"list": "home/ads"}, ["ads.example"]),
        ({"since_us": NOON_US + 1}, ["ads.example"]),
        ({"until_us": NOON_US + 1}, ["www.example"]),
        ({"name": "%"}, []),
        ({"name": "' OR 1=1 --"}, []),
    ],
)
def test_queries_are_found_by_what_people_ask_for(
    path: Path, store: QueryLogStore, wanted: dict[str, object], names_: list[str]
) -> None:
    blocked = fact(
        "ads.example",
        OTHER,
        NOON_US + SECOND,
        "blocked",
        policy="home/kids",
        list="home/ads",
    )
    store.write(seen(fact(), blocked))
    assert [one.name for one in logged(path, **wanted)] == names_


def test_a_repeat_is_logged_with_its_own_protocol(path: Path, store: QueryLogStore) -> None:
    key = names.from_text("www.example") + b"\0\1\0\1"
    over_udp = fact(key=key)
    over_tls = msgspec.structs.replace(over_udp, proto="tls")
    repeat = packed_address(OTHER), bytes(10) + key, 0, 1
    store.write(seen(over_udp, over_tls))
    store.write(Seen(NOON_US, [], {"udp": [repeat] * 2, "tls": [repeat] * 3, "tcp": [repeat] * 4}))
    found = {(one.proto, one.count) for one in logged(path, client=OTHER)}
    assert found == {("udp", 2), ("tls", 3)}
    assert store.statistics().unknown == 4  # nobody told of it


def test_a_repeat_is_logged_as_what_it_repeats(path: Path, store: QueryLogStore) -> None:
    wire = names.from_text("ads.example")
    key = wire + b"\0\1\0\1"
    first = fact("ads.example", source="blocked", policy="home/kids", key=key)
    query = bytes(10) + names.from_text("ADS.example") + b"\0\1\0\1"
    repeats = tuple((packed_address(OTHER), query, 0, 1) for _ in range(3))
    strange = (packed_address(OTHER), bytes(10) + b"\1x\0\0\1\0\1", 0, 1)
    store.write(seen(first))
    store.write(seen(repeats=(*repeats, strange), now_us=NOON_US + SECOND))
    newest, _ = logged(path)
    assert (newest.client, newest.source, newest.policy, newest.count, newest.ts_us) == (
        OTHER,
        "blocked",
        "home/kids",
        3,
        NOON_US + SECOND,
    )
    assert store.statistics().unknown == 1
    assert store.statistics().written == 4


def test_what_became_of_a_question_changes_for_its_later_repeats_alone(
    path: Path, store: QueryLogStore
) -> None:
    key = names.from_text("www.example") + b"\0\1\0\1"
    repeat = packed_address(OTHER), bytes(10) + key, 0, 1
    store.write(seen(fact(key=key), repeats=(repeat,)))
    store.write(seen(fact(key=key, source="stale"), fact(key=key, source="blocked")))
    store.write(seen(repeats=(repeat,)))
    assert [one.source for one in logged(path)] == [
        "blocked", "blocked", "stale", "forward", "forward",
    ]  # fmt: skip
    with open_reader(path) as reader:
        (top,) = reader.top("domains", NOON_US, 9)
    assert (top.text, top.queries, top.blocked) == ("www.example", 5, 2)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 128, 225, 500])
def test_a_batch_of_any_size_is_logged_in_its_order(
    path: Path, store: QueryLogStore, count: int
) -> None:
    asked = [f"w{i}.example" for i in range(count)]
    store.write(seen(*[fact(name, source="blocked") for name in asked]))
    assert [one.name for one in logged(path, limit=-1)] == asked[::-1]
    with open_reader(path) as reader:
        top = [(one.text, one.queries, one.blocked) for one in reader.top("domains", 0, count + 1)]
    assert top == [(name, 1, 1) for name in sorted(asked)]


def test_what_the_file_forgot_is_written_again_for_what_is_repeated(
    path: Path, store: QueryLogStore
) -> None:
    key = names.from_text("www.example") + b"\0\1\0\1"
    repeat = packed_address(CLIENT), bytes(10) + key, 0, 1
    answer = packed_address(CLIENT), bytes(10) + names.from_text("nas.example") + key[-4:], 0, 1
    batch = Seen(NOON_US, [fact(key=key)], {"udp": [repeat]}, [answer])
    store.write(batch)
    store.configure(Privacy(), Retention(age_s=0))
    store.tidy(NOON_US + 3 * 366 * 86_400 * SECOND)
    for number in range(3):  # other names have their ids now
        store.write(seen(fact(f"{number}.example", OTHER)))
    store.write(msgspec.structs.replace(batch, facts=()))
    assert [one.name for one in logged(path)][:2] == ["www.example", "nas.example"]
    with open_reader(path) as reader:
        assert len(reader.top("domains", 0, 9)) == 5


def test_what_an_engine_answered_from_the_zones_is_logged(path: Path, store: QueryLogStore) -> None:
    query = bytes(10) + names.from_text(r"NAS\000x.example") + b"\0\x1c\0\1"
    answers = [(packed_address(OTHER), query, 3, 1)] * 2
    store.write(Seen(NOON_US, (), {}, answers))
    (found,) = logged(path)
    assert (found.client, found.name, found.type, found.rcode) == (
        OTHER, r"nas\000x.example", 28, 3,
    )  # fmt: skip
    assert (found.source, found.proto, found.count, found.ts_us) == (
        "authoritative", "udp", 2, NOON_US,
    )  # fmt: skip
    assert store.statistics().written == 2


def test_the_busiest_are_told_from_the_hours(path: Path, store: QueryLogStore) -> None:
    store.write(seen(*[fact("a.example")] * 3, fact("b.example", OTHER, source="blocked")))
    store.write(seen(fact("b.example", source="blocked"), fact("a.example", ts_us=HOUR_US)))
    with open_reader(path) as reader:
        since = NOON_US - HOUR_US
        top = {
            subject: [(one.text, one.queries, one.blocked) for one in reader.top(subject, since, 9)]
            for subject in ("domains", "clients", "blocked")
        }
        assert reader.totals(since) == {"forward": 3, "blocked": 2}
    assert top == {
        "domains": [("a.example", 3, 0), ("b.example", 2, 2)],
        "clients": [(CLIENT, 4, 1), (OTHER, 1, 1)],
        "blocked": [("b.example", 2, 2)],
    }


# --- privacy ------------------------------------------------------------------------------------


def forms(address: str) -> list[bytes]:
    """How an address might stand in a file."""
    packed = packed_address(address)
    return [address.encode(), packed, packed.hex().encode()]


@pytest.mark.parametrize("level", [1, 2, 3])
def test_no_form_of_a_client_is_in_the_file(path: Path, store: QueryLogStore, level: int) -> None:
    store.configure(Privacy(level=level), Retention())
    store.write(seen(fact(key=b"\3www\7example\0\0\1\0\1"), fact(client=OTHER)))
    repeat = (packed_address(CLIENT), bytes(10) + b"\3www\7example\0\0\1\0\1", 0, 1)
    store.write(seen(repeats=(repeat,)))
    store.close()
    data = octets(path)
    assert store.statistics().written == 3
    for client in (CLIENT, OTHER):
        for form in forms(client):
            assert form not in data
    assert (b"www.example" in data) == (level < 3)


def test_the_lowest_level_keeps_clients_and_a_higher_one_no_more_of_them(
    path: Path, store: QueryLogStore
) -> None:
    store.write(seen(fact()))
    store.configure(Privacy(level=3), Retention())
    store.write(seen(fact("later.example", OTHER)))
    store.configure(Privacy(level=0), Retention())
    assert [one.name for one in logged(path)] == ["www.example"]
    with open_reader(path) as reader:
        assert reader.totals(0) == {"forward": 2}
    assert b"later.example" not in octets(path)


def test_pseudonyms_change_with_the_settings_only(path: Path, store: QueryLogStore) -> None:
    for privacy in (Privacy(level=2), Privacy(level=2), Privacy(level=2, ignore=("lan",))):
        store.configure(privacy, Retention())
        store.write(seen(fact()))
    third, second, first = [one.client for one in logged(path)]
    assert first == second
    assert second != third


def test_ignored_domains_are_not_even_counted(path: Path, store: QueryLogStore) -> None:
    store.configure(Privacy(ignore=("secret.example",)), Retention())
    store.write(seen(fact("x.secret.example"), fact()))
    assert [one.name for one in logged(path)] == ["www.example"]
    with open_reader(path) as reader:
        assert reader.totals(0) == {"forward": 1}
    assert b"secret" not in octets(path)


def test_what_is_repeated_is_kept_as_privacy_is_now(path: Path, store: QueryLogStore) -> None:
    key = names.from_text("www.example") + b"\0\1\0\1"
    repeat = packed_address(OTHER), bytes(10) + key, 0, 1
    store.write(seen(fact(key=key)))
    for privacy in (
        Privacy(ignore=("example",)),
        Privacy(level=3),
        Privacy(level=1),
        Privacy(level=3, ignore=("example",)),
        Privacy(),
    ):
        store.configure(privacy, Retention())
        store.write(seen(repeats=(repeat,)))
    assert [one.client for one in logged(path)] == [OTHER, "2001:db8:77::/56", CLIENT]
    assert (store.statistics().written, store.statistics().ignored) == (4, 2)
    with open_reader(path) as reader:
        assert reader.totals(0) == {"forward": 4}


# --- deleting -----------------------------------------------------------------------------------


def test_a_purge_deletes_queries_and_keeps_the_hours(path: Path, store: QueryLogStore) -> None:
    for i in range(0, 12_000, 2_000):
        facts = [fact(ts_us=NOON_US + n, duration_us=n) for n in range(i, i + 2_000)]
        store.write(seen(*facts))
    size = len(octets(path))
    assert store.purge(NOON_US + 5_000) == 5_000
    assert len(logged(path, limit=-1)) == 7_000
    assert store.purge(None) == 7_000
    assert logged(path) == []
    with open_reader(path) as reader:
        assert reader.totals(0) == {"forward": 12_000}
        assert reader.top("domains", 0, 1)[0].queries == 12_000
    assert len(octets(path)) < size / 2
    assert store.purge(None) == 0


def test_a_purge_counts_queries_and_not_rows(path: Path, store: QueryLogStore) -> None:
    store.write(seen(fact(weight=5)))
    assert len(logged(path)) == 1
    assert store.purge(None) == 5


def test_purged_queries_are_gone_from_the_octets(path: Path, store: QueryLogStore) -> None:
    marked = NOON_US + 0x123456
    store.write(seen(fact(ts_us=marked, duration_us=0x3ADE68B1)))
    assert (0x3ADE68B1).to_bytes(4, "big") in octets(path)
    store.purge(None)
    assert (0x3ADE68B1).to_bytes(4, "big") not in octets(path)


def test_without_a_server_the_file_is_purged_where_it_lies(path: Path) -> None:
    with pytest.raises(NotFound):
        purge(path, None)
    store = QueryLogStore(path, Keys())
    store.write(seen(fact(), fact("b.example")))
    store.close()
    assert purge(path, None) == 2


def test_what_is_too_old_goes(path: Path, store: QueryLogStore) -> None:
    store.configure(Privacy(), Retention(age_s=60))
    store.write(seen(fact("old.example"), fact("new.example", ts_us=NOON_US + 50 * SECOND)))
    assert store.tidy(NOON_US + 100 * SECOND) == 1
    assert [one.name for one in logged(path)] == ["new.example"]
    years = 3 * 366 * 86_400 * SECOND
    assert store.tidy(NOON_US + years) == 1
    with open_reader(path) as reader:
        assert reader.totals(0) == {}
    data = octets(path)
    assert b"old.example" not in data  # the dictionary forgets what no hour names


def test_the_oldest_go_where_there_are_too_many(path: Path, store: QueryLogStore) -> None:
    for i in range(0, 20_000, 2_000):
        store.write(seen(*[fact(ts_us=NOON_US + n, duration_us=n) for n in range(i, i + 2_000)]))
    half = store._size() // 2
    store.configure(Privacy(), Retention(bytes_max=half))
    deleted = store.tidy(NOON_US)
    assert 5_000 <= deleted < 20_000
    assert min(one.duration_us for one in logged(path, limit=-1)) == deleted
    assert store._size() <= half


def test_a_flood_of_names_does_not_grow_the_file_for_ever(path: Path, store: QueryLogStore) -> None:
    hours = 4
    for hour in range(hours):
        at = NOON_US + hour * HOUR_US
        store.write(seen(*[fact(f"{hour}-{i}.{'x' * 60}.example", ts_us=at) for i in range(2_000)]))
    assert purge(path, None) == hours * 2_000
    now_us = NOON_US + hours * HOUR_US
    store.configure(Privacy(), Retention(bytes_max=store._size() - 4096))
    store.tidy(now_us)
    assert store._size() <= store._retention.bytes_max // 2
    with open_reader(path) as reader:
        totals = reader.totals(0)
    assert totals  # the newest hours stay
    store.write(seen(fact("after.example", ts_us=now_us)))
    assert [one.name for one in logged(path)] == ["after.example"]


# --- bad disks ----------------------------------------------------------------------------------


def test_a_full_disk_costs_queries_and_nothing_else(path: Path, store: QueryLogStore) -> None:
    store.write(seen(fact()))
    assert store._connection is not None
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count={pages}")
    many = [fact(f"{i}.{'x' * 60}.example", duration_us=i) for i in range(2_000)]
    store.write(seen(*many))
    assert store.statistics().failed == 2_000
    store._connection.execute("PRAGMA max_page_count=1000000")
    store.write(seen(*many))
    assert store.statistics().written == 2_001
    assert len(logged(path, limit=-1)) == 2_001


def test_what_a_full_disk_did_not_take_is_known_and_written_later(
    path: Path, store: QueryLogStore
) -> None:
    store.write(seen(fact()))
    assert store._connection is not None
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count={pages}")
    asked = [f"{i}.{'x' * 60}.example" for i in range(500)]
    keys = [names.from_text(name) + b"\0\1\0\1" for name in asked]
    store.write(seen(*[fact(name, key=key) for name, key in zip(asked, keys, strict=True)]))
    assert store.statistics().failed == 500
    store._connection.execute("PRAGMA max_page_count=1000000")
    store.write(seen(*[fact(f"{i}.example") for i in range(500)]))  # the ids that were given back
    store.write(seen(repeats=tuple((packed_address(OTHER), bytes(10) + key, 0, 1) for key in keys)))
    assert [one.name for one in logged(path, client=OTHER, limit=-1)] == asked[::-1]
    assert store.statistics().unknown == 0


@pytest.mark.parametrize("content", [b"no database" * 500, b"SQLite format 3\0" + bytes(4096)])
def test_a_damaged_file_goes_aside_and_a_new_one_begins(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    store = QueryLogStore(path, Keys())
    store.write(seen(fact()))
    store.close()
    assert path.with_name("querylog.db.damaged").read_bytes() == content
    assert len(logged(path)) == 1


def test_a_file_of_another_version_goes_aside(path: Path) -> None:
    connection = open_log(path)
    connection.execute("PRAGMA user_version=99")
    connection.close()
    store = QueryLogStore(path, Keys())
    store.write(seen(fact()))
    store.close()
    aside = sqlite3.connect(path.with_name("querylog.db.damaged"))
    assert aside.execute("PRAGMA user_version").fetchone() == (99,)
    aside.close()


def test_a_folder_that_is_not_there_costs_queries_until_it_is(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "querylog.db"
    store = QueryLogStore(path, Keys())
    store.write(seen(fact()))
    assert store.statistics().failed == 1
    path.parent.mkdir()
    store.write(seen(fact()))
    assert store.statistics().written == 1
    store.close()


def test_a_query_counts_as_many_as_it_stands_for(path: Path, store: QueryLogStore) -> None:
    key = names.from_text("www.example") + b"\0\1\0\1"
    repeat = packed_address(OTHER), bytes(10) + key, 0, 100
    answer = packed_address(OTHER), bytes(10) + names.from_text("nas.example") + b"\0\1\0\1", 3, 50
    store.write(Seen(NOON_US, [fact(key=key, weight=7)], {"udp": [repeat] * 2}, [answer]))
    assert [(one.name, one.client, one.count) for one in logged(path)] == [
        ("www.example", OTHER, 200),
        ("nas.example", OTHER, 50),
        ("www.example", CLIENT, 7),
    ]
    with open_reader(path) as reader:
        assert [(one.text, one.queries) for one in reader.top("domains", NOON_US, 9)] == [
            ("www.example", 207),
            ("nas.example", 50),
        ]
        assert reader.totals(NOON_US) == {"forward": 207, "authoritative": 50}
    assert store.statistics().written == 4


def test_what_only_says_what_is_repeated_is_not_logged(path: Path, store: QueryLogStore) -> None:
    key = names.from_text("www.example") + b"\0\1\0\1"
    only = fact(key=key, weight=0, source="cache")
    assert len(Seen(NOON_US, [only], {})) == 0
    store.write(seen(only))
    assert logged(path) == []
    store.write(seen(repeats=((packed_address(OTHER), bytes(10) + key, 0, 1),)))
    assert [(one.client, one.source) for one in logged(path)] == [(OTHER, "cache")]
    assert (store.statistics().written, store.statistics().unknown) == (1, 0)
