"""A new user's first hour, with real processes."""

import json
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kudurru import __version__
from kudurru.entrypoints.cli import main
from tests.blackbox.program import (
    PATIENCE_S,
    Serving,
    command,
    command_line,
    end,
    environment,
    kudurru,
    read_line,
    records,
    serving,
    write_json,
    zone,
)

COMMANDS = [
    "apply",
    "audit tail",
    "audit verify",
    "blocking disable",
    "blocking enable",
    "blocking status",
    "config schema",
    "config show",
    "config validate",
    "delete",
    "describe",
    "diff",
    "explain",
    "get",
    "history",
    "queries",
    "query",
    "replay",
    "serve",
    "top",
    "version",
    "zone check",
    "zone export",
    "zone import",
]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tour") / "data"


@pytest.fixture(scope="module")
def server(node: Path):
    with serving(node, "--demo") as found:
        yield found


def test_the_demo_answers(server: Serving) -> None:
    assert server.texts("www.demo.example") == ["192.0.2.80"]
    assert server.ask("www.demo.example", tcp=True).answer[0][0].address == "192.0.2.80"
    assert server.texts("a.apps.demo.example") == ["192.0.2.80", "www.demo.example."]
    assert server.texts("nope.demo.example") == ["NXDOMAIN"]
    assert server.texts("example.com") == ["REFUSED"]


def test_a_record_is_applied_asked_for_and_deleted(
    server: Serving, node: Path, tmp_path: Path
) -> None:
    file = write_json(
        tmp_path / "new.json",
        records("new.demo.example", "demo.example", ("new.demo.example", "A", "192.0.2.99")),
    )
    done = kudurru("apply", "-f", file, "--data", node, "--reason", "a new machine")
    assert (done.code, done.out) == (0, "dnsrecordset/default/new.demo.example created\n")
    # Acknowledged means served.
    assert server.texts("new.demo.example") == ["192.0.2.99"]

    assert command("apply", "-f", file, "--data", node).out.endswith(" unchanged\n")
    newest = command("history", "rs/new.demo.example", "--data", node, "-o", "json").json()[0]
    assert newest["verb"] == "created"
    assert newest["reason"] == "a new machine"
    assert newest["source"] == "socket"

    done = command("delete", "rs", "new.demo.example", "--data", node)
    assert done.out == "dnsrecordset/default/new.demo.example deleted\n"
    assert server.texts("new.demo.example") == ["NXDOMAIN"]
    then = command("query", "new.demo.example", "--at", str(newest["seq"]), "--data", node)
    assert "192.0.2.99" in then.out


def test_a_query_of_a_name_of_others_says_that_only_zones_are_asked(
    server: Serving, node: Path
) -> None:
    now = command("query", "example.com", "--data", node)
    assert "REFUSED" in now.out
    assert "what upstreams would answer is not asked for" in now.err
    then = command("query", "example.com", "--at", "6", "--data", node)
    assert "REFUSED" in then.out
    assert "only zones are asked of the past" in then.err


def test_a_record_set_without_its_zone_is_told_of(
    server: Serving, node: Path, tmp_path: Path
) -> None:
    manifest = records("lost", "nowhere.example", ("nowhere.example", "A", "192.0.2.9"))
    done = kudurru("apply", "-f", write_json(tmp_path / "lost.json", manifest), "--data", node)
    assert "warning: dnsrecordset/default/lost is not served: ZoneNotFound" in done.err
    command("delete", "rs", "lost", "--data", node)


def test_a_zone_that_loses_its_name_servers_is_warned_of(node: Path, server: Serving) -> None:
    named = zone("named.example", nameservers=["ns.other.example"])
    bare = zone("named.example")
    told = [
        kudurru("apply", "-f", "-", "--data", node, *how, stdin=json.dumps(manifest))
        for manifest, how in ((named, ()), (bare, ("--dry-run",)), (bare, ("-o", "json")))
    ]
    assert "warning" not in told[0].err
    for one in told[1:]:
        assert "warning: named.example loses its name servers, ns.other.example" in one.err
    (outcome,) = told[2].json()
    assert len(outcome["warnings"]) == 1
    checked = command("zone", "check", "named.example", "--data", node)
    assert "warning: no NS at its apex" in checked.out
    assert "SOA names ns.named.example., which nobody wrote down" in checked.out
    assert "warning" not in command("zone", "check", "demo.example", "--data", node).out


def test_manifests_come_from_standard_input(node: Path, server: Serving) -> None:
    manifest = json.dumps(zone("stdin.example"))
    done = kudurru("apply", "-f", "-", "--data", node, stdin=manifest)
    assert (done.code, done.out) == (0, "dnszone/stdin.example created\n")


def test_a_served_zone_is_exported_and_imported_elsewhere(
    node: Path, server: Serving, tmp_path: Path
) -> None:
    exported = kudurru("zone", "export", "demo.example", "--data", node)
    file = tmp_path / "demo.zone"
    file.write_text(exported.out)
    other = tmp_path / "other"
    done = kudurru("zone", "import", file, "--data", other)
    assert done.code == 0
    assert command("zone", "export", "demo.example", "--data", other).out == exported.out
    assert command("zone", "check", "demo.example", "--data", other).code == 0


def test_the_log_of_a_running_server_verifies_and_replays_to_what_it_serves(
    node: Path, server: Serving
) -> None:
    assert command("audit", "verify", "--level", "state", "--data", node).code == 0
    replayed = command("replay", "--verify", "--data", node, "-o", "json").json()
    assert replayed["server"] == "the server's views equal the replayed ones"


@contextmanager
def following(*args: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A command that goes on until it is told to end."""
    process = subprocess.Popen(
        command_line(*args), stdout=subprocess.PIPE, text=True, env=environment()
    )
    assert process.stdout is not None
    with process.stdout:
        try:
            yield process
        finally:
            process.terminate()
            end(process)


def test_get_watch_shows_what_becomes_of_objects(
    node: Path, server: Serving, tmp_path: Path
) -> None:
    file = write_json(tmp_path / "w.json", zone("watched.example"))
    with following("get", "zone", "--watch", "-o", "json", "--data", node) as process:
        assert json.loads(read_line(process))["type"] == "Added"  # one that is there: it has begun
        command("apply", "-f", file, "--data", node)
        command("delete", "zone", "watched.example", "--data", node)
        types: list[str] = []
        while types[-1:] != ["Deleted"]:
            seen = json.loads(read_line(process))
            if seen["object"]["metadata"]["name"] == "watched.example":
                types.append(seen["type"])
    assert types == ["Added", "Modified", "Deleted"]  # it is stamped in between


def test_audit_tail_follows_the_log(node: Path, server: Serving, tmp_path: Path) -> None:
    file = write_json(tmp_path / "t.json", zone("tailed.example"))
    with following(
        "audit", "tail", "--lines", "1", "--follow", "-o", "jsonl", "--data", node
    ) as process:
        newest = json.loads(read_line(process))["seq"]
        command("apply", "-f", file, "--data", node, "--reason", "to be seen")
        seen = json.loads(read_line(process))
        while seen["reason"] != "to be seen":  # stamps of what others changed
            seen = json.loads(read_line(process))
    assert seen["seq"] > newest
    assert seen["object"] == "dnszone/tailed.example"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    done = command(*name.split(), "--help")
    assert done.code == 0
    assert done.out.startswith(f"Usage: kudurru {name}")
    assert "-completion" not in done.out


def undocumented(command: Any, path: str) -> Iterator[str]:
    for name, below in getattr(command, "commands", {}).items():
        yield from undocumented(below, f"{path} {name}")
    for parameter in command.params:
        if not getattr(parameter, "hidden", False) and not getattr(parameter, "help", None):
            yield f"{path}: {parameter.name}"


@pytest.mark.parametrize("name", main.COMMANDS)
def test_every_option_and_argument_says_what_it_is(name: str) -> None:
    assert list(undocumented(main.command_of(name), name)) == []


def test_the_program_has_help_and_a_version() -> None:
    assert kudurru("--help").code == 0
    assert command("--version").out == f"kudurru {__version__}\n"
    done = kudurru("version", "-o", "json")
    assert set(done.json()) == {"version", "python", "engine"}


@pytest.mark.parametrize(
    "args",
    [
        ("get", "zone"),
        ("get", "zone", "demo.example"),
        ("get", "rs", "-A"),
        ("describe", "zone", "demo.example"),
        ("history",),
        ("audit", "verify"),
        ("replay",),
        ("query", "www.demo.example"),
        ("zone", "check", "demo.example"),
    ],
    ids=" ".join,
)
def test_output_for_programs_is_one_document(
    args: tuple[str, ...], node: Path, server: Serving
) -> None:
    document = command(*args, "--data", node, "-o", "json").json()
    lines = command(*args, "--data", node, "-o", "jsonl").out.splitlines()
    assert all(json.loads(line) for line in lines)
    assert len(lines) == (len(document) if isinstance(document, list) else 1)
    assert command(*args, "--data", node, "-o", "yaml").code == 0
    assert command(*args, "--data", node, "-o", "wide").code == 0


@pytest.mark.parametrize(
    ("redirection", "code", "message"),
    [
        (">/dev/full", 1, "error: the output: No space left on device\n"),
        (">&-", 0, ""),
        ("| true", 0, ""),
    ],
)
def test_output_that_nobody_can_take_is_no_crash(
    redirection: str, code: int, message: str, node: Path, server: Serving
) -> None:
    line = shlex.join(command_line("get", "rs", "-o", "json", "--data", node))
    done = subprocess.run(
        f"{line} {redirection}",
        shell=True,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, message)


def test_a_terminal_with_few_characters_gets_the_others_as_escapes(
    node: Path, server: Serving, tmp_path: Path
) -> None:
    document = records("few", "demo.example", ("few.demo.example", "A", "192.0.2.1"))
    document["metadata"]["annotations"] = {"kudurru.io/comment": "grün"}
    file = write_json(tmp_path / "few.json", document)
    assert command("apply", "-f", file, "--data", node).code == 0
    for args, shown in (
        (("get", "rs", "few", "-o", "json"), "gr\\u00fcn"),
        (("describe", "rs", "few"), "gr\\xfcn"),
    ):
        done = subprocess.run(
            command_line(*args, "--data", node),
            capture_output=True,
            env=environment(PYTHONIOENCODING="ascii"),
            timeout=PATIENCE_S,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert shown in done.stdout.decode("ascii")
