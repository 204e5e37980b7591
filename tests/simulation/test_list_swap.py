"""A list update that ends anywhere: an error of the disk, a full one, a power cut. What names are
looked up in is then the table of before or the one of after, whole."""

import hashlib
import random
import shutil
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from kudurru.adapters.lists.child import do
from kudurru.adapters.lists.files import ListFiles
from kudurru.adapters.lists.jobs import Build, Built, Text
from kudurru.domain.dns import names
from kudurru.domain.lists.rules import Context
from kudurru.domain.objects import Key
from kudurru.domain.reconcile.blocklists import SourceState
from tests.absent import absent
from tests.simulation import recording
from tests.simulation.disk import Disk
from tests.simulation.faults import Moment, faults
from tests.simulation.list_workload import FOLDER, VERSIONS, text_of, update

LIST = Key("BlockList/default/one")
KINDS: list[tuple[Moment, bool]] = [("before", False), ("before", True), ("after", False)]
CUTS = 150


def version_of(files: ListFiles) -> int | None:
    """The version of the list that a table holds, all of it; None when there is no table."""
    table = files.open_table()
    if table is None:
        return None
    facts = table.directory.sources[0]
    version = int(facts.source.title)
    lines = text_of(version).split()
    assert facts.entries == len(lines)
    for line in lines:
        assert table.lookup(names.key(names.from_text(line)))
    return version


@pytest.mark.parametrize(("moment", "is_full"), KINDS)
def test_whatever_fails_once_the_table_is_the_old_or_the_new_one(
    tmp_path: Path, moment: Moment, *, is_full: bool
) -> None:
    root = tmp_path / "before"
    files = ListFiles(root)
    files.open()
    update(files, 1)
    for at in count(1):
        folder = tmp_path / str(at)
        shutil.copytree(root, folder)
        files = ListFiles(folder)
        with faults(at, moment, is_full=is_full) as found, suppress(OSError):
            files.open()
            update(files, 2)
        after = ListFiles(folder)
        after.open()
        assert version_of(after) in (1, 2), found.points[at - 1]
        states = after.read_states()
        assert states["auto one"].digest in {
            hashlib.sha256(text_of(version).encode()).hexdigest() for version in (1, 2)
        } | {""}
        update(after, 2)  # the next attempt works
        assert version_of(after) == 2
        shutil.rmtree(folder)
        if not found.has_failed:
            break
    assert at > 10


def test_after_a_power_cut_the_table_is_one_of_the_versions_whole(fast: Path, seed: int) -> None:
    if not recording.is_available():
        absent("strace is missing or may not trace: install it, Debian's package has the name")
    root = fast / "recorded"
    root.mkdir()
    steps = recording.record("tests.simulation.list_workload", root)
    rng = random.Random(seed)
    disk, taken = Disk(), 0
    seen = set()
    for cut in sorted(rng.choices(range(len(steps) + 1), k=CUTS)):
        for step in steps[taken:cut]:
            disk.take(step)
        taken = cut
        image = fast / "image"
        image.mkdir()
        disk.cut(rng).lay_out(image)
        files = ListFiles(image / FOLDER)
        if (image / FOLDER).is_dir():
            seen.add(version_of(files))
            files.open()  # and the next start works on what is there
            files.read_states()
        shutil.rmtree(image)
    assert seen <= {None, *VERSIONS}
    assert len(seen) > 1


def test_a_table_is_only_put_in_place_by_the_parent(tmp_path: Path) -> None:
    files = ListFiles(tmp_path / "lists")
    files.open()
    update(files, 1)
    path = files.new_path()
    digest = hashlib.sha256(text_of(1).encode()).hexdigest()
    text = Text(LIST, 0, "2", Context(), str(files.body_path(digest)), digest)
    assert isinstance(do(Build((text,), 1, str(path))), Built)
    assert version_of(files) == 1
    again = ListFiles(tmp_path / "lists")
    again.open()  # the parent died before it did
    assert not path.exists()
    assert version_of(again) == 1
    assert SourceState(digest=digest) != again.read_states()["auto one"]
