"""The dataset is there and complete, as a run would look for it.

That there is none yet is no failure: it can be made.
"""

from __future__ import annotations

from datagen.errors import DlemuError
from dlemu.config import datagen_command
from dlemu.doctor.check_base import Check, Facts

NAME, ORDER = "dataset", 260


def check(facts: Facts) -> Check:
    folder, dataset = facts.workload.dataset.data_folder, facts.dataset
    if dataset is None:
        observed, advice = f"{folder} does not exist yet", datagen_command(facts.workload)
        return Check(name=NAME, level="warn", observed=observed, wanted="a dataset", advice=advice)
    if isinstance(dataset, DlemuError):
        raise dataset
    observed = f"{dataset.train.num_files:,} training files, {dataset.total_bytes / 1e9:,.2f} GB in {folder}"
    if dataset.notes:
        return Check(name=NAME, level="warn", observed=f"{observed}; {'; '.join(dataset.notes)}")
    return Check(name=NAME, level="ok", observed=observed)
