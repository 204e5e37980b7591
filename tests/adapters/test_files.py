import os
from pathlib import Path

import pytest

from kudurru.adapters.files import include_from, open_zone_file
from kudurru.domain.dns import master_file, names
from kudurru.domain.dns.master_file import CannotRead
from kudurru.domain.errors import Invalid


@pytest.fixture
def zones(tmp_path: Path) -> Path:
    """A folder of zones with one file beside it that is none of its business."""
    folder = tmp_path / "zones"
    (folder / "parts").mkdir(parents=True)
    (folder / "a.zone").write_text("$INCLUDE parts/b\n")
    (folder / "parts" / "b").write_text("b 5 A 192.0.2.1\n$INCLUDE c\n")
    (folder / "c").write_text("c 5 A 192.0.2.2\n")
    (tmp_path / "secret").write_text("s 5 A 192.0.2.3\n")
    return folder


def places(path: Path) -> list[str]:
    found = master_file.read(
        open_zone_file(path),
        file=str(path),
        origin=names.from_text("ex."),
        include=include_from(path),
    )
    return [str(Path(record.file).relative_to(path.parent)) for record in found.records]


def test_includes_are_read_from_the_folder_of_the_zone_file(zones: Path) -> None:
    assert places(zones / "a.zone") == ["parts/b", "c"]


def test_a_link_within_the_folder_is_followed(zones: Path) -> None:
    (zones / "parts" / "b").unlink()
    (zones / "parts" / "b").symlink_to(zones / "c")
    assert places(zones / "a.zone") == ["c"]


def test_a_link_to_the_zone_file_itself_serves_as_well(zones: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(zones / "a.zone")
    assert open_zone_file(tmp_path / "link") == b"$INCLUDE parts/b\n"
    assert include_from(tmp_path / "link")("c", "")[1] == b"c 5 A 192.0.2.2\n"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("../secret", "leaves the folder"),
        ("/etc/passwd", "leaves the folder"),
        ("parts/../../secret", "leaves the folder"),
        ("out", "leaves the folder"),
        ("up/secret", "leaves the folder"),
        ("missing", "no such file"),
        ("missing/../c", "no such file"),
        ("parts", "a folder"),
        ("pipe", "no regular file"),
        ("loop", "symbolic links"),
        ("binary", "binary"),
        ("a\x00b", "null"),
        ("x" * 300, "too long"),
    ],
)
def test_other_includes_are_refused_with_the_reason(zones: Path, name: str, why: str) -> None:
    (zones / "out").symlink_to(zones.parent / "secret")
    (zones / "up").symlink_to(zones.parent)
    (zones / "loop").symlink_to("loop")
    (zones / "binary").write_bytes(b"\x89PNG\x00\x00")
    os.mkfifo(zones / "pipe")
    with pytest.raises(CannotRead, match=why):
        include_from(zones / "a.zone")(name, "a.zone")


def test_files_that_include_each_other_are_a_fault(zones: Path) -> None:
    (zones / "c").write_text("$INCLUDE parts/../parts/b\n")
    with pytest.raises(Invalid, match=r"c:1: \$INCLUDE of .*parts/b from within itself"):
        places(zones / "a.zone")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("missing", "there is no such file"),
        ("parts", "it is a folder"),
        ("binary", "it is binary"),
        ("a\x00", "null"),
    ],
)
def test_a_zone_file_that_cannot_be_read_is_one_clear_fault(
    zones: Path, name: str, why: str
) -> None:
    (zones / "binary").write_bytes(b"\x89PNG\x00\x00")
    with pytest.raises(Invalid, match=why) as caught:
        open_zone_file(zones / name)
    assert caught.value.what == str(zones / name)


def test_a_zone_file_without_permission_is_one_clear_fault(zones: Path, monkeypatch) -> None:
    def refuse(_path: Path) -> bytes:  # chmod does not stop root, who may run the tests
        raise PermissionError

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(Invalid, match="may not be read"):
        open_zone_file(zones / "c")
