"""Zones while the views are still being built: each read from its own events when it is asked for.

A log of a million events takes half a minute to replay, and one zone of it some milliseconds. So a
server that has no snapshot answers for its zones at once. What is too large to be read between two
queries is not answered for ("ask another server"): the replay gets there.
"""

from kudurru.domain.dns.zone_tree import Zone
from kudurru.domain.ports import EventLog
from kudurru.projections.zone_state import ZoneState
from kudurru.projections.zones_as_of import TooLarge, ZonesAsOf

EVENTS_MAX = 4_000
"""Of one zone: a tenth of a second to read."""

EVENTS_OF_ALL_MAX = 200_000
"""Of all zones that are read so: they are held twice for a while, some 80 MB."""


class NotYet(Exception):
    """What a name has is not known yet."""


class EarlyZones(ZonesAsOf):
    """Zones at a position of a log on this machine, and a time in seconds UTC."""

    def __init__(self, log: EventLog, upto: int, now_s: int) -> None:
        super().__init__(log, upto, now_s=now_s, events_max=EVENTS_MAX)
        self._refused: set[bytes] = set()

    def shows(self, state: ZoneState) -> bool:
        return state.is_shown

    def get(self, apex_key: bytes) -> Zone | None:
        """Raises: NotYet."""
        if apex_key in self._refused:
            raise NotYet
        if self.events_read >= EVENTS_OF_ALL_MAX and self.is_unread(apex_key):
            raise NotYet
        try:
            return super().get(apex_key)
        except TooLarge:
            self._refused.add(apex_key)
            raise NotYet from None
