"""Lines of lists, in every format that people subscribe to.

| format | line | covers |
|---|---|---|
| hosts | `0.0.0.0 name name`, any address | each name; with `match: subtree` also what is below |
| domains | `name` | the same |
| | `*.name`, `.name` | the name and what is below |
| adblock | `||name^`, see `adblock` | the name and what is below |
| dnsmasq | `address=/name/`, `local=/name/`, `server=/name/` | the name and what is below |
| rpz | `name CNAME .`, `*.name A 192.0.2.1`, see `rpz` | the name, or what is below |
| regex | `/…/` or a bare expression | names that it matches somewhere |

`auto` detects the format line by line; lines of one text may differ.
"""

import re
from collections.abc import Callable

import msgspec

from kudurru.domain.dns.names import ROOT, Name
from kudurru.domain.lists import rpz
from kudurru.domain.lists.adblock import COSMETIC, checked_pattern, parse_adblock
from kudurru.domain.lists.rules import (
    NOTHING,
    SUBTREE,
    Context,
    Line,
    Reason,
    Reply,
    Rule,
)
from kudurru.domain.lists.words import (
    Refused,
    address_record,
    is_address,
    is_header,
    name_of,
    without_comment,
)

LINE_MAX = 4096
"""Octets of a line; what is longer is no rule."""

_HERE = frozenset({
    "localhost", "localhost.localdomain", "local", "localdomain", "broadcasthost",
    "ip6-localhost", "ip6-loopback", "ip6-localnet", "ip6-mcastprefix", "ip6-allnodes",
    "ip6-allrouters", "ip6-allhosts",
})  # fmt: skip
"""Names that hosts files begin with: they are of the host that the file was made for."""

_DNSMASQ = re.compile(r"(address|server|local)=/(.+)/([^/]*)", re.I)
_RPZ_TYPES = frozenset({"CNAME", "A", "AAAA"})
"""That show, among other formats, that a line is a record of a policy zone."""
_BLANK = "\ufeff \t\r\n\f\v\x00"


class Parser:
    """Reads a text line by line. `context` is that of the next line."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._is_in_parentheses = False

    def feed(self, text: str) -> Line:
        """Rules of the next line."""
        text = text.lstrip("\ufeff").rstrip(_BLANK)
        if self.context.format == "auto" and rpz.is_rpz(text):
            self.context = msgspec.structs.replace(self.context, format="rpz")
        if self.context.format != "rpz":
            return parse_line(text, self.context)
        return self._feed_rpz(text)

    def _feed_rpz(self, text: str) -> Line:
        plain = text.partition(";")[0]
        if self._is_in_parentheses:  # of the SOA: other records of policy zones have none
            self._is_in_parentheses = ")" not in plain
            return NOTHING
        self._is_in_parentheses = "(" in plain and ")" not in plain
        line = NOTHING if self._is_in_parentheses else parse_line(text, self.context)
        self.context = rpz.after(text, self.context)
        return line


def parse_line(text: str, context: Context) -> Line:
    """Rules of one line."""
    if len(text) > LINE_MAX:
        return Line(refused=(Reason.TOO_LONG,))
    text = text.lstrip("\ufeff").rstrip(_BLANK)
    try:
        if context.format == "rpz":  # where a blank at the beginning means something
            return rpz.parse_rpz(text, context) if text else NOTHING
        return _READERS[context.format](text.strip(_BLANK), context)
    except Refused as refused:
        return Line(refused=(refused.reason,))


# --- formats ----------------------------------------------------------------------------------


def _auto(text: str, context: Context) -> Line:
    if not text or text[0] in "!;" or text.startswith("//") or is_header(text):
        return NOTHING
    if text[0] == "#":
        return Line(refused=(Reason.COSMETIC,)) if COSMETIC.match(text) else NOTHING
    if text[0] in "|@" or (text[0] == "/" and text.rfind("/") > 0):
        return parse_adblock(text, context)
    if text[:8].lower().startswith(("address=", "server=/", "local=/")):
        return _dnsmasq(text, context)
    if COSMETIC.search(text) and not is_address(text.split(maxsplit=1)[0]):
        return Line(refused=(Reason.COSMETIC,))
    words = without_comment(text).split()
    if not words:
        return NOTHING
    if len(words) > 1:
        return _of_words(words, context)
    word = words[0]
    if "$" in word or "^" in word or "|" in word or "*" in word[1:]:
        return parse_adblock(word, context)
    return _bare(word, context, needs_dot=True)


def _of_words(words: list[str], context: Context) -> Line:
    if is_address(words[0]):
        return _names_of_host(words[1:], context)
    if len(words) > 2 and any(word.upper() in _RPZ_TYPES for word in words[1:4]):
        return rpz.parse_rpz(" ".join(words), context)
    return Line(refused=(Reason.NOT_A_RULE,))


def _hosts(text: str, context: Context) -> Line:
    if not text or text[0] in "!#;" or is_header(text):
        return NOTHING
    words = without_comment(text).split()
    if not words or not is_address(words[0]):
        # A hosts list with bare names in between is common; with anything else it is none.
        if len(words) == 1:
            return _bare(words[0], context, needs_dot=True)
        return Line(refused=(Reason.NOT_A_RULE,)) if words else NOTHING
    return _names_of_host(words[1:], context)


def _names_of_host(words: list[str], context: Context) -> Line:
    rules, refused = [], []
    for word in words:
        if word.lower().rstrip(".") in _HERE or is_address(word):
            continue
        try:
            rules.append(_plain(name_of(word), context.covers, context))
        except Refused as error:
            refused.append(error.reason)
    return Line(tuple(rules), tuple(refused))


def _domains(text: str, context: Context) -> Line:
    if not text or text[0] in "!#;" or text.startswith("//") or is_header(text):
        return NOTHING
    words = without_comment(text).split()
    if not words:
        return NOTHING
    if len(words) > 1:
        return Line(refused=(Reason.NOT_A_RULE,))
    return _bare(words[0], context, needs_dot=False)


def _bare(word: str, context: Context, *, needs_dot: bool) -> Line:
    """A lone name, perhaps with a sign that it means what is below too."""
    name = word[2:] if word.startswith("*.") else word.removeprefix(".")
    if name.lower().rstrip(".") in _HERE or is_address(name):
        return NOTHING
    if "/" in name or ":" in name or "=" in name:
        raise Refused(Reason.UNSUPPORTED if "." in name else Reason.NOT_A_RULE)
    is_bare = name == word
    # One word in a page of prose is no top level domain.
    if needs_dot and is_bare and "." not in name.rstrip("."):
        raise Refused(Reason.NOT_A_RULE)
    return Line((_plain(name_of(name), context.covers if is_bare else SUBTREE, context),))


def _regex(text: str, context: Context) -> Line:
    if not text or text[0] in "#!" or text.startswith("//"):
        return NOTHING
    if text[0] == "/" and text.rfind("/") > 0:
        return parse_adblock(text, context)
    return Line((Rule(pattern=checked_pattern(text), is_allow=context.is_allow),))


def _dnsmasq(text: str, context: Context) -> Line:
    if not text or text[0] in "#!;":
        return NOTHING
    text = re.split(r"\s#", text, maxsplit=1)[0].rstrip()  # a "#" of its own is a target
    found = _DNSMASQ.fullmatch(text)
    if not found:
        return Line(refused=(Reason.UNSUPPORTED if "=" in text else Reason.NOT_A_RULE,))
    option, target = found[1].lower(), found[3]
    rules, refused = [], []
    for word in found[2].split("/"):
        try:
            rule = _plain(ROOT if word == "#" else name_of(word), SUBTREE, context)
            rules.append(_dnsmasq_rule(rule, option, target))
        except Refused as error:
            refused.append(error.reason)
    return Line(tuple(rules), tuple(refused))


def _dnsmasq_rule(rule: Rule, option: str, target: str) -> Rule:
    if target == "#" and option != "address":  # as ever, though something above it is not
        return msgspec.structs.replace(rule, is_allow=True)
    if target in ("", "#", "0.0.0.0", "::"):  # noqa: S104  # it is not bound to
        return rule
    if option == "address" and is_address(target):
        return msgspec.structs.replace(rule, reply=Reply("NOERROR", (address_record(target),)))
    raise Refused(Reason.UNSUPPORTED)  # where to forward to


def _plain(name: Name, covers: int, context: Context) -> Rule:
    return Rule(name=name, covers=covers, is_allow=context.is_allow)


_READERS: dict[str, Callable[[str, Context], Line]] = {
    "auto": _auto,
    "hosts": _hosts,
    "domains": _domains,
    "adblock": parse_adblock,
    "dnsmasq": _dnsmasq,
    "regex": _regex,
}
