"""Requests with faulty signatures, and good ones, against the whole program."""

import importlib.util
import json
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.blackbox.program import Serving, command, serving
from tests.vectors import vectors

ZONE = """\
$ORIGIN tsig.example.
$TTL 60
@ IN SOA ns. h. 1 2 3 4 5
@ IN NS ns.example.net.
""" + "".join(f'h{i} IN TXT "{"x" * 200}"\n' for i in range(500))
KEYS = {"k1": bytes(range(32)), "k2": bytes(range(1, 33))}


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tsig_check", vectors("tools/tsig_check.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("tsig")
    data = folder / "data"
    with serving(data) as found:
        for name, secret in KEYS.items():
            file = folder / name
            file.write_text(b64encode(secret).decode())
            assert not command("tsig", "create", name, "--secret-file", file, "--data", data).code
        (folder / "zone").write_text(ZONE)
        assert not command("zone", "import", folder / "zone", "--data", data).code
        allow(data, folder, "k1")
        yield found


def allow(data: Path, folder: Path, *names: str) -> None:
    """Let keys, or networks, fetch the zone."""
    document = command("get", "zone", "tsig.example", "--data", data, "-o", "json").json()
    document = document if isinstance(document, dict) else document[0]
    document["spec"]["transfer"] = {"allow": list(names)}
    (folder / "zone.json").write_text(json.dumps(document))
    assert not command("apply", "-f", folder / "zone.json", "--data", data).code


def test_signatures_of_all_kinds_get_the_answers_of_rfc_8945(
    server: Serving, check: ModuleType, report
) -> None:
    results = {}
    for case in check.R:  # all of them; what is on file are some
        if case["live"]:
            verdict = check.live(server.port, case)
        else:
            packet = bytes.fromhex(case["packet"])
            answers = check.send(server.port, packet, case["expect"].get("tcp", False))
            verdict = check.check(case["expect"], answers)
        results[case["id"]] = [] if verdict == "ok" else [verdict]
    report("tsig", results)
