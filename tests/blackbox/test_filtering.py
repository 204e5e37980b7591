"""Filtering as people meet it: objects applied to a server, questions from two addresses."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dns.message
import dns.rcode
import pytest

from tests.blackbox.program import PATIENCE_S, Serving, command, serving, write_json

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
