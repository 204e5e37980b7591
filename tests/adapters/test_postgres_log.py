"""What is PostgreSQL's own in its event log: triggers, several nodes, connections that break."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest

from kudurru.adapters.postgres.connection import ConnectionLost
from kudurru.adapters.postgres.log import PostgresEventLog
from kudurru.domain.errors import Conflict, Invalid, LogDamaged, LogNewer, NotFound, StorageFailed
from kudurru.domain.tree import Tree, root_of
from kudurru.domain.verify import verify
from tests.logs import NOON_US, SeededEntropy, StillClock, applied, change, key, recorded_history
from tests.postgres import new_schema, postgres_log, server
from tests.tcp_proxy import Proxy, proxy

PATIENCE_S = 60.0
COPY_OF_ROW = """
    INSERT INTO log SELECT {seq}, txn, ts, stream, 99, scope, type, entry, salt, body, who_salt,
        who, leaf, head FROM log WHERE seq = 10"""


@pytest.fixture
def schema() -> str:
    return new_schema()


@pytest.fixture
def log(schema: str) -> Iterator[PostgresEventLog]:
    with closing(postgres_log(schema)) as log:
        yield log


@pytest.fixture
def admin(schema: str) -> Iterator[psycopg.Connection]:
    """Somebody with a shell."""
    with server().connect() as connection:
        connection.execute(f"SET search_path TO {schema}")
        yield connection


def opened(url: str, schema: str, *, create: bool = False) -> PostgresEventLog:
    return PostgresEventLog.open(
        url, entropy=SeededEntropy(7), clock=StillClock(), create=create, schema=schema
    )


def through(between: Proxy) -> str:
    return f"postgresql://kudurru@127.0.0.1:{between.port}/postgres"


# --- the tables -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE log SET ts = ts + 1 WHERE seq = 2",
        "UPDATE log SET body = 'x' WHERE seq = 2",
        "UPDATE log SET salt = NULL WHERE seq = 2",
        "UPDATE log SET who = NULL WHERE seq = 2",
        "UPDATE log SET seq = 99 WHERE seq = 2",
        "UPDATE log SET head = leaf WHERE seq = 2",
        "DELETE FROM log WHERE seq = 10",
        "DELETE FROM log",
        "TRUNCATE log CASCADE",
        "TRUNCATE streams CASCADE",
        COPY_OF_ROW.format(seq=12),
        COPY_OF_ROW.format(seq=5),
        "UPDATE streams SET key = 'x'",
        "DELETE FROM streams",
        "UPDATE scopes SET scope = 'x'",
        "DELETE FROM scopes",
        "DELETE FROM meta",
        "DELETE FROM counter",
    ],
)
def test_mistakes_do_not_change_the_log(
    log: PostgresEventLog, admin: psycopg.Connection, statement: str
) -> None:
    recorded_history(log)
    with pytest.raises(psycopg.IntegrityError):
        admin.execute(statement)
    assert log.head().seq == 10
    assert verify(log).is_whole


def test_a_payload_can_be_erased_with_its_salt(
    log: PostgresEventLog, admin: psycopg.Connection
) -> None:
    recorded_history(log)
    admin.execute("UPDATE log SET body = NULL, salt = NULL WHERE seq = 2")
    found = log.get(2)
    assert found is not None
    assert found.body is None
    assert [damage.kind for damage in verify(log).damages] == ["payload"]


def test_what_somebody_with_all_rights_changes_is_found(
    log: PostgresEventLog, admin: psycopg.Connection
) -> None:
    recorded_history(log)
    admin.execute("ALTER TABLE log DISABLE TRIGGER USER")
    admin.execute("UPDATE log SET body = 'other' WHERE seq = 4")
    assert [(d.kind, d.position) for d in verify(log).damages] == [("payload", 4)]


@pytest.mark.parametrize(
    ("statement", "kind", "position"),
    [
        ("DELETE FROM log WHERE seq = 10", "gap", 10),
        ("UPDATE counter SET seq = 7", "gap", 8),
        ("UPDATE log SET head = leaf WHERE seq = 10", "chain", 10),
    ],
)
def test_a_log_that_was_cut_or_changed_in_use_takes_no_appends(
    log: PostgresEventLog,
    admin: psycopg.Connection,
    statement: str,
    kind: str,
    position: int,
) -> None:
    recorded_history(log)
    admin.execute("ALTER TABLE log DISABLE TRIGGER USER")
    admin.execute(statement)
    with pytest.raises(LogDamaged) as refused:
        log.append([change(applied("new"))], NOON_US)
    assert (refused.value.kind, refused.value.position) == (kind, position)


# --- opening --------------------------------------------------------------------------------


def test_a_log_is_made_once_and_found_again(schema: str) -> None:
    with pytest.raises(NotFound, match="holds no log"):
        postgres_log(schema, create=False)
    with closing(postgres_log(schema)) as first:
        recorded_history(first)
    with closing(postgres_log(schema, create=False)) as again:
        assert (again.log_id, again.head().seq) == (first.log_id, 10)


def test_nodes_that_start_together_make_one_log(schema: str) -> None:
    with ThreadPoolExecutor(6) as pool:
        logs = list(pool.map(lambda _: postgres_log(schema), range(6)))
    assert len({log.log_id for log in logs}) == 1
    for log in logs:
        log.close()


def test_a_log_of_a_newer_kudurru_is_refused(
    log: PostgresEventLog, admin: psycopg.Connection, schema: str
) -> None:
    admin.execute("UPDATE meta SET schema = 99")
    with pytest.raises(LogNewer, match="has schema 99"):
        postgres_log(schema)


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("postgresql://a:secret@127.0.0.1:1/x", StorageFailed, "check that the database runs"),
        ("postgresql://%zz", Invalid, "is no PostgreSQL URL"),
        (
            "postgresql://kudurru@/absent?host={folder}",
            StorageFailed,
            'database "absent" does not exist',
        ),
        ("postgresql://nobody@/postgres?host={folder}", StorageFailed, 'role "nobody"'),
    ],
)
def test_where_no_log_can_be_had_the_place_and_the_remedy_are_named(
    url: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as refused:
        opened(url.format(folder=server().folder), "any", create=True)
    assert "secret" not in str(refused.value)


# --- several nodes --------------------------------------------------------------------------


def test_nodes_that_append_in_turn_and_at_once_make_one_chain_and_one_tree(schema: str) -> None:
    logs = [postgres_log(schema) for _ in range(3)]

    def append(node: int) -> None:
        for number in range(120):
            names = [applied(f"{node}-{number}-{part}") for part in range(number % 4 + 1)]
            logs[node].append([change(*names)], NOON_US)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(append, range(3)))
    events = list(logs[0].read())
    assert len(events) == 3 * 120 * 2.5
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert len({event.key for event in events}) == len(events)
    leaves = [row.leaf for row in logs[1].rows()]
    whole = Tree(len(leaves), lambda level, first, last: logs[2].hashes(level, first, last))
    assert verify(logs[2]).is_whole
    assert whole.root() == root_of(leaves)
    for log in logs:
        log.close()


def test_a_node_that_was_idle_for_thousands_of_events_appends_on_the_same_tree(
    schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kudurru.adapters.postgres.log.LEAVES_MAX", 100)
    busy, idle = postgres_log(schema), postgres_log(schema)
    for part in range(3):
        busy.append([change(*(applied(f"{part}-{i}") for i in range(400)))], NOON_US)
        idle.append([change(applied(f"idle-{part}"))], NOON_US)
    assert idle.head().seq == 1203
    leaves = [row.leaf for row in busy.rows()]
    assert Tree(len(leaves), busy.hashes).root() == root_of(leaves)
    assert verify(busy).is_whole
    busy.close()
    idle.close()


def test_a_node_that_was_overtaken_gets_a_conflict(schema: str) -> None:
    first, second = postgres_log(schema), postgres_log(schema)
    first.append([change(applied("www"))], NOON_US)
    with pytest.raises(Conflict, match="is at version 1"):
        second.append([change(applied("www"))], NOON_US)
    with pytest.raises(Conflict, match="went on from position 0 to 1"):
        second.append([change(applied("mail"))], NOON_US, head_seq=0)
    assert second.append([change(applied("www", 2))], NOON_US)[0].seq == 2
    first.close()
    second.close()


def test_time_is_that_of_the_node_whose_clock_is_ahead(schema: str) -> None:
    first, second = postgres_log(schema), postgres_log(schema)
    first.append([change(applied("www"))], NOON_US + 5_000_000)
    (late,) = second.append([change(applied("mail"))], NOON_US)
    assert late.ts == NOON_US + 5_000_000
    first.close()
    second.close()


class Calls:
    """Counts calls from other threads, and waits for them."""

    def __init__(self) -> None:
        self._called = threading.Semaphore(0)

    def __call__(self) -> None:
        self._called.release()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        while not condition():
            assert self._called.acquire(timeout=PATIENCE_S), "nobody called"


def test_a_node_hears_that_another_appended_and_after_each_cut(schema: str) -> None:
    with proxy(server().socket) as between:
        writer, follower = postgres_log(schema), opened(through(between), schema)
        calls = Calls()
        follower.follow(calls)
        for count in range(1, 6):
            if count % 2:
                between.cut()
            writer.append([change(applied(f"{count}"))], NOON_US)
            between.heal()
            calls.wait_for(lambda count=count: follower.head().seq == count)
        writer.close()
        follower.close()


def test_a_subscription_hears_of_other_nodes(schema: str) -> None:
    writer, reader = postgres_log(schema), postgres_log(schema)
    with reader.subscribe() as subscription:
        writer.append([change(applied("www"))], NOON_US)
        assert next(subscription).originator_id == key("www")
    writer.close()
    reader.close()


# --- connections that break -----------------------------------------------------------------


@pytest.fixture
def between() -> Iterator[Proxy]:
    with proxy(server().socket) as found:
        yield found


@pytest.mark.parametrize("is_delivered", [True, False], ids=["heard", "not heard"])
@pytest.mark.parametrize("word", [b"BEGIN", b"INSERT INTO log", b"COMMIT"])
def test_an_append_whose_connection_breaks_happens_once(
    schema: str, between: Proxy, word: bytes, is_delivered: bool
) -> None:
    with closing(opened(through(between), schema, create=True)) as log:
        for number in range(3):
            between.cut_once_at(word, is_delivered=is_delivered)
            recorded = log.append([change(applied(f"{number}"), applied(f"x{number}"))], NOON_US)
            assert [event.seq for event in recorded] == [2 * number + 1, 2 * number + 2]
        assert [event.seq for event in log.read()] == list(range(1, 7))
        assert verify(log).is_whole


def test_a_read_whose_connection_breaks_is_asked_again(schema: str, between: Proxy) -> None:
    with closing(opened(through(between), schema, create=True)) as log:
        recorded_history(log)
        between.cut()
        between.heal()
        assert [event.seq for event in log.read()] == list(range(1, 11))


def test_while_the_database_is_away_nothing_is_recorded_and_the_error_says_so(
    schema: str, between: Proxy
) -> None:
    with closing(opened(through(between), schema, create=True)) as log:
        between.cut()
        with pytest.raises(StorageFailed, match="check that the database runs"):
            log.append([change(applied("www"))], NOON_US)
        with pytest.raises(StorageFailed):
            log.head()
        between.heal()
        assert log.append([change(applied("www"))], NOON_US)[0].seq == 1


def test_a_commit_that_cannot_be_settled_says_that_it_is_open(
    schema: str, between: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kudurru.adapters.postgres.log.SETTLE_S", 0.0)
    with closing(opened(through(between), schema, create=True)) as log:
        between.cut_once_at(b"COMMIT", is_delivered=True)
        monkeypatch.setattr(log, "_settle", _cut_before(between, log._settle))
        with pytest.raises(StorageFailed, match="it is open whether the change is durable"):
            log.append([change(applied("www"))], NOON_US)
        between.heal()
        with pytest.raises(Conflict):  # once the lost transaction is over
            log.append([change(applied("www"))], NOON_US)
        assert [event.key for event in log.read()] == [key("www")]


def _cut_before(between: Proxy, settle: Callable[..., bool]) -> Callable[..., bool]:
    def settle_without_network(newest: object) -> bool:
        between.cut()
        return settle(newest)

    return settle_without_network


def test_a_peer_that_is_reachable_and_silent_is_given_up(
    log: PostgresEventLog,
) -> None:
    with pytest.raises(ConnectionLost), log._reader.use(timeout_s=0.1) as connection:
        connection.execute("SELECT pg_sleep(60)")
    assert log.head().seq == 0


# --- who leads ------------------------------------------------------------------------------


def test_a_leader_that_is_cut_off_learns_it_and_another_leads(
    schema: str, between: Proxy, log: PostgresEventLog
) -> None:
    async def main() -> None:
        with closing(opened(through(between), schema)) as far:
            first, second = far.elector("controller"), log.elector("controller")
            async with asyncio.timeout(PATIENCE_S):
                await first.campaign()
                between.cut()
                await first.lost()
                await second.campaign()
            await first.resign()
            await second.resign()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("INSERT INTO streams VALUES (9999, 'DNSZone//new')", "entry"),
        ("INSERT INTO scopes VALUES (9999, '/new')", "entry"),
        ("INSERT INTO tiles VALUES (1, 7, 1, decode(repeat('00', 32), 'hex'))", "tree"),
        ("INSERT INTO tiles VALUES (0, 0, 256, decode(repeat('00', 32), 'hex'))", "tree"),
    ],
)
def test_what_no_row_leads_to_is_found_in_the_storage(
    log: PostgresEventLog, admin: psycopg.Connection, statement: str, kind: str
) -> None:
    recorded_history(log)
    log.check_storage()
    admin.execute(statement)
    admin.commit()
    with pytest.raises(LogDamaged) as found:
        log.check_storage()
    assert found.value.kind == kind
