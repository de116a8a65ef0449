"""Where a search begins: the count that the model of docs/prediction.md predicts from two short reads."""

from __future__ import annotations

from dataclasses import replace

from datagen.errors import UserError
from dlemu.config.schema import Workload
from dlemu.jobs.training.prediction.calibration import given_speed
from dlemu.jobs.training.prediction.curve import straight_then_flat
from dlemu.jobs.training.prediction.make_prediction import predict
from dlemu.jobs.training.prediction.run_prediction import usable_cores
from dlemu.metrics.demand import row_group_reads
from dlemu.studies.size.size_verdict import Known


def predicted_count(workload: Workload, known: Known) -> int:
    """Return the largest count expected to pass; probe speed / (threshold x demand) where the model gives none."""
    probe, one = known.probe_mb_per_second, known.one_reader_mb_per_second
    each = workload.metric.au * known.mb_per_accelerator
    simple = int(probe / each) if each else 1
    if probe <= 0:
        return simple
    storage = given_speed(probe, cores=usable_cores(), bytes_factor=row_group_reads(workload))
    if one > 0:
        storage = replace(storage, curve=straight_then_flat(one, probe))
    trained = replace(workload, workflow=replace(workload.workflow, checkpoint=False))
    try:
        return predict(trained, storage, most=known.most).max_accelerators or 0
    except UserError:  # too few samples: the search reports that
        return simple
