"""Block list cases made from public bug reports, through the pipeline: what a client gets, also
where only what an upstream answers is blocked (tests/conformance/data/bugs)."""

import dns.message
import dns.rdatatype
import pytest

from kudurru.domain.lists.memory import MemoryMatcher
from kudurru.domain.lists.rules import Context
from kudurru.domain.objects import Key
from kudurru.domain.ports import Reply
from tests.conformance.cases import DATA, Row, rows
from tests.conformance.test_filter_vectors import lines_of
from tests.filtering import policy
from tests.projections.test_pipeline_policy import Upstream, pipeline_of

CASES = list(rows(DATA / "bugs" / "filter_cases.jsonl"))
EDE_BLOCKED = 15


@pytest.mark.parametrize("row", CASES, ids=[row["id"] for row in CASES])
def test_a_client_gets_what_the_case_expects(row: Row) -> None:
    matcher = MemoryMatcher()
    matcher.put(
        Key("BlockList/default/cases"),
        [("inline", lines_of(row))],
        Context(format=row["format"]),
    )
    records = list(row.get("upstream", ()))
    one = policy("one", blockListRefs=["cases"])
    pipeline = pipeline_of(one, matcher=matcher, resolver=Upstream(*records))
    question = row["q"]
    query = dns.message.make_query(question["name"], question["type"], use_edns=True)
    reply = pipeline.handle(query.to_wire(), "192.0.2.1", "udp")
    assert isinstance(reply, Reply)
    answer = dns.message.from_wire(reply.wire)
    is_blocked = any(getattr(option, "code", None) == EDE_BLOCKED for option in answer.options)
    assert is_blocked == (row["expect"] == "block"), row["note"]
    data = [rdata.to_text() for rrset in answer.answer for rdata in rrset]
    if is_blocked:
        kept = {"A": ["0.0.0.0"], "AAAA": ["::"], "ANY": ["0.0.0.0"]}.get(question["type"], [])
        assert data == kept
    elif records:
        assert len(data) == len(records)
