"""Octets of every kind through the answer path; `just fuzz` goes on where this ends."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.packets import Rig

CORPUS = Path(__file__).parents[1] / "fuzz" / "corpus" / "packet"
SEEDS = {path.name: path.read_bytes() for path in sorted(CORPUS.iterdir())}
RIG = Rig()


@pytest.mark.parametrize("name", SEEDS)
def test_packets_of_the_corpus_are_answered_or_dropped_as_they_must(name: str) -> None:
    RIG.take(SEEDS[name])


@given(st.binary(max_size=80))
def test_any_octets_are_answered_or_dropped_as_they_must(packet: bytes) -> None:
    RIG.take(packet)


@given(
    seed=st.sampled_from(sorted(SEEDS)),
    edits=st.lists(st.tuples(st.integers(0, 200), st.binary(max_size=3)), min_size=1, max_size=4),
    cut=st.integers(0, 30),
)
def test_queries_with_octets_exchanged_are_answered_or_dropped_as_they_must(
    seed: str, edits: list[tuple[int, bytes]], cut: int
) -> None:
    packet = bytearray(SEEDS[seed])
    for at, octets in edits:
        at %= len(packet) + 1
        packet[at : at + len(octets)] = octets
    RIG.take(bytes(packet[: len(packet) - cut]))
