"""From a query's octets to the answer's: signature, ingress, transfers, zones, policy, then the
resolver for clients who may use it, and policy once more over what that found; what nobody answers
is refused.

The pipeline is one plain call per query, and whatever goes wrong inside costs that query only. An
answer that has to be asked for comes later, by callback: a query that waits is a few objects.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from kudurru.domain.dns import names
from kudurru.domain.dns.cookies import Cookies
from kudurru.domain.dns.images import alias_of
from kudurru.domain.dns.lookup import (
    CHAIN_MAX,
    NOERROR,
    NOT_OURS,
    PROHIBITED,
    RCODE_NAMES,
    REFUSED,
    SERVFAIL,
    Answer,
    Placed,
)
from kudurru.domain.dns.messages import (
    HEADER_SIZE,
    OPTION_HEAD_SIZE,
    RD,
    TC,
    TCP_MAX,
    Query,
    Unanswerable,
    compose,
    error_reply,
    parse_query,
    truncated,
)
from kudurru.domain.dns.record_types import AXFR, CNAME, IXFR, type_label
from kudurru.domain.dns.resolved import Resolved, behind_aliases, compose_resolved
from kudurru.domain.dns.responses import Malformed
from kudurru.domain.dns.tsig import Signer
from kudurru.domain.dns.zone_set import ZoneSet
from kudurru.domain.filtering.answers import DROPPED, TRUNCATED
from kudurru.domain.filtering.clients import Caller, packed_address
from kudurru.domain.filtering.decision import PASS, Decision
from kudurru.domain.histogram import Times
from kudurru.domain.later import Later
from kudurru.domain.ports import CACHE, FILTERS, Clock, Keep, Origins, Reply
from kudurru.domain.query_log import NO_RCODE, Answered, Repeat
from kudurru.projections.pipeline.control import NOTIFY, UPDATE, Control
from kudurru.projections.pipeline.counts import Counts
from kudurru.projections.pipeline.course import Course, where_of
from kudurru.projections.pipeline.edns import Edns, extended_error
from kudurru.projections.pipeline.ingress import CLASS_ANY, Identity, Ingress
from kudurru.projections.pipeline.policy import Policy, PolicyStatistics
from kudurru.projections.pipeline.resolver import Route
from kudurru.projections.pipeline.signatures import Refusal, Signatures
from kudurru.projections.pipeline.transfers import Sender, Transfers
from kudurru.projections.pipeline.zones import Zones
from kudurru.projections.query_log import QueryNotes

_RESPONSE_OR_OPCODE = 0xF8  # of the third octet
_CONTROL = frozenset({NOTIFY << 3, UPDATE << 3})

UDP = "udp"
TRANSFER_TYPES = (AXFR, IXFR)

_NO_TRANSFER = Answer(REFUSED, extended_error=PROHIBITED)
_FAILED = Answer(SERVFAIL, is_lasting=False)
NO_REPLY = "none"
"""The response code under which a drop is counted."""

NOT_FOR_YOU = msgspec.structs.replace(NOT_OURS, is_lasting=False)
"""Refused because of who asks, so it is no answer for anybody else."""
_NO_RECURSION = Answer(REFUSED, is_lasting=False, extended_error=PROHIBITED)
"""The same where it asked for recursion, which others get (RFC 8914 section 4.19)."""

Found = Answer | Resolved | Later[Resolved] | Later[Answer | Resolved]
"""An answer, or one to come."""


class Resolver(Protocol):
    """Answers what no zone here holds."""

    @property
    def is_on(self) -> bool:
        """Whether there is anybody that it answers."""
        ...

    @property
    def admits_all(self) -> bool:
        """Whether every client may ask."""
        ...

    def admits(self, client: str) -> bool:
        """Whether a client may ask what no zone here holds. Policies are for those only: a
        rewrite to an address inside is nobody else's business."""
        ...

    def resolve(
        self, query: Query, client: str, now_us: int, route: Route | None = None
    ) -> Resolved | Later[Resolved] | None:
        """The answer, at once or within some seconds; None: not for this client. `client` is an
        address in text, `now_us` monotonic, `route` where a policy sends its questions."""
        ...


Changed = TypeVar("Changed")

RouteOf = Callable[[tuple[str, ...]], Route | None]
"""Where the upstreams that a policy names are; None: they make no sense, and the default counts."""


class PipelineStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counted since the pipeline was made. Answers that an engine repeats are not among them."""

    requests: dict[str, int]  # by protocol
    responses: dict[str, int]  # by name of the response code, "none" for drops
    questions: dict[tuple[str, str], int]  # by listener and type
    answers: dict[tuple[str, str, str], int]  # by listener, code and source
    times: dict[str, Times]  # that answers took, by source
    dropped: dict[str, int]  # by reason
    unhandled_exceptions: int
    signed: dict[str, int]  # signed queries, by TSIG error
    policy: PolicyStatistics | None = None


class Pipeline:
    """Handler of queries for the packet engines.

    Before there is data to serve (`is_synced`) every query but those about the server itself gets
    SERVFAIL: "try another server" is right, "no such name" would be a lie. `on_exception` is told
    of every exception that a stage let through; the query gets SERVFAIL.
    """

    def __init__(
        self,
        zones: ZoneSet,
        is_synced: Callable[[], bool],
        *,
        clock: Clock,
        identity: Identity,
        is_lameduck: Callable[[], bool],
        on_exception: Callable[[Exception], None],
        cookies: Cookies | None = None,
        signatures: Signatures | None = None,
        transfers: Transfers | None = None,
        control: Control | None = None,
        policy: Policy | None = None,
        resolver: Resolver | None = None,
        route_of: RouteOf = lambda _upstreams: None,
        notes: QueryNotes | None = None,
    ) -> None:
        """`notes` get a fact of every query but those about the server itself."""
        self._policy = policy
        self._resolver = resolver
        self._route_of = route_of
        self._notes = notes
        self.hears_repeats = notes is not None
        self.keeps_for_a_while = False
        """Whether there are engines that count down TTLs: telling them how costs time."""
        self._edns = Edns(cookies, identity.hostname)
        self._ingress = Ingress(identity, is_synced, is_lameduck)
        self._signatures = signatures or Signatures()
        self._transfers = transfers
        self._zones = Zones(zones)
        self._control = control
        self._is_synced = is_synced
        self._clock = clock
        self._on_exception = on_exception
        self._requests: dict[str, int] = defaultdict(int)
        self._counts = Counts()
        self._unhandled_exceptions = 0
        self._dropped_by_policy = 0

    @property
    def has_plain_zones(self) -> bool:
        """Whether what zones hold is answered now, and to everybody alike: as `_answer` has it."""
        return self._is_synced() and (self._policy is None or not self._policy.has_silent)

    def names_id(self, client_id: str) -> bool:
        """Implements `domain.ports.IdentifyingHandler`."""
        return self._policy is not None and self._policy.names_id(client_id)

    @property
    def tells_clients_apart(self) -> bool:
        """Implements `domain.ports.IdentifyingHandler`: policies do, and the ACL."""
        if self._resolver is not None and not self._resolver.admits_all:
            return True
        return self._policy is not None and self._policy.tells_clients_apart

    def handle(
        self,
        packet: bytes,
        client: str,
        proto: str,
        client_id: str = "",
        listener: str = "",
        *,
        is_noted: bool = True,
    ) -> Reply | Later[Reply | None] | None:
        """The reply to one message, or one to come; None: send nothing. Never raises. `client_id`
        is what the client calls itself, `listener` the address that it came to. `is_noted`: the
        query log hears of it."""
        self._requests[proto] += 1
        query: Query | Unanswerable | None = None
        try:
            if self._control is not None and packet[2] & _RESPONSE_OR_OPCODE in _CONTROL:
                return self._other(self._control, packet, client, where_of(proto, listener))
            query = parse_query(packet)
            if isinstance(query, Unanswerable):
                self._counts.answer(where_of(proto, listener), query.rcode)
                return Reply(query.reply, False) if query.reply is not None else None
            course = Course(query, client, proto, self._clock, client_id, listener)
            course.is_noted = is_noted
            return self._reply(packet, course)
        except Exception as error:
            return self._failed(error, packet, query, where_of(proto, listener))

    def _reply(self, packet: bytes, course: Course) -> Reply | Later[Reply | None] | None:
        query, client, proto = course.query, course.client, course.proto
        self._counts.question(course.listener, query.qtype)
        course.limit = query.udp_max if proto == UDP else TCP_MAX
        if query.tsig_at:
            checked = self._signatures.check(packet, query, course.now_s)
            if isinstance(checked, Refusal):
                self._counts.answer(course.listener, checked.rcode)
                return Reply(checked.wire, False)
            course.signer = checked
            course.limit -= checked.size
        asked = course.asked = self._edns.read(query, client, proto, course.now_s)
        answer: Found | None = asked.answer or self._ingress.answer(query)
        if answer is None and query.qtype in TRANSFER_TYPES:
            found = self._transfer(packet, course)
            if not isinstance(found, Answer):
                return self._stream(found, course)
            answer = found
        answer = answer or self._answer(course)
        if isinstance(answer, Later):
            return answer.map(partial(self._finish_later, packet, course))
        return self._finish(course, answer)

    def _transfer(self, packet: bytes, course: Course) -> Answer | Iterator[bytes]:
        if self._transfers is None:
            return _NO_TRANSFER
        signer = course.signer
        sender = Sender(course.client, course.proto, signer.key.name if signer else None)
        options = course.asked.options
        return self._transfers.answer(
            packet, course.query, sender, room=course.limit, options=options
        )

    def _stream(self, messages: Iterator[bytes], course: Course) -> Reply:
        """The reply that is a transfer: its first message, and what makes the others."""
        if course.signer is not None:
            messages = self._signed(messages, course.signer)
        first = next(messages)
        self._counts.answer(course.listener, NOERROR, "transfer")
        return Reply(first, False, messages)

    def _signed(self, messages: Iterator[bytes], signer: Signer) -> Iterator[bytes]:
        for message in messages:
            yield signer.sign(message, self._clock.now_us() // 1_000_000)

    def _finish_later(
        self, packet: bytes, course: Course, answer: Answer | Resolved
    ) -> Reply | None:
        try:
            return self._finish(course, answer)
        except Exception as error:
            return self._failed(error, packet, course.query, course.listener)

    def _finish(self, course: Course, answer: Answer | Resolved) -> Reply | None:
        if answer is DROPPED:
            self._dropped_by_policy += 1
            self._counts.answer(course.listener, None, course.source)
            self._tell(course, NO_RCODE, elapsed_us=self._clock.monotonic_us() - course.started_us)
            return None
        is_repeatable = course.is_repeatable and course.signer is None
        # What is not simply for all is for an engine that can tell, and make cookies.
        has_cookie, client_class = course.asked.has_cookie, course.client_class
        is_plain = not has_cookie and client_class == 0
        # Classes go by address, and whom a group names by ID may be of another one.
        is_named = client_class != 0 and course.is_named
        if not is_plain and (is_named or not self.keeps_for_a_while):
            is_repeatable = False
        is_for_all = False
        if isinstance(answer, Resolved):  # only by who counts down TTLs
            wire, rcode, upstream = self._resolved_wire(course, answer)
            keep = self._aging(course, answer, wire) if is_repeatable else None
            is_repeatable = keep is not None
        else:
            wire, rcode, upstream = self._wire(course, answer), answer.rcode, ""
            is_repeatable = is_repeatable and answer.is_lasting
            keep = self._tallied(course) if is_repeatable else None
            is_for_all = is_repeatable and not course.is_restricted
        if is_repeatable and not is_plain:
            is_for_all, keep = False, _for_some(keep or Keep(), wire, course)
        elapsed_us = self._clock.monotonic_us() - course.started_us
        self._counts.answer(course.listener, rcode, course.source)
        self._counts.took(course.source, elapsed_us)
        if not self._tell(course, rcode, upstream, elapsed_us, is_repeatable=is_repeatable):
            is_for_all, keep = False, None
        if course.signer is not None:
            wire = course.signer.sign(wire, self._clock.now_us() // 1_000_000)
        return Reply(wire, is_for_all, None, keep, _origins(course, answer))

    def _tallied(self, course: Course) -> Keep | None:
        """How an answer that lasts is repeated, where that takes more than knowing it."""
        policy = course.decision.policy
        if course.source == "blocked" and policy is not None:
            tally = ("blocked", policy.name, course.decision.list)
            return Keep(course.is_restricted, tally=tally)
        if course.source == "rewritten":
            return Keep(course.is_restricted, tally=("rewritten",))
        return Keep(is_restricted=True) if course.is_restricted else None

    def _aging(self, course: Course, found: Resolved, wire: bytes) -> Keep | None:
        """How an answer from the cache is repeated, where everybody who may have it gets it."""
        if not self.keeps_for_a_while or course.source != "cache":
            return None
        if found.until_us <= course.started_us or self._resolver is None:
            return None
        if course.client_class is None or course.decision.is_personal:
            return None
        message = found.message
        body_at = HEADER_SIZE + len(course.query.question)
        is_whole = not wire[2] & TC >> 8
        return Keep(
            not self._resolver.admits_all,
            found.until_us,
            found.stored_us,
            found.age_s,
            tuple([body_at + at for at in message.ttls_at]) if is_whole else (),
            ("cache", "negative" if message.is_negative else "positive"),
        )

    def _resolved_wire(self, course: Course, found: Resolved) -> tuple[bytes, int, str]:
        """Octets, code and upstream of what was resolved."""
        if course.source != "rewritten":
            course.source = found.source
        asked = course.asked
        options = asked.options + extended_error(found.extended_error)
        wire = compose_resolved(
            course.query, found, course.limit, options=options, block=asked.block
        )
        return wire, found.message.rcode, found.upstream

    def _wire(self, course: Course, answer: Answer) -> bytes:
        asked = course.asked
        options = asked.options + extended_error(answer.extended_error, answer.extended_text)
        if answer is TRUNCATED:
            return truncated(course.query, answer, options)
        return compose(course.query, answer, course.limit, options=options, block=asked.block)

    def _tell(
        self,
        course: Course,
        rcode: int,
        upstream: str = "",
        elapsed_us: int = 0,
        *,
        is_repeatable: bool = False,
    ) -> bool:
        """Note the query for who keeps a log of them. False: they do not know of it, and could
        make nothing of a repeat."""
        if self._notes is None:
            return True
        if not course.is_noted or not course.source or course.is_silent:
            return False
        weight = self._notes.weigh()
        if not weight and not is_repeatable:
            return True
        fact = course.fact(rcode, upstream, elapsed_us, weight, is_repeatable=is_repeatable)
        return self._notes.note(fact)

    def weigh(self) -> int:
        """Implements `domain.ports.RepeatListener`."""
        return 0 if self._notes is None else self._notes.weigh()

    def repeated(self, proto: str, repeats: Iterable[Repeat]) -> None:
        """Implements `domain.ports.RepeatListener`."""
        if self._notes is not None:
            self._notes.repeated(proto, repeats)

    def answered(self, answers: Iterable[Answered]) -> None:
        """Implements `domain.ports.RepeatListener`."""
        if self._notes is not None:
            self._notes.answered(answers)

    def missed(self, count: int) -> None:
        """Implements `domain.ports.RepeatListener`."""
        if self._notes is not None:
            self._notes.missed(count)

    def statistics(self) -> PipelineStatistics:
        counts = self._counts
        responses = {_code(rcode): count for rcode, count in counts.responses().items()}
        return PipelineStatistics(
            requests=dict(self._requests),
            responses=responses,
            questions={(w, type_label(t)): n for (w, t), n in counts.questions.items()},
            answers={(w, _code(rcode), s): n for (w, rcode, s), n in counts.answers.items()},
            times=counts.times(),
            dropped={
                "malformed": responses.get(NO_REPLY, 0) - self._dropped_by_policy,
                "policy": self._dropped_by_policy,
            },
            unhandled_exceptions=self._unhandled_exceptions,
            signed=self._signatures.statistics(),
            policy=self._policy.statistics() if self._policy is not None else None,
        )

    def _answer(self, course: Course) -> Found:
        query = course.query
        answer = self._zones.answer(query, course.now_s)
        if answer is None:
            return self._filtered(course)
        course.source = "authoritative"
        course.origins = ()
        if self._policy is not None and self._policy.has_silent:
            caller = self._policy.caller(course.client, course.listener, course.client_id)
            course.decision = self._policy.by_default(caller, course.now_s)
            course.is_repeatable = False
        if query.qclass == CLASS_ANY:
            # RFC 1035 section 6.2: nobody has the authority over all classes.
            answer = msgspec.structs.replace(answer, is_authoritative=False)
        return answer

    def _other(
        self, control: Control, packet: bytes, client: str, where: str
    ) -> Reply | Later[Reply | None]:
        """The reply to a message that is no question."""
        counted = partial(self._counted, where)
        if not self._is_synced():
            return counted(error_reply(packet, SERVFAIL))
        wire = control.handle(packet, client)
        return wire.map(counted) if isinstance(wire, Later) else counted(wire)

    def _counted(self, where: str, wire: bytes) -> Reply:
        self._counts.answer(where, wire[3] & 0xF, "control")
        return Reply(wire, False)

    def _filtered(self, course: Course) -> Found:
        """What policies make of a question that no zone here answers."""
        query, resolver = course.query, self._resolver
        course.origins = (FILTERS,)
        if resolver is not None and not resolver.admits(course.client):
            course.source = "refused"
            return _NO_RECURSION if resolver.is_on and query.flags & RD else NOT_FOR_YOU
        if self._policy is None or self._policy.is_idle or query.qclass == CLASS_ANY:
            return self._resolved(course, query)
        caller = self._policy.caller(course.client, course.listener, course.client_id)
        course.is_repeatable = not self._policy.has_silent
        course.client_class = self._policy.class_of(caller)
        course.is_named = course.client_id != "" and self._policy.names_id(course.client_id)
        key = names.key(query.qname)
        decision = self._policy.judge(caller, key, query.qtype, course.now_s)
        course.decision = decision
        answer = self._policy.answer(query, decision, course.proto)
        if answer is None:
            found = self._resolved(course, query)
            if decision is PASS:  # no policy is for this client
                return found
            check = partial(self._checked, course, caller)
            return self._change(found, check) if isinstance(found, Later) else check(found)
        course.source = "blocked" if decision.is_blocked else "rewritten"
        course.is_restricted = resolver is not None and not resolver.admits_all
        if _is_alias(answer, query.qtype):
            return self._behind(course, caller, answer)
        return self._for(course, decision, answer)

    def _resolved(self, course: Course, query: Query) -> Found:
        """What the resolver has for a question. Refused where there is none, or not for all."""
        course.source = course.source or "refused"
        decision = course.decision
        named = decision.policy.upstreams if decision.policy is not None else ()
        route = self._route_of(named) if named else None
        if self._resolver is None or (route is None and not self._resolver.is_on):
            return self._for(course, decision, NOT_OURS)
        found = self._resolver.resolve(query, course.client, course.started_us, route)
        return found or NOT_FOR_YOU

    def _change(
        self,
        found: Later[Resolved] | Later[Answer | Resolved],
        change: Callable[[Answer | Resolved], Found],
    ) -> Later[Answer | Resolved]:
        """A changed answer, later, where the change itself may take time."""
        changed: Later[Answer | Resolved] = Later(found.cancel)

        def take(value: Answer | Resolved) -> None:
            made = self._guarded(change, value)
            if isinstance(made, Later):
                made.then(changed.settle)
            else:
                changed.settle(made)

        found.then(take)
        return changed

    def _guarded(
        self, change: Callable[[Answer | Resolved], Changed], found: Answer | Resolved
    ) -> Changed | Answer:
        """A change of an answer that came later. It may not raise: others wait for the same."""
        try:
            return change(found)
        except Exception as error:
            self._unhandled_exceptions += 1
            self._on_exception(error)
            return _FAILED

    def _checked(self, course: Course, caller: Caller, found: Answer | Resolved) -> Found:
        """What was resolved, unless it leads to what is blocked."""
        if self._policy is None or not isinstance(found, Resolved):
            return found
        query, decision = course.query, course.decision
        after = self._policy.judge_answer(caller, query, decision, found.message, course.now_s)
        course.is_repeatable &= not after.is_personal
        if after is decision or not after.is_blocked:
            return found
        answer = self._policy.answer(query, after, course.proto)
        if answer is None:
            return found
        course.decision, course.source = after, "blocked"
        if _is_alias(answer, query.qtype):
            course.is_repeatable = False
            return self._behind(course, caller, answer)
        # It comes of what was found, which may be another thing the next time.
        return msgspec.structs.replace(answer, is_lasting=False) if answer.is_lasting else answer

    def _behind(self, course: Course, caller: Caller, answer: Answer) -> Found:
        """An alias that a policy gave, and what is behind it: in zones here, else what policies
        give its target, else elsewhere."""
        query = course.query
        aliases = list(answer.answer)
        seen = {query.qname.lower()}
        while True:
            local = self._zones.behind(aliases[-1], query.qtype, course.now_s)
            if local is not None:
                return self._for(course, course.decision, _led_to(aliases[:-1], local))
            target = alias_of(aliases[-1].wire)
            key = names.key(target)
            if key in seen or len(aliases) == CHAIN_MAX:
                return self._for(
                    course, course.decision, msgspec.structs.replace(answer, answer=aliases)
                )
            seen.add(key)
            given = self._given(course, caller, key)
            if given is None:
                break
            placed = [msgspec.structs.replace(one, owner=target) for one in given.answer]
            if not _is_alias(given, query.qtype):
                soas = [msgspec.structs.replace(one, owner=target) for one in given.authority]
                whole = msgspec.structs.replace(given, answer=placed, authority=soas)
                return self._for(course, course.decision, _led_to(aliases, whole))
            aliases += placed
        question = target + query.question[len(query.qname) :]
        onward = msgspec.structs.replace(query, qname=names.Name(target), question=question)
        found = self._resolved(course, onward)
        answer = msgspec.structs.replace(answer, answer=aliases)
        join = partial(self._join, answer, question)
        if isinstance(found, Later):
            return found.map(partial(self._guarded, join))
        return join(found)

    def _given(self, course: Course, caller: Caller, key: names.Name) -> Answer | None:
        """What policies give the target of an alias of theirs."""
        assert self._policy is not None, "a policy gave the alias"
        is_by_list = course.source == "blocked"
        judged = self._policy.judge(caller, key, course.query.qtype, course.now_s)
        course.is_repeatable &= not judged.is_personal
        found = self._policy.for_target(
            caller, key, course.query.qtype, course.now_s, is_by_list=is_by_list
        )
        if found is None:
            return None
        decision, answer = found
        return self._for(course, decision, answer)

    def _join(self, answer: Answer, question: bytes, found: Answer | Resolved) -> Answer | Resolved:
        if not isinstance(found, Resolved):
            # Nobody is there to ask: the client may follow the alias by itself.
            return msgspec.structs.replace(answer, is_lasting=False)
        aliases = [
            one.wire if one.owner is None else one.owner + one.wire[2:] for one in answer.answer
        ]
        try:
            message = behind_aliases(aliases, question, found.message, found.age_s)
        except Malformed:  # it would be larger than a message
            return msgspec.structs.replace(answer, is_lasting=False)
        return msgspec.structs.replace(found, message=message, age_s=0, until_us=0)

    def _for(self, course: Course, decision: Decision, answer: Answer) -> Answer:
        """An answer that came of a decision: the next client may get another one."""
        is_for_class = course.client_class is not None and not decision.is_personal
        if is_for_class or not answer.is_lasting:
            return answer
        return msgspec.structs.replace(answer, is_lasting=False)

    def _failed(
        self, error: Exception, packet: bytes, query: Query | Unanswerable | None, where: str
    ) -> Reply | None:
        self._unhandled_exceptions += 1
        self._on_exception(error)
        if isinstance(query, Query):
            wire = compose(query, Answer(SERVFAIL), TCP_MAX)
        elif len(packet) >= HEADER_SIZE:
            wire = error_reply(packet, SERVFAIL)
        else:
            self._counts.answer(where, None)
            return None
        self._counts.answer(where, SERVFAIL)
        return Reply(wire, False)


def _origins(course: Course, answer: Answer | Resolved) -> Origins:
    if course.origins is None:
        return None
    return *course.origins, *((CACHE,) if isinstance(answer, Resolved) else answer.zones)


def _for_some(keep: Keep, wire: bytes, course: Course) -> Keep:
    """How an answer is kept that is for a class of clients, or has a cookie. The OPT record is the
    last one, and what stands behind the options that were asked for is ours; so the last that looks
    like them is them."""
    if course.client_class:
        client = packed_address(course.client)
        keep = keep._replace(client_class=course.client_class, client=client)
    if course.asked.has_cookie:
        keep = keep._replace(cookie_at=wire.rindex(course.asked.options) + OPTION_HEAD_SIZE)
    return keep


def _is_alias(answer: Answer, qtype: int) -> bool:
    """Whether it is an alias, which leads on."""
    return len(answer.answer) == 1 and answer.answer[0].rtype == CNAME != qtype


def _led_to(aliases: Sequence[Placed], answer: Answer) -> Answer:
    """An answer with the aliases that led to it."""
    return msgspec.structs.replace(
        answer,
        answer=(*aliases, *answer.answer),
        is_authoritative=False,
        is_recursive=True,
    )


def _code(rcode: int | None) -> str:
    return NO_REPLY if rcode is None else RCODE_NAMES.get(rcode, f"RCODE{rcode}")
