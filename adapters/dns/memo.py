"""Recent answers, kept so that a repeated question costs a dictionary look-up.

The key is the query without its ID, the letters of the question's name lowered. Only the name: the
octets behind it are numbers, and HTTPS is type 65, the octet "A". The value is the answer without
its ID, its question lowered too; the asker's ID and letters are put back, for resolvers that play
with letters compare them (draft-vixie-dnsext-dns0x20). Beside the answer is the place in `hits`
where it is counted.

Two generations bound it: answers enter `young`; when that is full it becomes the old one, whose
answers are promoted when they are asked for again and else thrown away with it. So a flood of
random names turns over what nobody repeats, and the answers in use stay.

A change drops the answers that came of it (slots.py), and of others none, or few beside very
many. Beside each generation stands which of its answers came of what: so finding one costs no more
for it.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from kudurru.adapters.dns.slots import ALL, LATEST, SLOTS, changed_slots, slots_of
from kudurru.domain.dns import names
from kudurru.domain.dns.record_types import counted_as
from kudurru.domain.ports import Keep, Origins
from kudurru.domain.query_log import Repeat

if TYPE_CHECKING:
    from kudurru.adapters.dns import _engine

ENTRIES_MAX = 131_072  # in both generations: the questions that a busy site asks again and again
BYTES_MAX = 24 << 20  # of keys and answers; Python's own objects come to about as much again

MANY = 1024
NEARLY_ALL = 0.75
"""Answers that come of one slot, and their share of a generation: from then on it is cleared. One
by one they take a microsecond each, all at once a tenth, and nobody is answered meanwhile."""

MESSAGE_MAX = 65_535  # octets that any message can have

_HEADER = 12

Kept = tuple[bytes, int, bytes]
"""An answer without its ID, its place in `Memo.hits`, and the slots of what it comes of."""


class _Generation:
    """Answers, and which of them come of a slot."""

    __slots__ = ("_by_slot", "answers", "size")

    def __init__(self) -> None:
        self.answers: dict[bytes, Kept] = {}
        self.size = 0  # octets of keys and answers
        self._by_slot: dict[int, set[bytes]] = {}

    def put(self, key: bytes, kept: Kept) -> None:
        self._remove(key)
        self.answers[key] = kept
        self.size += len(key) + len(kept[0])
        for slot in kept[2]:
            self._by_slot.setdefault(slot, set()).add(key)

    def drop(self, slot: int) -> None:
        """What comes of a slot; with nearly all that there is the rest goes, too."""
        keys = self._by_slot.get(slot, ())
        if len(keys) >= MANY and len(keys) >= NEARLY_ALL * len(self.answers):
            self.clear()
            return
        self._by_slot.pop(slot, None)
        for key in keys:
            self._remove(key)

    def clear(self) -> None:
        self.answers.clear()
        self._by_slot.clear()
        self.size = 0

    def _remove(self, key: bytes) -> None:
        kept = self.answers.pop(key, None)
        if kept is not None:
            self.size -= len(key) + len(kept[0])
            for slot in kept[2]:
                if keys := self._by_slot.get(slot):
                    keys.discard(key)


class Keeper(Protocol):
    """A memo that knows the time and its clients, as far as it must to repeat more. `Memo` says how
    what both have is meant.

    `client` is the asker's address, 4 or 16 octets; `is_named`: a group names it by what it calls
    itself, so what is for a class of addresses is not for it.
    """

    @property
    def era(self) -> int:
        """What is now, until `invalidate`. Whoever asks the handler takes it first, for `store`."""
        ...

    def find_for(
        self, packet: bytes, client: bytes, *, is_named: bool, room: int = MESSAGE_MAX
    ) -> tuple[bytes, int] | None:
        """As `Memo.find`, with the class of clients that the answer is for."""
        ...

    def take(
        self,
        arrived: bytearray,
        at: int,
        client: bytes,
        *,
        is_named: bool,
        limit: int,
        is_told: bool,
    ) -> "Taken":
        """Answer the messages in a stream from an offset on, each behind two octets of its length:
        as many as are whole and known one after the other, at most `limit` (and some 64 KiB).
        `is_told`: the repeats are wanted."""
        ...

    def store(self, era: int, packet: bytes, wire: bytes, origins: Origins = None) -> None: ...

    def keep(
        self, era: int, packet: bytes, wire: bytes, how: Keep, origins: Origins = None
    ) -> None:
        """Keep an answer that is not simply for everybody until what it comes of changes."""
        ...

    def new_http2(self) -> "_engine.Http2":
        """For a connection over HTTP/2."""
        ...

    def counts(self) -> dict[tuple[int, int], int]: ...

    def invalidate(self, changed: Origins = None) -> None: ...


Taken = tuple[int, int, bytes, Sequence[Repeat]]
"""Offset behind the last message that was answered, how many were, their answers as they go back
into the stream, and what a query log wants to hear of them."""


class Memo:
    """One per kind of transport, because an answer may depend on it (size, TC).

    Thread rule: one thread looks up and stores, any thread may invalidate. Whoever asks the
    handler takes `era` first and hands it to `store`, which keeps nothing of what changed
    meanwhile: what was computed before can never come back.
    """

    __slots__ = (
        "_bytes_max", "_changed", "_entries_max", "_lock", "_old", "_places", "_young", "era",
        "hits",
    )  # fmt: skip

    def __init__(self, entries_max: int = ENTRIES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._young = _Generation()
        self._old = _Generation()
        self.era = 0
        """One more with each `invalidate`."""
        self._changed = [0] * SLOTS  # the era that began when a slot changed last
        self.hits: list[int] = []
        """Answers given, counted by whoever gives them; `counts` says of what."""
        self._places: dict[tuple[int, int], int] = {}
        self._entries_max = entries_max // 2
        self._bytes_max = bytes_max // 2
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._young.answers) + len(self._old.answers)

    @property
    def young(self) -> Mapping[bytes, Kept]:
        """Packet loops look here first. Another one, when it is full."""
        return self._young.answers

    @property
    def has_old(self) -> bool:
        """Whether there are answers beside the young ones."""
        return bool(self._old.answers)

    def counts(self) -> dict[tuple[int, int], int]:
        """Answers given, by type (as `counted_as` has it) and RCODE."""
        return {of: self.hits[place] for of, place in self._places.items()}

    def find(self, packet: bytes, room: int = MESSAGE_MAX) -> bytes | None:
        """The answer for a query, of at most `room` octets, with its ID and its question, or None.
        It counts as given."""
        end = packet.find(0, _HEADER) + 1
        if not end:
            return None
        key = packet[2:_HEADER] + packet[_HEADER:end].lower() + packet[end:]
        found = self._young.answers.get(key)
        if found is None:
            era = self.era
            found = self._old.answers.get(key)
            if found is None:
                return None
            self._put(era, key, found)
        kept, place, _ = found
        if len(kept) + 2 > room:
            return None
        self.hits[place] += 1
        return packet[:2] + kept[: _HEADER - 2] + packet[_HEADER:end] + kept[end - 2 :]

    def store(self, era: int, packet: bytes, wire: bytes, origins: Origins = None) -> None:
        """Keep an answer. `era` is that of before the handler was asked.

        Where the name holds a zero octet inside a label, only the part before it is lowered, in
        key and value alike: fewer hits, the same answers.
        """
        end = packet.find(0, _HEADER) + 1
        if not end or wire[_HEADER:end] != packet[_HEADER:end]:
            return  # no question, or one that is not echoed: nothing to put letters back into
        name = packet[_HEADER:end].lower()
        key = packet[2:_HEADER] + name + packet[end:]
        type_at = names.end_of(packet, _HEADER)
        place = self._place(int.from_bytes(packet[type_at : type_at + 2], "big"), wire[3] & 15)
        self._put(era, key, (wire[2:_HEADER] + name + wire[end:], place, slots_of(origins)))

    def invalidate(self, changed: Origins = None) -> None:
        """Forget what came of it, also for a loop that still holds the dictionaries."""
        slots = changed_slots(changed)
        with self._lock:
            self.era += 1
            for slot in (LATEST, *slots):
                self._changed[slot] = self.era
            for generation in (self._young, self._old):
                if ALL in slots:
                    generation.clear()
                    continue
                for slot in (LATEST, *slots):
                    generation.drop(slot)

    def _place(self, rtype: int, rcode: int) -> int:
        of = counted_as(rtype), rcode
        place = self._places.get(of)
        if place is None:
            place = self._places[of] = len(self.hits)
            self.hits.append(0)
        return place

    def _put(self, era: int, key: bytes, kept: Kept) -> None:
        size, slots = len(key) + len(kept[0]), kept[2]
        with self._lock:
            if era < max(self._changed[slot] for slot in (ALL, *slots)) or size > self._bytes_max:
                return
            young = self._young
            if len(young.answers) >= self._entries_max or young.size + size > self._bytes_max:
                self._old, self._young = young, _Generation()
            self._young.put(key, kept)
