"""From a zone file on disk to the objects that mean the same."""

import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from kudurru.adapters.files import include_from, open_zone_file
from kudurru.domain import zone_import
from kudurru.domain.dns import master_file, names
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.record_types import SOA
from kudurru.domain.dns.soa import Soa
from kudurru.domain.dns.zone_rules import check_zone
from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.kinds.validation import Manifest
from kudurru.domain.zone_import import Present

Progress = Callable[[int, int], None]
"""Octets read, octets in all."""


class ZoneFile(msgspec.Struct, frozen=True):
    """A zone file that was read and checked. `soa` is TTL, value and serial."""

    path: str
    apex: Name
    records: list[master_file.Record]
    soa: tuple[int, Soa, int]
    warnings: list[Cause]


def read_zone_file(
    path: Path, *, zone: str | None = None, on_progress: Progress | None = None
) -> ZoneFile:
    """Read and check a zone file. `zone` is its DNS name; without it the file must say so by
    $ORIGIN or an absolute SOA. Raises Invalid with every fault, each with file and line."""
    return _checked(
        str(path),
        zone,
        partial(
            master_file.read,
            open_zone_file(path),
            include=include_from(path),
            on_progress=on_progress,
        ),
    )


def read_zone_text(
    data: bytes, *, file: str, zone: str | None = None, generated_max: int
) -> ZoneFile:
    """The same of a text that came from elsewhere: it includes no file, and `file` is its name in
    messages. Raises Invalid."""
    limits = master_file.Limits(generated=generated_max)
    return _checked(file, zone, partial(master_file.read, data, limits=limits))


def _checked(file: str, zone: str | None, read: Callable[..., master_file.ZoneFile]) -> ZoneFile:
    origin = None
    if zone is not None:
        try:
            origin = names.from_text(zone)
        except names.BadName as error:
            raise Invalid("--zone", [Cause("", str(error))]) from None
    found = read(file=file, origin=origin)
    apex = origin or found.apex
    if apex is None:
        raise Invalid(file, [Cause("", "no SOA, so no zone; a zone begins with its SOA")])
    findings = check_zone(found.records, apex)
    if findings.faults:
        raise Invalid(file, findings.faults)
    return ZoneFile(
        file,
        apex,
        found.records,
        next(_soa(r) for r in found.records if r.rtype == SOA),
        [*found.warnings, *findings.warnings],
    )


def _soa(record: master_file.Record) -> tuple[int, Soa, int]:
    mname, at = names.from_wire(record.rdata, 0)
    rname, at = names.from_wire(record.rdata, at)
    serial, refresh, retry, expire, minimum = struct.unpack_from("!IIIII", record.rdata, at)
    soa = Soa(
        mname=mname,
        rname=rname,
        refresh=refresh,
        retry=retry,
        expire=expire,
        minimum=minimum,
        ttl=record.ttl,
    )
    return record.ttl, soa, serial


def to_manifests(file: ZoneFile, *, namespace: str, present: Present) -> list[Manifest]:
    """The DNSZone and its record sets."""
    owners = zone_import.group_by_owner(
        (record.owner, record.rtype, record.ttl, record.rdata) for record in file.records
    )
    return zone_import.manifests(
        owners,
        file.apex,
        soa=file.soa[:2],
        namespace=namespace,
        present=present,
    )
