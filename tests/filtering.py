"""What tests of filtering share: policies and groups in a line, lists as plain rules."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kudurru.adapters.time_zones import find_time_zone
from kudurru.domain.dns import names, record_types
from kudurru.domain.dns.names import Name
from kudurru.domain.filtering.clients import ClientIndex, caller_from, places_of
from kudurru.domain.filtering.decision import Decision, Filters, decide
from kudurru.domain.filtering.policies import CompiledPolicy
from kudurru.domain.kinds.clientgroup import ClientGroupSpec
from kudurru.domain.kinds.policy import PolicySpec
from kudurru.domain.lists.memory import MemoryMatcher
from kudurru.domain.lists.rules import Context
from kudurru.domain.objects import Key

NOON_S = 1_760_000_000


def policy(name: str, **spec: Any) -> CompiledPolicy:
    namespace, _, short = name.rpartition("/")
    parsed = msgspec.convert(spec, PolicySpec)
    return CompiledPolicy(namespace or "default", short, parsed, find_time_zone)


def groups(**clients: Sequence[Mapping[str, str]]) -> ClientIndex:
    return ClientIndex(
        {
            f"default/{name}": places_of(msgspec.convert({"clients": found}, ClientGroupSpec))
            for name, found in clients.items()
        }
    )


def lists(**rules: Sequence[str]) -> MemoryMatcher:
    """Inline lists of the namespace default."""
    matcher = MemoryMatcher()
    for name, lines in rules.items():
        matcher.put(Key(f"BlockList/default/{name}"), [("inline", lines)], Context())
    return matcher


def key(name: str) -> Name:
    return names.key(names.from_text(name))


def judged(
    filters: Filters,
    name: str,
    rtype: str = "A",
    client: str = "192.0.2.1",
    now_s: int = NOON_S,
    **more: Any,
) -> Decision:
    caller = caller_from(client, **more)
    return decide(filters, caller, key(name), record_types.type_from_text(rtype), now_s)
