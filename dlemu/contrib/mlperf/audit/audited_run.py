"""Finds all run folders below given folders, the *trees*, and audits each run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from dlemu.config.workload_files import shipped_workloads
from dlemu.contrib.mlperf.audit import recompute
from dlemu.contrib.mlperf.audit.checkpoint_call import checkpoint_numbers, read_checkpoint_call
from dlemu.contrib.mlperf.audit.contradictions import closest_formula, contradictions
from dlemu.contrib.mlperf.audit.fingerprints import Fingerprint, copied_pairs, similar_pairs, step_fingerprints
from dlemu.contrib.mlperf.audit.kv_call import is_kv_call, read_kv_call
from dlemu.contrib.mlperf.audit.kv_numbers import kv_numbers
from dlemu.contrib.mlperf.audit.own_result import audit_own, is_own, own_folder_of
from dlemu.contrib.mlperf.audit.recompute import NOTHING, Recomputed, RunTimes
from dlemu.contrib.mlperf.audit.run_settings import Printed, Setup, Shipped, complete_setup, read_printed, read_setup
from dlemu.contrib.mlperf.audit.step_files import Logs, read_logs
from dlemu.contrib.mlperf.audit.tolerant import YAML_LOADER, entries_of, folders_in
from dlemu.contrib.mlperf.rules.known import Finding, by_rule, first_few
from dlemu.extend import UserError

_RUN_FILE = re.compile(r"^(summary\.json|(\d+_)?per_epoch_stats\.json|\d+_output\.json)$")
_SKIPPED_FOLDER = re.compile(r"^(\..*|code|__pycache__|node_modules)$")
"""Folders without runs: hidden ones, and `code`, the copy of DLIO's source in a submission."""
_TEST_FOLDERS = ("test", "tests")
_SOURCE_FILES = frozenset({"setup.py", "pyproject.toml", "benchmark.sh"})
"""Files of a source checkout; runs in a test folder beside them are test data."""
_TRAINING_ONLY = ("config.value", "config.missing", "config.assumed")  # rules on settings that only training needs


@dataclass(frozen=True, kw_only=True)
class AuditedRun:
    """One run folder: its settings, printed and recomputed numbers, and findings."""

    path: str
    setup: Setup = field(default_factory=Setup)
    printed: Printed = field(default_factory=Printed)
    recomputed: Recomputed = NOTHING
    printed_by: str | None = None
    """Name of the formula whose numbers are closest to the printed ones."""
    findings: tuple[Finding, ...]
    times: RunTimes = field(default_factory=RunTimes)
    fingerprints: tuple[Fingerprint, ...] = ()
    """One for each epoch of each rank that kept its steps."""
    hostnames: tuple[str, ...] = ()
    """Name of each rank's host, sorted; empty unless every rank's file names its host."""
    by_dlemu: bool = False
    """Whether dlemu made the run, by its own command or (by the run's log) as a drop-in replacement for DLIO."""

    @property
    def au_percent(self) -> float | None:
        """AU recomputed by the closest formula if the steps of all ranks were kept, else the printed AU."""
        formula = self.recomputed.formulas.get(self.printed_by or "")
        if self.recomputed.basis == "steps" and formula is not None and formula.au_percent is not None:
            return formula.au_percent
        return self.printed.au_percent

    @property
    def accelerators(self) -> int:
        """Number of accelerators by the summary, or else by the ranks' files; 0 if unknown."""
        return self.printed.accelerators or self.recomputed.ranks_kept

    @property
    def errors(self) -> int:
        return sum(finding.severity == "error" for finding in self.findings)


def find_runs(trees: Iterable[str]) -> list[str]:
    """Return the run folders in the trees, sorted and without duplicates; does not follow links below a tree.

    A run of dlemu that also wrote DLIO's files is listed once, by the folder of DLIO's files.
    """
    folders: set[str] = set()
    for tree in trees:
        for folder, subfolders, names in os.walk(tree):
            subfolders[:] = [name for name in subfolders if not _SKIPPED_FOLDER.match(name)]
            if not _SOURCE_FILES.isdisjoint(names):
                subfolders[:] = [name for name in subfolders if name not in _TEST_FOLDERS]
            if is_kv_call(subfolders) or any(_RUN_FILE.match(name) for name in names) or is_own(folder):
                folders.add(os.path.normpath(folder))
    return sorted(folders - {own_folder_of(folder) for folder in folders})


def audit_trees(trees: Iterable[str]) -> list[AuditedRun]:
    """Return the audits of all runs in the trees, sorted by path; UserError without runs, or if a tree is no folder."""
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
    return audit_all(runs)


def audit_all(runs: Sequence[str]) -> list[AuditedRun]:
    """Return the audit of each run folder; an unexpected error becomes a finding of its run."""
    shipped = shipped_accelerator_settings() if runs else {}
    audited = []
    for folder in runs:
        try:
            audited.append(audit_run(folder, shipped))
        except Exception as error:  # a bug in the audit of one folder must not stop the audit of hundreds
            seen = f"the audit failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
            audited.append(AuditedRun(path=folder, findings=(by_rule("audit.failed", seen),)))
    return audited


def shipped_accelerator_settings() -> Shipped:
    """Return workload -> accelerator -> {batch_size, computation_time} for the workloads that come with dlemu."""
    contents = {name: yaml.load(Path(path).read_text(), YAML_LOADER) for name, path in shipped_workloads().items()}
    return {name: content["accelerators"] for name, content in contents.items() if content.get("accelerators")}


def audit_run(folder: str, shipped: Shipped) -> AuditedRun:
    """Audit a run folder, given the result of `shipped_accelerator_settings`; problems become findings."""
    if is_own(folder):
        return AuditedRun(path=folder, findings=tuple(audit_own(folder)), by_dlemu=True)
    if is_kv_call(folders_in(folder)):
        fix = "nothing: see the other findings"
        info = by_rule("no.training", "a run of another benchmark", fix=fix, severity="info")
        return AuditedRun(path=folder, findings=(info, *kv_numbers(read_kv_call(folder))))
    return _audit_dlio_run(folder, shipped)


def _audit_dlio_run(folder: str, shipped: Shipped) -> AuditedRun:
    """Recompute the numbers of a run from DLIO's files, and compare them with the printed ones."""
    findings: list[Finding] = []  # the `read_...` functions add one for each file or value that can't be read
    setup = read_setup(folder, shipped, findings)
    printed = read_printed(folder, findings)
    files, folders = entries_of(folder)
    logs = read_logs(folder, files + folders, printed.start, findings)
    setup = complete_setup(setup, printed.model, _configured_seconds(logs), shipped, findings)
    recomputed = NOTHING
    if printed.au_percent is not None or printed.samples_per_second is not None or logs.blocks():
        recomputed = recompute.from_steps(setup, printed.accelerators, logs)
        if recomputed is NOTHING:
            recomputed = recompute.from_blocks(setup, printed, logs)
        findings += contradictions(setup, printed, logs, recomputed)
    else:
        findings = [finding for finding in findings if finding.rule not in _TRAINING_ONLY]
        findings += _without_training(folder, printed)
    fingerprints = step_fingerprints(logs)
    findings += _copies(fingerprints)
    own_folder = own_folder_of(folder)
    if own_folder:
        findings += audit_own(own_folder)
    hostnames = sorted(host.name for host in logs.hosts.values() if host.name)
    return AuditedRun(
        path=folder,
        setup=setup,
        printed=printed,
        recomputed=recomputed,
        printed_by=closest_formula(printed, recomputed),
        findings=tuple(findings),
        times=recompute.run_times(logs),
        fingerprints=fingerprints,
        hostnames=tuple(hostnames) if len(hostnames) == printed.accelerators else (),
        by_dlemu=logs.by_dlemu,
    )


def _copies(fingerprints: tuple[Fingerprint, ...]) -> Iterator[Finding]:
    """Report ranks or epochs with the same steps, or with altered copies of them."""
    copies = [f"{second.where} has the steps of {first.where}" for first, second in copied_pairs(fingerprints)]
    copies += [
        f"{second.where} has the steps of {first.where}, altered"
        for first, second, severity in similar_pairs(fingerprints)
        if first.epoch != second.epoch and severity == "error"
    ]
    if copies:
        yield by_rule("ranks.copied", first_few(copies, limit=1))


def _without_training(folder: str, printed: Printed) -> Iterator[Finding]:
    """Say what a run without training is, and report the contradictions in a run of checkpoints."""
    if printed.checkpoints:
        fix = "nothing: its numbers are recomputed"
        yield by_rule("no.training", "a run of checkpoints only", fix=fix, severity="info")
        yield from checkpoint_numbers(read_checkpoint_call(folder))
    elif printed.of_other_benchmark:
        fix = "nothing: only training is audited"
        yield by_rule("no.training", "the summary of another kind of benchmark", fix=fix, severity="info")
    else:
        yield by_rule("no.training", "no training in its files")


def _configured_seconds(logs: Logs) -> float | None:
    """Return the configured time of a step if the ranks' files have it, and have a single value."""
    if logs.measured_compute:
        return None
    values: set[float] = set()
    for blocks in logs.arrays.values():
        for arrays in blocks.values():
            values.update(arrays.compute.tolist())
    return values.pop() if len(values) == 1 else None
