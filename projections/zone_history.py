"""Zone history: which serial meant which content, and how one version became the next.

It is the journal of incremental transfers, and knows the highest serial ever published for a zone
name, also across deletion and re-creation, so that a restored zone never goes back in RFC 1982
arithmetic.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import islice

import msgspec

from kudurru.domain.dns.names import Name
from kudurru.domain.dns.serials import is_newer
from kudurru.domain.dns.zone_tree import Delta
from kudurru.domain.events import Position
from kudurru.domain.set_digest import SetDigest

VERSIONS_MAX = 1_000
CHANGES_MAX = 100_000
"""Changed owners kept per zone. A secondary that is further behind fetches the whole zone."""


class ZoneVersion(msgspec.Struct, frozen=True, array_like=True):
    """A stamped version. `delta` leads here from the version before; None for the first, and for
    a change too large to keep."""

    serial: int
    seq: Position  # of the stamp
    ts: int  # microseconds UTC
    delta: Delta | None


PART_VERSIONS = 1_000

_decode = msgspec.msgpack.Decoder(ZoneVersion).decode
_decode_list = msgspec.msgpack.Decoder(list[bytes]).decode


class ZoneHistory:
    """Versions per zone name. Fed by the zone view as it meets stamps in the log, so it is a part
    of that projection: it is reset and rebuilt with it.

    Versions are kept packed, a bytes object each: there may be a thousand of every zone, they are
    read when a secondary asks, and a snapshot has them as they are.
    """

    def __init__(self) -> None:
        self._versions: dict[Name, deque[bytes]] = {}
        self._changes: dict[Name, int] = {}
        self._highest: dict[Name, int] = {}

    def add(self, apex: Name, delta: Delta, seq: Position, ts: int) -> None:
        kept = delta if delta.from_serial is not None else None
        if kept is not None and len(kept.changes) > CHANGES_MAX:
            kept = None
        version = ZoneVersion(delta.to_serial, seq, ts, kept)
        versions = self._versions.get(apex)
        if versions is None:
            versions = self._versions[apex] = deque()
        versions.append(_pack(version))
        changes = self._changes.get(apex, 0) + _size(version)
        self._changes[apex] = changes
        if len(versions) > VERSIONS_MAX or changes > CHANGES_MAX:
            self._bound(apex, versions)
        highest = self._highest.get(apex)
        if highest is None or is_newer(delta.to_serial, highest):
            self._highest[apex] = delta.to_serial

    def _bound(self, apex: Name, versions: deque[bytes]) -> None:
        while len(versions) > VERSIONS_MAX or self._changes[apex] > CHANGES_MAX:
            self._drop_first(apex, versions)

    def forget(self, apex: Name) -> None:
        """The zone is served no more: its versions are of no use, its highest serial stays."""
        self._versions.pop(apex, None)
        self._changes.pop(apex, None)

    def _drop_first(self, apex: Name, versions: deque[bytes]) -> ZoneVersion:
        dropped = _decode(versions.popleft())
        self._changes[apex] -= _size(dropped)
        return dropped

    def forget_before(self, upto: Position) -> None:
        """Of each zone keep the newest version up to a position, as one to begin with, and those
        after it: nobody can tell any more what came before."""
        for apex in self._versions:
            self._begin_with(apex, upto)

    def forget_changes(self) -> None:
        """Of each zone keep the newest version only: secondaries fetch it whole once."""
        for apex, versions in self._versions.items():
            if versions:
                self._begin_with(apex, _decode(versions[-1]).seq)

    def _begin_with(self, apex: Name, upto: Position) -> None:
        versions, first = self._versions[apex], None
        while versions and _decode(versions[0]).seq <= upto:
            first = self._drop_first(apex, versions)
        if first is not None:
            versions.appendleft(_pack(msgspec.structs.replace(first, delta=None)))

    def versions(self, apex: Name) -> tuple[ZoneVersion, ...]:
        """Oldest first."""
        return tuple(map(_decode, self._versions.get(apex, ())))

    def newest_first(self, apex: Name) -> Iterator[ZoneVersion]:
        """Read one by one: whoever asks for changes is mostly one or two versions behind."""
        return map(_decode, reversed(self._versions.get(apex, ())))

    def highest(self, apex: Name) -> int | None:
        return self._highest.get(apex)

    def digest(self) -> str:
        whole = SetDigest()
        for apex, versions in self._versions.items():
            whole.add(apex + sha256(b"".join(versions)).digest())  # each says where it ends
        for apex, serial in self._highest.items():
            whole.add(b"highest" + apex + serial.to_bytes(4, "big"))
        return whole.hexdigest()

    # --- snapshots ----------------------------------------------------------------------

    def zones(self) -> Iterable[Name]:
        """Zone names that have versions."""
        return self._versions.keys()

    def packed(self, apex: Name) -> Iterable[bytes]:
        return self._versions[apex]

    def frame(self) -> "HistoryFrame":
        return HistoryFrame(self._changes, self._highest)

    @classmethod
    def of(cls, frame: "HistoryFrame", versions: dict[Name, deque[bytes]]) -> "ZoneHistory":
        """The history of a `frame()`, and the packed versions of its zones."""
        history = cls()
        history._versions, history._changes = versions, frame.changes
        history._highest = frame.highest
        return history


class HistoryFrame(msgspec.Struct, frozen=True, array_like=True):
    """All of a history but its versions."""

    changes: dict[Name, int]
    highest: dict[Name, int]


def dump_versions(packed: Iterable[bytes]) -> Iterator[bytes]:
    """Parts of a snapshot, the last one empty."""
    versions = iter(packed)
    while some := list(islice(versions, PART_VERSIONS)):
        yield msgspec.msgpack.encode(some)
    yield msgspec.msgpack.encode([])


def load_versions(parts: Iterator[bytes]) -> deque[bytes]:
    versions: deque[bytes] = deque()
    while some := _decode_list(next(parts)):
        versions.extend(some)
    return versions


def _pack(version: ZoneVersion) -> bytes:
    """Equal versions have equal octets."""
    delta = version.delta
    if delta is not None and len(delta.changes) > 1:
        delta = msgspec.structs.replace(delta, changes=dict(sorted(delta.changes.items())))
        version = msgspec.structs.replace(version, delta=delta)
    return msgspec.msgpack.encode(version)


def _size(version: ZoneVersion) -> int:
    return len(version.delta.changes) if version.delta else 0
