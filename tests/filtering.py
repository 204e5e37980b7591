"""What tests of filtering share: policies and groups in a line, lists as plain rules."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kudurru.adapters.time_zones import find_time_zone
from kudurru.domain.dns import names, record_types
from kudurru.domain.filtering.clients import Caller, ClientIndex, caller_from, places_of
from kudurru.domain.filtering.decision import Decision, Filters, Hit, Verdicts, decide
from kudurru.domain.filtering.policies import CompiledPolicy
from kudurru.domain.filtering.rules import Ancestry, RuleSet
from kudurru.domain.kinds.clientgroup import ClientGroupSpec
from kudurru.domain.kinds.policy import PolicySpec

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


class PlainLists:
    """`Subscribed` over rules as policies write them: `!` is important, `@` allows."""

    is_personal = False

    def __init__(self, lists: Mapping[str, Sequence[str]]) -> None:
        self._lists = {
            name: {
                mark: RuleSet([rule.lstrip("!@") for rule in rules if _mark(rule) == mark])
                for mark in ("!@", "!", "@", "")
            }
            for name, rules in lists.items()
        }

    def find(self, lists: Sequence[str], name: Ancestry, rtype: int, caller: Caller) -> Verdicts:
        found = []
        for mark in ("!@", "!", "@", ""):
            hits = [
                Hit(one, match.rule, match.line)
                for one in lists
                if one in self._lists and (match := self._lists[one][mark].find(name))
            ]
            found.append(hits[0] if hits else None)
        return Verdicts(*found)


def _mark(rule: str) -> str:
    return rule[: len(rule) - len(rule.lstrip("!@"))]


def key(name: str) -> bytes:
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
