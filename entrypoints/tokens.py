"""Tokens of the API: made, found by who checks a request, taken away; and the first one of all.

The object is in the log, a hash of the token beside it, so that neither the log nor a copy of it
lets anybody in. A token counts when both are there and belong together: a token that was revoked
does not come back with an old table, nor with a restore.
"""

import hmac
from datetime import timedelta
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Literal

import msgspec

from kudurru.domain.access import Rights, Role
from kudurru.domain.commands import ABSENT, Apply, Delete
from kudurru.domain.errors import Cause, Invalid, NotFound
from kudurru.domain.events import SecretWrite, Who
from kudurru.domain.kinds.apitoken import (
    SECRET_SIZE,
    APITokenSpec,
    decode_spec,
    expiry_us,
    hash_of,
    name_in,
    token_text,
)
from kudurru.domain.kinds.meta import API_VERSION
from kudurru.domain.kinds.registry import API_TOKEN
from kudurru.domain.kinds.validation import parse_manifest
from kudurru.domain.notation import Network, duration_text, time_text
from kudurru.domain.object_store import DEFAULT_MANAGER, StoredObject
from kudurru.domain.objects import Key, key_of, ref_of
from kudurru.domain.ports import ClusterUser, Entropy
from kudurru.domain.secrets import SALT_SIZE, digest_of, matches
from kudurru.entrypoints.keyring import check_kept_here
from kudurru.entrypoints.read_once import ReadOnce
from kudurru.entrypoints.wiring import Change, Node

TOKENS_MAX = 1_000
"""Tokens of one log: a home has a handful, a company one for each program."""

BOOTSTRAP = "bootstrap"
BOOTSTRAP_LIFETIME = timedelta(hours=24)
YEAR = timedelta(days=365)


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token to make. Without namespaces and zones it is limited to none, and so on."""

    name: str
    role: Literal["viewer", "operator", "admin", "follower"]
    namespaces: list[str] = []
    zones: list[str] = []
    cidrs: list[str] = []
    lifetime_s: int | None = msgspec.field(default=None, name="lifetimeSeconds")
    reason: str = ""


class TokenState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A token as an operator sees it."""

    name: str
    role: Role
    namespaces: list[str]
    zones: list[str]
    cidrs: list[str]
    created: str
    expires_at: str
    last_used: str = ""  # RFC 3339; empty: not since it is remembered
    problem: str = ""  # empty where it works


class NewToken(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A token that was made. `token` is told now and never again."""

    name: str
    role: Role
    expires_at: str
    token: str

    def __repr__(self) -> str:
        return f"NewToken({self.name!r})"


class Principal(msgspec.Struct, frozen=True):
    """Who asks, once that is sure."""

    name: str
    rights: Rights
    applied: int
    """Seq of the event that made the token: another one of its name is somebody else."""
    user: ClusterUser | None = None
    """Who it is in the cluster, for somebody without a token of ours."""

    @property
    def actor(self) -> str:
        return f"kubernetes-user:{self.user.name}" if self.user else f"token:{self.name}"


class NotLetIn(Exception):
    """A token that does not count. `name` is that of the token that it is, `claimed` of one that
    is there and that it only says to be, "" where it is none; `why` is a word for the audit; the
    text is for who holds it."""

    def __init__(
        self,
        why: Literal["unknown", "expired", "address"],
        text: str,
        *,
        name: str = "",
        claimed: str = "",
    ) -> None:
        self.why = why
        self.name = name
        self.claimed = claimed
        super().__init__(text)


class _Held(msgspec.Struct, frozen=True):
    spec: APITokenSpec
    created: str
    principal: Principal
    networks: tuple[Network, ...]
    expires_us: int
    hash: bytes  # empty: the token does not count
    problem: str


class Tokens:
    """Tokens by name, as the newest events have them."""

    def __init__(self, node: Node, *, max_lifetime: timedelta = YEAR) -> None:
        self._node = node
        self._objects = node.objects
        self._max_lifetime = max_lifetime
        self._held = ReadOnce(node, self._open)
        self._counted: tuple[int, int, Principal] | None = None  # position, second, and who
        self.used_s: dict[str, int] = {}
        """Unix time of the last use by name, as far as it is remembered."""

    def find(self, text: str, address: str) -> Principal:
        """Whose token a text is, and whether it counts now and from there. Raises: NotLetIn;
        StorageFailed when that cannot be told."""
        name = name_in(text)
        held = self._held.find(_key(name)) if name is not None else None
        given, kept = hash_of(text), held.hash if held is not None else b""
        if held is None or name is None or not hmac.compare_digest(given, kept):
            claimed = held.principal.name if held is not None else ""
            fault = "the token is not known here, or was revoked"
            raise NotLetIn("unknown", fault, claimed=claimed)
        now_us = self._node.clock.now_us()
        if self._is_over(held, now_us):
            fault = f"the token expired, at {held.spec.expires_at} at the latest: make another"
            raise NotLetIn("expired", fault, name=name)
        if held.networks and not _is_in(address, held.networks):
            fault = "the token does not count from this address"
            raise NotLetIn("address", fault, name=name)
        self.used_s[name] = now_us // 1_000_000
        return held.principal

    def still_counts(self, principal: Principal) -> bool:
        """Whether what somebody was let in with some time ago lets them in still."""
        now_us = self._node.clock.now_us()
        # Tokens come and go with events, and expire to the second: until either goes on, who
        # counted does. Requests that are read together are asked for once.
        asked = (self._objects.position, now_us // 1_000_000, principal)
        if asked == self._counted:
            return True
        held = self._held.find(_key(principal.name))
        does = (
            held is not None
            and bool(held.hash)
            and held.principal == principal
            and not self._is_over(held, now_us)
        )
        if does:
            self._counted = asked
        return does

    def _is_over(self, held: _Held, now_us: int) -> bool:
        """Whether a token has had its time; the first one has when there is an admin."""
        return now_us >= held.expires_us or (held.spec.role == BOOTSTRAP and self.has_admin())

    def has_admin(self) -> bool:
        """Whether a token counts that may make others."""
        now_us = self._node.clock.now_us()
        return any(
            held.spec.role == "admin"
            and bool(held.hash)
            and now_us < held.expires_us
            and not held.principal.rights.is_limited
            for held in self._all()
        )

    def states(self) -> list[TokenState]:
        """Every token, in order of names."""
        now_us = self._node.clock.now_us()
        return [
            TokenState(
                name=held.principal.name,
                role=held.spec.role,
                namespaces=held.spec.namespaces,
                zones=held.spec.zones,
                cidrs=held.spec.cidrs,
                created=held.created,
                expires_at=held.spec.expires_at,
                last_used=self._last_used(held.principal.name),
                problem=held.problem or ("expired" if now_us >= held.expires_us else ""),
            )
            for held in self._all()
        ]

    def _last_used(self, name: str) -> str:
        used_s = self.used_s.get(name)
        return time_text(used_s * 1_000_000) if used_s else ""

    def _all(self) -> list[_Held]:
        keys = self._node.objects.keys(API_TOKEN.name)
        return [held for key in keys if (held := self._held.find(key)) is not None]

    def _open(self, stored: StoredObject, applied: int) -> _Held:
        spec = decode_spec(stored.body.spec)
        kept = self._node.log.secret(stored.key)
        problem = ""
        if kept is None:
            problem = "its hash is not here, as in a log that came from a backup: make another"
        elif not matches(kept, spec.token_digest):
            problem = "its hash is of another version of the token: make another"
        rights = Rights(role=spec.role, namespaces=tuple(spec.namespaces), zones=tuple(spec.zones))
        return _Held(
            spec=spec,
            created=stored.body.creation_timestamp,
            principal=Principal(ref_of(stored.key).name, rights, applied),
            networks=tuple(ip_network(text, strict=False) for text in spec.cidrs),
            expires_us=expiry_us(spec) or 0,
            hash=kept if kept is not None and not problem else b"",
            problem=problem,
        )

    # --- changing -----------------------------------------------------------------------

    def creation(
        self, request: TokenRequest, who: Who, entropy: Entropy
    ) -> tuple[Change, NewToken]:
        """The change that makes a token, and the token. Raises: Invalid; the change is refused
        with Conflict where the name is taken."""
        if request.name == BOOTSTRAP:
            raise Invalid("token create", [Cause("name", f"{BOOTSTRAP} is a name of the server's")])
        keys = self._node.objects.keys(API_TOKEN.name)
        if len(keys) >= TOKENS_MAX:
            raise Invalid("token create", [Cause("", f"there are {TOKENS_MAX}; revoke some")])
        lifetime = self._lifetime(request.lifetime_s)
        return self._creation(request, request.role, lifetime, who, entropy)

    def _lifetime(self, given_s: int | None) -> timedelta:
        longest_s = int(self._max_lifetime.total_seconds())
        if given_s is None:
            return timedelta(seconds=longest_s)
        if not 1 <= given_s <= longest_s:
            fault = f"{given_s} s; at most {duration_text(self._max_lifetime)}, see auth.tokens"
            raise Invalid("token create", [Cause("lifetimeSeconds", fault)])
        return timedelta(seconds=given_s)

    def _creation(
        self, request: TokenRequest, role: Role, lifetime: timedelta, who: Who, entropy: Entropy
    ) -> tuple[Change, NewToken]:
        text = token_text(request.name, entropy.token(SECRET_SIZE))
        now_s = self._node.clock.now_us() // 1_000_000
        expires_at = time_text((now_s + int(lifetime.total_seconds())) * 1_000_000)
        document = {
            "apiVersion": API_VERSION,
            "kind": API_TOKEN.name,
            "metadata": {"name": request.name},
            "spec": {
                "role": role,
                "namespaces": request.namespaces,
                "zones": request.zones,
                "cidrs": request.cidrs,
                "expiresAt": expires_at,
                "tokenDigest": digest_of(hash_of(text), entropy.token(SALT_SIZE)),
            },
        }
        manifest = parse_manifest(document, what="token create", default_namespace="")
        command = Apply(manifest=manifest, manager=DEFAULT_MANAGER, expected=ABSENT)
        secret = SecretWrite(manifest.key, hash_of(text))
        new = NewToken(name=request.name, role=role, expires_at=expires_at, token=text)
        return Change(commands=(command,), who=who, secrets=(secret,)), new

    def revocation(self, name: str, who: Who) -> Change:
        """The change that takes a token away, hash and all. Raises: NotFound; Conflict for one
        that a cluster keeps."""
        key = _key(name)
        if self._node.objects.entry(key) is None:
            raise NotFound(f"there is no token {name!r}")
        check_kept_here(self._node, key)
        return Change(commands=(Delete(key=key),), who=who, secrets=(SecretWrite(key, None),))

    # --- the first one ------------------------------------------------------------------

    def has_bootstrap(self) -> bool:
        """Whether the token that makes the first one is there still."""
        return self._held.find(_key(BOOTSTRAP)) is not None

    def is_bootstrap_over(self) -> bool:
        """Whether it has had its time, or is not needed any more."""
        held = self._held.find(_key(BOOTSTRAP))
        now_us = self._node.clock.now_us()
        return held is None or now_us >= held.expires_us or self.has_admin()

    def is_bootstrapped(self) -> bool:
        """Whether this log had its first token, or has others."""
        has_some = bool(self._node.objects.keys(API_TOKEN.name))
        return has_some or self._node.objects.version(_key(BOOTSTRAP)) > 0

    def bootstrap(self, who: Who, entropy: Entropy) -> tuple[Change, NewToken]:
        """The token that can only make others."""
        request = TokenRequest(name=BOOTSTRAP, role="viewer")
        return self._creation(request, "bootstrap", BOOTSTRAP_LIFETIME, who, entropy)


@lru_cache(TOKENS_MAX)  # of those that come with every request
def _key(name: str) -> Key:
    return key_of(API_TOKEN.name, "", name)


def _is_in(address: str, networks: tuple[Network, ...]) -> bool:
    parsed = ip_address(address.partition("%")[0])
    mapped = getattr(parsed, "ipv4_mapped", None)
    return any((mapped or parsed) in network for network in networks)
