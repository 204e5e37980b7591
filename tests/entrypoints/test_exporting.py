"""The log in the formats of others: text from outside stays text."""

import csv
import io

import pytest

from kudurru.domain.events import ChangeSet, Who
from kudurru.entrypoints import exporting
from kudurru.entrypoints.exporting import Format, Wanted
from tests.logs import NOON_US, applied, memory_log


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("=1+1", "'=1+1"),
        ("  =1+1", "'  =1+1"),
        ("\uff1d1+1", "'\uff1d1+1"),
        ("-2", "'-2"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("one\ntwo", "one\\x0atwo"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("plain, \u00e9", "plain, \u00e9"),
    ],
)
def test_a_cell_computes_nothing_and_moves_no_cursor(reason: str, shown: str) -> None:
    log = memory_log()
    log.append([ChangeSet((applied("www"),), Who(actor="user:x", reason=reason))], NOON_US)
    selection = exporting.selection_of(Wanted(), log, NOON_US)
    text = b"".join(exporting.lines(log, selection, Format.csv)).decode()
    (row,) = csv.DictReader(io.StringIO(text))
    assert row["reason"] == shown
    assert text.count("\n") == 2
