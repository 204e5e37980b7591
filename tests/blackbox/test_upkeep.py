"""Pruning, redaction, backup and disaster restore, as people do them: straight on a directory and
through the server that holds it."""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from kudurru.domain.events import Who
from kudurru.domain.kinds.validation import parse_manifest
from kudurru.domain.objects import key_of
from kudurru.entrypoints import directory, verify_export
from kudurru.entrypoints.service import ChangeRequest
from tests.blackbox.program import Done, command, records, serving, write_json, zone

ZONE = "home.arpa"
SECRET = "hunter2-is-the-word"


def www(number: int | str) -> dict[str, Any]:
    return records("www", ZONE, ("www.home.arpa", "TXT", f'"{number}"'))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped node: a zone, www in 300 versions (with a secret in the fifth), and a record set
    that was deleted. Positions 1 and 2 are the zone and its stamp; 3 and 4 www and the stamp, and
    so on by twos."""
    data = tmp_path_factory.mktemp("upkeep") / "data"
    who = Who(actor="user:secretive", source="test")
    with directory.open_service(data, who=who, write=True, on_damage=print) as service:

        def apply(*objects: dict[str, Any]) -> None:
            parsed = [parse_manifest(o, what="test", default_namespace="default") for o in objects]
            service.change(ChangeRequest(apply=parsed, reason="as asked"))

        apply(zone(ZONE))
        for number in range(300):
            apply(www(SECRET if number == 4 else number))
        apply(records("gone", ZONE, ("gone.home.arpa", "A", "192.0.2.1")))
        service.change(ChangeRequest(delete=[key_of("DNSRecordSet", "default", "gone")]))
    return data


@pytest.fixture
def data(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "data"))


@contextmanager
def held(data: Path, *, by_server: bool) -> Iterator[None]:
    with serving(data) if by_server else nullcontext():
        yield


def ok(*args: str | Path, data: Path) -> Done:
    done = command(*args, "--data", data)
    assert done.code == 0, done
    return done


def refused(*args: str | Path, data: Path) -> str:
    before = digest_of(data)
    done = command(*args, "--data", data)
    assert (done.code, done.out) == (1, ""), done
    assert digest_of(data) == before
    return done.err


def digest_of(data: Path) -> Any:
    """Of what a directory holds, as a reader sees it."""
    if not (data / "log.db").exists():
        return sorted(path.name for path in data.iterdir()) if data.exists() else None
    return ok("replay", "-o", "json", data=data).json()["position"]


def check(data: Path) -> None:
    """The log verifies, and the views (a running server's too) are what it says."""
    assert ok("audit", "verify", "--level", "state", data=data).out.startswith("ok: ")
    ok("replay", "--verify", data=data)


WAYS = pytest.mark.parametrize("by_server", [False, True], ids=["directly", "through a server"])


@WAYS
def test_a_redaction_erases_the_octets_and_all_goes_on(data: Path, *, by_server: bool) -> None:
    assert SECRET.encode() in (data / "log.db").read_bytes()
    with held(data, by_server=by_server):
        done = ok("audit", "redact", "11", "--reason", "a password", data=data)
        assert done.out == "erased what position 11 held\n"
        assert "other versions of the same object are still there, at 601, 599" in done.err
        assert "not reached from here: backups" in done.err
        check(data)
        assert refused("get", "rs", "www", "--at", "11", data=data) == (
            "error: DNSRecordSet default/www cannot be shown: its payload at position 11 was "
            "redacted\n"
        )
        assert ok("query", "www.home.arpa", "TXT", "--at", "12", data=data).out.count("TXT") == 1
        key = ok("audit", "key", data=data).out.strip()
        check_exports(data, data.parent, key)
        assert r'"\"3\""' in ok("get", "rs", "www", "--at", "9", "-o", "json", data=data).out
        newest = ok("history", "--limit", "1", "-o", "json", data=data).json()[0]
        assert (newest["type"], newest["reason"]) == ("payload.redacted.v1", "a password")
        assert "redacted already" in refused("audit", "redact", "11", "--reason", "x", data=data)
    for path in data.glob("log.db*"):
        assert SECRET.encode() not in path.read_bytes(), path
    with serving(data) as server:
        assert server.texts("www.home.arpa", "TXT") == ['"299"']


@WAYS
def test_who_did_a_change_is_erased_of_the_whole_change(data: Path, *, by_server: bool) -> None:
    with held(data, by_server=by_server):
        done = ok("audit", "redact", "601", "--who", "--reason", "asked to", data=data)
        assert done.out.startswith("erased who did positions 601 to 602, one change")
        check(data)
        events = ok("history", "rs/www", "--limit", "1", "-o", "json", data=data).json()
        assert (events[0]["actor"], events[0]["reason"]) == ("(erased)", "")
        redaction = str(newest(data))
        said = refused("audit", "redact", redaction, "--who", "--reason", "x", data=data)
        assert "it says who took something out of the log, which stays" in said


def newest(data: Path) -> int:
    """Position of the newest redaction."""
    events = ok("history", "--limit", "1", "-o", "json", data=data).json()
    return int(events[0]["seq"])


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("601",), "is what DNSRecordSet default/www is now: delete or change it first"),
        (("1",), "is what DNSZone home.arpa is now"),
        (("2",), "which verification or replay needs"),
        (("99999",), "position 99999 is not in the log, which ends at"),
        (("11", "--reason", " "), "say why"),
    ],
)
def test_what_must_stay_is_not_redacted(args: tuple[str, ...], said: str, data: Path) -> None:
    assert said in refused("audit", "redact", "--reason", "x", *args, data=data)


@WAYS
def test_a_pruned_log_tells_everything_since_and_refuses_what_was_before(
    data: Path, *, by_server: bool
) -> None:
    with held(data, by_server=by_server):
        live = ok("get", "rs", "-o", "json", data=data).out
        planned = ok("audit", "prune", "--before", "520", "--dry-run", "-o", "json", data=data)
        assert planned.json() == {"upto": 512, "anchor": 608, "rows": 509, "kept": 3}
        assert ok("audit", "prune", "--before", "520", "-o", "json", data=data).json() == (
            planned.json()
        )
        check(data)
        assert ok("get", "rs", "-o", "json", data=data).out == live
        assert '"254"' in ok("query", "www.home.arpa", "TXT", "--at", "512", data=data).out
        assert ok("zone", "export", ZONE, "--at", "513", data=data).out.count("TXT") == 1
        for args in (("get", "rs", "--at", "100"), ("undo", "100"), ("diff", "--from", "100"),
                     ("query", "www.home.arpa", "--at", "100"), ("audit", "prove", "100"),
                     ("restore", "--at", "100", "--all")):  # fmt: skip
            said = refused(*args, data=data)
            assert "is before position 512, where this log begins since it was pruned" in said
            assert "give 512 or a later one" in said
        ok("undo", "601", data=data)
        ok("audit", "prove", "1", data=data)
        assert ok("audit", "prune", "--before", "520", data=data).out.startswith("nothing to prune")
        assert ok("audit", "prune", data=data).out.startswith("nothing to prune")
    with serving(data) as server:
        assert server.texts("www.home.arpa", "TXT") == ['"298"']
    check(data)


def test_what_was_pruned_is_not_passed_over_in_silence(data: Path) -> None:
    def blamed() -> dict[str, tuple[int, bool]]:
        lines = ok("blame", ZONE, "-o", "json", data=data).json()
        return {line["name"]: (line["seq"], line["orBefore"]) for line in lines}

    file = data.with_name("more.json")
    for names in ("a", "ab", "abc"):
        owners = [(f"{name}.home.arpa", "A", "192.0.2.1") for name in names]
        ok("apply", "-f", write_json(file, records("more", ZONE, *owners)), data=data)
    before = blamed()
    assert not any(or_before for _, or_before in before.values())
    ok("audit", "prune", "--before", "600", data=data)
    assert ok("audit", "verify", "-o", "json", data=data).json()["pruned"] == 512
    assert "those up to 512 were pruned" in ok("audit", "verify", data=data).out
    replayed = ok("replay", "--verify", "--json", data=data).json()
    with closing(sqlite3.connect(data / "log.db")) as db:
        assert db.execute("SELECT count(*) FROM log").fetchone() == (replayed["events"],)
    assert replayed["events"] < replayed["position"]
    assert f"{replayed['events']} events replayed, up to position " in ok("replay", data=data).err
    assert blamed() == before  # of what came after, or was the first of its object, all is known
    ok("apply", "-f", write_json(file, *fillers()), data=data)
    ok("audit", "checkpoint", data=data)
    ok("audit", "prune", "--before", "1000", data=data)
    assert blamed()["a.home.arpa."][1]
    assert "<=" in ok("blame", ZONE, data=data).out


def fillers() -> list[dict[str, Any]]:
    """Enough of them that two tiles more are full."""
    return [records(f"f{i}", "other.test", (f"f{i}.other.test", "A", "192.0.2.1"))
            for i in range(600)] + [zone("other.test")]  # fmt: skip


def test_an_event_keeps_its_name_in_every_export(data: Path, tmp_path: Path) -> None:
    backup, other = tmp_path / "backup", tmp_path / "other"
    ok("log", "export", backup, data=data)
    ok("log", "import", backup, data=other)
    for format_, field in (("k8s", "auditID"), ("cloudevents", "source"), ("ocsf", "metadata")):
        before, after = (exported(place, format_, field, tmp_path) for place in (data, other))
        assert after[: len(before)] == before
        assert after[0] != after[-1]
        assert "/2" in str(after[-1])


def exported(data: Path, format_: str, field: str, folder: Path) -> list[Any]:
    file = folder / "exported"
    ok("audit", "export", "--format", format_, "--output", file, data=data)
    return [json.loads(line)[field] for line in file.read_text().splitlines()]


def test_an_export_of_a_pruned_log_says_so_and_verifies(data: Path, tmp_path: Path) -> None:
    ok("audit", "prune", "--before", "520", data=data)
    file = tmp_path / "log.jsonl"
    ok("audit", "export", "--format", "jsonl", "--output", file, data=data)
    key = ok("audit", "key", data=data).out.strip()
    assert verify_export.main([str(file), "--key", key]) == 0
    assert '"filter":{"pruned":"512"}' in file.read_text().partition("\n")[0]


@WAYS
def test_a_backup_becomes_a_log_that_goes_on_in_a_new_epoch(
    data: Path, tmp_path: Path, *, by_server: bool
) -> None:
    backup, other = tmp_path / "backup", tmp_path / "other"
    ok("audit", "redact", "11", "--reason", "a password", data=data)
    ok("audit", "prune", "--before", "300", data=data)
    with held(data, by_server=by_server):
        ok("apply", "-f", write_json(tmp_path / "more.json", www("more")), data=data)
        exported = ok("log", "export", backup, "-o", "json", data=data).json()
        assert exported["signed"] == exported["size"]
        assert backup.stat().st_mode & 0o777 == 0o600
    key = ok("audit", "key", data=data).out.strip()
    before = ok("get", "rs", "www", "-o", "json", data=data).json()
    args = ("log", "import", backup, "--key", key, "--reason", "the disk died", "-o", "json")
    imported = ok(*args, data=other).json()
    assert imported["position"] == exported["size"] + 1
    assert imported["origin"].endswith("/2")
    check(other)
    after = ok("get", "rs", "www", "-o", "json", data=other).json()
    assert after["spec"] == before["spec"]
    versions = [int(one["metadata"]["resourceVersion"]) for one in (before, after)]
    assert [version >> 40 for version in versions] == [1, 2]
    assert imported["key"] == ok("audit", "key", data=other).out.strip()
    trusted = ("audit", "verify", "--key", imported["key"])
    assert "is trusted" in ok(*trusted, data=other).out
    assert "is trusted" in ok(*trusted, "--key", key, data=other).out
    said = command("audit", "verify", "--key", key, "--data", other)
    assert (said.code, "give the key that the import printed too" in said.out) == (15, True)
    check_exports(other, tmp_path, imported["key"])
    ok("undo", str(before_checkpoint(other)), data=other)
    with serving(other) as server:
        assert server.texts("www.home.arpa", "TXT") == ['"299"']


def check_exports(data: Path, folder: Path, key: str) -> None:
    """What is exported of a log verifies without kudurru, whatever was taken from it."""
    for name, selection in (("whole", ()), ("some", ("--zone", ZONE))):
        file = folder / f"{name}.jsonl"
        ok("audit", "export", *selection, "--output", file, data=data)
        assert verify_export.main([str(file), "--key", key]) == 0
    seq = before_checkpoint(data)
    proof = folder / "proof"
    ok("audit", "prove", str(seq), "--output", proof, data=data)
    assert key.partition("+")[0] in proof.read_text()


def before_checkpoint(data: Path) -> int:
    events = ok("history", "rs/www", "--limit", "1", "-o", "json", data=data).json()
    return int(events[0]["seq"])


def test_a_log_whose_key_is_lost_goes_on_from_its_backup_with_everything(
    data: Path, tmp_path: Path
) -> None:
    backup, other = tmp_path / "backup", tmp_path / "other"
    shutil.rmtree(data / "keys")
    ok("apply", "-f", write_json(tmp_path / "more.json", www("unsigned")), data=data)
    # Nobody could tell a redaction that no key signs from one by whoever writes the file.
    said = refused("audit", "redact", "11", "--reason", "a password", data=data)
    assert "put the key back" in said
    position = digest_of(data)
    done = ok("log", "export", backup, "-o", "json", data=data)
    assert "the newest events are not signed" in done.err
    assert done.json()["size"] == position > done.json()["signed"]
    imported = ok("log", "import", backup, "--reason", "lost key", "-o", "json", data=other).json()
    assert imported["position"] == position + 1
    assert "is trusted" in ok("audit", "verify", "--key", imported["key"], data=other).out
    check(other)
    ok("audit", "redact", "11", "--reason", "a password", data=other)
    check(other)
    assert "unsigned" in ok("get", "rs", "www", "-o", "json", data=other).out


@pytest.fixture(scope="module")
def backup(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("backup")
    data = Path(shutil.copytree(whole, folder / "data"))
    ok("log", "export", folder / "backup", data=data)
    return folder / "backup"


def test_a_backup_that_is_not_what_was_asked_for_is_refused_and_nothing_is_made(
    backup: Path, data: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    octets = backup.read_bytes()
    cut = tmp_path / "cut"
    cut.write_bytes(octets[: len(octets) // 2])
    changed = tmp_path / "changed"
    at = octets.index(SECRET.encode())
    changed.write_bytes(octets[:at] + b"H" + octets[at + 1 :])
    foreign = tmp_path / "foreign"
    ok("apply", "-f", write_json(tmp_path / "z.json", zone("x.example")), data=foreign)
    ok("audit", "checkpoint", data=foreign)
    wrong_origin = ok("audit", "key", data=foreign).out.strip()
    ok("audit", "key", "--rotate", data=data)
    wrong_key = ok("audit", "key", data=data).out.strip()
    late = tmp_path / "late.txt"
    late.write_text(ok("audit", "checkpoint", data=data).out)
    text = tmp_path / "text"
    text.write_text("no backup")
    for args, said in [
        ((cut,), f"{cut}: "),
        ((changed,), "position 11: body or the salt of it is not what was committed to"),
        ((backup, "--key", wrong_key), "none of the trusted keys"),
        ((backup, "--key", wrong_origin), "it is of kudurru/"),
        ((backup, "--checkpoint", late), "the log ends at"),
        ((text,), f"{text}: "),
        ((tmp_path / "missing",), "No such file"),
    ]:
        assert said in refused("log", "import", *args, data=other), args
        assert not other.exists()
    assert "is not empty, there is checkpoint, " in refused("log", "import", backup, data=data)
    assert "is there already" in refused("log", "export", backup, data=data)


def test_a_backup_can_be_verified_without_importing_it(backup: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    done = ok("log", "import", backup, "--dry-run", data=other)
    assert done.out.endswith("events verify; nothing was imported\n")
    assert not other.exists()
