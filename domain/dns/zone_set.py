"""The zones that are served, found by name."""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from kudurru.domain.dns import names
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.record_types import DS
from kudurru.domain.dns.zone_tree import Zone


class ZoneSet:
    """The zones that are served, by apex, and the apexes at and below which others are asked (zones
    of type Forward): what a zone above them holds there is not told.

    A large change is made while questions come in, and none of them must see a part of it: between
    `hold` and `show` all readers see the zones as they were. Whoever changes a zone calls
    `before_change` first, and tells who remembers answers of `changes` afterwards.
    """

    __slots__ = ("_changes", "_next", "_next_forwards", "_zones", "forwards", "touched")

    def __init__(self, zones: Iterable[Zone] = ()) -> None:
        self._zones: dict[bytes, Zone] = {zone.key: zone for zone in zones}
        self.forwards: Mapping[Name, tuple[str, ...]] = {}
        """Upstreams of what is forwarded, by apex. Replaced when it changes."""
        self._next: dict[bytes, Zone] | None = None  # what `show` brings
        self._next_forwards: Mapping[Name, tuple[str, ...]] = self.forwards
        self._changes: set[bytes] | None = set()
        self.touched: set[bytes] | None = None
        """Zones, by apex, that are new, gone or changed since whoever copies them looked; None:
        nobody does."""

    def touch_all(self) -> None:
        """From now on note what is touched, beginning with everything."""
        self.touched = set(self._zones)

    def hold(self) -> None:
        self._next, self._next_forwards = self._zones.copy(), self.forwards

    def show(self) -> None:
        """End of `hold`: everything at once."""
        if self._next is not None:
            self._zones, self._next = self._next, None
            self.forwards = self._next_forwards

    @property
    def is_held(self) -> bool:
        return self._next is not None

    def changes(self) -> set[bytes] | None:
        """Zones, by apex, that changed since this was asked last. None: other zones are served, so
        whatever was answered may be answered by another one now."""
        changes, self._changes = self._changes, set()
        return changes

    def note_change(self, apex_key: bytes | None) -> None:
        """For `changes`. None: anything may be answered otherwise."""
        if apex_key is None:
            self._changes = None
        elif self._changes is not None:
            self._changes.add(apex_key)

    def before_change(self, zone: Zone) -> None:
        self._touch(zone.key)
        self.note_change(zone.key)
        if self._next is not None and self._zones.get(zone.key) is zone:
            self._zones[zone.key] = zone.as_it_is()

    def add(self, zone: Zone) -> None:
        """Serve a zone, in place of one with the same apex."""
        self._touch(zone.key)
        served = self._zones if self._next is None else self._next
        if served.get(zone.key) is not zone:
            served[zone.key] = zone
            self.note_change(None)

    def remove(self, apex_key: bytes) -> None:
        self._touch(apex_key)
        served = self._zones if self._next is None else self._next
        if served.pop(apex_key, None) is not None:
            self.note_change(None)

    def forward(self, apex_key: Name, upstreams: tuple[str, ...] | None) -> bool:
        """Let others be asked for a name and what is below it; None: not any more. Whether that is
        another thing than before."""
        before = self.forwards if self._next is None else self._next_forwards
        if upstreams == before.get(apex_key):
            return False
        forwards = {apex: texts for apex, texts in before.items() if apex != apex_key}
        if upstreams is not None:
            forwards[apex_key] = upstreams
        if self._next is None:
            self.forwards = forwards
        else:
            self._next_forwards = forwards
        self.note_change(None)
        return True

    def _touch(self, apex_key: bytes) -> None:
        if self.touched is not None:
            self.touched.add(apex_key)

    def get(self, apex_key: bytes) -> Zone | None:
        return self._zones.get(apex_key)

    def find(self, key: bytes) -> Zone | None:
        """The zone that encloses a name most closely; None too where what is forwarded does so."""
        get, forwards = self._zones.get, self.forwards
        while (zone := get(key)) is None:
            if key == names.ROOT or key in forwards:
                return None
            key = key[key[0] + 1 :]
        return zone

    def is_forwarded(self, key: bytes, zone: Zone) -> bool:
        """Whether what is forwarded encloses a name of a zone more closely than that zone."""
        forwards = self.forwards
        while forwards and key != zone.key:
            if key in forwards:
                return True
            key = key[key[0] + 1 :]
        return False

    def find_for(self, key: bytes, rtype: int) -> Zone | None:
        """The zone that answers for a name and type. DS at the apex of a zone belongs to its
        parent (RFC 4035 section 3.1.4.1), where that is served here too."""
        zone = self.find(key)
        if rtype == DS and zone is not None and key == zone.key and key != names.ROOT:
            return self.find(names.parent(key)) or zone
        return zone

    def statistics(self) -> "ZoneSetStatistics":
        zones = self._zones.values()
        return ZoneSetStatistics(
            names=sum(zone.name_count for zone in zones),
            records=sum(zone.record_count for zone in zones),
            serials={names.to_text(zone.key): zone.serial for zone in zones},
        )

    def __iter__(self) -> Iterator[Zone]:
        return iter(self._zones.values())

    def __len__(self) -> int:
        return len(self._zones)


class ZoneSetStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What is served now. Records are counted without SOA."""

    names: int
    records: int
    serials: dict[str, int]  # by zone name; 0: not stamped yet
