"""Reading past the page cache works on the storage: tried on a file of the dataset, or one made for it."""

from __future__ import annotations

import os

from datagen.buffers import AlignedBuffer
from datagen.errors import UserError
from datagen.storage.storage_base import StorageBase, StorageSpec, open_storage
from dlemu.doctor.check_base import Check, Facts

NAME, ORDER = "O_DIRECT", 250
_BLOCK_BYTES = 4096


def check(facts: Facts) -> Check | None:
    if not facts.has_folders:
        return None
    dataset = facts.usable_dataset
    file = dataset.train.path(0) if dataset and dataset.train.num_files else None
    return look(facts.storage.folder, file, facts.workload.reader.odirect)


def look(folder: str, file: str | None, odirect: bool) -> Check:
    storage = open_storage(StorageSpec(direct=True))
    problem = _problem_reading(storage, file) if file else _problem_reading_own(storage, folder)
    if not problem:
        return Check(name=NAME, level="ok", observed=f"works in {folder}")
    if odirect:
        advice = "reader.odirect=false, or a folder on another file system"
        return Check(name=NAME, level="fail", observed=problem, wanted="reader.odirect=true", advice=advice)
    advice = "leave reader.odirect at false there"
    return Check(name=NAME, level="warn", observed=problem, wanted="reads past the page cache", advice=advice)


def _problem_reading_own(storage: StorageBase, folder: str) -> str:
    path = f"{folder}/.dlemu-doctor-{os.getpid()}"
    try:
        writer = storage.create(path)
        try:
            writer.write(bytes(_BLOCK_BYTES))
            writer.commit()
        except BaseException:
            writer.discard()
            raise
        problem = _problem_reading(storage, path)
        storage.remove(path)
        return problem
    except OSError as error:
        return f"not tried: {folder}: {error.strerror}"


def _problem_reading(storage: StorageBase, path: str) -> str:
    """Return why one block can't be read past the cache, nothing when it can."""
    try:
        reader = storage.open(path)
        try:
            reader.read_into(AlignedBuffer().view(_BLOCK_BYTES), 0)
        finally:
            reader.close()
    except UserError:
        return f"{path}: this file system has no O_DIRECT"
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    return ""
