"""The dataset is too large for the page cache to serve it in place of the storage."""

from __future__ import annotations

from dlemu.doctor.check_base import Check, Facts
from dlemu.metrics.cache import WANTED_RATIO
from dlemu.report.units import size

NAME, ORDER = "page cache", 270


def check(facts: Facts) -> Check | None:
    dataset, workload = facts.usable_dataset, facts.workload
    if dataset is None or facts.folder is None:
        return None
    evicted = workload.reader.evict_page_cache == "epochs"
    return judge(dataset.total_bytes, facts.memory.total_bytes, direct=workload.storage_spec.direct, evicted=evicted)


def judge(dataset_bytes: int, memory_bytes: int, direct: bool = False, evicted: bool = False) -> Check:
    ratio = dataset_bytes / memory_bytes
    observed = f"dataset {size(dataset_bytes)}, {ratio:.2g} times the memory of {size(memory_bytes)}"
    if direct or evicted:
        how = "read past the cache" if direct else "evicted before each epoch"
        return Check(name=NAME, level="ok", observed=f"{observed}, {how}")
    if ratio < WANTED_RATIO:
        served = "all reads" if ratio < 1 else "part of the reads"
        return Check(
            name=NAME,
            level="warn",
            observed=f"{observed}: after the first epoch the page cache can serve {served}",
            wanted=f"{WANTED_RATIO:g} times the memory",
            advice="reader.odirect=true, reader.evict_page_cache=epochs, or a dataset that large "
            "(MLPerf Storage's rule)",
        )
    return Check(name=NAME, level="ok", observed=observed)
