"""kudurru doctor, on a running server and on a directory."""

from pathlib import Path

from kudurru.adapters.clock import SystemEntropy
from kudurru.adapters.data_dir import open_data_dir
from kudurru.adapters.dns import engine_native
from kudurru.adapters.signing import KeyFolder
from kudurru.entrypoints.log_place import open_event_log
from tests.blackbox.program import command, records, serving, write_json, zone


def checks(data: Path) -> tuple[int, dict[str, tuple[str, str]]]:
    """Exit code, and status and message of each check."""
    done = command("doctor", "--data", data, "-o", "json")
    report = done.json()
    found = {one["check"]: (one["status"], one["message"]) for one in report["checks"]}
    statuses = [status for status, _ in found.values()]
    assert report["failures"] == statuses.count("fail")
    assert report["warnings"] == statuses.count("warn")
    assert len(found) == len(report["checks"])
    return done.code, found


def test_a_healthy_server_has_one_warning_and_says_what_to_do(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data):
        code, found = checks(data)
        assert code == 0
        del found["disk"]  # this machine's own
        assert {name: status for name, (status, _) in found.items() if status != "ok"} == {
            "checkpoints": "warn"
        }
        assert "set audit.checkpoint.publish" in found["checkpoints"][1]
        assert list(found) == [
            *("config", "api", "token", "diagnoses", "dataDir", "ready", "listeners", "engine"),
            *("log", "checkpoints", "clock", "transfers", "upstreams", "certificate", "lists"),
        ]
        assert "admin, through the socket" in found["token"][1]
        assert found["listeners"][1].startswith("bound: udp 127.0.0.1:")
        native = "native: threads answer" if engine_native.is_available() else "Python: "
        assert found["engine"][1].startswith(native)
        table = command("doctor", "--data", data)
        assert table.out.splitlines()[0].split() == ["STATUS", "CHECK", "MESSAGE"]
        assert "failures: " in table.err


def test_what_is_wrong_is_found(tmp_path: Path) -> None:
    data = tmp_path / "data"
    env = {"KUDURRU__AUDIT__CHECKPOINT__PUBLISH": str(tmp_path / "elsewhere/")}
    with serving(data, env=env):
        file = write_json(
            tmp_path / "objects.json",
            zone("a.example", transfer={"allow": ["192.0.2.0/24"]}),
            records("orphan", "b.example", ("x.b.example", "A", "192.0.2.1")),
        )
        assert command("apply", "-f", file, "--data", data).code == 0
        assert command("config", "set", "tsig.allowOld", "true", "--data", data).code == 0
        (data / "log.db").chmod(0o644)
        code, found = checks(data)
        assert (code, found["checkpoints"][0]) == (0, "ok")
        assert found["config"] == ("warn", "a restart is needed for tsig.allowOld")
        assert found["transfers"][0] == "warn"
        assert "open to addresses alone" in found["transfers"][1]
        assert found["diagnoses"][0] == "warn"
        assert "orphan" in found["diagnoses"][1]
        assert found["dataDir"][0] == "warn"
        (data / "keys" / "cookies").chmod(0o640)
        code, found = checks(data)
        assert code == 1
        assert found["dataDir"] == (
            "fail",
            f"others may read cookies: run `chmod -R go-rwx {data}`",
        )


def test_a_directory_without_a_server_is_looked_over_too(tmp_path: Path) -> None:
    data = tmp_path / "data"
    code, found = checks(data)
    assert code == 1
    assert "there is no data directory" in found["dataDir"][1]
    file = write_json(tmp_path / "zone.json", zone("a.example"))
    assert command("apply", "-f", file, "--data", data).code == 0
    code, found = checks(data)
    assert (code, found["api"][0], found["log"][0]) == (0, "warn", "ok")
    bad = tmp_path / "bad.yaml"
    bad.write_text("a: 1\n")
    done = command("doctor", "--data", data, "--config", bad)
    assert done.code == 1
    assert "there is no key a" in done.out


def test_a_look_at_a_directory_makes_no_key(tmp_path: Path) -> None:
    data = tmp_path / "data"
    file = write_json(tmp_path / "zone.json", zone("a.example"))
    assert command("apply", "-f", file, "--data", data).code == 0
    assert "set audit.checkpoint.publish" in checks(data)[1]["checkpoints"][1]
    key = KeyFolder(data / "keys", "", SystemEntropy()).path
    aside = key.rename(tmp_path / "aside")
    before = sorted(path.name for path in data.rglob("*"))
    status, message = checks(data)[1]["checkpoints"]
    assert status == "warn"
    assert "put the key back" in message
    assert sorted(path.name for path in data.rglob("*")) == before
    aside.rename(key)
    open_event_log(open_data_dir(tmp_path / "new", create=True), create=True).close()
    assert checks(tmp_path / "new")[1]["checkpoints"][1].startswith("there is no key yet")
    assert not list((tmp_path / "new" / "keys").iterdir())
