"""Impossible values, and what can't be trained."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from msgspec import Meta

from datagen.errors import UserError
from datagen.settings import declared, problems
from dlemu.config import check_data, check_runnable, load
from dlemu.config.schema import Duration, Workload
from dlemu.runner.run_folder import check_place


def test_a_number_that_no_float_holds_is_refused() -> None:
    for key in ("dataset.num_files_train", "dataset.record_length_bytes", "train.computation_time"):
        with pytest.raises(UserError, match=re.escape(key)):
            load([f"{key}={'9' * 400}"])


def ranged(where: tuple[str, ...], section: Any) -> Iterator[tuple[tuple[str, ...], Meta]]:
    for name, parts in declared(section).items():
        yield from (((*where, name), part) for part in parts if isinstance(part, Meta))
        hint = get_type_hints(section)[name]
        if is_dataclass(hint) and hint is not Duration:
            yield from ranged((*where, name), hint)


def test_a_number_out_of_its_fields_range_is_refused_and_the_ends_are_not() -> None:
    ranges = [
        (path, allowed)
        for path, allowed in ranged((), Workload)
        if isinstance(reduce(getattr, path, Workload()), int | float)
    ]
    assert {path[0] for path, _ in ranges} >= {"ranks", "model", "dataset", "reader", "train", "metric"}
    for path, allowed in ranges:

        def named(number: float, path: tuple[str, ...] = path) -> bool:
            return any(line.startswith(f"{'.'.join(path)} is ") for line in problems(put(Workload(), path, number)))

        least, most = allowed.ge if allowed.gt is None else sys.float_info.min, allowed.le
        assert least is not None
        assert named(least - 3), path
        assert not named(least)
        assert most is None or (named(most * 2), named(most)) == (True, False)


def put(section: Any, path: tuple[str, ...], value: object) -> Any:
    name, *rest = path
    return replace(section, **{name: put(getattr(section, name), tuple(rest), value) if rest else value})


def test_of_a_count_that_may_be_all_of_them_nothing_is_no_number() -> None:
    for key in ("model.parallelism.data", "train.total_training_steps", "checkpoint.steps_between_checkpoints"):
        load([f"{key}=-1"])
        with pytest.raises(UserError, match=f"{key} is 0"):
            load([f"{key}=0"])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("workflow.train=false", "workflow.train is false: nothing would be trained"),
        ("storage.storage_type=s3", "no S3 server is named: set storage.storage_options.endpoint_url"),
        ("storage.storage_type=fsspec", "storage.storage_root is './': fsspec needs a URL there"),
        ("reader.io_depth=4", "reader.io_depth is 4, which local_fs does not use"),
        (
            "storage.storage_type=fsspec storage.storage_root=memory:// reader.range_bytes=9",
            "reader.range_bytes is 9, which fsspec does not use",
        ),
        ("storage.storage_type=parallelfs", "storage.storage_type is 'parallelfs': did you mean parallel_fs?"),
        ("storage.storage_type=no.such", "'no.such' is neither a module that Python can import"),
        (
            "dataset.data_folder=s3://bucket/x",
            "dataset.data_folder is 's3://bucket/x', a URL: wanted storage.storage_type=s3, or a path of a mounted",
        ),
        ("dataset.format=npzz", "dataset.format is 'npzz': did you mean npz? wanted one of csv"),
        ("reader.data_loader=pytorh", "reader.data_loader is 'pytorh': did you mean pytorch?"),
        ("reader.tensors=2", "wanted both, or neither"),
        ("reader.tensors=2 reader.tensor_bytes=100 reader.data_loader=threads", "this loader collates no tensors"),
        ("reader.engine=library reader.odirect=true", "reader.engine=library reads files through the page cache"),
        ("dataset.format=synthetic reader.verify=true", "reader.verify is true, but files of format synthetic are not"),
        ("reader.transformed_record_dims=[2,2]", "reader.transformed_record_dims: not supported yet"),
        ("workflow.checkpoint=true checkpoint.keep_last=1", "checkpoint.keep_last is 1: training keeps all"),
    ],
)
def test_what_cannot_be_trained_is_said(override: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "S3_"))]:
        monkeypatch.delenv(name)
    workload = load(override.split())
    with pytest.raises(UserError) as caught:
        check_runnable(workload)
    assert said in str(caught.value)


def test_data_that_can_not_be_made_is_refused_whatever_trains_on_it() -> None:
    check_data(load(["workflow.train=false", "reader.data_loader=pytorh", "train.compute=slep"]))
    with pytest.raises(UserError) as caught:
        check_data(load(["dataset.data_folder=s3://bucket/x", "dataset.format=npzz"]))
    assert all(key in str(caught.value) for key in ("2 problems", "dataset.data_folder is", "dataset.format is "))


def test_a_module_of_ones_own_is_let_through_when_it_is_there() -> None:
    check_runnable(load(["dataset.format=datagen.formats.npz", "reader.data_loader=dlemu.loaders.threads.Loader"]))
    with pytest.raises(UserError) as caught:
        check_runnable(load(["dataset.format=my.formats.raw", "reader.data_loader=my.loader"]))
    for key, name in (("dataset.format", "my.formats.raw"), ("reader.data_loader", "my.loader")):
        assert f"{key}: {name!r} is neither a module that Python can import" in str(caught.value)


@pytest.mark.parametrize(("below", "refused"), [("", True), ("/checkpoints", True), ("-checkpoints", False)])
def test_nothing_is_saved_among_files_of_the_users_own(below: str, refused: bool, tmp_path: Path) -> None:
    data, link = tmp_path / "photos", tmp_path / "link"
    data.mkdir()
    link.symlink_to(data)
    (data / "1.raw").write_bytes(bytes(100))
    words = [f"dataset.data_folder={data}", "dataset.source=folder", f"checkpoint.checkpoint_folder={link}{below}"]
    check_runnable(load(words))
    saving = load([*words, "workflow.checkpoint=true"])
    if not refused:
        check_runnable(saving)
        return
    with pytest.raises(UserError, match="writes nothing among files of your own"):
        check_runnable(saving)


def test_checkpoints_are_checked_only_if_there_are_any() -> None:
    check_runnable(load(["checkpoint.checkpoint_folder=s3://bucket/x", "checkpoint.keep_last=1"]))
    with pytest.raises(UserError, match=r"checkpoint\.checkpoint_folder"):
        check_runnable(load(["checkpoint.checkpoint_folder=s3://bucket/x", "workflow.checkpoint=true"]))


@pytest.mark.parametrize("url", ["s3://bucket/kv", "file:///mnt/nvme", "nas:/export", "az:/container"])
def test_a_url_is_no_folder(url: str) -> None:
    wanted = f"storage.storage_type={'s3' if url.startswith('s3') else 'fsspec'}, or a path"
    with pytest.raises(UserError, match=f"storage.storage_root is '{url}', a URL: wanted {wanted}"):
        load([f"storage.storage_root={url}"])
    with pytest.raises(UserError, match=f"output.folder is '{url}', a URL: wanted a path"):
        check_place(url)
    load(["storage.storage_type=fsspec", "storage.storage_root=memory://b"])
