"""A zone as a master file: the version that its serial names."""

from collections.abc import Iterable, Iterator

from kudurru.domain.dns import master_file
from kudurru.domain.dns.images import unpack, unpack_records
from kudurru.domain.dns.master_file import Record
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.record_types import SOA
from kudurru.domain.dns.zone_tree import Zone


def lines(zone: Zone) -> Iterator[str]:
    """Lines of a file that other servers load. The zone is read when this is called, and may
    change while the lines are made: that takes seconds for a large one, in whatever thread."""
    soa = zone.stamped_soa or zone.soa
    first = Record(zone.apex, SOA, soa.ttl, soa.rdata(zone.serial))
    return master_file.write(_records(first, list(zone.stamped_nodes())), zone.apex)


def _records(soa: Record, nodes: Iterable[tuple[bytes, bytes]]) -> Iterator[Record]:
    yield soa
    for owner, image in nodes:
        for rrset in unpack(image):
            for record in unpack_records(rrset.wire):
                yield Record(Name(owner), record.rtype, record.ttl, record.rdata)
