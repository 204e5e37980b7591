"""What importers work with: sources, what they gather, and what comes of it.

An importer reads the configuration of another product and tells an `Importing` what it found. It
never decides how that is written down here: `domain.imports.objects` does, the same for all.
Three things may be wrong with what it reads:

- the input is broken: a fault; all are told at once, and nothing is imported;
- it has no counterpart here: it is left out, with its place and why;
- it is a setting, which is no object: it is handed back, for the person to set.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import msgspec

from kudurru.domain.dns import names, record_types, records
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.upstreams import check_host, parse_upstream
from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.kinds.blocklist import BlockListSource, BlockListSpec, blocklist_faults
from kudurru.domain.kinds.meta import GROUP
from kudurru.domain.kinds.validation import CAUSES_MAX, Manifest
from kudurru.domain.lists.words import Refused, name_of
from kudurru.domain.notation import parse_address
from kudurru.domain.regexes import Budget
from kudurru.domain.zone_import import suffixed

IMPORTED_FROM = f"{GROUP}/imported-from"
"""Label of every object that an import makes: the product."""

URL_MAX = 2048
LINES_MAX = 10_000
"""Of a BlockList's inline source."""

FOUND_MAX = 200_000
"""Records and rules of one import. Larger texts are lists: subscribe to them."""


class Source(msgspec.Struct, frozen=True):
    """A file: its name as the person gave it, and its content."""

    name: str
    data: bytes

    @property
    def basename(self) -> str:
        return self.name.rpartition("/")[2]


class LeftOut(msgspec.Struct, frozen=True):
    """Something that has no counterpart here."""

    at: str  # file:line, or file and key
    why: str

    def __str__(self) -> str:
        return f"{self.at}: {self.why}"


class Imported(msgspec.Struct, frozen=True):
    """What an import is: `settings` by name, as `kudurru config set` takes them."""

    manifests: list[Manifest]
    left_out: list[LeftOut]
    settings: dict[str, str]


class Rules(msgspec.Struct):
    """What a policy says."""

    lists: list[str] = []  # names of BlockLists
    allow: list[str] = []
    deny: list[str] = []
    block_types: list[str] = []
    upstreams: list[str] = []
    custom_ips: list[str] = []
    block_mode: str = ""
    safe_search: bool = False
    is_bypass: bool = False
    query_log: bool | None = None

    def copy(self) -> "Rules":
        """Another one that says the same."""
        return msgspec.convert(msgspec.to_builtins(self), Rules)


class Audience(msgspec.Struct):
    """Clients, as fields of a ClientGroup, and what holds for them."""

    title: str
    clients: list[dict[str, str]] = []
    rules: Rules | None = None  # None: what holds for everybody
    is_enabled: bool = True


class BlockList(msgspec.Struct, frozen=True):
    name: str
    sources: list[dict[str, object]]
    format: str = "auto"
    kind: str = "deny"
    is_enabled: bool = True
    comment: str = ""


class Record(msgspec.Struct):
    """The records of a name and type."""

    targets: list[str]
    ttl: int | None
    at: str


class Importing:
    """What one import has gathered."""

    def __init__(self, product: str, prefix: str) -> None:
        self.product, self.prefix = product, prefix
        self.records: dict[tuple[Name, str], Record] = {}
        self.local: set[Name] = set()
        """Domains that are answered here alone: zones, also where they hold nothing."""
        self.homes: set[Name] = set()
        """Domains that are zones where they hold something."""
        self.forwarded: dict[Name, list[str]] = {}
        self.lists: dict[str, BlockList] = {}
        self.everybody = Rules()
        self.audiences: list[Audience] = []
        self.blocked: dict[str, None] = {}
        """Names to block, `.name` with what is below: rules of everybody."""
        self.settings: dict[str, str] = {}
        self.left_out: list[LeftOut] = []
        self.faults: list[Cause] = []
        self._left = FOUND_MAX

    def leave(self, at: str, why: str) -> None:
        self._count()
        self.left_out.append(LeftOut(at, why))

    def fault(self, at: str, message: str) -> None:
        self.faults.append(Cause("", message, at))
        if len(self.faults) >= CAUSES_MAX:
            raise Invalid(self.product, self.faults)

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            what = f"more than {FOUND_MAX} records and rules; subscribe to what is a list"
            raise Invalid(self.product, [Cause("", what)])

    def name(self, at: str, text: str) -> Name | None:
        """A name as these products write it; None where it is none, which is a fault."""
        bare, is_wildcard = text.removeprefix("*."), text.startswith("*.")
        try:
            found = name_of(bare)
            return names.from_text(f"*.{names.to_text(found)}") if is_wildcard else found
        except (Refused, names.BadName):
            self.fault(at, f"{text!r} is no domain name")
            return None

    def record(
        self, at: str, owner: Name, rtype: str, target: str, *, ttl: int | None = None
    ) -> None:
        """A record of this server's own; `target` in presentation format."""
        self._count()
        try:
            records.target_from_text(record_types.type_from_text(rtype), target)
        except record_types.BadRecord as error:
            self.fault(at, str(error))
            return
        known = self.records.setdefault((owner, rtype), Record([], ttl, at))
        if target not in known.targets:
            known.targets.append(target)

    def address(self, at: str, owner: Name, text: str, *, ttl: int | None = None) -> None:
        """A record of an address, of the type that it has."""
        if (address := parsed_address(text)) is None:
            self.fault(at, f"{text!r} is no IP address")
            return
        rtype = "A" if parse_address(address).version == 4 else "AAAA"
        self.record(at, owner, rtype, address, ttl=ttl)

    def alias(self, at: str, owner: Name, target: str, *, ttl: int | None = None) -> None:
        """A CNAME."""
        if (to := self.name(at, target)) is None:
            return
        if to == owner:
            self.leave(at, f"{target} is an alias of itself")
            return
        known = self.records.get((owner, "CNAME"))
        if known is not None and known.targets != [names.to_text(to)]:
            self.leave(at, f"a second alias; the one of {known.at} is taken")
            return
        self.record(at, owner, "CNAME", names.to_text(to), ttl=ttl)

    def forward(self, at: str, zone: Name, upstreams: Iterable[str]) -> None:
        """Questions for a zone go to servers."""
        good = [text for text in upstreams if self.upstream(at, text)]
        known = self.forwarded.setdefault(zone, []) if good else []
        known += [text for text in good if text not in known]

    def upstream(self, at: str, text: str) -> bool:
        """Whether a text is an upstream. What is not understood is left out."""
        try:
            check_host(parse_upstream(text))
        except ValueError as error:
            self.leave(at, f"{error}")
            return False
        return True

    def block(self, at: str, text: str, *, below: bool = False) -> None:
        """A name that nobody gets an answer for; with `below` all below it neither."""
        self._count()
        if (name := self.name(at, text)) is not None:
            self.blocked[f"{'.' if below else ''}{names.to_text(name, final_dot=False)}"] = None

    def rule(self, at: str, rules: list[str], text: str) -> None:
        """A rule of a policy: a name, or a regex between slashes."""
        self._count()
        if text.startswith("/"):
            if why := Budget().fault(text[1:-1]):
                self.leave(at, f"{text[:80]}: a regex that cannot be run here: {why}")
                return
        elif (name := self.name(at, text)) is None:
            return
        else:
            text = names.to_text(name, final_dot=False)
        if text not in rules:
            rules.append(text)

    def subscribe(
        self,
        at: str,
        url: str,
        *,
        kind: Literal["allow", "deny"] = "deny",
        is_enabled: bool = True,
        comment: str = "",
    ) -> str | None:
        """Name of the BlockList of a URL: its host, and what tells it from others of that host.
        None where such a list cannot be had."""
        if url.startswith("/"):
            url = f"file:{url}"  # of the machine that the server runs on
        spec = BlockListSpec(sources=[BlockListSource(url=url)])
        if len(url) > URL_MAX or (why := next(blocklist_faults(spec), None)):
            what = why.message if len(url) <= URL_MAX and why else f"more than {URL_MAX} characters"
            self.leave(at, f"a list: {what}")  # without its URL: it may hold a credential
            return None
        host = url.partition("://")[2].partition("/")[0].partition(":")[0] or "file"
        seed = url if kind == "deny" else f"{kind} {url}"
        name = suffixed(f"{self.prefix}-{host.lower()}", seed.encode("utf-8", "replace"))
        if name not in self.lists:
            self._count()
            self.lists[name] = BlockList(
                name, [{"url": url}], kind=kind, is_enabled=is_enabled, comment=comment
            )
        return name

    def own_list(
        self, title: str, lines: list[str], *, kind: Literal["allow", "deny"] = "deny"
    ) -> list[str]:
        """Names of the BlockLists that hold lines; several where they are too many for one."""
        found = []
        for i in range(0, len(lines), LINES_MAX):
            name = f"{self.prefix}-{title}" + (f"-{i // LINES_MAX + 1}" if i else "")
            self.lists[name] = BlockList(name, [{"inline": lines[i : i + LINES_MAX]}], kind=kind)
            found.append(name)
        return found

    def setting(self, name: str, value: str) -> None:
        self.settings[name] = value

    def add_setting(self, at: str, name: str, upstream: str) -> None:
        """One more of a setting that is a list of upstreams."""
        if self.upstream(at, upstream):
            known = self.settings.get(name)
            if known is None or upstream not in known.split(","):
                self.settings[name] = f"{known},{upstream}" if known else upstream


Reader = Callable[[Importing, list[Source]], None]
Zones = Mapping[Name, tuple[str, str]]
"""DNSZones that are here already: DNS name -> object name and type."""


def parsed_address(text: str) -> str | None:
    """An IP address as it is written shortest, None where it is none. No scopes."""
    try:
        return str(parse_address(text))
    except ValueError:
        return None


def hash_port(text: str) -> str:
    """`192.0.2.1#5335`, as dnsmasq writes a port, as upstreams here are written."""
    host, separator, port = text.strip().partition("#")
    if not separator:
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
