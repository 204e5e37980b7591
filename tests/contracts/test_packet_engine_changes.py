"""The contract of PacketEngine: what a change ends of the answers that are remembered."""

import asyncio
from collections.abc import Callable

import pytest

from kudurru.adapters.dns.slots import slots_of
from kudurru.domain.dns import names
from kudurru.domain.later import Later
from kudurru.domain.ports import CACHE, FILTERS, Origins, Reply
from tests.packets import ident, query
from tests.rigs import (
    Exchange,
    Handler,
    Rig,
    count_of,
    serve,
)


def test_nothing_old_is_answered_after_invalidate(kind: str) -> None:
    async def scenario(rig: Rig, handler: Handler) -> None:
        question = query("www.example")
        for expected in (1, 1, 2, 2):
            if expected != handler.asked and handler.asked:
                rig.engine.invalidate()
            (answer,) = await rig.exchange(question)
            assert count_of(answer, question) == expected

    serve(kind, scenario)


def test_an_answer_computed_while_the_memo_was_invalidated_is_not_remembered(kind: str) -> None:
    class Changing(Handler):
        rig: Rig

        def handle(
            self, packet: bytes, client: str, proto: str
        ) -> Reply | Later[Reply | None] | None:
            reply = super().handle(packet, client, proto)
            if self.asked == 1:
                self.rig.engine.invalidate()
            return reply

    async def main() -> None:
        handler = Changing()
        async with Rig(kind, handler, "127.0.0.1:0").running() as rig:
            handler.rig = rig
            questions = [query("www.example", ident=i) for i in range(3)]
            answers = await rig.exchange(*questions)
            counts = {ident(answer): count_of(answer, questions[0]) for answer in answers}
            assert counts == {0: 1, 1: 2, 2: 2}

    asyncio.run(main())


ONE, TWO = (names.key(names.from_text(text)) for text in ("one.example", "two.example"))


ORIGINS: dict[str, Origins] = {
    "one": (ONE,),
    "two": (TWO,),
    "both": (ONE, TWO),
    "filtered": (FILTERS,),
    "filtered-one": (FILTERS, ONE),
    "cached": (FILTERS, CACHE),
    "many": [names.key(names.from_text(f"{number}.example")) for number in range(40)],
    "neither": (),
    "any": None,
}
"""What answers come of, by the first label of their names."""


ENDED: dict[str, tuple[Origins, set[str]]] = {
    "one": ((ONE,), {"one", "both", "filtered-one"}),
    "two": ((TWO,), {"two", "both"}),
    "both": ((ONE, TWO), {"one", "two", "both", "filtered-one"}),
    "filters": ((FILTERS,), {"filtered", "filtered-one", "cached"}),
    "filters and one": ({FILTERS, ONE}, {"filtered", "filtered-one", "cached", "one", "both"}),
    "cache": ((CACHE,), {"cached"}),
    "another": ((names.key(names.from_text("0.example")),), set()),
    "nothing": ((), set()),
    "all": (None, set(ORIGINS)),
}
"""What changes, and whose answers are over then, beside those that any change ends."""


class OfOrigins(Handler):
    """Says of its answers what they come of."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], None] = lambda: None

    def handle(self, packet: bytes, client: str, proto: str) -> Reply | Later[Reply | None] | None:
        reply = super().handle(packet, client, proto)
        assert isinstance(reply, Reply)
        first = packet[13 : 13 + packet[12]].lower().decode()
        self.meanwhile()
        return reply._replace(origins=ORIGINS[first])


def test_names_of_these_tests_share_no_slot() -> None:
    some = ONE, TWO, FILTERS, CACHE, *(ENDED["another"][0] or ())
    few = [slots_of((origin,)) for origin in some]
    assert len(set(few)) == len(few)


@pytest.mark.parametrize("change", ENDED)
def test_a_change_drops_the_answers_that_come_of_it_and_no_others(kind: str, change: str) -> None:
    changed, ended = ENDED[change]

    async def main() -> None:
        rig = Rig(kind, OfOrigins(), "127.0.0.1:0")
        async with rig.running(), rig.connected() as exchange:
            before = await counts(exchange)
            assert await counts(exchange) == before
            rig.engine.invalidate(changed)
            after = await counts(exchange)
            assert {text for text in ORIGINS if after[text] != before[text]} == (
                ended | {"many", "any"}
            )
            assert await counts(exchange) == after

    asyncio.run(main())


@pytest.mark.parametrize("change", ENDED)
def test_an_answer_computed_before_a_change_of_what_it_comes_of_is_not_remembered(
    kind: str, change: str
) -> None:
    changed, ended = ENDED[change]

    async def main() -> None:
        handler = OfOrigins()
        rig = Rig(kind, handler, "127.0.0.1:0")
        async with rig.running(), rig.connected() as exchange:
            handler.meanwhile = lambda: rig.engine.invalidate(changed)
            before = await counts(exchange)
            handler.meanwhile = lambda: None
            after = await counts(exchange)
            assert {text for text in ORIGINS if after[text] != before[text]} == (
                ended | {"many", "any"}
            )

    asyncio.run(main())


async def counts(exchange: Exchange) -> dict[str, int]:
    """Which asking of the handler answers come from, by the first label of their names."""
    found = {}
    for text in reversed(ORIGINS):  # those that any change ends are asked for first
        question = query(f"{text}.example")
        (answer,) = await exchange(question)
        found[text] = count_of(answer, question)
    return found
