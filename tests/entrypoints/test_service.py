"""Requests that are refused before anything is decided."""

import pytest

from kudurru.domain.errors import Invalid
from kudurru.domain.events import Who
from kudurru.entrypoints.service import REASON_MAX, ChangeRequest, to_change

WHO = Who(actor="test")


def test_a_reason_is_kept_whole_or_refused() -> None:
    kept = to_change(ChangeRequest(reason="x" * REASON_MAX), WHO)
    assert kept.who.reason == "x" * REASON_MAX
    with pytest.raises(Invalid, match=f"{REASON_MAX + 1} characters; at most {REASON_MAX}"):
        to_change(ChangeRequest(reason="x" * (REASON_MAX + 1)), WHO)


def test_a_manager_that_is_reserved_is_refused() -> None:
    with pytest.raises(Invalid, match="reserved"):
        to_change(ChangeRequest(manager="external-dns"), WHO)
