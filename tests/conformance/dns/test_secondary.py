"""Stories of a primary and its secondary: `data/secondary/cases.json`, against the program.

Each step says what the primary answers and what the secondary serves after a NOTIFY.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.query
import dns.rcode
import dns.rdatatype
import pytest

from tests.blackbox.program import Serving, kudurru, serving, write_json, zone
from tests.primaries import Script, SocketPrimary

CASES = json.loads((Path(__file__).parents[1] / "data" / "secondary" / "cases.json").read_text())
BASE = "sec.example"
STAYS_S = 1.5
"""How long a zone that must stay is watched: more than its refresh and retry of a second."""


def notify(server: Serving, name: str, source: str) -> int:
    message = dns.message.make_query(name, "SOA")
    message.set_opcode(dns.opcode.NOTIFY)
    message.flags = dns.flags.AA | dns.opcode.to_flags(dns.opcode.NOTIFY)
    answer = dns.query.udp(message, server.host, port=server.port, timeout=10, source=source)
    return answer.rcode()


def served(server: Serving, apex: str, what: str) -> Any:
    """The serial, or "name/TYPE": the data, or the code where it is none of success."""
    if what == "serial":
        found = server.texts(apex, "SOA")
        return int(found[0].split()[2]) if " " in found[0] else found[0]
    name, _, rtype = what.partition("/")
    owner = dns.name.from_text(name, dns.name.from_text(apex)).to_text()
    answer = server.ask(owner, rtype)
    if answer.rcode():
        return dns.rcode.to_text(answer.rcode())
    wanted = dns.rdatatype.from_text(rtype)
    return sorted(r.to_text() for rrset in answer.answer if rrset.rdtype == wanted for r in rrset)


def holds(condition: Callable[[], bool], *, must_stay: bool) -> bool:
    """Whether it becomes true, or stays so."""
    deadline = time.monotonic() + (STAYS_S if must_stay else 30)
    while time.monotonic() < deadline:
        if condition() is not must_stay:
            return not must_stay
        time.sleep(0.02)
    return must_stay


@pytest.mark.slow
def test_a_secondary_does_as_the_stories_say(tmp_path: Path) -> None:
    script, wrong = Script(), []
    with SocketPrimary(script).serving() as primary, serving(tmp_path / "data") as server:
        primaries = [{"address": "127.0.0.1", "port": primary.port}]
        for case in CASES:
            script.steps[f"{case['id']}.{BASE}"] = case["steps"][0]
        zones = [
            zone(f"{case['id']}.{BASE}", type="Secondary", secondary={"primaries": primaries})
            for case in CASES
        ]
        write_json(tmp_path / "zones.json", *zones)
        assert (
            kudurru("apply", "-f", tmp_path / "zones.json", "--data", tmp_path / "data").code == 0
        )
        for case in CASES:
            apex = f"{case['id']}.{BASE}"
            for number, step in enumerate(case["steps"]):
                script.steps[apex] = step
                if number:  # the first version is fetched without being told of it
                    notify(server, apex, step.get("notify_source", "127.0.0.1"))
                want = step["want"]
                # What is wanted and not: the first look may come before the transfer.
                stays = step.get("must_stay", False)
                if not holds(
                    lambda want=want, apex=apex: all(
                        served(server, apex, what) == value for what, value in want.items()
                    ),
                    must_stay=stays,
                ):
                    got = {what: served(server, apex, what) for what in want}
                    wrong.append((case["id"], number, case["note"], got))
    assert not wrong
