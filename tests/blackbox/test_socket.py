"""The command socket against what is no command."""

import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.blackbox.program import PATIENCE_S, Serving, command, serving

HEADER = {
    "frames": 0,
    "delete": [],
    "manager": "m",
    "force": False,
    "dry_run": False,
    "reason": "",
    "imported_serials": {},
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("socket") / "data"


@pytest.fixture(scope="module")
def server(node: Path) -> Iterator[Serving]:
    with serving(node, "--demo") as found:
        yield found


@pytest.fixture
def stream(server: Serving, node: Path) -> Iterator[socket.socket]:
    with closing(socket.socket(socket.AF_UNIX)) as found:
        found.settimeout(PATIENCE_S)
        found.connect(str(node / "kudurru.sock"))
        yield found


def frame(value: Any) -> bytes:
    octets = msgspec.msgpack.encode(value)
    return struct.pack("!I", len(octets)) + octets


def reply(stream: socket.socket) -> Any:
    with stream.makefile("rb") as file:
        size = struct.unpack("!I", file.read(4))[0]
        return msgspec.msgpack.decode(file.read(size))


@pytest.mark.parametrize(
    "request_",
    [
        5,
        [],
        ["nonsense", None],
        ["get"],
        ["get", 5],
        ["get", "no key"],
        ["list", {"kind": 5}],
        ["list", None],
        ["list", {"kind": "DNSZone", "limit": "many"}],
        ["list", {"kind": "DNSZone", "selector": "a b"}],
        ["query", "text"],
        ["query", b""],
        ["query", b"\xff" * 5],
        ["export", 5],
        ["problems", None],
        ["change", {}],
        ["change", None],
        ["change", {**HEADER, "delete": ["no key"]}],
        ["change", {**HEADER, "manager": ""}],
    ],
    ids=repr,
)
def test_a_request_that_makes_no_sense_is_answered_with_an_error(
    request_: Any, stream: socket.socket
) -> None:
    stream.sendall(frame(request_))
    assert reply(stream)[0] == "error"
    # And the connection is still good.
    stream.sendall(frame(["info", False]))
    assert reply(stream)[0] == "ok"


@pytest.mark.parametrize(
    "octets",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("!I", 2**32 - 1),
        struct.pack("!I", 5) + b"\xc1" * 5,
        frame(["change", {**HEADER, "frames": 2**31}]),
    ],
    ids=["http", "size", "not MessagePack", "frames"],
)
def test_what_is_no_request_is_hung_up_on(octets: bytes, stream: socket.socket) -> None:
    stream.sendall(octets)
    assert stream.recv(1) == b""


def test_objects_that_are_none_are_refused_and_named(stream: socket.socket) -> None:
    stream.sendall(frame(["change", {**HEADER, "frames": 1}]) + frame([{"kind": "X"}, 5]))
    word, error = reply(stream)
    assert word == "error"
    assert error["type"] == "Invalid"
    assert len(error["causes"]) > 1


def test_nothing_of_this_was_recorded_and_dns_goes_on(server: Serving, node: Path) -> None:
    actors = {e["actor"] for e in command("history", "--data", node, "-o", "json").json()}
    assert actors == {"system"}
    assert server.texts("www.demo.example") == ["192.0.2.80"]
