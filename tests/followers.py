"""A leader behind a real socket, and what follows it, in one process."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from kudurru.adapters.clock import SystemClock
from kudurru.adapters.http_api import ApiServer
from kudurru.adapters.signing import KeyFolder
from kudurru.adapters.sockets import Listener, bind_all
from kudurru.adapters.sqlite.log import SQLiteEventLog
from kudurru.domain.chain import origin_of
from kudurru.domain.commands import Command
from kudurru.domain.errors import Follows
from kudurru.domain.settings import FollowSettings, SecretFile
from kudurru.entrypoints.checkpoints import Checkpointer, CheckpointPolicy
from kudurru.entrypoints.follow_place import Copy, FollowPlace
from kudurru.entrypoints.following import Following, Retries
from kudurru.entrypoints.rest.forwarding import Forwarding, Limits
from kudurru.entrypoints.standing import Standing
from kudurru.entrypoints.wiring import Node
from tests.api import Api
from tests.logs import SeededEntropy, StillClock
from tests.nodes import a_change
from tests.ports import free_port

PATIENCE_S = 60.0
AT_ONCE = Retries(first_s=0.01, most_s=0.05, refused_s=0.05)


async def until(condition: Callable[[], Any]) -> None:
    """Wait for something that a thread brings about."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


class Listening:
    """A node whose API can be asked over a socket, and taken away."""

    def __init__(self, api: Api, tls: ssl.SSLContext | None = None) -> None:
        self.api = api
        self.port = free_port()
        self._tls = tls
        self._server: ApiServer | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    async def listen(self) -> None:
        bound = bind_all([Listener("tcp", f"127.0.0.1:{self.port}")])[0]
        self._server = ApiServer(
            self.api.app, bound.sockets, tls=(lambda: self._tls) if self._tls else None
        )
        await self._server.start()

    async def vanish(self) -> None:
        """Nobody is there any more; those who are connected are cut off."""
        assert self._server is not None
        await self._server.stop()
        self._server = None

    async def hang_up(self) -> None:
        if self._server is not None:
            await self.vanish()


class Leading(Listening):
    """A node with a log in a file, that signs."""

    def __init__(self, log: SQLiteEventLog, folder: Path, seed: int = 1) -> None:
        clock = StillClock()
        self.node = Node(log, clock, SeededEntropy(seed + 10))
        self.node.catch_up()
        origin = origin_of(log.log_id, log.epoch)
        keys = KeyFolder(folder, origin, SeededEntropy(seed))
        self.checkpointer = Checkpointer(self.node, keys, CheckpointPolicy())
        super().__init__(Api(self.node, None, self.checkpointer))

    async def write(self, *commands: Command) -> None:
        await self.api.writer.submit(a_change(*commands))


@contextlib.asynccontextmanager
async def leading(
    log: SQLiteEventLog, folder: Path, seed: int = 1, *, has_signed: bool = True
) -> AsyncIterator[Leading]:
    leader = Leading(log, folder, seed)
    tasks = [asyncio.create_task(leader.api.writer.run())]
    try:
        async with asyncio.timeout(PATIENCE_S):
            name = f"follower-{log.head().seq}"
            leader.api.token["follower"] = await leader.api.make_token("follower", name)
            if has_signed:
                await leader.api.writer.checkpoint()
        leader.api.app.open(leader.api.context)
        await leader.listen()
        yield leader
    finally:
        await leader.hang_up()
        await leader.api.store.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def settings_of(leader: Leading, folder: Path, *peers: str) -> FollowSettings:
    token = folder / "token"
    token.write_text(leader.api.token["follower"])
    return FollowSettings(url=leader.url, token=SecretFile(str(token)), peers=peers)


class Follower(Listening):
    """What copies, and a node that serves what is there; over its API too once it listens."""

    def __init__(self, log: SQLiteEventLog, settings: FollowSettings, folder: Path) -> None:
        self.log = log
        self.node = Node(log, StillClock(), SeededEntropy(5))
        self.node.catch_up()
        super().__init__(Api(self.node))
        self.writer = self.api.writer
        self.standing = Standing("ns2", f"instance of {folder.name}", self.node)
        copy = Copy(log=log, place=FollowPlace(settings.url, log.log_id), path=folder / "follow")
        self.following = Following(copy, settings, (), self.standing, SystemClock(), AT_ONCE)
        self.writer.listeners.append(self.following.recorded)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self.log.listen(self.writer.news_from_elsewhere())
        self._tasks = [
            asyncio.create_task(self.writer.run()),
            asyncio.create_task(self.following.run()),
        ]

    async def serve(self, limits: Limits | None = None) -> None:
        """As a server of this program does that follows: what is the leader's to do is passed
        on."""
        context = self.api.context
        context.standing = self.standing
        context.forwarding = Forwarding(self.node, self.standing, limits=limits)
        self.writer.listeners.append(context.forwarding.recorded)
        self.node.follows = Follows(self.following.url)
        self.api.app.open(context)
        await self.listen()

    async def stop(self) -> None:
        await self.hang_up()
        await self.api.store.close()
        await self.following.stop()
        self.writer.stop()
        await asyncio.gather(*self._tasks)

    def has(self, leader: Leading) -> bool:
        """All that the leader has, in the log and in the views."""
        head = leader.node.log.head()
        return self.log.head() == head and self.node.position == head.seq


@contextlib.asynccontextmanager
async def follows(
    log: SQLiteEventLog, settings: FollowSettings, folder: Path
) -> AsyncIterator[Follower]:
    follower = Follower(log, settings, folder)
    await follower.start()
    try:
        yield follower
    finally:
        await follower.stop()


@contextlib.contextmanager
def opened(path: Path, **how: Any) -> Iterator[SQLiteEventLog]:
    log = SQLiteEventLog.open(path, entropy=SeededEntropy(3), clock=StillClock(), **how)
    try:
        yield log
    finally:
        log.close()
