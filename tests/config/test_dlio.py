"""DLIO's workload files, in every spelling since its first release, and mlpstorage's load as they are."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from operator import attrgetter
from pathlib import Path

import pytest
import yaml

from datagen.errors import UserError
from datagen.spec import DatasetSpec, Hdf5
from dlemu.config import check_runnable, load, to_yaml, translate
from dlemu.config.schema import Duration, Parallelism, Transformer, Workload

FOLDER = Path(__file__).parent / "dlio"
FILES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
MLPSTORAGE = os.environ.get("DLEMU_MLPSTORAGE_V3", "")
"""A checkout of https://github.com/mlcommons/storage at v3.0."""


def golden(name: str, *overrides: str) -> Workload:
    return load([f"workload={FOLDER / name}.yaml", *overrides])


def test_the_first_releases_spelling() -> None:
    old = golden("v05_unet3d")
    assert old.model.name == "unet3d"
    assert old.model.model_size_bytes == 499153191
    assert old.dataset == DatasetSpec(
        data_folder="data/unet3d/",
        format="npz",
        num_files_train=168,
        num_files_eval=42,
        record_length_bytes=146600628,
        record_length_bytes_stdev=68341808,
        record_length_bytes_resize=2097152,
    )
    assert (old.reader.batch_size, old.reader.file_shuffle, old.reader.sample_shuffle) == (4, "seed", "off")
    assert old.train.computation_time == Duration(type="normal", mean=1.3604, stdev=0.05)
    assert old.evaluation.eval_time == Duration(mean=11.572), "a spread of 0 is a fixed time"
    assert (old.metric.exclude_start_steps, old.metric.exclude_end_steps) == (2, 1)
    assert old.output.folder == "results/old"
    assert old.notes == (
        "reader.shuffle_size has no effect: shuffles are over the whole dataset, not a window",
        "output.log_file has no effect: the log is log.txt in the run's folder",
        "profiling.profiler has no effect: dlemu records device and host itself",
        "profiling.iostat_devices has no effect: dlemu records device and host itself",
    )
    check_runnable(old)


def test_the_spelling_of_2_is_the_same_workload_as_ours() -> None:
    theirs, ours = golden("v20_unet3d"), load(["workload=unet3d", "accelerator=h100"])
    assert not theirs.notes
    assert not theirs.unsupported
    assert theirs.reader == ours.reader
    assert theirs.train == ours.train
    assert theirs.metric == ours.metric
    assert theirs.dataset.record_length_bytes_stdev == ours.dataset.record_length_bytes_stdev
    assert theirs.model.model_size_bytes == ours.model.model_size_bytes
    check_runnable(theirs)


def test_settings_of_another_loader_are_noted() -> None:
    workload = golden("tensorflow")
    assert workload.dataset.record_length_bytes == 114660.07
    assert (workload.reader.computation_threads, workload.reader.transfer_size) == (8, 262144)
    assert [note.split(" ", 1)[0] for note in workload.notes] == [
        "dataset.generation_buffer_size",
        "reader.dont_use_mmap",
        "reader.file_access",
        "reader.data_loader_sampler",
    ]


def test_what_shapes_streams_has_no_effect_on_loaders_that_pick_samples() -> None:
    picking = golden("tensorflow", "reader.data_loader=pytorch", "reader.engine=fast")
    noted = {note.split(" ", 1)[0] for note in picking.notes}
    assert "reader.computation_threads" in noted
    assert picking.reader.computation_threads == 1
    assert "reader.transfer_size" not in noted
    assert picking.reader.transfer_size == 262144
    assert not load([f"{key}={getattr(Workload().reader, key[7:])}" for key in translate.LOADER_SPECIFIC]).notes


def test_the_transfer_size_has_no_effect_where_a_library_reads() -> None:
    for overrides, has_effect in (
        (["reader.engine=library", "reader.data_loader=pytorch"], False),
        (["reader.data_loader=pytorch"], False),
        (["reader.engine=fast", "reader.data_loader=pytorch"], True),
        (["reader.odirect=true", "reader.data_loader=pytorch"], True),
        (["reader.engine=library"], True),  # of TensorFlow's own reader
    ):
        workload = golden("tensorflow", *overrides)
        assert workload.reader.transfer_size == (262144 if has_effect else 0)
        assert any("reader.transfer_size" in note for note in workload.notes) is not has_effect


def test_object_storage_is_taken_and_its_secret_is_not() -> None:
    workload = golden("s3")
    check_runnable(workload)
    assert workload.storage_spec.options == (("endpoint_url", "http://localhost:9020"),)
    assert workload.dataset.data_folder == "s3://bucket/unet3d"
    left_out = [note for note in workload.notes if "credentials are never saved" in note]
    assert [note.split(" ", 1)[0] for note in left_out] == [
        "storage.storage_options.access_key_id",
        "storage.storage_options.secret_access_key",
    ]
    assert "hunter2" not in to_yaml(workload)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("saved_run", {"model.name": "unet3d", "dataset.num_files_train": 14000, "notes": ()}),
        (
            "checkpoint_only",
            {
                "model.type": "transformer",
                "model.num_layers": 32,
                "model.parallelism": Parallelism(zero_stage=3),
                "model.transformer": Transformer(
                    vocab_size=128256, hidden_size=4096, ffn_hidden_size=14336, num_attention_heads=32, num_kv_heads=8
                ),
                **{f"checkpoint.num_checkpoints_{way}": 10 for way in ("write", "read")},
                **dict.fromkeys(("checkpoint.rank_sync", "checkpoint.recovery_rank_shift"), True),
                "checkpoint.time_between_checkpoints": 5,
                "checkpoint.mode": "subset",
                "checkpoint.randomize_tensor": False,
                "notes": ("checkpoint.ksm has no effect: the memory of a checkpoint is not merged",),
                "unsupported": (),
            },
        ),
        (
            "layers",
            {
                "model.layer_parameters": (52583936, 209715200),
                "model.optimization_groups": (1009254400, 865075200, 793600),
                "checkpoint.type": "all_ranks",
                "notes": (),
                "unsupported": (),
            },
        ),
        (
            "times",
            {
                "reader.preprocess_time": Duration(type="gamma", shape=2, scale=0.001),
                "train.computation_time": Duration(type="normal", mean=0.5, stdev=0.1),
                "evaluation.eval_time": Duration(type="poisson", lam=1),
            },
        ),
        ("dimensions", {"dataset.record_dims": (64, 64, 3), "dataset.record_element_type": "float32"}),
        ("dimensions", {"dataset.hdf5": Hdf5(num_dset_per_record=2, chunk_dims=(1, 8, 8, 3))}),
    ],
)
def test_settings_of_a_file_are_as_it_says(name: str, wanted: dict[str, object]) -> None:
    assert {key: attrgetter(key)(golden(name)) for key in wanted} == wanted
    assert golden(name, "++workload.reader.read_threads=8").reader.read_threads == 8


def test_names_and_values_of_older_and_later_files_are_known() -> None:
    old = load(["dataset.chunk_dims=[1, 8, 8]", "dataset.num_dset_per_record=1", "dataset.max_shape=[99, 99]"])
    assert old.dataset.hdf5 == Hdf5(chunk_dims=(1, 8, 8), max_shape=(99, 99)), "the names of older files"
    for theirs, ours in (("gzip", "gzip"), ("uncompressed", "none")):  # MLCommons' for v3.0 have a key of Parquet's own
        workload = load(["workload=flux", f"dataset.parquet.compression={theirs}"])
        assert (workload.dataset.compression, workload.notes, workload.unsupported) == (ours, (), ())
    inert = ["workflow.debug=false", "profiling.profiler=none", "reader.read_type=on_demand", "dataset.keep_files=true"]
    assert not load(inert).notes
    assert len(load(["workflow.debug=true", "dataset.keep_files=false"]).notes) == 2


def test_what_would_change_the_data_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        check_runnable(golden("dimensions"))
    for key in ("transformed_record_dims", "data_loader_classname"):
        assert f".{key}" in str(caught.value)
    assert "transformed_record_element_type" not in str(caught.value), "uint8 asks for nothing"
    assert not [text for text in golden("dimensions").unsupported if text.startswith("dataset.")]


@pytest.mark.parametrize("name", FILES)
def test_every_file_survives_being_saved(name: str, tmp_path: Path) -> None:
    workload = golden(name)
    saved = tmp_path / "config.yaml"
    saved.write_text(to_yaml(workload))
    assert load([f"workload={saved}"]) == workload


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("reader.write_threads=8", "as many processes as there are ranks"),
        ("storage.post_generation_settle_seconds=2", "waits for no storage"),
        ("dataset.data_gen_method=numpy", "generates the files itself"),
        ("dataset.parquet.partition_by=a", "not split into folders"),
        ("logging.verbosity=INFO", "the log is log.txt"),
        ("reader.shuffle=true", "reader.file_shuffle and reader.sample_shuffle shuffle"),
        ("reader.seed=3", "train.seed is the seed"),
    ],
)
def test_keys_of_the_dlio_that_v3_uses_leave_a_note(override: str, why: str) -> None:
    (note,) = load([f"++{override}"]).notes
    assert note.startswith(f"{override.partition('=')[0]} has no effect: ")
    assert why in note


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("checkpoint.enabled", "did you mean workflow.checkpoint?"),
        ("checkpoint.compression", "checkpoint has checkpoint_folder"),
        ("num_gpus", "did you mean ranks?"),
        ("num_workers", "did you mean reader.read_threads?"),
        ("reader.threads", "did you mean reader.read_threads or reader.computation_threads?"),
        ("dataset.folder", "did you mean dataset.data_folder?"),
        ("reader.epochs", "it belongs at train.epochs"),
        ("reader.workers", "reader has data_loader"),
    ],
)
def test_a_foreign_key_is_sent_only_where_it_means_the_same(key: str, meant: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"unknown key {key}: {meant}")):
        load([f"++{key}=8"])


def test_the_tables_of_names_hide_no_setting_and_lead_to_one() -> None:
    known = {name for name, _ in leaves((), Workload())}
    assert not known & {*translate.RENAMED_KEYS, *translate.NO_EFFECT, *translate.UNSUPPORTED}
    new = {key for key in translate.RENAMED_KEYS.values() if not key.startswith("storage.storage_options.")}
    assert new <= known | {*translate.UNSUPPORTED, *(f"{name}.stdev" for name in known)}


def leaves(path: tuple[str, ...], section: object) -> Iterator[tuple[str, object]]:
    for name, value in vars(section).items():
        yield ".".join((*path, name)), value
        if is_dataclass(value):
            yield from leaves((*path, name), value)


@pytest.mark.skipif(not MLPSTORAGE, reason="DLEMU_MLPSTORAGE_V3 names no checkout of mlcommons/storage v3.0")
def test_each_official_workload_loads() -> None:
    folder = Path(MLPSTORAGE) / "configs/dlio"
    names = sorted(path.stem for path in (folder / "workload").glob("*.yaml"))
    refused = {}
    for name in names:
        try:
            load([f"workload={name}"], config_dir=str(folder))
        except UserError as error:
            refused[name] = str(error)
    assert len(names) > 20
    assert not refused


def with_workload(tmp_path: Path, **sections: object) -> str:
    (tmp_path / "workload").mkdir()
    (tmp_path / "workload/mine.yaml").write_text(yaml.safe_dump({"model": "resnet50", **sections}))
    return str(tmp_path)


def test_variables_of_the_environment_among_a_storages_options_need_not_be_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    options = {"region": "${AWS_REGION}", "access_key_id": "${AWS_ACCESS_KEY_ID}"}
    storage = {"storage_type": "s3", "storage_root": "bucket", "storage_options": options}
    workload = load(["workload=mine"], config_dir=with_workload(tmp_path, storage=storage))
    assert workload.storage.storage_options == {"region": "eu-north-1"}


def test_a_variable_elsewhere_is_a_reference_to_a_setting(tmp_path: Path) -> None:
    folder = with_workload(tmp_path, dataset={"data_folder": "${AWS_REGION}"})
    with pytest.raises(UserError, match="AWS_REGION"):
        load(["workload=mine"], config_dir=folder)


def test_where_no_section_of_dlios_is_meant_a_note_says_so(tmp_path: Path) -> None:
    stray = {"storage_type": "object", "protocol": "s3", "storage_root": "bucket/unet3d"}
    folder = with_workload(tmp_path, reader=stray, dataset=dict(stray), generator={"num_workers": 16})
    notes = " ".join(load(["workload=mine"], config_dir=folder).notes)
    assert all(key in notes for key in ("reader.protocol", "dataset.storage_root", "generator.num_workers"))
