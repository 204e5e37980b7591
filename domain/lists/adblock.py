"""Rules as AdGuard and uBlock write them: a pattern, and modifiers after a dollar sign.

`||name^` covers a name and what is below, `|name^` the name, `@@` makes an exception, `/…/` is a
regular expression, and any other text with `*` and anchors is a pattern too. `||name` and `name^`
are read as `||name^`: at the borders of labels, never inside one. What speaks of URLs, or has a
modifier that is not known here, is ignored whole: it was meant for less than all.
"""

import re
from collections.abc import Callable, Iterable

import msgspec

from kudurru.domain.dns.names import ROOT
from kudurru.domain.dns.record_types import CNAME, TXT, BadRecord, type_from_text
from kudurru.domain.dns.records import rdata_from_text
from kudurru.domain.lists.patterns import BadPattern, size_of
from kudurru.domain.lists.rules import (
    BELOW,
    NOTHING,
    SELF,
    SUBTREE,
    Context,
    Line,
    Reason,
    Reply,
    Rule,
)
from kudurru.domain.lists.words import Refused, address_record, is_address, is_header, name_of
from kudurru.domain.notation import Network, parse_network

PATTERN_MAX = 4096
"""Octets of a regular expression."""

COSMETIC = re.compile(r"#(@|\?|\$|%|@\?|@\$|\$\?|@%)?#(?=[^\s#])")
"""What stands between names of sites and what browsers shall hide there."""

_INLINE = re.compile(r"\s#")  # without a "+": a run of blanks would be tried from each of them
_SLASH = re.compile(r"(?<!\\)/")


def parse_adblock(text: str, context: Context) -> Line:
    if not text or text[0] == "!" or is_header(text):
        return NOTHING
    if text[0] == "#":
        return Line(refused=(Reason.COSMETIC,)) if COSMETIC.match(text) else NOTHING
    if COSMETIC.search(text) and not text.startswith("/"):
        return Line(refused=(Reason.COSMETIC,))
    is_exception = text.startswith("@@")
    pattern, options = _split(text[2:] if is_exception else text)
    rule = _of_pattern(pattern.strip(), context)
    if is_exception:
        rule = msgspec.structs.replace(rule, is_allow=True)
    return Line((_with_options(rule, options) if options else rule,))


def _split(text: str) -> tuple[str, str]:
    """Pattern and modifiers."""
    if text.startswith("/"):
        end = text.rfind("/")
        if end == len(text) - 1:
            return text, ""
        if text[end + 1 : end + 2] == "$":
            return text[: end + 1], text[end + 2 :]
        # A slash in the modifiers, as in $client=192.0.2.0/24.
        end = text.rfind("/$")
        return (text[: end + 1], text[end + 2 :]) if end > 0 else (text, "")
    pattern, _, options = text.partition("$")
    # Inline comments are rare in adblock lists, and known ones follow a blank.
    return _INLINE.split(pattern, maxsplit=1)[0], _INLINE.split(options, maxsplit=1)[0].rstrip()


def _of_pattern(text: str, context: Context) -> Rule:
    if text.startswith("/") and text.endswith("/") and len(text) > 2:
        return Rule(pattern=checked_pattern(text[1:-1]), is_allow=context.is_allow)
    if text in ("*", "||*", "||*^"):
        return Rule(name=ROOT, covers=SUBTREE, is_allow=context.is_allow)
    if any(sign in text for sign in "/:?=&% "):
        raise Refused(Reason.UNSUPPORTED)
    core = text.removesuffix("|").removesuffix("^")
    is_ended = core != text
    if core.startswith("||"):
        core, covers = core[2:], SUBTREE
    elif core.startswith("|"):
        core, covers = core[1:], SELF if is_ended else 0
    else:
        covers = SUBTREE if is_ended else context.covers
    if core.startswith("*.") and covers:
        core, covers = core[2:], BELOW if text.startswith("||") else SUBTREE
    if not covers or "*" in core or core.startswith(".") or core.endswith("."):
        return Rule(pattern=_translated(text.lower()), is_allow=context.is_allow)
    if core == text and "." not in core:  # a word of prose
        raise Refused(Reason.NOT_A_RULE)
    return Rule(name=name_of(core), covers=covers, is_allow=context.is_allow)


def _translated(text: str) -> str:
    """RE2 pattern of a text with asterisks and anchors."""
    begin = ""
    if text.startswith("||"):
        text, begin = text[2:], r"(?:^|\.)"
    elif text.startswith("|"):
        text, begin = text[1:], "^"
    is_end = text.endswith(("^", "|"))
    core = text.rstrip("^|")
    if not re.fullmatch(r"[a-z0-9_.*-]+", core):
        raise Refused(Reason.NAME)
    if not core.strip("*."):
        raise Refused(Reason.NOT_A_RULE)
    middle = re.sub(r"\*+", "*", core).replace(".", r"\.").replace("*", ".*")
    return begin + middle + ("$" if is_end else "")


def checked_pattern(pattern: str) -> str:
    if len(pattern.encode("utf-8", "replace")) > PATTERN_MAX:
        raise Refused(Reason.TOO_LONG)
    if _SLASH.search(pattern):  # of a path: no name has one
        raise Refused(Reason.UNSUPPORTED)
    try:
        size_of(pattern)
    except BadPattern:
        raise Refused(Reason.REGEX) from None
    return pattern


def _with_options(rule: Rule, options: str) -> Rule:
    for option in re.split(r"(?<!\\),", options):
        key, _, value = option.strip().partition("=")
        read = _OPTIONS.get(key.lower())
        if read is None:
            raise Refused(Reason.MODIFIER)
        rule = read(rule, value)
    return rule


def _important(rule: Rule, _value: str) -> Rule:
    return msgspec.structs.replace(rule, is_important=True)


def _badfilter(rule: Rule, _value: str) -> Rule:
    return msgspec.structs.replace(rule, is_badfilter=True)


def _denyallow(rule: Rule, value: str) -> Rule:
    return msgspec.structs.replace(
        rule, except_names=tuple(name_of(word) for word in value.split("|"))
    )


def _dnstype(rule: Rule, value: str) -> Rule:
    wanted, unwanted = _both(value.split("|"))
    return msgspec.structs.replace(
        rule,
        types=frozenset(map(_type, wanted)),
        not_types=frozenset(map(_type, unwanted)),
    )


def _type(word: str) -> int:
    try:
        return type_from_text(word)
    except BadRecord:
        raise Refused(Reason.MODIFIER) from None


def _client(rule: Rule, value: str) -> Rule:
    words = re.split(r"(?<!\\)\|", value)
    wanted, unwanted = _both(words)
    return msgspec.structs.replace(
        rule,
        clients=tuple(_one_client(word) for word in wanted),
        not_clients=tuple(_one_client(word) for word in unwanted),
    )


def _one_client(word: str) -> Network | str:
    word = re.sub(r"\\(.)", r"\1", word.strip("'\""))
    try:
        return parse_network(word)
    except ValueError:
        return word.lower()


def _both(words: Iterable[str]) -> tuple[list[str], list[str]]:
    """Those that are wanted, and those with a tilde. Raises where none has a text."""
    wanted: list[str] = []
    unwanted: list[str] = []
    for word in words:
        (unwanted if word.startswith("~") else wanted).append(word.removeprefix("~"))
    if not all([*wanted, *unwanted]):
        raise Refused(Reason.MODIFIER)
    return wanted, unwanted


_RCODES = ("NXDOMAIN", "REFUSED", "SERVFAIL", "NOTIMP", "NOERROR")


def _dnsrewrite(rule: Rule, value: str) -> Rule:
    """`$dnsrewrite=192.0.2.1`, `=NXDOMAIN`, `=name`, `=NOERROR;A;192.0.2.1`."""
    return msgspec.structs.replace(rule, reply=_rewrite(value))


def _rewrite(value: str) -> Reply:
    word, _, rest = value.partition(";")
    for rcode in _RCODES:
        if value.upper() == rcode:
            return Reply(rcode)  # type: ignore[arg-type]  # mypy has no loop over literals
    if not rest and is_address(word):
        return Reply("NOERROR", (address_record(word),))
    if not rest and word:
        return Reply("NOERROR", ((CNAME, name_of(word)),))
    type_, _, data = rest.partition(";")
    if word.upper() != "NOERROR" or not data:
        raise Refused(Reason.MODIFIER)
    rtype = _type(type_)
    if rtype == TXT and not data.startswith('"'):
        data = '"' + data.replace("\\", "\\\\").replace('"', '\\"') + '"'
    try:
        return Reply("NOERROR", ((rtype, rdata_from_text(rtype, data)),))
    except BadRecord:
        raise Refused(Reason.MODIFIER) from None


_OPTIONS: dict[str, Callable[[Rule, str], Rule]] = {
    "important": _important,
    "badfilter": _badfilter,
    "denyallow": _denyallow,
    "dnstype": _dnstype,
    "client": _client,
    "dnsrewrite": _dnsrewrite,
}
