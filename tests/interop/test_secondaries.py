"""Name servers that people have as secondaries of kudurru: AXFR, IXFR, NOTIFY, TSIG, XoT."""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.absent import absent
from tests.blackbox.program import Serving, command, serving, wait_until
from tests.blackbox.test_transports import settings, target
from tests.certificates import write_pair
from tests.interop.secondaries import SERVERS, Key, Secondary, fetched, is_there, secondary
from tests.ports import free_port
from tests.transfers import Record, Version

pytestmark = pytest.mark.slow

ZONE = "shop.example"
DATED = 2026010100
"""Serials that are dates stand far above unix time."""

FILE = f"""\
$ORIGIN {ZONE}.
$TTL 300
@ IN SOA ns hostmaster {DATED} 3600 600 86400 300
@ IN NS ns
@ IN MX 10 mail
ns IN A 192.0.2.53
mail IN A 192.0.2.25
WwW IN A 192.0.2.80
www IN AAAA 2001:db8::80
_http._tcp IN SRV 0 5 80 www
alias IN CNAME www
*.wild IN TXT "one" "two"
strange IN TYPE65280 \\# 3 010203
svc IN HTTPS 1 . alpn=h2
""" + "".join(f"h{i} IN A 192.0.2.{i}\n" for i in range(250))


class Primary:
    """kudurru with the zone, which anybody who has the key may fetch."""

    def __init__(self, data: Path, key: Key, port: int, *, signed: bool) -> None:
        self.data = data
        self.key = key
        self.port = port  # of the secondary
        self.signed = signed
        self._folder = data.parent

    def prepare(self) -> None:
        secret = self._folder / "secret"
        secret.write_text(self.key.secret)
        self.do("tsig", "create", self.key.name, "--algorithm", self.key.algorithm,
                "--secret-file", secret)  # fmt: skip
        (self._folder / "file").write_text(FILE)
        self.do("zone", "import", self._folder / "file")
        (document,) = [self.json("get", "zone", ZONE)]
        document["spec"]["transfer"] = {
            "allow": [self.key.name] if self.signed else ["127.0.0.1"],
            "notify": [f"127.0.0.1:{self.port}"],
            "keys": [self.key.name] if self.signed else [],
        }
        self.apply(document)

    def do(self, *args: Any) -> str:
        done = command(*args, "--data", self.data)
        assert done.code == 0, done.err
        return done.out

    def json(self, *args: Any) -> Any:
        found = json.loads(self.do(*args, "-o", "json"))
        return found[0] if isinstance(found, list) else found

    def apply(self, document: Any) -> None:
        path = self._folder / "object.json"
        path.write_text(json.dumps(document))
        self.do("apply", "-f", path)

    def set_address(self, name: str, address: str) -> None:
        endpoint = {"dnsName": f"{name}.{ZONE}.", "recordType": "A", "targets": [address]}
        self.apply(
            {
                "apiVersion": "kudurru.io/v1alpha1",
                "kind": "DNSRecordSet",
                "metadata": {"name": f"{name}.set"},
                "spec": {"zoneRef": {"name": ZONE}, "endpoints": [endpoint]},
            }
        )


def serial_of(server: Serving) -> int:
    return int(server.texts(ZONE, "SOA")[0].split()[2])


def metric(server: Serving, name: str, result: str) -> float:
    with urllib.request.urlopen(f"http://{server.addresses['metrics']}/metrics") as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f'kudurru_{name}{{result="{result}"}}'):
                return float(line.split()[-1])
    return 0.0


@contextmanager
def together(
    name: str,
    folder: Path,
    *,
    algorithm: str = "hmac-sha256",
    signed: bool = True,
    tls: bool = False,
) -> Iterator[tuple[Primary, Serving, Secondary]]:
    if not is_there(name):
        absent(f"{name} is not installed")
    made = command("tsig", "create", "xfer", "--algorithm", algorithm, "--data", folder / "k",
                   "-o", "json").json()  # fmt: skip
    key = Key("xfer.key", algorithm, made["secret"])
    port = free_port()
    primary = Primary(folder / "data", key, port, signed=signed)
    primary.prepare()
    env = None
    if tls:
        write_pair(folder)
        env = settings(folder, "udp", "tcp", "tls")
    with serving(
        primary.data, env=env, dns_at=None if tls else f"127.0.0.1:{free_port()}"
    ) as server:
        at = target(server, "tls")[1] if tls else server.port
        with secondary(
            name, folder / name, ZONE, port=port, primary=at, key=key, signed=signed, tls=tls
        ) as found:
            found.wait_for(serial_of(server))
            yield primary, server, found


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("algorithm", ["hmac-sha256", "hmac-sha512"])
def test_a_secondary_with_a_key_follows_every_change(
    tmp_path: Path, name: str, algorithm: str
) -> None:
    with together(name, tmp_path, algorithm=algorithm) as (primary, server, found):
        assert serial_of(server) == DATED
        compare(primary, server, found)
        before = metric(server, "transfers_out_total", "full")
        primary.set_address("new", "192.0.2.99")
        found.wait_for(DATED + 1)
        primary.do("delete", "rs", f"h7.{ZONE}")
        found.wait_for(DATED + 2)
        wait_until(lambda: metric(server, "transfers_out_total", "incremental") >= 2)
        wait_until(lambda: metric(server, "notifies_out_total", "acknowledged") >= 2)
        assert metric(server, "transfers_out_total", "full") == before
        compare(primary, server, found)


def compare(primary: Primary, server: Serving, found: Secondary) -> None:
    """Both come to serve the same records, of the same serial."""
    try:
        wait_until(lambda: found.version() == version_of(primary, server))
    except AssertionError:
        raise AssertionError(found.log) from None


def version_of(primary: Primary, server: Serving) -> Version:
    return fetched(server.port, ZONE, primary.key if primary.signed else None)


@pytest.mark.parametrize("name", SERVERS)
def test_a_secondary_without_a_key_is_served_by_its_address(tmp_path: Path, name: str) -> None:
    with together(name, tmp_path, signed=False) as (primary, server, found):
        primary.set_address("new", "192.0.2.99")
        wait_until(lambda: serial_of(server) == DATED + 1)
        compare(primary, server, found)


@pytest.mark.parametrize("name", SERVERS)
def test_a_secondary_follows_a_restore(tmp_path: Path, name: str) -> None:
    with together(name, tmp_path) as (primary, server, found):
        original = version_of(primary, server)
        seq = int(json.loads(primary.do("history", "-o", "json", "--limit", "1"))[0]["seq"])
        for number in range(3):
            primary.set_address(f"wrong{number}", "192.0.2.66")
        primary.do("delete", "rs", f"www.{ZONE}", f"alias.{ZONE}")
        gone = {f"www.{ZONE}.", f"alias.{ZONE}."}  # by the last change: then all are in a version
        wait_until(lambda: not gone & {record.owner for record in version_of(primary, server)})
        compare(primary, server, found)
        primary.do("restore", "--at", seq, "--zone", ZONE, "--yes")
        wait_until(lambda: without_soa(version_of(primary, server)) == without_soa(original))
        compare(primary, server, found)
        assert without_soa(found.version()) == without_soa(original)


def without_soa(version: Version) -> set[Record]:
    return {record for record in version if record.rtype != "SOA"}


@pytest.mark.parametrize("name", SERVERS)
def test_a_secondary_gets_the_difference_after_a_restart_of_the_primary(
    tmp_path: Path, name: str
) -> None:
    with together(name, tmp_path) as (primary, server, found):
        at = server.ready.split("dns=")[1].split(",")[0].split()[0]
        assert server.stop() == 0
        primary.set_address("meanwhile", "192.0.2.77")
        with serving(primary.data, dns_at=at) as again:
            compare(primary, again, found)
            assert metric(again, "transfers_out_total", "incremental") >= 1


def test_bind_fetches_over_tls(tmp_path: Path) -> None:
    with together("bind", tmp_path, tls=True) as (primary, server, found):
        primary.set_address("new", "192.0.2.99")
        wait_until(lambda: serial_of(server) == DATED + 1)
        found.wait_for(DATED + 1)
        assert metric(server, "transfers_out_total", "full") >= 1
