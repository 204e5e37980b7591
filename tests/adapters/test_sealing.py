from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kudurru.adapters.memory.clock import SeededEntropy
from kudurru.adapters.sealing import NodeKey
from kudurru.domain.errors import Invalid, StorageFailed
from kudurru.domain.objects import Key

unhurried = settings(deadline=None)  # the machine may be busy

OWNER, OTHER = Key("TSIGKey//a"), Key("TSIGKey//b")
SECRET = b"not for anybody else"


def node_key(folder: Path, seed: int = 1) -> NodeKey:
    return NodeKey(folder / "node.key", SeededEntropy(seed))


def test_the_node_key_is_made_when_something_is_sealed_and_not_before(tmp_path: Path) -> None:
    box = node_key(tmp_path)
    assert (box.id, list(tmp_path.iterdir())) == ("", [])
    assert box.open(OWNER, bytes(80)) is None
    box.seal(OWNER, SECRET)
    assert box.path.stat().st_mode & 0o777 == 0o600
    assert len(box.id) == 8


def test_what_was_sealed_is_opened_by_another_start_for_its_owner_only(tmp_path: Path) -> None:
    sealed = node_key(tmp_path).seal(OWNER, SECRET)
    assert SECRET not in sealed
    again = node_key(tmp_path, 2)
    assert again.open(OWNER, sealed) == SECRET
    assert again.open(OTHER, sealed) is None


def test_another_node_key_opens_nothing_and_says_whose_it_is(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    here, there = node_key(tmp_path), node_key(tmp_path / "other", 2)
    sealed = here.seal(OWNER, SECRET)
    there.seal(OWNER, SECRET)
    assert there.open(OWNER, sealed) is None
    assert there.id_of(sealed) == here.id != there.id


@unhurried
@given(at=st.integers(0, 1000), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found(
    tmp_path_factory: pytest.TempPathFactory, at: int, bit: int
) -> None:
    box = node_key(tmp_path_factory.getbasetemp())
    sealed = bytearray(box.seal(OWNER, SECRET))
    sealed[at % len(sealed)] ^= 1 << bit
    assert box.open(OWNER, bytes(sealed)) is None


@unhurried
@given(st.binary(max_size=80))
def test_octets_that_nobody_sealed_are_not_opened(
    tmp_path_factory: pytest.TempPathFactory, octets: bytes
) -> None:
    box = node_key(tmp_path_factory.getbasetemp())
    box.seal(OWNER, SECRET)
    assert box.open(OWNER, octets) is None


def test_two_seals_of_one_secret_differ(tmp_path: Path) -> None:
    box = node_key(tmp_path)
    assert box.seal(OWNER, SECRET) != box.seal(OWNER, SECRET)


def test_a_key_that_others_provide_is_not_made(tmp_path: Path) -> None:
    box = NodeKey(tmp_path / "k", SeededEntropy(1), may_create=False)
    with pytest.raises(Invalid, match="does not exist"):
        box.seal(OWNER, SECRET)


def test_a_damaged_key_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "node.key").write_text("12")
    with pytest.raises(StorageFailed, match="put the right file back"):
        node_key(tmp_path).seal(OWNER, SECRET)
