"""AdGuard Home: AdGuardHome.yaml, of the schema versions since 0.107 (2022).

Lists, the person's own rules, rewrites, upstreams by domain and persistent clients have
counterparts. A client that uses global settings throughout is a group without a policy, as
everybody's holds for it; any other has a policy of its own, with all that counts for it.
"""

from kudurru.domain.imports.fields import Fields, read_fields
from kudurru.domain.imports.model import Audience, Importing, Rules, Source, parsed_address
from kudurru.domain.kinds.blocklist import INLINE_LINE_MAX
from kudurru.domain.kinds.clientgroup import Client, ClientGroupSpec, clientgroup_faults
from kudurru.domain.notation import parse_duration

_DEFAULT = "upstreams.groups.default"
_MODES = {"default": "", "null_ip": "", "nxdomain": "nxdomain", "refused": "refused"}
_STRATEGIES = {"load_balance": "random", "parallel": "parallel", "fastest_addr": "fastest"}
_REFUSED_ANYWAY = frozenset({"version.bind", "id.server", "hostname.bind"})
"""Blocked there from the start."""

NO_COUNTERPART = {
    "dhcp": "there is no DHCP server here; keep that one",
    "tls": "certificates and encrypted listeners are settings, see docs/operate.md",
}


def read(importing: Importing, sources: list[Source]) -> None:
    if len(sources) > 1:
        importing.fault(sources[1].name, "one AdGuardHome.yaml at a time")
    if (top := read_fields(importing, sources[0], "yaml")) is None:
        return
    dns, filtering = top.under("dns"), top.under("filtering")
    if not {"dns", "filters"}.intersection(top.names()):
        importing.fault(top.at(), "neither dns nor filters: is this an AdGuardHome.yaml?")
    _read_lists(importing, top)
    _read_rewrites(importing, filtering if filtering.has("rewrites") else dns)
    # Versions before 0.107.37 had what is under `filtering` under `dns`.
    _read_filtering(importing, filtering if top.has("filtering") else dns)
    _read_upstreams(importing, dns)
    _read_cache(importing, dns)
    _read_clients(importing, top)
    for key, why in NO_COUNTERPART.items():
        if top.under(key).flag("enabled"):
            importing.leave(top.at(key), why)
    for key in ("allowed_clients", "disallowed_clients"):
        if dns.has(key):
            importing.leave(dns.at(key), f"{key}: who may ask is the setting acl.recursion")
    for at, text in dns.texts("blocked_hosts"):
        if text not in _REFUSED_ANYWAY:
            importing.leave(at, f"{text[:80]} is refused to all; add it to `deny` of a policy")


# --- lists and rules ---------------------------------------------------------------------------


def _read_lists(importing: Importing, top: Fields) -> None:
    everybody = importing.everybody
    for key, is_allow in (("filters", False), ("whitelist_filters", True)):
        for item in top.items(key):
            url = item.text("url")
            if not url:
                importing.fault(item.at("url"), "a list without url")
                continue
            name = importing.subscribe(
                item.at("url"),
                url,
                kind="allow" if is_allow else "deny",
                is_enabled=item.flag("enabled"),
                comment=item.text("name"),
            )
            if name is not None and name not in everybody.lists:
                everybody.lists.append(name)
    lines = []
    for at, line in top.texts("user_rules"):
        if len(line) > INLINE_LINE_MAX:
            importing.leave(at, f"a rule of more than {INLINE_LINE_MAX} characters")
        else:
            lines.append(line)
    everybody.lists += importing.own_list("user-rules", lines)


def _read_rewrites(importing: Importing, parent: Fields) -> None:
    if not parent.flag("rewrites_enabled", default=True):
        importing.leave(parent.at("rewrites_enabled"), "rewrites are switched off")
        return
    for item in parent.items("rewrites"):
        at, domain, answer = item.at("domain"), item.text("domain"), item.text("answer")
        if not domain or not answer:
            importing.fault(item.at(), "a rewrite has a domain and an answer")
        elif not item.flag("enabled", default=True):
            importing.leave(at, f"the rewrite of {domain} is switched off")
        elif answer in ("A", "AAAA", domain):
            importing.leave(at, f"{domain} is excepted from a rewrite, which nothing is here")
        elif (owner := importing.name(at, domain)) is None:
            continue
        elif parsed_address(answer):
            importing.address(at, owner, answer)
        else:
            importing.alias(at, owner, answer)


def _read_filtering(importing: Importing, fields: Fields) -> None:
    everybody = importing.everybody
    if not fields.flag("protection_enabled", default=True):
        importing.leave(
            fields.at("protection_enabled"), "protection is off: `kudurru blocking disable`"
        )
    if not fields.flag("filtering_enabled", default=True):
        importing.leave(fields.at("filtering_enabled"), "lists are off: `kudurru blocking disable`")
    everybody.safe_search = _safe_search(importing, fields)
    for key, what in (
        ("parental_enabled", "parental control asks a service; subscribe to lists instead"),
        ("safebrowsing_enabled", "safe browsing asks a service; subscribe to lists instead"),
    ):
        if fields.flag(key):
            importing.leave(fields.at(key), what)
    mode = fields.text("blocking_mode", "default")
    if mode == "custom_ip":
        everybody.block_mode = "custom"
        addresses = [fields.text("blocking_ipv4"), fields.text("blocking_ipv6")]
        everybody.custom_ips = [text for text in addresses if text]
    elif mode not in _MODES:
        importing.fault(fields.at("blocking_mode"), f"{mode!r} is not known")
    elif _MODES[mode]:
        importing.setting("blocking.mode", _MODES[mode])
    if fields.has("blocked_response_ttl"):
        importing.setting("blocking.ttl", f"{fields.number('blocked_response_ttl')}s")
    if hours := fields.number("filters_update_interval"):
        importing.setting("blocking.refreshInterval", f"{hours}h")
    _tell_services(importing, fields)


def _safe_search(importing: Importing, fields: Fields) -> bool:
    """Of everybody, or of a client."""
    found = fields.under("safe_search")
    is_on = found.flag("enabled") or fields.flag("safesearch_enabled")
    for key in found.names():
        if key != "enabled" and is_on and not found.flag(key):
            importing.leave(found.at(key), f"safe search is for all engines here, {key} too")
    return is_on


def _tell_services(importing: Importing, fields: Fields) -> None:
    """Which names are a service's is knowledge of AdGuard's, and not in the file."""
    given = fields.value("blocked_services")
    services = fields.under("blocked_services") if isinstance(given, dict) else None
    for at, text in services.texts("ids") if services else fields.texts("blocked_services"):
        what = f"blocked service {text}: its names are not in this file; use a list"
        importing.leave(at, what)
    if services and any(key != "time_zone" for key in services.under("schedule").names()):
        what = "hours without blocked services; a policy has a `schedule` of when it counts"
        importing.leave(services.at("schedule"), what)


# --- upstreams and cache -----------------------------------------------------------------------


def _read_upstreams(importing: Importing, dns: Fields) -> None:
    for at, text in dns.texts("upstream_dns"):
        _read_upstream(importing, at, text)
    if file := dns.text("upstream_dns_file"):
        importing.leave(dns.at("upstream_dns_file"), f"upstreams of {file}: write them here")
    for key, setting in (
        ("bootstrap_dns", "upstreams.bootstrap"),
        ("fallback_dns", "upstreams.fallback"),
    ):
        for at, text in dns.texts(key):
            importing.add_setting(at, setting, text)
    mode = dns.text("upstream_mode", "load_balance")
    if mode not in _STRATEGIES:
        importing.fault(dns.at("upstream_mode"), f"{mode!r} is not known")
    elif mode != "load_balance":
        importing.setting("upstreams.strategy", _STRATEGIES[mode])
    if timeout := dns.text("upstream_timeout"):
        _set_duration(importing, dns.at("upstream_timeout"), "upstreams.timeout", timeout)
    for at, _ in dns.texts("local_ptr_upstreams"):
        what = "names of private addresses: see upstreams.conditional, for in-addr.arpa domains"
        importing.leave(at, what)


def _read_upstream(importing: Importing, at: str, text: str) -> None:
    """`SERVER`, or `[/a.example/b.example/]SERVER SERVER`."""
    text = text.strip()
    if not text or text.startswith("#"):
        return
    if not text.startswith("[/"):
        importing.add_setting(at, _DEFAULT, text)
        return
    domains, bracket, servers = text[2:].partition("/]")
    if not bracket:
        importing.fault(at, f"{text[:80]!r}: write [/DOMAIN/]SERVER")
        return
    if servers.strip() in ("", "#"):
        importing.leave(at, f"{domains[:80]} goes to the default upstreams, as all does here")
        return
    for domain in domains.split("/"):
        if not domain:
            importing.leave(at, "upstreams for names of one label: there is no such rule")
        elif (zone := importing.name(at, domain.removeprefix("*."))) is not None:
            importing.forward(at, zone, servers.split())


def _set_duration(importing: Importing, at: str, setting: str, text: str) -> None:
    try:
        parse_duration(text)
    except ValueError as error:
        importing.leave(at, str(error))
    else:
        importing.setting(setting, text)


def _read_cache(importing: Importing, dns: Fields) -> None:
    if size := dns.number("cache_size"):
        importing.setting("cache.maxBytes", str(size))
    for key, setting in (("cache_ttl_min", "cache.minTTL"), ("cache_ttl_max", "cache.maxTTL")):
        if seconds := dns.number(key):
            importing.setting(setting, f"{seconds}s")


# --- clients ----------------------------------------------------------------------------------


def _read_clients(importing: Importing, top: Fields) -> None:
    given = top.value("clients")
    # A list before 0.107.19, beside clients found by themselves since.
    clients = (
        top.items("clients")
        if isinstance(given, list)
        else top.under("clients").items("persistent")
    )
    for client in clients:
        title = client.text("name")
        if not title:
            importing.fault(client.at(), "a client without a name")
            continue
        ids = [found for at, text in client.texts("ids") if (found := _id(importing, at, text))]
        if client.has("tags"):
            importing.leave(client.at("tags"), f"tags of {title}: group clients by ClientGroups")
        if not ids:
            importing.leave(client.at(), f"client {title} has no ID that is known here")
            continue
        rules = _rules_of(importing, client)
        importing.audiences.append(Audience(title=title, clients=ids, rules=rules))


def _id(importing: Importing, at: str, text: str) -> dict[str, str] | None:
    """A client as a ClientGroup has it."""
    is_mac = text.count(":") == 5 or text.count("-") == 5
    fields = (
        ["cidr"] if "/" in text else ["ip"] if parsed_address(text)
        else ["mac", "clientID"] if is_mac else ["clientID"]
    )  # fmt: skip
    for field in fields:
        parts = {"clientID": "client_id"}
        client = Client(**{parts.get(field, field): text})
        if next(clientgroup_faults(ClientGroupSpec(clients=[client])), None) is None:
            return {field: text}
    importing.leave(at, f"client {text!r} is no address, network, MAC or client ID")
    return None


def _rules_of(importing: Importing, client: Fields) -> Rules | None:
    """What holds for a client; None where it is what holds for everybody."""
    own = not client.flag("use_global_settings", default=True)
    upstreams = [
        text for at, text in client.texts("upstreams") if _is_plain_upstream(importing, at, text)
    ]
    is_unlogged = client.flag("ignore_querylog")
    if not client.flag("use_global_blocked_services", default=True):
        _tell_services(importing, client)
    if not (own or upstreams or is_unlogged):
        return None
    rules = importing.everybody.copy()
    rules.upstreams = upstreams
    rules.query_log = False if is_unlogged else None
    if own:
        rules.safe_search = _safe_search(importing, client)
        if not client.flag("filtering_enabled"):
            rules.lists, rules.block_mode, rules.custom_ips = [], "", []
        for key in ("parental_enabled", "safebrowsing_enabled"):
            if client.flag(key):
                importing.leave(client.at(key), "it asks a service; subscribe to lists instead")
    return rules


def _is_plain_upstream(importing: Importing, at: str, text: str) -> bool:
    if text.startswith(("[/", "#")):
        importing.leave(at, f"{text[:80]}: upstreams of a client are for all domains here")
        return False
    return importing.upstream(at, text)
