"""Records that say when they go."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.blackbox.program import kudurru, records, serving, wait_until, write_json

NAME = "guest.demo.example"


@pytest.mark.slow
def test_a_record_goes_at_its_time_without_a_query_or_a_change_and_the_serial_follows(
    tmp_path: Path,
) -> None:
    guest = records("guest", "demo.example", (NAME, "A", "192.0.2.7"))
    with serving(tmp_path / "data", "--demo") as server:
        begun = time.monotonic()
        assert kudurru("get", "rs", "--data", tmp_path / "data").code == 0
        # What is asked first has to be there: it stays several times as long as a command takes.
        stays_s = 10 + 3 * int(time.monotonic() - begun)
        leaves_at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=stays_s)
        guest["spec"]["endpoints"][0]["expiresAt"] = leaves_at.strftime("%Y-%m-%dT%H:%M:%SZ")
        file = write_json(tmp_path / "guest.json", guest)
        first = server.ask("demo.example", "SOA").answer[0][0].serial
        assert kudurru("apply", "-f", file, "--data", tmp_path / "data").code == 0
        answer = server.ask(NAME)
        assert answer.answer[0].ttl <= stays_s
        serial = wait_until(lambda: stamped(server, first))
        wait_until(lambda: server.texts(NAME) == ["NXDOMAIN"])
        seen_at = time.time()
        assert leaves_at.timestamp() <= seen_at
        assert wait_until(lambda: stamped(server, serial)) > serial
    after = kudurru("query", NAME, "A", "--data", tmp_path / "data")
    assert "NXDOMAIN" in after.out


def stamped(server, than: int) -> int | None:
    """The serial, once it is another."""
    serial = server.ask("demo.example", "SOA").answer[0][0].serial
    return serial if serial != than else None
