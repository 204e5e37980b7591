import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.adapters.dns.memo import MANY, Memo
from kudurru.domain.dns import names
from tests.packets import query


def answer_to(packet: bytes, tail: bytes = b"tail") -> bytes:
    return packet[:2] + b"\x84\x00" + packet[4:] + tail


def put(memo: Memo, packet: bytes, tail: bytes = b"tail") -> None:
    memo.store(memo.era, packet, answer_to(packet, tail))


headers = st.binary(min_size=12, max_size=12)
labels = st.lists(st.binary(min_size=1, max_size=63), max_size=3)
packets = st.one_of(
    st.binary(min_size=12, max_size=80),
    st.builds(
        lambda header, parts, tail: (
            header + b"".join(bytes((len(part),)) + part for part in parts) + b"\0" + tail
        ),
        headers,
        labels,
        st.binary(min_size=4, max_size=20),
    ),
)


@given(packets, packets, st.binary(max_size=30))
def test_what_is_found_is_what_was_stored_with_the_askers_id_and_letters(
    stored: bytes, asked: bytes, tail: bytes
) -> None:
    memo = Memo()
    put(memo, stored, tail)
    found = memo.find(asked)
    if found is not None:
        assert asked[2:].lower() == stored[2:].lower()
        assert asked[2:12] == stored[2:12]
        assert found == asked[:2] + b"\x84\x00" + asked[4:] + tail


@given(packets, st.data())
def test_any_letter_case_of_the_name_finds_the_answer(packet: bytes, data: st.DataObject) -> None:
    end = packet.find(0, 12) + 1
    swaps = data.draw(st.lists(st.booleans(), min_size=end, max_size=end))
    name = bytes(
        ord(chr(octet).swapcase()) if swap and octet < 128 else octet
        for octet, swap in zip(packet[12:end], swaps[12:], strict=False)
    )
    asked = packet[:12] + name + packet[max(end, 12) :]
    memo = Memo()
    put(memo, packet)
    assert memo.find(asked) == (answer_to(asked) if end else None)


def test_an_answer_that_does_not_echo_its_question_is_not_kept() -> None:
    memo = Memo()
    packet = query("www.example")
    memo.store(memo.era, packet, packet[:12])
    memo.store(memo.era, packet, answer_to(query("WWW.example")))
    assert len(memo) == 0


def test_a_flood_of_names_does_not_grow_it_nor_push_out_what_is_asked_for() -> None:
    memo = Memo(entries_max=1000)
    busy = query("busy.example")
    put(memo, busy)
    for number in range(20_000):
        put(memo, query(f"flood{number}.example"))
        if number % 100 == 0:
            assert memo.find(busy) == answer_to(busy)
        assert len(memo) <= 1000
    assert memo.find(query("flood0.example")) is None


def test_large_answers_are_bounded_by_their_octets() -> None:
    memo = Memo(bytes_max=100_000)
    for number in range(1000):
        put(memo, query(f"host{number}.example"), bytes(4000))
        assert len(memo) <= 25
    put(memo, query("alone.example"), bytes(60_000))
    assert memo.find(query("alone.example")) is None


@pytest.mark.parametrize(("others", "left"), [(2 * MANY, 2 * MANY), (MANY // 4, 0)])
def test_a_change_of_a_part_drops_that_and_one_of_nearly_all_drops_all(
    others: int, left: int
) -> None:
    memo = Memo()
    for name, number in (("home", MANY), ("other", others)):
        for i in range(number):
            packet = query(f"{i}.{name}")
            memo.store(memo.era, packet, answer_to(packet), (names.from_text(name),))
    put(memo, query("unknown"))
    memo.invalidate((names.from_text("home"),))
    assert memo.find(query("0.home")) is memo.find(query("unknown")) is None
    assert len(memo) == left
    put(memo, query("again"))
    memo.invalidate((names.from_text("other"),))
    assert len(memo) == 0


def test_few_answers_are_told_apart_also_when_all_but_one_go() -> None:
    memo = Memo()
    for i in range(MANY - 1):
        packet = query(f"{i}.home")
        memo.store(memo.era, packet, answer_to(packet), (names.from_text("home"),))
    packet = query("other")
    memo.store(memo.era, packet, answer_to(packet), (names.from_text("other"),))
    memo.invalidate((names.from_text("home"),))
    assert len(memo) == 1
    assert memo.find(packet)


def test_an_answer_from_before_an_invalidation_never_comes_back() -> None:
    memo = Memo()
    packet = query("www.example")
    era = memo.era
    put(memo, packet)
    memo.invalidate()
    assert memo.find(packet) is None
    memo.store(era, packet, answer_to(packet))
    assert memo.find(packet) is None


def test_invalidating_from_another_thread_leaves_no_older_answer() -> None:
    memo = Memo(entries_max=64)
    newest = [0]
    is_over = threading.Event()

    def change() -> None:
        while not is_over.is_set():
            newest[0] += 1
            memo.invalidate()

    changer = threading.Thread(target=change)
    changer.start()
    try:
        for number in range(20_000):
            packet = query(f"host{number % 50}.example")
            before = newest[0] - 1  # of this change the invalidation is certainly over
            found = memo.find(packet)
            if found is not None:
                assert int.from_bytes(found[-8:], "big") >= before
            era = memo.era
            memo.store(era, packet, answer_to(packet, newest[0].to_bytes(8, "big")))
    finally:
        is_over.set()
        changer.join()
