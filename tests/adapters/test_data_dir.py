"""The data directory."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kudurru.adapters.data_dir import open_data_dir
from kudurru.domain.errors import NotFound, StorageFailed


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_new_directory_is_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        data = open_data_dir(tmp_path / "a" / "data", create=True)
    finally:
        os.umask(before)
    assert (mode_of(data.path), mode_of(data.keys)) == (0o700, 0o700)
    assert data.warnings == ()
    assert data.log == tmp_path / "a" / "data" / "log.db"
    assert open_data_dir(data.path) == data


def test_a_directory_that_another_process_makes_meanwhile_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = os.mkdir

    def just_too_late(path: Path, mode: int = 0o777) -> None:
        mkdir(path, mode)
        raise FileExistsError(17, "File exists")

    monkeypatch.setattr(os, "mkdir", just_too_late)
    data = open_data_dir(tmp_path / "a" / "data", create=True)
    assert data.keys.is_dir()


def test_a_missing_directory_is_not_made_unless_asked(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"there is no data directory at .*: give --data"):
        open_data_dir(tmp_path / "data")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_file_is_no_data_directory(tmp_path: Path, name: str, create: bool) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StorageFailed, match=r"(?i)not a directory"):
        open_data_dir(tmp_path / name, create=create)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_directory_that_may_not_be_written_is_refused(
    tmp_path: Path, unprivileged: Callable[..., Any]
) -> None:
    with unprivileged(tmp_path, mode=0o555):
        with pytest.raises(StorageFailed, match=r"user \d+ may not read and write in it - give"):
            open_data_dir(tmp_path)
        with pytest.raises(StorageFailed, match="Permission denied"):
            open_data_dir(tmp_path / "data", create=True)


def test_a_place_where_nothing_can_be_made_is_refused() -> None:
    with pytest.raises(StorageFailed, match="cannot be the data directory"):
        open_data_dir(Path("/proc/kudurru-data"), create=True)


@pytest.mark.parametrize(
    ("mode", "warning"),
    [
        (0o700, None),
        (0o750, "can be read by others: run `chmod 700"),
        (0o705, "can be read by others"),
        (0o770, "can be written by others: run `chmod go-w"),
        (0o777, "can be written by others"),
    ],
)
def test_rights_of_others_are_warned_about(tmp_path: Path, mode: int, warning: str | None) -> None:
    tmp_path.chmod(mode)
    warnings = open_data_dir(tmp_path).warnings
    assert len(warnings) == (warning is not None)
    assert all(warning in found for found in warnings if warning)


def test_a_directory_of_another_owner_is_warned_about(
    tmp_path: Path, unprivileged: Callable[..., Any]
) -> None:
    if os.geteuid() != 0:
        tmp_path = Path("/tmp")  # root's, and writable by all
    with unprivileged(tmp_path):
        assert "whoever owns it can replace the log" in open_data_dir(tmp_path).warnings[0]
