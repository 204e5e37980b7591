import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

NOBODY = 65534


@pytest.fixture
def unprivileged() -> Callable[..., AbstractContextManager[None]]:
    """Run a block as a user who does not own the folder, so that modes mean something even where
    the tests run as root. Folders above are opened for passing while it lasts."""

    @contextmanager
    def run(folder: Path, *, mode: int = 0o777) -> Iterator[None]:
        changed = {folder: folder.stat().st_mode & 0o7777}
        changed |= {
            above: above.stat().st_mode & 0o7777
            for above in folder.parents
            if above.stat().st_uid == os.geteuid() and not above.stat().st_mode & 0o001
        }
        user = os.geteuid()
        for place, before in changed.items():
            place.chmod(mode if place == folder else before | 0o011)
        try:
            if user == 0:
                os.seteuid(NOBODY)
            yield
        finally:
            os.seteuid(user)
            for place, before in changed.items():
                place.chmod(before)

    return run
