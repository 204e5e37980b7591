"""Knot, NSD and kudurru with the same zones on loopback, and a client that asks them all."""

import asyncio
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import dns.message

from kudurru.adapters.dns.engine_python import PythonEngine
from kudurru.adapters.sockets import Listener, bind_all
from kudurru.domain.ports import QueryHandler
from tests.differential.zones import Question, ZoneText
from tests.ports import free_port

PATIENCE_S = 60.0
WINDOW = 50
"""Questions asked before their answers are read: fewer than any socket buffer holds."""

KNOT = """\
server:
    rundir: "{folder}"
    listen: 127.0.0.1@{port}
log:
  - target: "{folder}/log"
    any: warning
database:
    storage: "{folder}"
template:
  - id: default
    semantic-checks: off
    zonefile-load: whole
    journal-content: none
    zonefile-sync: -1
zone:
"""
NSD = """\
server:
  ip-address: 127.0.0.1@{port}
  username: ""
  zonesdir: "{folder}"
  pidfile: "{folder}/pid"
  xfrdfile: "{folder}/xfrd"
  zonelistfile: "{folder}/list"
  xfrdir: "{folder}"
  logfile: "{folder}/log"
  minimal-responses: yes
  refuse-any: no
  rrl-ratelimit: 0
remote-control:
  control-enable: no
"""


@contextmanager
def peers(zones: Sequence[ZoneText]) -> Iterator[dict[str, int]]:
    """Knot and NSD serving the zones: their ports."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for zone in zones:
            (Path(folder) / f"{zone.origin}zone").write_text(zone.text)
        ports = {}
        for name, head, each, command in (
            ("knot", KNOT, '  - domain: "{0}"\n    file: "{1}"\n', ["knotd", "-c"]),
            ("nsd", NSD, 'zone:\n  name: "{0}"\n  zonefile: "{1}"\n', ["nsd", "-d", "-c"]),
        ):
            own = Path(folder) / name
            own.mkdir()
            ports[name] = port = free_port()
            text = head.format(folder=own, port=port)
            for zone in zones:
                text += each.format(zone.origin, Path(folder) / f"{zone.origin}zone")
            (own / "conf").write_text(text)
            process = stack.enter_context(
                subprocess.Popen(
                    [*command, str(own / "conf")],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
            stack.callback(process.terminate)
        for name, port in ports.items():
            wait_for(port, zones[-1].origin, Path(folder) / name / "log")
        yield ports


@contextmanager
def ours(handler: QueryHandler) -> Iterator[int]:
    """The Python engine over a handler, on a loop of its own: its port."""
    (bound,) = bind_all([Listener("udp", "127.0.0.1:0")])
    engine = PythonEngine(handler, bound.sockets)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(engine.start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield int(bound.address.rpartition(":")[2])
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(engine.stop())
        loop.close()


def ask_all(
    ports: Mapping[str, int], questions: Sequence[Question]
) -> Iterator[tuple[Question, dict[str, dns.message.Message]]]:
    """Every question with the answer of each server."""
    with ExitStack() as stack:
        sockets = {}
        for name, port in ports.items():
            sock = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            sock.connect(("127.0.0.1", port))
            sock.settimeout(PATIENCE_S)
            sockets[name] = sock
        for first in range(0, len(questions), WINDOW):
            some = questions[first : first + WINDOW]
            packets = [packet_of(i, question) for i, question in enumerate(some)]
            answers = {name: exchange(sock, packets) for name, sock in sockets.items()}
            for i, question in enumerate(some):
                yield question, {name: found[i] for name, found in answers.items()}


def exchange(sock: socket.socket, packets: Sequence[bytes]) -> dict[int, dns.message.Message]:
    for packet in packets:
        sock.send(packet)
    found = {}
    while len(found) < len(packets):
        message = dns.message.from_wire(sock.recv(4096), one_rr_per_rrset=True)
        found[message.id] = message
    return found


def packet_of(number: int, question: Question) -> bytes:
    query = dns.message.make_query(
        question.name, question.rtype, use_edns=0 if question.has_edns else False, payload=1232
    )
    query.id, query.flags = number, 0
    return query.to_wire()


def wait_for(port: int, origin: str, log: Path) -> None:
    """Until the zone is served."""
    deadline = time.monotonic() + PATIENCE_S
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("127.0.0.1", port))
        sock.settimeout(0.2)
        while True:
            try:
                if exchange(sock, [packet_of(0, Question(origin, "SOA", False))])[0].rcode() == 0:
                    return
            except OSError:
                pass  # not listening yet
            shown = log.read_text() if log.exists() else ""
            assert time.monotonic() < deadline, f"no answer at port {port}:\n{shown}"
