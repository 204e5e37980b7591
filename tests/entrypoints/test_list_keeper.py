"""Keeping lists, with a clock that is turned by hand and jobs done in this process."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from kudurru.adapters.lists.child import do
from kudurru.adapters.lists.files import ListFiles
from kudurru.adapters.lists.jobs import (
    Build,
    Failed,
    Fetch,
    Fetched,
    Job,
    Response,
    Result,
    Unchanged,
)
from kudurru.adapters.memory.clock import ManualClock, SeededEntropy
from kudurru.domain.dns import names
from kudurru.domain.errors import Conflict, Invalid, NotFound
from kudurru.domain.kinds.blocklist import BlockListStatus, SourceStatus
from kudurru.domain.lists.body import Facts
from kudurru.domain.lists.matcher import Matcher
from kudurru.domain.objects import Key, key_of
from kudurru.domain.ports import SharedTexts
from kudurru.entrypoints.list_keeper import ListKeeper
from kudurru.entrypoints.list_options import ListOptions
from kudurru.projections.lists_view import ListsView
from tests.nodes import a_change, memory_node
from tests.objects import manifest, put

ONE = key_of("BlockList", "default", "one")
URL = "https://lists.example/one"


class Web:
    """What is out there: a text per URL, or why there is none; and a disk that may be full."""

    def __init__(self) -> None:
        self.texts: dict[str, str | Result] = {}
        self.asked: list[str] = []
        self.builds = 0
        self.fails_builds = False
        self.gate: asyncio.Event | None = None
        self.at_once = 0
        self.at_once_max = 0

    async def run(self, job: Job, _seconds: float) -> Result:
        if isinstance(job, Build):
            self.builds += 1
            return Failed("the disk refuses: full") if self.fails_builds else do(job)
        self.asked.append(job.request.url)
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        try:
            if self.gate is not None:
                await self.gate.wait()
            return self._answer(job)
        finally:
            self.at_once -= 1

    def _answer(self, job: Fetch) -> Result:
        found = self.texts.get(job.request.url, Failed("the server answered 404 Not Found"))
        if not isinstance(found, str):
            return found
        digest = hashlib.sha256(found.encode()).hexdigest()
        if job.request.etag == digest:
            return Unchanged()
        Path(job.spool).write_text(found)
        entries = len(found.split())
        return Fetched(digest, len(found), Facts(entries), Response("new", digest))


class Bench:
    """A keeper with everything around it."""

    def __init__(self, folder: Path, options: ListOptions | None = None) -> None:
        self.clock = ManualClock()
        self.web = Web()
        self.node = memory_node(self.clock)
        self.folder = folder
        self.written: list[tuple[Key, BlockListStatus]] = []
        self.matcher: Matcher | None = None
        self.options = options
        self.keeper = self.new_keeper()

    @property
    def view(self) -> ListsView:
        return self.node.views.lists

    def new_keeper(self) -> ListKeeper:
        async def write(key: Key, status: BlockListStatus) -> None:
            self.written.append((key, status))

        keeper = ListKeeper(
            self.view, ListFiles(self.folder), self.clock, SeededEntropy(4),
            on_matcher=self.use, read_status=self.status, write_status=write,
            options=self.options, run_job=self.web.run,
        )  # fmt: skip
        keeper.open()
        return keeper

    def use(self, matcher: Matcher) -> None:
        self.matcher = matcher

    def status(self, key: Key) -> BlockListStatus:
        return next((s for k, s in reversed(self.written) if k == key), BlockListStatus())

    def apply(self, name: str, *urls: str, enabled: bool = True, **spec: Any) -> None:
        sources = [{"url": url} for url in urls]
        annotations = {"kudurru.io/enabled": str(enabled)}  # what is not named stays
        value = manifest(
            "BlockList", name, {"sources": sources, **spec}, namespace="default",
            annotations=annotations,
        )  # fmt: skip
        self.node.commit(a_change(put(value)))

    def blocks(self, name: str) -> bool:
        assert self.matcher is not None
        return bool(self.matcher.lookup(names.key(names.from_text(name))))

    def phases(self, key: Key = ONE) -> list[str]:
        return [source.phase for source in self.status(key).sources]

    @asynccontextmanager
    async def running(self, *, leads: bool = True) -> Any:
        tasks = [asyncio.create_task(self.keeper.run())]
        if leads:
            tasks.append(asyncio.create_task(self.keeper.run_reports()))
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(int(seconds * 1_000_000))
        self.keeper._due.set()  # as its own timer would


async def until(is_so: Callable[[], object]) -> None:
    """Wait for a condition; the test's timeout is the deadline."""
    while not is_so():
        await asyncio.sleep(0.005)  # for threads, which no turn of the loop waits for


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]  # a coroutine function


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "lists")


def test_a_list_is_fetched_built_and_fetched_again_after_its_interval(bench: Bench) -> None:
    async def test() -> None:
        bench.web.texts[URL] = "a.example\n"
        bench.apply("one", URL, refreshInterval="1h")
        async with bench.running():
            await until(lambda: bench.blocks("a.example"))
            assert bench.phases() == ["Fresh"]
            bench.pass_time(3599)
            bench.web.texts[URL] = "b.example\n"
            await until(lambda: not bench.keeper._due.is_set())  # it has looked
            assert bench.web.asked == [URL]
            bench.pass_time(2)
            await until(lambda: bench.blocks("b.example"))
            assert not bench.blocks("a.example")
            await until(lambda: len(bench.written) == 2)

    run(test)


def test_what_is_unchanged_builds_nothing_and_is_written_once(bench: Bench) -> None:
    async def test() -> None:
        bench.web.texts[URL] = "a.example\n"
        bench.apply("one", URL, refreshInterval="1h")
        async with bench.running():
            await until(lambda: bench.blocks("a.example"))
            for count in range(2, 6):
                bench.pass_time(3601)
                await until(lambda count=count: len(bench.web.asked) == count)  # type: ignore[misc]
                await until(lambda: not bench.keeper._busy)
            await until(lambda: bench.phases() == ["Unchanged"])
        assert bench.web.builds == 1
        assert len(bench.written) == 2

    run(test)


def test_only_the_leader_writes_what_became_of_fetches(bench: Bench) -> None:
    async def test() -> None:
        bench.web.texts[URL] = "a.example\n"
        bench.apply("one", URL, refreshInterval="1h")
        async with bench.running(leads=False):
            await until(lambda: bench.blocks("a.example"))
            await until(lambda: not bench.keeper._busy and not bench.keeper._due.is_set())
            assert not bench.written
            leading = asyncio.create_task(bench.keeper.run_reports())
            await until(lambda: bench.phases() == ["Fresh"])
            leading.cancel()
            await asyncio.gather(leading, return_exceptions=True)
            bench.pass_time(3601)
            await until(lambda: len(bench.web.asked) == 2)
            await until(lambda: not bench.keeper._busy and not bench.keeper._due.is_set())
        assert len(bench.written) == 1

    run(test)


def test_a_node_that_does_not_lead_fetches_what_the_leader_has_and_it_has_not(
    bench: Bench,
) -> None:
    def told(text: str) -> BlockListStatus:
        """The status as the leader writes it."""
        digest = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
        return BlockListStatus(sources=[SourceStatus(source=URL, digest=digest, phase="Fresh")])

    async def test() -> None:
        bench.web.texts[URL] = "a.example\n"
        bench.apply("one", URL, refreshInterval="1h")
        async with bench.running(leads=False):
            await until(lambda: bench.blocks("a.example"))
            bench.written.append((ONE, told("a.example\n")))
            bench.view.on_status()
            await until(lambda: not bench.keeper._busy and not bench.keeper._due.is_set())
            assert len(bench.web.asked) == 1  # it has that
            bench.web.texts[URL] = "b.example\n"
            bench.written.append((ONE, told("b.example\n")))
            bench.view.on_status()
            await until(lambda: bench.blocks("b.example"))
            assert len(bench.web.asked) == 2
            # What this node does not get is tried once more for it, and not for ever.
            bench.written.append((ONE, told("c.example\n")))
            for _ in range(3):
                bench.view.on_status()
                await until(lambda: not bench.keeper._busy and not bench.keeper._due.is_set())
            assert len(bench.web.asked) == 3

    run(test)


def test_a_failed_update_never_loses_what_worked(bench: Bench) -> None:
    async def test() -> None:
        bench.web.texts[URL] = "a.example\n"
        bench.apply("one", URL)
        async with bench.running():
            await until(lambda: bench.blocks("a.example"))
            bench.web.texts[URL] = Failed("it is a page of HTML or XML")
            bench.keeper.refresh([ONE])
            await until(lambda: bench.phases() == ["Stale"])
            assert bench.blocks("a.example")
            bench.web.texts[URL] = "b.example\n"
            bench.web.fails_builds = True
            bench.keeper.refresh([ONE])
            await until(lambda: bench.web.builds == 2)
            assert bench.blocks("a.example")
            assert bench.keeper.statistics().builds == {"done": 1, "failed": 1}
        # Even where the table was never built, the next start does it from the texts on disk.
        bench.web.fails_builds = False
        bench.web.texts.clear()
        bench.keeper = bench.new_keeper()
        assert bench.blocks("a.example")
        async with bench.running():
            await until(lambda: bench.blocks("b.example"))

    run(test)


def test_a_start_without_a_network_filters_with_yesterdays_lists(bench: Bench) -> None:
    async def test() -> None:
        bench.web.texts[URL] = "a.example\n"
        bench.apply("one", URL)
        async with bench.running():
            await until(lambda: bench.blocks("a.example"))
        bench.matcher = None
        bench.web.texts.clear()
        bench.clock.advance(86_400_000_001 * 2)
        bench.keeper = bench.new_keeper()
        assert bench.blocks("a.example")  # before anything runs
        async with bench.running():
            await until(lambda: bench.phases() == ["Stale"])
            assert bench.blocks("a.example")

    run(test)


@pytest.mark.parametrize("damage", ["cut", "changed", "other version", "gone"])
def test_a_damaged_table_is_refused_and_built_again_from_the_texts(
    bench: Bench, damage: str
) -> None:
    async def test() -> None:
        bench.web.texts[URL] = "a.example\n"
        bench.apply("one", URL)
        async with bench.running():
            await until(lambda: bench.blocks("a.example"))
        table = bench.folder / "table"
        octets = bytearray(table.read_bytes())
        if damage == "gone":
            table.unlink()
        elif damage == "cut":
            table.write_bytes(octets[:-7])
        else:
            octets[8 if damage == "other version" else 5000] ^= 1
            table.write_bytes(octets)
        bench.web.texts.clear()
        bench.keeper = bench.new_keeper()
        assert not bench.blocks("a.example")
        async with bench.running():
            await until(lambda: bench.blocks("a.example"))
        assert len(bench.web.asked) == 1

    run(test)


@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_a_damaged_text_is_fetched_again(bench: Bench, damage: str) -> None:
    async def test() -> None:
        bench.web.texts[URL] = "a.example\n"
        bench.apply("one", URL)
        async with bench.running():
            await until(lambda: bench.blocks("a.example"))
        (bench.folder / "table").unlink()
        body = next((bench.folder / "bodies").iterdir())
        if damage == "gone":
            body.unlink()
        else:
            body.write_text("b.example\n")
        bench.keeper = bench.new_keeper()
        async with bench.running():
            await until(lambda: bench.blocks("a.example"))
        assert not bench.blocks("b.example")
        assert len(bench.web.asked) == 2

    run(test)


def test_damaged_states_are_forgotten_and_everything_is_fetched(bench: Bench) -> None:
    async def test() -> None:
        bench.web.texts[URL] = "a.example\n"
        bench.apply("one", URL)
        async with bench.running():
            await until(lambda: bench.blocks("a.example"))
        (bench.folder / "sources.json").write_bytes(b'{"auto ')
        bench.keeper = bench.new_keeper()
        async with bench.running():
            await until(lambda: len(bench.web.asked) == 2)

    run(test)


def test_a_disabled_list_is_unloaded_and_collected_and_enabling_fetches_it(bench: Bench) -> None:
    async def test() -> None:
        bench.web.texts[URL] = "a.example\n"
        bench.apply("one", URL)
        async with bench.running():
            await until(lambda: bench.blocks("a.example"))
            bench.apply("one", URL, enabled=False)
            await until(lambda: not list((bench.folder / "bodies").iterdir()))
            assert not bench.blocks("a.example")
            with pytest.raises(Conflict):
                bench.keeper.refresh([ONE])
            assert [row.enabled for row in bench.keeper.rows()] == [False]
            bench.apply("one", URL)
            await until(lambda: bench.blocks("a.example"))
            assert len(bench.web.asked) == 2

    run(test)


def test_refresh_ignores_interval_and_cool_down(bench: Bench) -> None:
    async def test() -> None:
        bench.apply("one", URL)
        async with bench.running():
            await until(lambda: bench.phases() == ["Failed"])
            bench.web.texts[URL] = "a.example\n"
            assert bench.keeper.refresh() == [ONE]
            await until(lambda: bench.blocks("a.example"))
            with pytest.raises(NotFound):
                bench.keeper.refresh([key_of("BlockList", "default", "two")])

    run(test)


def test_only_so_many_sources_are_fetched_at_once_and_one_url_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "lists", ListOptions(concurrency=2))

    async def test() -> None:
        urls = [f"https://lists.example/{i}" for i in range(6)]
        for url in urls:
            bench.web.texts[url] = "a.example\n"
        bench.web.gate = asyncio.Event()
        bench.apply("one", *urls)
        bench.apply("two", *urls)
        async with bench.running():
            await until(lambda: bench.web.at_once == 2)
            bench.web.gate.set()
            await until(lambda: len(bench.written) >= 2 and bench.blocks("a.example"))
            await until(lambda: not bench.keeper._busy)
        assert bench.web.at_once_max == 2
        assert sorted(bench.web.asked) == urls

    run(test)


def test_another_format_of_a_list_is_read_anew(bench: Bench) -> None:
    async def test() -> None:
        bench.web.texts[URL] = "a.example\n"
        bench.apply("one", URL)
        async with bench.running():
            await until(lambda: bench.blocks("a.example"))
            assert not bench.blocks("x.a.example")
            bench.apply("one", URL, match="subtree")
            await until(lambda: bench.blocks("x.a.example"))
            assert len(bench.web.asked) == 1

    run(test)


def test_a_start_may_wait_for_lists_or_insist_on_them(tmp_path: Path) -> None:
    async def test() -> None:
        waiting = Bench(tmp_path / "a", ListOptions(startup="blocking"))
        waiting.web.texts[URL] = "a.example\n"
        waiting.apply("one", URL)
        async with waiting.running():
            await waiting.keeper.settle()
            assert waiting.blocks("a.example")
        empty = Bench(tmp_path / "b", ListOptions(startup="failOnError"))
        async with empty.running():
            await empty.keeper.settle()
        insisting = Bench(tmp_path / "c", ListOptions(startup="failOnError"))
        insisting.apply("one", URL)
        async with insisting.running():
            with pytest.raises(Invalid, match="404"):
                await insisting.keeper.settle()

    run(test)


def test_a_start_that_waits_for_lists_does_not_wait_for_a_disk_that_refuses(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        bench = Bench(tmp_path / "lists", ListOptions(startup="blocking"))
        bench.web.texts[URL] = "a.example\n"
        bench.web.fails_builds = True
        bench.apply("one", URL)
        async with bench.running():
            await bench.keeper.settle()
            assert not bench.blocks("a.example")

    run(test)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """A folder that nothing can be put into: a file is in its place."""
    aside = folder.rename(folder.with_name("aside"))
    folder.write_text("")
    yield
    folder.unlink()
    aside.rename(folder)


def test_a_disk_that_refuses_keeps_the_old_list(bench: Bench) -> None:
    async def test() -> None:
        bench.web.texts[URL] = "a.example\n"
        bench.apply("one", URL)
        async with bench.running():
            await until(lambda: bench.blocks("a.example"))
            with read_only(bench.folder / "bodies"):
                bench.web.texts[URL] = "b.example\n"
                bench.keeper.refresh()
                await until(lambda: bench.phases() == ["Stale"])
                assert "the disk refuses" in bench.status(ONE).sources[0].error
                assert bench.blocks("a.example")
            bench.keeper.refresh()
            await until(lambda: bench.blocks("b.example"))

    run(test)


class Maps:
    """ConfigMaps of a cluster, by namespace and name."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], SharedTexts] = {}
        self.followed: set[str] = set()
        self.reads = 0
        self.changed: Callable[[str, str], None] = lambda namespace, name: None

    def follow(self, namespaces: Collection[str], changed: Callable[[str, str], None]) -> None:
        self.followed, self.changed = set(namespaces), changed

    async def read(self, namespace: str, name: str) -> SharedTexts:
        self.reads += 1
        if (namespace, name) not in self.found:
            raise NotFound(f"there is no ConfigMap {namespace}/{name}")
        return self.found[namespace, name]

    def put(self, namespace: str, name: str, version: str, **texts: str) -> None:
        octets = {key: text.encode() for key, text in texts.items()}
        self.found[namespace, name] = SharedTexts(version, octets)
        self.changed(namespace, name)


def with_maps(bench: Bench) -> Maps:
    """The bench, in a cluster. Jobs are done as they are: there is a file."""
    maps = Maps()
    bench.keeper.config_maps = maps
    plain = bench.web.run

    async def run_job(job: Job, seconds: float) -> Result:
        return do(job) if isinstance(job, Fetch) else await plain(job, seconds)

    bench.keeper._run_job = run_job
    return maps


def apply_map(bench: Bench, namespace: str, **reference: str) -> None:
    spec = {"sources": [{"configMapRef": reference}]}
    bench.node.commit(a_change(put(manifest("BlockList", "one", spec, namespace=namespace))))


def errors(bench: Bench, namespace: str = "default") -> list[str]:
    key = key_of("BlockList", namespace, "one")
    return [source.error for source in bench.status(key).sources]


def test_a_config_map_of_the_lists_namespace_is_a_source(bench: Bench) -> None:
    async def test() -> None:
        maps = with_maps(bench)
        maps.put("default", "names", "1", x="a.example\n", y="b.example\n")
        maps.put("team", "names", "9", x="c.example\n")
        apply_map(bench, "default", name="names")
        apply_map(bench, "team", name="names", key="x")
        async with bench.running():
            for name in ("a.example", "b.example", "c.example"):
                await until(lambda name=name: bench.blocks(name))  # type: ignore[misc]  # bound
            assert maps.followed == {"default", "team"}
            maps.put("default", "names", "2", x="d.example\n")
            await until(lambda: bench.blocks("d.example"))
            assert not bench.blocks("a.example")
            assert bench.blocks("c.example")
            reads, builds = maps.reads, bench.web.builds
            maps.put("default", "names", "2", x="e.example\n")  # the same version is not read in
            await until(lambda: maps.reads == reads + 1)
            await until(lambda: bench.phases() == ["Unchanged"])
            assert bench.web.builds == builds

    run(test)


def test_a_config_map_that_goes_keeps_its_last_text_and_the_status_says_so(bench: Bench) -> None:
    async def test() -> None:
        maps = with_maps(bench)
        maps.put("default", "names", "1", x="a.example\n")
        apply_map(bench, "default", name="names", key="x")
        async with bench.running():
            await until(lambda: bench.blocks("a.example"))
            del maps.found["default", "names"]
            maps.changed("default", "names")
            await until(lambda: bench.phases() == ["Stale"])
            assert errors(bench) == ["there is no ConfigMap default/names"]
            assert bench.blocks("a.example")
            maps.put("default", "names", "3", z="b.example\n")
            await until(lambda: "has no key" in errors(bench)[0])
            assert errors(bench) == ["the ConfigMap has no key 'x'; there are z"]
            maps.put("default", "names", "4", x="<html>no list</html>\n")
            await until(lambda: "key" not in errors(bench)[0])
            assert bench.phases() == ["Stale"]
            maps.put("default", "names", "5", x="b.example\n")
            await until(lambda: bench.blocks("b.example"))
            incoming = [path.name for path in (bench.folder / "incoming").iterdir()]
            assert incoming == []  # no text is left behind

    run(test)


def test_without_a_cluster_a_config_map_is_a_clear_fault(bench: Bench) -> None:
    async def test() -> None:
        apply_map(bench, "default", name="names")
        async with bench.running():
            await until(lambda: bench.phases() == ["Failed"])
            (error,) = errors(bench)
            assert error == "ConfigMaps are read on Kubernetes only, and this node has none"

    run(test)
