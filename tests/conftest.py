"""What holds for all tests.

With ``-n 2 --dist loadgroup`` (pytest-xdist) one worker has all tests with SGLang servers, which they share;
the other takes the rest, file by file.

Hypothesis: no deadline for an example, since the machine may be busy; and the same examples in every run, so
that a red run means a change. ``HYPOTHESIS_PROFILE=random pytest ...`` looks for new ones.
"""

import os
from collections.abc import Iterable

import pytest
from hypothesis import HealthCheck, settings

_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)
settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=_SLOW)
settings.register_profile("random", deadline=None, suppress_health_check=_SLOW)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    """Groups for pytest-xdist."""
    for item in items:
        servers = item.get_closest_marker("sglang") is not None
        item.add_marker(pytest.mark.xdist_group("servers" if servers else item.path.name))
