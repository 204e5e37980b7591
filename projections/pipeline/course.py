"""A query on its way through the stages, and what became of it."""

from kudurru.domain.dns import names
from kudurru.domain.dns.messages import Query
from kudurru.domain.dns.tsig import Signer
from kudurru.domain.filtering.clients import packed_address
from kudurru.domain.filtering.decision import PASS, Decision
from kudurru.domain.ports import Clock
from kudurru.domain.query_log import Fact
from kudurru.projections.pipeline.edns import NOTHING_ASKED


class Course:
    """One query. `source` says which stage has the answer, and is empty while none has and for
    queries about the server itself."""

    __slots__ = (
        "asked", "client", "client_class", "client_id", "decision", "is_named", "is_noted",
        "is_repeatable", "is_restricted", "limit", "listener", "now_s", "now_us", "origins",
        "proto", "query", "signer", "source", "started_us",
    )  # fmt: skip

    def __init__(
        self,
        query: Query,
        client: str,
        proto: str,
        clock: Clock,
        client_id: str = "",
        listener: str = "",
    ) -> None:
        self.query = query
        self.client = client
        self.proto = proto
        self.client_id = client_id
        self.listener = where_of(proto, listener)
        self.now_us = clock.now_us()
        self.now_s = self.now_us // 1_000_000
        self.started_us = clock.monotonic_us()
        self.decision: Decision = PASS
        self.source = ""
        self.asked = NOTHING_ASKED
        self.limit = 0
        """Octets that the answer may have, without its signature."""
        self.signer: Signer | None = None
        """Signs the answer to a query that was signed."""
        self.is_noted = True
        self.is_repeatable = True
        """Whether the engine may repeat the answer without asking."""
        self.client_class: int | None = 0
        """To whom: to clients of this class, 0: to all, None: to nobody else."""
        self.is_named = False
        """Whether a group names its client by what that calls itself."""
        self.is_restricted = False
        """Whether it may do so for those only who may recurse."""
        self.origins: tuple[bytes, ...] | None = None
        """What the answer comes of (`ports.Origins`), beside the zones that it names itself."""

    @property
    def is_silent(self) -> bool:
        """Whether its policy wants no trace of it."""
        policy = self.decision.policy
        return policy is not None and policy.query_log is False

    def fact(
        self, rcode: int, upstream: str, elapsed_us: int, weight: int, *, is_repeatable: bool
    ) -> Fact:
        query, decision = self.query, self.decision
        return Fact(
            self.now_us,
            packed_address(self.client),
            query.qname,
            query.qtype,
            self.proto,
            rcode,
            self.source,
            decision.reason,
            decision.policy.name if decision.policy is not None else "",
            decision.list,
            _rule(decision),
            upstream,
            elapsed_us,
            query.qname.lower() + query.question[-4:] if is_repeatable else b"",
            self.client_class or 0,
            weight,
        )


def where_of(proto: str, listener: str) -> str:
    """The listener that a query came to; without an address, from inside of this process."""
    return f"{proto}/{listener}" if listener else proto


def _rule(decision: Decision) -> str:
    """The rule that decided; of a list what it names, for the list's file is not read here."""
    if decision.hit is None:
        return decision.rule
    rule = decision.hit.rule
    return f"/{rule.pattern}/" if rule.pattern else names.to_text(rule.name, final_dot=False)
