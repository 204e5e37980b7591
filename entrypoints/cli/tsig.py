"""kudurru tsig: keys that are shared with other name servers and with who updates zones."""

import os
import sys
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kudurru.domain.dns.tsig import ALGORITHMS
from kudurru.domain.errors import Cause, Invalid
from kudurru.domain.kinds.tsigkey import parse_rule
from kudurru.entrypoints.cli import common
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.output import (
    Output,
    echo,
    escape,
    note,
    print_documents,
    print_table,
)
from kudurru.entrypoints.keyring import KeyRequest, key_clauses
from kudurru.entrypoints.settings import load_settings

app = command_app(help="Make, list and revoke TSIG keys (RFC 8945).", no_args_is_help=True)

SECRET_FILE_MAX = 4096

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The key's name, as in DNS.")]


@app.command()
def create(
    name: NameArgument,
    data: common.DataOption = common.DEFAULT_DATA,
    algorithm: Annotated[
        str, typer.Option("--algorithm", metavar="A", help="See `kudurru tsig algorithms`.")
    ] = "hmac-sha256",
    secret_file: Annotated[
        Path | None,
        typer.Option(
            "--secret-file",
            metavar="F",
            help="Take this secret, in base64, not a new one; - is standard input.",
            readable=False,
        ),
    ] = None,
    update: Annotated[
        list[str] | None,
        typer.Option(
            "--update",
            metavar="ZONE[:NAME,…[:TYPE,…]]",
            help="What the key may change by dynamic updates; repeats.",
        ),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Give a key that works another secret.")
    ] = False,
    config: common.ConfigOption = None,
    reason: common.ReasonOption = "",
    output: common.OutputOption = Output.table,
) -> None:
    """Make a key. Its secret is shown now and never again. For a key whose secret is lost, this
    gives it a new one."""
    size = ALGORITHMS[algorithm].hash_size if algorithm in ALGORITHMS else 32
    secret = _read_secret(secret_file) if secret_file is not None else os.urandom(size)
    request = KeyRequest(
        name=name,
        algorithm=algorithm,
        secret=secret,
        updates=[msgspec.to_builtins(parse_rule(rule)) for rule in update or ()],
        replace=replace,
        reason=reason,
    )
    with common.service(data, write=True, secrets_key=_secrets_key(config)) as service:
        result = service.create_key(request)
    shown = b64encode(secret).decode()
    name = name.lower().removesuffix(".")
    document = {"name": name, "algorithm": algorithm, "secret": shown, "position": result.seq}
    if print_documents(output, [document], single=True):
        return
    for server, clause in key_clauses(name, algorithm, shown).items():
        echo(f"# {server}")
        echo("\n".join(escape(line).replace("\\x09", "\t") for line in clause.splitlines()))
        echo()
    note("this is the only time that the secret is shown")
    if ALGORITHMS[algorithm].is_old:
        note(f"warning: {algorithm} is weak, and is off unless the setting tsig.allowOld is true")


@app.command("list")
def list_(
    data: common.DataOption = common.DEFAULT_DATA,
    config: common.ConfigOption = None,
    output: common.OutputOption = Output.table,
) -> None:
    """Show the keys, what they may update, and what is wrong with those that do not work."""
    with common.service(data, secrets_key=_secrets_key(config)) as service:
        states = service.key_states()
    if print_documents(output, [msgspec.to_builtins(state) for state in states]):
        return
    rows = [
        [s.name, s.algorithm, s.created, len(s.updates) or "-", s.problem or "ok"] for s in states
    ]
    print_table(["NAME", "ALGORITHM", "CREATED", "UPDATES", "STATUS"], rows)


@app.command()
def revoke(
    name: NameArgument,
    data: common.DataOption = common.DEFAULT_DATA,
    reason: common.ReasonOption = "",
    output: common.OutputOption = Output.table,
) -> None:
    """Take a key away. Its secret is erased; who it was stays in the log."""
    with common.service(data, write=True) as service:
        result = service.revoke_key(name, reason)
    if print_documents(output, [{"name": name, "seq": result.seq}], single=True):
        return
    echo(escape(f"tsigkey/{name} revoked"))
    note(f"recorded at position {result.seq}")


@app.command()
def algorithms(output: common.OutputOption = Output.table) -> None:
    """Show the algorithms that keys may have."""
    documents = [
        {"algorithm": a.text, "octets": a.size, "status": _ALLOWED if a.is_old else "on"}
        for a in ALGORITHMS.values()
    ]
    if not print_documents(output, documents):
        print_table(["ALGORITHM", "OCTETS", "STATUS"], [list(d.values()) for d in documents])


_ALLOWED = "off, unless the setting tsig.allowOld is true"


def _secrets_key(config: Path | None) -> str:
    return load_settings(config, os.environ).settings.node.secrets_key


def _read_secret(path: Path) -> bytes:
    """Raises: Invalid, which does not quote what it read."""
    try:
        if str(path) == "-":
            text = sys.stdin.read(SECRET_FILE_MAX)
        else:
            with path.open() as file:
                text = file.read(SECRET_FILE_MAX)
        return b64decode("".join(text.split()), validate=True)
    except OSError as error:
        raise Invalid("--secret-file", [Cause("", f"{path}: {error.strerror}")]) from None
    except ValueError:
        fault = f"{path} holds no base64; write nothing but the secret there"
        raise Invalid("--secret-file", [Cause("", fault)]) from None
