"""A plugin of pytest: property tests look for no simpler example and draw fewer; a test that hangs has failed."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings

LEAST_SECONDS = 10.0
"""Of a test's own limit: a machine that others use makes a short test take seconds."""
TIMES = 20.0
"""How much longer than without a bug a test may take."""


def pytest_configure() -> None:
    """Take effect before tests are imported."""
    settings.register_profile(
        "mutation", settings(), phases=(Phase.explicit, Phase.generate), max_examples=40, database=None
    )
    settings.load_profile("mutation")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test a limit of its own: mutmut's is of all tests together, minutes for each bug that ends no loop.

    At the limit the process ends: an exception would wait for threads that hang.
    """
    from mutmut.state import state

    for item in items:
        seconds = state().duration_by_test.get(item.nodeid)
        if seconds is not None:
            item.add_marker(pytest.mark.timeout(LEAST_SECONDS + TIMES * seconds, method="thread"))
