"""Stories of forwarders that went wrong, from public reports: answers of a fake upstream, questions
with their time, and what must be seen. Our own suite.

Sent elsewhere: wrong IDs, ports and closed connections to tests/adapters/test_upstreams.py (they
are the carriers' business), the restart to tests/entrypoints/test_cache_dump.py, the limiter and
rewrites to their own tests.
"""

from typing import Any

import dns.flags
import dns.message
import dns.rdatatype
import pytest

from tests.conformance.cases import Row, rows
from tests.upstreams import Asked, Rig, Said, response
from tests.vectors import vectors

ELSEWHERE = {"fw14", "fw27", "fw29", "fw30", "fw32"}
UPSTREAM = "192.0.2.11"
BIG = [f'big.example.net. 300 IN TXT "{i:03d}{"x" * 50}"' for i in range(40)]


def cases() -> list[Row]:
    found = rows(vectors("bugs/forward_cases.jsonl"))
    return [row for row in found if row["id"] not in ELSEWHERE]


class Story:
    """One case on its way."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.rig = Rig(UPSTREAM)
        self.rig.scripts[UPSTREAM] = self._say
        self.says: Row | None = None
        self.now_s = 0.0

    def run(self) -> None:
        for step in self.row["steps"]:
            self.rig.pass_time(max(0.0, step["at_s"] - self.now_s))
            self.says = step["upstream"]
            self.rig.asked.clear()
            client = step["client"]
            began_us = self.rig.clock.monotonic_us()
            asked = [self._ask(client) for _ in range(client.get("copies", 1))]
            for one in asked:
                _ = one.answer
            took_s = (self.rig.clock.monotonic_us() - began_us) / 1e6
            self.now_s = step["at_s"] + took_s
            self._check(step["expect"], asked, took_s)

    def _ask(self, client: Row) -> Asked:
        options: dict[str, Any] = {}
        if "bufsize" in client:
            options = {"use_edns": 0, "payload": client["bufsize"]}
        if client.get("do"):
            options["want_dnssec"] = True
        return self.rig.ask(
            client["name"],
            client["type"],
            proto="tcp" if client.get("tcp") else "udp",
            flags=0 if client.get("rd") == 0 else dns.flags.RD,
            **options,
        )

    def _say(self, query: dns.message.Message, packet: bytes) -> Said:
        says = self.says or {}
        name = str(query.question[0].name).lower()
        if says.get("silent"):
            return None
        if name == "big.example.net.":
            return response(query, BIG)
        answer = list(says.get("answer", ()))
        if "raw" in says:
            wire = response(query, [f"{name} 1 IN A 192.0.2.9"])
            at = wire.rindex(b"\0\0\0\1\0\4\xc0\0\2\x09")
            return wire[:at] + b"\x80\0\0\0" + wire[at + 4 :]
        if answer[:1] in (["A"], ["A only"]):
            rrsig = (
                f"{name} 300 IN RRSIG A 8 3 300 20300101000000 20200101000000 1 example.net. aaaa"
            )
            answer = [f"{name} 300 IN A 192.0.2.9", *([rrsig] if "RRSIG" in answer else [])]
        wire = response(
            query, answer, says.get("authority", ()), rcode=says.get("rcode", "NOERROR")
        )
        return [(says.get("delay_s", 0.0), wire)]

    def _check(self, expect: Row, asked: list[Asked], took_s: float) -> None:
        answer = asked[0].answer
        records = [(rrset, rdata) for rrset in answer.answer for rdata in rrset]
        ttls = [rrset.ttl for rrset, _ in records]
        saw = expect.get("saw", "")
        for key, wanted in expect.items():
            match key:
                case "rcode":
                    assert asked[0].rcode == wanted
                case "saw" | "note":
                    assert bool(self.rig.asked) == (saw == "upstream asked") or not saw
                case "authority_soa_ttl_max":
                    assert all(rrset.ttl <= wanted for rrset in answer.authority)
                    assert answer.authority
                case "authority_types":
                    assert [dns.rdatatype.to_text(r.rdtype) for r in answer.authority] == wanted
                case "answer_types":
                    assert [dns.rdatatype.to_text(r.rdtype) for r, _ in records] == wanted
                case "answer_count":
                    assert len(records) == wanted
                case "answer":
                    assert [str(rdata) for _, rdata in records] == wanted
                case "ttl":
                    assert set(ttls) == {wanted}
                case "ttl_max":
                    assert max(ttls) <= wanted
                case "ttl_min":
                    assert min(ttls) >= wanted
                case "tc":
                    assert bool(answer.flags & dns.flags.TC) == wanted
                case "ra":
                    assert bool(answer.flags & dns.flags.RA) == wanted
                case "max_size":
                    assert len(asked[0].wire) <= wanted
                case "opt":
                    assert answer.edns == (-1 if wanted is None else 0)
                case "question":
                    name = str(answer.question[0].name)
                    assert name == wanted or wanted is True
                case "within_s":
                    assert took_s <= wanted
                case "upstream_queries_max":
                    assert len(self.rig.asked) <= wanted
                case "all_answered" | "own_ids":
                    assert all(one.answer.id == one.query.id for one in asked)
                case _:
                    raise AssertionError(f"the suite wants something new: {key}")


@pytest.mark.parametrize("number", range(16))
def test_forward_case(number: int) -> None:
    found = cases()
    assert len(found) == 16
    Story(found[number]).run()
