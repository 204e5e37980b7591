"""How many connections there may be, and of whom."""

import asyncio
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from kudurru.adapters.connections import ConnectionLimits, Connections, network_of, site_of

LIMITS = ConnectionLimits()


class One:
    deadline_s = 0.0

    def __init__(self, address: str) -> None:
        self.network = network_of(address)

    def expire(self) -> None:
        raise AssertionError("no deadline passes here")

    close = abort = expire


def opened(connections: Connections[One], *addresses: str) -> list[One]:
    """Those of a connection from each address that there was room for."""
    return [one for one in map(One, addresses) if connections.add(one)]


def from_site(site: str, count: int) -> list[str]:
    """Addresses of as many networks of a /48 as one per network needs."""
    return [f"{site}:{number:x}::1" for number in range(count)]


async def made(limits: ConnectionLimits = LIMITS) -> Connections[One]:
    return Connections(limits)


def test_who_has_a_site_leaves_others_a_quarter() -> None:
    """A customer of most providers has 256 networks or more."""
    connections = asyncio.run(made())
    greedy = opened(connections, *from_site("2001:db8:1", 5_000))
    assert len(greedy) == LIMITS.connections * 3 // 4
    others = opened(connections, *from_site("2001:db8:2", 50), *["192.0.2.1"] * 60)
    assert len(others) == 100
    for one in (*greedy, *others):
        connections.discard(one)
    assert opened(connections, "2001:db8:1:1::1")
    assert connections._per_site == {"2001:db8:1::/48": 1}, "what is gone is forgotten"


def test_as_long_as_there_is_room_a_site_may_have_it() -> None:
    connections = asyncio.run(made())
    some = opened(connections, *from_site("2001:db8:1", 600))
    assert len(some) == 600
    others = [f"192.0.2.{number}" for number in range(200)]
    assert len(opened(connections, *others)) == 200
    assert not opened(connections, "2001:db8:1:ffff::1")


def test_addresses_of_ipv4_are_no_site() -> None:
    connections = asyncio.run(made())
    addresses = (f"10.0.{number >> 8}.{number & 255}" for number in range(2_000))
    assert len(opened(connections, *islice(addresses, 2_000))) == LIMITS.connections


def test_a_limit_for_one_network_that_is_higher_than_half_counts_for_its_site_too() -> None:
    connections = asyncio.run(made(ConnectionLimits(connections=512, connections_per_network=400)))
    assert len(opened(connections, *["2001:db8:1:1::1"] * 500)) == 400


@given(st.ip_addresses(v=6).map(str))
def test_all_networks_of_a_site_have_it(address: str) -> None:
    site = site_of(network_of(address))
    assert site.endswith("/48")
    assert site_of(network_of(address.partition("%")[0])) == site


def test_a_connection_that_moves_leaves_its_site() -> None:
    connections = asyncio.run(made())
    (one,) = opened(connections, "2001:db8:1:1::1")
    assert connections.move(one, network_of("2001:db8:2:1::1"))
    assert connections._per_site == {"2001:db8:2::/48": 1}
    assert connections.move(one, "192.0.2.1")
    assert not connections._per_site
