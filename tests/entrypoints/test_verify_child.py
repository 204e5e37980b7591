"""A log that is verified in a process of its own while another one reads it."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from kudurru.domain.errors import LogDamaged, NotFound, StorageFailed
from kudurru.domain.events import Who
from kudurru.entrypoints import directory
from kudurru.entrypoints.service import ChangeRequest
from kudurru.entrypoints.verify_child import VerifyChild, verified_beside
from tests.objects import www, zone


@pytest.fixture(autouse=True)
def a_child_that_finds_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))


@pytest.fixture(name="data")
def a_directory(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    who = Who(actor="user:test")
    with directory.open_service(data, who=who, write=True, on_damage=print) as service:
        service.change(ChangeRequest(apply=[zone(), www("192.0.2.1")]))
    return data


def spoil(data: Path, seq: int) -> None:
    with closing(sqlite3.connect(data / "log.db", isolation_level=None)) as db:
        for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'"):
            db.execute(f"DROP TRIGGER {name}")
        db.execute("UPDATE log SET body = ? WHERE seq = ?", (b"{}", seq))


def test_a_whole_log_lets_the_reader_have_its_way(data: Path) -> None:
    with verified_beside(data):
        read = True
    assert read


def test_a_damage_is_told_by_kind_and_position_when_the_reader_is_done(data: Path) -> None:
    spoil(data, 2)
    with pytest.raises(LogDamaged) as raised, verified_beside(data):
        pass
    assert (raised.value.kind, raised.value.position) == ("payload", 2)
    assert "not what was committed to" in raised.value.message


@pytest.mark.parametrize("error", [KeyError("spec"), NotFound("nothing there")])
def test_what_a_reader_fails_with_is_put_down_to_the_damage(data: Path, error: Exception) -> None:
    spoil(data, 2)
    with pytest.raises(LogDamaged) as raised, verified_beside(data):
        raise error
    assert raised.value.__cause__ is error


def test_a_fault_of_the_reader_of_a_whole_log_is_its_own(data: Path) -> None:
    with pytest.raises(NotFound, match="nothing there"), verified_beside(data):
        raise NotFound("nothing there")


def test_a_log_that_cannot_be_opened_is_no_whole_log(tmp_path: Path) -> None:
    with VerifyChild(tmp_path / "none") as child, pytest.raises(StorageFailed, match="no data dir"):
        child.first_damage()


def test_a_reader_that_gives_up_leaves_no_process_behind(data: Path) -> None:
    with pytest.raises(KeyboardInterrupt), verified_beside(data):
        raise KeyboardInterrupt
