"""Zone history: which serial meant which content, and how one version became the next.

It is the journal of incremental transfers, and knows the highest serial ever published for a zone
name, also across deletion and re-creation, so that a restored zone never goes back in RFC 1982
arithmetic.
"""

from collections import deque

import msgspec

from kudurru.domain.dns.names import Name
from kudurru.domain.dns.serials import is_newer
from kudurru.domain.dns.zone_tree import Delta
from kudurru.domain.events import Position
from kudurru.domain.set_digest import SetDigest

VERSIONS_MAX = 1_000
CHANGES_MAX = 100_000
"""Changed owners kept per zone. A secondary that is further behind fetches the whole zone."""


class ZoneVersion(msgspec.Struct, frozen=True):
    """A stamped version. `delta` leads here from the version before; None for the first, and for
    a change too large to keep."""

    serial: int
    seq: Position  # of the stamp
    ts: int  # microseconds UTC
    delta: Delta | None


class ZoneHistory:
    """Versions per zone name. Fed by the zone view as it meets stamps in the log, so it is a part
    of that projection: it is reset and rebuilt with it."""

    def __init__(self) -> None:
        self._versions: dict[Name, deque[ZoneVersion]] = {}
        self._changes: dict[Name, int] = {}
        self._highest: dict[Name, int] = {}
        self._digest = SetDigest()

    def add(self, apex: Name, delta: Delta, seq: Position, ts: int) -> None:
        kept = delta if delta.from_serial is not None else None
        if kept is not None and len(kept.changes) > CHANGES_MAX:
            kept = None
        version = ZoneVersion(delta.to_serial, seq, ts, kept)
        versions = self._versions.setdefault(apex, deque())
        versions.append(version)
        self._digest.add(_element(apex, version))
        self._changes[apex] = self._changes.get(apex, 0) + _size(version)
        while len(versions) > VERSIONS_MAX or self._changes[apex] > CHANGES_MAX:
            dropped = versions.popleft()
            self._digest.remove(_element(apex, dropped))
            self._changes[apex] -= _size(dropped)
        highest = self._highest.get(apex)
        if highest is None or is_newer(delta.to_serial, highest):
            self._highest[apex] = delta.to_serial

    def forget(self, apex: Name) -> None:
        """The zone is served no more: its versions are of no use, its highest serial stays."""
        for version in self._versions.pop(apex, ()):
            self._digest.remove(_element(apex, version))
        self._changes.pop(apex, None)

    def forget_before(self, upto: Position) -> None:
        """Of each zone keep the newest version up to a position, as one to begin with, and those
        after it: nobody can tell any more what came before."""
        for apex in self._versions:
            self._begin_with(apex, upto)

    def forget_changes(self) -> None:
        """Of each zone keep the newest version only: secondaries fetch it whole once."""
        for apex, versions in self._versions.items():
            if versions:
                self._begin_with(apex, versions[-1].seq)

    def _begin_with(self, apex: Name, upto: Position) -> None:
        versions, first = self._versions[apex], None
        while versions and versions[0].seq <= upto:
            first = versions.popleft()
            self._digest.remove(_element(apex, first))
            self._changes[apex] -= _size(first)
        if first is not None:
            first = msgspec.structs.replace(first, delta=None)
            versions.appendleft(first)
            self._digest.add(_element(apex, first))

    def versions(self, apex: Name) -> tuple[ZoneVersion, ...]:
        """Oldest first."""
        return tuple(self._versions.get(apex, ()))

    def highest(self, apex: Name) -> int | None:
        return self._highest.get(apex)

    def digest(self) -> str:
        whole = self._digest.copy()
        for apex, serial in self._highest.items():
            whole.add(b"highest" + apex + serial.to_bytes(4, "big"))
        return whole.hexdigest()


def _size(version: ZoneVersion) -> int:
    return len(version.delta.changes) if version.delta else 0


def _element(apex: Name, version: ZoneVersion) -> bytes:
    parts = [apex, msgspec.msgpack.encode((version.serial, version.seq, version.ts))]
    if version.delta:
        for owner, (old, new) in sorted(version.delta.changes.items()):
            parts.append(msgspec.msgpack.encode((owner, old, new)))
    return b"".join(parts)
