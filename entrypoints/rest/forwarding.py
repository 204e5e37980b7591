"""What a node that follows has its leader do: a request is passed on, and the answer passed back.

The leader judges the caller's own token, which it has too, so that what it records is of the person
who asked. Each request has a connection of its own: on one that was kept it could not be told
whether a request that broke off was taken. An answer waits until the copy here has what it tells
of; where that takes too long, its headers say how far the copy is.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from kudurru.adapters.api_client import ApiClient, Given
from kudurru.adapters.http_api import Reply, Request
from kudurru.adapters.http_ops import Response
from kudurru.adapters.metrics import Sample
from kudurru.domain.errors import Busy, Follows, Invalid, KudurruError, Unreachable
from kudurru.domain.events import Recorded
from kudurru.entrypoints.rest.status import Unanswered
from kudurru.entrypoints.standing import Standing
from kudurru.entrypoints.waiting import alone
from kudurru.entrypoints.wiring import Node

HOPS = "X-Kudurru-Forwarded"
"""Instances of the nodes that passed a request on, the first one first."""

HOPS_MAX = 4
"""A follower of a follower is two; more is a circle, or as good as one."""

POSITION = "X-Kudurru-Position"
COPIED = "X-Kudurru-Copied"
"""Position that the copy here had when a request was answered that was passed on."""

FORWARDS_MAX = 16
"""Requests that are passed on at once: each holds a thread, and its body."""

ENDLESS_S = 600.0
"""For what has no limit of time here, such as a restore of everything."""

ANSWER_MAX = 64 << 20

PASSED_ON = ("content-type", "if-match", "if-none-match")
PASSED_BACK = (
    "ETag", POSITION, "X-Kudurru-Verb", "Warning", "Retry-After", "Allow", "WWW-Authenticate",
)  # fmt: skip
JSON = "application/json"


class Limits(msgspec.Struct, frozen=True):
    """Together less than a request may take (`http_api.ANSWER_S`)."""

    answer_s: float = 20.0  # for the leader
    copy_s: float = 5.0  # until what it did is here: half a second, as it signs first


class Forwarding:
    """Of a node that may follow. On one loop; what waits for the leader is in threads."""

    def __init__(
        self, node: Node, standing: Standing, ca: str = "", limits: Limits | None = None
    ) -> None:
        """`ca`: a file of CAs that the leader's certificate may be from, empty: the system's."""
        self._node = node
        self._standing = standing
        self._ca = ca
        self._limits = limits or Limits()
        self._moved = asyncio.Event()
        self._under_way = 0
        self._refused = 0
        self._answered: Counter[int] = Counter()

    def leader(self) -> str | None:
        """Who is to be asked; None for a node that does not follow, or no more."""
        error = self._node.why_not_writable
        return error.leader if isinstance(error, Follows) else None

    def samples(self) -> Iterator[Sample]:
        for code, count in self._answered.items():
            yield Sample("follower_forwarded_total", (str(code),), count)
        yield Sample("follower_forwards_refused_total", (), self._refused)

    def recorded(self, _events: list[Recorded]) -> None:
        """Hears of events that are in the views now."""
        self._moved.set()
        self._moved.clear()

    async def pass_on(self, leader: str, request: Request, token: str) -> Reply:
        """The leader's answer, whatever it says. Raises: Busy, Unreachable where nothing was asked;
        Unanswered where it is not known what came of it."""
        hops = self._hops(request)
        if self._under_way >= FORWARDS_MAX:
            self._refused += 1
            raise Busy(f"{FORWARDS_MAX} requests are being passed on to {leader}; try again")
        self._under_way += 1
        try:
            limit_s = ENDLESS_S if math.isinf(request.limit_s) else self._limits.answer_s
            given = await self._given(_Passage(leader, token, self._ca, request, hops, limit_s))
        finally:
            self._under_way -= 1
        self._answered[given.code] += 1
        return await self._answer(leader, given)

    def _hops(self, request: Request) -> str:
        """Raises: Unreachable."""
        before = hops_of(request)
        if self._standing.instance in before:
            raise Unreachable("this request came back to where it was: the nodes follow each other")
        if len(before) >= HOPS_MAX:
            raise Unreachable(f"{HOPS_MAX} nodes passed this request on, and none of them leads")
        return ", ".join([*before, self._standing.instance])

    async def _given(self, passage: "_Passage") -> Given:
        try:
            async with asyncio.timeout(passage.limit_s):
                return await alone(passage.run, "forward")
        except TimeoutError:
            raise passage.unanswered(f"no answer within {passage.limit_s:.0f} s") from None
        finally:
            passage.abort()

    async def _answer(self, leader: str, given: Given) -> Reply:
        headers = {name.lower(): value for name, value in given.headers.items()}
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != JSON or not (200 <= given.code < 300 or 400 <= given.code < 600):
            what = f"it answers {given.code} with {kind or 'no type'}"
            raise Unanswered(f"{leader} is no kudurru that takes changes: {what}")
        told = [(name, headers[name.lower()]) for name in PASSED_BACK if name.lower() in headers]
        if (position := _position(headers.get(POSITION.lower(), ""))) and given.code < 300:
            await self._until_copied(position)
            told.append((COPIED, str(self._node.position)))
        return Reply(code=given.code, body=given.body, headers=_clean(told))

    async def _until_copied(self, position: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.copy_s):
                while self._node.position < position:
                    await self._moved.wait()


class _Passage:
    """One request, on its way in a thread."""

    def __init__(
        self, leader: str, token: str, ca: str, request: Request, hops: str, limit_s: float
    ) -> None:
        self.limit_s = limit_s
        self._leader = leader
        self._token = token
        self._ca = ca
        self._request = request
        self._headers = {k: request.headers[k] for k in PASSED_ON if k in request.headers}
        self._headers[HOPS] = hops
        self._client: ApiClient | None = None
        self._is_over = False

    def run(self) -> Given:
        """Raises: Unreachable, Unanswered."""
        try:
            client = ApiClient(self._leader, self._token, self._ca, answer_s=self.limit_s)
        except Invalid as error:
            why = "; ".join(cause.message for cause in error.causes)
            raise Unreachable(f"nothing was changed: the leader cannot be asked: {why}") from None
        try:
            self._client = client
            try:
                client.connect()
            except Unreachable as error:
                raise Unreachable(f"nothing was changed: {error}") from None
            if self._is_over:
                raise Unreachable("nothing was changed: nobody waits for it any more")
            return self._sent(client)
        finally:
            client.close()

    def _sent(self, client: ApiClient) -> Given:
        request = self._request
        target = request.path + (f"?{request.query}" if request.query else "")
        body = request.body or None
        try:
            return client.pass_on(request.method, target, body, self._headers, ANSWER_MAX)
        except Unreachable as error:
            raise self.unanswered(str(error)) from None

    def unanswered(self, why: str) -> KudurruError:
        what = "whether it was carried out is not known; `kudurru history` there says"
        return Unanswered(f"passed on to {self._leader}, and {what}: {why}")

    def abort(self) -> None:
        """The thread ends soon, if it has not."""
        self._is_over = True
        if self._client is not None:
            self._client.abort()


def hops_of(request: Request) -> list[str]:
    """Who passed it on; nobody for one that comes from who asks."""
    said = request.headers.get(HOPS.lower(), "")
    return [hop for part in said.split(",") if (hop := part.strip())]


def with_position(answer: Response, position: int) -> Reply:
    """An answer that says how far the log is that it tells of, where it does not say so."""
    headers = answer.headers if isinstance(answer, Reply) else ()
    if all(name != POSITION for name, _ in headers):
        headers = (*headers, (POSITION, str(position)))
    return Reply(
        code=answer.code, body=answer.body, content_type=answer.content_type, headers=headers
    )


def _position(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 18 else 0


def _clean(headers: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """A value of a header that is no line would begin another one."""
    return tuple(
        (name, value) for name, value in headers if value.isascii() and value.isprintable()
    )
