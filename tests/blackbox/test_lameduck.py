"""Draining a server by hand, and asking whether it is ready, as containers do."""

import json
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.blackbox.program import (
    Serving,
    command,
    kudurru,
    serving,
    wait_until,
    write_json,
    zone,
)

HEALTH = "health.kudurru.internal"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = write_json(tmp_path / "zone.json", zone("example.org"))
    assert command("apply", "-f", file, "--data", tmp_path / "data").code == 0
    return tmp_path / "data"


def at(server: Serving) -> list[str]:
    return ["--ops", server.addresses["ops"]]


def readiness(server: Serving) -> int:
    try:
        with urlopen(f"http://{server.addresses['ops']}/readyz") as response:
            return int(response.status)
    except HTTPError as error:
        return error.code


def test_in_lameduck_everything_is_answered_but_the_health_name(data: Path) -> None:
    with serving(data) as server:
        assert server.texts(HEALTH) == ["127.0.0.1"]
        soa = server.texts("example.org", "SOA")
        assert kudurru("healthcheck", *at(server)).out == "ready\n"
        done = kudurru("lameduck", "0s", *at(server))
        assert (done.code, done.out) == (0, "lameduck; waiting 0 s\n")
        assert server.texts(HEALTH) == ["SERVFAIL"]
        assert server.texts("example.org", "SOA") == soa
        assert readiness(server) == 503
        asked = command("healthcheck", *at(server))
        assert asked.code == 1
        assert "not ready: Lameduck: somebody asked for it" in asked.err
        assert command("healthcheck", "--live", *at(server)).out == "live\n"
        done = command("lameduck", "--cancel", *at(server))
        assert (done.code, done.out) == (0, "queries are welcome again\n")
        assert server.texts(HEALTH) == ["127.0.0.1"]
        assert readiness(server) == 200


def test_it_waits_as_long_as_it_was_told_or_as_the_settings_say(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    with serving(data) as server:
        monkeypatch.setenv("KUDURRU__HEALTH__LAMEDUCK", "7s")
        monkeypatch.setenv("KUDURRU__OPS__ADDRESS", server.addresses["ops"])
        assert command("lameduck").code == 0
        assert command("lameduck", "90s").code == 0
        assert command("lameduck", "--cancel").code == 0
    assert [seconds for seconds in slept if seconds in (0, 7, 90)] == [7, 90, 0]


def test_a_server_that_stops_is_in_lameduck_for_good(data: Path) -> None:
    with serving(data, env={"KUDURRU__HEALTH__LAMEDUCK": "1h"}) as server:
        server.process.terminate()
        wait_until(lambda: server.texts(HEALTH) == ["SERVFAIL"])
        done = command("lameduck", "--cancel", *at(server))
        assert done.code == 1
        assert "the server is stopping, which is not taken back" in done.err
        assert server.texts(HEALTH) == ["SERVFAIL"]
        server.process.terminate()  # twice: nobody waits any more
        assert server.process.wait(30) == 0


def test_only_the_operations_listener_takes_it(data: Path) -> None:
    with serving(data) as server:
        for listener, code in (("http", 401), ("metrics", 404), ("ops", 403)):
            request = Request(f"http://{server.addresses[listener]}/lameduck", method="POST")
            with pytest.raises(HTTPError) as refused:
                urlopen(request)
            with refused.value as response:
                assert response.code == code
                assert json.load(response)["kind"] == "Status"


@pytest.mark.parametrize(
    ("args", "code", "why"),
    [
        (["lameduck", "soon"], 1, "DURATION"),
        (["lameduck", "5s", "--cancel"], 1, "--cancel waits for nothing"),
        (["lameduck", "--ops", "nowhere"], 1, "--ops"),
        (["lameduck", "--ops", "127.0.0.1:1"], 1, "no server of ours answers at 127.0.0.1:1"),
        (["healthcheck", "--ops", "127.0.0.1:1"], 1, "no server of ours answers at 127.0.0.1:1"),
        (["healthcheck", "now"], 2, "unexpected extra argument"),
    ],
)
def test_what_cannot_be_asked_is_said(args: list[str], code: int, why: str) -> None:
    done = command(*args)
    assert (done.code, done.out) == (code, "")
    assert why in done.err
