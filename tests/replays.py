"""Replay files of unbound and of NLnet Labs' domain (testcode/replay.h), run against the resolver
on scripted upstreams.

RANGE entries are answers of the upstream while the steps they span run; STEP REPLY answers a query
that waits. What iterates, validates or filters there means nothing to a forwarder.
"""

import re
from collections.abc import Collection, Iterator, Sequence
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

from kudurru.domain.dns.zone_tree import Zone
from kudurru.domain.filtering.decision import Filters
from kudurru.domain.lists.memory import MemoryMatcher
from kudurru.domain.lists.rules import Context
from kudurru.domain.objects import Key
from kudurru.domain.settings import CacheSettings, ServeStaleSettings
from kudurru.projections.pipeline.resolver import Rules
from tests.filtering import policy
from tests.upstreams import Asked, Rig, Said

UPSTREAM = "192.0.2.11"
LOOPBACK = "127.0.0.1"
"""Who asks where no address is given."""

FLAGS = {name: getattr(dns.flags, name) for name in ("QR", "AA", "TC", "RD", "RA", "AD", "CD")}
COMPARED = dns.flags.QR | dns.flags.RD | dns.flags.CD | dns.flags.TC

_FILES = re.compile(r"^\s*TEMPFILE_CONTENTS \S+\n(.*?)^\s*TEMPFILE_END", re.M | re.S)

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
        if "subdomain" in self.match and not asked.name.is_subdomain(dns.name.from_text(name)):
            return False
        if "do" in self.match and not query.ednsflags & dns.flags.DO:
            return False
        if any(f in self.match and not query.flags & FLAGS[f.upper()] for f in ("cd", "ad", "rd")):
            return False
        return "qtype" not in self.match or dns.rdatatype.to_text(asked.rdtype) == rtype

    @property
    def is_referral(self) -> bool:
        """What a server of zones says of a name in another zone: never the answer of one that is
        asked to recurse."""
        authority = self.sections.get("AUTHORITY", [])
        is_of_servers = bool(authority) and all("NS" in text.upper().split() for text in authority)
        return is_of_servers and not self.sections.get("ANSWER") and self.rcode == "NOERROR"

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
    policy_zones: list[list[str]] = field(default_factory=list)


def _ask_as_stub(replay: Replay) -> None:
    for step in replay.steps:
        entry = step.entry
        if entry is not None and step.kind in ("QUERY", "CHECK_ANSWER"):
            entry.words = ["RD", *(word for word in entry.words if word not in ("RD", "DO", "CD"))]
            entry.adjust.append("use_edns")


def rrset_of(text: str) -> dns.rrset.RRset:
    """A record as these files write it: TTL 3600 where none is given, class optional."""
    name, *rest = text.removesuffix("'").split(None)  # there is one behind a signature
    ttl, rdclass = 3600, "IN"
    while rest[0].isdigit() or rest[0].upper() in ("IN", "CH"):
        word = rest.pop(0)
        if word.isdigit():
            ttl = int(word)
        else:
            rdclass = word
    name = name if name.endswith(".") else f"{name}."
    data = " ".join(rest[1:])
    return dns.rrset.from_text_list(
        name, ttl, rdclass, rest[0], [data], origin=dns.name.root, relativize=False
    )


def read_replay(path: Path) -> Replay:
    text = path.read_text()
    zones = [content.split("\n") for content in _FILES.findall(text)]
    text = _FILES.sub("", text)
    lines = [re.sub(r"(?<!\\);.*", "", line).strip() for line in text.splitlines()]
    words = iter([line for line in lines if line])
    config: dict[str, str] = {}
    for line in words:
        if line == "CONFIG_END":
            break
        key, separator, value = line.partition(":")
        if separator:
            config.setdefault(key.strip(), re.sub(r"\s#.*", "", value).strip().strip('"'))
    replay = _scenario(config, words)
    if "rpz:" in text:
        replay.policy_zones = zones
    return replay


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
            case "HEX_EDNSDATA_BEGIN":
                while next(lines) != "HEX_EDNSDATA_END":  # options are between two hops
                    pass
                entry.adjust.append("use_edns")
            case "SECTION":
                section = rest[0]
                entry.sections[section] = []
            case _ if section:
                entry.sections[section].append(line)
    return entry


@dataclass
class LocalData:
    """What the settings of a scenario are as zones and policies, and which of its steps, by number,
    are not for us."""

    filters: Filters | None = None
    zones: Sequence[Zone] = ()
    has_special_names: bool = False
    forwarded: Sequence[bytes] = ()  # domains that have upstreams of their own, by key
    left_out: Collection[int] = ()
    dropped: Collection[int] = ()  # queries that get no answer
    other: Collection[tuple[int, str]] = ()  # sections of checks that are others here


class Player:
    """A replay on its way."""

    def __init__(
        self,
        replay: Replay,
        *,
        as_stub: bool = False,
        is_trusted: bool = False,
        local: LocalData | None = None,
    ) -> None:
        """`as_stub`: clients ask as stub resolvers do, with RD and EDNS and without DO and CD,
        where the scenario's have another mix that it is not about. `is_trusted`: the upstream's AD
        is believed, and compared. `local`: what the scenario's settings are here."""
        if as_stub:
            _ask_as_stub(replay)
        self.replay = replay
        self.compared = COMPARED | (dns.flags.AD if is_trusted else 0)
        self.number = 0
        self.unread: frozenset[int] = frozenset()  # checks that are not looked at
        self.local = local or LocalData()
        upstream = f"{UPSTREAM}#trusted" if is_trusted else UPSTREAM
        self.rig = Rig(
            upstream,
            rules=_rules(replay.config, self.local),
            cache=_cache(replay.config),
            filters=self.local.filters or _filters(replay),
            zones=self.local.zones,
            by_domain={domain: [upstream] for domain in self.local.forwarded},
        )
        self.rig.scripts[upstream] = self._say
        self.asked: list[Asked] = []
        self.held: list[tuple[dns.message.Message, Any]] = []

    def play(self) -> None:
        for step in self.replay.steps:
            self.number = step.number
            if step.number in self.local.left_out:
                continue
            try:
                self._take(step)
            except Exception as fault:
                fault.add_note(f"at step {step.number} {step.kind}")
                raise

    def play_but_for(self, otherwise: Sequence[int]) -> int:
        """Play all steps but these checks, whose answers are waited for and not looked at. How many
        checks there are."""
        checks = {step.number for step in self.replay.steps if step.kind == "CHECK_ANSWER"}
        assert checks.issuperset(otherwise)
        self.unread = frozenset(otherwise)
        self.play()
        return len(checks)

    def _say(self, query: dns.message.Message, packet: bytes) -> Said:
        if query.question[0].name == dns.name.root:
            return b"\0\0\x81\x80" + packet[4:]  # it lives
        found = [
            entry
            for first, last, entries in self.replay.ranges
            if first <= self.number <= last
            for entry in entries
            if entry.fits(query) and not entry.is_referral
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
                proto = "tcp" if "tcp" in entry.match else "udp"
                client = step.words[1] if step.words[:1] == ["ADDRESS"] else LOOPBACK
                asked = self.rig.ask(
                    name, rtype, proto=proto, client=client, flags=entry.flags, **edns
                )
                if step.number in self.local.dropped:
                    assert asked.replies == [None]
                else:
                    self.asked.append(asked)
                self.rig.pass_time(0)
            case "CHECK_ANSWER":
                assert entry is not None
                asked = self.asked.pop(0)
                if step.number not in self.unread:
                    self._check(entry, asked)
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
            case "NOTHING" | "TRAFFIC":
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
            assert asked.rcode == entry.rcode, f"{asked.rcode}, not {entry.rcode}"
        if is_all or "flags" in entry.match:
            assert not (answer.flags ^ entry.flags) & self.compared, dns.flags.to_text(answer.flags)
        has_ttl = "ttl" in entry.match
        for name, section in (
            ("ANSWER", answer.answer),
            ("AUTHORITY", answer.authority),
            ("ADDITIONAL", answer.additional),
        ):
            if not is_all and name.lower() not in entry.match:
                continue
            texts = entry.sections.get(name, ())
            if name == "AUTHORITY" and (
                self.replay.policy_zones or (self.local.filters and not texts)
            ):
                continue  # blocked answers have a SOA, so that they are kept for as long as it says
            if (self.number, name) in self.local.other:
                continue
            found = sorted(_shown(rrset, has_ttl) for rrset in _single(section))
            wanted = [rrset_of(text) for text in texts]
            expected = sorted(_shown(rrset, has_ttl) for rrset in wanted)
            assert found == expected, f"{name} is {found}, not {expected}"
        for word in entry.match:
            if word.startswith("ede="):
                codes = [int(option.code) for option in answer.options if hasattr(option, "code")]
                wanted = [] if word == "ede=any" else [int(word[4:])]
                assert codes == wanted, f"extended error {codes}, not {wanted}"


def _single(section: list[dns.rrset.RRset]) -> Iterator[dns.rrset.RRset]:
    for rrset in section:
        for rdata in rrset:
            yield dns.rrset.from_rdata(rrset.name, rrset.ttl, rdata)


def _shown(rrset: dns.rrset.RRset, has_ttl: bool) -> str:
    lowered = rrset.to_text().lower().split(None, 2)
    return " ".join([lowered[0], lowered[1] if has_ttl else "-", lowered[2]])


def _filters(replay: Replay) -> Filters | None:
    """A policy for each policy zone; the first one has precedence."""
    if not replay.policy_zones:
        return None
    matcher = MemoryMatcher()
    policies = []
    for i, lines in enumerate(replay.policy_zones):
        matcher.put(Key(f"BlockList/default/z{i}"), [("inline", lines)], Context(format="rpz"))
        policies.append(policy(f"z{i}", priority=-i, blockListRefs=[f"z{i}"]))
    return Filters(policies, matcher=matcher)


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


def _rules(config: dict[str, str], local: LocalData) -> Rules:
    is_refused = config.get("access-control", "").endswith(" refuse")
    return Rules(
        clients=() if is_refused else "all",
        special_names=local.has_special_names,
        rebind_protection=False,
        is_stale_served=config.get("serve-expired") == "yes",
        stale_ttl_s=int(config.get("serve-expired-reply-ttl", 30)),
        client_timeout_us=int(config.get("serve-expired-client-timeout", 1800)) * 1000,
    )
