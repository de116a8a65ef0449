"""Eviction: the dataset's pages leave memory, each file once a host, and tmpfs is refused."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from datagen.errors import DatasetError, UserError
from datagen.inspection import inspect
from dlemu.config import check_runnable
from dlemu.config.schema import Reader
from dlemu.jobs.training.evict import evict
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.preflight import check_host
from dlemu.machine.environment import describe_folder
from dlemu.machine.thread_accounting import ThreadAccounting
from tests.datasets import make_dataset
from tests.runs import make_job


def job_on(folder: Path, when: Literal["never", "start", "epochs"] = "epochs") -> TrainingJob:
    spec = make_dataset(folder, num_files_train=6, record_length_bytes=1_000_000, format="mmap_indexed_binary")
    job = make_job(ranks=1, steps=1, dataset=spec, reader=Reader(evict_page_cache=when))
    return replace(job, dataset=inspect(spec))


def test_when_pages_are_dropped() -> None:
    told = {
        when: [make_job(reader=Reader(evict_page_cache=when)).evicts_before(epoch) for epoch in (1, 2, 3)]
        for when in ("never", "start", "epochs")
    }
    assert told == {"never": [False] * 3, "start": [True, False, False], "epochs": [True] * 3}


def test_evicted_files_come_from_storage_again(tmp_path: Path) -> None:
    job, books = job_on(tmp_path), ThreadAccounting()
    paths = [f"{job.dataset.train.path(file)}{index}" for index in ("", ".off.idx") for file in range(6)]

    def fetched() -> list[bool]:
        """Read each file and its index; say whether the storage had to serve it."""
        told = []
        for path in paths:
            before = books.look().storage_bytes
            Path(path).read_bytes()
            told.append(books.look().storage_bytes > before)
        return told

    evict(job, 0, 1, write_first=True)
    if not any(fetched()):
        pytest.skip(f"the file system of {tmp_path} keeps no books, or is memory")
    assert fetched() == [False] * 12
    evict(job, 1, 2, write_first=False)
    assert fetched() == [False, True] * 6, "two ranks of a host share the files"


@pytest.mark.parametrize("whole_bytes", [64 << 20, 1 << 20])
def test_a_share_of_the_dataset_is_in_the_page_cache_again(
    whole_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of small files, so many are; of large ones, so much of each."""
    monkeypatch.setattr("dlemu.jobs.training.evict._WHOLE_BYTES", whole_bytes)
    spec = make_dataset(tmp_path, num_files_train=8, record_length_bytes=20_000_000)
    job, books = make_job(ranks=1, steps=1, dataset=spec), ThreadAccounting()
    for percent in (0, 40, 100):
        reader = Reader(evict_page_cache="start", page_cache_percent=percent)
        kept = replace(job, dataset=inspect(spec), workload=replace(job.workload, reader=reader))
        evict(kept, 0, 1, write_first=True)
        before = books.look().storage_bytes
        read = sum(len(Path(kept.dataset.train.path(number)).read_bytes()) for number in range(8))
        share = 100 * (books.look().storage_bytes - before) / read
        if percent == 0 and share < 50:
            pytest.skip(f"the file system of {tmp_path} keeps no books, or is memory")
        assert share == pytest.approx(100 - percent, abs=2), (
            "of a file or piece, the beginning, where the share is not of whole ones"
        )


def test_a_share_needs_an_eviction() -> None:
    with pytest.raises(UserError, match="page_cache_percent is 40"):
        check_runnable(make_job(reader=Reader(page_cache_percent=40)).workload)
    direct = Reader(page_cache_percent=40, evict_page_cache="start", odirect=True)
    with pytest.raises(UserError, match="these reads bypass the page cache"):
        check_runnable(make_job(reader=direct).workload)


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    job = job_on(tmp_path)
    os.unlink(job.dataset.train.path(3))
    with pytest.raises(DatasetError, match="img_3"):
        evict(job, 0, 1, write_first=False)


def test_memory_can_not_be_evicted_from_memory(tmp_path: Path) -> None:
    shm = Path("/dev/shm")
    if describe_folder(str(shm)).file_system != "tmpfs":
        pytest.skip("/dev/shm is no tmpfs here")
    dataset = replace(make_job().workload.dataset, data_folder=str(shm))
    with pytest.raises(UserError, match="files are always in memory"):
        check_host(make_job(dataset=dataset, reader=Reader(evict_page_cache="start")), local_ranks=1)
    check_host(make_job(dataset=dataset), local_ranks=1)


def test_mapped_files_are_refused() -> None:
    dataset = replace(make_job().workload.dataset, format="mmap_indexed_binary")
    with pytest.raises(UserError, match="mapped"):
        check_runnable(make_job(dataset=dataset, reader=Reader(evict_page_cache="epochs")).workload)
