import json
from ipaddress import ip_address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.dns.cookies import RECENT_MAX, Cookies, Verdict, server_cookie, siphash_2_4

CASES = json.loads(
    (Path(__file__).parents[1] / "conformance/data/rfc/rfc9018_cookies.json").read_text()
)
SECRET = bytes(range(32))
CLIENT = b"12345678"
NOON_S = 1_700_049_600  # of a day, UTC
HERE, THERE = "192.0.2.1", "2001:db8::1"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_server_cookies_are_those_of_rfc_9018_appendix_a(case: dict[str, str]) -> None:
    whole = bytes.fromhex(case["cookie"])
    own, head, address = whole[:8], whole[8:16], ip_address(case["client_ip"]).packed
    assert server_cookie(bytes.fromhex(case["secret"]), own, head, address) == whole[8:]


# From the vectors of the reference implementation: key 00..0f, message 00, 01, 02, …
@pytest.mark.parametrize(
    ("size", "digest"),
    [
        (0, "310e0edd47db6f72"),
        (1, "fd67dc93c539f874"),
        (7, "37d1018bf50002ab"),
        (8, "6224939a79f5f593"),
        (15, "e545be4961ca29a1"),
        (63, "724506eb4c328a95"),
    ],
)
def test_siphash_is_that_of_its_authors(size: int, digest: str) -> None:
    assert siphash_2_4(bytes(range(16)), bytes(range(size))).hex() == digest


def fresh(client: str = HERE, now_s: int = NOON_S, secret: bytes = SECRET) -> bytes:
    verdict = Cookies(secret).judge(CLIENT, client, now_s)
    assert verdict is not None
    assert not verdict.is_proven
    return verdict.cookie


@pytest.mark.parametrize("client", [HERE, THERE])
@pytest.mark.parametrize(
    ("later_s", "is_proven", "is_renewed"),
    [
        (0, True, False),
        (1800, True, False),
        (1801, True, True),
        (3600, True, True),
        (3601, False, True),
        (-300, True, False),
        (-301, False, True),
        (1 << 31, False, True),
    ],
)
def test_a_cookie_is_good_for_an_hour_and_renewed_after_half_of_it(
    client: str, later_s: int, is_proven: bool, is_renewed: bool
) -> None:
    shown = fresh(client)
    verdict = Cookies(SECRET).judge(shown, client, NOON_S + later_s)
    renewed = fresh(client, NOON_S + later_s)
    assert verdict == Verdict(renewed if is_renewed else shown, is_proven)


def test_a_cookie_of_another_client_secret_version_or_octet_proves_nothing() -> None:
    shown = fresh()
    cookies = Cookies(SECRET)
    changed = [shown[:i] + bytes((shown[i] ^ 1,)) + shown[i + 1 :] for i in range(24)]
    others = [fresh(THERE), fresh(secret=bytes(32)), shown[:16], shown + b"\0", shown + bytes(16)]
    for one in changed + others:
        verdict = cookies.judge(one, HERE, NOON_S)
        assert verdict is not None
        assert not verdict.is_proven
        assert verdict.cookie[:8] == one[:8]
        assert len(verdict.cookie) == 24
    assert cookies.judge(shown, HERE, NOON_S) == Verdict(shown, True)


@pytest.mark.parametrize("size", [0, 1, 7, 9, 15, 41, 100])
def test_no_cookie_has_such_a_length(size: int) -> None:
    assert Cookies(SECRET).judge(bytes(size), HERE, NOON_S) is None


def test_each_day_has_its_own_secret_and_cookies_live_through_midnight() -> None:
    midnight_s = NOON_S + 43_200
    before = fresh(now_s=midnight_s - 10)
    assert Cookies(SECRET).judge(before, HERE, midnight_s + 10) == Verdict(before, True)
    yesterday = Cookies(SECRET)._key(midnight_s - 10)
    here = ip_address(HERE).packed
    assert CLIENT + server_cookie(yesterday, CLIENT, before[8:16], here) == before
    today = b"\1\0\0\0" + (midnight_s + 10).to_bytes(4, "big")
    forged = CLIENT + server_cookie(yesterday, CLIENT, today, here)
    assert not Cookies(SECRET).judge(forged, HERE, midnight_s + 10).is_proven


def test_a_remembered_cookie_ages_like_any_other() -> None:
    cookies, shown = Cookies(SECRET), fresh()
    for later_s in (0, 1799, 1799):
        assert cookies.judge(shown, HERE, NOON_S + later_s) == Verdict(shown, True)
    assert cookies.judge(shown, THERE, NOON_S + 1) != Verdict(shown, True)
    assert cookies.judge(shown, HERE, NOON_S + 1801).cookie != shown
    assert not cookies.judge(shown, HERE, NOON_S + 3601).is_proven


def test_what_is_remembered_is_bounded() -> None:
    cookies = Cookies(SECRET)
    for i in range(RECENT_MAX + 10):
        own = i.to_bytes(8, "big")
        cookies._recent[HERE, own] = 0
        if i % 512 == 0:
            cookies.judge(cookies.judge(own, HERE, NOON_S).cookie, HERE, NOON_S)
    assert len(cookies._recent) <= RECENT_MAX + 512


@given(option=st.binary(max_size=48), client=st.sampled_from([HERE, THERE]))
def test_any_octets_get_a_verdict(option: bytes, client: str) -> None:
    verdict = Cookies(SECRET).judge(option, client, NOON_S)
    if verdict is not None:
        assert Cookies(SECRET).judge(verdict.cookie, client, NOON_S + 5) == Verdict(
            verdict.cookie, True
        )
