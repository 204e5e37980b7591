"""What the fuzzers begin with, and what they once found, passes in every run of the tests."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz import transports
from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"


@pytest.fixture(autouse=True)
def closed_loops(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A fuzzer keeps the loop of its target for ever."""
    made: list[asyncio.AbstractEventLoop] = []
    new = asyncio.new_event_loop
    monkeypatch.setattr(asyncio, "new_event_loop", lambda: made.append(new()) or made[-1])
    yield
    for loop in made:
        loop.close()


@pytest.mark.parametrize("name", TARGETS)
def test_every_input_that_is_kept_passes(name: str) -> None:
    run = TARGETS[name].make()
    run(b"")
    for file in sorted((CORPUS / name).glob("*")):
        run(file.read_bytes())


class Broken:
    def handle(self, packet: bytes, client: str, proto: str) -> None:
        raise ZeroDivisionError


@pytest.mark.parametrize("name", ["tcp", "doh", "http1", "http2", "doq", "h3"])
def test_a_fault_of_the_handler_fails_its_input_though_the_server_lives(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transports, "pipeline", Broken)
    run = TARGETS[name].make()
    run(b"")
    with pytest.raises((AssertionError, RuntimeError)) as raised:  # noqa: PT012  # one of many does
        for file in sorted((CORPUS / name).glob("*")):
            run(file.read_bytes())
    assert isinstance(raised.value.__cause__ or raised.value.__context__, ZeroDivisionError)
