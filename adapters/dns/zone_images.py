"""Zones as the threads of the native engine have them: a copy of names and images in the core.

The copy is made name by name and changed name by name, some of them in each turn of the loop, so a
change costs what it changes and nobody waits for a large zone. From the moment that a zone may say
something else until the copy says the same, `changed` has the threads leave it to Python, while the
others are answered; when it may be another zone that answers, they leave all of them. So what is
answered here is what the pipeline would answer, or nothing.

docs/decisions/0049 says why it is a copy.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING

import msgspec

from kudurru.adapters.dns.engine_native import AnswerTable
from kudurru.domain.dns.images import EMPTY, unpack
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.zone_set import ZoneSet
from kudurru.domain.dns.zone_tree import Zone
from kudurru.domain.ports import CACHE, FILTERS, Origins

if TYPE_CHECKING:
    from kudurru.adapters.dns import _engine
else:
    try:
        from kudurru.adapters.dns import _engine
    except ImportError:
        _engine = None

BYTES_MAX = 1 << 30
"""Of all copies: names and their images, as the core counts them. What the allocator rounds up, and
the tables that they are found by, are half as much again and not counted. A zone that finds no
room is answered by Python, until there is room."""

NAME_BYTES = 48
"""What a name takes at the least: one that is not tried is one that cannot fit."""

NAMES_PER_TURN = 1_000  # about a millisecond
NAMES_PER_LOOK = 10
"""What a look at a zone costs, in names: a turn looks at so many zones less."""

FREED_PER_TURN = 10_000
PAUSE_S = 0.001
"""Between turns that build or free: queries that Python answers come first."""

RETRY_S = 60.0
"""After something went wrong here."""

log = logging.getLogger("kudurru")

_SEED_SIZE = 16
_NO_POINTER = b"\0\0"  # where the core writes one


class ZoneImagesStatistics(msgspec.Struct, frozen=True, kw_only=True):
    answered: int  # zones that are answered from
    left: int  # zones and forwarded names that are left to Python, for now or as long as they are
    full: int  # of those, zones that found no room
    names: int
    bytes: int
    faults: int  # times that all was left to Python because something went wrong


class _Copy:
    """One zone in the core. `zone` None: a name that is forwarded, which nothing is answered of."""

    __slots__ = ("is_full", "left", "name_bytes", "said", "zone")

    def __init__(self, zone: Zone | None) -> None:
        self.zone = zone
        self.left: Iterator[bytes] | None = None  # owners to bring before it is answered from
        self.said: tuple[bytes, ...] = ()  # parts of the SOA as the core has them; none: mute
        self.is_full = False  # there was no room for it
        self.name_bytes = float(NAME_BYTES)  # for each of its names there has to be so much

    def bytes_needed(self) -> float:
        return len(self.zone.nodes) * self.name_bytes if self.zone is not None else 0


class _Budget:
    """What a turn may still do, in names."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = NAMES_PER_TURN

    def spend(self, names: int) -> None:
        self.left -= names


class ZoneImages:
    """For all engines of a table, on one event loop. Wants `engine_native.is_available()`."""

    def __init__(self, table: AnswerTable, bytes_max: int = BYTES_MAX) -> None:
        seed = secrets.token_bytes(_SEED_SIZE)
        self.core = _engine.Zones(table.core, bytes_max, seed)
        self._bytes_max = bytes_max
        self._zones = ZoneSet()
        self._forwards: Callable[[], Mapping[Name, object]] = dict
        self._is_wanted: Callable[[], bool] = bool  # not before `follow`
        self._forwarded: Mapping[Name, object] = {}
        self._copies: dict[bytes, _Copy] = {}
        self._unlooked: dict[bytes, None] = {}  # changed, and left to Python until they are seen
        self._building: dict[bytes, _Copy] = {}  # the next one first
        self._full: dict[bytes, _Copy] = {}  # what waits for room
        self._is_freeing = False  # zones that are gone: there will be room
        self._is_waiting = False  # for that
        self._is_due = False
        self._faults = 0
        self._is_broken = False

    def follow(
        self,
        zones: ZoneSet,
        forwards: Callable[[], Mapping[Name, object]],
        is_wanted: Callable[[], bool],
    ) -> None:
        """Copy these zones from the next `changed` on. Names of `forwards` and what is below them
        is answered elsewhere. `is_wanted`: zones are answered now, and the same to everybody."""
        self._zones, self._forwards, self._is_wanted = zones, forwards, is_wanted

    def changed(self, what: Origins = None) -> None:
        """This changed of what is served. When it returns, no later query is answered from what was
        there before."""
        if self.leave(what):
            self._call(asyncio.get_running_loop().call_soon)

    def leave(self, what: Origins) -> bool:
        """Have the threads leave to Python what changed, until the next turn. Whether that is
        anything here."""
        if what is None:
            self.core.close()
            return True
        zones = [origin for origin in what if origin not in (FILTERS, CACHE)]
        for apex in zones:
            copy = self._copies.get(apex)
            if copy is None:
                self.core.close()
            else:
                self._say(apex, copy, ())
                self._unlooked[apex] = None
        return bool(zones)

    def statistics(self) -> ZoneImagesStatistics:
        _, owners, octets = self.core.statistics()
        copies = self._copies.values()
        answered = sum(bool(copy.said) for copy in copies)
        return ZoneImagesStatistics(
            answered=answered,
            left=len(copies) - answered,
            full=len(self._full),
            names=owners,
            bytes=octets,
            faults=self._faults,
        )

    # --- turns --------------------------------------------------------------------------

    def _call(self, call: Callable[[Callable[[], None]], object]) -> None:
        if not self._is_due:
            self._is_due = True
            call(self._turn)

    def _turn(self) -> None:
        self._is_due = False
        loop = asyncio.get_running_loop()
        try:
            is_more = self.advance()
        except Exception:
            log.exception(
                "zones: the native engine's copy failed; Python answers until it is made anew, "
                "in %g s",
                RETRY_S,
            )
            is_more = True  # what there is goes
            loop.call_later(RETRY_S, self._begin_anew)
        if is_more:
            self._call(lambda turn: loop.call_later(PAUSE_S, turn))

    def _begin_anew(self) -> None:
        self._is_broken = False
        self.changed()

    def advance(self) -> bool:
        """Bring the core nearer to what is served. Whether there is more to do. Should something go
        wrong here, Python answers from all zones and all copies go: what is missing is not
        known."""
        try:
            return self._advance()
        except BaseException:
            self.core.close()
            self._is_broken = True
            self._faults += 1
            raise

    def _advance(self) -> bool:
        budget, is_more, may_try = _Budget(), False, False
        if self._is_broken or not self._is_wanted():  # `changed` comes when that changes
            self._let_go(budget)
            is_more = bool(self._copies)
        elif not self._zones.is_held:  # else what changed is not to be seen yet, and it comes again
            self._catch_up(budget)
            while self._building and budget.left > 0 and not self._is_waiting:
                self._build_some(budget)
            if not self._unlooked:
                self.core.open()
            is_more = bool(self._unlooked or self._building)
            may_try = not is_more
        if self.core.sweep(FREED_PER_TURN):
            return True
        self._is_freeing = self._is_waiting = False
        return is_more or (may_try and self._try_again())

    def _let_go(self, budget: _Budget) -> None:
        """Of all copies: nobody is answered from them for now."""
        self.core.close()
        self._zones.touched = None
        self._unlooked.clear()
        for apex, copy in list(islice(self._copies.items(), max(1, budget.left // NAMES_PER_LOOK))):
            self._forget(apex, copy)

    def _try_again(self) -> bool:
        """With zones that there may be room for now; small ones first."""
        room: float = self._room()
        some = islice(self._full.items(), NAMES_PER_TURN)
        for apex, copy in sorted(some, key=lambda one: one[1].bytes_needed()):
            if copy.zone is None or (needed := copy.bytes_needed()) > room:
                break
            room -= needed
            copy.is_full = False
            del self._full[apex]
            self._begin(apex, copy, copy.zone)
        return bool(self._building)

    def _room(self) -> int:
        return self._bytes_max - self.core.statistics()[2]

    def _catch_up(self, budget: _Budget) -> None:
        """With what changed. Opens the core when there is nothing left of that, and all that is
        left to do is of zones that are mute."""
        if self._zones.touched is None:
            self._zones.touch_all()
            self._forwarded = {}
            self._unlooked.update(dict.fromkeys(self._copies))  # that were not let go of yet
        touched = self._touched()
        if not all(map(self._is_left, touched)):
            self.core.close()
        self._unlooked.update(dict.fromkeys(touched))
        while self._unlooked and budget.left > 0:
            apex = next(iter(self._unlooked))
            del self._unlooked[apex]
            self._look(apex, budget)
        if not self._unlooked:
            self.core.open()

    def _touched(self) -> Iterable[bytes]:
        zones, before, now = self._zones, self._forwarded, self._forwards()
        touched = zones.touched or set()
        zones.touched = set()
        if now is not before:
            self._forwarded = now
            touched |= before.keys() ^ now.keys()
        return touched

    def _is_left(self, apex: bytes) -> bool:
        """Whether a zone that was touched is the one that is here, and left to Python. Else it
        comes or goes, or this turn came between its change and `changed`."""
        copy, zone = self._copies.get(apex), self._zones.get(apex)
        return copy is not None and zone is not None and copy.zone is zone and not copy.said

    def _look(self, apex: bytes, budget: _Budget) -> None:
        """At a zone that is new, gone or changed."""
        budget.spend(NAMES_PER_LOOK)
        zone, copy = self._zones.get(apex), self._copies.get(apex)
        if copy is not None and copy.zone is not zone:
            self._forget(apex, copy)
            copy = None
        if copy is None:
            if zone is None and apex not in self._forwarded:
                return
            copy = self._copies[apex] = _Copy(zone)
            self.core.add(apex)
            if zone is not None and copy.bytes_needed() > self._room():
                copy.is_full = True
                self._full[apex] = copy
            elif zone is not None:
                self._begin(apex, copy, zone)
        elif zone is None and apex not in self._forwarded:
            self._forget(apex, copy)
            return
        if zone is None or copy.is_full:
            return
        assert zone.unseen is not None, "it is followed since it was copied"
        if copy.left is None and len(zone.unseen) > max(0, budget.left):
            copy.left, zone.unseen = _popped(zone.unseen), set()
        if copy.left is not None:
            self._say(apex, copy, ())
            self._building[apex] = copy
        else:
            self._bring_unseen(apex, copy, zone, budget)

    def _begin(self, apex: bytes, copy: _Copy, zone: Zone) -> None:
        zone.unseen = set()
        copy.left = _owners(zone)
        self._building[apex] = copy

    def _build_some(self, budget: _Budget) -> None:
        """Of the zone whose turn it is."""
        apex = next(iter(self._building))
        copy = self._building.pop(apex)
        zone = copy.zone
        assert zone is not None, "nothing is copied of what is forwarded"
        assert copy.left is not None, "it is being built"
        some = list(islice(copy.left, budget.left))
        is_all = len(some) < budget.left
        budget.spend(NAMES_PER_LOOK + len(some))
        if not self._bring(zone, some):
            self._fill(apex, copy, some)
        elif is_all:
            # What was changed meanwhile is as much as is left of the turn, or built in turns again.
            copy.left = None
            self._look(apex, budget)
        else:
            self._building[apex] = copy

    def _bring_unseen(self, apex: bytes, copy: _Copy, zone: Zone, budget: _Budget) -> None:
        assert zone.unseen is not None, "it is followed since it was copied"
        some, zone.unseen = zone.unseen, set()
        budget.spend(len(some))
        if not self._bring(zone, some):
            self._fill(apex, copy, some)
            return
        is_plain = zone.is_available and apex not in zone.dnames and apex not in self._forwarded
        self._say(apex, copy, zone.negative_parts if is_plain else ())

    # --- what the core has ---------------------------------------------------------------

    def _bring(self, zone: Zone, owners: Iterable[bytes]) -> bool:
        """Let the core have these owners as they are now. False where there is no room."""
        put, remove = self.core.put, self.core.remove
        nodes, children, apex = zone.nodes, zone.children, zone.key
        size = len(apex)
        for key in owners:
            image = nodes.get(key)
            if image is not None:
                if not put(key, size, image, _is_unusual(zone, key, image)):
                    return False
            elif key not in children:
                remove(key, size)
            elif not put(key, size, EMPTY, False):
                return False
            # Names above it that hold nothing are there as long as one below them is.
            above = key
            while above != apex and (above := above[above[0] + 1 :]) != apex:
                if above in nodes:
                    break
                if above not in children:
                    remove(above, size)
                elif not put(above, size, EMPTY, False):
                    return False
        return True

    def _say(self, apex: bytes, copy: _Copy, parts: tuple[bytes, ...]) -> None:
        if parts == copy.said:
            return
        soa, pointers_at = b"", []
        if parts:
            soa = parts[0]
            for part in parts[1:]:
                pointers_at.append(len(soa))
                soa += _NO_POINTER + part
        if not self.core.speak(apex, soa, pointers_at):
            self.core.speak(apex, b"", ())
            parts = ()
        copy.said = parts

    def _fill(self, apex: bytes, copy: _Copy, some: Iterable[bytes]) -> None:
        """There is no room for these of its names. When others have just made room, which is still
        to be swept, it waits; else Python answers from it, until there is room for all of it."""
        if self._is_freeing:
            self._say(apex, copy, ())
            copy.left = chain(some, copy.left or ())
            self._building[apex] = copy
            self._is_waiting = True
            return
        self.core.close()  # or its names would be looked for in the zone above it
        _, owners, octets = self.core.statistics()
        self._forget(apex, copy)
        full = self._copies[apex] = self._full[apex] = _Copy(copy.zone)
        full.is_full = True
        # As much as names take here, and more than what was not enough: it is not tried for ever.
        full.name_bytes = max(octets / max(1, owners), 1.25 * copy.name_bytes)
        self.core.add(apex)

    def _forget(self, apex: bytes, copy: _Copy) -> None:
        if copy.zone is not None:
            copy.zone.unseen = None
            self._is_freeing = True
        self._building.pop(apex, None)
        self._full.pop(apex, None)
        del self._copies[apex]
        self.core.drop(apex)


def _owners(zone: Zone) -> Iterator[bytes]:
    """Owners of a zone that changes meanwhile; those that are new or gone then are in `unseen`. A
    list of a million is 60 ms of work, so there is none of them all, but where the first change
    comes before the end."""
    passed = 0
    for owner in zone.nodes:
        yield owner
        passed += 1
        if zone.unseen:  # the dictionary is another, and so many may have moved up
            break
    else:
        return
    rest = list(islice(zone.nodes, max(0, passed - len(zone.unseen)), None))
    yield from _popped(rest)


def _popped(owners: set[Name] | list[bytes]) -> Iterator[bytes]:
    """Their memory goes piece by piece too."""
    while owners:
        yield owners.pop()


def _is_unusual(zone: Zone, key: bytes, image: bytes) -> bool:
    """Whether an owner is called otherwise in answers than in questions, or holds what expires."""
    if zone.cased and key in zone.cased:
        return True
    return bool(zone.expiring) and any(
        (key, rrset.rtype) in zone.expiring for rrset in unpack(image)
    )
