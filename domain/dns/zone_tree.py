"""Zones as they are served: an image of each owner (images.py), and what lookup needs around it.

A zone answers from its newest content, but a secondary must never see new content under an old
serial. So a zone remembers what each owner held when it was stamped last (the *overlay*): the
stamped version can be read whole, and the next stamp says what changed, at the cost of the change.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from kudurru.domain.dns import names
from kudurru.domain.dns.images import (
    COUNTS_SIZE,
    EMPTY,
    RRset,
    digest_element,
    digest_elements,
    is_single,
    pack,
    pack_record,
    rrset_counts,
    unpack,
)
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.record_types import DNAME, NS, SOA
from kudurru.domain.dns.soa import Soa, soa_element
from kudurru.domain.set_digest import SetDigest

UNSETTLED_MAX = 1_000
"""Owners of a zone whose change is not in its digest yet: what changes again and again is counted
once, and to catch up takes a few milliseconds."""


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
        self._digest.add(soa_element(self.key, soa))
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
        self._digest.remove(soa_element(self.key, self.soa))
        self._digest.add(soa_element(self.key, soa))
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
        digest.remove(soa_element(self.key, self.soa))
        digest.add(soa_element(self.key, soa))
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
        if old[:COUNTS_SIZE] != new[:COUNTS_SIZE] or not (is_single(old) and is_single(new)):
            self._recount(key, old, new)

    def _recount(self, key: bytes, old: bytes, new: bytes) -> None:
        # Lists, not sets: an owner has one or two RRsets, and a million of them are built.
        has = rrset_counts(new)
        for _, rr_count in rrset_counts(old) if old else ():
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
            self._digest.add(*digest_elements(key, new))
            return
        had, has = digest_elements(key, old), digest_elements(key, new)
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
        """As `Soa.negative_parts` has it."""
        if not self._negative_parts:
            self._negative_parts = self._soa_shown.negative_parts(self.serial, self.key)
        return self._negative_parts


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
            self._digest.remove(digest_element(key, rrset))
            self.record_count -= rrset.rr_count
        for rrset in unpack(image):
            self._digest.add(digest_element(key, rrset))
            self.record_count += rrset.rr_count
