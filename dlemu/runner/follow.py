"""Follows a job that another process runs, through the files that its ranks write, and tells how it ended."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from dataclasses import dataclass
from typing import Literal

from datagen.errors import DlemuError, UserError
from dlemu.results import FACTS, LIVE, SUMMARY
from dlemu.results.kinds import kind_of
from dlemu.results.live import Follower, Progress, goes_on
from dlemu.results.measured import read_facts, read_saved
from dlemu.results.parts import JobSummary

# A run without a lock is dead when its files have not changed for this long: the lock of a run on another host may be
# invisible here, and a failed run may still be saving.
QUIET_SECONDS = 20.0


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
        self.folder, self._live = folder, os.path.join(folder, LIVE)
        if not any(map(os.path.lexists, (self._live, os.path.join(folder, SUMMARY)))):
            raise UserError(
                f"{folder} holds no run: name the folder of an active run, such as output.folder or "
                "results/WORKLOAD/TIME"
            )
        self._follower: Follower | None = None  # until the run has written its facts
        self._last: object = None
        self._changed_seconds = time.monotonic() - (time.time() - _newest(self._live))

    def look(self) -> RunState:
        """Return the current state of the run. Raises UserError for a damaged folder."""
        progress = None
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # it has just ended
            progress = self._progress()
        is_running = goes_on(self.folder)
        if os.path.lexists(os.path.join(self.folder, SUMMARY)):
            return self._ended()
        if not os.path.isdir(self._live) and not is_running:
            return _dead(f"the run left no result in {self.folder}")
        # Rows count too, as writing by mmap may leave st_mtime.
        current = progress and (progress.at, progress.done), _newest(self._live)
        if self._last not in (None, current):
            self._changed_seconds = time.monotonic()
        self._last = current
        quiet_seconds = time.monotonic() - self._changed_seconds
        if is_running or quiet_seconds < QUIET_SECONDS:
            return RunState(state="runs", progress=progress)
        return _dead(
            f"the run in {self.folder} ended before it could write its result, killed or without space: nothing there "
            f"has changed for {quiet_seconds:.0f} s; `dlemu report {shlex.quote(self.folder)}` shows what it had "
            "measured"
        )

    def _ended(self) -> RunState:
        kind = kind_of(self.folder)
        if kind is None or not kind.is_job:
            return RunState(state="ended", sentence=f"the run in {self.folder} has ended")
        summary: JobSummary = read_saved(self.folder, kind.load().answer_type, kind.name)
        sentence = summary.failure or summary.headline or "it completed"
        return RunState(state="ended", sentence=sentence, status=summary.exit_status)

    def _progress(self) -> Progress | None:
        facts_path = os.path.join(self._live, FACTS)
        if self._follower is None:
            kind = kind_of(self.folder) if os.path.exists(facts_path) else None
            if kind is None:
                return None
            job = kind.load_job().job
            self._follower = job.follow(read_facts(facts_path, job.facts_type), self._live)
        return self._follower()


def _dead(sentence: str) -> RunState:
    return RunState(state="dead", status=DlemuError.exit_status, sentence=sentence)


def _newest(folder: str) -> float:
    try:
        return max((entry.stat().st_mtime for entry in os.scandir(folder)), default=0.0)
    except OSError:
        return 0.0
