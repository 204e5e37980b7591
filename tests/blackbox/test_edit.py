"""kudurru edit with editors that are scripts, and completion."""

import sys
from pathlib import Path

import pytest

from tests.blackbox.program import Done, command, kudurru, records, write_json, zone


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = write_json(
        tmp_path / "objects.json",
        zone("a.example"),
        records("www", "a.example", ("www.a.example", "A", "192.0.2.1")),
    )
    assert command("apply", "-f", file, "--data", tmp_path / "data").code == 0
    return tmp_path / "data"


def edit(data: Path, script: str, *options: str) -> Done:
    """`kudurru edit rs www`, in an editor that runs a shell script with the file as $1."""
    editor = data.parent / "editor"
    editor.write_text(f"#!/bin/sh\nset -e\n{script}\n")
    editor.chmod(0o755)
    folder = data.parent / "tmp"
    folder.mkdir(exist_ok=True)
    env = {"EDITOR": str(editor), "TMPDIR": str(folder)}
    return kudurru("edit", "rs", "www", "--data", data, *options, env=env)


def left(data: Path) -> list[str]:
    return [path.name for path in (data.parent / "tmp").iterdir()]


def targets(data: Path) -> list[str]:
    spec = command("get", "rs", "www", "--data", data, "-o", "json").json()["spec"]
    found: list[str] = spec["endpoints"][0]["targets"]
    return found


def test_what_the_editor_saves_is_applied(data: Path) -> None:
    done = edit(data, "sed -i s/192.0.2.1/192.0.2.2/ $1", "--reason", "moved")
    assert (done.code, done.out) == (0, "dnsrecordset/default/www configured\n")
    assert targets(data) == ["192.0.2.2"]
    history = command("history", "rs/www", "--data", data, "-o", "json").json()
    assert history[0]["reason"] == "moved"
    assert left(data) == []


@pytest.mark.parametrize("script", ["true", ": > $1"])
def test_an_unchanged_or_empty_file_changes_nothing(data: Path, script: str) -> None:
    done = edit(data, script)
    assert (done.code, done.out) == (0, "unchanged\n")
    assert left(data) == []


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("sed -i 's/192.0.2.1/300.0.0.1/' $1", "spec.endpoints[0].targets[0]"),
        ("sed -i 's/name: www/name: other/' $1", "use `kudurru apply` for others"),
        ("exit 3", "ended with code 3"),
        ("echo '[' > $1", "not YAML"),
    ],
)
def test_what_cannot_be_applied_is_kept_for_another_try(data: Path, script: str, why: str) -> None:
    done = edit(data, script)
    assert done.code == 1
    assert why in done.err
    assert "what you wrote is in " in done.err
    assert len(left(data)) == 1
    assert targets(data) == ["192.0.2.1"]


def test_a_change_of_somebody_else_in_between_is_not_overwritten(data: Path) -> None:
    other = write_json(
        data.parent / "other.json",
        records("www", "a.example", ("www.a.example", "A", "192.0.2.9")),
    )
    program = f"{sys.executable} -m kudurru apply -f {other} --data {data}"
    done = edit(data, f"{program} >&2\nsed -i s/192.0.2.1/192.0.2.2/ $1")
    assert done.code == 1
    assert "read it again" in done.err
    assert targets(data) == ["192.0.2.9"]


def test_an_editor_that_is_not_there_is_named(data: Path) -> None:
    done = kudurru("edit", "rs", "www", "--data", data, env={"EDITOR": "/none/editor"})
    assert done.code == 1
    assert "'/none/editor' cannot be run" in done.err


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("kudurru conf", "config"),
        ("kudurru config s", "set"),
        ("kudurru doctor --da", "--data"),
        ("kudurru audit export --form", "--format"),
        ("kudurru audit export --format o", "ocsf"),
        ("kudurru get zone -o j", "jsonl"),
        ("kudurru completion f", "fish"),
        ("kudurru describe po", "pol"),
        ("kudurru history r", "rs/"),
        ("kudurru config show cache.maxE", "cache.maxEntries"),
    ],
)
def test_a_shell_completes_commands_options_and_their_values(words: str, completed: str) -> None:
    assert ("plain", completed) in completions(words)


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("kudurru get rs ", ["www"]),
        ("kudurru get -o wide rs w", ["www"]),
        ("kudurru delete rs www w", ["www"]),
        ("kudurru get zone ", ["a.example"]),
        ("kudurru zone export a", ["a.example"]),
        ("kudurru undo rs/w", ["rs/www"]),
        ("kudurru get rs x", []),
        ("kudurru get bogus ", []),
        ("kudurru get rs www ", []),
    ],
)
def test_a_shell_completes_names_of_objects(words: str, completed: list[str], data: Path) -> None:
    assert [name for _, name in completions(words, KUDURRU_DATA=str(data))] == completed


def test_a_shell_completes_paths_and_is_silent_where_there_is_nothing(tmp_path: Path) -> None:
    assert completions("kudurru apply -f x") == [("file", "x")]
    assert completions("kudurru serve --data x") == [("dir", "x")]
    assert completions("kudurru get zone ", KUDURRU_DATA=str(tmp_path / "none")) == []


def completions(words: str, **env: str) -> list[tuple[str, ...]]:
    """Kind and text of each, for a line that ends where something is typed."""
    asked = {
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
        "_KUDURRU_COMPLETE": "bash_complete",
    }
    done = kudurru(env=asked | env)
    assert done.err == ""
    return [tuple(line.split(",", 1)) for line in done.out.splitlines() if line]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str) -> None:
    done = command("completion", shell)
    assert done.code == 0
    assert "_KUDURRU_COMPLETE" in done.out
