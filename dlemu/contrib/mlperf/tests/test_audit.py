"""The audit finds the printed numbers again from what runs kept, and every number that was changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dlemu.contrib.mlperf.audit import tolerant
from dlemu.contrib.mlperf.audit.audit_answer import audit_row
from dlemu.contrib.mlperf.audit.audited_run import AuditedRun, audit_run, audit_trees, shipped_accelerator_settings
from dlemu.contrib.mlperf.tests.changes import Change, Edit, put, scale
from dlemu.contrib.mlperf.tests.foreign_runs import BATCH, C, au_and_rate, play, write, write_run
from dlemu.contrib.mlperf.tests.golden import edit
from dlemu.dlio.export import export_run
from tests.runs import dlio_place, make_job, make_log, make_run, with_blocks, with_evaluation

PUBLISHED = Path(__file__).parents[5] / "shared" / "published-runs"
SHIPPED = shipped_accelerator_settings()
FORMULAS = {"v1": "dlio_v1", "v2": "dlio", "v3": "dlio_v3", "fork": "dlio_fork"}


def audited(folder: Path) -> AuditedRun:
    return audit_run(str(folder), SHIPPED)


def rules(run: AuditedRun, *severities: str) -> list[str]:
    return [one.rule for one in run.findings if one.severity in (severities or ("error", "warning", "info"))]


@pytest.mark.parametrize("steps", [20, 100])
@pytest.mark.parametrize("edition", FORMULAS)
def test_steps_of_all_ranks_give_the_printed_numbers(edition: str, steps: int, tmp_path: Path) -> None:
    write_run(tmp_path, edition, steps=steps)
    run = audited(tmp_path)
    told = audit_row(run)
    assert (run.recomputed.basis, run.printed_by) == ("steps", FORMULAS[edition])
    assert told.au_recomputed_percent == pytest.approx(told.au_printed_percent, abs=1e-4)
    assert told.samples_per_second_recomputed == pytest.approx(told.samples_per_second_printed, rel=1e-6)
    assert rules(run, "error") == []
    assert (told.workload, told.accelerator, told.accelerators) == ("unet3d", "h100", 3)


@pytest.mark.parametrize("edition", FORMULAS)
def test_the_parts_of_the_loss_are_those_of_the_run_and_add_up(edition: str, tmp_path: Path) -> None:
    write_run(tmp_path, edition, ranks=4)
    found, ranks = audited(tmp_path).recomputed, [rank for parts in play(4, 2, 20, 0) for rank in parts]
    total, shares = sum(rank.end - rank.start for rank in ranks), found.loss_percent
    assert found.au_whole_percent == pytest.approx(100 * C * 20 * len(ranks) / total, abs=1e-3)
    assert sum(shares.values()) == pytest.approx(100 - (found.au_whole_percent or 0))
    assert shares["first_step"] == pytest.approx(100 * sum(rank.proc[0] - C for rank in ranks) / total, abs=1e-3)
    assert shares["load"] == pytest.approx(100 * sum(sum(rank.load[1:]) for rank in ranks) / total, abs=1e-3)
    late = sum(sum(rank.compute[1:]) - 19 * C for rank in ranks)
    assert shares["oversleep"] == pytest.approx(100 * late / total, abs=1e-3)
    # The barrier of the play costs 4 ms a step; in the first step ranks also wait for slower ones.
    first = sum(
        max(rank.proc[0] for rank in ranks[at : at + 4]) - rank.proc[0] for at in (0, 4) for rank in ranks[at : at + 4]
    )
    assert shares["barrier"] == pytest.approx(100 * (0.004 * 20 * len(ranks) + first) / total, abs=0.2)
    assert shares["slower_rank"] > 0.5


def test_block_times_alone_give_the_rate_and_bounds(tmp_path: Path) -> None:
    write_run(tmp_path / "whole", ranks=4)
    write_run(tmp_path / "bare", ranks=4, kept=0)
    whole, bare = audit_row(audited(tmp_path / "whole")), audit_row(audited(tmp_path / "bare"))
    run = audited(tmp_path / "bare")
    assert (run.recomputed.basis, run.printed_by) == ("blocks", "dlio_v1")
    assert bare.samples_per_second_dlio_v1 == pytest.approx(bare.samples_per_second_printed, rel=0.01)
    assert bare.au_whole_percent == pytest.approx(whole.au_whole_percent, abs=0.5)
    assert float(bare.au_least_percent or 0) <= float(bare.au_printed_percent or 0) <= 100
    assert bare.au_dlio_v1_percent is None, "nothing kept tells it"
    assert "unknown.steps" in rules(run, "info")
    assert "unknown.stamps" in rules(audited(tmp_path / "whole"), "info")
    assert rules(run, "error") == []


def test_files_of_some_ranks_are_scaled_and_said_to_be_some(tmp_path: Path) -> None:
    write_run(tmp_path, "v2", ranks=4, kept=1)
    run = audited(tmp_path)
    assert (run.recomputed.basis, run.recomputed.ranks_kept) == ("some ranks", 1)
    assert rules(run, "error") == []
    assert "unknown.ranks" in rules(run)
    one = [au_and_rate(parts[0], "v2") for parts in play(4, 2, 20, 0)]
    told = audit_row(run)
    assert told.au_dlio_percent == pytest.approx(sum(au for au, _ in one) / 2, abs=1e-3)
    assert told.samples_per_second_dlio == pytest.approx(4 * sum(rate for _, rate in one) / 2, rel=1e-5)


@pytest.mark.parametrize("sections", [{}, with_blocks(5), with_evaluation(40, make_job().workload.dataset)])
def test_our_own_files_are_found_again_exactly(sections: dict[str, Any], tmp_path: Path) -> None:
    job = make_job(ranks=3, **sections)
    log = make_log(job)
    export_run(dlio_place(tmp_path), make_run(job, log))
    run = audited(tmp_path)
    told = audit_row(run)
    assert (run.recomputed.basis, run.printed_by) == ("steps", "dlio")
    assert told.au_dlio_percent == pytest.approx(told.au_printed_percent, rel=1e-9)
    assert told.samples_per_second_dlio == pytest.approx(told.samples_per_second_printed, rel=1e-9)
    assert rules(run, "error") == []


def test_a_v05_run_needs_no_config(tmp_path: Path) -> None:
    summary = write_run(tmp_path)
    for path in (tmp_path / "configs").iterdir():
        path.unlink()
    write(tmp_path / "summary.json", summary | {"model": "unet3d"})
    assert "config.missing" not in rules(audited(tmp_path))
    run = audited(tmp_path)
    assert (run.setup.accelerator, run.setup.batch_size) == ("h100", BATCH)
    assert "config.assumed" in rules(run, "info")
    assert rules(run, "error") == []
    assert audit_row(run).au_dlio_v1_percent == pytest.approx(summary["metric"]["train_au_mean_percentage"], abs=1e-3)


def test_a_v05_run_without_steps_ran_on_the_one_accelerator_of_v05(tmp_path: Path) -> None:
    """Block times as published: 1171 files in batches of 4 took 400 s an epoch."""
    metric = {"train_au_percentage": [99.7], "train_au_mean_percentage": 99.7}
    metric |= {"train_throughput_samples_per_second": [2.9182], "train_throughput_mean_samples_per_second": 2.9182}
    summary = {"model": "unet3d", "start": "2023-08-04T11:53:46.926486", "num_accelerators": 1, "epochs": 1}
    write(tmp_path / "summary.json", summary | {"num_files_train": 1171, "num_samples_per_file": 1, "metric": metric})
    block = {"start": "2023-08-04T11:53:47.087933", "end": "2023-08-04T12:00:27.330092"}
    epoch = {"start": "2023-08-04T11:53:47.087515", "block1": block, "end": "2023-08-04T12:00:27.392881"}
    write(tmp_path / "per_epoch_stats.json", {"1": epoch})
    run = audited(tmp_path)
    assert (run.setup.accelerator, run.recomputed.steps_per_epoch) == ("v100", 292)
    assert audit_row(run).samples_per_second_dlio_v1 == pytest.approx(2.9182, rel=2e-4)
    assert rules(run, "error", "warning") == []
    assert "config.assumed" in rules(run)


def change_summary(change: Edit) -> Change:
    return lambda folder: edit(folder / "summary.json", change)


def raise_au(summary: dict[str, Any]) -> None:
    metric = summary["metric"]
    metric["train_au_percentage"] = [au + 0.1 for au in metric["train_au_percentage"]]
    metric["train_au_mean_percentage"] += 0.1


def raise_rate(summary: dict[str, Any], factor: float = 1.002) -> None:
    metric = summary["metric"]
    for key in ("train_throughput_mean_samples_per_second", "train_io_mean_MB_per_second"):
        metric[key] *= factor
    key = "train_throughput_samples_per_second"
    metric[key] = [rate * factor for rate in metric[key]]


def metric(key: str, value: Any) -> Change:
    return change_summary(put(f"metric/{key}", value))


def faster_rank(folder: Path) -> None:
    edit(folder / "1_output.json", scale("1/proc/block1/0", 2))


def longer_steps(folder: Path) -> None:
    config = folder / "configs" / "config.yaml"
    config.write_text(config.read_text().replace(f"computation_time: {C}", "computation_time: 0.4"))


TAMPERED: dict[str, tuple[Change, str]] = {
    "AU raised": (change_summary(raise_au), "au.differs"),
    "samples/s raised": (change_summary(raise_rate), "throughput.differs"),
    "mean of AU": (metric("train_au_mean_percentage", 99.0), "printed.mean"),
    "deviation of AU": (metric("train_au_stdev_percentage", 0.5), "printed.mean"),
    "no deviation of AU": (metric("train_au_stdev_percentage", 0.0), "printed.mean"),
    "deviation of MB/s": (metric("train_io_stdev_MB_per_second", 0.0), "printed.mean"),
    "deviation of samples/s": (metric("train_throughput_stdev_samples_per_second", 9.0), "printed.mean"),
    "MB/s": (metric("train_io_mean_MB_per_second", 9e9), "printed.io"),
    "verdict": (metric("train_au_meet_expectation", "success"), "printed.verdict"),
    "one rank's steps": (faster_rank, "rank.differs"),
    "step time": (longer_steps, "compute.time"),
    "more files": (change_summary(put("num_files_train", 10**6)), "files.count"),
    "too few accelerators": (change_summary(put("num_accelerators", 2)), "ranks.count"),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_changed_number_is_found(name: str, tmp_path: Path) -> None:
    tamper, rule = TAMPERED[name]
    write_run(tmp_path)
    assert rules(audited(tmp_path), "error") == []
    tamper(tmp_path)
    assert rule in rules(audited(tmp_path), "error")


@pytest.mark.parametrize(("factor", "wanted"), [(1.002, "info"), (1.05, "warning")])
def test_a_rate_far_from_what_blocks_alone_give_is_doubtful(factor: float, wanted: str, tmp_path: Path) -> None:
    write_run(tmp_path)
    for output in tmp_path.glob("*_output.json"):
        output.unlink()
    assert "throughput.differs" not in rules(audited(tmp_path), "warning")
    change_summary(lambda summary: raise_rate(summary, factor))(tmp_path)
    assert "throughput.differs" in rules(audited(tmp_path), wanted)


def test_steps_that_dlemus_host_began_late_are_no_contradiction(tmp_path: Path) -> None:
    write_run(tmp_path)
    longer_steps(tmp_path)
    (tmp_path / "dlio.log").write_text(
        "[OUTPUT] 2026-11-21T14:56:14 dlemu 1 as a drop-in replacement for DLIO: train on 1 rank\n"
    )
    assert rules(audited(tmp_path), "error") == []
    assert "compute.time" in rules(audited(tmp_path), "info")
    (tmp_path / "dlio.log").write_text("[OUTPUT] Running DLIO\n[OUTPUT] data in /data/dlemu\n")
    assert "compute.time" in rules(audited(tmp_path), "error")


def test_numbers_that_block_times_forbid_are_found(tmp_path: Path) -> None:
    write_run(tmp_path, kept=0)
    metric("train_au_mean_percentage", 40.0)(tmp_path)
    metric("train_throughput_mean_samples_per_second", 900.0)(tmp_path)
    assert {"au.impossible", "throughput.impossible"} <= set(rules(audited(tmp_path), "error"))


LAYOUTS = {
    "v0.5": "closed/Org/results/system/unet3d/run0/node0",
    "v1.0": "Closed/Org/results/system/unet3d-h100/runs/run-1",
    "v2.0": "results/training/unet3d/run/20250601_120000",
    "v3.0": "closed/Org/results/system/training/unet3d/run/20260704_052047",
}


def test_runs_of_every_layout_are_found_and_nothing_else(tmp_path: Path) -> None:
    for layout in LAYOUTS.values():
        write_run(tmp_path / layout, ranks=1, epochs=1)
    write_run(tmp_path / "Closed/Org/code/dlio_benchmark/tests/data", ranks=1, epochs=1)
    write_run(tmp_path / ".cache/run", ranks=1, epochs=1)
    (tmp_path / "closed/Org/systems").mkdir()
    (tmp_path / "closed/Org/systems/system.json").write_text("{}")
    runs = audit_trees([str(tmp_path), str(tmp_path / "Closed")])
    assert [run.path for run in runs] == sorted(str(tmp_path / layout) for layout in LAYOUTS.values())


def test_another_benchmarks_summary_is_no_error_and_not_taken_for_ours(tmp_path: Path) -> None:
    """As MLPerf Storage v3.0's kv_cache writes it, beside training in one tree."""
    write(tmp_path / "summary.json", {"schema_version": "1.0", "run_datetime": "20260712_182110", "options": {"1": {}}})
    run = audited(tmp_path)
    assert rules(run, "error") == []
    assert "another kind of benchmark" in run.findings[-1].seen


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason=f"the published runs are not at {PUBLISHED}")
@pytest.mark.parametrize("name", sorted(path.name for path in PUBLISHED.glob("*")))
def test_published_runs_are_found_again(name: str) -> None:
    run = audited(PUBLISHED / name)
    told = audit_row(run)
    assert rules(run, "error") == []
    assert run.printed_by == "dlio_v1"
    steps = run.recomputed.basis == "steps"
    assert steps == (PUBLISHED / name / "0_output.json").exists()
    rate, near = told.samples_per_second_printed, 0.02 if steps else 0.05
    assert told.samples_per_second_dlio_v1 == pytest.approx(rate, rel=near / 100)
    if steps:
        assert told.au_dlio_v1_percent == pytest.approx(told.au_printed_percent, abs=0.01)


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason=f"the published runs are not at {PUBLISHED}")
def test_the_rules_text_would_fail_a_published_run_that_passed() -> None:
    run = audited(PUBLISHED / "micron-9550-unet3d-h100-n4")
    assert run.printed.verdict == "success"
    assert run.recomputed.au_whole_percent == pytest.approx(81.66, abs=0.05)
    assert "au.rules" in rules(run, "warning")


# Where not all is known the audit gives bounds, and they hold.


@pytest.mark.parametrize("edition", FORMULAS)
@pytest.mark.parametrize("ranks", [1, 2, 7])
@pytest.mark.parametrize(("apart", "closing"), [(1e-4, 0.0), (0.25, 0.0), (0.05, 3.0)])
def test_bounds_from_time_stamps_hold_whatever_the_ranks_did(
    edition: str, ranks: int, apart: float, closing: float, tmp_path: Path
) -> None:
    for seed in range(6):
        folder = tmp_path / str(seed)
        write_run(folder, edition, ranks=ranks, epochs=2, steps=12, seed=seed, kept=0, apart=apart, closing=closing)
        run = audited(folder)
        told = audit_row(run)
        assert run.recomputed.basis == "blocks"
        assert 0 < (told.au_least_percent or 0) <= (told.au_printed_percent or 0) <= 100
        printed = told.samples_per_second_printed or 0
        assert 0 < (told.samples_per_second_least or 0) <= printed <= (told.samples_per_second_most or 0)
        assert not [one for one in run.findings if one.severity == "error"]


@pytest.mark.parametrize("edition", ["v1", "v2"])
@pytest.mark.parametrize("kept", [0, -1])
def test_a_block_that_a_checkpoint_ended_again_is_as_long_as_dlio_took_it(
    edition: str, kept: int, tmp_path: Path
) -> None:
    write_run(tmp_path, edition, ranks=1, kept=kept, closing=3.0)
    told = audit_row(audited(tmp_path))
    if kept or edition == "v1":
        again, printed = getattr(told, f"samples_per_second_{FORMULAS[edition]}"), told.samples_per_second_printed
        assert again == pytest.approx(printed, rel=1e-6)
    if kept:
        assert getattr(told, f"au_{FORMULAS[edition]}_percent") == pytest.approx(told.au_printed_percent, abs=1e-4)


def test_a_block_that_ended_once_stays_so_with_a_checkpoint_behind_it(tmp_path: Path) -> None:
    """The newest DLIO ends a block once; the checkpoint comes later."""
    write_run(tmp_path, "v3", ranks=1)
    path = tmp_path / "0_per_epoch_stats.json"
    stats = json.loads(path.read_text())
    end = stats["2"]["block1"]["end"]
    late = end.replace(end[17:19], "59")
    assert late > end
    stats["2"]["save_ckpt1"] = {"start": late, "end": late}
    path.write_text(json.dumps(stats))
    told = audit_row(audited(tmp_path))
    assert told.au_dlio_v3_percent == pytest.approx(told.au_printed_percent, abs=1e-4)


def test_drawn_step_times_have_no_bounds(tmp_path: Path) -> None:
    """A step may then take less than the mean, which is all that the settings tell."""
    write_run(tmp_path, "v2", ranks=2, kept=0)
    config = tmp_path / "dlio_config" / "config.yaml"
    drawn = f"computation_time: {{mean: {C}, stdev: 0.01}}"
    config.write_text(config.read_text().replace(f"computation_time: {C}", drawn))
    told = audit_row(audited(tmp_path))
    assert told.au_least_percent is told.samples_per_second_least is told.samples_per_second_most is None


def test_a_whole_number_above_2_to_the_53_keeps_its_digits() -> None:
    assert tolerant.integer(2**53 + 1) == 2**53 + 1
