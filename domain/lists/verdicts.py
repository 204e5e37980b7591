"""What a set of lists makes of a name, class by class.

Within a class the first hit that applies decides: exact before wildcard before pattern, the closest
wildcard first, and between equals the order of the lists' keys.
"""

from collections.abc import Container, Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address

import msgspec

from kudurru.domain.dns import names
from kudurru.domain.dns.names import BadName, Name
from kudurru.domain.dns.record_types import CNAME
from kudurru.domain.lists.matcher import Hit
from kudurru.domain.lists.rules import Reply, Rule
from kudurru.domain.notation import Network
from kudurru.domain.objects import Key


class Asker(msgspec.Struct, frozen=True):
    """Who asks, as far as rules with `$client` care."""

    address: IPv4Address | IPv6Address | None = None
    names: frozenset[str] = frozenset()
    """Client id, MAC, listener, names of groups: lower case."""


NOBODY = Asker()


class Verdict(msgspec.Struct, frozen=True):
    """A rule that decides. `reply` is what the rules of its name in its list want answered, merged;
    None: the policy's block mode."""

    hit: Hit
    reply: Reply | None = None


class Verdicts(msgspec.Struct, frozen=True):
    """What lists say about a name. The order of precedence: `important_allow`, `important_deny`,
    what the policy itself allows and denies, `allow`, `deny`."""

    important_allow: Verdict | None = None
    important_deny: Verdict | None = None
    allow: Verdict | None = None
    deny: Verdict | None = None


NONE = Verdicts()


def verdicts(
    name: Name, hits: Sequence[Hit], lists: Container[Key], qtype: int, asker: Asker = NOBODY
) -> Verdicts:
    """What `lists` say of a `name` (a key), a type of question and a client.
    `hits` are those of `Matcher.lookup(name)`."""
    if not hits:
        return NONE
    mine = [hit for hit in hits if hit.list in lists]
    if any(hit.rule.is_node for hit in mine):
        mine = _as_in_zones(mine, name)
    mine = [hit for hit in mine if _applies(hit.rule, name, qtype, asker)]
    if any(hit.rule.is_badfilter for hit in mine):
        mine = _without_badfiltered(mine)
    classes: dict[tuple[bool, bool], Hit] = {}
    for hit in mine:
        classes.setdefault((hit.rule.is_important, hit.rule.is_allow), hit)
    return Verdicts(
        _verdict(name, classes.get((True, True)), mine),
        _verdict(name, classes.get((True, False)), mine),
        _verdict(name, classes.get((False, True)), mine),
        _verdict(name, classes.get((False, False)), mine),
    )


def _applies(rule: Rule, name: Name, qtype: int, asker: Asker) -> bool:
    if (rule.types and qtype not in rule.types) or qtype in rule.not_types:
        return False
    if rule.clients and not _is_one_of(asker, rule.clients):
        return False
    if rule.not_clients and _is_one_of(asker, rule.not_clients):
        return False
    return not any(names.is_within(name, other) for other in rule.except_names)


def _is_one_of(asker: Asker, clients: Iterable[Network | str]) -> bool:
    return any(
        client in asker.names
        if isinstance(client, str)
        else asker.address is not None and asker.address in client
        for client in clients
    )


def _without_badfiltered(hits: list[Hit]) -> list[Hit]:
    gone = {
        (hit.list, msgspec.structs.replace(hit.rule, is_badfilter=False))
        for hit in hits
        if hit.rule.is_badfilter
    }
    return [hit for hit in hits if not hit.rule.is_badfilter and (hit.list, hit.rule) not in gone]


def _as_in_zones(hits: list[Hit], name: Name) -> list[Hit]:
    """Without what is no match in a zone: names that are only above the one that was asked for,
    and wildcards above those (RFC 4592 section 3.3.1)."""
    closest: dict[tuple[Key, int], int] = {}
    for hit in hits:
        if hit.rule.is_node:
            place = hit.list, hit.source
            closest[place] = max(closest.get(place, 0), len(hit.rule.name))
    return [
        hit
        for hit in hits
        if len(hit.rule.name) >= closest.get((hit.list, hit.source), 0)
        and (hit.rule.name == name or not hit.rule.is_node)
    ]


def _verdict(name: Name, first: Hit | None, hits: list[Hit]) -> Verdict | None:
    """With what all rules like the first one want answered: each brings one record."""
    if first is None:
        return None
    if first.rule.reply is None:
        return Verdict(first)
    replies = [
        hit.rule.reply for hit in hits if hit.rule.reply is not None and _stand_together(hit, first)
    ]
    records = dict.fromkeys(r for reply in replies for r in reply.records)
    try:
        return Verdict(
            first, Reply(first.rule.reply.rcode, tuple(_expanded(r, name) for r in records))
        )
    except BadName:
        return Verdict(first, Reply("NXDOMAIN"))  # the name that it leads to would be too long


def _expanded(record: tuple[int, bytes], name: Name) -> tuple[int, bytes]:
    """A CNAME to `*.walled.example` leads to the asked name below that."""
    rtype, rdata = record
    if rtype != CNAME or not names.is_wildcard(rdata):
        return record
    return rtype, names.from_labels([*names.labels(name), *names.labels(rdata)[1:]])


def _stand_together(one: Hit, other: Hit) -> bool:
    a, b = one.rule, other.rule
    return (
        one.list == other.list
        and (a.name, a.covers, a.pattern) == (b.name, b.covers, b.pattern)
        and (a.is_important, a.is_allow) == (b.is_important, b.is_allow)
        and a.reply is not None
        and b.reply is not None
        and a.reply.rcode == b.reply.rcode
    )
