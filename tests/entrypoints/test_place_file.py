"""Small files that say what a log is: there whole, absent, or a fault that says what to do."""

from pathlib import Path

import pytest

from kudurru.domain.errors import StorageFailed
from kudurru.entrypoints.follow_place import FollowPlace
from kudurru.entrypoints.place_file import read_file, write_file

PLACE = FollowPlace("https://leader.example", "log", ["key"])


def test_what_was_written_is_read_and_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "follow"
    assert read_file(path, FollowPlace, "") is None
    write_file(path, PLACE)
    assert read_file(path, FollowPlace, "") == PLACE
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path], "nothing unfinished is left"


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"url":1,"log_id":"x"}', b"\xff", b'"\xed\xa0\x80"']
)
def test_what_cannot_be_read_is_a_fault_with_advice(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "follow"
    path.write_bytes(content)
    with pytest.raises(StorageFailed, match=r"follow cannot be read .*: mend it"):
        read_file(path, FollowPlace, "mend it")


def test_what_cannot_be_written_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="cannot be written: No such file"):
        write_file(tmp_path / "none" / "follow", PLACE)
