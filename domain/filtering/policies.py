"""Policies as they are asked: compiled from their objects."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET

from kudurru.domain.dns import names, record_types, records
from kudurru.domain.dns.names import BadName, Name
from kudurru.domain.dns.record_types import BadRecord
from kudurru.domain.filtering.clients import Groups
from kudurru.domain.filtering.engines import ENGINES
from kudurru.domain.filtering.rules import Ancestry, RuleSet
from kudurru.domain.filtering.schedules import Hours, TimeZones
from kudurru.domain.kinds.meta import DEFAULT_NAMESPACE
from kudurru.domain.kinds.policy import PolicySpec, Rewrite
from kudurru.domain.objects import Key

BLOCK_LIST = "BlockList"

BlockMode = Literal["zeroip", "nxdomain", "nodata", "refused", "custom"]

SAFE_TTL_S = 300
"""Of the alias that leads to a safe search engine."""


class Rewritten(msgspec.Struct, frozen=True, gc=False):
    """Records that a rewrite gives a name: rdata by type, and the TTL of each (None: the
    policy's)."""

    rule: str
    line: int  # from 1, in spec.rewrites
    rrsets: dict[int, tuple[int | None, tuple[bytes, ...]]]


class BlockDefaults(msgspec.Struct, frozen=True):
    """What a policy that says nothing answers for a blocked name."""

    mode: BlockMode = "zeroip"
    ttl_s: int = 30


class CompiledPolicy:
    """A Policy object. `groups` None: it is for everyone that no other policy is for."""

    def __init__(self, namespace: str, name: str, spec: PolicySpec, zones: TimeZones) -> None:
        self.name = f"{namespace}/{name}"
        self.order = (-spec.priority, namespace, name)
        self.groups: Groups | None = (
            frozenset(full_name(ref, namespace) for ref in spec.client_group_refs) or None
        )
        self.lists = tuple(
            Key(f"{BLOCK_LIST}/{full_name(ref, namespace)}") for ref in spec.block_list_refs
        )
        self.allow = RuleSet(spec.allow)
        self.deny = RuleSet(spec.deny)
        self.rewrites = _Rewrites(spec.rewrites)
        self.block_types = frozenset(_types(spec.block_types))
        self.block_mode = None if spec.block_mode is UNSET else spec.block_mode
        self.block_ttl_s = None if spec.block_ttl is UNSET else spec.block_ttl
        self.custom = tuple(_addresses(spec.custom_ips))
        self.hours = Hours(spec.schedule, zones) if spec.schedule else None
        self.safe_search = spec.safe_search
        self.upstreams = tuple(spec.upstreams)
        self.is_bypass = spec.action == "bypass"
        self.query_log = spec.query_log

    def holds(self, now_s: int) -> bool:
        return self.hours is None or self.hours.holds(now_s)


def full_name(reference: str, namespace: str) -> str:
    """`[namespace/]name` as `namespace/name`; what names no namespace is in the referrer's."""
    return reference if "/" in reference else f"{namespace or DEFAULT_NAMESPACE}/{reference}"


def in_order(policies: Iterable[CompiledPolicy]) -> list[CompiledPolicy]:
    """Higher priority first, then by namespace and name."""
    return sorted(policies, key=lambda policy: policy.order)


class _Rewrites:
    """Rewrites of a policy: exact names before wildcards, the nearest wildcard first."""

    def __init__(self, rewrites: Sequence[Rewrite]) -> None:
        self._exact: dict[bytes, Rewritten] = {}
        self._below: dict[bytes, Rewritten] = {}
        for line, rewrite in enumerate(rewrites, 1):
            try:
                key = names.key(names.from_text(rewrite.name.removeprefix("*.")))
                rtype = record_types.type_from_text(rewrite.type)
                rdatas = tuple(records.target_from_text(rtype, t) for t in rewrite.targets)
            except (BadName, BadRecord):  # accepted once, by other rules than today's
                continue
            into = self._below if rewrite.name.startswith("*.") else self._exact
            found = into.setdefault(key, Rewritten(rewrite.name, line, {}))
            ttl, before = found.rrsets.get(rtype, (rewrite.ttl, ()))
            found.rrsets[rtype] = (ttl, before + tuple(r for r in rdatas if r not in before))

    def __bool__(self) -> bool:
        return bool(self._exact or self._below)

    def find(self, name: Ancestry) -> Rewritten | None:
        found = self._exact.get(name.key)
        if found is None and self._below:
            found = next(filter(None, map(self._below.get, name.above)), None)
        return found


def _types(texts: Iterable[str]) -> Iterator[int]:
    for text in texts:
        try:
            yield record_types.type_from_text(text)
        except BadRecord:  # accepted once, by other rules than today's
            continue


def _addresses(texts: Iterable[str]) -> Iterator[tuple[int, bytes]]:
    """(type, rdata) of addresses."""
    for text in texts:
        rtype = record_types.AAAA if ":" in text else record_types.A
        yield rtype, records.rdata_from_text(rtype, text)


_SAFE: dict[Name, Name] = {
    names.key(names.from_text(host)): names.from_text(target)
    for target, hosts in ENGINES.items()
    for host in hosts
}


def safe_target(key: bytes) -> Name | None:
    """Where safe search sends a name to."""
    return _SAFE.get(Name(key))


def safe_rewrite(target: Name) -> Rewritten:
    rule = f"safe search: {names.to_text(target, final_dot=False)}"
    return Rewritten(rule, 0, {record_types.CNAME: (SAFE_TTL_S, (target,))})
