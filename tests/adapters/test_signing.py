"""Keys on disk, and checkpoints in files elsewhere."""

import os
import stat
from pathlib import Path

import pytest

from kudurru.adapters.publishing import publish
from kudurru.adapters.signing import KeyFolder, check_signature
from kudurru.domain.errors import StorageFailed
from kudurru.domain.signed_note import parse_note, sign_note
from tests.logs import NOON_US, SeededEntropy

ORIGIN = "kudurru/0123/1"


def folder(path: Path) -> KeyFolder:
    return KeyFolder(path, ORIGIN, SeededEntropy())


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o277])
def test_a_key_is_private_whatever_the_umask(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        folder(tmp_path).create()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "log.key").stat().st_mode) == 0o600


def test_a_key_is_what_it_was_and_signs(tmp_path: Path) -> None:
    keys = folder(tmp_path)
    assert keys.read() is None
    made = keys.create()
    found = folder(tmp_path).read()
    assert found is not None
    assert found.verifier == made.verifier
    assert found.verifier.name == ORIGIN
    assert parse_note(sign_note("text\n", found)).signed_by(made.verifier, check_signature)


def test_a_key_is_never_written_over(tmp_path: Path) -> None:
    folder(tmp_path).create()
    with pytest.raises(StorageFailed, match=r"log\.key: File exists"):
        folder(tmp_path).create()


def test_the_next_key_takes_the_place_of_the_one_before_in_one_step(tmp_path: Path) -> None:
    keys = folder(tmp_path)
    keys.create()
    keys.create_next()
    second = keys.create_next()  # the first of them was never adopted
    assert keys.read_next() is not None
    keys.promote()
    found = keys.read()
    assert found is not None
    assert found.verifier == second.verifier
    assert keys.read_next() is None


@pytest.mark.parametrize(
    "content", [b"", b"PRIVATE+KEY+", b"\xff\xfe", b"PRIVATE+KEY+a+00000000+AAAA", b"x" * 100]
)
def test_a_file_that_is_no_key_is_refused_and_kept(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "log.key").write_bytes(content)
    with pytest.raises(StorageFailed, match=r"log\.key"):
        folder(tmp_path).read()
    assert (tmp_path / "log.key").read_bytes() == content


def test_a_wrong_signature_or_key_is_no_error(tmp_path: Path) -> None:
    key = folder(tmp_path).create()
    signature = key.sign(b"text")
    assert check_signature(key.verifier.public, signature, b"text")
    assert not check_signature(key.verifier.public, signature, b"other")
    assert not check_signature(key.verifier.public, signature[:-1], b"text")
    assert not check_signature(b"short", signature, b"text")


def test_a_published_file_has_the_newest_checkpoint_whole(tmp_path: Path) -> None:
    target = str(tmp_path / "newest")
    for note in ("first\n", "second\n"):
        assert publish(target, note, ORIGIN, NOON_US) == tmp_path / "newest"
        assert (tmp_path / "newest").read_text() == note
    assert [file.name for file in tmp_path.iterdir()] == ["newest"]


def test_a_link_in_a_shared_folder_is_not_followed(tmp_path: Path) -> None:
    """The name of the draft can be guessed by whoever may write there."""
    other = tmp_path / "other"
    other.write_text("untouched")
    (tmp_path / f".newest.{os.getpid()}").symlink_to(other)
    assert publish(str(tmp_path / "newest"), "note\n", ORIGIN, NOON_US).read_text() == "note\n"
    assert other.read_text() == "untouched"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["newest", "other"]


def test_a_folder_gets_a_file_for_each_log_and_day(tmp_path: Path) -> None:
    target = f"{tmp_path}/notes/"
    day_us = 86_400_000_000
    for note, origin, us in (
        ("a\n", ORIGIN, NOON_US),
        ("b\n", ORIGIN, NOON_US + 1),
        ("c\n", ORIGIN, NOON_US + day_us),
        ("d\n", "kudurru/4567/1", NOON_US),
    ):
        publish(target, note, origin, us)
    found = {file.name: file.read_text() for file in (tmp_path / "notes").iterdir()}
    assert found == {
        "2025-10-09.kudurru.0123.1.checkpoint": "b\n",
        "2025-10-10.kudurru.0123.1.checkpoint": "c\n",
        "2025-10-09.kudurru.4567.1.checkpoint": "d\n",
    }


def test_what_cannot_be_published_says_where_and_leaves_nothing(tmp_path: Path) -> None:
    for target in (str(tmp_path / "none" / "file"), "/proc/none/"):
        with pytest.raises(StorageFailed, match=r"published to .* - check the path"):
            publish(target, "note\n", ORIGIN, NOON_US)
    assert list(tmp_path.iterdir()) == []
