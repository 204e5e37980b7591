"""What the status of an object says, kind by kind, from facts that the views have.

Pure: the same facts lead to the same status on every node, and a status that says what is so is
given back as it is.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from kudurru.domain.kinds.blocklist import BlockListSpec, SourceStatus
from kudurru.domain.kinds.meta import Reason
from kudurru.domain.kinds.recordset import EndpointProblem
from kudurru.domain.objects import Key, ref_of
from kudurru.domain.reconcile.blocklists import title_of
from kudurru.domain.reconcile.conditions import (
    DEGRADED,
    READY,
    Fault,
    Said,
    condition,
    judged,
    parts,
    status_with,
)
from kudurru.domain.reconcile.secondaries import (
    NOT_CONFIRMED,
    NOTHING_TRANSFERRED,
    is_expired,
    soa_from_status,
)

NO_INTEGRATION = "sources.integrationRef brings no clients"
_PROBLEMS = "problems"


def zone_said(
    status: dict[str, Any] | None,
    *,
    is_secondary: bool,
    holder: str,
    missing_keys: Sequence[str],
    troubled: Sequence[tuple[Key, Reason]],
    others: int = 0,
) -> tuple[Said, ...]:
    """Of a DNSZone. `holder` is the DNSZone that came first with its name, "" when that is itself;
    `missing_keys` are TSIG keys that it names and nobody has; `troubled` are the first record sets
    in it that are not served as they say, and why; there are so many `others`."""
    if holder:
        fault = Fault("Duplicated", f"DNSZone {holder} came first with this zoneName")
        return judged([fault], works=False)
    if is_secondary and soa_from_status(status) is None:
        return judged([Fault("NotTransferred", NOTHING_TRANSFERRED)], works=False)
    if is_secondary and is_expired(status):
        return judged([Fault("Expired", NOT_CONFIRMED)], works=False)
    faults = [Fault("MissingReference", _missing_key(name)) for name in missing_keys]
    faults += [Fault(reason, f"{ref_of(key)} is not served as it says") for key, reason in troubled]
    return judged(faults, others=others)


def _missing_key(name: str) -> str:
    return f"there is no TSIG key {name}: `kudurru tsig create {name}`, or name another one"


def record_set_status(
    before: dict[str, Any] | None,
    problems: Sequence[EndpointProblem],
    *,
    endpoints: int,
    generation: int,
    now_s: int,
) -> dict[str, Any]:
    """The whole status of a DNSRecordSet of so many endpoints."""
    faults = [Fault(problem.reason, problem_text(problem)) for problem in problems]
    concerns_all = any(not problem.record_type for problem in problems)
    said = judged(faults, works=not concerns_all and len(problems) < endpoints)
    others = {field: value for field, value in (before or {}).items() if field != _PROBLEMS}
    status = status_with(others, said, generation=generation, now_s=now_s)
    if problems:
        status[_PROBLEMS] = [msgspec.to_builtins(problem) for problem in problems]
    return status


def problem_text(problem: EndpointProblem) -> str:
    if not problem.record_type:
        return problem.message
    return f"{problem.dns_name} {problem.record_type}: {problem.message}"


def new_problems(
    before: dict[str, Any] | None, after: dict[str, Any] | None
) -> list[dict[str, Any]]:
    """Problems that the status before did not have, whatever their messages."""
    there = {_identity(problem) for problem in parts(before, _PROBLEMS)}
    found = parts(after, _PROBLEMS)
    return [problem for problem in found if _identity(problem) not in there]


def _identity(problem: dict[str, Any]) -> tuple[Any, ...]:
    fields = ("dnsName", "recordType", "setIdentifier", "reason")
    return tuple(str(problem.get(field, "")) for field in fields)


def policy_said(
    faults: Sequence[Fault], left_out: Sequence[str], *, reaches_nobody: bool
) -> tuple[Said, ...]:
    """Of a Policy. `left_out` are references to objects that are switched off."""
    note = f"left out, as they are disabled: {', '.join(left_out)}" if left_out else ""
    said = judged(faults, works=not reaches_nobody, note=note)
    if reaches_nobody and not faults:
        degraded = next(one for one in said if one.type == DEGRADED)
        return Said(READY, "False", "Disabled", note), degraded
    return said


def client_group_said(*, names_integration: bool, has_clients: bool) -> tuple[Said, ...]:
    """Of a ClientGroup."""
    if not names_integration:
        return judged([])
    fault = Fault("Unsupported", NO_INTEGRATION)
    return judged([fault], works=has_clients)


def block_list_said(spec: BlockListSpec, sources: Sequence[SourceStatus]) -> tuple[Said, ...]:
    """Of a BlockList, from what the fetcher wrote of its sources."""
    tried = {source.source: source for source in sources}
    titles = [title_of(source) for source in spec.sources if source.inline is None]
    faults = [
        Fault("Unreachable", f"{title}: {tried[title].error}")
        for title in titles
        if title in tried and tried[title].error
    ]
    has_rules = any(source.inline is not None for source in spec.sources) or any(
        title in tried and tried[title].phase != "Failed" for title in titles
    )
    if not has_rules and not faults:
        unknown = Said(READY, "Unknown", "NotFetched", "no source was fetched yet")
        return unknown, Said(DEGRADED, "False", "AsExpected")
    return judged(faults, works=has_rules)


def is_new(before: dict[str, Any] | None, after: dict[str, Any] | None, kind: str) -> bool:
    """Whether a condition made a transition: a new status or reason."""
    old, new = condition(before, kind) or {}, condition(after, kind) or {}
    return (old.get("status"), old.get("reason")) != (new.get("status"), new.get("reason"))
