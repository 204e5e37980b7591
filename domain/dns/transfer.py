"""Inbound zone transfers (RFC 5936, RFC 1995): a state machine without I/O.

Feed it the messages of one transfer, in order. It answers with nothing while there is more to
come, then with what the transfer means: the zone whole, differences to apply, or that there is
nothing new. Whatever a primary sends that is no such transfer raises BadTransfer, and then nothing
of it counts: the zone that is served stays as it was.

    first SOA ── another record ──► whole ── the first SOA again ──► Whole
        │ ── SOA of the version we have ──► deleted ◄─ SOA ─► added ── the first SOA ──► Differences
        └─ an incremental answer that is our own SOA ──► Current
"""

from collections.abc import Callable, Generator, Iterable
from struct import Struct as Layout
from typing import Protocol

import msgspec

from kudurru.domain.dns import names, records
from kudurru.domain.dns.lookup import NOERROR, RCODE_NAMES
from kudurru.domain.dns.message_reader import (
    QR,
    TC,
    BadMessage,
    Message,
    Question,
    Record,
    read_message,
)
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.record_types import (
    AXFR,
    BESIDE_CNAME,
    CNAME,
    IXFR,
    SINGLETON_TYPES,
    SOA,
    BadRecord,
    is_meta_type,
    type_to_text,
)
from kudurru.domain.dns.records import CLASS_IN
from kudurru.domain.dns.serials import is_newer
from kudurru.domain.dns.soa import Soa
from kudurru.domain.zone_import import RRs, group_by_owner

RECORDS_MAX = 5_000_000
OCTETS_MAX = 1 << 30
MESSAGES_MAX = 1_000_000
"""Of one transfer: several times the largest zone that we mean to serve."""

PER_STEP = 200
"""Records between two breaks: about a millisecond."""

_SOA_NUMBERS = Layout("!IIIII")
_HEADER = Layout("!HHHHHH")
_QUESTION_TAIL = Layout("!HH")
_RR_FIXED = Layout("!HHIH")


class BadTransfer(ValueError):
    """What a primary sent is no transfer of this zone; the text says why. `rcode` is the code that
    it refused with, where it did."""

    def __init__(self, message: str, rcode: int | None = None) -> None:
        self.rcode = rcode
        super().__init__(message)


class Verifier(Protocol):
    """Of the TSIG of a stream of messages (RFC 8945 section 5.3.1)."""

    def check(self, message: bytes) -> bytes:
        """The message without its TSIG. Raises ValueError where the signature is wrong, or too
        many messages came without one."""
        ...

    def check_end(self) -> None:
        """Raises ValueError where the last message was not signed."""
        ...


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    records: int = RECORDS_MAX
    octets: int = OCTETS_MAX
    messages: int = MESSAGES_MAX


class Version(msgspec.Struct, frozen=True):
    """A SOA record: which version, and what it says."""

    serial: int
    soa: Soa


class Current(msgspec.Struct, frozen=True):
    """The primary has what we have."""

    version: Version


class Whole(msgspec.Struct, frozen=True):
    """A version of the zone: its records by owner key, without the SOA."""

    version: Version
    owners: dict[Name, tuple[Name, RRs]]


class Step(msgspec.Struct, frozen=True):
    """From one version to a later one."""

    from_serial: int
    to_serial: int
    deleted: list[Record]
    added: list[Record]


class Differences(msgspec.Struct, frozen=True):
    """How to come from the version that we have to a newer one."""

    version: Version
    steps: list[Step]


Received = Current | Whole | Differences


def query(id_: int, apex: Name, ours: Version | None = None) -> bytes:
    """The question of a transfer: for differences to `ours`, or for the whole zone."""
    if ours is None:
        return _HEADER.pack(id_, 0, 1, 0, 0, 0) + apex + _QUESTION_TAIL.pack(AXFR, CLASS_IN)
    head = _HEADER.pack(id_, 0, 1, 0, 1, 0) + apex + _QUESTION_TAIL.pack(IXFR, CLASS_IN)
    rdata = ours.soa.rdata(ours.serial)
    # RFC 1995 section 3: the authority section says which version the client has.
    return head + b"\xc0\x0c" + _RR_FIXED.pack(SOA, CLASS_IN, ours.soa.ttl, len(rdata)) + rdata


def soa_query(id_: int, apex: Name) -> bytes:
    return _HEADER.pack(id_, 0, 1, 0, 0, 0) + apex + _QUESTION_TAIL.pack(SOA, CLASS_IN)


def read_soa_answer(octets: bytes, id_: int, apex: Name) -> Version | None:
    """The SOA that a primary says its zone has; None: it did not fit, ask over TCP. Raises:
    BadTransfer."""
    message = _response(octets, id_, Question(apex, SOA, CLASS_IN), is_first=True)
    if message.flags & TC:
        return None
    for record in message.answers:
        if record.rtype == SOA and names.key(record.owner) == names.key(apex) and record.rdata:
            return version_of(record)
    raise BadTransfer("the answer has no SOA of the zone")


def version_of(record: Record) -> Version:
    """Of a SOA record that has been read."""
    mname, at = names.from_wire(record.rdata, 0)
    rname, at = names.from_wire(record.rdata, at)
    serial, refresh, retry, expire, minimum = _SOA_NUMBERS.unpack_from(record.rdata, at)
    soa = Soa(
        mname=mname,
        rname=rname,
        refresh=refresh,
        retry=retry,
        expire=expire,
        minimum=minimum,
        ttl=record.ttl,
    )
    return Version(serial, soa)


class Inbound:
    """One transfer.

    `have` is the serial that we have, None for none; `is_incremental` tells that differences to it
    were asked for, so that they are what may come. A whole zone of the very serial that we have is
    taken: it was asked for because ours is not as it should be.
    """

    def __init__(
        self,
        apex: Name,
        id_: int,
        *,
        have: int | None = None,
        is_incremental: bool = False,
        verifier: Verifier | None = None,
        limits: Limits = Limits(),  # noqa: B008  # frozen
    ) -> None:
        self._key = names.key(apex)
        self._id = id_
        self._question = Question(apex, IXFR if is_incremental else AXFR, CLASS_IN)
        self._have = have
        self._is_incremental = is_incremental
        self._verifier = verifier
        self._limits = limits
        self.messages = self.octets = self.records = 0
        self._first: Record | None = None
        self._version: Version | None = None
        self._take: Callable[[Record], None] = self._take_first
        self._whole: list[Record] = []
        self._steps: list[Step] = []
        self._is_complete = False

    def feed(self, octets: bytes) -> Received | None:
        """Take the next message. What the transfer means, once it is complete. Raises:
        BadTransfer."""
        self.messages += 1
        self.octets += len(octets)
        if self.messages > self._limits.messages or self.octets > self._limits.octets:
            raise BadTransfer(
                f"more than {self._limits.messages} messages or {self._limits.octets} octets"
            )
        message = self._checked(octets)
        self.records += len(message.answers)
        if self.records > self._limits.records:
            raise BadTransfer(f"more than {self._limits.records} records")
        for record in message.answers:
            self._check_record(record)
            self._take(record)
        return self._result()

    def end(self) -> None:
        """The primary sends no more. Raises: BadTransfer, always: it ended early."""
        raise BadTransfer(
            f"the transfer ended early, after {self.messages} messages and {self.records} records"
        )

    def _checked(self, octets: bytes) -> Message:
        if self._verifier is not None:
            try:
                octets = self._verifier.check(octets)
            except ValueError as error:
                raise BadTransfer(f"TSIG: {error}") from None
        message = _response(octets, self._id, self._question, is_first=self.messages == 1)
        if message.flags & TC:
            raise BadTransfer("a message is truncated")
        if not message.answers and not self.records:
            raise BadTransfer("the answer holds no record")
        return message

    def _check_record(self, record: Record) -> None:
        if record.rclass != CLASS_IN:
            raise BadTransfer(f"{_shown(record)} is of class {record.rclass}")
        if is_meta_type(record.rtype):
            raise BadTransfer(f"{_shown(record)} is no data of a zone")
        if not record.rdata:
            _check_empty(record)
        key = names.key(record.owner)
        if not names.is_within(key, self._key):
            raise BadTransfer(f"{_shown(record)} is outside the zone")
        if record.rtype == SOA and key != self._key:
            raise BadTransfer(f"{_shown(record)} is below the apex")
        if self._is_complete:
            raise BadTransfer(f"{_shown(record)} follows the last SOA")

    def _result(self) -> Received | None:
        version = self._version
        assert version is not None, "a message without records has been refused"
        if not self._is_complete:
            if not self._is_single_and_known(version):
                return None
            self._check_signed_end()
            return Current(version)
        self._check_signed_end()
        if self._steps:
            return Differences(version, self._steps)
        owners = group_by_owner((r.owner, r.rtype, r.ttl, r.rdata) for r in self._whole)
        for owner, rrs in owners.values():
            check_owner(owner, rrs)
        return Whole(version, owners)

    def _is_single_and_known(self, version: Version) -> bool:
        """RFC 1995 section 2: a lone SOA answers who is up to date. One that is newer may be the
        first message of a server that sends a record in each."""
        is_single = self._is_incremental and self.records == 1
        return is_single and version.serial == self._have

    def _check_signed_end(self) -> None:
        if self._verifier is not None:
            try:
                self._verifier.check_end()
            except ValueError as error:
                raise BadTransfer(f"TSIG: {error}") from None

    # --- records in their order ---------------------------------------------------------

    def _take_first(self, record: Record) -> None:
        if record.rtype != SOA:
            raise BadTransfer(f"it begins with {_shown(record)}, not with the SOA")
        self._first = record
        self._version = version_of(record)
        serial, have = self._version.serial, self._have
        if have is not None and serial != have and not is_newer(serial, have):
            raise BadTransfer(f"the primary is at serial {serial}, behind ours, {have}")
        self._take = self._take_second

    def _take_second(self, record: Record) -> None:
        is_step = self._is_incremental and record.rtype == SOA and not self._is_first(record)
        self._take = self._take_deleting if is_step else self._take_whole
        self._take(record)

    def _take_whole(self, record: Record) -> None:
        if record.rtype != SOA:
            self._whole.append(record)
        elif self._is_first(record):
            self._is_complete = True
        else:
            raise BadTransfer("a SOA in it is not the one that it began with")

    def _take_deleting(self, record: Record) -> None:
        """The SOA that a step starts from."""
        serial = version_of(record).serial
        before = self._steps[-1].to_serial if self._steps else self._have
        if serial != before:
            raise BadTransfer(f"the differences start at serial {serial}, not at {before}")
        self._steps.append(Step(serial, serial, [], []))
        self._take = self._take_deleted

    def _take_deleted(self, record: Record) -> None:
        step = self._steps[-1]
        if record.rtype != SOA:
            step.deleted.append(record)
            return
        serial = version_of(record).serial
        if not is_newer(serial, step.from_serial):
            raise BadTransfer(f"a difference leads from serial {step.from_serial} to {serial}")
        self._steps[-1] = msgspec.structs.replace(step, to_serial=serial)
        self._take = self._take_added

    def _take_added(self, record: Record) -> None:
        step = self._steps[-1]
        assert self._version is not None
        if record.rtype != SOA:
            step.added.append(record)
        elif step.to_serial != self._version.serial:
            self._take_deleting(record)
        elif self._is_first(record):
            self._is_complete = True
        else:
            raise BadTransfer("the last SOA is not the one that it began with")

    def _is_first(self, record: Record) -> bool:
        assert self._first is not None
        same = records.canonical_rdata(SOA, record.rdata)
        return same == records.canonical_rdata(SOA, self._first.rdata)


def _check_empty(record: Record) -> None:
    try:
        records.check_rdata(record.rtype, record.rdata)
    except BadRecord:
        raise BadTransfer(f"{_shown(record)} has no data") from None


def _response(octets: bytes, id_: int, asked: Question, *, is_first: bool) -> Message:
    """A response to our question that says NOERROR. Raises: BadTransfer."""
    try:
        message = read_message(octets)
    except BadMessage as error:
        raise BadTransfer(str(error)) from None
    if message.id != id_:
        raise BadTransfer("a message with another ID")
    if not message.flags & QR or message.opcode:
        raise BadTransfer("a message that is no response to a query")
    if message.rcode != NOERROR:
        name = RCODE_NAMES.get(message.rcode, f"code {message.rcode}")
        raise BadTransfer(f"the primary answers {name}", message.rcode)
    # RFC 5936 section 2.2.1: the first message repeats the question, the others may.
    if len(message.questions) != 1 and (is_first or message.questions):
        raise BadTransfer(f"{len(message.questions)} questions in the answer")
    for found in message.questions:
        if (names.key(found.name), *found[1:]) != (names.key(asked.name), *asked[1:]):
            said = f"{type_to_text(found.rtype)} of {names.to_text(found.name)}"
            raise BadTransfer(f"an answer to another question: {said}")
    return message


def _shown(record: Record) -> str:
    return f"{type_to_text(record.rtype)} of {names.to_text(record.owner)}"


def check_owner(owner: Name, rrs: RRs) -> None:
    """Raises: BadTransfer where RRsets cannot stand at one name (RFC 2181 section 10.1)."""
    for rtype in SINGLETON_TYPES & rrs.keys():
        if len(rrs[rtype][1]) > 1:
            raise BadTransfer(f"{names.to_text(owner)} has more than one {type_to_text(rtype)}")
    if CNAME in rrs:
        for rtype in rrs:
            if rtype != CNAME and rtype not in BESIDE_CNAME:
                shown = type_to_text(rtype)
                raise BadTransfer(f"{names.to_text(owner)} has a {shown} beside its CNAME")


def apply_steps(
    steps: Iterable[Step], read: Callable[[Name], RRs]
) -> Generator[None, None, dict[Name, tuple[Name, RRs]]]:
    """What owners hold after differences, for those that they touch, with a break every so many
    records. `read` tells what an owner holds before, by its key.

    A record that is added and is there already is kept once: some primaries send such. One that
    is deleted and is not there means that our version is not theirs. Raises: BadTransfer.
    """
    changed: dict[Name, tuple[Name, RRs]] = {}

    def held(record: Record) -> RRs:
        key = names.key(record.owner)
        if key not in changed:
            changed[key] = (record.owner, {t: (ttl, {**r}) for t, (ttl, r) in read(key).items()})
        return changed[key][1]

    done = 0
    for step in steps:
        for record in step.deleted:
            rrs = held(record)
            rdatas = rrs.get(record.rtype, (0, {}))[1]
            identity = records.canonical_rdata(record.rtype, record.rdata)
            if rdatas.pop(identity, None) is None:
                raise BadTransfer(f"it deletes {_shown(record)}, which is not there")
            if not rdatas:
                del rrs[record.rtype]
            if (done := done + 1) % PER_STEP == 0:
                yield
        for record in step.added:
            rrs = held(record)
            ttl, rdatas = rrs.get(record.rtype, (record.ttl, {}))
            identity = records.canonical_rdata(record.rtype, record.rdata)
            rdatas.setdefault(identity, record.rdata)
            rrs[record.rtype] = (min(ttl, record.ttl), rdatas)
            if (done := done + 1) % PER_STEP == 0:
                yield
    for owner, rrs in changed.values():
        check_owner(owner, rrs)
    return changed
