"""Whether the definitions of our kinds are installed, and in the version that we speak."""

from typing import Literal

import msgspec

from kudurru.adapters.kubernetes.answers import Absent
from kudurru.adapters.kubernetes.client import Client
from kudurru.domain.kinds.meta import GROUP, VERSION
from kudurru.domain.kinds.registry import KINDS

INSTALL = "`kudurru crds install` of this release brings it"
VERSIONS_MAX = 8
"""Versions of our group that are looked at: there will hardly be three."""


class _Version(msgspec.Struct, frozen=True):
    version: str


class _Group(msgspec.Struct, frozen=True):
    versions: list[_Version] = []


class _Resource(msgspec.Struct, frozen=True):
    name: str


class _Resources(msgspec.Struct, frozen=True):
    resources: list[_Resource] = []


class Lacking(msgspec.Struct, frozen=True):
    """What is wrong with the definition of a kind."""

    kind: str
    reason: Literal["NotInstalled", "OtherVersion", "NoStatus"]
    message: str


async def lacking(client: Client) -> list[Lacking]:
    """What is wrong with the definitions, in order of kinds; two requests where nothing is.
    Raises: Refused, Unanswered."""
    served = {version: await _served(client, version) for version in await _versions(client)}
    ours = served.get(VERSION, set())
    found = []
    for kind in KINDS.values():
        if kind.is_internal:
            continue
        others = [version for version, names in served.items() if kind.plural in names]
        if kind.plural in ours:
            if f"{kind.plural}/status" not in ours:
                text = f"{kind.plural}.{GROUP} has no status subresource: {INSTALL}"
                found.append(Lacking(kind.name, "NoStatus", text))
        elif others:
            text = (
                f"{kind.plural}.{GROUP} is served as {', '.join(others)} and this program speaks "
                f"{VERSION}: {INSTALL}"
            )
            found.append(Lacking(kind.name, "OtherVersion", text))
        else:
            text = f"{kind.plural}.{GROUP} is not installed: {INSTALL}"
            found.append(Lacking(kind.name, "NotInstalled", text))
    return found


async def _versions(client: Client) -> list[str]:
    try:
        group = await client.get(f"/apis/{GROUP}", _Group)
    except Absent:
        return []
    return [one.version for one in group.versions][:VERSIONS_MAX]


async def _served(client: Client, version: str) -> set[str]:
    try:
        found = await client.get(f"/apis/{GROUP}/{version}", _Resources)
    except Absent:
        return set()  # it went a moment ago
    return {one.name for one in found.resources}
