"""DLIO's files say what DLIO would say: recomputed here from what was written, by its published formulas."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dlemu.config import load
from dlemu.config.schema import Metric
from dlemu.dlio.export import export_run
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.steplog import TRAINING
from dlemu.metrics.au import au_dlio_percents
from tests.runs import SAMPLE_BYTES, dlio_place, make_job, make_log, make_run, whole_run, with_blocks, with_evaluation

PUBLISHED = Path(__file__).parents[3] / "shared" / "published-runs"
EXACT = 1e-9


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def seconds_between(span: dict[str, str]) -> float:
    return (datetime.fromisoformat(span["end"]) - datetime.fromisoformat(span["start"])).total_seconds()


def recomputed(folder: Path, job: TrainingJob) -> tuple[list[float], list[float]]:
    """AU and samples/s of each epoch, from the arrays and time stamps in the files of all ranks."""
    settings, batch = job.workload.metric, job.workload.reader.batch_size
    au = np.zeros((job.ranks, len(job.schedule)))
    rate = np.zeros_like(au)
    for rank in range(job.ranks):
        output, stats = read(folder, f"{rank}_output.json"), read(folder, f"{rank}_per_epoch_stats.json")
        for index, epoch in enumerate(job.schedule):
            parts = []
            for block in (f"block{one.number}" for one in epoch.blocks):
                compute, proc = output[str(epoch.number)]["compute"][block], output[str(epoch.number)]["proc"][block]
                first, last = settings.exclude_start_steps, len(compute) - 1 - settings.exclude_end_steps
                total = seconds_between(stats[str(epoch.number)][block]) - sum(proc[:first]) - sum(proc[last + 1 :])
                parts.append((sum(compute[first : last + 1]) / total, (len(compute) - 2) / total * batch, len(proc)))
            steps = [part[2] for part in parts]
            au[rank, index] = 100 * np.average([part[0] for part in parts], weights=steps)
            rate[rank, index] = np.average([part[1] for part in parts], weights=steps)
    return au.mean(axis=0).tolist(), rate.sum(axis=0).tolist()


RUNS = {
    "one rank": {"ranks": 1},
    "eighteen ranks": {"ranks": 18, "steps": 7},
    "several blocks": {"ranks": 3, **with_blocks(5)},
    "other exclusions": {"metric": Metric(exclude_start_steps=2, exclude_end_steps=1)},
}


@pytest.mark.parametrize("name", RUNS)
def test_the_written_arrays_and_times_give_the_printed_numbers(name: str, tmp_path: Path) -> None:
    job = make_job(**RUNS[name])
    log = make_log(job)
    export_run(dlio_place(tmp_path), make_run(job, log))
    metric = read(tmp_path, "summary.json")["metric"]
    au, rate = recomputed(tmp_path, job)
    assert metric["train_au_percentage"] == pytest.approx(au, rel=EXACT)
    assert metric["train_au_mean_percentage"] == pytest.approx(np.mean(au), rel=EXACT)
    assert metric["train_au_stdev_percentage"] == pytest.approx(np.std(au), abs=EXACT)
    assert metric["train_throughput_samples_per_second"] == pytest.approx(rate, rel=EXACT)
    nominal_mib = np.mean(rate) * SAMPLE_BYTES / 2**20
    assert metric["train_io_mean_MB_per_second"] == pytest.approx(nominal_mib, rel=EXACT)
    settings = job.workload.metric
    own = [v2 for v2, _ in au_dlio_percents(log.rows, settings.exclude_start_steps, settings.exclude_end_steps)]
    assert au == pytest.approx(own, rel=1e-5)  # the house's own au_dlio, before time stamps are cut to microseconds


def test_the_threshold_decides_on_dlios_own_au(tmp_path: Path) -> None:
    said = []
    for threshold in (0.5, 0.99):
        export_run(dlio_place(tmp_path), whole_run(metric=Metric(au=threshold)))
        said.append(read(tmp_path, "summary.json")["metric"]["train_au_meet_expectation"])
    assert said == ["success", "fail"]


def test_clocks_of_other_hosts_are_laid_over_the_first_ones(tmp_path: Path) -> None:
    job = make_job(ranks=4)
    far = make_log(job, rank_nodes=(0, 0, 1, 1), skew_ns=7200 * 10**9)
    export_run(dlio_place(tmp_path), make_run(job, far))
    starts = {read(tmp_path, f"{rank}_per_epoch_stats.json")["2"]["start"] for rank in range(4)}
    assert len(starts) == 1
    summary, last = read(tmp_path, "summary.json"), read(tmp_path, "3_output.json")
    assert summary["num_hosts"] == 2
    assert summary["host_memory_GB"] == [64.0, 64.0]
    assert summary["host_cpu_count"] == [8, 8]
    assert (summary["hostname"], last["hostname"]) == ("node0", "node1")
    assert last["host_meminfo"] == {}, "nothing is known of the other host's memory"


def test_checkpoints_stand_between_their_blocks(tmp_path: Path) -> None:
    export_run(dlio_place(tmp_path), whole_run(epochs=1, **with_blocks(5)))
    stats = read(tmp_path, "1_per_epoch_stats.json")["1"]
    assert list(stats) == ["start", "block1", "save_ckpt1", "block2", "save_ckpt2", "block3", "end", "duration"]
    assert stats["save_ckpt1"]["duration"] == pytest.approx(0.03)
    assert stats["save_ckpt1"]["throughput"] == pytest.approx(3 / 1024 / 0.03)
    metric = read(tmp_path, "summary.json")["metric"]
    assert metric["checkpoint_size_GB"] == pytest.approx(3 / 1024)
    assert metric["save_checkpoint_io_mean_GB_per_second"] == pytest.approx(3 / 1024 / 0.03)


def test_an_evaluation_is_told_apart_from_training(tmp_path: Path) -> None:
    job = make_job(**with_evaluation(40, make_job().workload.dataset))
    log = make_log(job)
    export_run(dlio_place(tmp_path), make_run(job, log))
    metric, stats = read(tmp_path, "summary.json")["metric"], read(tmp_path, "0_per_epoch_stats.json")["1"]
    steps = 40 // 2 // job.ranks
    assert len(metric["eval_au_percentage"]) == 2
    assert len(read(tmp_path, "0_output.json")["1"]["proc"]["eval"]) == steps
    assert stats["end"] == stats["eval"]["end"] > stats["block1"]["end"]
    alone = replace(log, rows=log.rows[log.rows["phase"] == TRAINING])
    export_run(dlio_place(tmp_path / "alone"), make_run(job, alone))
    without = read(tmp_path / "alone", "summary.json")["metric"]
    assert without == {key: value for key, value in metric.items() if not key.startswith("eval")}


def test_a_run_of_two_steps_has_numbers_that_json_knows(tmp_path: Path) -> None:
    for steps in (1, 2):
        export_run(dlio_place(tmp_path), whole_run(steps=steps))
        text = (tmp_path / "summary.json").read_text()
        assert "NaN" not in text
        assert "Infinity" not in text
        assert read(tmp_path, "summary.json")["metric"]["train_throughput_mean_samples_per_second"] == 0


def test_the_configuration_is_one_that_dlio_and_dlemu_read(tmp_path: Path) -> None:
    workload = load(["workload=unet3d", "accelerator=a100", "dataset.num_files_train=96", "reader.read_threads=9"])
    job = replace(make_job(ranks=2), workload=workload)
    export_run(dlio_place(tmp_path), make_run(job, make_log(make_job(ranks=2))))
    folder = tmp_path / "dlio_config"
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml", "hydra.yaml", "overrides.yaml"]
    overrides = yaml.safe_load((folder / "overrides.yaml").read_text())
    assert overrides == [
        "workload=unet3d_a100",
        "++workload.dataset.num_files_train=96",
        "++workload.reader.read_threads=9",
    ]
    said = yaml.safe_load((folder / "config.yaml").read_text())["workload"]
    assert said["model"] == {"name": "unet3d", "type": "cnn", "model_size": 499153191}
    assert (said["reader"]["batch_size"], said["train"]["computation_time"]) == (7, 0.636)
    again = load([f"workload={folder / 'config.yaml'}"])
    for section in ("model", "dataset", "reader", "train", "checkpoint", "metric", "workflow"):
        assert getattr(again, section) == getattr(workload, section)


def test_the_log_ends_with_the_lines_that_scripts_look_for(tmp_path: Path) -> None:
    export_run(dlio_place(tmp_path), whole_run())
    lines = (tmp_path / "dlio.log").read_text().splitlines()
    mean = read(tmp_path, "summary.json")["metric"]["train_au_mean_percentage"]
    assert "[METRIC] Number of Simulated Accelerators: 2 " in lines, "with the blank that DLIO leaves"
    assert any(line.startswith(f"[METRIC] Training Accelerator Utilization [AU] (%): {mean:.4f} (") for line in lines)


def shape(value: Any) -> Any:
    """Keys and types, without the names of steps, blocks and machines' facts."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    return [shape(item) for item in value[:1]] if isinstance(value, list) else type(value).__name__


def missing(published: Any, ours: Any, where: str = "") -> list[str]:
    """Where the published has a key or a type that ours has not."""
    if isinstance(published, dict) and isinstance(ours, dict):
        absent = [f"{where}.{key}" for key in published if key not in ours]
        below = [missing(published[key], ours[key], f"{where}.{key}") for key in published if key in ours]
        return absent + [one for part in below for one in part]
    return [] if published == ours else [f"{where}: {published} and {ours}"]


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason=f"the published runs are not at {PUBLISHED}")
@pytest.mark.parametrize("run", sorted(path.name for path in PUBLISHED.glob("*")))
def test_published_runs_have_no_key_or_type_that_ours_lack(run: str, tmp_path: Path) -> None:
    export_run(dlio_place(tmp_path), whole_run(ranks=2, epochs=5))
    facts: dict[str, Any] = {"host_cpuinfo": {}, "host_meminfo": {}}
    published, ours = read(PUBLISHED / run, "summary.json") | facts, read(tmp_path, "summary.json") | facts
    assert missing(shape(published), shape(ours)) == []
    stats, own_stats = read(PUBLISHED / run, "per_epoch_stats.json"), read(tmp_path, "0_per_epoch_stats.json")
    stats["5"].pop("ckpt1")  # v1.0's name; 2.x says save_ckpt1
    assert missing(shape(stats), shape(own_stats)) == []
    if (PUBLISHED / run / "0_output.json").exists():
        output, own = read(PUBLISHED / run, "0_output.json") | facts, read(tmp_path, "0_output.json") | facts
        for epoch in "12345":
            output[epoch].pop("host_meminfo")  # ours stands once for the file
        assert missing(shape(output), shape(own)) == []


def test_a_published_run_recomputes_the_same_way_as_ours() -> None:
    """The formula of this test is DLIO's: applied to a published v1.0 run it gives the AU printed there."""
    folder = PUBLISHED / "hpe-e1000-unet3d-h100-n15"
    if not folder.is_dir():
        pytest.skip(f"the published runs are not at {PUBLISHED}")
    stats = read(folder, "per_epoch_stats.json")["1"]["block1"]
    output = read(folder, "0_output.json")["1"]
    compute, proc = output["compute"]["block1"], output["proc"]["block1"]
    au = 100 * sum(compute[1:]) / (seconds_between(stats) - proc[0])
    assert au == pytest.approx(output["au"]["block1"], abs=0.01)
