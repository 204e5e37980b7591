"""Answers of a scripted primary as NSD's tests have them (the text format of ldns-testns).

An entry says which queries it is for (MATCH: qtype, qname, serial, TCP, UDP) and what is answered
to them: one message, or several with an EXTRA_PACKET line between them.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.rrset

_RCODES = frozenset({"NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED", "NOTAUTH"})


class Entry(NamedTuple):
    qname: dns.name.Name
    qtype: str
    match: frozenset[str]  # words of the MATCH lines, lower-case
    rcode: str
    messages: list[list[dns.rrset.RRset]]  # the answer section, by message


class NsdScript:
    """Implements what `tests.primaries.MemoryClient` asks of a script."""

    def __init__(self, path: Path) -> None:
        self.entries = list(_entries(path.read_text(errors="replace")))
        self.asked: list[tuple[str, str]] = []

    def answers(self, octets: bytes, *, stream: bool) -> list[bytes | str] | None:
        query = dns.message.from_wire(octets)
        question = query.question[0]
        rtype = dns.rdatatype.to_text(question.rdtype)
        self.asked.append((question.name.to_text(), rtype))
        serial = query.authority[0][0].serial if query.authority else None
        for entry in self.entries:
            if (entry.qname, entry.qtype) != (question.name, rtype):
                continue
            if f"serial={serial}" not in entry.match and "serial=" in " ".join(entry.match):
                continue
            if ("tcp" in entry.match and not stream) or ("udp" in entry.match and stream):
                continue
            return [_message(query, entry, lines) for lines in entry.messages]
        return None


def _message(query: dns.message.Message, entry: Entry, records: list[dns.rrset.RRset]) -> bytes:
    answer = dns.message.make_response(query)
    answer.flags |= dns.flags.AA
    answer.set_rcode(dns.rcode.from_text(entry.rcode))
    answer.answer += records
    return answer.to_wire(max_size=65535)


_CLASSES = frozenset({"IN", "CH", "HS", "ANY", "NONE"})


def _record(line: str, origin: dns.name.Name) -> dns.rrset.RRset:
    """A record as "owner [ttl] [class] [ttl] type data", names relative to an origin."""
    owner, *words = line.split(None, 1)
    rest, ttl, rclass = words[0], 3600, "IN"
    while True:
        word, _, after = (
            rest.partition(" ") if "\t" not in rest.split(" ")[0] else rest.partition("\t")
        )
        if word.isdigit():
            ttl = int(word)
        elif word.upper() in _CLASSES:
            rclass = word.upper()
        else:
            break
        rest = after.strip()
    kind = dns.rdatatype.from_text(word)
    rdata = dns.rdata.from_text("IN", kind, after.strip(), origin=origin, relativize=False)
    rrset = dns.rrset.RRset(
        dns.name.from_text(owner, origin), dns.rdataclass.from_text(rclass), kind
    )
    if rrset.rdclass != rdata.rdclass:
        rdata = dns.rdata.GenericRdata(rrset.rdclass, kind, rdata.to_wire())
    rrset.add(rdata, ttl)
    return rrset


def _lines(text: str) -> Iterator[str]:
    """Lines without comments; those in parentheses as one, a missing owner filled in."""
    whole, owner, depth = "", "@", 0
    for raw in text.splitlines():
        line = re.sub(r'(?<!\\)("[^"]*")|;.*', lambda m: m[1] or "", raw).rstrip()
        if not line.strip() or line.startswith("#"):
            continue
        if not depth and line[:1].isspace() and not _is_word(line):
            line = f"{owner} {line.strip()}"
        depth += line.count("(") - line.count(")")
        whole += " " + line.strip()
        if depth <= 0:
            found, whole, depth = whole.replace("(", " ").replace(")", " ").strip(), "", 0
            if not _is_word(found):
                owner = found.split()[0]
            yield found


_WORDS = ("ENTRY_", "MATCH", "REPLY", "ADJUST", "SECTION", "EXTRA_PACKET", "$", "HEX_")


def _is_word(line: str) -> bool:
    return line.strip().startswith(_WORDS)


def _entries(text: str) -> Iterator[Entry]:
    origin, section, match, rcode = dns.name.root, "", set[str](), "NOERROR"
    question: tuple[str, str] | None = None
    messages: list[list[dns.rrset.RRset]] = [[]]
    for line in _lines(text):
        word, *rest = line.split(None, 1)
        after = rest[0] if rest else ""
        if word == "ENTRY_BEGIN":
            section, match, rcode, question, messages = "", set(), "NOERROR", None, [[]]
        elif word == "$ORIGIN":
            origin = dns.name.from_text(after.strip(), origin)
        elif word == "MATCH":
            match |= set(after.lower().split())
        elif word == "REPLY":
            rcode = next((w for w in after.split() if w.upper() in _RCODES), rcode)
        elif word == "SECTION":
            section = after.strip().upper()
        elif word == "EXTRA_PACKET":
            messages.append([])
        elif word == "ENTRY_END" and question is not None:
            qname = dns.name.from_text(question[0], origin)
            yield Entry(qname, question[1], frozenset(match), rcode, messages)
        elif _is_word(line):
            continue
        elif section == "QUESTION" and question is None:
            parts = line.split()
            question = parts[0], parts[-1].upper()
        elif section == "ANSWER":
            messages[-1].append(_record(line, origin))
