"""JSON that is nested too deeply is read without what is too deep."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.adapters.kubernetes.nesting import DEPTH_MAX, TOKENS, _shallow, read, read_slowly

LEVELS = 5_000
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text('ab"\\[]{}é\n'),
    lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text("k[{"), below, max_size=4),
)


@given(values)
def test_what_is_not_too_deep_is_as_it_was(value: Any) -> None:
    for octets in (msgspec.json.encode(value), json.dumps(value, indent=1).encode()):
        assert b"".join(_shallow(octets)) == octets


@given(values, st.integers(0, DEPTH_MAX + 20))
def test_what_is_beside_and_above_the_depth_stays(value: Any, levels: int) -> None:
    octets = b'{"a":' * levels + msgspec.json.encode(value) + b"}" * levels
    found = json.loads(b"".join(_shallow(b"[1," + octets + b",2]")))
    assert (found[0], found[2]) == (1, 2)
    assert _depth(found) <= DEPTH_MAX + 1  # the last ones are empty


def _depth(value: Any) -> int:
    if not isinstance(value, list | dict):
        return 0
    below = value.values() if isinstance(value, dict) else value
    return 1 + max(map(_depth, below), default=0)


@pytest.mark.parametrize("levels", [DEPTH_MAX, 900, 940, 960, 980, 1000, LEVELS])
def test_an_object_of_any_depth_is_read(levels: int) -> None:
    for begin, end in ((b"[", b"]"), (b'{"a":', b"}")):
        inner = begin * levels + b'"x"' + end * levels
        octets = b'{"name":"a","deep":' + inner + b',"after":"b"}'
        for found in (read(octets), asyncio.run(read_slowly(octets, Any))):
            assert (found["name"], found["after"]) == ("a", "b")


def test_what_is_cut_is_no_json() -> None:
    many = b"[" * LEVELS
    for octets in (many, b'{"a":"' + many, b'["\\' * 3, b"]" * LEVELS, b'"\\"' * 9):
        with pytest.raises(msgspec.DecodeError):
            read(octets)


def test_others_have_their_turn_while_a_large_answer_is_read() -> None:
    async def main() -> int:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(count())
        octets = b"[" + b"[" * LEVELS + b"]" * LEVELS + b",[]" * (5 * TOKENS) + b"]"
        assert len(await read_slowly(octets, list)) == 5 * TOKENS + 1
        task.cancel()
        return turns

    assert asyncio.run(main()) >= 10
