"""The other nodes that have this log: whether one of them was promoted.

Nobody can keep a second node from being promoted where the two do not reach each other. But each
asks its peers, and `domain.lineage` tells both of them alike which one may not write.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NoReturn

import msgspec

from kudurru.domain.errors import Busy, Diverged, KudurruError
from kudurru.domain.lineage import LogAbout, began, why_not_ours
from kudurru.domain.ports import VerifiableLog
from kudurru.domain.settings import FollowSettings
from kudurru.entrypoints.leader import Leader
from kudurru.entrypoints.standing import Standing
from kudurru.entrypoints.wiring import Node

log = logging.getLogger("kudurru.follow")

PEERS_S = 30.0
"""Between two rounds of questions to the peers."""

PEERS_MAX = 16


class Heard(msgspec.Struct, frozen=True):
    """What one of the other nodes said, or why it said nothing."""

    url: str
    about: LogAbout | None
    error: str = ""


def ask_all(urls: Iterable[str], settings: FollowSettings) -> list[Heard]:
    """Blocking, all at once. One that cannot be asked is an answer too."""

    def ask(url: str) -> Heard:
        try:
            with Leader(url, settings) as other:
                return Heard(url, other.about())
        except KudurruError as error:
            return Heard(url, None, str(error))

    wanted = list(dict.fromkeys(urls))[:PEERS_MAX]
    if not wanted:
        return []
    with ThreadPoolExecutor(len(wanted)) as pool:
        return list(pool.map(ask, wanted))


class Peers:
    """Asks the other nodes of a log whether one of them was promoted. Always on, where there are
    any; before the first round nothing is written."""

    def __init__(
        self,
        node: Node,
        settings: FollowSettings,
        standing: Standing,
        *,
        interval_s: float = PEERS_S,
    ) -> None:
        self._node = node
        self._settings = settings
        self._standing = standing
        self.on_cleared: Callable[[], Awaitable[None]] = _nothing
        """Called when the first round has shown that this node may write."""
        self._interval_s = interval_s
        self._warnings: list[str] = []
        if settings.peers:
            text = "the other nodes are asked whether one was promoted: try again in some seconds"
            node.blocked = Busy(text)

    @property
    def urls(self) -> tuple[str, ...]:
        return self._settings.peers

    def warnings(self) -> list[str]:
        return self._warnings

    async def run(self) -> NoReturn:
        while True:
            if self._node.follows is None:
                await self.round()
            await asyncio.sleep(self._interval_s)

    async def round(self) -> None:
        heard = await asyncio.to_thread(ask_all, self._settings.peers, self._settings)
        warnings, why = await asyncio.to_thread(self._judged, heard)
        if isinstance(self._node.blocked, Diverged):
            return  # until somebody acts
        for warning in warnings:
            if warning not in self._warnings:
                log.warning("%s", warning)
        self._warnings = warnings
        if why is not None:
            self._warnings = [f"Peers: {why}"]
            log.error("nothing is written any more: %s", why)
            self._node.blocked = why
        elif self._node.blocked is not None:
            self._node.blocked = None
            with suppress(KudurruError):  # it is tried again with the next change
                await self.on_cleared()

    def _judged(self, heard: list[Heard]) -> tuple[list[str], Diverged | None]:
        """What to tell, and why this node may not write."""
        read: VerifiableLog = self._node.log  # type: ignore[assignment]  # every log of ours is
        ours, warnings = began(read), []
        for one in heard:
            about = one.about
            if about is None or about.instances[0] == self._standing.instance:
                continue
            if about.log_id != read.log_id:
                warnings.append(f"Peers: {one.url} has another log, {about.log_id}")
            elif why := why_not_ours(ours, about.epochs, one.url):
                position = next(
                    theirs.position for i, theirs in enumerate(about.epochs)
                    if i >= len(ours) or ours[i].head != theirs.head
                )  # fmt: skip
                advice = f"start it with --follow {one.url} (--adopt keeps what is here aside)"
                return warnings, Diverged(position, f"{why}: this node writes no more; {advice}")
            elif about.state == "leads":
                warnings.append(
                    f"Peers: {one.url} takes writes too, and is left behind: stop it, or start it "
                    "with --follow, naming this node"
                )
        return warnings, None


async def _nothing() -> None:
    pass
