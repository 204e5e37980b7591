"""The disk that loses power: what it must keep, and that it loses the rest in every way."""

import random
from itertools import pairwise

from tests.simulation.disk import (
    FOLDER,
    SECTOR,
    Acknowledge,
    Disk,
    Image,
    Rename,
    Resize,
    Step,
    Sync,
    Write,
)

MADE: list[Step] = [Rename({"d": FOLDER}), Sync(".", 1), Rename({"d/f": 0})]
NAMED: list[Step] = [*MADE, Sync("d", 3)]


def images(*steps: Step, count: int = 200) -> list[Image]:
    disk = Disk()
    for step in steps:
        disk.take(step)
    rng = random.Random(1)
    return [disk.cut(rng) for _ in range(count)]


def contents(*steps: Step) -> set[bytes | None]:
    """Of the file d/f; None: it is not there."""
    return {image.files.get("d/f") for image in images(*steps)}


def test_what_is_synced_is_there_after_every_cut() -> None:
    assert contents(*NAMED, Write(0, 0, b"old"), Sync(0, 5)) == {b"old"}


def test_content_without_a_sync_may_be_there_or_not_and_so_may_a_name() -> None:
    assert contents(*NAMED, Write(0, 0, b"new")) == {b"", b"new"}
    assert contents(*MADE, Write(0, 0, b"new"), Sync(0, 4)) == {None, b"new"}


def test_a_sync_covers_what_was_done_before_it_began() -> None:
    steps = [*NAMED, Write(0, 0, b"a"), Write(0, 1, b"b")]
    assert contents(*steps, Sync(0, 6)) == {b"ab"}
    assert contents(*steps, Sync(0, 5)) == {b"a", b"ab"}


def test_writes_overtake_each_other() -> None:
    found = contents(*NAMED, Write(0, 0, b"a"), Write(0, 1, b"b"))
    assert found == {b"", b"a", b"\0b", b"ab"}


def test_a_write_is_torn_between_sectors_and_never_in_one() -> None:
    old, new = b"o" * 3 * SECTOR, b"n" * 2 * SECTOR
    found = contents(*NAMED, Write(0, 0, old), Sync(0, 5), Write(0, SECTOR // 2, new))
    assert len(found) == 8
    for content in found:
        assert content is not None
        cuts = (0, SECTOR // 2, SECTOR, 2 * SECTOR, 5 * SECTOR // 2, 3 * SECTOR)
        parts = [content[a:b] for a, b in pairwise(cuts)]
        assert all(len(set(part)) == 1 for part in parts)


def test_a_file_is_cut_or_is_not() -> None:
    steps = [*NAMED, Write(0, 0, b"abc"), Sync(0, 5), Resize(0, 1)]
    assert contents(*steps) == {b"abc", b"a"}


def test_a_file_takes_the_place_of_another_whole() -> None:
    steps = [*NAMED, Write(0, 0, b"old"), Sync(0, 5), Rename({"d/g": 1}), Write(1, 0, b"new")]
    assert contents(*steps, Sync(1, 8), Rename({"d/f": 1, "d/g": None})) == {b"old", b"new"}
    unsynced = contents(*steps, Rename({"d/f": 1, "d/g": None}))
    assert unsynced == {b"old", b"new", b""}


def test_with_its_folder_a_file_is_lost() -> None:
    steps: list[Step] = [Rename({"d": FOLDER}), Rename({"d/f": 0}), Sync("d", 2)]
    for image in images(*steps, Write(0, 0, b"x"), Sync(0, 4)):
        assert (image.folders, image.files) in ((["d"], {"d/f": b"x"}), ([], {}))


def test_an_image_knows_what_was_acknowledged() -> None:
    steps: list[Step] = [*NAMED, Acknowledge(3), Acknowledge(2)]
    assert {image.acknowledged for image in images(*steps)} == {3}
