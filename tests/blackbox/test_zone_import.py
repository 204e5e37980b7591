"""What an import says of itself: before it is done, and of the serial."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.blackbox.program import Done, command, serving

ZONE = """\
$ORIGIN example.org.
$TTL 300
@ IN SOA ns1 hostmaster 2026113001 7200 900 1209600 300
@ IN NS ns1
ns1 IN A 192.0.2.53
www IN A 192.0.2.80
ftp IN CNAME www
"""


@pytest.fixture(params=["server", "directory"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A data directory that has the zone."""
    data = tmp_path / "data"
    with serving(data) if request.param == "server" else nullcontext():
        assert import_(data, ZONE).err == "", "the serial of the file is kept, and nothing is said"
        yield data


def import_(data: Path, text: str, *options: str) -> Done:
    file = data.parent / "example.org.zone"
    file.write_text(text)
    done = command("zone", "import", file, *options, "--data", data)
    assert done.code == 0, done.err
    return done


def test_a_dry_run_shows_what_would_change_field_by_field(data: Path) -> None:
    other = ZONE.replace("192.0.2.80", "192.0.2.81").replace("ftp IN CNAME www", "new A 192.0.2.9")
    options = ("--replace", "--allow-mass-change", "--dry-run")
    shown = import_(data, other, *options).out.splitlines()
    assert [line for line in shown if "would" in line] == [
        "dnsrecordset/default/www.example.org would change",
        "dnsrecordset/default/new.example.org would be created",
        "dnsrecordset/default/ftp.example.org would be deleted",
    ]
    at = shown.index("dnsrecordset/default/www.example.org would change")
    assert shown[at + 1 : at + 3] == [
        '  - spec.endpoints[0].targets[0]: "192.0.2.80"',
        '  + spec.endpoints[0].targets[0]: "192.0.2.81"',
    ]
    assert shown[-1].endswith("(dry run)")
    assert import_(data, ZONE, *options).out.count("\n") == 1, "nothing differs"


def test_a_serial_that_is_not_taken_from_the_file_is_told(data: Path) -> None:
    higher = ZONE.replace("2026113001", "2026113050")
    said = "its serial is 2026113001, and 2026113050 in the file: a serial is kept as long as"
    assert said in import_(data, higher).err
    changed = higher.replace("192.0.2.80", "192.0.2.81")
    assert "serial" not in import_(data, changed).err, "with other content it is taken"
    behind = changed.replace("2026113050", "2026113049").replace("192.0.2.81", "192.0.2.82")
    said = "its serial is 2026113051, and 2026113049 in the file: a serial goes on from the last"
    assert said in import_(data, behind).err
