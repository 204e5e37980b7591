"""TSIG: messages signed with a key that both sides have (RFC 8945).

Works on octets: nothing is parsed but the record itself, and a message without one costs a look.
A server reads the record of a request (`read`, or `find` where nothing has walked the message),
checks it (`verify`) and signs its answer, or the messages of a transfer one after another, with the
`Signer` that it got. A client signs its request (`sign_request`) and checks what comes back with
the `Reader` that it got. `now_s` is unix time.

Refusals are in the order of section 5.2: malformed (`BadTsig`: answer FORMERR), then key, MAC, time
and truncation (`Unverified`: answer NOTAUTH with the record that `Unverified.mark` adds).
"""

import hmac
from collections.abc import Callable
from struct import Struct as Layout
from struct import error as LayoutError  # noqa: N812  # the name says what it is

import msgspec

from kudurru.domain.dns import names
from kudurru.domain.dns.names import BadName, Name

TSIG = 250

BADSIG, BADKEY, BADTIME, BADTRUNC = 16, 17, 18, 22
ERROR_NAMES = {BADSIG: "BADSIG", BADKEY: "BADKEY", BADTIME: "BADTIME", BADTRUNC: "BADTRUNC"}

FUDGE_MAX_S = 300
"""How far two clocks may be apart (section 10), also where a message would allow more."""

UNSIGNED_MAX = 99
"""Messages of a transfer between two that are signed (section 5.3.1)."""

MAC_MIN = 10
"""Octets that a truncated MAC has at least, and half of the hash (section 5.2.2.1)."""

SECRET_MIN, SECRET_MAX = 16, 128
"""Octets of a secret. Below, it can be guessed; above, more than any hash here takes in."""

_CLASS_ANY = 255
_HEADER_SIZE = 12
_COUNTS = Layout("!HHHH")
_RR_FIXED = Layout("!HHIH")
_TIMES = Layout("!HIHH")  # time signed (48 bits), fudge, size of the MAC
_TAIL = Layout("!HHH")  # original ID, error, size of other data
_TIMERS = Layout("!HIH")
_ERROR = Layout("!HH")


class Algorithm(msgspec.Struct, frozen=True, gc=False):
    """One way to make a MAC of `size` octets out of a hash of `hash_size`."""

    text: str
    name: Name
    digest: str
    hash_size: int
    size: int
    is_old: bool = False  # broken or weak: off unless somebody needs it for an old peer

    @property
    def size_min(self) -> int:
        return max(MAC_MIN, self.hash_size // 2)


def _algorithm(text: str, digest: str, size: int, *, cut: int = 0, name: str = "") -> Algorithm:
    is_old = digest in ("md5", "sha1")
    wire = names.from_text(name or text)
    return Algorithm(text, wire, digest, size, cut or size, is_old)


ALGORITHMS = {
    algorithm.text: algorithm
    for algorithm in (
        _algorithm("hmac-sha256", "sha256", 32),
        _algorithm("hmac-sha512", "sha512", 64),
        _algorithm("hmac-sha384", "sha384", 48),
        _algorithm("hmac-sha224", "sha224", 28),
        _algorithm("hmac-sha256-128", "sha256", 32, cut=16),
        _algorithm("hmac-sha384-192", "sha384", 48, cut=24),
        _algorithm("hmac-sha512-256", "sha512", 64, cut=32),
        _algorithm("hmac-sha1", "sha1", 20),
        _algorithm("hmac-md5", "md5", 16, name="hmac-md5.sig-alg.reg.int"),
    )
}
"""By text (section 6). GSS-TSIG is another protocol, and needs a ticket for each client."""


class TsigKey(msgspec.Struct, frozen=True):
    """A key. `name` is lower-case. The secret is in no `repr`."""

    name: Name
    algorithm: Algorithm
    secret: bytes

    def __repr__(self) -> str:
        return f"TsigKey({names.to_text(self.name)!r}, {self.algorithm.text!r})"

    def start(self, prior: bytes = b"") -> "hmac.HMAC":
        """A MAC that begins with the one before: of the request, or of the message before
        (section 4.3.1)."""
        mac = hmac.new(self.secret, digestmod=self.algorithm.digest)
        if prior:
            mac.update(len(prior).to_bytes(2, "big") + prior)
        return mac


FindKey = Callable[[Name], TsigKey | None]
"""Key by lower-case name, None where there is none."""


class BadTsig(ValueError):
    """A message whose signature is malformed, or missing where one has to be."""


class Unverified(Exception):
    """A signature that does not hold. `error` is the TSIG error of the answer."""

    def __init__(
        self,
        error: int,
        message: str,
        signature: "Signature | None" = None,
        key: TsigKey | None = None,
    ) -> None:
        self.error = error
        self.message = message
        self._signature = signature
        self._key = key
        super().__init__(error, message)

    def __str__(self) -> str:
        return f"{ERROR_NAMES.get(self.error, f'TSIG error {self.error}')}: {self.message}"

    @property
    def key_name(self) -> Name | None:
        """As the message said it: who claimed to be the sender."""
        return self._signature.key_name if self._signature is not None else None

    def mark(self, answer: bytes, now_s: int) -> bytes:
        """An answer with code NOTAUTH, with the record that says what is wrong (section 5.3.2).
        Signed where the key proved to be the client's: nobody else may tell it the time."""
        found = self._signature
        assert found is not None, "of an answer, and answers are not answered"
        other = now_s.to_bytes(6, "big") if self.error == BADTIME else b""
        record = _Record(
            found.key_name, found.algorithm, found.time_s, found.fudge_s, self.error, other
        )
        mac = b""
        if self._key is not None:
            digest = self._key.start(found.mac)
            digest.update(answer + record.variables())
            mac = digest.digest()[: self._key.algorithm.size]
        return _add_record(answer, record, mac)


class Signature(msgspec.Struct, frozen=True, gc=False):
    """The TSIG record of a message (section 4.2), at octet `at`. Names are lower-case."""

    at: int
    key_name: Name
    algorithm: Name
    time_s: int
    fudge_s: int
    mac: bytes
    original_id: int
    error: int
    other: bytes

    def unsigned(self, message: bytes) -> bytes:
        """The message as it was before it was signed, with the ID that it has now."""
        additionals = int.from_bytes(message[10:12], "big") - 1
        return message[:10] + additionals.to_bytes(2, "big") + message[12 : self.at]

    def original(self, message: bytes) -> bytes:
        """The octets that the MAC is of: forwarders change the ID (section 4.3.1)."""
        return self.original_id.to_bytes(2, "big") + self.unsigned(message)[2:]

    def variables(self) -> bytes:
        return self._record().variables()

    def timers(self) -> bytes:
        return self._record().timers()

    def _record(self) -> "_Record":
        return _Record(
            self.key_name, self.algorithm, self.time_s, self.fudge_s, self.error, self.other
        )


class _Record(msgspec.Struct, frozen=True, gc=False):
    """What a TSIG record says beside the MAC."""

    key_name: Name
    algorithm: Name
    time_s: int
    fudge_s: int
    error: int = 0
    other: bytes = b""

    def timers(self) -> bytes:
        return _TIMERS.pack(self.time_s >> 32, self.time_s & 0xFFFFFFFF, self.fudge_s)

    def variables(self) -> bytes:
        """Section 4.3.3."""
        return b"".join(
            (
                self.key_name,
                _CLASS_AND_TTL,
                self.algorithm,
                self.timers(),
                _ERROR.pack(self.error, len(self.other)),
                self.other,
            )
        )


_CLASS_AND_TTL = _CLASS_ANY.to_bytes(2, "big") + bytes(4)


# Reading


def find(message: bytes) -> Signature | None:
    """The TSIG record of a message, None where it has none.

    Raises: BadTsig where there are two, it is not the last record (section 5.1), or the records
    cannot be walked.
    """
    at, found = _HEADER_SIZE, -1
    try:
        questions, answers, authorities, additionals = _COUNTS.unpack_from(message, 4)
        records = answers + authorities + additionals
        for _ in range(questions):
            at = _after_name(message, at) + 4
        for i in range(records):
            start, at = at, _after_name(message, at)
            rtype, _, _, length = _RR_FIXED.unpack_from(message, at)
            at += _RR_FIXED.size + length
            if rtype == TSIG:
                if i != records - 1 or not additionals:
                    raise BadTsig("a TSIG record that is not the last record of the message")
                found = start
    except (LayoutError, IndexError):
        raise BadTsig("the records of the message cannot be read") from None
    return None if found < 0 else read(message, found)


def _after_name(message: bytes, at: int) -> int:
    while size := message[at]:
        if size >= 0xC0:
            return at + 2
        at += size + 1
    return at + 1


def read(message: bytes, at: int) -> Signature:
    """The TSIG record at an offset, which is where the last record of the message begins. Raises:
    BadTsig."""
    try:
        key_name, after = names.from_wire(message, at)
        _, rclass, ttl, length = _RR_FIXED.unpack_from(message, after)
        after += _RR_FIXED.size
        end = after + length
        start = after
        algorithm, after = names.from_wire(message, start)
        if after - start != len(algorithm):
            # Section 4.2; and the answer, which has it in full, would be longer than the query.
            raise BadTsig("a TSIG record with a compressed name of its algorithm")
        high, low, fudge_s, mac_size = _TIMES.unpack_from(message, after)
        after += _TIMES.size
        mac = message[after : after + mac_size]
        after += mac_size
        original_id, error, other_size = _TAIL.unpack_from(message, after)
        after += _TAIL.size
    except (BadName, LayoutError) as fault:
        raise BadTsig(f"a TSIG record that cannot be read: {fault}") from None
    if after + other_size != end or end != len(message):
        raise BadTsig("a TSIG record whose lengths disagree")
    if rclass != _CLASS_ANY or ttl:
        raise BadTsig("a TSIG record whose class is not ANY or whose TTL is not 0")
    return Signature(
        at,
        names.key(key_name),
        names.key(algorithm),
        high << 32 | low,
        fudge_s,
        mac,
        original_id,
        error,
        message[after:end],
    )


# A server's side


def verify(
    message: bytes,
    signature: Signature,
    find_key: FindKey,
    now_s: int,
    *,
    may_truncate: bool = False,
) -> "Signer":
    """Check the signature of a request; what signs the answer. `may_truncate` lets MACs that are
    cut short pass.

    Raises: BadTsig for a MAC of an impossible size, Unverified.
    """
    key = find_key(signature.key_name)
    if key is None or key.algorithm.name != signature.algorithm:
        why = "no such key" if key is None else "the key is for another algorithm"
        text = names.to_text(signature.key_name, final_dot=False)
        raise Unverified(BADKEY, f"{why}: {text}", signature)
    _check_size(key, signature.mac)
    digest = key.start()
    digest.update(signature.original(message) + signature.variables())
    _check_mac(signature, digest)
    _check_time(key, signature, now_s)
    if len(signature.mac) < key.algorithm.size and not may_truncate:
        raise Unverified(BADTRUNC, "the MAC is cut short", signature, key)
    return Signer(key, signature.mac)


class Signer:
    """Signs the answer to a request, or the messages of one stream of answers, each of them:
    then a client needs to hold nothing back (section 5.3.1 asks for one in a hundred)."""

    __slots__ = ("_is_first", "_prior", "key")

    def __init__(self, key: TsigKey, request_mac: bytes) -> None:
        self.key = key
        self._prior = request_mac
        self._is_first = True

    @property
    def size(self) -> int:
        """Octets that `sign` adds."""
        return record_size(self.key)

    def sign(self, message: bytes, now_s: int) -> bytes:
        key = self.key
        record = _Record(key.name, key.algorithm.name, now_s, FUDGE_MAX_S)
        digest = key.start(self._prior)
        digest.update(message)
        digest.update(record.variables() if self._is_first else record.timers())
        self._is_first = False
        self._prior = digest.digest()[: key.algorithm.size]
        return _add_record(message, record, self._prior)


def record_size(key: TsigKey) -> int:
    """Octets of the TSIG record of a message that is signed with a key."""
    names_size = len(key.name) + len(key.algorithm.name)
    return names_size + _RR_FIXED.size + _TIMES.size + key.algorithm.size + _TAIL.size


# A client's side


def sign_request(message: bytes, key: TsigKey, now_s: int) -> "tuple[bytes, Reader]":
    """A signed request, and what checks the answers to it."""
    record = _Record(key.name, key.algorithm.name, now_s, FUDGE_MAX_S)
    digest = key.start()
    digest.update(message + record.variables())
    mac = digest.digest()[: key.algorithm.size]
    return _add_record(message, record, mac), Reader(key, mac)


class Reader:
    """Checks the answer to a signed request, or the messages of a stream of answers in order."""

    __slots__ = ("_digest", "_is_first", "_unsigned", "key")

    def __init__(self, key: TsigKey, request_mac: bytes) -> None:
        self.key = key
        self._digest = key.start(request_mac)
        self._is_first = True
        self._unsigned = 0

    def take(self, message: bytes, now_s: int) -> bytes:
        """The next message, without its TSIG record. What comes after the last signed message is
        proven by the next one only: see `finish`.

        Raises: BadTsig, Unverified. A message with a signature that does not hold is not taken:
        over UDP somebody else may have sent it, and the right one is still to come.
        """
        signature = find(message)
        if signature is None:
            if self._is_first:
                raise BadTsig("the answer is not signed, though the request was")
            self._unsigned += 1
            if self._unsigned > UNSIGNED_MAX:
                raise BadTsig(f"more than {UNSIGNED_MAX} messages without a signature")
            self._digest.update(message)
            return message
        self._check(signature, message, now_s)
        self._digest = self.key.start(signature.mac)
        self._is_first, self._unsigned = False, 0
        return signature.unsigned(message)

    def finish(self) -> None:
        """The stream is complete. Raises: BadTsig where its last message was not signed."""
        if self._is_first or self._unsigned:
            raise BadTsig("the last message is not signed")

    def _check(self, signature: Signature, message: bytes, now_s: int) -> None:
        key = self.key
        if signature.error:
            raise Unverified(signature.error, _peer_says(signature, now_s))
        if (signature.key_name, signature.algorithm) != (key.name, key.algorithm.name):
            raise Unverified(BADKEY, "the answer is signed with another key or algorithm")
        if len(signature.mac) != key.algorithm.size:
            raise BadTsig(f"a MAC of {len(signature.mac)} octets")
        digest = self._digest.copy()
        digest.update(signature.original(message))
        digest.update(signature.variables() if self._is_first else signature.timers())
        _check_mac(signature, digest)
        _check_time(key, signature, now_s)


def _peer_says(signature: Signature, now_s: int) -> str:
    if signature.error == BADTIME and len(signature.other) == 6:
        apart_s = int.from_bytes(signature.other, "big") - now_s
        return f"the other side says so, its clock is {apart_s:+d} s from ours: set the clocks"
    return "the other side says so: compare the key's name, algorithm and secret on both"


# Both


def _check_size(key: TsigKey, mac: bytes) -> None:
    if not key.algorithm.size_min <= len(mac) <= key.algorithm.size:
        raise BadTsig(f"a MAC of {len(mac)} octets, {key.algorithm.text} has {key.algorithm.size}")


def _check_mac(signature: Signature, digest: "hmac.HMAC") -> None:
    if not hmac.compare_digest(digest.digest()[: len(signature.mac)], signature.mac):
        raise Unverified(BADSIG, "the MAC is wrong: another secret, or altered", signature)


def _check_time(key: TsigKey, signature: Signature, now_s: int) -> None:
    apart_s = signature.time_s - now_s
    if abs(apart_s) > min(signature.fudge_s, FUDGE_MAX_S):
        message = f"signed {apart_s:+d} s from our clock: set the clocks"
        raise Unverified(BADTIME, message, signature, key)


def _add_record(message: bytes, record: _Record, mac: bytes) -> bytes:
    additionals = int.from_bytes(message[10:12], "big") + 1
    rdata = b"".join(
        (
            record.algorithm,
            record.timers(),
            len(mac).to_bytes(2, "big"),
            mac,
            message[:2],
            _ERROR.pack(record.error, len(record.other)),
            record.other,
        )
    )
    head = _RR_FIXED.pack(TSIG, _CLASS_ANY, 0, len(rdata))
    return b"".join(
        (message[:10], additionals.to_bytes(2, "big"), message[12:], record.key_name, head, rdata)
    )


LATE_S = 10
"""How much earlier than the newest of its key an update may be signed: those that are sent at the
same time come in any order, and TSIG counts in seconds."""
SEEN_MAX = 10_000
"""MACs that are remembered of one key. Where there are more, what is late is refused sooner."""


class SeenSignatures:
    """What was signed with one key lately, so that no octets are carried out twice (RFC 8945
    section 10.3). Times are unix seconds."""

    def __init__(self, since_s: int) -> None:
        self._floor_s = since_s  # what was signed before is refused
        self._seen: dict[bytes, int] = {}  # when, by MAC; the order is that of arrival

    def take(self, time_s: int, mac: bytes) -> bool:
        """Whether this is neither seen already nor too old to know; it is seen from now on."""
        mac = mac[:MAC_MIN]  # where they may be cut short, one update has many
        if time_s < self._floor_s or mac in self._seen:
            return False
        self._seen[mac] = time_s
        self._raise_floor(time_s - LATE_S)
        if len(self._seen) > SEEN_MAX:
            self._raise_floor(min(self._seen.values()) + 1)
        return True

    def forget(self, mac: bytes) -> None:
        self._seen.pop(mac[:MAC_MIN], None)

    def heard(self, time_s: int) -> None:
        """Of what may have been carried out elsewhere, with octets that nobody here saw."""
        if time_s not in self._seen.values():
            self._raise_floor(time_s)

    def _raise_floor(self, floor_s: int) -> None:
        if floor_s > self._floor_s:
            self._floor_s = floor_s
            self._seen = {mac: at_s for mac, at_s in self._seen.items() if at_s >= floor_s}
