"""Who is let in while a socket overflows: those who were there, and of the rest as many as can be
read."""

import contextlib
import random
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, islice

import pytest
from hypothesis import given
from hypothesis.strategies import floats, integers, lists, sampled_from, sets

from kudurru.adapters.dns.classic_bpf import CLIENTS_MAX, SO_ATTACH_FILTER, TOGETHER, attach, detach
from kudurru.adapters.dns.engine_native import is_available
from kudurru.adapters.dns.overload import (
    BARRED_S,
    CALM_S,
    HALF_LIFE,
    KNOWN_MAX,
    LATE_S,
    LEADS_MIN,
    LEAST,
    LOOK_CLOSELY_S,
    LOOK_S,
    LOOKS_MIN,
    OPTIMISM,
    SURE_PER_S,
    Gate,
    Leaders,
    Overload,
    Regulars,
    Seen,
    filter_program,
)
from kudurru.adapters.dns.reserved import Reserved
from tests.absent import absent
from tests.network_apart import ran_apart

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="filters are Linux's")


@contextmanager
def bound(address: str = "127.0.0.1") -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.bind((address, 0))
        sock.setblocking(False)
        yield sock


def number(address: str) -> int:
    return int.from_bytes(socket.inet_aton(address))


def gets_in(sock: socket.socket, client: str) -> bool:
    """Loopback: what is sent is there, or was dropped."""
    with bound(client) as other:
        other.sendto(b"?", sock.getsockname())
    try:
        return sock.recv(10) == b"?"
    except BlockingIOError:
        return False


@linux_only
@pytest.mark.parametrize("count", [0, 1, 2, TOGETHER, TOGETHER + 1, 100, CLIENTS_MAX])
def test_regulars_come_in_and_nobody_else_however_many_they_are(count: int) -> None:
    clients = [f"127.{1 + i * 7 % 200}.{i >> 7 & 255}.{1 + i % 128}" for i in range(count)]
    with bound() as sock:
        attach(
            sock,
            SO_ATTACH_FILTER,
            filter_program([number(one) for one in clients], 0, is_ipv6=False),
        )
        assert all(gets_in(sock, one) for one in clients)
        strangers = ["127.0.0.1", "127.255.255.254", *(f"127.{i}.9.200" for i in range(1, 30))]
        assert not any(gets_in(sock, one) for one in strangers)


@linux_only
def test_everybody_comes_in_again_when_it_is_over() -> None:
    with bound() as sock:
        attach(sock, SO_ATTACH_FILTER, filter_program([], 0, is_ipv6=False))
        assert not gets_in(sock, "127.0.0.1")
        detach(sock)
        detach(sock)  # there is none any more
        assert gets_in(sock, "127.0.0.1")


IPV6 = """
import select, socket
from kudurru.adapters.dns import _engine
from kudurru.adapters.dns.classic_bpf import SO_ATTACH_FILTER, attach
from kudurru.adapters.dns.overload import filter_program

def bound(address):
    sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    sock.bind((address, 0))
    return sock

known, same, other = map(bound, ("2001:db8:1::1", "2001:db8:1::2", "2001:db8:2::1"))
itself = bound("::1")
server = bound("2001:db8:3::1")
table = _engine.Table(entries_max=8, bytes_max=4096, seed=bytes(16))
workers = _engine.Workers(
    table=table, buckets=None, zones=None, sockets=[(server.fileno(), True, False)], scope=0,
    hears_repeats=False, misses_size=8192, urgent_size=8192, repeats_size=8192)
workers.start()
found = []
for one in (known, itself):
    one.sendto(bytes(12), server.getsockname())
    seen = []
    while not seen:  # the thread has its turns; who runs this does not wait for ever
        select.select([], [], [], 0.01)
        ((_, seen),) = workers.take_recent()
    found += seen
workers.stop()
sock = bound("2001:db8:3::1")
sock.setblocking(False)
attach(sock, SO_ATTACH_FILTER, filter_program(found, 0, is_ipv6=True))
for one in (known, same, other, itself):
    one.sendto(b"?", sock.getsockname())
    try:
        print(len(sock.recv(9)))
    except BlockingIOError:
        print(0)
"""


@linux_only
def test_of_ipv6_a_regular_is_a_network_of_64_bits_as_the_core_tells_of_it() -> None:
    if not is_available():
        absent("the native engine is not built")
    addresses = [f"2001:db8:{i}::{j}/128" for i, j in ((1, 1), (1, 2), (2, 1), (3, 1))]
    lines = [f"ip address add {one} dev lo nodad" for one in addresses]
    done = ran_apart(lines, IPV6)
    assert done.stdout.split() == ["1", "1", "0", "1"], done.stderr


def test_who_was_seen_once_or_long_ago_is_no_regular() -> None:
    regulars = Regulars()
    for look in range(LOOKS_MIN):
        regulars.see([1, 2, 2, 100 + look])
    assert regulars.known() == {1, 2}
    for _ in range(LOOKS_MIN):
        regulars.see(range(1000, 1000 + KNOWN_MAX))
    assert 1 not in regulars.known(), "others came later"
    assert len(regulars.known()) == CLIENTS_MAX


def test_forged_addresses_that_are_seen_once_make_nobody_unknown_nor_keep_anybody_out() -> None:
    regulars, forged = Regulars(), iter(range(1000, 1 << 31))
    for look in range(120):  # 1,000 a second
        clients = set(range(30)) if look in (0, 10) else {30 + look % 10}
        regulars.see([*clients, *islice(forged, 1000)])
    assert regulars.known() == set(range(40))


@pytest.mark.parametrize("looks", [LOOKS_MIN, 10])
def test_who_was_there_for_long_is_not_pushed_out_by_addresses_that_are_forged_again(
    looks: int,
) -> None:
    """A hundred a second overflow nothing, so that nobody notices them: each is used in so many
    looks, and then comes the next."""
    regulars, forged = Regulars(), iter(range(1000, 1 << 31))
    batch: list[int] = []
    for look in range(1_200):
        if look < 300:
            regulars.see([look % 10 + 10 * one for one in range(4)])  # 40 clients, each ten seconds
            continue
        if look % looks == 0:
            batch = list(islice(forged, 100))
        regulars.see([*(look % 10 + 10 * one for one in range(4)), *batch])
    assert regulars.known() >= set(range(40))
    assert len(regulars.known()) == CLIENTS_MAX


def test_who_is_gone_for_days_is_a_stranger() -> None:
    regulars = Regulars()
    for _ in range(HALF_LIFE):
        regulars.see([1, 2])
    for _ in range(15 * HALF_LIFE):
        regulars.see([2])
    assert regulars.known() == {2}


FLOODING = range(100, 300)


def test_of_regulars_that_overflow_their_sockets_are_barred_those_that_send_most() -> None:
    leaders, chance = Leaders(), random.Random(1)
    senders = [1, *(one for one in FLOODING for _ in range(20))]
    leaders.look([1] * LEADS_MIN, 0.0, is_lost=True)  # from before it began
    assert leaders.is_overflowing
    now_s, barred = 0.0, set[int]()
    while len(barred) < 0.8 * len(FLOODING):
        now_s += LOOK_CLOSELY_S
        still = [one for one in senders if one not in barred]
        leaders.look(chance.choices(still, k=30), now_s, is_lost=True)
        barred = set(leaders.barred(now_s))
        assert now_s < 2
    assert barred < set(FLOODING)
    assert not leaders.barred(now_s + BARRED_S)


def test_a_pause_of_a_thread_for_regulars_bars_nobody() -> None:
    leaders = Leaders()
    for look in range(100):
        assert not leaders.look([1] * LEADS_MIN, float(look), is_lost=look % 2 == 0)
    assert not leaders.barred(100)


def test_a_socket_that_does_not_overflow_lets_all_in() -> None:
    gate = Gate()
    gate.look(Seen(received=1_000_000, dropped=0, level=0.99), 0.05)
    assert gate.is_open


def test_a_pause_of_the_thread_turns_nobody_away() -> None:
    gate = Gate()
    gate.look(Seen(received=1000, dropped=900, level=1), 0.05)
    assert gate.is_open


def test_of_a_flood_comes_in_what_keeps_the_threads_half_busy() -> None:
    gate = Gate()
    gate.look(Seen(received=1000, dropped=19_000, level=1), LOOK_CLOSELY_S)
    assert gate.share == pytest.approx(1000 / 20_000)


def test_less_comes_in_as_long_as_the_buffer_fills_and_more_when_it_is_empty() -> None:
    gate = Gate()
    gate.look(Seen(received=1000, dropped=19_000, level=1), LOOK_CLOSELY_S)
    shares = [gate.share]
    for level in (0.5, 0.03, 0.0):
        gate.look(Seen(received=1000, dropped=19_000, level=level), LOOK_CLOSELY_S)
        shares.append(gate.share)
    assert shares[1] < shares[0]
    assert shares[2] == shares[1]
    assert shares[1] < shares[3] < shares[0]


def test_less_comes_in_when_looks_come_late_but_strangers_are_never_forgotten() -> None:
    gate = Gate()
    flood = Seen(received=1000, dropped=19_000, level=0)
    gate.look(flood, LOOK_CLOSELY_S)
    shares = [gate.share]
    for _ in range(100):
        gate.look(flood, 1.01 * LATE_S)
        shares.append(gate.share)
    assert shares[0] > shares[1] > shares[-1]
    came_per_s = 20_000 / (1.01 * LATE_S)
    least_per_s = LEAST * OPTIMISM * 1000 / LOOK_CLOSELY_S / 2
    assert least_per_s < min(shares) * came_per_s < 1.5 * least_per_s


@pytest.mark.parametrize("took_s", [LOOK_CLOSELY_S, 1.3 * LOOK_CLOSELY_S])
def test_after_a_pause_all_come_in_again_also_where_looks_come_late(took_s: float) -> None:
    """What came in the pause was read between it and the look."""
    gate, came_per_s, chance = Gate(), 10_000, random.Random(1)
    gate.look(Seen(received=2_700, dropped=7_300, level=0), 1.0)
    came = int(came_per_s * took_s)
    for _ in range(int(20 / took_s)):
        received = sum(chance.random() < gate.share for _ in range(came))
        gate.look(Seen(received, came - received, level=0), took_s)
    assert gate.is_open


class Thread:
    """That reads `capacity_per_s` unless it has to wait, behind a gate that is looked at."""

    ROOM = 2700  # datagrams that the smallest usual buffer holds

    def __init__(self, capacity_per_s: float) -> None:
        self.gate = Gate()
        self._capacity_per_s = capacity_per_s
        self.lying = 0.0

    def run(self, came_per_s: float, took_s: float, *, waits: bool) -> float:
        """Until the next look: what part of its capacity came in."""
        came = came_per_s * took_s
        let_in = came * self.gate.share
        can_read = 0 if waits else self._capacity_per_s * took_s
        read = min(can_read, self.lying + let_in)
        kept = min(self.ROOM, self.lying + let_in - read)
        dropped = came - (read + kept - self.lying)
        self.lying = kept
        # A datagram that is half there is not.
        self.gate.look(Seen(int(read), int(dropped + 0.001), kept / self.ROOM), took_s)
        return let_in / (self._capacity_per_s * took_s)


@given(
    capacity_per_s=floats(20_000, 300_000),
    load=floats(0.05, 0.45),
    first=floats(0, 1),
    late=lists(sampled_from([1.0, 1.0, 1.3, 2.0]), min_size=1, max_size=7),
)
def test_a_gate_opens_whose_buffer_stays_empty_whatever_was_measured_first(
    capacity_per_s: float, load: float, first: float, late: list[float]
) -> None:
    thread, came_per_s = Thread(capacity_per_s), load * capacity_per_s
    came = int(came_per_s)
    thread.gate.look(Seen(int(first * came), came - int(first * came) + 1, level=0), 1.0)
    passed_s = 0.0
    for took in cycle(late):
        if thread.gate.is_open:
            break
        took_s = took * LOOK_CLOSELY_S
        thread.run(came_per_s, took_s, waits=False)
        passed_s += took_s
        assert passed_s < 15


@given(
    capacity_per_s=floats(20_000, 300_000),
    load=floats(8, 30),
    waits=sets(integers(0, 19), max_size=2),
    late=lists(sampled_from([1.0, 1.0, 1.3]), min_size=1, max_size=7),
)
def test_a_gate_stays_shut_in_a_flood_and_what_comes_in_is_what_can_be_read(
    capacity_per_s: float, load: float, waits: set[int], late: list[float]
) -> None:
    thread = Thread(capacity_per_s)
    parts = []
    for i, took in islice(enumerate(cycle(late)), 1000):
        part = thread.run(load * capacity_per_s, took * LOOK_CLOSELY_S, waits=i % 20 in waits)
        parts.append(part)
        assert i < 5 or not thread.gate.is_open  # the buffer is empty at first
        assert i < 50 or waits or thread.lying < thread.ROOM
    after = parts[300:]
    assert max(after) < 1.5
    assert LEAST / 4 < sum(after) / len(after) < 1.05
    if max(late) == 1 and not waits:
        assert sum(after) / len(after) > 0.5


@pytest.mark.parametrize("received", [0, 500])
def test_it_is_over_when_no_more_comes_than_can_be_read(received: int) -> None:
    gate = Gate()
    gate.look(Seen(received=1000, dropped=19_000, level=1), LOOK_CLOSELY_S)
    gate.look(Seen(received=received, dropped=0, level=0), LOOK_CLOSELY_S)
    assert gate.is_open


@pytest.mark.parametrize("took_s", [LOOK_CLOSELY_S, 1.01 * LATE_S])
def test_a_look_in_which_the_thread_had_no_processor_does_not_count_for_ever(
    took_s: float,
) -> None:
    gate = Gate()
    gate.look(Seen(received=0, dropped=5000, level=1), 0.05)
    assert gate.share == pytest.approx(SURE_PER_S / 2 / 100_000)
    gate.look(Seen(received=4000, dropped=60, level=0), took_s)  # what lay in the buffer
    gate.look(Seen(received=4, dropped=56, level=0), took_s)  # 3,000 a second, as ever
    assert gate.is_open


@linux_only
def test_who_asked_before_a_flood_comes_in_during_it_and_who_floods_becomes_no_regular() -> None:
    with bound() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # the least that there is
        overload, now_s, received = Overload([sock], Reserved([])), 0.0, 0
        for _ in range(LOOKS_MIN):
            assert overload.look([(received, [number("127.0.0.7")])], now_s) == LOOK_S
            now_s += LOOK_S
            received += 1
        with bound("127.9.9.9") as flood:
            while overload.is_over:
                for _ in range(1000):
                    flood.sendto(b"!", sock.getsockname())
                again_s = overload.look([(received, [number("127.9.9.9")] * 64)], now_s)
                assert again_s == LOOK_CLOSELY_S
                now_s += again_s
        with contextlib.suppress(BlockingIOError):
            while True:  # until it is empty
                sock.recv(10)
        assert all(gets_in(sock, "127.0.0.7") for _ in range(20))
        for _ in range(LOOKS_MIN):
            overload.look([(received, [number("127.9.9.9")])], now_s)
            now_s += CALM_S / 3
        assert overload.is_over
        assert gets_in(sock, "127.0.0.8")
        overload.end()


@linux_only
def test_a_burst_that_is_over_turns_nobody_away() -> None:
    with bound() as sock, bound("127.9.9.9") as burst:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        overload = Overload([sock], Reserved([]))
        assert overload.look([(0, [])], 0) == LOOK_S
        for _ in range(1000):
            burst.sendto(b"!", sock.getsockname())
        assert overload.look([(10, [])], 0.5) == LOOK_CLOSELY_S
        assert overload.look([(20, [])], 0.5 + LOOK_CLOSELY_S) == LOOK_S
        assert overload.is_over
