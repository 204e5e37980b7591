"""What tests have to say beside that they pass: seeds that repeat a run, how much was tried."""

from collections.abc import Callable

Say = Callable[[str], None]
"""The fixture `say`. It is shown at the end, whether the test passed or not, also of tests that run
in other processes: what those print is not seen."""
SAID = "said"
"""The property of a report that holds it."""
