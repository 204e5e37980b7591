"""kudurru replay: views from nothing, as figures and as files."""

from pathlib import Path
from typing import Any

import pytest

from tests.blackbox.program import (
    command,
    on_a_terminal,
    records,
    write_json,
    zone,
)


@pytest.fixture(name="data")
def a_directory(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    for address in ("192.0.2.1", "192.0.2.2"):
        file = write_json(
            tmp_path / "zone.json",
            zone("example.org", nameservers=["ns.example.org"]),
            records("www", "example.org", ("www.example.org", "A", address)),
        )
        assert command("apply", "-f", file, "--data", data).code == 0
    return data


def replayed(data: Path, *args: str | Path) -> Any:
    done = command("replay", "--data", data, "--json", *args)
    assert done.code == 0, done
    return done.json()


@pytest.mark.parametrize("view", ["objects", "zones", "clock"])
def test_one_view_is_rebuilt_as_all_of_them_are(data: Path, view: str) -> None:
    whole, one = replayed(data), replayed(data, "--projection", view)
    assert one["digests"] == {view: whole["digests"][view]}
    assert one["position"] == whole["position"] > 0
    assert one["eventsPerSecond"] > 0
    checked = replayed(data, "--projection", view, "--verify")
    assert checked["digests"] == one["digests"]
    assert checked["stampsChecked"] == 2


@pytest.mark.parametrize(("target", "address"), [("3", "192.0.2.1"), ("mark:end", "192.0.2.2")])
def test_a_state_that_was_written_is_the_same_state_where_it_is_applied(
    data: Path, tmp_path: Path, target: str, address: str
) -> None:
    assert command("audit", "mark", "end", "--data", data).code == 0
    there, again, other = tmp_path / "there", tmp_path / "again", tmp_path / "other"
    exported = replayed(data, "--to", target, "--export", there)["exported"]
    assert (exported["zones"], exported["manifests"], exported["first"]) == (1, 2, 0)
    assert address in (there / "example.org.zone").read_text()
    done = command("apply", "-f", there, "--data", other)
    assert done.code == 0, done
    assert replayed(other, "--export", again)["exported"]["stateDigest"] == exported["stateDigest"]
    for path in there.glob("manifests/*"):
        assert (again / "manifests" / path.name).read_bytes() == path.read_bytes()


def test_a_terminal_sees_how_far_it_is_and_a_file_does_not(data: Path) -> None:
    out, shown = on_a_terminal("replay", "--verify", "--data", data, "--json")
    assert "replaying" in shown
    assert "verifying" in shown
    assert "replaying" not in out
    assert command("replay", "--verify", "--data", data, "--json").err == ""
