"""Secondary zones of running servers, and what the commands tell of them."""

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import dns.flags
import dns.message
import dns.opcode
import dns.query
import pytest

from tests.blackbox.program import Serving, kudurru, serving, wait_until, write_json, zone
from tests.ports import free_port
from tests.primaries import Script, SocketPrimary, soa, whole

ZONE = "sec.example"
HOURS = "3600 600 86400 60"


class Chain:
    """A scripted primary, its secondary, and the secondary of that."""

    def __init__(self, script: Script, first: Serving, second: Serving, folder: Path) -> None:
        self.script, self.first, self.second, self.folder = script, first, second, folder

    def serials(self) -> list[str]:
        found = [server.texts(ZONE, "SOA")[0] for server in (self.first, self.second)]
        return [text.split()[2] if " " in text else text for text in found]


def apply(folder: Path, name: str, port: int, **spec: object) -> None:
    primaries = {"primaries": [{"address": "127.0.0.1", "port": port}]}
    manifest = zone(ZONE, type="Secondary", secondary=primaries, **spec)
    path = write_json(folder / f"{name}.json", manifest)
    assert kudurru("apply", "-f", path, "--data", folder / name).code == 0


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    folder, script = tmp_path_factory.mktemp("chain"), Script()
    ports = free_port(), free_port()
    script.steps[ZONE] = whole(10, 'www 60 TXT "one"', 'old 60 TXT "o"', timers=HOURS)
    with SocketPrimary(script).serving() as primary:
        transfer = {"allow": ["127.0.0.0/8"], "notify": [f"127.0.0.1:{ports[1]}"]}
        apply(folder, "first", primary.port, transfer=transfer)
        apply(folder, "second", ports[0])
        with (
            serving(folder / "second", dns_at=f"127.0.0.1:{ports[1]}") as second,
            serving(folder / "first", dns_at=f"127.0.0.1:{ports[0]}") as first,
        ):
            made = Chain(script, first, second, folder)
            wait_until(lambda: made.serials() == ["10", "10"])
            steps = [soa(11, HOURS), soa(10, HOURS), 'old 60 TXT "o"', soa(11, HOURS),
                     'new 60 TXT "n"', soa(11, HOURS)]  # fmt: skip
            script.steps[ZONE] = {**whole(11, timers=HOURS), "axfr": "drop", "ixfr": [steps]}
            _notify(first)
            wait_until(lambda: made.serials() == ["11", "11"])
            yield made


def _notify(server: Serving) -> None:
    message = dns.message.make_query(ZONE, "SOA")
    message.flags = dns.flags.AA
    message.set_opcode(dns.opcode.NOTIFY)
    answer = dns.query.udp(message, server.host, port=server.port, timeout=30)
    assert answer.rcode() == 0


def test_a_change_passes_down_a_chain_of_secondaries_by_notify(chain: Chain) -> None:
    for server in (chain.first, chain.second):
        assert server.texts(f"new.{ZONE}", "TXT") == ['"n"']
        assert server.texts(f"old.{ZONE}", "TXT") == ["NXDOMAIN"]
        assert server.texts(f"www.{ZONE}", "TXT") == ['"one"']


def test_the_past_of_a_secondary_can_be_asked(chain: Chain) -> None:
    data = chain.folder / "first"
    events = kudurru("history", "--zone", ZONE, "--data", data, "-o", "json").json()
    mine = [e for e in events if e["actor"] == f"secondary:{ZONE}"]
    assert {e["reason"] for e in mine} == {"serial 10 (whole)", "serial 10 to 11 (differences)"}
    assert all(e["source"].startswith("127.0.0.1:") for e in mine)
    first = next(e["seq"] for e in reversed(mine) if e["reason"] == "serial 10 (whole)")
    before = str(first + 3)  # apex, old and www, then the status with the serial
    out = kudurru("query", f"old.{ZONE}", "TXT", "--at", before, "--data", data).out
    assert '"o"' in out
    exported = kudurru("zone", "export", ZONE, "--at", before, "--data", data).out
    assert f" SOA ns h 10 {HOURS}" in exported or " 10 3600 600 86400 60" in exported
    assert "old" in exported
    shown = kudurru("diff", "--from", before, "--to", str(mine[0]["seq"]), "--data", data)
    assert shown.code == 1
    assert "old" in shown.out
    assert "new" in shown.out
    blamed = kudurru("blame", ZONE, "--data", data).out
    assert f"secondary:{ZONE}" in blamed


def test_what_is_served_is_what_the_log_says(chain: Chain) -> None:
    for name in ("first", "second"):
        done = kudurru("replay", "--verify", "--data", chain.folder / name)
        assert done.code == 0, done.err + done.out


def test_an_export_of_a_secondary_is_the_zone(chain: Chain) -> None:
    first = kudurru("zone", "export", ZONE, "--data", chain.folder / "first").out
    assert first == kudurru("zone", "export", ZONE, "--data", chain.folder / "second").out
    assert "new 60 IN TXT" in first


def test_metrics_tell_of_transfers(chain: Chain) -> None:
    with urllib.request.urlopen(f"http://{chain.first.addresses['metrics']}/metrics") as answer:
        text = answer.read().decode()
    assert 'kudurru_transfers_in_total{kind="IXFR"} 1.0' in text
    assert 'kudurru_notifies_in_total{result="taken"} 1.0' in text
    assert f'kudurru_zone_serial{{zone="{ZONE}."}} 11.0' in text


def test_a_refresh_can_be_asked_for(chain: Chain) -> None:
    before = len(chain.script.asked)
    done = kudurru("zone", "refresh", ZONE, "--data", chain.folder / "first")
    assert done.code == 0, done.err
    wait_until(lambda: len(chain.script.asked) > before)
    done = kudurru("zone", "refresh", "other.example", "--data", chain.folder / "first")
    assert done.code == 1
    assert "there is no secondary zone 'other.example'" in done.err


def test_people_do_not_write_into_a_secondary(chain: Chain) -> None:
    done = kudurru(
        "delete", "rs", f"www.{ZONE}", "--force", "--data", chain.folder / "first"
    )  # fmt: skip
    assert done.code == 1
    assert "its records come from its primary" in done.err
