"""What the API server last answered to us, so that an older copy is not taken for the present.

A watch brings our own writes a moment after their answers. Until then a copy kept by it is older
than what we know, and whoever acts on it does one thing twice. The memo holds, for each object, the
version of the newest answer; a copy of another version is not current, and the object is read from
the API server. Versions are compared for equality only.

Belongs to one event loop. Keys are `namespace/name`, or `name`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

T = TypeVar("T")

UNKNOWN = ""
"""Noted after a request that failed: it may have been done. No copy has this version."""


class Turns:
    """Requests about one object go one by one; others do not wait for them."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._locks)

    @asynccontextmanager
    async def of(self, key: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._users[key] = self._users.get(key, 0) + 1
        try:
            async with lock:
                yield
        finally:
            # Not when it is free: between two users it is, for a moment.
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key], self._locks[key]


class Memo:
    def __init__(self) -> None:
        self._versions: dict[str, str] = {}
        self._noted_at: dict[str, int] = {}
        self._notes = 0
        self._turns = Turns()

    def __len__(self) -> int:
        return len(self._versions)

    def is_current(self, key: str, version: str) -> bool:
        """Whether a copy of this version is as new as anything we were told."""
        return self._versions.get(key, version) == version

    def knows(self, key: str) -> bool:
        """Whether anything was noted, UNKNOWN too: then its absence from a copy says nothing."""
        return key in self._versions

    def unheld(self, held: Container[str]) -> list[str]:
        """What we were told is there, and a copy lacks: made a moment ago."""
        return [key for key, version in self._versions.items() if version and key not in held]

    async def send(
        self, key: str, request: Callable[[], Awaitable[T]], version_of: Callable[[T], str]
    ) -> T:
        """Make one request about an object and note its answer. Requests about one object go one
        by one, else the older of two answers might be noted last."""
        async with self._turns.of(key):
            self._note(key, UNKNOWN)
            answer = await request()
            self._note(key, version_of(answer))
            return answer

    async def send_list(
        self, request: Callable[[], Awaitable[T]], versions_of: Callable[[T], Mapping[str, str]]
    ) -> T:
        """Make one list request and note what it has, but for objects that a request noted while
        it was under way: the list may be from before that. Never for a list with
        resourceVersion=0, which may be older than what was noted before."""
        begun = self._notes
        answer = await request()
        for key, version in versions_of(answer).items():
            if self._noted_at.get(key, 0) <= begun:
                self._note(key, version)
        return answer

    def held(self, key: str, version: str) -> None:
        """A copy has this version now: if it is the noted one, the note has done its work, and
        later versions of others need no reading through."""
        if self._versions.get(key) == version:
            self.forget(key)

    def forget(self, key: str) -> None:
        """The object is gone, and whoever wanted to know that does."""
        self._versions.pop(key, None)
        self._noted_at.pop(key, None)

    def forget_gone(self, listed: Container[str], held: Container[str]) -> None:
        """Forget what neither a list of the API server has nor a copy. What the copy still holds
        stays noted, or it would count as current until the watch takes it away."""
        gone: Iterable[str] = [k for k in self._versions if k not in listed and k not in held]
        for key in gone:
            self.forget(key)

    def _note(self, key: str, version: str) -> None:
        self._notes += 1
        self._versions[key] = version
        self._noted_at[key] = self._notes
