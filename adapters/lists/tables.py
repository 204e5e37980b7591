"""The table of all lists as a file: written beside the old one, then put in its place.

A table is written whole under another name, made durable, and renamed: a power cut leaves the old
one or the new one, whole, and what is mapped stays what it was. Where its octets are not those that
were written, it is refused, and built again from the texts.
"""

import hashlib
import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec
import xxhash

from kudurru.adapters.data_dir import sync_folder
from kudurru.adapters.lists.jobs import Text
from kudurru.adapters.secret_files import write_all
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

_CHUNK = 1 << 20


class TextDamaged(Exception):
    """A text on disk is not what was fetched: fetch it again."""

    def __init__(self, digest: str) -> None:
        super().__init__(f"the copy {digest[:12]}… of a list is damaged")
        self.digest = digest


def write_table_aside(path: Path, texts: Sequence[Text], seed: int) -> tuple[SourceFacts, ...]:
    """Build a table at `path`, durable but for its name; what was found in each source. Raises:
    OSError; TextDamaged; Unusable when it would be too large. Then there is nothing at `path`."""
    size = sum(Path(text.path).stat().st_size + 1 for text in texts)
    lines = sum(_count_lines(text.path) for text in texts)
    lists = len({text.list for text in texts})
    try:
        while True:
            try:
                return _write(path, texts, layout(lines, size, lists), seed)
            except Full:  # lines with many names
                lines = 2 * lines + 64
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def put_in_place(aside: Path, path: Path) -> None:
    """From here on `path` is what was written aside, also after a power cut. Raises OSError."""
    aside.replace(path)
    sync_folder(path.parent)


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


def _count_lines(path: str) -> int:
    with Path(path).open("rb", buffering=0) as file:
        return 1 + sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(_CHUNK), b""))


def _write(path: Path, texts: Sequence[Text], where: Layout, seed: int) -> tuple[SourceFacts, ...]:
    with _create(path) as file:
        os.ftruncate(file.fileno(), where.directory_at)
        file.seek(where.texts_at)
        sources = [_copy(text, file) for text in texts]
        if file.tell() != where.directory_at:
            raise OSError("a text changed while it was read")
        words, directory = _build(file, sources, where, seed)
        body = msgspec.msgpack.encode(directory)
        write_all(file.fileno(), body)
        file.seek(PAGE)
        write_all(file.fileno(), words)
        digest = _digest(file, PAGE)
        header = Header(
            VERSION, seed, where.begins, where.places, where.directory_at, len(body), digest
        )
        file.seek(0)
        write_all(file.fileno(), header.page())
        os.fsync(file.fileno())
    return directory.sources


def _create(path: Path) -> BinaryIO:
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o600), "w+b", buffering=0)


def _copy(text: Text, to: BinaryIO) -> Source:
    start = to.tell()
    hasher = hashlib.sha256()
    with Path(text.path).open("rb", buffering=0) as file:
        for chunk in iter(lambda: file.read(_CHUNK), b""):
            hasher.update(chunk)
            write_all(to.fileno(), chunk)
    if hasher.hexdigest() != text.digest:
        raise TextDamaged(text.digest)
    write_all(to.fileno(), b"\n")
    size = to.tell() - start
    return Source(text.list, text.index, text.title, text.context, start, size, text.digest)


def _build(
    file: BinaryIO, sources: Iterable[Source], where: Layout, seed: int
) -> tuple[bytearray, Directory]:
    """The words of a file that holds the texts."""
    words = bytearray(8 * where.places)
    with mmap.mmap(file.fileno(), where.directory_at, access=mmap.ACCESS_READ) as mapped:
        builder = Builder(memoryview(words).cast("Q"), where.begins, seed, mapped)

        let_go_at = 0

        def progress(offset: int) -> None:
            nonlocal let_go_at
            step_aside()
            if offset >= let_go_at:  # what was read stays in the page cache, and is not ours
                mapped.madvise(mmap.MADV_DONTNEED)
                let_go_at = offset + _CHUNK

        return words, builder.directory([builder.add(source, progress) for source in sources])


def step_aside(_offset: int = 0) -> None:
    """Let whoever waits for the processor have it now, and not at the next tick of the kernel: a
    niced process that computes would hold up a server of the same session for 4 ms."""
    os.sched_yield()


def _digest(file: BinaryIO, start: int) -> bytes:
    hasher = xxhash.xxh3_128()
    file.seek(start)
    for chunk in iter(lambda: file.read(_CHUNK), b""):
        hasher.update(chunk)
    return hasher.digest()
