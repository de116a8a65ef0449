"""Audits dlemu's own results: recomputes summary.json from the rows of steps and facts.json, and compares."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dlemu.config.duration import mean_seconds
from dlemu.contrib.mlperf.audit.prefetch_credit import Prefetch
from dlemu.contrib.mlperf.audit.recompute import NOTHING, Formula, Recomputed
from dlemu.contrib.mlperf.audit.run_settings import Printed, Setup
from dlemu.contrib.mlperf.audit.tolerant import read_json
from dlemu.contrib.mlperf.rules.known import by_rule
from dlemu.dlio.config import OWN_FOLDER, dlio_workload
from dlemu.extend import UserError
from dlemu.results.file_names import LIVE, SUMMARY
from dlemu.results.finding import Finding
from dlemu.results.kinds import kind_of

if TYPE_CHECKING:
    from dlemu.config.schema import Workload
    from dlemu.jobs.checkpoint.summary import CheckpointSummary
    from dlemu.jobs.training.result import Run
    from dlemu.jobs.training.summary import Spread, Summary

DLIO_FOLDER = "dlio"
"""Folder with DLIO's files in a result folder of dlemu."""
_SUM_TOLERANCE = 1e-6
"""Relative, between numbers that must be equal but for the order in which they were summed."""
_MARKS = ("facts.json", "steps.parquet", "checkpoints.parquet")
"""A folder with summary.json and any of these files is a result of dlemu."""
_VERSION = re.compile(rb'^\s*\{\s*"schema_version":\s*\d')
"""Matches the beginning of dlemu's summary.json."""
_OWN_NAME = re.compile(rf"^{OWN_FOLDER}(-\d+)?$")
_UNCOMPARED = re.compile(
    r"schema_version|judgement_version|(entries of )?(issues|((write|read)\.)?limited_by\.(evidence|advice)"
    r"|page_cache\.warning|telemetry\.notes)"
)
"""Keys that aren't compared: sentences, beside whose codes and numbers they stand, and versions."""
_FIRST = ("passed", "verdict", "metrics.au_percent.mean", "metrics.samples_per_second.mean", "limited_by.what")
"""Keys whose differences are listed first."""
_JUDGED = re.compile(
    r"(entries of )?(passed|verdict(_code|_numbers)?|outcome|((write|read)\.)?limited_by|findings"
    r"|metrics\.au_uncertainty)\b"
)
"""Keys of judgements and of their uncertainty: they follow by rules, whose version is `judgement_version`."""
_MAX_LISTED = 50
"""At most this many differences are listed."""

Value = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True)
class OwnResult:
    """A recomputed result folder of dlemu, in the types of an audit of DLIO's files."""

    setup: Setup = field(default_factory=Setup)
    printed: Printed = field(default_factory=Printed)
    recomputed: Recomputed = NOTHING
    findings: tuple[Finding, ...]
    prefetch: Prefetch = field(default_factory=Prefetch)


def is_own(folder: str) -> bool:
    """Return whether a folder is a result of dlemu, even if some of its files are missing or damaged."""
    summary = os.path.join(folder, "summary.json")
    if not os.path.isfile(summary):
        return _unsaved(folder)
    if any(os.path.isfile(os.path.join(folder, name)) for name in _MARKS):
        return True
    try:
        with open(summary, "rb") as file:
            return bool(_VERSION.match(file.read(200)))
    except OSError:
        return False


def _unsaved(folder: str) -> bool:
    """Return whether a folder has measurements of a run but no summary.json: the run was killed before it wrote one."""
    if os.path.basename(os.path.normpath(folder)) == LIVE:
        return False  # part of the result in the folder above
    kind = kind_of(folder)
    return kind is not None and kind.is_job and not os.path.lexists(os.path.join(folder, SUMMARY))


def own_folder_of(folder: str) -> str | None:
    """Return dlemu's own result folder of the run whose DLIO files are in `folder`: its parent, or its newest child.

    Return None if there is none, or if `folder` holds no results of DLIO.
    """
    if not os.path.isfile(os.path.join(folder, "summary.json")) or is_own(folder):
        return None
    above = os.path.normpath(os.path.join(folder, os.pardir))
    if os.path.basename(folder) == DLIO_FOLDER and is_own(above):
        return above
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.is_dir() and _OWN_NAME.match(entry.name)]
    newest_first = sorted(names, key=lambda name: (len(name), name), reverse=True)
    return next((path for name in newest_first if is_own(path := os.path.join(folder, name))), None)


def audit_own(folder: str) -> OwnResult:
    """Read a result folder of dlemu, recompute its summary, and compare. Whatever is wrong becomes a finding."""
    from dlemu.jobs.training.result import read_run
    from dlemu.jobs.training.summary import Summary
    from dlemu.results.measured import read_saved

    kind = kind_of(folder)
    if kind is not None and kind.name == "checkpoint":
        return _audit_checkpoints(folder)
    has_summary = os.path.lexists(os.path.join(folder, "summary.json"))
    try:
        saved = read_saved(folder, Summary, Summary.kind) if has_summary else None
    except UserError as error:
        return OwnResult(
            setup=Setup(), printed=Printed(), recomputed=NOTHING, findings=(by_rule("result.broken", str(error)),)
        )
    findings: list[Finding] = [] if saved is None or saved.complete else [_incomplete(saved.failure)]
    try:
        run = read_run(folder)
        summary = run.summary
    except UserError as error:
        return OwnResult(
            setup=Setup(workload=saved.workload, accelerator=saved.accelerator) if saved else Setup(),
            printed=_printed(saved) if saved else Printed(),
            findings=(*findings, by_rule("result.broken", str(error))),
        )
    if saved is None:
        findings.append(_missing_summary() if summary.complete else _incomplete(summary.failure))
    else:
        printed = read_json(os.path.join(folder, "summary.json"), findings)  # may append to the findings
        findings += differences(printed, summary)
    return OwnResult(
        prefetch=Prefetch(
            credit_percent=summary.metrics.prefetch_credit_percent,
            sustained_percent=summary.metrics.sustained_percent,
        ),
        setup=_setup(run.facts.workload),
        printed=_printed(saved) if saved else Printed(model=summary.workload, accelerators=summary.ranks),
        recomputed=_recomputed(run),
        findings=tuple(findings),
    )


def _audit_checkpoints(folder: str) -> OwnResult:
    """Recompute a checkpoint run, even one that was killed, from its rows, and compare it with its summary."""
    from dlemu.jobs.checkpoint.measured import ROWS
    from dlemu.jobs.checkpoint.result import read_checkpoint_run
    from dlemu.jobs.checkpoint.summary import CheckpointSummary
    from dlemu.results.measured import read_saved

    has_summary = os.path.lexists(os.path.join(folder, "summary.json"))
    try:
        saved = read_saved(folder, CheckpointSummary, CheckpointSummary.kind) if has_summary else None
        run = read_checkpoint_run(folder)
    except UserError as error:
        return OwnResult(
            setup=Setup(), printed=Printed(), recomputed=NOTHING, findings=(by_rule("result.broken", str(error)),)
        )
    summary, failure = run.summary, run.facts.failure
    findings = [
        by_rule("no.training", "a run of checkpoints only", fix="nothing: it is recomputed", severity="info")
        if failure is None
        else _incomplete(summary.verdict.removeprefix("INCOMPLETE: "))
    ]
    if saved is not None:
        printed = read_json(os.path.join(folder, "summary.json"), findings)
        findings += differences(printed, summary, rows=ROWS)
    elif failure is None:
        findings.append(_missing_summary())
    hosts = summary.environment.hosts
    return OwnResult(
        setup=Setup(workload=summary.workload, config=dlio_workload(run.facts.workload)),
        printed=Printed(
            start=summary.started_at or None,
            end=summary.ended_at,
            model=summary.workload,
            accelerators=summary.ranks,
            hosts=len(summary.hosts) or None,
            memory_gib=sum(host.memory_bytes for host in hosts) / 2**30 if hosts else None,
            checkpoints=True,
        ),
        findings=tuple(findings),
    )


def _missing_summary() -> Finding:
    seen = "a run of dlemu without summary.json"
    return by_rule("result.broken", seen, "what the run printed", "`dlemu report` shows what the steps give")


def _incomplete(failure: str | None) -> Finding:
    seen = f"a run of dlemu that did not complete: {(failure or 'no reason given').splitlines()[0][:200]}"
    return by_rule("no.training", seen, "a run that completed", "run it again; `dlemu report` shows what was measured")


def differences(
    printed: object, recomputed: Summary | CheckpointSummary, *, rows: str = "steps.parquet"
) -> Iterator[Finding]:
    """Yield a finding for each number or verdict of a summary.json that differs from the recomputed one.

    `printed` is the file's content. Keys that only one side has are not compared, nor judgements by other rules: then
    a warning says so.
    """
    import msgspec

    old, new = dict(_flatten(printed)), dict(_flatten(msgspec.to_builtins(recomputed)))
    keys = [key for key in old.keys() & new.keys() if not _same(old[key], new[key]) and not _UNCOMPARED.match(key)]
    judged = [key for key in keys if _JUDGED.match(key)]
    if judged and (by := old.get("judgement_version", 1)) != new["judgement_version"]:
        keys = [key for key in keys if key not in judged]
        yield by_rule("summary.judged", f"summary.json: judged by rules {by}, today's are {new['judgement_version']}")
    keys.sort(key=lambda key: (_FIRST.index(key) if key in _FIRST else len(_FIRST), key))
    wanted = f"what follows from {rows} and facts.json"
    for key in keys[:_MAX_LISTED]:
        seen = f"summary.json: {key} is {_text(old[key])}; recomputed {_text(new[key])}"
        yield by_rule("summary.differs", seen, wanted)
    if len(keys) > _MAX_LISTED:
        yield by_rule("summary.differs", f"summary.json: {len(keys) - _MAX_LISTED} more values differ", wanted)


def _flatten(value: object, key: str = "") -> Iterator[tuple[str, Value]]:
    """Yield each number and string with its key, as `metrics.au_percent.per_epoch[0]`, and the length of each list."""
    if isinstance(value, dict):
        if key:
            yield key, "a mapping"
        for name, item in value.items():
            yield from _flatten(item, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        yield f"entries of {key}", len(value)
        for index, item in enumerate(value):
            yield from _flatten(item, f"{key}[{index}]")
    elif value is None or isinstance(value, str | int | float):
        yield key, value


def _same(old: Value, new: Value) -> bool:
    if (isinstance(old, float) and isinstance(new, int | float)) or (isinstance(new, float) and isinstance(old, int)):
        return math.isclose(old, new, rel_tol=_SUM_TOLERANCE, abs_tol=1e-9)
    return old == new


def _text(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "null" if value is None else str(value)[:120]


def _setup(workload: Workload) -> Setup:
    dataset, metric = workload.dataset, workload.metric
    return Setup(
        workload=workload.model.name,
        accelerator=workload.accelerator or None,
        batch_size=workload.reader.batch_size,
        computation_seconds=mean_seconds(workload.train.computation_time) or None,
        is_random=workload.train.computation_time.type != "fixed",
        record_bytes=dataset.record_length_bytes,
        num_files=dataset.num_files_train,
        samples_per_file=dataset.num_samples_per_file,
        epochs=workload.train.epochs,
        total_training_steps=workload.train.total_training_steps or None,
        au_threshold_percent=100 * metric.au,
        exclude_start_steps=metric.exclude_start_steps,
        exclude_end_steps=metric.exclude_end_steps,
        config=dlio_workload(workload),
    )


def _printed(saved: Summary) -> Printed:
    """Return the summary's numbers as DLIO would print them: AU by DLIO 2.x's formula, and the summary's verdict."""
    metrics, hosts = saved.metrics, saved.environment.hosts
    au = metrics.au_dlio_percent
    return Printed(
        start=saved.started_at or None,
        end=saved.ended_at,
        model=saved.workload,
        accelerators=saved.ranks,
        hosts=len(saved.hosts) or None,
        epochs=metrics.epochs or None,
        num_files=saved.dataset.num_files_train,
        samples_per_file=saved.dataset.num_samples_per_file,
        memory_gib=sum(host.memory_bytes for host in hosts) / 2**30 if hosts else None,
        verdict=None if saved.passed is None else ("success" if saved.passed else "fail"),
        au_percent=au.mean if au else None,
        au_by_epoch=_known(au),
    )


def _recomputed(run: Run) -> Recomputed:
    metrics, rows = run.summary.metrics, run.training
    if not len(rows):
        return NOTHING
    formulas = {"dlio_v1": metrics.au_dlio_v1_percent, "dlio": metrics.au_dlio_percent}
    return Recomputed(
        basis="steps",
        ranks_kept=len(rows.values("rank")),
        epochs=len(rows.values("epoch")),
        steps_per_epoch=max(metrics.steps_per_epoch, default=None),
        formulas={name: Formula(au_by_epoch=_known(spread)) for name, spread in formulas.items()},
        au_whole_percent=metrics.au_whole_percent.mean if metrics.au_whole_percent else None,
    )


def _known(spread: Spread | None) -> tuple[float, ...]:
    return tuple(value for value in spread.per_epoch if value is not None) if spread else ()
