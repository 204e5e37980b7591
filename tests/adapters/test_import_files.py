"""Files of other products, some of which mean no good."""

import io
import sqlite3
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from kudurru.adapters import import_files
from kudurru.adapters.import_files import read_sources, read_tables, unpacked
from kudurru.domain.errors import Invalid
from kudurru.domain.imports.model import Source

WANTED = (".json", "/gravity.db")
COLUMNS = {"adlist": ("id", "address", "gone")}


def zipped(*members: tuple[str, bytes], **options: int) -> Source:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            info = zipfile.ZipInfo(name)
            info.external_attr = options.get("mode", 0o100644) << 16
            archive.writestr(info, data, zipfile.ZIP_DEFLATED)
    return Source("t.zip", packed.getvalue())


def tarred(*members: tarfile.TarInfo | tuple[str, bytes]) -> Source:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
    return Source("t.tar.gz", packed.getvalue())


def link(name: str, to: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, to
    return info


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_members_that_are_wanted_are_read_and_no_others(pack: Callable[..., Source]) -> None:
    source = pack(("a/adlist.json", b"[]"), ("photo.png", b"x"), ("gravity.db", b"y"))
    found = unpacked([source, Source("plain", b"z")], WANTED)
    assert [(one.name.removeprefix(f"{source.name}/"), one.data) for one in found] == [
        ("a/adlist.json", b"[]"),
        ("gravity.db", b"y"),
        ("plain", b"z"),
    ]


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_names_of_members_lead_nowhere(
    pack: Callable[..., Source], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["../up.json", "/etc/abs.json", "a/../../b.json"]
    found = unpacked([pack(*((name, b"[]") for name in names))], WANTED)
    assert [one.data for one in found] == [b"[]"] * 3
    assert list(tmp_path.iterdir()) == []


def test_links_and_devices_are_no_files() -> None:
    members = [link("a.json", "/etc/passwd", tarfile.SYMTYPE),
               link("b.json", "a.json", tarfile.LNKTYPE),
               link("c.json", "", tarfile.FIFOTYPE)]  # fmt: skip
    assert unpacked([tarred(*members)], WANTED) == []
    assert unpacked([zipped(("a.json", b"/etc/passwd"), mode=0o120777)], WANTED) == []


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_a_bomb_is_refused_before_it_is_large(
    pack: Callable[..., Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_files, "UNPACKED_MAX", 1 << 20)
    bomb = pack(("a.json", bytes(1 << 19)), ("b.json", bytes(1 << 20)))
    assert len(bomb.data) < 1 << 14
    with pytest.raises(Invalid, match="when unpacked"):
        unpacked([bomb], WANTED)


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_many_members_are_refused(
    pack: Callable[..., Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_files, "MEMBERS_MAX", 3)
    with pytest.raises(Invalid, match="members"):
        unpacked([pack(*((f"{n}.json", b"") for n in range(4)))], WANTED)


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_damaged_archives_are_refused(pack: Callable[..., Source]) -> None:
    whole = pack(("a.json", bytes(range(256)) * 64)).data
    for at in range(4, len(whole), 7):
        for data in (whole[:at], whole[:at] + bytes((whole[at] ^ 0xFF,)) + whole[at + 1 :]):
            with suppress(Invalid):  # and nothing else
                unpacked([Source("t", data)], WANTED)


def test_an_archive_that_is_packed_otherwise_is_refused() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.json", b"[]")
    with pytest.raises(Invalid, match="packed in a way"):
        unpacked([Source("t.zip", packed.getvalue())], WANTED)


def database(script: str) -> Source:
    connection = sqlite3.connect(":memory:")
    connection.executescript(script)
    data = connection.serialize()
    connection.close()
    return Source("gravity.db", data)


ROWS = "CREATE TABLE adlist (id INTEGER, address TEXT, more TEXT);"


def test_rows_of_tables_are_read_as_far_as_they_are_asked_for() -> None:
    source = database(ROWS + "INSERT INTO adlist VALUES (1, 'https://a.example', 'x');")
    tables = read_tables(source, {**COLUMNS, "client": ("id",)})
    assert tables == {"adlist": [{"id": 1, "address": "https://a.example"}], "client": []}


def test_a_database_in_wal_mode_is_read() -> None:
    source = database(ROWS + "INSERT INTO adlist VALUES (1, 'a', 'x');")
    marked = source.data[:18] + b"\x02\x02" + source.data[20:]
    assert read_tables(Source("gravity.db", marked), COLUMNS)["adlist"] == [
        {"id": 1, "address": "a"}
    ]


@pytest.mark.parametrize(
    "script",
    [
        "CREATE VIEW adlist AS SELECT 1 AS id, 'x' AS address;",
        "CREATE VIEW adlist AS WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id FROM n) "  # noqa: ISC004
        "SELECT id, 'x' AS address FROM n;",
        "CREATE VIRTUAL TABLE adlist USING fts5(id, address);",
    ],
)
def test_views_and_virtual_tables_are_not_asked(script: str) -> None:
    assert read_tables(database(script), COLUMNS) == {"adlist": []}


def test_columns_that_compute_and_triggers_are_not_run() -> None:
    source = database(
        "CREATE TABLE adlist (id INTEGER, address TEXT AS (printf('%.*c', 1000, 'x')));"
        "CREATE TABLE other (x); "
        "CREATE TRIGGER t AFTER INSERT ON adlist BEGIN INSERT INTO other VALUES (1); END;"
        "INSERT INTO adlist (id) VALUES (7);"
    )
    assert read_tables(source, COLUMNS) == {"adlist": [{"id": 7}]}


def test_many_rows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_files, "ROWS_MAX", 2)
    rows = ", ".join(f"({n}, 'a', 'x')" for n in range(3))
    with pytest.raises(Invalid, match="more than 2 rows in adlist"):
        read_tables(database(f"{ROWS} INSERT INTO adlist VALUES {rows};"), COLUMNS)


def test_damaged_databases_are_refused() -> None:
    rows = ", ".join(f"({n}, 'https://a.example/{n}', 'x')" for n in range(500))
    whole = database(f"{ROWS} INSERT INTO adlist VALUES {rows};").data
    for at in range(16, len(whole), 97):
        for data in (whole[:at], whole[:at] + bytes((whole[at] ^ 0xFF,)) + whole[at + 1 :]):
            with suppress(Invalid):  # and nothing else
                read_tables(Source("gravity.db", data), COLUMNS)


def test_files_that_are_missing_or_too_large_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Invalid, match="cannot be read"):
        read_sources([tmp_path / "gone"])
    monkeypatch.setattr(import_files, "FILE_BYTES_MAX", 3)
    (tmp_path / "large").write_bytes(b"1234")
    with pytest.raises(Invalid, match="more than"):
        read_sources([tmp_path / "large"])
