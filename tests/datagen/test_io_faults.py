"""Each call to the storage fails once, at every site, in every way: a message that names the file, or no difference."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from datagen.buffers import AlignedBuffer
from datagen.errors import DatasetError, UserError
from datagen.fetch import Fetcher, FetchSpec
from datagen.inspection import inspect
from datagen.spec import DatasetSpec
from datagen.storage import posix
from datagen.storage.storage_base import FOLDERS, StorageSpec
from datagen.verify import Damage, verify
from tests import faulty_storage
from tests.datagen.conftest import MakeSpec, make
from tests.datasets import make_files

FAULTY = StorageSpec(type="tests.faulty_storage")
make_by = partial(make_files, fsync=True)
FORMATS = ("npz", "indexed_binary", "tfrecord")


def read_all(spec: DatasetSpec) -> None:
    """Read every sample of the training set and compare its bytes, as a loader's worker does."""
    found = inspect(spec, storage=FAULTY)
    fetch = FetchSpec(found, found.train, storage=FAULTY, verify=True)
    out = AlignedBuffer().view(fetch.slot_bytes(2))
    fetcher = Fetcher(fetch)
    for first in range(0, found.train.num_files * found.train.num_samples_per_file, 2):
        fetcher.fetch([first, first + 1], out)


def sites(calls: Counter[str], ways: dict[str, tuple[str, ...]]) -> Iterator[tuple[str, int, str]]:
    """Yield every call that was made once, with each way in which such a call can fail."""
    for call, count in calls.items():
        yield from ((call, at, how) for at, how in itertools.product(range(1, count + 1), ways.get(call, ("EIO",))))


@pytest.mark.parametrize("name", FORMATS[:2])
def test_a_dataset_whose_making_failed_anywhere_is_made_whole_by_the_same_command(
    name: str, small: MakeSpec, tmp_path: Path
) -> None:
    spec = small(format=name, num_files_train=1, num_files_eval=1, record_length_bytes_stdev=0)
    with faulty_storage.plan() as plan:
        make_by(spec, FAULTY)
    shutil.rmtree(spec.data_folder)
    assert plan.calls["write"] >= 2
    ways = {"write": ("EIO", "ENOSPC"), "create": ("EACCES",), "sync": ("EIO", "slow"), "size": ("ESTALE",)}
    tried = 0
    for number, (call, at, how) in enumerate(sites(plan.calls, ways)):
        one = replace(spec, data_folder=str(tmp_path / f"{name}-{number}"))
        with faulty_storage.plan(call, at, how) as now:
            if how == "slow":
                make_by(one, FAULTY)
            else:
                with pytest.raises(UserError, match=str(tmp_path)):
                    make_by(one, FAULTY)
        assert now.happened, (call, at, how)
        make_by(one, FAULTY, fsync=False)
        assert verify(one) == [], (call, at, how)
        left = [path for path in Path(one.data_folder).rglob(".*") if path.is_file()]
        assert left == [], "nothing half-made"
        shutil.rmtree(one.data_folder)
        tried += 1
    assert tried > 20


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("work", [read_all, lambda spec: verify(spec, FAULTY)], ids=["read", "verify"])
def test_no_fault_of_a_read_passes_for_right_bytes(
    name: str, work: Callable[[DatasetSpec], list[Damage] | None], small: MakeSpec
) -> None:
    spec = make(small(format=name, num_files_train=4, num_files_eval=0, num_samples_per_file=2))
    with faulty_storage.plan() as plan:
        assert not work(spec)
    tried = 0
    for call, at, how in sites(plan.calls, {"read": ("EIO", "ESTALE", "short", "slow")}):
        with faulty_storage.plan(call, at, how) as now:
            try:
                told = "\n".join(str(finding) for finding in work(spec) or ())
            except DatasetError as error:
                told = str(error)
        assert now.happened, (call, at, how)
        assert (spec.data_folder in told) == (how != "slow"), (call, at, how, told)
        tried += 1
    assert tried >= 10


def test_a_pipe_among_the_files_is_named_before_it_is_opened(small: MakeSpec) -> None:
    spec = make(small())
    for name in ("train/img_2_of_6.npz", "dlemu.json"):
        path = Path(spec.data_folder, name)
        kept = path.read_bytes()
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(DatasetError, match=rf"{name}.* is (a pipe|a device|a folder), wanted a regular file"):
            inspect(spec)
        path.unlink()
        path.write_bytes(kept)
    inspect(spec)


def test_calls_that_signals_interrupt_are_made_again(small: MakeSpec) -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: came.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        assert verify(make(small(record_length_bytes=200_000))) == []
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(came) > 5


@pytest.mark.parametrize("direct", [False, True])
def test_a_write_that_takes_no_byte_is_an_error_and_not_asked_again_for_ever(
    direct: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = posix.Storage(replace(FOLDERS, direct_writes=direct)).create(str(tmp_path / "file"))
    calls = iter([100, *[0] * 1000])
    monkeypatch.setattr(os, "pwrite", lambda *_: next(calls))
    with pytest.raises(OSError, match="accepted no byte of a write"):
        writer.write(bytes(8192))
    writer.discard()
    assert len(list(calls)) == 999
