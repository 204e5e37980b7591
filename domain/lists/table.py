"""Lists in a file that is mapped: 14 octets a rule beside the text that people wrote.

The file is the truth of its own: a table of words, the texts of all sources as they were fetched,
and a directory of them. A word leads from a name to the place in a text where its rule stands; what
the rule says is read there. So every hit is checked against the text: another name with the same
hash blocks nothing, and `explain` shows what somebody wrote.

    0      header    see `Header`
    4096   words     8 octets each, open addressing with linear probing, little endian
    …      texts     of all sources, one after the other, each ended by a line feed
    …      directory MessagePack of `Directory`

A word, from its high bits: 25 of the hash; whether the rule is a plain one; what it covers (2);
offset in the file plus one (36). 0 is a free place. The hash is XXH3 (64 bits, with a secret
seed) of a name in lower-case wire form; its high 32 bits say where to begin.
"""

import string
import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import xxhash

from kudurru.domain.dns import names
from kudurru.domain.dns.names import Name
from kudurru.domain.lists.matcher import Hit, Place, rank
from kudurru.domain.lists.parser import parse_line
from kudurru.domain.lists.patterns import Budget, Patterns
from kudurru.domain.lists.rules import (
    BELOW,
    RULES_OF_NAME_MAX,
    SELF,
    SUBTREE,
    Context,
    Reason,
    Rule,
)
from kudurru.domain.lists.scan import LINES_EACH, Octets, scan, text_of
from kudurru.domain.objects import Key

MAGIC = b"kdrlists"
VERSION = 1
"""Raise it when the layout, or the meaning of a line, changes: older files are then built anew."""
PAGE = 4096

_TAG_BITS, _OFFSET_BITS = 25, 36
_TAG_SHIFT = 64 - _TAG_BITS
_TAG = (1 << _TAG_BITS) - 1
_PLAIN = 1 << 38
_OFFSET = (1 << _OFFSET_BITS) - 1
_KIND = ~_OFFSET & (1 << _TAG_SHIFT) - 1
FILE_MAX = _OFFSET - 1

_GUARD = 512
"""Places behind the last one that a search begins at, so that none goes around; and as many more
as lists may have rules for one name. The longest run of a million names is below a hundred."""

_READ_MAX = 4096
"""Words whose rules are kept: some 0.5 KiB each."""

_LINES_BACK_MAX = 4096
"""Lines between a record without owner and the one that has it: a query waits for this search, so
what is further apart is no rule."""

_LENGTH = tuple(bytes((size,)) for size in range(64))
_GOES_ON = frozenset(c.encode() for c in string.ascii_letters + string.digits + "_.-")

_HOST_OCTETS = b"".join(sorted(_GOES_ON - {b"."}))
_DOTTED = bytes(46 if octet < 45 else octet for octet in range(256))
"""Length octets to dots, in names whose labels are shorter than 45."""

_CHUNK = 1 << 20

_hash = xxhash.xxh3_64_intdigest


class Unusable(Exception):
    """A table that cannot be used: damaged, cut short, or of another version. The message says
    which. Build it anew."""


class Full(Exception):
    """More rules than there are places for: build again with more."""


class Source(msgspec.Struct, frozen=True):
    """A text that is in the table."""

    list: Key
    index: int  # in spec.sources
    title: str  # what people call it
    context: Context
    start: int  # offset in the file
    size: int  # octets
    digest: str  # SHA-256 of the text, hex


class SourceFacts(msgspec.Struct, frozen=True):
    """What was found in a source."""

    source: Source
    entries: int  # rules
    refused: dict[Reason, int]
    patterns: tuple[int, ...]  # offsets of lines
    contexts: tuple[tuple[int, Context], ...]  # where a policy zone changes its origin


class Directory(msgspec.Struct, frozen=True):
    sources: tuple[SourceFacts, ...]
    shortest: int  # octets of the shortest name, 0 when there is none


class Header(NamedTuple):
    """What the first page holds after `MAGIC`."""

    version: int
    seed: int
    begins: int  # places that a search may begin at
    places: int
    directory_at: int
    directory_size: int
    digest: bytes  # XXH3-128 of everything after the first page

    def page(self) -> bytes:
        body = _HEADER.pack(MAGIC, *self)
        return (body + xxhash.xxh3_64_digest(body)).ljust(PAGE, b"\x00")


_HEADER = struct.Struct("<8sI4xQQQQQ16s")


def read_header(page: bytes, size: int) -> Header:
    """Of a file of `size` octets. Raises Unusable."""
    end = _HEADER.size
    if len(page) < PAGE or page[:8] != MAGIC:
        raise Unusable("it is no table of lists")
    if page[end : end + 8] != xxhash.xxh3_64_digest(page[:end]):
        raise Unusable("its header is damaged")
    header = Header(*_HEADER.unpack(page[:end])[1:])
    if header.version != VERSION:
        raise Unusable(f"it is of version {header.version}; this program makes {VERSION}")
    if size != header.directory_at + header.directory_size:
        raise Unusable("it is cut short")
    return header


class Layout(NamedTuple):
    """Where the parts of a table go."""

    begins: int
    places: int
    texts_at: int
    directory_at: int


def layout(lines: int, texts_size: int, lists: int = 1) -> Layout:
    """Of a table for so many rules: three sevenths of it stay free, so that a search ends soon.
    Raises Unusable where it would be larger than a word can point into."""
    begins = max(lines * 7 // 4, 64)
    places = begins + _GUARD + RULES_OF_NAME_MAX * lists
    texts_at = PAGE + 8 * places
    if texts_at + texts_size > FILE_MAX:
        raise Unusable(f"{texts_size} octets of lists are more than a table can hold")
    return Layout(begins, places, texts_at, texts_at + texts_size)


class Builder:
    """Fills the words of a table. `words` are its places, all zero; `octets` are the file, with the
    texts in it."""

    def __init__(self, words: memoryview, begins: int, seed: int, octets: Octets) -> None:
        self._words = words
        self._begins = begins
        self._last = len(words) - 1  # stays free
        self._seed = seed
        self._octets = octets
        self._left = int(begins * 0.75)
        self._shortest = 0
        self._list = Key("")
        self._list_start = 0
        self._budget = Budget()  # of this list

    def directory(self, facts: Iterable[SourceFacts]) -> Directory:
        return Directory(tuple(facts), self._shortest)

    def add(
        self, source: Source, on_progress: Callable[[int], object] = lambda _: None
    ) -> SourceFacts:
        """Read a source. Sources of one list come one after the other. `on_progress` is told how
        far it was read, once in LINES_EACH lines. Raises Full."""
        if source.list != self._list:
            self._list, self._list_start, self._budget = source.list, source.start, Budget()
        end = source.start + source.size
        entries = 0
        refused: Counter[Reason] = Counter()
        patterns: list[int] = []
        contexts = [(source.start, source.context)]
        # The scan is nowhere but in the loop: it holds on to the map, which must close on Full.
        for line, (offset, found, more) in enumerate(
            scan(self._octets, source.start, end, source.context), 1
        ):
            if not line % LINES_EACH:
                on_progress(offset)
            if isinstance(found, bytes):
                if self._insert(found, offset, more, is_plain=True):  # type: ignore[arg-type]  # of Plain
                    entries += 1
                else:
                    refused[Reason.NAME_MAX] += 1
                continue
            refused.update(found.refused)
            for rule in found.rules:
                if (reason := self._take(rule, offset, patterns)) is None:
                    entries += 1
                else:
                    refused[reason] += 1
            if without_owner(more) != contexts[-1][1]:  # type: ignore[arg-type]  # of Other
                contexts.append((offset, without_owner(more)))  # type: ignore[arg-type]
        return SourceFacts(source, entries, dict(refused), tuple(patterns), tuple(contexts))

    def _take(self, rule: Rule, offset: int, patterns: list[int]) -> Reason | None:
        """Take in a rule; None, or why not."""
        if rule.pattern:
            if not self._budget.take(rule.pattern):
                return Reason.REGEX_MAX
            patterns.append(offset)
        elif not self._insert(rule.name, offset, rule.covers, is_plain=False):
            return Reason.NAME_MAX
        return None

    def _insert(self, name: bytes, offset: int, covers: int, *, is_plain: bool) -> bool:
        """Whether the rule is in the table now, or was already."""
        words = self._words
        hashed = _hash(name, self._seed)
        at = (hashed >> 32) * self._begins >> 32
        tag = hashed & _TAG
        kind = _PLAIN | covers << _OFFSET_BITS if is_plain else covers << _OFFSET_BITS
        of_name = 0
        while word := words[at]:
            if word >> _TAG_SHIFT == tag and word & _OFFSET > self._list_start:
                if is_plain and self._is_same(word, kind, name):
                    return True
                of_name += 1
            at += 1
        if of_name >= RULES_OF_NAME_MAX:
            return False
        if at == self._last or not self._left:
            raise Full
        self._left -= 1
        words[at] = tag << _TAG_SHIFT | kind | offset + 1
        if not self._shortest or len(name) < self._shortest:
            self._shortest = len(name)
        return True

    def _is_same(self, word: int, kind: int, name: bytes) -> bool:
        """Whether a word of this list says the very same."""
        return not (word ^ kind) & _KIND and is_name_at(self._octets, (word & _OFFSET) - 1, name)


def is_name_at(octets: Octets, offset: int, name: bytes) -> bool:
    """Whether the text at an offset is this name in wire form, and no longer one."""
    end = offset + len(name) - 2
    text = octets[offset:end].lower()
    if octets[end : end + 1] in _GOES_ON:
        return False
    if name[1:-1].translate(_DOTTED) == text:
        # Its length octets became dots. That they were lengths, and no octets of labels, is so
        # where they add up to the name.
        lengths = name.translate(None, _HOST_OCTETS)
        if sum(lengths) + len(lengths) == len(name):
            return True
    labels = text.split(b".")
    wire = b"".join([_LENGTH[len(label) & 63] + label for label in labels])
    return wire == name[:-1]


def without_owner(context: Context) -> Context:
    """The part of a context that is written down: owners of records are looked for in the text."""
    return msgspec.structs.replace(context, owner="") if context.owner else context


class Table:
    """Implements `matcher.Matcher` on a file that is mapped, or its octets. `octets` must stay as
    they are; whether they are what was written is `header.digest`'s to say. Raises Unusable."""

    def __init__(self, octets: Octets) -> None:
        self.header = header = read_header(octets[:PAGE], len(octets))
        self._octets = octets
        self._texts_at = PAGE + 8 * header.places
        self._words = memoryview(octets)[PAGE : self._texts_at].cast("Q")  # type: ignore[arg-type]  # a buffer
        directory = octets[header.directory_at : len(octets)]
        try:
            self.directory = msgspec.msgpack.decode(directory, type=Directory)
        except msgspec.MsgspecError:
            raise Unusable("its directory is damaged") from None
        self._starts = [facts.source.start for facts in self.directory.sources]
        self._read: dict[int, tuple[Hit, ...]] = {}
        self._pattern_hits = list(self._all_patterns())
        self._patterns = Patterns([hit.rule.pattern for hit in self._pattern_hits])

    @property
    def resident_max(self) -> int:
        """Octets that look-ups touch, texts of rules that hit aside."""
        return 8 * self.header.places

    def lookup(self, name: Name) -> Sequence[Hit]:
        words, seed, begins = self._words, self.header.seed, self.header.begins
        found: list[Hit] = []
        read = self._read
        i, covers = 0, SELF
        last = len(name) - (self.directory.shortest or 256)
        while i <= last:
            hashed = _hash(name[i:], seed)
            at = (hashed >> 32) * begins >> 32
            tag = hashed & _TAG
            wanted = covers << _OFFSET_BITS
            while word := words[at]:
                at += 1
                if word >> _TAG_SHIFT != tag or not word & wanted:
                    continue
                suffix = name[i:]
                hits = read.get(word) or self._read_rules(word, suffix)
                for hit in hits:
                    rule = hit.rule
                    if rule.name == suffix and rule.covers & covers:
                        found.append(hit)
            i += name[i] + 1
            covers = BELOW
        if self._pattern_hits:
            text = names.to_text(name, final_dot=False)
            found += [self._pattern_hits[i] for i in self._patterns.search(text)]
        if len(found) > 1:
            found.sort(key=rank)
        return found

    def place(self, hit: Hit) -> Place | None:
        for facts in self.directory.sources:
            source = facts.source
            if source.list == hit.list and source.index == hit.source:
                start, stop = self._line_at(source.start + hit.offset)
                number = 1 + self._count_lines(source.start, start)
                return Place(source.title, number, text_of(self._octets[start:stop]))
        return None

    # --- reading texts ------------------------------------------------------------------

    def _read_rules(self, word: int, suffix: bytes) -> tuple[Hit, ...]:
        """Rules of the line that a word leads to; they may be about another name than `suffix`,
        which only has the same hash."""
        offset = (word & _OFFSET) - 1
        if word & _PLAIN and is_name_at(self._octets, offset, suffix):
            source = self.directory.sources[bisect_right(self._starts, offset) - 1].source
            covers = word >> _OFFSET_BITS & SUBTREE
            rule = Rule(name=Name(suffix), covers=covers, is_allow=source.context.is_allow)
            hits: tuple[Hit, ...] = (Hit(source.list, rule, source.index, offset - source.start),)
        else:
            hits = self._read_line(offset)
        if len(self._read) >= _READ_MAX:
            self._read.clear()
        self._read[word] = hits
        return hits

    def _facts_at(self, offset: int) -> SourceFacts:
        return self.directory.sources[bisect_right(self._starts, offset) - 1]

    def _read_line(self, offset: int) -> tuple[Hit, ...]:
        facts = self._facts_at(offset)
        source = facts.source
        start, stop = self._line_at(offset)
        at = bisect_right(facts.contexts, offset, key=lambda one: one[0]) - 1
        context = facts.contexts[at][1]
        line = text_of(self._octets[start:stop])
        if context.format == "rpz" and line[:1].isspace():
            owner = self._owner_before(start, source.start)
            context = msgspec.structs.replace(context, owner=owner)
        rules = parse_line(line, context).rules
        return tuple(Hit(source.list, rule, source.index, offset - source.start) for rule in rules)

    def _line_at(self, offset: int) -> tuple[int, int]:
        """First octet of the line around an offset, and the one after its last."""
        begin = self._octets.rfind(b"\n", self._texts_at, offset) + 1
        end = self._octets.find(b"\n", offset, self.header.directory_at)
        return begin or self._texts_at, end

    def _count_lines(self, start: int, stop: int) -> int:
        return sum(
            self._octets[at : min(at + _CHUNK, stop)].count(b"\n")
            for at in range(start, stop, _CHUNK)
        )

    def _owner_before(self, start: int, first: int) -> str:
        """Owner of a record that leaves it out: that of the nearest line before which has one."""
        for _ in range(_LINES_BACK_MAX):
            if start <= first:
                break
            start, stop = self._line_at(start - 1)
            line = text_of(self._octets[start:stop])
            if line[:1].strip() and line[0] not in ";$)":
                return line.split()[0]
        return ""

    def _all_patterns(self) -> Iterator[Hit]:
        for facts in self.directory.sources:
            for offset in facts.patterns:
                yield from (hit for hit in self._read_line(offset) if hit.rule.pattern)
