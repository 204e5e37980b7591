"""The stage that filters: after the zones, before cache and forward, and once more over what those
bring.

`judge` says what becomes of a question, by `domain.filtering.decision`, the same function that
`kudurru explain` prints; `answer` turns that into an answer where policies give one.
"""

from collections.abc import Callable

import msgspec

from kudurru.domain.dns.lookup import Answer
from kudurru.domain.dns.messages import Query
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.responses import Message
from kudurru.domain.filtering import answers
from kudurru.domain.filtering.clients import Caller, packed_address
from kudurru.domain.filtering.decision import (
    PASS,
    Decision,
    Filters,
    decide,
    decide_on_answer,
    first_policy,
)
from kudurru.domain.filtering.inspection import leads_to
from kudurru.domain.ports import Neighbours


class PolicyStatistics(msgspec.Struct, frozen=True, kw_only=True):
    blocked: dict[tuple[str, str], int]  # by policy and list
    rewritten: int


class Policy:
    """`filters` is asked for each question, because it is replaced when something changes."""

    def __init__(self, filters: Callable[[], Filters], neighbours: Neighbours) -> None:
        self._filters = filters
        self._neighbours = neighbours
        self._blocked: dict[tuple[str, str], int] = {}
        self._rewritten = 0

    def caller(self, client: str, listener: str, client_id: str = "") -> Caller:
        """Raises ValueError for a text that is no address."""
        address = packed_address(client)
        return Caller(address, self._neighbours.mac_of(address), client_id.lower(), listener)

    def names_id(self, client_id: str) -> bool:
        """Whether a group names it: then its client is not as its address is."""
        return self._filters().names_id(client_id)

    @property
    def tells_clients_apart(self) -> bool:
        return self._filters().tells_clients_apart

    @property
    def is_idle(self) -> bool:
        """Whether there are no policies, so that nobody need be asked who it is."""
        return self._filters().is_idle

    @property
    def has_silent(self) -> bool:
        """Whether a policy wants no trace of its clients, so that no answer may be repeated without
        knowing whose it is."""
        return self._filters().has_silent

    def by_default(self, caller: Caller, now_s: int) -> Decision:
        """What counts for a client where policies have no say: its first policy's switches."""
        policy = first_policy(self._filters(), caller, now_s)
        return PASS if policy is None else Decision(policy=policy)

    def class_of(self, caller: Caller) -> int | None:
        """Whoever is of one class gets the same decisions, but for personal ones, until `on_change`
        of the view. 0: everybody is; None: it cannot be said."""
        return self._filters().class_of(caller)

    def judge(self, caller: Caller, key: Name, rtype: int, now_s: int) -> Decision:
        return decide(self._filters(), caller, key, rtype, now_s)

    def judge_answer(
        self, caller: Caller, query: Query, decision: Decision, message: Message, now_s: int
    ) -> Decision:
        """The decision on an answer from elsewhere: the one on its question, unless it leads to
        what is blocked."""
        filters = self._filters()
        if filters.is_idle or decision.spares_the_answer:
            return decision
        names = leads_to(query.qname.lower() + query.question[-4:], message)
        return decide_on_answer(filters, caller, decision, names, query.qtype, now_s)

    def answer(self, query: Query, decision: Decision, proto: str) -> Answer | None:
        """What policies answer; None passes the question on. DROPPED and TRUNCATED of
        `filtering.answers` stand for what is no answer."""
        defaults = self._filters().defaults
        match decision.action:
            case "block":
                answer = answers.blocked(decision, query.qtype, defaults)
                if answer is answers.TRUNCATED and proto != "udp":
                    return None
                self._count(decision)
                return answer
            case "rewrite":
                rewritten = answers.rewritten(decision, query.qtype, defaults)
                self._rewritten += rewritten is not None
                return rewritten
            case "pass":
                return None

    def for_target(
        self, caller: Caller, key: Name, rtype: int, now_s: int, *, is_by_list: bool
    ) -> tuple[Decision, Answer] | None:
        """What policies give the target of an alias that they gave: other rewrites, and where it
        came out of a list what lists say. None: nothing, and it is as everywhere."""
        decision = self.judge(caller, key, rtype, now_s)
        defaults = self._filters().defaults
        if decision.action == "rewrite":
            found = answers.rewritten(decision, rtype, defaults)
        elif is_by_list and decision.hit is not None and decision.is_blocked:
            found = answers.blocked(decision, rtype, defaults)
        else:
            return None
        if found is None or found is answers.DROPPED or found is answers.TRUNCATED:
            return None
        return decision, found

    def statistics(self) -> PolicyStatistics:
        return PolicyStatistics(blocked=dict(self._blocked), rewritten=self._rewritten)

    def _count(self, decision: Decision) -> None:
        assert decision.policy is not None
        by = (decision.policy.name, decision.list)
        self._blocked[by] = self._blocked.get(by, 0) + 1
