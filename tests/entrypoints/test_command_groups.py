"""Commands that have subcommands, asked without one."""

from typing import Any

import pytest
from click.testing import CliRunner

from kudurru.entrypoints.cli.main import COMMANDS, command_of

GROUPS = [name for name in COMMANDS if getattr(command_of(name), "commands", None)]


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_without_a_subcommand_shows_what_there_is(name: str) -> None:
    group: Any = command_of(name)
    shown = CliRunner().invoke(group, []).output
    assert "Missing command" not in shown
    assert all(sub in shown for sub in group.commands)
