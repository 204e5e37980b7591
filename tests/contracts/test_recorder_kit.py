"""The eventsourcing library's own test kit on our logs, and its event store over them."""

import tempfile
import threading
from pathlib import Path
from uuid import uuid4

import pytest
from eventsourcing.persistence import EventStore, IntegrityError, StoredEvent
from eventsourcing.tests import persistence as kit

from kudurru.adapters.recorder import FactMapper, RecordedLog
from kudurru.domain.verify import verify
from tests.logs import applied, key, memory_log, sqlite_log
from tests.postgres import postgres_log


class RecorderKit(kit.ApplicationRecorderTestCase[RecordedLog]):
    __test__ = False

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.log = self.new_log(Path(folder.name))
        self.addCleanup(self.log.close)

    def new_log(self, folder: Path) -> RecordedLog:
        raise NotImplementedError

    def create_recorder(self) -> RecordedLog:
        return self.log

    def new_originator_id(self) -> str:
        return str(uuid4())  # our streams are named by text

    def test_insert_subscribe(self) -> None:
        self.optional_test_insert_subscribe()

    def tearDown(self) -> None:
        assert verify(self.log).is_whole


class TestMemoryLog(RecorderKit):
    __test__ = True

    def new_log(self, folder: Path) -> RecordedLog:
        return memory_log()


class TestSQLiteLog(RecorderKit):
    __test__ = True

    def new_log(self, folder: Path) -> RecordedLog:
        return sqlite_log(folder / "log.db")


class TestPostgresLog(RecorderKit):
    __test__ = True

    def new_log(self, folder: Path) -> RecordedLog:
        return postgres_log()


def new_log(adapter: str, folder: Path) -> RecordedLog:
    match adapter:
        case "memory":
            return memory_log()
        case "sqlite":
            return sqlite_log(folder / "log.db")
        case _:
            return postgres_log()


@pytest.mark.parametrize("adapter", ["memory", "sqlite", "postgres"])
def test_the_librarys_event_store_reads_back_what_it_put(adapter: str, tmp_path: Path) -> None:
    log = new_log(adapter, tmp_path)
    store = EventStore(FactMapper(), log)
    events = [applied("www", 1), applied("www", 2), applied("www", 3)]
    recordings = store.put(events)
    assert [recording.notification.id for recording in recordings] == [1, 2, 3]
    assert list(store.get(key("www"))) == events
    assert list(store.get(key("www"), gt=1, lte=2)) == events[1:2]
    assert list(store.get(key("www"), desc=True, limit=1)) == events[2:]
    with pytest.raises(IntegrityError):
        store.put([applied("www", 5)])
    log.close()


def test_a_subscription_misses_nothing_that_is_appended_while_it_begins() -> None:
    log = memory_log()
    begin = threading.Barrier(2)

    def append() -> None:
        begin.wait()
        for ver in range(1, 101):
            log.insert_events([StoredEvent("stream", ver, "topic", b"{}")])

    writer = threading.Thread(target=append)
    writer.start()
    begin.wait()
    seen = []
    with log.subscribe() as subscription:
        for notification in subscription:
            seen.append(notification.id)
            if len(seen) == 100:
                break
    writer.join()
    assert seen == list(range(1, 101))
