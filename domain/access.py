"""Who may do what: roles, and the namespaces and zones that a token is limited to. Pure.

A right is asked for by name. A token that is limited to namespaces or zones has the rights of its
role over objects there, and none over what belongs to everybody: settings, tokens, the cache, the
query log. What an object is part of is its key and its scope in the log, "namespace/zone", so the
same rule holds for objects of today, objects of the past and events.
"""

from typing import Literal

import msgspec

from kudurru.domain.kinds.meta import Spec
from kudurru.domain.kinds.registry import DNS_RECORD_SET, DNS_ZONE, KINDS
from kudurru.domain.kinds.zone import DNSZoneSpec
from kudurru.domain.objects import Key, ref_of
from kudurru.domain.settings_changes import SETTINGS_KEY

Role = Literal["viewer", "operator", "admin", "follower", "bootstrap", "cluster-user"]
"""A follower is a node that copies the log. The last is of somebody whom a Kubernetes cluster
knows: what he may write it says, object by object, and what he may read he reads there."""

Right = Literal[
    "info",
    "objects.read", "history", "explain", "query", "zones.export",
    "stats", "querylog.read",
    "objects.write", "undo", "restore", "lists.refresh", "blocking", "cache", "mark",
    "messages", "doctor", "settings.read", "audit.verify", "checkpoint",
    "objects.force", "objects.reach", "settings.write", "tokens", "tokens.create", "keys",
    "restore.all", "audit.export", "audit.redact", "audit.prune", "querylog.purge", "addresses",
    "log.follow",
]  # fmt: skip
"""What may be asked for. `objects.force` takes objects from other managers, `objects.reach` has
this node send wherever an object says and read its host's files, see `domain.kinds.reach`; `keys`
are TSIG keys, `addresses` are those that people came from, in the history. `log.follow` copies the
log, with what is kept beside it, sealed and hashed."""

_VIEWER: frozenset[Right] = frozenset(
    ("info", "objects.read", "history", "explain", "query", "zones.export", "stats")
)
_OPERATOR: frozenset[Right] = _VIEWER | {
    "objects.write", "undo", "restore", "lists.refresh", "blocking", "cache", "mark",
    "messages", "doctor", "settings.read", "audit.verify", "checkpoint", "querylog.read",
}  # fmt: skip
_ADMIN: frozenset[Right] = _OPERATOR | {
    "objects.force", "objects.reach", "settings.write", "tokens", "tokens.create", "keys",
    "restore.all", "audit.export", "audit.redact", "audit.prune", "querylog.purge", "addresses",
    "log.follow",
}  # fmt: skip

RIGHTS: dict[Role, frozenset[Right]] = {
    "viewer": _VIEWER,
    "operator": _OPERATOR,
    "admin": _ADMIN,
    "follower": frozenset(("info", "log.follow")),
    "bootstrap": frozenset(("tokens.create",)),
    "cluster-user": frozenset(("info", "objects.write")),
}

OVER_OBJECTS: frozenset[Right] = _VIEWER - {"stats"} | {
    "objects.write", "objects.force", "undo", "restore", "lists.refresh",
}  # fmt: skip
"""Rights that a limited token keeps, over what it is limited to. A query and its explanation are
what every client of the resolver sees."""

PSEUDONYMS_LEVEL = 2
"""`querylog.privacyLevel` from which on a viewer may read the query log: it names nobody."""


class Rights(msgspec.Struct, frozen=True, kw_only=True):
    """A role, and what it is limited to. Empty: to nothing."""

    role: Role
    namespaces: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()  # names of DNSZones

    @property
    def is_limited(self) -> bool:
        return bool(self.namespaces or self.zones)

    def may(self, right: Right) -> bool:
        """Over something; what objects are asked for is another question."""
        if self.is_limited and right not in OVER_OBJECTS:
            return False
        if self.namespaces and right == "zones.export":
            return False  # a zone holds record sets of every namespace
        return right in RIGHTS[self.role]

    def may_see(self, key: Key, scope: str) -> bool:
        """Whether an object, or an event, may be read. Zones themselves can be seen by who may
        write record sets in some namespace: they are what those refer to."""
        kind = KINDS.get(ref_of(key).kind)
        if key == SETTINGS_KEY:
            return self.may("settings.read")
        if kind is None:
            return not self.is_limited
        if kind.is_internal:
            return self.may("keys")
        if kind is DNS_ZONE and not self.zones:
            return True
        return self._is_within(key, scope)

    def why_not_write(self, key: Key, before: str | None, after: str | None) -> str:
        """Why an object may not be changed, a sentence; "" where it may. `before` and `after` are
        the scopes that it has and will have, None: it is not there."""
        if not self.is_limited:
            return ""
        kind = KINDS[ref_of(key).kind]
        for scope in (before, after):
            if scope is not None and not self._is_within(key, scope):
                return f"{ref_of(key)} is outside of {self.limits}"
        if kind is DNS_ZONE and None in (before, after):
            # Whoever makes a zone chooses its DNS name, and could take one that is not theirs.
            return "a token with limits makes and deletes no zones"
        return ""

    @property
    def limits(self) -> str:
        parts = [
            f"{title} {', '.join(names)}"
            for title, names in (("namespaces", self.namespaces), ("zones", self.zones))
            if names
        ]
        return f"what this token is limited to ({'; '.join(parts)})"

    def _is_within(self, key: Key, scope: str) -> bool:
        ref, zone = ref_of(key), scope.partition("/")[2]
        if ref.kind == DNS_ZONE.name:
            return ref.name in self.zones if self.zones else not self.namespaces
        if self.namespaces and ref.namespace not in self.namespaces:
            return False
        if self.zones:
            return ref.kind == DNS_RECORD_SET.name and zone in self.zones
        return True


def catalog_fault(rights: Rights, before: Spec | None, after: Spec | None) -> str:
    """Why a zone may not be brought from one spec to another, a sentence; "" where it may. A
    catalog lists other zones, or has them made: what one is, is for tokens without limits to say.
    None: there is no such object, or its spec is of a version that allowed more."""
    if not rights.is_limited or _catalog_of(before) == _catalog_of(after):
        return ""
    return f"a catalog, and what it is filled from, concerns more than {rights.limits}"


def _catalog_of(spec: Spec | None) -> object:
    """What decides which zones a catalog lists or makes; None where it is no catalog."""
    if not isinstance(spec, DNSZoneSpec) or spec.catalog is None:
        return None
    return spec.catalog, spec.type, spec.zone_name, spec.secondary
