"""What holds for every test.

In CI the property tests draw the same examples each time: a change is judged by its own faults, and
not by the one example in a million that a run before it did not draw. Elsewhere they draw new ones
at every run, and what they find becomes a test with a name. How long an example takes is no fault:
that is the machine's business.
"""

import os

from hypothesis import HealthCheck, settings

slow_is_fine = [HealthCheck.too_slow]
settings.register_profile("here", deadline=None, suppress_health_check=slow_is_fine)
settings.register_profile("ci", deadline=None, suppress_health_check=slow_is_fine, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")
