"""Keeping lists: what is due is fetched, what came is built into a table, and the table is swapped.

Two loops of one server: one fetches, a few sources at once; the other builds when the texts in use
are not those of the table. The heavy work is in processes of its own (`adapters.lists.worker`), so
queries are answered as ever meanwhile, from the table that is there. At a start that is the one of
the run before, and no network is needed for it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import msgspec

from kudurru.adapters.lists import worker
from kudurru.adapters.lists.files import ListFiles, States
from kudurru.adapters.lists.jobs import (
    Build,
    Built,
    Failed,
    Fetch,
    Fetched,
    Job,
    Request,
    Response,
    Result,
    Text,
    Unchanged,
)
from kudurru.adapters.secret_files import write_private
from kudurru.domain.errors import Cause, Conflict, Invalid, KudurruError, NotFound
from kudurru.domain.kinds.blocklist import BlockListStatus
from kudurru.domain.lists.matcher import Matcher, Union
from kudurru.domain.lists.table import Table, Unusable
from kudurru.domain.objects import Key, ref_of
from kudurru.domain.ports import Clock, ConfigMaps, Entropy
from kudurru.domain.reconcile.blocklists import (
    NEVER_FETCHED,
    Arrived,
    ConfigMapPlace,
    Missed,
    Want,
    after,
    is_worth_writing,
    plan,
    sources_status,
    wants_of,
    without_copy,
)
from kudurru.entrypoints.list_options import ListOptions
from kudurru.entrypoints.list_service import ListRow
from kudurru.projections.lists_view import ListsView

log = logging.getLogger("kudurru")

FETCH_S = 120.0
"""For one source, all redirects included."""
BUILD_S = 600.0
PATIENCE_S = 3600.0
"""Longest time without a look: the wall clock may have been set."""
BUILD_RETRY_S = 60.0
GATHER_S = 0.2
"""Texts that come within it are built together."""

Run = Callable[[Job, float], Awaitable[Result]]
WriteStatus = Callable[[Key, BlockListStatus], Awaitable[None]]
"""Make this the `sources` and `entries` of a list's status. Raises KudurruError."""
ReadStatus = Callable[[Key], BlockListStatus]


class Statistics(msgspec.Struct, frozen=True):
    fetches: dict[str, int]  # by how they ended: new, unchanged, failed
    builds: dict[str, int]  # done, failed
    rules: int  # in the table
    bytes: int  # of the table's words


class ListKeeper:
    """Keeps the lists of a node. `run` until cancelled. All of it on one event loop."""

    def __init__(
        self,
        view: ListsView,
        files: ListFiles,
        clock: Clock,
        entropy: Entropy,
        *,
        on_matcher: Callable[[Matcher], None],
        read_status: ReadStatus,
        write_status: WriteStatus,
        options: ListOptions | None = None,
        run_job: Run = worker.run,
    ) -> None:
        self._view = view
        self._files = files
        self._clock = clock
        self._entropy = entropy
        self._on_matcher = on_matcher
        self._read_status = read_status
        self._write_status = write_status
        self._options = options or ListOptions()
        self._run_job = run_job
        self._room = asyncio.Semaphore(self._options.concurrency)
        self._states: States = {}
        self._table: Table | None = None
        self._forced: set[str] = set()
        self._told: dict[str, str] = {}  # digest of each source, as the leader's status has it
        self._busy: set[str] = set()
        self._bodies = asyncio.Lock()  # a text that came in is wanted before it may be collected
        self._due = asyncio.Event()
        self._unbuilt = asyncio.Event()
        self._settled = asyncio.Event()
        self._fetches: Counter[str] = Counter()
        self._builds: Counter[str] = Counter()
        self.config_maps: ConfigMaps | None = None
        """Where those are that sources name; None where there is no cluster."""
        self._is_leader = False  # each node fetches for itself; one writes statuses

    # --- starting -----------------------------------------------------------------------

    def open(self) -> None:
        """Take up what the run before left; names are filtered by it from here on. Never raises
        for what is on disk: it can be fetched again."""
        try:
            self._files.open()
            self._states = self._files.read_states()
            self._use(self._files.open_table())
        except Unusable as error:
            log.warning("the table of lists is not used, and built again: %s", error)
            self._use(None)
        except OSError as error:
            log.error("lists cannot be kept on disk: %s", error)
            self._use(None)

    def _use(self, table: Table | None) -> None:
        self._table = table
        self._on_matcher(Union(self._view.inline, table) if table else self._view.inline)

    async def settle(self) -> None:
        """Wait, where the settings say so, until each source was tried and a table was. Raises
        Invalid when something is missing and the settings want nothing without."""
        if self._options.startup == "fast":
            return
        await self._settled.wait()
        if self._options.startup == "failOnError" and (causes := list(self._faults())):
            raise Invalid("lists.startup", causes)

    def _faults(self) -> Iterable[Cause]:
        if _of_texts(self._texts()) != self._in_table():
            yield Cause("", "the table of lists could not be built; see the log")
        for want in self._wants():
            state = self._states.get(want.id, NEVER_FETCHED)
            if not state.digest:
                yield Cause(str(ref_of(want.list)), f"{want.title}: {state.error}")

    # --- running ------------------------------------------------------------------------

    async def run(self) -> NoReturn:
        """Keep lists until cancelled."""
        self._view.on_lists = self._wake
        self._view.on_status = self._due.set
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._build_loop(), name="lists: build")
                await self._fetch_loop(tasks)
        finally:
            self._view.on_lists = self._view.on_status = lambda: None

    def configure(self, options: ListOptions) -> None:
        """Take other settings. Fetches that are under way end as they began."""
        if options.concurrency != self._options.concurrency:
            self._room = asyncio.Semaphore(options.concurrency)
        self._options = options
        self._wake()

    def use_config_maps(self, maps: ConfigMaps) -> None:
        """From now on texts that sources name in ConfigMaps come from there."""
        self.config_maps = maps
        self._wake()

    def _wake(self) -> None:
        """Lists changed: something may be due, or wanted no more."""
        self._due.set()
        self._unbuilt.set()

    def refresh(self, keys: Collection[Key] = ()) -> list[Key]:
        """Fetch all sources of these lists now, whatever was tried when; of all lists without keys.
        Raises: NotFound; Conflict for a list that is disabled."""
        self.check(keys)
        wanted = [want for want in self._wants() if not keys or want.list in keys]
        self._forced |= {want.id for want in wanted}
        self._due.set()
        return sorted({want.list for want in wanted})

    def check(self, keys: Collection[Key]) -> None:
        """Whether they can be refreshed. Raises: as `refresh`."""
        for key in keys:
            if key in self._view.disabled:
                raise Conflict(f"{ref_of(key)} is disabled; enable it, and it is fetched")
            if key not in self._view:
                raise NotFound(f"there is no {ref_of(key)}; see `kudurru get bl -A`")

    def _wants(self) -> list[Want]:
        interval_us = self._options.interval // timedelta(microseconds=1)
        return [
            want
            for key, state in sorted(self._view.lists.items())
            for want in wants_of(
                key, state.spec, interval_us=interval_us, max_bytes=self._options.max_bytes
            )
        ]

    async def _fetch_loop(self, tasks: asyncio.TaskGroup) -> NoReturn:
        while True:
            self._due.clear()
            now_us = self._clock.now_us()
            wants = self._wants()
            self._follow(wants)
            self._follow_leader(wants)
            todo = plan(wants, self._states, now_us, forced=self._forced, busy=self._busy)
            for want in todo.fetch:
                self._busy.add(want.id)
                self._forced.discard(want.id)
                tasks.create_task(self._fetch(want), name=f"lists: {want.id}")
            if not self._busy:
                self._unbuilt.set()  # where nothing has to be fetched, that may still be due
            await self._write_statuses()
            wait_s = PATIENCE_S
            if todo.next_us is not None:
                wait_s = min(wait_s, max(0.0, (todo.next_us - now_us) / 1_000_000))
            # Not wait_for: in Python 3.11 that loses a cancellation that comes with the event.
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._due.wait()

    def _follow(self, wants: Iterable[Want]) -> None:
        if self.config_maps is not None:
            namespaces = {want.config_map.namespace for want in wants if want.config_map}
            self.config_maps.follow(namespaces, self._config_map_changed)

    def _follow_leader(self, wants: Iterable[Want]) -> None:
        """A text that the leader has and this node has not is due here too, once."""
        if self._is_leader:
            return
        for want in wants:
            told = _digest_told(self._read_status(want.list), want.title)
            if not told or self._told.get(want.id) == told:
                continue
            self._told[want.id] = told
            if told != self._states.get(want.id, NEVER_FETCHED).digest:
                self._forced.add(want.id)

    async def _fetch(self, want: Want) -> None:
        spool = self._files.new_path()
        try:
            async with self._room:
                result = await self._attempt(want, spool)
            async with self._bodies:
                outcome = await self._take_in(want, result, spool)
                before = self._states.get(want.id, NEVER_FETCHED)
                self._states[want.id] = after(before, outcome, self._clock.now_us())
                await self._save_states()
        finally:
            self._busy.discard(want.id)
            self._unbuilt.set()
            self._due.set()

    async def _attempt(self, want: Want, spool: Path) -> Result:
        if want.config_map is not None:
            return await self._from_cluster(want, want.config_map, spool)
        state = self._states.get(want.id, NEVER_FETCHED)
        request = Request(
            url=want.title,
            max_bytes=want.max_bytes,
            etag=state.etag if state.digest else "",
            last_modified=state.last_modified if state.digest else "",
            allow_private=self._options.allow_private,
        )
        job = Fetch(
            request, str(spool), want.context, bool(state.entries), FETCH_S,
            self._options.nameservers,
        )  # fmt: skip
        return await self._run_job(job, FETCH_S + 5)

    async def _from_cluster(self, want: Want, place: ConfigMapPlace, spool: Path) -> Result:
        if self.config_maps is None:
            return Failed("ConfigMaps are read on Kubernetes only, and this node has none")
        state = self._states.get(want.id, NEVER_FETCHED)
        try:
            found = await self.config_maps.read(place.namespace, place.name)
        except KudurruError as error:
            return Failed(str(error))
        if state.digest and state.etag == found.version:
            return Unchanged()
        if place.key and place.key not in found.texts:
            there = ", ".join(sorted(found.texts)) or "none"
            return Failed(f"the ConfigMap has no key {place.key!r}; there are {there}")
        texts = [found.texts[key] for key in sorted(found.texts) if place.key in ("", key)]
        copy = self._files.new_path()
        try:
            await asyncio.to_thread(write_private, copy, b"\n".join(texts))
            request = Request(url=f"file:{copy.resolve()}", max_bytes=want.max_bytes)
            job = Fetch(request, str(spool), want.context, bool(state.entries), FETCH_S)
            result = await self._run_job(job, FETCH_S + 5)
        except OSError as error:
            return Failed(f"the disk refuses: {error.strerror}")
        finally:
            copy.unlink(missing_ok=True)
        if isinstance(result, Fetched):
            return msgspec.structs.replace(result, response=Response("new", found.version))
        return result

    def _config_map_changed(self, namespace: str, name: str) -> None:
        place = (namespace, name)
        self._forced |= {
            want.id for want in self._wants() if want.config_map and want.config_map[:2] == place
        }
        self._due.set()

    async def _take_in(self, want: Want, result: Result, spool: Path) -> Arrived | Missed:
        match result:
            case Fetched():
                try:
                    await asyncio.to_thread(self._files.keep_body, spool, result.digest)
                except OSError as error:
                    return self._missed(want, f"the disk refuses: {error.strerror}")
                self._fetches["new"] += 1
                response = result.response
                return Arrived(result.digest, result.facts, response.etag, response.last_modified)
            case Unchanged():
                self._fetches["unchanged"] += 1
                return Arrived()
            case Failed():
                return self._missed(want, result.why, result.retry_after_s * 1_000_000)
            case Built():
                raise AssertionError("a fetch was answered by a build")

    def _missed(self, want: Want, why: str, wait_us: int = 0) -> Missed:
        self._fetches["failed"] += 1
        log.warning("%s: a source could not be fetched: %s", ref_of(want.list), why)
        return Missed(why, wait_us)

    async def _save_states(self) -> None:
        """What is not saved is fetched once more after the next start, and no harm done."""
        try:
            await asyncio.to_thread(self._files.write_states, dict(self._states))
        except OSError as error:
            log.warning("the states of lists are not saved: %s", error.strerror)

    async def run_reports(self) -> None:
        """Write into statuses what became of fetches, until it is cancelled."""
        self._is_leader = True
        self._due.set()
        try:
            await asyncio.Event().wait()
        finally:
            self._is_leader = False

    # --- building -----------------------------------------------------------------------

    async def _build_loop(self) -> NoReturn:
        while True:
            await self._unbuilt.wait()
            await asyncio.sleep(GATHER_S)
            self._unbuilt.clear()
            texts = self._texts()
            is_built = _of_texts(texts) == self._in_table() or await self._build(texts)
            if not is_built:
                asyncio.get_running_loop().call_later(BUILD_RETRY_S, self._unbuilt.set)
            if self._busy or self._due.is_set():
                continue
            if is_built:
                await self._collect()
            self._settled.set()

    def _texts(self) -> list[Text]:
        """What the table is to hold."""
        found = []
        for want in self._wants():
            digest = self._states.get(want.id, NEVER_FETCHED).digest
            if digest:
                path = str(self._files.body_path(digest))
                found.append(Text(want.list, want.index, want.title, want.context, path, digest))
        return found

    def _in_table(self) -> list[tuple[object, ...]]:
        if self._table is None:
            return []
        sources = (facts.source for facts in self._table.directory.sources)
        return [(s.list, s.index, s.title, s.context, s.digest) for s in sources]

    async def _build(self, texts: list[Text]) -> bool:
        path = self._files.new_path()
        seed = int.from_bytes(self._entropy.token(8), "big")
        result = await self._run_job(Build(tuple(texts), seed, str(path)), BUILD_S)
        if isinstance(result, Built):
            try:
                await asyncio.to_thread(self._files.keep_table, path)
                self._use(await asyncio.to_thread(self._files.open_table))
            except (OSError, Unusable) as error:
                result = Failed(str(error))
            else:
                self._builds["done"] += 1
                return True
        self._builds["failed"] += 1
        why = result.why if isinstance(result, Failed) else "it was not built"
        log.warning("the table of lists could not be built, the one before stays: %s", why)
        if isinstance(result, Failed) and result.damaged:
            self._forget_copy(result.damaged)
        return False

    def _forget_copy(self, digest: str) -> None:
        for id_, state in self._states.items():
            if state.digest == digest:
                self._states[id_] = without_copy(state)
        self._due.set()

    async def _collect(self) -> None:
        """Delete what no enabled list wants."""
        wanted = {want.id for want in self._wants()}
        async with self._bodies:
            if not wanted >= self._states.keys():
                self._states = {i: state for i, state in self._states.items() if i in wanted}
                await self._save_states()
            digests = {state.digest for state in self._states.values()}
            with suppress(OSError):
                await asyncio.to_thread(self._files.drop_bodies, digests)

    # --- telling ------------------------------------------------------------------------

    async def _write_statuses(self) -> None:
        if not self._is_leader:
            return
        for key, state in list(self._view.lists.items()):
            sources = sources_status(key, state.spec, self._states, state.inline)
            if not is_worth_writing(self._read_status(key).sources, sources):
                continue
            entries = sum(source.entries for source in sources)
            try:
                await self._write_status(key, BlockListStatus(entries=entries, sources=sources))
            except (Conflict, NotFound):
                continue  # it changed meanwhile, which wakes us again
            except KudurruError as error:
                log.warning("the status of %s is not written: %s", ref_of(key), error)
                return

    def rows(self) -> list[ListRow]:
        """Every list, with its sources as they are now."""
        found = []
        for key in self._view.all_keys():
            ref = ref_of(key)
            state = self._view.lists.get(key)
            sources = sources_status(key, state.spec, self._states, state.inline) if state else []
            found.append(
                ListRow(
                    namespace=ref.namespace,
                    name=ref.name,
                    enabled=state is not None,
                    entries=sum(source.entries for source in sources),
                    sources=sources,
                )
            )
        return found

    def statistics(self) -> Statistics:
        table = self._table
        return Statistics(
            dict(self._fetches),
            dict(self._builds),
            sum(facts.entries for facts in table.directory.sources) if table else 0,
            table.resident_max if table else 0,
        )


def _digest_told(status: BlockListStatus, title: str) -> str:
    found = (source.digest for source in status.sources if source.source == title)
    return next(found, "").removeprefix("sha256:")


def _of_texts(texts: Iterable[Text]) -> list[tuple[object, ...]]:
    return [(t.list, t.index, t.title, t.context, t.digest) for t in texts]
