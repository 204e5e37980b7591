"""Catalog zones with Knot and BIND on the other side, either way."""

import base64
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.absent import absent
from tests.blackbox.program import PATIENCE_S, kudurru, serving, wait_until, write_json, zone
from tests.interop.primaries import is_there
from tests.interop.secondaries import Key, Secondary
from tests.ports import free_port

pytestmark = pytest.mark.slow

CAT = "cat.example"
KEY = Key("k", "hmac-sha256", base64.b64encode(b"0123456789abcdef0123456789abcdef").decode())
ALLOW = {"allow": [KEY.name]}

BIND_CONSUMER = """\
key "k" {{ algorithm hmac-sha256; secret "{secret}"; }};
options {{
    directory "{folder}"; pid-file "{folder}/pid"; session-keyfile "{folder}/session";
    listen-on port {port} {{ 127.0.0.1; }}; listen-on-v6 {{ none; }};
    recursion no; dnssec-validation no; notify no;
    catalog-zones {{
        zone "cat.example" default-primaries {{ 127.0.0.1 port {other} key k; }}
            zone-directory "{folder}" min-update-interval 1;
    }};
}};
controls {{}};
zone "cat.example" {{
    type secondary; file "{folder}/cat"; primaries {{ 127.0.0.1 port {other} key k; }};
}};
"""
KNOT_HEAD = """\
server:
    rundir: "{folder}"
    listen: 127.0.0.1@{port}
log:
  - target: "{folder}/log"
    any: info
database:
    storage: "{folder}"
key:
  - id: k
    algorithm: hmac-sha256
    secret: {secret}
remote:
  - id: other
    address: 127.0.0.1@{other}
    key: k
acl:
  - id: told
    address: 127.0.0.1
    key: k
    action: [notify, transfer]
template:
  - id: default
    storage: "{folder}"
"""
KNOT_CONSUMER = (
    KNOT_HEAD
    + """\
  - id: member
    master: other
    acl: told
    storage: "{folder}"
zone:
  - domain: cat.example
    master: other
    acl: told
    catalog-role: interpret
    catalog-template: member
"""
)
KNOT_PRODUCER = (
    KNOT_HEAD
    + """\
zone:
  - domain: cat.example
    acl: told
    notify: other
    catalog-role: generate
  - domain: a.example
    file: "{folder}/a.example"
    acl: told
    catalog-role: member
    catalog-zone: cat.example
    catalog-group: inner
"""
)
BIND_PRODUCER = """\
key "k" {{ algorithm hmac-sha256; secret "{secret}"; }};
options {{
    directory "{folder}"; pid-file "{folder}/pid"; session-keyfile "{folder}/session";
    listen-on port {port} {{ 127.0.0.1; }}; listen-on-v6 {{ none; }};
    recursion no; dnssec-validation no; notify explicit; allow-transfer {{ key k; }};
}};
controls {{}};
zone "cat.example" {{
    type primary; file "{folder}/cat.example"; also-notify {{ 127.0.0.1 port {other} key k; }};
}};
zone "a.example" {{ type primary; file "{folder}/a.example"; }};
"""
MEMBER = "$ORIGIN a.example.\n$TTL 60\n@ SOA ns h 7 3600 600 86400 60\n@ NS ns\nns A 192.0.2.1\n"
WRITTEN = """\
$ORIGIN cat.example.
$TTL 0
@ SOA invalid. invalid. 3 3600 600 86400 60
@ NS invalid.
version TXT "2"
m1.zones PTR a.example.
group.m1.zones TXT "inner"
"""
COMMANDS = {"bind": ["named", "-f", "-c"], "knot": ["knotd", "-c"]}


@contextmanager
def running(name: str, config: str, folder: Path, port: int, other: int) -> Iterator[Secondary]:
    if not is_there(name):
        absent(f"{name} is not installed")
    folder.mkdir(exist_ok=True)
    text = config.format(folder=folder, port=port, other=other, secret=KEY.secret)
    (folder / "config").write_text(text)
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(
            [*COMMANDS[name], str(folder / "config")], stdout=out, stderr=subprocess.STDOUT
        )
    try:
        yield Secondary(name, port, "a.example", folder)
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def prepare(folder: Path, *manifests: dict[str, Any]) -> Path:
    data, secret = folder / "kudurru", folder / "secret"
    secret.write_text(KEY.secret)
    done = kudurru("tsig", "create", KEY.name, "--secret-file", secret, "--data", data)
    assert done.code == 0, done.err
    path = write_json(folder / "zones.json", *manifests)
    done = kudurru("apply", "-f", path, "--data", data)
    assert done.code == 0, done.err
    return data


@pytest.mark.parametrize(
    ("name", "config"), [("bind", BIND_CONSUMER), ("knot", KNOT_CONSUMER)], ids=["bind", "knot"]
)
def test_others_follow_our_catalog(name: str, config: str, tmp_path: Path) -> None:
    port, our_port = free_port(), free_port()
    notify = {**ALLOW, "notify": [f"127.0.0.1:{port}"], "keys": [KEY.name]}
    data = prepare(
        tmp_path,
        zone("a.example", nameservers=["ns.example.net"], transfer=ALLOW),
        zone(CAT, catalog={}, transfer=notify),
    )
    with (
        serving(data, dns_at=f"127.0.0.1:{our_port}"),
        running(name, config, tmp_path / name, port, our_port) as other,
    ):
        follows(other, lambda: other.serial() is not None)
        assert kudurru("delete", "zone", "a.example", "--data", data).code == 0
        follows(other, lambda: other.serial() is None)


def follows(other: Secondary, condition: Any) -> None:
    try:
        wait_until(condition)
    except AssertionError:
        raise AssertionError(other.log) from None


@pytest.mark.parametrize(
    ("name", "config"), [("knot", KNOT_PRODUCER), ("bind", BIND_PRODUCER)], ids=["knot", "bind"]
)
def test_we_follow_the_catalog_of_others(name: str, config: str, tmp_path: Path) -> None:
    port, our_port = free_port(), free_port()
    folder = tmp_path / name
    folder.mkdir()
    (folder / "a.example").write_text(MEMBER)
    (folder / "cat.example").write_text(WRITTEN)
    primaries = {"primaries": [{"address": "127.0.0.1", "port": port, "keyRef": KEY.name}]}
    nowhere = {"primaries": [{"address": "127.0.0.1", "port": 1}]}
    groups = [{"name": "inner", "secondary": primaries}]
    data = prepare(
        tmp_path,
        zone(
            CAT, type="Secondary", secondary=primaries,
            catalog={"groups": groups, "secondary": nowhere},
        ),
    )  # fmt: skip
    with (
        running(name, config, folder, port, our_port) as other,
        serving(data, dns_at=f"127.0.0.1:{our_port}") as server,
    ):
        follows(other, lambda: server.texts("ns.a.example.") == ["192.0.2.1"])
        found = kudurru("get", "zone", "a.example", "--data", data, "-o", "json").json()
        assert found["metadata"]["annotations"]["kudurru.io/managed-by"] == f"catalog:{CAT}"
