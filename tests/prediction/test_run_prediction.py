"""`dlemu predict` and `dlemu probe workload=` as users run them, on a small dataset."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

import dlemu
from datagen.errors import UserError
from dlemu.cli.predict import command
from dlemu.config import load
from dlemu.config.schema import Workload
from dlemu.jobs.training.pattern import judge_level
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.prediction import run_prediction
from dlemu.jobs.training.prediction.calibration import Calibration, given_speed
from dlemu.jobs.training.prediction.make_prediction import predict
from dlemu.jobs.training.prediction.model_run import Model
from dlemu.jobs.training.prediction.prediction import PREDICT
from dlemu.jobs.training.prediction.run_prediction import read_known, read_prediction
from dlemu.results.answer_files import to_json
from dlemu.results.levels import READ_DTYPE, Level
from dlemu.results.measured import write_run
from dlemu.runner.events import PartMeasured
from dlemu.runner.prediction_request import PredictionRequest
from dlemu.studies.pages import write_page
from tests.prediction.test_calibration import simulated_run, workload
from tests.prediction.test_from_probe import level
from tests.runs import make_job

WORDS = ["workload=unet3d", "accelerator=h100", "dataset.num_files_train=700", "train.epochs=1"]


def run(*words: str, status: int) -> str:
    result = CliRunner().invoke(command, [*words])
    assert result.exit_code == status, result.output
    return result.stdout


def test_one_count_of_a_storage_whose_speed_is_given(tmp_path: Path) -> None:
    words = [*WORDS, f"output.folder={tmp_path / 'p'}", "ranks=3", "--mb-per-second", "6000", "--json"]
    told = json.loads(run(*words, status=1))
    assert told["accelerators"] == 3
    assert told["au_sustained_percent"] == pytest.approx(100 * 6000 / (3 * 3177), abs=3)
    assert told["passed"] is False
    assert told["limited_by"]["what"] == "storage"
    assert told["null_model"]["max_accelerators"] == 2
    assert {"au_percent", "au_whole_percent", "au_dlio_percent", "au_dlio_v1_percent"} <= told.keys()
    saved = read_prediction(str(tmp_path / "p"))
    assert saved is not None
    assert saved.au_percent == told["au_percent"]


def test_a_storage_that_is_only_a_speed_needs_no_dataset(tmp_path: Path) -> None:
    """unet3d has 168 files, enough for 12 accelerators with a batch of 7; a number of files that is given counts."""
    words = ["workload=unet3d", "accelerator=h100", "ranks=16", "train.epochs=1", "--mb-per-second", "60000", "--json"]
    found = json.loads(run(*words, f"output.folder={tmp_path / 'p'}", status=0))
    assert [issue["code"] for issue in found["findings"]] == ["files_assumed", "checkpoints_left_out"]
    assert found["counts"][0]["needed_mb_per_second"] == pytest.approx(16 * 0.9 * 3177, rel=0.01)
    shown = run(*words[:-1], f"output.folder={tmp_path / 'q'}", "output.report=false", status=0)
    assert f"16 accelerators need {found['needed_mb_per_second']:,.0f} MB/s to pass" in " ".join(shown.split())
    given = CliRunner().invoke(command, [*words, "dataset.num_files_train=168", f"output.folder={tmp_path / 'r'}"])
    assert "predict at most 12" in str(given.exception)


def test_files_are_not_assumed_beside_the_users_own(tmp_path: Path) -> None:
    """40 files of a batch of 2 each fill the steps of some accelerators; no setting could add more."""
    for number in range(40):
        (tmp_path / f"{number}.bin").write_bytes(bytes(1000))
    own = ["dataset.source=folder", f"dataset.data_folder={tmp_path}", "reader.batch_size=2"]
    words = [*own, "train.computation_time=0.1", "--mb-per-second", "100", "--json", f"output.folder={tmp_path}/p"]
    told = json.loads(run(*words, status=0))
    assert told["verdict_code"] == "most_tried"
    assert told["verdict_numbers"]["ended_by"] == "files"
    assert "files_assumed" not in [finding["code"] for finding in told["findings"]]


def test_hosts_with_other_cores_are_predicted(tmp_path: Path) -> None:
    """One accelerator takes 21.7 samples/s: with 0.1 s of a core for each, 2.2 cores."""
    words = [*WORDS, "ranks=1", "reader.preprocess_time=0.1", "--mb-per-second", "60000", "--json", "--host-cores"]
    few = json.loads(run(*words, "1", f"output.folder={tmp_path / 'p'}", status=1))
    many = json.loads(run(*words, "64", f"output.folder={tmp_path / 'q'}", status=0))
    assert (few["calibration"]["cores"], many["calibration"]["cores"]) == (1, 64)
    assert few["au_sustained_percent"] == pytest.approx(100 * 10 / (7 / 0.323), abs=3)
    assert (few["limited_by"]["what"], many["passed"]) == ("host CPU", True)
    assert few["calibration"]["source"].endswith("for hosts with 1 core")


def test_what_others_take_is_named_and_never_all(tmp_path: Path) -> None:
    words = [*WORDS, "ranks=3", "--mb-per-second", "20000", "--others-mb-per-second"]
    shown = run(*words, "14000", f"output.folder={tmp_path / 'p'}", status=1)
    assert "6000" not in shown
    assert "20000 MB/s as given, whatever the number of readers, of which others take 14,000 MB/s" in " ".join(
        shown.split()
    )
    assert "of which others take 14,000 MB/s" in Path(write_page([str(tmp_path / "p")])).read_text()
    again = [*WORDS, "ranks=3", "--from", str(tmp_path / "p"), f"output.folder={tmp_path / 'q'}"]
    assert "others take" not in run(*again, status=0)
    refused = CliRunner().invoke(command, [*words, "20000", f"output.folder={tmp_path / 'r'}"])
    assert "others take 20,000 MB/s, and the storage gives 20,000 at most: wanted --others" in str(refused.exception)
    assert not (tmp_path / "r").exists()


def test_without_a_count_the_most_that_pass_and_a_page(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    text = run(*WORDS, f"output.folder={folder}", "output.report=false", "--mb-per-second", "9000", status=0)
    assert "null model" in text
    page = Path(write_page([str(folder)])).read_text()
    assert "Predicted AU against accelerators" in page
    again = dlemu.predict([*WORDS, "ranks=2", f"output.folder={tmp_path / 'q'}"], from_folder=folder)
    assert again.calibration.curve[0].mb_per_second == 9000
    assert dlemu.load_result(tmp_path / "q") == again


def test_predicted_stands_beside_measured_on_one_page(tmp_path: Path) -> None:
    asked = workload(steps=60)
    measured = simulated_run(asked, given_speed(100.0, cores=4), 2)
    folder = tmp_path / "measured"
    folder.mkdir()
    write_run(type(measured)(str(folder), measured.facts, measured.rows))
    found = read_known(str(folder)).calibration
    assert found.curve[-1].mb_per_second == pytest.approx(100, rel=0.02)
    predicted = tmp_path / "predicted"
    predicted.mkdir()
    answer = predict(asked, found, ranks=2)
    (predicted / PREDICT).write_text(to_json(answer))
    page = Path(write_page([str(predicted), str(folder)], str(tmp_path / "both.html"))).read_text()
    assert "predicted: predicted" in page


def write_measured(top: Path, asked: Workload) -> Path:
    """Make the folder of a run of two ranks."""
    measured = simulated_run(asked, given_speed(2000.0, cores=4), 2)
    folder = top / "measured"
    folder.mkdir()
    write_run(type(measured)(str(folder), measured.facts, measured.rows))
    return folder


@pytest.mark.parametrize("changes", [(), ("workload=unet3d", "accelerator=b200")])
def test_the_configuration_that_is_printed_is_the_one_that_is_predicted(
    changes: tuple[str, ...], tmp_path: Path
) -> None:
    """`--from RUN --cfg`: the run's settings, with the changes; the same from a prediction; nothing is made."""
    words = ["workload=unet3d", "scale=laptop", "accelerator=h100", "dataset.num_files_train=280", "ranks=2"]
    folder, place = write_measured(tmp_path, load(words)), tmp_path / "p"
    asked = ("ranks=1", f"output.folder={place}", "output.report=false")
    printed = run(*changes, *asked, "--from", str(folder), "--cfg", status=0)
    assert not place.exists()
    run(*changes, *asked, "--from", str(folder), status=0)
    # what is printed explains each setting by a comment
    assert yaml.safe_load((place / "config.yaml").read_text()) == yaml.safe_load(printed)
    assert run(*asked, "--from", str(place), "--cfg", status=0) == printed


def test_what_the_user_does_not_say_is_the_runs(tmp_path: Path) -> None:
    """Its workload, accelerator, scale, count of files and readers; the run's own count comes out as it was."""
    asked = load(["workload=unet3d", "scale=laptop", "accelerator=h100", "dataset.num_files_train=280", "ranks=2"])
    folder = write_measured(tmp_path, asked)
    words = ["--from", str(folder), "output.report=false", "--json"]
    again = json.loads(run(f"output.folder={tmp_path / 'p'}", "ranks=2", *words, status=0))
    was = Model(asked, given_speed(2000.0, cores=4)).run(2).outcome
    assert again["au_sustained_percent"] == pytest.approx(was.au_sustained_percent, abs=1)
    assert (again["question"]["accelerator"], again["question"]["workload"]) == ("h100", "unet3d")
    more = json.loads(
        run(f"output.folder={tmp_path / 'q'}", "workload=unet3d", "accelerator=b200", "ranks=16", *words, status=0)
    )
    assert (more["accelerators"], more["question"]["accelerator"]) == (16, "b200")
    chained = dlemu.predict(
        ranks=3, from_folder=tmp_path / "q", output={"folder": str(tmp_path / "r"), "report": False}
    )
    assert chained.question.accelerator == "b200"
    assert load([f"workload={tmp_path / 'r' / 'config.yaml'}"]).dataset.num_files_train == 280


@pytest.mark.parametrize("option", ["--mb-per-second", "--others-mb-per-second"])
def test_a_speed_with_a_unit_is_refused_with_the_unit_wanted(option: str) -> None:
    refused = CliRunner().invoke(command, [*WORDS, option, "2GB"])
    assert refused.exit_code == 2
    assert "'2GB' is not a number: wanted a number of MB/s, such as 2000" in refused.output


def test_mistakes_are_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give only one of them"):
        dlemu.predict(WORDS, from_folder=tmp_path, mb_per_second=1.0)
    with pytest.raises(UserError, match="can't be read"):
        dlemu.predict(WORDS, from_folder=tmp_path)
    (tmp_path / PREDICT).write_text('{"schema_version": 1}')
    with pytest.raises(UserError, match="is damaged"):
        read_prediction(str(tmp_path))
    (tmp_path / PREDICT).write_text("[" * 100_000)
    with pytest.raises(UserError, match="is not JSON"):
        read_prediction(str(tmp_path))
    with pytest.raises(UserError, match="holds another result"):
        dlemu.predict([*WORDS, f"output.folder={tmp_path}"], mb_per_second=1.0)


def test_a_level_counts_what_lies_between_settling_and_its_end() -> None:
    rows = np.zeros(400, READ_DTYPE)
    rows["begin_ns"] = np.arange(400) // 2 * 10_000_000
    rows["end_ns"] = rows["begin_ns"] + 10_000_000
    rows["app_bytes"], rows["samples"], rows["reader"] = 1_000_000, 1, np.arange(400) % 2
    rows["app_bytes"][:100] = 5_000_000  # a burst before it settles
    level = judge_level(rows, 2, 0, 1.5)
    assert level.mb_per_second == pytest.approx(200, rel=0.01)
    assert not level.short


def test_bursts_that_even_out_do_not_make_a_level_uncertain() -> None:
    """Windows of 0.1 s that hold none or two of the reads of 0.2 s: the mean is known all the same."""

    def half_width(begin_ns: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> float:
        rows = np.zeros(len(begin_ns), READ_DTYPE)
        rows["begin_ns"], rows["end_ns"] = begin_ns, begin_ns + 1_000_000
        rows["app_bytes"], rows["samples"], rows["reader"] = 1_000_000, 1, 0
        return judge_level(rows, 1, 0, 2.0).half_width_percent

    slices = np.repeat(np.arange(13) * 200_000_000, 10) + np.tile(np.arange(10) * 1_000_000, 13)
    chance = np.sort(np.random.default_rng(1).integers(0, 2_600_000_000, 130))
    assert half_width(slices) < 20, "an independent window of 0 or 20 reads would make it 48 %"
    assert half_width(chance) > half_width(slices) / 2


def test_cores_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5})
    for limit, cores in ((None, 3.0), (1.5, 1.5), (8.0, 3.0)):
        monkeypatch.setattr(run_prediction, "cpu_limit", lambda limit=limit: limit)
        assert run_prediction.usable_cores() == cores


@pytest.mark.parametrize("cached", [False, True])
def test_what_is_probed_is_the_workloads_own_dataset(monkeypatch: pytest.MonkeyPatch, cached: bool) -> None:
    made = make_job(ranks=2)
    asked: list[tuple[TrainingJob, dict[str, Any]]] = []

    def probe(job: TrainingJob, **words: Any) -> tuple[tuple[Level, ...], None]:
        asked.append((job, words))
        levels = level(1, 1234.56), level(4, 2000)
        for each in levels:
            words["on_level"](each)
        return levels, None

    cpu = iter([10.0, 10.0 + 1e9])
    monkeypatch.setattr(run_prediction, "inspect", lambda *_, **__: made.found)
    monkeypatch.setattr(run_prediction, "treatment_of", lambda *_, cached: "cached" if cached else "large")
    monkeypatch.setattr(run_prediction, "probe_pattern", probe)
    monkeypatch.setattr(run_prediction, "_others_cpu_seconds", lambda: next(cpu))
    told: list[Any] = []
    known = run_prediction.calibrate_by_probe(made.workload, readers=6, cached=cached, on_event=told.append)
    assert [event.text for event in told] == ["1 reader 1,234.6 MB/s", "4 readers 2,000.0 MB/s"]
    ((job, words),) = asked
    assert (job.ranks, job.found) == (1, made.found)
    assert callable(words.pop("on_level"))
    assert words == {"evicts": not cached, "again": 6}
    assert known.busy_cores > 1, "a billion seconds of others in less than one"
    assert known.cores == run_prediction.usable_cores()
    assert known.source == "a probe of data/handmade with 1, 4 readers"
    assert [point.mb_per_second for point in known.curve] == [1234.56, 2000]


def test_readers_of_the_count_that_is_asked_for_are_probed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []
    made: list[Workload] = []

    def probed(_: Workload, **words: Any) -> Calibration:
        seen.append(words)
        return given_speed(9000.0, cores=4)

    monkeypatch.setattr(run_prediction, "calibrate_by_probe", probed)
    for name, ranks in (("a", ["ranks=3"]), ("b", [])):
        words = [*WORDS, *ranks, "reader.read_threads=5", f"output.folder={tmp_path / name}"]
        answer, folder, asked = run_prediction.run_prediction(
            words, PredictionRequest(cached=True, make=made.append, on_event=print)
        )
        assert folder == str(tmp_path / name)
        assert made[-1] == asked
        assert answer.question.overrides == tuple(words[:-1])
        assert load([f"workload={folder}/config.yaml"]).reader.read_threads == 5
    assert seen == [{"readers": count, "cached": True, "on_event": print} for count in (15, 0)]


@pytest.mark.slow
def test_a_dataset_is_probed_and_predicted(tmp_path: Path) -> None:
    settings: dict[str, object] = {
        "dataset.data_folder": str(tmp_path / "data"),
        "dataset.format": "npz",
        "dataset.num_files_train": 96,
        "dataset.record_length_bytes": 100_000,
        "reader.odirect": True,
        "reader.data_loader": "threads",
        "train.computation_time": 0.02,
    }
    told: list[Any] = []
    asked = settings | {"ranks": 1, "output.folder": str(tmp_path / "p")}
    answer = dlemu.predict(asked, make=True, on_progress=told.append)
    parts = [event.part for event in told if isinstance(event, PartMeasured)]
    assert [part.readers for part in parts if isinstance(part, Level)][:3] == [1, 2, 4]
    assert answer.calibration.sample_bytes == pytest.approx(100_000, rel=0.05)
    assert answer.calibration.costs.hand_over_seconds < 0.1
    assert 0 < answer.au_percent <= 100
    probed = dlemu.probe(settings, readers=[1, 2], folder=str(tmp_path / "probe"))
    assert [cell.jobs for cell in probed.cells] == [1, 2]
    assert probed.complete
    assert dlemu.load_result(tmp_path / "probe") == probed
