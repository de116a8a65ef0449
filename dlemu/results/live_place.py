"""Where what a run leaves before it is saved lies in its folder; light, for those who only look for runs."""

from __future__ import annotations

import os

LIVE = "live"
"""Subfolder of the ranks' step logs while the run goes on."""
LIVE_FACTS = "facts.json"
"""What was known of the run before its ranks started."""
LIVE_CHECKPOINT_FACTS = "checkpoint_facts.json"
"""The same of a run of checkpoints."""
KILLED = "the run was killed before it could write its result"
"""What stands as the failure of a run that nobody could save."""


def holds_live(folder: str) -> bool:
    """Say whether the folder has the live part of a training run, whatever was measured."""
    return os.path.isfile(os.path.join(folder, LIVE, LIVE_FACTS))


def holds_live_checkpoints(folder: str) -> bool:
    """Say whether the folder has the live part of a run of checkpoints, whatever was measured."""
    return os.path.isfile(os.path.join(folder, LIVE, LIVE_CHECKPOINT_FACTS))
