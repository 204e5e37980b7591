"""`kudurru import`: from the files of another product to answers."""

import json
import shlex
import sqlite3
import zipfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.blackbox.program import Done, command, serving

ADGUARD = """\
dns: {upstream_dns: [192.0.2.1], blocked_hosts: [version.bind]}
user_rules: ['||ads.example^', '@@||good.ads.example^']
filtering:
  rewrites:
  - {domain: nas.lan, answer: 192.168.7.5}
  - {domain: tv.example.com, answer: 192.168.7.6}
  blocked_services: {ids: [youtube]}
clients:
  persistent:
  - {name: tv, ids: [192.168.7.9], use_global_settings: false, filtering_enabled: false}
"""

GRAVITY = """\
CREATE TABLE "group" (id INTEGER PRIMARY KEY, enabled BOOLEAN, name TEXT, description TEXT);
CREATE TABLE domainlist (id INTEGER PRIMARY KEY, type INTEGER, domain TEXT, enabled BOOLEAN);
CREATE TABLE domainlist_by_group (domainlist_id INTEGER, group_id INTEGER);
CREATE TABLE client (id INTEGER PRIMARY KEY, ip TEXT);
CREATE TABLE client_by_group (client_id INTEGER, group_id INTEGER);
INSERT INTO "group" VALUES (0, 1, 'Default', ''), (1, 1, 'kids', '');
INSERT INTO domainlist VALUES (1, 1, 'bad.example', 1), (2, 3, '^track[0-9]+[.]', 1),
    (3, 1, 'games.example', 1);
INSERT INTO domainlist_by_group VALUES (1, 0), (1, 1), (2, 0), (3, 1);
INSERT INTO client VALUES (1, '192.168.7.20');
INSERT INTO client_by_group VALUES (1, 1);
"""

TOML = """\
[dns]
  upstreams = ["192.0.2.1#5335"]
  hosts = ["192.168.7.5 nas.lan", "192.168.7.6 tv.example.com"]
  cnameRecords = ["files.lan,nas.lan"]
"""


def adguard(folder: Path) -> Path:
    file = folder / "AdGuardHome.yaml"
    file.write_text(ADGUARD)
    return file


def backup(folder: Path) -> Path:
    """Of Pi-hole 6."""
    connection = sqlite3.connect(":memory:")
    connection.executescript(GRAVITY)
    file = folder / "teleporter.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("etc/pihole/gravity.db", connection.serialize())
        archive.writestr("etc/pihole/pihole.toml", TOML)
    connection.close()
    return file


def import_(data: Path, product: str, file: Path, *options: str) -> Done:
    done = command("import", product, file, "--data", data, *options)
    assert done.code == 0, done.err
    return done


def test_what_adguard_home_answered_is_answered_here(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data) as server:
        done = import_(data, "adguard", adguard(tmp_path))
        assert "left out: " in done.err
        assert "youtube" in done.err
        assert "kudurru config set upstreams.groups.default 192.0.2.1" in done.err
        assert server.texts("nas.lan") == ["192.168.7.5"]
        assert server.texts("tv.example.com") == ["192.168.7.6"]
        assert server.texts("banner.ads.example") == ["0.0.0.0"]
        assert server.texts("good.ads.example") != ["0.0.0.0"]
        explained = command(
            "explain", "--data", data, "banner.ads.example", "--client", "192.168.7.9"
        )
        assert "blocked" not in explained.out
        rewritten = command("explain", "--data", data, "tv.example.com", "--client", "192.168.7.9")
        assert "rewritten" in rewritten.out


def test_what_pi_hole_answered_is_answered_here(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data) as server:
        import_(data, "pihole", backup(tmp_path))
        assert server.texts("files.lan") == ["192.168.7.5", "nas.lan."]
        assert server.texts("tv.example.com") == ["192.168.7.6"]
        assert server.texts("bad.example") == ["0.0.0.0"]
        assert server.texts("track7.example") == ["0.0.0.0"]
        assert server.texts("games.example") != ["0.0.0.0"]
        child = command("explain", "--data", data, "games.example", "--client", "192.168.7.20")
        assert "blocked" in child.out


@pytest.fixture(params=["server", "directory"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    data = tmp_path / "data"
    with serving(data) if request.param == "server" else nullcontext():
        yield data


def test_a_dry_run_shows_it_and_changes_nothing_and_again_changes_nothing(data: Path) -> None:
    file = adguard(data.parent)
    shown = import_(data, "adguard", file, "--dry-run").out
    assert "dnsrecordset/default/adguard-nas.lan would be created" in shown
    assert shown.endswith("would differ (dry run)\n")
    assert command("get", "rs", "-o", "json", "--data", data).json() == []
    first = import_(data, "adguard", file, "-o", "json").json()
    assert {outcome["result"] for outcome in first} == {"created"}
    history = command("history", "--data", data, "-o", "json").out
    assert "import from AdGuard Home: AdGuardHome.yaml" in history
    again = import_(data, "adguard", file, "-o", "json").json()
    assert {outcome["result"] for outcome in again} == {"unchanged"}
    assert command("history", "--data", data, "-o", "json").out == history
    assert import_(data, "adguard", file, "--dry-run").out.startswith("0 objects")


def test_a_server_far_away_takes_an_import(tmp_path: Path) -> None:
    data, token, file = tmp_path / "data", tmp_path / "token", backup(tmp_path)
    made = command("token", "create", "root", "--role", "admin", "--data", data, "-o", "json")
    token.write_text(made.json()["token"])
    with serving(data) as server:
        url = f"http://{server.addresses['http']}"
        far = ("--server", url, "--token", f"file:{token}")
        shown = command("import", "pihole", file, "--dry-run", *far)
        assert (shown.code, "nas.lan would be created" in shown.out) == (0, True), shown.err
        assert command("import", "pihole", file, *far).code == 0
        again = command("import", "pihole", file, "-o", "json", *far).json()
        assert {outcome["result"] for outcome in again} == {"unchanged"}
        assert server.texts("nas.lan") == ["192.168.7.5"]


def test_manifests_that_are_written_are_what_is_applied(tmp_path: Path) -> None:
    data, file = tmp_path / "data", backup(tmp_path)
    written = import_(data, "pihole", file, "-o", "yaml").out
    assert not data.exists()
    (tmp_path / "objects.yaml").write_text(written)
    assert command("apply", "-f", tmp_path / "objects.yaml", "--data", data).code == 0
    again = import_(data, "pihole", file, "-o", "json").json()
    assert {outcome["result"] for outcome in again} == {"unchanged"}


def test_settings_that_are_told_can_be_set(tmp_path: Path) -> None:
    done = import_(tmp_path / "data", "pihole", backup(tmp_path), "-o", "yaml")
    (told,) = [line for line in done.err.splitlines() if "a setting" in line]
    words = shlex.split(told.partition("kudurru ")[2])
    assert command(*words, "--data", tmp_path / "data").code == 0


def test_bad_input_changes_nothing_and_every_fault_is_told(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "hosts"
    file.write_text("192.168.7.5 nas.lan\nx y\n192.168.7.6\n")
    done = command("import", "hosts", file, "--data", data)
    assert done.code == 1
    assert f"{file}:2" in done.err
    assert f"{file}:3" in done.err
    assert command("get", "zone", "-o", "json", "--data", data).json() == []


def test_objects_of_another_manager_are_not_taken(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "hosts"
    file.write_text("192.168.7.5 nas.lan\n")
    import_(data, "hosts", file, "--manager", "somebody")
    file.write_text("192.168.7.6 nas.lan\n")
    done = command("import", "hosts", file, "--data", data)
    assert done.code == 1
    assert "somebody" in done.err
    import_(data, "hosts", file, "--force")


def test_the_guard_against_mass_changes_holds(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "hosts"
    file.write_text("".join(f"192.168.7.{n} n{n}.lan\n" for n in range(1, 21)))
    import_(data, "hosts", file)
    file.write_text("".join(f"192.168.8.{n} n{n}.lan\n" for n in range(1, 21)))
    assert command("import", "hosts", file, "--data", data).code == 1
    import_(data, "hosts", file, "--allow-mass-change")


def test_two_sources_of_a_product_have_names_of_their_own(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "hosts"
    for prefix in ("office", "home"):
        file.write_text(f"0.0.0.0 {prefix}.example\n")
        import_(data, "hosts", file, "--prefix", prefix)
    names = [o["metadata"]["name"] for o in json.loads(
        command("get", "pol", "-o", "json", "--data", data).out)]  # fmt: skip
    assert sorted(names) == ["home-everybody", "office-everybody"]
    assert command("import", "hosts", file, "--prefix", "Not good", "--data", data).code == 1
