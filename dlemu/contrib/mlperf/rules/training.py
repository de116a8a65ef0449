"""MLPerf Storage's rules for one training run: pure functions from facts to findings, for editions since 2.0.

Sources: mlcommons/storage, its rules' text and tool of each edition (https://github.com/mlcommons/storage):
`mlpstorage/rules.py` (v2.0), `Rules.md` and the submission checker (v3.0).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

from dlemu.config.translate import is_known
from dlemu.contrib.mlperf.rules.core_config import CORE_SECTIONS, DEFAULTS, NEVER_SET, SITE_KEYS, canonical
from dlemu.contrib.mlperf.rules.editions import (
    EDITIONS,
    ODIRECT_WORKLOADS,
    OPEN_OVERRIDES,
    PREFETCH_SIZES,
    Edition,
    Official,
)
from dlemu.contrib.mlperf.rules.known import Finding, Located, Severity, by_rule

Division = Literal["closed", "open"]

MEMORY_FACTOR = 5
"""The dataset must be at least this many times the memory of all hosts (2.1)."""
STEPS_PER_EPOCH = 500
"""Each accelerator must take at least this many steps per epoch (2.1)."""
NEAR = 0.01
"""Warn of a dataset this close to the bound: in published runs, entered and measured memory differ by up to 0.3 %."""
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class DatasetBound:
    """The smallest dataset that the rules allow, in files."""

    files_by_memory: int
    files_by_steps: int
    tool_files: int
    """Number printed by the tools of v2.0, and of v3.0 while its round ran, which round down."""

    @property
    def files(self) -> int:
        """Files that satisfy both bounds, rounded up."""
        return max(self.files_by_memory, self.files_by_steps)

    @property
    def comfortable_files(self) -> int:
        """Files that are still enough if the hosts' memory turns out to be 1 % larger."""
        return max(math.ceil(self.files_by_memory * (1 + NEAR)), self.files_by_steps)

    @property
    def because(self) -> str:
        """The bound that is larger, in words."""
        if self.files_by_memory > self.files_by_steps:
            return f"{MEMORY_FACTOR} x the hosts' memory"
        return f"{STEPS_PER_EPOCH} steps of each accelerator"


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Facts about one run; None: not known, and rules that need the fact are reported as unapplied."""

    workload: str
    accelerator: str
    accelerators: int | None = None
    hosts: int | None = None
    memory_gib: float | None = None
    """Memory of all hosts together."""
    num_files: int | None = None
    samples_per_file: int | None = None
    record_bytes: float | None = None
    batch_size: int | None = None
    computation_seconds: float | None = None
    epochs: int | None = None
    au_threshold_percent: float | None = None
    au_percent: float | None = None
    checkpoint: bool | None = None
    """`workflow.checkpoint`."""
    odirect: bool | None = None
    overrides: tuple[str, ...] | None = None
    """The workload's keys that the command line changed, such as `reader.read_threads`."""
    settings: Mapping[str, Any] | None = None
    """All settings, as returned by `core_config.effective`."""
    core_config: str | None = None
    """`core-config-v1` hash of the run's config.yaml; None if a program other than DLIO wrote that file."""


def smallest_dataset(official: Official, batch_size: int, accelerators: int, memory_bytes: float) -> DatasetBound:
    """Return the smallest allowed dataset; `accelerators` and `memory_bytes` are those of all hosts together."""
    samples_by_steps = STEPS_PER_EPOCH * batch_size * accelerators
    samples_by_memory = MEMORY_FACTOR * memory_bytes / official.record_bytes
    return DatasetBound(
        files_by_memory=math.ceil(samples_by_memory / official.samples_per_file),
        files_by_steps=math.ceil(samples_by_steps / official.samples_per_file),
        tool_files=math.floor(max(samples_by_memory, samples_by_steps) / official.samples_per_file),
    )


def override_keys(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return the workload's keys that DLIO's overrides, such as `++workload.reader.odirect=True`, change."""
    words = [word.lstrip("+~").partition("=")[0] for word in overrides]
    return tuple(word.removeprefix("workload.") for word in words if word.startswith("workload."))


def check_run(edition: Edition, facts: RunFacts, division: Division) -> list[Finding]:
    """Return findings for the rules of an edition that one run breaks; a single one if its workload is unknown."""
    official = edition.official(facts.workload, facts.accelerator)
    if official is None:
        return [_unknown_workload(edition, facts)]
    # OPEN may change the samples of a file: the least number of files is then that of such files.
    sized = replace(official, samples_per_file=facts.samples_per_file or official.samples_per_file)
    findings = [
        *_dataset(edition, sized, facts),
        *_steps(sized, facts),
        *_settings(official, facts),
        *_other_settings(edition, official, facts, division),
        *_hosts(facts),
        *_utilisation(official, facts),
        *_overrides(edition, facts, division),
        *_workflow(edition, facts),
    ]
    if not any(finding.rule in _SETTINGS_RULES for finding in findings):
        findings += _hash(official, facts, division)
    return findings


_SETTINGS_RULES = ("settings.changed", "workload.differs", "workflow.checkpoint")
"""Rules that name the setting by which a workload differs. If none is broken, the hash can still show a difference."""


def _unknown_workload(edition: Edition, facts: RunFacts) -> Finding:
    others = [other.name for other in EDITIONS.values() if other.official(facts.workload, facts.accelerator)]
    seen = f"{facts.workload} on {facts.accelerator or 'an unnamed accelerator'}"
    known = ", ".join(sorted({workload for workload, _ in edition.officials}))
    fix = f"it belongs to {' and '.join(others)}" if others else "no edition has this pair"
    return by_rule("workload.unknown", seen, f"v{edition.name}: {known}, on its accelerators", fix)


def unapplied(rule: str, **known: object) -> Iterator[Finding]:
    """Yield a finding that a rule could not be applied if any fact that it needs is None; `known`: name -> fact."""
    lacking = [name.replace("_", " ") for name, value in known.items() if value is None]
    if lacking:
        fix = "keep the files of the run as its tool wrote them"
        yield Finding("info", "unapplied", f"{rule}: {', '.join(lacking)} not known", f"{rule} applied", fix)


def unapplied_at(path: str, rule: str, **known: object) -> Iterator[Located]:
    """Yield the same of a file or folder."""
    yield from (Located(path, finding) for finding in unapplied(rule, **known))


def _dataset(edition: Edition, official: Official, facts: RunFacts) -> Iterator[Finding]:
    if facts.num_files is None or facts.accelerators is None or facts.memory_gib is None:
        yield from unapplied(
            "dataset.size",
            number_of_files=facts.num_files,
            number_of_accelerators=facts.accelerators,
            memory_of_the_hosts=facts.memory_gib,
        )
        return
    # By the official batch size: with another one, the advice would be of a run that breaks `settings.changed`.
    bound = smallest_dataset(official, official.batch_size, facts.accelerators, facts.memory_gib * GIB)
    if facts.num_files >= bound.comfortable_files:
        return
    if bound.files - edition.spare_files <= facts.num_files < bound.files:
        seen = f"{facts.num_files:,} files, one less than required"
        yield by_rule("dataset.size", seen, f"{bound.files:,} files; the round accepted one less", severity="warning")
        return
    share = facts.num_files / bound.files
    seen = f"{facts.num_files:,} files, {share:.4f} x the required number"
    wanted = f"{bound.files:,} files or more: {bound.because}"
    fix = f"dataset.num_files_train={bound.comfortable_files}, or less memory or fewer accelerators"
    if share >= 1:
        yield by_rule("dataset.near", seen, f"{wanted}; measured memory can differ a little", fix)
    elif not edition.checks_tree and facts.num_files >= bound.tool_files:
        yield by_rule("dataset.size", seen, f"{wanted}; v{edition.name}'s tool rounds down", fix, "warning")
    else:
        yield by_rule("dataset.size", seen, wanted, fix)


def _steps(official: Official, facts: RunFacts) -> Iterator[Finding]:
    if facts.num_files is None or facts.accelerators is None or facts.memory_gib is not None:
        return  # with the memory, `_dataset` judges steps too; without the other two, it has reported that
    samples = facts.num_files * official.samples_per_file
    per_step = official.batch_size * facts.accelerators
    if math.ceil(samples / per_step) < STEPS_PER_EPOCH:
        fix = f"at least {math.ceil(STEPS_PER_EPOCH * per_step / official.samples_per_file):,} files"
        yield by_rule("dataset.steps", f"{samples // per_step:,} steps per epoch", f"{STEPS_PER_EPOCH} or more", fix)


def _settings(official: Official, facts: RunFacts) -> Iterator[Finding]:
    """Compare the settings that neither division may override."""
    pairs: tuple[tuple[str, float | None, float], ...] = (
        ("reader.batch_size", facts.batch_size, official.batch_size),
        ("train.computation_time", facts.computation_seconds, official.computation_seconds),
        ("train.epochs", facts.epochs, official.epochs),
        ("dataset.record_length_bytes", facts.record_bytes, official.record_bytes),
    )
    lacking = [key for key, seen, _ in pairs if seen is None]
    if facts.au_threshold_percent is None:
        lacking.append("metric.au")
    if lacking:
        yield from unapplied("settings.changed", **{" and ".join(lacking): None})
    for key, seen, wanted in pairs:
        # Older versions of DLIO wrote record lengths without their fraction.
        if seen is not None and not math.isclose(seen, wanted, rel_tol=1e-5):
            yield _changed(key, f"{seen:.10g}", f"{wanted:.10g}")
    threshold = facts.au_threshold_percent
    if threshold is not None and threshold < official.au_percent - 1e-9:
        yield _changed("metric.au", f"{threshold / 100:.10g}", f"{official.au_percent / 100:.10g}")


_MOST_UNKNOWN = 4
"""Settings that DLIO lacks are named up to so many: a file may have any number."""
_DURATIONS = ("train.computation_time.", "reader.preprocess_time.")
"""Prefixes of the parameters of a random time."""


def _other_settings(edition: Edition, official: Official, facts: RunFacts, division: Division) -> Iterator[Finding]:
    """Compare all other core settings, those that no workload sets, and those that decide which steps count in AU."""
    settings = facts.settings
    if settings is None:
        yield from unapplied("workload.differs", configuration=None)
        return
    samples = {"dataset.num_samples_per_file": official.samples_per_file}
    wanted = {**NEVER_SET, **DEFAULTS, **official.settings, **samples}
    for key, value in wanted.items():
        seen = NEVER_SET.get(key) if settings.get(key) is None else settings[key]
        if key == "train.total_training_steps" and isinstance(seen, int) and seen <= 0:
            continue
        if key in OPEN_OVERRIDES and division == "open":
            continue
        if key.startswith("checkpoint.") and settings.get("workflow.checkpoint") is not True:
            continue  # irrelevant: no checkpoint is saved
        if not _same(seen, value):
            yield by_rule("workload.differs", f"{key}={seen}", f"{key}={value}", f"leave {key} unchanged")
    others = (key for key in settings if division == "closed" and not key.startswith(CORE_SECTIONS))
    for key in islice((key for key in others if not is_known(key)), _MOST_UNKNOWN):
        yield by_rule("workload.differs", f"{key}={settings[key]}", f"no {key}")
    for key, value in settings.items():
        if key.startswith("output.metric.exclude_") and value != (1 if "start" in key else 0):
            yield _changed(key, str(value), "DLIO's own: it decides which steps AU counts")
        if key.startswith(_DURATIONS) and value != "normal":  # mean and deviation are settings of their own
            yield _changed(key, str(value), "a mean")
    prefetch = settings.get("reader.prefetch_size")
    if prefetch is not None and prefetch not in PREFETCH_SIZES:
        wanted_sizes = f"one of {', '.join(map(str, PREFETCH_SIZES))}"
        yield by_rule("overrides.value", f"reader.prefetch_size={prefetch}", wanted_sizes)


def _hash(official: Official, facts: RunFacts, division: Division) -> Iterator[Finding]:
    """Compare the hash of all core settings: it also reveals keys that no rule above compares."""
    known = official.core_configs
    if division == "closed" and facts.core_config is not None and facts.core_config not in known:
        added = sorted(key for key in facts.settings or () if key.startswith(CORE_SECTIONS))
        added = [key for key in added if key not in {*NEVER_SET, *official.settings, *SITE_KEYS, *_IN_WORKLOAD_FILES}]
        # A setting of DLIO's that is written out with its default changes the hash, but not the workload.
        severity: Severity = "error" if added else "warning"
        named = f", with {', '.join(added[:3])}" if added else ""
        seen = f"core-config-v1 hash {facts.core_config}{named}"
        yield by_rule("workload.hash", seen, f"{' or '.join(sorted(known))}, by editions.yaml", severity=severity)


_IN_WORKLOAD_FILES = ("model.name", "model.type", "model.model_size", "workflow.checkpoint", "workflow.profiling")
"""Core settings that workload files have, besides those that other rules compare."""


def _same(seen: Any, wanted: object) -> bool:
    if isinstance(seen, int | float) and isinstance(wanted, int | float):
        return math.isclose(seen, wanted, rel_tol=1e-5)
    return bool(canonical(seen) == canonical(wanted))


def _changed(key: str, seen: str, wanted: str) -> Finding:
    return by_rule("settings.changed", f"{key}={seen}", wanted, f"leave {key} unchanged")


def _hosts(facts: RunFacts) -> Iterator[Finding]:
    yield from unapplied("hosts.uneven", number_of_hosts=facts.hosts, number_of_accelerators=facts.accelerators)
    if facts.hosts and facts.accelerators and facts.accelerators % facts.hosts:
        seen = f"{facts.accelerators} accelerators on {facts.hosts} hosts"
        yield by_rule("hosts.uneven", seen, fix=f"a multiple of {facts.hosts} accelerators")


def _utilisation(official: Official, facts: RunFacts) -> Iterator[Finding]:
    yield from unapplied("au.low", AU=facts.au_percent)
    if facts.au_percent is not None and facts.au_percent < official.au_percent:
        below = math.floor(100 * facts.au_percent) / 100  # rounded down: 89.996 must not read as 90.00
        yield by_rule("au.low", f"AU {below:.2f} %", f"{official.au_percent:g} % or more")


def _overrides(edition: Edition, facts: RunFacts, division: Division) -> Iterator[Finding]:
    yield from unapplied("overrides.unknown", overrides_of_the_command_line=facts.overrides)
    for key in facts.overrides or ():
        if key.startswith("workflow.") or key in edition.closed_overrides:
            continue
        if key in OPEN_OVERRIDES:
            if division == "closed":
                yield by_rule("overrides.open", key)
            continue
        yield by_rule("overrides.unknown", key, fix=f"leave {key} out: neither division allows it")
    if facts.odirect and facts.workload not in ODIRECT_WORKLOADS:
        seen, wanted = f"reader.odirect with {facts.workload}", f"only with {', '.join(ODIRECT_WORKLOADS)}"
        yield by_rule("overrides.odirect", seen, wanted)


def _workflow(edition: Edition, facts: RunFacts) -> Iterator[Finding]:
    if facts.workload not in edition.checkpoint_workloads:
        return
    yield from unapplied("workflow.checkpoint", setting=facts.checkpoint)
    if facts.checkpoint is False:
        seen = "workflow.checkpoint is false"
        yield by_rule("workflow.checkpoint", seen, f"true for {facts.workload} in v{edition.name}")
