"""The contract of PacketEngine is tested on every kind of engine."""

import pytest

from tests.rigs import KINDS, OTHER_KINDS, UDP_KINDS


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=UDP_KINDS)
def udp_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=OTHER_KINDS)
def other_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)
