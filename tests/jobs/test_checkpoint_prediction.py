"""How long checkpoints are predicted to take: from a speed, a data sheet, a probe and a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from datagen.errors import UserError
from dlemu.checkpoints.checkpoint_plan import plan_checkpoint
from dlemu.cli.predict import command
from dlemu.config import load
from dlemu.jobs.checkpoint.prediction import (
    FINDINGS,
    WATCHDOG,
    CheckpointPrediction,
    KnownStorage,
    PredictedPhase,
    _measured_storage,
    predict,
    run_prediction,
    throughput,
)
from dlemu.jobs.checkpoint.summary import Cause, PhaseSummary, TrainingCost, snapshot_seconds
from dlemu.jobs.checkpoint.wording import cost_line
from dlemu.metrics.checkpoint_rates import GIB, cost_percent
from dlemu.metrics.findings import Code, Finding, LimitedBy
from dlemu.report.page import write_page
from dlemu.results.drive import OUTSIDE
from dlemu.results.kinds import read_result
from dlemu.results.wording import sentences
from dlemu.runner.prediction_request import PredictionRequest
from tests.results.handmade import saved_checkpoints
from tests.runs import present

WORDS = ("workload=llama3_8b", "ranks=8")
WORKLOAD = load([*WORDS, "checkpoint.gpu_mtbf_hours=80"])
PLAN = plan_checkpoint(WORKLOAD.model, WORKLOAD.checkpoint, WORKLOAD.ranks)
SHEET = """
name: EXAMPLE
reads:
  - {size: 128k, depth: 32, mb_per_second: 8000}
writes:
  - {size: 1m, depth: 1, latency_us: 1000}
  - {size: 1m, depth: 8, mb_per_second: 4000}
"""


def predicted(folder: Path, *words: str, **storage: object) -> CheckpointPrediction:
    where = f"output.folder={folder / str(len(list(folder.iterdir())))}"
    return run_prediction([*WORDS, *words, where], PredictionRequest(**storage))[0]  # type: ignore[arg-type]


def known(answer: CheckpointPrediction) -> tuple[PredictedPhase, PredictedPhase, TrainingCost]:
    return present(answer.write), present(answer.read), present(answer.training)


def test_a_checkpoint_takes_its_bytes_over_the_speed(tmp_path: Path) -> None:
    answer = predicted(tmp_path, mb_per_second=5000.0)
    assert answer.bytes > 100e9, "8e9 parameters with optimizer state"
    write, read, training = known(answer)
    assert write.seconds == read.seconds == pytest.approx(answer.bytes / 5e9)
    assert write.seconds_interval[0] < write.seconds < write.seconds_interval[1]
    assert training.percent == pytest.approx(cost_percent(write.seconds, 1800.0))
    assert answer.findings == ()
    slow = predicted(tmp_path, mb_per_second=150.0)
    assert [finding.code for finding in slow.findings] == [WATCHDOG]
    assert predicted(tmp_path, "checkpoint.asynchronous=true", mb_per_second=150.0).findings == ()


def test_others_take_of_the_speed(tmp_path: Path) -> None:
    answer = predicted(tmp_path, mb_per_second=5000.0, others_mb_per_second=4000.0)
    write, _, _ = known(answer)
    assert write.seconds == pytest.approx(answer.bytes / 1e9)
    _, high = write.seconds_interval
    assert answer.bytes / high == pytest.approx(0.9e9), "2 % of all is 10 % of what is left"
    assert answer.source.endswith(", of which others take 4,000 MB/s")
    with pytest.raises(UserError, match="others take 5,000 MB/s, and the storage gives 5,000 at most"):
        predicted(tmp_path, mb_per_second=5000.0, others_mb_per_second=5000.0)


@given(mb_per_second=st.floats(1, 1e6), times=st.floats(1.1, 100))
def test_a_faster_storage_takes_less_time_and_costs_less(mb_per_second: float, times: float) -> None:
    def answer(mb_per_second: float) -> CheckpointPrediction:
        speed = throughput(mb_per_second)
        storage = KnownStorage(source="given", writes=speed, reads=speed)
        return predict(WORKLOAD, PLAN, storage)

    speeds = (mb_per_second, mb_per_second * times)
    (slow, _, cost), (fast, _, less) = (known(answer(speed)) for speed in speeds)
    assert slow.seconds == pytest.approx(fast.seconds * times)
    assert less.percent < cost.percent <= 100
    assert "e+" not in cost_line(cost)
    assert (less.wasted_percent or 0) <= (cost.wasted_percent or 0) <= 100


def test_a_snapshot_is_all_that_training_stalls_for_where_it_goes_on_meanwhile(tmp_path: Path) -> None:
    answer = predicted(
        tmp_path, "checkpoint.asynchronous=true", "checkpoint.snapshot_gb_per_second=10", mb_per_second=100.0
    )
    write, _, training = known(answer)
    snapshot = answer.bytes / 8 / 10e9
    assert write.seconds > 90 * snapshot
    cycle = training.interval_seconds + snapshot
    assert training.percent == pytest.approx(100 * snapshot / cycle, rel=0.1)
    often = predicted(tmp_path, "checkpoint.asynchronous=true", "checkpoint.interval_seconds=300", mb_per_second=100.0)
    assert [finding.code for finding in often.findings] == [WATCHDOG], "each waits for the one before"


@pytest.mark.parametrize(
    ("mb_per_second", "mtbf_hours", "bound"),
    [(100.0, 1, True), (600.0, 0.5, True), (3000.0, 0.1, True), (3e5, 24, False)],
)
def test_no_shorter_interval_is_advised_than_an_asynchronous_checkpoint_drains(
    tmp_path: Path, mb_per_second: float, mtbf_hours: float, bound: bool
) -> None:
    words = ("checkpoint.asynchronous=true", f"checkpoint.gpu_mtbf_hours={8 * mtbf_hours}")
    answer = predicted(tmp_path, *words, mb_per_second=mb_per_second)
    write, read, cost = known(answer)
    assert cost.best_interval_seconds is not None
    assert (cost.best_interval_seconds == write.seconds) == bound
    assert cost.best_interval_seconds >= write.seconds
    stall = snapshot_seconds(WORKLOAD.checkpoint, PLAN.sizes.largest_rank_bytes)
    cycle = cost.best_interval_seconds + stall
    lost = stall / cycle + (cycle / 2 + write.seconds + read.seconds) / (3600 * mtbf_hours)
    assert cost.wasted_percent == pytest.approx(min(100, 100 * lost))
    again = (stall + max(cost.interval_seconds, write.seconds)) / 2 + write.seconds + read.seconds
    assert cost.wasted_percent_now == pytest.approx(min(100, cost.percent + 100 * again / (3600 * mtbf_hours)))


def test_a_sheet_s_writes_are_at_the_depth_of_the_writers(tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.yaml"
    sheet.write_text(SHEET)

    def gb_per_second(*words: str) -> float:
        answer = predicted(tmp_path, *words, drive=str(sheet))
        return answer.bytes / present(answer.write).seconds / 1e9

    direct = ("checkpoint.odirect=true", "checkpoint.transfer_size=1048576")
    assert gb_per_second(*direct, "ranks=1", "model.parallelism.data=-1") == pytest.approx(1.048576, rel=1e-3)
    assert gb_per_second(*direct) == pytest.approx(4.0)
    assert gb_per_second("ranks=1") == pytest.approx(4.0), "the kernel writes as the drive takes it best"


def test_what_a_sheet_does_not_say_is_not_predicted(tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.yaml"
    sheet.write_text(SHEET.partition("writes:")[0])
    answer = predicted(tmp_path, drive=str(sheet))
    assert (answer.write, answer.training) == (None, None)
    assert answer.read is not None
    sheet.write_text("name: x\nwrites:" + SHEET.partition("writes:")[2])
    answer = predicted(tmp_path, drive=str(sheet))
    assert answer.read is None
    assert answer.training is not None


def as_long(measured: PhaseSummary) -> float:
    """The rate of a checkpoint that takes as long as the mean of those measured."""
    rates = [each.slowest_gib_per_second for each in measured.checkpoints]
    return len(rates) / sum(1 / rate for rate in rates if rate)


def test_a_run_predicts_itself(tmp_path: Path) -> None:
    run = saved_checkpoints(tmp_path / "run", "checkpoints")
    answer, _, workload = run_prediction(
        [f"output.folder={tmp_path / 'p'}"], PredictionRequest(from_folder=str(tmp_path / "run"))
    )
    measured, write = present(run.summary.write), present(answer.write)
    assert (workload.model, workload.ranks) == (run.facts.workload.model, run.summary.ranks)
    assert answer.bytes == run.summary.bytes
    assert answer.bytes / GIB / write.seconds == pytest.approx(as_long(measured)), "the time is the measured ones' mean"
    assert write.seconds_interval[0] < write.seconds < write.seconds_interval[1]
    assert OUTSIDE not in [finding.code for finding in answer.findings]
    settings, limit = run.facts.workload.checkpoint, LimitedBy[Cause](what="host CPU", confidence="high")
    slow = Mock(facts=run.facts, summary=replace(run.summary, write=replace(measured, limited_by=limit)))
    findings = _measured_storage(slow, settings, run.summary.ranks).findings
    assert "the host CPU limited how fast that run wrote: the storage may be faster" in sentences(findings, FINDINGS)
    changes = ["checkpoint.writers=7", "checkpoint.randomize_tensor=false"]
    with pytest.raises(UserError, match=r"measured with checkpoint\.writers=1, checkpoint\.randomize_tensor=true"):
        run_prediction(changes, PredictionRequest(from_folder=str(tmp_path / "run")))
    in_memory = Mock(facts=run.facts, summary=Mock(findings=[Finding(Code.NO_DATA_FROM_STORAGE, "loud")]))
    with pytest.raises(UserError, match="the run of --from measured memory"):
        _measured_storage(in_memory, settings, run.summary.ranks)


@pytest.mark.parametrize("option", [{"make": print}, {"most": 3}, {"hosts": 2}, {"host_cores": 8}])
def test_what_only_a_training_s_prediction_takes_is_refused(tmp_path: Path, option: dict[str, object]) -> None:
    with pytest.raises(UserError, match="--make, --most, --hosts and --host-cores are for training"):
        predicted(tmp_path, mb_per_second=1.0, **option)


def test_what_has_no_model_is_refused() -> None:
    with pytest.raises(UserError, match="does not say how large a model's checkpoint is"):
        run_prediction(load(["workload=default"]), PredictionRequest(mb_per_second=1.0))


def test_the_command_answers_by_the_kind_of_the_workload(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    words = [*WORDS, f"output.folder={folder}", "output.report=false", "--mb-per-second", "5000"]
    shown = CliRunner().invoke(command, words)
    assert shown.exit_code == 0, shown.output
    answer = read_result(str(folder))
    assert f"{answer.write.seconds:.3g} s a checkpoint" in shown.stdout
    printed = CliRunner().invoke(command, [*WORDS, f"output.folder={tmp_path / 'q'}", "--drive", "none.yaml"])
    assert "none.yaml does not exist: wanted a data sheet" in str(printed.exception)
    assert "s a checkpoint" in Path(write_page(str(folder))).read_text()
    kept = saved_checkpoints(tmp_path / "run", "checkpoints")
    again = ["--from", str(tmp_path / "run"), f"output.folder={tmp_path / 'r'}", "--json"]
    told = json.loads(CliRunner().invoke(command, again).stdout)
    assert told["workload"] == kept.summary.workload
