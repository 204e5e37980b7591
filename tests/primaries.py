"""Primaries that say what a script tells them: in memory, and on sockets.

A *step* is what a primary of one zone says now, in the form of tests/conformance/data/secondary:
`serial` (what the SOA question is answered with; `soa: "drop"` is silence), and for `axfr` and
`ixfr` a list of messages, each a list of records relative to the zone, "close" in the place of a
message, "rcode NAME", or "drop". Without `ixfr` that question is answered as `axfr` is.
"""

import asyncio
import socket
import struct
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdata
import dns.rdatatype
import dns.rrset

from kudurru.domain.errors import Unreachable
from kudurru.domain.ports import Peer

Step = dict[str, Any]
CLOSE = "close"
TIMERS = "1 1 3600 60"


def soa(serial: int, timers: str = TIMERS) -> str:
    return f"@ 60 SOA ns h {serial} {timers}"


def whole(serial: int, *lines: str, timers: str = TIMERS) -> Step:
    """A zone of these records under a serial, whole."""
    first = soa(serial, timers)
    return {
        "serial": serial,
        "timers": timers,
        "axfr": [[first, "@ 60 NS ns.example.net.", *lines, first]],
    }


class Script:
    """What one primary says of its zones, by name without the final dot."""

    def __init__(self) -> None:
        self.steps: dict[str, Step] = {}
        self.asked: list[tuple[str, str]] = []  # (zone, type) of each question
        self.is_down = False
        self.is_slow: asyncio.Event | None = None  # in memory: transfers wait until it is set

    def answers(self, octets: bytes, *, stream: bool) -> list[bytes | str] | None:
        """Messages, of which CLOSE ends the connection; None is silence."""
        query = dns.message.from_wire(octets)
        question = query.question[0]
        zone = question.name.to_text(omit_final_dot=True).lower()
        rtype = dns.rdatatype.to_text(question.rdtype)
        self.asked.append((zone, rtype))
        step = self.steps.get(zone)
        if step is None or self.is_down:
            return None
        if rtype == "SOA":
            if step.get("soa") == "drop":
                return None
            return [_message(query, [soa(step["serial"], step.get("timers", TIMERS))]).to_wire()]
        said = step.get(rtype.lower(), step.get("axfr"))
        if said is None or said == "drop":
            return None
        if isinstance(said, str):
            return [_message(query, [], said.removeprefix("rcode ")).to_wire()]
        made = [CLOSE if part == CLOSE else _message(query, part) for part in said]
        _mangle(made, step.get("mangle", []))
        return [part if isinstance(part, str) else part.to_wire(max_size=65535) for part in made]


def _message(
    query: dns.message.Message, lines: list[str], rcode: str = "NOERROR"
) -> dns.message.Message:
    answer = dns.message.make_response(query)
    answer.flags |= dns.flags.AA
    answer.set_rcode(dns.rcode.from_text(rcode))
    zone = query.question[0].name
    for line in lines:
        name, ttl, rtype, data = line.split(None, 3)
        rdata = dns.rdata.from_text("IN", rtype, data, origin=zone, relativize=False)
        owner = dns.name.from_text(name, zone)
        answer.answer.append(dns.rrset.from_rdata(owner, int(ttl), rdata))
    return answer


def _mangle(made: list[Any], how: list[str]) -> None:
    messages = [part for part in made if part != CLOSE]
    for kind in how:
        if kind == "id":
            messages[-1].id ^= 1
        elif kind == "noquestion":
            for message in messages[1:]:
                message.question = []
        elif kind == "noaa":
            for message in messages:
                message.flags &= ~dns.flags.AA


class MemoryClient:
    """`domain.ports.TransferClient` that reaches scripts by their address."""

    def __init__(self, **scripts: Script) -> None:
        self.scripts = {name.replace("_", "."): script for name, script in scripts.items()}
        self.before_message: Callable[[], None] = lambda: None

    async def ask(self, peer: Peer, query: bytes, *, stream: bool = False) -> bytes:
        answers = self.scripts[peer.address].answers(query, stream=stream)
        if not answers or not isinstance(answers[0], bytes):
            raise Unreachable("it does not answer")
        return answers[0]

    async def fetch(self, peer: Peer, query: bytes) -> AsyncGenerator[bytes, None]:
        script = self.scripts[peer.address]
        answers = script.answers(query, stream=True)
        if script.is_slow is not None:
            await script.is_slow.wait()
        if answers is None:
            raise Unreachable("it stalls")
        for answer in answers:
            self.before_message()
            if isinstance(answer, str):
                return
            yield answer
        raise Unreachable("it stalls")


class SocketPrimary:
    """A script on one port of UDP and TCP."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._udp, self._tcp = _pair()
        self.port: int = self._tcp.getsockname()[1]

    @contextmanager
    def serving(self) -> Iterator["SocketPrimary"]:
        threads = [
            threading.Thread(target=run, daemon=True) for run in (self._datagrams, self._accept)
        ]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            for sock in (self._udp, self._tcp):
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
                sock.close()
            for thread in threads:
                thread.join(5)

    def _datagrams(self) -> None:
        with suppress(OSError):
            while True:
                query, client = self._udp.recvfrom(65535)
                if not query:
                    return
                for answer in (self.script.answers(query, stream=False) or [])[:1]:
                    if isinstance(answer, bytes):
                        self._udp.sendto(answer, client)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._tcp.accept()
                threading.Thread(target=self._connection, args=(connection,), daemon=True).start()

    def _connection(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, struct.error):
            connection.settimeout(60)
            while True:
                size = struct.unpack("!H", _exactly(connection, 2))[0]
                answers = self.script.answers(_exactly(connection, size), stream=True)
                for answer in answers or []:
                    if isinstance(answer, str):
                        return
                    connection.sendall(struct.pack("!H", len(answer)) + answer)


def _exactly(connection: socket.socket, size: int) -> bytes:
    octets = b""
    while len(octets) < size:
        part = connection.recv(size - len(octets))
        if not part:
            raise OSError("the client is gone")
        octets += part
    return octets


def _pair() -> tuple[socket.socket, socket.socket]:
    for _ in range(50):
        tcp = socket.socket()
        tcp.bind(("127.0.0.1", 0))
        udp = socket.socket(type=socket.SOCK_DGRAM)
        try:
            udp.bind(tcp.getsockname())
        except OSError:
            tcp.close()
            udp.close()
            continue
        tcp.listen(128)
        return udp, tcp
    raise AssertionError("no port that is free for both")
