"""Replay files of unbound and of NLnet Labs' domain (testcode/replay.h), run against the resolver
on scripted upstreams.

RANGE entries are answers of the upstream while the steps they span run; STEP REPLY answers a query
that waits. What iterates, validates or filters there means nothing to a forwarder.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset

from kudurru.domain.settings import CacheSettings, ServeStaleSettings
from kudurru.projections.pipeline.resolver import Rules
from tests.upstreams import Asked, Rig, Said

UPSTREAM = "192.0.2.11"
FLAGS = {name: getattr(dns.flags, name) for name in ("QR", "AA", "TC", "RD", "RA", "AD", "CD")}
COMPARED = dns.flags.QR | dns.flags.RD | dns.flags.CD | dns.flags.TC

Records = list[str]


@dataclass
class Entry:
    """A message, or what is looked at of one."""

    match: list[str] = field(default_factory=list)
    adjust: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)  # of REPLY
    sections: dict[str, Records] = field(default_factory=dict)

    @property
    def question(self) -> tuple[str, str]:
        name, *rest = self.sections["QUESTION"][0].split()
        return name.rstrip(".").lower() + ".", rest[-1].upper()

    @property
    def flags(self) -> int:
        return sum(FLAGS[word] for word in self.words if word in FLAGS)

    @property
    def rcode(self) -> str:
        codes = [word for word in self.words if word in dns.rcode.Rcode.__members__]
        return codes[0] if codes else "NOERROR"

    def fits(self, query: dns.message.Message) -> bool:
        name, rtype = self.question
        asked = query.question[0]
        if "qname" in self.match and asked.name != dns.name.from_text(name):
            return False
        if "do" in self.match and not query.ednsflags & dns.flags.DO:
            return False
        if any(f in self.match and not query.flags & FLAGS[f.upper()] for f in ("cd", "ad", "rd")):
            return False
        return "qtype" not in self.match or dns.rdatatype.to_text(asked.rdtype) == rtype

    def response(self, query: dns.message.Message) -> bytes:
        made = dns.message.make_response(query)
        made.flags = dns.flags.QR | self.flags
        made.set_rcode(dns.rcode.from_text(self.rcode))
        for name, section in (
            ("ANSWER", made.answer),
            ("AUTHORITY", made.authority),
            ("ADDITIONAL", made.additional),
        ):
            for text in self.sections.get(name, ()):
                section.append(rrset_of(text))
        return made.to_wire(max_size=65_535)


@dataclass
class Step:
    number: int
    kind: str
    words: list[str]
    entry: Entry | None


@dataclass
class Replay:
    config: dict[str, str]
    ranges: list[tuple[int, int, list[Entry]]]
    steps: list[Step]


def rrset_of(text: str) -> dns.rrset.RRset:
    """A record as these files write it: TTL 3600 where none is given, class optional."""
    name, *rest = text.split(None)
    ttl, rdclass = 3600, "IN"
    while rest[0].isdigit() or rest[0].upper() in ("IN", "CH"):
        word = rest.pop(0)
        if word.isdigit():
            ttl = int(word)
        else:
            rdclass = word
    name = name if name.endswith(".") else f"{name}."
    return dns.rrset.from_text(name, ttl, rdclass, rest[0], " ".join(rest[1:]))


def read_replay(path: Path) -> Replay:
    lines = [re.sub(r"(?<!\\);.*", "", line).strip() for line in path.read_text().splitlines()]
    words = iter([line for line in lines if line])
    config: dict[str, str] = {}
    for line in words:
        if line == "CONFIG_END":
            break
        key, separator, value = line.partition(":")
        if separator:
            config.setdefault(key.strip(), re.sub(r"\s#.*", "", value).strip().strip('"'))
    return _scenario(config, words)


def _scenario(config: dict[str, str], lines: Iterator[str]) -> Replay:
    replay = Replay(config, [], [])
    for line in lines:
        word, *rest = line.split()
        if word == "RANGE_BEGIN":
            replay.ranges.append((int(rest[0]), int(rest[1]), []))
        elif word == "ENTRY_BEGIN":
            entry = _entry(lines)
            if replay.steps and replay.steps[-1].entry is None and not _in_range(replay):
                replay.steps[-1].entry = entry
            else:
                replay.ranges[-1][2].append(entry)
        elif word == "RANGE_END":
            first, last, entries = replay.ranges.pop()
            replay.ranges.insert(0, (first, last, entries))
        elif word == "STEP":
            replay.steps.append(Step(int(rest[0]), rest[1], rest[2:], None))
    return replay


def _in_range(replay: Replay) -> bool:
    return not replay.steps


def _entry(lines: Iterator[str]) -> Entry:
    entry = Entry()
    section = ""
    for line in lines:
        word, *rest = line.split()
        match word:
            case "ENTRY_END":
                break
            case "MATCH":
                entry.match += [one.lower() for one in rest]
            case "ADJUST":
                entry.adjust += rest
            case "REPLY":
                entry.words += rest
            case "SECTION":
                section = rest[0]
                entry.sections[section] = []
            case _ if section:
                entry.sections[section].append(line)
    return entry


class Player:
    """A replay on its way."""

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        self.number = 0
        self.rig = Rig(UPSTREAM, rules=_rules(replay.config), cache=_cache(replay.config))
        self.rig.scripts[UPSTREAM] = self._say
        self.asked: list[Asked] = []
        self.held: list[tuple[dns.message.Message, Any]] = []

    def play(self) -> None:
        for step in self.replay.steps:
            self.number = step.number
            self._take(step)

    def _say(self, query: dns.message.Message, packet: bytes) -> Said:
        if query.question[0].name == dns.name.root:
            return b"\0\0\x81\x80" + packet[4:]  # it lives
        found = [
            entry
            for first, last, entries in self.replay.ranges
            if first <= self.number <= last
            for entry in entries
            if entry.fits(query)
        ]
        # What looks at more of the query is meant first.
        return max(found, key=lambda e: len(e.match)).response(query) if found else None

    def _take(self, step: Step) -> None:
        entry = step.entry
        match step.kind:
            case "QUERY":
                assert entry is not None
                name, rtype = entry.question
                edns = {"want_dnssec": True} if "DO" in entry.words else {"use_edns": -1}
                if "DO" not in entry.words and "use_edns" in entry.adjust:
                    edns = {"use_edns": 0}
                self.asked.append(self.rig.ask(name, rtype, flags=entry.flags, **edns))
                self.rig.pass_time(0)
            case "CHECK_ANSWER":
                assert entry is not None
                self._check(entry, self.asked.pop(0))
            case "CHECK_OUT_QUERY":
                assert self.rig.asked
            case "REPLY":
                assert entry is not None
                self._reply(entry)
            case "TIME_PASSES":
                self.rig.pass_time(float(step.words[-1]))
            case "TIMEOUT":
                self.rig.pass_time(10)
            case "ERROR":
                for exchange, _ in self.rig.waiting[:1]:
                    exchange.failed("refused")
                del self.rig.waiting[:1]
            case "NOTHING":
                pass
            case kind:
                raise NotImplementedError(kind)

    def _reply(self, entry: Entry) -> None:
        """Answer what waits: the carriers of the rig hold it."""
        for exchange, query in list(self.rig.waiting):
            if entry.fits(query):
                self.rig.waiting.remove((exchange, query))
                exchange.received(entry.response(query))

    def _check(self, entry: Entry, asked: Asked) -> None:
        answer = asked.answer
        is_all = "all" in entry.match
        if is_all or "rcode" in entry.match:
            assert asked.rcode == entry.rcode
        if is_all or "flags" in entry.match:
            assert not (answer.flags ^ entry.flags) & COMPARED, dns.flags.to_text(answer.flags)
        has_ttl = "ttl" in entry.match
        for name, section in (
            ("ANSWER", answer.answer),
            ("AUTHORITY", answer.authority),
            ("ADDITIONAL", answer.additional),
        ):
            if not is_all and name.lower() not in entry.match:
                continue
            found = sorted(_shown(rrset, has_ttl) for rrset in _single(section))
            wanted = [rrset_of(text) for text in entry.sections.get(name, ())]
            assert found == sorted(_shown(rrset, has_ttl) for rrset in wanted), name
        for word in entry.match:
            if word.startswith("ede="):
                codes = [int(option.code) for option in answer.options if hasattr(option, "code")]
                assert codes == ([] if word == "ede=any" else [int(word[4:])])


def _single(section: list[dns.rrset.RRset]) -> Iterator[dns.rrset.RRset]:
    for rrset in section:
        for rdata in rrset:
            yield dns.rrset.from_rdata(rrset.name, rrset.ttl, rdata)


def _shown(rrset: dns.rrset.RRset, has_ttl: bool) -> str:
    lowered = rrset.to_text().lower().split(None, 2)
    return " ".join([lowered[0], lowered[1] if has_ttl else "-", lowered[2]])


def _seconds(config: dict[str, str], key: str, default: float) -> timedelta:
    return timedelta(seconds=float(config.get(key, default)))


def _cache(config: dict[str, str]) -> CacheSettings:
    stale_s = float(config.get("serve-expired-ttl", 86_400)) or 86_400 * 365
    return CacheSettings(
        min_ttl=_seconds(config, "cache-min-ttl", 0),
        max_ttl=_seconds(config, "cache-max-ttl", 7 * 86_400),
        negative_ttl=_seconds(config, "cache-max-negative-ttl", 3600),
        serve_stale=ServeStaleSettings(
            enabled=config.get("serve-expired") == "yes", max_age=timedelta(seconds=stale_s)
        ),
        prefetch=False,
    )


def _rules(config: dict[str, str]) -> Rules:
    return Rules(
        clients="all",
        special_names=False,
        rebind_protection=False,
        is_stale_served=config.get("serve-expired") == "yes",
        stale_ttl_s=int(config.get("serve-expired-reply-ttl", 30)),
        client_timeout_us=int(config.get("serve-expired-client-timeout", 1800)) * 1000,
    )
