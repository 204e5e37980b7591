"""A flood against the real program."""

import re
import select
import socket
import time
import urllib.request
from pathlib import Path

from tests.blackbox.program import PATIENCE_S, Serving, serving
from tests.packets import query

SETTINGS = """\
ratelimit:
  ipv4: {32: 20, 24: 0}
  exempt: []
"""


def test_a_flood_gets_its_allowance_then_half_of_it_tc_and_real_clients_come_back_over_tcp(
    tmp_path: Path,
) -> None:
    file = tmp_path / "kudurru.yaml"
    file.write_text(SETTINGS)
    with serving(tmp_path / "data", "--demo", "--config", str(file)) as server:
        begun = time.monotonic()
        answers = flood(server, query("www.demo.example"), 120)
        took_s = time.monotonic() - begun
        full = [answer for answer in answers if answer[7]]
        empty = [answer for answer in answers if answer[2] & 2]
        # A token comes back every three seconds; the flood is over before that, but for a machine
        # that stands still.
        assert 20 <= len(full) <= 21 + took_s / 3
        assert (120 - len(full)) // 2 <= len(empty) <= (121 - len(full)) // 2
        assert server.ask("health.kudurru.internal").rcode() == 0
        assert server.ask("www.demo.example", tcp=True).answer
        shown = metrics(server)
        assert shown["kudurru_ratelimit_buckets"] == 1
        assert shown['kudurru_ratelimit_verdicts_total{action="slip"}'] == len(empty)
        drops = shown[DROPS]
        assert drops == 120 - len(answers) == shown['kudurru_dns_dropped_total{reason="ratelimit"}']
        name = "kudurru_dns_responses_total"
        assert shown[f'{name}{{listener="none",rcode="none",source="ratelimit"}}'] == drops


def test_loopback_is_exempt_unless_the_settings_say_otherwise(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--demo") as server:
        assert len(flood(server, query("www.demo.example"), 900)) == 900


def flood(server: Serving, packet: bytes, count: int) -> list[bytes]:
    """Send a question so often, some at a time, and see what comes back. A server has several
    sockets and threads for one address, so answers come in any order and none is the last one: each
    question has to be answered, or counted as dropped."""
    answers: list[bytes] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((server.host, server.port))
        for sent in range(0, count, AT_ONCE):
            now = min(count - sent, AT_ONCE)
            for _ in range(now):
                sock.send(packet)
            receive(server, sock, answers, sent + now)
    return answers


AT_ONCE = 30
QUIET_S = 0.05  # then it may be that the rest was dropped


def receive(server: Serving, sock: socket.socket, answers: list[bytes], sent: int) -> None:
    """Wait until it is known of all questions that were sent what became of them."""
    deadline, dropped = time.monotonic() + PATIENCE_S, 0.0
    while len(answers) + dropped < sent:
        assert time.monotonic() < deadline, f"{sent} sent: {len(answers)} back, {dropped} dropped"
        if select.select([sock], [], [], QUIET_S)[0]:
            answers.append(sock.recv(4096))
        else:
            dropped = metrics(server).get(DROPS, 0.0)
    assert len(answers) + dropped == sent


DROPS = 'kudurru_ratelimit_verdicts_total{action="drop"}'


def metrics(server: Serving) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{server.addresses['metrics']}/metrics") as reply:
        text = reply.read().decode()
    return {name: float(value) for name, value in re.findall(r"(?m)^([^#\s]+) (\S+)$", text)}
