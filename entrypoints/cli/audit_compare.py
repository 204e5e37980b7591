"""kudurru audit compare: what a cluster has against what the log recorded of it."""

import asyncio
import os
import random
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from kudurru.adapters.clock import SystemEntropy
from kudurru.domain.errors import Cause, Invalid, LogDamaged
from kudurru.domain.extras import how_to_install
from kudurru.domain.settings import KubernetesSettings
from kudurru.entrypoints import directory
from kudurru.entrypoints.cli import common
from kudurru.entrypoints.cli.output import (
    Output,
    counted,
    echo,
    escape,
    note,
    print_documents,
    print_table,
)
from kudurru.entrypoints.wiring import Node

if TYPE_CHECKING:
    from kudurru.entrypoints.cluster.compare import Compared, Side

DIFFERENT = 1
AGAIN_S = 2.0
"""Between the two looks at what differs: a node that follows is some milliseconds behind."""


class Owner(StrEnum):
    cluster = "cluster"
    log = "log"


def compare(
    data: common.DataOption = common.DEFAULT_DATA,
    kubernetes: Annotated[
        Owner | None,
        typer.Option(
            "--kubernetes",
            help="Who owns the objects, as `serve --kubernetes` has it. Default: as settings say.",
            show_default=False,
        ),
    ] = None,
    config: common.ConfigOption = None,
    output: common.OutputOption = Output.table,
) -> None:
    """Hold the objects of the Kubernetes cluster against what the log recorded of them, by uid and
    version: what is missing there, what the log does not have, and what differs, in order of kind,
    namespace and name. Reads, and changes nothing; a server may run. Exit code 1 when something
    differs. Statuses are not compared."""
    with directory.open_reader(data) as node:
        directory.replay_verified(node, zones=False, on_damage=_refuse)
        settings = _settings(node, config, kubernetes)
        found = asyncio.run(_compared(node, settings))
    if not print_documents(output, [msgspec.to_builtins(found)], single=True):
        _print(found)
    if not found.ok:
        raise typer.Exit(DIFFERENT)


def _refuse(damage: LogDamaged) -> None:
    """Of a log that is damaged nothing is compared."""
    raise damage


def _settings(node: Node, config: common.ConfigOption, owner: Owner | None) -> KubernetesSettings:
    from kudurru.domain.settings_changes import layer_of
    from kudurru.entrypoints.settings import load_settings

    settings = load_settings(config, os.environ, layer=layer_of(node.log)).settings.kubernetes
    return msgspec.structs.replace(settings, owner=owner.value) if owner else settings


async def _compared(node: Node, settings: KubernetesSettings) -> "Compared":
    try:
        from kudurru.adapters.kubernetes.client import Client, Transport
        from kudurru.adapters.kubernetes.store import KubernetesStore
        from kudurru.entrypoints.cluster.cluster import access_of, place_of
        from kudurru.entrypoints.cluster.compare import cluster_of, compare
    except ModuleNotFoundError as error:
        why = f"{error.name} is missing: {how_to_install('kubernetes')}"
        raise Invalid("kubernetes", [Cause("", why)]) from None
    cluster_of(node)  # first: the configuration of a log of none is no matter
    access = access_of(settings, os.environ)
    transport = Transport(access, node.clock)
    store = KubernetesStore(
        Client(transport=transport),
        place_of(access, os.environ, ""),
        entropy=SystemEntropy(),
        chance=random.SystemRandom(),
    )
    try:
        return await compare(
            node,
            store,
            settings.owner,
            settings.namespaces,
            lambda: directory.replay(node, zones=False),
            lambda: asyncio.sleep(AGAIN_S),
        )
    finally:
        await store.close()
        await transport.close()


def _print(found: "Compared") -> None:
    which = found.cluster or "the cluster, whose uid may not be read"
    if found.ok:
        echo(
            escape(
                f"ok: {counted(found.objects, 'object')} of {which} as the log has it, "
                f"up to position {found.position}"
            )
        )
        return
    rows = [
        (one.object, one.difference, one.position or "", _shown(one.log), _shown(one.cluster),
         one.why)
        for one in found.differences
    ]  # fmt: skip
    print_table(["OBJECT", "CLUSTER", "POSITION", "RECORDED", "THERE", "WHY"], rows)
    note(f"{counted(len(rows), 'difference')}, and {counted(found.objects, 'object')} alike")


def _shown(side: "Side | None") -> str:
    return f"{side.uid or '?'}@{side.resource_version or '?'}" if side is not None else "-"
