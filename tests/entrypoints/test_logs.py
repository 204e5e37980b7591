"""The program's own log."""

import json
import logging
import sys

import pytest

from kudurru.entrypoints.logs import JsonFormatter, TextFormatter

NASTY = 'a\nlevel=error msg="forged"\x1b[2J\u202e\x7f'


def record(message: str, *args: object, error: BaseException | None = None) -> logging.LogRecord:
    info = (type(error), error, error.__traceback__) if error is not None else None
    return logging.LogRecord("kudurru.x", logging.WARNING, "f.py", 1, message, args, info)


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_a_record_is_one_line_of_plain_characters_whatever_it_says(
    formatter: logging.Formatter,
) -> None:
    line = formatter.format(record("%s was refused", NASTY))
    assert line.isascii()
    assert line.isprintable()


def test_json_says_what_was_meant() -> None:
    found = json.loads(JsonFormatter().format(record("%s was refused", NASTY)))
    assert found["msg"] == f"{NASTY} was refused"
    assert (found["level"], found["component"]) == ("warning", "kudurru.x")


def test_text_is_fields_that_can_be_cut() -> None:
    line = TextFormatter().format(record('%s said "no"', "a=b"))
    assert line.partition(" ")[2] == 'level=warning component=kudurru.x msg="a=b said \\"no\\""'


def test_an_exception_is_named_with_its_place_and_no_trace() -> None:
    try:
        raise ValueError(NASTY)
    except ValueError as error:
        found = json.loads(JsonFormatter().format(record("a query failed", error=error)))
    assert found["err"] == f"ValueError: {NASTY}"
    assert found["where"].startswith(__file__)
    assert "Traceback" not in str(found)
    assert sys.exc_info() == (None, None, None)
