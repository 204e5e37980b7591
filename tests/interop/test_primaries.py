"""kudurru as secondary of BIND, Knot and NSD: AXFR, IXFR, NOTIFY, TSIG, XoT, catalogs."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.absent import absent
from tests.blackbox.program import Serving, kudurru, serving, wait_until, write_json
from tests.blackbox.program import zone as zone_object
from tests.interop.primaries import PRIMARIES, Key, Primary, is_there, primary
from tests.interop.secondaries import fetched
from tests.ports import free_port

pytestmark = pytest.mark.slow

ZONE = "zone.example"
SECRET = base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()


def text(serial: int, *lines: str) -> str:
    many = "\n".join(f"h{i} A 192.0.2.{i % 250}" for i in range(200))
    head = (
        f"$ORIGIN {ZONE}.\n$TTL 300\n@ SOA ns h {serial} 3600 600 86400 60\n@ NS ns\nns A 192.0.2.1"
    )
    return "\n".join([head, many, *lines, ""])


FIRST = text(10, 'www TXT "one"', "srv SRV 1 2 3 ns", "*.wild A 192.0.2.9")
SECOND = text(11, 'www TXT "two"', "new AAAA 2001:db8::1", "*.wild A 192.0.2.9")


@contextmanager
def ours(folder: Path, key: Key | None, spec: dict[str, Any], port: int) -> Iterator[Serving]:
    """A kudurru with the zone as secondary."""
    data = folder / "kudurru"
    if key is not None:
        secret = folder / "secret"
        secret.write_text(key.secret)
        made = kudurru(
            "tsig", "create", key.name, "--algorithm", key.algorithm,
            "--secret-file", secret, "--data", data,
        )  # fmt: skip
        assert made.code == 0, made.err
    manifest = write_json(folder / "zone.json", zone_object(ZONE, type="Secondary", **spec))
    assert kudurru("apply", "-f", manifest, "--data", data).code == 0
    with serving(data, dns_at=f"127.0.0.1:{port}") as server:
        yield server


def serial(server: Serving) -> int | None:
    found = server.texts(f"{ZONE}.", "SOA")
    return int(found[0].split()[2]) if " " in found[0] else None


def reasons(folder: Path) -> list[str]:
    events = kudurru("history", "--data", folder / "kudurru", "-o", "json").json()
    return [event["reason"] for event in events]


@pytest.mark.parametrize("algorithm", [None, "hmac-sha256", "hmac-sha512"])
@pytest.mark.parametrize("name", PRIMARIES)
def test_a_zone_is_fetched_and_followed(name: str, algorithm: str | None, tmp_path: Path) -> None:
    if not is_there(name):
        absent(f"{name} is not installed")
    key = Key("k", algorithm or "hmac-sha256", SECRET)
    port, our_port = free_port(), free_port()
    where = {"address": "127.0.0.1", "port": port} | ({"keyRef": "k"} if algorithm else {})
    spec = {"secondary": {"primaries": [where]}, "transfer": {"allow": ["127.0.0.0/8"]}}
    with (
        primary(
            name, tmp_path / name, ZONE, FIRST,
            port=port, secondary=our_port, key=key, signed=algorithm is not None,
        ) as theirs,
        ours(tmp_path, key if algorithm else None, spec, our_port) as server,
    ):  # fmt: skip
        follow(theirs, server, tmp_path, key if algorithm else None)


def follow(theirs: Primary, server: Serving, folder: Path, key: Key | None) -> None:
    wait_until(lambda: serial(server) == 10)
    assert server.texts(f"www.{ZONE}.", "TXT") == ['"one"']
    theirs.load(SECOND)
    theirs.wait_for(11)
    try:  # by NOTIFY: the next refresh is an hour away
        wait_until(lambda: serial(server) == 11)
    except AssertionError:
        raise AssertionError(theirs.log) from None
    assert server.texts(f"www.{ZONE}.", "TXT") == ['"two"']
    assert server.texts(f"srv.{ZONE}.", "SRV") == ["NXDOMAIN"]
    assert fetched(server.port, ZONE) == fetched(theirs.port, ZONE, key)
    assert any("differences" in reason for reason in reasons(folder))


def test_a_zone_is_fetched_over_tls(tmp_path: Path) -> None:
    if not is_there("bind"):
        absent("BIND is not installed")
    key = Key("k", "hmac-sha256", SECRET)
    port, tls_port, our_port = free_port(), free_port(), free_port()
    where = {"address": "127.0.0.1", "port": tls_port, "keyRef": "k"}
    spec = {"secondary": {"transport": "tls", "primaries": [where]}}
    with (
        primary(
            "bind", tmp_path / "bind", ZONE, FIRST,
            port=port, secondary=our_port, key=key, tls_port=tls_port,
        ),
        ours(tmp_path, key, spec, our_port) as server,
    ):  # fmt: skip
        wait_until(lambda: serial(server) == 10)


def test_a_primary_with_another_secret_is_not_believed(tmp_path: Path) -> None:
    if not is_there("knot"):
        absent("Knot is not installed")
    port, our_port = free_port(), free_port()
    other = base64.b64encode(b"another secret of the same length").decode()
    spec = {"secondary": {"primaries": [{"address": "127.0.0.1", "port": port, "keyRef": "k"}]}}
    with (
        primary(
            "knot", tmp_path / "knot", ZONE, FIRST,
            port=port, secondary=our_port, key=Key("k", "hmac-sha256", other),
        ),
        ours(tmp_path, Key("k", "hmac-sha256", SECRET), spec, our_port) as server,
    ):  # fmt: skip
        data = tmp_path / "kudurru"

        def condition() -> dict[str, Any] | None:
            status = kudurru("get", "zone", ZONE, "--data", data, "-o", "json").json()["status"]
            found = [c for c in status.get("conditions", []) if c["type"] == "Refreshed"]
            return found[0] if found else None

        said = wait_until(condition)
        assert said["status"] == "False"
        assert "BADSIG" in said["message"]
        assert serial(server) is None
