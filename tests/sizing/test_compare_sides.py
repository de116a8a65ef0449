"""Comparisons: their arithmetic by hand and by published figures, and what is compared of a storage."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datagen.errors import UserError
from dlemu.cli.compare import _run_on_both
from dlemu.jobs.checkpoint.parts import conditions as conditions_of_checkpoints
from dlemu.jobs.checkpoint.run import CHECKPOINTS
from dlemu.jobs.checkpoint.summary import READING, WRITING
from dlemu.jobs.training.parts import CATALOGUE, conditions, training_metrics
from dlemu.jobs.training.parts import figures as figures_of
from dlemu.jobs.training.result import Run
from dlemu.jobs.training.summary import AsynchronousCheckpoints, Mean, PageCache
from dlemu.machine.environment import HostFacts, StorageFacts
from dlemu.metrics.catalogue import RUN
from dlemu.metrics.findings import Code, Finding, Number, Severity
from dlemu.results.answer_files import save_answer
from dlemu.results.figures import Conditions, JobFigures, Value
from dlemu.results.parts import Environment
from dlemu.studies.answers import SWEEP, RunPair, SweepAnswer, SweepPoint, SweepQuestion
from dlemu.studies.compare import compare_sides
from dlemu.studies.compare.compare_sides import compare
from dlemu.studies.compare.page import screen
from dlemu.studies.compare.sides import Settings, Side, read_side, read_sides, side_of_runs
from dlemu.telemetry import DeviceFacts, Series
from tests.goldens.render import RESULTS
from tests.report.folders import write_run
from tests.results import handmade
from tests.runs import MS, make_job, make_log, make_run, present, whole_run, with_blocks, with_telemetry

OUTCOMES = {True: "pass", False: "fail", None: "no verdict"}


def figures(total_seconds: float | None = 100.0, **changes: Any) -> JobFigures:
    metrics = {name: changes.pop(name) for name in [one.name for one in CATALOGUE] if name in changes}
    run = JobFigures(kind="training", workload="unet3d", ranks=18, epochs=5, outcome="pass")
    return replace(run, metrics=training_metrics({"total_seconds": total_seconds} | metrics), **changes)


def with_ranks(*numbers: int, seconds: float = 1.0) -> dict[Settings, JobFigures]:
    return {(("ranks", str(number)),): figures(100.0 * seconds) for number in numbers}


def compare_runs(a: JobFigures, b: JobFigures) -> RunPair:
    return compare_sides.compare_runs(a, b, [], {}, {})


def test_kioxias_published_figures_come_out() -> None:
    """KIOXIA CM7 white paper on DLIO: 5 epochs of unet3d on 18 V100, 2552 s against 2906 s."""
    pair = compare_runs(figures(2552), figures(2906))
    assert pair.metrics["total_seconds"].difference_percent == pytest.approx(-12.2, abs=0.05)
    assert present(pair.plan).days_saved_per_year == pytest.approx(44, abs=0.5)
    assert present(pair.plan).hours_per_model == pytest.approx((14.2, 16.1), abs=0.05)
    # the paper rounds hours first: 625 and 547
    assert present(pair.plan).models_per_year == pytest.approx((618, 543), abs=0.5)


def test_an_uncertainty_is_that_of_both() -> None:
    a = figures(au_percent=Mean(mean=50.0, per_epoch=(49.0, 50.0, 51.0)))
    b = figures(au_percent=Mean(mean=100.0, per_epoch=(98.0, 100.0, 102.0)))
    difference = compare_runs(a, b).metrics["au_percent"]
    assert difference.difference_percent == pytest.approx(-50)
    width = 4.303 / 3**0.5 * 0.02  # the t of two degrees of freedom, each side 2 % of its mean
    assert difference.half_width_percent == pytest.approx(100 * 0.5 * 2**0.5 * width, rel=0.01)
    assert difference.distinct is True
    assert compare_runs(a, a).metrics["au_percent"].distinct is False
    for epochs in ((50.0,), (40.0, 60.0)):  # of two, Student's t would say 50 +- 127
        few = figures(au_percent=Mean(mean=50.0, per_epoch=epochs))
        unknown = compare_runs(few, few).metrics["au_percent"]
        assert (unknown.half_width_percent, unknown.distinct) == (None, None)


def test_a_part_of_an_epoch_is_not_taken_for_an_epoch() -> None:
    whole, part = figures(epochs=1), figures(epochs=1, cut_steps=(150,))
    assert compare_runs(part, whole).not_comparable == (
        "train.total_training_steps cut epochs of A and B at different steps",
    )
    again = compare_runs(part, figures(90.0, epochs=1, cut_steps=(150,)))
    assert (again.not_comparable, again.plan) == ((), None)


def test_runs_of_equal_settings_are_paired() -> None:
    a, b = side_of_runs("a", with_ranks(1, 2, 4)), side_of_runs("b", with_ranks(2, 4, 8, seconds=2))
    pairs = compare(a, b).runs
    assert [pair.settings for pair in pairs] == [{"ranks": "2"}, {"ranks": "4"}]
    assert [pair.metrics["total_seconds"].difference_percent for pair in pairs] == pytest.approx([-50, -50])
    with pytest.raises(UserError, match="no run with the same settings; compare two runs"):
        compare(a, side_of_runs("c", with_ranks(3)))


@pytest.mark.parametrize(
    ("of_a", "of_b", "words"),
    [
        ({1: True, 2: True}, {1: True, 2: False}, "A feeds at least 2 accelerators, B feeds 1 accelerator"),
        ({1: True, 2: True, 3: False}, {1: True}, "A feeds 2 accelerators, B feeds at least 1 accelerator"),
        ({4: False}, {4: True}, "A feeds fewer than 4, B feeds at least 4 accelerators"),
    ],
)
def test_a_count_is_a_bound_unless_one_more_was_shown_to_fail(
    of_a: dict[int, bool | None], of_b: dict[int, bool | None], words: str
) -> None:
    a, b = (
        side_of_runs(
            name, {(("ranks", str(n)),): figures(None, ranks=n, outcome=OUTCOMES[one]) for n, one in tried.items()}
        )
        for name, tried in (("a", of_a), ("b", of_b))
    )
    assert compare(a, b).verdict == words


def test_more_than_two_folders_are_counted_before_any_is_read() -> None:
    """As the shell's DIR/* gives them, files included."""
    with pytest.raises(UserError, match=r"3 names are given, from r/a to r/notes\.txt: wanted two folders"):
        read_sides(["r/a", "r/b", "r/notes.txt"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ranks": 17}, "ranks is 18 for A and 17 for B"),
        ({"epochs": 2}, "epochs is 5 for A and 2 for B"),
        ({"workload": "bert"}, "workload is unet3d for A and bert for B"),
        ({"accelerator": "b200"}, "accelerator is h100 for A and b200 for B"),
    ],
)
def test_runs_that_did_not_do_the_same_work_plan_no_year(change: dict[str, Any], words: str) -> None:
    a = figures(accelerator="h100")
    pair = compare_runs(a, replace(a, **change))
    assert (pair.not_comparable, pair.plan) == ((words,), None)
    assert compare_runs(a, a).not_comparable == ()


def served(name: str, phases: tuple[str, ...] = (), run: JobFigures | None = None, **changes: Any) -> Side:
    return side_of_runs(name, {(): run or figures()}, {(): Conditions(title="unet3d", from_memory=phases, **changes)})


def test_two_that_were_always_busy_are_not_told_apart() -> None:
    """1.4 +- 0.9 % were a difference, of two folders on one device that had nothing to do."""
    busy = replace(figures(), limited_by={RUN: "nothing"})
    for device, host_of_b, is_one in (("/dev/vda", "x", True), ("/dev/vda", "y", False), ("nas:/export", "y", True)):
        storage = StorageFacts(folder="/mnt", file_system="ext4", device=device)
        on_a, on_b = (Environment(storage=storage, hosts=(HostFacts(host=host),)) for host in ("x", host_of_b))
        compared = compare(served("a", (), busy, environment=on_a), served("b", (), busy, environment=on_b))
        assert compared.verdict.startswith("both kept 18 accelerators busy")
        assert (f"A and B are on the same device, {device}" in compared.issues) == is_one
    in_memory = compare(served("a", (RUN,), busy), served("b", (RUN,), busy))
    assert in_memory.verdict.startswith("memory served both, not storage: both kept 18"), "no word of it in the title"


def test_a_run_that_memory_served_is_not_compared_with_one_from_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fast, slow = served("fast", (RUN,), figures(50.0)), served("slow")
    for a, b, name in ((fast, slow, "A"), (slow, fast, "B")):
        Path(a.name).mkdir()
        Path(a.name, "config.yaml").touch()
        compared = compare(a, b)
        assert compared.verdict.startswith(f"not comparable: {name}'s data came from memory; ")
        assert compared.runs[0].plan is None
        *shown, last = screen(compared, "").lines
        assert [line.label for line in shown if line.label] == ["answer", "A", "B"], "no time is shown"
        same = f"workload={a.name}/config.yaml output.folder={a.name}-next"
        assert last.value == f"dlemu compare {same} drives=FOLDER-A,FOLDER-B --make"
    assert compare(fast, fast).verdict.startswith("memory served both, not storage: with 18 accelerators ")
    assert compare(slow, slow).verdict.startswith("with 18 accelerators ")


def test_checkpoints_that_one_side_read_from_memory_are_compared_by_their_writing() -> None:
    metrics = {f"{what}_slowest_seconds": Value(2.0) for what in ("write", "read")}
    run = JobFigures(kind="checkpoint", workload="llama", ranks=1, metrics=metrics)
    cold, warm = served("cold", (), run), served("warm", (READING,), run)
    verdict = compare(cold, warm).verdict
    assert verdict.startswith("writing: A and B take the same time")
    assert verdict.endswith("; reading: not comparable: B's data came from memory")
    table = present(screen(compare(cold, warm), "").table)
    assert [row[0] for row in table.rows] == ["written, one checkpoint, s"], "and none read"
    assert "; memory served both, not storage: reading: A and B" in compare(warm, warm).verdict


def test_runs_of_two_datasets_plan_no_year(tmp_path: Path) -> None:
    few, many = (
        read_side(str(write_run(tmp_path / name, telemetry=False, steps=steps)))[0]
        for name, steps in (("a", 9), ("b", 12))
    )
    few, many = (replace(side, runs={(): replace(side.runs[()], outcome="pass")}) for side in (few, many))
    compared = compare(few, many)
    assert compared.verdict.startswith("not comparable: num_files_train is ")
    assert all(pair.plan is None for pair in compared.runs)
    assert compare(few, few).runs[0].plan is not None
    about = few.conditions[()]
    larger = replace(few, conditions={(): replace(about, work=about.work | {"total_bytes": "9.9 GB"})})
    assert compare(few, larger).verdict.startswith("not comparable: total_bytes is ")


@pytest.mark.parametrize(("outcome", "planned"), [("no verdict", False), ("undecided", True), ("fail", True)])
def test_no_year_follows_from_a_run_that_says_nothing_of_the_storage(outcome: str, planned: bool) -> None:
    for pair in (figures(), figures(outcome=outcome)), (figures(outcome=outcome), figures()):
        assert (compare_runs(*pair).plan is not None) is planned


@pytest.mark.parametrize(
    "summary", [{"model": "unet3d", "num_accelerators": 2, "metric": {"train_au_mean_percentage": 99.0}}, {"epochs": 1}]
)
def test_results_of_another_program_are_no_traceback(tmp_path: Path, summary: dict[str, Any]) -> None:
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(UserError, match=r"holds no summary\.json written by dlemu.*: wanted the folder of") as refused:
        read_sides([str(tmp_path), str(tmp_path)])
    assert "\n" not in str(refused.value)
    assert refused.value.exit_status == 2


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
    found = figures_of(watched("md0", "md1"))
    assert found.mean("max_device_mb_per_second") == 90  # of both together, in second 2
    assert found.mean("mean_device_read_latency_ms") == pytest.approx(3)
    assert figures_of(watched("md0")).mean("max_device_mb_per_second") == 80


def test_the_peak_is_of_all_hosts_together_although_each_reads_its_devices_when_it_likes() -> None:
    job = make_job()
    log = with_telemetry(make_log(job, rank_nodes=(0, 1)))
    first, second = log.telemetry
    _, rates = first.readings("block", "nvme0n1", "read_mb_per_second")
    later = replace(second, time_ns=second.time_ns + 100 * MS)
    both = figures_of(make_run(job, replace(log, telemetry=(first, later))))
    assert both.mean("max_device_mb_per_second") == pytest.approx(2 * rates[0])


@pytest.mark.parametrize(
    ("code", "severity", "phases"),
    [(Code.PAGE_CACHE, "loud", (RUN,)), (Code.NO_DATA_FROM_STORAGE, "loud", (RUN,)), (Code.PAGE_CACHE, "caution", ())],
)
def test_a_run_that_memory_served_says_so(code: Code, severity: Severity, phases: tuple[str, ...]) -> None:
    cache = PageCache(from_storage_percent=Mean(mean=3.0))
    found = (Finding.of(code, severity, would_help="", from_storage_percent=3, least_percent=3, most_percent=3),)
    run = whole_run()
    summary = replace(run.summary, page_cache=cache, findings=found)
    assert conditions(summary, run.facts).from_memory == phases


@pytest.mark.parametrize(
    ("code", "phases"), [(Code.PAGE_CACHE, (READING,)), (Code.NO_DATA_FROM_STORAGE, (WRITING, READING)), (None, ())]
)
def test_of_checkpoints_memory_may_serve_reading_alone(code: Code | None, phases: tuple[str, ...]) -> None:
    run = CHECKPOINTS.read(str(RESULTS / "checkpoint"))
    numbers: dict[str, Number] = {"from_storage_percent": 3.0, "would_help": "", "file_system": "tmpfs"}
    findings = (Finding(code, "loud", numbers),) if code else ()
    found = conditions_of_checkpoints(replace(run.summary, findings=findings), run.facts)
    assert found.from_memory == phases
    assert {"asynchronous", "interval_seconds", "recovery_rank_shift"} <= found.how.keys(), "they change the metrics"


def test_checkpoints_behind_the_training_are_other_work() -> None:
    """They stop it for a snapshot alone: the time saved is not the storage's."""
    run = whole_run(epochs=1, **with_blocks(4))
    behind = AsynchronousCheckpoints(step_seconds_during=0.1, step_seconds_otherwise=0.1)
    summary, own = replace(run.summary, asynchronous_checkpoints=behind), conditions(run.summary, run.facts)
    differing = conditions(summary, run.facts).work.items() - own.work.items()
    assert differing == {("asynchronous_checkpoints", True)}


def sweep_in(folder: Path, *points: tuple[int, str, str | None], complete: bool = True) -> list[str]:
    """Save a sweep of points that have ranks, a drive and perhaps a failure; return its folder."""
    measured = figures_of(whole_run())
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


def test_both_drives_are_read_past_the_page_cache_as_the_format_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[str] = []
    monkeypatch.setattr("dlemu.studies.sweep.run.sweep", lambda words, on_event: swept.extend(words))
    for workload in ("unet3d", "megatron_deepspeed"):
        _run_on_both((f"workload={workload}", "drives=/mnt/a,/mnt/b"), make=False, yes=False, as_json=False)
    assert swept[2::3] == ["reader.evict_page_cache=epochs", "reader.evict_page_cache=start"]
