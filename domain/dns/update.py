"""Dynamic update (RFC 2136): from a message and what a zone holds to what its names hold after it.

Pure: `read_update` checks the form, `check_prerequisites` what must hold (section 3.2), `prescan`
the updates by themselves (section 3.4.1), `apply` works them in order (section 3.4.2). Each raises
UpdateRefused with the code of the RFC, and then nothing of the message happens. What a zone holds
is asked of a `Read`: names map to what `domain.zone_import` calls RRs; the SOA is among those of
the apex.

The serial is not the client's: it is stamped when the content changes (section 3.6 asks for no
more), so a SOA with a newer serial changes its other fields, or is refused by who holds them.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from kudurru.domain.dns import names, records
from kudurru.domain.dns.lookup import (
    FORMERR,
    NOTAUTH,
    NOTZONE,
    NXDOMAIN,
    NXRRSET,
    REFUSED,
    YXDOMAIN,
    YXRRSET,
)
from kudurru.domain.dns.message_reader import Message, Record
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.record_types import (
    ANY,
    BESIDE_CNAME,
    CNAME,
    NS,
    SINGLETON_TYPES,
    SOA,
    BadRecord,
    is_meta_type,
    type_from_text,
    type_to_text,
)
from kudurru.domain.dns.records import CLASS_IN
from kudurru.domain.dns.serials import is_newer
from kudurru.domain.dns.transfer import version_of
from kudurru.domain.kinds.tsigkey import UpdateRule
from kudurru.domain.zone_import import RRs

CLASS_NONE, CLASS_ANY = 254, 255

RECORDS_MAX = 4_096
"""Records of one message: what fits into 64 kB with names of a few octets."""

Read = Callable[[Name], RRs]
"""What a name holds, by its key. The caller does not change it."""

Changed = dict[Name, tuple[Name, RRs]]
"""What names hold after an update, by key, with the name as it is written."""


class UpdateRefused(Exception):
    """An update that does not happen; `rcode` says so to the client, the text to people."""

    def __init__(self, rcode: int, message: str) -> None:
        self.rcode = rcode
        super().__init__(message)


class Update(msgspec.Struct, frozen=True):
    zone: Name
    prerequisites: list[Record]
    changes: list[Record]


def read_update(message: Message) -> Update:
    """Section 3.1.1. Raises: UpdateRefused."""
    if len(message.questions) != 1 or message.questions[0].rtype != SOA:
        raise UpdateRefused(FORMERR, "the zone section is not one SOA question")
    zone = message.questions[0]
    if zone.rclass != CLASS_IN:
        raise UpdateRefused(NOTAUTH, f"class {zone.rclass} is not served")
    if len(message.answers) + len(message.authorities) > RECORDS_MAX:
        raise UpdateRefused(REFUSED, f"more than {RECORDS_MAX} records")
    return Update(zone.name, message.answers, message.authorities)


# --- prerequisites --------------------------------------------------------------------------


def check_prerequisites(update: Update, read: Read) -> None:
    """Section 3.2.5. Raises: UpdateRefused."""
    apex = names.key(update.zone)
    wanted: dict[tuple[Name, int], set[bytes]] = {}
    for record in update.prerequisites:
        if record.ttl:
            raise UpdateRefused(FORMERR, f"{_shown(record)}: a prerequisite has no TTL")
        _check_within(record, apex)
        key, rtype = names.key(record.owner), record.rtype
        if record.rclass == CLASS_IN:
            _check_data(record)
            rdatas = wanted.setdefault((key, rtype), set())
            rdatas.add(records.canonical_rdata(rtype, record.rdata))
        elif record.rclass in (CLASS_ANY, CLASS_NONE):
            _check_existence(record, read(key))
        else:
            raise UpdateRefused(FORMERR, f"{_shown(record)}: class {record.rclass}")
    for (key, rtype), rdatas in wanted.items():
        if _rdatas(read(key), rtype) != rdatas:
            shown = f"{type_to_text(rtype)} of {names.to_text(key)}"
            raise UpdateRefused(NXRRSET, f"{shown} is not what the prerequisite says")


def _check_existence(record: Record, held: RRs) -> None:
    """Prerequisites without data: sections 2.4.1, 2.4.3, 2.4.4 and 2.4.5."""
    if record.rdata or (is_meta_type(record.rtype) and record.rtype != ANY):
        raise UpdateRefused(FORMERR, f"{_shown(record)}: no such prerequisite")
    must_exist = record.rclass == CLASS_ANY
    if record.rtype == ANY:
        if bool(held) is not must_exist:
            name = names.to_text(record.owner)
            said = f"{name} is not in use" if must_exist else f"{name} is in use"
            raise UpdateRefused(NXDOMAIN if must_exist else YXDOMAIN, said)
    elif (record.rtype in held) is not must_exist:
        said = "is not there" if must_exist else "is there"
        raise UpdateRefused(NXRRSET if must_exist else YXRRSET, f"{_shown(record)} {said}")


# --- updates --------------------------------------------------------------------------------


def prescan(update: Update) -> None:
    """Section 3.4.1.3. Raises: UpdateRefused."""
    apex = names.key(update.zone)
    for record in update.changes:
        _check_within(record, apex)
        is_meta = is_meta_type(record.rtype)
        if record.rclass == CLASS_IN:
            _check_data(record)
        elif record.rclass == CLASS_ANY:
            if record.ttl or record.rdata or (is_meta and record.rtype != ANY):
                raise UpdateRefused(FORMERR, f"{_shown(record)}: no such deletion")
        elif record.rclass == CLASS_NONE:
            if record.ttl or is_meta:
                raise UpdateRefused(FORMERR, f"{_shown(record)}: no such deletion")
        else:
            raise UpdateRefused(FORMERR, f"{_shown(record)}: class {record.rclass}")


def apply(update: Update, read: Read) -> Changed:
    """Section 3.4.2, in the order of the message: what the touched names hold after it. The caller
    has prescanned."""
    apex = names.key(update.zone)
    changed: Changed = {}
    for record in update.changes:
        key = names.key(record.owner)
        if key not in changed:
            changed[key] = (record.owner, {t: (ttl, {**r}) for t, (ttl, r) in read(key).items()})
        rrs = changed[key][1]
        if record.rclass == CLASS_IN:
            _add(rrs, record)
        elif record.rclass == CLASS_ANY:
            _delete_sets(rrs, record, is_apex=key == apex)
        else:
            _delete_record(rrs, record, is_apex=key == apex)
    return changed


def _add(rrs: RRs, record: Record) -> None:
    """Section 3.4.2.2: what cannot stand there is ignored, without an error."""
    rtype = record.rtype
    if rtype == SOA:
        _replace_soa(rrs, record)
        return
    others = {t for t in rrs if t not in BESIDE_CNAME}
    if rtype == CNAME and others - {CNAME}:
        return
    if rtype != CNAME and CNAME in rrs and rtype not in BESIDE_CNAME:
        return
    _, rdatas = rrs.get(rtype, (0, {}))
    if rtype in SINGLETON_TYPES:
        rdatas = {}
    identity = records.canonical_rdata(rtype, record.rdata)
    # RFC 2181 section 5.2: an RRset has one TTL, and the client has said which.
    rrs[rtype] = (record.ttl, {**rdatas, identity: record.rdata})


def _replace_soa(rrs: RRs, record: Record) -> None:
    there = rrs.get(SOA)
    if there is None:
        return
    (rdata,) = there[1].values()
    before = version_of(record._replace(rdata=rdata)).serial
    if is_newer(version_of(record).serial, before):
        rrs[SOA] = (record.ttl, {records.canonical_rdata(SOA, record.rdata): record.rdata})


def _delete_sets(rrs: RRs, record: Record, *, is_apex: bool) -> None:
    """Section 3.4.2.3. SOA and name servers of the zone stay."""
    kept = (SOA, NS) if is_apex else ()
    for rtype in list(rrs) if record.rtype == ANY else [record.rtype]:
        if rtype not in kept:
            rrs.pop(rtype, None)


def _delete_record(rrs: RRs, record: Record, *, is_apex: bool) -> None:
    """Section 3.4.2.4. The SOA and the last name server of the zone stay."""
    rtype = record.rtype
    ttl, rdatas = rrs.get(rtype, (0, {}))
    if rtype == SOA or (is_apex and rtype == NS and len(rdatas) == 1):
        return
    left = {**rdatas}
    left.pop(records.canonical_rdata(rtype, record.rdata), None)
    if left:
        rrs[rtype] = (ttl, left)
    else:
        rrs.pop(rtype, None)


def differs(before: RRs, after: RRs) -> bool:
    """Whether a name holds something else after an update."""
    return _essence(before) != _essence(after)


def _essence(rrs: RRs) -> dict[int, tuple[int, dict[bytes, bytes]]]:
    return {rtype: (ttl, rdatas) for rtype, (ttl, rdatas) in rrs.items() if rdatas}


# --- policy ---------------------------------------------------------------------------------


def rules_for(update: Update, rules: Iterable[UpdateRule]) -> list[UpdateRule]:
    """Those of a key that are for the zone of the update. Raises: UpdateRefused when none is."""
    apex = names.key(update.zone)
    ours = [rule for rule in rules if names.key(names.from_text(rule.zone)) == apex]
    if not ours:
        raise UpdateRefused(REFUSED, "the key may not update this zone")
    return ours


def check_allowed(update: Update, rules: Sequence[UpdateRule], read: Read) -> None:
    """Section 3.3: every change must be one that a rule for the zone allows. To delete all of a
    name is to delete each of its types. Raises: UpdateRefused."""
    for record in update.changes:
        key = names.key(record.owner)
        types = read(key).keys() - {SOA} if record.rtype == ANY else {record.rtype}
        if not _may(rules, key, types):
            raise UpdateRefused(REFUSED, f"the key may not update {_shown(record)}")


def _may(rules: Iterable[UpdateRule], key: Name, types: Iterable[int]) -> bool:
    matching = [rule for rule in rules if _covers_name(rule, key)]
    if not matching:
        return False
    return all(any(_covers_type(rule, rtype) for rule in matching) for rtype in types)


def _covers_name(rule: UpdateRule, key: Name) -> bool:
    if not rule.names:
        return True
    for text in rule.names:
        name = names.key(names.from_text(text))
        if names.is_wildcard(name):
            above = names.parent(name)
            if key != above and names.is_within(key, above):
                return True
        elif key == name:
            return True
    return False


def _covers_type(rule: UpdateRule, rtype: int) -> bool:
    return not rule.types or any(type_from_text(text) == rtype for text in rule.types)


# --- both -----------------------------------------------------------------------------------


def _check_within(record: Record, apex: Name) -> None:
    if not names.is_within(names.key(record.owner), apex):
        raise UpdateRefused(NOTZONE, f"{_shown(record)} is outside the zone")


def _check_data(record: Record) -> None:
    if is_meta_type(record.rtype):
        raise UpdateRefused(FORMERR, f"{_shown(record)} is no data of a zone")
    if not record.rdata:
        try:
            records.check_rdata(record.rtype, record.rdata)
        except BadRecord:
            raise UpdateRefused(FORMERR, f"{_shown(record)} has no data") from None


def _rdatas(rrs: RRs, rtype: int) -> set[bytes]:
    return set(rrs[rtype][1]) if rtype in rrs else set()


def _shown(record: Record) -> str:
    return f"{type_to_text(record.rtype)} of {names.to_text(record.owner)}"
