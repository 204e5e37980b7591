"""Zones for tests, read by dnspython: a reader that is not ours."""

import dns.name
import dns.rdata
import dns.rdatatype
import dns.zone

from kudurru.domain.dns import names
from kudurru.domain.dns.images import RRset
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.record_types import SOA
from kudurru.domain.dns.soa import Soa
from kudurru.domain.dns.zone_tree import Zone


def zone_from_text(text: str, origin: str) -> Zone:
    """Zone of a master file, stamped with the serial of its SOA."""
    parsed = dns.zone.from_text(text, origin, relativize=False, check_origin=False)
    by_owner: dict[Name, list[RRset]] = {}
    soa = None
    for owner, rdataset in parsed.iterate_rdatasets():
        if rdataset.rdtype == SOA:
            soa = rdataset
        else:
            rdatas = tuple(rdata.to_wire() for rdata in rdataset)
            rrset = RRset(int(rdataset.rdtype), rdataset.ttl, rdatas)
            by_owner.setdefault(wire(owner), []).append(rrset)
    assert soa is not None
    zone = Zone(names.from_text(origin), soa_value(soa.ttl, soa[0]))
    for owner_name, rrsets in by_owner.items():
        zone.replace(owner_name, rrsets)
    zone.stamp(soa[0].serial)
    return zone


def soa_value(ttl: int, rdata: dns.rdata.Rdata) -> Soa:
    return Soa(
        mname=wire(rdata.mname),
        rname=wire(rdata.rname),
        refresh=rdata.refresh,
        retry=rdata.retry,
        expire=rdata.expire,
        minimum=rdata.minimum,
        ttl=ttl,
    )


def wire(name: dns.name.Name) -> Name:
    return Name(name.to_wire())
