"""Pi-hole: what a backup, or the files themselves, say of lists, domains, groups, clients, names.

`Tables` holds the rows of gravity.db, which version 5 writes as JSON into its backup and version 6
as the database itself. A client counts for its groups, one that is not named for the group 0; what
is of no group is not filtered.
"""

from collections.abc import Callable, Iterable
from ipaddress import ip_network
from typing import Any

from kudurru.domain.documents import read_documents
from kudurru.domain.errors import Invalid
from kudurru.domain.imports import dnsmasq, hosts
from kudurru.domain.imports.fields import Fields, read_fields
from kudurru.domain.imports.model import Audience, Importing, Rules, Source, hash_port
from kudurru.domain.imports.reverse import reverse_zones
from kudurru.domain.kinds.clientgroup import Client, ClientGroupSpec, clientgroup_faults
from kudurru.domain.notation import Network

Row = dict[str, Any]
Tables = dict[str, list[Row]]

COLUMNS = {
    "group": ("id", "enabled", "name", "description"),
    "adlist": ("id", "address", "enabled", "comment", "type"),
    "domainlist": ("id", "type", "domain", "enabled", "comment"),
    "client": ("id", "ip", "comment"),
    "adlist_by_group": ("adlist_id", "group_id"),
    "domainlist_by_group": ("domainlist_id", "group_id"),
    "client_by_group": ("client_id", "group_id"),
}
"""Tables of gravity.db, and what is read of them. The lists' own names are not."""

WANTED = (
    "/gravity.db", "/pihole.toml", "/custom.list", "/setupVars.conf", "/hosts", ".json", ".conf",
)  # fmt: skip
"""How names of members of a backup end."""

_DOMAINS = {
    "whitelist.exact": 0, "blacklist.exact": 1, "whitelist.regex": 2, "blacklist.regex": 3,
}  # fmt: skip
_WRITTEN_BY_PIHOLE = ("01-pihole", "02-pihole-dhcp", "04-pihole-static-dhcp", "06-rfc6761")
_MODES = {"NULL": "zeroip", "NXDOMAIN": "nxdomain", "NODATA": "nodata", "NX": "nxdomain"}
_TEXTS = ("name", "description", "address", "comment", "domain", "ip")
_TYPES: dict[type, str] = {str: "text", int: "number"}
ALLOW_EXACT, DENY_EXACT, ALLOW_REGEX, DENY_REGEX = range(4)
DEFAULT_GROUP = 0


def read(
    importing: Importing, sources: list[Source], tables_of: Callable[[Source], Tables | None]
) -> None:
    """`tables_of` gives the tables of a source that is a database."""
    tables: Tables = {name: [] for name in COLUMNS}
    for source in sources:
        if (found := tables_of(source)) is not None:
            for name, rows in found.items():
                tables[name] += _checked(importing, source.name, name, rows)
        else:
            _read_file(importing, source, tables)
    _read_tables(importing, tables)


def _read_file(importing: Importing, source: Source, tables: Tables) -> None:
    base = source.basename
    if base.endswith(".json"):
        _read_json(importing, source, tables)
    elif base.endswith(".toml"):
        _read_settings(importing, source)
    elif base in ("custom.list", "hosts"):
        hosts.read(importing, [source])
    elif base == "setupVars.conf":
        _read_variables(importing, source)
    elif base.endswith(".conf") and not base.startswith(("pihole-FTL", *_WRITTEN_BY_PIHOLE)):
        dnsmasq.read(importing, [source])
    elif not base.endswith(".conf"):
        importing.fault(
            source.name, "none of a backup (.zip, .tar.gz), gravity.db, pihole.toml, custom.list"
        )


def _read_json(importing: Importing, source: Source, tables: Tables) -> None:
    name = source.basename.removesuffix(".json")
    table = "domainlist" if name in _DOMAINS else name
    if table not in COLUMNS:
        return
    try:
        documents = read_documents(source.data, what=source.name, format="json", is_foreign=True)
    except Invalid as error:
        importing.faults += error.causes
        return
    rows = documents[0].value if documents else []
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        importing.fault(source.name, "a list of mappings is expected here")
        return
    if name in _DOMAINS:
        rows = [{**row, "type": row.get("type", _DOMAINS[name])} for row in rows]
    tables[table] += _checked(importing, source.name, table, rows)


def _checked(importing: Importing, file: str, table: str, rows: Iterable[Row]) -> list[Row]:
    """Rows whose numbers are numbers and whose texts are texts; others are faults."""
    good = []
    for i, row in enumerate(rows):
        at = f"{file}: {table}[{i}]"
        faults = [fault for column in COLUMNS[table] if (fault := _fault(column, row.get(column)))]
        for fault in faults:
            importing.fault(at, fault)
        if not faults:
            good.append({column: row.get(column) for column in COLUMNS[table]} | {"at": at})
    return good


def _fault(column: str, value: object) -> str | None:
    """What is wrong with a value of a column."""
    if value is None:
        is_needed = column in ("address", "domain", "ip") or column.endswith("id")
        return f"{column}: missing" if is_needed else None
    wanted = str if column in _TEXTS else int
    return None if isinstance(value, wanted) else f"{column}: a {_TYPES[wanted]} is expected here"


# --- groups -----------------------------------------------------------------------------------


def _read_tables(importing: Importing, tables: Tables) -> None:
    groups = {row["id"]: row for row in tables["group"]} or {}
    groups.setdefault(DEFAULT_GROUP, {"id": DEFAULT_GROUP, "enabled": 1, "name": "Default"})
    rules = {number: Rules() for number in groups}
    _read_lists(importing, tables, rules)
    _read_domains(importing, tables, rules)
    default = groups[DEFAULT_GROUP]
    if default["enabled"] == 0:
        importing.leave(
            default.get("at", "group"), "the default group is off, so it blocks nothing"
        )
    else:
        importing.everybody = rules[DEFAULT_GROUP]
    _read_clients(importing, tables, groups, rules)


def _members(tables: Tables, table: str, column: str) -> dict[int, list[int]]:
    """Groups by the number of what is in them."""
    found: dict[int, list[int]] = {}
    for row in tables[table]:
        found.setdefault(row[column], []).append(row["group_id"])
    return found


def _read_lists(importing: Importing, tables: Tables, rules: dict[int, Rules]) -> None:
    members = _members(tables, "adlist_by_group", "adlist_id")
    for row in tables["adlist"]:
        url = row["address"].strip()
        name = importing.subscribe(
            row["at"],
            url,
            kind="allow" if row["type"] == 1 else "deny",
            is_enabled=row["enabled"] != 0,
            comment=row["comment"] or "",
        )
        if name is None:
            continue
        for group in members.get(row["id"], []):
            if group in rules and name not in rules[group].lists:
                rules[group].lists.append(name)


def _read_domains(importing: Importing, tables: Tables, rules: dict[int, Rules]) -> None:
    members = _members(tables, "domainlist_by_group", "domainlist_id")
    for row in tables["domainlist"]:
        text, kind, at = row["domain"].strip(), row["type"], row["at"]
        if row["enabled"] == 0:
            importing.leave(at, f"{text[:80]} is switched off; a rule here is there or not")
            continue
        if kind in (ALLOW_REGEX, DENY_REGEX):
            if ";" in text:
                importing.leave(at, f"{text[:80]}: options behind ';' have no counterpart here")
                continue
            text = f"/{text}/"
        elif kind not in (ALLOW_EXACT, DENY_EXACT):
            importing.fault(at, f"type {kind} is none of 0 to 3")
            continue
        for group in members.get(row["id"], []):
            if group in rules:
                is_allow = kind in (ALLOW_EXACT, ALLOW_REGEX)
                importing.rule(at, rules[group].allow if is_allow else rules[group].deny, text)


def _read_clients(
    importing: Importing, tables: Tables, groups: dict[int, Row], rules: dict[int, Rules]
) -> None:
    members = _members(tables, "client_by_group", "client_id")
    of_group: dict[int, list[dict[str, str]]] = {number: [] for number in groups}
    unfiltered: list[dict[str, str]] = []
    for row in tables["client"]:
        if (client := _client(importing, row)) is None:
            continue
        mine = [number for number in members.get(row["id"], []) if number in groups]
        for number in mine:
            of_group[number].append(client)
        if not any(groups[number]["enabled"] != 0 for number in mine):
            unfiltered.append(client)
    _tell_of_overlaps(importing, tables["client"])
    for number, row in groups.items():
        if number == DEFAULT_GROUP and not of_group[number]:
            continue  # who is not named is of it
        importing.audiences.append(
            Audience(
                title=row["name"] or str(number),
                clients=of_group[number],
                rules=rules[number].copy(),
                is_enabled=row["enabled"] != 0,
            )
        )
    if unfiltered:
        importing.audiences.append(
            Audience(title="in-no-group", clients=unfiltered, rules=Rules(is_bypass=True))
        )


def _client(importing: Importing, row: Row) -> dict[str, str] | None:
    """A client as a ClientGroup has it."""
    text = row["ip"].strip()
    field = "cidr" if "/" in text else "mac" if text.count(":") == 5 and len(text) == 17 else "ip"
    client = Client(**{field: text.lower()})
    if next(clientgroup_faults(ClientGroupSpec(clients=[client])), None) is not None:
        what = "an interface" if text.startswith(":") else "a host name"
        importing.leave(row["at"], f"client {text!r} is {what}; give its address, network or MAC")
        return None
    return {field: text.lower()}


def _tell_of_overlaps(importing: Importing, clients: list[Row]) -> None:
    """Where a client is in a network of another one: there only the closest counts, here both."""
    networks: list[tuple[Network, Row]] = []
    addresses: list[tuple[Network, Row]] = []
    for row in clients:
        try:
            (networks if "/" in row["ip"] else addresses).append(
                (ip_network(row["ip"].strip(), strict=False), row)
            )
        except ValueError:
            continue
    for address, row in addresses[:1000]:
        for network, other in networks[:1000]:
            if address.version == network.version and address[0] in network:
                what = f"it is in {other['ip']} too, and has the rules of both groups here"
                importing.leave(row["at"], f"client {row['ip']}: {what}")


# --- settings and names ------------------------------------------------------------------------


def _read_settings(importing: Importing, source: Source) -> None:
    """pihole.toml of version 6."""
    if (top := read_fields(importing, source, "toml")) is None:
        return
    dns = top.under("dns")
    for at, text in dns.texts("upstreams"):
        importing.add_setting(at, dnsmasq.DEFAULT, hash_port(text))
    domain = _domain(dns)
    if domain and (home := importing.name(dns.at("domain"), domain)) is not None:
        importing.homes.add(home)  # its names are never asked elsewhere
    for at, text in dns.texts("hosts"):
        is_expanded = dns.flag("expandHosts")
        hosts.read_line(importing, at, text.partition("#")[0], domain if is_expanded else "")
    for at, text in dns.texts("cnameRecords"):
        dnsmasq.read_alias(importing, at, text)
    if record := dns.text("hostRecord"):
        context = dnsmasq.Context(importing, {})
        dnsmasq.read_line(context, dns.at("hostRecord"), f"host-record={record}")
    for at, text in dns.texts("revServers"):
        _reverse_server(importing, at, [part.strip() for part in text.split(",")])
    _read_blocking(importing, dns)
    if top.under("dhcp").flag("active"):
        importing.leave(top.at("dhcp"), dnsmasq.HERE["dhcp"])
    if level := top.under("misc").number("privacylevel"):
        what = f"privacy level {level}; see querylog.privacyLevel, whose levels are others"
        importing.leave(top.under("misc").at("privacylevel"), what)
    context = dnsmasq.Context(importing, {})
    for at, text in top.under("misc").texts("dnsmasq_lines"):
        dnsmasq.read_line(context, at, text)


def _domain(dns: Fields) -> str:
    """A text in the first versions, a table with more since."""
    given = dns.value("domain")
    return dns.text("domain") if isinstance(given, str) else dns.under("domain").text("name")


def _read_blocking(importing: Importing, dns: Fields) -> None:
    blocking = dns.under("blocking")
    mode = blocking.text("mode", "NULL").upper()
    if mode in _MODES:
        if mode != "NULL":
            importing.setting("blocking.mode", _MODES[mode])
    else:
        importing.leave(blocking.at("mode"), f"mode {mode}; see blockMode custom of a Policy")
    if not blocking.flag("active", default=True):
        importing.leave(blocking.at("active"), "blocking is off: `kudurru blocking disable`")
    if dns.has("blockTTL"):
        importing.setting("blocking.ttl", f"{dns.number('blockTTL')}s")
    size = dns.under("cache").number("size", 10_000)
    if size != 10_000:
        importing.setting("cache.maxEntries", str(size))


def _reverse_server(importing: Importing, at: str, parts: list[str]) -> None:
    """Enabled, network, server, domain: `true,192.168.0.0/24,192.168.0.1,lan`."""
    is_on, network, server, domain = [*parts, "", "", "", ""][:4]
    if not server:
        importing.fault(at, "write true,NETWORK,SERVER[,DOMAIN]")
        return
    if is_on.lower() != "true":
        importing.leave(at, f"conditional forwarding to {server} is switched off")
        return
    upstreams = [hash_port(server)]
    try:
        zones = reverse_zones(network) if network else []
    except ValueError as error:
        importing.leave(at, str(error))
        zones = []
    for zone in zones:
        importing.forward(at, zone, upstreams)
    if domain and (name := importing.name(at, domain)) is not None:
        importing.forward(at, name, upstreams)


def _read_variables(importing: Importing, source: Source) -> None:
    """setupVars.conf of version 5."""
    found = {}
    for at, line in hosts.lines_of(importing, source):
        key, separator, value = line.partition("=")
        if separator:
            found[key.strip()] = (at, value.strip().strip('"'))
    for key, (at, value) in found.items():
        if key.startswith("PIHOLE_DNS_") and value:
            importing.add_setting(at, dnsmasq.DEFAULT, hash_port(value))
    if found.get("REV_SERVER", ("", ""))[1] == "true":
        keys = ("REV_SERVER", "REV_SERVER_CIDR", "REV_SERVER_TARGET", "REV_SERVER_DOMAIN")
        parts = [found.get(key, ("", ""))[1] for key in keys]
        _reverse_server(importing, found["REV_SERVER"][0], parts)
    for key, why in (("DHCP_ACTIVE", dnsmasq.HERE["dhcp"]),):
        if found.get(key, ("", ""))[1] == "true":
            importing.leave(found[key][0], why)
    if found.get("BLOCKING_ENABLED", ("", ""))[1] == "false":
        at = found["BLOCKING_ENABLED"][0]
        importing.leave(at, "blocking is off: `kudurru blocking disable`")
