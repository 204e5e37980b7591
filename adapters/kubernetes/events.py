"""Events beside the objects of a cluster: what `kubectl describe` shows a person.

core/v1 Events without `eventTime`, with which the server would hold them to stricter rules. One
writer takes them from a queue; whoever posts one never waits and never fails. The same event within
ten minutes is counted on the one before. The server forgets an Event after an hour.
"""

import asyncio
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from kudurru.adapters.kubernetes.answers import Absent, NotLeading, cut
from kudurru.adapters.kubernetes.client import MERGE_PATCH, Client
from kudurru.adapters.kubernetes.times import seconds_text
from kudurru.domain.errors import KudurruError
from kudurru.domain.ports import Clock

QUEUE_MAX = 256
TRIES = 3
RETRY_S = 10.0
"""A server that restarts refuses for some seconds."""
SERIES_US = 600 * 1_000_000
SERIES_MAX = 4096
REASON_MAX, MESSAGE_MAX = 128, 1024
CLOSE_S = 5.0
COMPONENT = "kudurru"

Drop = Literal["full", "refused", "late", "not_leading"]
_WHY: dict[Drop, str] = {
    "full": f"{QUEUE_MAX} wait to be written",
    "refused": "the API server did not take them",
    "late": "this is the end of a term, or of the process",
    "not_leading": "another node may lead, and write them",
}
DROPS = tuple(_WHY)

log = logging.getLogger(__name__)


class About(msgspec.Struct, frozen=True):
    """The object that an event is about."""

    api_version: str
    kind: str
    namespace: str  # "" when it is of the cluster
    name: str
    uid: str


class _Series(msgspec.Struct, frozen=True):
    about: About
    type: str
    reason: str
    message: str


class _Posted(msgspec.Struct, frozen=True):
    series: _Series
    at_us: int


class _Written(msgspec.Struct):
    """The Event that counts a series."""

    name: str
    count: int
    last_us: int


class EventRecorder:
    """`run` it in a task; `drain` before the Lease is given back, `close` at the end."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        instance: str,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        """Only who `leads` writes Events; what others post is dropped there and then."""
        self.written = 0
        self.dropped: Counter[Drop] = Counter()
        """Not written, each for one reason."""
        self._client = client
        self._clock = clock
        self._instance = instance
        self._leads = leads
        self._queue: deque[_Posted] = deque()
        self._posted = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_closing = asyncio.Event()
        self._series: OrderedDict[_Series, _Written] = OrderedDict()
        self._has_said: set[Drop] = set()
        self._has_ended = False
        """Nobody writes any more."""

    def post(
        self, about: About, type_: Literal["Normal", "Warning"], reason: str, message: str
    ) -> None:
        """Never waits. Times are those of the call."""
        if not self._leads():
            self._drop("not_leading")
            return
        if self._is_closing.is_set():
            self._drop("late")
            return
        if len(self._queue) >= QUEUE_MAX:
            self._drop("full")
            return
        series = _Series(about, type_, cut(reason, REASON_MAX), cut(message, MESSAGE_MAX))
        self._queue.append(_Posted(series, self._clock.now_us()))
        self._idle.clear()
        self._posted.set()

    async def run(self) -> None:
        """Write what is posted, until it is cancelled."""
        self._has_ended = False
        try:
            while True:
                await self._posted.wait()
                self._posted.clear()
                while self._queue:
                    await self._patiently(self._queue.popleft())
                self._idle.set()
        finally:
            self._has_ended = True

    async def close(self, within_s: float = CLOSE_S) -> bool:
        """As `drain`, for good."""
        self._is_closing.set()
        if self._has_ended:
            self._give_up(len(self._queue))
            return True
        try:
            async with asyncio.timeout(within_s):
                await self._idle.wait()
        except TimeoutError:
            self._give_up(len(self._queue) + 1)
            return False
        return True

    async def drain(self, within_s: float = CLOSE_S) -> bool:
        """Send each that is queued once, and take no more meanwhile. True: nothing is queued and
        no request is under way, so that the Lease may be given back."""
        was_closing = self._is_closing.is_set()
        try:
            return await self.close(within_s)
        finally:
            if not was_closing:
                self._is_closing.clear()

    def _give_up(self, left: int) -> None:
        self._queue.clear()
        if left:
            self.dropped["late"] += left
            log.warning("%d events were not written before the end", left)

    async def _patiently(self, posted: _Posted) -> None:
        for left in reversed(range(TRIES)):
            try:
                await self._write(posted)
            except NotLeading:
                self._drop("not_leading", 1 + len(self._queue))
                self._queue.clear()
                return
            except (KudurruError, OSError) as error:
                if not left or self._is_closing.is_set() or not await self._waited():
                    self.dropped["refused"] += 1
                    log.warning("an event was not written: %s", error)
                    return
            else:
                self.written += 1
                return

    async def _waited(self) -> bool:
        """False when the process began to end."""
        try:
            async with asyncio.timeout(RETRY_S):
                await self._is_closing.wait()
        except TimeoutError:
            return True
        return False

    async def _write(self, posted: _Posted) -> None:
        """Raises: Refused, Unanswered, and what the client's guard does."""
        before = self._series.get(posted.series)
        if before and posted.at_us - before.last_us <= SERIES_US:
            try:
                await self._count(before, posted)
            except Absent:
                del self._series[posted.series]  # its hour was over
            else:
                self._series.move_to_end(posted.series)
                return
        await self._begin(posted)

    async def _count(self, before: _Written, posted: _Posted) -> None:
        last = seconds_text(posted.at_us)
        patch = {"count": before.count + 1, "lastTimestamp": last}
        path = f"{_collection(posted.series.about)}/{before.name}"
        await self._client.request("PATCH", path, patch, content_type=MERGE_PATCH)
        before.count, before.last_us = before.count + 1, posted.at_us

    async def _begin(self, posted: _Posted) -> None:
        event = _event(posted, self._instance)
        made: dict[str, Any] = await self._client.request(
            "POST", _collection(posted.series.about), event
        )
        self._series[posted.series] = _Written(made["metadata"]["name"], 1, posted.at_us)
        self._series.move_to_end(posted.series)
        while len(self._series) > SERIES_MAX:
            self._series.popitem(last=False)

    def _drop(self, why: Drop, count: int = 1) -> None:
        """Count them, and say so the first time."""
        self.dropped[why] += count
        if why not in self._has_said:
            self._has_said.add(why)
            log.warning("events are dropped: %s", _WHY[why])


def _collection(about: About) -> str:
    # The server takes those about objects of the cluster nowhere else.
    return f"/api/v1/namespaces/{about.namespace or 'default'}/events"


def _event(posted: _Posted, instance: str) -> dict[str, Any]:
    series, at = posted.series, seconds_text(posted.at_us)
    about = series.about
    involved = {
        "apiVersion": about.api_version,
        "kind": about.kind,
        "name": about.name,
        "uid": about.uid,
    }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{about.name}.", "namespace": about.namespace or "default"},
        "involvedObject": involved | ({"namespace": about.namespace} if about.namespace else {}),
        "type": series.type,
        "reason": series.reason,
        "message": series.message,
        "count": 1,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "source": {"component": COMPONENT, "host": instance},
        "reportingComponent": COMPONENT,
        "reportingInstance": instance,
    }
