"""What the log says of who came in and who did not.

Events of refusals are few, however many those are. One that repeats is one event with a count, at
most one in REPEAT_S for each name, network and reason; past KEPT_MAX of those at a time, and
DENIED_DAY_MAX of their events in a day, all others count together. So whoever is refused a million
times writes as little as whoever is refused twice, and the first refusal is in the log at once.
Those who show a token of ours and those who show none have such a limit each: strangers cannot make
so much noise that nobody sees what a token is refused.

Nobody is named for what anybody can send: an event is a token's when that was proven, by a text
whose hash is here, and nobody's otherwise.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple, NoReturn

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
DAY_S = 86_400
DENIED_DAY_MAX = 1_000
LOGIN_S = DAY_S
"""Seconds until the use of a token from the same network is news again."""

LOGINS_MAX = 4_096
LOGINS_DAY_MAX = 32
"""Events of one token's use in a day; who uses it from more networks than that are counted."""

FACTS_MAX = 512
"""Facts that wait to be written: more are counted, and lost."""


class AccessStatistics(msgspec.Struct, frozen=True):
    denied: int
    logins: int
    lost: int


class _Day(msgspec.Struct):
    """At most so many in a day, which begins with the first."""

    most: int
    since_s: float | None = None
    count: int = 0

    def takes(self, now_s: float) -> bool:
        if self.since_s is None or now_s - self.since_s >= DAY_S:
            self.since_s, self.count = now_s, 0
        if self.count >= self.most:
            return False
        self.count += 1
        return True


class _Refusal(NamedTuple):
    """What is told as one, with a count."""

    name: str
    claimed: str
    address: str
    why: str
    what: str


_OTHERS = _Refusal("", "", "", "others", "")


class _Repeats(msgspec.Struct):
    next_s: float  # not told before
    count: int = 0  # since that was told


class _Refusals:
    """Those that repeat."""

    def __init__(self) -> None:
        self._known: OrderedDict[_Refusal, _Repeats] = OrderedDict()
        self._others = _Repeats(0)
        self._day = _Day(DENIED_DAY_MAX)

    def add(self, refusal: _Refusal, now_s: float) -> Iterator[tuple[_Refusal, int]]:
        """What is to be told now, with counts. It is counted by network, and told of an address."""
        key = refusal._replace(address=network_of(refusal.address))
        if key not in self._known:
            yield from self._forget(now_s)
        known = self._known.get(key)
        if known is not None and now_s < known.next_s:
            known.count += 1
        elif (known is not None or len(self._known) < KEPT_MAX) and self._day.takes(now_s):
            yield refusal, 1 + (known.count if known is not None else 0)
            self._known[key] = _Repeats(now_s + REPEAT_S)
            self._known.move_to_end(key)
        else:
            self._others.count += 1
        yield from self._of_others(now_s)

    def _forget(self, now_s: float) -> Iterator[tuple[_Refusal, int]]:
        """Those that are over, the oldest first; what they counted since is told."""
        for key, known in list(self._known.items()):
            if known.next_s > now_s:
                break
            del self._known[key]
            if known.count and self._day.takes(now_s):
                yield key, known.count
            else:
                self._others.count += known.count

    def _of_others(self, now_s: float) -> Iterator[tuple[_Refusal, int]]:
        others = self._others
        if others.count and now_s >= others.next_s:
            yield _OTHERS, others.count
            self._others = _Repeats(now_s + REPEAT_S)


class _Uses(msgspec.Struct):
    """Of one token, from networks that are news."""

    day: _Day
    others: _Repeats


class AccessLog:
    """Takes facts from anywhere on the loop; `run` writes them."""

    def __init__(self, node: Node, writer: Writer) -> None:
        self._node = node
        self._writer = writer
        self._waiting: asyncio.Queue[tuple[str, dict[str, object], Who]] = asyncio.Queue(FACTS_MAX)
        self._by_tokens, self._by_strangers = _Refusals(), _Refusals()
        self._logins: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._uses: OrderedDict[str, _Uses] = OrderedDict()
        self._denied = self._came_in = self._lost = 0

    def statistics(self) -> AccessStatistics:
        return AccessStatistics(self._denied, self._came_in, self._lost)

    def denied(
        self, name: str, address: str, why: str, what: str = "", *, claimed: str = ""
    ) -> None:
        """Somebody was refused. `name` is that of the token that was shown, "" where it is none of
        ours: then `claimed` is the name of one that it only says to be. `what` is the right that
        was missing."""
        self._denied += 1
        refusals = self._by_tokens if name else self._by_strangers
        refusal = _Refusal(name, claimed, address, why, what)
        for one, count in refusals.add(refusal, self._now_s()):
            body: dict[str, object] = {"token": one.name, "why": one.why, "count": count}
            body |= {"right": one.what} if one.what else {}
            body |= {"claimed": one.claimed} if one.claimed else {}
            self._put(AUTH_DENIED, body, self._who(one.name, one.address))

    def came_in(self, name: str, address: str) -> None:
        """A token was used. News where it was not used from that network for a day."""
        key, now_s = (name, network_of(address)), self._now_s()
        before = self._logins.get(key)
        is_news = before is None or now_s - before >= LOGIN_S
        if is_news:
            self._logins[key] = now_s
            self._tell_use(name, address, now_s)
        self._logins.move_to_end(key)
        if len(self._logins) > LOGINS_MAX:
            self._logins.popitem(last=False)

    def _tell_use(self, name: str, address: str, now_s: float) -> None:
        self._came_in += 1
        uses = self._uses.setdefault(name, _Uses(_Day(LOGINS_DAY_MAX), _Repeats(0)))
        self._uses.move_to_end(name)
        if len(self._uses) > LOGINS_MAX:
            self._uses.popitem(last=False)
        if uses.day.takes(now_s):
            self._put(AUTH_LOGIN, {"token": name}, self._who(name, address))
        else:
            uses.others.count += 1
        if uses.others.count and now_s >= uses.others.next_s:
            body: dict[str, object] = {"token": name, "count": uses.others.count}
            self._put(AUTH_LOGIN, body, self._who(name, ""))
            uses.others = _Repeats(now_s + LOGIN_S)

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

    def _now_s(self) -> float:
        return self._node.clock.monotonic_us() / 1_000_000

    @staticmethod
    def _who(name: str, address: str) -> Who:
        # The name of a token has no colon; one of a cluster's user comes with it.
        actor = name if ":" in name else f"token:{name}" if name else "nobody"
        return Who(actor=actor, source=f"api {address}".rstrip())
