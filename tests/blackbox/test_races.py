"""Several processes at once."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.blackbox.program import (
    Done,
    command,
    kudurru,
    records,
    serving,
    write_json,
    zone,
)

RACERS = 8


def race(commands: list[list[str | Path]]) -> list[Done]:
    """Run commands at the same time."""
    with ThreadPoolExecutor(len(commands)) as pool:
        return list(pool.map(lambda args: kudurru(*args), commands))


@pytest.mark.parametrize("is_served", [True, False], ids=["server", "directory"])
def test_of_eight_managers_that_create_one_object_one_wins_and_is_named_to_the_others(
    is_served: bool, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    file = write_json(tmp_path / "zone.json", zone("raced.example"))
    commands: list[list[str | Path]] = [
        ["apply", "-f", file, "--data", data, "--manager", f"m{i}"] for i in range(RACERS)
    ]
    if is_served:
        with serving(data) as server:
            results = race(commands)
            assert server.ask("raced.example", "SOA").answer
    else:
        results = race(commands)
    winners = [i for i, (code, _, _) in enumerate(results) if code == 0]
    assert len(winners) == 1, results
    for i, (code, out, err) in enumerate(results):
        if i not in winners:
            assert (code, out) == (1, "")
            assert f"DNSZone raced.example is managed by 'm{winners[0]}'" in err
    history = command("history", "zone/raced.example", "--data", data, "-o", "json").json()
    assert [event["verb"] for event in history] == ["created"]
    assert command("audit", "verify", "--level", "state", "--data", data).code == 0


def test_changes_of_several_processes_are_all_kept(tmp_path: Path) -> None:
    data = tmp_path / "data"
    base = write_json(tmp_path / "zone.json", zone("busy.example"))
    files = [
        write_json(
            tmp_path / f"{i}.json",
            records(f"h{i}", "busy.example", (f"h{i}.busy.example", "A", f"192.0.2.{i}")),
        )
        for i in range(RACERS)
    ]
    with serving(data) as server:
        assert command("apply", "-f", base, "--data", data).code == 0
        results = race([["apply", "-f", file, "--data", data] for file in files])
        assert [code for code, _, _ in results] == [0] * RACERS
        for i in range(RACERS):
            assert server.texts(f"h{i}.busy.example") == [f"192.0.2.{i}"]
    assert command("audit", "verify", "--level", "state", "--data", data).code == 0
