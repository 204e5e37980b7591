"""What a set of zones answers: RFC 1034 section 4.3.2, with wildcards (RFC 4592), DNAME
(RFC 6672), negative answers (RFC 2308), ANY (RFC 8482) and SVCB (RFC 9460).

Zones without cuts, with the asked RRset at the asked name, are a straight line here; everything
else goes through a `_Resolution`, which walks a chain of aliases over the local zones.
"""

from collections.abc import Sequence

import msgspec

from kudurru.domain.dns import names, records
from kudurru.domain.dns.images import (
    EMPTY,
    alias_of,
    find_rrset,
    pack_record,
    unpack,
    unpack_records,
    with_ttl_at_most,
)
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.record_types import (
    AAAA,
    ANY,
    CNAME,
    DNAME,
    DS,
    HTTPS,
    MX,
    NS,
    SOA,
    SRV,
    SVCB,
    A,
)
from kudurru.domain.dns.zone_set import ZoneSet
from kudurru.domain.dns.zone_tree import Zone

NOERROR, FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED, YXDOMAIN = range(7)
YXRRSET, NXRRSET, NOTAUTH, NOTZONE = range(7, 11)
BADVERS, BADCOOKIE = 16, 23
RCODE_NAMES = {
    NOERROR: "NOERROR",
    FORMERR: "FORMERR",
    SERVFAIL: "SERVFAIL",
    NXDOMAIN: "NXDOMAIN",
    NOTIMP: "NOTIMP",
    REFUSED: "REFUSED",
    YXDOMAIN: "YXDOMAIN",
    YXRRSET: "YXRRSET",
    NXRRSET: "NXRRSET",
    NOTAUTH: "NOTAUTH",
    NOTZONE: "NOTZONE",
    BADVERS: "BADVERS",
    BADCOOKIE: "BADCOOKIE",
}
NOT_READY, PROHIBITED, NOT_AUTHORITATIVE, INVALID_DATA = 14, 18, 20, 24
"""Extended errors (RFC 8914 section 4), where the code alone leaves people guessing."""

CHAIN_MAX = 16
"""Aliases followed for one question. Real chains have two or three; a loop ends here at the
latest, when it makes new names all the time."""

ADDITIONAL_MAX = 32
"""Targets whose addresses are looked up: more than fit into any UDP answer."""

_SERVICES = frozenset({SVCB, HTTPS})
_ALIAS_MODE = b"\x00\x00"  # the priority that means an alias

_WITH_TARGETS = _SERVICES | {NS, MX, SRV}
"""Types whose targets' addresses go into the additional section."""


class Placed(msgspec.Struct, frozen=True, gc=False):
    """An RRset in a section of an answer. `owner` None is the question's name; a record in `wire`
    has a pointer to the question in the place of its owner, whatever the owner is."""

    owner: bytes | None
    rtype: int
    rr_count: int
    wire: bytes
    is_needed: bool = False
    """Glue without which a referral leads nowhere (RFC 9471)."""


class Answer(msgspec.Struct, frozen=True, gc=False):
    """Sections of an answer. When `negative_parts` is set the authority section is the SOA whose
    parts are to be joined by a pointer to octet `apex_at` of the question, and nothing else is."""

    rcode: int
    is_authoritative: bool = False
    answer: Sequence[Placed] = ()
    authority: Sequence[Placed] = ()
    additional: Sequence[Placed] = ()
    negative_parts: tuple[bytes, ...] = ()
    apex_size: int = 0
    """Length of the apex' name, where `negative_parts` is set."""
    is_lasting: bool = True
    """Whether it stays right until served data changes; not so for records that expire."""
    extended_error: int | None = None
    is_recursive: bool = False
    """Whether it says that recursion is to be had here. Stub resolvers take an answer without data
    that says neither this nor AA for a referral, and ask the next server."""
    extended_text: str = ""
    """What people are told beside the extended error."""
    zones: Sequence[bytes] = ()
    """Apexes of the zones here that it was taken from, for what they hold or do not. Which zones
    there are it comes of too, always."""


NOT_OURS = Answer(REFUSED, extended_error=NOT_AUTHORITATIVE)
"""No zone here encloses the name, or one of type Forward does so more closely."""
UNAVAILABLE = Answer(SERVFAIL, is_lasting=False, extended_error=INVALID_DATA)
"""For a zone that was not transferred yet, or has expired (RFC 8914 section 4.25)."""


def lookup(zones: ZoneSet, qname: Name, qtype: int, now_s: int) -> Answer:
    """Answer a question of class IN from the newest content of the zones. `now_s` is unix time:
    the TTL of a record that expires is capped by the time it has left."""
    key = qname.lower()
    zone = zones.find_for(key, qtype)
    if zone is None:
        return NOT_OURS
    if not zone.is_available:
        return UNAVAILABLE
    if not (zone.cuts or zone.dnames or zone.expiring) and qtype not in _WITH_TARGETS:
        image = zone.nodes.get(key)
        if image is not None:
            found = find_rrset(image, qtype)
            if found is not None:
                owner = zone.cased.get(key) if zone.cased else None
                placed = (Placed(owner, qtype, *found),)
                return Answer(NOERROR, True, placed, zones=(zone.key,))
    # What is made of the question's name has no letters of this client: others get it repeated.
    return _Resolution(zones, qtype, now_s).run(zone, key, key)


def lookup_behind(zones: ZoneSet, alias: Placed, qtype: int, now_s: int) -> Answer | None:
    """Answer that begins with a CNAME of ours, and goes on with what the zones have for its
    target; None where they have nothing to do with it."""
    target = alias_of(alias.wire)
    zone = zones.find_for(target.lower(), qtype)
    if zone is None:
        return None
    resolution = _Resolution(zones, qtype, now_s)
    resolution.answer.append(alias)
    found = resolution.run(zone, target, target.lower(), target)
    return msgspec.structs.replace(found, is_authoritative=False, is_recursive=True)


class _Resolution:
    """One question on its way through the zones.

    Each step ends in one of: a referral, a DNAME (go on with the substituted name), the RRset, a
    CNAME (go on with its target), no data, or no such name.
    """

    def __init__(self, zones: ZoneSet, qtype: int, now_s: int) -> None:
        self.zones = zones
        self.qtype = qtype
        self.now_s = now_s
        self.rcode = NOERROR
        self.is_authoritative = False
        self.is_lasting = True
        self.answer: list[Placed] = []
        self.authority: list[Placed] = []
        self.additional: list[Placed] = []
        self.negative: Zone | None = None
        self.placed: set[tuple[bytes, int]] = set()
        self.asked: set[bytes] = set()  # zones, by apex

    def run(self, zone: Zone, qname: bytes, key: bytes, owner: bytes | None = None) -> Answer:
        """`owner` is what the name is called in the answer, None: the question."""
        visited = {key}
        self.asked.add(zone.key)
        for _ in range(CHAIN_MAX):
            target = self._step(zone, key, qname, owner)
            if target is None:
                break
            qname = owner = target
            key = target.lower()
            # A loop ends where it closes, with what was found on the way. RFC 1034 section 3.6.2
            # calls it an error, and gives no code for it.
            if key in visited:
                break
            visited.add(key)
            found = self.zones.find_for(key, self.qtype)
            if found is None:
                break
            self.asked.add(found.key)
            if not found.is_available:
                break
            zone = found
        return self._finish()

    def _finish(self) -> Answer:
        parts: tuple[bytes, ...] = ()
        apex_size = 0
        if (zone := self.negative) is not None:
            if self.answer:
                self.authority.append(Placed(zone.apex, SOA, 1, zone.negative_wire))
            else:
                parts, apex_size = zone.negative_parts, len(zone.key)
        return Answer(
            self.rcode,
            self.is_authoritative,
            self.answer,
            self.authority,
            self.additional,
            parts,
            apex_size,
            self.is_lasting,
            zones=tuple(self.asked),
        )

    def _step(self, zone: Zone, key: bytes, name: bytes, owner: bytes | None) -> bytes | None:
        """Look one name up in its zone. Returns the name to go on with, None when it is done.

        `owner` is what the owner of found records is called in the answer, None: the question.
        """
        if zone.cuts or zone.dnames:
            above = zone.occluder(key, cut_counts=self.qtype != DS)
            if above in zone.cuts:
                self._refer(zone, above)
                return None
            if above is not None:
                return self._substitute(zone, above, name, owner)
        # RFC 1034 section 6.2.7: the bit speaks for the first owner of the answer section.
        self.is_authoritative = True
        image = zone.nodes.get(key)
        if image is not None:
            return self._at_node(zone, key, image, name, zone.cased.get(key, owner))
        if zone.has_name(key):
            return self._at_node(zone, key, EMPTY, name, owner)
        wildcard = b"\x01*" + zone.closest_encloser(key)
        if not zone.has_name(wildcard):
            self.rcode = NXDOMAIN
            self.negative = zone
            return None
        return self._at_node(zone, wildcard, zone.nodes.get(wildcard, EMPTY), name, owner)

    def _at_node(
        self, zone: Zone, key: bytes, image: bytes, name: bytes, owner: bytes | None
    ) -> bytes | None:
        """The name exists, and `key` is where its data is: itself or its wildcard."""
        rtype, found = self._asked_for(zone, key, image)
        if found is not None:
            if rtype == DNAME and (name.lower(), DNAME) in self.placed:
                return None  # the way here led over it already
            wire = self._place(zone, key, owner, rtype, found)
            if rtype in _WITH_TARGETS:
                self._add_targets(rtype, wire, name)
            return None
        alias = find_rrset(image, CNAME)
        if alias is not None:
            wire = self._place(zone, key, owner, CNAME, alias)
            return alias_of(wire)
        self.negative = zone
        return None

    def _asked_for(
        self, zone: Zone, key: bytes, image: bytes
    ) -> tuple[int, tuple[int, bytes] | None]:
        """Type, and number and wire of the RRset that answers the question here."""
        if self.qtype == ANY:
            # RFC 8482 section 4.1: one RRset is enough for ANY; the smallest does least harm.
            smallest = min(unpack(image), key=lambda rrset: len(rrset.wire), default=None)
            if smallest is not None:
                return smallest.rtype, (smallest.rr_count, smallest.wire)
        if key == zone.key and self.qtype in (SOA, ANY):
            return SOA, (1, zone.soa_wire)
        return self.qtype, find_rrset(image, self.qtype)

    def _place(
        self, zone: Zone, key: bytes, owner: bytes | None, rtype: int, rrset: tuple[int, bytes]
    ) -> bytes:
        """Put an RRset into the answer section. Returns its wire as it was put there."""
        rr_count, wire = rrset
        wire = self._fresh(zone, key, rtype, wire)
        self.answer.append(Placed(owner, rtype, rr_count, wire))
        return wire

    def _fresh(self, zone: Zone, key: bytes, rtype: int, wire: bytes) -> bytes:
        if zone.expiring:
            expires_at_s = zone.expiring.get((key, rtype))
            if expires_at_s is not None:
                self.is_lasting = False
                return with_ttl_at_most(wire, max(0, expires_at_s - self.now_s))
        return wire

    def _refer(self, zone: Zone, cut: bytes) -> None:
        """RFC 1034 section 4.3.2 step 3b: the name servers of the cut, with glue."""
        rr_count, wire = _rrset_at(zone, cut, NS)
        wire = self._fresh(zone, cut, NS, wire)
        owner = zone.cased.get(cut, cut)
        self.authority.append(Placed(owner, NS, rr_count, wire))
        optional: list[Placed] = []
        for target in _targets(wire, owner):
            key = target.lower()
            # In-domain glue has no other source (RFC 9471 section 2.1); that of siblings does.
            is_needed = names.is_within(key, cut)
            if names.is_within(key, zone.key) and not self.zones.is_forwarded(key, zone):
                into = self.additional if is_needed else optional
                self._add(zone, key, target, (A, AAAA), into, is_needed=is_needed)
        self.additional += optional

    def _substitute(
        self, zone: Zone, above: bytes, name: bytes, owner: bytes | None
    ) -> bytes | None:
        """RFC 6672 section 3.2: the DNAME, and a CNAME made from it."""
        self.is_authoritative = True
        rr_count, wire = _rrset_at(zone, above, DNAME)
        wire = self._fresh(zone, above, DNAME, wire)
        if (above, DNAME) not in self.placed:
            self.placed.add((above, DNAME))
            self.answer.append(Placed(zone.cased.get(above, above), DNAME, rr_count, wire))
        _, ttl, rdata = next(unpack_records(wire))
        target = name[: len(name) - len(above)] + rdata
        if len(target) > names.NAME_MAX:
            self.rcode = YXDOMAIN
            return None
        # Section 3.1: the synthesized CNAME has the TTL of the DNAME.
        self.answer.append(Placed(owner, CNAME, 1, pack_record(CNAME, ttl, target)))
        # A DNAME that leads below itself makes the name longer for ever: a loop, as soon as seen.
        is_loop = names.is_within(rdata.lower(), above)
        return None if is_loop or self.qtype in (CNAME, ANY) else target

    def _add_targets(self, rtype: int, wire: bytes, owner: bytes) -> None:
        """RFC 1034 section 4.3.2 step 6, RFC 2782 and RFC 9460 section 4.1: addresses of targets
        that are served here."""
        is_alias = rtype in _SERVICES and any(
            record.rdata.startswith(_ALIAS_MODE) for record in unpack_records(wire)
        )
        for target in _targets(wire, owner):
            key = target.lower()
            zone = self.zones.find(key)
            if zone is None:
                continue
            self.asked.add(zone.key)
            if not zone.is_available:
                continue  # RFC 1035 section 4.3.5: what has expired is not told, here either
            # For an alias the client asks for the target next, with the same type.
            types = (rtype, A, AAAA) if is_alias else (A, AAAA)
            self._add(zone, key, target, types, self.additional)

    def _add(
        self,
        zone: Zone,
        key: bytes,
        name: bytes,
        types: Sequence[int],
        into: list[Placed],
        *,
        is_needed: bool = False,
    ) -> None:
        """What a question for these types at a target would find, glue too."""
        at = _data_of(zone, key)
        if at is None:
            return
        for rtype in types:
            rrset = find_rrset(zone.nodes[at], rtype) if (key, rtype) not in self.placed else None
            if rrset is not None:
                self.placed.add((key, rtype))
                rr_count, wire = rrset
                wire = self._fresh(zone, at, rtype, wire)
                into.append(Placed(zone.cased.get(key, name), rtype, rr_count, wire, is_needed))


def _data_of(zone: Zone, key: bytes) -> bytes | None:
    """Where the records of a name are: there, or at the wildcard that it comes from (RFC 4592);
    None where it has none."""
    if zone.dnames and zone.occluder(key, cut_counts=False) in zone.dnames:
        return None  # RFC 6672 section 2.3: what is below a DNAME is not there
    if key in zone.nodes:
        return key
    if zone.has_name(key) or (zone.cuts and zone.occluder(key, cut_counts=True) is not None):
        return None
    wildcard = b"\x01*" + zone.closest_encloser(key)
    return wildcard if wildcard in zone.nodes else None


def _rrset_at(zone: Zone, key: bytes, rtype: int) -> tuple[int, bytes]:
    rrset = find_rrset(zone.nodes[key], rtype)
    assert rrset is not None, f"{key!r} is indexed for type {rtype} and has none"
    return rrset


def _targets(wire: bytes, owner: bytes) -> list[bytes]:
    """Names that the RRset points at, at most ADDITIONAL_MAX, each once."""
    found: dict[bytes, bytes] = {}
    for rtype, _, rdata in unpack_records(wire):
        target: bytes | None = records.target_name(rtype, rdata)
        if target == names.ROOT:
            # RFC 9460 section 2.5.2: "." in service mode is the owner itself; elsewhere it is
            # nothing (RFC 2782, RFC 7505, and alias mode in RFC 9460 section 2.5.1).
            is_service = rtype in _SERVICES and not rdata.startswith(_ALIAS_MODE)
            target = owner if is_service else None
        if target is not None:
            found.setdefault(target.lower(), target)
            if len(found) == ADDITIONAL_MAX:
                break
    return list(found.values())
