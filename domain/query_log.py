"""What the query log keeps of a query, and what privacy takes away before it is kept.

Levels: 0 keeps everything; 1 cuts client addresses to their networks; 2 replaces clients by
pseudonyms, an HMAC whose key lives in memory and changes with the settings, so that a client can be
told from others for a while and never be named; 3 counts and keeps no query at all. What a level
took away is not there to be given back: lowering it reveals nothing older.

Where only one query in so many is logged, each says for how many it stands: its weight.

The query log is no part of the audit log, and nothing waits for it.
"""

import hmac
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from ipaddress import ip_address

import msgspec

from kudurru.domain.dns import names
from kudurru.domain.dns.names import BadName, Name

COUNTS_ONLY = 3
"""Level that keeps no query."""
_TRUNCATED, _PSEUDONYMS = 1, 2

PSEUDONYM = "client-"
"""How one begins, and neither an address nor a network does."""

KEY_SIZE = 32
_CLIENTS_MAX = 4_096  # whose texts are remembered: those of a busy site
_PSEUDONYM_SIZE = 8  # octets: a site has few clients, and the key guards them

NO_RCODE = -1
"""Of a query that got no answer."""


class Fact(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One query and its answer."""

    ts_us: int
    client: bytes  # 4 or 16 octets
    name: bytes  # of the question, wire form
    rtype: int
    proto: str
    rcode: int
    source: str  # authoritative, blocked, rewritten, forward, cache, stale, local, refused, error
    reason: str = ""  # class of the precedence that decided
    policy: str = ""
    list: str = ""
    rule: str = ""
    upstream: str = ""
    duration_us: int = 0
    key: bytes = b""
    """Name (lower case), type and class of a question whose answer the engine repeats by itself."""
    client_class: int = 0
    """For which clients it does so, 0: for all (`ports.Keep`)."""
    weight: int = 1
    """Queries that this one stands for. 0: it is not logged, and says what the engine repeats."""


Repeat = tuple[bytes, bytes, int, int]
"""A query that an engine answered as it had before: the client's address, the message without its
ID, the class of clients that the answer was for (`ports.Keep`), and its weight, which is never 0.
A bare tuple, because the busiest loop makes one per query."""


Answered = tuple[bytes, bytes, int, int]
"""A query that an engine answered from the zones: the same with the RCODE in the place of the
class."""


class Sampler:
    """Picks one of every `one_in` queries. Which one is chance's: `below(n)` is a number from 0 to
    n - 1. Of each stretch of so many exactly one is picked, so counts are right but for a part of
    a stretch, and what comes in a rhythm is seen like all the rest."""

    def __init__(self, one_in: int, below: Callable[[int], int]) -> None:
        self.one_in = one_in
        self._below = below
        self._place = self._left = below(one_in)  # of the next one, and queries until it comes

    def weigh(self) -> int:
        """How many queries this one stands for: all of its stretch, or, 0, none."""
        if self._left:
            self._left -= 1
            return 0
        place = self._below(self.one_in)
        self._left = self.one_in - 1 - self._place + place
        self._place = place
        return self.one_in


EVERY = Sampler(1, lambda _: 0)


class Privacy(msgspec.Struct, frozen=True, kw_only=True):
    """The settings `querylog.privacyLevel`, `.truncate` and `.ignore`."""

    level: int = 0
    ipv4_bits: int = 24
    ipv6_bits: int = 56
    ignore: tuple[str, ...] = ()  # domains, and what is below them


class Filter:
    """Takes away what privacy wants gone. `key` makes the pseudonyms."""

    def __init__(self, privacy: Privacy, key: bytes) -> None:
        self.privacy = privacy
        self._key = key
        self._ignored = [_domain(text) for text in privacy.ignore]
        shown = {0: _address, _TRUNCATED: self._network}.get(privacy.level, self._pseudonym)
        self.client: Callable[[bytes], str] = lru_cache(_CLIENTS_MAX)(shown)
        """A client as it is stored: address, network or pseudonym."""

    @property
    def keeps_queries(self) -> bool:
        return self.privacy.level < COUNTS_ONLY

    def keeps(self, name: bytes) -> bool:
        """Whether of a query for it anything may be stored, even that there was one."""
        key = name.lower()
        return not any(names.is_within(key, domain) for domain in self._ignored)

    def name(self, name: bytes) -> str:
        """A name as it is stored."""
        return names.to_text(name.lower(), final_dot=False)

    def _network(self, client: bytes) -> str:
        bits = self.privacy.ipv4_bits if len(client) == 4 else self.privacy.ipv6_bits
        spare = len(client) * 8 - bits
        number = int.from_bytes(client, "big") >> spare << spare
        return f"{ip_address(number.to_bytes(len(client), 'big'))}/{bits}"

    def _pseudonym(self, client: bytes) -> str:
        digest = hmac.digest(self._key, client, sha256)
        return f"{PSEUDONYM}{digest[:_PSEUDONYM_SIZE].hex()}"


def _address(client: bytes) -> str:
    return str(ip_address(client))


def _domain(text: str) -> Name:
    try:
        return names.key(names.from_text(text.removeprefix("*.")))
    except BadName:  # settings check their form; one that slips through ignores nothing
        return Name(b"\x01\x00\x00")


def question_key(query: bytes) -> bytes | None:
    """`Fact.key` of a query without its ID; None where there is no question."""
    end = names.end_of(query, 10)
    return query[10:end].lower() + query[end : end + 4] if end else None


def fact_of(answered: Answered, now_us: int) -> Fact:
    """What is to be said of an answer from the zones."""
    client, query, rcode, weight = answered
    name, after = names.from_wire(query, _QUESTION_AT)
    rtype = int.from_bytes(query[after : after + 2], "big")
    return Fact(now_us, client, name, rtype, "udp", rcode, "authoritative", "none", weight=weight)


_QUESTION_AT = 10  # in a message without its ID


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """What was noted since the last time, in a frame to the writer."""

    now_us: int
    facts: Sequence[Fact]
    repeats: Mapping[str, Sequence[Repeat]]  # by protocol
    answers: Sequence[Answered] = ()

    def __len__(self) -> int:
        """How many of them are to be logged."""
        facts = sum(1 for fact in self.facts if fact.weight)
        return facts + sum(map(len, self.repeats.values())) + len(self.answers)


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """The settings `querylog.retention` and `.maxBytes`."""

    age_s: int = 30 * 86_400
    bytes_max: int = 1 << 30
