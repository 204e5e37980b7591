"""What commands print."""

import contextlib
import io
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kudurru.domain.documents import read_documents
from kudurru.entrypoints.cli import output


def printed(*documents: Any) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        output.print_yaml(*documents)
    return out.getvalue()


@pytest.mark.parametrize("text", ["08", "1e3", "0o17", "1_000", ".5", "1.", "no", "~", "010", "<<"])
def test_yaml_that_is_printed_is_read_back_as_the_same_text(text: str) -> None:
    value = {"text": text, text: "key"}
    assert [document.value for document in read_documents(printed(value).encode(), what="x")] == [
        value
    ]


def test_any_text_that_is_printed_as_yaml_is_read_back() -> None:
    numberlike = st.text("0123456789+-_.eExob", max_size=8)

    @given(st.lists(st.text() | numberlike, min_size=1, max_size=5))
    @example(["\x1b[31m", "\u202e", "\ufeff", "a: b", "# c", "\n"])
    def check(texts: list[str]) -> None:
        text = printed({"texts": texts})
        assert text.isascii()
        assert read_documents(text.encode(), what="x")[0].value == {"texts": texts}

    check()


def test_json_holds_no_character_that_a_terminal_obeys_and_means_the_same() -> None:
    @given(st.text())
    @example("\x1b[31m\x7f\x9b31m\u202e\U000e0041\u2028")
    def check(text: str) -> None:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            output.print_json({"text": text})
            output.print_jsonl([{"text": text}])
        shown = out.getvalue()
        assert all(" " <= c <= "~" or c == "\n" for c in shown)
        indented, _, line = shown.rstrip("\n").rpartition("\n")
        assert json.loads(indented) == json.loads(line) == {"text": text}

    check()
