"""Codes of the caveats to a training run's numbers; `wording` has their sentences."""

from __future__ import annotations

from enum import StrEnum


class Issue(StrEnum):
    """Codes of `Summary.findings`."""

    NOTE = "note"
    """A note made before the run: the finding's `text`."""
    REQUESTS_OF_NOBODY = "requests_of_nobody"
    """`reader.engine=fast` made fewer and larger read calls than the format's usual `library` does."""
    CALLS_NOT_KNOWN = "calls_not_known"
    """The user's own `format` does not declare which read calls its library makes."""
    STEPS_LOST = "steps_lost"
    SAMPLES_DROPPED = "samples_dropped"
    PREFETCH_BIAS = "prefetch_bias"
    HOST_LATE = "host_late"
    TELEMETRY_MISSING = "telemetry_missing"
    TELEMETRY_CUT_SHORT = "telemetry_cut_short"
