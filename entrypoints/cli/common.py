"""What most commands share: options, the way to a node, manifests from files."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from kudurru.adapters.manifests import read_manifest_files
from kudurru.domain.errors import Cause, Invalid, LogDamaged, NotFound
from kudurru.domain.events import Position, Who
from kudurru.domain.kinds.meta import DEFAULT_NAMESPACE, ObjectMeta, metadata_faults
from kudurru.domain.kinds.registry import Kind, kind_by_word
from kudurru.domain.kinds.validation import CAUSES_MAX, Manifest, parse_manifest
from kudurru.domain.notation import parse_socket_address
from kudurru.domain.objects import Key, key_of, ref_of
from kudurru.domain.ports import EventLog
from kudurru.entrypoints import directory
from kudurru.entrypoints.actors import actor_of
from kudurru.entrypoints.cli import remote
from kudurru.entrypoints.cli.output import Output
from kudurru.entrypoints.service import Service
from kudurru.entrypoints.settings import Sources
from kudurru.entrypoints.wiring import Node

if TYPE_CHECKING:
    from kudurru.domain.documents import Document
    from kudurru.domain.settings import Settings

KindArgument = Annotated[str, typer.Argument(metavar="KIND", help="For example zone or rs.")]
DataOption = Annotated[
    Path,
    typer.Option(
        "--data",
        metavar="DIR",
        envvar="KUDURRU_DATA",
        help="Data directory.",
        show_default=True,
        readable=False,
    ),
]
OutputOption = Annotated[
    Output, typer.Option("-o", "--output", help="How to print.", show_default=True)
]
NamespaceOption = Annotated[
    str, typer.Option("-n", "--namespace", metavar="NS", help="Namespace.", show_default=True)
]
ReasonOption = Annotated[
    str, typer.Option("--reason", metavar="R", help="Why; kept in the log.", show_default=False)
]
ManagerOption = Annotated[
    str,
    typer.Option("--manager", metavar="M", help="Who manages the objects.", show_default=True),
]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Take objects over from other managers.")
]
MassChangeOption = Annotated[
    bool,
    typer.Option("--allow-mass-change", help="Change or remove more than 30 % of a zone."),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show it, write nothing.")]
FilesOption = Annotated[
    list[Path],
    typer.Option(
        "-f",
        "--filename",
        metavar="F",
        help="File, folder, or - for standard input.",
        readable=False,
    ),
]
AtOption = Annotated[
    str | None,
    typer.Option("--at", metavar="T", help="As of a position, a time, or for example '2h ago'."),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE|DIR", help="Settings, see `kudurru config`.", readable=False
    ),
]
OpsOption = Annotated[
    str | None,
    typer.Option(
        "--ops", metavar="ADDR:PORT", help="Operations listener. Default: ops.address.",
        callback=lambda text: _socket_address("--ops", text),
    ),
]  # fmt: skip
DEFAULT_DATA = Path("kudurru-data")


def _socket_address(flag: str, text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return str(parse_socket_address(text))
    except ValueError as error:
        raise Invalid(flag, [Cause("", str(error))]) from None


def me(source: str = "cli") -> Who:
    """The person at the keyboard, as the operating system knows them."""
    return Who(actor=actor_of(os.getuid()), source=source)


@contextmanager
def service(
    data: Path,
    *,
    write: bool = False,
    secrets_key: str = "",
    config: Path | None = None,
    settings: "Settings | None" = None,
) -> Iterator[Service]:
    """The node of a data directory: through the server that holds it, else directly; or the one
    behind the API that --server names."""
    far = remote.service()
    if far is not None:
        with far:
            yield far
        return
    with directory.open_service(
        data,
        who=me(),
        write=write,
        on_damage=_warn_of_damage,
        secrets_key=secrets_key,
        sources=Sources(config, os.environ),
        settings=settings,
    ) as found:
        yield found


def _warn_of_damage(damage: LogDamaged) -> None:
    from kudurru.entrypoints.cli.output import escape, note

    note(escape(f"warning: the log is damaged, this is the state before: {damage}"))


@contextmanager
def reader(data: Path, at: str | None = None, *, zones: bool = True) -> Iterator[Node]:
    """A node of its own over the log, now or as of a target; nothing can be written to it."""
    with directory.open_reader(data) as node:
        upto = None
        if at is not None:
            upto = resolve(at, node.log)
        directory.replay_verified(node, upto, zones=zones, on_damage=_warn_of_damage)
        yield node


def resolve(target: str, log: EventLog) -> Position:
    """Position of a target, told to the person unless they named it."""
    from kudurru.adapters.clock import SystemClock
    from kudurru.domain import targets

    position = targets.resolve(target, log, SystemClock().now_us())
    tell(target, position, log)
    return position


def tell(target: str, position: int, log: EventLog) -> None:
    """Say which position a target means."""
    from kudurru.entrypoints.cli.output import note

    if not target.strip().isdigit():
        event = log.get(position)
        note(f"at position {position}" + (f", {format_time(event.ts)}" if event else ""))


def format_time(ts_us: int) -> str:
    from kudurru.domain.notation import time_text

    return time_text(ts_us)


def key_from(kind_word: str, name: str, namespace: str) -> tuple[Kind, Key]:
    """Raises Invalid for a kind that is not known, and for names that no object can have."""
    kind = kind_by_word(kind_word)
    meta = ObjectMeta(name=name, namespace=namespace if kind.namespaced else "")
    causes = [
        Cause(cause.field.removeprefix("metadata."), cause.message)
        for cause in metadata_faults(meta, namespaced=kind.namespaced)
    ]
    if causes:
        raise Invalid(kind.name, causes)
    return kind, key_of(kind.name, namespace if kind.namespaced else "", name)


def split_reference(text: str, namespace: str) -> tuple[Kind, Key]:
    """`KIND/NAME` as people write it on the command line, or `KIND/NAMESPACE/NAME` as objects are
    shown."""
    word, slash, name = text.partition("/")
    if not slash or not name:
        raise Invalid(
            "object", [Cause("", f"{text!r} is not KIND/NAME, such as rs/www; of a zone: --zone Z")]
        )
    if "/" in name and kind_by_word(word).namespaced:
        namespace, _, name = name.partition("/")
    return key_from(word, name, namespace)


def asked_of(key: Key) -> dict[str, str | int | bool]:
    """What the API is asked for the events of an object."""
    ref = ref_of(key)
    which = {"kind": ref.kind, "namespace": ref.namespace, "name": ref.name}
    return {name: text for name, text in which.items() if text}


class Loaded(msgspec.Struct, frozen=True):
    """Manifests, and where they stand, by `str` of the object."""

    manifests: list[Manifest]
    places: "dict[str, tuple[Document, str]]"

    @contextmanager
    def located(self) -> Iterator[None]:
        """Give faults that are found later, against the state, their file and line too."""
        try:
            yield
        except Invalid as error:
            if error.what not in self.places:
                raise
            raise Invalid(error.what, _located(*self.places[error.what], error)) from None


def load_manifests(files: list[Path], namespace: str) -> Loaded:
    """Manifests of files, folders and standard input; every fault of all of them at once."""
    from kudurru.domain.documents import read_documents

    loaded = Loaded([], {})
    causes: list[Cause] = []
    for source, data in read_manifest_files(files, sys.stdin.buffer):
        try:
            documents = read_documents(data, what=source)
        except Invalid as error:
            causes += error.causes
            continue
        for document in documents:
            causes += _load(document, namespace, loaded)
    if causes:
        raise Invalid("manifests", causes[:CAUSES_MAX])
    if not loaded.manifests:
        raise NotFound("no objects in " + ", ".join(map(str, files)))
    return loaded


def _load(document: "Document", namespace: str, loaded: Loaded) -> list[Cause]:
    """Take in the objects of a document; what is wrong with it."""
    causes: list[Cause] = []
    for path, value in _items(document.value):
        try:
            manifest = parse_manifest(
                value,
                what=document.source,
                default_namespace=namespace or DEFAULT_NAMESPACE,
                source_text=lambda inner, path=path: document.text_of(path + inner),  # type: ignore[misc]  # a default is how a loop variable is bound
            )
        except Invalid as error:
            causes += _located(document, path, error)
            continue
        name = str(ref_of(manifest.key))
        if name in loaded.places:
            first, at = loaded.places[name]
            message = f"{name} is given twice, first at {first.place(at)}; keep one"
            causes.append(Cause("", message, document.place(path)))
        loaded.places[name] = document, path
        loaded.manifests.append(manifest)
    return causes


def _items(value: Any) -> list[tuple[str, Any]]:
    """(path, object) of a document. A `List` as `kubectl get -o yaml` writes it is its items."""
    if isinstance(value, dict) and value.get("kind") == "List" and "items" in value:
        items = value["items"]
        if isinstance(items, list):
            return [(f"items[{i}].", item) for i, item in enumerate(items)]
        return [("items.", items)]
    return [("", value)]


def _located(document: "Document", path: str, error: Invalid) -> list[Cause]:
    return [
        msgspec.structs.replace(cause, at=document.place(path + cause.field))
        for cause in error.causes
    ]
