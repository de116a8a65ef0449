"""What is compared of a storage: its runs' figures, what its devices did by the telemetry, and what it warns of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datagen.errors import UserError
from dlemu.jobs.checkpoint.parts import conditions as conditions_of_checkpoints
from dlemu.jobs.checkpoint.run import read_checkpoint_run
from dlemu.jobs.checkpoint.summary import READING, WRITING
from dlemu.jobs.training.parts import conditions, figures
from dlemu.jobs.training.result import Run, make_run
from dlemu.jobs.training.summary import AsynchronousCheckpoints, Mean, PageCache
from dlemu.metrics.catalogue import RUN
from dlemu.metrics.findings import Code, Finding, Number, Severity
from dlemu.results.answer_files import save_answer
from dlemu.studies.answers import SWEEP, SweepAnswer, SweepPoint, SweepQuestion
from dlemu.studies.compare.compare_sides import compare
from dlemu.studies.compare.sides import read_sides
from dlemu.telemetry import DeviceFacts, Series
from tests.goldens.render import RESULTS
from tests.results import handmade
from tests.runs import make_job, make_log, whole_run, with_blocks

READINGS = (
    (1, "md0", "read_mb_per_second", 80.0),
    (1, "nvme0n1", "read_mb_per_second", 80.0),
    (2, "md0", "read_mb_per_second", 30.0),
    (2, "md1", "read_mb_per_second", 60.0),
    (1, "md0", "reads_per_second", 300.0),
    (2, "md0", "reads_per_second", 100.0),
    (3, "md0", "reads_per_second", 0.0),
    (1, "md0", "mean_read_latency_ms", 2.0),
    (2, "md0", "mean_read_latency_ms", 6.0),
    (3, "md0", "mean_read_latency_ms", 50.0),
    (1, "nvme0n1", "mean_read_latency_ms", 100.0),
)
"""Second, device, metric, value: md0 and md1 are counted, nvme0n1 lies below md0 and serves the same bytes."""


def watched(*counted: str) -> Run:
    """A run whose devices were read; those counted are the dataset's."""
    job = make_job()
    log = make_log(job)
    begin_ns = int(log.rows["free_ns"].min())
    names = list(dict.fromkeys(row[1:3] for row in READINGS))
    devices = tuple(
        DeviceFacts(probe="block", name=name, kind="disk", counted=name in counted)
        for name in ("md0", "md1", "nvme0n1")
    )
    readings: dict[str, Any] = {
        "series": tuple(Series("block", *name) for name in names),
        "which": np.array([names.index((source, metric)) for _, source, metric, _ in READINGS], np.int32),
        "time_ns": np.array([begin_ns + second * 10**9 for second, *_ in READINGS]),
        "value": np.array([value for *_, value in READINGS]),
    }
    host = handmade.host(0, 0, 0, {}, host=log.journal.hosts[0].host, devices=devices, **readings)
    return make_run(job, replace(log, telemetry=(host,)))


def test_device_figures_are_those_of_counted_devices() -> None:
    """What lies below a counted device serves the same bytes; an interval without reads has no latency."""
    found = figures(watched("md0", "md1"))
    assert found.mean("max_device_mb_per_second") == 90  # of both together, in second 2
    assert found.mean("mean_device_read_latency_ms") == pytest.approx(3)
    assert figures(watched("md0")).mean("max_device_mb_per_second") == 80


@pytest.mark.parametrize(
    ("code", "severity", "phases"),
    [(Code.PAGE_CACHE, "loud", (RUN,)), (Code.NO_DATA_FROM_STORAGE, "loud", (RUN,)), (Code.PAGE_CACHE, "caution", ())],
)
def test_a_run_that_memory_served_says_so(code: Code, severity: Severity, phases: tuple[str, ...]) -> None:
    cache = PageCache(from_storage_percent=Mean(mean=3.0))
    found = (Finding(code, severity),)
    run = whole_run()
    summary = replace(run.summary, page_cache=cache, findings=found)
    assert conditions(summary, run.facts).from_memory == phases


@pytest.mark.parametrize(
    ("code", "phases"), [(Code.PAGE_CACHE, (READING,)), (Code.NO_DATA_FROM_STORAGE, (WRITING, READING)), (None, ())]
)
def test_of_checkpoints_memory_may_serve_reading_alone(code: Code | None, phases: tuple[str, ...]) -> None:
    run = read_checkpoint_run(str(RESULTS / "checkpoint"))
    numbers: dict[str, Number] = {"from_storage_percent": 3.0, "would_help": "", "file_system": "tmpfs"}
    findings = (Finding(code, "loud", numbers),) if code else ()
    found = conditions_of_checkpoints(replace(run.summary, findings=findings), run.facts)
    assert found.from_memory == phases


def test_checkpoints_behind_the_training_are_other_work() -> None:
    """They stop it for a snapshot alone: the time saved is not the storage's."""
    run = whole_run(epochs=1, **with_blocks(4))
    behind = AsynchronousCheckpoints(step_seconds_during=0.1, step_seconds_otherwise=0.1)
    summary, own = replace(run.summary, asynchronous_checkpoints=behind), conditions(run.summary, run.facts)
    differing = conditions(summary, run.facts).work.items() - own.work.items()
    assert differing == {("asynchronous_checkpoints", True)}


def sweep_in(folder: Path, *points: tuple[int, str, str | None], complete: bool = True) -> list[str]:
    """Save a sweep of points that have ranks, a drive and perhaps a failure; return its folder."""
    measured = figures(whole_run())
    swept = tuple(
        SweepPoint(
            settings={"ranks": str(ranks), "dataset.data_folder": drive},
            folder=f"{drive}{ranks}",
            failure=failure,
            figures=None if failure else replace(measured, ranks=ranks),
        )
        for ranks, drive, failure in points
    )
    save_answer(
        str(folder), SWEEP, SweepAnswer(complete=complete, question=SweepQuestion(settings_digest=""), points=swept)
    )
    return [str(folder)]


def test_a_comparison_names_the_points_that_one_drive_lacks(tmp_path: Path) -> None:
    """Without a word, a drive whose largest point failed would seem to feed fewer."""
    points = ((1, "a", None), (1, "b", None), (2, "a", None), (2, "b", "rank 1 was killed\nits output ..."))
    assert list(compare(*read_sides(sweep_in(tmp_path, *points, complete=False))).issues) == [
        "only A completed ranks=2: of B no figures are known there",
        "A: the sweep is incomplete: finish it with its command",
        "B: the sweep is incomplete: finish it with its command",
        "B: the run with ranks=2 failed: rank 1 was killed",
    ]


def test_a_drive_of_which_no_point_completed_is_named_with_the_reason(tmp_path: Path) -> None:
    failed = sweep_in(tmp_path, (1, "a", None), (1, "b", "no space left\n..."), (2, "b", "killed"))
    with pytest.raises(UserError, match="no point on b has completed: the run with ranks=1 failed: no space left; run"):
        read_sides(failed)
    cut = sweep_in(tmp_path, (1, "a", None), complete=False)
    with pytest.raises(UserError, match=r"storages found: a \(the sweep is incomplete: finish it with its command\);"):
        read_sides(cut)
