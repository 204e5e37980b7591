"""From what was gathered to objects.

Names of objects come from what they hold, so the same input gives the same objects. Records of a
domain that is declared local, or that nobody has on the internet (`lan`, `home.arpa`), are record
sets of a zone. For single names of others' domains a zone would hide the rest of the domain: they
are rewrites of policies, of which one is for clients that no policy names and one for the groups
of this import. See decisions/0069.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from kudurru.domain.dns import names
from kudurru.domain.dns.names import Name
from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.imports.model import (
    IMPORTED_FROM,
    LINES_MAX,
    Audience,
    BlockList,
    Imported,
    Importing,
    Record,
    Rules,
    Zones,
)
from kudurru.domain.kinds.meta import API_VERSION, COMMENT, ENABLED, is_dns_label, is_dns_subdomain
from kudurru.domain.kinds.validation import CAUSES_MAX, Manifest, parse_manifest
from kudurru.domain.objects import ref_of
from kudurru.domain.zone_import import record_set_name, suffixed, zone_object_name

PRIVATE = frozenset(
    names.from_text(text)
    for text in (
        "corp", "home", "home.arpa", "internal", "intranet", "lan", "local", "localdomain",
        "localnet", "private", "test",
    )
)  # fmt: skip
"""Domains without names on the internet (RFC 6761, 6762, 8375, and those never delegated)."""

PREFIX_MAX = 40
RULES_MAX, REFS_MAX, CLIENTS_MAX, TARGETS_MAX = 1000, 128, 1000, 64
COMMENT_MAX = 500
BEHIND, BYPASS, BEFORE_BYPASS = -10, 10, 20
"""Priorities. What a client's first policy says of upstreams and of the query log counts, so that
rewrites, which come before rules whatever the priority, stand behind. But behind a policy that
bypasses nothing counts."""


def check_prefix(text: str) -> None:
    """Raises Invalid."""
    if not is_dns_label(text) or len(text) > PREFIX_MAX:
        what = f"{text!r}: letters, digits and '-', at most {PREFIX_MAX}, all small"
        raise Invalid("--prefix", [Cause("", what)])


def object_name(prefix: str, text: str) -> str:
    """Name of an object after what it is called or holds; different texts never share one."""
    name = f"{prefix}-{text}"
    return (
        name
        if is_dns_subdomain(name) and len(name) < 100
        else suffixed(name.lower()[:100], text.encode("utf-8", "replace"))
    )


def imported(found: Importing, *, namespace: str, zones: Zones) -> Imported:
    """Raises Invalid with every fault."""
    documents = [
        *_zone_documents(found, zones),
        *_list_documents(found),
        *_group_documents(found),
        *_policy_documents(found),
    ]
    manifests: list[Manifest] = []
    for kind, name, spec, annotations in documents:
        label = {IMPORTED_FROM: found.product}
        document = {
            "apiVersion": API_VERSION,
            "kind": kind,
            "metadata": {"name": name, "labels": label, "annotations": annotations},
            "spec": spec,
        }
        try:
            manifests.append(
                parse_manifest(document, what=found.product, default_namespace=namespace)
            )
        except Invalid as error:
            found.faults += [Cause(c.field, c.message, error.what) for c in error.causes]
    for key, count in Counter(manifest.key for manifest in manifests).items():
        if count > 1:
            what = f"{count} things in the input would be {ref_of(key)}; name them differently"
            found.faults.append(Cause("", what))
    if found.faults:
        raise Invalid(found.product, found.faults[:CAUSES_MAX])
    return Imported(manifests, found.left_out, found.settings)


_Document = tuple[str, str, dict[str, Any], dict[str, str]]
"""Kind, name, spec and annotations."""


# --- records ----------------------------------------------------------------------------------


def _zone_documents(found: Importing, zones: Zones) -> Iterator[_Document]:
    away = {zone for zone, (_, kind) in zones.items() if kind != "Primary"} | set(found.forwarded)
    known = {zone for zone, (_, kind) in zones.items() if kind == "Primary"}
    homes = (found.local | found.homes | known | PRIVATE) - away
    found.local -= away
    sets: dict[tuple[Name, Name], list[dict[str, Any]]] = {}
    rewrites: list[dict[str, Any]] = []
    for owner, of_owner in groupby(_in_order(found), key=lambda item: item[0]):
        apex = _home_of(owner, homes, away)
        at_hand = [(rtype, record) for _, rtype, record in of_owner]
        for rtype, record in at_hand:
            if apex is None or (owner == apex and rtype == "CNAME"):
                rewrites += _rewrites_of(owner, rtype, record)
            else:
                sets.setdefault((apex, owner), []).append(_endpoint(owner, rtype, record))
    for apex in sorted({apex for apex, _ in sets} | found.local, key=names.canonical_order):
        if apex not in zones:
            yield "DNSZone", zone_object_name(apex), {"zoneName": _text(apex)}, {}
    for zone, upstreams in found.forwarded.items():
        if zone in zones and zones[zone] != (zone_object_name(zone), "Forward"):
            found.leave(_text(zone), f"DNSZone {zones[zone][0]} has this name; it stays as it is")
            continue
        spec = {"zoneName": _text(zone), "type": "Forward", "forward": {"upstreams": upstreams}}
        yield "DNSZone", zone_object_name(zone), spec, {}
    for (apex, owner), endpoints in sets.items():
        zone_name = zones[apex][0] if apex in zones else zone_object_name(apex)
        name = object_name(found.prefix, record_set_name(owner, apex, zone_name))
        yield "DNSRecordSet", name, {"zoneRef": {"name": zone_name}, "endpoints": endpoints}, {}
    yield from _rewrite_documents(found, rewrites)


def _in_order(found: Importing) -> Iterator[tuple[Name, str, Record]]:
    """Records by owner, without aliases that stand beside other records."""
    by_owner: dict[Name, dict[str, Record]] = {}
    for (owner, rtype), record in found.records.items():
        by_owner.setdefault(owner, {})[rtype] = record
    for owner, types in by_owner.items():
        if "CNAME" in types and len(types) > 1:
            found.leave(types.pop("CNAME").at, f"{_text(owner)} has other records beside the alias")
        for rtype, record in types.items():
            yield owner, rtype, record


def _home_of(owner: Name, homes: Iterable[Name], away: Iterable[Name]) -> Name | None:
    """The zone that a name is written into; None where it is better a rewrite."""
    here = [zone for zone in homes if names.is_within(owner, zone)]
    there = [zone for zone in away if names.is_within(owner, zone)]
    if not here:
        return None
    apex = max(here, key=len)
    if there and len(max(there, key=len)) > len(apex):
        return None
    return apex


def _endpoint(owner: Name, rtype: str, record: Record) -> dict[str, Any]:
    endpoint = {"dnsName": _text(owner), "recordType": rtype, "targets": record.targets}
    return endpoint if record.ttl is None else {**endpoint, "recordTTL": record.ttl}


def _rewrites_of(owner: Name, rtype: str, record: Record) -> Iterator[dict[str, Any]]:
    for targets in _parts(record.targets, TARGETS_MAX):
        rewrite = {"name": _text(owner), "type": rtype, "targets": targets}
        yield rewrite if record.ttl is None else {**rewrite, "ttl": record.ttl}


def _rewrite_documents(found: Importing, rewrites: list[dict[str, Any]]) -> Iterator[_Document]:
    for part, some in _numbered(rewrites, RULES_MAX):
        name = f"{found.prefix}-rewrites{part}"
        yield "Policy", name, {"priority": BEHIND, "rewrites": some}, {}
        for is_bypass, suffix in ((False, "groups"), (True, "unfiltered")):
            priority = BEFORE_BYPASS if is_bypass else BEHIND
            for chunk, refs in _numbered(_names_of_groups(found, is_bypass=is_bypass), REFS_MAX):
                spec = {"priority": priority, "clientGroupRefs": refs, "rewrites": some}
                yield "Policy", f"{name}-{suffix}{chunk}", spec, {}


def _names_of_groups(found: Importing, *, is_bypass: bool) -> list[str]:
    """Of groups that have a policy."""
    return [
        name
        for audience in found.audiences
        if audience.rules is not None and audience.rules.is_bypass == is_bypass
        for name, _ in _groups_of(found, audience)
    ]


# --- lists, groups, policies -------------------------------------------------------------------


def _list_documents(found: Importing) -> Iterator[_Document]:
    lines = list(found.blocked)
    for part, some in _numbered(lines, LINES_MAX):
        block_list = BlockList(f"{found.prefix}-blocked{part}", [{"inline": some}], "domains")
        found.lists[block_list.name] = block_list
        for rules in _all_rules(found):
            rules.lists.append(block_list.name)
    for block_list in found.lists.values():
        spec = {"sources": block_list.sources, "format": block_list.format}
        annotations = {} if block_list.is_enabled else {ENABLED: "false"}
        if comment := _comment(block_list.comment):
            annotations[COMMENT] = comment
        yield "BlockList", block_list.name, {**spec, "kind": block_list.kind}, annotations


def _all_rules(found: Importing) -> Iterator[Rules]:
    """Of everybody, and of the groups that are filtered at all."""
    yield found.everybody
    for audience in found.audiences:
        if audience.rules is not None and not audience.rules.is_bypass:
            yield audience.rules


def _groups_of(found: Importing, audience: Audience) -> list[tuple[str, list[dict[str, str]]]]:
    """Name and clients of the ClientGroups that an audience takes; one, nearly always."""
    name = _name_of(found, audience)
    parts = list(_numbered(audience.clients, CLIENTS_MAX)) or [("", [])]
    return [(f"{name}{part}", clients) for part, clients in parts]


def _name_of(found: Importing, audience: Audience) -> str:
    """Of its groups and policies; not one that policies of this module have."""
    title = audience.title
    if title.startswith(("everybody", "rewrites")):
        return suffixed(f"{found.prefix}-{title}"[:100], title.encode("utf-8", "replace"))
    return object_name(found.prefix, title)


def _group_documents(found: Importing) -> Iterator[_Document]:
    for audience in found.audiences:
        for name, clients in _groups_of(found, audience):
            yield "ClientGroup", name, {"clients": clients}, _titled(audience.title)


def _policy_documents(found: Importing) -> Iterator[_Document]:
    if found.everybody != Rules():
        yield from _policies(f"{found.prefix}-everybody", found.everybody, [], {})
    for audience in found.audiences:
        if audience.rules is None:
            continue
        groups = [name for name, _ in _groups_of(found, audience)]
        annotations = _titled(audience.title)
        if not audience.is_enabled:
            annotations[ENABLED] = "false"
        name = _name_of(found, audience)
        yield from _policies(name, audience.rules, groups, annotations)


def _policies(
    name: str, rules: Rules, groups: list[str], annotations: dict[str, str]
) -> Iterator[_Document]:
    """One policy, or more where it holds more than one may; they count together."""
    first = {"safeSearch": rules.safe_search, "blockTypes": rules.block_types}
    every: dict[str, Any] = {"clientGroupRefs": groups, "upstreams": rules.upstreams}
    if rules.is_bypass:
        every |= {"action": "bypass", "priority": BYPASS}
    if rules.query_log is not None:
        every["queryLog"] = rules.query_log
    if rules.block_mode:
        every["blockMode"] = rules.block_mode
    if rules.custom_ips:
        every["customIPs"] = rules.custom_ips
    lists = list(_parts(rules.lists, REFS_MAX))
    allow, deny = list(_parts(rules.allow, RULES_MAX)), list(_parts(rules.deny, RULES_MAX))
    for i in range(max(1, len(lists), len(allow), len(deny))):
        spec = every | first if i == 0 else every.copy()
        for field, parts in (("blockListRefs", lists), ("allow", allow), ("deny", deny)):
            if i < len(parts):
                spec[field] = parts[i]
        yield "Policy", f"{name}-{i + 1}" if i else name, spec, annotations


def _titled(title: str) -> dict[str, str]:
    return {COMMENT: comment} if (comment := _comment(title)) else {}


def _comment(text: str) -> str:
    return text.encode("utf-8", "replace").decode()[:COMMENT_MAX]


def _text(name: Name) -> str:
    return names.to_text(name, final_dot=False)


def _parts(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    for i in range(0, len(items), size):
        yield list(items[i : i + size])


def _numbered(items: Sequence[Any], size: int) -> Iterator[tuple[str, list[Any]]]:
    """Parts of a list; from the second on they have a number to be told by."""
    for i, part in enumerate(_parts(items, size)):
        yield f"-{i + 1}" if i else "", part
