"""TSIG keys of a node: made, found by who verifies a signature, and what is wrong with them.

The object is in the log, the secret sealed beside it. A key works when both are there and belong
together; everything else is a problem that says what to do, and never stops the start of a node.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from kudurru.domain.commands import Apply, Delete
from kudurru.domain.dns import names
from kudurru.domain.dns.names import Name
from kudurru.domain.dns.tsig import ALGORITHMS, SECRET_MAX, SECRET_MIN, TsigKey
from kudurru.domain.errors import Cause, Conflict, Invalid, NotFound
from kudurru.domain.events import SecretWrite, Who
from kudurru.domain.kinds.meta import API_VERSION
from kudurru.domain.kinds.registry import TSIG_KEY
from kudurru.domain.kinds.tsigkey import TSIGKeySpec, decode_spec
from kudurru.domain.kinds.validation import parse_manifest
from kudurru.domain.object_store import DEFAULT_MANAGER, StoredObject
from kudurru.domain.objects import Key, key_of, ref_of
from kudurru.domain.ports import Entropy, SecretBox
from kudurru.domain.secrets import FROM_CLUSTER, SALT_SIZE, digest_of, matches
from kudurru.entrypoints.read_once import ReadOnce
from kudurru.entrypoints.wiring import Change, Node

KEYS_MAX = 1_000
"""TSIG keys of one log: each is read at a start."""


class KeyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A key to make, or to give its secret again."""

    name: str
    algorithm: str
    secret: bytes
    updates: list[dict[str, Any]] = []
    replace: bool = False  # a key that works may get another secret or algorithm
    reason: str = ""

    def __repr__(self) -> str:
        return f"KeyRequest({self.name!r})"


class KeyState(msgspec.Struct, frozen=True, kw_only=True):
    """A key as an operator sees it. `problem` is empty where it works."""

    name: str
    algorithm: str
    created: str
    updates: list[dict[str, Any]]
    problem: str = ""


class _Held(msgspec.Struct, frozen=True):
    spec: TSIGKeySpec
    created: str
    key: TsigKey | None
    problem: str


class Keyring:
    """Keys by name, as the newest events have them. `allow_old` lets algorithms be used that are
    broken or weak."""

    def __init__(self, node: Node, box: SecretBox, *, allow_old: bool = False) -> None:
        self._node = node
        self._box = box
        self._allow_old = allow_old
        self._held = ReadOnce(node, self._open)

    def find(self, name: Name) -> TsigKey | None:
        """The key of a lower-case name, None where there is none that works. Raises: StorageFailed
        when that cannot be told."""
        held = self._held.find(_object_key(name))
        return held.key if held is not None else None

    def spec(self, name: Name) -> TSIGKeySpec | None:
        """What a key is for."""
        held = self._held.find(_object_key(name))
        return held.spec if held is not None else None

    def states(self) -> list[KeyState]:
        """Every key, in order of names."""
        found = []
        for key in self._node.objects.keys(TSIG_KEY.name):
            held = self._held.find(key)
            if held is not None:
                found.append(_state(key, held))
        return found

    def problems(self) -> list[str]:
        """What to do about keys that do not work, a sentence for each."""
        return [f"TSIG key {s.name}: {s.problem}" for s in self.states() if s.problem]

    def _open(self, stored: StoredObject, _: int) -> _Held:
        spec = decode_spec(stored.body.spec)
        sealed = self._node.log.secret(stored.key)
        secret = self._box.open(stored.key, sealed) if sealed is not None else None
        problem = self._problem(spec, sealed, secret)
        opened = None
        if secret is not None and not problem:
            name = names.key(names.from_text(ref_of(stored.key).name))
            opened = TsigKey(name, ALGORITHMS[spec.algorithm], secret)
        return _Held(spec, stored.body.creation_timestamp, opened, problem)

    def _problem(self, spec: TSIGKeySpec, sealed: bytes | None, secret: bytes | None) -> str:
        if sealed is None:
            return f"its secret is not here: {_GIVE_AGAIN}"
        if secret is None:
            sealer, ours = self._box.id_of(sealed) or "unknown", self._box.id or "none"
            return (
                f"its secret was sealed with node key {sealer} and this node has {ours}: copy "
                f"keys/node.key of the node that made it, mode 0600, and restart, or {_GIVE_AGAIN}"
            )
        if not matches(secret, spec.secret_digest):
            return f"its secret is of another version of the key: {_GIVE_AGAIN}"
        if ALGORITHMS[spec.algorithm].is_old and not self._allow_old:
            return f"{spec.algorithm} is off: set tsig.allowOld, or make a key of another algorithm"
        return ""

    # --- changing -----------------------------------------------------------------------

    def creation(self, request: KeyRequest, who: Who, entropy: Entropy) -> Change:
        """The change that makes a key. Raises: Invalid; Conflict when it is there and works;
        StorageFailed when the node key cannot be made."""
        _check_secret(request)
        spec = TSIGKeySpec(
            algorithm=request.algorithm,  # type: ignore[arg-type]  # checked with the manifest
            secret_digest=digest_of(request.secret, entropy.token(SALT_SIZE)),
            updates=[],
        )
        document = {
            "apiVersion": API_VERSION,
            "kind": TSIG_KEY.name,
            "metadata": {"name": request.name.lower().removesuffix(".")},
            "spec": {**msgspec.to_builtins(spec), "updates": request.updates},
        }
        manifest = parse_manifest(document, what="tsig create", default_namespace="")
        key = manifest.key
        self._check_room(key, request)
        command = Apply(manifest=manifest, manager=DEFAULT_MANAGER)
        write = SecretWrite(key, self._box.seal(key, request.secret))
        return Change(commands=(command,), who=who, secrets=(write,))

    def _check_room(self, key: Key, request: KeyRequest) -> None:
        held = self._held.find(key)
        if held is not None and not held.problem and not request.replace:
            raise Conflict(
                f"key {request.name} is there and works: revoke it, or give it another secret "
                "with --replace"
            )
        keys = self._node.objects.keys(TSIG_KEY.name)
        if held is None and len(keys) >= KEYS_MAX:
            raise Invalid("tsig create", [Cause("", f"there are {KEYS_MAX} keys; revoke some")])
        if not request.replace:
            self._check_same_node_key(keys)

    def _check_same_node_key(self, keys: Sequence[Key]) -> None:
        """Two nodes of one log that seal with different keys cannot read each other's secrets."""
        ours = self._box.id
        for sealed in filter(None, map(self._node.log.secret, keys)):
            theirs = self._box.id_of(sealed)
            if theirs != ours:
                fault = (
                    f"the secrets of this log are sealed with node key {theirs} and this node has "
                    f"{ours or 'none'}: copy keys/node.key of the node that made them, mode 0600; "
                    "where it is lost, give each key again with --replace"
                )
                raise Invalid("tsig create", [Cause("", fault)])


_GIVE_AGAIN = "give it again with `kudurru tsig create NAME --secret-file F --replace`"


def _object_key(name: Name) -> Key:
    return key_of(TSIG_KEY.name, "", names.to_text(name, final_dot=False))


def _state(key: Key, held: _Held) -> KeyState:
    return KeyState(
        name=ref_of(key).name,
        algorithm=held.spec.algorithm,
        created=held.created,
        updates=msgspec.to_builtins(held.spec.updates),
        problem=held.problem,
    )


def _check_secret(request: KeyRequest) -> None:
    size = len(request.secret)
    causes = []
    if not SECRET_MIN <= size <= SECRET_MAX:
        causes.append(
            Cause("secret", f"{size} octets; between {SECRET_MIN} and {SECRET_MAX} are safe to use")
        )
    if request.algorithm not in ALGORITHMS:
        known = ", ".join(ALGORITHMS)
        causes.append(
            Cause("--algorithm", f"{request.algorithm!r} is not known; there are {known}")
        )
    if causes:
        raise Invalid("tsig create", causes)


def revocation(node: Node, name: str, who: Who) -> Change:
    """The change that takes a key away, secret and all. Raises: NotFound; Conflict for one that a
    cluster keeps."""
    key = key_of(TSIG_KEY.name, "", name.lower().removesuffix("."))
    if node.objects.entry(key) is None:
        raise NotFound(f"there is no TSIG key {name!r}")
    check_kept_here(node, key)
    return Change(commands=(Delete(key=key),), who=who, secrets=(SecretWrite(key, None),))


def check_kept_here(node: Node, key: Key) -> None:
    """Raises: Conflict."""
    stored = node.objects.find(key)
    if stored is not None and stored.manager == FROM_CLUSTER:
        raise Conflict(f"{ref_of(key)} is a Secret of the cluster: delete it there")


def key_clauses(name: str, algorithm: str, secret: str) -> dict[str, str]:
    """How other servers are told of a key, by server."""
    return {
        "BIND": f'key "{name}" {{\n\talgorithm {algorithm};\n\tsecret "{secret}";\n}};',
        "NSD": f'key:\n\tname: "{name}"\n\talgorithm: {algorithm}\n\tsecret: "{secret}"',
        "Knot": f"key:\n  - id: {name}\n    algorithm: {algorithm}\n    secret: {secret}",
    }
