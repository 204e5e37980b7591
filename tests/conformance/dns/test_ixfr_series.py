"""Versions of a zone, imported one after the other as people do: from every older one an IXFR leads
to the last. The checker is another program than ours."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.blackbox.program import command, serving
from tests.vectors import vectors

ORIGIN = "ixfr.example."
HEAD = "$ORIGIN ixfr.example.\n$TTL 300\n@ IN SOA ns host {} {} 600 86400 300\n@ IN NS ns\n"
COMMON = "ns IN A 192.0.2.1\nmail IN MX 10 mx.example.net.\n" + "".join(
    f"h{i} IN A 192.0.2.{i}\n" for i in range(40)
)
LAST = 4_294_967_295


def version(serial: int, more: str, *, refresh: int = 3600, common: str = COMMON) -> str:
    return HEAD.format(serial, refresh) + common + more


SERIES = {
    "records come, change and go": [
        version(1, ""),
        version(2, "a IN A 192.0.2.100\n"),
        version(3, "a IN A 192.0.2.100\na IN A 192.0.2.101\n"),
        version(4, "a 60 IN A 192.0.2.100\na 60 IN A 192.0.2.101\n"),
        version(7, "a IN TXT one\nb.c.d IN SRV 0 0 1 a\n*.w IN CNAME a\n"),
        version(8, "", refresh=7200),
    ],
    "there and back": [
        version(10, "x IN A 192.0.2.1\n"),
        version(20, ""),
        version(30, "x IN A 192.0.2.1\n"),
        version(40, "x IN A 192.0.2.1\ny IN TYPE65280 \\# 1 00\n"),
    ],
    "serials that wrap": [
        version(LAST - 1, ""),
        version(LAST, "a IN A 192.0.2.1\n"),
        version(1, "a IN A 192.0.2.2\n"),
        version(2, "b IN A 192.0.2.2\n"),
    ],
    "all of it": [
        version(2026010100, ""),
        version(2026010101, "", common=COMMON.replace("192.0.2.", "198.51.100.")),
        version(2026010102, "q IN A 192.0.2.9\n", common="ns IN A 192.0.2.1\n"),
    ],
}


@pytest.fixture(scope="module")
def checker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ixfr_check", vectors("tools/ixfr_check.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", SERIES)
def test_an_ixfr_from_every_version_leads_to_the_last(
    tmp_path: Path, checker: ModuleType, name: str
) -> None:
    files = []
    for number, text in enumerate(SERIES[name]):
        files.append(tmp_path / f"{number}.zone")
        files[-1].write_text(text)
    data = tmp_path / "data"
    with serving(data) as server:
        results = checker.check(list(map(str, files)), ORIGIN, server.port, putter(data, tmp_path))
    kinds = {serial: (kind, verdict) for serial, kind, verdict in results}
    assert {verdict for _, verdict in kinds.values()} == {"same"}, kinds
    assert kinds["current"][0] == "current"
    assert kinds["unknown"][0] == "axfr"
    if name != "all of it":  # where the difference may be more than the zone
        assert {kind for serial, (kind, _) in kinds.items() if isinstance(serial, int)} == {"ixfr"}


def putter(data: Path, folder: Path) -> Callable[[str], None]:
    """Puts a version into the server; the first time lets everybody fetch the zone."""

    def put(path: str) -> None:
        is_first = not (folder / "zone.yaml").exists()
        done = command("zone", "import", path, "--replace", "--allow-mass-change", "--data", data)
        assert done.code == 0, done.err
        if is_first:
            text = command("get", "zone", "ixfr.example", "--data", data, "-o", "yaml").out
            text = text.replace("\nspec:", "\nspec:\n  transfer:\n    allow: [127.0.0.1]", 1)
            (folder / "zone.yaml").write_text(text)
            done = command("apply", "-f", folder / "zone.yaml", "--data", data)
            assert done.code == 0, done.err

    return put
