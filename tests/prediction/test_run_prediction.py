"""`dlemu predict` as users run it; every setting of training is modelled, irrelevant to the answer, or refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

import dlemu
from datagen.errors import UserError
from datagen.spec import DatasetSpec
from dlemu.cli.predict import command
from dlemu.config import load
from dlemu.config.schema import Workload
from dlemu.jobs.training.pattern import MAX_SECONDS, READ_DTYPE, Level
from dlemu.jobs.training.prediction import run_prediction
from dlemu.jobs.training.prediction.calibration import given_speed
from dlemu.jobs.training.prediction.event_model import HostCosts
from dlemu.jobs.training.prediction.model_run import Model
from dlemu.jobs.training.prediction.prediction import PREDICT, Prediction
from dlemu.jobs.training.prediction.run_prediction import (
    _DEFAULT_IN_MODEL,
    _DEFAULT_WITH_SPEED,
    _SAME_AS_MEASURED,
    _SAME_AS_SOURCE,
    _SAME_IF_CACHED,
    read_known,
)
from dlemu.metrics.demand import row_group_reads
from dlemu.report.page import write_page
from dlemu.runner.events import PartMeasured
from dlemu.runner.prediction_request import PredictionRequest
from dlemu.studies.predict import known_workload
from tests.datasets import make_files
from tests.goldens.render import RESULTS
from tests.prediction.test_calibration import simulated_run
from tests.runs import write_run

WORDS = ["workload=unet3d", "accelerator=h100", "dataset.num_files_train=700", "train.epochs=1"]
MEASURED = ["workload=unet3d", "scale=laptop", "accelerator=h100", "dataset.num_files_train=280", "ranks=2"]


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
    shown = " ".join(run(*words, "14000", f"output.folder={tmp_path / 'p'}", status=1).split())
    assert "6000" not in shown
    assert "20000 MB/s as given, whatever the number of readers, of which others take 14,000 MB/s" in shown
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


def write_measured(folder: Path, asked: Workload, *, from_storage: float = 1, hosts: int = 1) -> Path:
    measured = simulated_run(asked, given_speed(2000.0, cores=4), 2)
    rows = np.array(measured.rows[:])
    rows["storage_bytes"] = (rows["app_bytes"] * from_storage).astype(int)
    folder.mkdir()
    journal = measured.facts.journal.noting(hosts=hosts * measured.facts.journal.hosts[:1])
    write_run(type(measured)(str(folder), replace(measured.facts, journal=journal), rows))
    return folder


@pytest.mark.parametrize("changes", [(), ("workload=unet3d", "accelerator=b200")])
def test_the_configuration_that_is_printed_is_the_one_that_is_predicted(
    changes: tuple[str, ...], tmp_path: Path
) -> None:
    """`--from RUN --cfg`: the run's settings, with the changes; the same from a prediction; nothing is made."""
    folder, place = write_measured(tmp_path / "measured", load(MEASURED)), tmp_path / "p"
    asked = ("ranks=1", f"output.folder={place}", "output.report=false")
    printed = run(*changes, *asked, "--from", str(folder), "--cfg", status=0)
    assert not place.exists()
    run(*changes, *asked, "--from", str(folder), status=0)
    assert yaml.safe_load((place / "config.yaml").read_text()) == yaml.safe_load(printed)
    assert run(*asked, "--from", str(place), "--cfg", status=0) == printed


def test_what_the_user_does_not_say_is_the_runs(tmp_path: Path) -> None:
    """Its workload, accelerator, scale, count of files and readers; the run's own count comes out as it was."""
    asked = load(MEASURED)
    folder = write_measured(tmp_path / "measured", asked)
    words = ["--from", str(folder), "output.report=false", "--json"]
    again = json.loads(run(f"output.folder={tmp_path / 'p'}", "ranks=2", *words, status=0))
    was = Model(asked, given_speed(2000.0, cores=4)).run(2).figures
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
    for text in ('{"schema_version": 1}', "[" * 100_000):
        (tmp_path / PREDICT).write_text(text)
        with pytest.raises(UserError, match="is damaged"):
            dlemu.load_result(tmp_path)
    with pytest.raises(UserError, match="holds another result"):
        dlemu.predict([*WORDS, f"output.folder={tmp_path}"], mb_per_second=1.0)
    for share in (0.0, 0.6):
        with pytest.raises(UserError, match="the run of --from measured memory, not storage"):
            dlemu.predict(from_folder=write_measured(tmp_path / f"{share}", load(MEASURED), from_storage=share))


def test_the_hosts_of_a_run_are_those_of_its_prediction(tmp_path: Path) -> None:
    folder = write_measured(tmp_path / "run", load(MEASURED), hosts=4)
    answer = dlemu.predict([f"output.folder={tmp_path / 'p'}", "ranks=1"], from_folder=folder)
    assert answer.question.hosts == read_known(str(tmp_path / "p")).hosts == 4


def test_streams_of_few_files_end_a_search_and_not_the_prediction(tmp_path: Path) -> None:
    words = ["workload=bert", "scale=laptop", "reader.data_loader=tensorflow", "dataset.num_files_train=36"]
    answer = dlemu.predict([*words, f"output.folder={tmp_path / 'p'}"], mb_per_second=1e5)
    assert (answer.ended_by, answer.max_accelerators) == ("files", 333), "with 375, whole files leave a step too few"


def test_row_groups_are_read_as_often_as_the_new_settings_ask() -> None:
    words = ["workload=dlrm", "accelerator=b200"]
    measured, streamed = load(words), load([*words, "reader.worker_streams=true"])
    repeats = row_group_reads(measured)
    assert repeats > row_group_reads(streamed) == 1
    known = run_prediction.Known(calibration=given_speed(100.0, cores=4, bytes_factor=repeats), workload=measured)
    for workload, factor in ((measured, repeats), (streamed, 1)):
        calibration = run_prediction._calibrate(workload, PredictionRequest(), known, None)
        assert calibration.bytes_factor == pytest.approx(factor)


def test_a_probe_is_of_this_host_and_what_others_do_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within two seconds others took three of their cores' time."""
    data = DatasetSpec(data_folder=str(tmp_path), format="npy", num_files_train=4, record_length_bytes=1000)
    asked = replace(Workload(), dataset=make_files(data))
    reads, costs = np.ones(40, READ_DTYPE), HostCosts(step_seconds=0.25)
    reads["end_ns"] = 1000
    levels, told = [Level(readers, 1.0, reads, 100.0, 1.0) for readers in (1, 4)], list[Any]()
    measure = Mock(return_value=levels)
    for name, done in (
        ("measure_levels", measure),
        ("loader_costs", lambda job: costs),
        ("_others_cpu_seconds", iter([5.0, 8.0]).__next__),
        ("usable_cores", lambda: 6.0),
        ("time", SimpleNamespace(monotonic=iter([10.0, 12.0]).__next__)),
    ):
        monkeypatch.setattr(run_prediction, name, done)
    found = run_prediction.calibrate_by_probe(asked, readers=4, on_event=told.append)
    assert measure.call_args.kwargs == {"evicts": True, "repeat": 4, "most_seconds": MAX_SECONDS}
    words = ("1 reader 100.0 MB/s", "4 readers 100.0 MB/s")
    assert told == [PartMeasured(level, text) for level, text in zip(levels, words, strict=True)]
    assert (found.cores, found.busy_cores, found.costs, len(found.curve)) == (6.0, 1.5, costs, 2)


@pytest.mark.slow
def test_a_dataset_is_probed_and_predicted(tmp_path: Path) -> None:
    words = ["dataset.format=npz", "dataset.num_files_train=96", "dataset.record_length_bytes=100000", "ranks=1"]
    words += ["reader.odirect=true", "reader.data_loader=threads", "train.computation_time=0.02"]
    words += [f"dataset.data_folder={tmp_path / 'data'}", f"output.folder={tmp_path / 'p'}"]
    told: list[Any] = []
    answer = dlemu.predict(words, make=True, on_progress=told.append)
    parts = [event.part for event in told if isinstance(event, PartMeasured)]
    assert [part.readers for part in parts if isinstance(part, Level)][:3] == [1, 2, 4]
    assert read_known(str(tmp_path / "p")).calibration.sample_bytes == pytest.approx(100_000, rel=0.05)
    assert 0 < answer.shown.au_percent <= 100


MODELLED = """
    ranks accelerator scale accelerators scales workflow.checkpoint reader.data_loader reader.batch_size
    reader.read_threads reader.prefetch_size reader.file_shuffle reader.sample_shuffle reader.worker_streams
    reader.preprocess_time reader.preprocess train.epochs train.computation_time train.step_cpu_time
    train.total_training_steps train.seed train.seed_change_epoch train.synchronous checkpoint.checkpoint_after_epoch
    checkpoint.epochs_between_checkpoints checkpoint.steps_between_checkpoints metric.au metric.verdict
    metric.exclude_start_steps metric.exclude_end_steps dataset.format dataset.num_files_train
    dataset.num_samples_per_file dataset.record_length_bytes dataset.record_length_bytes_stdev
    dataset.record_length_bytes_quantiles dataset.record_dims dataset.record_element_type dataset.parquet.columns
    dataset.parquet.row_group_size dataset.hdf5.num_dset_per_record recorded.hand_over_seconds
"""
"""Simulated, or in the plan and the sizes of the simulated run."""
PROBED = """
    dataset.data_folder dataset.source dataset.num_subfolders_train dataset.enable_chunking dataset.chunk_size
    dataset.hdf5.chunk_dims dataset.hdf5.max_shape dataset.compression_level storage reader.computation_threads
    reader.shuffle_size reader.multiprocessing_context reader.nice
"""
"""Where and how the same bytes are found: the source of the speed answers for it."""
IRRELEVANT = """
    timeout_seconds framework model workflow.generate_data workflow.train workflow.evaluation evaluation
    reader.batch_size_eval metric.ceiling_seconds metric.scaling_seconds telemetry output recorded notes unsupported
    kinds dataset.num_files_eval dataset.num_subfolders_eval dataset.file_prefix dataset.seed
    dataset.record_length_bytes_resize checkpoint.checkpoint_folder checkpoint.type checkpoint.fsync checkpoint.mode
    checkpoint.job_ranks checkpoint.first_rank checkpoint.format checkpoint.num_checkpoints_write
    checkpoint.num_checkpoints_read checkpoint.time_between_checkpoints checkpoint.rank_sync
    checkpoint.recovery_rank_shift checkpoint.randomize_tensor checkpoint.odirect checkpoint.writers
    checkpoint.transfer_size checkpoint.read_as checkpoint.readers checkpoint.evict_page_cache checkpoint.verify
    checkpoint.keep_last checkpoint.interval_seconds checkpoint.gpu_mtbf_hours checkpoint.snapshot_gb_per_second
"""
"""No AU depends on it, or only that of the emulator's own work."""
REFUSED = {*_SAME_AS_SOURCE, *_SAME_AS_MEASURED, *_SAME_IF_CACHED, *_DEFAULT_WITH_SPEED, *_DEFAULT_IN_MODEL}
"""With values that neither the model nor the source of the speed knows."""
OF_UNET3D = ["workload=unet3d", "accelerator=h100", "ranks=2", "output.report=false"]
CACHED = ["metric.cached=true", "reader.evict_page_cache=start"]


def settings(value: Any, name: str = "") -> Iterator[str]:
    if not dataclasses.is_dataclass(value) or hasattr(value, "to_value"):
        yield name
        return
    for part in dataclasses.fields(value):
        yield from settings(getattr(value, part.name), f"{name}.{part.name}".lstrip("."))


def test_every_setting_is_modelled_irrelevant_or_refused() -> None:
    known = {*MODELLED.split(), *PROBED.split(), *IRRELEVANT.split(), *REFUSED}
    names = list(settings(Workload()))
    above = {name: {name.rsplit(".", depth)[0] for depth in range(name.count(".") + 1)} for name in names}
    assert [name for name in names if not above[name] & known] == []
    assert known <= set().union(*above.values()), "a setting that there is no more"


@pytest.mark.parametrize(
    "words",
    [
        ["metric.cached=true"],
        CACHED,
        ["reader.page_cache_percent=50", *CACHED],
        ["reader.decode=full"],
        ["reader.verify=true"],
        ["reader.tensors=2", "reader.tensor_bytes=1000"],
        ["checkpoint.asynchronous=true"],
        ["dataset.compression=zip", "dataset.format=npz", "dataset.compressibility=0.5"],
    ],
)
def test_what_no_speed_says_is_refused(words: list[str], tmp_path: Path) -> None:
    folder, (key, _, value) = tmp_path / "p", words[0].partition("=")
    with pytest.raises(UserError, match=f"{key} is {value}.*: wanted"):
        dlemu.predict([*OF_UNET3D, *words, f"output.folder={folder}"], mb_per_second=9000.0)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("word", "harmless"),
    [
        ("metric.cached=true", "reader.evict_page_cache=epochs"),
        ("metric.cached=true", "reader.odirect=true"),
        ("checkpoint.asynchronous=true", "workflow.checkpoint=false"),
    ],
)
def test_what_has_no_effect_is_not_refused(word: str, harmless: str, tmp_path: Path) -> None:
    words = [*OF_UNET3D, word, harmless, f"output.folder={tmp_path / 'p'}"]
    assert dlemu.predict(words, mb_per_second=9000.0).shown.passed


@pytest.mark.parametrize("word", ["reader.odirect=true", "reader.engine=library", "metric.cached=true"])
def test_a_run_s_speed_is_of_the_settings_it_was_measured_with(word: str, tmp_path: Path) -> None:
    for name, own in (("without", MEASURED), ("with", [*MEASURED, word])):
        write_measured(tmp_path / name, load(own))
    again = [word, f"output.folder={tmp_path / 'p'}", "output.report=false"]
    said = f"{word.partition('=')[0]} is .*, and neither the model nor {tmp_path / 'without'}"
    with pytest.raises(UserError, match=said):
        dlemu.predict(again, from_folder=tmp_path / "without")
    assert dlemu.predict(again, from_folder=tmp_path / "with").shown.au_percent > 0


def test_evaluations_are_left_out_with_a_word(tmp_path: Path) -> None:
    words = [*OF_UNET3D, "workflow.evaluation=true", "dataset.num_files_eval=50", f"output.folder={tmp_path / 'p'}"]
    assert "evaluations are not included" in " ".join(dlemu.predict(words, mb_per_second=9000.0).issues)
