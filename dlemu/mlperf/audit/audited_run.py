"""From trees to audited runs: find the folders of runs, read, recompute and compare each, in parallel processes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any

import numpy as np
import yaml

from datagen.errors import UserError
from dlemu.comm.failure import Role
from dlemu.config.workload_files import SUFFIX, workload_names
from dlemu.mlperf.audit.checkpoint_leaf import checkpoint_numbers, read_checkpoint_leaf
from dlemu.mlperf.audit.contradictions import Rulebook, closest_formula, contradictions, rule_findings
from dlemu.mlperf.audit.fingerprints import Print, step_prints, twins
from dlemu.mlperf.audit.kv_leaf import is_kv_leaf, kv_numbers, read_kv_leaf
from dlemu.mlperf.audit.own_result import OwnResult, audit_own, is_own, own_folder_of
from dlemu.mlperf.audit.prefetch_credit import Prefetch, credit_percent, prefetch_finding, sustained_least_percent
from dlemu.mlperf.audit.recompute import NOTHING, Recomputed, RunTimes, from_blocks, from_steps, run_times
from dlemu.mlperf.audit.run_settings import Printed, Setup, Shipped, completed, read_printed, read_setup
from dlemu.mlperf.audit.step_files import Logs, read_logs
from dlemu.mlperf.audit.tolerant import YAML_LOADER
from dlemu.mlperf.audit.vector_leaf import is_vector_leaf, read_vector_leaf, vector_numbers
from dlemu.results.finding import Finding
from dlemu.runner.clean_process import run_clean
from dlemu.runner.crew import Worker, run_crew

_RUN_FILE = re.compile(r"^(summary\.json|(\d+_)?per_epoch_stats\.json|\d+_output\.json)$")
_SKIPPED = re.compile(r"^(\..*|code|__pycache__|node_modules)$")
"""Folders that hold no runs: hidden ones, and the copies of DLIO's source that submissions carry."""
_TESTS = re.compile(r"^tests?$")
_SOURCE_FILES = frozenset({"setup.py", "pyproject.toml", "benchmark.sh"})
"""Beside which a folder of tests is one of somebody's source code: what it holds are test data."""
_ALONE = 16
"""Runs that one process audits sooner than others are started."""
_CHUNK = 8  # runs for each process at least: fewer do not pay for its start
_PROCESS, _AUDITOR = (Role(name, "audit fewer runs at a time") for name in ("the audit process", "auditor"))
_STOPPED_SECONDS = 60.0  # of a stop (SIGSTOP), after which an auditor counts as lost


@dataclass(frozen=True, kw_only=True)
class AuditedRun:
    """What is known of one run folder."""

    path: str
    setup: Setup
    printed: Printed
    recomputed: Recomputed
    printed_by: str | None
    """The formula that gives the printed numbers, or comes closest."""
    findings: tuple[Finding, ...]
    times: RunTimes = field(default_factory=RunTimes)
    prints: tuple[Print, ...] = ()
    """Of each epoch of each rank that kept its steps."""
    hostnames: tuple[str, ...] = ()
    """Of the hosts of all ranks; empty unless every rank's file states its own."""
    by_dlemu: bool = False
    """Whether dlemu ran as a drop-in replacement for DLIO, as the run's log says."""
    prefetch: Prefetch = field(default_factory=Prefetch)

    @property
    def au_percent(self) -> float | None:
        """AU by the formula that printed it, from its steps; as printed where no steps were kept."""
        return _au_percent(self.printed, self.recomputed, self.printed_by)

    @property
    def errors(self) -> int:
        """How many findings are errors."""
        return sum(finding.severity == "error" for finding in self.findings)


def find_runs(trees: Iterable[str]) -> list[str]:
    """Return the run folders in the trees, sorted, each once. Links to folders are not followed below a tree.

    A run of dlemu that has DLIO's files too is one run: it is where those are.
    """
    folders: set[str] = set()
    for tree in trees:
        for folder, below, names in os.walk(tree):
            source = not _SOURCE_FILES.isdisjoint(names)
            below[:] = [name for name in below if not (_SKIPPED.match(name) or (source and _TESTS.match(name)))]
            other = is_kv_leaf(below) or is_vector_leaf(names)
            if other or any(_RUN_FILE.match(name) for name in names) or is_own(folder):
                folders.add(os.path.normpath(folder))
    in_dlios_files = {own for folder in folders if (own := own_folder_of(folder)) is not None}
    return sorted(folders - in_dlios_files)


def audit_trees(trees: Iterable[str], processes: int | None = None, book: Rulebook | None = None) -> list[AuditedRun]:
    """Return every run in the trees, audited, in the order of their paths; with a rulebook also by its rules.

    Raises UserError for a tree that is no folder, or when none of them holds a run.
    """
    trees = list(trees)
    for tree in trees:
        if not os.path.isdir(tree):
            raise UserError(f"{tree} is not a readable folder: wanted a folder with results below it")
    runs = find_runs(trees)
    if not runs:
        raise UserError(
            f"no run in {', '.join(trees)}: wanted a folder below that holds summary.json, per_epoch_stats.json or"
            " R_output.json, as DLIO writes them"
        )
    shipped = shipped_pairs()
    workers = min(processes or len(os.sched_getaffinity(0)), -(-len(runs) // _CHUNK))
    if workers == 1 or len(runs) <= _ALONE:
        return [_guarded(run, shipped, book) for run in runs]
    shares = [_Share(runs[first::workers], shipped, book) for first in range(workers)]
    audited = {run.path: run for part in run_clean(_audit_all, shares, _PROCESS) for run in part}
    return [audited[run] for run in runs]


@dataclass(frozen=True)
class _Share:
    """What one process audits."""

    runs: list[str]
    shipped: Shipped
    book: Rulebook | None


def _audit_all(shares: list[_Share], _: object) -> list[list[AuditedRun]]:
    return run_crew(_audit_share, shares, _AUDITOR, timeout_seconds=_STOPPED_SECONDS)


def _audit_share(worker: Worker, share: _Share) -> list[AuditedRun]:
    worker.ready()
    return [_guarded(run, share.shipped, share.book) for run in share.runs]


def _guarded(folder: str, shipped: Shipped, book: Rulebook | None) -> AuditedRun:
    try:
        return audit_run(folder, shipped, book)
    except Exception as error:  # one folder must not end the audit of hundreds
        return failed_run(folder, error)


def shipped_pairs() -> dict[str, dict[str, Any]]:
    """Return workload -> accelerator -> {batch_size, computation_time} of the workloads that come with dlemu."""
    folder = resources.files("dlemu.configs") / "workload"
    loaded = {name: yaml.load((folder / f"{name}{SUFFIX}").read_text(), YAML_LOADER) for name in workload_names()}
    return {name: content["accelerators"] for name, content in loaded.items() if content.get("accelerators")}


def audit_run(folder: str, shipped: Shipped, book: Rulebook | None = None) -> AuditedRun:
    """Return what one run folder holds, recomputed and compared. Whatever is wrong with its files is a finding.

    With a rulebook the run is also held against that edition's rules.
    """
    if is_own(folder):
        return _audit_own_folder(folder, book)
    other = _other_numbers(folder)
    if other is not None:
        info = Finding(
            "info", "no.training", "a run of another benchmark", "a training run", "nothing: see its own lines"
        )
        return replace(NO_RUN, path=folder, findings=(info, *other))
    findings: list[Finding] = []
    setup = read_setup(folder, shipped, findings)
    printed = read_printed(folder, findings)
    logs = read_logs(folder, _names(folder, findings), printed.start, findings)
    setup = completed(setup, shipped, workload=printed.model, step_seconds=_configured_seconds(logs), findings=findings)
    again = NOTHING
    if _trained(printed, logs):
        again = from_steps(setup, printed.accelerators, logs)
        again = from_blocks(setup, printed, logs) if again is NOTHING else again
        findings += contradictions(setup, printed, logs, again)
        findings += rule_findings(setup, printed, book, by_dlemu=logs.by_dlemu) if book else []
    else:
        findings = [finding for finding in findings if not finding.rule.startswith("config.")]  # of training alone
        findings.append(_no_training(printed))
        findings += checkpoint_numbers(read_checkpoint_leaf(folder)) if printed.checkpoints else ()
    prints = step_prints(logs)
    findings += _copies(prints)
    own_folder = own_folder_of(folder)
    own = audit_own(own_folder) if own_folder else None
    findings += own.findings if own else ()
    run = AuditedRun(
        path=folder,
        setup=setup,
        printed=printed,
        recomputed=again,
        printed_by=closest_formula(printed, again),
        findings=tuple(findings),
        times=run_times(logs),
        prints=prints,
        hostnames=_hostnames(printed, logs),
        by_dlemu=logs.by_dlemu,
    )
    return _with_prefetch(run, own, logs)


def _other_numbers(folder: str) -> Iterator[Finding] | None:
    """Return what is found in a run of kv_cache or vector_database, None of any other."""
    names = os.listdir(folder) if os.access(folder, os.R_OK) else []
    if is_kv_leaf(names):
        return kv_numbers(read_kv_leaf(folder))
    return vector_numbers(read_vector_leaf(folder)) if is_vector_leaf(names) else None


def _au_percent(printed: Printed, again: Recomputed, printed_by: str | None) -> float | None:
    """Return AU by the formula that printed it; the word `success` counts for nothing."""
    formula = again.formulas.get(printed_by or "")
    if again.basis == "steps" and formula is not None and formula.au_percent is not None:
        return formula.au_percent
    return printed.au_percent


def _with_prefetch(run: AuditedRun, own: OwnResult | None, logs: Logs) -> AuditedRun:
    """Return the run with what prefetch bought: as dlemu's own steps show, else the most that its folder allows."""
    setup, steps, au = run.setup, run.recomputed.steps_per_epoch, run.au_percent
    if own is not None and own.prefetch.sustained_percent is not None:
        prefetch = own.prefetch
    else:
        credit = credit_percent(setup, steps, len(logs.blocks()) / max(1, run.recomputed.epochs))
        least = sustained_least_percent(au, run.recomputed.au_whole_percent, credit)
        prefetch = Prefetch(credit_percent=credit, sustained_least_percent=least)
    exact = prefetch.sustained_percent is not None
    sustained = prefetch.sustained_percent if exact else prefetch.sustained_least_percent
    wanted = setup.au_threshold_percent
    findings = run.findings
    if sustained is not None and au is not None and sustained < wanted <= au and run.printed.verdict == "success":
        findings = (
            *findings,
            prefetch_finding(
                setup,
                au=au,
                sustained=sustained,
                exact=exact,
                steps_per_epoch=steps,
                since_v2=logs.measured_compute,
            ),
        )
    return replace(run, findings=findings, prefetch=prefetch)


def _copies(prints: tuple[Print, ...]) -> Iterator[Finding]:
    """Yield which rank's or epoch's steps are those of another."""
    same = [f"{second.where} has the steps of {first.where}" for first, second in twins(prints)]
    if same:
        more = f" and {len(same) - 1} more" if len(same) > 1 else ""
        wanted = "different steps for each rank and epoch: no two of them wait alike"
        yield Finding("error", "ranks.copied", f"{same[0]}{more}", wanted, "copy the files from the run again")


def _hostnames(printed: Printed, logs: Logs) -> tuple[str, ...]:
    names = [host.name for host in logs.hosts.values() if host.name]
    return tuple(sorted(set(names))) if len(names) == printed.accelerators else ()


def _audit_own_folder(folder: str, book: Rulebook | None) -> AuditedRun:
    """Return what a folder of dlemu's holds that has no DLIO files."""
    own = audit_own(folder)
    broken = (
        rule_findings(own.setup, own.printed, book, by_dlemu=True) if book and own.recomputed is not NOTHING else []
    )
    return AuditedRun(
        path=folder,
        setup=own.setup,
        printed=own.printed,
        recomputed=own.recomputed,
        printed_by=closest_formula(own.printed, own.recomputed),
        findings=(*own.findings, *broken),
        by_dlemu=True,
        prefetch=own.prefetch,
    )


def _names(folder: str, findings: list[Finding]) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        seen = f"the folder can't be listed: {error.strerror}"
        findings.append(Finding("error", "file.broken", seen, "a readable folder", "grant permission to read it"))
        return []


def _trained(printed: Printed, logs: Logs) -> bool:
    return printed.au_percent is not None or printed.samples_per_second is not None or bool(logs.blocks())


def _no_training(printed: Printed) -> Finding:
    if printed.checkpoints or printed.foreign:
        fix = "nothing: its figures are recomputed" if printed.checkpoints else "nothing: the audit is of training"
        seen = "a run of checkpoints only" if printed.checkpoints else "the summary of another kind of benchmark"
        return Finding("info", "no.training", seen, "a training run", fix)
    seen = "no training in its files"
    return Finding("error", "no.training", seen, "a training run that ended", "the run's log says why it ended")


def _configured_seconds(logs: Logs) -> float | None:
    """Return the configured time of a step when the arrays hold it and it is the same in all of them."""
    if logs.measured_compute:
        return None
    kept = [np.unique(arrays.compute) for blocks in logs.arrays.values() for arrays in blocks.values()]
    values = np.unique(np.concatenate(kept)) if kept else np.empty(0)
    return float(values[0]) if len(values) == 1 else None


def failed_run(folder: str, error: Exception) -> AuditedRun:
    """Return a run whose audit itself failed: a fault of dlemu's, reported with the run."""
    seen = f"the audit failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    finding = Finding(
        "error", "audit.failed", seen, "an audit of any folder", "report it, with the folder's files attached"
    )
    return replace(NO_RUN, path=folder, findings=(finding,))


NO_RUN = AuditedRun(path="", setup=Setup(), printed=Printed(), recomputed=NOTHING, printed_by=None, findings=())
"""Of which nothing is known."""
