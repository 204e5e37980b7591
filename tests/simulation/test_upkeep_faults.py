"""Each outside write of a pruning, a redaction, an export and an import fails once, before it takes
effect and after it did: then all of it happened or nothing, and the next try works."""

import shutil
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import count
from pathlib import Path

import pytest

from kudurru.domain.errors import KudurruError
from kudurru.domain.events import Who
from kudurru.domain.kinds.validation import parse_manifest
from kudurru.domain.verify import verify
from kudurru.entrypoints import backups
from kudurru.entrypoints.directory import open_reader, open_service, replay, trust_of
from kudurru.entrypoints.service import ChangeRequest, Service
from kudurru.entrypoints.upkeep import PruneRequest, RedactRequest
from tests.blackbox.program import records, zone
from tests.logs import sqlite_log
from tests.simulation.faults import Moment, faults

WHO = Who(actor="user:0", source="test")
KINDS: list[tuple[Moment, bool]] = [("before", False), ("before", True), ("after", False)]
STRIDE = 3


def serve(data: Path, use: Callable[[Service], object]) -> None:
    with open_service(data, who=WHO, write=True, on_damage=print) as service:
        use(service)


def still(position: int, total: int) -> None:
    """Nobody looks."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with some 300 events, and a backup of it."""
    folder = tmp_path_factory.mktemp("upkeep")

    def fill(service: Service) -> None:
        for number in range(150):
            address = f"192.0.2.{number}"
            one = records("www", "a.example", ("www.a.example", "A", address))
            objects = [zone("a.example"), one] if number == 0 else [one]
            parsed = [parse_manifest(o, what="test", default_namespace="default") for o in objects]
            service.change(ChangeRequest(apply=parsed))

    serve(folder / "data", fill)
    with open_reader(folder / "data") as node:
        backups.export_log(node.log, folder / "backup", still)  # type: ignore[arg-type]
    return folder


def prune(folder: Path) -> None:
    serve(folder / "data", lambda service: service.prune(PruneRequest(before=260)))


def redact(folder: Path) -> None:
    serve(folder / "data", lambda service: service.redact(RedactRequest(seq=2, reason="x")))


def export(folder: Path) -> None:
    with open_reader(folder / "data") as node:
        backups.export_log(node.log, folder / "copy", still)  # type: ignore[arg-type]


def import_(folder: Path) -> None:
    backups.import_log(folder / "backup", folder / "other", WHO, trust_of(), still)


def check_pruned(folder: Path) -> bool:
    return check_log(folder) == 256


def check_redacted(folder: Path) -> bool:
    check_log(folder)
    with closing(sqlite_log(folder / "data" / "log.db", create=False)) as log:
        event = log.get(2)
        said = [one.type for one in log.read() if one.type == "payload.redacted.v1"]
        assert event is not None
        assert (event.body is None) == bool(said)
        return bool(said)


def check_exported(folder: Path) -> bool:
    check_log(folder)
    return is_whole(folder / "copy")


def check_imported(folder: Path) -> bool:
    if not is_whole(folder / "other" / "log.db"):
        return False
    serve(folder / "other", lambda service: service.checkpoint())
    assert is_whole(folder / "other" / "log.db")
    return True


def check_log(folder: Path) -> int:
    """A directory is whole, and its views can be built; where its log begins."""
    assert is_whole(folder / "data" / "log.db")
    with open_reader(folder / "data") as node:
        replay(node)
        assert node.objects.count("DNSRecordSet") == 1
        return node.log.oldest()


def is_whole(path: Path) -> bool:
    if not path.exists():
        return False
    with closing(sqlite_log(path, create=False)) as log:
        found = verify(log, trust=trust_of())
    assert found.is_whole, found.damages
    return True


DEEDS = {
    "prune": (prune, check_pruned),
    "redact": (redact, check_redacted),
    "export": (export, check_exported),
    "import": (import_, check_imported),
}


def check_points(
    whole: Path, folder: Path, deed: str, first: int, step: int, moment: Moment, *, is_full: bool
) -> int:
    """Do it with a fault at each of the points that there are. How many points were tried."""
    do, check = DEEDS[deed]
    for tried, at in enumerate(count(first, step)):
        place = folder / f"{deed}{at}"
        shutil.copytree(whole, place)
        done = False
        with faults(at, moment, is_full=is_full) as found, suppress(KudurruError):
            do(place)
            done = True
        try:
            happened = check(place)
            assert happened or not done, "it was acknowledged"
            if not happened:
                do(place)
                assert check(place)
        except Exception as error:
            error.add_note(f"{deed}, point {at}, {found.points[at - 1 : at]}")
            raise
        if not found.has_failed:
            return tried
    raise AssertionError("points have no end")


@pytest.mark.slow
@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize(("moment", "is_full"), KINDS)
def test_after_a_fault_at_any_point_it_is_done_or_not_at_all(
    whole: Path, fast: Path, deed: str, moment: Moment, is_full: bool
) -> None:
    assert check_points(whole, fast, deed, 1, 1, moment, is_full=is_full) > 5


@pytest.mark.parametrize("deed", DEEDS)
def test_after_a_fault_at_some_points_it_is_done_or_not_at_all(
    whole: Path, fast: Path, deed: str, seed: int
) -> None:
    """Other ones in each run."""
    moment, is_full = KINDS[seed % len(KINDS)]
    first = 1 + seed // 7 % STRIDE
    assert check_points(whole, fast, deed, first, STRIDE, moment, is_full=is_full) > 1
