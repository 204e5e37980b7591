"""What becomes of a question. One function decides, for the pipeline and for `explain` alike.

The classes, first to last; the first that has a verdict decides:

    rewrite           a policy rewrites the name (local zones came before all this)
    important-allow   a subscribed allow rule with $important
    important-deny    a subscribed deny rule with $important
    policy-allow      a policy allows the name
    policy-deny       a policy denies the name, or the type
    list-allow        a subscribed list allows the name
    list-deny         a subscribed list denies the name
    safe-search       a policy sends a search engine to its safe name

Within a class the policies are asked in order, and of one policy's rules exact come before wildcard
before regex. A bypass ends the list of policies: what comes after it in order does not count. While
a client is paused nothing is denied. What a policy itself allows is not sent to safe search.
"""

from collections.abc import Container, Iterable, Mapping
from typing import Literal, NamedTuple

import msgspec

from kudurru.domain.dns.names import Name
from kudurru.domain.filtering.clients import Caller, ClientIndex, Groups, asker_of
from kudurru.domain.filtering.policies import (
    BlockDefaults,
    CompiledPolicy,
    Rewritten,
    in_order,
    safe_rewrite,
    safe_target,
)
from kudurru.domain.filtering.rules import Ancestry, Match
from kudurru.domain.lists.matcher import Hit, Matcher, Union
from kudurru.domain.lists.rules import Reply as ListReply
from kudurru.domain.lists.verdicts import Verdict, Verdicts, verdicts
from kudurru.domain.objects import Key
from kudurru.domain.ports import CLIENT_CLASSES_MAX

Action = Literal["pass", "block", "rewrite"]
Reason = Literal[
    "none", "bypass", "paused", "rewrite", "important-allow", "important-deny", "policy-allow",
    "policy-deny", "blocked-type", "list-allow", "list-deny", "safe-search",
]  # fmt: skip

CALLERS_MAX = 16_384
"""Clients whose groups are remembered: a large site's, twice."""
GROUP_SETS_MAX = 1024
"""Sets of groups whose policies are remembered. Real sites have a handful."""

DECISIONS_MAX = 32_768
"""Decisions remembered: what a site asks again and again. A few megabytes."""

EVERYONE = ""
"""Stands for all clients, where groups are paused."""


class Decision(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What becomes of a question and who says so. `policy` is the one that decided, else the first
    that applies: block mode, TTL, upstreams and query log are its."""

    action: Action = "pass"
    reason: Reason = "none"
    policy: CompiledPolicy | None = None
    rule: str = ""  # as it stands in the policy; of a list it is `hit`
    line: int = 0
    hit: Hit | None = None
    reply: ListReply | None = None  # what the rule of a list wants answered
    matched: bytes = b""
    """The name that the rule names, where it is not the question's: an alias, a target, or an
    address of the answer."""
    rewritten: Rewritten | None = None
    is_personal: bool = False
    """Whether a rule looked at who asks: another client may get another decision."""

    @property
    def list(self) -> str:
        """namespace/name of the list that decided, empty where none did."""
        return self.hit.list.partition("/")[2] if self.hit is not None else ""

    @property
    def is_blocked(self) -> bool:
        return self.action == "block"

    @property
    def spares_the_answer(self) -> bool:
        """Whether what the answer leads to is not looked at: the asked name is allowed."""
        return self.reason in ("paused", "policy-allow", "list-allow", "important-allow")


PASS = Decision()

Question = tuple[tuple[CompiledPolicy, ...], CompiledPolicy | None, bool, Name, int]
"""What a decision depends on, unless it is personal: the policies, the bypass behind them, whether
they are paused, name and type."""


Target = tuple[tuple[CompiledPolicy, ...], Name, int]
"""What is thought of a name that an answer leads to depends on the same, and pauses were asked."""


class Applying(NamedTuple):
    """What applies to a client at a moment."""

    groups: Groups
    policies: tuple[CompiledPolicy, ...]  # in order, without those behind a bypass
    bypass: CompiledPolicy | None
    is_paused: bool


class Filters:
    """Everything that decides, as of one moment of the log. Replaced whole when it changes; what it
    remembers of clients goes with it."""

    def __init__(
        self,
        policies: Iterable[CompiledPolicy] = (),
        clients: ClientIndex | None = None,
        *,
        pauses: Mapping[str, int | None] | None = None,
        matcher: Matcher | None = None,
        lists: Container[Key] | None = None,
        defaults: BlockDefaults | None = None,
    ) -> None:
        """`pauses` are moments in unix time by group, None: until blocking is enabled again.
        `lists` are the subscribed lists that count, None: all."""
        self.policies = tuple(in_order(policies))
        self.defaults = defaults or BlockDefaults()
        self._lists = {
            policy.name: frozenset(key for key in policy.lists if lists is None or key in lists)
            for policy in self.policies
        }
        self.matcher = matcher or Union()
        self._clients = clients or ClientIndex({})
        self._pauses = dict(pauses or {})
        self._applying: dict[Caller, Applying] = {}
        self.decisions: dict[Question, Decision] = {}
        self.targets: dict[Target, Decision | None] = {}
        self._candidates: dict[Groups, tuple[list[CompiledPolicy], list[CompiledPolicy]]] = {}
        self._is_timeless = not self._pauses and all(p.hours is None for p in self.policies)
        self.is_idle = not self.policies
        """Nothing is filtered for anybody."""
        self.has_silent = any(policy.query_log is False for policy in self.policies)
        """Whether a policy wants no trace of its clients."""
        self.is_uniform = self._is_timeless and all(p.groups is None for p in self.policies)
        """Whether a decision is the same for every client, until something changes, unless it says
        that it is personal."""

        self.tells_clients_apart = any(
            p.groups is not None or p.lists for p in self.policies
        ) or any(group != EVERYONE for group in self._pauses)
        """Whether another client may get another decision: rules of lists may name some."""
        self._classes: dict[tuple[tuple[CompiledPolicy, ...], CompiledPolicy | None], int] = {}

    def names_id(self, client_id: str) -> bool:
        """Whether what a client calls itself puts it into a group."""
        return self._clients.names_id(client_id)

    def class_of(self, caller: Caller) -> int | None:
        """The class of a client: those of one class get the same decisions until something changes,
        but for those that are personal. 0: all clients are one. None: it may be of another one
        later, or there are too many."""
        if self.is_uniform:
            return 0
        if not self._is_timeless or self._clients.names_macs:
            return None
        applying = self.applying(caller, 0)  # at every moment
        of = applying.policies, applying.bypass
        found = self._classes.get(of)
        if found is None and len(self._classes) < CLIENT_CLASSES_MAX:
            found = self._classes[of] = len(self._classes) + 1
        return found

    def lists_of(self, policy: CompiledPolicy) -> frozenset[Key]:
        return self._lists[policy.name]

    def applying(self, caller: Caller, now_s: int) -> Applying:
        """What applies to a client. Where no hours and pauses are, it is so at every moment."""
        if not self._is_timeless:
            return self._applying_at(caller, now_s)
        found = self._applying.get(caller)
        if found is None:
            found = self._applying_at(caller, now_s)
            if len(self._applying) >= CALLERS_MAX:
                self._applying.clear()
            self._applying[caller] = found
        return found

    def _applying_at(self, caller: Caller, now_s: int) -> Applying:
        groups = self._clients.groups_of(caller)
        for_groups, for_all = self._policies_of(groups)
        held = [p for p in for_groups if p.holds(now_s)] or [p for p in for_all if p.holds(now_s)]
        at = next((i for i, policy in enumerate(held) if policy.is_bypass), None)
        return Applying(
            groups,
            tuple(held[:at]),
            held[at] if at is not None else None,
            bool(self._pauses) and self._is_paused(groups, now_s),
        )

    def _policies_of(self, groups: Groups) -> tuple[list[CompiledPolicy], list[CompiledPolicy]]:
        """Policies that name one of these groups, and those that name none, each in order."""
        found = self._candidates.get(groups)
        if found is None:
            named = [p for p in self.policies if p.groups and not groups.isdisjoint(p.groups)]
            found = named, [p for p in self.policies if p.groups is None]
            if len(self._candidates) >= GROUP_SETS_MAX:
                self._candidates.clear()
            self._candidates[groups] = found
        return found

    def _is_paused(self, groups: Groups, now_s: int) -> bool:
        return any(
            until is None or now_s < until
            for group, until in self._pauses.items()
            if group == EVERYONE or group in groups
        )


def decide(filters: Filters, caller: Caller, key: Name, rtype: int, now_s: int) -> Decision:
    """What becomes of a question. `key` is its name in lower case."""
    if filters.is_idle:
        return PASS
    applying = filters.applying(caller, now_s)
    if not applying.policies:
        return _undecided(applying)
    question = (applying.policies, applying.bypass, applying.is_paused, key, rtype)
    known = filters.decisions.get(question)
    if known is not None:
        return known
    decision = _decide(filters, applying, caller, key, rtype)
    if not decision.is_personal:
        if len(filters.decisions) >= DECISIONS_MAX:
            filters.decisions.clear()
        filters.decisions[question] = decision
    return decision


def first_policy(filters: Filters, caller: Caller, now_s: int) -> CompiledPolicy | None:
    """The policy that counts for a client where no rule decided."""
    applying = filters.applying(caller, now_s)
    return applying.policies[0] if applying.policies else applying.bypass


def _decide(
    filters: Filters, applying: Applying, caller: Caller, key: Name, rtype: int
) -> Decision:
    name = Ancestry(key)
    for policy in applying.policies:
        if policy.rewrites and (found := policy.rewrites.find(name)) is not None:
            return Decision(
                action="rewrite",
                reason="rewrite",
                policy=policy,
                rule=found.rule,
                line=found.line,
                rewritten=found,
            )
    decision = _undecided(applying)
    is_personal = False
    if not applying.is_paused:
        said = _said_by_lists(filters, applying, name, rtype, caller)
        decision = _judge(applying, said, name, rtype) or decision
        is_personal = said.is_personal
    if not decision.is_blocked and decision.reason != "policy-allow":
        decision = _safe_search(applying, key) or decision
    return msgspec.structs.replace(decision, is_personal=True) if is_personal else decision


def decide_on_answer(
    filters: Filters,
    caller: Caller,
    asked: Decision,
    leads_to: Iterable[Name],
    rtype: int,
    now_s: int,
) -> Decision:
    """What becomes of an answer that leads to these names (keys): the decision on the question,
    unless a name is blocked. `inspection` finds the names."""
    if filters.is_idle or asked.spares_the_answer:
        return asked
    applying = filters.applying(caller, now_s)
    if applying.is_paused or not applying.policies:
        return asked
    is_personal = asked.is_personal
    for key in leads_to:
        target = (applying.policies, key, rtype)
        if target in filters.targets:
            found = filters.targets[target]
        else:
            name = Ancestry(key)
            said = _said_by_lists(filters, applying, name, rtype, caller)
            found = _judge(applying, said, name, rtype, with_types=False)
            is_personal = is_personal or said.is_personal
            if not said.is_personal:
                if len(filters.targets) >= DECISIONS_MAX:
                    filters.targets.clear()
                filters.targets[target] = found
        if found is not None and found.is_blocked:
            return msgspec.structs.replace(found, matched=key, is_personal=is_personal)
    if is_personal != asked.is_personal:
        return msgspec.structs.replace(asked, is_personal=is_personal)
    return asked


def _undecided(applying: Applying) -> Decision:
    first = applying.policies[0] if applying.policies else applying.bypass
    if applying.bypass is not None:
        return Decision(reason="bypass", policy=first)
    if applying.is_paused:
        return Decision(reason="paused", policy=first)
    return Decision(policy=first) if first is not None else PASS


class _Said(NamedTuple):
    """What the lists say of a name, by policy where they say something."""

    by: list[tuple[CompiledPolicy, Verdicts]]
    is_personal: bool


_NOTHING_SAID = _Said([], False)


def _judge(
    applying: Applying, said: _Said, name: Ancestry, rtype: int, *, with_types: bool = True
) -> Decision | None:
    """The classes between rewrites and safe search."""
    policies = applying.policies
    for policy, by_lists in said.by:
        if by_lists.important_allow is not None:
            return _by_list(policy, by_lists.important_allow, "pass", "important-allow")
    for policy, by_lists in said.by:
        if by_lists.important_deny is not None:
            return _by_list(policy, by_lists.important_deny, "block", "important-deny")
    for policy in policies:
        if policy.allow and (match := policy.allow.find(name)) is not None:
            return _by_policy(policy, match, "pass", "policy-allow")
    for policy in policies:
        if policy.deny and (match := policy.deny.find(name)) is not None:
            return _by_policy(policy, match, "block", "policy-deny")
        if with_types and rtype in policy.block_types:
            return Decision(action="block", reason="blocked-type", policy=policy)
    for policy, by_lists in said.by:
        if by_lists.allow is not None:
            return _by_list(policy, by_lists.allow, "pass", "list-allow")
    for policy, by_lists in said.by:
        if by_lists.deny is not None:
            return _by_list(policy, by_lists.deny, "block", "list-deny")
    return None


def _said_by_lists(
    filters: Filters, applying: Applying, name: Ancestry, rtype: int, caller: Caller
) -> _Said:
    asking = [(p, lists) for p in applying.policies if (lists := filters.lists_of(p))]
    hits = filters.matcher.lookup(name.key) if asking else ()
    if not hits:
        return _NOTHING_SAID
    asker = asker_of(caller, applying.groups)
    return _Said(
        [(policy, verdicts(name.key, hits, lists, rtype, asker)) for policy, lists in asking],
        any(hit.rule.clients or hit.rule.not_clients for hit in hits),
    )


def _by_policy(policy: CompiledPolicy, match: Match, action: Action, reason: Reason) -> Decision:
    return Decision(action=action, reason=reason, policy=policy, rule=match.rule, line=match.line)


def _by_list(policy: CompiledPolicy, said: Verdict, action: Action, reason: Reason) -> Decision:
    return Decision(action=action, reason=reason, policy=policy, hit=said.hit, reply=said.reply)


def _safe_search(applying: Applying, key: Name) -> Decision | None:
    safe = next((policy for policy in applying.policies if policy.safe_search), None)
    target = safe_target(key) if safe is not None else None
    if target is None:
        return None
    rewritten = safe_rewrite(target)
    return Decision(
        action="rewrite",
        reason="safe-search",
        policy=safe,
        rule=rewritten.rule,
        rewritten=rewritten,
    )
