"""Makes results of DLIO and MLPerf Storage comparable by `dlemu compare`, from recomputed numbers."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dlemu.contrib.mlperf.audit.audit_answer import places
from dlemu.contrib.mlperf.audit.audited_run import AuditedRun, audit_trees, find_runs
from dlemu.contrib.mlperf.audit.checkpoint_leaf import (
    GIB,
    KINDS,
    CheckpointLeaf,
    Kind,
    checkpoint_numbers,
    read_checkpoint_leaf,
    rounds_of,
)
from dlemu.contrib.mlperf.audit.own_result import is_own
from dlemu.contrib.mlperf.audit.run_settings import read_printed
from dlemu.contrib.mlperf.audit.tolerant import number, text
from dlemu.contrib.mlperf.rules.checkpoints import official_model
from dlemu.extend import UserError
from dlemu.results.figures import Conditions, JobFigures, Value, mean_over, value_of
from dlemu.results.wording import count

COMPARED_AU = "dlio"
"""Formula of the compared AU: that of DLIO 2.x for all runs, whichever version of DLIO printed theirs."""


Settings = tuple[tuple[str, str], ...]
"""(key, value) pairs in which the runs of a side differ from each other."""
Side = tuple[dict[Settings, JobFigures], dict[Settings, Conditions]]


def foreign_side(folder: str) -> Side:
    """Return the checkpoint result or training runs below a folder, to compare."""
    return foreign_checkpoints(folder) or _training(folder)


def _training(folder: str) -> Side:
    """Return the training runs below a folder, by their names in it.

    AU is by DLIO 2.x's formula; samples/s are of whole epochs, first steps included, as in dlemu; MB/s are nominal:
    samples/s x record length. Raises UserError if the folder holds no run whose numbers can be recomputed, or runs of
    several workloads.
    """
    runs = [run for run in audit_trees([folder]) if run.recomputed.basis != "nothing" and _accelerators(run)]
    if not runs:
        raise UserError(
            f"{folder} holds no run whose numbers can be recomputed: wanted DLIO's or MLPerf Storage's summary.json and"
            f" per_epoch_stats.json; `dlemu audit {shlex.quote(folder)}` says what is missing"
        )
    workloads = sorted({_workload(run) for run in runs})
    if len(workloads) > 1:
        raise UserError(
            f"{folder} holds runs of {', '.join(workloads)}: name a folder below it with runs of one workload"
        )
    names = [place.run for place in places([run.path for run in runs])]
    settings: list[Settings] = [()] if len(runs) == 1 else [(("run", name),) for name in names]
    warnings = tuple(_warnings(runs))
    conditions = (replace(_conditions(run), warnings=warnings) for run in runs)
    return dict(zip(settings, map(_figures, runs), strict=True)), dict(zip(settings, conditions, strict=True))


def _workload(run: AuditedRun) -> str:
    return run.setup.workload or run.printed.model or "a workload without a name"


def _conditions(run: AuditedRun) -> Conditions:
    setup = run.setup
    work = {
        "num_files_train": setup.num_files,
        "num_samples_per_file": setup.samples_per_file,
        "batch_size": setup.batch_size,
    }
    return Conditions(title=_workload(run), work={key: value for key, value in work.items() if value is not None})


def _accelerators(run: AuditedRun) -> int:
    return run.printed.accelerators or run.recomputed.ranks_kept


def _figures(run: AuditedRun) -> JobFigures:
    setup, times, au = run.setup, run.times, run.au_percent
    rates = _rates(run)
    record_mb = None if setup.record_bytes is None else setup.record_bytes / 1e6
    formula = run.recomputed.formulas.get(COMPARED_AU)
    metrics = {
        "total_seconds": value_of(times.total_seconds),
        "au_percent": _mean(formula.au_by_epoch) if formula else None,
        "au_whole_percent": value_of(run.recomputed.au_whole_percent or None),
        "samples_per_second": _mean(rates),
        "app_mb_per_second": None if record_mb is None else _mean([rate * record_mb for rate in rates]),
        "time_to_first_batch_seconds": _mean(times.first_batch_seconds_by_epoch),
        "training_seconds": value_of(sum(times.training_seconds_by_epoch) or None),
    }
    return JobFigures(
        kind="training",
        workload=_workload(run),
        accelerator=setup.accelerator,
        ranks=_accelerators(run),
        epochs=run.recomputed.epochs,
        passed=None if au is None else au >= setup.au_threshold_percent,
        threshold_percent=setup.au_threshold_percent,
        metrics={name: value for name, value in metrics.items() if value is not None},
    )


def _rates(run: AuditedRun) -> Sequence[float]:
    """Return samples/s of each epoch, first steps included: from all ranks' blocks, or else rank 0's time stamps."""
    whole = run.recomputed.formulas.get("dlio_v1")
    if whole is not None and whole.samples_per_second is not None:
        return whole.samples_per_second_by_epoch
    steps, batch_size = run.recomputed.steps_per_epoch, run.setup.batch_size
    if steps is None or batch_size is None:
        return ()
    return [steps * batch_size * _accelerators(run) / seconds for seconds in run.times.training_seconds_by_epoch]


def _mean(by_epoch: Sequence[float]) -> Value | None:
    return mean_over(by_epoch) if by_epoch and all(map(math.isfinite, by_epoch)) else None


def _warnings(runs: Sequence[AuditedRun]) -> list[str]:
    """Return what a reader of these numbers must know, as sentences."""
    warnings = ["numbers are recomputed from DLIO's files; AU is by DLIO 2.x's formula, MB/s are nominal"]
    blocks = sum(run.recomputed.basis == "blocks" for run in runs)
    if blocks:
        warnings.append(f"{blocks} of {len(runs)} runs kept no steps: only their AU of whole epochs is known")
    wrong = sum(bool(run.errors) for run in runs)
    if wrong:
        warnings.append(f"{wrong} of {len(runs)} runs contradict themselves; `dlemu audit` lists how")
    return warnings


def foreign_checkpoints(folder: str) -> Side | None:
    """Return the checkpoint result in a folder: one run that wrote and one that read, or a single run.

    Seconds are from the ranks' files; GiB/s are the tensors' bytes over them, as in DLIO. Return None if the folder
    holds anything else. Raises UserError for several results, and for one whose slowest rank is not known.
    """
    runs = find_runs([folder])
    if not runs or not all(map(_has_only_checkpoints, runs)):
        return None
    leaves = [read_checkpoint_leaf(run) for run in runs]
    by_kind = {kind: [leaf for leaf in leaves if leaf.checkpoints(kind)] for kind in KINDS}
    if len({(leaf.ranks, _model_of(leaf)) for leaf in leaves}) > 1 or max(map(len, by_kind.values())) > 1:
        raise UserError(
            f"{folder} holds {len(leaves)} runs, of more than one result: name a folder below it, such as "
            f"{leaves[0].path}"
        )
    saved, loaded = (_rounds(by_kind[kind], kind) for kind in KINDS)
    first, size_gib = leaves[0], _size_gib(leaves)
    size = {} if size_gib is None else {"checkpoint_gib": Value(size_gib)}
    figures = JobFigures(
        kind="checkpoint",
        workload=_model_of(first),
        ranks=first.ranks or 0,
        metrics=size | dict(_phase_figures("write", saved, size_gib)) | dict(_phase_figures("read", loaded, size_gib)),
    )
    conditions = Conditions(
        title=f"{_model_of(first)}: checkpoints of {count(first.ranks or 0, 'rank')}",
        started_at=text(first.summary.get("start")) or "",
        warnings=tuple(_checkpoint_warnings(leaves)),
    )
    return {(): figures}, {(): conditions}


def _has_only_checkpoints(run: str) -> bool:
    printed = read_printed(run, [])
    trained = printed.au_percent is not None or printed.samples_per_second is not None
    return printed.checkpoints and not trained and not is_own(run)


def _model_of(leaf: CheckpointLeaf) -> str:
    stated = text(leaf.metadata.get("model")) or text(leaf.section("model").get("name"))
    model = official_model(stated)
    return model.workload if model else stated or "a model without a name"


def _size_gib(leaves: Sequence[CheckpointLeaf]) -> float | None:
    """Return the size of one checkpoint's tensors: by the settings, or else as printed."""
    planned = (leaf.plan.tensor_bytes() / GIB for leaf in leaves if leaf.plan is not None)
    printed = (number(leaf.metric.get("checkpoint_size_GB")) for leaf in leaves)
    return next(planned, None) or next((size for size in printed if size), None)


def _rounds(leaves: Sequence[CheckpointLeaf], kind: Kind) -> list[list[float]]:
    """Return the seconds of every rank for each checkpoint; empty if there is no run."""
    for leaf in leaves:
        rounds = rounds_of(leaf, kind)
        if leaf.ranks is None or len(leaf.parts) < leaf.ranks or not rounds:
            raise UserError(
                f"{leaf.path} does not record how long every rank took: it has times of {len(leaf.parts)} of "
                f"{leaf.ranks or 'an unknown number of'} ranks; wanted R_per_epoch_stats.json of each rank R, with "
                "equally many checkpoints: the slowest rank is compared"
            )
        return rounds
    return []


def _phase_figures(
    phase: str, rounds: Sequence[Sequence[float]], size_gib: float | None
) -> Iterator[tuple[str, Value]]:
    if not rounds:
        return
    if size_gib is not None:
        yield f"{phase}_slowest_gib_per_second", mean_over([size_gib / max(seconds) for seconds in rounds])
    yield f"{phase}_slowest_seconds", mean_over([max(seconds) for seconds in rounds])
    if size_gib is not None:
        yield f"{phase}_rank0_gib_per_second", mean_over([size_gib / seconds[0] for seconds in rounds])


def _checkpoint_warnings(leaves: Sequence[CheckpointLeaf]) -> Iterator[str]:
    yield "recomputed from DLIO's files, which record neither fsync, nor what the storage served, nor the bottleneck"
    for leaf in leaves:
        if any(finding.severity == "error" for finding in checkpoint_numbers(leaf)):
            yield f"its files contradict each other; `dlemu audit {shlex.quote(leaf.path)}` lists how"
