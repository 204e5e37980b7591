"""What a line of a list says: rules, values that are complete in themselves."""

from enum import StrEnum
from typing import Literal

import msgspec

from kudurru.domain.dns.names import ROOT, Name
from kudurru.domain.notation import Network

SELF, BELOW = 1, 2
SUBTREE = SELF | BELOW
"""What a rule's name covers: the name itself, the names below it, or both. `hosts` lines say the
first, RPZ's `*.d` the second, `||d^` the third."""


PATTERNS_MAX = 1000
"""Regular expressions of one list."""
RULES_OF_NAME_MAX = 64
"""Rules of one list for the very same name. All of them are read when it is asked for."""


class Reply(msgspec.Struct, frozen=True, gc=False):
    """What a rule wants answered instead of what the block mode says.

    NOERROR with `records`: those of the asked type (a CNAME for every type), none of that type:
    NODATA. A CNAME to a wildcard has the asked name in the place of the asterisk. DROP: nothing is
    sent. TCP: over UDP an empty answer with TC=1, over TCP as if the rule were an exception.
    """

    rcode: Literal["NOERROR", "NXDOMAIN", "REFUSED", "SERVFAIL", "NOTIMP", "DROP", "TCP"]
    records: tuple[tuple[int, bytes], ...] = ()  # (type, rdata in wire form)


class Rule(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One rule. Two rules are equal when they say the same."""

    name: Name = ROOT  # lower case
    covers: int = 0  # SELF, BELOW or both; 0 for a pattern
    pattern: str = ""  # RE2, searched in the lower-case text of the name without its final dot
    is_allow: bool = False
    is_important: bool = False
    is_node: bool = False  # of a policy zone, whose wildcards do not reach below it (RFC 4592)
    is_badfilter: bool = False  # takes the equal rule out of its list, and does nothing else
    types: frozenset[int] = frozenset()  # only these types of question; none named: every type
    not_types: frozenset[int] = frozenset()
    clients: tuple[Network | str, ...] = ()  # only these; texts are lower case
    not_clients: tuple[Network | str, ...] = ()
    except_names: tuple[Name, ...] = ()  # neither these nor what is below them
    reply: Reply | None = None


Format = Literal["auto", "hosts", "domains", "adblock", "dnsmasq", "rpz", "regex"]


class Context(msgspec.Struct, frozen=True, gc=False):
    """What the rules of a line depend on beside its text."""

    format: Format = "auto"
    covers: int = SELF  # of bare names: `match: exact` or `match: subtree`
    is_allow: bool = False  # kind: allow
    apex: Name = ROOT  # RPZ: name of the policy zone, lower case
    origin: Name = ROOT  # RPZ: what completes relative names
    owner: str = ""  # RPZ: of the record before, for lines that begin blank


class Reason(StrEnum):
    """Why a line, or one name on it, is no rule."""

    COSMETIC = "for browsers, not for names"
    MODIFIER = "a modifier that is not known here"
    NAME = "no domain name"
    REGEX = "a regular expression that RE2 refuses, or a very large one"
    REGEX_MAX = "more or larger regular expressions than a list may have"
    NAME_MAX = "more rules for one name than a list may have"
    UNSUPPORTED = "says something that cannot be done here"
    NOT_A_RULE = "no rule in any format"
    TOO_LONG = "longer than a line may be"


class Line(msgspec.Struct, frozen=True, gc=False):
    """What a line came to. Comments, blank lines and the names of this host that hosts files begin
    with are neither."""

    rules: tuple[Rule, ...] = ()
    refused: tuple[Reason, ...] = ()


NOTHING = Line()
