"""Much of a zone is not lost by accident, whatever way a change comes in."""

from collections.abc import Awaitable, Callable

import pytest

from kudurru.domain.errors import MassChange
from kudurru.domain.objects import Key, key_of
from kudurru.domain.ports import Store
from tests.conformance.store.drivers import on_every_store
from tests.objects import Document, document, endpoint

HOSTS = 10


def zone(**spec: object) -> Document:
    return document("DNSZone", "example.org", {"zoneName": "example.org.", **spec})


def host(i: int, *, address: str = "192.0.2.1") -> Document:
    spec = {
        "zoneRef": {"name": "example.org"},
        "endpoints": [endpoint(f"h{i}.example.org", "A", address)],
    }
    return document("DNSRecordSet", f"h{i}", spec)


def key(i: int) -> Key:
    return key_of("DNSRecordSet", "default", f"h{i}")


Way = Callable[[Store, bool], Awaitable[object]]

WAYS: dict[str, Way] = {
    "a batch that deletes": lambda store, allow: store.apply_many(
        [], "alice", delete=[key(i) for i in range(5)], allow_mass_change=allow
    ),
    "a batch that alters": lambda store, allow: store.apply_many(
        [host(i, address="192.0.2.9") for i in range(5)], "alice", allow_mass_change=allow
    ),
    "the zone itself": lambda store, allow: store.delete(
        key_of("DNSZone", "", "example.org"), allow_mass_change=allow
    ),
    "a TTL for every record": lambda store, allow: store.apply(
        zone(defaultTTL=60), "alice", allow_mass_change=allow
    ),
}


@on_every_store
async def test_much_of_a_zone_is_lost_only_when_it_is_meant(store: Store) -> None:
    for way, change in WAYS.items():
        await store.apply_many([zone(), *(host(i) for i in range(HOSTS))], "alice", force=True)
        before = await store.snapshot()
        with pytest.raises(MassChange) as refused:
            await change(store, False)
        assert refused.value.total == HOSTS, way
        assert (await store.snapshot()).objects == before.objects, way
        await change(store, True)
        assert (await store.snapshot()).objects != before.objects, way
        await store.restore(before)


@on_every_store
async def test_a_few_records_of_a_zone_go_without_more_ado(store: Store) -> None:
    await store.apply_many([zone(), *(host(i) for i in range(HOSTS))], "alice")
    await store.apply_many([], "alice", delete=[key(i) for i in range(3)])
    await store.delete(key(4))  # of seven, which is no large zone any more


NAMESERVERS = [f"ns{i}.example.net." for i in range(4)]
OTHERS = [f"dns{i}.example.com." for i in range(4)]


@on_every_store
async def test_name_servers_that_go_count_as_other_records_do(store: Store) -> None:
    whole = zone(nameservers=NAMESERVERS)
    await store.apply_many([whole, *(host(i) for i in range(HOSTS))], "alice")
    lost = [key(0)]
    for now in (zone(), zone(nameservers=OTHERS)):
        with pytest.raises(MassChange) as refused:
            await store.apply_many([now], "alice", delete=lost)
        assert (refused.value.changed, refused.value.total) == (5, 14)
    await store.apply(zone(nameservers=[*NAMESERVERS, "ns4.example.net."]), "alice")
    await store.apply(zone(nameservers=NAMESERVERS), "alice")
    await store.apply_many([zone()], "alice", delete=lost, allow_mass_change=True)


@on_every_store
async def test_another_ttl_of_name_servers_loses_nothing(store: Store) -> None:
    whole = zone(nameservers=NAMESERVERS)
    await store.apply_many([whole, *(host(i) for i in range(HOSTS))], "alice")
    slower = zone(nameservers=NAMESERVERS, nameserverTTL=60)
    await store.apply_many([slower], "alice", delete=[key(0)])
    await store.apply_many([whole, host(1, address="192.0.2.9")], "alice")


@on_every_store
async def test_name_servers_make_no_zone_large(store: Store) -> None:
    hosts = [host(i) for i in range(HOSTS - 1)]
    await store.apply_many([zone(nameservers=NAMESERVERS), *hosts], "alice")
    await store.apply(zone(nameservers=OTHERS), "alice")
    await store.apply_many([host(i, address="192.0.2.9") for i in range(6)], "alice")
    await store.apply(zone(nameservers=OTHERS, defaultTTL=60), "alice")
    await store.apply_many([], "alice", delete=[key(i) for i in range(6)])
    await store.delete(key_of("DNSZone", "", "example.org"))
