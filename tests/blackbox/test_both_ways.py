"""What a command says and leaves behind does not depend on the way it took: through a server's
socket, or straight on the directory."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.blackbox.program import (
    command,
    records,
    serving,
    wait_until,
    write_json,
    zone,
)

ZONE_FILE = """\
$ORIGIN example.org.
$TTL 300
@ IN SOA ns1 hostmaster 2024010203 7200 900 1209600 300
@ IN NS ns1
ns1 IN A 192.0.2.53
www IN CNAME web
web IN A 192.0.2.80
text IN TXT "one" "two \\"quoted\\""
"""


class Way:
    """A data directory, and what commands said of it."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.seen: list[tuple[Any, ...]] = []

    def run(self, *args: str | Path) -> None:
        """Run a command and remember what it said, but for what differs from run to run. What came
        before is signed first: a command on a directory signs as it ends, a server in its time."""
        if self.seen:
            assert command("audit", "checkpoint", "--data", self.data).code == 0
        done = command(*args, "--data", self.data)
        self.seen.append((args, done.code, normal(done.out), normal(done.err)))

    def change(self, *args: str | Path, statuses: int = 1) -> None:
        """Run a command that leads to so many statuses, that of a zone last. A server writes it a
        moment later, so that a burst is one version."""
        before = self._statuses()
        self.run(*args)
        wait_until(lambda: self._statuses() >= before + statuses)

    def _statuses(self) -> int:
        done = command("history", "--status", "--data", self.data, "-o", "json", "--limit", "100")
        return sum(event["verb"] == "status" for event in done.json()) if done.code == 0 else 0


def normal(text: str) -> str:
    """Without times, uids, keys, serials that are times, and how long ago something was."""
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "TIME", text)
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UID", text)
    text = re.sub(r"kudurru/[0-9a-f]{32}/1\+[^, ]+", "KEY", text)
    text = re.sub(r"\b1[789]\d{8}\b", "SERIAL", text)
    return re.sub(r"\b\d+s\b( ago)?", "AGE", text)


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Way, Way]]:
    folder = tmp_path_factory.mktemp("ways")
    served = Way(folder / "served")
    direct = Way(folder / "direct")
    files = write_files(folder)
    for way in (served, direct):
        with serving(way.data):
            pass  # the first start of a server makes the first token
    with serving(served.data):
        for way in (served, direct):
            change_everything(way, files)
            read_everything(way, files)
        yield served, direct


def write_files(folder: Path) -> dict[str, Path]:
    (folder / "example.zone").write_text(ZONE_FILE)
    (folder / "shorter.zone").write_text(ZONE_FILE.replace("web IN A 192.0.2.80\n", ""))
    return {
        "zone": folder / "example.zone",
        "shorter": folder / "shorter.zone",
        "new": write_json(
            folder / "new.json",
            zone("home.arpa", nameservers=["ns.home.arpa"]),
            records("www.home.arpa", "home.arpa", ("www.home.arpa", "A", "192.0.2.1")),
        ),
        "changed": write_json(
            folder / "changed.json",
            records("www.home.arpa", "home.arpa", ("www.home.arpa", "A", "192.0.2.2")),
        ),
        "clash": write_json(
            folder / "clash.json",
            records("x-clash", "home.arpa", ("www.home.arpa", "CNAME", "x.home.arpa")),
        ),
        "outside": write_json(
            folder / "outside.json",
            records("outside", "home.arpa", ("www.example.net", "A", "192.0.2.2")),
        ),
    }


def change_everything(way: Way, files: dict[str, Path]) -> None:
    way.change("apply", "-f", files["new"], "--reason", "begin")
    way.run("apply", "-f", files["new"])
    way.run("apply", "-f", files["changed"], "--dry-run")
    way.change("apply", "-f", files["changed"], "-o", "json")
    way.run("apply", "-f", files["outside"])
    way.run("apply", "-f", files["changed"], "--manager", "terraform")
    way.run("apply", "-f", files["changed"], "--manager", "terraform", "--force")
    way.run("delete", "rs", "www.home.arpa", "nope")
    way.run("delete", "rs", "www.home.arpa")
    way.run("delete", "rs", "www.home.arpa", "--force", "--dry-run")
    way.change("apply", "-f", files["clash"], statuses=2)
    way.change("delete", "rs", "www.home.arpa", "--force", statuses=2)
    way.change("zone", "import", files["zone"])
    way.run("zone", "import", files["zone"], "-o", "json")
    way.change("zone", "import", files["shorter"], "--replace", "--reason", "web is gone")


READS = [
    ("get", "zone"),
    ("get", "zone", "-o", "json"),
    ("get", "zone", "example.org", "-o", "yaml"),
    ("get", "rs", "-A", "-o", "wide"),
    ("get", "rs", "-o", "jsonl"),
    ("get", "rs", "nope"),
    ("get", "rs", "-l", "a=b"),
    ("get", "rs", "--at", "2"),
    ("describe", "rs", "www.home.arpa"),
    ("describe", "rs", "text.example.org"),
    ("diff", "--from", "1"),
    ("diff", "--from", "1", "--zone", "home.arpa", "-o", "json"),
    ("query", "www.home.arpa"),
    ("query", "www.home.arpa", "--at", "2"),
    ("query", "www.example.org", "-o", "json"),
    ("query", "text.example.org", "TXT"),
    ("query", "nope.example.org", "MX"),
    ("query", "example.com", "A"),
    ("zone", "export", "example.org"),
    ("zone", "export", "nope"),
    ("zone", "check", "home.arpa"),
    ("zone", "check", "example.org", "-o", "json"),
    ("audit", "verify", "--level", "state"),
]


def read_everything(way: Way, files: dict[str, Path]) -> None:
    for args in READS:
        way.run(*args)
    way.run("diff", "-f", files["changed"])
    way.run("diff", "-f", files["clash"], "-o", "json")


def test_commands_say_the_same_through_a_server_and_on_the_directory(
    ways: tuple[Way, Way],
) -> None:
    served, direct = ways
    assert len(served.seen) > 30
    assert served.seen == direct.seen


def test_the_same_events_are_recorded_through_a_server_and_on_the_directory(
    ways: tuple[Way, Way],
) -> None:
    """But for who stamps: a server does it for everybody."""

    def facts(way: Way) -> list[tuple[Any, ...]]:
        events = command("history", "--data", way.data, "-o", "json", "--limit", "100").json()
        return [
            (e["seq"], e["verb"], e["object"], e["manager"], e["actor"], e["reason"])
            if e["verb"] != "status"
            else (e["seq"], e["verb"], e["object"], e["manager"])
            for e in events
        ]

    served, direct = ways
    assert facts(served) == facts(direct)


def test_views_of_the_same_events_have_the_same_digest(ways: tuple[Way, Way]) -> None:
    served, direct = ways
    through_server, on_directory = (
        command("replay", "--verify", "--data", way.data, "-o", "json").json()
        for way in (served, direct)
    )
    assert through_server["position"] == on_directory["position"]
    assert through_server["digests"]["objects"] == on_directory["digests"]["objects"]
    assert through_server["server"] == "the server's views equal the replayed ones"
    assert on_directory["server"] is None


def test_the_user_that_the_kernel_reports_is_recorded(ways: tuple[Way, Way]) -> None:
    served, direct = ways
    newest = [
        command("history", "zone/example.org", "--data", way.data, "-o", "json").json()[-1]
        for way in (served, direct)
    ]
    assert newest[0]["actor"] == newest[1]["actor"]
    assert [event["source"] for event in newest] == ["socket", "cli"]
