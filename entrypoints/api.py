"""The API of a server: its parts, the first token, and what has to be kept in order meanwhile.

The listener serves health from the start. It answers for more once the log is replayed and, where
nobody can ask yet, `admin.token` lies in the data directory: a token that can only make others, for
a day or until the first admin token exists.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from kudurru.adapters.clock import SystemEntropy
from kudurru.adapters.http_api import ApiLimits, ApiServer
from kudurru.adapters.http_ops import Route
from kudurru.adapters.metrics import Sample
from kudurru.adapters.refresh_times import RefreshTimes
from kudurru.adapters.secret_files import write_private
from kudurru.domain.errors import Conflict, KudurruError, NotFound, StorageFailed
from kudurru.domain.events import Who
from kudurru.entrypoints.access_log import AccessLog
from kudurru.entrypoints.dashboard import page_files
from kudurru.entrypoints.parts import Parts
from kudurru.entrypoints.rest.app import RestApp
from kudurru.entrypoints.rest.context import Context, Operations
from kudurru.entrypoints.rest.forwarding import Forwarding
from kudurru.entrypoints.rest.people import People
from kudurru.entrypoints.serve_options import ServeOptions
from kudurru.entrypoints.snapshots import can_have_snapshots
from kudurru.entrypoints.tokens import BOOTSTRAP

log = logging.getLogger("kudurru")

KEEP_S = 30.0
"""Between two looks at what has expired, and at the times of use that are not saved yet."""

_SERVER = Who(actor="system", source="serve")


class Api:
    """Of one server. `run` is always on."""

    def __init__(self, options: ServeOptions, parts: Parts, health: Mapping[str, Route]) -> None:
        self._options = options
        self._parts = parts
        names = [options.node_name] if options.node_name else []
        page = page_files() if options.api_page else None
        self._app = RestApp(health, [*names, *options.api_names], page)
        self._tokens = parts.tokens
        self._access = AccessLog(parts.node, parts.writer)
        self._times = RefreshTimes(parts.directory.token_times)
        self._saved: dict[str, int] = {}
        self._look = asyncio.Event()
        self._server: ApiServer | None = None
        self._forwarding = _forwarding(options, parts)

    def server(
        self,
        sockets: Sequence[socket.socket],
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> ApiServer:
        limits = ApiLimits(body_bytes=self._options.api_body_bytes)
        self._server = ApiServer(self._app, sockets, limits=limits, tls=tls)
        return self._server

    async def open(self, operate: Operations) -> None:
        """Serve more than health, the first token being there if it is needed. The log is
        replayed, and the writer runs."""
        parts = self._parts
        self._tokens.used_s |= self._times.load()
        self._saved = dict(self._tokens.used_s)
        if parts.node.why_not_writable is None:
            try:
                await self.tidy(at_start=True)
            except KudurruError as error:
                log.warning("the first token cannot be made: %s", error)
        query_log = parts.directory.querylog if parts.query_log is not None else None
        self._app.open(
            Context(
                node=parts.node,
                writer=parts.writer,
                store=parts.store,
                operate=operate,
                tokens=self._tokens,
                access=self._access,
                entropy=SystemEntropy(),
                standing=parts.standing,
                query_log=query_log,
                data=parts.directory.path if can_have_snapshots(parts.node) else None,
                settings=lambda: parts.settings.current,
                people=_people(parts),
                forwarding=self._forwarding,
                on_token=self._look.set,
            )
        )

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._access.run(), name="api: access log")
                tasks.create_task(self._keep(), name="api: tokens")
        finally:
            self._save_times()

    def samples(self) -> Iterable[Sample]:
        seen = self._access.statistics()
        yield Sample("api_denied_total", (), seen.denied)
        yield Sample("followers", (), self._app.followers)
        for code, count in self._app.requests.items():
            yield Sample("api_requests_total", (str(code),), count)
        if self._forwarding is not None:
            yield from self._forwarding.samples()
        if self._server is not None:
            yield Sample("unhandled_exceptions_total", (), self._server.exceptions)

    # --- tokens -------------------------------------------------------------------------

    async def _keep(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(KEEP_S):
                    await self._look.wait()
            self._look.clear()
            if self._parts.node.why_not_writable is None:
                with suppress(KudurruError):  # the next look tries again
                    await self.tidy()
            await asyncio.to_thread(self._save_times)

    def _save_times(self) -> None:
        used = dict(self._tokens.used_s)
        if used != self._saved:
            self._times.save(used)
            self._saved = used

    async def tidy(self, *, at_start: bool = False) -> None:
        """Take the first token away when it has had its time; make it at the first start on a
        log. The file comes before the event: a file that no event speaks of lets nobody in.
        Raises: KudurruError when it cannot be recorded."""
        tokens, path = self._tokens, self._parts.directory.admin_token
        if tokens.has_bootstrap() and tokens.is_bootstrap_over():
            with suppress(NotFound):  # another node was faster
                over = tokens.revocation(BOOTSTRAP, self._because(_OVER))
                await self._parts.writer.submit(over)
        if not tokens.has_bootstrap():
            path.unlink(missing_ok=True)
            if at_start and not tokens.is_bootstrapped():
                await self._make_first()

    async def _make_first(self) -> None:
        path = self._parts.directory.admin_token
        change, new = self._tokens.bootstrap(self._because(_FIRST), SystemEntropy())
        try:
            await asyncio.to_thread(write_private, path, f"{new.token}\n".encode())
        except OSError as error:
            raise StorageFailed(f"{path}: {error.strerror}; mend its rights or its disk") from None
        try:
            await self._parts.writer.submit(change)
        except Conflict:  # another node of this log was faster, and has the file
            path.unlink(missing_ok=True)
            return
        log.info("%s makes the first token for the API, until %s", path, new.expires_at)

    @staticmethod
    def _because(reason: str) -> Who:
        return Who(actor=_SERVER.actor, source=_SERVER.source, reason=reason)


_FIRST = "the first token: admin.token in the data directory, to make others with"
_OVER = "admin.token has had its time"


def _forwarding(options: ServeOptions, parts: Parts) -> Forwarding | None:
    if parts.following is None or not options.follow.forward_writes:
        return None
    found = Forwarding(parts.node, parts.standing, options.follow.ca)
    parts.writer.listeners.append(found.recorded)
    return found


def _people(parts: Parts) -> People | None:
    cluster = parts.cluster
    return People(cluster.reviews, parts.node.clock) if cluster is not None else None
