"""Master files (RFC 1035 section 5) as people have them: read, and written.

`read` makes records of a text in one pass: `$ORIGIN`, `$TTL` (RFC 2308), `$INCLUDE`, `$GENERATE`
(as BIND has it), parentheses, relative names, omitted owners, TTLs and classes, escapes, unknown
types. Nothing is skipped: what cannot be read is a fault with its file and line, and all faults are
raised together. Whether the records make a zone is `zone_rules.check_zone`.

Most lines of a zone hold no quote, parenthesis, comment or escape: those are split at white space,
the others go through `_scan`. The text is held as one character per octet, so that any file can be
read and UTF-8 in strings stays what it was.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

import msgspec

from kudurru.domain.dns import generate, names, record_types, records
from kudurru.domain.dns.generate import Generate
from kudurru.domain.dns.names import BadName, Name
from kudurru.domain.dns.rdata_fields import octets, seconds
from kudurru.domain.dns.record_types import SOA, BadRecord
from kudurru.domain.dns.records import Parse
from kudurru.domain.errors import Cause, Invalid

TTL_MAX = 2**31 - 1  # RFC 2181 section 8

Include = Callable[[str, str], tuple[str, bytes]]
"""From the name after $INCLUDE and the name of the file it stands in: name (one per file, however
it was reached) and content. Raises CannotRead."""

Progress = Callable[[int, int], None]
"""Called now and then with how many octets are read, and how many are known to come in all."""

_PROGRESS_LINES = 8192  # some 0.1 s apart: often enough for a bar


class CannotRead(Exception):
    """A file cannot or must not be read; the message says which and why."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    generated_each: int = 65_536  # of one $GENERATE: as many as BIND takes
    generated: int = 10_000_000  # of all
    include_depth: int = 10
    faults: int = 100  # more would be read by nobody


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record and the place it was read from. Not tracked by the garbage collector: a zone has
    many, and they refer to nothing that could refer back."""

    owner: Name
    rtype: int
    ttl: int  # seconds
    rdata: bytes
    line: int = 0
    file: str = ""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


class ZoneFile(msgspec.Struct, frozen=True):
    records: list[Record]
    apex: Name | None  # owner of the first SOA
    warnings: list[Cause]


def read(
    data: str | bytes,
    *,
    file: str,
    origin: Name | None = None,
    include: Include | None = None,
    default_ttl: int | None = None,
    limits: Limits = Limits(),  # noqa: B008  # frozen
    on_progress: Progress | None = None,
) -> ZoneFile:
    """Records of a master file in the order of the file.

    `file` is its name in messages. Without `origin` the file must begin with $ORIGIN or with a SOA
    whose owner is absolute and becomes the origin. Without `include` an $INCLUDE is a fault.
    `default_ttl` stands for a $TTL before the first line. A record without TTL has that of the last
    $TTL, else of the record before, else (a SOA) its own minimum.

    Raises: Invalid with a cause for every fault, its field `file:line`.
    """
    reader = _Reader(origin, include, default_ttl, limits, on_progress)
    try:
        reader.read_file(file, data)
    except _TooManyFaults:
        reader.faults.append(Cause("", "and more; the rest was not read"))
    if reader.faults:
        raise Invalid(file, reader.faults)
    return ZoneFile(reader.records, reader.apex, reader.warnings)


def write(zone: Iterable[Record], origin: Name) -> Iterator[str]:
    """Lines of a master file that other servers load: SOA, apex, then canonical order of owners
    (RFC 4034 section 6.1). Owners are relative to the origin, names in data absolute; types that
    not every server knows by name are written as RFC 3597 has it."""
    suffix = names.to_text(origin)
    yield f"$ORIGIN {suffix}\n"
    owner = text = None
    for record in sorted(zone, key=_written_order):
        if record.owner != owner:
            owner = record.owner
            text = _relative(owner, origin, suffix)
        yield f"{text} {record.ttl} IN {_data_text(record.rtype, record.rdata)}\n"


# What BIND 9.18 and NSD 4.6 both read by name.
_KNOWN_EVERYWHERE = frozenset(map(record_types.type_from_text, [
    "A", "NS", "CNAME", "SOA", "WKS", "PTR", "HINFO", "MX", "TXT", "RP", "AFSDB", "X25", "ISDN",
    "RT", "NSAP", "SIG", "KEY", "PX", "AAAA", "LOC", "SRV", "NAPTR", "KX", "CERT", "DNAME", "APL",
    "DS", "SSHFP", "IPSECKEY", "RRSIG", "NSEC", "DNSKEY", "DHCID", "NSEC3", "NSEC3PARAM", "TLSA",
    "SMIMEA", "CDS", "CDNSKEY", "OPENPGPKEY", "CSYNC", "ZONEMD", "SVCB", "HTTPS", "SPF", "NID",
    "L32", "L64", "LP", "EUI48", "EUI64", "URI", "CAA", "AVC", "DLV",
]))  # fmt: skip


def _data_text(rtype: int, rdata: bytes) -> str:
    if rtype in _KNOWN_EVERYWHERE:
        return f"{record_types.type_to_text(rtype)} {records.rdata_to_text(rtype, rdata)}"
    return f"TYPE{rtype} {records.generic_text(rdata)}"


def _written_order(record: Record) -> tuple[tuple[bytes, ...], bool, int, bytes]:
    order = names.canonical_order(record.owner)
    return order, record.rtype != SOA, record.rtype, record.rdata


def _relative(owner: Name, origin: Name, suffix: str) -> str:
    """Owner without the origin, whose letter case must be the same to be left out."""
    if owner == origin:
        return "@"
    text = names.to_text(owner)
    if origin == names.ROOT or not names.is_within(owner, origin):
        return text
    return text[: -len(suffix) - 1]


# ---------------------------------------------------------------- reading

_Entry = tuple[int, Parse]  # a type and the reader of its words


@lru_cache(1024)
def _ttl(word: str) -> int:
    try:
        return seconds(word, TTL_MAX)
    except BadRecord as error:
        raise BadRecord(f"TTL: {error}") from None


_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")

# A line with one of these goes through _scan; the rest can be split at white space.
_SPECIAL = re.compile(r'["\\();\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\xff]')

_LEX = re.compile(
    r"""[ \t\r\f\v]*+ (?:
        (?P<word> "(?:[^"\\]|\\.)*+" | (?:[^\s"\\();]|\\[^\r\n])++ (?:(?<==)"(?:[^"\\]|\\.)*+")? )
      | (?P<end> \n | \Z )
      | (?P<comment> ;[^\n]*+ )
      | (?P<open> \( )
      | (?P<close> \) )
    )""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)


_NOT_BLANK = re.compile(r"[^ \t\r\f\v]")


class _TooManyFaults(Exception):
    """There are enough faults to show."""


class _Reader:
    """State of one reading: it goes through the files as they include each other."""

    def __init__(
        self,
        origin: Name | None,
        include: Include | None,
        default_ttl: int | None,
        limits: Limits,
        on_progress: Progress | None,
    ) -> None:
        self.records: list[Record] = []
        self.faults: list[Cause] = []
        self.warnings: list[Cause] = []
        self.apex: Name | None = None
        self._origin = origin
        self._is_lost = False  # told that there is no origin
        self._owner: Name | None = None
        self._owner_text = ""  # as `_owner` was written, under this origin
        self._default_ttl = default_ttl
        self._last_ttl: int | None = None
        self._entries: dict[str, _Entry] = {}
        self._include = include
        self._limits = limits
        self._on_progress = on_progress
        self._files: list[str] = []  # open ones, the outermost first
        self._generated = 0
        self._octets_before = 0
        self._octets_known = 0

    def read_file(self, file: str, data: str | bytes) -> None:
        self._files.append(file)
        if isinstance(data, str):
            data = data.encode("utf-8", "surrogatepass")
        if data[:2] in _UTF16:
            self._fault(file, 1, "the file is UTF-16; save it as UTF-8")
        else:
            text = data.removeprefix(_BOM).decode("latin-1")
            self._octets_known += len(text)
            self._read_text(text, file)
            self._octets_before += len(text)
        self._files.pop()

    def _read_text(self, text: str, file: str) -> None:
        at, line, size = 0, 1, len(text)
        special = -1  # offset of the next special character, when it is not behind us
        report_at = _PROGRESS_LINES
        while at < size:
            end = text.find("\n", at)
            if end < 0:
                end = size
            if special < at:
                found = _SPECIAL.search(text, at)
                special = found.start() if found else size
            if special >= end:
                words, after, lines = text[at:end].split(), end + 1, 1
            else:
                words, after, lines = self._scan(text, at, file, line)
            if words:
                try:
                    if text[at] == "$":
                        self._directive(words, file, line)
                    else:
                        self._record(words, text[at] in " \t", file, line)
                except (BadRecord, BadName, CannotRead) as error:
                    self._fault(file, line, str(error))
            at = after
            line += lines
            if line >= report_at:
                report_at = line + _PROGRESS_LINES
                if self._on_progress is not None:
                    self._on_progress(self._octets_before + at, self._octets_known)

    def _scan(self, text: str, start: int, file: str, line: int) -> tuple[list[str], int, int]:
        """Words of the entry at `start`, which goes on over line ends within parentheses and
        quotes, the offset behind it, and how many lines it takes. A fault gives no words, and
        reading goes on at the next line."""
        words: list[str] = []
        at, lines, depth = start, 1, 0
        while True:
            match = _LEX.match(text, at)
            if match is None:
                return self._give_up(text, start, file, line, _why_not(text, at))
            at = match.end()
            kind = match.lastgroup
            if kind == "word":
                word = match["word"]
                words.append(word)
                if "\n" in word:
                    lines += word.count("\n")
                    self._warn(file, line, "a quoted string goes on over the end of the line")
            elif kind == "open":
                depth += 1
            elif kind == "close":
                if not depth:
                    why = "a closing parenthesis without an opening one"
                    return self._give_up(text, start, file, line, why)
                depth -= 1
            elif kind == "end":
                if not depth:
                    return words, at + (at == len(text)), lines
                if at >= len(text):
                    return self._give_up(text, start, file, line, "a parenthesis is not closed")
                lines += 1

    def _give_up(
        self, text: str, start: int, file: str, line: int, why: str
    ) -> tuple[list[str], int, int]:
        self._fault(file, line, why)
        end = text.find("\n", start)
        return [], (end if end >= 0 else len(text)) + 1, 1

    # ---- records

    def _record(self, words: list[str], is_owner_omitted: bool, file: str, line: int) -> None:
        """Raises BadRecord and BadName."""
        if self._origin is None:
            try:
                self._origin = _origin_of_soa(words, is_owner_omitted)
            except BadRecord:
                if self._is_lost:
                    return  # one fault for all lines of the file
                self._is_lost = True
                raise
        i = 0
        if not is_owner_omitted:
            i = 1
            if words[0] != self._owner_text:
                self._owner = names.from_text(words[0], self._origin)
                self._owner_text = words[0]
        if self._owner is None:
            self._owner = self._origin  # a file that begins blank, as NSD and dnspython read it
        ttl: int | None = None
        try:
            while (entry := self._entries.get(words[i])) is None:
                word = words[i]
                if word[0] in "0123456789":
                    if ttl is not None:
                        raise BadRecord(f"{word!r} is a second TTL")
                    ttl = _ttl(word)
                elif word != "IN" and not _is_class_in(word):
                    self._entries[word] = _entry(word)
                    continue
                i += 1
        except IndexError:
            raise BadRecord("the record has no type") from None
        rtype, parse = entry
        rdata = self._rdata(rtype, parse, words[i + 1 :])
        if ttl is None:
            ttl = self._ttl_of(rtype, rdata)
        self._last_ttl = ttl
        if rtype == SOA and self.apex is None:
            self.apex = self._owner
        self.records.append(Record(self._owner, rtype, ttl, rdata, line, file))

    def _rdata(self, rtype: int, parse: Parse, words: list[str]) -> bytes:
        try:
            if words and words[0] == "\\#":
                return records.rdata_from_tokens(rtype, words, self._origin)
            return records.bounded(parse(words, self._origin))
        except (BadRecord, BadName) as error:
            raise BadRecord(f"{record_types.type_to_text(rtype)}: {error}") from None

    def _ttl_of(self, rtype: int, rdata: bytes) -> int:
        """TTL of a record that states none."""
        if self._default_ttl is not None:
            return self._default_ttl
        if self._last_ttl is not None:
            return self._last_ttl
        if rtype == SOA:
            return min(int.from_bytes(rdata[-4:], "big"), TTL_MAX)
        raise BadRecord("no TTL: neither here nor before; begin the file with $TTL")

    # ---- directives

    def _directive(self, words: list[str], file: str, line: int) -> None:
        """Raises BadRecord, BadName and CannotRead."""
        match words[0].upper(), words[1:]:
            case "$ORIGIN", [name]:
                self._set_origin(self._absolute(name))
            case "$TTL", [ttl]:
                self._default_ttl = _ttl(ttl)
            case "$INCLUDE", [name]:
                self._read_included(name, self._origin, file)
            case "$INCLUDE", [name, origin]:
                self._read_included(name, self._absolute(origin), file)
            case "$GENERATE", [span, owner, *rest]:
                self._generate(generate.parse(span, owner, rest), file, line)
            case ("$ORIGIN" | "$TTL" | "$INCLUDE" | "$GENERATE") as known, rest:
                raise BadRecord(f"{known} with {len(rest)} arguments; see RFC 1035 section 5.1")
            case _:
                raise BadRecord(
                    f"unknown directive {words[0]!r}; an owner that begins with $ is written \\$"
                )

    def _absolute(self, name: str) -> Name:
        if self._origin is None and not name.endswith("."):
            raise BadName(f"{name!r} is relative and there is no origin yet; write the final dot")
        return names.from_text(name, self._origin)

    def _set_origin(self, origin: Name | None) -> None:
        self._origin = origin
        self._owner_text = ""  # the same text is another name now

    def _read_included(self, word: str, origin: Name | None, file: str) -> None:
        """The origin and the owner are restored after it, TTLs stay, as BIND does."""
        if self._include is None:
            raise CannotRead("$INCLUDE is not allowed here")
        if len(self._files) > self._limits.include_depth:
            raise CannotRead(f"$INCLUDE is nested deeper than {self._limits.include_depth} files")
        name = octets(word).decode("utf-8", "surrogateescape")
        found, data = self._include(name, file)
        if found in self._files:
            raise CannotRead(f"$INCLUDE of {found} from within itself")
        before = self._origin, self._owner
        self._set_origin(origin)
        self._owner = None
        self.read_file(found, data)
        self._set_origin(before[0])
        self._owner = before[1]

    def _generate(self, directive: Generate, file: str, line: int) -> None:
        self._generated += len(directive.span)
        if len(directive.span) > self._limits.generated_each:
            raise BadRecord(
                f"$GENERATE of {len(directive.span)} records; "
                f"at most {self._limits.generated_each}, so divide it"
            )
        if self._generated > self._limits.generated:
            raise BadRecord(f"more than {self._limits.generated} records are generated in all")
        before = self._owner
        for value in directive.span:
            try:
                self._record(directive.words(value), False, file, line)
            except (BadRecord, BadName) as error:
                raise BadRecord(f"$GENERATE at {value}: {error}") from None
        self._owner = before
        self._owner_text = ""

    # ---- what is found

    def _fault(self, file: str, line: int, message: str) -> None:
        self.faults.append(Cause("", _readable(message), f"{file}:{line}"))
        if len(self.faults) >= self._limits.faults:
            raise _TooManyFaults

    def _warn(self, file: str, line: int, message: str) -> None:
        if len(self.warnings) < self._limits.faults:
            self.warnings.append(Cause("", message, f"{file}:{line}"))


def _why_not(text: str, at: int) -> str:
    """Why nothing of _LEX stands here."""
    found = _NOT_BLANK.search(text, at)
    is_quote = found is not None and found[0] == '"'
    return "a quote is not closed" if is_quote else "a backslash at the end of the line"


def _readable(message: str) -> str:
    """The message with the UTF-8 of the file as text, where it is UTF-8."""
    try:
        return message.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return message


def _origin_of_soa(words: list[str], is_owner_omitted: bool) -> Name:
    """Origin from the owner of a SOA that opens a file. Raises BadRecord."""
    if not is_owner_omitted and words[0].endswith(".") and "SOA" in map(str.upper, words[1:4]):
        return names.from_text(words[0])
    raise BadRecord(
        "no origin yet: give the name of the zone (--zone), or begin the file with $ORIGIN"
    )


def _is_class_in(word: str) -> bool:
    """Whether a word is class IN; another class raises BadRecord."""
    upper = word.upper()
    if upper in ("IN", "CLASS1"):
        return True
    if upper in ("CH", "CS", "HS", "NONE") or upper[:5] == "CLASS":
        raise BadRecord(f"class {upper} is not served; only IN")
    return False


def _entry(word: str) -> _Entry:
    rtype = record_types.type_from_text(word)
    if record_types.is_meta_type(rtype):
        raise BadRecord(f"{word} is not a type of zone data")
    return rtype, records.parser_of(rtype)
