"""DNSZone: a zone that is served (Primary), fetched (Secondary), or sent elsewhere (Forward)."""

import re
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kudurru.domain.dns import names
from kudurru.domain.dns.upstreams import parse_upstream
from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.kinds.meta import (
    BAD_SCOPE,
    Condition,
    Port,
    Spec,
    StrictSpec,
    Text,
    Ttl,
    has_bad_scope,
    is_dns_label,
    is_dns_subdomain,
    share_defaults,
)
from kudurru.domain.selectors import parse_selector

ZONE_DEFAULT_TTL_S = 300
DNS_PORT = 53

LOST_SHOWN = 4
"""Name servers; most zones have fewer."""

_WAY_BACK = (
    "what is applied replaces an object whole: `kudurru edit` changes a part of it, "
    "`kudurru undo` takes this change back"
)

_MAILBOX = re.compile(r"(?<!\\)@")


class SOA(StrictSpec, frozen=True, kw_only=True):
    """Fields of the SOA record (RFC 1035 section 3.3.13); the serial is stamped, never written.

    `ttl` is the TTL of the SOA record; absent: the zone's defaultTTL.
    """

    mname: Text | None = None  # absent: the first name server, else ns.<zone>
    rname: Text | None = None  # absent: hostmaster.<zone>
    refresh: Ttl = 7200
    retry: Ttl = 900
    expire: Ttl = 1209600
    minimum: Ttl = 300
    ttl: Ttl | None = None

    def __post_init__(self) -> None:
        share_defaults(self)


class Transfer(StrictSpec, frozen=True, kw_only=True):
    """Who may fetch the zone, and who is told of changes. Absent: nobody.

    `allow` names networks to come from and TSIG keys to be signed with; where it names both, both
    must hold. `keys` sign what `notify` sends: one for all, or one for each in their order.
    """

    allow: Annotated[list[Text], Meta(max_length=64)] = []
    notify: Annotated[list[Text], Meta(max_length=64)] = []
    keys: Annotated[list[Text], Meta(max_length=64)] = []


class Primary(StrictSpec, frozen=True, kw_only=True):
    """A server that the zone is fetched from. `key_ref` names the TSIG key that proves it; with
    `server_name` its certificate must be for that name, else TLS hides and does not prove."""

    address: Text
    port: Port | None = None  # absent: 53, over TLS 853
    key_ref: Text | None = None
    server_name: Text | None = None


class Secondary(StrictSpec, frozen=True, kw_only=True):
    primaries: Annotated[list[Primary], Meta(min_length=1, max_length=16)]
    transport: Literal["tcp", "tls"] = "tcp"

    def port_of(self, primary: Primary) -> int:
        return primary.port or (853 if self.transport == "tls" else 53)


class CatalogGroup(StrictSpec, frozen=True, kw_only=True):
    """Where the members are fetched that a catalog puts into a group."""

    name: Text
    secondary: Secondary


class Catalog(StrictSpec, frozen=True, kw_only=True):
    """Marks a catalog zone (RFC 9432). A Primary lists the primary zones whose labels `selector`
    matches; without one all. A Secondary makes a Secondary of each zone that it lists, fetched from
    the servers of its group, else from `secondary`, else from where the catalog came; `transfer`
    is theirs."""

    selector: Text | None = None
    secondary: Secondary | None = None
    groups: Annotated[list[CatalogGroup], Meta(max_length=64)] = []
    transfer: Transfer | None = None


class Forward(StrictSpec, frozen=True, kw_only=True):
    upstreams: Annotated[list[Text], Meta(min_length=1, max_length=64)]


class DNSZoneSpec(StrictSpec, frozen=True, kw_only=True):
    zone_name: Text
    type: Literal["Primary", "Secondary", "Forward"] = "Primary"
    default_ttl: Ttl = msgspec.field(name="defaultTTL", default=ZONE_DEFAULT_TTL_S)
    soa: SOA = SOA()
    nameservers: Annotated[list[Text], Meta(max_length=32)] = []
    nameserver_ttl: Ttl | None = msgspec.field(name="nameserverTTL", default=None)
    allowed_namespaces: Annotated[list[Text], Meta(max_length=256)] | None = None
    transfer: Transfer | None = None
    secondary: Secondary | None = None
    forward: Forward | None = None
    catalog: Catalog | None = None

    def __post_init__(self) -> None:
        share_defaults(self)


class TransferredSoa(Spec, frozen=True, kw_only=True):
    """The SOA of a secondary zone as its primary has it; the serial stands beside it."""

    mname: str
    rname: str
    refresh: int
    retry: int
    expire: int
    minimum: int
    ttl: int


class DNSZoneStatus(Spec, frozen=True, kw_only=True):
    """`soa`, `primary`, `refreshedAt` and `expired` are of a secondary zone: what was transferred,
    from where, when it was last known to be right, and whether that is too long ago."""

    observed_generation: int = 0
    serial: int | None = None
    content_hash: str = ""
    record_count: int = 0
    soa: TransferredSoa | None = None
    primary: str = ""
    refreshed_at: str = ""
    expired: bool = False
    conditions: list[Condition] = []


def zone_faults(spec: DNSZoneSpec) -> Iterator[Cause]:
    yield from _name_fault("spec.zoneName", spec.zone_name)
    if spec.soa.rname and _MAILBOX.search(spec.soa.rname):
        # RFC 1035 section 3.3.13: a mailbox is a name, its first label what stands before the @.
        local, _, host = spec.soa.rname.partition("@")
        hint = local.replace(".", "\\.") + "." + host
        yield Cause("spec.soa.rname", f"an address is written as a name here: {hint}")
    for field in ("mname", "rname"):
        if text := getattr(spec.soa, field):
            yield from _name_fault(f"spec.soa.{field}", text)
    for i, text in enumerate(spec.nameservers):
        yield from _name_fault(f"spec.nameservers[{i}]", text)
    for i, text in enumerate(spec.allowed_namespaces or ()):
        if not is_dns_label(text):
            yield Cause(f"spec.allowedNamespaces[{i}]", f"{text!r} is no namespace name")
    if spec.transfer:
        yield from _transfer_faults(spec.transfer)
    yield from _type_faults(spec)
    if spec.catalog:
        yield from _catalog_faults(spec, spec.catalog)


def _catalog_faults(spec: DNSZoneSpec, catalog: Catalog) -> Iterator[Cause]:
    if spec.type == "Forward":
        yield Cause("spec.catalog", "a zone that is forwarded lists nothing")
    if spec.type == "Primary" and (catalog.secondary or catalog.groups or catalog.transfer):
        yield Cause("spec.catalog", "secondary, groups and transfer are for type Secondary only")
    if catalog.selector is not None:
        if spec.type != "Primary":
            yield Cause("spec.catalog.selector", "for type Primary only")
        try:
            parse_selector(catalog.selector)
        except Invalid as error:
            yield from (Cause("spec.catalog.selector", cause.message) for cause in error.causes)
    if catalog.transfer:
        yield from _transfer_faults(catalog.transfer, "spec.catalog.transfer")
    if catalog.secondary:
        yield from _primary_faults(catalog.secondary, "spec.catalog.secondary")
    for i, group in enumerate(catalog.groups):
        yield from _primary_faults(group.secondary, f"spec.catalog.groups[{i}].secondary")


def _type_faults(spec: DNSZoneSpec) -> Iterator[Cause]:
    for kind, part in (("Secondary", spec.secondary), ("Forward", spec.forward)):
        field = f"spec.{kind.lower()}"
        if spec.type == kind and part is None:
            yield Cause(field, f"missing; type {kind} needs it")
        if spec.type != kind and part is not None:
            yield Cause("spec.type", f"{spec.type}, and {field} is for type {kind} only")
    for i, text in enumerate(spec.forward.upstreams if spec.forward else ()):
        try:
            parse_upstream(text)
        except ValueError as fault:
            yield Cause(f"spec.forward.upstreams[{i}]", str(fault))
    if spec.secondary:
        yield from _primary_faults(spec.secondary, "spec.secondary")


def _primary_faults(secondary: Secondary, path: str) -> Iterator[Cause]:
    for i, primary in enumerate(secondary.primaries):
        field = f"{path}.primaries[{i}].address"
        if not _is_address(primary.address):
            yield Cause(field, f"{primary.address!r} is no IP address")
        elif (address := ip_address(primary.address)).is_multicast or address.is_unspecified:
            yield Cause(field, f"{primary.address!r} is the address of no server")
        elif has_bad_scope(primary.address):
            yield Cause(field, f"{primary.address!r}: {BAD_SCOPE}")
        if primary.key_ref is not None:
            yield from _name_fault(f"{path}.primaries[{i}].keyRef", primary.key_ref)


def key_names(spec: DNSZoneSpec) -> set[str]:
    """TSIG keys that a zone names, as their objects are named."""
    found = set()
    for transfer in (spec.transfer, spec.catalog.transfer if spec.catalog else None):
        if transfer is not None:
            found |= {*transfer.keys, *(text for text in transfer.allow if not _is_network(text))}
    fetched = [spec.secondary]
    if spec.catalog is not None:
        fetched += [spec.catalog.secondary, *(group.secondary for group in spec.catalog.groups)]
    for secondary in filter(None, fetched):
        found |= {primary.key_ref for primary in secondary.primaries if primary.key_ref}
    return {_key_object(text) for text in found}


def _key_object(text: str) -> str:
    """Name of the object of a TSIG key that is referred to."""
    return names.to_text(names.key(names.from_text(text)), final_dot=False)


def zone_warnings(spec: DNSZoneSpec, before: DNSZoneSpec | None = None) -> Iterator[str]:
    """What is allowed and better thought over: of a zone, and of its taking the place of another
    version of it."""
    if before is not None and before.type == spec.type == "Primary":
        yield from _losses(before, spec)
    allow = spec.transfer.allow if spec.transfer is not None else []
    if allow and all(_is_network(text) for text in allow):
        yield (
            f"transfers of {spec.zone_name} are open to addresses alone, and who can use such an "
            "address needs no proof: name a TSIG key in spec.transfer.allow too"
        )


def _losses(before: DNSZoneSpec, after: DNSZoneSpec) -> Iterator[str]:
    """Parts that are gone, most often since a file says less than the object had."""
    zone = after.zone_name
    if before.nameservers and not after.nameservers:
        shown = ", ".join(before.nameservers[:LOST_SHOWN])
        more = len(before.nameservers) - LOST_SHOWN
        shown += f" and {more} more" if more > 0 else ""
        yield f"{zone} loses its name servers, {shown}: no spec.nameservers was given; {_WAY_BACK}"
    if after.soa == SOA() != before.soa:
        lost = [f for f in SOA.__struct_fields__ if getattr(before.soa, f) != getattr(SOA(), f)]
        shown = ", ".join(f"{field} {getattr(before.soa, field)}" for field in lost)
        yield f"{zone} loses its SOA, {shown}: no spec.soa was given; {_WAY_BACK}"


def _transfer_faults(transfer: Transfer, path: str = "spec.transfer") -> Iterator[Cause]:
    for i, text in enumerate(transfer.keys):
        if not is_dns_subdomain(text):
            yield Cause(f"{path}.keys[{i}]", f"{text!r} is no key name")
    if len(transfer.keys) > 1 and len(transfer.keys) != len(transfer.notify):
        fault = f"{len(transfer.keys)} keys; give one for all of notify, or one for each of them"
        yield Cause(f"{path}.keys", fault)
    for i, text in enumerate(transfer.allow):
        if "%" in text or (not _is_network(text) and not is_dns_subdomain(text)):
            yield Cause(
                f"{path}.allow[{i}]", f"{text!r} is neither an address range nor a key name"
            )
    for i, text in enumerate(transfer.notify):
        if not _is_endpoint(text):
            yield Cause(f"{path}.notify[{i}]", f"{text!r} is no address; write ADDR or ADDR:PORT")
        elif has_bad_scope(split_endpoint(text)[0]):
            yield Cause(f"{path}.notify[{i}]", f"{text!r}: {BAD_SCOPE}")


def _name_fault(field: str, text: str) -> Iterator[Cause]:
    try:
        names.from_text(text)
    except names.BadName as error:
        yield Cause(field, str(error))


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _is_network(text: str) -> bool:
    try:
        ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def _is_endpoint(text: str) -> bool:
    try:
        address, _ = split_endpoint(text)
    except ValueError:
        return False
    return not ip_address(address).is_multicast and not ip_address(address).is_unspecified


def split_endpoint(text: str) -> tuple[str, int | None]:
    """Address and port of ADDR, ADDR:PORT or [V6]:PORT. Raises: ValueError."""
    if _is_address(text):
        return text, None
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    is_port = port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65536
    if not _is_address(host) or not is_port:
        raise ValueError(f"{text!r} is no address; write ADDR or ADDR:PORT")
    return host, int(port)
