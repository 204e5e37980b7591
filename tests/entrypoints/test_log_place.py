"""Which log a directory uses, where the black-box tests do not look."""

import sys
from pathlib import Path

import pytest

import kudurru.adapters
from kudurru.adapters.data_dir import open_data_dir
from kudurru.domain.errors import Invalid, StorageFailed
from kudurru.entrypoints.log_place import driver_of, open_event_log, read_pointer


@pytest.mark.parametrize(
    ("store", "driver"),
    [
        ("memory", "memory"),
        ("sqlite", "sqlite"),
        ("postgresql://db.example/kudurru", "postgres"),
        ("postgres://me@[2001:db8::1]:5432/kudurru?sslmode=verify-full", "postgres"),
        ("postgresql:///kudurru?host=/run/postgresql&passfile=/etc/pw", "postgres"),
    ],
)
def test_a_store_names_its_driver(store: str, driver: str) -> None:
    assert driver_of(store) == driver


@pytest.mark.parametrize(
    ("store", "why"),
    [
        ("mysql://x", "is no store"),
        ("SQLite", "is no store"),
        ("postgresql", "is no store"),
        ("postgresql://me:pw@db.example/kudurru", "holds a password"),
        ("postgresql://db.example/kudurru?user=me&password=pw", "holds a password"),
    ],
)
def test_what_names_none_or_shows_a_password_is_refused(store: str, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        driver_of(store)


def test_a_log_in_memory_leaves_nothing_behind(tmp_path: Path) -> None:
    directory = open_data_dir(tmp_path / "data", create=True)
    log = open_event_log(directory, store="memory", create=True)
    assert not directory.log.exists()
    assert read_pointer(directory.store) is None
    log.close()


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b'{"url": 7}'])
def test_a_pointer_that_cannot_be_read_begins_no_log(tmp_path: Path, content: bytes) -> None:
    directory = open_data_dir(tmp_path / "data", create=True)
    directory.store.write_bytes(content)
    with pytest.raises(StorageFailed, match="cannot be read"):
        open_event_log(directory, create=True)
    assert not directory.log.exists()


def test_without_the_extra_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kudurru.adapters, "postgres", None, raising=False)  # back afterwards, too
    for name in [name for name in sys.modules if "adapters.postgres" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    directory = open_data_dir(tmp_path / "data", create=True)
    with pytest.raises(Invalid, match=r"pip install '\.\[postgres\]'"):
        open_event_log(directory, store="postgresql://db.example/x", create=True)
