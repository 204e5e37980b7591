"""The query log of a real server: what people see of it, and what is on the disk."""

import json
import select
import stat
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.blackbox.program import (
    Serving,
    command,
    command_line,
    environment,
    files_in,
    read_line,
    serving,
    wait_until,
    write_json,
)
from tests.blackbox.test_filtering import GROWN_UP, KID, OBJECTS, document, told
from tests.real_servers import need


def queries(data: Path, *options: str) -> list[dict[str, Any]]:
    done = command("queries", "--data", data, *options, "-o", "json")
    if done.code:
        assert "no query log" in done.err or "being made" in done.err
        return []
    found: list[dict[str, Any]] = done.json()
    return found


def count(data: Path, *options: str) -> int:
    return sum(one["count"] for one in queries(data, *options))


def octets(data: Path) -> bytes:
    return b"".join(held for file, held in files_in(data).items() if "querylog" in file.name)


def test_every_query_is_logged_also_those_that_the_engine_repeats(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data, "--demo") as server:
        file = write_json(tmp_path / "objects.json", *OBJECTS)
        assert command("apply", "--data", data, "-f", file).code == 0
        for _ in range(5):
            told(server, GROWN_UP, "www.demo.example")  # the engine answers four of them
        for _ in range(3):
            told(server, KID, "games.example")
        wait_until(lambda: count(data) == 8)
        assert {one["client"]: one["source"] for one in queries(data)} == {
            GROWN_UP: "authoritative",
            KID: "blocked",
        }
        assert count(data, "--name", "demo.example") == 5
        blocked = queries(data, "--blocked")[0]
        assert (blocked["policy"], blocked["rule"], blocked["reason"]) == (
            "default/kids",
            "games.example",
            "policy-deny",
        )
        with urllib.request.urlopen(f"http://{server.addresses['metrics']}/metrics") as page:
            metrics = page.read().decode()
        assert 'kudurru_blocked_total{list="",policy="default/kids"} 3.0' in metrics
        assert 'kudurru_querylog_dropped_total{reason="full"} 0.0' in metrics
        top = command("top", "blocked", "--data", data, "-o", "json").json()
        assert top["top"] == [{"text": "games.example", "queries": 3, "blocked": 3}]
        table = command("top", "clients", "--data", data).out.splitlines()
        assert table[1].split() == [GROWN_UP, "5", "0"]
        done = command("queries", "--purge", "--data", data, "-o", "json")
        assert done.json() == {"deleted": 8}
        assert queries(data) == []
        told(server, KID, "late.example")
    assert [one["name"] for one in queries(data)] == ["late.example"]  # written at the end
    assert stat.S_IMODE((data / "querylog.db").stat().st_mode) == 0o600
    exported = command("queries", "--data", data, "--limit", "0", "-o", "jsonl")
    assert len(exported.out.splitlines()) == 1
    assert command("queries", "--purge", "--data", data).out == "deleted 1 query\n"


def test_a_purge_over_the_api_says_how_many_are_gone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data, "--demo") as server:
        made = command("token", "create", "purger", "--role", "admin", "--data", data, "-o", "json")

        def purged(query: str = "") -> Any:
            request = urllib.request.Request(
                f"http://{server.addresses['http']}/api/v1/querylog{query}",
                headers={"Authorization": f"Bearer {made.json()['token']}"},
                method="DELETE",
            )
            with urllib.request.urlopen(request) as answer:
                return json.load(answer)

        for _ in range(3):
            told(server, KID, "www.demo.example")
        wait_until(lambda: count(data) == 3)
        assert purged("?before=1h%20ago") == {"deleted": 0}
        assert purged() == {"deleted": 3}
        assert queries(data) == []


@pytest.mark.parametrize("level", ["2", "3"])
def test_at_a_high_level_no_client_is_on_the_disk(tmp_path: Path, level: str) -> None:
    data = tmp_path / "data"
    env = {"KUDURRU__QUERYLOG__PRIVACYLEVEL": level}
    with serving(data, "--demo", env=env) as server:
        for _ in range(3):
            told(server, KID, "www.demo.example")
    assert count(data) == (3 if level == "2" else 0)
    assert (KID.encode() in octets(data), bytes((127, 0, 0, 2)) in octets(data)) == (False, False)
    totals = command("top", "--data", data, "-o", "json").json()["totals"]
    assert totals == {"authoritative": 3}


def test_queries_are_followed_as_they_come(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data, "--demo") as server:
        told(server, KID, "www.demo.example")
        wait_until(lambda: count(data) == 1)
        follow = command_line("queries", "--data", data, "--follow", "-o", "jsonl")
        process = subprocess.Popen(follow, stdout=subprocess.PIPE, text=True, env=environment())
        try:
            asked: list[str] = []

            def seen() -> bool:
                # Asked until it is followed: what came before the start is not shown.
                asked.append(f"n{len(asked)}.demo.example")
                told(server, KID, asked[-1])
                assert process.stdout is not None
                return bool(select.select([process.stdout], [], [], 0.1)[0])

            wait_until(seen)
            assert json.loads(read_line(process))["name"] in asked
        finally:
            process.kill()
            process.communicate()


def test_a_policy_may_want_no_trace_of_its_clients(tmp_path: Path) -> None:
    data = tmp_path / "data"
    quiet = [
        document("ClientGroup", "kids", {"clients": [{"ip": KID}]}),
        document("Policy", "quiet", {"clientGroupRefs": ["kids"], "queryLog": False,
                                     "deny": ["secret.example"]}),
        document("Policy", "rest", {"deny": ["ads.example"]}),
    ]  # fmt: skip
    with serving(data, "--demo") as server:
        told(server, GROWN_UP, "www.demo.example")  # the engine knows the answer from now on
        file = write_json(tmp_path / "objects.json", *quiet)
        assert command("apply", "--data", data, "-f", file).code == 0
        for _ in range(2):
            told(server, KID, "secret.example")
            told(server, KID, "other.secret.example")
            told(server, KID, "www.demo.example")
            told(server, GROWN_UP, "ads.example")
            told(server, GROWN_UP, "www.demo.example")
    assert count(data) == 5
    assert {one["client"] for one in queries(data)} == {GROWN_UP}
    assert b"secret" not in octets(data)


def test_a_query_log_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "querylog.db").mkdir()
    with serving(data, "--demo") as server:
        for _ in range(3):
            assert told(server, KID, "www.demo.example").startswith("NOERROR")


def test_a_server_may_keep_no_query_log(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data, "--demo", env={"KUDURRU__QUERYLOG__ENABLED": "false"}) as server:
        told(server, KID, "www.demo.example")
        assert command("queries", "--purge", "--data", data).code == 1
    assert not (data / "querylog.db").exists()
    assert "no query log" in command("queries", "--data", data).err


ASKED = (
    "www.demo.example A\nWWW.demo.example AAAA\nnone.demo.example A\nads.example A\nnas.test A\n"
)
TIMES = 2_000  # each of these
BLOCKED = document("Policy", "everybody", {"deny": ["ads.example"]})


def counted(server: Serving, *names: str) -> int:
    """Sum of metrics over all their labels, without what is about the server itself."""
    with urllib.request.urlopen(f"http://{server.addresses['metrics']}/metrics") as page:
        lines = page.read().decode().splitlines()
    return sum(
        int(float(line.rpartition(" ")[2]))
        for line in lines
        if line.startswith(names) and 'source="server"' not in line
    )


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "engine"), [("udp", "auto"), ("udp", "python"), ("tcp", "auto")])
@pytest.mark.parametrize("one_in", [1, 100])
def test_what_a_client_got_is_counted_and_logged_or_dropped(
    one_in: int, mode: str, engine: str, tmp_path: Path
) -> None:
    """At one in a hundred within a hundred for each thread, of which two answer, and Python."""
    dnsperf = need("dnsperf")
    (tmp_path / "asked").write_text(ASKED)
    settings = {
        "KUDURRU__QUERYLOG__SAMPLE": str(one_in),
        "KUDURRU__LISTENERS__SOCKETS": "2",
        "KUDURRU__DNS__ENGINE": engine,
    }
    data = tmp_path / "data"
    with serving(data, "--demo", env=settings) as server:
        file = write_json(tmp_path / "objects.json", BLOCKED)
        assert command("apply", "--data", data, "-f", file).code == 0
        shown = subprocess.check_output([
            dnsperf, "-m", mode, "-s", server.host, "-p", str(server.port), "-c", "4", "-q", "40",
            "-d", tmp_path / "asked", "-n", str(TIMES), "-t", "30",
        ], text=True)  # fmt: skip
        sent = 5 * TIMES
        assert f"Queries completed:    {sent} " in shown, shown
        assert counted(server, "kudurru_dns_responses_total{") == sent

        def accounted() -> int:
            dropped = counted(server, "kudurru_querylog_dropped_total{")
            return count(data, "--limit", "0") + dropped * one_in

        wait_until(lambda: abs(accounted() - sent) < (3 * one_in if one_in > 1 else 1))
        rows = queries(data, "--limit", "0")
        assert {row["source"] for row in rows} == {"authoritative", "blocked", "refused"}
        assert one_in == 1 or {row["count"] % one_in for row in rows} == {0}
