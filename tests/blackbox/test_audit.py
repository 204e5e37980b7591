"""The log proven to others: audit verify, checkpoint, prove, key, export, and kudurru-verify on a
machine that has nothing but Python."""

import contextlib
import csv
import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kudurru.domain.events import Who
from kudurru.domain.kinds.validation import parse_manifest
from kudurru.domain.objects import key_of
from kudurru.entrypoints import directory, verify_export
from kudurru.entrypoints.service import ChangeRequest
from tests.blackbox.program import (
    ROOT,
    Done,
    command,
    kudurru,
    on_a_terminal,
    records,
    serve_arguments,
    serving,
    wait_until,
    write_json,
    zone,
)

VERIFIER = ROOT / "entrypoints" / "verify_export.py"
GAP, PAYLOAD, ENTRY, CHAIN, TREE, SIGNATURE, TRUNCATION = range(10, 17)


class Audited(NamedTuple):
    data: Path
    key: str
    export: list[str]  # lines, with the newline


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Audited:
    """A stopped node: a zone, twenty record sets, one of them changed and one deleted."""
    folder = tmp_path_factory.mktemp("audit")
    data = folder / "data"
    with directory.open_service(
        data, who=Who(actor="user:anne"), write=True, on_damage=print
    ) as service:
        hosts = [
            records(f"h{i}", "home.arpa", (f"h{i}.home.arpa", "A", "192.0.2.1")) for i in range(20)
        ]
        for objects, reason in (
            ([zone("home.arpa"), *hosts], "=1+1"),
            ([records("h1", "home.arpa", ("h1.home.arpa", "TXT", "caf\u00e9 \u2014"))], "new"),
        ):
            parsed = [parse_manifest(o, what="test", default_namespace="d") for o in objects]
            service.change(ChangeRequest(apply=parsed, reason=reason))
        service.change(ChangeRequest(delete=[key_of("DNSRecordSet", "d", "h2")]))
    key = command("audit", "key", "--data", data).out.strip()
    command("audit", "export", "--data", data, "--output", folder / "whole.jsonl")
    lines = (folder / "whole.jsonl").read_text().splitlines(keepends=True)
    return Audited(data, key, lines)


@pytest.fixture
def node(audited: Audited, tmp_path: Path) -> Path:
    return Path(shutil.copytree(audited.data, tmp_path / "data"))


def elsewhere(file: Path | str, *args: str) -> Done:
    """kudurru-verify as somebody runs it who was sent the file and the program."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", VERIFIER, file, *args],
        capture_output=True,
        timeout=60,
        check=False,
        env={},
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def checked(file: Path, *args: str) -> Done:
    """The same within this process, for tables of many cases."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = verify_export.main([str(file), *args])
    return Done(code, out.getvalue(), err.getvalue())


# --- audit verify -----------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["tail", "full", "state"])
def test_verify_says_who_signed_and_whether_that_was_checked(level: str, audited: Audited) -> None:
    args = ("audit", "verify", "--data", audited.data, "--level", level)
    done = command(*args)
    assert done.code == 0
    assert f"consistent; signed by {audited.key}, which was not checked" in done.out
    done = command(*args, "--key", audited.key)
    assert f"signed by {audited.key}, which is trusted" in done.out
    found = command(*args, "--key", audited.key, "-o", "json").json()
    assert (found["ok"], found["trusted"], found["key"]) == (True, True, audited.key)
    assert found["signed"] == found["newest"]


def another_key(folder: Path) -> str:
    command("apply", "-f", write_json(folder / "o.json", zone("o.example")), "--data", folder / "o")
    return command("audit", "key", "--data", folder / "o").out.strip()


def test_a_log_signed_by_somebody_else_is_not_accepted(audited: Audited, tmp_path: Path) -> None:
    other = another_key(tmp_path)
    done = command("audit", "verify", "--data", audited.data, "--key", other)
    assert done.code == SIGNATURE
    assert f"signed by {audited.key}, which is none of the trusted keys" in done.out


def test_trusted_keys_may_stand_in_the_settings(audited: Audited, tmp_path: Path) -> None:
    config = tmp_path / "settings.json"
    for key, code in ((audited.key, 0), (another_key(tmp_path), SIGNATURE)):
        config.write_text(json.dumps({"audit": {"trustedKeys": [key]}}))
        args = ("audit", "verify", "--data", audited.data, "--config", config)
        assert command(*args).code == code


def test_a_cut_tail_is_found_with_a_checkpoint_that_went_out(node: Path, tmp_path: Path) -> None:
    early, late = tmp_path / "early", tmp_path / "late"
    assert command("audit", "checkpoint", "--data", node, "--publish", early).code == 0
    file = write_json(tmp_path / "more.json", zone("more.example"))
    assert command("apply", "-f", file, "--data", node).code == 0
    assert command("audit", "checkpoint", "--data", node, "--publish", late).code == 0
    size = int(early.read_text().split("\n")[1])
    with closing(sqlite3.connect(node / "log.db", isolation_level=None)) as db:
        found = db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        for name, _ in found:
            db.execute(f"DROP TRIGGER {name}")
        for table, column in (
            ("log", "seq"),
            ("checkpoints", "size"),
            ("streams", "id"),
            ("scopes", "id"),
        ):
            db.execute(f"DELETE FROM {table} WHERE {column} > ?", (size,))
        for _, sql in found:  # somebody who leaves no trace
            db.execute(sql)
    assert command("audit", "verify", "--data", node).code == TRUNCATION
    (node / "checkpoint").unlink()  # the one beside the log, which somebody may know of
    assert command("audit", "verify", "--data", node).code == 0
    assert command("audit", "verify", "--data", node, "--since", early).code == 0
    done = command("audit", "verify", "--data", node, "--since", late)
    assert done.code == TRUNCATION
    assert f"the log ends at {size} and the checkpoint given covers {size + 3}" in done.out


def test_since_a_checkpoint_only_what_came_after_is_read(node: Path) -> None:
    newest = command("audit", "checkpoint", "--data", node, "-o", "json").json()
    for since in (str(newest["size"]), f"checkpoint:{newest['size']}"):
        done = command("audit", "verify", "--data", node, "--since", since, "-o", "json").json()
        assert (done["level"], done["ok"], done["signed"]) == ("since", True, newest["size"])
    assert command("get", "zone", "--data", node, "--at", f"checkpoint:{newest['size']}").code == 0


BAD_INPUT: list[tuple[tuple[str, ...], str]] = [
    (("verify", "--since", "nowhere"), "nowhere: No such file"),
    (("verify", "--since", "7"), "no checkpoint of 7 events"),
    (("verify", "--key", "nonsense"), "is no verification key"),
    (("verify", "--since", str(VERIFIER)), "note: "),
    (("prove", "999"), "position 999 is not in the log, which ends at"),
    (("export", "--kind", "nope"), "nope"),
    (("export", "--since", "tomorrow"), "tomorrow"),
    (("export", "--output", "/nowhere/x"), "/nowhere/x: No such file or directory"),
    (("export", "--format", "sqlite", "--output", str(VERIFIER)), "is there already"),
    (("checkpoint", "--publish", "/nowhere/x"), "/nowhere/x: No such file or directory"),
    (("compare",), "this log is of no cluster, so there is nothing to compare"),
    (("key", "--rotate", "--reason", "x" * 1025), "reason: 1025 characters; at most 1024"),
    (("key", "--rotate", "--reason", "\udcff"), "reason: half of a surrogate pair"),
]


@pytest.mark.parametrize(("args", "why"), BAD_INPUT)
def test_what_cannot_be_done_says_why(args: tuple[str, ...], why: str, node: Path) -> None:
    before = command("audit", "verify", "--data", node).out
    done = command("audit", *args, "--data", node)
    assert (done.code, done.out) == (1, "")
    assert why in done.err
    assert command("audit", "verify", "--data", node).out == before


def test_signing_makes_no_log(tmp_path: Path) -> None:
    for args in (("checkpoint",), ("key",), ("key", "--rotate"), ("prove", "1"), ("export",)):
        done = command("audit", *args, "--data", tmp_path / "none")
        assert (done.code, done.out) == (1, "")
        assert "there is no data directory" in done.err
    assert not (tmp_path / "none").exists()


def test_a_log_whose_key_is_lost_is_not_signed_and_says_so(node: Path, tmp_path: Path) -> None:
    (node / "keys" / "log.key").unlink()
    file = write_json(tmp_path / "more.json", zone("more.example"))
    assert command("apply", "-f", file, "--data", node).code == 0
    assert not (node / "keys" / "log.key").exists()
    for args in (("checkpoint",), ("key", "--rotate")):
        done = command("audit", *args, "--data", node)
        assert done.code == 1
        assert "log.key is missing: put the key back" in done.err
    done = command("audit", "verify", "--data", node)
    assert "the newest 2 events are not signed yet" in done.out


# --- keys and checkpoints ---------------------------------------------------------------------


def test_a_new_key_takes_over_from_the_one_before(node: Path, audited: Audited) -> None:
    assert command("audit", "key", "--rotate", "--data", node, "--reason", "yearly").code == 0
    found = command("audit", "key", "--data", node, "-o", "json").json()
    assert found["previous"] == [audited.key]
    for key in (audited.key, found["key"]):
        done = command("audit", "verify", "--data", node, "--key", key)
        assert f"signed by {found['key']}, which is trusted" in done.out
    assert [file.name for file in (node / "keys").iterdir()] == ["log.key"]
    tail = command("audit", "tail", "--data", node, "--lines", "2").out
    assert "key.adopted.v1" in tail
    assert "yearly" in tail


def test_a_checkpoint_is_made_once(node: Path, tmp_path: Path) -> None:
    first = command("audit", "checkpoint", "--data", node)
    assert command("audit", "checkpoint", "--data", node).out == first.out
    folder = tmp_path / "folder"
    folder.mkdir()
    assert command("audit", "checkpoint", "--data", node, "--publish", folder).code == 0
    assert [file.read_text() for file in folder.iterdir()] == [first.out]


# --- exports that prove themselves ------------------------------------------------------------


def test_the_newest_events_are_one_document(node: Path) -> None:
    shown = command("audit", "tail", "--lines", "3", "-o", "json", "--data", node).json()
    lines = command("audit", "tail", "--lines", "3", "-o", "jsonl", "--data", node).out
    assert [json.loads(line) for line in lines.splitlines()] == shown
    assert len(shown) == 3


def test_an_export_is_verified_with_nothing_but_python(audited: Audited, tmp_path: Path) -> None:
    file = tmp_path / "export.jsonl"
    file.write_text("".join(audited.export))
    done = elsewhere(file, "--key", audited.key)
    assert (done.code, done.err) == (0, "")
    assert f"all {len(audited.export) - 2} events of the log" in done.out
    assert f"signed by {audited.key}, which is trusted" in done.out
    assert "which was not checked against anything" in elsewhere(file).out
    assert elsewhere(file, "--key", another_key(tmp_path)).code == SIGNATURE


def test_the_text_of_an_export_is_what_was_hashed(audited: Audited) -> None:
    events = [json.loads(line) for line in audited.export[1:-1]]
    assert [event["entry"]["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[0]["body"]["spec"] == {"zoneName": "home.arpa"}
    assert events[0]["who"]["reason"] == "=1+1"
    assert "caf\u00e9 \u2014" in "".join(audited.export)


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        (("--kind", "zone"), 4),
        (("--zone", "home.arpa", "--kind", "rs"), 22),
        (("--since", "3", "--until", "7"), 5),
        (("--actor", "nobody"), 0),
        (("--actor", "anne"), 26),
    ],
)
def test_a_selection_proves_each_of_its_events(
    filters: tuple[str, ...], count: int, audited: Audited, tmp_path: Path
) -> None:
    file = tmp_path / "some.jsonl"
    done = command("audit", "export", "--data", audited.data, "--output", file, *filters)
    assert done.code == 0
    assert f"{count} events written" in done.err
    done = checked(file, "--key", audited.key)
    assert (done.code, done.err) == (0, "")
    total = len(audited.export) - 2
    assert f"these {count} events are in the log of {total} events" in done.out
    assert "all" not in done.out.split()


Edit = Callable[[list[str]], list[str]]


def replaced(at: int, old: str, new: str) -> Edit:
    def edit(lines: list[str]) -> list[str]:
        assert old in lines[at]
        edited = list(lines)
        edited[at] = lines[at].replace(old, new, 1)
        return edited

    return edit


def erased(at: int, *fields: str) -> Edit:
    """A line with fields set to null."""

    def edit(lines: list[str]) -> list[str]:
        event = json.loads(lines[at]) | dict.fromkeys(fields)
        text = json.dumps(event, separators=(",", ":"), ensure_ascii=False)
        return [*lines[:at], text + "\n", *lines[at + 1 :]]

    return edit


EDITS: dict[str, tuple[Edit, int]] = {
    "a body": (replaced(3, "192.0.2.1", "192.0.2.2"), PAYLOAD),
    "an actor": (replaced(3, "user:anne", "user:otto"), PAYLOAD),
    "a salt": (replaced(3, '"salt":"', '"salt":"00'), PAYLOAD),
    "an entry": (replaced(3, '"manager":"kudurru"', '"manager":"kudurrU"'), ENTRY),
    "white space in an entry": (replaced(3, '"n":22', '"n": 22'), ENTRY),
    "a line that is no JSON": (replaced(3, '{"entry"', '["entry"'), ENTRY),
    "a leaf": (replaced(3, '"leaf":"', '"leaf":"0000'), CHAIN),
    "a head": (replaced(3, '"head":"', '"head":"00'), CHAIN),
    "an event that is gone": (lambda lines: lines[:5] + lines[6:], GAP),
    "two events swapped": (lambda lines: [*lines[:5], lines[6], lines[5], *lines[7:]], GAP),
    "an event twice": (lambda lines: [*lines[:5], lines[4], *lines[5:]], GAP),
    "the last event gone": (lambda lines: [*lines[:-2], lines[-1]], TRUNCATION),
    "the last line gone": (lambda lines: lines[:-1], TRUNCATION),
    "cut in a line": (lambda lines: [*lines[:5], lines[5][:40]], TRUNCATION),
    "cut to nothing": (lambda lines: [], TRUNCATION),
    "more at the end": (lambda lines: [*lines, lines[5]], ENTRY),
    "a payload erased": (erased(3, "salt", "body"), PAYLOAD),
    "half a payload erased": (erased(3, "salt"), PAYLOAD),
    "another size signed": (replaced(-1, "/1\\n", "/1\\n1"), TRUNCATION),
    "a signature": (replaced(-1, "/1 ", "/1 A"), SIGNATURE),
    "another log's key": (replaced(0, "key-adoption", "key-Adoption"), SIGNATURE),
    "another origin": (replaced(0, '"origin":"kudurru/', '"origin":"kudurru/0'), CHAIN),
    "no key": (lambda lines: [json.dumps(json.loads(lines[0]) | {"keys": []}) + "\n", *lines[1:]],
               SIGNATURE),
}  # fmt: skip


@pytest.mark.parametrize("what", EDITS)
def test_an_edited_export_is_found(what: str, audited: Audited, tmp_path: Path) -> None:
    edit, code = EDITS[what]
    file = tmp_path / "edited.jsonl"
    file.write_text("".join(edit(audited.export)))
    done = checked(file, "--key", audited.key)
    assert (done.code, done.out) == (code, ""), done.err


@hypothesis_settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_character_of_an_export_can_be_another(
    data: st.DataObject, audited: Audited, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = "".join(audited.export)
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(
        st.sampled_from('0a9Zz"{,:\\ \n\u00e9') | st.characters(exclude_categories=["Cs"])
    )
    file = tmp_path_factory.mktemp("edit") / "edited.jsonl"
    file.write_text(text[:at] + other + text[at + 1 :], newline="\n")
    assert (checked(file).code == 0) == (other == text[at])


def test_an_edited_selection_is_found(audited: Audited, tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    command("audit", "export", "--data", audited.data, "--output", file, "--kind", "rs")
    lines = file.read_text().splitlines(keepends=True)
    for edit, code in (
        (replaced(3, "192.0.2.1", "192.0.2.2"), PAYLOAD),
        (replaced(3, '"manager":"kudurru"', '"manager":"kudurrU"'), ENTRY),
        (replaced(3, '"proof":["', '"proof":["00'), TREE),
        (lambda lines: [*lines[:4], lines[5], lines[4], *lines[6:]], GAP),
        (lambda lines: lines[:4] + lines[5:], TRUNCATION),
        (replaced(0, '"size":2', '"size":3'), TREE),
    ):
        file.write_text("".join(edit(lines)))
        done = checked(file, "--key", audited.key)
        assert (done.code, done.out) == (code, ""), done.err


def test_a_selection_says_which_payloads_it_has_not(audited: Audited, tmp_path: Path) -> None:
    """Whether the log excuses them stands in events that may not be selected."""
    file = tmp_path / "some.jsonl"
    command("audit", "export", "--data", audited.data, "--output", file, "--kind", "rs")
    lines = file.read_text().splitlines(keepends=True)
    fields = verify_export.fields_of(lines[3][:-1]) | {"salt": "null", "body": "null"}
    lines[3] = "{" + ",".join(f'"{name}":{text}' for name, text in fields.items()) + "}\n"
    file.write_text("".join(lines))
    done = checked(file, "--key", audited.key)
    assert done.code == 0
    assert "1 payloads are not in the file" in done.out


def test_an_export_cannot_say_on_the_screen_what_the_verifier_does_not(
    audited: Audited, tmp_path: Path
) -> None:
    file = tmp_path / "some.jsonl"
    command("audit", "export", "--data", audited.data, "--output", file, "--kind", "rs")
    lines = file.read_text().splitlines(keepends=True)
    first = json.loads(lines[0]) | {"filter": {"kind": "rs\r\x1b[2Jok: all\u202e\x9b events"}}
    file.write_text("".join([json.dumps(first, ensure_ascii=False) + "\n", *lines[1:]]))
    done = elsewhere(file, "--key", audited.key)
    assert (done.code, done.err) == (0, "")
    assert all(line.isprintable() for line in done.out.splitlines()), done.out
    assert "\\u001b[2Jok: all\\u202e\\u009b" in done.out


def test_what_is_no_export_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    for text in ("{}\n", "nothing\n", '{"kudurru":"export","version":2}\n'):
        file.write_text(text)
        assert elsewhere(file).code == 1
    assert elsewhere(tmp_path / "none").code == 1
    assert elsewhere(file, "--key", "nonsense").code == 2


def test_a_proof_of_one_event_is_verified_elsewhere(audited: Audited, tmp_path: Path) -> None:
    file = tmp_path / "event.tlog-proof"
    assert command("audit", "prove", "5", "--data", audited.data, "--output", file).code == 0
    done = elsewhere(file, "--key", audited.key)
    assert done.code == 0
    assert json.loads(done.out.splitlines()[0])["seq"] == 5
    assert "this entry is number 5 of" in done.out
    assert elsewhere(file).code == SIGNATURE
    text = file.read_text()
    assert command("audit", "prove", "5", "--data", audited.data).out == text
    file.write_text(text.replace("index 4", "index 5"))
    assert elsewhere(file, "--key", audited.key).code == TREE


def test_an_export_after_a_change_of_keys_is_trusted_under_the_first(
    node: Path, audited: Audited, tmp_path: Path
) -> None:
    command("audit", "key", "--rotate", "--data", node)
    file = tmp_path / "export.jsonl"
    command("audit", "export", "--data", node, "--output", file)
    assert "which is trusted" in checked(file, "--key", audited.key).out
    lines = file.read_text().splitlines(keepends=True)
    first = json.loads(lines[0])
    first["keys"] = first["keys"][1:]  # the second without the first that let it in
    file.write_text(json.dumps(first) + "\n" + "".join(lines[1:]))
    assert checked(file, "--key", audited.key).code == SIGNATURE


# --- formats of others ------------------------------------------------------------------------


def exported(audited: Audited, file: Path, form: str, *args: str) -> str:
    where = ("--data", audited.data, "--output", file)
    assert command("audit", "export", "--format", form, *where, *args).code == 0
    return file.read_text() if form != "sqlite" else ""


def test_formats_of_others_have_what_they_require(audited: Audited, tmp_path: Path) -> None:
    total = len(audited.export) - 2
    found = {}
    required = {
        "k8s": {"kind", "apiVersion", "level", "auditID", "stage", "requestURI", "verb", "user",
                "objectRef", "requestReceivedTimestamp", "stageTimestamp"},
        "cloudevents": {"specversion", "id", "source", "type"},
        "ocsf": {"activity_id", "actor", "api", "category_uid", "class_uid", "metadata",
                 "severity_id", "src_endpoint", "time", "type_uid"},
    }  # fmt: skip
    for form, fields in required.items():
        lines = exported(audited, tmp_path / form, form).splitlines()
        events = found[form] = [json.loads(line) for line in lines]
        assert len(events) == total
        for event in events:
            assert fields <= event.keys()
    verbs = [event["verb"] for event in found["k8s"]]
    assert verbs.count("create") == 21
    assert verbs.count("delete") == 1
    assert len({event["id"] for event in found["cloudevents"]}) == total


@pytest.mark.parametrize("format_", ["jsonl", "csv", "sqlite"])
def test_a_terminal_sees_how_far_an_export_is_and_a_pipe_does_not(
    format_: str, audited: Audited, tmp_path: Path
) -> None:
    line = ("audit", "export", "--format", format_, "--data", audited.data, "--output")
    _, shown = on_a_terminal(*line, tmp_path / "seen")
    assert "exporting" in shown
    piped = kudurru(*line, tmp_path / "piped")
    assert "exporting" not in piped.out + piped.err
    if format_ != "sqlite":  # of which two with the same rows may differ
        assert (tmp_path / "seen").read_bytes() == (tmp_path / "piped").read_bytes()


@pytest.mark.parametrize("format_", ["jsonl", "csv", "sqlite"])
def test_an_export_is_for_its_owner_only(format_: str, audited: Audited, tmp_path: Path) -> None:
    """It says who changed what and why. Nor is it written where somebody laid a link."""
    file = tmp_path / "log"
    (tmp_path / "log.part").symlink_to(tmp_path / "elsewhere")
    before = os.umask(0)
    try:
        exported(audited, file, format_)
    finally:
        os.umask(before)
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_text_that_a_spreadsheet_would_compute_is_quoted(audited: Audited, tmp_path: Path) -> None:
    text = exported(audited, tmp_path / "rows.csv", "csv", "--kind", "rs")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 22
    assert {row["reason"] for row in rows} == {"'=1+1", "new", ""}
    assert json.loads(rows[0]["body"])["spec"]["zoneRef"] == {"name": "home.arpa"}


def test_a_database_can_be_queried(audited: Audited, tmp_path: Path) -> None:
    exported(audited, tmp_path / "log.sqlite", "sqlite")
    with closing(sqlite3.connect(tmp_path / "log.sqlite")) as db:
        found = db.execute("SELECT count(*), max(seq) FROM events WHERE zone = 'home.arpa'")
        assert found.fetchone() == (26, 26)
    done = command("audit", "export", "--data", audited.data, "--format", "sqlite")
    assert done.code == 2


# --- a server ---------------------------------------------------------------------------------


def settings(folder: Path, *publish: str, interval: str = "50ms") -> tuple[str, str]:
    config = folder / "settings.json"
    checkpoint = {"interval": interval, "publish": list(publish)}
    config.write_text(json.dumps({"audit": {"checkpoint": checkpoint}}))
    return "--config", str(config)


def newest(data: Path) -> int:
    found: dict[str, Any] = command("audit", "verify", "--data", data, "-o", "json").json()
    assert found["ok"]
    return int(found["signed"])


def test_a_server_signs_what_happens_and_lets_it_go_out(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "elsewhere" / "newest"
    file.parent.mkdir()
    options = settings(tmp_path, str(file), "zone:home.arpa")
    objects = write_json(tmp_path / "zone.json", zone("home.arpa"))
    with serving(data, *options):
        pass  # the first start makes the first token
    before = newest(data)
    file.unlink(missing_ok=True)
    with serving(data, *options) as server:
        assert newest(data) == before  # nothing has happened
        assert command("apply", "-f", objects, "--data", data).code == 0
        text = wait_until(lambda: file.exists() and file.read_text())
        found = wait_until(
            lambda: [t for t in server.texts("_kudurru-log.home.arpa", "TXT") if "NX" not in t]
        )
        (tmp_path / "txt").write_text(found[0] + "\n")
        for since in (file, tmp_path / "txt"):
            assert command("audit", "verify", "--data", data, "--since", since).code == 0
        # Publication asks for no checkpoint, and a checkpoint for no publication.
        assert (
            command("audit", "checkpoint", "--data", data, "-o", "json").json()["size"]
            > newest(tmp_path / "data") - 3
        )
        size = newest(data)
    assert text.startswith("kudurru/")
    assert newest(data) == size
    assert command("audit", "verify", "--data", data, "--level", "state").code == 0


def test_a_server_signs_its_last_changes_as_it_stops(tmp_path: Path) -> None:
    data = tmp_path / "data"
    objects = write_json(tmp_path / "zone.json", zone("home.arpa"))
    with serving(data, *settings(tmp_path, interval="1h")):
        assert command("apply", "-f", objects, "--data", data).code == 0
        assert newest(data) == 0
    found = command("audit", "verify", "--data", data, "-o", "json").json()
    assert found["signed"] == found["newest"] > 0


def test_a_server_gives_checkpoints_and_new_keys_through_its_socket(tmp_path: Path) -> None:
    data = tmp_path / "data"
    objects = write_json(tmp_path / "zone.json", zone("home.arpa"))
    with serving(data, *settings(tmp_path, interval="1h")):
        first = command("audit", "key", "--data", data).out.strip()
        assert command("apply", "-f", objects, "--data", data).code == 0
        size = command("audit", "checkpoint", "--data", data, "-o", "json").json()["size"]
        assert newest(data) == size
        second = command("audit", "key", "--rotate", "--data", data).out.strip()
        assert second != first
        done = command("audit", "verify", "--data", data, "--key", first)
        assert f"signed by {second}, which is trusted" in done.out


def test_a_server_does_not_write_to_a_log_that_a_trusted_key_has_not_signed(
    node: Path, tmp_path: Path
) -> None:
    config = tmp_path / "settings.json"
    config.write_text(json.dumps({"audit": {"trustedKeys": [another_key(tmp_path)]}}))
    with serving(node, "--config", str(config)) as server:
        assert server.texts("h3.home.arpa") == ["192.0.2.1"]
        done = command(
            "apply", "-f", write_json(tmp_path / "m.json", zone("more.example")), "--data", node
        )
        assert done.code == 1
        assert "none of the trusted keys" in done.err


@pytest.mark.parametrize("place", ["beside the log", "elsewhere"])
def test_a_server_whose_log_was_set_back_answers_and_refuses_to_go_on(
    tmp_path: Path, place: str
) -> None:
    data, file = tmp_path / "data", tmp_path / "newest"
    options = settings(tmp_path, str(file))
    for address in ("192.0.2.1", "192.0.2.2"):
        objects = write_json(
            tmp_path / "zone.json",
            zone("home.arpa"),
            records("www", "home.arpa", ("www.home.arpa", "A", address)),
        )
        with serving(data, *options) as server:
            assert command("apply", "-f", objects, "--data", data).code == 0
            assert server.stop() == 0
        if not (tmp_path / "before").exists():
            shutil.copytree(data, tmp_path / "before")
    set_back = tmp_path / "before"
    if place == "beside the log":
        shutil.copy(data / "checkpoint", set_back / "checkpoint")
        options = settings(tmp_path)
    with serving(set_back, *options) as server:
        assert server.texts("www.home.arpa") == ["192.0.2.1"]
        refused = command("apply", "-f", objects, "--data", set_back)
        assert refused.code != 0
        assert "the log was set back" in refused.err
        assert "log import" in refused.err
        assert "the log was set back" in server.stderr()
        kept = file.read_text()
        assert server.stop() == 0
    assert file.read_text() == kept  # the evidence stays
    strict = command(*serve_arguments(set_back, "--strict", *options))
    assert strict.code != 0
    assert "the log was set back" in strict.err
    if place == "beside the log":
        assert command("audit", "verify", "--data", set_back).code == 16
