"""Progress of a checkpoint run that is still running, from the rows in its live folder."""

from __future__ import annotations

import numpy as np

from dlemu.checkpoints.io_rows import WHOLE, WRITE, IoRows, read_logs
from dlemu.jobs.checkpoint.measured import CheckpointRunFacts
from dlemu.results.measured import read_facts
from dlemu.results.progress import Figure, Progress


class LiveCheckpoints:
    """Watches a running checkpoint run, whose ranks log a row after each file they write or read."""

    def __init__(self, facts_path: str, live_folder: str) -> None:
        """Raises UserError if the facts are damaged."""
        facts = read_facts(facts_path, CheckpointRunFacts)
        self._folder, self._ranks = live_folder, facts.ranks
        self._writes = max(0, facts.workload.checkpoint.num_checkpoints_write)
        self._reads = len(facts.sources)

    def look(self) -> Progress | None:
        """Return the progress; None before the first file."""
        rows, _ = read_logs(self._folder)
        if not len(rows):
            return None
        whole, total = rows[rows["file"] == WHOLE], max(1, self._writes + self._reads)
        ends = [len(whole[whole["rank"] == rank]) for rank in range(self._ranks)]
        done = min(ends) / total
        seconds = (rows["ended_ns"].max() - rows["began_ns"].min()) / 1e9
        last = rows[np.argmax(rows["ended_ns"])]
        verb, count = ("written", self._writes) if last["phase"] == WRITE else ("read", self._reads)
        return Progress(
            at=f"checkpoint {last['checkpoint']}/{count} {verb}",
            done_ratio=done,
            seconds_left=float(seconds * (1 - done) / done) if done else None,
            figures=_figures(rows, int(last["phase"]), int(last["checkpoint"])),
            ranks={
                rank: _figures(rows[rows["rank"] == rank], int(last["phase"]), int(last["checkpoint"]))
                for rank in np.unique(rows["rank"]).tolist()
            },
        )


def _figures(rows: IoRows, phase: int, checkpoint: int) -> tuple[Figure, ...]:
    """Return the throughput of one checkpoint so far; () before its first file."""
    files = rows[(rows["phase"] == phase) & (rows["checkpoint"] == checkpoint) & (rows["file"] != WHOLE)]
    if not len(files):
        return ()
    seconds = max(1, int(files["ended_ns"].max() - files["started_ns"].min())) / 1e9
    name = "write" if phase == WRITE else "read"
    return (Figure(f"{name}_bytes_per_second", float(files["bytes"].sum() / seconds)),)
