"""When checkpoints are made, by which key, and where they go.

A `Checkpointer` belongs to a node. It decides what to append and signs it; the node's one writer
appends: the server's `Writer`, or `take` where a command works on a directory by itself.

A checkpoint commits to the state that the views have, so it is only right when nothing comes in
between: signing refuses when the tree is not exactly the one that was decided on.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from kudurru.adapters.publishing import publish
from kudurru.adapters.secret_files import write_private
from kudurru.adapters.signing import KeyFolder, check_signature
from kudurru.domain.chain import origin_of
from kudurru.domain.checkpoint import (
    SOURCE,
    AdoptionBody,
    KeyChain,
    adoption_note,
    checkpoint_of,
    is_activity,
    parse_checkpoint,
    txt_target,
)
from kudurru.domain.codec import canonical
from kudurru.domain.commands import Apply
from kudurru.domain.dns import names
from kudurru.domain.epochs import epoch_began
from kudurru.domain.errors import Busy, Conflict, KudurruError, NotFound, StorageFailed
from kudurru.domain.events import (
    CHECKPOINT_KEY,
    CHECKPOINT_STATE,
    KEY_ADOPTED,
    SIGNING_KEY,
    ChangeSet,
    Event,
    Position,
    Recorded,
    Who,
)
from kudurru.domain.kinds.meta import API_VERSION, DEFAULT_NAMESPACE
from kudurru.domain.kinds.validation import Manifest, parse_manifest
from kudurru.domain.object_store import CONTROLLER
from kudurru.domain.ports import SignTree, StoredCheckpoint, Upkeep, VerifiableLog
from kudurru.domain.signed_note import SigningKey, VerifierKey
from kudurru.domain.tree import Edge
from kudurru.entrypoints.wiring import ATTEMPTS_MAX, BUSY, Change, Node, Overtaken
from kudurru.projections.zone_state import ZoneState

log = logging.getLogger("kudurru.checkpoints")

ZONE_TARGET = "zone:"
"""In audit.checkpoint.publish: a zone of ours, by name, that gets a TXT record."""

ZONE_INTERVAL_US = 3_600_000_000
"""Between two publications in a zone: each is an event, a serial and a transfer."""

RECORD_TTL_S = 300


class CheckpointPolicy(msgspec.Struct, frozen=True):
    """The settings audit.checkpoint."""

    events: int = 1_000
    interval_s: float = 10.0
    publish: tuple[str, ...] = ()


class Plan(msgspec.Struct, frozen=True):
    """What to append for a checkpoint, and how to sign it."""

    change_sets: list[ChangeSet]
    decided_at: Position
    sign: SignTree | None  # None: there is no key, and what is done cannot wait for one
    done: Callable[[], None]  # once it is durable
    upkeep: Upkeep | None = None

    def append(self, log: VerifiableLog, at_us: int) -> list[Recorded]:
        """Raises: Conflict when the log went on since; what the log does."""
        return log.append_signed(
            self.change_sets, at_us, self.sign, self.upkeep, head_seq=self.decided_at
        )


class Checkpointer:
    """The checkpoints of one node. One thread at a time, the node's."""

    def __init__(
        self, node: Node, keys: KeyFolder, policy: CheckpointPolicy, copy: Path | None = None
    ) -> None:
        """`copy` is the file that has the newest checkpoint beside the log. Raises: StorageFailed
        when the key cannot be read or made."""
        self._node = node
        self._log: VerifiableLog = node.log  # type: ignore[assignment]  # every log of ours is
        self._keys = keys
        self._copy = copy
        self.policy = policy  # replaced when the settings change
        self.origin = origin_of(node.log.log_id, node.log.epoch)
        self.is_new_key = False
        self.why_not = ""  # why nothing can be signed
        self.activity = 0  # events since the newest checkpoint that ask for one
        self.published_us = 0  # when a file, folder or zone last got one
        newest = self._log.newest_checkpoint()
        self.size = newest.size if newest else None  # of the newest
        self._adopted = self._read_adopted()
        self._key = self._read_key()
        self._failed: set[str] = set()  # publications that were complained about
        self._last_who: tuple[bytes | None, bool] = (None, True)

    # --- keys ---------------------------------------------------------------------------

    @property
    def key(self) -> VerifierKey | None:
        return self._key.verifier if self._key else None

    def _read_adopted(self) -> VerifierKey | None:
        """Of this epoch: the keys of the one before sign nothing here."""
        chain = KeyChain(self.origin, check_signature)
        for event in self._log.read(epoch_began(self._log), key=SIGNING_KEY):
            chain.adopt(event.seq, event.body)
        return chain.current

    def refresh(self) -> None:
        """Learn which key signs now: where nodes share a log, another may have been first. In any
        thread. Raises: StorageFailed."""
        self._adopted = self._read_adopted()
        self.why_not = ""
        self._key = self._read_key()

    def _read_key(self) -> SigningKey | None:
        """The key that the log says signs; a new one when it says none."""
        key, following = self._keys.read(), self._keys.read_next()
        if self._adopted is None:
            if key is None:
                key, self.is_new_key = self._keys.create(), True
            return key
        if following is not None and following.verifier == self._adopted:
            self._keys.promote()  # we died between adopting it and this
            return following
        if key is not None and key.verifier == self._adopted:
            return key
        found = "is missing" if key is None else f"has {key.verifier}"
        if self._log.is_shared:
            self.why_not = f"another node signs this log, with {self._adopted}"
            return None
        self.why_not = (
            f"the log is signed by {self._adopted} and {self._keys.path} {found}: put the key "
            "back; without it this log can go on only as a new epoch"
        )
        return None

    # --- making -------------------------------------------------------------------------

    def count(self, recorded: Sequence[Recorded]) -> None:
        """Take note of what was appended."""
        for event in recorded:
            if event.who != self._last_who[0] or event.type in (CHECKPOINT_STATE, KEY_ADOPTED):
                self._last_who = event.who, is_activity(event)
            self.activity += self._last_who[1]

    def recount(self) -> int:
        """Find out what happened since the newest checkpoint, from the log; one is enough to
        know."""
        newest = self._log.newest_checkpoint()
        events = self._log.read(newest.size if newest else 0)
        self.activity = int(any(is_activity(event) for event in events))
        return self.activity

    def plan(self, now_us: int) -> Plan:
        """A checkpoint of everything that is in the views, the clock noted. Raises: NotFound when
        there is no key to sign with; what stops writing."""
        return self._plan(self._needed_key(), None, now_us)

    def rotation(self, who: Who, now_us: int) -> Plan:
        """A new key takes over, with the consent of the one before, and signs at once."""
        before = self._needed_key()
        return self._plan(self._keys.create_next(), (before, who), now_us)

    def upkeep(self, change_set: ChangeSet, upkeep: Upkeep, now_us: int) -> Plan:
        """Events that say what is taken away, and at once the checkpoint that covers them. Where
        another node has the key, it signs a redaction a moment later. Raises as `plan`."""
        self._node.check_writable()
        if self._key is None and upkeep.prune is None and self._log.is_shared:
            return Plan([change_set], self._node.position, None, lambda: None, upkeep)
        plan = self._plan(self._needed_key(), None, now_us, change_set)
        return msgspec.structs.replace(plan, upkeep=upkeep)

    def _needed_key(self) -> SigningKey:
        self._node.check_writable()
        if self._key is None:
            raise NotFound(f"no checkpoint can be signed: {self.why_not}")
        return self._key

    def _plan(
        self,
        key: SigningKey,
        rotates: tuple[SigningKey, Who] | None,
        now_us: int,
        *before_it: ChangeSet,
    ) -> Plan:
        me = Who(actor="system", source=SOURCE, wall=now_us)
        sets = list(before_it)
        if rotates is not None:
            before, who = rotates
            sets.append(self._adoption(key, before, msgspec.structs.replace(who, wall=now_us)))
        elif self._adopted is None:
            sets.append(self._adoption(key, None, me))
        version = self._log.stream_version(CHECKPOINT_KEY) + 1
        body = self._node.objects.state().encode()
        state = Event(CHECKPOINT_STATE, CHECKPOINT_KEY, version, "/", CONTROLLER, body)
        sets.append(ChangeSet((state,), me))
        decided_at = self._node.position
        size = decided_at + sum(len(one.events) for one in sets)

        def sign(edge: Edge, signed_body: bytes) -> StoredCheckpoint:
            if edge.size != size:
                raise Conflict(f"a checkpoint of {size} events was decided, there are {edge.size}")
            return checkpoint_of(self.origin, edge, key, signed_body)

        def done() -> None:
            self._adopted, self._key = key.verifier, key
            self.activity = 0
            if rotates is not None:
                self._keys.promote()

        return Plan(sets, decided_at, sign, done)

    def _adoption(self, key: SigningKey, before: SigningKey | None, who: Who) -> ChangeSet:
        version = self._log.stream_version(SIGNING_KEY) + 1
        body = canonical(AdoptionBody(adoption_note(self.origin, key, before)))
        event = Event(KEY_ADOPTED, SIGNING_KEY, version, "/", CONTROLLER, body)
        return ChangeSet((event,), who)

    def take(self, make: Callable[[int], Plan]) -> StoredCheckpoint:
        """Append and apply, for a node whose views nobody else writes to."""
        for _ in range(ATTEMPTS_MAX):
            try:
                return self._take(make)
            except (Conflict, Overtaken):
                if not self._log.is_shared:
                    raise
                self._node.catch_up()
                self.refresh()
        raise Busy(BUSY)

    def _take(self, make: Callable[[int], Plan]) -> StoredCheckpoint:
        node, now_us = self._node, self._node.clock.now_us()
        at_us = node.time_for_events_us(now_us)
        if steps := node.clock_steps(now_us):
            node.take_in(node.append(steps, at_us, node.position))
        plan = make(now_us)
        recorded = plan.append(self._log, at_us)
        node.take_in(recorded)
        plan.done()
        return self.taken()

    def taken(self) -> StoredCheckpoint:
        """The newest checkpoint, once it is published to files and folders."""
        newest = self._log.newest_checkpoint()
        if newest is None:  # something was done for which there was no key
            return StoredCheckpoint(0, "", b"")
        self.size = newest.size
        self._write_copy(newest)
        self._publish_to_files(newest)
        return newest

    def take_if_active(self) -> None:
        """At the end of a session: sign what happened in it. What cannot be signed now is signed
        by the next one."""
        if self._key is not None and self._node.why_not_writable is None and self.recount():
            self.take(self.plan)

    def current(self) -> StoredCheckpoint | None:
        """The newest checkpoint when it covers the whole log."""
        newest = self._log.newest_checkpoint()
        return newest if newest and newest.size == self._log.head().seq else None

    # --- publishing ---------------------------------------------------------------------

    def _write_copy(self, checkpoint: StoredCheckpoint) -> None:
        """After the log has it: a copy that is older than the log says nothing against it."""
        if self._copy is None:
            return
        try:
            write_private(self._copy, checkpoint.note.encode())
        except OSError as error:
            message = f"{self._copy} cannot be written: {error.strerror}"
            self.complain(str(self._copy), StorageFailed(message))
        else:
            self.cleared(str(self._copy))

    def _publish_to_files(self, checkpoint: StoredCheckpoint) -> None:
        now_us = self._node.clock.now_us()
        for target in self.policy.publish:
            if target.startswith(ZONE_TARGET):
                continue
            try:
                publish(target, checkpoint.note, self.origin, now_us)
            except StorageFailed as error:
                self.complain(target, error)
            else:
                self.cleared(target)
                self.published_us = now_us

    def complain(self, target: str, error: KudurruError) -> None:
        """A checkpoint that is not made, or stays at home, is no reason to stop serving. Once
        each, until it works again."""
        if target not in self._failed:
            self._failed.add(target)
            log.warning("no checkpoint for %s: %s", target, error)

    def failing(self) -> list[str]:
        """Where checkpoints did not go when it was tried last."""
        return sorted(self._failed)

    def cleared(self, target: str) -> None:
        self._failed.discard(target)

    def zone_targets(self) -> list[str]:
        return [t for t in self.policy.publish if t.startswith(ZONE_TARGET)]

    def zone_wait_us(self, target: str, now_us: int) -> int | None:
        """How long until a zone is to get the newest checkpoint; None when it has all that
        happened."""
        newest = self._log.newest_checkpoint()
        if newest is None:
            return None
        state = self._zone(target)
        if state is None:
            self.complain(target, NotFound(f"there is no zone {target!r} that is served here"))
            return None
        published = self._published(state)
        if published is None:
            return 0
        size, at_us = published
        happened = self._log.read(size, newest.size)
        if not any(is_activity(event) for event in happened):
            return None
        return max(0, at_us + ZONE_INTERVAL_US - now_us)

    def _zone(self, target: str) -> ZoneState | None:
        state = self._node.zones.find(target.removeprefix(ZONE_TARGET))
        return state if state is not None and state.zone is not None else None

    def _published(self, state: ZoneState) -> tuple[int, int] | None:
        """Size of the checkpoint that a zone has, and when it got it, microseconds UTC."""
        manifest = self._record(state, "")
        entry = self._node.objects.entry(manifest.key)
        event = self._log.get(entry.applied) if entry else None
        if event is None or event.who is None:
            return None
        who = msgspec.json.decode(event.who, type=Who)
        return (int(who.cause), event.ts) if who.cause.isdigit() else None

    def _record(self, state: ZoneState, note: str) -> Manifest:
        owner = f"_kudurru-log.{names.to_text(state.apex)}"
        allowed = state.spec.allowed_namespaces
        endpoint = {
            "dnsName": owner,
            "recordType": "TXT",
            "recordTTL": RECORD_TTL_S,
            "targets": [txt_target(note)],
        }
        document = {
            "apiVersion": API_VERSION,
            "kind": "DNSRecordSet",
            "metadata": {
                "name": f"kudurru-log.{state.name}",
                "namespace": allowed[0] if allowed else DEFAULT_NAMESPACE,
            },
            "spec": {"zoneRef": {"name": state.name}, "endpoints": [endpoint]},
        }
        return parse_manifest(document, what="checkpoint", default_namespace=DEFAULT_NAMESPACE)

    def zone_change(self, target: str) -> Change | None:
        """The change that gives a zone the newest checkpoint."""
        newest, state = self._log.newest_checkpoint(), self._zone(target)
        if newest is None or state is None:
            return None
        manifest = self._record(state, newest.note)
        size = parse_checkpoint(newest.note).size
        who = Who(actor="system", source=SOURCE, reason="publication", cause=str(size))
        return Change(commands=(Apply(manifest=manifest, manager=CONTROLLER),), who=who)


def tell_key(checkpointer: Checkpointer) -> None:
    log.info(
        "the checkpoints of this log are signed by %s: keep this key where nobody on this machine "
        "can change it, and give it to `kudurru audit verify --key`",
        checkpointer.key,
    )
