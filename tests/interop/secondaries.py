"""BIND, Knot and NSD from the distribution as secondaries, on loopback, configured for one zone."""

import shutil
import socket
import subprocess
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import dns.exception
import dns.message
import dns.query
import dns.rcode
import dns.rdatatype

from kudurru.domain.dns import names, tsig
from tests.blackbox.program import PATIENCE_S, wait_until
from tests.transfers import Record, Version, full, read, transfer_query

BIND = """\
key "{key}" {{ algorithm {algorithm}; secret "{secret}"; }};
options {{
    directory "{folder}"; pid-file "{folder}/pid"; session-keyfile "{folder}/session";
    listen-on port {port} {{ 127.0.0.1; }}; listen-on-v6 {{ none; }};
    recursion no; dnssec-validation no; notify no; allow-transfer {{ any; }};
    max-refresh-time 3600; min-refresh-time 3600;
}};
controls {{}};
zone "{zone}" {{
    type secondary; file "{folder}/zone"; masterfile-format text;
    primaries {{ 127.0.0.1 port {primary} {with_key} {with_tls}; }};
}};
"""
KNOT = """\
server:
    rundir: "{folder}"
    listen: 127.0.0.1@{port}
log:
  - target: "{folder}/log"
    any: info
database:
    storage: "{folder}"
key:
  - id: {key}
    algorithm: {algorithm}
    secret: {secret}
remote:
  - id: primary
    address: 127.0.0.1@{primary}
    {with_key}
acl:
  - id: told
    address: 127.0.0.1
    {with_key}
    action: notify
  - id: anybody
    address: 127.0.0.1
    action: transfer
zone:
  - domain: {zone}
    master: primary
    acl: [told, anybody]
    zonefile-sync: -1
"""
NSD = """\
server:
  ip-address: 127.0.0.1@{port}
  username: ""
  zonesdir: "{folder}"
  database: ""
  pidfile: "{folder}/pid"
  xfrdfile: "{folder}/xfrd"
  zonelistfile: "{folder}/list"
  xfrdir: "{folder}"
  logfile: "{folder}/log"
  verbosity: 2
  rrl-ratelimit: 0
remote-control:
  control-enable: no
key:
  name: "{key}"
  algorithm: {algorithm}
  secret: "{secret}"
zone:
  name: "{zone}"
  request-xfr: 127.0.0.1@{primary} {with_key}
  allow-notify: 127.0.0.1 {with_key}
  provide-xfr: 127.0.0.1 NOKEY
"""

SERVERS = ("bind", "knot", "nsd")
_CONFIGS = {"bind": BIND, "knot": KNOT, "nsd": NSD}
_COMMANDS = {"bind": ["named", "-f", "-c"], "knot": ["knotd", "-c"], "nsd": ["nsd", "-d", "-c"]}
_WITH_KEY = {"bind": "key {}", "knot": "key: {}", "nsd": "{}"}
_WITHOUT = {"bind": "", "knot": "", "nsd": "NOKEY"}


class Key(NamedTuple):
    name: str
    algorithm: str
    secret: str

    def tsig(self) -> tsig.TsigKey:
        algorithm = tsig.ALGORITHMS[self.algorithm]
        return tsig.TsigKey(names.from_text(self.name), algorithm, b64decode(self.secret))


class Secondary:
    """One of them, with its zone."""

    def __init__(self, name: str, port: int, zone: str, folder: Path) -> None:
        self.name = name
        self.port = port
        self._zone = zone
        self._folder = folder

    def serial(self) -> int | None:
        """Of the version that it serves; None while it has none."""
        query = dns.message.make_query(self._zone, "SOA")
        try:
            answer = dns.query.udp(query, "127.0.0.1", port=self.port, timeout=1)
        except (OSError, dns.exception.Timeout):
            return None
        if answer.rcode() != dns.rcode.NOERROR or not answer.answer:
            return None
        return int(answer.answer[0][0].serial)

    def wait_for(self, serial: int) -> None:
        try:
            wait_until(lambda: self.serial() == serial)
        except AssertionError:
            shown = f"{self.name} is at {self.serial()}, not at {serial}"
            raise AssertionError(f"{shown}:\n{self.log}") from None

    def version(self) -> Version:
        """What it sends. A server that takes over a new version may turn a connection away."""

        def ask() -> Version | None:
            with suppress(OSError):
                return fetched(self.port, self._zone)
            return None

        found: Version = wait_until(ask)
        return found

    @property
    def log(self) -> str:
        return "".join(
            path.read_text(errors="replace")[-3000:]
            for path in (self._folder / "out", self._folder / "log")
            if path.exists()
        )


def fetched(port: int, zone: str, key: Key | None = None) -> Version:
    """The zone that a server sends by AXFR."""
    packet, reader = transfer_query(zone).to_wire(), None
    if key is not None:
        packet, reader = tsig.sign_request(packet, key.tsig(), int(time.time()))
    records: list[Record] = []
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as stream:
        stream.sendall(len(packet).to_bytes(2, "big") + packet)
        with stream.makefile("rb") as file:
            while len(records) < 2 or records[0] != records[-1]:
                head = file.read(2)
                if not head:
                    raise ConnectionError("the transfer ended early")
                wire = file.read(int.from_bytes(head, "big"))
                records += read(reader.take(wire, int(time.time())) if reader else wire)
    if reader is not None:
        reader.finish()
    return full(record._replace(owner=record.owner.lower()) for record in records)


@contextmanager
def secondary(
    name: str,
    folder: Path,
    zone: str,
    *,
    port: int,
    primary: int,
    key: Key,
    signed: bool = True,
    tls: bool = False,
) -> Iterator[Secondary]:
    folder.mkdir()
    folder.chmod(0o755)
    config = folder / "config"
    text = _CONFIGS[name].format(
        folder=folder,
        port=port,
        primary=primary,
        zone=zone,
        key=key.name,
        algorithm=key.algorithm,
        secret=key.secret,
        with_key=_WITH_KEY[name].format(key.name) if signed else _WITHOUT[name],
        with_tls="tls ephemeral" if tls else "",
    )
    config.write_text(text)
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(
            [*_COMMANDS[name], str(config)], stdout=out, stderr=subprocess.STDOUT
        )
    try:
        yield Secondary(name, port, zone, folder)
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def is_there(name: str) -> bool:
    return shutil.which(_COMMANDS[name][0], path="/usr/sbin:/usr/bin:/usr/local/sbin") is not None
