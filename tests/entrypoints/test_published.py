"""A log that was set back, replaced, or has another history than was published."""

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from kudurru.adapters.clock import SystemEntropy
from kudurru.adapters.data_dir import open_data_dir
from kudurru.adapters.publishing import publish as send
from kudurru.domain.errors import LogDamaged
from kudurru.domain.events import Who
from kudurru.domain.verify import verify
from kudurru.entrypoints import backups, directory
from kudurru.entrypoints.published import first_difference
from kudurru.entrypoints.service import ChangeRequest, Service
from tests.objects import www, zone

WHO = Who(actor="user:test")


def change(data: Path, *addresses: str) -> None:
    """Each in a session of its own, which signs what it did."""
    for address in addresses:
        with session(data) as service:
            service.change(ChangeRequest(apply=[zone(), www(address)]))


def session(data: Path) -> AbstractContextManager[Service]:
    return directory.open_service(data, who=WHO, write=True, on_damage=print)


@pytest.fixture(name="data")
def a_directory(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    change(data, "192.0.2.1")
    return data


def found(data: Path, *targets: str | Path) -> LogDamaged | None:
    with directory.open_reader(data) as node:
        there = [str(target) for target in targets]
        return first_difference(open_data_dir(data), node.log, there, SystemEntropy())  # type: ignore[arg-type]  # as open_reader made it


def kept(data: Path) -> Path:
    """A copy of the log as it is now."""
    return Path(shutil.copy(data / "log.db", data.parent / "kept.db"))


def put_back(kept_log: Path, data: Path) -> None:
    shutil.copy(kept_log, data / "log.db")


def head(data: Path) -> int:
    with directory.open_reader(data) as node:
        return node.log.head().seq


def test_a_log_that_went_on_is_the_log_that_was_published(data: Path) -> None:
    assert found(data) is None
    early = (data / "checkpoint").read_text()
    change(data, "192.0.2.2")
    assert (data / "checkpoint").read_text() != early
    (data / "checkpoint").write_text(early)
    assert found(data) is None
    assert (data / "checkpoint").stat().st_mode & 0o077 == 0


def test_a_log_that_was_set_back_is_not_written(data: Path) -> None:
    before = kept(data)
    change(data, "192.0.2.2")
    put_back(before, data)
    newest = head(data)
    damage = found(data)
    assert damage is not None
    assert (damage.kind, damage.position) == ("truncation", newest + 1)
    assert "was set back" in damage.message
    assert "log import" in damage.message
    with pytest.raises(LogDamaged, match="set back"):
        change(data, "192.0.2.3")
    assert head(data) == newest
    (data / "checkpoint").unlink()  # as the message says
    change(data, "192.0.2.3")


def test_a_log_that_was_set_back_and_went_on_has_another_history(data: Path) -> None:
    before = kept(data)
    change(data, "192.0.2.2")
    published = (data / "checkpoint").read_text()
    put_back(before, data)
    (data / "checkpoint").unlink()
    change(data, "192.0.2.3", "192.0.2.4")
    (data / "checkpoint").write_text(published)
    damage = found(data)
    assert damage is not None
    assert (damage.kind, damage.position) == ("tree", head(data) + 1)
    assert "another history" in damage.message


def test_another_log_in_the_place_of_the_one_before_is_told(data: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    change(other, "192.0.2.9")
    put_back(other / "log.db", data)
    damage = found(data)
    assert damage is not None
    assert damage.kind == "signature"
    assert "another log is here" in damage.message


def test_a_log_that_is_gone_does_not_begin_anew_unnoticed(data: Path) -> None:
    for path in data.glob("log.db*"):
        path.unlink()
    with pytest.raises(LogDamaged, match="another log is here"):
        change(data, "192.0.2.1")


@pytest.mark.parametrize("target", ["file", "folder/"])
def test_what_was_published_elsewhere_shows_a_directory_that_was_set_back_as_a_whole(
    data: Path, tmp_path: Path, target: str
) -> None:
    there = f"{tmp_path}/{target}"
    shutil.copytree(data, tmp_path / "before")
    with session(data) as service:
        service.change(ChangeRequest(apply=[zone(), www("192.0.2.2")]))
        note = service.checkpoint()
    publish(there, note)
    assert found(data, there) is None
    assert found(tmp_path / "before") is None
    damage = found(tmp_path / "before", there)
    assert damage is not None
    assert damage.kind == "truncation"
    assert str(tmp_path / target.rstrip("/")) in damage.message


def publish(target: str, note: str) -> None:
    send(target, note, note.partition("\n")[0], 1_800_000_000_000_000)


def test_in_a_folder_that_logs_share_each_finds_its_own(data: Path, tmp_path: Path) -> None:
    other, folder = tmp_path / "other", f"{tmp_path}/folder/"
    change(other, "192.0.2.9")
    for one in (data, other):
        publish(folder, (one / "checkpoint").read_text())
    assert found(data, folder) is None
    assert found(other, folder) is None


def _not_a_note(path: Path) -> None:
    path.write_bytes(b"\xff\x00 no checkpoint")


def _signed_by_a_stranger(path: Path) -> None:
    lines = path.read_text().split("\n")
    lines[1] = str(int(lines[1]) + 1)
    path.write_text("\n".join(lines))


def _a_folder_of_nothing(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("spoil", [_not_a_note, _signed_by_a_stranger, _a_folder_of_nothing])
def test_what_is_no_checkpoint_of_this_log_stops_nobody(
    data: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(data / "checkpoint")
    assert found(data) is None


def test_where_nothing_can_be_written_beside_the_log_changes_are_signed_all_the_same(
    data: Path,
) -> None:
    _a_folder_of_nothing(data / "checkpoint")
    before = head(data)
    change(data, "192.0.2.2")
    with directory.open_reader(data) as node:
        found = verify(node.log, trust=directory.trust_of())  # type: ignore[arg-type]  # as above
    assert found.signed.size == found.newest > before


def test_a_place_that_cannot_be_read_stops_nobody(data: Path, tmp_path: Path) -> None:
    assert found(data, tmp_path / "away", data / "log.db" / "below", "zone:example.org") is None


def test_a_backup_that_was_imported_is_not_held_against_the_epoch_before(
    data: Path, tmp_path: Path
) -> None:
    backup, new = tmp_path / "backup.log", tmp_path / "new"
    with directory.open_reader(data) as node:
        backups.export_log(node.log, backup, lambda *_: None)  # type: ignore[arg-type]  # as above
    change(data, "192.0.2.2", "192.0.2.3")
    file = Path(shutil.copy(data / "checkpoint", tmp_path / "file"))
    backups.import_log(backup, new, WHO, directory.trust_of(), lambda *_: None)
    assert found(new, file) is None
