"""Telling the few special names from all others at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.dns import names
from kudurru.domain.dns.special_names import ends_of, special_zone, zones

ALL = zones(with_canary=True, with_designation=True)
ENDS = ends_of(ALL)


@given(st.sampled_from(sorted(ALL)), st.lists(st.binary(min_size=1, max_size=9), max_size=3))
def test_every_special_name_ends_as_they_do(zone: bytes, below: list[bytes]) -> None:
    name = names.key(b"".join(bytes((len(label),)) + label for label in below) + zone)
    assert special_zone(name, ALL) is not None
    assert name.endswith(ENDS)


@pytest.mark.parametrize("text", ["www.example.com.", "example.net.", "a.local.example.org.", "."])
def test_a_usual_name_does_not(text: str) -> None:
    assert not names.from_text(text).endswith(ENDS)


def test_there_are_few_endings() -> None:
    assert len(ENDS) < 12
