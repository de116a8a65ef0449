"""Advice for a run without a dataset, or with too small a one: commands that generate one and give a verdict."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import psutil

from datagen.storage.storage_base import open_storage
from dlemu.config import load
from dlemu.config.overrides import given_keys, override
from dlemu.config.schema import Workload
from dlemu.jobs.training.preflight import ENOUGH_STEPS, Need, can_be_judged, enough, steps_of
from dlemu.machine.environment import existing_folder
from dlemu.metrics.cache import WANTED_RATIO
from dlemu.report.units import size
from dlemu.results.wording import count
from dlemu.runner.datasets import free_bytes
from dlemu.runner.job import CONFIRM_ABOVE_BYTES, TRIAL_SCALE, NoVerdictError


def advise(error: NoVerdictError, command: Sequence[str], overrides: Sequence[str], config_dir: str | None) -> str:
    """Return how large a dataset the ranks need, and commands that generate it and train on it; the first is to try."""
    workload, ranks, files_there = error.workload, error.ranks, error.files_there
    files = workload.dataset.num_files_train
    load_text = f"{count(ranks, 'rank')} x batch {workload.reader.batch_size}"
    if workload.dataset.source == "folder":  # dlemu makes nothing among a user's own files
        few = f"{load_text} get {count(steps_of(workload, ranks, files_there), 'step')} per epoch"
        larger = "set dataset.data_folder to a folder with more files, or cut files that hold many samples"
        return f"{few}: lower ranks or reader.batch_size, {larger} (dataset.format=indexed_binary)"
    given = "dataset.num_files_train" in given_keys(overrides)
    need = _need(workload, ranks, given=given)
    if files_there >= need.files:
        word = override(["dataset", "num_files_train"], files_there)
        return f"The folder already has {files_there:,} files; to use them:\n    {with_words(command, [word])}"
    wanted = f"{files:,} files give {count(steps_of(workload, ranks, files), 'step')} per epoch for {load_text}"
    if files < need.files:
        wanted += f"; {ENOUGH_STEPS} take {need.files:,}"
    words = ["--make"]
    if files_there:
        words.append(_folder_beside(workload, str(need.files)))
    if given and files != need.files:
        words.append(override(["dataset", "num_files_train"], need.files))
    if need.bytes <= CONFIRM_ABOVE_BYTES:
        return "\n".join([f"{wanted}.", *_step("To generate them and train", workload, need, command, words)])
    tried = []
    if TRIAL_SCALE in workload.scales and not workload.scale:
        scaled = [f"scale={TRIAL_SCALE}", _folder_beside(workload, TRIAL_SCALE)]
        small = load([*overrides, *scaled], config_dir=config_dir)
        tried = _step("To try it", small, _need(small, ranks, given=given), command, [*scaled, "--make"])
    full = _step("At full size", workload, need, command, [*words, "--yes"])
    free = free_bytes(workload, workload.dataset.data_folder)
    if free is not None and free < need.bytes:
        larger = "set dataset.data_folder to a larger file system"
        full = [f"At full size it takes {size(need.bytes)}, and {size(free)} are free: {larger}."]
    return "\n".join([f"{wanted}.", *tried, *full])


def _need(workload: Workload, ranks: int, *, given: bool) -> Need:
    """Return the dataset that the ranks need; with a `given` number of files, that, if it suffices for a verdict."""
    files = workload.dataset.num_files_train
    keep_count = given and can_be_judged(workload, steps_of(workload, ranks, files))
    return enough(workload, ranks, files=files if keep_count else 0)


def _step(heading: str, workload: Workload, need: Need, command: Sequence[str], words: Sequence[str]) -> list[str]:
    """Return a heading with the dataset's size, and the command with `words` added."""
    if _fits_page_cache(workload, need):
        words = [*words, "reader.evict_page_cache=epochs"]
    return [f"{heading} ({need.files:,} files, {size(need.bytes)}):", f"    {with_words(command, words)}"]


def _folder_beside(workload: Workload, name: str) -> str:
    """Return the setting of a folder next to the dataset's, for a dataset of another size."""
    return override(["dataset", "data_folder"], f"{workload.dataset.data_folder.rstrip('/')}-{name}")


def _fits_page_cache(workload: Workload, need: Need) -> bool:
    """Return whether the page cache may serve a dataset of that size, which would prevent a verdict."""
    storage, reader = open_storage(workload.storage_spec.buffered), workload.reader
    if reader.odirect or reader.evict_page_cache != "never" or workload.metric.cached or storage.is_remote:
        return False
    if storage.memory_kind(existing_folder(workload.dataset.data_folder)):
        return False
    return need.bytes < WANTED_RATIO * psutil.virtual_memory().total


def with_words(command: Sequence[str], words: Sequence[str]) -> str:
    """Return the command with `words` added, quoted for a shell; `key=value` words replace those of the same key."""
    keys = [word.partition("=")[0] for word in words if "=" in word]
    kept = [word for word in command if word not in words and word.partition("=")[0].lstrip("+") not in keys]
    return shlex.join([*kept, *words])
