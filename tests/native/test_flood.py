"""A flood from forged prefixes, between two network namespaces: who was there before goes on being
answered."""

import sys
from pathlib import Path

import pytest

from kudurru.adapters.dns.engine_native import is_available
from tests.absent import absent
from tests.bench.flood import flooded, shown

NAMES = 2_000
TIMES = 10  # the peak
SECONDS = 6
GROWTH_MAX = 8 << 20
"""Octets: a flood of millions of names and 131,072 clients has nothing to fill."""

ANSWERED_MIN = 0.9
"""The goal is 0.99, and all are answered beside fifteen other programs too. But who waits for a
processor for a second has answered none. Without anything against floods one in ten is."""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux", reason="the engine is for Linux")
def test_who_was_there_before_a_flood_is_answered_during_it_and_memory_is_flat(
    tmp_path: Path,
) -> None:
    if not is_available():
        absent("the native engine is not built")
    peak_per_s, found = flooded(tmp_path, SECONDS, TIMES, NAMES)
    print(shown(peak_per_s, found))
    assert found.honest.answered >= ANSWERED_MIN * found.honest.sent
    assert found.after - found.before < GROWTH_MAX
