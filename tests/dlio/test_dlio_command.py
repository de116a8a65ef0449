"""DLIO's command line means here what it means there, and a file that is exported says what the configuration said."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from datagen import owned
from datagen.errors import UserError
from dlemu.cli.job_command import job_command
from dlemu.config import load, workload_names
from dlemu.config.duration import mean_seconds
from dlemu.config.schema import Workload
from dlemu.config.validate import check_runnable
from dlemu.dlio.command import load_command
from dlemu.dlio.config import DlioFolders, dlio_yaml, only_checkpoints
from dlemu.dlio.files import begin_dlio_files
from dlemu.results.kinds import kind_named

WORKLOAD: dict[str, Any] = {
    "model": {"name": "unet3d", "type": "cnn", "model_size": 499153191},
    "framework": "pytorch",
    "workflow": {"generate_data": False, "train": True, "checkpoint": True},
    "dataset": {"data_folder": "data/unet3d/", "format": "npz", "num_files_train": 168, "record_length_bytes": 1000},
    "reader": {"data_loader": "pytorch", "batch_size": 7, "read_threads": 4},
    "train": {"epochs": 5, "computation_time": 0.323},
    "metric": {"au": 0.9},
}


def config_dir(folder: Path, name: str = "unet3d_h100", workload: Any = WORKLOAD) -> str:
    """A folder like the one that mlpstorage names by --config-dir, with one workload."""
    (folder / "workload").mkdir(parents=True)
    (folder / "workload" / f"{name}.yaml").write_text(yaml.safe_dump(workload))
    return str(folder)


def asked(*overrides: str, folder: str | None = None) -> tuple[Workload, DlioFolders]:
    return load_command(overrides, folder)


def test_mlpstorages_words_are_understood(tmp_path: Path) -> None:
    leaf = tmp_path / "results" / "training" / "unet3d" / "run" / "20260102_030405"
    workload, place = asked(
        "workload=unet3d_h100",
        f"++hydra.run.dir={leaf}",
        "++hydra.output_subdir=dlio_config",
        "++workload.dataset.num_files_train=3500",
        "++workload.dataset.data_folder=/mnt/data/unet3d",
        folder=config_dir(tmp_path / "configs"),
    )
    assert (place.folder, place.config_folder) == (str(leaf), str(leaf / "dlio_config"))
    assert place.overrides == (
        "workload=unet3d_h100",
        "++workload.dataset.num_files_train=3500",
        "++workload.dataset.data_folder=/mnt/data/unet3d",
    )
    assert workload.output.folder == str(leaf / "dlemu")
    assert (workload.dataset.num_files_train, workload.reader.batch_size) == (3500, 7)
    assert workload.workflow.checkpoint


@pytest.mark.parametrize(
    ("name", "seconds"), [("unet3d_a100", 0.636), ("unet3d_h100", 0.323), ("resnet50_h100", 0.224)]
)
def test_dlios_names_of_workloads_need_no_folder(name: str, seconds: float) -> None:
    for words, wanted in (((), seconds), (("++workload.train.computation_time=0.5",), 0.5)):
        workload, _ = asked(*words, f"workload={name}")
        assert f"{workload.model.name}_{workload.accelerator}" == name
        assert workload.train.computation_time.mean == wanted


def test_files_go_where_hydra_or_the_workload_say(tmp_path: Path) -> None:
    _, place = asked("workload=unet3d_h100")
    assert place.folder.startswith("hydra_log/unet3d/2")
    assert place.config_folder == os.path.join(place.folder, ".hydra")
    _, place = asked("workload=unet3d_h100", "++workload.output.folder=/mnt/out", f"hydra.run.dir={tmp_path}")
    assert (place.folder, place.config_folder) == ("/mnt/out", str(tmp_path / ".hydra"))
    _, place = asked("hydra.output_subdir=null", "hydra.run.dir=r/${now:%Y}")
    assert place.config_folder is None
    assert place.folder.startswith("r/2")
    assert asked("hydra.run.dir=~/res")[1].folder == os.path.expanduser("~/res")
    with pytest.raises(UserError, match=r"only \$\{now:FORMAT\}"):
        asked("hydra.run.dir='results/${workload.model.name}'")


def test_a_second_run_in_a_folder_keeps_the_first_ones_own_files(tmp_path: Path) -> None:
    for number, name in enumerate(("dlemu", "dlemu-2", "dlemu-3")):
        workload, _ = asked(f"hydra.run.dir={tmp_path}")
        assert workload.output.folder == str(tmp_path / name), number
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text("{}")


def test_a_run_that_begins_removes_results_of_an_earlier_one_and_nothing_else(tmp_path: Path) -> None:
    stale = ["summary.json", "0_output.json", "12_per_epoch_stats.json"]
    kept = ["training_run.stdout.log", "training_20260102_030405_metadata.json", "my_summary.json", "console.txt"]
    for name in stale + kept:
        (tmp_path / name).write_text("{}")
    workload, place = asked(f"hydra.run.dir={tmp_path}", "workload=unet3d_h100")
    with pytest.raises(UserError, match="holds results that dlemu did not write"):
        begin_dlio_files(place, workload, 8)
    for name in [*stale, "console.txt"]:
        (tmp_path / name).unlink()
    owned.claim(str(tmp_path), *stale, "console.txt")
    for name in [*stale, "console.txt", owned.part_name("0_output.json")]:
        (tmp_path / name).write_text("{}")
    point = Path(owned.fresh_folder(str(tmp_path), "point-01"))
    owned.claim(str(point), "figures.json")
    (point / "figures.json").write_text("{}")
    said = begin_dlio_files(place, workload, 8)
    assert "8 ranks" in said
    assert (tmp_path / "dlio.log").read_text() == said
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {*kept, "dlio.log", owned.MARKER}
    assert (point / "figures.json").exists(), "of another command that has the folder"
    assert sorted(os.listdir(tmp_path / ".hydra")) == ["config.yaml", "hydra.yaml", "overrides.yaml"]
    assert yaml.safe_load((tmp_path / ".hydra" / "overrides.yaml").read_text()) == ["workload=unet3d_h100"]
    hydra = yaml.safe_load((tmp_path / ".hydra" / "hydra.yaml").read_text())["hydra"]
    assert (hydra["run"]["dir"], hydra["output_subdir"]) == (str(tmp_path), ".hydra")


def test_objects_in_the_words_of_mlpstorages_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://10.0.0.1:9000")
    workload, _ = asked(
        "workload=unet3d_h100",
        "++workload.storage.storage_type=s3",
        "++workload.storage.storage_root=bucket",
        "++workload.storage.storage_options.storage_library=s3dlio",
        "++workload.storage.storage_options.uri_scheme=s3",
        "++workload.storage.storage_options.decode_mode=none",
        "++workload.storage.s3_force_path_style=true",
        "++workload.dataset.data_folder=data/unet3d",
        folder=config_dir(tmp_path / "configs"),
    )
    assert workload.storage_spec.options == (("s3_force_path_style", True), ("uri_scheme", "s3"))
    assert workload.dataset.data_folder == "data/unet3d"
    assert any("storage_library has no effect: dlemu reads with a client of its own" in note for note in workload.notes)
    check_runnable(workload)


def test_direct_reading_in_the_words_of_mlpstorages_o_direct(tmp_path: Path) -> None:
    workload, _ = asked(
        "workload=unet3d_h100",
        "++workload.storage.storage_type=direct_fs",
        "++workload.storage.storage_root=/",
        "++workload.storage.storage_options.storage_library=s3dlio",
        "++workload.storage.storage_options.uri_scheme=direct",
        "++workload.dataset.data_folder=/mnt/data/unet3d",
        folder=config_dir(tmp_path / "configs"),
    )
    assert workload.reader.odirect
    assert workload.checkpoint.odirect
    assert workload.storage_spec.direct
    assert workload.dataset.data_folder == "/mnt/data/unet3d"


def test_a_run_is_judged_as_by_dlemu_train(tmp_path: Path) -> None:
    """What the page cache served is no verdict on the storage, whatever the command is called."""
    workload, _ = asked("workload=unet3d_h100", folder=config_dir(tmp_path))
    assert workload.metric == load(["workload=unet3d", "accelerator=h100"]).metric


@pytest.mark.parametrize(
    ("section", "added", "note"),
    [
        ("dataset", {"format": "parquet", "parquet": {"use_s3dlio_gen": True, "row_group_size": 6144}}, "use_s3dlio"),
        ("dataset", {"format": "parquet", "parquet": {"generation_batch_size": 10}}, "generation_batch_size"),
        ("reader", {"storage_library": "s3dlio", "storage_root": "file:///mnt"}, "reader.storage_library"),
        ("reader", {"data_loader_classname": "torch.utils.data.DataLoader"}, ""),
        ("storage", {"storage_type": "s3", "storage_root": "b", "storage_library": "minio"}, "storage_library"),
        ("storage", {"storage_type": "s3", "storage_root": "b", "endpoint_uris": ["http://a", "http://b"]}, ""),
    ],
)
def test_keys_of_the_forks_workloads_that_change_nothing_are_let_pass_with_a_note(
    tmp_path: Path, section: str, added: dict[str, object], note: str
) -> None:
    changed = {**WORKLOAD, section: {**WORKLOAD.get(section, {}), **added}}
    workload, _ = asked("workload=mine", folder=config_dir(tmp_path, "mine", changed))
    assert [text for text in workload.unsupported if "storage.endpoint_uris: not supported yet" not in text] == []
    assert len(workload.unsupported) == ("endpoint_uris" in added)
    assert not note or [text for text in workload.notes if note in text and "has no effect" in text]


@pytest.mark.parametrize(
    ("name", "files", "record_bytes", "batch", "epochs", "seconds"),
    [
        ("default", (64, 8), 4096, 4, 10, 1.0),
        ("", (64, 8), 4096, 4, 10, 1.0),
        ("dlrm", (1, 1), 671088640, 1, 1, 0.064296),
        ("resnet50_tf", (1024, 0), 114660.07, 64, 1, 0.098),
        ("megatron_deepspeed_LLNL", (1, 0), 2048, 16, 3, 2.44),
    ],
)
def test_dlios_own_workloads_are_those_of_dlio(
    name: str, files: tuple[int, int], record_bytes: float, batch: int, epochs: int, seconds: float
) -> None:
    workload, _ = asked(*([f"workload={name}"] if name else []))
    data = workload.dataset
    assert (data.num_files_train, data.num_files_eval, data.record_length_bytes) == (*files, record_bytes)
    assert (workload.reader.batch_size, workload.train.epochs) == (batch, epochs)
    assert mean_seconds(workload.train.computation_time) == seconds
    assert workload.workflow.evaluation == (name in ("", "default"))


def test_a_users_own_workload_goes_before_dlios(tmp_path: Path) -> None:
    folder = config_dir(tmp_path, "default")
    for words in ((), ("workload=default",)):
        assert asked(*words, folder=folder)[0].model.name == "unet3d"


@pytest.mark.parametrize("name", ["llama_405b", "llama_8b_zero3"])
def test_dlios_checkpoints_are_those_of_dlio(name: str) -> None:
    workload, _ = asked(f"workload={name}")
    assert only_checkpoints(workload)
    assert workload.checkpoint.num_checkpoints_read == 10


def test_a_name_that_is_in_neither_is_answered_with_what_there_is() -> None:
    for words in ("unet3d_h200 unet3d", "cosmoflow_pt cosmoflow", "llama_1t llama3_1t", "unet3d_a100_s3 unet3d"):
        name, meant = words.split()
        with pytest.raises(UserError, match=rf"there is no workload '{name}': did you mean {meant}\?"):
            asked(f"workload={name}")


SECTIONS = ("model", "framework", "workflow", "dataset", "reader", "train", "evaluation", "checkpoint", "metric")


def exported(*words: str) -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load(dlio_yaml(load(words)))
    return tree


@pytest.mark.parametrize("name", sorted({*workload_names()} - {"colfax"}))  # DLIO has no tiff
def test_every_shipped_workload_comes_back_as_it_was(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.yaml"
    for accelerator in load([f"workload={name}"]).accelerators or [""]:
        workload = load([f"workload={name}", *([f"accelerator={accelerator}"] if accelerator else [])])
        path.write_text(dlio_yaml(workload))
        again = load([f"workload={path}"])
        assert {key: getattr(again, key) for key in SECTIONS} == {key: getattr(workload, key) for key in SECTIONS}
        assert again.unsupported == workload.unsupported


def test_keys_stand_where_dlio_reads_them() -> None:
    tree = exported("workload=unet3d", "accelerator=h100", "metric.exclude_end_steps=1", "metric.au=0.8")
    assert tree["model"]["model_size_bytes"] == 499153191
    assert tree["metric"] == {"au": 0.8}
    assert tree["output"]["metric"] == {"exclude_start_steps": 1, "exclude_end_steps": 1}
    assert "transfer_size" not in tree["reader"], "0 would be no buffer at all"
    assert exported("workload=resnet50", "reader.transfer_size=262144")["reader"]["transfer_size"] == 262144
    hdf5 = ("dataset.format=hdf5", "dataset.record_dims=[4,8]", "dataset.hdf5.num_dset_per_record=2")
    assert exported(*hdf5)["dataset"]["hdf5"] == {"chunk_dims": [], "num_dset_per_record": 2, "max_shape": []}
    assert "hdf5" not in exported("workload=unet3d")["dataset"]


def test_what_dlio_has_no_setting_for_is_told_and_not_written() -> None:
    words = ["reader.worker_streams=true", "train.synchronous=true", "checkpoint.odirect=true", "checkpoint.writers=4"]
    text = dlio_yaml(load(["workload=unet3d", "checkpoint.randomize_tensor=false", *words]))
    assert f"# DLIO has no setting for these, which were not dlemu's defaults: {', '.join(words)}\n" in text
    tree = yaml.safe_load(text)
    assert not {"synchronous", "worker_streams", "range_bytes", "io_depth"} & {*tree["train"], *tree["reader"]}
    assert tree["checkpoint"].keys() & {"randomize_tensor", "odirect", "writers"} == {"randomize_tensor"}


def test_what_dlio_can_not_run_is_refused() -> None:
    with pytest.raises(UserError, match=r"reader\.data_loader is 'threads'.*pytorch, tensorflow"):
        exported("reader.data_loader=threads")
    with pytest.raises(UserError, match=r"dataset\.compression is 'zstd'.*none, gzip, zip"):
        exported("dataset.format=parquet", "dataset.compression=zstd")


def test_the_option_writes_the_file_and_trains_nothing(tmp_path: Path) -> None:
    path = tmp_path / "workload" / "unet3d_h100.yaml"
    words = ["workload=unet3d", "accelerator=h100", "--export-dlio", str(path)]
    lines = CliRunner().invoke(job_command(kind_named("training")), words)
    assert lines.exit_code == 0, lines.output
    refused = CliRunner().invoke(job_command(kind_named("training")), words)
    assert "already exists: name another file" in str(refused.exception)
    assert yaml.safe_load(path.read_text())["train"]["computation_time"] == 0.323
    assert [one.name for one in tmp_path.iterdir()] == ["workload"]


def test_checkpoints_alone_have_no_dataset() -> None:
    tree = exported("workload=llama3_405b", "checkpoint.rank_sync=true", "checkpoint.format=raw")
    assert set(tree) == {"model", "framework", "workflow", "checkpoint"}
    assert tree["checkpoint"]["rank_sync"] is True
    assert tree["model"]["parallelism"] == {"pipeline": 32, "tensor": 8, "zero_stage": 1}
    text = dlio_yaml(load(["workload=qwen3_235b", "checkpoint.format=raw"]))
    lines = next(line for line in text.splitlines() if line.startswith("# DLIO has no setting"))
    for setting in ("checkpoint.format=raw", "model.transformer.num_experts=128", "model.parallelism.expert=8"):
        assert setting in lines
