"""What holds for all tests.

Hypothesis: no deadline for an example, since the machine may be busy; and the same examples in every run, so
that a red run means a change. ``HYPOTHESIS_PROFILE=random pytest ...`` looks for new ones.
"""

import os

from hypothesis import HealthCheck, settings

_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)
settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=_SLOW)
settings.register_profile("random", deadline=None, suppress_health_check=_SLOW)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
