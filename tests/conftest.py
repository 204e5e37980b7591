"""What holds for every test.

In CI the property tests draw the same examples each time: a change is judged by its own faults, and
not by the one example in a million that a run before it did not draw. Elsewhere they draw new ones
at every run, and what they find becomes a test with a name. How long an example takes is no fault:
that is the machine's business.

Half as many examples as Hypothesis draws by itself: the fast suite has five minutes with all
checks, and each run elsewhere adds others. KUDURRU_EXAMPLES asks for more of them.
"""

import os
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import HealthCheck, settings

from tests.saying import SAID, Say

settings.register_profile(
    "ours",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=int(os.environ.get("KUDURRU_EXAMPLES", "50")),
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("ours")


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
