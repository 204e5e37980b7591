"""Stamping: the serial and content hash that a DNSZone's status carries.

A serial moves only when the served content does, and is written as an event, so that every replay
and every node has the same one.
"""

from typing import Any

from kudurru.domain.dns import serials
from kudurru.domain.reconcile.secondaries import without_transfer


def next_serial(
    *,
    stamped: int | None,
    highest_published: int | None,
    imported: int | None,
    now_s: int,
    is_clock_trusted: bool = True,
) -> int:
    """Serial of a zone's next version.

    `stamped` is the zone's serial now, None before the first; `highest_published` the highest that
    the zone name ever had; `imported` the serial of the file that this content came from, which
    is kept where none higher was published. A clock that jumped is not followed.
    """
    if imported:
        below = (s for s in (stamped, highest_published) if s is not None)
        if all(serials.is_newer(imported, serial) for serial in below):
            return imported
    return serials.stamp(stamped, highest_published, now_s if is_clock_trusted else 0)


def stamped_status(
    before: dict[str, Any] | None,
    *,
    serial: int,
    content_hash: str,
    record_count: int,
    generation: int,
) -> dict[str, Any]:
    """The status after a stamp; fields that others write stay."""
    return {
        **without_transfer(before),
        "observedGeneration": generation,
        "serial": serial,
        "contentHash": content_hash,
        "recordCount": record_count,
    }
