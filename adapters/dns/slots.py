"""What remembered answers come of, by number: so that a change drops those that came of it.

An answer comes of zones, of what filters, of what upstreams said (`ports.Origins`). Each is one of
few numbers, a slot, and who remembers answers knows of each slot when it changed last. Zones may
share one: a change of one of them then drops the answers of all, which is work and no harm.
"""

from zlib import crc32

from kudurru.domain.ports import FILTERS, Origins

SLOTS = 256  # an octet each; native/core.h has the same ones
LATEST, ALL, FILTERS_SLOT, FIRST_ZONE = range(4)
"""The slot of whatever changed last, the one that every answer is of, that of what filters, and the
first one of the zones."""

ANSWER_SLOTS_MAX = 6
"""Of one answer. What comes of more is dropped with any change: no answer that people ask for does,
aliases over six zones."""

_LATEST, _ALL = bytes((LATEST,)), bytes((ALL,))


def slots_of(origins: Origins) -> bytes:
    """Of an answer."""
    if origins is None:
        return _LATEST
    found = bytes(set(map(_slot_of, origins)))
    return found if len(found) <= ANSWER_SLOTS_MAX else _LATEST


def changed_slots(origins: Origins) -> bytes:
    """Of a change. Besides, each one is of LATEST."""
    return _ALL if origins is None else bytes(set(map(_slot_of, origins)))


def _slot_of(origin: bytes) -> int:
    if origin == FILTERS:
        return FILTERS_SLOT
    return FIRST_ZONE + crc32(origin) % (SLOTS - FIRST_ZONE)
