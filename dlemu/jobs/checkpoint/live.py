"""Progress of a checkpoint run that is still running, from the rows in its live folder."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dlemu.checkpoints.io_rows import WHOLE, WRITE, IoRows, read_logs
from dlemu.jobs.checkpoint.measured import CheckpointRunFacts
from dlemu.results.live import Progress, seconds_left


class LiveCheckpoints:
    """Follows a checkpoint run, whose ranks log a row after each file that they write or read."""

    def __init__(self, facts: CheckpointRunFacts, live_folder: str) -> None:
        self._folder, self._ranks = live_folder, facts.ranks
        self._writes = max(0, facts.workload.checkpoint.num_checkpoints_write)
        self._reads = len(facts.sources)

    def __call__(self) -> Progress | None:
        """Return the progress; None before the first file."""
        rows = read_logs(self._folder)
        if not len(rows):
            return None
        whole, total = rows[rows["file"] == WHOLE], self._writes + self._reads
        done = int(np.bincount(whole["rank"], minlength=self._ranks).min())
        last = rows[np.argmax(rows["ended_ns"])]
        verb, count = ("written", self._writes) if last["phase"] == WRITE else ("read", self._reads)
        files = rows[
            (rows["phase"] == last["phase"]) & (rows["checkpoint"] == last["checkpoint"]) & (rows["file"] != WHOLE)
        ]
        return replace(
            _progress(f"checkpoint {last['checkpoint']}/{count} {verb}", files),
            done=done,
            total=total,
            seconds_left=seconds_left((rows["ended_ns"].max() - rows["began_ns"].min()) / 1e9, done, total),
            ranks={
                rank: _progress(f"rank {rank}", files[files["rank"] == rank])
                for rank in np.unique(files["rank"]).tolist()
            },
        )


def _progress(at: str, files: IoRows) -> Progress:
    """Return the speed of these files of one checkpoint, if there are any yet."""
    if not len(files):
        return Progress(at=at)
    seconds = max(1, int(files["ended_ns"].max() - files["started_ns"].min())) / 1e9
    return Progress(at=at, mb_per_second=float(files["bytes"].sum() / 1e6 / seconds))
