"""DLIO's command line means here what it means there: which workload, what changes, and where the files go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from datagen import owned
from datagen.errors import UserError
from dlemu.config import load
from dlemu.config.duration import mean_seconds
from dlemu.config.schema import Workload
from dlemu.config.validate import check_runnable
from dlemu.dlio.command import load_command
from dlemu.dlio.config import DlioFolders, only_checkpoints
from dlemu.dlio.files import begin_dlio_files

WORKLOAD = {
    "model": {"name": "unet3d", "type": "cnn", "model_size": 499153191},
    "framework": "pytorch",
    "workflow": {"generate_data": False, "train": True, "checkpoint": True},
    "dataset": {"data_folder": "data/unet3d/", "format": "npz", "num_files_train": 168, "record_length_bytes": 1000},
    "reader": {"data_loader": "pytorch", "batch_size": 7, "read_threads": 4},
    "train": {"epochs": 5, "computation_time": 0.323},
    "metric": {"au": 0.9},
}


def config_dir(folder: Path) -> str:
    """A folder like the one that mlpstorage names by --config-dir."""
    (folder / "workload").mkdir(parents=True)
    (folder / "workload" / "unet3d_h100.yaml").write_text(yaml.safe_dump(WORKLOAD))
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
    workload, _ = asked(f"workload={name}")
    assert f"{workload.model.name}_{workload.accelerator}" == name
    assert workload.train.computation_time.mean == seconds


def test_ones_own_values_win_over_the_accelerators() -> None:
    workload, _ = asked("++workload.train.computation_time=0.5", "workload=unet3d_h100")
    assert workload.train.computation_time.mean == 0.5


def test_files_go_where_hydra_or_the_workload_say(tmp_path: Path) -> None:
    _, place = asked("workload=unet3d_h100")
    assert place.folder.startswith("hydra_log/unet3d/2")
    assert place.config_folder == os.path.join(place.folder, ".hydra")
    _, place = asked("workload=unet3d_h100", "++workload.output.folder=/mnt/out", f"hydra.run.dir={tmp_path}")
    assert (place.folder, place.config_folder) == ("/mnt/out", str(tmp_path / ".hydra"))
    _, place = asked("hydra.output_subdir=null", "hydra.run.dir=r/${now:%Y}")
    assert place.config_folder is None
    assert place.folder.startswith("r/2")


def test_a_run_folder_that_depends_on_a_setting_is_refused() -> None:
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
    for name in [*stale, "console.txt"]:
        (tmp_path / name).write_text("{}")
    point = Path(owned.fresh_folder(str(tmp_path), "point-01"))
    owned.claim(str(point), "figures.json")
    (point / "figures.json").write_text("{}")
    said = begin_dlio_files(place, workload, 8)
    assert "8 ranks" in said
    assert (tmp_path / "dlio.log").read_text() == said
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == sorted(
        [*kept, "dlio.log", owned.MARKER]
    )
    assert (point / "figures.json").exists(), "of another command that has the folder"
    assert sorted(path.name for path in (tmp_path / ".hydra").iterdir()) == [
        "config.yaml",
        "hydra.yaml",
        "overrides.yaml",
    ]
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
    ],
)
def test_keys_of_the_forks_workloads_that_change_nothing_are_let_pass_with_a_note(
    tmp_path: Path, section: str, added: dict[str, object], note: str
) -> None:
    folder = Path(config_dir(tmp_path / "configs"))
    changed = {**WORKLOAD, section: {**WORKLOAD.get(section, {}), **added}}  # type: ignore[dict-item]
    (folder / "workload" / "mine.yaml").write_text(yaml.safe_dump(changed))
    workload, _ = asked("workload=mine", folder=str(folder))
    assert not workload.unsupported
    assert not note or [text for text in workload.notes if note in text and "has no effect" in text]


def test_several_endpoints_are_not_there_and_said_in_one_line(tmp_path: Path) -> None:
    folder = Path(config_dir(tmp_path / "configs"))
    storage = {"storage_type": "s3", "storage_root": "b", "endpoint_uris": ["http://a", "http://b"]}
    (folder / "workload" / "mine.yaml").write_text(yaml.safe_dump({**WORKLOAD, "storage": storage}))
    workload, _ = asked("workload=mine", folder=str(folder))
    (line,) = workload.unsupported
    assert "storage.endpoint_uris: not supported yet" in line


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
    folder = config_dir(tmp_path)
    (tmp_path / "workload" / "default.yaml").write_text(yaml.safe_dump(WORKLOAD))
    for words in ((), ("workload=default",)):
        assert asked(*words, folder=folder)[0].model.name == "unet3d"


@pytest.mark.parametrize("name", ["llama_405b", "llama_8b_zero3"])
def test_dlios_checkpoints_are_those_of_dlio(name: str) -> None:
    workload, _ = asked(f"workload={name}")
    assert only_checkpoints(workload)
    assert workload.checkpoint.num_checkpoints_read == 10


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("unet3d_h200", "unet3d"),
        ("cosmoflow_pt", "cosmoflow"),
        ("llama_1t", "llama3_1t"),
        ("unet3d_a100_s3", "unet3d"),
    ],
)
def test_a_name_that_is_in_neither_is_answered_with_what_there_is(name: str, meant: str) -> None:
    with pytest.raises(UserError, match=rf"there is no workload '{name}': did you mean {meant}\?"):
        asked(f"workload={name}")
