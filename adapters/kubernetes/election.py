"""One leader among the nodes of a cluster, by a Lease (coordination.k8s.io/v1).

The holder renews it every `retry_s`. Its term ends `renew_s` after the last renewal that the server
accepted, counted from before that was sent; another may take the Lease `duration_s` after it first
saw that renewal. Both count on their own monotonic clock, so that it does not matter what time it
is where. Between the two there is time for a request that was sent before the term ended: a request
of an elected process takes at most the rest, `request_s`.

Who finds no Lease cannot tell whether somebody deleted it under a leader. The leader makes it anew
with its next renewal. Another one lets it have the time for that, makes the Lease, and waits
`renew_s` until its term begins: by then a term that the Lease did not show any more is over.

A Lease is no fence: a write that was given up may still be done. Every write of a leader carries
the version that it was decided on. See docs/decisions/0032.
"""

import asyncio
import logging
import random
from collections import deque
from typing import Any

import msgspec

from kudurru.adapters.kubernetes.answers import (
    Absent,
    Collided,
    NotLeading,
    Refused,
    Unanswered,
)
from kudurru.adapters.kubernetes.client import Client
from kudurru.adapters.kubernetes.times import micros_text, us_of
from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.kinds.meta import is_dns_label, is_dns_subdomain
from kudurru.domain.leadership import checked_role
from kudurru.domain.ports import Clock, Entropy

PREFIX = "kudurru-"
RELEASE_TRIES = 3
"""At most one renewal of our own is under way when a release begins; the rest is for others."""
RELEASE_S = 5.0
RELEASED_DURATION_S = 1
FOREIGN_DURATION_MAX_S = 300
"""A Lease that says it lasts longer was written by nobody who means well."""
REQUEST_MIN_S = 2.0

Object = dict[str, Any]
log = logging.getLogger(__name__)


class Timings(msgspec.Struct, frozen=True):
    """Seconds. 15, 10 and 2, or 30, 10 and 5 where the API server is to be asked less."""

    duration_s: float = 15.0
    renew_s: float = 10.0
    retry_s: float = 2.0

    @property
    def request_s(self) -> float:
        """The longest that a request of an elected process may take."""
        return self.duration_s - self.renew_s - self.retry_s


class Record(msgspec.Struct, frozen=True):
    """What of a Lease changes when somebody takes or renews it."""

    uid: str
    holder: str
    renewed: str
    transitions: int
    duration_s: float

    @classmethod
    def of(cls, lease: Object, default_s: float) -> "Record":
        spec = lease.get("spec") or {}
        duration_s = spec.get("leaseDurationSeconds") or default_s
        return cls(
            lease["metadata"]["uid"],
            spec.get("holderIdentity") or "",
            spec.get("renewTime") or "",
            spec.get("leaseTransitions") or 0,
            min(duration_s, FOREIGN_DURATION_MAX_S),
        )


class _Lost(Exception):
    """The term is over; the text says why."""


class LeaseElector:
    """See `Elector`. `guard` is for the clients of whoever works for the leader."""

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        namespace: str,
        pod: str,
        clock: Clock,
        entropy: Entropy,
        chance: random.Random,
        timings: Timings | None = None,
    ) -> None:
        """Raises: Invalid."""
        self._timings = timings or Timings()
        _check(name, namespace, pod, self._timings)
        # Each start of a container is another candidate. A pod's name has no underscore, so that
        # "an earlier process of this pod" can be told.
        self.identity = f"{pod}_{entropy.token(4).hex()}"
        self.leader = ""
        """Who holds the Lease, as far as is known."""
        self.term = 0
        """Counts terms of whoever led, by leaseTransitions: a later leader has a larger one."""
        self.failures = 0
        self._pod = pod
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name = PREFIX + name
        self._path = f"{self._collection}/{self._name}"
        # Its requests queue behind no others, and none outlasts what the timings leave for it.
        self._client = client.with_limit(self._timings.request_s).without_pace()
        self._clock = clock
        self._chance = chance
        self._lease: Object | None = None  # while it leads, as the server answered it last
        self._renewed_s = 0.0
        self._over = asyncio.Event()
        self._over.set()
        self._renewing: asyncio.Task[None] | None = None
        self._may_hold = False
        self._seen: Record | None = None
        self._seen_s = 0.0
        self._absent_s: float | None = None  # since when there is no Lease
        self._sent: deque[str] = deque(maxlen=16)  # renewTimes that are ours, of no one after us
        self._mine_from_s: float | None = 0.0
        """From when on a Lease that we made is ours; None: `renew_s` after it is first seen."""
        self._said = ""

    @property
    def is_leader(self) -> bool:
        return not self._over.is_set()

    def guard(self) -> None:
        """Raises: NotLeading, unless it can be shown that this process leads."""
        if not self.is_leader or self._now_s() >= self._renewed_s + self._timings.renew_s:
            raise NotLeading(
                f"not sent: {self.identity} cannot show that it holds {self._name}; "
                "whoever leads does it"
            )

    async def campaign(self) -> None:
        while not self.is_leader:
            try:
                await self._try()
            except (Refused, Unanswered) as error:
                self.failures += 1
                self._say(f"waits for {self._name}: {error}")
            if not self.is_leader:
                retry_s = self._timings.retry_s
                await asyncio.sleep(self._chance.uniform(retry_s, 1.2 * retry_s))

    async def lost(self) -> None:
        await self._over.wait()

    async def resign(self) -> None:
        renewing, self._renewing = self._renewing, None
        if renewing is not None:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
        self._end("gives it back")
        if self._may_hold:
            self._may_hold = False
            await self._release()

    # Taking it.

    async def _try(self) -> None:
        self._may_hold = True
        try:
            lease = await self._read()
        except Absent:
            if self._absent_s is None:
                self._absent_s = self._now_s()
            absent_s = self._now_s() - self._absent_s
            if self._seen is None or absent_s >= self._timings.retry_s:
                await self._make()
            return
        self._absent_s = None
        record = self._see(lease)
        if self._is_free(record):
            await self._take(lease, record)
        else:
            self._say(f"waits for {self._name}, which {record.holder} holds")

    async def _make(self) -> None:
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name},
            "spec": self._spec(1 if self._seen is None else self._seen.transitions + 1),
        }
        self._mine_from_s = None  # also when no answer comes: it may land at any time
        try:
            made: Object = await self._client.request("POST", self._collection, lease)
        except Collided:
            return
        self._is_free(self._see(made))

    async def _take(self, lease: Object, record: Record) -> None:
        begun_s = self._now_s()
        taken = lease | {"spec": self._spec(record.transitions + 1)}
        try:
            # Of the uid and the version that was read: whoever was faster makes it a conflict.
            found: Object = await self._client.request("PUT", self._path, taken)
        except (Absent, Collided):
            return
        self._begin(found, begun_s)

    def _see(self, lease: Object) -> Record:
        record = Record.of(lease, self._timings.duration_s)
        if record != self._seen:
            self._seen, self._seen_s = record, self._now_s()
            if record.holder != self.identity and record.holder:
                self._sent.clear()
        self.leader = record.holder
        return record

    def _is_free(self, record: Record) -> bool:
        if not record.holder:
            return True
        if record.holder == self.identity and record.renewed in self._sent:
            # A term of ours that ended, and nobody's since; or a Lease that we made.
            if self._mine_from_s is None:
                self._mine_from_s = self._now_s() + self._timings.renew_s
            return self._now_s() >= self._mine_from_s
        return self._is_of_the_dead(record) or self._is_over(record)

    def _is_of_the_dead(self, record: Record) -> bool:
        """Of an earlier process of this pod, and as old as it lasts by the clock that both had:
        the kubelet starts a process when the one before has ended. Another pod's is waited for,
        for that a pod is missing does not prove that its process has ended."""
        pod, _, start = record.holder.rpartition("_")
        renewed_us = us_of(record.renewed)
        return (
            pod == self._pod
            and bool(start)
            and record.holder != self.identity
            and renewed_us is not None
            and self._clock.now_us() - renewed_us >= record.duration_s * 1e6
        )

    def _is_over(self, record: Record) -> bool:
        return self._now_s() - self._seen_s >= record.duration_s

    # Holding it.

    def _begin(self, lease: Object, sent_s: float) -> None:
        self._lease, self._renewed_s, self._mine_from_s = lease, sent_s, 0.0
        self.term = self._see(lease).transitions
        self._over.clear()
        self._say(f"holds {self._name}, term {self.term}")
        self._renewing = asyncio.ensure_future(self._renew())

    async def _renew(self) -> None:
        why = "could not renew it in time"
        try:
            while True:
                async with asyncio.timeout_at(self._renewed_s + self._timings.renew_s):
                    await asyncio.sleep(self._timings.retry_s)
                    await self._renewal()
        except TimeoutError:
            pass
        except _Lost as lost:
            why = str(lost)
        finally:
            self._end(why)

    async def _renewal(self) -> None:
        """One renewal, or none. Raises: _Lost, when another holds it."""
        assert self._lease is not None
        begun_s = self._now_s()
        renewed = self._lease | {"spec": self._spec(self.term)}
        renewed["spec"]["acquireTime"] = self._lease["spec"].get("acquireTime")
        try:
            found: Object = await self._client.request("PUT", self._path, renewed)
        except (Absent, Collided):
            await self._look_again()
        except (Refused, Unanswered) as error:
            self.failures += 1
            self._say(f"could not renew {self._name}: {error}")
        else:
            self._lease, self._renewed_s = found, begun_s
            self._see(found)
            self._said = ""

    async def _look_again(self) -> None:
        """The Lease is not as it was answered last: gone, taken, or touched by somebody."""
        try:
            begun_s = self._now_s()
            try:
                found = await self._read()
            except Absent:
                lease = {k: v for k, v in (self._lease or {}).items() if k != "metadata"}
                lease |= {"metadata": {"name": self._name}, "spec": self._spec(self.term)}
                found = await self._client.request("POST", self._collection, lease)
                self._renewed_s = begun_s
        except (Refused, Unanswered) as error:
            self.failures += 1
            self._say(f"could not renew {self._name}: {error}")
            return
        record = self._see(found)
        if record.holder != self.identity or record.renewed not in self._sent:
            raise _Lost(f"{record.holder or 'nobody'} holds it")
        self._lease = found

    def _end(self, why: str) -> None:
        if self.is_leader:
            self._say(f"{self._name}: term {self.term} is over: {why}")
        self._lease = None
        self._over.set()

    # Giving it back.

    async def _release(self) -> None:
        try:
            async with asyncio.timeout(RELEASE_S):
                for _ in range(RELEASE_TRIES):
                    if await self._released():
                        return
        except Absent:
            return
        except (Refused, Unanswered, TimeoutError) as error:
            log.warning("%s could not be given back, and expires: %s", self._name, error)

    async def _released(self) -> bool:
        """Whether there is nothing left to do. Raises what a request does."""
        lease = await self._read()
        record = self._see(lease)
        if record.holder != self.identity and not self._is_of_the_dead(record):
            return True
        spec = self._spec(record.transitions) | {
            "holderIdentity": "",
            "leaseDurationSeconds": RELEASED_DURATION_S,
        }
        try:
            await self._client.request("PUT", self._path, lease | {"spec": spec})
        except Collided:
            return False  # a renewal of ours that came late
        log.info("%s was given back", self._name)
        return True

    # Parts.

    async def _read(self) -> Object:
        return await self._client.get(self._path, dict)

    def _spec(self, transitions: int) -> Object:
        now = micros_text(self._clock.now_us())
        self._sent.append(now)
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": int(self._timings.duration_s),
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }

    def _now_s(self) -> float:
        return self._clock.monotonic_us() / 1e6

    def _say(self, what: str) -> None:
        """Once, until something else is said."""
        if what != self._said:
            self._said = what
            log.info("%s %s", self.identity, what)


def _check(name: str, namespace: str, pod: str, timings: Timings) -> None:
    checked_role(name)
    causes = []
    if not is_dns_label(namespace):
        causes.append(Cause("namespace", f"{namespace!r} is no namespace; set it"))
    if not is_dns_subdomain(pod):
        causes.append(Cause("pod", f"{pod!r} is no pod's name; set POD_NAME"))
    if timings.request_s < REQUEST_MIN_S:
        causes.append(Cause("timings", f"duration - renew - retry is below {REQUEST_MIN_S:g} s"))
    if causes:
        raise Invalid("election", causes)
