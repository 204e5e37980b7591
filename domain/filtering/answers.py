"""Answers that a decision leads to: blocked names in the mode that the policy says, rewritten ones
with their records.

A blocked name is blocked for every type: types that the mode has no data for get none. Answers
without data carry a SOA of the question's name, because clients keep a no only as long as one says
(RFC 2308 section 5).
"""

from collections.abc import Sequence

from kudurru.domain.dns import names
from kudurru.domain.dns.images import pack_record
from kudurru.domain.dns.lookup import NOERROR, NOTIMP, NXDOMAIN, REFUSED, SERVFAIL, Answer, Placed
from kudurru.domain.dns.record_types import AAAA, ANY, CNAME, HTTPS, SOA, SVCB, A
from kudurru.domain.filtering.decision import Decision
from kudurru.domain.filtering.policies import BlockDefaults
from kudurru.domain.lists.rules import Reply

BLOCKED = 15
"""Extended error "Blocked" (RFC 8914 section 4.16)."""

OVERRIDDEN_TYPES = frozenset({A, AAAA, CNAME, HTTPS, SVCB})
"""Where a rewritten name lacks one of these it has no data: the public records would lead past the
rewrite. What else a name has goes on as if nothing had happened."""

DROPPED = Answer(REFUSED, is_lasting=False)
"""Stands for sending nothing."""
TRUNCATED = Answer(NOERROR, is_lasting=False)
"""Stands for an empty answer that sends the client to TCP."""

_RCODES = {"REFUSED": REFUSED, "SERVFAIL": SERVFAIL, "NOTIMP": NOTIMP}
_ZERO = ((A, bytes(4)), (AAAA, bytes(16)))
_RETRY_S = 3600  # of the SOA that nobody transfers


def blocked(decision: Decision, rtype: int, defaults: BlockDefaults) -> Answer:
    """Answer for a blocked question of a type."""
    policy = decision.policy
    assert policy is not None, "a policy decides to block"
    ttl = defaults.ttl_s if policy.block_ttl_s is None else policy.block_ttl_s
    text = why(decision)
    if decision.reason == "blocked-type":
        return _nothing(NOERROR, ttl, text)  # another type may be asked next
    if decision.reply is not None:
        return _by_rule(decision.reply, rtype, ttl, text)
    mode = policy.block_mode or defaults.mode
    if mode == "refused":
        return _answer(REFUSED, (), text)
    if mode == "nxdomain":
        return _nothing(NXDOMAIN, ttl, text)
    data = {"zeroip": _ZERO, "custom": policy.custom}.get(mode, ())
    return _data(data, rtype, ttl, text)


def _by_rule(reply: Reply, rtype: int, ttl: int, text: str) -> Answer:
    """What the rule of a list wants answered."""
    match reply.rcode:
        case "DROP":
            return DROPPED
        case "TCP":
            return TRUNCATED
        case "NOERROR":
            is_alias = any(kind == CNAME for kind, _ in reply.records)
            return _data(reply.records, CNAME if is_alias else rtype, ttl, text)
        case "NXDOMAIN":
            return _nothing(NXDOMAIN, ttl, text)
        case _:
            rcode = _RCODES[reply.rcode]
            return _answer(rcode, (), text)


def _data(data: Sequence[tuple[int, bytes]], rtype: int, ttl: int, text: str) -> Answer:
    """The records of a type, or that there are none."""
    if rtype == ANY and data:  # RFC 8482 section 4.1: one RRset is enough
        rtype = data[0][0]
    found = [rdata for kind, rdata in data if kind == rtype]
    if not found:
        return _nothing(NOERROR, ttl, text)
    return _answer(NOERROR, (_rrset(rtype, ttl, found),), text)


def _rrset(rtype: int, ttl: int, rdatas: Sequence[bytes]) -> Placed:
    if rtype == CNAME:
        rdatas = rdatas[:1]  # RFC 2181 section 10.1: an alias has one target; the first rule's
    wire = b"".join([pack_record(rtype, ttl, rdata) for rdata in rdatas])
    return Placed(None, rtype, len(rdatas), wire)


def why(decision: Decision) -> str:
    """What the client is told of a block: policy and list by name, never the rule."""
    parts = [f"policy {decision.policy.name}"] if decision.policy is not None else []
    parts += [f"list {decision.list}"] if decision.list else []
    return ", ".join(parts)


def rewritten(decision: Decision, rtype: int, defaults: BlockDefaults) -> Answer | None:
    """Answer of a rewrite; None: it says nothing of this type, and the question goes on. A single
    CNAME is to be followed by the caller."""
    assert decision.rewritten is not None
    assert decision.policy is not None
    rrsets = decision.rewritten.rrsets
    policy_ttl = decision.policy.block_ttl_s
    ttl_s = defaults.ttl_s if policy_ttl is None else policy_ttl
    if rtype not in rrsets:
        if CNAME in rrsets:
            rtype = CNAME
        elif rtype == ANY:
            rtype = min(rrsets)
        elif rtype in OVERRIDDEN_TYPES:
            return _nothing(NOERROR, ttl_s)
        else:
            return None
    ttl, rdatas = rrsets[rtype]
    ttl = ttl_s if ttl is None else ttl
    return _answer(NOERROR, (_rrset(rtype, ttl, rdatas),))


def _nothing(rcode: int, ttl: int, text: str | None = None) -> Answer:
    numbers = (1, _RETRY_S, _RETRY_S, _RETRY_S, ttl)
    rdata = names.ROOT * 2 + b"".join(number.to_bytes(4, "big") for number in numbers)
    soa = Placed(None, SOA, 1, pack_record(SOA, ttl, rdata))
    return _answer(rcode, (), text, authority=(soa,))


def _answer(
    rcode: int,
    answer: Sequence[Placed],
    text: str | None = None,
    authority: Sequence[Placed] = (),
) -> Answer:
    """With a `text`, that and why it is blocked."""
    return Answer(
        rcode,
        answer=answer,
        authority=authority,
        is_recursive=True,
        extended_error=BLOCKED if text is not None else None,
        extended_text=text or "",
    )
