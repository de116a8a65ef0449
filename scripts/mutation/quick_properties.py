"""A plugin of pytest: property tests are quick, with few examples and no shrinking, and tests that hang end."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings

MIN_LIMIT_SECONDS = 10.0
"""Shortest time limit of a test: on a shared machine, a short test may take seconds."""
LIMIT_FACTOR = 20.0
"""Time that a test may take, relative to its time without a mutant."""


def pytest_configure() -> None:
    """Load the profile before tests are imported."""
    settings.register_profile(
        "mutation", settings(), phases=(Phase.explicit, Phase.generate), max_examples=40, database=None
    )
    settings.load_profile("mutation")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test a time limit: mutmut's limit, for all tests together, costs minutes for each endless loop.

    At the limit the process ends, because an exception would wait for threads that hang.
    """
    from mutmut.state import state

    for item in items:
        seconds = state().duration_by_test.get(item.nodeid)
        if seconds is not None:
            item.add_marker(pytest.mark.timeout(MIN_LIMIT_SECONDS + LIMIT_FACTOR * seconds, method="thread"))
