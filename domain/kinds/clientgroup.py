"""ClientGroup: whose queries a policy is about."""

import re
from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Annotated

import msgspec
from msgspec import Meta

from kudurru.domain.errors import Cause
from kudurru.domain.kinds.meta import BAD_SCOPE, Condition, Spec, StrictSpec, Text, has_bad_scope

_MAC = re.compile(r"[0-9a-f]{2}([:-][0-9a-f]{2}){5}\Z", re.I | re.ASCII)
_CLIENT_ID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\Z", re.ASCII)


class Client(StrictSpec, frozen=True, kw_only=True):
    """Exactly one of them."""

    cidr: Text | None = None
    ip: Text | None = None
    mac: Text | None = None
    client_id: Text | None = msgspec.field(name="clientID", default=None)
    ip_suffix: Text | None = None
    listener: Text | None = None


class Integration(StrictSpec, frozen=True, kw_only=True):
    integration_ref: Text | None = None  # reserved, reported Unsupported


class ClientGroupSpec(StrictSpec, frozen=True, kw_only=True):
    clients: Annotated[list[Client], Meta(max_length=1000)] = []
    sources: Integration | None = None


class ClientGroupStatus(Spec, frozen=True, kw_only=True):
    observed_generation: int = 0
    conditions: list[Condition] = []


def clientgroup_faults(spec: ClientGroupSpec) -> Iterator[Cause]:
    for i, client in enumerate(spec.clients):
        where = f"spec.clients[{i}]"
        given = {
            "cidr": client.cidr,
            "ip": client.ip,
            "mac": client.mac,
            "clientID": client.client_id,
            "ipSuffix": client.ip_suffix,
            "listener": client.listener,
        }
        if sum(value is not None for value in given.values()) != 1:
            yield Cause(where, f"exactly one of {', '.join(given)}")
        for field, value in given.items():
            if value is not None and (fault := _client_fault(field, value)):
                yield Cause(f"{where}.{field}", fault)


def _client_fault(field: str, value: str) -> str | None:
    try:
        match field:
            case "cidr":
                ip_network(value, strict=False)
                if "%" in value:
                    return f"{value!r}: a network has no scope"
            case "ip":
                ip_address(value)
                if has_bad_scope(value):
                    return f"{value!r}: {BAD_SCOPE}"
            case "ipSuffix":
                if int(IPv6Address(value)) >> 64:
                    return f"{value!r} sets bits above the interface identifier; write ::1234"
            case "mac" if not _MAC.match(value):
                return f"{value!r} is no MAC address"
            case "clientID" if not _CLIENT_ID.match(value):
                return f"{value!r} is no client ID: one label of letters, digits and '-'"
    except ValueError as error:
        return str(error)
    return None
