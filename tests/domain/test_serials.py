import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.dns import serials

SERIALS = st.integers(0, 2**32 - 1)
NOW_S = 1_764_000_000


@pytest.mark.parametrize("bits", [2, 3])
def test_every_pair_of_a_small_space_compares_by_the_words_of_rfc_1982(bits: int) -> None:
    half = 1 << (bits - 1)
    for a in range(1 << bits):
        for b in range(1 << bits):
            greater = (a < b and b - a > half) or (a > b and a - b < half)
            assert serials.is_newer(a, b, bits) == greater
            undefined = a != b and not greater and not serials.is_newer(b, a, bits)
            assert undefined == (abs(a - b) == half)


@pytest.mark.parametrize("bits", [2, 3])
def test_every_defined_addition_of_a_small_space_is_newer(bits: int) -> None:
    for serial in range(1 << bits):
        for increment in range(1, 1 << (bits - 1)):
            assert serials.is_newer(serials.add(serial, increment, bits), serial, bits)
        with pytest.raises(ValueError, match="not below"):
            serials.add(serial, 1 << (bits - 1), bits)


@pytest.mark.parametrize("bits", [3, 4])
def test_every_stamp_of_a_small_space_is_newer_and_never_zero(bits: int) -> None:
    for previous in range(1 << bits):
        for now in range(1 << bits):
            stamped = serials.stamp(previous, None, now, bits=bits)
            assert stamped != 0
            assert serials.is_newer(stamped, previous, bits)


@pytest.mark.parametrize(
    ("previous", "highest", "now_s", "expected"),
    [
        (None, None, NOW_S, NOW_S),
        (1, None, NOW_S, NOW_S),
        (NOW_S, None, NOW_S, NOW_S + 1),
        (NOW_S + 50, None, NOW_S, NOW_S + 51),
        (2026112901, None, NOW_S, 2026112902),
        (5, NOW_S + 9, NOW_S, NOW_S + 10),
        (None, NOW_S + 9, NOW_S, NOW_S + 10),
        (NOW_S + 9, 5, NOW_S, NOW_S + 10),
        (2**32 - 1, None, 2**31 - 1 + 2**31, 1),
    ],
    ids=[
        "first",
        "a small serial moves to unix time",
        "twice in a second",
        "the clock stepped back",
        "a date is later than unix time",
        "a restored zone goes on from the highest",
        "a zone that was deleted goes on too",
        "an older highest does not matter",
        "0 is skipped",
    ],
)
def test_a_stamp_is_the_later_of_successor_and_clock(previous, highest, now_s, expected) -> None:
    assert serials.stamp(previous, highest, now_s) == expected


def test_half_the_space_away_the_successor_is_taken() -> None:
    assert serials.stamp(NOW_S, None, NOW_S + 2**31) == NOW_S + 1
    assert serials.stamp(NOW_S, None, NOW_S + 2**31 - 1) == NOW_S + 2**31 - 1


@pytest.mark.parametrize("previous", [7, NOW_S, 2**31 + 5, 2**32 - 2])
def test_without_a_clock_the_successor_is_taken(previous: int) -> None:
    assert serials.stamp(previous, None, 0) == previous + 1


def test_without_a_clock_the_first_serial_leaves_all_room() -> None:
    assert serials.stamp(None, None, 0) == 1


@given(SERIALS, st.none() | SERIALS, st.integers(0, 2**33))
def test_a_stamp_is_newer_than_what_went_before(previous, highest, now_s) -> None:
    stamped = serials.stamp(previous, highest, now_s)
    assert 0 < stamped < 2**32
    newest = previous
    if highest is not None and serials.is_newer(highest, previous):
        newest = highest
    assert serials.is_newer(stamped, newest)
