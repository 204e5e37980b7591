"""blocky: config.yml, with the words of versions 0.2x (`denylists`, `upstreams`) and those before.

Lists come in groups, and clients are given groups of lists. A group is one BlockList here, and
each client that is named one ClientGroup with a Policy.
"""

from collections.abc import Iterator

from kudurru.domain.imports.fields import Fields, read_fields
from kudurru.domain.imports.model import (
    Audience,
    BlockList,
    Importing,
    Source,
    parsed_address,
)
from kudurru.domain.imports.objects import object_name
from kudurru.domain.kinds.blocklist import BlockListSource, BlockListSpec, blocklist_faults
from kudurru.domain.kinds.clientgroup import Client, ClientGroupSpec, clientgroup_faults
from kudurru.domain.notation import parse_duration

DEFAULT = "default"
_MODES = {"zeroip": "", "nxdomain": "nxdomain"}
_SCHEMES = {"tcp+udp": "", "udp": "", "tcp": "tcp://", "tcp-tls": "tls://", "quic": "quic://"}
_STRATEGIES = {"parallel_best": "parallel", "random": "random", "strict": "strict"}
_ELSEWHERE = {
    "hostsFile": "give the file to `kudurru import hosts`",
    "queryLog": "see the settings of querylog",
    "redis": "each node has its own cache; changes reach all by the log",
    "certFile": "certificates of listeners are settings, see docs/operate.md",
    "clientLookup.upstream": "clients are told by address, MAC or ID, not by a name looked up",
}


def read(importing: Importing, sources: list[Source]) -> None:
    if len(sources) > 1:
        importing.fault(sources[1].name, "one config.yml at a time")
    if (top := read_fields(importing, sources[0], "yaml")) is None:
        return
    if not {"upstreams", "upstream", "blocking", "customDNS"}.intersection(top.names()):
        importing.fault(top.at(), "neither upstreams nor blocking: is this blocky's config.yml?")
    blocking = top.under("blocking")
    lists = _read_lists(importing, blocking)
    _read_blocking(importing, top, blocking)
    upstreams = _read_upstreams(importing, top)
    _read_clients(importing, top, lists, upstreams)
    _read_names(importing, top.under("customDNS"))
    _read_conditional(importing, top.under("conditional"))
    _read_caching(importing, top.under("caching"))
    for key, why in _ELSEWHERE.items():
        parent, _, last = key.rpartition(".")
        fields = top.under(parent) if parent else top
        if fields.has(last):
            importing.leave(fields.at(last), why)


# --- lists ------------------------------------------------------------------------------------


def _read_lists(importing: Importing, blocking: Fields) -> dict[str, list[str]]:
    """Names of BlockLists by group of lists."""
    found: dict[str, list[str]] = {}
    for keys, kind in (
        (("denylists", "blackLists"), "deny"),
        (("allowlists", "whiteLists"), "allow"),
    ):
        for key in keys:
            for group in blocking.under(key).names():
                if (name := _read_list(importing, blocking.under(key), group, kind)) is not None:
                    found.setdefault(group, []).append(name)
    for group, names in found.items():
        kinds = {importing.lists[name].kind for name in names}
        if kinds == {"allow"}:  # then only these are allowed
            everything = object_name(importing.prefix, f"{group}-everything-else")
            importing.lists[everything] = BlockList(everything, [{"inline": ["||*^"]}])
            names.append(everything)
    return found


def _read_list(importing: Importing, fields: Fields, group: str, kind: str) -> str | None:
    sources: list[dict[str, object]] = []
    for at, text in fields.texts(group):
        if "\n" in text.strip("\n") or text.endswith("\n"):
            sources.append({"inline": [line for line in text.split("\n") if line.strip()]})
            continue
        url = text if "://" in text else f"file:{text}"
        why = next(blocklist_faults(BlockListSpec(sources=[BlockListSource(url=url)])), None)
        if why is not None:
            importing.leave(at, f"a list: {why.message}")  # without its URL
        elif url.startswith("file:") and not url.startswith(("file:/", "file:///")):
            importing.leave(at, f"{text[:80]}: write the whole path of a file")
        else:
            sources.append({"url": url})
    if not sources:
        return None
    name = object_name(importing.prefix, group if kind == "deny" else f"{group}-allow")
    importing.lists[name] = BlockList(name, sources, kind=kind)
    return name


def _read_blocking(importing: Importing, top: Fields, blocking: Fields) -> None:
    everybody = importing.everybody
    mode = blocking.text("blockType", "zeroIP")
    addresses = [part.strip() for part in mode.split(",")]
    if all(map(parsed_address, addresses)):
        everybody.block_mode, everybody.custom_ips = "custom", addresses
    elif mode.lower() not in _MODES:
        importing.fault(blocking.at("blockType"), f"{mode!r} is neither zeroIP, nxDomain nor IPs")
    elif _MODES[mode.lower()]:
        importing.setting("blocking.mode", _MODES[mode.lower()])
    _duration(importing, blocking, "blockTTL", "blocking.ttl")
    _duration(importing, blocking, "refreshPeriod", "blocking.refreshInterval")
    _duration(importing, blocking.under("loading"), "refreshPeriod", "blocking.refreshInterval")
    everybody.block_types = [text for _, text in top.under("filtering").texts("queryTypes")]


def _duration(importing: Importing, fields: Fields, key: str, setting: str) -> None:
    text = fields.text(key)
    text = f"{text}m" if text.isdigit() and text != "0" else text  # minutes, without a unit
    if not text or text == "0":
        return
    try:
        parse_duration(text)
    except ValueError as error:
        importing.leave(fields.at(key), f"{error}")
    else:
        importing.setting(setting, text)


# --- clients ----------------------------------------------------------------------------------


def _read_clients(
    importing: Importing, top: Fields, lists: dict[str, list[str]], upstreams: dict[str, list[str]]
) -> None:
    groups = top.under("blocking").under("clientGroupsBlock")
    named = top.under("clientLookup").under("clients")
    everybody = importing.everybody
    everybody.lists = _lists_of(importing, groups, DEFAULT, lists)
    everybody.upstreams = []  # those of the default group are a setting
    for title in dict.fromkeys([*groups.names(), *upstreams]):
        if title == DEFAULT:
            continue
        at = groups.at(title)
        clients = [found for part in title.split(",") for found in _clients(named, part.strip())]
        if not clients:
            what = "no address, network or client of clientLookup.clients"
            importing.leave(at, f"client {title!r}: {what}")
            continue
        rules = everybody.copy()
        if title in groups.names():
            rules.lists = _lists_of(importing, groups, title, lists)
        rules.upstreams = upstreams.get(title, [])
        importing.audiences.append(Audience(title=title, clients=clients, rules=rules))


def _lists_of(
    importing: Importing, groups: Fields, title: str, lists: dict[str, list[str]]
) -> list[str]:
    found: list[str] = []
    for at, group in groups.texts(title):
        if group not in lists:
            importing.leave(at, f"{group!r} is no group with lists")
        found += [name for name in lists.get(group, []) if name not in found]
    return found


def _clients(named: Fields, text: str) -> Iterator[dict[str, str]]:
    """Clients as a ClientGroup has them, of an address, a network, or a name with addresses."""
    field = "cidr" if "/" in text else "ip"
    client = Client(**{field: text})
    if next(clientgroup_faults(ClientGroupSpec(clients=[client])), None) is None:
        yield {field: text}
    elif named.has(text):
        yield from ({"ip": address} for _, address in named.texts(text) if parsed_address(address))


# --- upstreams, names, cache -------------------------------------------------------------------


def _read_upstreams(importing: Importing, top: Fields) -> dict[str, list[str]]:
    """Upstreams of clients, by what they are given for. Those of all are a setting."""
    parent = top.under("upstreams")
    groups = parent.under("groups") if parent.has("groups") else top.under("upstream")
    found: dict[str, list[str]] = {}
    for group in groups.names():
        for at, text in groups.texts(group):
            upstream = _upstream(text)
            if group == DEFAULT:
                importing.add_setting(at, "upstreams.groups.default", upstream)
            elif importing.upstream(at, upstream):
                found.setdefault(group, []).append(upstream)
    strategy = parent.text("strategy", "parallel_best")
    if strategy not in _STRATEGIES:
        importing.fault(parent.at("strategy"), f"{strategy!r} is not known")
    elif strategy != "parallel_best":
        importing.setting("upstreams.strategy", _STRATEGIES[strategy])
    _duration(importing, parent, "timeout", "upstreams.timeout")
    _read_bootstrap(importing, top)
    return found


def _read_bootstrap(importing: Importing, top: Fields) -> None:
    given = top.value("bootstrapDns")
    if isinstance(given, list) and all(isinstance(item, dict) for item in given):
        texts = [(item.at("upstream"), item.text("upstream")) for item in top.items("bootstrapDns")]
    elif isinstance(given, dict):
        bootstrap = top.under("bootstrapDns")
        texts = [(bootstrap.at("upstream"), bootstrap.text("upstream"))]
    elif isinstance(given, list) and any(isinstance(item, dict) for item in given):
        importing.leave(top.at("bootstrapDns"), "of two forms; see the setting upstreams.bootstrap")
        return
    else:
        texts = list(top.texts("bootstrapDns"))
    for at, text in texts:
        importing.add_setting(at, "upstreams.bootstrap", _upstream(text))


def _upstream(text: str) -> str:
    """`[net:]host[:port][/path][#name]` as upstreams here are written."""
    text, hash_, name = text.strip().partition("#")
    scheme, colon, rest = text.partition(":")
    if colon and scheme in _SCHEMES:
        text = _SCHEMES[scheme] + rest.removeprefix("//")
    elif colon and scheme == "https" and not rest.startswith("//"):
        text = f"https://{rest}"
    return f"{text}#name={name}" if hash_ else text


def _read_names(importing: Importing, custom: Fields) -> None:
    """Each name stands for what is below it too."""
    ttl = None
    if custom.has("customTTL"):
        try:
            ttl = int(parse_duration(custom.text("customTTL")).total_seconds())
        except ValueError as error:
            importing.fault(custom.at("customTTL"), str(error))
    mapping = custom.under("mapping")
    for name in mapping.names():
        for owner in (importing.name(mapping.at(name), part) for part in (name, f"*.{name}")):
            if owner is None:
                break
            for address in mapping.text(name).split(","):
                importing.address(mapping.at(name), owner, address.strip(), ttl=ttl)
    if custom.has("zone"):
        importing.leave(custom.at("zone"), "a master file: `kudurru zone import` of it as a file")
    if custom.has("rewrite"):
        importing.leave(custom.at("rewrite"), "names for other names: write CNAMEs, or a DNAME")
    if not custom.flag("filterUnmappedTypes", default=True):
        importing.leave(
            custom.at("filterUnmappedTypes"), "types that a name lacks are not asked elsewhere"
        )


def _read_conditional(importing: Importing, conditional: Fields) -> None:
    mapping = conditional.under("mapping")
    for domain in mapping.names():
        at = mapping.at(domain)
        upstreams = [_upstream(part) for part in mapping.text(domain).split(",")]
        if domain == ".":
            importing.leave(at, "upstreams for names of one label: there is no such rule")
        elif (zone := importing.name(at, domain)) is not None:
            importing.forward(at, zone, upstreams)
    for key in ("rewrite", "fallbackUpstream"):
        if conditional.has(key) and conditional.value(key) is not False:
            importing.leave(conditional.at(key), f"{key} has no counterpart here")


def _read_caching(importing: Importing, caching: Fields) -> None:
    _duration(importing, caching, "minTime", "cache.minTTL")
    _duration(importing, caching, "cacheTimeNegative", "cache.negativeTTL")
    if caching.text("maxTime").startswith("-"):
        importing.setting("cache.maxEntries", "0")
        return
    _duration(importing, caching, "maxTime", "cache.maxTTL")
    if count := caching.number("maxItemsCount"):
        importing.setting("cache.maxEntries", str(count))
    if caching.has("prefetching"):
        importing.setting("cache.prefetch", str(caching.flag("prefetching")).lower())
