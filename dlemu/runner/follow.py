"""Follows a running job through the files that its ranks write: from the run itself, or from another process."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from dataclasses import dataclass, replace
from typing import Any, Literal

from datagen.errors import UserError
from dlemu.metrics.verdict import EXIT_STATUSES
from dlemu.results.file_names import FACTS, LIVE, SUMMARY
from dlemu.results.kinds import kind_of
from dlemu.results.live import Figure, Follower, Progress, goes_on
from dlemu.results.measured import read_saved
from dlemu.runner.events import OnEvent
from dlemu.telemetry._readings import LiveReadings

LOOK_SECONDS = 1.0
"""Minimum time between two looks at a run."""
_COST_SHARE = 0.002
"""The run itself looks less often where looking takes more than this share of rank 0's time."""
QUIET_SECONDS = 20.0
"""If no lock is seen, a run counts as dead when its files have not changed for this long: the lock of a run on another
host may be invisible here, and a failed run may still be saving."""
FAILED = 3
"""Exit status of a run that left no complete result, as in docs/results.md."""


class Reporter:
    """Reports the progress of a run from its rank 0, which calls it at every step or file."""

    def __init__(self, follower: Follower, on_event: OnEvent) -> None:
        self._follower, self._on_event, self._due = follower, on_event, 0.0

    def __call__(self) -> None:
        if time.monotonic() >= self._due:
            self.look()

    def look(self) -> None:
        """Report the progress now."""
        began = time.monotonic()
        try:
            progress = self._follower.look()
        except OSError:  # what a run can't say of itself does not end it
            progress = None
        now = time.monotonic()
        if progress is not None:
            self._due = now + max(LOOK_SECONDS, (now - began) / _COST_SHARE)
            self._on_event(replace(progress, ranks={}))


@dataclass(frozen=True, kw_only=True)
class RunState:
    """The state of a run at one moment."""

    state: Literal["runs", "ended", "dead"]
    progress: Progress | None = None
    """Progress of an active run, once a rank has begun."""
    sentence: str = ""
    """How the run ended."""
    status: int = 0
    """Exit status matching `state` and `sentence`."""


class RunFollower:
    """Follows one run of any kind: call `look` repeatedly."""

    def __init__(self, folder: str) -> None:
        """Raises UserError for a folder that holds no run."""
        self.folder = folder
        if not any(os.path.lexists(os.path.join(folder, name)) for name in (LIVE, SUMMARY)):
            raise UserError(
                f"{folder} holds no run: name the folder of an active run, such as output.folder or "
                "results/WORKLOAD/TIME"
            )
        self._live = os.path.join(self.folder, LIVE)
        self._readings = LiveReadings(self._live)
        self._follower: Follower | None = None
        """None until the run has written its facts."""
        self._last: tuple[object, float] | None = None
        self._changed_at = _newest(self._live) - time.time() + time.monotonic()

    def look(self) -> RunState:
        """Return the current state of the run. Raises UserError for a damaged folder."""
        if os.path.lexists(os.path.join(self.folder, SUMMARY)):
            return self._ended()
        progress = None
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # it has just ended
            progress = self._progress()
        if goes_on(self.folder):
            return RunState(state="runs", progress=progress)
        if os.path.lexists(os.path.join(self.folder, SUMMARY)):
            return self._ended()
        if not os.path.isdir(self._live):
            return RunState(state="dead", status=FAILED, sentence=f"the run left no result in {self.folder}")
        quiet_seconds = self._quiet_seconds(progress)
        if quiet_seconds < QUIET_SECONDS:
            return RunState(state="runs", progress=progress)
        return RunState(
            state="dead",
            status=FAILED,
            sentence=f"the run in {self.folder} ended before it could write its result, killed or without space: "
            f"nothing there has changed for {quiet_seconds:.0f} s; `dlemu report {shlex.quote(self.folder)}` shows "
            "what it had measured",
        )

    def _quiet_seconds(self, progress: Progress | None) -> float:
        """Return for how long nothing has changed: neither files, nor rows, as those of mapped files change no time."""
        now, state = time.monotonic(), (progress and (progress.at, progress.done), _newest(self._live))
        if state != self._last:
            self._changed_at = now if self._last else self._changed_at
            self._last = state
        return now - self._changed_at

    def _ended(self) -> RunState:
        kind = kind_of(self.folder)
        if kind is None or not kind.is_job:
            return RunState(state="ended", sentence=f"the run in {self.folder} has ended")
        summary: Any = read_saved(self.folder, kind.load().answer_type, kind.name)
        status = EXIT_STATUSES.get(getattr(summary, "outcome", None) or "pass", 0) if summary.complete else FAILED
        headline = getattr(summary, "headline", summary.verdict)  # as the run itself printed it
        return RunState(state="ended", sentence=summary.failure or headline or "it completed", status=status)

    def _progress(self) -> Progress | None:
        facts_path = os.path.join(self._live, FACTS)
        if self._follower is None:
            kind = kind_of(self.folder) if os.path.exists(facts_path) else None
            if kind is None:
                return None
            self._follower = kind.load_job().job.follow(facts_path, self._live)
            assert self._follower is not None
        progress = self._follower.look()
        self._readings.look()
        devices = (
            Figure(f"{name} ({host}, {device})", value, unit)
            for metric, (name, unit) in _DEVICE_METRICS.items()
            for (host, device), value in self._readings.of_devices(metric).items()
        )
        return None if progress is None else replace(progress, figures=(*progress.figures, *devices))


def _newest(folder: str) -> float:
    try:
        return max((entry.stat().st_mtime for entry in os.scandir(folder)), default=0.0)
    except OSError:
        return 0.0


_DEVICE_METRICS = {
    "read_mb_per_second": ("device read", "MB/s"),
    "write_mb_per_second": ("device write", "MB/s"),
    "mean_queue_depth": ("queue depth", ""),
}
"""Metric of the device telemetry -> what it is called here, and its unit."""
