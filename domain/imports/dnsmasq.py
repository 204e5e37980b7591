"""dnsmasq's configuration: the lines that say what names are, block them, or send them elsewhere.

Records, `server=` and `local=` have counterparts; each other line is left out and told.
"""

import re
from collections.abc import Callable

from kudurru.domain.dns import names
from kudurru.domain.dns.record_types import TXT
from kudurru.domain.dns.records import rdata_to_text
from kudurru.domain.imports import hosts
from kudurru.domain.imports.model import Importing, Source, hash_port, parsed_address
from kudurru.domain.imports.reverse import reverse_zones

DEFAULT = "upstreams.groups.default"
_OPTION = re.compile(r"(?P<key>[a-z0-9-]+)\s*(=\s*(?P<value>.*))?\Z", re.ASCII | re.IGNORECASE)
_COMMENT = re.compile(r"""(?:^|\s)\#.*\Z""")
_PART = re.compile(r'"((?:[^"\\]|\\.)*)"|([^,]*)')

HERE = {
    "dhcp": "there is no DHCP server here; keep that one",
    "port": "ports are given to `kudurru serve --dns`",
    "listen": "listeners are given to `kudurru serve --dns`",
    "interface": "listeners are given to `kudurru serve --dns`",
    "conf-": "give that file to this command too",
    "log-": "see `kudurru queries`",
    "resolv-file": "servers of that file: kudurru config set upstreams.groups.default",
}


class Context:
    """What lines may refer to."""

    def __init__(self, importing: Importing, beside: dict[str, Source]) -> None:
        self.importing, self.beside = importing, beside
        self.domain = ""  # that names of one label have, where hosts are expanded


def read(importing: Importing, sources: list[Source]) -> None:
    """The files, of which those that a line `addn-hosts=` names are hosts files."""
    lines = [line for source in sources for line in hosts.lines_of(importing, source)]
    options = [(at, *option) for at, text in lines if (option := _split(text))]
    named = {value.rpartition("/")[2] for _, key, value in options if key == "addn-hosts"}
    beside = {source.basename: source for source in sources if source.basename in named}
    context = Context(importing, beside)
    values = {key: value for _, key, value in options}
    if "expand-hosts" in values:
        context.domain = values.get("domain", "").partition(",")[0]
    of_hosts = {source.name for source in beside.values()}
    for at, text in lines:
        if at.rpartition(":")[0] not in of_hosts:
            read_line(context, at, text)


def read_line(context: Context, at: str, text: str) -> None:
    if not _COMMENT.sub("", text).strip():
        return
    option = _split(text)
    if option is None:
        context.importing.fault(at, f"{text[:80]!r} is no option; a line is NAME or NAME=VALUE")
        return
    key, value = option
    if key in ("expand-hosts", "domain"):
        return  # looked at before
    if reader := _READERS.get(key):
        if not value:
            context.importing.fault(at, f"{key}: a value is missing")
            return
        reader(context, at, value)
        return
    why = [why for begin, why in HERE.items() if key.startswith(begin)]
    context.importing.leave(at, f"{key}: {why[0] if why else 'it has no counterpart here'}")


def _split(text: str) -> tuple[str, str] | None:
    found = _OPTION.fullmatch(_COMMENT.sub("", text).strip())
    return (found["key"].lower(), (found["value"] or "").strip()) if found else None


def _parts(value: str) -> list[str]:
    """Parts between commas, of which one in quotes may hold commas."""
    found, at = [], 0
    while True:
        part = _PART.match(value, at)
        assert part is not None  # the second form matches nothing too
        quoted = part[1]
        found.append(re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else part[2].strip())
        at = value.find(",", part.end()) + 1
        if not at:
            return found


def _domains(value: str) -> tuple[list[str], str] | None:
    """`/a.example/b.example/TARGET`; None where it is not of that form."""
    if not value.startswith("/"):
        return None
    *domains, target = value[1:].split("/")
    return domains, target.strip()


def _address(context: Context, at: str, value: str) -> None:
    importing = context.importing
    found = _domains(value)
    if found is None:
        importing.fault(at, f"address={value}: write address=/DOMAIN/ADDRESS")
        return
    domains, target = found
    for domain in domains:
        domain = domain.removeprefix("*").removeprefix(".")
        if domain in ("", "#"):
            importing.leave(at, "an answer for every name; make a Policy of it")
        elif target in ("", "#") or target in hosts.BLOCKING:
            importing.block(at, domain, below=True)
        elif (owner := importing.name(at, domain)) is not None:
            importing.address(at, owner, target)
            if (below := importing.name(at, f"*.{domain}")) is not None and parsed_address(target):
                importing.address(at, below, target)


def _server(context: Context, at: str, value: str) -> None:
    importing = context.importing
    found = _domains(value)
    if found is None:
        importing.add_setting(at, DEFAULT, _server_text(value))
        return
    domains, target = found
    if target == "#":
        importing.leave(
            at, "these domains go where all others go, here too unless they are blocked"
        )
        return
    for domain in domains:
        if not domain:
            importing.leave(at, "servers for names of one label: there is no such rule")
        elif (zone := importing.name(at, domain.removeprefix("."))) is None:
            continue
        elif target:
            importing.forward(at, zone, [_server_text(target)])
        else:
            importing.local.add(zone)


def _server_text(text: str) -> str:
    """A server without the interface or address that it is asked from (`@eth0`)."""
    return hash_port(text.partition("@")[0])


def _reverse_server(context: Context, at: str, value: str) -> None:
    network, _, server = value.partition(",")
    try:
        zones = reverse_zones(network)
    except ValueError as error:
        context.importing.leave(at, f"rev-server: {error}")
        return
    for zone in zones:
        context.importing.forward(at, zone, [_server_text(server)])


def _host_record(context: Context, at: str, value: str) -> None:
    importing = context.importing
    parts = _parts(value)
    addresses = [part for part in parts if parsed_address(part)]
    ttl = int(parts[-1]) if parts[-1].isdigit() and len(parts[-1]) < 10 else None
    owners = [p for p in parts if p not in addresses and not (p == parts[-1] and ttl is not None)]
    if not addresses:
        importing.fault(at, f"host-record={value}: no address in it")
    for owner in owners:
        if (name := importing.name(at, owner)) is not None:
            for address in addresses:
                importing.address(at, name, address, ttl=ttl)


def _cname(context: Context, at: str, value: str) -> None:
    read_alias(context.importing, at, value)


def read_alias(importing: Importing, at: str, value: str) -> None:
    """`ALIAS[,ALIAS…],TARGET[,TTL]`"""
    parts = _parts(value)
    ttl = int(parts.pop()) if parts[-1].isdigit() and len(parts[-1]) < 10 else None
    if len(parts) < 2:
        importing.fault(at, f"{value!r} is no alias: write ALIAS,TARGET")
        return
    *aliases, target = parts
    for alias in aliases:
        if (name := importing.name(at, alias)) is not None:
            importing.alias(at, name, target, ttl=ttl)


def _record(context: Context, at: str, owner: str, rtype: str, target: str) -> None:
    if (name := context.importing.name(at, owner)) is not None:
        context.importing.record(at, name, rtype, target)


def _absolute(context: Context, at: str, text: str) -> str | None:
    name = context.importing.name(at, text)
    return None if name is None else names.to_text(name)


def _mx(context: Context, at: str, value: str) -> None:
    parts = [*_parts(value), "", ""]
    if not parts[1]:
        context.importing.leave(at, "mx-host without a host takes the machine's own name")
    elif (host := _absolute(context, at, parts[1])) is not None:
        _record(context, at, parts[0], "MX", f"{parts[2] or 1} {host}")


def _srv(context: Context, at: str, value: str) -> None:
    parts = [*_parts(value), "", "", "", ""]
    host = _absolute(context, at, parts[1]) if parts[1] else "."
    if host is not None:
        target = f"{parts[3] or 0} {parts[4] or 0} {parts[2] or 1} {host}"
        _record(context, at, parts[0], "SRV", target)


def _txt(context: Context, at: str, value: str) -> None:
    owner, *texts = _parts(value)
    strings = [text.encode() for text in texts] or [b""]
    if any(len(string) > 255 for string in strings):
        context.importing.fault(at, "txt-record: a text of more than 255 octets")
        return
    rdata = b"".join(bytes((len(string),)) + string for string in strings)
    _record(context, at, owner, "TXT", rdata_to_text(TXT, rdata))


def _ptr(context: Context, at: str, value: str) -> None:
    parts = _parts(value)
    if len(parts) < 2:
        context.importing.fault(at, f"ptr-record={value}: write ptr-record=NAME,TARGET")
    elif (target := _absolute(context, at, parts[1])) is not None:
        _record(context, at, parts[0], "PTR", target)


def _hosts(context: Context, at: str, value: str) -> None:
    source = context.beside.get(value.rpartition("/")[2])
    if source is None:
        context.importing.leave(at, f"addn-hosts: give the file {value} to this command too")
        return
    for place, line in hosts.lines_of(context.importing, source):
        hosts.read_line(context.importing, place, line.partition("#")[0], context.domain)


def _cache_size(context: Context, at: str, value: str) -> None:
    if value.isdigit():
        context.importing.setting("cache.maxEntries", value)
    else:
        context.importing.fault(at, f"cache-size={value}: no number")


_READERS: dict[str, Callable[[Context, str, str], None]] = {
    "address": _address,
    "addn-hosts": _hosts,
    "cache-size": _cache_size,
    "cname": _cname,
    "host-record": _host_record,
    "local": _server,
    "mx-host": _mx,
    "ptr-record": _ptr,
    "rev-server": _reverse_server,
    "server": _server,
    "srv-host": _srv,
    "txt-record": _txt,
}
