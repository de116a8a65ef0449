"""Follows a job that another process runs: reads its progress from the files that its ranks write, until it ends."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from datagen.errors import DlemuError, UserError
from dlemu.results import FACTS, LIVE, SUMMARY
from dlemu.results.answer_files import decode_versioned
from dlemu.results.kinds import kind_of
from dlemu.results.live import Follower, Progress, is_in_progress
from dlemu.results.parts import JobSummary

# A run without a lock is dead only if its files have not changed for this long: this host may not see the lock of a run
# on another host, and a failed run may still be saving.
QUIET_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class RunState:
    """The state of a run at one moment."""

    state: Literal["runs", "ended", "dead"]
    progress: Progress | None = None  # of an active run; None before its first rank has begun
    sentence: str = ""  # how the run ended; empty while it is active
    status: int = DlemuError.exit_status  # exit status of the run once it has ended


def follow_run(folder: str) -> Iterator[RunState]:
    """Yield the current state of the run in a folder, endlessly; raises UserError for no run or a damaged one."""
    live = os.path.join(folder, LIVE)
    summary = os.path.join(folder, SUMMARY)
    if not (os.path.lexists(live) or os.path.lexists(summary)):
        raise UserError(
            f"{folder} holds no run: name the folder of an active run, such as output.folder or results/WORKLOAD/TIME"
        )
    follower: Follower | None = None
    last_activity: object = None
    changed_at_seconds = time.monotonic() - (time.time() - _newest_mtime(live))  # the newest mtime by CLOCK_MONOTONIC
    while True:
        progress = None
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # the run has just ended
            follower = follower or _follower(folder, live)
            progress = follower() if follower else None
        is_running = is_in_progress(folder)
        # Progress counts as activity, too, because ranks that write by mmap may leave st_mtime as it was.
        activity = (progress and (progress.at, progress.done), _newest_mtime(live))
        if last_activity not in (None, activity):
            changed_at_seconds = time.monotonic()
        last_activity = activity
        quiet_seconds = time.monotonic() - changed_at_seconds
        if os.path.lexists(summary):
            yield _ended(folder)
        elif is_running or (os.path.isdir(live) and quiet_seconds < QUIET_SECONDS):
            yield RunState(state="runs", progress=progress)
        elif os.path.isdir(live):
            sentence = (
                f"the run in {folder} ended before it could write its result, killed or without space: nothing there "
                f"has changed for {quiet_seconds:.0f} s; `dlemu report {shlex.quote(folder)}` shows what it had "
                "measured"
            )
            yield RunState(state="dead", sentence=sentence)
        else:
            yield RunState(state="dead", sentence=f"the run left no result in {folder}")


def _ended(folder: str) -> RunState:
    kind = kind_of(folder)
    if kind is None or not kind.is_job:
        return RunState(state="ended", sentence=f"the run in {folder} has ended", status=0)
    summary: JobSummary = decode_versioned(os.path.join(folder, SUMMARY), kind.load().answer_type)
    sentence = summary.failure or summary.headline or "it completed"
    return RunState(state="ended", sentence=sentence, status=summary.exit_status)


def _follower(folder: str, live: str) -> Follower | None:
    """Return a function that reads the run's progress; None while it has not written its facts (facts.json) yet."""
    facts_path = os.path.join(live, FACTS)
    kind = kind_of(folder) if os.path.exists(facts_path) else None
    if kind is None:
        return None
    job = kind.load_job().job
    follower: Follower = job.follow(decode_versioned(facts_path, job.facts_type), live)
    return follower


def _newest_mtime(folder: str) -> float:
    """Return the latest modification time in a folder (seconds since 1970); 0 without files."""
    try:
        return max((entry.stat().st_mtime for entry in os.scandir(folder)), default=0.0)
    except OSError:
        return 0.0
