"""kudurru edit: change one object in an editor."""

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from kudurru.domain.errors import Cause, Invalid, KudurruError
from kudurru.domain.kinds.meta import MANAGED_BY
from kudurru.domain.object_store import DEFAULT_MANAGER
from kudurru.domain.objects import Key, ref_of
from kudurru.entrypoints.cli import common
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.apply import print_result
from kudurru.entrypoints.cli.output import Output, echo, escape, note, yaml_text
from kudurru.entrypoints.service import ChangeRequest

app = command_app()

EDITOR = "vi"
HEAD = """\
# {object}: save and leave the editor to apply it; an unchanged or empty file changes nothing.
"""


@app.command()
def edit(
    kind_word: common.KindArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the object.")],
    data: common.DataOption = common.DEFAULT_DATA,
    namespace: common.NamespaceOption = "default",
    manager: common.ManagerOption = DEFAULT_MANAGER,
    force: common.ForceOption = False,
    allow_mass_change: common.MassChangeOption = False,
    reason: common.ReasonOption = "",
    output: common.OutputOption = Output.table,
) -> None:
    """Change one object in $VISUAL or $EDITOR. It is refused when somebody else changed the object
    meanwhile; what was written is kept then."""
    key = common.key_from(kind_word, name, namespace)[1]
    with common.service(data) as service:
        before = HEAD.format(object=ref_of(key)) + yaml_text(_editable(service.get(key)))
    path = _draft(key, before)
    try:
        _run_editor(path)
        if path.read_text(encoding="utf-8") in (before, ""):
            path.unlink()
            echo("unchanged")
            return
        loaded = common.load_manifests([path], namespace)
        _check_same(loaded, key)
        request = ChangeRequest(
            apply=loaded.manifests,
            manager=manager,
            force=force,
            reason=reason,
            allow_mass_change=allow_mass_change,
            is_versioned=True,
        )
        with common.service(data, write=True) as service, loaded.located():
            result = service.change(request)
    except (KudurruError, OSError):
        note(escape(f"what you wrote is in {path}"))
        raise
    path.unlink()
    print_result(result, output)


def _editable(document: dict[str, Any]) -> dict[str, Any]:
    """What people write, and the version that it is a change of."""
    meta = document["metadata"]
    kept = ("name", "namespace", "resourceVersion", "labels")
    metadata = {name: meta[name] for name in kept if name in meta}
    annotations = {k: v for k, v in meta.get("annotations", {}).items() if k != MANAGED_BY}
    if annotations:
        metadata["annotations"] = annotations
    return {
        "apiVersion": document["apiVersion"],
        "kind": document["kind"],
        "metadata": metadata,
        "spec": document["spec"],
    }


def _draft(key: Key, text: str) -> Path:
    name = f"kudurru-{ref_of(key).name}-"
    with tempfile.NamedTemporaryFile(
        "w", prefix=name, suffix=".yaml", delete=False, encoding="utf-8"
    ) as file:
        file.write(text)
    return Path(file.name)


def _run_editor(path: Path) -> None:
    """Raises Invalid when the editor cannot be run, or says that it failed."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or EDITOR
    sys.stdout.flush()
    try:
        command = [*shlex.split(editor), str(path)]
        code = subprocess.run(command, check=False).returncode  # noqa: S603  # the user's own
    except (OSError, ValueError) as error:
        fault = f"{editor!r} cannot be run ({error}): set EDITOR to one that can"
        raise Invalid("edit", [Cause("", fault)]) from None
    if code:
        raise Invalid("edit", [Cause("", f"{editor!r} ended with code {code}: nothing is changed")])


def _check_same(loaded: common.Loaded, key: Key) -> None:
    found = [manifest.key for manifest in loaded.manifests]
    if found != [key]:
        named = ", ".join(str(ref_of(one)) for one in found)
        fault = f"this is about {ref_of(key)} and names {named}: use `kudurru apply` for others"
        raise Invalid("edit", [Cause("", fault)])
