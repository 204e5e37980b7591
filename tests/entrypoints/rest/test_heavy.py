"""What reads much of the log: few at a time, and of no token all."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kudurru.adapters.http_api import Stream
from kudurru.domain import verify as verifying
from kudurru.entrypoints import exporting, watches
from kudurru.entrypoints.rest import record
from kudurru.entrypoints.rest.calls import ASIDE_MIN
from kudurru.entrypoints.rest.heavy import HEAVY_MAX, Heavy
from tests.api import Api, serving
from tests.entrypoints.rest.shapes import record_set, zone


class Work:
    """Which goes on until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.running = self.most = 0
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.go.wait(60)
        with self._lock:
            self.running -= 1


def on_loop(asked: Callable[[Heavy, Work], Awaitable[None]]) -> Work:
    work = Work()

    async def main() -> None:
        try:
            async with asyncio.timeout(60):
                await asked(Heavy("test"), work)
        finally:
            work.go.set()

    asyncio.run(main())
    return work


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_of_one_token_one_runs_at_a_time_and_others_need_not_wait_for_its_queue() -> None:
    async def asked(heavy: Heavy, work: Work) -> None:
        greedy = [asyncio.create_task(heavy.run("greedy", work)) for _ in range(50)]
        await until(lambda: work.running)
        assert await heavy.run("other", lambda: 7) == 7
        assert work.running == 1
        work.go.set()
        await asyncio.gather(*greedy)
        assert not heavy._turns, "who asks for nothing is forgotten"

    assert on_loop(asked).most == 1


def test_of_many_tokens_few_run_at_a_time() -> None:
    async def asked(heavy: Heavy, work: Work) -> None:
        all_ = [asyncio.create_task(heavy.run(f"token{i}", work)) for i in range(10)]
        await until(lambda: work.running == HEAVY_MAX)
        work.go.set()
        await asyncio.gather(*all_)

    assert on_loop(asked).most == HEAVY_MAX


def test_what_fails_fails_for_who_asked() -> None:
    async def asked(heavy: Heavy, _work: Work) -> None:
        with pytest.raises(ZeroDivisionError):
            await heavy.run("one", lambda: 1 // 0)
        assert await heavy.run("one", lambda: 7) == 7

    on_loop(asked)


# --- what does not wait for it --------------------------------------------------------------


def on_api(asked: Callable[[Api, Work], Awaitable[None]]) -> None:
    """With one thread for all that nobody else has threads for."""
    work = Work()

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        async with serving("viewer") as api:
            assert (await api.ask("PUT", "/dnszones/a.example", zone("a.example"))).code == 201
            try:
                await asked(api, work)
            finally:
                work.go.set()

    asyncio.run(main())


async def answered_meanwhile(api: Api) -> None:
    """What a follower, the web page and whoever writes much ask for."""
    assert (await api.ask("GET", "/log")).code == 200
    assert (await api.ask("POST", "/checkpoint")).code in (200, 404, 503)
    records = "/dnszones/a.example/records"
    assert (await api.ask("GET", records)).code == 200
    body = record_set("www", "a.example", "red")
    large = json.dumps(body).encode() + b" " * ASIDE_MIN
    path = "/namespaces/red/dnsrecordsets/www"
    assert (await api.ask("PUT", path, large)).code in (200, 201)
    assert await asyncio.to_thread(lambda: 7) == 7


def test_what_ends_soon_waits_for_nobody_who_reads_the_past() -> None:
    async def asked(api: Api, work: Work) -> None:
        past = [
            asyncio.create_task(api.context.heavy.run(name, work)) for name in ("admin", "other")
        ]
        await until(lambda: work.running == HEAVY_MAX)
        await answered_meanwhile(api)
        work.go.set()
        await asyncio.gather(*past)

    on_api(asked)


def test_who_has_the_log_verified_may_read_it_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    async def asked(api: Api, work: Work) -> None:
        def verify(*given: Any, **how: Any) -> Any:
            work()
            return verifying.verify(*given, **how)

        monkeypatch.setattr(record, "verify", verify)
        verified = asyncio.create_task(api.ask("GET", "/events/verify?level=full"))
        await until(lambda: work.running)
        assert (await api.ask("GET", "/events")).code == 200
        await answered_meanwhile(api)
        work.go.set()
        assert (await verified).code == 200

    on_api(asked)


def test_watches_that_catch_up_leave_the_threads_of_the_node_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def asked(api: Api, work: Work) -> None:
        monkeypatch.setattr(watches.LogWatch, "_changed_since", lambda *_: work() or [])
        listed = (await api.ask("GET", "/dnszones")).json["metadata"]["resourceVersion"]
        path = f"/dnszones?watch=true&resourceVersion={listed}"
        streams = [await api.watch(path, token="viewer") for _ in range(10)]
        waiting = [asyncio.ensure_future(anext(stream.parts)) for stream in streams]
        await until(lambda: work.running == watches.CATCH_UPS_MAX)
        await answered_meanwhile(api)
        assert work.most == watches.CATCH_UPS_MAX
        await ended(streams, waiting)

    on_api(asked)


def test_a_watch_that_ends_reads_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    async def asked(api: Api, _work: Work) -> None:
        endless = Endless(api.node.log.read)
        listed = (await api.ask("GET", "/dnszones")).json["metadata"]["resourceVersion"]
        await api.ask("PUT", "/dnszones/b.example", zone("b.example"))
        stream = await api.watch(f"/dnszones?watch=true&resourceVersion={listed}")
        monkeypatch.setattr(api.node.log, "read", endless)
        waiting = [asyncio.ensure_future(anext(stream.parts))]
        await until(lambda: endless.count > 100)
        await ended([stream], waiting)
        await until(lambda: endless.is_over)
        monkeypatch.undo()

    on_api(asked)


def test_an_export_that_its_client_left_reads_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    async def asked(api: Api, _work: Work) -> None:
        log: Any = api.node.log
        endless = Endless(log.rows)
        monkeypatch.setattr(exporting, "MOVED_EVERY", 1)
        stream = await api.watch("/events/export?format=csv&actor=nobody")
        with monkeypatch.context() as patched:
            patched.setattr(log, "rows", endless)
            head = asyncio.ensure_future(anext(stream.parts))
            await until(lambda: endless.count > 100)
        await answered_meanwhile(api)
        await ended([stream], [head])
        await until(lambda: endless.is_over)
        assert not api.context.exports.locked()

    on_api(asked)


class Endless:
    """What is read again and again, until its reader has enough."""

    def __init__(self, read: Callable[..., Iterator[Any]]) -> None:
        self._read = read
        self.count, self.is_over = 0, False

    def __call__(self, *given: Any, **how: Any) -> Iterator[Any]:
        try:
            while True:
                self.count += 1
                yield from self._read(*given, **how)
        finally:
            self.is_over = True


async def ended(streams: list[Stream], waiting: list["asyncio.Future[bytes]"]) -> None:
    """As where the clients go."""
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for stream in streams:
        parts: Any = stream.parts
        await parts.aclose()
