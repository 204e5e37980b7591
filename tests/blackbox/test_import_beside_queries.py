"""What a client sees of a server that imports a large zone."""

import socket
import threading
import time
from pathlib import Path

import pytest

from tests.blackbox.program import kudurru, serving
from tests.packets import query
from tests.saying import Say

RECORDS = 50_000
ANSWERS_MIN = 200
"""Answers while the import runs: a turn of the loop each. It takes about ten seconds, and hundreds
of turns; one that blocked the loop would leave a handful."""


@pytest.mark.slow
def test_queries_are_answered_while_a_large_zone_is_imported(tmp_path: Path, say: Say) -> None:
    file = tmp_path / "large.zone"
    file.write_text(
        "$ORIGIN large.example.\n$TTL 300\n@ SOA ns host 7 3600 600 86400 300\n@ NS ns\n"
        "ns A 192.0.2.1\n"
        + "".join(f"h{i} A 10.0.{i >> 8 & 255}.{i & 255}\n" for i in range(RECORDS))
    )
    with serving(tmp_path / "data", "--demo") as server:
        client = Client(server.host, server.port)
        client.start()
        done = kudurru("zone", "import", file, "--data", tmp_path / "data")
        client.stop()
        assert done.code == 0, done.err
        assert server.texts(f"h{RECORDS - 1}.large.example") == ["10.0.195.79"]
    say(
        f"suite import-beside-queries: {RECORDS:,} records in {client.took_s:.1f} s, "
        f"{client.answers} answers meanwhile, longest gap {client.gap_s * 1000:.0f} ms"
    )
    assert client.answers >= ANSWERS_MIN


class Client(threading.Thread):
    """Asks again as soon as it has its answer."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__()
        self._address = host, port
        self._is_over = threading.Event()
        self.answers = 0
        self.gap_s = self.took_s = 0.0

    def run(self) -> None:
        packet = query("www.demo.example")
        begun = last = time.monotonic()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect(self._address)
            sock.settimeout(30)
            while not self._is_over.wait(0.001):
                sock.send(packet)
                sock.recv(4096)
                now = time.monotonic()
                self.answers += 1
                self.gap_s = max(self.gap_s, now - last)
                last = now
        self.took_s = time.monotonic() - begun

    def stop(self) -> None:
        self._is_over.set()
        self.join()
