"""The storage supports O_DIRECT: tried on a file of the dataset or, without a dataset, on a temporary one."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile

from datagen.storage.storage_base import open_storage
from dlemu.doctor.check_base import Check, Facts

NAME, ORDER = "O_DIRECT", 250
_BLOCK_BYTES = 4096  # a multiple of every drive's logical block, 512 or 4096


def check(facts: Facts) -> Check | None:
    spec, dataset = facts.workload.storage_spec, facts.usable_dataset
    if facts.folder is None:
        open_storage(spec)  # raises if reader.odirect is true and this storage does not support it
        return None
    file = facts.storage.local_path(dataset.train.path(0)) if dataset and dataset.train.num_files else None
    return look(facts.folder, file, spec.direct)


def look(folder: str, file: str | None, direct: bool) -> Check:
    problem = _problem_reading(file) if file else _problem_reading_own(folder)
    if not problem:
        return Check(name=NAME, level="ok", observed=f"works in {folder}")
    if direct:
        advice = "reader.odirect=false, or a folder on another file system"
        return Check(name=NAME, level="fail", observed=problem, wanted="reader.odirect=true", advice=advice)
    advice = "leave reader.odirect at false there"
    return Check(name=NAME, level="warn", observed=problem, wanted="reads that bypass the page cache", advice=advice)


def _problem_reading_own(folder: str) -> str:
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".dlemu-doctor-") as file:
            file.write(bytes(_BLOCK_BYTES))
            file.flush()
            return _problem_reading(file.name)
    except OSError as error:
        return f"not tried: {folder}: {error.strerror}"


def _problem_reading(path: str) -> str:
    """Return why one block can't be read with O_DIRECT; empty if it can."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        try:
            os.preadv(fd, [mmap.mmap(-1, _BLOCK_BYTES)], 0)  # a mapping is page-aligned, as O_DIRECT requires
        finally:
            os.close(fd)
    except OSError as error:
        reason = "no O_DIRECT on this file system" if error.errno == errno.EINVAL else error.strerror or str(error)
        return f"{path}: {reason}"
    return ""
