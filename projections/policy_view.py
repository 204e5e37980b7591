"""What filters, from ClientGroup, Policy and BlockList objects and pauses.

Objects are compiled when their events come; the whole, `filters`, is put together when it is asked
for after a change, and replaced, never changed. What it remembers of clients is bounded and goes
with it. Time passes in it: pauses end by `advance`, schedules by the moment of each question.
"""

from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import NamedTuple

import msgspec

from kudurru.domain.events import (
    BLOCKING_SET,
    OBJECT_APPLIED,
    OBJECT_DELETED,
    Position,
    Recorded,
)
from kudurru.domain.filtering import pauses
from kudurru.domain.filtering.clients import ClientIndex, Place, places_of
from kudurru.domain.filtering.decision import Filters
from kudurru.domain.filtering.policies import BlockDefaults, CompiledPolicy
from kudurru.domain.filtering.schedules import TimeZones
from kudurru.domain.kinds.clientgroup import ClientGroupSpec
from kudurru.domain.kinds.meta import Reason, is_enabled
from kudurru.domain.kinds.policy import PolicySpec
from kudurru.domain.kinds.registry import BLOCK_LIST, CLIENT_GROUP, POLICY
from kudurru.domain.lists.matcher import Matcher
from kudurru.domain.object_store import decode_body
from kudurru.domain.objects import Key, ObjectRef, key_of, ref_of
from kudurru.domain.ports import FILTERS, Origins
from kudurru.domain.reconcile.judging import NO_INTEGRATION
from kudurru.domain.set_digest import SetDigest, number_of

_PREFIXES = tuple(f"{kind.name}/" for kind in (POLICY, CLIENT_GROUP, BLOCK_LIST))

_decode_policy = msgspec.json.Decoder(PolicySpec)
_decode_group = msgspec.json.Decoder(ClientGroupSpec)


ONLY_FILTERS: Origins = (FILTERS,)


class Diagnosis(NamedTuple):
    """What keeps a policy or group from being what it says."""

    object: ObjectRef
    reason: Reason
    message: str


class PolicyView:
    """Implements `projections.follow.Projection`. `on_change` is told after what filters
    changed, and before the change is acknowledged: answers that come of it are dropped there."""

    name = "policies"

    def __init__(
        self, time_zones: TimeZones, on_change: Callable[[Origins], None] = lambda _changed: None
    ) -> None:
        self._time_zones = time_zones
        self._on_change = on_change
        self._matcher: Matcher | None = None
        self._defaults = BlockDefaults()
        self.reset()

    def reset(self) -> None:
        self.position = Position(0)
        self._policies: dict[str, CompiledPolicy] = {}
        self._groups: dict[str, tuple[Place, ...]] = {}
        self._unsupported: set[str] = set()  # groups that name an integration
        self._lists: set[Key] = set()
        self._disabled: set[tuple[str, str]] = set()  # (kind, namespace/name)
        self._pauses: dict[str, int | None] = {}
        self._facts: dict[Key, bytes] = {}  # what each object or pause says
        self._digest = SetDigest()
        self._filters: Filters | None = None
        self._on_change(None)

    # --- following ----------------------------------------------------------------------

    def apply(self, event: Recorded) -> None:
        if self._pauses:
            self.advance(event.ts // 1_000_000)
        self.position = event.seq
        if event.type == BLOCKING_SET:
            self._set_blocking(event.key, event.body)
        elif event.key.startswith(_PREFIXES):
            if event.type == OBJECT_APPLIED and event.body is not None:
                self._apply_object(event.key, event.body)
            elif event.type in (OBJECT_APPLIED, OBJECT_DELETED):
                # Gone, or an old content that was redacted: a newer one follows it.
                changed = self._forget(ref_of(event.key))
                self._count(event.key, None)
                self._changed(changed)

    def _apply_object(self, key: Key, octets: bytes) -> None:
        ref = ref_of(key)
        name = f"{ref.namespace}/{ref.name}"
        body = decode_body(octets)
        changed = self._forget(ref)
        self._count(key, octets)
        if not is_enabled(body.annotations):
            self._disabled.add((ref.kind, name))
        elif ref.kind == POLICY.name:
            spec = _decode_policy.decode(body.spec)
            self._policies[name] = CompiledPolicy(ref.namespace, ref.name, spec, self._time_zones)
            if spec.query_log is False:
                changed = None  # who wants no trace may be asked of what zones answer, too
        elif ref.kind == CLIENT_GROUP.name:
            group = _decode_group.decode(body.spec)
            self._groups[name] = places_of(group)
            if group.sources is not None and group.sources.integration_ref is not None:
                self._unsupported.add(name)
        else:
            self._lists.add(key)
        self._changed(changed)

    def _forget(self, ref: ObjectRef) -> Origins:
        """What changed by that: with a policy that wants no trace also how zones are answered."""
        name = f"{ref.namespace}/{ref.name}"
        self._disabled.discard((ref.kind, name))
        if ref.kind == POLICY.name:
            gone = self._policies.pop(name, None)
            return None if gone is not None and gone.query_log is False else ONLY_FILTERS
        if ref.kind == CLIENT_GROUP.name:
            self._groups.pop(name, None)
            self._unsupported.discard(name)
        else:
            self._lists.discard(key_of(ref.kind, ref.namespace, ref.name))
        return ONLY_FILTERS

    def _set_blocking(self, key: Key, octets: bytes | None) -> None:
        if octets is None:
            return
        fact = pauses.decode(octets)
        self._pauses.pop(fact.group, None)
        if not fact.blocks:
            self._pauses[fact.group] = fact.until
        self._count(key, None if fact.blocks else octets)
        self._changed()

    def _count(self, key: Key, octets: bytes | None) -> None:
        """Count an object or pause in the digest, None: it is gone."""
        before = self._facts.pop(key, None)
        if before is not None:
            self._digest.shift(-_number(key, before))
        if octets is not None:
            self._facts[key] = octets
            self._digest.shift(_number(key, octets))

    def _changed(self, what: Origins = ONLY_FILTERS) -> None:
        self._filters = None
        self._on_change(what)

    def advance(self, now_s: int) -> None:
        if not self._pauses:
            return
        over = [g for g, until in self._pauses.items() if until is not None and until <= now_s]
        for group in over:
            del self._pauses[group]  # in the digest it stays: views differ in when they notice
        if over:
            self._changed()

    def digest(self) -> str:
        return self._digest.hexdigest()

    def dump(self) -> Iterator[bytes]:
        """The view at its position: a part for each object and pause, as it was written."""
        yield msgspec.msgpack.encode((self.position, len(self._facts)))
        for key, octets in self._facts.items():
            yield msgspec.msgpack.encode((key, octets))

    def load(self, parts: Iterator[bytes]) -> None:
        position, count = msgspec.msgpack.decode(next(parts), type=tuple[Position, int])
        for _ in range(count):
            key, octets = msgspec.msgpack.decode(next(parts), type=tuple[Key, bytes])
            if key.startswith(_PREFIXES):
                self._apply_object(key, octets)
            else:
                self._set_blocking(key, octets)
        self.position = position

    # --- reading ------------------------------------------------------------------------

    @property
    def filters(self) -> Filters:
        if self._filters is None:
            self._filters = Filters(
                self._policies.values(),
                ClientIndex(self._groups),
                pauses=self._pauses,
                matcher=self._matcher,
                lists=self._lists,
                defaults=self._defaults,
            )
        return self._filters

    @property
    def pauses(self) -> dict[str, int | None]:
        """Ends of the pauses that hold, in unix time, by group; None: until blocking is enabled."""
        return dict(self._pauses)

    def has_group(self, name: str) -> bool:
        return name in self._groups or (CLIENT_GROUP.name, name) in self._disabled

    def subscribe(self, matcher: Matcher) -> None:
        """Match against these lists from now on."""
        self._matcher = matcher
        self._changed()

    def configure(self, defaults: BlockDefaults) -> None:
        """Take new settings."""
        if defaults != self._defaults:
            self._defaults = defaults
            self._changed()

    def diagnoses(self) -> Iterator[Diagnosis]:
        """Everything that is not as it seems, by object."""
        for policy in self._policies.values():
            yield from self._of_policy(policy)
        for name in sorted(self._unsupported):
            ref = ObjectRef(CLIENT_GROUP.name, *name.split("/", 1))
            yield Diagnosis(ref, "Unsupported", NO_INTEGRATION)

    def policy_diagnoses(self, name: str) -> list[Diagnosis]:
        """Of the policy `namespace/name`."""
        policy = self._policies.get(name)
        return list(self._of_policy(policy)) if policy is not None else []

    def reaches_nobody(self, name: str) -> bool:
        """Whether a policy is for groups of which none counts."""
        policy = self._policies.get(name)
        groups = policy.groups if policy is not None else None
        return groups is not None and not any(group in self._groups for group in groups)

    def _of_policy(self, policy: CompiledPolicy) -> Iterator[Diagnosis]:
        ref = ObjectRef(POLICY.name, *policy.name.split("/", 1))
        for group in sorted(policy.groups or ()):
            yield from self._reference(ref, CLIENT_GROUP.name, group, group in self._groups)
        for key in policy.lists:
            name = key.partition("/")[2]
            yield from self._reference(ref, BLOCK_LIST.name, name, key in self._lists)
        if policy.hours is not None and not policy.hours.is_known:
            zone = policy.hours.time_zone
            message = f"this host does not know the time zone {zone!r}; its hours count as UTC"
            yield Diagnosis(ref, "Invalid", message)
        for rule in (*policy.allow.unusable, *policy.deny.unusable):
            yield Diagnosis(ref, "Invalid", f"the rule {rule!r} cannot be matched")

    def _reference(
        self, of: ObjectRef, kind: str, name: str, is_there: bool
    ) -> Iterator[Diagnosis]:
        if is_there:
            return
        if (kind, name) in self._disabled:
            yield Diagnosis(of, "Disabled", f"{kind} {name} is disabled")
        else:
            yield Diagnosis(of, "MissingReference", f"there is no {kind} {name}")


def _number(key: Key, octets: bytes) -> int:
    return number_of(key.encode() + b"\0" + sha256(octets).digest())
