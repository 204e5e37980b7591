"""Restore, undo, marks and blame as people use them, through a server and on the directory."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.sqlite.log import SQLiteEventLog
from kudurru.domain import targets
from kudurru.domain.events import Who
from kudurru.domain.restore import Scope
from kudurru.entrypoints.restoring import RestoreRequest, prepare_restore
from kudurru.entrypoints.wiring import Node
from tests.blackbox.program import Done, Serving, command, records, serving, write_json, zone

HOSTS = [f"h{i}" for i in range(12)]


class Place:
    """A data directory, with or without a server that holds it."""

    def __init__(self, data: Path, server: Serving | None) -> None:
        self.data = data
        self.server = server

    def run(self, *args: str | Path, code: int = 0) -> Done:
        done = command(*args, "--data", self.data)
        assert done.code == code, done.err
        return done

    def json(self, *args: str | Path) -> Any:
        return self.run(*args, "-o", "json").json()

    def address(self, name: str = "www.a.test") -> list[str]:
        if self.server is not None:
            return self.server.texts(name)
        return [record["data"] for record in self.json("query", name)["answer"]]


@pytest.fixture(params=["server", "directory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A zone with www and twelve hosts; then www is another and a host is gone."""
    with made(request.param, tmp_path) as found:
        yield found


@pytest.fixture(scope="module", params=["server", "directory"])
def sight(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """The same, for tests that only look."""
    with made(request.param, tmp_path_factory.mktemp("sight")) as found:
        yield found


@contextmanager
def made(how: str, folder: Path) -> Iterator[Place]:
    data = folder / "data"
    if how == "directory":
        yield with_history(Place(data, None), folder)
        return
    with serving(data) as server:
        yield with_history(Place(data, server), folder)


def with_history(place: Place, folder: Path) -> Place:
    hosts = [records(name, "a.test", (f"{name}.a.test", "A", "192.0.2.1")) for name in HOSTS]
    www = [records("www", "a.test", ("www.a.test", "A", f"192.0.2.{i}")) for i in (1, 2)]
    place.run("apply", "-f", write_json(folder / "1.json", zone("a.test"), www[0], *hosts))
    place.run("audit", "mark", "good", "--reason", "before the move")
    place.run("apply", "-f", write_json(folder / "2.json", www[1]), "--reason", "the move")
    place.run("delete", "rs", "h0")
    return place


def test_a_zone_is_planned_and_restored_and_restored_back(place: Place) -> None:
    assert place.address() == ["192.0.2.2"]
    scope = ("--zone", "a.test", "--at", "mark:good")
    plan = place.json("restore", *scope)
    assert [(step["object"], step["action"]) for step in plan["steps"]] == [
        ("dnsrecordset/default/h0", "create"),
        ("dnsrecordset/default/www", "update"),
    ]
    assert plan["steps"][1]["changes"] == [
        {"field": "spec.endpoints[0].targets[0]", "from": "192.0.2.2", "to": "192.0.2.1"}
    ]
    assert place.address() == ["192.0.2.2"], "a plan changes nothing"
    digest = ("--apply", "--plan-digest", plan["digest"])
    carried = place.json("restore", *scope, *digest, "--reason", "move failed")
    assert place.address() == ["192.0.2.1"]
    assert place.address("h0.a.test") == ["192.0.2.1"]
    assert "stale" in place.run("restore", *scope, *digest, code=1).err
    assert place.json("restore", *scope, "--yes")["position"] == 0
    causes = {event.get("cause") for event in place.json("history", "rs/www", "--limit", "1")}
    assert causes == {f"restore:{carried['id']}"}
    place.run("undo", carried["id"])
    assert place.address() == ["192.0.2.2"]
    assert place.run("audit", "verify", "--level", "state").code == 0
    assert place.run("replay", "--verify").code == 0


def test_the_plan_in_words_says_how_to_go_on(sight: Place) -> None:
    done = sight.run("restore", "rs/www", "--at", "mark:good")
    assert "update dnsrecordset/default/www" in done.out
    assert '- spec.endpoints[0].targets[0]: "192.0.2.2"' in done.out
    assert "at position" in done.err
    assert "--apply --plan-digest" in done.err
    assert "zone a.test.: changes or removes 1 record, " in done.out


def test_one_change_is_undone_and_conflicts_are_named(place: Place) -> None:
    first = place.run("undo", "2", code=1)
    assert "DNSRecordSet default/www: changed since, last at position" in first.err
    assert "--skip-conflicts" in first.err
    seq = str(place.json("history", "rs/www", "--limit", "1")[0]["seq"])
    assert "update dnsrecordset/default/www" in place.run("undo", seq, "--dry-run").out
    assert place.address() == ["192.0.2.2"]
    place.run("undo", seq, "--reason", "wrong address")
    assert place.address() == ["192.0.2.1"]


def test_the_newest_change_of_an_object_is_undone_by_its_name(place: Place) -> None:
    position = place.json("history", "rs/www", "--limit", "1")[0]["seq"]
    done = place.run("undo", "rs/www", "--reason", "wrong address")
    assert f"DNSRecordSet default/www is at position {position}" in done.err
    assert place.address() == ["192.0.2.1"]
    place.run("undo", "dnsrecordset/default/www")  # as `history` writes it; an undo is undone too
    assert place.address() == ["192.0.2.2"]
    place.run("undo", "rs/h0")
    assert place.address("h0.a.test") == ["192.0.2.1"], "what was deleted is found by its name"
    assert "was never changed" in place.run("undo", "rs/nobody", code=1).err


def test_before_an_event_is_before_the_whole_change(place: Place) -> None:
    seq = place.json("history", "rs/www", "--limit", "1")[0]["seq"]
    place.run("restore", "rs/www", "--before-event", str(seq), "--yes")
    assert place.address() == ["192.0.2.1"]


def test_blame_names_who_changed_a_record_and_why(sight: Place) -> None:
    lines = {line["name"]: line for line in sight.json("blame", "A.test.")}
    assert lines["www.a.test."]["reason"] == "the move"
    assert lines["www.a.test."]["object"] == "dnsrecordset/default/www"
    assert lines["h1.a.test."]["seq"] < lines["www.a.test."]["seq"]
    assert lines["www.a.test."]["actor"].startswith("user:")
    assert "h0.a.test." not in lines
    assert "h0.a.test." in sight.run("blame", "a.test", "--at", "mark:good").out


@pytest.mark.parametrize("zone", ["a.test", "A.TEST."])
def test_a_zone_is_named_as_people_name_it(zone: str, sight: Place) -> None:
    shown = sight.json("history", "--zone", zone, "--limit", "3")
    assert len(shown) == 3
    file = sight.data.with_name("exported.csv")
    sight.run("audit", "export", "--format", "csv", "--zone", zone, "--output", file)
    assert "h0.a.test" in file.read_text()


def test_what_was_is_read_everywhere(sight: Place) -> None:
    at = ("--at", "mark:good")
    assert sight.json("query", "www.a.test", *at)["answer"][0]["data"] == "192.0.2.1"
    assert "www 300 IN A 192.0.2.1" in sight.run("zone", "export", "a.test", *at).out
    assert len(sight.json("get", "rs", *at)) == len(HOSTS) + 1
    www = sight.json("get", "rs", "www", *at)
    assert www["spec"]["endpoints"][0]["targets"] == ["192.0.2.1"]
    changed = sight.run("diff", "--from", "mark:good", "--zone", "a.test", "-o", "json", code=1)
    assert [(one["object"], one["verb"]) for one in changed.json()] == [
        ("dnsrecordset/default/h0", "deleted"),
        ("dnsrecordset/default/www", "changed"),
    ]


def test_a_mass_change_wants_to_be_allowed(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "a.zone"
    head = "$ORIGIN a.test.\n$TTL 300\n@ IN SOA ns. h. 9 1 1 1 1\n@ IN NS ns.\n"
    file.write_text(head + "h1 IN A 192.0.2.1\n")
    calls: list[tuple[str | Path, ...]] = [
        ("delete", "zone", "a.test"),
        ("delete", "rs", *HOSTS[1:6]),
        ("zone", "import", file, "--replace"),
    ]
    for call in calls:
        done = place.run(*call, code=1)
        assert (
            "of the 12 records of a.test.; if that is meant, give --allow-mass-change" in done.err
        )
    assert place.address("h1.a.test") == ["192.0.2.1"]
    place.run("delete", "rs", *HOSTS[1:6], "--allow-mass-change")
    assert place.address("h1.a.test") in (["NXDOMAIN"], [])


USAGE: list[tuple[tuple[str, ...], str]] = [
    (("restore",), "give one of --at T, --before-event SEQ and --resume ID"),
    (("restore", "--at", "1", "--before-event", "1", "--all"), "give one of --at T"),
    (("restore", "--at", "1", "--all", "--apply"), "--apply needs the --plan-digest"),
]
REFUSED: list[tuple[tuple[str, ...], str]] = [
    (("restore", "--at", "1"), "give either --all or a zone"),
    (("restore", "--at", "1", "--all", "-n", "x"), "give either --all or a zone"),
    (("restore", "--at", "999", "--all"), "position 999 is not in the log, which ends at"),
    (("restore", "--at", "2999-01-01T00:00:00Z", "--all"), "is still to come"),
    (("restore", "--at", "mark:nope", "--all"), "there is no mark 'nope'"),
    (("restore", "--at", "1", "--zone", "b.test"), "there is no zone 'b.test'"),
    (("restore", "--before-event", "1", "--all"), "nothing before position 1"),
    (("restore", "--resume", "r-1"), "there is no restore 'r-1'"),
    (("restore", "--at", "1", "www"), "'www' is not KIND/NAME"),
    (("restore", "--at", "1", "--kind", "zoen"), "did you mean DNSZone?"),
    (("restore", "--at", "1", "-l", "a b"), "'a b' is not NAME=VALUE"),
    (("undo", "999"), "position 999 is not in the log, which ends at"),
    (("undo", "r-1"), "there is no restore 'r-1'"),
    (("audit", "mark", "good"), "Mark good is there already"),
    (("audit", "mark", "a/b"), "'a/b' is no name"),
    (("blame", "b.test"), "there is no zone 'b.test'"),
    (("zone", "export", "a.test", "--at", "mark:nope"), "there is no mark 'nope'"),
]


def test_what_cannot_be_restored_says_why_and_changes_nothing(sight: Place) -> None:
    before = changes(sight)
    for code, cases in ((1, REFUSED), (2, USAGE)):
        for args, why in cases:
            done = sight.run(*args, code=code)
            assert why in " ".join(done.err.replace("│", " ").split()), args
    assert changes(sight) == before


def changes(place: Place) -> list[int]:
    """Positions of everything but stamps, which a server writes in its own time."""
    history = place.json("history", "--limit", "99")
    return [event["seq"] for event in history if event["verb"] != "status"]


def test_a_server_finds_a_restore_that_was_cut_off_and_ends_it(tmp_path: Path) -> None:
    place = with_history(Place(tmp_path / "data", None), tmp_path)
    cut_off(place.data)
    assert place.json("history", "--limit", "1")[0]["verb"] == "unfinished"
    with serving(place.data) as server:
        place.server = server
        assert place.address() == ["192.0.2.2"]
        place.run("restore", "--resume", "r-cut", "--reason", "the rest of it")
        assert place.address() == ["192.0.2.1"]
        events = place.json("history", "--limit", "99")
        assert [e["verb"] for e in events if e["object"] == "restore/r-cut"] == ["ended", "begun"]
        assert "is finished" in place.run("restore", "--resume", "r-cut", code=1).err


def cut_off(data: Path) -> None:
    """What the log holds when a restore of many objects dies before its first zone."""
    clock, entropy = SystemClock(), SystemEntropy()
    log = SQLiteEventLog.open(data / "log.db", entropy=entropy, clock=clock)
    node = Node(log, clock, entropy)
    node.catch_up()
    who = Who(actor="user:test", source="test")
    target = targets.resolve("mark:good", log, clock.now_us())
    request = RestoreRequest(target=target, scope=Scope(zone="a.test"))
    (whole,) = prepare_restore(log, request, "r-cut", who).changes
    node.commit(msgspec.structs.replace(whole, commands=whole.commands[:1]))
    log.close()
