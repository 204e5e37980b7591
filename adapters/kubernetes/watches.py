"""A watch of the Store port: an informer of its own, whose first list is a consistent read, so that
it has every write that was done before."""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Self

from kudurru.adapters.kubernetes.client import Client
from kudurru.adapters.kubernetes.informer import Handler, Informer, Source
from kudurru.domain.ports import WatchEvent

WAITING_MAX = 4096
"""Events that may wait for who watches: after that its stream ends, and it has to begin again.
The first part is not counted, whatever its size."""

Object = dict[str, Any]


class ObjectWatch(Handler[Object]):
    """See `Watch`. It ends when its consumer is too slow, and when it is stopped."""

    def __init__(
        self,
        client: Client,
        path: str,
        convert: Callable[[Object], Object],
        *,
        chance: random.Random,
        ended: Callable[["ObjectWatch"], None],
    ) -> None:
        self._events: deque[WatchEvent] = deque()
        self._more = asyncio.Event()
        self._has_begun = False
        self._is_over = False
        self._ended = ended
        informer = Informer(client, Source(path), convert, self, chance=chance)
        self._task = asyncio.ensure_future(informer.run())
        self._task.add_done_callback(lambda _: self._end())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WatchEvent:
        while not self._events:
            if self._is_over:
                raise StopAsyncIteration
            self._more.clear()
            await self._more.wait()
        return self._events.popleft()

    async def stop(self) -> None:
        self._events.clear()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._end()

    def put(self, key: str, new: Object, old: Object | None) -> None:  # noqa: ARG002
        version = new["metadata"]["resourceVersion"]
        self._add(WatchEvent("Added" if old is None else "Modified", version, new))

    def gone(self, key: str, last: Object | None, version: str) -> None:  # noqa: ARG002
        if last is not None:
            self._add(WatchEvent("Deleted", version, last))

    def read(self, version: str) -> None:
        self._has_begun = True
        self._add(WatchEvent("Bookmark", version))

    def _add(self, event: WatchEvent) -> None:
        if self._is_over:
            return
        if self._has_begun and len(self._events) >= WAITING_MAX:
            self._events.clear()
            self._task.cancel()
            self._end()
            return
        self._events.append(event)
        self._more.set()

    def _end(self) -> None:
        self._is_over = True
        self._more.set()
        self._ended(self)
