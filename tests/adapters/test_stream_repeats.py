"""What engines over connections take from their memo: in Python, and from the table in C."""

import asyncio
from collections.abc import Iterable
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.adapters.clock import SystemClock
from kudurru.adapters.dns import engine_native
from kudurru.adapters.dns.answering import ANSWERS_MIN, Answering, message_at
from kudurru.adapters.dns.engine_native import AnswerTable, TableScope
from kudurru.adapters.dns.memo import Keeper, Memo
from kudurru.domain.dns.cookies import Cookies
from kudurru.domain.dns.messages import COOKIE
from kudurru.domain.notation import parse_network
from kudurru.domain.ports import Keep, Reply
from kudurru.domain.query_log import Answered, Repeat
from tests.dns_clients import framed
from tests.packets import edns_with, query

CLIENT, OTHER = "192.0.2.1", "2001:db8::1"
SECOND_US = 1_000_000
COOKIES = Cookies(bytes(range(32)))
IS_NATIVE = engine_native.is_available()
KINDS = ["memo", "table"] if IS_NATIVE else ["memo"]
needs_table = pytest.mark.skipif(not IS_NATIVE, reason="the native engine was not built")


class Listening:
    """Is never asked; hears of repeats, and fails to when it is told to."""

    hears_repeats = True

    def __init__(self) -> None:
        self.heard: list[Repeat] = []
        self.weight = 1
        self.fault: Exception | None = None

    def handle(self, packet: bytes, client: str, proto: str) -> Reply | None:
        raise AssertionError("nobody asks")

    def weigh(self) -> int:
        return self.weight

    def repeated(self, proto: str, repeats: Iterable[Repeat]) -> None:
        self.heard += repeats
        if self.fault is not None:
            raise self.fault

    def answered(self, answers: Iterable[Answered]) -> None:
        raise AssertionError("there are no zones")

    def missed(self, count: int) -> None:
        raise AssertionError("nothing is lost on the way")


def memo_of(kind: str) -> Memo | Keeper:
    return Memo() if kind == "memo" else AnswerTable(cookies=COOKIES).new_scope()


def answer_to(packet: bytes, tail: bytes = b"tail") -> bytes:
    return packet[:2] + b"\x84\x00" + packet[4:] + tail


def known(kind: str, *packets: bytes, tail: bytes = b"tail") -> tuple[Answering, Listening]:
    """What answers these, and who hears of it."""
    handler = Listening()
    answering = Answering(handler, "tcp", 65_535, memo_of(kind))
    for packet in packets:
        answering.memo.store(answering.memo.era, packet, answer_to(packet, tail))
    return answering, handler


ONE, TWO, UNKNOWN = (query(f"{name}.example") for name in ("one", "two", "unknown"))


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(st.sampled_from([ONE, TWO, UNKNOWN, b"", b"short"])), st.integers(0, 70), st.data())
def test_what_is_known_one_after_the_other_is_answered_as_each_would_be(
    kind: str, packets: list[bytes], limit: int, data: st.DataObject
) -> None:
    answering, handler = known(kind, ONE, TWO)
    stream = bytearray(b"before" + framed(*packets))
    cut = data.draw(st.integers(6, len(stream)))
    del stream[cut:]
    at, answers = answering.recall_many(stream, 6, CLIENT, "", limit)

    expected: list[bytes] = []
    end = 6
    while len(expected) < limit and (packet := message_at(stream, end)) in (ONE, TWO):
        assert packet is not None
        expected.append(packet)
        end += 2 + len(packet)
    assert (at, answers) == (end, framed(*map(answer_to, expected)))
    assert answering.received == answering.answered == len(expected)
    assert sum(answering.memo.counts().values()) == len(expected)
    client = ip_address(CLIENT).packed
    assert handler.heard == [(client, packet[2:], 0, 1) for packet in expected]


@pytest.mark.parametrize("kind", KINDS)
def test_large_answers_are_taken_until_there_are_enough(kind: str) -> None:
    largest = bytes(65_535 - len(ONE))
    answering, _ = known(kind, ONE, tail=largest)
    at, answers = answering.recall_many(bytearray(framed(ONE, ONE)), 0, CLIENT, "", 9)
    assert at == len(framed(ONE))
    assert answers == framed(answer_to(ONE, largest))
    answering, _ = known(kind, ONE, tail=bytes(20_000))
    _, answers = answering.recall_many(bytearray(framed(*[ONE] * 9)), 0, CLIENT, "", 9)
    assert ANSWERS_MIN <= len(answers) < ANSWERS_MIN + 21_000


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_of_who_listens_costs_no_answer(kind: str) -> None:
    async def main() -> None:
        seen: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: seen.append(fault))
        answering, handler = known(kind, ONE)
        handler.fault = OSError("its disk is full")
        at, _ = answering.recall_many(bytearray(framed(ONE, ONE)), 0, CLIENT, "", 9)
        assert at == len(framed(ONE, ONE))
        assert answering.faults == len(seen) > 0

    asyncio.run(main())


def test_what_the_memo_answers_is_told_of_as_often_as_is_wanted() -> None:
    answering, handler = known("memo", ONE)
    for handler.weight in (0, 3, 0):
        answering.recall_many(bytearray(framed(ONE)), 0, CLIENT, "", 9)
    assert handler.heard == [(ip_address(CLIENT).packed, ONE[2:], 0, 3)]
    assert answering.answered == 3


@needs_table
def test_what_the_table_answers_is_told_of_one_in_some() -> None:
    scope = AnswerTable().new_scope()
    scope.table.sample(5)
    scope.store(scope.era, ONE, answer_to(ONE))
    stream = bytearray(framed(*[ONE] * 50))
    told: list[Repeat] = []
    for _ in range(2):
        _, count, _, some = scope.take(
            stream, 0, ip_address(CLIENT).packed, is_named=False, limit=50, is_told=True
        )
        assert count == 50
        told += some
    assert len(told) == 20
    assert sum(weight for *_, weight in told) == 100


def kept(how: Keep, packet: bytes = ONE, tail: bytes = b"tail") -> TableScope:
    scope = AnswerTable(cookies=COOKIES).new_scope()
    scope.keep(scope.era, packet, answer_to(packet, tail), how)
    return scope


def found(
    scope: TableScope, packet: bytes = ONE, client: str = CLIENT, *, is_named: bool = False
) -> tuple[bytes, int] | None:
    """The answer and its class, alike alone and in a stream."""
    packed = ip_address(client).packed
    alone = scope.find_for(packet, packed, is_named=is_named)
    _, count, answers, told = scope.take(
        bytearray(framed(packet)), 0, packed, is_named=is_named, limit=9, is_told=True
    )
    if alone is None:
        assert (count, answers, told) == (0, b"", [])
        return None
    assert (count, answers) == (1, framed(alone[0]))
    assert told == [(packed, packet[2:], alone[1], 1)]
    return alone


@needs_table
def test_ttls_count_down_and_an_answer_ends() -> None:
    now_us = SystemClock().monotonic_us()
    ttl = (3600).to_bytes(4, "big")
    hour_us = 3600 * SECOND_US
    how = Keep(until_us=now_us + hour_us, stored_us=now_us - hour_us, ttls_at=(len(ONE),))
    (wire, _) = found(kept(how, tail=ttl)) or (b"", 0)
    assert wire == answer_to(ONE, bytes(4))
    assert found(kept(how._replace(until_us=now_us), tail=ttl)) is None


@needs_table
def test_a_restricted_answer_is_for_those_who_are_admitted() -> None:
    scope = kept(Keep(is_restricted=True))
    assert found(scope) is None
    scope.table.admit([parse_network("192.0.2.0/24")])
    assert found(scope) == (answer_to(ONE), 0)
    assert found(scope, client=OTHER) is None
    assert found(scope, client="::ffff:192.0.2.1") == (answer_to(ONE), 0)


@needs_table
def test_an_answer_for_a_class_is_for_addresses_that_are_known_to_be_of_it() -> None:
    scope = kept(Keep(client_class=3, client=ip_address(CLIENT).packed))
    assert found(scope) == (answer_to(ONE), 3)
    assert found(scope, client=OTHER) is None
    assert found(scope, is_named=True) is None  # it says who it is, and may be of another class
    scope.keep(scope.era, TWO, answer_to(TWO), Keep())
    assert found(scope, TWO, is_named=True) == (answer_to(TWO), 0)


@needs_table
@pytest.mark.parametrize("client", [CLIENT, OTHER])
def test_a_cookie_is_each_clients_own(client: str) -> None:
    asked = query("one.example", rest=edns_with(COOKIE, b"clientck"))
    now_s = SystemClock().now_us() // SECOND_US
    verdict = COOKIES.judge(b"clientck", "192.0.2.99", now_s)
    assert verdict is not None
    how = Keep(cookie_at=len(asked))
    scope = kept(how, asked, tail=verdict.cookie)
    (wire, _) = found(scope, asked, client) or (b"", 0)
    assert wire[: len(asked)] == answer_to(asked, b"")
    judged = COOKIES.judge(wire[len(asked) :], client, now_s)
    assert judged is not None
    assert judged.is_proven


@needs_table
@pytest.mark.parametrize("client", [b"", b"12345"])
def test_a_client_without_an_address_is_refused(client: bytes) -> None:
    scope = kept(Keep())
    with pytest.raises(ValueError, match="4 or 16 octets"):
        scope.find_for(ONE, client, is_named=False)
    with pytest.raises(ValueError, match="4 or 16 octets"):
        scope.take(bytearray(), 0, client, is_named=False, limit=1, is_told=False)


@needs_table
def test_an_offset_that_is_none_is_refused() -> None:
    scope = kept(Keep())
    how = {"is_named": False, "limit": 3, "is_told": True}
    with pytest.raises(ValueError, match="below 0"):
        scope.take(bytearray(framed(ONE)), -1, ip_address(CLIENT).packed, **how)
    behind = bytearray(framed(ONE))
    assert scope.take(behind, len(behind) + 5, ip_address(CLIENT).packed, **how)[1:] == (0, b"", [])
