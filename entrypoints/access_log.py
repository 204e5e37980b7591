"""What the log says of who came in and who did not.

A refusal that repeats is one event with a count, at most one in REPEAT_S for each name, address and
reason; past KEPT_MAX of those all others count together. So whoever is refused a million times
writes as little as whoever is refused twice, and the first refusal is in the log at once.
"""

import asyncio
from collections import OrderedDict
from contextlib import suppress
from typing import NoReturn

import msgspec

from kudurru.adapters.connections import network_of
from kudurru.domain.codec import canonical
from kudurru.domain.commands import RecordFact
from kudurru.domain.errors import KudurruError
from kudurru.domain.events import ACCESS_KEY, AUTH_ACTED, AUTH_DENIED, AUTH_LOGIN, Who
from kudurru.domain.object_store import DEFAULT_MANAGER
from kudurru.entrypoints.wiring import Change, Node
from kudurru.entrypoints.writer import Writer

REPEAT_S = 600
KEPT_MAX = 256
LOGIN_S = 86_400
"""Seconds until the use of a token from the same address is news again."""

LOGINS_MAX = 4_096
FACTS_MAX = 512
"""Facts that wait to be written: more are counted, and lost."""


class AccessStatistics(msgspec.Struct, frozen=True):
    denied: int
    logins: int
    lost: int


class _Refusals(msgspec.Struct):
    next_s: float  # not before
    count: int = 0  # since the last event


class AccessLog:
    """Takes facts from anywhere on the loop; `run` writes them."""

    def __init__(self, node: Node, writer: Writer) -> None:
        self._node = node
        self._writer = writer
        self._waiting: asyncio.Queue[tuple[str, dict[str, object], Who]] = asyncio.Queue(FACTS_MAX)
        self._refusals: OrderedDict[tuple[str, str, str], _Refusals] = OrderedDict()
        self._logins: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._denied = self._came_in = self._lost = 0

    def statistics(self) -> AccessStatistics:
        return AccessStatistics(self._denied, self._came_in, self._lost)

    def denied(self, name: str, address: str, why: str, what: str = "") -> None:
        """Somebody was refused; `name` is that of the token, "" where there is none of that name.
        `what` is the right that was missing."""
        self._denied += 1
        now_s = self._now_s()
        key = (name, network_of(address), f"{why} {what}")
        known = self._refusals.get(key)
        if known is None:
            self._forget(now_s)
            if len(self._refusals) >= KEPT_MAX:
                key, address, name = ("", "", "others"), "", ""
                why, what = "others", ""
            known = self._refusals.setdefault(key, _Refusals(now_s))
        known.count += 1
        if now_s < known.next_s:
            return
        body: dict[str, object] = {"token": name, "why": why, "count": known.count}
        if what:
            body["right"] = what
        known.count, known.next_s = 0, now_s + REPEAT_S
        self._refusals.move_to_end(key)
        self._put(AUTH_DENIED, body, self._who(name, address))

    def came_in(self, name: str, address: str) -> None:
        """A token was used. News where it was not used from there for a day."""
        key, now_s = (name, address), self._now_s()
        before = self._logins.pop(key, None)
        is_news = before is None or now_s - before >= LOGIN_S
        self._logins[key] = now_s if is_news or before is None else before
        if len(self._logins) > LOGINS_MAX:
            self._logins.popitem(last=False)
        if is_news:
            self._came_in += 1
            self._put(AUTH_LOGIN, {"token": name}, self._who(name, address))

    def acted(self, action: str, who: Who) -> None:
        """An admin did what leaves no other event."""
        self._put(AUTH_ACTED, {"action": action}, who)

    async def run(self) -> NoReturn:
        """Write what comes, until cancelled. A log that cannot be written says so elsewhere."""
        while True:
            fact, body, who = await self._waiting.get()
            try:
                await self._write(fact, body, who)
            except KudurruError:
                self._lost += 1

    async def _write(self, fact: str, body: dict[str, object], who: Who) -> None:
        command = RecordFact(
            type=fact,
            key=ACCESS_KEY,
            ver=self._node.objects.version(ACCESS_KEY) + 1,
            scope="/",
            manager=DEFAULT_MANAGER,
            body=canonical(body),
        )
        await self._writer.submit(Change(commands=(command,), who=who))

    def _put(self, fact: str, body: dict[str, object], who: Who) -> None:
        with suppress(asyncio.QueueFull):
            self._waiting.put_nowait((fact, body, who))
            return
        self._lost += 1

    def _forget(self, now_s: float) -> None:
        """Those that are over, the oldest first; what they counted since is said."""
        for key, known in list(self._refusals.items()):
            if known.next_s > now_s:
                break
            del self._refusals[key]
            if known.count:
                name, network, why = key
                body: dict[str, object] = {"token": name, "why": why, "count": known.count}
                self._put(AUTH_DENIED, body, self._who(name, network))

    def _now_s(self) -> float:
        return self._node.clock.monotonic_us() / 1_000_000

    @staticmethod
    def _who(name: str, address: str) -> Who:
        actor = f"token:{name}" if name else "nobody"
        return Who(actor=actor, source=f"api {address}".rstrip())
