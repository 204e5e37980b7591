"""Policy zones against the replay scenarios of unbound, as far as names trigger in them."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from kudurru.domain.dns import names, record_types
from kudurru.domain.dns.records import rdata_to_text
from kudurru.domain.lists.memory import MemoryMatcher
from kudurru.domain.lists.rules import Context
from kudurru.domain.lists.verdicts import Verdict, verdicts
from kudurru.domain.objects import Key
from tests.vectors import vectors

SCENARIOS = ("rpz_qname", "rpz_rootwc", "rpz_signal_nxdomain_ra",
             "rpz_cname_handle", "rpz_qtype_cname")  # fmt: skip
_STEP = re.compile(r"^STEP (\d+) (QUERY|CHECK_ANSWER)$(.*?)^ENTRY_END", re.M | re.S)
_ZONE = re.compile(r"^TEMPFILE_CONTENTS \S+\n(.*?)^TEMPFILE_END", re.M | re.S)


class Step(NamedTuple):
    number: int
    name: str
    rtype: str
    flags: list[str]
    answers: list[list[str]]  # words of each record, without TTL and class


def steps_of(text: str) -> list[Step]:
    found = []
    for number, kind, body in _STEP.findall(re.sub(r";.*", "", text)):
        if kind == "QUERY":
            continue
        question = re.search(r"SECTION QUESTION\s+(\S+)\s+IN\s+(\S+)", body)
        reply = re.search(r"^REPLY (.*)$", body, re.M)
        assert question
        assert reply
        answer = body.partition("SECTION ANSWER")[2].partition("SECTION")[0]
        records = [
            re.split(r"\s+", line.strip(), maxsplit=5)
            for line in answer.split("\n")
            if line.strip()
        ]
        words = [_without_ttl(record) for record in records]
        found.append(Step(int(number), question[1], question[2], reply[1].split(), words))
    return found


def _without_ttl(record: list[str]) -> list[str]:
    owner, *rest = record
    while rest[0] == "IN" or rest[0].isdigit():
        rest.pop(0)
    return [owner, rest[0], " ".join(rest[1:])]


def verdict_of(matchers: list[MemoryMatcher], name: names.Name, rtype: int) -> Verdict | None:
    """That of the first zone which has one; an exception ends the search too."""
    for matcher in matchers:
        said = verdicts(name, matcher.lookup(name), [Key("zone")], rtype)
        if said.allow:
            return None
        if said.deny:
            return said.deny
    return None


def shown(verdict: Verdict, rtype: int) -> tuple[str, list[list[str]]]:
    """(code, words of each record) as the answer has them."""
    reply = verdict.reply
    assert reply
    if reply.rcode == "TCP":
        return "TC", []
    records = [
        [record_types.type_to_text(of), rdata_to_text(of, data).lower()]
        for of, data in reply.records
        if of in (rtype, record_types.CNAME)
    ]
    return reply.rcode, records


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_policy_zone_says_what_unbound_says(scenario: str) -> None:
    path = Path(vectors(f"unbound/rpl/{scenario}.rpl"))
    text = path.read_text()
    matchers = []
    for content in _ZONE.findall(text):
        matcher = MemoryMatcher()
        matcher.put(Key("zone"), [("inline", content.split("\n"))], Context(format="rpz"))
        matchers.append(matcher)
    assert matchers
    has_others = re.search(r"rpz-(nsip|nsdname|ip|client-ip)", text)
    checked = 0
    for step in steps_of(text):
        rtype = record_types.type_from_text(step.rtype)
        name = names.key(names.from_text(step.name))
        verdict = verdict_of(matchers, name, rtype)
        if verdict is None:
            first = step.answers[0] if step.answers else []
            # What leads elsewhere first, and what other triggers say, is not ours to tell.
            comes_later = first[1:2] == ["CNAME"] or "AA" not in step.flags or has_others
            assert comes_later, f"{scenario} step {step.number}: {step}"
            continue
        checked += 1
        code, records = shown(verdict, rtype)
        if code == "TC":
            assert "TC" in step.flags or "AA" not in step.flags
            continue
        wanted = [
            [w[1].upper(), w[2].lower()] for w in step.answers if w[0].lower() == step.name.lower()
        ]
        assert records == wanted or not wanted, f"{scenario} step {step.number}: {records}"
        if not records:
            assert code in step.flags, f"{scenario} step {step.number}: {code}"
    assert checked
