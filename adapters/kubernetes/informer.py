"""A copy of a collection, kept current by a watch.

List in pages, watch from the list's version, resume from the last one seen, list again when that is
forgotten (410). Failures are followed by waits that grow and are spread. A collection whose
definition is not installed is an empty one, looked at again every few minutes.

Changes are told to a handler, in the loop, one after the other. What it is told is how the object
is now, not what happened: changes that follow each other closely may be told as one.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Container, Mapping
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

import msgspec

from kudurru.adapters.kubernetes.answers import (
    Absent,
    Expired,
    Forbidden,
    Refused,
    Status,
    TooLarge,
    Unanswered,
    decoded,
    refusal,
    retry_after,
)
from kudurru.adapters.kubernetes.client import QUIET_S, Client
from kudurru.adapters.kubernetes.nesting import read
from kudurru.domain.mirror import version_number

PAGE = 250
"""Objects asked for at once. Listing costs the same whatever the size; a page of these is decoded
in some milliseconds, for which nothing else happens on the loop."""
AT_ONCE = 50
"""Objects that are told before others have their turn on the loop: converting one takes up to a
tenth of a millisecond."""
OCTETS_AT_ONCE = 64 << 10
"""The same, where they are large: managedFields of this size take some ten milliseconds."""
IN_LOOP_MAX = 16 << 10
"""Octets of an object that is converted on the loop; a larger one is in a thread."""
WATCH_S = (290, 590)
"""How long the server is asked to keep a watch open: spread, so that not all come back at once."""
RETRY_S, RETRY_MAX_S = 0.8, 30.0
HEALTHY_S = 60.0
"""A watch that lived so long ends a series of failures."""
BRIEF_S = 2.0
"""One that ended sooner is a failure, whatever it says."""
ABSENT_S = 300.0
TOMBSTONES_MAX = 4096

log = logging.getLogger(__name__)

T = TypeVar("T")


class Meta(msgspec.Struct, frozen=True, rename="camel"):
    """What every object says of itself."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class _Headed(msgspec.Struct, frozen=True):
    metadata: Meta = Meta()


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct, frozen=True):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class Handler(Generic[T]):
    """Told of changes. Each method may be left as it is. What they raise ends the informer."""

    def put(self, key: str, new: T, old: T | None) -> None:
        """It is there, or has another version."""

    def gone(self, key: str, last: T | None, version: str) -> None:
        """It is not there any more. `last` is the last copy, None when there was none; `version`
        is of its deletion, or of the list that it was missed in."""

    def read(self, version: str) -> None:
        """Said once: what was there at first has been told, of this version."""

    def listed(self) -> None:
        """What a list has was told, all of it."""

    def broken(self, key: str, why: str) -> None:
        """It is there and cannot be read; its last copy stays."""

    def absent(self) -> None:
        """Said once, after the first read, when what is watched by name is not there."""

    def recovered(self) -> None:
        """A watch was accepted after one that failed; what was missed is told after this."""

    def list_failed(self, error: Exception) -> None:
        """A list failed; it is tried again."""

    def rolled_back(self, seen: str, now: str) -> None:
        """The server is at an older version than it was: it was restored from a backup. Told
        before the objects of the list that begins; again when that fails and the next one is
        older."""


def slim(found: dict[str, Any]) -> dict[str, Any]:
    """The object without what the copy has no use for: managedFields are half of it."""
    found["metadata"].pop("managedFields", None)
    return found


class Source(msgspec.Struct, frozen=True):
    """What is watched."""

    path: str  # of the collection
    name: str = ""  # of one object, by a field selector, which a role with resourceNames allows
    label_selector: str = ""
    page: int = PAGE

    def target(self, **query: str) -> str:
        if self.name:
            query["fieldSelector"] = f"metadata.name={self.name}"
        if self.label_selector:
            query["labelSelector"] = self.label_selector
        return f"{self.path}?{urlencode(query)}"


class Informer(Generic[T]):
    """`run` it in a task of yours, once."""

    def __init__(
        self,
        client: Client,
        source: Source,
        convert: Callable[[dict[str, Any]], T],
        handler: Handler[T],
        *,
        chance: random.Random,
        strict: bool = False,
        in_loop_max: int = IN_LOOP_MAX,
    ) -> None:
        """`convert` raises ValueError for what it cannot read; whatever else it raises is taken
        for that too, and logged. Of objects above `in_loop_max` octets it is called in a thread. A
        `strict` informer is not synced while its watch fails, for whom an old copy is worse than
        none."""
        self.copy: dict[str, T] = {}
        self.versions: dict[str, str] = {}
        """By key, of every object that is there, those that cannot be read too."""
        self.as_of = ""
        """Version of the list or the event that is being told. An object of a list may have one
        that is lower than it had before, when the server was set back."""
        self.before: int | None = None
        """Objects that were there before a list began that is not told whole yet, whether it goes
        on or failed; else None. What is new in it is told before what is gone."""
        self.is_listing = False
        """Whether what is told now is what a list has: what is gone is missing from it."""
        self.is_synced = False
        self.is_absent = False
        """The collection's definition is not installed."""
        self.reopened = 0
        """Watches accepted after the first."""
        self.lists = 0
        self._client = client
        self._source = source
        self._convert = convert
        self._handler = handler
        self._chance = chance
        self._strict = strict
        self._in_loop_max = in_loop_max
        self._page = source.page
        """Objects of a page: fewer since one was too large."""
        self._version = ""  # to watch from; "": list first
        self._newest = 0  # seen of any object or list
        self._gone: dict[str, int] = {}
        self._is_set_back = False  # and no list was told whole since
        self._objects_in_turn = self._octets_in_turn = 0
        self._changed = asyncio.Event()
        self._has_read = False
        self._has_watched = False
        self._has_failed = False
        self._is_silent = False
        self._wait_s = 0.0

    def expect(self, version: str) -> None:
        """Before `run`: the server was at this version once."""
        self._newest = version_number(version)

    async def run(self) -> None:
        """Until it is cancelled. Raises what the handler raises."""
        while True:
            wait_s = await self._round()
            await asyncio.sleep(wait_s)

    async def changed(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so, looked at after each change."""
        while not is_so():
            await self._changed.wait()

    async def synced(self) -> None:
        await self.changed(lambda: self.is_synced)

    async def _round(self) -> float:
        """List where that is due, and watch for as long as it goes well. Seconds to wait then."""
        begun, self._is_silent = _now_s(), True
        try:
            if self._version and self._has_failed:
                await self._look_back()
            if not self._version:
                await self._list()
            await self._watch()
        except Expired:
            self._version = ""
            return self._pause(begun)
        except Absent as error:
            return await self._not_there(error)
        except (Refused, Unanswered) as error:
            self._failed(error)
            self._doubt(begun)
            return max(self._pause(begun), retry_after(error))
        self._doubt(begun)
        return self._pause(begun) if _now_s() - begun < BRIEF_S else 0.0

    def _doubt(self, begun: float) -> None:
        """List again after a watch that was silent for longer than the server's bookmarks are
        apart: a server that was set back to an older version brings nothing to a watch from a
        later one, and says nothing of it."""
        if self._is_silent and _now_s() - begun >= QUIET_S:
            self._version = ""

    async def _look_back(self) -> None:
        """List again where the server was set back while it was away: one small request tells its
        version. Afterwards nothing would, until the watch was silent for long (`_doubt`)."""
        page = await self._client.request("GET", self._source.target(limit="1"), type_=_Page)
        if version_number(page.metadata.resource_version) < self._newest:
            self._version = ""

    async def _not_there(self, error: Absent) -> float:
        if not self.is_absent:
            log.info("%s is not installed: nothing is read there (%s)", self._source.path, error)
        self.is_absent = True
        self._version = self.as_of = ""
        self.is_listing = True
        self._note_before()
        await self._drop_others(())
        self.is_listing, self.before = False, None
        self._end_list()
        self._set_synced(True)
        return ABSENT_S

    def _failed(self, error: Exception) -> None:
        if not self._has_failed:
            log.warning("%s", error)
        self._has_failed = True
        if self._strict or isinstance(error, Forbidden):
            # It may list and not watch, so that its copy would stand still.
            self._set_synced(False)

    def _pause(self, begun: float) -> float:
        """Of 0.8 to 30 s, each up to three times the last."""
        if _now_s() - begun >= HEALTHY_S:
            self._wait_s = 0.0
        longest = min(RETRY_MAX_S, max(RETRY_S, self._wait_s * 3))
        self._wait_s = self._chance.uniform(RETRY_S, longest)
        return self._wait_s

    # Lists.

    async def _list(self) -> None:
        """Page by page, each told before the next is asked for, so that one is in memory at a time.
        When one fails, what was told is so, and what is missing is told by the next list."""
        try:
            await self._list_whole()
        except (Refused, Unanswered) as error:
            self._handler.list_failed(error)
            raise
        self.lists += 1
        self._version = self.as_of
        self._is_set_back, self.before = False, None
        self._gone.clear()
        self._end_list()

    async def _list_whole(self) -> None:
        there: set[str] = set()
        try:
            token = await self._list_page("", there)
            while token:
                token = await self._list_page(token, there)
            await self._drop_others(there)
        finally:
            self.is_listing = False

    async def _list_page(self, token: str, there: set[str]) -> str:
        """The token of the next one; "" after the last."""
        # Never resourceVersion=0: the cache that answers it may be older than our own write.
        more = {"continue": token} if token else {}
        target = self._source.target(limit=str(self._page), **more)
        try:
            page = await self._client.request("GET", target, type_=_Page)
        except TooLarge:
            self._page = max(1, self._page // 8)
            raise
        if not token:
            self._begin_list(page.metadata.resource_version)
        for item in page.items or ():
            await self._listed(item, there)
        return page.metadata.continue_

    def _begin_list(self, version: str) -> None:
        """Its version is that of its first page. Nothing of a watch is told until its end."""
        self.as_of, self.is_listing, self.is_absent = version, True, False
        self._note_before()
        if version_number(version) < self._newest:
            self._handler.rolled_back(str(self._newest), version)
            self._is_set_back = True
            self._gone.clear()
        self._newest = version_number(version)

    def _note_before(self) -> None:
        if self.before is None:
            self.before = len(self.versions)

    async def _listed(self, item: msgspec.Raw, there: set[str]) -> None:
        """What has the version that is known is as it was, but for a server that was set back."""
        meta = self._meta(item)
        there.add(meta.key)
        if self._is_set_back or self.versions.get(meta.key) != meta.resource_version:
            await self._take(meta.key, meta.resource_version, item)
        await self._rest(len(memoryview(item)))

    async def _drop_others(self, there: Container[str]) -> None:
        for key in [key for key in self.versions if key not in there]:
            self._drop(key, self.as_of)
            await self._rest()

    def _end_list(self) -> None:
        self._handler.listed()
        self._wake()
        self._first_read()

    async def _rest(self, octets: int = 0) -> None:
        """After each object: others have their turn now and then."""
        self._objects_in_turn += 1
        self._octets_in_turn += octets
        if self._objects_in_turn >= AT_ONCE or self._octets_in_turn >= OCTETS_AT_ONCE:
            self._objects_in_turn = self._octets_in_turn = 0
            await asyncio.sleep(0)

    def _first_read(self) -> None:
        if not self._has_read:
            self._has_read = True
            self._handler.read(self._version)
            if self._source.name and not self.versions:
                self._handler.absent()

    # Watches.

    async def _watch(self) -> None:
        target = self._source.target(
            watch="1",
            allowWatchBookmarks="true",
            resourceVersion=self._version,
            timeoutSeconds=str(self._chance.randint(*WATCH_S)),
        )
        async with self._client.lines(target) as lines:
            self._accepted()
            async for line in lines:
                self._is_silent = False
                await self._event(await decoded("GET", target, line, _Event))

    def _accepted(self) -> None:
        if self._has_failed:
            self._has_failed = False
            self._handler.recovered()
        if self._has_watched:
            self.reopened += 1
        self._has_watched = True
        self._set_synced(True)

    async def _event(self, event: _Event) -> None:
        if event.type == "ERROR":
            code = self._read(event.object, Status).code or 500
            raise refusal("GET", self._source.path, code, bytes(event.object))
        meta = self._meta(event.object)
        number = version_number(meta.resource_version)
        if event.type != "BOOKMARK":
            await self._change(event, meta, number)
        if number > self._newest:
            self._version, self._newest = meta.resource_version, number
        self._wake()
        await self._rest(len(memoryview(event.object)))

    async def _change(self, event: _Event, meta: Meta, number: int) -> None:
        key = meta.key
        if number <= max(version_number(self.versions.get(key, "")), self._gone.get(key, 0)):
            return  # told before
        self.as_of = meta.resource_version
        if event.type == "DELETED":
            self._gone[key] = number
            while len(self._gone) > TOMBSTONES_MAX:
                del self._gone[next(iter(self._gone))]
            self._drop(key, meta.resource_version)
        else:
            await self._take(key, meta.resource_version, event.object)

    # The copy.

    async def _take(self, key: str, version: str, raw: msgspec.Raw) -> None:
        try:
            new = await self._converted(raw)
        except ValueError as error:
            self.versions[key] = version
            self._handler.broken(key, str(error))
            return
        except Exception as error:  # whatever is in one object, it does not end the informer
            log.warning("%s %s cannot be converted", self._source.path, key, exc_info=True)
            self.versions[key] = version
            self._handler.broken(key, f"{type(error).__name__}: {error}")
            return
        self.versions[key] = version
        old, self.copy[key] = self.copy.get(key), new
        self._handler.put(key, new, old)

    async def _converted(self, raw: msgspec.Raw) -> T:
        if len(memoryview(raw)) <= self._in_loop_max:
            return self._convert(read(raw))
        return await asyncio.to_thread(lambda: self._convert(read(raw)))

    def _drop(self, key: str, version: str) -> None:
        if self.versions.pop(key, None) is not None:
            self._handler.gone(key, self.copy.pop(key, None), version)

    def _meta(self, raw: msgspec.Raw) -> Meta:
        found: Meta = self._read(raw, _Headed).metadata
        return found

    def _read(self, raw: msgspec.Raw, type_: Any) -> Any:
        """What every API server writes. Raises: Unanswered, where this one did not."""
        try:
            return read(raw, type_)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            why = f"an object cannot be read: {error}"
            raise Unanswered("GET", self._source.path, why) from error

    def _set_synced(self, value: bool) -> None:
        self.is_synced = value
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def key_of(found: Mapping[str, Any]) -> str:
    """Of a whole object."""
    metadata = found["metadata"]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])


def _now_s() -> float:
    return asyncio.get_running_loop().time()
