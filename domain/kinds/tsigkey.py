"""TSIGKey: a key that this node shares with other name servers, and with those who update zones.

The log holds who made it, when, for what, and a salted digest of the secret. The secret itself is
sealed beside the log, see `domain.secrets`. The name of the object is the name of the key.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kudurru.domain.dns import names
from kudurru.domain.dns.record_types import BadRecord, type_from_text
from kudurru.domain.errors import Cause
from kudurru.domain.kinds.meta import Condition, Spec, StrictSpec, Text
from kudurru.domain.secrets import is_digest

AlgorithmText = Literal[
    "hmac-sha256",
    "hmac-sha512",
    "hmac-sha384",
    "hmac-sha224",
    "hmac-sha256-128",
    "hmac-sha384-192",
    "hmac-sha512-256",
    "hmac-sha1",
    "hmac-md5",
]


class UpdateRule(StrictSpec, frozen=True, kw_only=True):
    """What a key may change by dynamic updates (RFC 2136)."""

    zone: Text
    names: Annotated[list[Text], Meta(max_length=64)] = []
    """Owners: exact, or `*.below`, which is every name below. None given: all of the zone."""
    types: Annotated[list[Text], Meta(max_length=64)] = []
    """None given: all."""


class TSIGKeySpec(StrictSpec, frozen=True, kw_only=True):
    algorithm: AlgorithmText
    secret_digest: Text
    updates: Annotated[list[UpdateRule], Meta(max_length=64)] = []


class TSIGKeyStatus(Spec, frozen=True, kw_only=True):
    conditions: list[Condition] = []


def tsigkey_faults(spec: TSIGKeySpec) -> Iterator[Cause]:
    if not is_digest(spec.secret_digest):
        yield Cause("spec.secretDigest", "no digest; keys are made by `kudurru tsig create`")
    for i, rule in enumerate(spec.updates):
        path = f"spec.updates[{i}]"
        yield from _name_faults(f"{path}.zone", rule.zone)
        for j, text in enumerate(rule.names):
            yield from _name_faults(f"{path}.names[{j}]", text)
        for j, text in enumerate(rule.types):
            try:
                type_from_text(text)
            except BadRecord as error:
                yield Cause(f"{path}.types[{j}]", str(error))


def _name_faults(path: str, text: str) -> Iterator[Cause]:
    try:
        names.from_text(text)
    except names.BadName as error:
        yield Cause(path, str(error))


def parse_rule(text: str) -> UpdateRule:
    """A rule as it is written on a command line: `ZONE[:NAME,…[:TYPE,…]]`."""
    zone, _, rest = text.partition(":")
    owners, _, types = rest.partition(":")
    return UpdateRule(
        zone=zone,
        names=[name for name in owners.split(",") if name],
        types=[word.upper() for word in types.split(",") if word],
    )


def decode_spec(spec: msgspec.Raw | bytes) -> TSIGKeySpec:
    return msgspec.json.decode(spec, type=TSIGKeySpec)
