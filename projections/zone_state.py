"""One DNSZone as the zone view knows it, and what a snapshot has of it."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

import msgspec

from kudurru.domain.dns import names
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.zone_tree import Zone, ZoneFrame
from kudurru.domain.kinds.zone import DNSZoneSpec
from kudurru.domain.objects import Key, name_of, ref_of

PART_NODES = 20_000
"""Owners in one part of a snapshot: some megabytes."""

NO_PLACE = -1


class ZoneState:
    """A DNSZone object, and the zone it serves when it does."""

    __slots__ = (
        *("apex", "created", "key", "name", "sources", "spec"),
        *("troubled", "unselected", "zone"),
    )

    def __init__(self, key: Key, created: str, spec: DNSZoneSpec) -> None:
        self.key = key
        self.name = name_of(key)
        self.created = created
        self.spec = spec
        self.apex = names.key(names.from_text(spec.zone_name))
        self.zone: Zone | None = None  # None: another DNSZone serves the name, or type Forward
        self.sources: dict[Name, Key | tuple[Key, ...]] = {}
        self.troubled: set[Key] = set()  # record sets in it that have problems
        self.unselected: set[Key] = set()  # record sets of namespaces that are not allowed

    def sources_of(self, owner: Name) -> tuple[Key, ...]:
        found = self.sources.get(owner, ())
        return found if isinstance(found, tuple) else (found,)

    def add_source(self, owner: Name, key: Key) -> None:
        # Nearly every owner has one record set: a bare key saves a tuple for each of a million.
        found = self.sources_of(owner)
        if key not in found:
            self.sources[owner] = (*found, key) if found else key

    def remove_source(self, owner: Name, key: Key) -> None:
        left = tuple(k for k in self.sources_of(owner) if k != key)
        if not left:
            self.sources.pop(owner, None)
        else:
            self.sources[owner] = left[0] if len(left) == 1 else left

    def record_sets(self) -> set[Key]:
        """Keys of the record sets that take part in the zone."""
        return {key for owner in self.sources for key in self.sources_of(owner)}

    @property
    def is_shown(self) -> bool:
        """Whether the zone may be answered from: once it has a serial, for nobody must see its SOA
        without one."""
        return self.zone is not None and self.zone.stamped_soa is not None

    def allows_set(self, key: Key) -> bool:
        """Whether a record set is of a namespace that may have records here."""
        allowed = self.spec.allowed_namespaces
        return allowed is None or ref_of(key).namespace in allowed


class _State(msgspec.Struct, frozen=True, array_like=True):
    """A state but for the nodes of its zone, which are in the parts that follow, with their
    sources. Sources are places in a list of keys: that list is held anyway, and a million keys
    that are not written twice are not held twice either."""

    key: Key
    created: str
    spec: DNSZoneSpec
    zone: ZoneFrame | None
    unselected: list[Key]
    sources: dict[Name, list[Key]]
    """Of owners that have no node, or several record sets."""
    troubled: list[Key] = []


class _Nodes(msgspec.Struct, frozen=True, array_like=True):
    nodes: dict[bytes, bytes]
    sources: list[int]  # places; NO_PLACE for a node that has none, or is told of in `_State`


_END = msgspec.msgpack.encode([])
_decode_state = msgspec.msgpack.Decoder(_State).decode
_decode_nodes = msgspec.msgpack.Decoder(_Nodes).decode


def dump_state(state: ZoneState, places: Mapping[Key, int]) -> Iterator[bytes]:
    """`places` are those of the keys in what `load_state` will get."""
    zone = state.zone
    nodes = zone.nodes if zone is not None else {}
    others = {
        owner: list(state.sources_of(owner))
        for owner, found in state.sources.items()
        if owner not in nodes or isinstance(found, tuple)
    }
    frame = zone.frame() if zone is not None else None
    unselected = sorted(state.unselected)
    yield msgspec.msgpack.encode(
        _State(
            state.key, state.created, state.spec, frame, unselected, others, sorted(state.troubled)
        )
    )
    items = iter(nodes.items())
    while some := dict(islice(items, PART_NODES)):
        yield msgspec.msgpack.encode(_Nodes(some, list(_places(state, some, places))))
    yield _END


def _places(state: ZoneState, owners: Iterable[bytes], places: Mapping[Key, int]) -> Iterator[int]:
    for owner in owners:
        source = state.sources.get(Name(owner))
        yield places[source] if isinstance(source, str) else NO_PLACE


def load_state(parts: Iterator[bytes], keys: list[Key]) -> ZoneState:
    """What `dump_state` told."""
    found = _decode_state(next(parts))
    state = ZoneState(found.key, found.created, found.spec)
    nodes: dict[bytes, bytes] = {}
    while (part := next(parts)) != _END:
        some = _decode_nodes(part)
        nodes |= some.nodes
        for owner, place in zip(some.nodes, some.sources, strict=True):
            if place != NO_PLACE:
                state.sources[Name(owner)] = keys[place]
    for owner, sources in found.sources.items():
        state.sources[owner] = tuple(sources) if len(sources) > 1 else sources[0]
    state.unselected = set(found.unselected)
    state.troubled = set(found.troubled)
    if found.zone is not None:
        state.zone = Zone.of(found.zone, nodes)
    return state
