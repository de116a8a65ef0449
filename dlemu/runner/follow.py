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
from dlemu.results.answer_files import decode_versioned
from dlemu.results.kinds import kind_of
from dlemu.results.live import Follower, Progress, goes_on
from dlemu.results.measured import read_facts
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
        self.folder = folder
        if not any(os.path.lexists(os.path.join(folder, name)) for name in (LIVE, SUMMARY)):
            raise UserError(
                f"{folder} holds no run: name the folder of an active run, such as output.folder or "
                "results/WORKLOAD/TIME"
            )
        self._live = os.path.join(self.folder, LIVE)
        self._follower: Follower | None = None  # until the run has written its facts
        self._last_state: object = None
        age_seconds = time.time() - _newest(self._live)
        self._changed_seconds = time.monotonic() - age_seconds

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
        sentence = f"the run left no result in {self.folder}"
        if os.path.isdir(self._live):
            quiet_seconds = self._quiet_seconds(progress)
            if quiet_seconds < QUIET_SECONDS:
                return RunState(state="runs", progress=progress)
            sentence = (
                f"the run in {self.folder} ended before it could write its result, killed or without space: nothing "
                f"there has changed for {quiet_seconds:.0f} s; `dlemu report {shlex.quote(self.folder)}` shows what it "
                "had measured"
            )
        return RunState(state="dead", status=DlemuError.exit_status, sentence=sentence)

    def _quiet_seconds(self, progress: Progress | None) -> float:
        """Return for how long neither files nor rows changed. Rows count, as writing by mmap may leave st_mtime."""
        now_seconds = time.monotonic()
        state = (progress and (progress.at, progress.done), _newest(self._live))
        if self._last_state not in (None, state):
            self._changed_seconds = now_seconds
        self._last_state = state
        return now_seconds - self._changed_seconds

    def _ended(self) -> RunState:
        kind = kind_of(self.folder)
        if kind is None or not kind.is_job:
            return RunState(state="ended", sentence=f"the run in {self.folder} has ended")
        summary: JobSummary = decode_versioned(os.path.join(self.folder, SUMMARY), kind.load().answer_type)
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


def _newest(folder: str) -> float:
    try:
        return max((entry.stat().st_mtime for entry in os.scandir(folder)), default=0.0)
    except OSError:
        return 0.0
