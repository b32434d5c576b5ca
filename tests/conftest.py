"""What holds for all tests.

With ``-n 2`` (pytest-xdist) one worker has all tests with SGLang servers, which they share; the other takes
the rest, file by file.

Hypothesis: no deadline for an example, since the machine may be busy; and the same examples in every run, so
that a red run means a change. ``HYPOTHESIS_PROFILE=random pytest ...`` looks for new ones.
"""

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)
settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=_SLOW)
settings.register_profile("random", deadline=None, suppress_health_check=_SLOW)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Two workers: one for all tests with servers, which it begins with, one for the rest."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "servers" if nodeid.startswith("tests/sglang/") else nodeid.partition("::")[0]

    return Scheduling(config, log)
