"""Watches a running job from another process, through the files that its ranks write into its folder."""

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
from dlemu.results.live import goes_on
from dlemu.results.measured import RunFacts, read_facts, read_saved
from dlemu.results.progress import Figure, Follower, Progress
from dlemu.telemetry._log import LiveReadings

QUIET_SECONDS = 20.0
"""If no lock is seen, a run counts as dead when its files have not changed for this long: the lock of a run on another
host may be invisible here, and a failed run may still be saving."""
FAILED = 3
"""Exit status of a run that left no complete result, as in docs/results.md."""


@dataclass(frozen=True, kw_only=True)
class RunState:
    """The state of a run at one moment."""

    state: Literal["starts", "runs", "ended", "dead"]
    progress: Progress | None = None
    """Progress of an active run, once a rank has begun."""
    sentence: str = ""
    """How the run ended."""
    status: int = 0
    """Exit status matching `state` and `sentence`."""


class RunFollower:
    """Follows one run: call `look` repeatedly."""

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
        self._last: object = None
        self._changed_at = _newest(self._live) - time.time() + time.monotonic()
        self.workload, self.kind = "", ""
        """Names; empty until the run has written facts.json."""

    def look(self) -> RunState:
        """Return the current state of the run. Raises UserError for a damaged folder."""
        if os.path.lexists(os.path.join(self.folder, SUMMARY)):
            return self._ended()
        progress = None
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # it has just ended
            progress = self._progress()
        if goes_on(self.folder):
            return RunState(state="starts" if progress is None else "runs", progress=progress)
        return self._without_lock(progress)

    def _without_lock(self, progress: Progress | None) -> RunState:
        now = time.monotonic()
        if (state := (progress, _newest(self._live))) != self._last:
            self._last, first = state, self._last is None
            self._changed_at = self._changed_at if first else now
        if os.path.lexists(os.path.join(self.folder, SUMMARY)):
            return self._ended()
        if not os.path.isdir(self._live):
            return RunState(state="dead", status=FAILED, sentence=f"the run left no result in {self.folder}")
        if now - self._changed_at < QUIET_SECONDS:
            return RunState(state="runs", progress=progress)
        return RunState(
            state="dead",
            status=FAILED,
            sentence=f"the run in {self.folder} ended before it could write its result, killed or without space: "
            f"nothing there has changed for {now - self._changed_at:.0f} s; `dlemu report "
            f"{shlex.quote(self.folder)}` shows what it had measured",
        )

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
        if not self.kind:
            if not os.path.exists(facts_path):
                return None
            facts, kind = read_facts(facts_path, RunFacts), kind_of(self.folder)
            assert kind is not None  # its facts.json exists
            self.workload, self.kind = facts.workload.model.name, kind.name
            follow = kind.load_job().follow
            self._follower = follow(facts_path, self._live) if follow else None
        progress = self._follower.look() if self._follower else None
        self._readings.look()
        devices = _device_figures(self._readings)
        if progress is None and self._follower is None and devices:  # this kind of job reports no progress itself
            return Progress(at="in progress", figures=devices)
        return None if progress is None else replace(progress, figures=(*progress.figures, *devices))


def _newest(folder: str) -> float:
    try:
        return max((entry.stat().st_mtime for entry in os.scandir(folder)), default=0.0)
    except OSError:
        return 0.0


def _device_figures(readings: LiveReadings) -> tuple[Figure, ...]:
    return tuple(
        Figure(name, value * scale, {"host": host, "device": device})
        for metric, (name, scale) in _DEVICE_METRICS.items()
        for (host, device), value in readings.of_devices(metric).items()
    )


_DEVICE_METRICS = {
    "read_mb_per_second": ("device_read_bytes_per_second", 1e6),
    "write_mb_per_second": ("device_write_bytes_per_second", 1e6),
    "mean_queue_depth": ("device_queue_depth", 1.0),
}
"""Metric of the device telemetry -> name of the figure, and factor to its unit."""
