"""Where what a run leaves before it is saved lies in its folder; light, for those who only look for runs."""

from __future__ import annotations

import os

LIVE = "live"
"""Subfolder of the ranks' step logs while the run goes on."""
LIVE_FACTS = "facts.json"
"""What was known of the run before its ranks started."""


def holds_live(folder: str) -> bool:
    """Say whether the folder has the live part of a run, whatever was measured."""
    return os.path.isfile(os.path.join(folder, LIVE, LIVE_FACTS))
