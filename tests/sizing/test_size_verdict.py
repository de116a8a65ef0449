"""From trials to an answer and its sentence, by hand; beside busy programs every command names the host."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import dlemu
from dlemu.cli import study_terminal
from dlemu.doctor import host
from dlemu.doctor.check_base import Facts
from dlemu.jobs.training.prediction.calibration import given_speed
from dlemu.jobs.training.prediction.make_prediction import predict
from dlemu.jobs.training.prediction.prediction import Prediction
from dlemu.jobs.training.prediction.run_prediction import read_known
from dlemu.jobs.training.result import Run
from dlemu.metrics.findings import Code, LimitedBy
from dlemu.metrics.limit import Limit
from dlemu.metrics.verdict import HOST_LIMITS
from dlemu.report.page import write_page
from dlemu.results.answer_files import save_answer
from dlemu.studies.answers import SIZE, CountResult, SizeAnswer, Trial
from dlemu.studies.compare.compare_sides import compare
from dlemu.studies.compare.sides import read_sides
from dlemu.studies.size import find_size
from dlemu.studies.size.page import figures_of_count
from dlemu.studies.size.search import pool
from dlemu.studies.size.size_verdict import build_answer, outcome_of, sentence
from tests.datasets import make_dataset
from tests.prediction.test_calibration import workload
from tests.results.test_activity import cores
from tests.results.test_activity import host as watched
from tests.runs import MS, make_job, make_log, make_run, present, write_run
from tests.sizing.fakes import DEMAND, FakeRunner, known, make_trial, question

# pooling trials


def trial(accelerators: int, au: float, spread: float = 0.5, **changes: Any) -> Trial:
    """Windows of which four lie above and four below an AU, alternating."""
    return make_trial(accelerators, [au + spread, au - spread] * 4, **changes)


def count_of(*trials: Trial) -> CountResult:
    (count,) = pool(trials, 90.0)
    return count


def test_the_width_of_a_count_is_the_wider_of_within_and_between() -> None:
    one = count_of(trial(4, 95)).half_width_percent
    # t of 7 degrees, 2.3646; standard deviation 0.5 sqrt(8 / 7), of 8 values.
    assert one == pytest.approx(2.3646 * 0.5 * math.sqrt(8 / 7) / math.sqrt(8), rel=0.003)
    assert count_of(trial(4, 95), trial(4, 95)).half_width_percent == pytest.approx(one / math.sqrt(2))
    assert count_of(trial(4, 95), trial(4, 97)).half_width_percent == pytest.approx(1.0), "half their difference"
    three = count_of(trial(4, 95), trial(4, 96), trial(4, 97))
    assert three.half_width_percent == pytest.approx(4.3027 / math.sqrt(3), rel=0.001), "t of 2 degrees, deviation 1"
    wide = trial(4, 95, spread=5.0)
    assert count_of(wide, wide, wide).half_width_percent == pytest.approx(10 * one / math.sqrt(3))


STORAGE = Limit(what="storage", confidence="high", evidence=("the device was busy",), advice=("a faster one",))
CPU = Limit(what="host CPU", confidence="high", evidence=("no core was free",))


def answer_of(*trials: Trial, refusal: str = "", **changes: Any) -> SizeAnswer:
    answer = build_answer(question(), known(**changes), trials, refusal=refusal)
    return replace(answer, verdict=sentence(answer))


def test_the_limit_is_what_most_of_the_failing_trials_name() -> None:
    fails = [trial(5, 80, limited_by=CPU), trial(5, 80, limited_by=STORAGE), trial(5, 80, limited_by=STORAGE)]
    others = [trial(4, 99, limited_by=CPU)] * 4
    assert answer_of(*others, *fails).limited_by.what == "storage"
    alike = [trial(5, 80, limited_by=STORAGE)] * 2
    assert answer_of(*alike).limited_by.confidence == "high"
    assert answer_of(*alike, other_programs="1.0 of 2 cores in use").limited_by.confidence == "medium"
    assert answer_of(*others, fails[0], fails[0], fails[1]).limited_by.what == "host CPU"
    unknown = answer_of(*others, trial(5, 80))
    assert unknown.limited_by.what == "not known"
    assert unknown.limited_by.evidence == ("the trials' summaries do not record it",)


def test_a_host_that_gives_out_first_is_told_with_what_it_reaches() -> None:
    held_back = answer_of(trial(5, 60, ceiling_au_percent=65.0, limited_by=STORAGE)).limited_by
    assert held_back.what == "emulator"
    assert held_back.evidence[0].startswith("with 5 accelerators this host reaches an AU of 65.0 %")
    refused = answer_of(trial(4, 99), refusal="5 ranks want more memory")
    assert "this host can't hold more: 5 ranks want more memory; at the rate it delivered" in refused.verdict


@pytest.mark.parametrize("what", ["host CPU", "loader"])
def test_what_the_storage_could_have_fed_is_told_where_the_host_is_the_limit(what: Any) -> None:
    limit = replace(CPU, what=what)
    answer = answer_of(trial(4, 99), trial(5, 80, limited_by=limit))
    # 1000 MB/s of the probe by 90 MB/s each.
    assert answer.storage_could_feed == 11
    assert f"limit: {what}" in answer.verdict or what == "host"
    assert "; at the rate it delivered, the storage could have fed about 11" in answer.verdict
    fed_more = answer_of(trial(4, 99), trial(5, 80, limited_by=limit), probe_mb_per_second=10.0)
    assert fed_more.storage_could_feed == 4, "no less than were fed"
    free = answer_of(trial(4, 99), trial(5, 80, limited_by=limit), mb_per_accelerator=0.0)
    assert free.storage_could_feed is None


@pytest.mark.parametrize(
    ("counts", "what", "shown", "wanted", "outcome"),
    [
        ([(3, True), (4, False)], "storage", 3, 4, "fail"),
        ([(3, True), (4, None)], "storage", 3, 4, "undecided"),
        ([(3, True), (4, None), (5, False)], "storage", 3, 4, "undecided"),
        ([(3, True), (4, None), (5, False)], "storage", 3, 5, "fail"),
        ([(3, True)], "host", 3, 4, "no verdict"),
        ([(3, True), (4, False)], "emulator", 3, 4, "no verdict"),
    ],
)
def test_what_came_of_a_wanted_count(
    counts: list[tuple[int, bool | None]], what: str, shown: int, wanted: int, outcome: str
) -> None:
    answer = replace(
        build_answer(question(), known(), []),
        max_accelerators=shown,
        limited_by=LimitedBy(what=what, evidence=("x",)),
        counts=tuple(
            CountResult(accelerators=n, au_sustained_percent=90, half_width_percent=1, passed=passed, trials=1)
            for n, passed in counts
        ),
    )
    assert outcome_of(answer, wanted) == outcome


OTHERS_PERCENT = 97.0
"""What other programs use of the cores."""


def run_beside(*others_percent: float, folder: str = "run", read_ms: int = 240, starved_ms: int = 159) -> Run:
    """A run of two ranks on one or two hosts; their workers read or lack a core for 400 ms of each batch."""
    job = make_job(folder=folder)
    log = make_log(job, rank_nodes=(0, len(others_percent) - 1))
    log.rows["finished_ns"], log.rows["started_ns"] = log.rows["ready_ns"], log.rows["ready_ns"] - 400 * MS
    log.rows["read_ns"] = read_ms * MS
    log.rows["cpu_ns"], log.rows["cpu_wait_ns"] = MS, starved_ms * MS
    own = {("process", f"rank {rank}", "cpu_seconds"): 0.0 for rank in (0, 1)}
    hosts = tuple(watched(log, node, cores(100 - percent) | own) for node, percent in enumerate(others_percent))
    return make_run(job, replace(log, telemetry=hosts))


def predicted(busy_percent: float) -> Prediction:
    """What a probe of a storage for 3.9 accelerators predicts while others use so much of four cores."""
    return predict(workload(), replace(given_speed(280.0, cores=4), busy_cores=busy_percent / 100 * 4))


def test_busy_programs_are_the_same_cause_to_every_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_percent", lambda seconds: OTHERS_PERCENT)
    doctor = host.check_free_cores(Facts(workload()))
    assert (doctor.level, doctor.advice.split(":")[0]) == ("warn", "stop other programs (top)")

    run = run_beside(OTHERS_PERCENT, folder=str(tmp_path / "run"))
    limit = present(run.summary.limited_by)
    assert (limit.what, run.summary.outcome) == ("host CPU", "no verdict")
    assert [found.code for found in limit.findings] == [Code.OTHER_PROGRAM_ON_CORES]

    fails = [trial(5, au, limited_by=limit) for au in (84, 86)]
    sized = answer_of(trial(4, 95), trial(4, 94), *fails, other_programs=f"{doctor.observed}: {doctor.advice}")
    assert (sized.limited_by.what, sized.limited_by.confidence) == (limit.what, "low")
    assert sized.verdict.startswith("at least 4 x h100 pass")
    assert any("stop other programs" in issue for issue in sized.issues)
    assert sized.storage_could_feed is None, "its rates, too, are what others left"

    answer = predicted(OTHERS_PERCENT)
    assert (answer.limited_by.what, answer.outcome) == (limit.what, "undecided")
    assert answer.verdict.endswith(f"; limited by {limit.what}")
    (tmp_path / "run").mkdir()
    rows = np.array(run.rows[:])
    rows["storage_bytes"] = rows["app_bytes"]
    write_run(type(run)(run.folder, run.facts, rows, run.telemetry))
    assert not read_known(str(tmp_path / "run")).calibration.saturated, "its readers got less than the storage gives"

    for name, answered in (("size", sized), ("none", answer_of(*fails))):
        save_answer(str(tmp_path / name), SIZE, replace(answered, complete=True))
    compared = compare(*read_sides([str(tmp_path / "size"), str(tmp_path / "none")]))
    assert "A feeds at least 4 accelerators, B was not judged" in compared.verdict
    for folder in ("run", "size"):
        page = Path(write_page(str(tmp_path / folder))).read_text().lower()
        assert f"{limit.what} confidence".lower() in page.replace(", confidence", " confidence").replace("(", "")
        assert "limited by storage" not in page


@pytest.mark.parametrize("percent", [OTHERS_PERCENT, 5.0])
def test_a_search_says_before_it_starts_who_else_uses_the_cores(
    percent: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"num_files_train": 60, "record_length_bytes": 4000, "record_length_bytes_stdev": 0}
    make_dataset(tmp_path / "data", **sizes)
    monkeypatch.setattr(study_terminal, "interrupt_on", lambda *signals: None)
    monkeypatch.setattr(psutil, "cpu_percent", lambda seconds: percent)
    monkeypatch.setattr(find_size, "run_trial", lambda plan, *trial: FakeRunner(1000 * DEMAND)(*trial))
    words = ["workload=unet3d", f"dataset.data_folder={tmp_path / 'data'}", f"output.folder={tmp_path / 'size'}"]
    words += [f"dataset.{name}={value}" for name, value in sizes.items()]
    words += ["train.computation_time=0.5", "reader.batch_size=1", "metric.cached=true"]
    answer = dlemu.size(words, most=1, on_progress=study_terminal.StudyTerminal())
    assert dlemu.load_result(tmp_path / "size") == answer
    said = [line for line in capsys.readouterr().err.splitlines() if "in use by other programs: stop" in line]
    told = [issue for issue in answer.issues if "in use by other programs: stop" in issue]
    assert (len(said), len(told)) == ((1, 1) if percent == OTHERS_PERCENT else (0, 0))


@pytest.mark.parametrize(
    ("others_percent", "changes", "what", "confidence"),
    [
        ((OTHERS_PERCENT,), {}, "host CPU", "low"),
        ((OTHERS_PERCENT, 10.0), {}, "host CPU", "low"),
        ((10.0, OTHERS_PERCENT), {}, "host CPU", "low"),
        ((10.0, 10.0), {"starved_ms": 20}, "storage", "high"),
        ((OTHERS_PERCENT,), {"starved_ms": 20}, "storage", "high"),  # a slow storage is slow beside others, too
        ((10.0,), {"read_ms": 120, "starved_ms": 279}, "host CPU", "medium"),
    ],
)
def test_a_run_beside_busy_programs_blames_reads_that_cost_far_more_alone(
    others_percent: tuple[float, ...], changes: dict[str, Any], what: str, confidence: str
) -> None:
    limit = present(run_beside(*others_percent, **changes).summary.limited_by)
    assert (limit.what, limit.confidence) == (what, confidence)


@pytest.mark.parametrize(("busy_percent", "what"), [(20, "storage"), (40, "nothing"), (60, "host CPU")])
def test_a_probe_beside_busy_programs_does_not_know_the_storages_limit(busy_percent: float, what: str) -> None:
    answer = predicted(busy_percent)
    assert answer.limited_by.what == what
    assert ("other programs took cores from its readers" in answer.verdict) == (what != "storage")


def named(what: Any, confidence: Any) -> Limit:
    return Limit(what=what, confidence=confidence, evidence=(f"{what} it was",))


NO_CORE, EMULATOR = named("host CPU", "high"), named("emulator", "medium")
UNSURE = named("storage", "low")


@pytest.mark.parametrize(
    ("passed", "failed", "what", "confidence"),
    [
        ((None, NO_CORE), (UNSURE, UNSURE), "host CPU", "low"),  # who passes decides with them
        ((None, None), (NO_CORE, EMULATOR, UNSURE, UNSURE, UNSURE, UNSURE), "host CPU", "low"),
        ((None, None), (EMULATOR, EMULATOR), "emulator", "medium"),
        ((None, None), (EMULATOR, UNSURE), "emulator", "low"),
        ((None, None), (NO_CORE, STORAGE, STORAGE), "storage", "medium"),
        ((NO_CORE, NO_CORE), (STORAGE, STORAGE), "storage", "high"),
        ((None, None), (UNSURE, UNSURE), "storage", "low"),
    ],
)
def test_the_trials_at_the_edge_decide_by_their_confidence(
    passed: tuple[Limit | None, ...], failed: tuple[Limit | None, ...], what: str, confidence: str
) -> None:
    far = [trial(9, 50, limited_by=NO_CORE)] * 3 + [trial(2, 99, limited_by=NO_CORE)] * 3
    answer = answer_of(
        *far,
        *(trial(4, 92, limited_by=limit) for limit in passed),
        *(trial(5, 88, limited_by=limit) for limit in failed),
    )
    assert (answer.limited_by.what, answer.limited_by.confidence) == (what, confidence)
    is_host = what in HOST_LIMITS
    assert answer.verdict.startswith(f"{'at least ' * is_host}4 x h100 pass")
    assert f"limit: {what} (confidence {confidence})" in answer.verdict
    assert outcome_of(answer, 5) == ("no verdict" if is_host else "fail")
    figures = figures_of_count(answer, answer.counts[2])
    assert (figures.limited_by, figures.passed) == ({"run": what}, None if is_host else False)


def test_a_count_left_open_above_the_one_that_passes_decides_too() -> None:
    """With none that fails it would be said that no more were tried."""
    answer = answer_of(trial(4, 95), trial(5, 90.2, 2.0, limited_by=NO_CORE), max_accelerators=5)
    assert (answer.max_accelerators, answer.failing, answer.limited_by.what) == (4, None, "host CPU")
    by_storage = answer_of(trial(4, 95), trial(5, 90.2, 2.0, limited_by=STORAGE), max_accelerators=5)
    assert by_storage.limited_by.what == "count"


def test_a_count_that_fails_by_the_trials_that_the_host_slowed_alone_is_not_the_storages() -> None:
    above = [trial(5, 91, limited_by=STORAGE)] * 3
    slowed = answer_of(trial(4, 95), *above, *[trial(5, 80, limited_by=NO_CORE)] * 2)
    assert (slowed.limited_by.what, slowed.verdict.split()[:3]) == ("host CPU", ["at", "least", "4"])


def test_a_ceiling_that_the_trials_exceed_is_not_the_hosts() -> None:
    fails = [trial(5, 88.9, limited_by=STORAGE, ceiling_au_percent=80.0)] * 2
    assert answer_of(trial(4, 95), *fails).limited_by.what == "storage"
