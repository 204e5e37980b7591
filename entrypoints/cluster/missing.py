"""Objects of the log that the cluster has not: whether they may go.

An object that somebody deletes while we watch is gone. One that is missing from a list was deleted
while nobody saw it, or this is not the cluster that it was in, or one that was set back. So what
lists lack is looked at together, with what went so in the last minutes, since kinds are listed one
by one; and where that is much, nothing more of it goes: a node that serves
names which are gone is better than one that serves none. Nothing goes either while it is not known
whether the cluster is the one of the log.
"""

import logging
from collections.abc import Callable, Collection, Iterable

import msgspec

from kudurru.domain.kinds.registry import DNS_ZONE
from kudurru.domain.mirror import version_number
from kudurru.domain.objects import Key, ref_of
from kudurru.entrypoints.wiring import Node

OBJECTS_MIN = 10
"""So few may always go."""
WINDOW_US = 600_000_000
"""What goes within ten minutes counts as one: informers that failed together have all listed
again by then."""

log = logging.getLogger("kudurru.kubernetes")


class Gone(msgspec.Struct, frozen=True):
    """An object is not in the cluster any more."""

    key: Key
    version: str  # of its deletion, or of the list that lacks it
    by_list: bool = False

    @property
    def as_of(self) -> int:
        return version_number(self.version)


class Missing:
    """Holds what is gone back until it is known that it may go."""

    def __init__(
        self,
        node: Node,
        there: Callable[[], int],
        *,
        allows_much: bool,
        monotonic_us: Callable[[], int],
    ) -> None:
        """`there`: how many objects the cluster has, as far as is known."""
        self._node = node
        self._there = there
        self._allows_much = allows_much
        self._monotonic_us = monotonic_us
        self.is_unknown = False
        """Whether it is not known if the cluster is the one of the log."""
        self.is_asked = False
        """Whether that is being asked again, since somebody else may answer by now."""
        self._before: int | None = 0
        """Objects that the log had before the first of those that wait, or went, was missed."""
        self._waiting: dict[Key, Gone] = {}
        self._went: dict[Key, int] = {}
        """When, of those that went in this window, and with their zones."""
        self._held: dict[Key, Gone] = {}

    def begin(self, count: int) -> None:
        """Of one kind the log had so many, and its first list is read."""
        self._before = (self._before or 0) + count

    def identified(self) -> None:
        """It is. What was held for that is looked at now."""
        self.is_unknown = self.is_asked = False
        self._waiting |= self._held
        self._held.clear()

    def takes(self, gone: Gone) -> bool:
        """Whether it is held back."""
        if not (gone.by_list or self.is_unknown or self.is_asked):
            return False
        if self._before is None:
            self._before = self._there() + (not gone.by_list)
        self._waiting[gone.key] = gone
        return True

    def is_back(self, key: Key) -> None:
        self._waiting.pop(key, None)
        self._held.pop(key, None)
        self._went.pop(key, None)

    def may_go(self) -> Iterable[Gone]:
        """Once all lists are read: what may be recorded. What may not is held."""
        if self.is_asked:
            return ()
        found, self._waiting = self._waiting, {}
        now_us = self._monotonic_us()
        self._went = {key: us for key, us in self._went.items() if now_us - us < WINDOW_US}
        # What was seen to go while it was asked is somebody's act, and of no number.
        acts = [] if self.is_unknown else [gone for gone in found.values() if not gone.by_list]
        for gone in acts:
            del found[gone.key]
        reached = self._with_records(found)
        if found and (self.is_unknown or self._held or self._is_much(reached | self._went.keys())):
            if not self._held:
                self._held |= found
                log.error("%s", self.warning())
            self._held |= found
            return acts
        self._went |= dict.fromkeys(reached, now_us)
        if not (self._held or self._went):
            self._before = None
        return [*acts, *found.values()]

    @property
    def held(self) -> int:
        return sum(1 for key in self._held if self._node.objects.find(key) is not None)

    def warning(self) -> str:
        """What is held, and what to do; "" while nothing is."""
        count = self.held
        if not count:
            return ""
        if self.is_unknown:
            return (
                f"{count} objects are gone from it and are served all the same: whether it is "
                "the cluster of this log cannot be told; bind schemas/rbac/cluster-id.yaml, or set "
                "kubernetes.clusterID"
            )
        return (
            f"{count} of {self._before} objects of this log are not there and are served all the "
            "same: is it the right cluster, and was it not set back? To let them go set "
            "kubernetes.allowMassChange and start this node again, then take the setting away"
        )

    def _is_much(self, reached: Collection[Key]) -> bool:
        size = len(reached)
        return not self._allows_much and size > OBJECTS_MIN and 2 * size > (self._before or 0)

    def _with_records(self, found: Iterable[Key]) -> set[Key]:
        """With its zone a record set serves nothing, whatever becomes of it."""
        reached = {key for key in found if self._node.objects.find(key) is not None}
        for key in list(reached):
            ref = ref_of(key)
            state = self._node.zones.state(ref.name) if ref.kind == DNS_ZONE.name else None
            if state is not None:
                reached |= state.record_sets()
        return reached
