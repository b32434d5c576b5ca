"""What holds for all tests.

With ``-n 2 --dist loadgroup`` (pytest-xdist) one worker has all tests with SGLang servers, which they share;
the other takes the rest, file by file.

Hypothesis: no deadline for an example, since the machine may be busy; and the same examples in every run, so
that a red run means a change. ``HYPOTHESIS_PROFILE=random pytest ...`` looks for new ones.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)
settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=_SLOW)
settings.register_profile("random", deadline=None, suppress_health_check=_SLOW)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups for pytest-xdist; the one with servers comes first, because it takes longest."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group("servers" if _has_servers(item) else item.path.name))
    items.sort(key=lambda item: not _has_servers(item))


def _has_servers(item: pytest.Item) -> bool:
    return item.get_closest_marker("sglang") is not None
