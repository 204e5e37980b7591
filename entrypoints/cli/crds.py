"""kudurru crds: our definitions in a Kubernetes cluster."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from kudurru.domain.differences import differences
from kudurru.domain.errors import Cause, Invalid, Unreachable
from kudurru.domain.extras import how_to_install
from kudurru.entrypoints.cli import common
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.diff import show_differences
from kudurru.entrypoints.cli.output import Output, echo, escape
from kudurru.entrypoints.differing import Difference
from kudurru.entrypoints.settings import load_settings

if TYPE_CHECKING:
    from kudurru.adapters.kubernetes.client import Client
    from kudurru.adapters.kubernetes.crd_install import Applied
    from kudurru.domain.settings import KubernetesSettings

app = command_app(help="Install our definitions in a Kubernetes cluster.", no_args_is_help=True)

SERVED_WITHIN_S = 60.0

T = TypeVar("T")

KubeconfigOption = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig", metavar="FILE", help="Default: kubernetes.kubeconfig.", readable=False
    ),
]
ContextOption = Annotated[
    str | None,
    typer.Option("--context", metavar="NAME", help="Of that file. Default: kubernetes.context."),
]


@app.command()
def install(
    config: common.ConfigOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Install the definitions of this version, or bring those that are there up to it, and wait
    until they are served. Objects stay."""

    async def work(client: "Client") -> list["Applied"]:
        from kudurru.adapters.kubernetes.crd_install import apply_definitions, until_served

        await apply_definitions(client, dry_run=True)  # or some would be new, and others refused
        found = await apply_definitions(client, dry_run=False)
        await until_served(client, SERVED_WITHIN_S)
        return found

    for one in _in_cluster(_settings(config, kubeconfig, context), work):
        verb = "created" if one.before is None else "changed" if one.is_changed else "unchanged"
        echo(escape(f"customresourcedefinition/{one.name} {verb}"))


@app.command()
def diff(
    config: common.ConfigOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    output: common.OutputOption = Output.table,
) -> None:
    """Show what `install` would change, and change nothing. Exit code 1 when it would something."""

    async def work(client: "Client") -> list["Applied"]:
        from kudurru.adapters.kubernetes.crd_install import apply_definitions

        return await apply_definitions(client, dry_run=True)

    found = [
        Difference(
            object=f"customresourcedefinition/{one.name}",
            verb="would be created" if one.before is None else "would change",
            changes=[] if one.before is None else list(differences(one.before, one.after, "spec")),
        )
        for one in _in_cluster(_settings(config, kubeconfig, context), work)
        if one.is_changed
    ]
    show_differences(found, output)


def _settings(
    config: Path | None, kubeconfig: Path | None, context: str | None
) -> "KubernetesSettings":
    flags: dict[str, tuple[str, Any]] = {}
    if kubeconfig is not None:
        flags["kubernetes.kubeconfig"] = ("--kubeconfig", str(kubeconfig))
    if context is not None:
        flags["kubernetes.context"] = ("--context", context)
    return load_settings(config, os.environ, flags).settings.kubernetes


def _in_cluster(settings: "KubernetesSettings", work: Callable[["Client"], Awaitable[T]]) -> T:
    """What some work with a client of the cluster comes to. Raises: Invalid where the cluster
    cannot be found; what the work raises."""
    try:
        from kudurru.adapters.clock import SystemClock
        from kudurru.adapters.kubernetes.answers import Forbidden, Unanswered
        from kudurru.adapters.kubernetes.client import Client, Transport
        from kudurru.entrypoints.cluster.cluster import access_of
    except ModuleNotFoundError as error:
        why = f"{error.name} is missing: {how_to_install('kubernetes')}"
        raise Invalid("crds", [Cause("", why)]) from None
    access = access_of(settings, os.environ)

    async def main() -> T:
        transport = Transport(access, SystemClock())
        try:
            return await work(Client(transport=transport))
        except Unanswered as error:
            why = f"no answer: {error.why}; --kubeconfig and --context choose another"
            raise Unreachable(f"{access.server}: {why}") from None
        except Forbidden as error:
            fault = f"{error.text}; definitions want the rights of an administrator of the cluster"
            raise Invalid("crds", [Cause("", fault)]) from None
        finally:
            await transport.close()

    return asyncio.run(main())
