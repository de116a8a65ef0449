"""What a user's words become: layers, spellings, choices by name, files of one's own, and errors worth reading."""

from __future__ import annotations

import contextlib
import re
import shlex
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datagen.errors import UserError
from dlemu.config import check_runnable, datagen_command, load, loading, to_yaml, workload_names
from dlemu.config.overrides import given_keys, points, take_word
from dlemu.config.schema import Duration, Storage, Workload
from dlemu.dlio.config import dlio_yaml


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def message(overrides: list[str], config_dir: str | None = None) -> str:
    with pytest.raises(UserError) as caught:
        load(overrides, config_dir=config_dir)
    return str(caught.value)


@pytest.mark.parametrize("prefix", ["", "+", "++"])
@pytest.mark.parametrize("section", ["", "workload."])
def test_one_override_in_all_spellings(prefix: str, section: str) -> None:
    words = [f"{prefix}{section}reader.batch_size={size}" for size in (3, 9)]
    spelled = load([*words, f"{prefix}workload=default", f"{prefix}{section}reader.odirect=true"])
    assert spelled == load(["reader={batch_size: 9, odirect: true}"]), "the last word wins"
    assert (spelled.reader.batch_size, spelled.reader.odirect) == (9, True)


def test_old_names_and_nulls_are_overrides_too() -> None:
    old = load(["workload=unet3d", "++workload.dataset.record_length=5e6", "model.model_size=7", "data_reader.nice=1"])
    assert (old.dataset.record_length_bytes, old.model.model_size_bytes, old.reader.nice) == (5e6, 7, 1)
    assert load(["workload=unet3d", "reader.read_threads=null"]).reader.read_threads == Workload().reader.read_threads
    assert load(["workload=unet3d", "output.folder=null", "scale=null"]) == load(["workload=unet3d"])
    for word, format_name in (("jpg", "jpeg"), ("tif", "tiff"), ("jpeg", "jpeg")):
        assert load(["workload=colfax", f"dataset.format={word}"]).dataset.format == format_name


def test_a_sections_mapping_is_merged_and_a_time_is_replaced() -> None:
    merged = load(["workload=unet3d", "dataset={num_files_train: 3}"])
    assert (merged.dataset.num_files_train, merged.dataset.format) == (3, "npz")
    gamma = "train.computation_time={type: gamma, shape: 1, scale: 2}"
    replaced = load(["train.computation_time={mean: 1, stdev: 2}", gamma])
    assert replaced.train.computation_time == Duration(type="gamma", shape=1, scale=2)
    for words in (["train.computation_time_stdev=0.1", "train.computation_time=3"],) * 2:
        wide = load(["workload=unet3d", *words]), load(["workload=unet3d", *reversed(words)])
        assert {each.train.computation_time for each in wide} == {Duration(type="normal", mean=3, stdev=0.1)}


def test_accelerator_picks_the_pair_and_an_explicit_value_wins() -> None:
    v100 = load(["workload=unet3d", "accelerator=v100"])
    assert (v100.reader.batch_size, v100.train.computation_time.mean) == (4, 1.3604)
    explicit = load(["reader.batch_size=2", "workload=unet3d", "accelerator=v100"])
    assert (explicit.reader.batch_size, explicit.train.computation_time.mean) == (2, 1.3604)
    assert load(["workload=unet3d", "accelerators.h100.batch_size=9"]).reader.batch_size == 9, "of a changed table"


def test_accelerator_replaces_values_that_a_saved_file_has_resolved(tmp_path: Path) -> None:
    table = "accelerators:\n  a: {batch_size: 1, computation_time: 1}\n  b: {batch_size: 2, computation_time: 2}\n"
    text = f"accelerator: a\n{table}"
    bare = write(tmp_path, "bare.yaml", text)
    assert load([f"workload={bare}"]).reader.batch_size == 1, "fills in what the file leaves open"
    saved = write(tmp_path, "saved.yaml", text + "reader: {batch_size: 7}\ntrain: {computation_time: 7}\n")
    assert load([f"workload={saved}"]).reader.batch_size == 7, "what the file says stays"
    other = load([f"workload={saved}", "accelerator=b"])
    assert (other.reader.batch_size, other.train.computation_time.mean) == (2, 2)


def test_scale_wins_over_the_file_and_the_user_over_the_scale() -> None:
    full, small = load(["workload=unet3d"]), load(["workload=unet3d", "scale=laptop"])
    assert small.dataset.record_length_bytes < full.dataset.record_length_bytes / 200
    assert small.train.computation_time == full.train.computation_time
    own = load(["dataset.num_files_train=5", "workload=unet3d", "scale=laptop"])
    assert (own.dataset.num_files_train, own.dataset.record_length_bytes) == (5, small.dataset.record_length_bytes)


def test_a_file_that_only_claims_a_scale_is_refused(tmp_path: Path) -> None:
    text = "scale: small\nscales: {small: {dataset: {num_files_train: 3}}}\ndataset: {num_files_train: %d}\n"
    assert "give scale=small as an override" in message([f"workload={write(tmp_path, 'a.yaml', text % 300)}"])
    assert load([f"workload={write(tmp_path, 'b.yaml', text % 3)}"]).scale == "small"


def test_a_file_may_lie_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "mine.yaml", "hydra: {run: {dir: elsewhere}}\ntrain: {epochs: 4}\n")
    monkeypatch.chdir(tmp_path)
    mine = load(["workload=mine.yaml"])
    assert (mine.train.epochs, mine.model.name) == (4, "mine"), "a file without a model is called by its name"


def test_config_dir_adds_workloads_and_wins_over_shipped_ones(tmp_path: Path) -> None:
    write(tmp_path, "workload/mine.yaml", "model: {name: unet3d}\nreader: {batch_size: 3}\n")
    write(tmp_path, "workload/default.yaml", "train: {epochs: 77}\n")
    assert "mine" in workload_names(str(tmp_path))
    mine = load(["workload=mine"], config_dir=str(tmp_path))
    assert (mine.model.name, mine.reader.batch_size) == ("unet3d", 3)
    assert load([], config_dir=str(tmp_path)).train.epochs == 77
    assert load(["workload=unet3d"], config_dir=str(tmp_path)) == load(["workload=unet3d"])
    assert re.search(r"--config-dir .*/workload can't be listed", message([], config_dir=str(tmp_path / "workload")))


def test_a_storage_of_ones_own_gets_its_root_and_options_but_no_credentials() -> None:
    options = "{endpoint: here, retries: 3, secret_access_key: hunter2, session_token: hunter2}"
    asked = ["storage.storage_type=mine.store", "storage.storage_root=bucket", f"storage.storage_options={options}"]
    workload = load([*asked, "dataset.data_folder=set"])
    spec = workload.storage_spec
    assert (spec.type, spec.root, spec.options) == ("mine.store", "bucket", (("endpoint", "here"), ("retries", 3)))
    assert workload.dataset.data_folder == "set", "paths in it are its own"
    left_out = [note for note in workload.notes if "give them in the environment" in note]
    assert [note.split(" ", 1)[0].rpartition(".")[2] for note in left_out] == ["secret_access_key", "session_token"]
    assert "hunter2" not in to_yaml(workload) + "".join(workload.notes)


def test_direct_is_another_word_for_odirect() -> None:
    workload = load(["storage.storage_type=direct"])
    assert workload.reader.odirect
    assert workload.storage_spec == load(["reader.odirect=true"]).storage_spec
    assert load(["storage.storage_type=parallel_fs"]).storage_spec == load([]).storage_spec


def test_a_relative_folder_starts_at_the_storage_root_once() -> None:
    rooted = load(["workload=unet3d", "storage.storage_root=mnt"])
    assert (rooted.dataset.data_folder, rooted.storage.storage_root) == ("mnt/data/unet3d", "./")
    assert rooted.checkpoint.checkpoint_folder == "mnt/checkpoints/unet3d"


@pytest.mark.parametrize(
    ("root", "folder", "wanted"),
    [
        ("./", "data/x", "data/x"),
        (".", "./data/", "./data/"),
        ("/mnt", "data/x/", "/mnt/data/x"),
        ("mnt", "../x", "x"),
        ("/mnt", "/data", "/data"),
        ("bucket", "s3://bucket/x", "s3://bucket/x"),
        ("~/mnt", "x", "/home/me/mnt/x"),
        ("./", "~/x", "/home/me/x"),
    ],
)
def test_a_folder_starts_at_the_root(root: str, folder: str, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert Storage(storage_root=root).resolved(folder) == wanted


def test_hydras_run_folder_is_the_output_folder() -> None:
    workload = load(["++hydra.run.dir=/tmp/leaf", "++hydra.output_subdir=dlio_config", "hydra/job_logging=colorlog"])
    assert workload.output.folder == "/tmp/leaf"
    assert [note.split(" ", 1)[0] for note in workload.notes] == ["hydra.output_subdir", "hydra.job_logging"]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["workload=unet3"], "there is no workload 'unet3': did you mean unet3d? known: bert, colfax, cosmoflow,"),
        (["workload=unet3d_h100"], "did you mean unet3d?"),
        (["workload=unet3d", "accelerator=h10"], "did you mean h100? known: v100, a100, h100, b200"),
        (["accelerator=h100"], "'default' has no accelerators"),
        (["workload=unet3d", "scale=laptp"], "did you mean laptop?"),
        (["scale=laptop"], "'default' has no scales"),
        (["reader.data_loader=null"], "reader.data_loader is empty: wanted str"),
        (["accelerators={x: {batch_size: 2}}"], "accelerators.x.computation_time is missing"),
        (
            ["accelerators={x: {batch_size: 2, computation_time: slow}}"],
            "accelerators.x.computation_time is 'slow' (str)",
        ),
        (["reader.file_shuffle=null"], "reader.file_shuffle is empty: wanted one of off, seed, random"),
        (["dataset.data_folder=null"], "dataset.data_folder is empty: wanted str"),
        (["workload=nowhere/x.yaml"], "workload=nowhere/x.yaml: there is no such file"),
        (["workload=x.yml"], "it does not end in .yaml"),
        (["workload=null"], "workload=null: wanted workload=NAME"),
        (["reader"], "'reader' is not a setting: wanted KEY=VALUE"),
        (["~reader.batch_size"], "nothing can be deleted"),
        (["reader.batch_size=1,2"], "dlemu takes one value for each key"),
        (["dataset.data_folder=/a'b,c"], """in a shell: 'dataset.data_folder="/a'"'"'b,c"'"""),
        (["model@here=x"], "no setting has a package"),
        (["=3"], "the key is empty"),
        (["output.folder=${nowhere}"], "'nowhere' not found (at output.folder)"),
    ],
)
def test_bad_words_get_a_message_that_helps(overrides: list[str], said: str) -> None:
    assert said in message(overrides)


def test_several_problems_come_in_one_message() -> None:
    assert message(["a=1,2", "b", "c=["]).startswith("3 problems:")
    seen = message(["reader.batchsize=4", "train.epochs=five", "train.computation_time=x"])
    assert seen.startswith("3 problems:")
    assert all(key in seen for key in ("reader.batchsize", "train.epochs", "train.computation_time"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("reader: {batch_size: 3\n", "line 1"),
        ("reader: {nice: 1, nice: 2}\n", "duplicate key nice"),
        ("- a\n", "can't be read: it is a list: wanted a mapping"),
        ("defaults: [unet3d]\nreader: {}\n", "includes other files by a defaults list: wanted one file"),
        ("model: {name: '???'}\n", "(at model.name)"),
        ("workload: {ranks: 2}\nranka: 3\n", "unknown key ranka: did you mean ranks?"),
    ],
)
def test_a_bad_file_gets_a_message_that_names_it(tmp_path: Path, text: str, said: str) -> None:
    assert said in message([f"workload={write(tmp_path, 'bad.yaml', text)}"])
    (tmp_path / "bad.yaml").write_bytes(b"\xff\xfe\x00")
    assert "bad.yaml can't be read" in message([f"workload={tmp_path}/bad.yaml"])


def test_the_names_that_a_missing_file_could_have_are_the_users_own_too(tmp_path: Path) -> None:
    write(tmp_path / "workload", "mine.yaml", "ranks: 2\n")
    with pytest.raises(UserError, match=r"there is no such file; .*, mine, .*unet3d"):
        load([f"workload={tmp_path}/nowhere.yaml"], config_dir=str(tmp_path))


KEYS = ["", "ranks", "reader.nice", "train.computation_time", "workload.accelerators", "scales.x", "model", "notes"]
VALUES = st.one_of(
    st.text(st.sampled_from("${}\\'\"=,:[]()~.#@!%1e- ab\n"), max_size=9),
    st.sampled_from(["{mean: 1, stdev: 2}", "[1, [2]]", "{a: {b: null}}", "null", "1e400", "${ranks}", "{1: 2}"]),
)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(KEYS), VALUES), max_size=3))
def test_no_words_end_in_a_traceback(words: list[tuple[str, str]]) -> None:
    with contextlib.suppress(UserError):
        load([f"{key}={value}" for key, value in words])


@pytest.mark.parametrize("path", ["/mnt/a(1)/x[2]", "/mnt/it's", "/mnt/\u00e4,b"])
def test_a_path_that_the_grammar_refuses_is_shown_in_quotes(path: str) -> None:
    said = message([f"dataset.data_folder={path}", "reader.batch_size=3"])
    assert "is not in hydra's grammar" in said
    (quoted,) = shlex.split(said.rpartition("in a shell: ")[2])
    assert load(["dataset.data_folder=/mnt/my #1;x/\u65e5"]).dataset.data_folder == "/mnt/my #1;x/\u65e5"
    workload = load([quoted])
    assert workload.dataset.data_folder == path
    assert load(shlex.split(datagen_command(workload))[2:]).dataset.data_folder == path


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("'/a=b, c'", "/a=b, c"),
        ("'/it\\'s'", "/it's"),
        ("'/\u00e4(1)'", "/\u00e4(1)"),
        ("12", "12"),
        ("[1]", "[1]"),
        ("null", ""),
        ("mpirun --host a,b -np {ranks}", "mpirun --host a,b -np {ranks}"),
    ],
)
def test_a_word_that_a_command_takes_for_itself_means_what_the_grammar_says(value: str, text: str) -> None:
    for prefix in ("", "++workload."):
        words = ["ranks=1", f"{prefix}output.folder={value}", "output.report=false"]
        assert take_word(words, "output.folder") == (text, ["ranks=1", "output.report=false"])


def test_the_home_folder_is_the_same_for_every_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    words = ["dataset.data_folder=~/data", "output.folder=~/results"]
    workload = load(words)
    assert (workload.dataset.data_folder, workload.output.folder) == ("/home/me/data", "/home/me/results")
    assert take_word(words, "output.folder")[0] == "/home/me/results"


@pytest.mark.parametrize("name", ["indexed_binary", "mmap_indexed_binary"])
def test_flat_files_of_ones_own_have_no_index_for_a_library(name: str, tmp_path: Path) -> None:
    (tmp_path / "tokens.bin").write_bytes(bytes(100_000))
    own = [f"dataset.data_folder={tmp_path}", "dataset.source=folder", f"dataset.format={name}"]
    words = [*own, "dataset.record_length_bytes=1000", "reader.batch_size=1", "reader.engine=library"]
    with pytest.raises(UserError, match="by its index, which your files lack; wanted 'matched'"):
        check_runnable(load(words))


@pytest.mark.parametrize(
    ("name", "missing", "loader"),
    [
        ("resnet50", ("tensorflow",), "pytorch"),
        ("cosmoflow", ("tensorflow",), "pytorch"),
        ("bert", ("tensorflow", "torch"), "threads"),
        ("unet3d", ("tensorflow",), "pytorch"),
    ],
)
def test_without_tensorflow_another_loader_reads_its_files_and_a_note_says_so(
    name: str, missing: tuple[str, ...], loader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "find_spec", lambda module: None if module in missing else ModuleSpec(module, None))
    workload = load([f"workload={name}"])
    assert workload.reader.data_loader == loader
    notes = [note for note in workload.notes if note.startswith("TensorFlow is not installed: reader.data_loader=")]
    assert len(notes) == (name != "unet3d")
    check_runnable(workload)
    if name != "unet3d":
        assert "data_loader: tensorflow" in dlio_yaml(workload), "which DLIO has for this format alone"
    assert load([f"workload={name}", "reader.data_loader=tensorflow"]).reader.data_loader == "tensorflow", "as asked"


def test_files_that_tensorflow_has_no_reader_for_are_read_by_another_loader() -> None:
    workload = load(["workload=resnet50", "dataset.format=npz"])
    assert workload.reader.data_loader == "pytorch"
    assert any("TensorFlow has a reader for tfrecord alone" in note for note in workload.notes)
    with pytest.raises(UserError, match="for which TensorFlow has no reader; wanted one of tfrecord"):
        check_runnable(load(["workload=resnet50", "dataset.format=npz", "reader.data_loader=tensorflow"]))


def test_several_texts_are_several_runs_and_a_drive_may_be_a_bucket() -> None:
    """Settings of the storage are then for it alone."""
    assert given_keys(["++workload.dataset.data_folder=/d", "reader={nice: 4}"]) == {
        "dataset.data_folder",
        "reader.nice",
    }
    runs = points(["drives='/mnt/\u00e4 1',/mnt/b", "ranks=1"])
    assert [load(run.words).dataset.data_folder for run in runs] == ["/mnt/\u00e4 1", "/mnt/b"]
    for drive in ("s3://data/unet3d", "'s3://data/unet3d'"):
        words = ["workload=unet3d", f"drives=/mnt/a,{drive}", "storage.storage_options.endpoint_url=http://h:9"]
        local, bucket = points([*words, "storage.storage_type=s3"])
        assert [one.settings["dataset.data_folder"] for one in (local, bucket)] == ["/mnt/a", drive]
        assert local.words == ("workload=unet3d", "dataset.data_folder=/mnt/a")
        found = load(bucket.words)
        assert (found.storage.storage_type, found.dataset.data_folder) == ("s3", "s3://data/unet3d")
        assert found.storage.storage_options == {"endpoint_url": "http://h:9"}
