"""Files of other products, read for an import: plain ones, archives and SQLite databases.

They come from elsewhere, so each has bounds, and nothing in them is ever run or written to disk by
a name that it chose. A database is read in memory, tables only: views and triggers are its own
programs, and are not asked.
"""

import gzip
import io
import sqlite3
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.imports.model import Source

FILE_BYTES_MAX = 256 << 20
"""A gravity.db has the names of its lists too."""
MEMBERS_MAX = 1_000
"""Of an archive; those that products write have dozens."""
UNPACKED_MAX = 256 << 20
ROWS_MAX = 200_000
SQLITE = b"SQLite format 3\x00"


def read_sources(paths: Sequence[Path]) -> list[Source]:
    """The files, as they are. Raises Invalid."""
    sources: list[Source] = []
    for path in paths:
        try:
            with path.open("rb") as file:
                data = file.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            _refuse(str(path), f"cannot be read: {error.strerror}")
        if len(data) > FILE_BYTES_MAX:
            _refuse(str(path), f"more than {FILE_BYTES_MAX >> 20} MiB")
        sources.append(Source(str(path), data))
    return sources


def unpacked(sources: Sequence[Source], wanted: Sequence[str]) -> list[Source]:
    """The sources, archives among them as their members: those whose name ends in one of `wanted`.
    A member is `ARCHIVE/NAME` from there on. Raises Invalid."""
    found: list[Source] = []
    for source in sources:
        if source.data[:4] == b"PK\x03\x04":
            found += _unzipped(source, wanted)
        elif source.data[:2] == b"\x1f\x8b":
            found += _untarred(source, wanted)
        else:
            found.append(source)
    return found


def _is_wanted(name: str, wanted: Sequence[str]) -> bool:
    return any(f"/{name}".endswith(end) for end in wanted)


def _unzipped(source: Source, wanted: Sequence[str]) -> Iterator[Source]:
    budget = UNPACKED_MAX
    try:
        with zipfile.ZipFile(io.BytesIO(source.data)) as archive:
            members = archive.infolist()
            if len(members) > MEMBERS_MAX:
                _refuse(source.name, f"{len(members)} members; at most {MEMBERS_MAX}")
            for member in members:
                kind = stat.S_IFMT(member.external_attr >> 16)
                if kind not in (0, stat.S_IFREG) or not _is_wanted(member.filename, wanted):
                    continue  # a folder, a link, or nothing that is asked for
                if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    _refuse(source.name, f"{member.filename} is packed in a way that is not known")
                with archive.open(member) as file:
                    data = file.read(budget + 1)  # what a header says of the size may be a lie
                budget = _spent(source, budget, data)
                yield Source(f"{source.name}/{member.filename}", data)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        _refuse(source.name, f"a damaged archive: {error}")
    except (ValueError, OSError, OverflowError, UnicodeError) as error:
        _refuse(source.name, f"a damaged archive: {error}")


def _untarred(source: Source, wanted: Sequence[str]) -> Iterator[Source]:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(source.data)) as packed:
            text = packed.read(UNPACKED_MAX + 1)
        _spent(source, UNPACKED_MAX, text)
        with tarfile.open(fileobj=io.BytesIO(text), mode="r:") as archive:
            for count, member in enumerate(archive):
                if count == MEMBERS_MAX:
                    _refuse(source.name, f"more than {MEMBERS_MAX} members")
                if not member.isreg() or not _is_wanted(member.name, wanted):
                    continue
                if member.sparse is not None or member.size > len(text):
                    _refuse(source.name, f"{member.name} says it is larger than the archive")
                file = archive.extractfile(member)
                assert file is not None  # it is regular
                yield Source(f"{source.name}/{member.name}", file.read())
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError, OverflowError) as error:
        _refuse(source.name, f"a damaged archive: {error}")


def _spent(source: Source, budget: int, data: bytes) -> int:
    if len(data) > budget:
        _refuse(source.name, f"more than {UNPACKED_MAX >> 20} MiB when unpacked")
    return budget - len(data)


def is_database(source: Source) -> bool:
    return source.data.startswith(SQLITE)


def read_tables(
    source: Source, tables: Mapping[str, Sequence[str]]
) -> dict[str, list[dict[str, Any]]]:
    """Rows of real tables as mappings; of the columns asked for those that there are, and no row
    of a table that is missing. Raises Invalid."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.deserialize(_without_journal(source.data))
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1 << 20)
        real = {
            name
            for name, sql in connection.execute(
                "SELECT name, sql FROM sqlite_master WHERE type = 'table'"
            )
            if isinstance(name, str) and not str(sql).upper().startswith("CREATE VIRTUAL")
        }
        return {
            table: _rows(connection, source, table, columns) if table in real else []
            for table, columns in tables.items()
        }
    except sqlite3.Error as error:
        _refuse(source.name, f"a database that cannot be read: {error}")
    except UnicodeDecodeError:
        _refuse(source.name, "a database with text that is not UTF-8")
    finally:
        connection.close()


def _without_journal(data: bytes) -> bytes:
    """A database in WAL mode as one that is not, or it could not be opened in memory."""
    return data[:18] + b"\x01\x01" + data[20:] if data[18:20] == b"\x02\x02" else data


def _rows(
    connection: sqlite3.Connection, source: Source, table: str, columns: Sequence[str]
) -> list[dict[str, Any]]:
    # Hidden and generated columns, which compute something, are not listed by table_info.
    there = {row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')}
    chosen = [column for column in columns if column in there]
    if not chosen:
        return []
    listed = ", ".join(f'"{column}"' for column in chosen)
    query = f'SELECT {listed} FROM "{table}" LIMIT {ROWS_MAX + 1}'  # noqa: S608  # names are ours
    rows = connection.execute(query).fetchall()
    if len(rows) > ROWS_MAX:
        _refuse(source.name, f"more than {ROWS_MAX} rows in {table}")
    return [dict(zip(chosen, row, strict=True)) for row in rows]


def _refuse(name: str, message: str) -> NoReturn:
    raise Invalid(name, [Cause("", message)])
