"""One changed byte in the log is found, named, and never served."""

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kudurru.adapters.clock import SystemClock, SystemEntropy
from kudurru.adapters.sqlite.log import SQLiteEventLog
from kudurru.domain import codec
from kudurru.domain.events import (
    OBJECT_APPLIED,
    OBJECT_STATUS,
    SETTINGS_CHANGED,
    ChangeSet,
    Event,
    Who,
)
from kudurru.domain.kinds.validation import parse_manifest
from kudurru.domain.objects import key_of
from kudurru.domain.verify import TAIL_ROWS
from kudurru.entrypoints import directory
from kudurru.entrypoints.service import ChangeRequest, Service
from tests.blackbox.program import (
    ANY_PORT,
    Done,
    command,
    records,
    serving,
    write_json,
    zone,
)

GAP, PAYLOAD, ENTRY, CHAIN, STATE = 10, 11, 12, 13, 17

# Column of the log: exit code of `audit verify` when a byte of it is another.
COLUMNS = {
    "seq": GAP,
    "txn": ENTRY,
    "ts": ENTRY,
    "stream": ENTRY,
    "ver": ENTRY,
    "scope": ENTRY,
    "type": ENTRY,
    "entry": ENTRY,
    "salt": PAYLOAD,
    "body": PAYLOAD,
    "who_salt": PAYLOAD,
    "who": PAYLOAD,
    "leaf": CHAIN,
    "head": CHAIN,
}

READS = [
    ("get", "rs"),
    ("get", "zone", "-o", "json"),
    ("get", "rs", "--at", "2"),
    ("describe", "rs", "www"),
    ("history",),
    ("history", "-o", "wide"),
    ("audit", "tail"),
    ("audit", "verify", "--level", "tail"),
    ("diff", "--from", "1"),
    ("query", "www.home.arpa"),
    ("query", "www.home.arpa", "--at", "4"),
    ("zone", "export", "home.arpa"),
    ("zone", "check", "home.arpa"),
    ("replay", "--verify"),
]


EVENTS = 12


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped node of one session with twelve events: zone, two record sets, stamp; www changed,
    stamp; b deleted, stamp; another zone and its status; the key and the checkpoint at the end."""
    data = tmp_path_factory.mktemp("tamper") / "data"
    who = Who(actor="user:test")
    with directory.open_service(data, who=who, write=True, on_damage=print) as service:
        for number, objects in enumerate(
            [
                (
                    zone("home.arpa"),
                    records("www", "home.arpa", ("www.home.arpa", "A", "192.0.2.1")),
                    records("b", "home.arpa", ("b.home.arpa", "A", "192.0.2.2")),
                ),
                (records("www", "home.arpa", ("www.home.arpa", "A", "192.0.2.3")),),
            ]
        ):
            apply(service, *objects, reason=f"r{number}")
        service.change(ChangeRequest(delete=[key_of("DNSRecordSet", "default", "b")]))
        forward = {"upstreams": ["192.0.2.9"]}
        apply(service, zone("other.example", type="Forward", forward=forward))
    assert verify(data).json()["newest"] == EVENTS
    return data


def apply(service: Service, *objects: dict[str, Any], reason: str = "") -> None:
    parsed = [parse_manifest(o, what="test", default_namespace="default") for o in objects]
    service.change(ChangeRequest(apply=parsed, reason=reason))


@pytest.fixture
def node(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "data"))


def verify(data: Path, *args: str) -> Done:
    return command("audit", "verify", "--data", data, "-o", "json", *args)


class Knife:
    """Somebody with a shell who knows SQLite."""

    def __init__(self, data: Path) -> None:
        self._db = sqlite3.connect(data / "log.db", isolation_level=None)
        found = self._db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'")
        self._triggers = found.fetchall()
        for name, _ in self._triggers:
            self._db.execute(f"DROP TRIGGER {name}")

    def close(self) -> None:
        for _, sql in self._triggers:
            self._db.execute(sql)
        self._db.close()

    def read(self, column: str, seq: int) -> Any:
        return self._db.execute(f"SELECT {column} FROM log WHERE seq = ?", (seq,)).fetchone()[0]

    def write(self, column: str, seq: int, value: Any) -> None:
        self.do(f"UPDATE log SET {column} = ? WHERE seq = ?", value, seq)

    def positions(self, kind: str) -> list[int]:
        found = self._db.execute("SELECT seq FROM log WHERE type = ? ORDER BY seq", (kind,))
        return [seq for (seq,) in found]

    def do(self, sql: str, *parameters: Any) -> None:
        self._db.execute(sql, parameters)


def cut(data: Path, column: str, seq: int, value: Any) -> None:
    with closing(Knife(data)) as knife:
        knife.write(column, seq, value)


def changed(value: Any, rng: random.Random) -> Any:
    """The value with another byte in it."""
    if isinstance(value, int):
        return value ^ rng.randrange(1, 256) << 8 * rng.randrange(5)
    octets = bytearray(value.encode() if isinstance(value, str) else value)
    octets[rng.randrange(len(octets))] ^= rng.randrange(1, 128)
    return octets.decode() if isinstance(value, str) else bytes(octets)


@pytest.mark.parametrize("column", COLUMNS)
def test_a_changed_byte_is_named_with_its_position(column: str, node: Path) -> None:
    rng = random.Random(column)
    with closing(Knife(node)) as knife:
        for seq in range(1, EVENTS + 1):
            before = knife.read(column, seq)
            after = changed(before, rng)
            at = after if column == "seq" else seq
            try:
                knife.write(column, seq, after)
            except sqlite3.IntegrityError:
                continue  # two rows of one seq, or of one version of a stream: no such table
            done = verify(node)
            found = done.json()
            assert found["damages"][0]["position"] == seq, found
            assert done.code == COLUMNS[column], found
            knife.write(column, at, before)
    assert verify(node, "--level", "state").code == 0


@pytest.mark.parametrize(
    ("sql", "code", "position"),
    [
        ("DELETE FROM log WHERE seq = 4", GAP, 4),
        ("DELETE FROM log WHERE seq <= 4", GAP, 1),
        ("UPDATE streams SET key = 'DNSZone//home.arpb' WHERE id = 1", ENTRY, 1),
        ("UPDATE scopes SET scope = '/home.arpb' WHERE id = 1", ENTRY, 1),
        ("UPDATE meta SET log_id = 'f' || substr(log_id, 2) || 'x'", CHAIN, 1),
        ("UPDATE log SET salt = NULL, body = NULL WHERE seq = 2", PAYLOAD, 2),
        ("UPDATE log SET who_salt = NULL, who = NULL WHERE seq = 3", PAYLOAD, 3),
        ("UPDATE log SET leaf = zeroblob(32), head = zeroblob(32) WHERE seq = 5", CHAIN, 5),
    ],
)
def test_rows_that_are_gone_swapped_or_emptied_are_named(
    sql: str, code: int, position: int, node: Path
) -> None:
    with closing(Knife(node)) as knife:
        knife.do("PRAGMA foreign_keys = OFF")
        knife.do(sql)
    done = verify(node)
    assert (done.code, done.json()["damages"][0]["position"]) == (code, position)
    said = command("audit", "verify", "--data", node).err
    assert f"the first bad position is {position}" in said


def test_a_stamp_of_other_content_is_found_by_replay_though_the_chain_is_whole(node: Path) -> None:
    log = SQLiteEventLog.open(node / "log.db", entropy=SystemEntropy(), clock=SystemClock())
    with closing(log):
        newest = next(
            event
            for event in log.read(key=key_of("DNSZone", "", "home.arpa"), newest_first=True)
            if event.type == OBJECT_STATUS
        )
        body = msgspec.json.decode(newest.body or b"")
        body["status"] |= {"serial": body["status"]["serial"] + 1, "contentHash": "0" * 64}
        forged = Event(
            OBJECT_STATUS,
            newest.key,
            log.stream_version(newest.key) + 1,
            newest.scope,
            newest.manager,
            codec.canonical(body),
        )
        log.append([ChangeSet((forged,), Who(actor="mallory"))], newest.ts)
    assert verify(node).code == 0
    done = verify(node, "--level", "state")
    assert done.code == STATE
    assert done.json()["damages"][0]["position"] == EVENTS + 1


def test_a_name_in_a_log_that_somebody_else_wrote_leads_out_of_no_folder(
    node: Path, tmp_path: Path
) -> None:
    log = SQLiteEventLog.open(node / "log.db", entropy=SystemEntropy(), clock=SystemClock())
    with closing(log):
        spec = {"zoneName": "evil.example"}
        body = {"uid": "u", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}
        key = key_of("DNSZone", "", "../evil")
        event = Event(OBJECT_APPLIED, key, 1, "/evil", "m", codec.canonical({**body, "spec": spec}))
        log.append([ChangeSet((event,), Who(actor="mallory"))], log.head().ts)
    done = command("replay", "--export", tmp_path / "out", "--data", node)
    assert done.code == 1
    assert "'../evil' is no object name" in done.err
    assert not (tmp_path / "evil.zone").exists()


@pytest.mark.parametrize("column", ["seq", "body", "who", "entry", "head"])
@pytest.mark.parametrize("seq", [1, 2, 5, 9])
def test_reading_a_damaged_log_is_an_error_with_the_place_or_gives_what_is_before(
    column: str, seq: int, node: Path
) -> None:
    rng = random.Random(seq)
    with closing(Knife(node)) as knife:
        knife.write(column, seq, changed(knife.read(column, seq), rng))
    before = (node / "log.db").read_bytes()
    for args in READS:
        done = command(*args, "--data", node)  # which fails at a traceback
        if done.code not in (0, 1):
            assert args[0] == "audit"
        if args[0] == "query" and "--at" not in args:
            assert f"position {seq}: " in done.err
    file = node.parent / "more.json"
    done = command("apply", "-f", write_json(file, zone("more.example")), "--data", node)
    assert (done.code, done.out) == (1, "")
    assert f"position {seq}: " in done.err
    assert (node / "log.db").read_bytes() == before


@pytest.mark.parametrize(
    ("column", "seq", "www"),
    [("body", 5, "192.0.2.1"), ("seq", 8, "192.0.2.3"), ("head", 3, "192.0.2.1")],
)
def test_a_server_serves_what_is_before_the_damage_and_refuses_changes(
    column: str, seq: int, www: str, node: Path
) -> None:
    rng = random.Random(seq)
    with closing(Knife(node)) as knife:
        knife.write(column, seq, changed(knife.read(column, seq), rng))
    file = write_json(node.parent / "more.json", zone("more.example"))
    with serving(node, "--demo") as server:
        assert server.texts("www.home.arpa") == [www]
        # b came with position 3 and went with position 7.
        assert server.texts("b.home.arpa") == (["NXDOMAIN"] if seq in (3, 8) else ["192.0.2.2"])
        assert server.texts("www.demo.example") == ["REFUSED"]
        done = command("apply", "-f", file, "--data", node)
        assert (done.code, done.out) == (1, "")
        assert f"position {seq}: " in done.err
        assert command("query", "www.home.arpa", "--data", node).code == 0
    assert verify(node).json()["damages"][0]["position"] == seq


@pytest.mark.parametrize(("damaged", "shown"), [("second", "7s"), ("first", "0s"), (1, "0s")])
def test_settings_of_the_log_from_before_its_damage_stay(
    damaged: str | int, shown: str, node: Path
) -> None:
    for value in ("7s", "8s"):
        assert command("config", "set", "cache.minTTL", value, "--data", node).code == 0
    with closing(Knife(node)) as knife:
        first, second = knife.positions(SETTINGS_CHANGED)
        knife.write("body", {"first": first, "second": second}.get(str(damaged), damaged), b"{}")
    with serving(node):
        done = command("config", "show", "cache.minTTL", "--data", node, "-o", "json")
        assert done.json()[0]["value"] == shown


def test_a_strict_server_does_not_start_on_a_damaged_log(node: Path) -> None:
    cut(node, "body", 5, b"{}")
    done = command("serve", "--strict", "--dns", ANY_PORT, "--data", node)
    assert (done.code, done.out) == (1, "")
    assert "position 5: " in done.err


def test_a_damage_older_than_what_is_verified_at_a_start_is_found_by_the_replay(
    node: Path,
) -> None:
    file = node.parent / "long.zone"
    count = TAIL_ROWS + 300  # the tail begins at the edge of a tile
    file.write_text(
        "$ORIGIN long.example.\n@ 5 SOA ns h 1 2 3 4 5\n@ 5 NS ns.example.net.\n"
        f"$GENERATE 1-{count} h$ 5 A 192.0.2.1\n"
    )
    assert command("zone", "import", file, "--data", node).code == 0
    assert command("config", "set", "acl.recursion", "all", "--data", node).code == 0
    with closing(Knife(node)) as knife:
        knife.do("DELETE FROM log WHERE seq = 5")
    assert verify(node, "--level", "tail").code == 0
    # Who begins with a snapshot does not read what is damaged.
    assert "192.0.2.3" in command("query", "www.home.arpa", "--data", node).out
    (node / "views.db").unlink()
    done = command("query", "www.home.arpa", "--data", node)
    assert (done.code, done.out) == (1, "")
    assert "position 5: row 5 is missing" in done.err
    with serving(node) as server:
        assert server.texts("www.home.arpa") == ["192.0.2.1"]
        assert server.texts("h1.long.example") == ["REFUSED"]
        # Nor do settings count that came after it.
        done = command("config", "show", "acl.recursion", "--data", node, "-o", "json")
        assert done.json()[0]["value"] == "private"
