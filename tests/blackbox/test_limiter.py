"""A flood against the real program."""

import re
import socket
import time
import urllib.request
from pathlib import Path

from tests.blackbox.program import Serving, serving
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
        drops = shown['kudurru_ratelimit_verdicts_total{action="drop"}']
        assert drops == 120 - len(answers) == shown['kudurru_dns_dropped_total{reason="ratelimit"}']
        name = "kudurru_dns_responses_total"
        assert shown[f'{name}{{listener="none",rcode="none",source="ratelimit"}}'] == drops


def test_loopback_is_exempt_unless_the_settings_say_otherwise(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--demo") as server:
        assert len(flood(server, query("www.demo.example"), 900)) == 900


def flood(server: Serving, packet: bytes, count: int) -> list[bytes]:
    """Send a question so often, some at a time, and see what comes back. The health name is never
    limited: its answer tells that the answers before it have come."""
    answers = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((server.host, server.port))
        sock.settimeout(60)
        last = query("health.kudurru.internal", ident=0xFFFF)
        while count:
            now = min(count, 30)
            count -= now
            for one in [packet] * now + [last]:
                sock.send(one)
            while (answer := sock.recv(4096))[:2] != last[:2]:
                answers.append(answer)
    return answers


def metrics(server: Serving) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{server.addresses['metrics']}/metrics") as reply:
        text = reply.read().decode()
    return {name: float(value) for name, value in re.findall(r"(?m)^([^#\s]+) (\S+)$", text)}
