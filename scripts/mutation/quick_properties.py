"""A plugin of pytest: property tests say that they fail and look for no simpler example, and draw fewer."""

from __future__ import annotations

from hypothesis import Phase, settings


def pytest_configure() -> None:
    """Take effect before tests are imported."""
    settings.register_profile(
        "mutation", settings(), phases=(Phase.explicit, Phase.generate), max_examples=40, database=None
    )
    settings.load_profile("mutation")
