"""Codes of a checkpoint run's outcome, and of the warnings that a reader of its numbers must know."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """The codes of `CheckpointSummary.verdict_code`."""

    WRITTEN = "written"
    READ = "read"
    WRITTEN_AND_READ = "written_and_read"
    INCOMPLETE = "incomplete"
    NOTHING = "nothing"


class Issue(StrEnum):
    """The codes of `CheckpointSummary.findings`."""

    NOTE = "note"
    """A note made before the run; its number `text` is the sentence."""
    TELEMETRY_ENDS_EARLY = "telemetry_ends_early"
    PARTIAL_LEFT = "partial_checkpoint_left"
    IN_MEMORY = "storage_is_memory"
    NO_FSYNC = "no_fsync"
    NOT_STEADY = "not_steady"
    """The last checkpoints were not written at the same speed."""
    NOT_READ = "storage_not_read"
    CONTENT_CEILING = "content_ceiling"
