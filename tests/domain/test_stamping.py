"""Which serial a zone's next version gets, what a stamp writes, and what the content hash is."""

import json
from hashlib import sha256, shake_256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudurru.domain.dns import records, serials
from kudurru.domain.dns.images import RRset
from kudurru.domain.dns.names import from_text
from kudurru.domain.dns.record_types import type_from_text
from kudurru.domain.dns.soa import Soa
from kudurru.domain.dns.zone_tree import Zone
from kudurru.domain.reconcile.zones import next_serial, stamped_status

GOLDEN = Path(__file__).parent / "golden" / "content_hash.json"

NOW_S = 1_800_000_000
HALF = 2**31

SERIAL = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize(
    ("stamped", "highest", "imported", "wanted"),
    [
        (None, None, None, NOW_S),
        (7, 7, None, NOW_S),
        (NOW_S, NOW_S, None, NOW_S + 1),
        (NOW_S + 3600, NOW_S + 3600, None, NOW_S + 3601),
        (None, NOW_S + 9, None, NOW_S + 10),
        (5, NOW_S + 9, None, NOW_S + 10),
        (None, None, 2026112901, 2026112901),
        (None, None, 1, 1),
        (NOW_S, NOW_S, 2026112901, 2026112901),
        (2026112901, 2026112901, 2026112902, 2026112902),
        (2026112902, 2026112902, 2026112901, 2026112903),
        (2026112901, 2026112901, 2026112901, 2026112902),
        (None, 2026112905, 2026112901, 2026112906),
        (None, None, 0, NOW_S),
        (2**32 - 1, 2**32 - 1, 5, 5),
        (2**32 - 1, 2**32 - 1, None, NOW_S),
        (5, 5, 5 + HALF, NOW_S),
        (NOW_S + HALF, NOW_S + HALF, None, NOW_S + HALF + 1),
    ],
    ids=[
        "the first is unix time",
        "a small serial moves to unix time",
        "several changes in a second step by one",
        "a clock that went back an hour does not take the serial back",
        "a zone that was deleted goes on from the highest",
        "a zone that was restored goes on from the highest",
        "an imported serial is kept",
        "an imported serial is kept however small",
        "an imported serial that is newer is kept",
        "the next import is kept",
        "an imported serial that is older is not",
        "an imported serial that was published with other content is not",
        "an imported serial below the highest of the name is not",
        "an imported 0 is no serial",
        "an imported serial after the wrap-around is newer",
        "unix time after the wrap-around is newer",
        "at half the space an imported serial is not newer",
        "at half the space unix time is not newer",
    ],
)
def test_the_next_serial(
    stamped: int | None, highest: int | None, imported: int | None, wanted: int
) -> None:
    found = next_serial(stamped=stamped, highest_published=highest, imported=imported, now_s=NOW_S)
    assert found == wanted


def test_the_serial_rises_with_each_change_while_the_clock_is_an_hour_behind() -> None:
    serial = next_serial(stamped=None, highest_published=None, imported=None, now_s=NOW_S)
    for second in range(5):
        now_s = NOW_S - 3600 + second
        later = next_serial(stamped=serial, highest_published=serial, imported=None, now_s=now_s)
        assert later == serial + 1
        serial = later


def test_when_the_clock_moves_on_the_serial_catches_up_with_it() -> None:
    after_burst = NOW_S + 40
    found = next_serial(
        stamped=after_burst, highest_published=after_burst, imported=None, now_s=NOW_S + 41
    )
    assert found == NOW_S + 41


def test_the_stamp_after_an_import_is_at_least_its_successor() -> None:
    imported = NOW_S + 1000
    assert (
        next_serial(stamped=imported, highest_published=imported, imported=None, now_s=NOW_S)
        == imported + 1
    )


@pytest.mark.parametrize(("stamped", "wanted"), [(None, 1), (41, 42), (2**32 - 1, 1)])
def test_a_clock_that_jumped_is_not_followed(stamped: int | None, wanted: int) -> None:
    found = next_serial(
        stamped=stamped,
        highest_published=stamped,
        imported=None,
        now_s=NOW_S + 10**8,
        is_clock_trusted=False,
    )
    assert found == wanted


@given(SERIAL, st.none() | SERIAL, st.none() | SERIAL, st.integers(0, 2**33), st.booleans())
def test_a_serial_is_never_zero_and_newer_than_what_was_published(
    highest: int, behind: int | None, imported: int | None, now_s: int, is_clock_trusted: bool
) -> None:
    stamped = highest
    if behind is not None:
        stamped = (highest - behind % HALF) % 2**32  # what is stamped is not above the highest
    found = next_serial(
        stamped=stamped,
        highest_published=highest,
        imported=imported,
        now_s=now_s,
        is_clock_trusted=is_clock_trusted,
    )
    assert 0 < found < 2**32
    assert serials.is_newer(found, highest)


# What is written


def test_a_stamp_keeps_the_fields_that_others_write() -> None:
    before = {"conditions": [{"type": "Ready"}], "serial": 1, "contentHash": "old"}
    assert stamped_status(before, serial=2, content_hash="new", record_count=3, generation=4) == {
        "conditions": [{"type": "Ready"}],
        "observedGeneration": 4,
        "serial": 2,
        "contentHash": "new",
        "recordCount": 3,
    }
    assert before["serial"] == 1


def test_the_first_stamp_needs_no_status_before() -> None:
    found = stamped_status(None, serial=2, content_hash="h", record_count=0, generation=1)
    assert set(found) == {"observedGeneration", "serial", "contentHash", "recordCount"}


# The content hash, computed from the golden file alone, and by the zone


def golden() -> dict[str, Any]:
    return json.loads(GOLDEN.read_text())


def golden_zone(changes: dict[int, dict[str, Any]] | None = None) -> Zone:
    """The zone of the golden file, with fields of some of its RRsets changed."""
    parts = [row["says"] | (changes or {}).get(i, {}) for i, row in enumerate(golden()["elements"])]
    mname, rname, _, *times = parts[0]["rdata"][0].split()
    refresh, retry, expire, minimum = map(int, times)
    zone = Zone(
        from_text(parts[0]["owner"]),
        Soa(
            mname=from_text(mname),
            rname=from_text(rname),
            refresh=refresh,
            retry=retry,
            expire=expire,
            minimum=minimum,
            ttl=parts[0]["ttl"],
        ),
    )
    owners: dict[str, list[RRset]] = {}
    for part in parts[1:]:
        rtype = type_from_text(part["type"])
        rdatas = tuple(records.rdata_from_text(rtype, text) for text in part["rdata"])
        owners.setdefault(part["owner"], []).append(RRset(rtype, part["ttl"], rdatas))
    for owner, rrsets in owners.items():
        zone.replace(from_text(owner), rrsets)
    return zone


def test_an_element_is_its_parts_one_after_another() -> None:
    for row in golden()["elements"]:
        octets = bytes.fromhex("".join("".join(row["parts"]).split()))
        assert octets.hex() == row["element"]
        assert octets[:1].hex() == row["parts"][0][:2]


def test_the_content_hash_follows_from_the_elements_by_hand() -> None:
    total = 0
    for row in golden()["elements"]:
        total += int.from_bytes(shake_256(bytes.fromhex(row["element"])).digest(256), "big")
    assert sha256((total % 2**2048).to_bytes(256, "big")).hexdigest() == golden()["contentHash"]


def test_the_content_hash_of_the_golden_zone_never_changes() -> None:
    assert golden_zone().digest() == golden()["contentHash"]


@pytest.mark.parametrize(
    "change",
    [
        {0: {"ttl": 901}},
        {0: {"rdata": ["ns.home.example. host.home.example. 0 3600 600 86400 301"]}},
        {1: {"ttl": 299}},
        {1: {"rdata": ["ns2.home.example."]}},
        {2: {"owner": "wwx.home.example."}},
        {2: {"rdata": ["192.0.2.1"]}},
        {3: {"type": "SPF"}},
        {4: {"rdata": ["10 WWW.home.example."]}},
    ],
)
def test_the_content_hash_is_sensitive_to_every_field(change: dict[int, Any]) -> None:
    assert golden_zone(change).digest() != golden()["contentHash"]


@pytest.mark.parametrize(
    "change",
    [
        {2: {"rdata": ["192.0.2.2", "192.0.2.1"]}},
        {2: {"rdata": ["192.0.2.1", "192.0.2.2", "192.0.2.1"]}},
        {2: {"owner": "WWW.home.example."}, 3: {"owner": "WWW.home.example."}},
        {0: {"rdata": ["ns.home.example. host.home.example. 7 3600 600 86400 300"]}},
    ],
    ids=["order", "duplicates", "case of an owner", "serial"],
)
def test_the_content_hash_ignores_what_is_no_content(change: dict[int, Any]) -> None:
    assert golden_zone(change).digest() == golden()["contentHash"]
