"""Response policy zones: master file lines whose owners are triggers and whose records are actions
(draft-vixie-dnsop-dns-rpz).

Done here: QNAME triggers, with wildcards, and triggers on single addresses of answers (`rpz-ip`);
NXDOMAIN, NODATA, PASSTHRU, DROP, TCP-Only and local data. Triggers on networks, name servers and
clients are refused. A name that is there ends the
wildcards above it, as in any zone, so the rule of an exact name is found from below it too; names
between others, which a zone has without a record, end nothing here.
"""

import re
from ipaddress import IPv4Address, IPv6Address

import msgspec

from kudurru.domain.dns import names
from kudurru.domain.dns.names import ROOT, BadName, Name
from kudurru.domain.dns.record_types import (
    CNAME,
    DNAME,
    DNSKEY,
    NS,
    NSEC,
    NSEC3,
    NSEC3PARAM,
    RRSIG,
    SOA,
    BadRecord,
    type_from_text,
)
from kudurru.domain.dns.records import rdata_from_tokens, split
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
from kudurru.domain.lists.words import Refused

_TRIGGERS = frozenset({b"rpz-ip", b"rpz-nsdname", b"rpz-nsip", b"rpz-client-ip"})
_ADDRESS = b"\x06rpz-ip\x00"
_BOOKKEEPING = frozenset({NS, SOA, DNSKEY, RRSIG, NSEC, NSEC3, NSEC3PARAM})
_TTL_OR_CLASS = re.compile(r"[0-9][0-9smhdw]*|IN", re.I)

_SOA = re.compile(r"\S*\s+(?:(?:\d+[smhdw]?|IN)\s+)*SOA\s+\S+\s+\S+", re.I)
_BEFORE_COMMENT = re.compile(r'(?:[^";\\]|\\.|"(?:[^"\\]|\\.)*"?)*')

_NODATA = b"\x01*\x00"
_ACTIONS: dict[bytes, Reply] = {
    b"\x00": Reply("NXDOMAIN"),
    _NODATA: Reply("NOERROR"),
    b"\x08rpz-drop\x00": Reply("DROP"),
    b"\x0crpz-tcp-only\x00": Reply("TCP"),
}
_PASSTHRU = b"\x0crpz-passthru\x00"


def is_rpz(text: str) -> bool:
    """Whether a line shows that this and what follows is a policy zone."""
    if text[:1] == "$":
        return text.split()[0].upper() in ("$ORIGIN", "$TTL")
    return text[:1] not in ("#", "!", ";") and _SOA.match(text) is not None


def parse_rpz(text: str, context: Context) -> Line:
    """Rules of a line that is a record. Raises Refused."""
    if not text.strip() or text.lstrip()[0] == ";":
        return NOTHING
    if text[0] == "$":
        if text.split()[0].upper() in ("$ORIGIN", "$TTL"):
            return NOTHING
        raise Refused(Reason.UNSUPPORTED)
    owner, rtype, data = _record(text, context)
    if rtype in _BOOKKEEPING:
        return NOTHING
    trigger = _trigger(owner, context)
    covers, is_node = SUBTREE, True
    if trigger.endswith(_ADDRESS):
        trigger, covers, is_node = _address(trigger), SELF, False
    elif names.is_wildcard(trigger):
        trigger, covers, is_node = names.parent(trigger), BELOW, False
    if rtype == DNAME or any(label in _TRIGGERS for label in names.labels(trigger)):
        raise Refused(Reason.UNSUPPORTED)
    rule = Rule(name=trigger, covers=covers, is_node=is_node, is_allow=context.is_allow)
    return Line((rule if context.is_allow else _with_action(rule, rtype, data, context.origin),))


def after(text: str, context: Context) -> Context:
    """The context of the line after this one."""
    words = text.partition(";")[0].split()
    if not words:
        return context
    try:
        if words[0].upper() == "$ORIGIN" and len(words) > 1:
            origin = names.key(names.from_text(words[1], context.origin))
            apex = context.apex if context.apex != ROOT else origin
            return msgspec.structs.replace(context, origin=origin, apex=apex)
        if words[0].startswith("$"):
            return context
        if any(word.upper() == "SOA" for word in words[:4]):
            return _at_apex(text, context)
    except BadName:
        return context
    if not text[0].isspace() and words[0] != context.owner:
        return msgspec.structs.replace(context, owner=words[0])
    return context


def _at_apex(text: str, context: Context) -> Context:
    owner = "@" if text[0].isspace() else text.split()[0]
    apex = names.key(names.from_text(owner, context.origin))
    origin = context.origin if context.origin != ROOT else apex
    return msgspec.structs.replace(context, apex=apex, origin=origin, owner=owner)


def _record(text: str, context: Context) -> tuple[str, int, list[str]]:
    """Owner as written, type, and the words of the data."""
    try:
        words = split(_uncommented(text))
    except BadRecord:
        raise Refused(Reason.NOT_A_RULE) from None
    owner = context.owner
    if not text[0].isspace():
        owner, words = "".join(words[:1]), words[1:]
    while words and _TTL_OR_CLASS.fullmatch(words[0]):
        words.pop(0)
    if not owner or len(words) < 2:
        raise Refused(Reason.NOT_A_RULE)
    try:
        return owner, type_from_text(words[0]), words[1:]
    except BadRecord:
        raise Refused(Reason.NOT_A_RULE) from None


def _uncommented(text: str) -> str:
    found = _BEFORE_COMMENT.match(text)
    assert found is not None  # it matches nothing at least
    return found[0]


def _trigger(owner: str, context: Context) -> Name:
    """The name that an owner is about: without the policy zone's."""
    try:
        name = names.key(names.from_text(owner, context.origin))
    except BadName:
        raise Refused(Reason.NAME) from None
    if context.apex == ROOT:
        return name
    if not names.is_within(name, context.apex) or name == context.apex:
        raise Refused(Reason.UNSUPPORTED)
    return Name(name.removesuffix(context.apex) + b"\x00")


def _address(trigger: Name) -> Name:
    """The name that an address is in rules, from the owner of its trigger: the length of the
    prefix, then octets or groups of digits from the last to the first, `zz` for a run of zeros."""
    try:
        prefix, *parts = [label.decode("ascii") for label in names.labels(trigger)[:-1]]
        parts.reverse()
        if len(parts) == 4 and "zz" not in parts and prefix == "32":
            return names.from_text(str(IPv4Address(".".join(parts))))
        if prefix == "128":
            return _ipv6(parts)
    except ValueError:  # also of text that is no address
        raise Refused(Reason.NAME) from None
    raise Refused(Reason.UNSUPPORTED)  # a network


def _ipv6(parts: list[str]) -> Name:
    text = ":".join("" if part == "zz" else part for part in parts)
    if parts[:1] == ["zz"]:
        text = ":" + text
    if parts[-1:] == ["zz"]:
        text += ":"
    return names.from_text(str(IPv6Address(text)))


def _with_action(rule: Rule, rtype: int, data: list[str], origin: Name) -> Rule:
    try:
        rdata = rdata_from_tokens(rtype, data, origin)
    except BadRecord:
        raise Refused(Reason.NOT_A_RULE) from None
    if rtype == CNAME:
        target = rdata.lower()
        if action := _ACTIONS.get(target):
            return msgspec.structs.replace(rule, reply=action)
        if target in (_PASSTHRU, rule.name):  # its own name is the old way to say so
            return msgspec.structs.replace(rule, is_allow=True)
        if target[1:5] == b"rpz-":
            raise Refused(Reason.UNSUPPORTED)
    return msgspec.structs.replace(rule, reply=Reply("NOERROR", ((rtype, rdata),)))
