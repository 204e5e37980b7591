"""The table of all lists as a file: written beside the old one, then put in its place.

A table is written whole under another name, made durable, and renamed: a power cut leaves the old
one or the new one, whole, and what is mapped stays what it was. Where its octets are not those that
were written, it is refused, and built again from the texts.
"""

import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec
import xxhash

from kudurru.adapters.data_dir import sync_folder
from kudurru.domain.lists.rules import Context
from kudurru.domain.lists.table import (
    PAGE,
    VERSION,
    Builder,
    Directory,
    Full,
    Header,
    Layout,
    Source,
    SourceFacts,
    Table,
    Unusable,
    layout,
    read_header,
)
from kudurru.domain.objects import Key

_CHUNK = 1 << 20


class Text(msgspec.Struct, frozen=True):
    """A text that is to be in a table: a file, named after the SHA-256 of its content."""

    list: Key
    index: int  # in spec.sources
    title: str
    context: Context
    path: str
    digest: str


def write_table(path: Path, texts: Sequence[Text], seed: int) -> tuple[SourceFacts, ...]:
    """Build a table and put it at `path`; what was found in each source. Raises: OSError, with what
    was at `path` still there; TooManyRules."""
    aside = path.with_name(path.name + ".new")
    size = sum(Path(text.path).stat().st_size + 1 for text in texts)
    lines = sum(_count_lines(text.path) for text in texts)
    try:
        facts = _write_with_room(aside, texts, lines, size, seed)
        aside.rename(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
    return facts


def open_table(path: Path) -> Table | None:
    """The table at `path`, mapped; None when there is none. Raises Unusable, also where its octets
    are not what was written."""
    try:
        file = path.open("rb", buffering=0)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unusable(f"it cannot be read: {error.strerror}") from error
    with file:
        size = os.fstat(file.fileno()).st_size
        header = read_header(file.read(PAGE), size)
        # Through the page cache, not the map: what nobody asks for shall not count as ours.
        if _digest(file, PAGE) != header.digest:
            raise Unusable("its octets are not those that were written")
        mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    mapped.madvise(mmap.MADV_RANDOM)
    return Table(mapped)


def _write_with_room(
    path: Path, texts: Sequence[Text], lines: int, size: int, seed: int
) -> tuple[SourceFacts, ...]:
    while True:
        try:
            return _write(path, texts, layout(lines, size), seed)
        except Full:  # lines with many names
            lines = 2 * lines + 64


def _count_lines(path: str) -> int:
    with Path(path).open("rb", buffering=0) as file:
        return 1 + sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(_CHUNK), b""))


def _write(path: Path, texts: Sequence[Text], where: Layout, seed: int) -> tuple[SourceFacts, ...]:
    with _create(path) as file:
        # A map may not be written to where the disk has no room for it.
        os.posix_fallocate(file.fileno(), 0, where.directory_at)
        file.seek(where.texts_at)
        sources = [_copy(text, file) for text in texts]
        if file.tell() != where.directory_at:
            raise OSError("a text changed while it was copied")
        with mmap.mmap(file.fileno(), where.directory_at) as mapped:
            directory = _build(mapped, sources, where, seed)
        body = msgspec.msgpack.encode(directory)
        file.seek(where.directory_at)
        _write_all(file, body)
        digest = _digest(file, PAGE)
        header = Header(
            VERSION, seed, where.begins, where.places, where.directory_at, len(body), digest
        )
        file.seek(0)
        _write_all(file, header.page())
        os.fsync(file.fileno())
    return directory.sources


def _create(path: Path) -> BinaryIO:
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o600), "w+b", buffering=0)


def _copy(text: Text, to: BinaryIO) -> Source:
    start = to.tell()
    with Path(text.path).open("rb", buffering=0) as file:
        for chunk in iter(lambda: file.read(_CHUNK), b""):
            _write_all(to, chunk)
    _write_all(to, b"\n")
    size = to.tell() - start
    return Source(text.list, text.index, text.title, text.context, start, size, text.digest)


def _write_all(file: BinaryIO, octets: bytes) -> None:
    """Unbuffered files may write less: when the disk fills up, before the error says so."""
    left = memoryview(octets)
    while left:
        left = left[file.write(left) :]


def _build(mapped: mmap.mmap, sources: Iterable[Source], where: Layout, seed: int) -> Directory:
    words = memoryview(mapped)[PAGE : where.texts_at].cast("Q")
    builder = Builder(words, where.begins, seed, mapped)
    try:
        return builder.directory([builder.add(source) for source in sources])
    finally:
        builder.release()


def _digest(file: BinaryIO, start: int) -> bytes:
    hasher = xxhash.xxh3_128()
    file.seek(start)
    for chunk in iter(lambda: file.read(_CHUNK), b""):
        hasher.update(chunk)
    return hasher.digest()
