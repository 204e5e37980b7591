"""Recent answers, kept so that a repeated question costs a dictionary look-up.

The key is the query without its ID, the letters of the question's name lowered. Only the name: the
octets behind it are numbers, and HTTPS is type 65, the octet "A". The value is the answer without
its ID, its question lowered too; the asker's ID and letters are put back, for resolvers that play
with letters compare them (draft-vixie-dnsext-dns0x20).

Two generations bound it: answers enter `young`; when that is full it becomes the old one, whose
answers are promoted when they are asked for again and else thrown away with it. So a flood of
random names turns over what nobody repeats, and the answers in use stay.
"""

import threading

ENTRIES_MAX = 131_072  # in both generations: the questions that a busy site asks again and again
BYTES_MAX = 24 << 20  # of keys and answers; Python's own objects come to about as much again

_HEADER = 12


class Memo:
    """One per kind of transport, because an answer may depend on it (size, TC).

    Thread rule: one thread looks up and stores, any thread may invalidate. Whoever asks the
    handler takes `young` first and hands it to `store`, which keeps nothing when `invalidate` has
    replaced it meanwhile: what was computed before can never come back.
    """

    __slots__ = ("_bytes", "_bytes_max", "_entries_max", "_lock", "_old", "young")

    def __init__(self, entries_max: int = ENTRIES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self.young: dict[bytes, bytes] = {}  # packet loops look here first; only we write
        self._old: dict[bytes, bytes] = {}
        self._bytes = 0  # in young
        self._entries_max = entries_max // 2
        self._bytes_max = bytes_max // 2
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.young) + len(self._old)

    def find(self, packet: bytes) -> bytes | None:
        """The answer for a query, with its ID and its question, or None."""
        young = self.young
        end = packet.find(0, _HEADER) + 1
        if not end:
            return None
        key = packet[2:_HEADER] + packet[_HEADER:end].lower() + packet[end:]
        kept = young.get(key)
        if kept is None:
            kept = self._old.get(key)
            if kept is None:
                return None
            self._put(young, key, kept)
        return packet[:2] + kept[: _HEADER - 2] + packet[_HEADER:end] + kept[end - 2 :]

    def store(self, young: dict[bytes, bytes], packet: bytes, wire: bytes) -> None:
        """Keep an answer. `young` is `self.young` as it was before the handler was asked.

        Where the name holds a zero octet inside a label, only the part before it is lowered, in
        key and value alike: fewer hits, the same answers.
        """
        end = packet.find(0, _HEADER) + 1
        if not end or wire[_HEADER:end] != packet[_HEADER:end]:
            return  # no question, or one that is not echoed: nothing to put letters back into
        name = packet[_HEADER:end].lower()
        key = packet[2:_HEADER] + name + packet[end:]
        self._put(young, key, wire[2:_HEADER] + name + wire[end:])

    def invalidate(self) -> None:
        """Forget everything, also for a loop that still holds the dictionaries."""
        with self._lock:
            young, old = self.young, self._old
            self.young, self._old, self._bytes = {}, {}, 0
            young.clear()
            old.clear()

    def _put(self, young: dict[bytes, bytes], key: bytes, kept: bytes) -> None:
        size = len(key) + len(kept)
        with self._lock:
            if young is not self.young or size > self._bytes_max:
                return
            if len(young) >= self._entries_max or self._bytes + size > self._bytes_max:
                self._old, self.young, self._bytes = young, {}, 0
            self.young[key] = kept
            self._bytes += size
