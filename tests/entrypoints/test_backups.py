"""Backups of a log that changes while it is copied."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kudurru.adapters.memory.log import MemoryEventLog
from kudurru.domain.errors import Conflict
from kudurru.domain.ports import Erasure, LogRow
from kudurru.domain.verify import verify
from kudurru.entrypoints.backups import export_log
from tests.contracts.test_upkeep import erase, log_of_600, prune
from tests.logs import SeededEntropy, StillClock, applied, change, sqlite_log, trust

NOON_US = 1_800_000_000_000_000


class RacingLog(MemoryEventLog):
    """What `race` does happens in the middle of the next copy."""

    race: Callable[[], object] | None = None

    def rows(self, after: int = 0, upto: int | None = None) -> Iterator[LogRow]:
        race, self.race = self.race, None
        for row in super().rows(after, upto):
            yield row
            if race is not None and row.seq == 300:
                race()


@pytest.fixture
def log() -> RacingLog:
    found = RacingLog(entropy=SeededEntropy(), clock=StillClock())
    log_of_600(found)
    return found


def still(position: int, total: int) -> None:
    """Nobody looks."""


@pytest.mark.parametrize("what", ["redact", "prune"])
def test_a_backup_of_which_something_was_taken_away_meanwhile_is_not_given(
    what: str, log: RacingLog, tmp_path: Path
) -> None:
    def race() -> None:
        if what == "redact":
            erase(log, Erasure(400, 400, "body"))
        else:
            prune(log, 512)

    log.race = race
    with pytest.raises(Conflict, match="run it again"):
        export_log(log, tmp_path / "backup", still)
    assert list(tmp_path.iterdir()) == []
    export_log(log, tmp_path / "backup", still, with_unsigned=True)
    check_backup(tmp_path / "backup", log)


def test_what_is_written_meanwhile_stays_out(log: RacingLog, tmp_path: Path) -> None:
    signed = log.head().seq
    log.race = lambda: log.append([change(applied("later"))], NOON_US)
    exported = export_log(log, tmp_path / "backup", still)
    assert (exported.size, exported.signed) == (signed, signed)
    check_backup(tmp_path / "backup", log)


def check_backup(path: Path, log: RacingLog) -> None:
    backup = sqlite_log(path, create=False)
    found = verify(backup, trust=trust(log, 1))
    assert found.is_whole, found.damages
    assert backup.oldest() == log.oldest()
    backup.close()
