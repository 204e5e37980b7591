"""kudurru serve."""

import asyncio
import logging
import os
import resource
import sys
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from kudurru.adapters.clock import SystemClock
from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.notation import parse_socket_address
from kudurru.domain.settings import Settings
from kudurru.domain.settings_layers import dns_listeners
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.live_settings import LiveSettings
from kudurru.entrypoints.settings import Sources

if TYPE_CHECKING:
    from kudurru.entrypoints.serve_options import ServeOptions

app = command_app()

FILES_WANTED = 16_384


class Owner(StrEnum):
    cluster = "cluster"
    log = "log"


class Engine(StrEnum):
    auto = "auto"
    native = "native"
    python = "python"


@app.command()
def serve(
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="DIR",
            envvar="KUDURRU_DATA",
            help="Data directory; made when it is missing. [default: kudurru-data]",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE|DIR", help="Settings, see `kudurru config`.", readable=False
        ),
    ] = None,
    dns: Annotated[
        list[str] | None,
        typer.Option("--dns", metavar="ADDR:PORT", help="UDP and TCP; repeats; port 0 picks one."),
    ] = None,
    http: Annotated[
        str | None, typer.Option("--http", metavar="ADDR:PORT", help="API and health.")
    ] = None,
    ops: Annotated[
        str | None, typer.Option("--ops", metavar="ADDR:PORT", help="Health, for operators.")
    ] = None,
    metrics: Annotated[
        str | None, typer.Option("--metrics", metavar="ADDR:PORT", help="Prometheus metrics.")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="URL",
            help="Where the log is: memory, sqlite or postgresql://…  [default: where it has been]",
            show_default=False,
        ),
    ] = None,
    kubernetes: Annotated[
        Owner | None,
        typer.Option(
            "--kubernetes",
            help="Work with the cluster that kubectl would talk to; who owns the objects.",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        Engine | None,
        typer.Option(
            "--engine",
            help="What answers repeated queries. [default: auto: native where it was built]",
            show_default=False,
        ),
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Add the zone demo.example once.")] = False,
    follow: Annotated[
        str | None,
        typer.Option(
            "--follow",
            metavar="URL",
            help="Copy the log of the node with this API, and write nothing.",
            show_default=False,
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option("--token", metavar="file:F", help="File of the token for --follow."),
    ] = None,
    ca: Annotated[
        str | None,
        typer.Option("--ca", metavar="file:F", help="File of the CA that --follow is trusted by."),
    ] = None,
    adopt: Annotated[
        bool,
        typer.Option("--adopt", help="Take the log of --follow also where another one is here."),
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit when the log is damaged, do not serve the rest.")
    ] = False,
    pid_file: Annotated[
        Path | None,
        typer.Option("--pid-file", metavar="F", help="Write the process id there.", readable=False),
    ] = None,
) -> None:
    """Serve zones over DNS until SIGTERM or Control-C."""
    flags: dict[str, tuple[str, Any]] = {}
    if dns:
        flags["listeners"] = ("--dns", dns_listeners(_addresses(dns)))
    for key, flag, value in (
        ("node.dataDir", "--data", data),
        ("store", "--store", store),
        ("follow.url", "--follow", follow),
        ("follow.token", "--token", token),
        ("follow.ca", "--ca", ca),
        ("api.address", "--http", http),
        ("ops.address", "--ops", ops),
        ("metrics.address", "--metrics", metrics),
        ("dns.engine", "--engine", engine and engine.value),
    ):
        if value is not None:
            flags[key] = (flag, value)
    if kubernetes is not None:
        flags["kubernetes.enabled"] = ("--kubernetes", True)
        flags["kubernetes.owner"] = ("--kubernetes", kubernetes.value)
    live = LiveSettings(Sources(config, os.environ, flags), SystemClock())
    run(live, with_demo=demo, strict=strict, pid_file=pid_file, adopt=adopt)


def _addresses(texts: list[str]) -> list[str]:
    """Checked here, because each becomes two listeners and a fault should be told once."""
    causes = []
    for text in texts:
        try:
            parse_socket_address(text)
        except ValueError as error:
            causes.append(Cause("", str(error)))
    if causes:
        raise Invalid("--dns", causes)
    return texts


def run(
    live: LiveSettings, *, with_demo: bool, strict: bool, pid_file: Path | None, adopt: bool = False
) -> None:
    from kudurru.entrypoints import logs
    from kudurru.entrypoints.server import Server

    logs.start(live.current.log.level, live.current.log.format)
    _allow_many_files()
    options_of = partial(
        serve_options, with_demo=with_demo, strict=strict, pid_file=pid_file, adopt=adopt
    )

    async def serve_until_stopped() -> None:
        server = Server(live, options_of)
        try:
            await server.run(_announce)
        finally:
            if server.left_behind:
                _leave()

    asyncio.run(serve_until_stopped())


def serve_options(
    settings: Settings,
    *,
    with_demo: bool,
    strict: bool,
    pid_file: Path | None,
    adopt: bool = False,
) -> "ServeOptions":
    from kudurru.entrypoints.hot_settings import checkpoint_policy
    from kudurru.entrypoints.list_options import list_options
    from kudurru.entrypoints.serve_options import ServeOptions

    return ServeOptions(
        data=Path(settings.node.data_dir),
        node_name=settings.node.name,
        store=settings.store,
        listeners=settings.listeners.all,
        tls=settings.tls,
        http=str(settings.api.address),
        api_tls=settings.api.tls,
        api_names=settings.api.names,
        api_body_bytes=settings.api.max_body_bytes,
        api_page=settings.api.page,
        external_dns=settings.external_dns,
        follow=settings.follow,
        adopt=adopt,
        token_lifetime=settings.auth.tokens.max_lifetime,
        internal=str(settings.listeners.internal or ""),
        ops=str(settings.ops.address),
        metrics=str(settings.metrics.address),
        sockets=settings.listeners.sockets,
        freebind=settings.listeners.freebind,
        engine=settings.dns.engine,
        engine_zones=settings.dns.engine_zones,
        join_answers=settings.dns.join_answers,
        coalesce_s=settings.zones.coalesce.total_seconds(),
        ratelimit=settings.ratelimit,
        blocking=settings.blocking,
        querylog=settings.querylog,
        acl=settings.acl,
        upstreams=settings.upstreams,
        resolver=settings.resolver,
        cache=settings.cache,
        lists=list_options(settings),
        with_demo=with_demo,
        pid_file=pid_file,
        strict=strict,
        checkpoints=checkpoint_policy(settings),
        trusted_keys=settings.audit.trusted_keys,
        snapshot_interval_s=settings.snapshots.interval.total_seconds(),
        secrets_key=settings.node.secrets_key,
        tsig=settings.tsig,
        kubernetes=settings.kubernetes,
    )


def _leave() -> NoReturn:
    """The loop would wait for what was left behind because it does not end."""
    logging.shutdown()
    os._exit(1)


def _announce(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _allow_many_files() -> None:
    """1,000 connections on each of several listeners are more than the usual 1,024 descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(FILES_WANTED, hard) if hard != resource.RLIM_INFINITY else FILES_WANTED
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
