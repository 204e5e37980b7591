"""Real name servers on loopback, started by a test: unbound and Knot, from Debian's packages."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dns.exception
import dns.message
import dns.query

from tests.absent import absent
from tests.ports import free_port

PATIENCE_S = 60.0
ZONE = """\
$ORIGIN up.example.
$TTL 300
@ 3600 SOA ns h 1 7200 900 1209600 60
@ NS ns
ns A 192.0.2.53
www A 192.0.2.1
www AAAA 2001:db8::1
alias CNAME www
big TXT {big}
inside A 192.168.1.1
short 2 A 192.0.2.2
resolver A 127.0.0.1
*.many A 192.0.2.7
"""
BIG = " ".join(f'"{i:03d}{"x" * 100}"' for i in range(20))

UNBOUND = """\
server:
  interface: 127.0.0.1@{port}
  interface: 127.0.0.1@{tls_port}
  tls-port: {tls_port}
  tls-service-key: "{folder}/key.pem"
  tls-service-pem: "{folder}/cert.pem"
  do-daemonize: no
  username: ""
  chroot: ""
  pidfile: ""
  directory: "{folder}"
  use-syslog: no
  logfile: "{folder}/log"
  num-threads: 1
  module-config: "iterator"
  do-not-query-localhost: no
auth-zone:
  name: "up.example."
  zonefile: "{folder}/zone"
  for-downstream: yes
  for-upstream: yes
remote-control:
  control-enable: no
"""
KNOT = """\
server:
    rundir: "{folder}"
    listen: 127.0.0.1@{port}
log:
  - target: "{folder}/log"
    any: warning
database:
    storage: "{folder}"
zone:
  - domain: "up.example."
    file: "{folder}/zone"
    semantic-checks: off
    zonefile-load: whole
    journal-content: none
    zonefile-sync: -1
"""

COOKIES = """
mod-cookies:
  - id: default
    badcookie-slip: 1
template:
  - id: default
    global-module: mod-cookies
"""
"""For Knot: a query without a cookie of its own gets BADCOOKIE."""
NAMED = """\
options {{
    directory "{folder}";
    pid-file none;
    session-keyfile none;
    listen-on port {port} {{ 127.0.0.1; }};
    listen-on-v6 {{ none; }};
    recursion no;
    require-server-cookie yes;
    notify no;
}};
controls {{ }};
zone "up.example." {{ type primary; file "{folder}/zone"; check-names ignore; }};
"""


def need(tool: str) -> str:
    """Path of a program. Skips the test where it is not installed, and fails it in CI."""
    found = shutil.which(tool, path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    if found is None:
        absent(f"{tool} is not installed")
    return found


@contextmanager
def unbound(folder: Path) -> Iterator[tuple[int, int]]:
    """Its port, and that of TLS with the certificate cert.pem of the folder."""
    port, tls_port = free_port(), free_port()
    text = UNBOUND.format(folder=folder, port=port, tls_port=tls_port)
    with _running([need("unbound"), "-d", "-c"], folder, text, port):
        yield port, tls_port


@contextmanager
def knot(folder: Path, *, wants_cookies: bool = False) -> Iterator[int]:
    port = free_port()
    text = KNOT.format(folder=folder, port=port)
    if wants_cookies:
        before, zone, after = text.partition("zone:")
        text = before + COOKIES.lstrip() + zone + after
    with _running([need("knotd"), "-c"], folder, text, port):
        yield port


@contextmanager
def named(folder: Path) -> Iterator[int]:
    """BIND, which gives nobody an answer without a cookie of its own."""
    port = free_port()
    text = NAMED.format(folder=folder, port=port)
    with _running([need("named"), "-g", "-c"], folder, text, port):
        yield port


@contextmanager
def _running(command: list[str], folder: Path, configuration: str, port: int) -> Iterator[None]:
    (folder / "zone").write_text(ZONE.format(big=BIG))
    (folder / "conf").write_text(configuration)
    process = subprocess.Popen(
        [*command, str(folder / "conf")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _wait_for(process, port)
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _wait_for(process: "subprocess.Popen[bytes]", port: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    query = dns.message.make_query("ns.up.example.", "A")
    while True:
        assert process.poll() is None, "the server ended"
        assert time.monotonic() < deadline, "the server does not answer"
        try:
            if dns.query.udp(query, "127.0.0.1", port=port, timeout=0.2).answer:
                return
        except (dns.exception.Timeout, OSError):
            continue
