"""BIND, Knot and NSD from the distribution as primaries, on loopback, configured for one zone."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.blackbox.program import PATIENCE_S, wait_until
from tests.interop.secondaries import Key, Secondary, is_there

BIND = """\
key "{key}" {{ algorithm {algorithm}; secret "{secret}"; }};
{tls}
options {{
    directory "{folder}"; pid-file "{folder}/pid"; session-keyfile "{folder}/session";
    listen-on port {port} {{ 127.0.0.1; }}; listen-on-v6 {{ none; }}; {listen_tls}
    recursion no; dnssec-validation no; notify explicit;
}};
controls {{}};
zone "{zone}" {{
    type primary; file "{folder}/zone"; journal "{folder}/journal"; ixfr-from-differences yes;
    allow-transfer {{ {allow} }};
    also-notify {{ {notify} }};
}};
{more}
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
  - id: secondary
    address: 127.0.0.1@{secondary}
    {with_key}
acl:
  - id: anybody
    address: 127.0.0.1
    {with_key}
    action: transfer
zone:
  - domain: {zone}
    file: "{folder}/zone"
    zonefile-load: difference
    journal-content: changes
    notify: secondary
    acl: anybody
{more}
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
  zonefile: "{folder}/zone"
  store-ixfr: yes
  create-ixfr: yes
  provide-xfr: 127.0.0.1 {with_key}
  notify: 127.0.0.1@{secondary} {with_key}
"""

PRIMARIES = ("bind", "knot", "nsd")
_CONFIGS = {"bind": BIND, "knot": KNOT, "nsd": NSD}
_COMMANDS = {"bind": ["named", "-f", "-c"], "knot": ["knotd", "-c"], "nsd": ["nsd", "-d", "-c"]}
_WITH_KEY = {"bind": "key {};", "knot": "key: {}", "nsd": "{}"}
_WITHOUT = {"bind": "127.0.0.0/8;", "knot": "", "nsd": "NOKEY"}

__all__ = ["PRIMARIES", "Key", "Primary", "is_there", "primary"]


class Primary(Secondary):
    """One of them, with its zone in a file."""

    def __init__(
        self, name: str, port: int, zone: str, folder: Path, process: "subprocess.Popen[bytes]"
    ) -> None:
        super().__init__(name, port, zone, folder)
        self._process = process
        self._file = folder / "zone"

    def load(self, text: str) -> None:
        """Take another version of the zone file, and tell the secondary."""
        before_s = self._file.stat().st_mtime
        self._file.write_text(text)
        os.utime(self._file, (before_s + 2, before_s + 2))  # BIND looks at whole seconds
        self._process.send_signal(1)  # SIGHUP: all three read their files again


@contextmanager
def primary(
    name: str,
    folder: Path,
    zone: str,
    text: str,
    *,
    port: int,
    secondary: int,
    key: Key,
    signed: bool = True,
    tls_port: int | None = None,
    more: str = "",
) -> Iterator[Primary]:
    folder.mkdir()
    (folder / "zone").write_text(text)
    with_key = _WITH_KEY[name].format(key.name) if signed else _WITHOUT[name]
    to = f"127.0.0.1 port {secondary} {f'key {key.name}' if signed else ''};"
    config = folder / "config"
    config.write_text(
        _CONFIGS[name].format(
            folder=folder,
            port=port,
            secondary=secondary,
            zone=zone,
            key=key.name,
            algorithm=key.algorithm,
            secret=key.secret,
            with_key=with_key,
            allow=with_key,
            notify=to,
            tls="",
            listen_tls=(
                f"listen-on port {tls_port} tls ephemeral {{ 127.0.0.1; }};" if tls_port else ""
            ),
            more=more.format(folder=folder, secondary=secondary, key=key.name),
        )
    )
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(
            [*_COMMANDS[name], str(config)], stdout=out, stderr=subprocess.STDOUT
        )
    made = Primary(name, port, zone, folder, process)
    try:
        try:
            wait_until(lambda: process.poll() is not None or made.serial() is not None)
        except AssertionError:
            raise AssertionError(f"{name} does not serve:\n{made.log}") from None
        assert process.poll() is None, made.log
        yield made
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
