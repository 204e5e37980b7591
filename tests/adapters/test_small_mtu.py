"""An answer longer than its interface takes is not sent in pieces, but to be had over TCP."""

import sys

import pytest

from kudurru.adapters.dns import mmsg
from kudurru.adapters.dns.engine_native import is_available
from tests.absent import absent
from tests.network_apart import ran_apart

PROGRAM = """
import asyncio, socket, sys
from functools import partial
import dns.flags, dns.message, dns.rrset
from kudurru.adapters.dns.engine_native import NativeEngine
from kudurru.adapters.dns.engine_python import PythonEngine
from kudurru.adapters.sockets import Listener, bind_all
from kudurru.domain.ports import Reply

ENGINES = {
    "native": NativeEngine,
    "batched": partial(PythonEngine, batched=True),
    "single": partial(PythonEngine, batched=False),
}

class Handler:
    tells_clients_apart = False

    def handle(self, packet, client, proto, client_id=""):
        query = dns.message.from_wire(packet)
        reply = dns.message.make_response(query)
        parts = ["x" * 200 + str(i) for i in range(5)]
        reply.answer.append(dns.rrset.from_text(query.question[0].name, 60, "IN", "TXT", *parts))
        return Reply(reply.to_wire(), True)

def ask(port, edns):
    query = dns.message.make_query("big.example.", "TXT")
    query.use_edns(edns, payload=1232)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(30)
        sock.sendto(query.to_wire(), ("127.0.0.1", port))
        reply = dns.message.from_wire(sock.recv(5000))
    assert query.is_response(reply), reply
    print(bool(reply.flags & dns.flags.TC), len(reply.answer), reply.edns)

def ask_at_once(sock, port):
    for i in range(4):
        query = dns.message.make_query("big.example.", "TXT", id=i, use_edns=0, payload=1232)
        sock.sendto(query.to_wire(), ("127.0.0.1", port))

def hear(sock):
    sock.settimeout(30)
    replies = [dns.message.from_wire(sock.recv(5000)) for _ in range(4)]
    cut = {bool(reply.flags & dns.flags.TC) for reply in replies}
    print(sorted(reply.id for reply in replies), cut)

async def main():
    (bound,) = bind_all([Listener("udp", "127.0.0.1:0")])
    engine = ENGINES[sys.argv[1]](Handler(), bound.sockets)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        ask_at_once(sock, bound.sockets[0].getsockname()[1])  # they wait for the engine
        await engine.start()
        await asyncio.to_thread(hear, sock)
    for edns in (0, 0, -1):  # asked, and repeated
        await asyncio.to_thread(ask, bound.sockets[0].getsockname()[1], edns)
    seen = engine.statistics()
    print(seen.answered, seen.send_errors, seen.unhandled_exceptions, seen.memo_unsent)
    await engine.stop()

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")
@pytest.mark.parametrize("engine", ["native", "batched", "single"])
@pytest.mark.parametrize(("mtu", "of_each"), [(576, ["True", "0"]), (1500, ["False", "1"])])
def test_an_answer_too_long_for_the_interface_sends_its_asker_to_tcp(
    engine: str, mtu: int, of_each: list[str]
) -> None:
    if engine == "native" and not is_available():
        absent("the native engine is not built")
    if engine == "batched" and not mmsg.is_available():
        absent("there are no batches here")
    done = ran_apart([f"ip link set lo mtu {mtu}"], PROGRAM, engine)
    at_once, *lines = done.stdout.splitlines()
    assert at_once == f"[0, 1, 2, 3] {{{of_each[0]}}}", done.stderr
    expected = [*of_each, "0", *of_each, "0", *of_each, "-1", "7", "0", "0", "0"]
    assert " ".join(lines).split() == expected, done.stderr
