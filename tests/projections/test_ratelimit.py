"""The limiter by itself, on a clock that is moved by hand, with buckets in Python and those of the
native engine."""

from collections.abc import Callable, Iterator, Mapping
from ipaddress import IPv4Network, IPv6Network, ip_address

import dns.flags
import dns.message
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.adapters.dns import engine_native
from kudurru.domain.dns.cookies import Cookies
from kudurru.domain.dns.messages import COOKIE
from kudurru.domain.settings import RatelimitSettings
from kudurru.projections.pipeline.ratelimit import DROP, Buckets, RateLimiter, TokenBuckets
from tests.logs import StillClock
from tests.packets import edns, edns_with, query

MINUTE_US = 60_000_000
QUESTION = query("www.example")[2:]

KINDS: dict[str, Callable[[], Buckets]] = {"python": TokenBuckets}
if engine_native.is_available():
    KINDS["native"] = engine_native.new_buckets
new_buckets: Callable[[], Buckets] = TokenBuckets


@pytest.fixture(params=KINDS, scope="module", autouse=True)
def each_kind(request: pytest.FixtureRequest) -> Iterator[None]:
    global new_buckets  # all tests here make their limiters with it
    new_buckets = KINDS[request.param]
    yield
    new_buckets = TokenBuckets


def limiter(
    ipv4: Mapping[int, int] | None = None, ipv6: Mapping[int, int] | None = None, **more
) -> tuple[RateLimiter, StillClock]:
    clock = StillClock()
    settings = RatelimitSettings(
        ipv4={32: 10} if ipv4 is None else ipv4,
        ipv6={128: 10} if ipv6 is None else ipv6,
        **({"exempt": ()} | more),
    )
    return RateLimiter(settings, clock, buckets=new_buckets()), clock


def verdicts(subject: RateLimiter, client: str, count: int = 1, packet: bytes = QUESTION):
    address = ip_address(client).packed
    return list(subject.admit([address] * count, [packet] * count) or [None] * count)


def passed(subject: RateLimiter, client: str, count: int = 1) -> int:
    return verdicts(subject, client, count).count(None)


def test_a_network_may_send_its_minutes_allowance_at_once_and_then_a_sixtieth_each_second() -> None:
    subject, clock = limiter({32: 600})
    assert passed(subject, "192.0.2.1", 700) == 600
    clock.advance(1_000_000)
    assert passed(subject, "192.0.2.1", 20) == 10
    clock.advance(MINUTE_US)
    assert passed(subject, "192.0.2.1", 700) == 600
    clock.advance(10 * MINUTE_US)
    assert passed(subject, "192.0.2.1", 700) == 600


def test_the_defaults_are_those_of_the_design() -> None:
    settings = RatelimitSettings()
    subject = RateLimiter(settings, StillClock(), buckets=new_buckets())
    assert passed(subject, "192.0.2.1", 1000) == 600
    assert sum(passed(subject, f"192.0.2.{i}", 700) for i in range(2, 20)) == 6000 - 600
    assert passed(subject, "2001:db8::1", 1000) == 600
    assert sum(passed(subject, f"2001:db8::{i}", 700) for i in range(2, 20)) == 6000 - 600
    assert sum(passed(subject, f"2001:db8:0:1::{i}", 700) for i in range(2, 20)) == 6000
    assert passed(subject, "2001:db8:0:2::1", 700) == 0
    assert passed(subject, "2001:db8:0:100::1", 700) == 600
    assert passed(subject, "127.0.0.1", 1000) == passed(subject, "::1", 1000) == 1000


def test_a_limited_address_does_not_drain_its_network() -> None:
    subject, _ = limiter({32: 10, 24: 20})
    assert passed(subject, "192.0.2.1", 1000) == 10
    assert passed(subject, "192.0.2.2", 1000) == 10
    assert passed(subject, "192.0.2.3", 1000) == 0
    assert passed(subject, "192.0.3.3", 1000) == 10


def test_a_level_of_zero_is_off_and_so_is_the_whole_limiter() -> None:
    subject, _ = limiter({32: 0, 24: 5})
    assert passed(subject, "192.0.2.1", 9) + passed(subject, "192.0.2.2", 9) == 5
    assert passed(limiter({32: 0})[0], "192.0.2.1", 1000) == 1000
    assert passed(limiter({})[0], "192.0.2.1", 1000) == 1000
    assert passed(limiter(enabled=False)[0], "192.0.2.1", 1000) == 1000


def test_exempt_networks_are_never_charged() -> None:
    networks = (IPv4Network("192.0.2.0/24"), IPv6Network("2001:db8::/32"))
    subject, _ = limiter({32: 1, 8: 1}, {128: 1}, exempt=networks)
    assert passed(subject, "192.0.2.1", 100) == passed(subject, "2001:db8::1", 100) == 100
    assert passed(subject, "192.0.3.1", 100) == passed(subject, "2001:db9::1", 100) == 1
    assert subject.statistics().buckets == 3


def test_an_ipv4_address_in_ipv6_clothes_is_that_ipv4_address() -> None:
    subject, _ = limiter({32: 10}, exempt=(IPv4Network("127.0.0.0/8"),))
    assert passed(subject, "::ffff:192.0.2.1", 6) == 6
    assert passed(subject, "192.0.2.1", 6) == 4
    assert passed(subject, "::ffff:127.0.0.1", 100) == 100


@pytest.mark.parametrize("slip", [0, 1, 33, 50, 67, 100])
def test_the_share_that_slips_is_spread_evenly(slip: int) -> None:
    subject, _ = limiter({32: 10}, slip=slip)
    over = verdicts(subject, "192.0.2.1", 310)[10:]
    slips = [verdict != DROP for verdict in over]
    assert sum(slips) == 3 * slip
    for end in range(len(slips)):
        assert sum(slips[:end]) - 1 <= end * slip / 100 <= sum(slips[:end]) + 1
    seen = subject.statistics()
    assert (seen.slipped, seen.dropped) == (3 * slip, 300 - 3 * slip)


def test_two_clients_that_take_turns_each_get_their_share_of_slips() -> None:
    subject, _ = limiter({32: 1})
    clients = [ip_address(f"192.0.2.{1 + i % 2}").packed for i in range(42)]
    over = list(subject.admit(clients, [QUESTION] * 42) or ())[2:]
    assert [sum(v != DROP for v in over[first::2]) for first in (0, 1)] == [10, 10]


def test_a_slip_is_an_empty_answer_that_sends_a_client_to_tcp() -> None:
    subject, _ = limiter({32: 1}, slip=100)
    for rest in (b"", edns()):
        asked = query("WWW.example", rest=rest)
        reply = verdicts(subject, "192.0.2.1", 2, asked[2:])[1]
        answer = dns.message.from_wire(asked[:2] + reply)
        assert dns.message.from_wire(asked).is_response(answer)
        assert answer.rcode() == 0
        assert answer.flags & dns.flags.TC
        assert not answer.answer + answer.authority + answer.additional
        assert answer.edns == (0 if rest else -1)
        assert len(reply) <= len(asked)


@pytest.mark.parametrize(
    "packet",
    [query("a", flags=0x8000), query("a")[:11], b"\0\0\x81"],
    ids=["a response", "eleven octets", "three octets"],
)
def test_what_is_never_answered_does_not_slip_either(packet: bytes) -> None:
    subject, _ = limiter({32: 1}, slip=100)
    assert verdicts(subject, "192.0.2.1", 3, packet[2:]) == [None, DROP, DROP]


@pytest.mark.parametrize(
    "packet",
    [query("a", flags=0x2800), query("a")[:-1], query("a", rest=b"\0\0\x29")],
    ids=["an update", "a question cut short", "a record cut short"],
)
def test_nonsense_is_charged_and_slips_as_a_bare_header(packet: bytes) -> None:
    subject, _ = limiter({32: 1}, slip=100)
    reply = verdicts(subject, "192.0.2.1", 2, packet[2:])[1]
    assert len(reply) == 10
    assert reply[0] == 0x82 | packet[2] & 0x78 | packet[2] & 1
    assert reply[1] == 0


def test_the_health_name_is_never_charged_and_passes_while_its_client_is_limited() -> None:
    subject, _ = limiter({32: 3}, slip=0)
    health = query("health.KUDURRU.internal", 28, rest=edns())[2:]
    assert verdicts(subject, "192.0.2.1", 100, health) == [None] * 100
    assert subject.statistics().buckets == 0
    client = ip_address("192.0.2.1").packed
    mixed = [QUESTION, health] * 5
    assert subject.admit([client] * 10, mixed) == [None] * 6 + [DROP, None, DROP, None]
    assert passed(subject, "192.0.2.1") == 0


@pytest.mark.parametrize(
    "packet",
    [
        query("health.kudurru.internal.example"),
        query("my.health.kudurru.internal"),
        query("health.kudurru.internal", qclass=3),
        query("health.kudurru.internal", flags=0x2000),
        query("health.kudurru.internal").replace(b"\0\1\0\0", b"\0\2\0\0", 1),
    ],
    ids=["below", "above", "another class", "another opcode", "two questions"],
)
def test_what_only_looks_like_the_health_name_is_charged(packet: bytes) -> None:
    subject, _ = limiter({32: 2})
    assert verdicts(subject, "192.0.2.1", 9, packet[2:]).count(None) == 2


def test_the_least_recently_used_bucket_goes_first_and_starts_full_again() -> None:
    subject, _ = limiter({32: 2}, max_buckets=64)
    assert passed(subject, "192.0.2.1", 2) == passed(subject, "192.0.2.2", 2) == 2
    for i in range(63):
        passed(subject, f"198.51.100.{i}")
        assert passed(subject, "192.0.2.1") == 0
    assert subject.statistics().buckets == 64
    assert passed(subject, "192.0.2.1") == 0
    assert passed(subject, "192.0.2.2", 3) == 2


def test_new_limits_count_from_the_next_query() -> None:
    subject, _ = limiter({32: 1})
    assert passed(subject, "192.0.2.1", 9) == 1
    subject.configure(RatelimitSettings(ipv4={32: 5}, exempt=()))
    assert passed(subject, "192.0.2.1", 9) == 5


@given(
    limits=st.dictionaries(st.integers(24, 32), st.integers(0, 9), min_size=1, max_size=3),
    batches=st.lists(
        st.tuples(st.integers(0, 9_000_000), st.lists(st.integers(0, 7), min_size=1, max_size=12)),
        max_size=12,
    ),
)
def test_a_batch_is_charged_as_its_queries_one_by_one_in_order_of_clients(limits, batches) -> None:
    """Against buckets of plain fractions."""
    subject, clock = limiter(limits)
    tokens: dict[tuple[int, int], float] = {}
    levels = sorted((length for length in limits if limits[length]), reverse=True)
    for wait_us, hosts in batches:
        clock.advance(wait_us)
        for length, prefix in tokens:
            filled = tokens[length, prefix] + limits[length] * wait_us / MINUTE_US
            tokens[length, prefix] = min(limits[length], filled)
        order = list(dict.fromkeys(hosts))
        clients = [bytes((192, 0, 2, host * 31)) for host in hosts]
        got = subject.admit(clients, [QUESTION] * len(hosts)) or [None] * len(hosts)
        for host in order:
            allowed = 0
            for _ in range(hosts.count(host)):
                allowed += take(tokens, limits, levels, host * 31)
            mine = [v is None for h, v in zip(hosts, got, strict=True) if h == host]
            assert mine == [True] * allowed + [False] * (len(mine) - allowed)


def take(tokens, limits, levels, value: int) -> bool:
    for length in levels:
        bucket = length, value >> (32 - length)
        tokens.setdefault(bucket, limits[length])
        if tokens[bucket] < 1 - 1e-9:
            return False
        tokens[bucket] -= 1
    return True


def test_a_slip_carries_the_cookie_that_its_client_waits_for() -> None:
    """RFC 7873 section 5.3: a client that expects a cookie discards what has none."""
    cookies = Cookies(bytes(32))
    clock = StillClock()
    settings = RatelimitSettings(ipv4={32: 1}, exempt=(), slip=100)
    subject = RateLimiter(settings, clock, cookies, new_buckets())
    own = b"clientck"
    known = cookies.judge(own, "192.0.2.1", clock.now_us() // 1_000_000)
    for shown, wanted in (
        (known.cookie, known.cookie),
        (own, known.cookie),
        (b"odd", None),
        (None, None),
    ):
        rest = b"" if shown is None else edns_with(COOKIE, shown)
        packet = query("www.example", rest=rest)
        verdict = verdicts(subject, "192.0.2.1", 2, packet[2:])[1]
        answer = dns.message.from_wire(packet[:2] + verdict)
        assert answer.flags & dns.flags.TC
        found = [bytes(option.client + option.server) for option in answer.options]
        assert found == ([] if wanted is None else [wanted])
