"""What a user is told whose ranks have no dataset, or too small a one: one command that leads to a verdict."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence

import psutil

from datagen.errors import UserError
from datagen.storage.storage_base import open_storage
from dlemu.config import load
from dlemu.config.overrides import override, parse
from dlemu.config.published import without_secrets
from dlemu.config.schema import Workload
from dlemu.emulator.environment import existing_folder
from dlemu.metrics.cache import WANTED_RATIO
from dlemu.report.units import count, duration, size
from dlemu.run.enough import ASK_BYTES, ENOUGH_STEPS, Need, can_be_judged, enough, steps_of

_LAUNCHERS = ("mpirun", "mpiexec", "mpiexec.hydra", "prterun", "orterun", "srun")
_TRIAL = "laptop"
"""The scale to try things at."""


def typed_command() -> list[str]:
    """Return the command line as it was typed, with the launcher where that runs on this host."""
    for process in psutil.Process().parents():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if words and os.path.basename(words[0]) in _LAUNCHERS:
            return without_secrets(words)
    program = sys.argv[0]
    if os.path.basename(program) == "__main__.py":
        return without_secrets(["python", "-m", "dlemu", *sys.argv[1:]])
    short = os.path.basename(program)
    return without_secrets([short if shutil.which(short) == program else program, *sys.argv[1:]])


def with_words(command: Sequence[str], words: Sequence[str]) -> str:
    """Return a command with further words, fit for a shell; they replace those of the same key."""
    keys = [word.partition("=")[0] for word in words if "=" in word]
    kept = [word for word in command if word not in words and word.partition("=")[0].lstrip("+") not in keys]
    return shlex.join([*kept, *words])


def advise(workload: Workload, ranks: int, files_there: int, overrides: Sequence[str], config_dir: str | None) -> str:
    """Return what these ranks need, and commands that make it and train on it; the first is the one to begin with."""
    command, files = typed_command(), workload.dataset.num_files_train
    steps = steps_of(workload, ranks, files)
    given = "dataset.num_files_train" in given_keys(overrides)
    need = _need(workload, ranks, given=given)
    if files_there >= need.files:
        word = override(["dataset", "num_files_train"], files_there)
        return f"The dataset in the folder has {files_there:,}; to use them:\n    {with_words(command, [word])}"
    who = f"{count(ranks, 'rank')} x batch {workload.reader.batch_size}"
    wanted = f"{files:,} files give {count(steps, 'step')} an epoch of {who}"
    if files < need.files:
        wanted += f"; {ENOUGH_STEPS} take {need.files:,}"
    words = ["--make"]
    if files_there:
        words.append(_elsewhere(workload, str(need.files)))
    if given and files < need.files:
        words.append(override(["dataset", "num_files_train"], need.files))
    if need.bytes <= ASK_BYTES:
        return "\n".join([f"{wanted}.", *_step("To make them and train", workload, need, command, words)])
    full = _step("At full size", workload, need, command, [*words, "--yes"])
    return "\n".join([f"{wanted}.", *_trial(workload, ranks, command, overrides, config_dir), *full])


def allow(workload: Workload, folder: str, ranks: int, making_bytes: int, *, yes: bool) -> None:
    """Ask the user whether so many bytes may be made; raises UserError where the answer is no, or nobody can answer."""
    if making_bytes <= ASK_BYTES or yes:
        return
    room = f" ({size(free)} are free there)" if (free := _free_bytes(workload, folder)) is not None else ""
    says = f"{size(making_bytes)} are to be made in {folder} for {count(ranks, 'rank')}"
    if sys.stdin.isatty() and sys.stderr.isatty():
        import click

        if click.confirm(f"{says}{room}. Go on?", err=True):
            return
        raise UserError("nothing was made")
    smaller = f"; to try it with less: scale={_TRIAL}" if _TRIAL in workload.scales and not workload.scale else ""
    raise UserError(f"{says}{room}: add --yes to make them{smaller}")


def given_keys(overrides: Sequence[str]) -> set[str]:
    """Return the keys that the user gave a value for."""
    return {".".join(setting.path) for setting in parse(overrides).all}


def _need(workload: Workload, ranks: int, *, given: bool) -> Need:
    """Return what the ranks need; a count of the user's own stays where it can be judged."""
    files = workload.dataset.num_files_train
    stays = given and can_be_judged(workload, steps_of(workload, ranks, files))
    return enough(workload, ranks, files=files if stays else 0)


def _trial(
    workload: Workload, ranks: int, command: Sequence[str], overrides: Sequence[str], config_dir: str | None
) -> list[str]:
    """Return how to try it on a small dataset, where the workload has such a scale and the user has chosen none."""
    if _TRIAL not in workload.scales or workload.scale:
        return []
    words = [f"scale={_TRIAL}", _elsewhere(workload, _TRIAL)]
    small = load([*overrides, *words], config_dir=config_dir)
    given = "dataset.num_files_train" in given_keys(overrides)
    return _step("To try it", small, _need(small, ranks, given=given), command, [*words, "--make"])


def _step(says: str, workload: Workload, need: Need, command: Sequence[str], words: Sequence[str]) -> list[str]:
    if _is_kept_in_memory(workload, need):
        words = [*words, "reader.evict_page_cache=epochs"]
    free = _free_bytes(workload, workload.dataset.data_folder)
    room = f", and only {size(free)} are free there" if free is not None and free < need.bytes else ""
    facts = (
        f"{need.files:,} files, {size(need.bytes)}{room}; {duration(max(1, need.write_seconds))} "
        f"to write at 500 MB/s, then {duration(need.train_seconds)} of training or more"
    )
    return [f"{says} ({facts}):", f"    {with_words(command, words)}"]


def _elsewhere(workload: Workload, name: str) -> str:
    """Return a folder beside that of the dataset: two sizes do not share one."""
    return override(["dataset", "data_folder"], f"{workload.dataset.data_folder.rstrip('/')}-{name}")


def _is_kept_in_memory(workload: Workload, need: Need) -> bool:
    """Say whether the page cache would serve such a dataset, so that there would be no verdict."""
    storage, reader = open_storage(workload.storage_spec.buffered), workload.reader
    if reader.odirect or reader.evict_page_cache != "never" or workload.metric.cached or storage.is_remote:
        return False
    if storage.memory_kind(existing_folder(workload.dataset.data_folder)):
        return False
    return need.bytes < WANTED_RATIO * psutil.virtual_memory().total


def _free_bytes(workload: Workload, folder: str) -> int | None:
    storage = open_storage(workload.storage_spec.buffered)
    local = storage.local_path(folder)
    return storage.free_bytes(existing_folder(local) if local is not None else folder)
