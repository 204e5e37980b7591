"""The API over a node in memory: requests without sockets, tokens in a word."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

from kudurru.adapters.http_api import Reply, Request, Stream
from kudurru.adapters.http_ops import Response, health_routes
from kudurru.adapters.memory.clock import ManualClock, SeededEntropy
from kudurru.adapters.memory.neighbours import FixedNeighbours
from kudurru.adapters.sealing import NodeKey
from kudurru.domain.errors import KudurruError, NotFound
from kudurru.domain.events import Who
from kudurru.domain.settings import Settings
from kudurru.entrypoints.access_log import AccessLog
from kudurru.entrypoints.answering import pipeline_of
from kudurru.entrypoints.checkpoints import Checkpointer
from kudurru.entrypoints.doctor_report import Check, Report, report
from kudurru.entrypoints.keyring import Keyring
from kudurru.entrypoints.live_settings import LiveSettings
from kudurru.entrypoints.operations import Operations
from kudurru.entrypoints.rest.app import RestApp
from kudurru.entrypoints.rest.context import Context
from kudurru.entrypoints.settings import Sources
from kudurru.entrypoints.standing import Standing
from kudurru.entrypoints.store import LogStore
from kudurru.entrypoints.tokens import TokenRequest, Tokens
from kudurru.entrypoints.watches import Hub
from kudurru.entrypoints.wiring import Node
from kudurru.entrypoints.writer import Writer
from tests.nodes import TESTER, memory_node

LOCAL = "127.0.0.1"


class Answer(NamedTuple):
    code: int
    headers: dict[str, str]
    json: Any  # the body, where it is JSON
    body: bytes


class Nothing:
    """Where a node in memory has no such part."""

    def rows(self) -> list[Any]:
        return []

    def check(self, keys: Any) -> None:
        if isinstance(keys, str) or keys:
            raise NotFound("there is no such thing here")

    def refresh(self, keys: Any = ()) -> Any:
        self.check(keys)
        return []

    def __getattr__(self, name: str) -> Any:
        raise NotFound(f"a node in memory has no {name}")


async def healthy(caller: str) -> Report:
    return report("ns1", [Check("token", "ok", caller)])


class Api:
    """A node with an API, and one token of each role: `token["viewer"]`."""

    def __init__(
        self, node: Node, tmp: Any = None, checkpointer: Checkpointer | None = None
    ) -> None:
        self.node = node
        self.writer = Writer(node, checkpointer)
        self.tokens = Tokens(node)
        self.access = AccessLog(node, self.writer)
        self.store = LogStore("memory", node, self.writer, Hub(node), TESTER)
        self.entropy = SeededEntropy(7)
        nothing: Any = Nothing()
        settings = LiveSettings(Sources(None, {}), node.clock)
        self.writer.listeners.append(settings.recorded)
        box = NodeKey(tmp, SeededEntropy(8)) if tmp else None
        self.operations = Operations(
            node=node,
            writer=self.writer,
            pipeline=pipeline_of(node),
            resolving=nothing,
            lists=nothing,
            keyring=Keyring(node, box) if box else nothing,
            tokens=self.tokens,
            inbound=nothing,
            snapshots=nothing,
            neighbours=FixedNeighbours(),
            query_log=None,
            settings=settings,
            examine=healthy,
            check_leads=self.check_leads,
        )
        self.app = RestApp(health_routes(list), ["ns1.example"])
        self.token: dict[str, str] = {}
        self.kept: dict[str, dict[str, Any]] = {}
        """Of connections, one for each address: whoever asks from there comes over it."""
        self.leads: KudurruError | None = None  # why this node does not
        self.settings = Settings()
        self.context = Context(
            node=node,
            writer=self.writer,
            store=self.store,
            operate=self.operations.handle,
            tokens=self.tokens,
            access=self.access,
            entropy=self.entropy,
            standing=Standing("ns1", "instance-of-ns1", node),
            settings=lambda: self.settings,
        )

    async def check_leads(self) -> None:
        """As a runner does; a test may say who leads."""
        if self.leads is not None:
            raise self.leads

    async def make_token(self, role: Any, name: str = "", **limits: Any) -> str:
        request = TokenRequest(name=name or role, role=role, **limits)
        change, new = self.tokens.creation(request, TESTER, self.entropy)
        await self.writer.submit(change)
        self.token[request.name] = new.token
        return new.token

    async def raw(self, request: Request) -> Response | Stream:
        """As the listener asks."""
        refused = self.app.admit(request)
        if refused is not None:
            return refused
        made: asyncio.Future[Callable[[], Response]] = asyncio.get_running_loop().create_future()
        if self.app.begin(request, made.set_result):
            return (await made)()
        return await self.app.answer(request)

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str = "admin",
        headers: dict[str, str] | None = None,
        peer: str = LOCAL,
        kind: str = "",
        prefix: str = "/api/v1",
        number: int = 0,
    ) -> Answer:
        """`token` is the name of one, or the headers say who asks; `body` is JSON or octets.
        `number` is that of the headers, where they are those of another request."""
        target, _, query = path.partition("?")
        sent = {"host": "localhost:8080"}
        if token:
            sent["authorization"] = f"Bearer {self.token[token]}"
        octets = b""
        if body is not None:
            octets = body if isinstance(body, bytes) else json.dumps(body).encode()
            patch = "application/merge-patch+json" if method == "PATCH" else "application/json"
            sent["content-type"] = kind or patch
            sent["content-length"] = str(len(octets))
        request = Request(
            method=method,
            path=prefix + target,
            query=query,
            headers=sent | (headers or {}),
            peer=peer,
            local=LOCAL,
            body=octets,
            headers_number=number,
            kept=self.kept.setdefault(peer, {}),
        )
        answer = await self.raw(request)
        assert isinstance(answer, Response), "a stream: ask with `watch`"
        given = dict(answer.headers) if isinstance(answer, Reply) else {}
        is_json = answer.content_type == "application/json"
        return Answer(answer.code, given, json.loads(answer.body) if is_json else None, answer.body)

    async def watch(self, path: str, *, token: str = "admin", accept: str = "") -> Stream:
        target, _, query = path.partition("?")
        headers = {"host": "localhost", "authorization": f"Bearer {self.token[token]}"}
        if accept:
            headers["accept"] = accept
        request = Request(
            method="GET", path=f"/api/v1{target}", query=query, headers=headers,
            peer=LOCAL, local=LOCAL,
        )  # fmt: skip
        answer = await self.raw(request)
        assert isinstance(answer, Stream), answer
        return answer

    async def events(self, type_: str) -> list[dict[str, Any]]:
        """Facts of the log of a type, once what waits is written."""
        await asyncio.sleep(0)
        while not self.access._waiting.empty():  # the test's own view of "what waits"
            await asyncio.sleep(0)
        await self.writer.submit(_nothing())
        return [
            json.loads(event.body)
            for event in self.node.log.read()
            if event.type == type_ and event.body is not None
        ]


def _nothing() -> Any:
    from kudurru.entrypoints.wiring import Change

    return Change(commands=(), who=Who(actor="test"))


@contextlib.asynccontextmanager
async def serving(
    *roles: str, clock: ManualClock | None = None, tmp: Any = None
) -> AsyncIterator[Api]:
    """An API with a token of each role, admin too."""
    api = Api(memory_node(clock), tmp)
    running = [
        asyncio.create_task(api.writer.run()),
        asyncio.create_task(api.access.run()),
    ]
    try:
        async with asyncio.timeout(240):
            for role in dict.fromkeys(("admin", *roles)):
                await api.make_token(role)
            api.app.open(api.context)
            yield api
    finally:
        await api.store.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def refused(answer: Answer, code: int, reason: str) -> dict[str, Any]:
    """The one shape of a refusal, checked."""
    assert answer.code == code, answer
    status: dict[str, Any] = answer.json
    assert status["kind"] == "Status"
    assert status["status"] == "Failure"
    assert status["code"] == code
    assert status["reason"] == reason
    assert status["message"]
    assert isinstance(status["details"], dict)
    return status
