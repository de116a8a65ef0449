"""Codes of what a reader of a training run's numbers must know."""

from __future__ import annotations

from enum import StrEnum


class Issue(StrEnum):
    """The codes of `Summary.findings`."""

    NOTE = "note"
    """What was noted before the run, as its `text`."""
    REQUESTS_OF_NOBODY = "requests_of_nobody"
    """`reader.engine=fast` made fewer and larger read calls than the format's `library` would."""
    CALLS_NOT_KNOWN = "calls_not_known"
    """Of the user's own `format` it is not known by which calls its library reads."""
    STEPS_LOST = "steps_lost"
    SAMPLES_DROPPED = "samples_dropped"
    PREFETCH_BIAS = "prefetch_bias"
    HOST_LATE = "host_late"
    TELEMETRY_MISSING = "telemetry_missing"
    TELEMETRY_CUT_SHORT = "telemetry_cut_short"
