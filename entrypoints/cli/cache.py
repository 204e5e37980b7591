"""kudurru cache: what the running server keeps of upstreams' answers."""

from typing import Annotated

import typer

from kudurru.domain.dns import names
from kudurru.domain.errors import Cause, Invalid
from kudurru.entrypoints.cli import common
from kudurru.entrypoints.cli.app import command_app
from kudurru.entrypoints.cli.output import Output, counted, echo, print_documents, print_table

app = command_app(no_args_is_help=True)


@app.command()
def stats(
    data: common.DataOption = common.DEFAULT_DATA,
    output: common.OutputOption = Output.table,
) -> None:
    """Show how full the cache is and how often it helped."""
    with common.service(data) as service:
        document = service.cache_stats()
    if print_documents(output, [document], single=True):
        return
    print_table(["NAME", "VALUE"], [[name, value] for name, value in document.items()])


@app.command()
def flush(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Only this name; none: everything.")
    ] = None,
    data: common.DataOption = common.DEFAULT_DATA,
    subtree: Annotated[bool, typer.Option("--subtree", help="And every name below it.")] = False,
    output: common.OutputOption = Output.table,
) -> None:
    """Forget answers of upstreams, so that they are asked again."""
    if subtree and name is None:
        raise Invalid("--subtree", [Cause("", "of which name? Without one, all is forgotten")])
    if name is not None:
        try:
            names.from_text(name)
        except names.BadName as error:
            raise Invalid("NAME", [Cause("", str(error))]) from None
    with common.service(data) as service:
        count = service.cache_flush(name or "", subtree=subtree)
    if not print_documents(output, [{"forgotten": count}], single=True):
        echo(f"{counted(count, 'answer')} forgotten")
