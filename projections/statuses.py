"""What the statuses of objects say now, worked out from the views.

It holds nothing of its own: the views are the cache that every reconciler shares. A record set that
is as it should be gets no status before something was wrong with it: an import must not write
everything twice.
"""

from collections.abc import Iterable
from heapq import nsmallest
from typing import Any

import msgspec

from kudurru.domain.events import CONTENT_TYPES, Event, Recorded
from kudurru.domain.kinds.blocklist import BlockListSpec, SourceStatus
from kudurru.domain.kinds.clientgroup import ClientGroupSpec
from kudurru.domain.kinds.meta import is_enabled
from kudurru.domain.kinds.registry import (
    BLOCK_LIST,
    CLIENT_GROUP,
    DNS_RECORD_SET,
    DNS_ZONE,
    POLICY,
    TSIG_KEY,
)
from kudurru.domain.kinds.stored import read_record_set, reader_of
from kudurru.domain.kinds.zone import key_names
from kudurru.domain.object_store import StoredObject
from kudurru.domain.objects import Key, key_of, ref_of
from kudurru.domain.reconcile import judging
from kudurru.domain.reconcile.conditions import FAULTS_SHOWN, SWITCHED_OFF, Fault, Said, status_with
from kudurru.projections.objects_view import ObjectsView
from kudurru.projections.policy_view import PolicyView
from kudurru.projections.zone_state import ZoneState
from kudurru.projections.zone_view import ZoneView

JUDGED_KINDS = (DNS_ZONE, DNS_RECORD_SET, BLOCK_LIST, CLIENT_GROUP, POLICY)

_JUDGED = frozenset(kind.name for kind in JUDGED_KINDS)
_REFERRED = frozenset({BLOCK_LIST.name, CLIENT_GROUP.name})
"""What policies refer to."""

_read_list = reader_of(BlockListSpec)
_read_group = reader_of(ClientGroupSpec)


class Statuses:
    """Reads views; as good as they are at that moment."""

    def __init__(self, objects: ObjectsView, zones: ZoneView, policies: PolicyView) -> None:
        self._objects = objects
        self._zones = zones
        self._policies = policies

    def has_status(self, key: Key) -> bool:
        entry = self._objects.entry(key)
        return entry is not None and entry.status != 0

    def concerned(self, event: Event | Recorded) -> Iterable[Key]:
        """Objects of which something else may have to be said after an event that is in the views,
        but for those that the zone view tells of."""
        kind = event.key.partition("/")[0]
        if kind == DNS_RECORD_SET.name:
            # One that nothing is said of has no problem, or the zone view would tell.
            return (event.key,) if self.has_status(event.key) else ()
        if kind == TSIG_KEY.name and event.type in CONTENT_TYPES:
            name = ref_of(event.key).name
            return [state.key for state in self._zones.states() if name in key_names(state.spec)]
        if kind not in _JUDGED:
            return ()
        if kind in _REFERRED and event.type in CONTENT_TYPES:
            return (event.key, *self._objects.keys(POLICY.name))
        return (event.key,)

    def awaits_stamp(self, key: Key) -> bool:
        """Whether a zone is about to get a serial, and with it a whole status."""
        if not key.startswith(f"{DNS_ZONE.name}/"):
            return False
        state = self._zones.state(ref_of(key).name)
        if state is None or state.zone is None or state.spec.type != "Primary":
            return False
        return state.zone.has_unstamped_changes()

    def status_of(
        self, stored: StoredObject, before: Any, now_s: int, *, is_asked: bool = False
    ) -> dict[str, Any] | None:
        """The whole status that an object should have when it has the one `before`, fields of
        others as they are; None for one that needs none, unless somebody asked for it."""
        if stored.key.startswith(f"{DNS_RECORD_SET.name}/"):
            problems = self._zones.problems(stored.key)
            if not problems and not before and not is_asked:
                return None
            return judging.record_set_status(
                before,
                problems,
                endpoints=len(read_record_set(stored.body.spec).endpoints),
                generation=stored.body.generation,
                now_s=now_s,
            )
        said = self._said(stored, before)
        if said is None:
            return before  # type: ignore[no-any-return]  # a status, of a kind that is not judged
        return status_with(before, said, generation=stored.body.generation, now_s=now_s)

    def zone_said(self, state: ZoneState, status: dict[str, Any] | None) -> tuple[Said, ...]:
        """Of a DNSZone with this status."""
        holder = self._zones.holder(state.apex)
        shown = nsmallest(FAULTS_SHOWN, state.troubled)
        return judging.zone_said(
            status,
            is_secondary=state.spec.type == "Secondary",
            holder=holder.name if holder is not None and holder is not state else "",
            missing_keys=[
                name
                for name in sorted(key_names(state.spec))
                if self._objects.entry(key_of(TSIG_KEY.name, "", name)) is None
            ],
            troubled=[(key, self._zones.reason(key)) for key in shown],
            others=len(state.troubled) - len(shown),
        )

    def _said(self, stored: StoredObject, before: dict[str, Any] | None) -> tuple[Said, ...] | None:
        ref = ref_of(stored.key)
        if ref.kind == DNS_ZONE.name:
            state = self._zones.state(ref.name)
            return self.zone_said(state, before) if state is not None else None
        if ref.kind not in (BLOCK_LIST.name, CLIENT_GROUP.name, POLICY.name):
            return None
        if not is_enabled(stored.body.annotations):
            return SWITCHED_OFF
        if ref.kind == POLICY.name:
            return self._policy_said(f"{ref.namespace}/{ref.name}")
        if ref.kind == CLIENT_GROUP.name:
            spec = _read_group(stored.body.spec)
            names_integration = spec.sources is not None and bool(spec.sources.integration_ref)
            return judging.client_group_said(
                names_integration=names_integration, has_clients=bool(spec.clients)
            )
        return judging.block_list_said(_read_list(stored.body.spec), _sources(before))

    def _policy_said(self, name: str) -> tuple[Said, ...]:
        diagnoses = self._policies.policy_diagnoses(name)
        return judging.policy_said(
            [Fault(d.reason, d.message) for d in diagnoses if d.reason != "Disabled"],
            [d.message.removesuffix(" is disabled") for d in diagnoses if d.reason == "Disabled"],
            reaches_nobody=self._policies.reaches_nobody(name),
        )


def _sources(status: dict[str, Any] | None) -> list[SourceStatus]:
    """Where they are those of another version they are written anew by the fetcher."""
    try:
        return msgspec.convert((status or {}).get("sources", []), list[SourceStatus])
    except msgspec.ValidationError:
        return []
