"""What a test needs and the machine may lack."""

import os
from typing import NoReturn

import pytest

from kudurru.adapters.dns import engine_native

needs_engine = pytest.mark.skipif(
    not engine_native.is_available() and not os.environ.get("CI"),  # there it fails instead
    reason="the native engine was not built: `just engine`",
)


def absent(what: str) -> NoReturn:
    """Skip the test, but fail it in CI: a suite that nobody runs proves nothing."""
    if os.environ.get("CI"):
        pytest.fail(f"{what}; CI needs it")
    pytest.skip(what)
