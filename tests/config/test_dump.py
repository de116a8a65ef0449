"""A Workload written down reads back as the same, as YAML and as a command."""

from __future__ import annotations

import shlex
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from datagen.errors import UserError
from datagen.spec import DatasetSpec, Hdf5, ParquetColumn, ParquetSpec
from dlemu.config import datagen_command, load, to_yaml
from dlemu.config.overrides import override, parse
from dlemu.config.schema import Accelerator, Model, Reader, Train, Workload, sections, settings_class
from dlemu.config.validate import check
from tests.config.test_duration import durations

# PyYAML writes some control characters and line separators in a way that it does not read back.
TEXT = st.text(
    st.one_of(
        st.sampled_from("${}\\'\"=,:[]() ~.#@!%1e-+"), st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"])
    ),
    max_size=12,
)
NAMES = TEXT.filter(bool)
MODEL_NAMES = TEXT.filter(lambda name: name not in ("", ".", "..") and not set("/\0") & set(name))
BYTES = st.floats(1, 1e15, allow_subnormal=False)
DIMS = st.lists(st.integers(1, 2**40), max_size=3).map(tuple)
COLUMNS = st.lists(st.builds(ParquetColumn, name=TEXT, size=st.integers(1, 99)), max_size=2).map(tuple)
LEAVES = st.one_of(TEXT, st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False, allow_infinity=False))
DATASETS = st.builds(
    DatasetSpec,
    data_folder=TEXT,
    file_prefix=TEXT,
    num_files_train=st.integers(0, 10**9),
    record_length_bytes=BYTES,
    record_length_bytes_stdev=st.one_of(st.just(0.0), BYTES),
    compressibility=st.floats(0, 0.99, allow_subnormal=False),
    format=st.just("npz"),
    compression=st.sampled_from(["none", "zip"]),
    record_dims=DIMS,
    record_element_type=st.sampled_from(["uint8", "float32"]),
    enable_chunking=st.booleans(),
    hdf5=st.builds(Hdf5, chunk_dims=DIMS, num_dset_per_record=st.integers(1, 9), max_shape=DIMS),
    parquet=st.builds(ParquetSpec, columns=COLUMNS, row_group_size=st.integers(1, 99)),
)
READERS = st.builds(
    Reader,
    batch_size=st.integers(1, 10**6),
    sample_shuffle=st.sampled_from(["off", "seed", "random"]),
    odirect=st.booleans(),
    preprocess_time=durations(),
)
WORKLOADS = st.builds(
    Workload,
    model=st.builds(Model, name=MODEL_NAMES, type=TEXT, model_size_bytes=st.integers(0, 2**62)),
    dataset=DATASETS,
    reader=READERS,
    train=st.builds(Train, epochs=st.integers(1, 99), computation_time=durations()),
    accelerators=st.dictionaries(
        NAMES, st.builds(Accelerator, batch_size=st.integers(1, 99), computation_time=durations()), max_size=2
    ),
    scales=st.dictionaries(NAMES, st.dictionaries(NAMES, st.dictionaries(NAMES, LEAVES, max_size=2)), max_size=2),
    notes=st.lists(TEXT, unique=True, max_size=2).map(tuple),
    unsupported=st.lists(TEXT, unique=True, max_size=2).map(tuple),
)


def is_possible(workload: Workload) -> bool:
    try:
        check(workload)
    except UserError:
        return False
    return not workload.dataset.data_folder.startswith("~")


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(workload=WORKLOADS)
def test_yaml_reads_back_as_the_same_workload(workload: Workload, tmp_path: Path) -> None:
    assume(is_possible(workload))
    saved = tmp_path / "config.yaml"
    saved.write_text(to_yaml(workload), encoding="utf-8")
    assert load([f"workload={saved}"]) == workload


def test_yaml_is_complete() -> None:
    text = to_yaml(Workload())
    assert all(f"\n{key}:" in f"\n{text}" for key in {part.name for part in fields(settings_class())} - {*sections()})
    assert "multiprocessing_context: fork" in text


@settings(deadline=None, max_examples=300)
@given(st.one_of(TEXT, st.integers(), st.booleans(), st.floats(allow_nan=False), st.lists(TEXT, max_size=3)))
def test_a_written_override_reads_back(value: object) -> None:
    _, (setting,) = parse([override(["a", "b"], value)])
    assert setting.path == ("a", "b")
    assert setting.value == value
    assert type(setting.value) is type(value)


@settings(deadline=None, max_examples=20)
@given(DATASETS)
def test_the_command_of_a_workload_makes_its_dataset(dataset: DatasetSpec) -> None:
    workload = replace(Workload(), dataset=dataset)
    assume(is_possible(workload))
    assert load(shlex.split(datagen_command(workload).removeprefix("dlemu datagen"))).dataset == dataset


def test_the_command_of_a_workload_is_short() -> None:
    workload = load(["workload=unet3d", "scale=laptop", "accelerator=v100", "ranks=18", "dataset.num_files_train=7"])
    assert datagen_command(workload) == "dlemu datagen workload=unet3d scale=laptop dataset.num_files_train=7"
    assert datagen_command(load([])) == "dlemu datagen workload=default"
    whole = datagen_command(load(["dataset.record_length_bytes=262000", "dataset.record_length_bytes_stdev=0.5"]))
    assert whole == "dlemu datagen dataset.record_length_bytes=262000 dataset.record_length_bytes_stdev=0.5"


def test_the_command_that_makes_the_dataset_names_its_bucket_without_credentials() -> None:
    bucket = ["storage.storage_type=s3", "storage.storage_root=bucket"]
    options = ["endpoint_url=http://host:1", "s3_force_path_style=true", "account_key=hidden"]
    workload = load(["workload=unet3d", *bucket, *(f"storage.storage_options.{option}" for option in options)])
    said = shlex.split(datagen_command(workload))
    assert said[:5] == ["dlemu", "datagen", "workload=unet3d", *bucket]
    assert {word.partition("storage_options.")[2] for word in said[5:]} == {
        "endpoint_url='http://host:1'",
        "s3_force_path_style=true",
        "account_key=withheld",
    }


RUN = [
    "workload=unet3d",
    "scale=laptop",
    "accelerator=h100",
    "dataset.num_files_train=280",
    "reader.read_threads=3",
    "train.epochs=2",
    "train.computation_time={type: uniform, min: 0.2, max: 0.3}",
]


@pytest.mark.parametrize("words", [[], ["workload=unet3d"], ["++workload.train.epochs=2"], ["scale=laptop"]])
def test_what_words_leave_open_is_another_workloads(words: list[str]) -> None:
    other = load([*RUN, "ranks=2"])
    assert load(words, base=other) == other
    assert load([*words, "ranks=4"], base=other) == replace(other, ranks=4)


def test_what_words_say_stands_over_another_workload() -> None:
    other = load(RUN)
    taken = load(["accelerator=b200", "train.epochs=7", "ranks=16"], base=other)
    own = load(["workload=unet3d", "accelerator=b200"])
    assert (taken.train.epochs, taken.ranks, taken.scale) == (7, 16, "laptop")
    assert (taken.dataset.num_files_train, taken.reader.read_threads) == (280, 3)
    assert taken.train.computation_time == own.train.computation_time
    assert taken.reader.batch_size == own.reader.batch_size
    grown = load(["dataset.num_files_train=1000"], base=other)
    assert grown.dataset == replace(other.dataset, num_files_train=1000)
    assert grown.train.computation_time == other.train.computation_time


def test_another_workload_takes_nothing_over() -> None:
    words = ["workload=resnet50", "accelerator=h100"]
    assert load(words, base=load(RUN)) == load(words)


def test_a_workload_that_no_name_leads_to_is_taken_as_it_is() -> None:
    """Of somebody's own file, which may be gone."""
    other = load(["model.name=mine", "dataset.num_files_train=77", "train.computation_time=0.5", "reader.batch_size=3"])
    taken = load(["ranks=2"], base=other)
    assert (taken.dataset.num_files_train, taken.reader.batch_size) == (77, 3)
    assert taken.train.computation_time == other.train.computation_time
