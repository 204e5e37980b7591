"""Settings of a running server: by `config set`, by files, and what they change."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.blackbox.program import (
    AT_ONCE,
    Serving,
    command,
    kudurru,
    serving,
    wait_until,
)
from tests.blackbox.test_api import Asking, first_token


def metric(server: Serving, name: str) -> float | None:
    url = f"http://{server.addresses['metrics']}/metrics"
    with urllib.request.urlopen(url, timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    found = [line.split()[-1] for line in lines if line.split()[0].split("{")[0] == name]
    return float(found[0]) if found else None


def shown(data: Path, key: str) -> dict[str, object]:
    done = command("config", "show", key, "--data", data, "-o", "json")
    assert done.code == 0, done.err
    row: dict[str, object] = done.json()[0]
    return row


def set_key(data: Path, key: str, value: str, *options: str) -> Any:
    done = command("config", "set", key, value, "--data", data, "-o", "json", *options)
    assert done.code == 0, done.err
    return done.json()


def test_what_is_set_is_in_the_log_and_comes_back_with_the_next_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data) as server:
        reply = set_key(data, "log.level", "debug", "--reason", "looking for something")
        seq = reply.pop("seq")
        assert reply == {
            "changed": {"log.level": "debug"},
            "kept": "log",
            "persisted": True,
            "restart": [],
        }
        assert "setting log.level is " in server.stderr()
        assert f"now, by position {seq}" in server.stderr()
        assert shown(data, "log.level")["source"] == f"log position {seq}"
        assert set_key(data, "querylog.enabled", "false")["restart"] == ["querylog.enabled"]
        assert "takes effect after a restart" in server.stderr()
        assert shown(data, "querylog.enabled")["running"] is True
    assert str(shown(data, "querylog.enabled")["source"]).startswith("log position ")
    with serving(data) as server:
        row = shown(data, "querylog.enabled")
        assert (row["value"], "running" in row) == (False, False)
        assert metric(server, "kudurru_querylog_written_total") is None
    events = command("history", "--data", data, "-o", "json").json()
    found = [event for event in events if event["object"] == "settings/cluster"]
    assert [(e["verb"], e["reason"]) for e in found] == [
        ("set", ""),
        ("set", "looking for something"),
    ]
    assert found[0]["changes"] == [{"field": "querylog.enabled", "to": False}]
    assert command("audit", "verify", "--data", data).code == 0


def test_a_command_without_a_server_changes_the_next_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    set_key(data, "health.lameduck", "7s")
    set_key(data, "ratelimit.ipv4.24", "77")
    assert shown(data, "health.lameduck")["value"] == "7s"
    with serving(data):
        row = shown(data, "ratelimit.ipv4")
        assert row["value"] == {"32": 600, "24": 77}
        assert str(row["source"]).startswith("default, log position ")
        # The environment of the test locks this one against the log.
        locked = command("config", "set", "health.lameduck", "1s", "--data", data)
        assert locked.code == 1
        assert f"set by {AT_ONCE}" in locked.err
        done = command("config", "unset", "ratelimit.ipv4.24", "--data", data)
        assert (done.code, done.out) == (0, "ratelimit.ipv4.24 unset in the log\n")
        assert shown(data, "ratelimit.ipv4")["value"] == {"32": 600, "24": 6000}
        again = command("config", "unset", "ratelimit.ipv4.24", "--data", data)
        assert (again.code, again.out) == (0, "unchanged\n")


REFUSED = [
    ("settingsFile", "x", "a key of the host"),
    ("store", "memory", "a key of the host"),
    ("snapshots.interval", "1h", "read when the process starts"),
    ("cache.maxEntrys", "1", "did you mean cache.maxEntries?"),
    ("cache.maxEntries", "-1", "is below 0"),
    ("upstreams.default", "192.0.2.1", "did you mean upstreams.groups.default?"),
    ("upstreams.groups.default", "999.1.1.1", "is neither an IP address nor a host name"),
    ("cache.minTTL", "48h", "cache.minTTL is above cache.maxTTL"),
    ("log.level", "loud", "one of debug, info, warning, error is wanted"),
    ("tls.cert", "-----BEGIN CERTIFICATE-----", "a key or certificate is not written here"),
    ("upstreams.groups.default", "tls://dns.example", "has no address"),
    ("ratelimit.ipv4.64", "1", "is above 32"),
]


def test_what_cannot_be_changed_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data):
        before = command("config", "show", "--data", data).out
        history = command("history", "--data", data).out
        for key, value, why in REFUSED:
            done = command("config", "set", "--data", data, "--", key, value)
            assert (done.code, done.out) == (1, ""), key
            assert why in done.err
        assert command("config", "show", "--data", data).out == before
        assert command("history", "--data", data).out == history


def test_values_of_a_list_that_are_written_apart_are_one_with_commas(tmp_path: Path) -> None:
    data = tmp_path / "data"
    done = command(
        "config", "set", "--data", data, "upstreams.groups.default", "192.0.2.1", "192.0.2.2"
    )
    assert (done.code, done.out) == (1, "")
    assert "with commas: 192.0.2.1,192.0.2.2" in done.err


def replace(file: Path, text: str) -> None:
    """As an editor does that writes a new file and renames it: nobody reads half of it."""
    draft = file.with_name("draft")
    draft.write_text(text)
    draft.replace(file)


def test_a_settings_file_is_written_and_watched_and_a_bad_one_is_left_alone(
    tmp_path: Path,
) -> None:
    data, file = tmp_path / "data", tmp_path / "settings.yaml"
    file.write_text("# ours\ncache: {maxEntries: 5}\nlog.level: debug\n")
    env = {"KUDURRU_SETTINGS_FILE": str(file)}
    with serving(data, env=env) as server:
        reply = set_key(data, "cache.maxEntries", "6")
        assert reply["kept"] == "file"
        assert file.stat().st_mode & 0o777 == 0o640
        assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
        assert shown(data, "cache.maxEntries")["source"] == f"settings file {file}:2"
        assert shown(data, "log.level")["value"] == "debug"
        replace(file, "cache.maxEntries: 7\nquerylog: {enabled: false}\n")
        wait_until(lambda: "setting cache.maxEntries is 7 now, by files" in server.stderr())
        late = "setting querylog.enabled is false now, by files; it takes"
        wait_until(lambda: late in server.stderr())
        assert shown(data, "log.level")["value"] == "info"
        replace(file, "cache.maxEntries: 8\nnode.name: x\nnot.known: 1\n")
        wait_until(lambda: metric(server, "kudurru_config_last_reload_successful") == 0)
        assert shown(data, "cache.maxEntries")["value"] == 7
        assert "a key of the node; the settings file holds cluster keys only" in server.stderr()
        with urllib.request.urlopen(f"http://{server.addresses['ops']}/readyz") as answer:
            assert "Settings: " in json.load(answer)["warnings"][0]
        file.write_text("cache.maxEntries: 9\n")  # one that does not, and is empty for a moment
        wait_until(lambda: shown(data, "cache.maxEntries")["value"] == 9)
        assert metric(server, "kudurru_config_last_reload_successful") == 1
        # What kudurru wrote itself was news once, not twice.
        assert server.stderr().count("setting cache.maxEntries is 6 now") == 1


def test_a_mounted_config_map_is_swapped_by_its_link(tmp_path: Path) -> None:
    """As the kubelet does it: file → ..data → a folder by date, and the middle link is replaced."""
    data, mount = tmp_path / "data", tmp_path / "mount"
    for name, entries in (("..1", 1), ("..2", 2)):
        (mount / name).mkdir(parents=True)
        (mount / name / "settings.yaml").write_text(f"cache.maxEntries: {entries}\n")
    (mount / "..data").symlink_to("..1")
    (mount / "settings.yaml").symlink_to("..data/settings.yaml")
    with serving(data, env={"KUDURRU__SETTINGSFILE": str(mount / "settings.yaml")}):
        assert shown(data, "cache.maxEntries")["value"] == 1
        (mount / "..data_tmp").symlink_to("..2")
        (mount / "..data_tmp").replace(mount / "..data")
        wait_until(lambda: shown(data, "cache.maxEntries")["value"] == 2)


def test_settings_of_a_mounted_config_map_are_changed_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, mount = tmp_path / "data", tmp_path / "mount"
    (mount / "..1").mkdir(parents=True)
    file = mount / "..1" / "settings.yaml"
    file.write_text("cache.maxEntries: 1\n")
    (mount / "..data").symlink_to("..1")
    (mount / "settings.yaml").symlink_to("..data/settings.yaml")
    monkeypatch.setenv("KUDURRU_SETTINGS_FILE", str(mount / "settings.yaml"))
    why = f"the settings are managed by the ConfigMap mounted at {mount}: change them there"

    def refused() -> None:
        for order in (("set", "cache.maxEntries", "2"), ("unset", "cache.maxEntries")):
            done = command("config", *order, "--data", data)
            assert (done.code, done.out) == (1, "")
            assert why in done.err

    with serving(data, env={"KUDURRU_SETTINGS_FILE": str(mount / "settings.yaml")}) as server:
        refused()
        made = Asking(server, first_token(data))("POST", "/tokens", {"name": "a", "role": "admin"})
        ask = Asking(server, made[1]["token"])
        code, status = ask("PATCH", "/settings", {"cache.maxEntries": 2})
        assert (code, status["reason"], status["message"]) == (409, "ManagedBy", why)
        assert status["details"]["owner"] == f"the ConfigMap mounted at {mount}"
        assert shown(data, "cache.maxEntries")["value"] == 1
    refused()
    assert file.read_text() == "cache.maxEntries: 1\n"


def test_a_folder_of_settings_that_is_a_mounted_config_map_is_swapped_too(tmp_path: Path) -> None:
    """As the chart has it: `--config` names the mount."""
    data, mount = tmp_path / "data", tmp_path / "mount"
    for name, entries in (("..1", 1), ("..2", 2)):
        (mount / name).mkdir(parents=True)
        (mount / name / "kudurru.yaml").write_text(f"cache.maxEntries: {entries}\n")
    (mount / "..data").symlink_to("..1")
    (mount / "kudurru.yaml").symlink_to("..data/kudurru.yaml")
    with serving(data, "--config", str(mount)):
        assert shown(data, "cache.maxEntries")["value"] == 1
        (mount / "..data_tmp").symlink_to("..2")
        (mount / "..data_tmp").replace(mount / "..data")
        wait_until(lambda: shown(data, "cache.maxEntries")["value"] == 2)


def test_an_unknown_key_in_a_settings_file_is_an_error_at_start(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("a: 1\nnode: {name: x}\n")
    done = kudurru("serve", "--data", tmp_path / "data", env={"KUDURRU_SETTINGS_FILE": str(file)})
    assert done.code == 1
    assert "there is no key a" in done.err
    assert "node.name: a key of the node" in done.err
