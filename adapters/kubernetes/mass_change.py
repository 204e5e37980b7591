"""The mass-change guard of a store whose zones nobody here has a view of.

What a change touches is read first. Most changes are of a few records, which are much of no zone
that the guard is for, and nothing else is asked; for the others record sets are read, until their
zone is seen to be large enough or to have no more.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, TypeVar

import msgspec

from kudurru.domain import codec, mass_change
from kudurru.domain.dns import names
from kudurru.domain.kinds.recordset import DNSRecordSetSpec
from kudurru.domain.kinds.registry import DNS_RECORD_SET, DNS_ZONE
from kudurru.domain.kinds.stored import read_record_set, read_zone
from kudurru.domain.kinds.zone import DNSZoneSpec
from kudurru.domain.objects import Key, key_of, ref_of

Object = dict[str, Any]
T = TypeVar("T")


class Change(msgspec.Struct, frozen=True):
    """One object, and the spec that it would have; None: it would be gone."""

    key: Key
    after: Any


class Guard:
    """`read` gives an object as the server has it, `record_sets` all of them."""

    def __init__(
        self,
        read: Callable[[Key], Awaitable[Object | None]],
        record_sets: Callable[[], AsyncIterator[Object]],
    ) -> None:
        self._read = read
        self._record_sets = record_sets

    async def check(self, changes: Iterable[Change]) -> None:
        """Raises: MassChange."""
        zones: dict[str, DNSZoneSpec | None] = {}
        sets: dict[str, dict[Key, DNSRecordSetSpec]] = {}
        after: dict[Key, Any] = {}
        for change in changes:
            ref = ref_of(change.key)
            after[change.key] = change.after
            if ref.kind == DNS_ZONE.name:
                zones[ref.name] = change.after
                sets.setdefault(ref.name, {})
            elif ref.kind == DNS_RECORD_SET.name and (was := await self._set(change.key)):
                sets.setdefault(was.zone_ref.name, {})[change.key] = was
        for name, touched in sets.items():
            before = _zone(await self._read(key_of(DNS_ZONE.name, "", name)))
            if before is not None:
                serves = _if_primary(zones[name]) if name in zones else before
                await self._check_zone(name, before, serves, touched, after)

    async def _set(self, key: Key) -> DNSRecordSetSpec | None:
        return _record_set(await self._read(key))

    async def _check_zone(
        self,
        name: str,
        before: DNSZoneSpec,
        serves: DNSZoneSpec | None,
        touched: dict[Key, DNSRecordSetSpec],
        after: dict[Key, Any],
    ) -> None:
        reaches_all = mass_change.reaches_all(before, serves)
        old, new = mass_change.nameservers_of(before), mass_change.nameservers_of(serves)
        servers, count = frozenset(old), mass_change.count(old)
        size = sum(map(mass_change.size_of, touched.values())) + mass_change.lost(old, new, servers)
        if not reaches_all and not mass_change.is_much(
            size, mass_change.RECORDS_MIN + count, count
        ):
            return
        safe_from = None if reaches_all else size
        total, every = await self._records(name, before, safe_from=safe_from)
        if every is None:
            return
        if reaches_all:
            touched |= every
        for key, was in touched.items():
            mass_change.add_records(old, was, before.default_ttl)
            is_now = after.get(key, was)
            stays = is_now is not None and is_now.zone_ref.name == name
            if stays and serves is not None and mass_change.allows(serves, key):
                mass_change.add_records(new, is_now, serves.default_ttl)
        apex = names.to_text(names.from_text(before.zone_name))
        mass_change.check(apex, mass_change.lost(old, new, servers), total, count)

    async def _records(
        self, name: str, zone: DNSZoneSpec, *, safe_from: int | None
    ) -> tuple[int, dict[Key, DNSRecordSetSpec] | None]:
        """How many records a zone has, and the sets that they are in; None once there are so many
        that `safe_from` of them are not much."""
        records = mass_change.nameservers_of(zone)
        sets: dict[Key, DNSRecordSetSpec] = {}
        total = count = mass_change.count(records)
        async for found in self._record_sets():
            key, spec = _key(found), _record_set(found)
            if spec is None or spec.zone_ref.name != name or not mass_change.allows(zone, key):
                continue
            sets[key] = spec
            total += _added(records, spec, zone.default_ttl)
            is_large = total - count >= mass_change.RECORDS_MIN
            if (
                safe_from is not None
                and is_large
                and not mass_change.is_much(safe_from, total, count)
            ):
                return total, None
        return total, sets


def _added(every: mass_change.Records, spec: DNSRecordSetSpec, ttl: int) -> int:
    """How many records there are more, once those of a set are among them."""
    own: mass_change.Records = {}
    mass_change.add_records(own, spec, ttl)
    added = 0
    for identity, rdatas in own.items():
        there = every.setdefault(identity, {})
        before = len(there)
        there.update(rdatas)
        added += len(there) - before
    return added


def _zone(held: Object | None) -> DNSZoneSpec | None:
    """A zone that serves record sets."""
    return _if_primary(_read(_zone_with_names, held))


def _zone_with_names(stored: bytes) -> DNSZoneSpec:
    """Raises: ValueError, also of names that are none: the definition in the cluster takes any
    text."""
    spec = read_zone(stored)
    mass_change.nameservers_of(spec)
    return spec


def _if_primary(spec: DNSZoneSpec | None) -> DNSZoneSpec | None:
    return spec if spec is not None and spec.type == "Primary" else None


def _record_set(held: Object | None) -> DNSRecordSetSpec | None:
    return _read(read_record_set, held)


def _read(reader: Callable[[bytes], T], held: Object | None) -> T | None:
    """The spec of an object, None of one that no version of ours wrote: it serves nothing."""
    if held is None:
        return None
    try:
        return reader(codec.canonical(held.get("spec") or {}))
    except (TypeError, ValueError):
        return None


def _key(held: Object) -> Key:
    metadata = held["metadata"]
    return key_of(DNS_RECORD_SET.name, metadata.get("namespace", ""), metadata["name"])
