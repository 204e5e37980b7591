"""Who did it is what the kernel says."""

import pytest

from kudurru.entrypoints.actors import actor_of
from kudurru.entrypoints.cli import common


def test_the_environment_does_not_say_who_somebody_is(monkeypatch: pytest.MonkeyPatch) -> None:
    before = common.me()
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "mallory")
    assert common.me() == before


def test_a_user_without_a_name_is_recorded_by_number() -> None:
    assert actor_of(0) == "user:root"
    assert actor_of(4_123_456_789) == "user:4123456789"
