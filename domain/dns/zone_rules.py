"""Whether records make a zone: the rules that no single record can break.

Faults keep a zone from being served as written; warnings do not, and say what will surprise. Each
names the file and line of the record it is about.
"""

from collections.abc import Iterable

import msgspec

from kudurru.domain.dns import names
from kudurru.domain.dns.master_file import Record
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.record_types import (
    AAAA,
    BESIDE_CNAME,
    CNAME,
    DNAME,
    MX,
    NS,
    NSEC3,
    RRSIG,
    SINGLETON_TYPES,
    SOA,
    SRV,
    A,
    type_to_text,
)
from kudurru.domain.dns.records import canonical_rdata, target_name
from kudurru.domain.errors import Cause

FINDINGS_MAX = 100  # of faults and of warnings; more would be read by nobody

_BELOW_DNAME = frozenset({NSEC3, RRSIG})  # RFC 6672 section 2.3
_POINTING = frozenset({NS, MX, SRV})
_ADDRESSES = frozenset({A, AAAA})
_NOTHING: frozenset[int] = frozenset()


class Findings(msgspec.Struct, frozen=True):
    faults: list[Cause]
    warnings: list[Cause]


def check_zone(zone: Iterable[Record], origin: Name) -> Findings:
    """Check the records of a master file against each other."""
    survey = _Survey(names.key(origin))
    for record in zone:
        survey.add(record)
    survey.check_apex()
    survey.check_aliases()
    survey.check_dnames()
    survey.check_targets()
    survey.check_signatures()
    return Findings(survey.faults, survey.warnings)


class _Survey:
    """What is known of a zone after one pass over its records. Owners are keys."""

    def __init__(self, apex: Name) -> None:
        self.faults: list[Cause] = []
        self.warnings: list[Cause] = []
        self._apex = apex
        self._types: dict[bytes, frozenset[int]] = {}  # by owner
        self._type_sets: dict[tuple[frozenset[int], int], frozenset[int]] = {}  # few: shared
        self._ttls: dict[bytes, int] = {}  # by owner and type
        self._singles: dict[tuple[bytes, int], Record] = {}
        self._pointing: list[Record] = []
        self._signature: Record | None = None

    def add(self, record: Record) -> None:
        owner = names.key(record.owner)
        if not names.is_within(owner, self._apex):
            self._fault(record, f"{_text(owner)} is outside the zone {_text(self._apex)}")
            return
        rtype = record.rtype
        before = self._types.get(owner, _NOTHING)
        if rtype not in before:
            self._types[owner] = self._with_type(before, rtype)
        self._check_ttl(record, owner)
        if rtype in SINGLETON_TYPES:
            self._check_single(record, owner)
        elif rtype in _POINTING:
            self._pointing.append(record)
        elif rtype == RRSIG and self._signature is None:
            self._signature = record

    def _with_type(self, before: frozenset[int], rtype: int) -> frozenset[int]:
        return self._type_sets.setdefault((before, rtype), before | {rtype})

    def _check_ttl(self, record: Record, owner: bytes) -> None:
        """RFC 2181 section 5.2. Signatures are no set: each has the TTL of what it covers."""
        first = self._ttls.setdefault(owner + record.rtype.to_bytes(2, "big"), record.ttl)
        if first != record.ttl and record.rtype != RRSIG:
            what = f"{_text(owner)} {type_to_text(record.rtype)}"
            self._warn(record, f"{what} has TTL {first} and {record.ttl}; the smallest is used")

    def _check_single(self, record: Record, owner: bytes) -> None:
        rtype = record.rtype
        if rtype == SOA and owner != self._apex:
            self._fault(record, f"SOA at {_text(owner)}; the zone is {_text(self._apex)}")
            return
        first = self._singles.setdefault((owner, rtype), record)
        if first is record:
            return
        what = f"a second {type_to_text(rtype)} at {_text(owner)}"
        if canonical_rdata(rtype, first.rdata) == canonical_rdata(rtype, record.rdata):
            # A zone printed from a transfer ends with its SOA again.
            self._warn(record, f"{what}, the same as at {first.place}")
        else:
            self._fault(record, f"{what}; the first is at {first.place}; one is allowed")

    def check_signatures(self) -> None:
        """Known gap: zones are not signed here, and signatures are records only."""
        if self._signature is not None:
            self._warn(
                self._signature,
                f"{_text(self._apex)} is signed: signatures are not served with answers, and no "
                "new ones are made; take its DS out of the parent zone before it is served here",
            )

    def check_apex(self) -> None:
        apex = _text(self._apex)
        types = self._types.get(self._apex, _NOTHING)
        if SOA not in types:
            self.faults.append(Cause("", f"no SOA at {apex}: this is no zone of that name"))
        elif NS not in types:
            soa = self._singles[self._apex, SOA]
            self._fault(soa, f"no NS at {apex}; a zone names its servers (RFC 1035 section 5.2)")

    def check_aliases(self) -> None:
        for (owner, rtype), record in self._singles.items():
            if rtype != CNAME:
                continue
            others = self._types[owner] - BESIDE_CNAME - {CNAME}
            if others:
                types = ", ".join(map(type_to_text, sorted(others)))
                self._fault(
                    record,
                    f"CNAME at {_text(owner)} beside {types}; "
                    "an alias has no other data (RFC 1034 section 3.6.2)",
                )

    def check_dnames(self) -> None:
        dnames = {owner for owner, rtype in self._singles if rtype == DNAME}
        if not dnames:
            return
        for owner, types in self._types.items():
            above = next((name for name in _ancestors(owner, self._apex) if name in dnames), None)
            if above is not None and not types <= _BELOW_DNAME:
                self._fault(
                    self._singles[above, DNAME],
                    f"{_text(owner)} is below the DNAME {_text(above)}, "
                    "which hides it (RFC 6672 section 2.3)",
                )

    def check_targets(self) -> None:
        cuts = {
            owner for owner, types in self._types.items() if NS in types and owner != self._apex
        }
        for record in self._pointing:
            name = target_name(record.rtype, record.rdata)
            target = names.key(name) if name is not None else names.ROOT
            if target != names.ROOT and names.is_within(target, self._apex):
                self._check_target(record, target, cuts)

    def _check_target(self, record: Record, target: Name, cuts: set[bytes]) -> None:
        """A target within the zone."""
        types = self._types.get(target, _NOTHING)
        what = f"{type_to_text(record.rtype)} target {_text(target)}"
        if CNAME in types:
            self._warn(record, f"{what} is an alias (RFC 2181 section 10.3)")
        elif types & _ADDRESSES or self._is_synthesized(target):
            return
        elif names.key(record.owner) in cuts and names.is_within(target, names.key(record.owner)):
            self._warn(record, f"{what} is below the delegation and has no address (glue) here")
        elif not any(name in cuts for name in (target, *_ancestors(target, self._apex))):
            self._warn(record, f"{what} has no address in this zone")

    def _is_synthesized(self, target: Name) -> bool:
        """Whether a wildcard or DNAME above answers for a name that does not exist."""
        return target not in self._types and any(
            DNAME in self._types.get(name, _NOTHING) or b"\x01*" + name in self._types
            for name in _ancestors(target, self._apex)
        )

    def _fault(self, record: Record, message: str) -> None:
        _add(self.faults, record.place, message)

    def _warn(self, record: Record, message: str) -> None:
        _add(self.warnings, record.place, message)


def _add(causes: list[Cause], at: str, message: str) -> None:
    if len(causes) < FINDINGS_MAX:
        causes.append(Cause("", message, at))
    elif len(causes) == FINDINGS_MAX:
        causes.append(Cause("", "and more"))


def _ancestors(owner: bytes, apex: Name) -> Iterable[Name]:
    """Names above one in the zone, the nearest first, the apex last."""
    while owner != apex:
        owner = names.parent(owner)
        yield Name(owner)


def _text(name: bytes) -> str:
    return names.to_text(name)
