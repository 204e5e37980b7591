"""TSIG keys and API tokens that a cluster keeps, as Secrets of the release's namespace with the
label `kudurru.io/kind`.

    kubectl create secret generic transfer --from-literal=algorithm=hmac-sha256 \
        --from-literal=secret="$(openssl rand -base64 32)"
    kubectl label secret transfer kudurru.io/kind=TSIGKey

A Secret becomes the object of its kind in the local log, with its secret sealed beside it as ever;
when it goes, or cannot be used any more, the object is revoked. Objects that were made on this node
are left alone, and a Secret of the same name is reported. Secrets are in memory until they are
recorded, and no longer.
"""

import asyncio
import base64
import binascii
import logging
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import msgspec

from kudurru.adapters.kubernetes.client import Client
from kudurru.adapters.kubernetes.informer import Handler, Informer, Source
from kudurru.domain.commands import Apply, Delete
from kudurru.domain.errors import Cause, Conflict, Invalid, KudurruError, ManagedBy, NotFound
from kudurru.domain.events import OBJECT_DELETED, Recorded, SecretWrite
from kudurru.domain.kinds.apitoken import hash_of, name_in
from kudurru.domain.kinds.meta import API_VERSION, GROUP, is_dns_subdomain
from kudurru.domain.kinds.registry import API_TOKEN, TSIG_KEY, Kind
from kudurru.domain.kinds.validation import parse_manifest
from kudurru.domain.objects import Key, key_of, ref_of
from kudurru.domain.ports import Entropy, Timers
from kudurru.domain.secrets import FROM_CLUSTER, SALT_SIZE, digest_of, matches
from kudurru.entrypoints.cluster.facts import actor
from kudurru.entrypoints.cluster.keys import Waiting
from kudurru.entrypoints.keyring import KeyRequest, Keyring
from kudurru.entrypoints.waiting import pause
from kudurru.entrypoints.wiring import Change, Node
from kudurru.entrypoints.writer import Writer

LABEL = f"{GROUP}/kind"
SECRETS_MAX = 1_000
RETRY_US = 5_000_000
ROOM = Key("")
"""What a Secret waits for that is one too many: any other."""
READ_S = 5.0
"""While a Secret is read again, what was said before is still in use."""

log = logging.getLogger("kudurru.kubernetes")


class Kept(msgspec.Struct):
    """What a Secret says. `secret` is the octets of a TSIG key, or the hash of a token, and empty
    once that is recorded."""

    source: str  # name of the Secret
    key: Key  # of the object that it becomes
    spec: dict[str, Any]  # but for the digest
    version: str
    secret: bytes

    def __repr__(self) -> str:
        return f"Kept({self.source!r})"


class ClusterSecrets(Handler[Kept]):
    """`run` it in a task. On one event loop.

    What an object is to be is worked out from the Secrets that are there and can be used, whatever
    happened. So an object without one is revoked: its Secret went while nobody looked, or was
    changed into something that says nothing.
    """

    def __init__(
        self,
        node: Node,
        writer: Writer,
        keyring: Keyring,
        client: Client,
        namespace: str,
        *,
        timers: Timers,
        entropy: Entropy,
        chance: random.Random,
    ) -> None:
        self._node = node
        self._writer = writer
        self._keyring = keyring
        self._client = client
        self._namespace = namespace
        self._timers = timers
        self._entropy = entropy
        self._waiting: dict[Key, object] = {}
        """Objects to be looked at, each with a mark of when that was said. Without a bound: a
        revocation is never dropped."""
        self._sources: dict[Key, dict[str, Kept]] = {}
        """Secrets that could be read last, by object and name."""
        self._wake = asyncio.Event()
        self._unusable: dict[str, str] = {}
        """By Secret, why it is not used, until it is another."""
        self._told: dict[str, str] = {}
        """The same, as it was logged last, until it is used or gone."""
        self._in_the_way = Waiting()
        """Secrets that are not used for objects of this node's own, or for want of room."""
        self._second: dict[str, str] = {}
        """By Secret, which other one its object is of."""
        self._recorded: dict[Key, tuple[str, str]] = {}
        """The Secret, and its version, that an object was recorded from."""
        self._source = Source(
            f"/api/v1/namespaces/{namespace}/secrets",
            label_selector=LABEL,
        )
        self._informer: Informer[Kept] = Informer(
            client, self._source, _kept_safely, self, chance=chance
        )

    def warnings(self) -> list[str]:
        found = self._second | self._unusable
        return [f"Secret {name}: {why}" for name, why in sorted(found.items())]

    async def run(self) -> NoReturn:
        self._writer.listeners.append(self._heard)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._informer.run(), name="cluster: secrets")
                await self._keep_settled()
        finally:
            self._writer.listeners.remove(self._heard)
        raise AssertionError("unreachable")

    async def _keep_settled(self) -> NoReturn:
        while True:
            self._wake.clear()
            is_done = True
            for key in list(self._waiting):
                is_done &= await self._settle(key)
            self._fill()
            await (self._wake.wait() if is_done else pause(self._timers, RETRY_US))

    # --- hearing ------------------------------------------------------------------------

    def put(self, key: str, new: Kept, old: Kept | None) -> None:
        self._is_another(_name(key))
        if old is not None and old.key != new.key:
            self._drop(old)
        self._sources.setdefault(new.key, {})[new.source] = new
        self._look_at(new.key)

    def gone(self, key: str, last: Kept | None, version: str) -> None:
        self._is_another(_name(key))
        self._told.pop(_name(key), None)
        if last is not None and version:  # else there are no Secrets at all: no API server is so
            self._drop(last)

    def listed(self) -> None:
        if self._informer.is_absent:
            return
        self._sources = {}
        for found in self._informer.copy.values():
            self._sources.setdefault(found.key, {})[found.source] = found
        for key in self._ours():
            if self._wanted(key) is None:
                self._look_at(key)

    def broken(self, key: str, why: str) -> None:
        self._refuse(_name(key), why)
        last = self._informer.copy.get(key)
        if last is not None:
            self._look_at(last.key)

    def _heard(self, recorded: Sequence[Recorded]) -> None:
        """What went here may have been in the way of a Secret, or makes room for one."""
        for event in recorded:
            if event.type != OBJECT_DELETED or not event.key.startswith(_PREFIXES):
                continue
            self._try_again(self._in_the_way.of(event.key))
            self._wake.set()

    def _fill(self) -> None:
        """As many of those that wait for room as there is room for. The first of them may turn out
        to be of no use: then it is the next one's turn."""
        if names := self._in_the_way.of(ROOM):
            self._try_again(names[: self._room()])

    def _try_again(self, names: Iterable[str]) -> None:
        for name in names:
            found = self._informer.copy.get(f"{self._namespace}/{name}")
            if found is not None:
                self._is_another(name)
                self._look_at(found.key)

    def _drop(self, last: Kept) -> None:
        found = self._sources.get(last.key, {})
        found.pop(last.source, None)
        if not found:
            self._sources.pop(last.key, None)
        self._look_at(last.key)

    def _look_at(self, key: Key) -> None:
        self._waiting[key] = object()
        self._wake.set()

    def _is_another(self, name: str) -> None:
        self._unusable.pop(name, None)
        self._in_the_way.put(name, frozenset())
        self._second.pop(name, None)

    def _refuse(self, name: str, why: str) -> None:
        if self._told.get(name) != why:
            log.warning("the Secret %s is not used: %s", name, why)
        self._unusable[name] = self._told[name] = why

    def _wanted(self, key: Key) -> Kept | None:
        """The Secret that an object is of. Of several it is the first, as long as that is there."""
        found = self._sources.get(key, {})
        first, *others = sorted(found.keys() - self._unusable.keys()) or [""]
        for name in others:
            self._second[name] = f"{ref_of(key)} is of the Secret {first}"
            found[name].secret = b""
        return found.get(first)

    def _ours(self) -> Iterator[Key]:
        for kind in (TSIG_KEY, API_TOKEN):
            for key in self._node.objects.keys(kind.name):
                if self._manager_of(key) == FROM_CLUSTER:
                    yield key

    def _room(self) -> int:
        """Objects that there may be more."""
        return max(0, SECRETS_MAX - sum(1 for _ in self._ours()))

    def _manager_of(self, key: Key) -> str | None:
        stored = self._node.objects.find(key)
        return stored.manager if stored is not None else None

    # --- recording ----------------------------------------------------------------------

    async def _settle(self, key: Key) -> bool:
        """Whether it is done with, for now."""
        mark = self._waiting[key]
        try:
            while (found := self._wanted(key)) is not None:
                if await self._take(key, found):
                    break
            else:
                await self._revoke(key)
        except KudurruError as error:
            log.warning("%s is not recorded, and tried again: %s", ref_of(key), error)
            return False
        if self._waiting.get(key) is mark:
            del self._waiting[key]
        return True

    async def _take(self, key: Key, found: Kept) -> bool:
        """Make the object what the Secret says; False when that cannot be used, or says something
        else by now. Raises: what `submit` does, and a request: then it is tried again."""
        if self._recorded.get(key) == (found.source, found.version):
            return True
        try:
            self._check_place(key)
            secret = found.secret or await self._read_again(key, found)
            change = self._change(key, found, secret)
            if change is not None:
                await self._writer.submit(change)
        except (Invalid, ManagedBy, Conflict) as error:
            if self._sources.get(key, {}).get(found.source) is found:
                self._refuse(found.source, _why(error))
                self._in_the_way.put(found.source, frozenset(_waits_for(error, key)))
                found.secret = b""
            return False
        self._second.pop(found.source, None)
        self._told.pop(found.source, None)
        self._recorded[key] = (found.source, found.version)
        found.secret = b""
        return True

    async def _read_again(self, key: Key, found: Kept) -> bytes:
        """The secret of one that was recorded before, or was the second of its object. When that
        fails, what the object was recorded from is used no more. Raises: Invalid when it is another
        by now, of which the informer tells; what a request does."""
        source = Source(self._source.path, found.source, LABEL)
        try:
            page = await self._client.with_limit(READ_S).get(source.target(), _Secrets)
        except KudurruError:
            await self._revoke(key)
            raise
        for document in page.items or ():
            with suppress(ValueError):
                now = _kept_safely(document)
                if (now.key, now.version) == (found.key, found.version):
                    return now.secret
        raise Invalid(f"Secret {found.source}", [Cause("", "it changed meanwhile")])

    async def _revoke(self, key: Key) -> None:
        self._recorded.pop(key, None)
        if self._manager_of(key) != FROM_CLUSTER:
            return
        delete = Delete(key=key, manager=FROM_CLUSTER)
        change = Change(commands=(delete,), who=_WHO, secrets=(SecretWrite(key, None),))
        with suppress(NotFound):
            await self._writer.submit(change)
        log.info("%s is revoked: no Secret that can be used has it", ref_of(key))

    def _check_place(self, key: Key) -> None:
        """Before anything is asked for it. Raises: ManagedBy, _TooMany."""
        manager = self._manager_of(key)
        if manager not in (None, FROM_CLUSTER):
            raise ManagedBy(str(ref_of(key)), str(manager))
        if manager is None and not self._room():
            raise _TooMany("", [Cause("", f"it is one of more than {SECRETS_MAX}")])

    def _change(self, key: Key, found: Kept, secret: bytes) -> Change | None:
        """What to record; None where the log has it. Raises: Invalid."""
        if self._is_recorded(found, secret):
            return None
        if key.startswith(f"{TSIG_KEY.name}/"):
            return self._tsig(found, secret)
        return self._token(found, secret)

    def _is_recorded(self, found: Kept, secret: bytes) -> bool:
        stored = self._node.objects.find(found.key)
        if stored is None or self._node.log.secret(found.key) is None:
            return False
        spec: dict[str, Any] = msgspec.json.decode(stored.body.spec)
        digest = spec.pop("tokenDigest", None) or spec.pop("secretDigest", "")
        wanted = {name: value for name, value in found.spec.items() if value}
        held = {name: value for name, value in spec.items() if value}
        return matches(secret, digest) and held == wanted

    def _tsig(self, found: Kept, secret: bytes) -> Change:
        spec = found.spec
        request = KeyRequest(
            name=ref_of(found.key).name,
            algorithm=spec["algorithm"],
            secret=secret,
            updates=spec.get("updates", []),
            replace=True,
        )
        change = self._keyring.creation(request, _WHO, self._entropy)
        (command,) = change.commands
        command = msgspec.structs.replace(command, manager=FROM_CLUSTER)
        return msgspec.structs.replace(change, commands=(command,))

    def _token(self, found: Kept, secret: bytes) -> Change:
        digest = digest_of(secret, self._entropy.token(SALT_SIZE))
        document = {
            "apiVersion": API_VERSION,
            "kind": API_TOKEN.name,
            "metadata": {"name": ref_of(found.key).name},
            "spec": found.spec | {"tokenDigest": digest},
        }
        manifest = parse_manifest(document, what=f"Secret {found.source}", default_namespace="")
        command = Apply(manifest=manifest, manager=FROM_CLUSTER)
        write = SecretWrite(found.key, secret)
        return Change(commands=(command,), who=_WHO, secrets=(write,))


class _TooMany(Invalid):
    pass


_WHO = actor("secrets")


class _Secrets(msgspec.Struct, frozen=True):
    items: list[dict[str, Any]] | None = None

    def __repr__(self) -> str:
        return "_Secrets()"


# --- Secrets, read -----------------------------------------------------------------------------


def _kept_safely(document: dict[str, Any]) -> Kept:
    """As `kept`; of what was not thought of the error may have a piece of the secret."""
    try:
        return kept(document)
    except ValueError:
        raise
    except Exception:
        raise ValueError("it cannot be read") from None


def kept(document: dict[str, Any]) -> Kept:
    """What a Secret says. Raises: ValueError, whose text tells nothing of the secret."""
    metadata = document["metadata"]
    kind = _KINDS.get(str((metadata.get("labels") or {}).get(LABEL)))
    if kind is None:
        raise ValueError(f"the label {LABEL} is neither {API_TOKEN.name} nor {TSIG_KEY.name}")
    data = {name: _octets(name, text) for name, text in (document.get("data") or {}).items()}
    name = _text(data, "name") or str(metadata["name"])
    if not is_dns_subdomain(name):
        raise ValueError("data.name is no name")
    read = _tsig_of if kind is TSIG_KEY else _token_of
    secret, spec = read(data, name)
    return Kept(metadata["name"], key_of(kind.name, "", name), spec, metadata["resourceVersion"],
                secret)  # fmt: skip


def _tsig_of(data: dict[str, bytes], _name: str) -> tuple[bytes, dict[str, Any]]:
    """`secret` is in base64, as every name server has it."""
    _check_known(data, ("name", "algorithm", "secret", "updates"))
    spec: dict[str, Any] = {"algorithm": _text(data, "algorithm") or "hmac-sha256"}
    if updates := _json(data, "updates", list[dict[str, Any]]):
        spec["updates"] = updates
    try:
        secret = base64.b64decode(_text(data, "secret"), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("data.secret is not in base64") from None
    if not secret:
        raise ValueError("data.secret is missing")
    return secret, spec


def _token_of(data: dict[str, bytes], name: str) -> tuple[bytes, dict[str, Any]]:
    """`token` is what is sent as a bearer token, so that a pod can mount the same Secret."""
    _check_known(data, ("name", "token", "role", "expiresAt", "namespaces", "zones", "cidrs"))
    token = _text(data, "token")
    if name_in(token) != name:
        raise ValueError(f"data.token is not kudurru_{name}_ and 64 hexadecimal digits")
    spec: dict[str, Any] = {"role": _text(data, "role"), "expiresAt": _text(data, "expiresAt")}
    if spec["role"] == "bootstrap":
        raise ValueError("data.role: bootstrap is the server's")
    for field in ("namespaces", "zones", "cidrs"):
        if found := [one.strip() for one in _text(data, field).split(",") if one.strip()]:
            spec[field] = found
    return hash_of(token), spec


_KINDS: dict[str, Kind] = {kind.name: kind for kind in (API_TOKEN, TSIG_KEY)}
_PREFIXES = tuple(f"{name}/" for name in _KINDS)


def _check_known(data: Iterable[str], known: tuple[str, ...]) -> None:
    if others := sorted(set(data) - set(known)):
        raise ValueError(f"data.{others[0]} is not known; there are {', '.join(known)}")


def _octets(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError(f"data.{name} is not in base64") from None


def _text(data: dict[str, bytes], name: str) -> str:
    try:
        return data.get(name, b"").decode("ascii").strip()
    except UnicodeDecodeError:
        raise ValueError(f"data.{name} is not ASCII") from None


def _json(data: dict[str, bytes], name: str, type_: Any) -> Any:
    if name not in data:
        return None
    try:
        return msgspec.json.decode(data[name], type=type_)
    except msgspec.DecodeError as error:
        raise ValueError(f"data.{name}: {error}") from None


def _name(key: str) -> str:
    return key.rpartition("/")[2]


def _waits_for(error: KudurruError, key: Key) -> Iterator[Key]:
    """What has to go before a Secret can be used; none where it has to be another."""
    if isinstance(error, ManagedBy):
        yield key
    if isinstance(error, _TooMany):
        yield ROOM


def _why(error: KudurruError) -> str:
    if isinstance(error, Invalid):
        return "; ".join(str(cause) for cause in error.causes)
    return str(error)
