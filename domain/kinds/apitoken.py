"""APIToken: lets a program or a person use the API.

The log holds who made it, for whom and what it may do, and a salted digest of a hash of the token;
the hash is beside the log, see `domain.secrets`. The token itself is nowhere: it is shown once.
"""

from collections.abc import Iterator
from datetime import datetime
from hashlib import sha256
from ipaddress import ip_network
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kudurru.domain.errors import Cause
from kudurru.domain.kinds.meta import (
    Condition,
    Spec,
    StrictSpec,
    Text,
    is_dns_label,
    is_dns_subdomain,
)
from kudurru.domain.secrets import is_digest

SECRET_SIZE = 32
"""Octets of randomness in a token: nobody guesses them, so a plain hash keeps them safe."""

_PREFIX = "kudurru_"
_DIGITS = 2 * SECRET_SIZE


class APITokenSpec(StrictSpec, frozen=True, kw_only=True):
    role: Literal["viewer", "operator", "admin", "follower", "bootstrap"]
    namespaces: Annotated[list[Text], Meta(max_length=64)] = []
    zones: Annotated[list[Text], Meta(max_length=64)] = []
    cidrs: Annotated[list[Text], Meta(max_length=64)] = []
    expires_at: Text  # RFC 3339, UTC, whole seconds
    token_digest: Text


class APITokenStatus(Spec, frozen=True, kw_only=True):
    conditions: list[Condition] = []


def apitoken_faults(spec: APITokenSpec) -> Iterator[Cause]:
    if not is_digest(spec.token_digest):
        yield Cause("spec.tokenDigest", "no digest; tokens are made by `kudurru token create`")
    for i, text in enumerate(spec.namespaces):
        if not is_dns_label(text):
            yield Cause(f"spec.namespaces[{i}]", f"{text!r} is no name of a namespace")
    for i, text in enumerate(spec.zones):
        if not is_dns_subdomain(text):
            yield Cause(f"spec.zones[{i}]", f"{text!r} is no name of a DNSZone")
    for i, text in enumerate(spec.cidrs):
        try:
            ip_network(text, strict=False)
        except ValueError:
            yield Cause(f"spec.cidrs[{i}]", f"{text!r} is no network, such as 192.0.2.0/24")
    if expiry_us(spec) is None:
        yield Cause("spec.expiresAt", f"{spec.expires_at!r} is no time, such as 2027-01-31T00:00Z")


def expiry_us(spec: APITokenSpec) -> int | None:
    """Microseconds UTC; None for a text that is no time."""
    try:
        moment = datetime.fromisoformat(spec.expires_at)
    except ValueError:
        return None
    return int(moment.timestamp()) * 1_000_000 if moment.tzinfo is not None else None


def decode_spec(spec: msgspec.Raw | bytes) -> APITokenSpec:
    return msgspec.json.decode(spec, type=APITokenSpec)


# --- the text -------------------------------------------------------------------------------


def token_text(name: str, secret: bytes) -> str:
    """What is shown once: `kudurru_NAME_SECRET`. The name says at a glance whose it is."""
    return f"{_PREFIX}{name}_{secret.hex()}"


def name_in(text: str) -> str | None:
    """Name of the token that a text could be; None where it is none."""
    name, mark, digits = text.removeprefix(_PREFIX).rpartition("_")
    is_one = text.startswith(_PREFIX) and mark and len(digits) == _DIGITS
    return name if is_one and is_dns_subdomain(name) else None


def hash_of(text: str) -> bytes:
    """What is kept of a token, 32 octets."""
    return sha256(text.encode("ascii", "replace")).digest()
