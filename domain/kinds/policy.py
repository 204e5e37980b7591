"""Policy: what is filtered, rewritten and forwarded, for whom and when."""

import re
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from kudurru.domain import regexes
from kudurru.domain.dns import names, record_types, records
from kudurru.domain.errors import Cause
from kudurru.domain.kinds.meta import (
    Condition,
    Spec,
    StrictSpec,
    Text,
    Ttl,
    is_dns_label,
    is_dns_subdomain,
    share_defaults,
)

REGEX_MAX = 4096
SHOWN_MAX = 80
"""Characters of a regex that its fault repeats."""
Rule = Annotated[str, Meta(min_length=1, max_length=REGEX_MAX)]
Day = Literal["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
_TIME = re.compile(r"([01]\d|2[0-3]):[0-5]\d\Z|24:00\Z", re.ASCII)
_ZONE = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*\Z", re.ASCII)


class Rewrite(StrictSpec, frozen=True, kw_only=True):
    """Answer `name` (exact or `*.` wildcard) with `targets` of `type`."""

    name: Text
    type: Text = "A"
    targets: Annotated[list[Text], Meta(min_length=1, max_length=64)]
    ttl: Ttl | None = None


class Window(StrictSpec, frozen=True, kw_only=True):
    """From `start` to `end`, local time; an end at or before the start is on the next day."""

    days: Annotated[list[Day], Meta(min_length=1, max_length=7)]
    start: Text  # HH:MM
    end: Text


class Schedule(StrictSpec, frozen=True, kw_only=True):
    time_zone: Text = "UTC"
    windows: Annotated[list[Window], Meta(min_length=1, max_length=64)]

    def __post_init__(self) -> None:
        share_defaults(self)


class PolicySpec(StrictSpec, frozen=True, kw_only=True):
    priority: Annotated[int, Meta(ge=-1_000_000, le=1_000_000)] = 0
    client_group_refs: Annotated[list[Text], Meta(max_length=128)] = []
    block_list_refs: Annotated[list[Text], Meta(max_length=128)] = []
    allow: Annotated[list[Rule], Meta(max_length=1000)] = []
    deny: Annotated[list[Rule], Meta(max_length=1000)] = []
    rewrites: Annotated[list[Rewrite], Meta(max_length=1000)] = []
    block_types: Annotated[list[Text], Meta(max_length=64)] = []
    block_mode: Literal["zeroip", "nxdomain", "nodata", "refused", "custom"] | UnsetType = (
        UNSET  # as the setting blocking.mode
    )
    custom_ips: Annotated[list[Text], Meta(max_length=16)] = msgspec.field(
        name="customIPs", default_factory=list
    )
    block_ttl: Ttl | UnsetType = msgspec.field(
        name="blockTTL", default=UNSET
    )  # as the setting blocking.ttl
    schedule: Schedule | None = None
    safe_search: bool = False
    upstreams: Annotated[list[Text], Meta(max_length=64)] = []
    action: Literal["filter", "bypass"] = "filter"
    query_log: bool | None = None


class PolicyStatus(Spec, frozen=True, kw_only=True):
    observed_generation: int = 0
    conditions: list[Condition] = []


def policy_faults(spec: PolicySpec) -> Iterator[Cause]:
    for field, refs in (
        ("clientGroupRefs", spec.client_group_refs),
        ("blockListRefs", spec.block_list_refs),
    ):
        for i, ref in enumerate(refs):
            if not _is_reference(ref):
                yield Cause(f"spec.{field}[{i}]", f"{ref!r} is not [namespace/]name")
    budget = regexes.Budget()
    for field, rules in (("allow", spec.allow), ("deny", spec.deny)):
        for i, rule in enumerate(rules):
            if fault := _rule_fault(rule, budget):
                yield Cause(f"spec.{field}[{i}]", fault)
    for i, rewrite in enumerate(spec.rewrites):
        yield from _rewrite_faults(f"spec.rewrites[{i}]", rewrite)
    for i, text in enumerate(spec.block_types):
        try:
            record_types.type_from_text(text)
        except record_types.BadRecord as error:
            yield Cause(f"spec.blockTypes[{i}]", str(error))
    yield from _custom_ip_faults(spec)
    if spec.schedule:
        yield from _schedule_faults(spec.schedule)


def _custom_ip_faults(spec: PolicySpec) -> Iterator[Cause]:
    if spec.block_mode == "custom" and not spec.custom_ips:
        yield Cause("spec.customIPs", "missing; blockMode custom needs them")
    if spec.block_mode != "custom" and spec.custom_ips:
        mode = "not given" if spec.block_mode is UNSET else spec.block_mode
        yield Cause("spec.blockMode", f"{mode}, and customIPs are for custom only")
    for i, text in enumerate(spec.custom_ips):
        try:
            ip_address(text)
        except ValueError as error:
            yield Cause(f"spec.customIPs[{i}]", str(error))
        else:
            if "%" in text:
                yield Cause(f"spec.customIPs[{i}]", f"{text!r}: an answer has no scope")


def _is_reference(text: str) -> bool:
    namespace, slash, name = text.rpartition("/")
    return is_dns_subdomain(name) and (not slash or is_dns_label(namespace))


def _rule_fault(rule: str, budget: regexes.Budget) -> str | None:
    if rule.startswith("/"):
        if len(rule) < 3 or not rule.endswith("/"):
            return f"{_shown(rule)}: a regex ends in '/'"
        why = None if budget.is_spent else budget.fault(rule[1:-1])
        return f"{_shown(rule)}: {why}" if why else None
    try:
        names.from_text(rule.removeprefix("*."))
    except names.BadName as error:
        return str(error)
    return None


def _shown(rule: str) -> str:
    return repr(rule if len(rule) <= SHOWN_MAX else f"{rule[:SHOWN_MAX]}…")


def _rewrite_faults(where: str, rewrite: Rewrite) -> Iterator[Cause]:
    try:
        names.from_text(rewrite.name)
    except names.BadName as error:
        yield Cause(f"{where}.name", str(error))
    try:
        rtype = record_types.type_from_text(rewrite.type)
    except record_types.BadRecord as error:
        yield Cause(f"{where}.type", str(error))
        return
    for j, target in enumerate(rewrite.targets):
        try:
            records.target_from_text(rtype, target)
        except record_types.BadRecord as error:
            yield Cause(f"{where}.targets[{j}]", str(error))


def _schedule_faults(schedule: Schedule) -> Iterator[Cause]:
    # Whether the zone exists depends on the host's time zone data, so only its form is checked
    # here; a policy whose zone is unknown on a node is diagnosed there.
    if not _ZONE.match(schedule.time_zone):
        yield Cause("spec.schedule.timeZone", f"{schedule.time_zone!r} is no time zone name")
    for i, window in enumerate(schedule.windows):
        for field, text in (("start", window.start), ("end", window.end)):
            if not _TIME.match(text):
                yield Cause(
                    f"spec.schedule.windows[{i}].{field}", f"{text!r} is no time; write HH:MM"
                )
