"""Why a client gets what it gets for a name: the same decision as for a query, with everything that
led to it."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from kudurru.domain.dns import names, record_types
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.zone_set import ZoneSet
from kudurru.domain.filtering import answers
from kudurru.domain.filtering.clients import Caller
from kudurru.domain.filtering.decision import PASS, Decision, Filters, decide

By = Literal["zone", "policy", "special", "resolver", "nobody"]
"""`special`: names that go to no upstream (RFC 6303, RFC 6761). `nobody`: it is refused."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    type: str
    client: str
    mac: str = ""
    answered_by: By
    zone: str = ""
    groups: Sequence[str] = ()  # that the client is in
    policies: Sequence[str] = ()  # that apply to it now, in their order
    bypass: str = ""  # the policy that ends them
    is_paused: bool = False
    action: str = "pass"
    reason: str = "none"  # the class of the precedence that decided
    policy: str = ""
    list: str = ""
    rule: str = ""
    line: int = 0
    source: str = ""  # of the list: a URL, a file, "inline"
    refusal: str = ""  # why nobody answers
    upstreams: Sequence[str] = ()  # that are asked; without a server, those that the policy names


def explain(
    zones: ZoneSet,
    filters: Filters,
    caller: Caller,
    qname: Name,
    rtype: int,
    now_s: int,
) -> Explanation:
    """Why `caller` gets what it gets. May read a list's file, to show the rule."""
    key = names.key(qname)
    applying = filters.applying(caller, now_s)
    zone = zones.find_for(key, rtype)
    decision = PASS if zone is not None else decide(filters, caller, key, rtype, now_s)
    answer = None
    if decision.action == "rewrite":
        answer = answers.rewritten(decision, rtype, filters.defaults)
    by: By = "zone" if zone is not None else "resolver"
    if decision.is_blocked or answer is not None:
        by = "policy"
    return Explanation(
        name=names.to_text(qname),
        type=record_types.type_to_text(rtype),
        client=caller.text,
        mac=caller.mac.hex(":"),
        answered_by=by,
        zone=names.to_text(zone.apex) if zone is not None else "",
        groups=sorted(applying.groups),
        policies=[policy.name for policy in applying.policies],
        bypass=applying.bypass.name if applying.bypass is not None else "",
        is_paused=applying.is_paused,
        **_decided(filters, decision),
    )


def _decided(filters: Filters, decision: Decision) -> dict[str, Any]:
    policy = decision.policy
    found: dict[str, Any] = {
        "action": decision.action,
        "reason": decision.reason,
        "policy": policy.name if policy is not None else "",
        "list": decision.list,
        "rule": decision.rule,
        "line": decision.line,
        "upstreams": policy.upstreams if policy is not None else (),
    }
    place = filters.matcher.place(decision.hit) if decision.hit is not None else None
    if place is not None:
        found |= {"rule": place.text.strip(), "line": place.line, "source": place.source}
    return found
