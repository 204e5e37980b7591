"""TSIG keys and API tokens that a cluster keeps, as Secrets of the release's namespace with the
label `kudurru.io/kind`.

    kubectl create secret generic transfer --from-literal=algorithm=hmac-sha256 \
        --from-literal=secret="$(openssl rand -base64 32)"
    kubectl label secret transfer kudurru.io/kind=TSIGKey

A Secret becomes the object of its kind in the local log, with its secret sealed beside it as ever;
when it goes, the object is revoked. Objects that were made on this node are left alone, and a
Secret of the same name is reported. Secrets are in memory no longer than until they are recorded.
"""

import asyncio
import base64
import binascii
import logging
import random
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import msgspec

from kudurru.adapters.kubernetes.client import Client
from kudurru.adapters.kubernetes.informer import Handler, Informer, Source
from kudurru.domain.commands import Apply, Delete
from kudurru.domain.errors import Conflict, Invalid, KudurruError, ManagedBy, NotFound
from kudurru.domain.events import SecretWrite
from kudurru.domain.kinds.apitoken import hash_of, name_in
from kudurru.domain.kinds.meta import API_VERSION, GROUP, is_dns_subdomain
from kudurru.domain.kinds.registry import API_TOKEN, TSIG_KEY, Kind
from kudurru.domain.kinds.validation import parse_manifest
from kudurru.domain.objects import Key, key_of, ref_of
from kudurru.domain.ports import Entropy, Timers
from kudurru.domain.secrets import FROM_CLUSTER, SALT_SIZE, digest_of, matches
from kudurru.entrypoints.cluster_facts import actor
from kudurru.entrypoints.keyring import KeyRequest, Keyring
from kudurru.entrypoints.waiting import pause
from kudurru.entrypoints.wiring import Change, Node
from kudurru.entrypoints.writer import Writer

LABEL = f"{GROUP}/kind"
SECRETS_MAX = 1_000
RETRY_US = 5_000_000

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
    """`run` it in a task. On one event loop."""

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
        self._timers = timers
        self._entropy = entropy
        self._waiting: dict[Key, Kept | None] = {}  # None: it is gone
        self._wake = asyncio.Event()
        self._problems: dict[str, str] = {}  # by Secret
        self._source = Source(
            f"/api/v1/namespaces/{namespace}/secrets",
            label_selector=LABEL,
        )
        self._informer: Informer[Kept] = Informer(client, self._source, kept, self, chance=chance)

    def warnings(self) -> list[str]:
        return [f"Secret {name}: {why}" for name, why in sorted(self._problems.items())]

    async def run(self) -> NoReturn:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._informer.run(), name="cluster: secrets")
            while True:
                self._wake.clear()
                is_done = True
                for key, found in list(self._waiting.items()):
                    is_done &= await self._settle(key, found)
                await (self._wake.wait() if is_done else pause(self._timers, RETRY_US))
        raise AssertionError("unreachable")

    # --- hearing ------------------------------------------------------------------------

    def put(self, key: str, new: Kept, old: Kept | None) -> None:
        self._problems.pop(_name(key), None)
        if old is not None and old.key != new.key:
            self._wait(old.key, self._another_of(old.key))
        self._wait(new.key, new)

    def gone(self, key: str, last: Kept | None, version: str) -> None:  # noqa: ARG002
        self._problems.pop(_name(key), None)
        if last is not None:
            self._wait(last.key, self._another_of(last.key))

    def read(self, version: str) -> None:  # noqa: ARG002
        """What was a Secret when this node last ran, and is none now, is revoked. While one cannot
        be read nobody knows which object that was."""
        if self._informer.is_absent or self._problems:
            return
        there = {found.key for found in self._informer.copy.values()}
        for key in self._ours():
            if key not in there:
                self._wait(key, None)

    def broken(self, key: str, why: str) -> None:
        self._note(_name(key), why)

    def _wait(self, key: Key, found: Kept | None) -> None:
        if key in self._waiting or len(self._waiting) < SECRETS_MAX:
            self._waiting[key] = found
            self._wake.set()
        elif found is not None:
            self._note(found.source, f"it is one of more than {SECRETS_MAX}")

    def _another_of(self, key: Key) -> Kept | None:
        """Another Secret for the same object, whose word holds now."""
        return next((one for one in self._informer.copy.values() if one.key == key), None)

    def _note(self, name: str, why: str) -> None:
        if self._problems.get(name) != why:
            log.warning("the Secret %s is not used: %s", name, why)
        self._problems[name] = why

    def _ours(self) -> Iterator[Key]:
        for kind in (TSIG_KEY, API_TOKEN):
            for key in self._node.objects.keys(kind.name):
                if self._manager_of(key) == FROM_CLUSTER:
                    yield key

    def _manager_of(self, key: Key) -> str | None:
        stored = self._node.objects.find(key)
        return stored.manager if stored is not None else None

    # --- recording ----------------------------------------------------------------------

    async def _settle(self, key: Key, found: Kept | None) -> bool:
        """Whether it is done with, for now."""
        try:
            change = self._change(key, found)
            if change is not None:
                await self._writer.submit(change)
        except (Invalid, ManagedBy, Conflict) as error:
            if found is not None:
                self._note(found.source, _why(error))
        except NotFound:
            pass  # it is gone already
        except KudurruError as error:
            log.warning("%s is not recorded, and tried again: %s", ref_of(key), error)
            return False
        if found is not None:
            found.secret = b""
        if self._waiting.get(key) is found:
            del self._waiting[key]
        return True

    def _change(self, key: Key, found: Kept | None) -> Change | None:
        """What to record; None where the log has it. Raises: Invalid, ManagedBy."""
        manager = self._manager_of(key)
        if found is None:
            if manager != FROM_CLUSTER:
                return None
            delete = Delete(key=key, manager=FROM_CLUSTER)
            return Change(commands=(delete,), who=_WHO, secrets=(SecretWrite(key, None),))
        if not found.secret:
            return None  # recorded before
        if manager not in (None, FROM_CLUSTER):
            raise ManagedBy(str(ref_of(key)), str(manager))
        if self._is_recorded(found):
            return None
        if key.startswith(f"{TSIG_KEY.name}/"):
            return self._tsig(found)
        return self._token(found)

    def _is_recorded(self, found: Kept) -> bool:
        stored = self._node.objects.find(found.key)
        if stored is None or self._node.log.secret(found.key) is None:
            return False
        spec: dict[str, Any] = msgspec.json.decode(stored.body.spec)
        digest = spec.pop("tokenDigest", None) or spec.pop("secretDigest", "")
        wanted = {name: value for name, value in found.spec.items() if value}
        held = {name: value for name, value in spec.items() if value}
        return matches(found.secret, digest) and held == wanted

    def _tsig(self, found: Kept) -> Change:
        spec = found.spec
        request = KeyRequest(
            name=ref_of(found.key).name,
            algorithm=spec["algorithm"],
            secret=found.secret,
            updates=spec.get("updates", []),
            replace=True,
        )
        change = self._keyring.creation(request, _WHO, self._entropy)
        (command,) = change.commands
        command = msgspec.structs.replace(command, manager=FROM_CLUSTER)
        return msgspec.structs.replace(change, commands=(command,))

    def _token(self, found: Kept) -> Change:
        digest = digest_of(found.secret, self._entropy.token(SALT_SIZE))
        document = {
            "apiVersion": API_VERSION,
            "kind": API_TOKEN.name,
            "metadata": {"name": ref_of(found.key).name},
            "spec": found.spec | {"tokenDigest": digest},
        }
        manifest = parse_manifest(document, what=f"Secret {found.source}", default_namespace="")
        command = Apply(manifest=manifest, manager=FROM_CLUSTER)
        secret = SecretWrite(found.key, found.secret)
        return Change(commands=(command,), who=_WHO, secrets=(secret,))


_WHO = actor("secrets")


# --- Secrets, read -----------------------------------------------------------------------------


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


def _why(error: KudurruError) -> str:
    if isinstance(error, Invalid):
        return "; ".join(str(cause) for cause in error.causes)
    return str(error)
