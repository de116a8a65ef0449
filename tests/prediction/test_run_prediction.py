"""`dlemu predict` as users run it, on a small dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

import dlemu
from datagen.errors import UserError
from dlemu.cli.predict import command
from dlemu.config import load
from dlemu.config.schema import Workload
from dlemu.jobs.training.pattern import Level
from dlemu.jobs.training.prediction.calibration import given_speed
from dlemu.jobs.training.prediction.model_run import Model
from dlemu.jobs.training.prediction.prediction import PREDICT, Prediction
from dlemu.jobs.training.prediction.run_prediction import read_known
from dlemu.report.page import write_page
from dlemu.runner.events import PartMeasured
from dlemu.runner.prediction_request import PredictionRequest
from dlemu.studies.predict import known_workload
from tests.goldens.render import RESULTS
from tests.prediction.test_calibration import simulated_run
from tests.runs import write_run

WORDS = ["workload=unet3d", "accelerator=h100", "dataset.num_files_train=700", "train.epochs=1"]


def run(*words: str, status: int) -> str:
    result = CliRunner().invoke(command, [*words])
    assert result.exit_code == status, result.output
    return result.stdout


def test_one_count_of_a_storage_whose_speed_is_given(tmp_path: Path) -> None:
    words = [*WORDS, f"output.folder={tmp_path / 'p'}", "ranks=3", "--mb-per-second", "6000", "--json"]
    told = json.loads(run(*words, status=1))
    assert told["accelerators"] == 3
    (count,) = told["counts"]
    assert count["au_sustained_percent"] == pytest.approx(100 * 6000 / (3 * 3177), abs=3)
    assert count["passed"] is False
    assert told["limited_by"]["what"] == "storage"
    assert told["null_max_accelerators"] == 2
    assert {"au_percent", "au_whole_percent", "au_dlio_v1_percent"} <= count.keys()
    saved = dlemu.load_result(tmp_path / "p")
    assert isinstance(saved, Prediction)
    assert saved.shown.au_percent == count["au_percent"]


def test_a_storage_that_is_only_a_speed_needs_no_dataset(tmp_path: Path) -> None:
    """unet3d has 168 files, enough for 12 accelerators with a batch of 7; a number of files that is given counts."""
    words = ["workload=unet3d", "accelerator=h100", "ranks=16", "train.epochs=1", "--mb-per-second", "60000", "--json"]
    found = json.loads(run(*words, f"output.folder={tmp_path / 'p'}", status=0))
    assert found["findings"] == []
    assert found["counts"][0]["needed_mb_per_second"] == pytest.approx(16 * 0.9 * 3177, rel=0.01)
    shown = run(*words[:-1], f"output.folder={tmp_path / 'q'}", "output.report=false", status=0)
    assert f"{found['counts'][0]['needed_mb_per_second'] / 1e3:.1f} GB/s for 16 to pass" in shown
    given = CliRunner().invoke(command, [*words, "dataset.num_files_train=168", f"output.folder={tmp_path / 'r'}"])
    assert "predict at most 12" in str(given.exception)


def test_what_others_take_is_named_and_never_all(tmp_path: Path) -> None:
    words = [*WORDS, "ranks=3", "--mb-per-second", "20000", "--others-mb-per-second"]
    shown = run(*words, "14000", f"output.folder={tmp_path / 'p'}", status=1)
    assert "6000" not in shown
    assert "20000 MB/s as given, whatever the number of readers, of which others take 14,000 MB/s" in " ".join(
        shown.split()
    )
    assert "of which others take 14,000 MB/s" in Path(write_page(str(tmp_path / "p"))).read_text()
    again = [*WORDS, "ranks=3", "--from", str(tmp_path / "p"), f"output.folder={tmp_path / 'q'}"]
    assert "others take" not in run(*again, status=0)
    refused = CliRunner().invoke(command, [*words, "20000", f"output.folder={tmp_path / 'r'}"])
    assert "others take 20,000 MB/s, and the storage gives 20,000 at most: wanted --others" in str(refused.exception)
    assert not (tmp_path / "r").exists()


def test_without_a_count_the_most_that_pass_and_a_page(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    text = run(*WORDS, f"output.folder={folder}", "output.report=false", "--mb-per-second", "9000", status=0)
    assert "(speed / demand of one) says" in text
    assert "Each number of accelerators" in Path(write_page(str(folder))).read_text()
    again = dlemu.predict([*WORDS, "ranks=2", f"output.folder={tmp_path / 'q'}"], from_folder=folder)
    assert again.curve[0].mb_per_second == 9000
    assert dlemu.load_result(tmp_path / "q") == again


def write_measured(folder: Path, asked: Workload) -> Path:
    """Make the folder of a run of two ranks."""
    measured = simulated_run(asked, given_speed(2000.0, cores=4), 2)
    folder.mkdir()
    write_run(type(measured)(str(folder), measured.facts, measured.rows))
    return folder


@pytest.mark.parametrize("changes", [(), ("workload=unet3d", "accelerator=b200")])
def test_the_configuration_that_is_printed_is_the_one_that_is_predicted(
    changes: tuple[str, ...], tmp_path: Path
) -> None:
    """`--from RUN --cfg`: the run's settings, with the changes; the same from a prediction; nothing is made."""
    words = ["workload=unet3d", "scale=laptop", "accelerator=h100", "dataset.num_files_train=280", "ranks=2"]
    folder, place = write_measured(tmp_path / "measured", load(words)), tmp_path / "p"
    asked = ("ranks=1", f"output.folder={place}", "output.report=false")
    printed = run(*changes, *asked, "--from", str(folder), "--cfg", status=0)
    assert not place.exists()
    run(*changes, *asked, "--from", str(folder), status=0)
    assert yaml.safe_load((place / "config.yaml").read_text()) == yaml.safe_load(printed)
    assert run(*asked, "--from", str(place), "--cfg", status=0) == printed


def test_what_the_user_does_not_say_is_the_runs(tmp_path: Path) -> None:
    """Its workload, accelerator, scale, count of files and readers; the run's own count comes out as it was."""
    asked = load(["workload=unet3d", "scale=laptop", "accelerator=h100", "dataset.num_files_train=280", "ranks=2"])
    folder = write_measured(tmp_path / "measured", asked)
    words = ["--from", str(folder), "output.report=false", "--json"]
    again = json.loads(run(f"output.folder={tmp_path / 'p'}", "ranks=2", *words, status=0))
    was = Model(asked, given_speed(2000.0, cores=4)).run(2).outcome
    assert again["counts"][0]["au_sustained_percent"] == pytest.approx(was.au_sustained_percent, abs=1)
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


def test_mistakes_are_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give only one of them"):
        dlemu.predict(WORDS, from_folder=tmp_path, mb_per_second=1.0)
    with pytest.raises(UserError, match="can't be read"):
        dlemu.predict(WORDS, from_folder=tmp_path)
    with pytest.raises(UserError, match="a search is no run of a job"):
        known_workload(PredictionRequest(from_folder=str(RESULTS / "size")))
    (tmp_path / PREDICT).write_text('{"schema_version": 1}')
    with pytest.raises(UserError, match="is damaged"):
        dlemu.load_result(tmp_path)
    (tmp_path / PREDICT).write_text("[" * 100_000)
    with pytest.raises(UserError, match="is damaged"):
        dlemu.load_result(tmp_path)
    with pytest.raises(UserError, match="holds another result"):
        dlemu.predict([*WORDS, f"output.folder={tmp_path}"], mb_per_second=1.0)


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
    assert read_known(str(tmp_path / "p")).calibration.sample_bytes == pytest.approx(100_000, rel=0.05)
    assert 0 < answer.shown.au_percent <= 100
