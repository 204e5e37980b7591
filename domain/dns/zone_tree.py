"""Zones as they are served: one packed image per owner, and what lookup needs around it.

An *image* holds every RRset of one owner in answer-ready wire form, in order of type:

    2 octets   type
    4 octets   number of records
    4 octets   length of what follows for this type
    records    C0 0C, type, class IN, TTL, RDLENGTH, RDATA (uncompressed, in canonical order)

The owner of each record is a pointer to octet 12 of a message, where the question's name stands, so
the usual answer is header, question and a slice of an image. One bytes object per owner, because a
million owners are held, and a garbage collector does not visit bytes. The SOA is in no image: its
serial moves by itself.

A zone answers from its newest content, but a secondary must never see new content under an old
serial. So a zone remembers what each owner held when it was stamped last (the *overlay*): the
stamped version can be read whole, and the next stamp says what changed, at the cost of the change.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from struct import Struct as Layout
from typing import NamedTuple

import msgspec

from kudurru.domain.dns import names, records
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.record_types import DNAME, DS, NS, SOA
from kudurru.domain.set_digest import SetDigest

CLASS_IN = 1

QUESTION_POINTER = b"\xc0\x0c"

_RRSET_HEAD = Layout("!HII")
_RRSET_HEAD_SIZE = _RRSET_HEAD.size
_COUNTS_SIZE = 6  # octets of it before the length
_RR_HEAD = Layout("!2sHHIH")
_RR_HEAD_SIZE = _RR_HEAD.size
_SINGLE_HEAD = Layout("!HII2sHHIH")  # the two of an RRset of one record
_SOA_NUMBERS = Layout("!IIIII")
_TYPE_AND_TTL = Layout("!HI")

UNSETTLED_MAX = 1_000
"""Owners of a zone whose change is not in its digest yet: what changes again and again is counted
once, and to catch up takes a few milliseconds."""

EMPTY = b""
"""Image of an owner that has nothing."""


class RRset(msgspec.Struct, frozen=True, gc=False):
    """Records of one owner and type. `rdatas` are uncompressed wire; `expires_at_s` is the unix
    time at which the first of them goes away, None: never."""

    rtype: int
    ttl: int
    rdatas: tuple[bytes, ...]
    expires_at_s: int | None = None


class PackedRRset(NamedTuple):
    """An RRset inside an image: `wire` holds its records one after another."""

    rtype: int
    rr_count: int
    wire: bytes


class Record(NamedTuple):
    rtype: int
    ttl: int
    rdata: bytes


class Soa(msgspec.Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """A SOA record but for its serial (RFC 1035 section 3.3.13). Times are in seconds."""

    mname: Name
    rname: Name
    refresh: int
    retry: int
    expire: int
    minimum: int
    ttl: int

    def rdata(self, serial: int) -> bytes:
        times = (serial, self.refresh, self.retry, self.expire, self.minimum)
        return self.mname + self.rname + _SOA_NUMBERS.pack(*times)

    @property
    def negative_ttl(self) -> int:
        """How long a "no" may be kept (RFC 2308 section 5)."""
        return min(self.ttl, self.minimum)


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """What changed from one stamped version to the next. `changes` maps an owner's key to its
    image before and after; EMPTY where it had or has nothing. `from_serial` is None for the first
    stamp: there was nothing that a secondary could have."""

    from_serial: int | None
    to_serial: int
    old_soa: Soa | None
    new_soa: Soa
    changes: dict[bytes, tuple[bytes, bytes]]


class ZoneFrame(msgspec.Struct, frozen=True, array_like=True):
    """All of a zone but its nodes, which may be many: what a snapshot keeps of it."""

    apex: Name
    soa: Soa
    serial: int
    stamped_soa: Soa | None
    children: dict[bytes, int]
    cuts: list[bytes]
    dnames: list[bytes]
    cased: dict[bytes, Name]
    expiring: list[tuple[bytes, int, int]]
    record_count: int
    before: dict[bytes, bytes] | None
    digest: bytes
    is_available: bool


class StampedVersion:
    """The stamped version of a zone as it was when this was made, read while the zone goes on.

    It holds the owners' keys, and what those held that were changed since: 8 octets for each name
    of a zone that stands still. `close` it.
    """

    __slots__ = ("_before", "_gone", "_keys", "_zone", "serial", "soa_wire")

    def __init__(self, zone: "Zone", before: dict[bytes, bytes]) -> None:
        self.serial = zone.serial
        self.soa_wire = zone.soa_wire
        self._zone = zone
        self._keys = list(zone.nodes)
        self._before = before.copy()
        self._gone = [key for key, image in before.items() if image and key not in zone.nodes]

    def note(self, key: bytes, old: bytes) -> None:
        """The zone is about to change what an owner holds."""
        self._before.setdefault(key, old)

    def close(self) -> None:
        self._zone.versions_read.discard(self)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        """Owners and images, in no order, without the SOA."""
        before, nodes, cased = self._before, self._zone.nodes, self._zone.cased.get
        for keys in (self._keys, self._gone):
            for key in keys:
                image = before[key] if key in before else nodes[key]
                if image:
                    yield cased(key, key), image


class Zone:
    """One zone. Not for concurrent use: one thread changes it and answers from it.

    The content digest (`digest`) is over one element per served RRset: the owner's key, type (2
    octets), TTL (4 octets), then each rdata in canonical order after its length (2 octets). The
    SOA is an element too, with its serial left out of the rdata. So it moves exactly when the
    serial has to.
    """

    __slots__ = (
        "_before",
        "_digest",
        "_negative_parts",
        "_negative_wire",
        "_soa_wire",
        "_unsettled",
        "apex",
        "cased",
        "children",
        "cuts",
        "dnames",
        "expiring",
        "is_available",
        "key",
        "nodes",
        "record_count",
        "serial",
        "soa",
        "stamped_soa",
        "unseen",
        "versions_read",
    )

    def __init__(self, apex: Name, soa: Soa) -> None:
        self.apex = apex
        self.key = names.key(apex)
        self.soa = soa
        self.is_available = True
        """Whether it may be answered from: not so a secondary before its first transfer, or when
        its primaries were silent for too long."""
        self.serial = 0
        """Of the stamped version; 0 before the first stamp."""
        self.stamped_soa: Soa | None = None
        self.nodes: dict[bytes, bytes] = {}
        self.children: dict[bytes, int] = {}
        """How many names stand directly below a name, for names that have any. A name that is
        here and not in `nodes` is an empty non-terminal (RFC 4592 section 2.2.2)."""
        self.cuts: set[bytes] = set()
        self.dnames: set[bytes] = set()
        self.cased: dict[bytes, Name] = {}
        """Owners that are not written in lower case, as they are written."""
        self.expiring: dict[tuple[bytes, int], int] = {}
        self.record_count = 0
        """Records without the SOA."""
        self._before: dict[bytes, bytes] | None = None  # None: never stamped
        self.versions_read: set[StampedVersion] = set()
        self.unseen: set[Name] | None = None
        """Keys of owners that changed since whoever copies the zone looked; None: nobody does."""
        self._digest = SetDigest()
        self._digest.add(_soa_element(self.key, soa))
        self._unsettled: dict[bytes, bytes] = {}  # owners, with the image that the digest has
        self._soa_changed()

    @property
    def name_count(self) -> int:
        return len(self.nodes)

    def digest(self) -> str:
        self._settle()
        return self._digest.hexdigest()

    def replace(self, owner: Name, rrsets: Sequence[RRset]) -> None:
        """Let `owner` hold exactly these RRsets; none of them removes it. RRsets of one type are
        joined: duplicates go, the smallest TTL counts (RFC 2181 section 5.2). The owner is inside
        the zone, and no RRset is a SOA: the caller has checked."""
        key = names.key(owner)
        assert key.endswith(self.key), f"{owner!r} is outside {self.apex!r}"
        if self.unseen is not None:
            self.unseen.add(key)
        old = self.nodes.get(key, EMPTY)
        if self.expiring:
            for rrset in unpack(old):
                self.expiring.pop((key, rrset.rtype), None)
        for given in rrsets:
            if given.expires_at_s is not None:
                self._note_expiry(key, given.rtype, given.expires_at_s)
        new = pack(rrsets)
        if new and owner != key:
            self.cased[key] = owner
        else:
            self.cased.pop(key, None)
        if new == old:
            return
        if self._before is not None:
            self._before.setdefault(key, old)
        for version in self.versions_read:
            version.note(key, old)
        self._account(key, old, new)
        if new:
            self.nodes[key] = new
            if not old:
                self._link(key)
        else:
            del self.nodes[key]
            self._unlink(key)

    def set_soa(self, soa: Soa) -> None:
        self._digest.remove(_soa_element(self.key, self.soa))
        self._digest.add(_soa_element(self.key, soa))
        self.soa = soa
        self._soa_changed()

    def as_it_is(self) -> "Zone":
        """A copy to answer from while this one changes. It is of no other use."""
        copy = Zone(self.apex, self.soa)
        copy.serial, copy.stamped_soa, copy.record_count = (
            self.serial,
            self.stamped_soa,
            self.record_count,
        )
        copy.nodes, copy.children = self.nodes.copy(), self.children.copy()
        copy.cuts, copy.dnames = self.cuts.copy(), self.dnames.copy()
        copy.is_available = self.is_available
        copy.cased, copy.expiring = self.cased.copy(), self.expiring.copy()
        copy._soa_changed()
        return copy

    def frame(self) -> ZoneFrame:
        """With `nodes`, all that there is."""
        self._settle()
        return ZoneFrame(
            self.apex,
            self.soa,
            self.serial,
            self.stamped_soa,
            self.children,
            sorted(self.cuts),
            sorted(self.dnames),
            self.cased,
            [(key, rtype, at_s) for (key, rtype), at_s in self.expiring.items()],
            self.record_count,
            self._before,
            self._digest.to_bytes(),
            self.is_available,
        )

    @classmethod
    def of(cls, frame: ZoneFrame, nodes: dict[bytes, bytes]) -> "Zone":
        """The zone of a `frame()`, and its nodes."""
        zone = cls(frame.apex, frame.soa)
        zone.serial, zone.stamped_soa = frame.serial, frame.stamped_soa
        zone.nodes, zone.children, zone.cased = nodes, frame.children, frame.cased
        zone.cuts, zone.dnames = set(frame.cuts), set(frame.dnames)
        zone.expiring = {(key, rtype): at_s for key, rtype, at_s in frame.expiring}
        zone.record_count = frame.record_count
        zone._before = frame.before
        zone._digest = SetDigest.from_bytes(frame.digest)
        zone.is_available = frame.is_available
        zone._soa_changed()
        return zone

    # Versions

    def has_unstamped_changes(self) -> bool:
        """Whether the newest content differs from the stamped version. What was changed and
        changed back is no change."""
        if self._before is None or self.soa != self.stamped_soa:
            return True
        get = self.nodes.get
        return any(get(key, EMPTY) != old for key, old in self._before.items())

    def stamp(self, serial: int) -> Delta:
        """Make the newest content the stamped version."""
        before = self._before
        get = self.nodes.get
        delta = Delta(
            from_serial=None if before is None else self.serial,
            to_serial=serial,
            old_soa=self.stamped_soa,
            new_soa=self.soa,
            changes={
                key: (old, new)
                for key, old in (before or {}).items()
                if (new := get(key, EMPTY)) != old
            },
        )
        self._before = {}
        self.serial = serial
        self.stamped_soa = self.soa
        self._soa_changed()
        return delta

    def foresee(self, soa: Soa) -> "Foresight":
        """What the zone would be with another SOA and other images, which it is told one by one."""
        self._settle()
        digest = self._digest.copy()
        digest.remove(_soa_element(self.key, self.soa))
        digest.add(_soa_element(self.key, soa))
        return Foresight(self.nodes, digest, self.record_count)

    def stamped_nodes(self) -> Iterator[tuple[bytes, bytes]]:
        """Owners and images of the stamped version, in no order, without the SOA; nothing before
        the first stamp. The letter case of an owner is the newest: it is no content."""
        before = self._before
        if before is None:
            return
        cased = self.cased.get
        for key, image in self.nodes.items():
            if key not in before:
                yield cased(key, key), image
        for key, image in before.items():
            if image:
                yield cased(key, key), image

    def read_stamped(self) -> StampedVersion | None:
        """The stamped version, to be read over time; None before the first stamp."""
        if self._before is None:
            return None
        version = StampedVersion(self, self._before)
        self.versions_read.add(version)
        return version

    # What lookup asks

    def has_name(self, key: bytes) -> bool:
        """Whether a name exists: it holds records, or a name below it does."""
        return key in self.nodes or key in self.children or key == self.key

    def closest_encloser(self, key: bytes) -> bytes:
        """The longest existing ancestor of a name that does not exist (RFC 4592 section 3.3.1)."""
        nodes, children, apex = self.nodes, self.children, self.key
        while True:
            key = key[key[0] + 1 :]
            if key in children or key in nodes or key == apex:
                return key

    def occluder(self, key: bytes, *, cut_counts: bool) -> bytes | None:
        """The topmost zone cut at or above a name, or DNAME above it: what is under it belongs to
        others, or is not there. `cut_counts` tells whether a cut at `key` itself counts: not for
        DS, which is data of the parent side (RFC 4035 section 3.1.4.1)."""
        cuts, dnames, apex = self.cuts, self.dnames, self.key
        found = key if cut_counts and key in cuts else None
        while key != apex:
            key = key[key[0] + 1 :]
            if key in cuts or key in dnames:
                found = key
        return found

    def next_expiry_s(self) -> int | None:
        """When the next record goes away, unix time."""
        return min(self.expiring.values(), default=None)

    # Keeping count

    def _account(self, key: bytes, old: bytes, new: bytes) -> None:
        self._unsettled.setdefault(key, old)
        if len(self._unsettled) > UNSETTLED_MAX:
            self._count_in(*self._unsettled.popitem(), new)
        # Mostly one RRset takes the place of one of its type, with as many records.
        if old[:_COUNTS_SIZE] != new[:_COUNTS_SIZE] or not (_is_single(old) and _is_single(new)):
            self._recount(key, old, new)

    def _recount(self, key: bytes, old: bytes, new: bytes) -> None:
        # Lists, not sets: an owner has one or two RRsets, and a million of them are built.
        has = _counts(new)
        for _, rr_count in _counts(old) if old else ():
            self.record_count -= rr_count
        self.cuts.discard(key)
        self.dnames.discard(key)
        for rtype, rr_count in has:
            self.record_count += rr_count
            if rtype == NS and key != self.key:
                self.cuts.add(key)
            elif rtype == DNAME:
                self.dnames.add(key)

    def _settle(self) -> None:
        """Bring the digest up to the nodes."""
        self.settle_some(len(self._unsettled))

    def settle_some(self, count: int) -> int:
        """The same by some owners at most; how many there were."""
        get, unsettled = self.nodes.get, self._unsettled
        count = min(count, len(unsettled))
        for _ in range(count):
            key, old = unsettled.popitem()
            self._count_in(key, old, get(key, EMPTY))
        return count

    def _count_in(self, key: bytes, old: bytes, new: bytes) -> None:
        if old == new:
            return
        if not old:
            self._digest.add(*_elements(key, new))
            return
        had, has = _elements(key, old), _elements(key, new)
        for element in had:
            if element not in has:
                self._digest.remove(element)
        for element in has:
            if element not in had:
                self._digest.add(element)

    def _link(self, key: bytes) -> None:
        """`key` holds records now: count it, and the names above that begin to exist by it."""
        children = self.children
        if key in children:
            return
        while key != self.key:
            key = key[key[0] + 1 :]
            count = children.get(key, 0)
            children[key] = count + 1
            if count or key in self.nodes:
                return

    def _unlink(self, key: bytes) -> None:
        children = self.children
        while key != self.key and key not in children and key not in self.nodes:
            key = key[key[0] + 1 :]
            count = children[key] - 1
            if count:
                children[key] = count
            else:
                del children[key]

    def _note_expiry(self, key: bytes, rtype: int, at_s: int) -> None:
        self.expiring[key, rtype] = min(self.expiring.get((key, rtype), at_s), at_s)

    def _soa_changed(self) -> None:
        """Forget the forms of the SOA. They are made when asked for: a replay stamps a zone
        thousands of times."""
        self._soa_wire = self._negative_wire = b""
        self._negative_parts: tuple[bytes, ...] = ()

    @property
    def _soa_shown(self) -> Soa:
        """As it was stamped, also while newer content is served."""
        return self.stamped_soa or self.soa

    @property
    def soa_wire(self) -> bytes:
        if not self._soa_wire:
            soa = self._soa_shown
            self._soa_wire = pack_record(SOA, soa.ttl, soa.rdata(self.serial))
        return self._soa_wire

    @property
    def negative_wire(self) -> bytes:
        """The SOA of a negative answer."""
        if not self._negative_wire:
            soa = self._soa_shown
            self._negative_wire = pack_record(SOA, soa.negative_ttl, soa.rdata(self.serial))
        return self._negative_wire

    @property
    def negative_parts(self) -> tuple[bytes, ...]:
        """The SOA of a negative answer, cut where a pointer to the apex belongs. A question's
        name ends in the apex, so `pointer.join(parts)` is the record, compressed."""
        if not self._negative_parts:
            self._negative_parts = self._cut_at_apex(self._soa_shown)
        return self._negative_parts

    def _cut_at_apex(self, soa: Soa) -> tuple[bytes, ...]:
        parts = [b"", b""]
        for name in (soa.mname, soa.rname):
            if names.is_within(name, self.key):
                parts[-1] += name[: len(name) - len(self.key)]
                parts.append(b"")
            else:
                parts[-1] += name
        parts[-1] += soa.rdata(self.serial)[-_SOA_NUMBERS.size :]
        length = sum(map(len, parts)) + len(QUESTION_POINTER) * (len(parts) - 2)
        head = _RR_HEAD.pack(b"", SOA, CLASS_IN, soa.negative_ttl, length)
        parts[1] = head[len(QUESTION_POINTER) :] + parts[1]
        return tuple(parts)


class Foresight:
    """Digest and record count of a zone as it will be; see `Zone.foresee`."""

    def __init__(self, nodes: Mapping[bytes, bytes], digest: SetDigest, record_count: int) -> None:
        self._nodes = nodes
        self._digest = digest
        self.record_count = record_count

    def digest(self) -> str:
        return self._digest.hexdigest()

    def replace(self, key: bytes, image: bytes) -> None:
        """Let an owner, by key, hold this image. Once for each."""
        for rrset in unpack(self._nodes.get(key, EMPTY)):
            self._digest.remove(_element(key, rrset))
            self.record_count -= rrset.rr_count
        for rrset in unpack(image):
            self._digest.add(_element(key, rrset))
            self.record_count += rrset.rr_count


class ZoneSetStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What is served now. Records are counted without SOA."""

    names: int
    records: int
    serials: dict[str, int]  # by zone name; 0: not stamped yet


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


# Images


def pack(rrsets: Sequence[RRset]) -> bytes:
    """Image of an owner that holds these RRsets."""
    if len(rrsets) == 1:
        return _pack_rrset(rrsets[0])
    if len({rrset.rtype for rrset in rrsets}) == len(rrsets):
        return b"".join([_pack_rrset(rrset) for rrset in sorted(rrsets, key=_type_of)])
    joined: dict[int, tuple[int, dict[bytes, bytes]]] = {}
    for rtype, ttl, rdatas in ((given.rtype, given.ttl, given.rdatas) for given in rrsets):
        least, unique = joined.get(rtype, (ttl, {}))
        for rdata in rdatas:
            unique.setdefault(records.canonical_rdata(rtype, rdata), rdata)
        joined[rtype] = (min(ttl, least), unique)
    return b"".join(
        [
            _pack_rrset(RRset(rtype, ttl, tuple(unique.values())))
            for rtype, (ttl, unique) in sorted(joined.items())
        ]
    )


_type_of = attrgetter("rtype")


def _pack_rrset(rrset: RRset) -> bytes:
    """The part of an image that one RRset is."""
    rtype, ttl, rdatas = rrset.rtype, rrset.ttl, rrset.rdatas
    if len(rdatas) == 1:
        rdata = rdatas[0]
        size = len(rdata)
        head = (rtype, 1, _RR_HEAD_SIZE + size, QUESTION_POINTER, rtype, CLASS_IN, ttl, size)
        return _SINGLE_HEAD.pack(*head) + rdata
    unique: dict[bytes, bytes] = {}
    for rdata in rdatas:
        unique.setdefault(records.canonical_rdata(rtype, rdata), rdata)
    wire = b"".join([pack_record(rtype, ttl, unique[rdata]) for rdata in sorted(unique)])
    return _RRSET_HEAD.pack(rtype, len(unique), len(wire)) + wire if wire else b""


def pack_record(rtype: int, ttl: int, rdata: bytes, rclass: int = CLASS_IN) -> bytes:
    """A record whose owner is the question's name."""
    return _RR_HEAD.pack(QUESTION_POINTER, rtype, rclass, ttl, len(rdata)) + rdata


def find_rrset(image: bytes, rtype: int) -> tuple[int, bytes] | None:
    """Number of records and wire of the RRset of a type."""
    at = 0
    size = len(image)
    while at < size:
        found, rr_count, length = _RRSET_HEAD.unpack_from(image, at)
        at += _RRSET_HEAD_SIZE
        if found == rtype:
            return rr_count, image[at : at + length]
        at += length
    return None


def unpack(image: bytes) -> list[PackedRRset]:
    """RRsets of an image, in order of type."""
    found = []
    at, size = 0, len(image)
    while at < size:
        rtype, rr_count, length = _RRSET_HEAD.unpack_from(image, at)
        at += _RRSET_HEAD_SIZE
        found.append(PackedRRset(rtype, rr_count, image[at : at + length]))
        at += length
    return found


def _is_single(image: bytes) -> bool:
    """Whether an image has exactly one RRset."""
    length = int.from_bytes(image[_COUNTS_SIZE:_RRSET_HEAD_SIZE], "big")
    return len(image) == _RRSET_HEAD_SIZE + length


def _counts(image: bytes) -> list[tuple[int, int]]:
    """Type and number of records of each RRset of an image."""
    found = []
    at, size = 0, len(image)
    while at < size:
        rtype, rr_count, length = _RRSET_HEAD.unpack_from(image, at)
        at += _RRSET_HEAD_SIZE + length
        found.append((rtype, rr_count))
    return found


def unpack_records(wire: bytes) -> Iterator[Record]:
    """Records of a packed RRset."""
    at = 0
    while at < len(wire):
        _, rtype, _, ttl, length = _RR_HEAD.unpack_from(wire, at)
        at += _RR_HEAD_SIZE
        yield Record(rtype, ttl, wire[at : at + length])
        at += length


def alias_of(wire: bytes) -> bytes:
    """Where the RRset of a CNAME leads."""
    return next(unpack_records(wire)).rdata


def with_ttl_at_most(wire: bytes, ttl_max: int) -> bytes:
    """A packed RRset with its TTL capped."""
    return b"".join(
        pack_record(rtype, min(ttl, ttl_max), rdata) for rtype, ttl, rdata in unpack_records(wire)
    )


# Digest elements


def _elements(key: bytes, image: bytes) -> list[bytes]:
    """Of each RRset of an owner."""
    if image[2:_COUNTS_SIZE] == b"\x00\x00\x00\x01" and _is_single(image):
        at = _RRSET_HEAD_SIZE + len(QUESTION_POINTER)
        return [b"".join((key, image[at : at + 2], image[at + 4 :]))]  # as `_element`
    return [_element(key, rrset) for rrset in unpack(image)]


def _element(key: bytes, rrset: PackedRRset) -> bytes:
    if rrset.rr_count == 1:
        # Between type and TTL stands the class; what follows is TTL, length and rdata.
        return b"".join((key, rrset.wire[2:4], rrset.wire[6:]))
    parts = [key, rrset.rtype.to_bytes(2, "big")]
    for i, (_, ttl, rdata) in enumerate(unpack_records(rrset.wire)):
        if i == 0:
            parts.append(ttl.to_bytes(4, "big"))
        parts += (len(rdata).to_bytes(2, "big"), rdata)
    return b"".join(parts)


def _soa_element(key: bytes, soa: Soa) -> bytes:
    numbers = _SOA_NUMBERS.pack(0, soa.refresh, soa.retry, soa.expire, soa.minimum)[4:]
    rdata = soa.mname + soa.rname + numbers
    return b"".join((key, _TYPE_AND_TTL.pack(SOA, soa.ttl), len(rdata).to_bytes(2, "big"), rdata))
