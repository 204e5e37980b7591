"""A zone as a master file: the version that its serial names."""

from collections.abc import Iterator

from kudurru.domain.dns import master_file
from kudurru.domain.dns.master_file import Record
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.record_types import SOA
from kudurru.domain.dns.zone_tree import Zone, unpack, unpack_records


def lines(zone: Zone) -> Iterator[str]:
    """Lines of a file that other servers load."""
    return master_file.write(_records(zone), zone.apex)


def _records(zone: Zone) -> Iterator[Record]:
    soa = zone.stamped_soa or zone.soa
    yield Record(zone.apex, SOA, soa.ttl, soa.rdata(zone.serial))
    for owner, image in zone.stamped_nodes():
        for rrset in unpack(image):
            for record in unpack_records(rrset.wire):
                yield Record(Name(owner), record.rtype, record.ttl, record.rdata)
