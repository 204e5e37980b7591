"""Zones written out as master files."""

from kudurru.domain import zone_export
from kudurru.domain.dns.images import RRset
from kudurru.domain.dns.names import from_text
from kudurru.domain.dns.record_types import A
from kudurru.domain.dns.soa import Soa
from kudurru.domain.dns.zone_tree import Zone

APEX = from_text("home.example.")
SOA = Soa(mname=APEX, rname=APEX, refresh=3600, retry=600, expire=86400, minimum=300, ttl=900)


def put(zone: Zone, *labels: str, last: int = 1) -> None:
    for label in labels:
        zone.replace(from_text(label, APEX), [RRset(A, 300, (bytes((192, 0, 2, last)),))])


def test_a_zone_that_changes_while_it_is_written_is_written_as_it_was() -> None:
    """The server makes the lines in a thread, and the writer goes on meanwhile."""
    zone = Zone(APEX, SOA)
    put(zone, "a", "b", "c")
    zone.stamp(7)
    whole = list(zone_export.lines(zone))
    begun = zone_export.lines(zone)
    assert next(begun) == whole[0]
    zone.replace(from_text("a", APEX), ())
    put(zone, "b", "d", last=9)
    zone.stamp(8)
    assert list(begun) == whole[1:]
    assert len(whole) == 5
