"""Which files a folder of manifests is made of."""

import io
from pathlib import Path

import pytest

from kudurru.adapters.manifests import read_manifest_files
from kudurru.domain.errors import Invalid


def names(*paths: Path, stdin: bytes = b"") -> list[str]:
    return [Path(name).name for name, _ in read_manifest_files(paths, io.BytesIO(stdin))]


def test_a_folder_is_its_manifests_in_order_of_name_with_those_below(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    for name in ("b.yaml", "a.json", "c/d.yml", "e.toml", "notes.txt"):
        (tmp_path / name).write_text("")
    assert names(tmp_path) == ["a.json", "b.yaml", "d.yml", "e.toml"]


def test_a_mounted_config_map_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "..2026_11_29").mkdir()
    (tmp_path / "..2026_11_29" / "zone.yaml").write_text("")
    (tmp_path / "..data").symlink_to("..2026_11_29")
    (tmp_path / "zone.yaml").symlink_to("..data/zone.yaml")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "old.yaml").write_text("")
    assert names(tmp_path) == ["zone.yaml"]


def test_a_folder_that_is_hidden_itself_is_read_when_it_is_named(tmp_path: Path) -> None:
    folder = tmp_path / ".zones"
    folder.mkdir()
    (folder / "a.yaml").write_text("")
    assert names(folder) == ["a.yaml"]


def test_standard_input_is_a_dash() -> None:
    assert list(read_manifest_files([Path("-")], io.BytesIO(b"x"))) == [("stdin", b"x")]


def test_a_folder_without_manifests_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(Invalid, match="no manifests in this folder"):
        names(tmp_path)


def test_a_folder_below_that_cannot_be_looked_into_is_refused(tmp_path: Path, unprivileged) -> None:
    (tmp_path / "a.yaml").write_text("")
    (tmp_path / "closed").mkdir(mode=0)
    with (
        unprivileged(tmp_path, mode=0o755),
        pytest.raises(Invalid, match="closed: cannot be read: Permission denied"),
    ):
        names(tmp_path)
