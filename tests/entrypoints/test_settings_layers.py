import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from kudurru.domain.errors import Invalid
from kudurru.domain.settings import KEYS
from kudurru.entrypoints.cli.main import main
from kudurru.entrypoints.settings import load_settings


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_later_layers_win_and_each_value_knows_its_own(tmp_path: Path) -> None:
    settings_file = write(
        tmp_path / "settings.yaml",
        "cache: {maxEntries: 2, maxTTL: 2h, minTTL: 2s, negativeTTL: 2m}",
    )
    node_file = write(
        tmp_path / "node.yaml",
        f"settingsFile: {settings_file}\ncache:\n  maxEntries: 1\n  maxTTL: 1h\n  minTTL: 1s\n"
        "  persistMaxAge: 1h\n",
    )
    found = load_settings(
        node_file,
        {"KUDURRU__CACHE__MAXENTRIES": "3", "KUDURRU__CACHE__MAXTTL": "3h"},
        {"cache.maxEntries": ("--cache", "4")},
    )
    keys = ["maxEntries", "maxTTL", "minTTL", "persistMaxAge", "prefetch"]
    shown = {key: found.shown(f"cache.{key}") for key in keys}
    sources = {key: str(found.origins[f"cache.{key}"][-1]) for key in keys}
    assert shown == {
        "maxEntries": 4,
        "maxTTL": "3h",
        "minTTL": "2s",
        "persistMaxAge": "1h",
        "prefetch": True,
    }
    assert sources == {
        "maxEntries": "command line --cache",
        "maxTTL": "environment KUDURRU__CACHE__MAXTTL",
        "minTTL": f"settings file {settings_file}:1",
        "persistMaxAge": f"node file {node_file}:6",
        "prefetch": "default",
    }


def test_the_node_is_named_after_its_host_unless_it_is_named(tmp_path: Path) -> None:
    found = load_settings(None, {})
    assert found.settings.node.name != ""
    assert str(found.origins["node.name"][-1]) == "default host name"
    assert load_settings(write(tmp_path / "n.yaml", "node.name: a"), {}).settings.node.name == "a"


def test_a_folder_is_read_in_order_of_names(tmp_path: Path) -> None:
    write(tmp_path / "20-b.json", '{"log": {"level": "error"}, "cache": {"maxEntries": 2}}')
    write(tmp_path / "10-a.yaml", "log: {level: debug}\nratelimit: {ipv4: {32: 1}}")
    write(tmp_path / "30-c.toml", 'log.format = "json"\n[ratelimit.ipv4]\n24 = 2\n')
    write(tmp_path / "README.md", "not: settings")
    write(tmp_path / ".hidden.yaml", "not: settings")
    (tmp_path / "..data.yaml").mkdir()
    found = load_settings(tmp_path, {})
    assert found.settings.log.level == "error"
    assert found.settings.log.format == "json"
    assert found.settings.cache.max_entries == 2
    assert found.settings.ratelimit.ipv4 == {32: 1, 24: 2}
    assert str(found.origins["log.format"][-1]) == f"node file {tmp_path}/30-c.toml:1"


def test_an_empty_folder_and_an_empty_file_say_nothing(tmp_path: Path) -> None:
    assert load_settings(tmp_path, {}).settings == load_settings(None, {}).settings
    empty = write(tmp_path / "x.yaml", "# nothing\n")
    assert load_settings(empty, {}).settings == load_settings(None, {}).settings


@pytest.mark.parametrize("variable", ["KUDURRU_SETTINGS_FILE", "KUDURRU__SETTINGSFILE"])
def test_the_environment_may_name_the_settings_file(tmp_path: Path, variable: str) -> None:
    settings_file = write(tmp_path / "s.yaml", "log: {level: error}")
    found = load_settings(None, {variable: str(settings_file)})
    assert found.settings.log.level == "error"
    assert found.settings.settings_file == str(settings_file)


def test_a_settings_file_that_does_not_exist_is_an_empty_layer(tmp_path: Path) -> None:
    found = load_settings(None, {"KUDURRU_SETTINGS_FILE": str(tmp_path / "none.yaml")})
    assert found.settings.log.level == "info"


def test_the_settings_file_holds_cluster_keys_only(tmp_path: Path) -> None:
    path = write(tmp_path / "s.yaml", "log: {level: error}\nnode: {name: a}\nsettingsFile: b\nx: 1")
    with pytest.raises(Invalid) as caught:
        load_settings(None, {"KUDURRU_SETTINGS_FILE": str(path)})
    faults = [str(cause) for cause in caught.value.causes]
    assert [fault.partition(": ")[0] for fault in faults] == [f"{path}:{n}" for n in (4, 2, 3)]
    assert "node.name: a key of the node; the settings file holds cluster keys only" in faults[1]


def test_faults_of_all_layers_are_reported_at_once(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", "a: 1")
    write(tmp_path / "b.yaml", "b: [\n")
    write(tmp_path / "c.yaml", "log: {}\n---\nlog: {}")
    with pytest.raises(Invalid) as caught:
        load_settings(
            tmp_path,
            {"KUDURRU__C": "1", "KUDURRU__LOG__LEVEL": "loud"},
            {"api.address": ("--http", "x")},
        )
    text = str(caught.value)
    for part in (
        f"{tmp_path}/a.yaml:1: a: there is no key a",
        f"{tmp_path}/b.yaml:2: not YAML",
        f"{tmp_path}/c.yaml:3: settings are one document",
        "KUDURRU__C: there is no key C",
        "KUDURRU__LOG__LEVEL: log.level",
        "--http: api.address",
    ):
        assert part in text


@pytest.mark.parametrize("name", ["none.yaml", "folder/none.yaml"])
def test_a_node_file_that_is_not_there_is_a_fault(tmp_path: Path, name: str) -> None:
    with pytest.raises(Invalid, match=r"none\.yaml: cannot be read: No such file"):
        load_settings(tmp_path / name, {})


# The commands.


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs `kudurru config …` and gives its exit code and what it printed."""
    for name in [name for name in os.environ if name.upper().startswith("KUDURRU_")]:
        monkeypatch.delenv(name)

    def run(*arguments: str, **environ: str) -> tuple[int, str, str]:
        with monkeypatch.context() as patch:
            for name, value in environ.items():
                patch.setenv(name, value)
            code = main(["config", *arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


Run = Callable[..., tuple[int, str, str]]


def test_config_show_prints_each_value_and_its_source(tmp_path: Path, run: Run) -> None:
    path = write(tmp_path / "n.yaml", "log:\n  level: debug\n")
    code, out, _ = run("show", "--config", str(path))
    assert code == 0
    rows = [line.split() for line in out.splitlines()]
    assert ["log.level", '"debug"', "node", "file", f"{path}:2", "at", "once"] in rows
    assert ["log.format", '"text"', "default", "at", "restart"] in rows
    assert [row[0] for row in rows] == ["KEY", *KEYS]
    assert "cluster" in run("show", "log.level", "-o", "wide")[1]


def test_config_show_of_a_section_as_json(run: Run) -> None:
    code, out, _ = run("show", "log", "zones.coalesce", "-o", "json", KUDURRU__LOG__LEVEL="error")
    assert code == 0
    assert json.loads(out) == [
        {
            "key": "log.level",
            "value": "error",
            "source": "environment KUDURRU__LOG__LEVEL",
            "changes": "at once",
            "scope": "cluster",
        },
        {
            "key": "log.format",
            "value": "text",
            "source": "default",
            "changes": "at restart",
            "scope": "cluster",
        },
        {
            "key": "zones.coalesce",
            "value": "250ms",
            "source": "default",
            "changes": "at once",
            "scope": "cluster",
        },
    ]


def test_config_show_as_yaml_is_a_file_that_can_be_read(tmp_path: Path, run: Run) -> None:
    odd = "a😀\u202e\x7f"
    code, out, _ = run(
        "show", "-o", "yaml", KUDURRU__NODE__NAME=odd, KUDURRU__CACHE__MAXENTRIES="5"
    )
    assert code == 0
    assert "\u202e" not in out
    found = load_settings(write(tmp_path / "again.yaml", out), {}).settings
    assert (found.node.name, found.cache.max_entries) == (odd, 5)


def test_config_show_of_an_unknown_key_is_a_usage_error(run: Run) -> None:
    code, out, err = run("show", "cache.maxEntrys")
    assert (code, out) == (2, "")
    assert "did you mean cache.maxEntries?" in err


@pytest.mark.parametrize("command", ["show", "validate"])
def test_faults_go_to_stderr_and_the_exit_code_is_1(tmp_path: Path, run: Run, command: str) -> None:
    path = write(tmp_path / "n\x1b.yaml", "a: 1\nb: 2\n")
    code, out, err = run(command, "--config", str(path))
    assert (code, out) == (1, "")
    assert "2 faults" in err
    assert "there is no key a" in err
    assert "\x1b" not in err


def test_config_validate_says_so(run: Run) -> None:
    assert run("validate") == (0, "the settings are valid\n", "")
    code, out, _ = run("validate", "-o", "json", KUDURRU__LOG__LEVEL="loud")
    assert code == 1
    assert json.loads(out) == {
        "valid": False,
        "faults": [
            {
                "field": "log.level",
                "message": "one of debug, info, warning, error is wanted, not 'loud'",
                "at": "KUDURRU__LOG__LEVEL",
            }
        ],
    }
    assert json.loads(run("validate", "-o", "json")[1]) == {"valid": True, "faults": []}


def test_config_schema_prints_the_schema(run: Run) -> None:
    code, out, _ = run("schema")
    assert code == 0
    assert json.loads(out)["title"] == "kudurru settings"
    assert yaml.safe_load(run("schema", "-o", "yaml")[1]) == json.loads(out)


def test_settings_are_loaded_without_the_table_printer() -> None:
    """The command line starts fast: what only tables need is imported when one is printed."""
    code = "import sys, kudurru.entrypoints.settings; assert 'rich' not in sys.modules"
    source = Path(__file__).parents[2] / "src"
    subprocess.run(
        [sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": str(source)}
    )
