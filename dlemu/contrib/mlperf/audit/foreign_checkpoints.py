"""Makes checkpoint results of DLIO and MLPerf Storage comparable by `dlemu compare`, from recomputed numbers."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from dlemu.contrib.mlperf.audit.audited_run import find_runs
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
from dlemu.results.compared import Conditions
from dlemu.results.figures import JobFigures, Value, mean_over
from dlemu.results.wording import count
from dlemu.studies.compare.sides import Side, side_of_runs


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
    if len({(leaf.ranks, _workload(leaf)) for leaf in leaves}) > 1 or max(map(len, by_kind.values())) > 1:
        raise UserError(
            f"{folder} holds {len(leaves)} runs, of more than one result: name a folder below it, such as "
            f"{leaves[0].path}"
        )
    saved, loaded = (_rounds(by_kind[kind], kind) for kind in KINDS)
    first, size_gib = leaves[0], _size_gib(leaves)
    size = {} if size_gib is None else {"checkpoint_gib": Value(size_gib)}
    figures = JobFigures(
        kind="checkpoint",
        workload=_workload(first),
        ranks=first.ranks or 0,
        metrics=size | dict(_figures("write", saved, size_gib)) | dict(_figures("read", loaded, size_gib)),
    )
    conditions = Conditions(
        title=f"{_workload(first)}: checkpoints of {count(first.ranks or 0, 'rank')}",
        started_at=text(first.summary.get("start")) or "",
        warnings=tuple(_warnings(leaves)),
    )
    return side_of_runs(folder, {(): figures}, [conditions])


def _has_only_checkpoints(run: str) -> bool:
    printed = read_printed(run, [])
    trained = printed.au_percent is not None or printed.samples_per_second is not None
    return printed.checkpoints and not trained and not is_own(run)


def _workload(leaf: CheckpointLeaf) -> str:
    stated = text(leaf.metadata.get("model")) or text(leaf.settings("model").get("name"))
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


def _figures(phase: str, rounds: Sequence[Sequence[float]], size_gib: float | None) -> Iterator[tuple[str, Value]]:
    if not rounds:
        return
    if size_gib is not None:
        yield f"{phase}_slowest_gib_per_second", mean_over([size_gib / max(seconds) for seconds in rounds])
    yield f"{phase}_slowest_seconds", mean_over([max(seconds) for seconds in rounds])
    if size_gib is not None:
        yield f"{phase}_rank0_gib_per_second", mean_over([size_gib / seconds[0] for seconds in rounds])


def _warnings(leaves: Sequence[CheckpointLeaf]) -> Iterator[str]:
    yield "recomputed from DLIO's files, which record neither fsync, nor what the storage served, nor the bottleneck"
    for leaf in leaves:
        if any(finding.severity == "error" for finding in checkpoint_numbers(leaf)):
            yield f"its files contradict each other; `dlemu audit {shlex.quote(leaf.path)}` lists how"
