"""Filtering as people meet it: objects applied to a server, questions from two addresses."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dns.message
import dns.rcode
import pytest

from tests.blackbox.program import PATIENCE_S, Serving, command, serving, wait_until, write_json

KID, GROWN_UP = "127.0.0.2", "127.0.0.3"


def document(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name}
    return {"apiVersion": "kudurru.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


OBJECTS = [
    document("ClientGroup", "kids", {"clients": [{"ip": KID}]}),
    document(
        "Policy",
        "kids",
        {
            "clientGroupRefs": ["kids"],
            "deny": ["games.example", "*.games.example"],
            "rewrites": [{"name": "tv.example", "targets": ["192.0.2.60"]}],
        },
    ),
    document("Policy", "everyone", {"deny": ["/^ads[0-9]*[.]/"], "blockMode": "nxdomain"}),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("filtering") / "data"


@pytest.fixture(scope="module")
def server(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    file = write_json(tmp_path_factory.mktemp("objects") / "objects.json", *OBJECTS)
    with serving(data) as found:
        assert command("apply", "--data", data, "-f", file).code == 0
        yield found


def told(server: Serving, client: str, name: str, rtype: str = "A") -> str:
    """Code and data of the answer that a client gets over UDP."""
    query = dns.message.make_query(name, rtype)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((client, 0))
        sock.settimeout(PATIENCE_S)
        sock.sendto(query.to_wire(), (server.host, server.port))
        answer = dns.message.from_wire(sock.recv(4096))
    assert answer.id == query.id
    data = sorted(rdata.to_text() for rrset in answer.answer for rdata in rrset)
    return " ".join([dns.rcode.to_text(answer.rcode()), *data])


def test_two_clients_see_different_answers_whoever_asks_first(server: Serving) -> None:
    for _ in range(2):
        assert told(server, KID, "games.example") == "NOERROR 0.0.0.0"
        assert told(server, GROWN_UP, "games.example") == "REFUSED"
    for _ in range(2):
        assert told(server, GROWN_UP, "ads1.example") == "NXDOMAIN"
        assert told(server, KID, "ads1.example") == "REFUSED"  # it has policies of its own
    assert told(server, KID, "tv.example") == "NOERROR 192.0.2.60"
    assert told(server, GROWN_UP, "tv.example") == "REFUSED"
    assert told(server, KID, "tv.example", "HTTPS") == "NOERROR"


def explained(data: Path, name: str, *options: str) -> dict[str, Any]:
    done = command("explain", "--data", data, name, *options, "-o", "json")
    assert done.code == 0, done.err
    found: dict[str, Any] = done.json()
    return found


def test_explain_says_what_a_query_gets_and_why(server: Serving, data: Path) -> None:
    found = explained(data, "x.games.example", "--client", KID)
    assert (found["action"], found["reason"], found["policy"], found["rule"], found["line"]) == (
        "block",
        "policy-deny",
        "default/kids",
        "*.games.example",
        2,
    )
    assert found["groups"] == ["default/kids"]
    other = explained(data, "x.games.example", "HTTPS", "--client", GROWN_UP)
    assert (other["answeredBy"], other["action"]) == ("nobody", "pass")
    assert other["refusal"] == "there are no upstreams to ask"
    assert other["policies"] == ["default/everyone"]
    stranger = explained(data, "ads.example", "--client", "198.51.100.9")
    assert stranger["answeredBy"] == "nobody"
    assert "acl.recursion" in stranger["refusal"]
    text = command("explain", "--data", data, "plain.example", "--client", KID).out
    assert text.splitlines()[1] == "refused: nothing names it, and there are no upstreams to ask"
    text = command("explain", "--data", data, "tv.example", "--client", KID).out
    assert text.splitlines()[:3] == [
        "tv.example. A for 127.0.0.2",
        "rewritten: a policy rewrites it",
        "rule: tv.example (line 1)",
    ]


def test_explain_tells_everything_that_is_wrong_with_a_question(data: Path) -> None:
    done = command("explain", "--data", data, "a..b", "NOTYPE", "--client", "nobody")
    assert done.code == 1
    for fault in ("a..b", "NOTYPE", "nobody"):
        assert fault in done.err


def changes(data: Path) -> list[Any]:
    """What people did: serials and statuses come when they are due."""
    found = command("history", "--data", data, "-o", "json").json()
    return [event for event in found if event["actor"] != "system"]


def test_a_pause_is_in_the_log_and_ends(server: Serving, data: Path) -> None:
    def blocking(*words: str) -> Any:
        return command("blocking", *words, "--data", data, "-o", "json")

    before = len(changes(data))
    done = blocking("disable", "--for", "1h", "--group", "kids", "--reason", "homework is done")
    assert done.code == 0, done.err
    assert [pause["group"] for pause in done.json()["pauses"]] == ["default/kids"]
    assert told(server, KID, "games.example") == "REFUSED"
    assert told(server, GROWN_UP, "ads1.example") == "NXDOMAIN"
    assert told(server, KID, "tv.example") == "NOERROR 192.0.2.60"
    assert explained(data, "games.example", "--client", KID)["reason"] == "paused"
    assert blocking("enable", "--group", "kids").json()["pauses"] == []
    assert told(server, KID, "games.example") == "NOERROR 0.0.0.0"
    events = changes(data)
    newest = [(event["verb"], event["reason"]) for event in events[: len(events) - before]]
    assert newest == [("resumed", ""), ("paused", "homework is done")]
    assert explained(data, "games.example", "--client", KID, "--at", str(events[1]["seq"]))[
        "reason"
    ] == "paused"  # fmt: skip


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--group", "nobody"], "there is no ClientGroup default/nobody"),
        (["--for", "soon"], "is no duration"),
        (["--for", "3000d"], "at most a year"),
    ],
)
def test_a_pause_that_makes_no_sense_is_refused(
    server: Serving, data: Path, words: list[str], fault: str
) -> None:
    before = changes(data)
    done = command("blocking", "disable", "--data", data, *words)
    assert done.code == 1
    assert fault in done.err
    assert changes(data) == before


def test_without_a_server_the_directory_answers_the_same(server: Serving, tmp_path: Path) -> None:
    file = write_json(tmp_path / "objects.json", *OBJECTS)
    own = tmp_path / "own"
    assert command("apply", "--data", own, "-f", file).code == 0
    assert explained(own, "games.example", "--client", KID)["action"] == "block"
    assert command("blocking", "disable", "--data", own).code == 0
    assert explained(own, "games.example", "--client", KID)["reason"] == "paused"
    assert "paused for everybody" in command("blocking", "status", "--data", own).out
    assert command("blocking", "enable", "--data", own).code == 0
    assert explained(own, "games.example", "--client", KID)["action"] == "block"
    assert "enabled, by 2 policies" in command("blocking", "status", "--data", own).out


LISTS = [
    document(
        "BlockList",
        "ads",
        {"sources": [{"inline": ["! ads", "||tracker.example^", "0.0.0.0 a.b"]}]},
    ),
    document("Policy", "everyone", {"blockListRefs": ["ads"], "blockMode": "nxdomain"}),
]


def test_a_list_blocks_for_whom_a_policy_names_it_and_explain_shows_the_line(
    server: Serving, data: Path, tmp_path: Path
) -> None:
    file = write_json(tmp_path / "lists.json", *LISTS)
    assert command("apply", "--data", data, "-f", file).code == 0
    wait_until(lambda: told(server, GROWN_UP, "x.tracker.example") == "NXDOMAIN")
    assert told(server, KID, "x.tracker.example") == "REFUSED"
    for _ in range(2):
        found = explained(data, "x.tracker.example", "--client", GROWN_UP)
        assert (found["list"], found["rule"], found["line"], found["source"]) == (
            "default/ads",
            "||tracker.example^",
            2,
            "inline",
        )
    newest = command("history", "--data", data, "-o", "json").json()[0]["seq"]
    then = explained(data, "x.tracker.example", "--client", GROWN_UP, "--at", str(newest))
    assert then["rule"] == "||tracker.example^"


def test_a_query_may_be_asked_as_somebody_else(server: Serving, data: Path) -> None:
    def asked(client: str) -> list[str]:
        done = command("query", "games.example", "--data", data, "--client", client, "-o", "json")
        return [record["data"] for record in done.json()["answer"]]

    assert asked(KID) == ["0.0.0.0"]
    assert asked(GROWN_UP) == []
    done = command("query", "games.example", "--data", data, "--client", "nobody")
    assert done.code == 1
    assert "nobody" in done.err


def test_a_policy_may_name_its_own_upstreams(tmp_path: Path) -> None:
    with serving(tmp_path / "up", "--demo") as other:
        upstream = f"udp://{other.host}:{other.port}"
        mine = [
            document("ClientGroup", "kids", {"clients": [{"ip": KID}]}),
            document("Policy", "kids", {"clientGroupRefs": ["kids"], "upstreams": [upstream]}),
            document("Policy", "odd", {"upstreams": ["no upstream at all"]}),
        ]
        data = tmp_path / "data"
        with serving(data) as server:
            file = write_json(tmp_path / "objects.json", *mine)
            assert command("apply", "--data", data, "-f", file).code == 0
            assert told(server, KID, "www.demo.example") == "NOERROR 192.0.2.80"
            assert told(server, GROWN_UP, "www.demo.example") == "REFUSED"
            found = explained(data, "www.demo.example", "--client", KID)
            assert (found["answeredBy"], found["upstreams"]) == ("resolver", [upstream])
            assert explained(data, "www.demo.example")["answeredBy"] == "nobody"
