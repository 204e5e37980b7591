from pathlib import Path

import pytest

from kudurru.adapters.memory.clock import SeededEntropy
from kudurru.adapters.secret_files import secret_in
from kudurru.domain.errors import StorageFailed


def test_a_secret_is_made_once_for_its_owner_only_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "cookies"
    first = secret_in(path, 32, SeededEntropy(1))
    assert len(first) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert secret_in(path, 32, SeededEntropy(2)) == first
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_start_that_was_cut_short_left_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "cookies.new").write_text("12")
    secret_in(tmp_path / "cookies", 32, SeededEntropy(1))
    assert [one.name for one in tmp_path.iterdir()] == ["cookies"]


@pytest.mark.parametrize("content", ["", "ab" * 31, "xy" * 32, "ü"])
def test_a_damaged_secret_is_refused_with_what_to_do(tmp_path: Path, content: str) -> None:
    path = tmp_path / "cookies"
    path.write_text(content)
    with pytest.raises(StorageFailed, match="cookies is damaged: remove it"):
        secret_in(path, 32, SeededEntropy(1))
    assert path.read_text() == content


def test_a_folder_that_is_not_there_is_a_fault_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="nowhere"):
        secret_in(tmp_path / "nowhere" / "cookies", 32, SeededEntropy(1))
