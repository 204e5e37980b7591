"""What holds for every test.

In CI the property tests draw the same examples each time: a change is judged by its own faults, and
not by the one example in a million that a run before it did not draw. Elsewhere they draw new ones
at every run, and what they find becomes a test with a name. How long an example takes is no fault:
that is the machine's business.

Folders of tests are in memory where there is room: every change of ours is synced before it is
acknowledged, and a disk makes that half of the suite's time. What a disk may lose is shown by
tests/simulation. PYTEST_DEBUG_TEMPROOT names another place.

Half as many examples as Hypothesis draws by itself: the fast suite has five minutes with all
checks, and each run elsewhere adds others. KUDURRU_EXAMPLES asks for more of them.

Processes of the program are forked in the fast suite, and started in every other run
(tests/blackbox/forks.py). KUDURRU_TEST_FORKS=1 or 0 says it for any run.
"""

import os
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import HealthCheck, settings

from tests.saying import SAID, Say

MEMORY = "/dev/shm"
MEMORY_MIN = 2 << 30
"""Octets that have to be free there: several times what the fast suite takes at once."""


def is_roomy(folder: str) -> bool:
    """Whether it is there, has room, and lets programs be run that are in it."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    may_run = not found.f_flag & os.ST_NOEXEC and os.access(folder, os.W_OK)
    return may_run and found.f_bavail * found.f_frsize >= MEMORY_MIN


if is_roomy(MEMORY):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)

settings.register_profile(
    "ours",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=int(os.environ.get("KUDURRU_EXAMPLES", "50")),
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("ours")


def pytest_configure(config: pytest.Config) -> None:
    is_fast = config.getoption("markexpr") == "not slow"
    os.environ.setdefault("KUDURRU_TEST_FORKS", "1" if is_fast else "0")


@pytest.fixture
def say(record_property: Callable[[str, object], None]) -> Say:
    return partial(record_property, SAID)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                for name, text in report.user_properties:
                    if name == SAID:
                        terminalreporter.write_line(text)
