"""Rules of the editions since 2.0 on the settings and the summary of one training run.

Sources (https://github.com/mlcommons/storage): the rules' texts; `mlpstorage/rules.py` of v2.0; the submission checker
of v3.0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from dlemu.config.translate import is_known
from dlemu.contrib.mlperf.audit.run_settings import Printed, Setup
from dlemu.contrib.mlperf.audit.tolerant import number, value_at
from dlemu.contrib.mlperf.rules import core_config
from dlemu.contrib.mlperf.rules.core_config import CORE_SECTIONS, NEVER_SET, canonical
from dlemu.contrib.mlperf.rules.editions import EDITIONS, OPEN_OVERRIDES, PREFETCH_SIZES, Edition, Official
from dlemu.contrib.mlperf.rules.known import Finding, Severity, by_rule, first_few, unapplied
from dlemu.contrib.mlperf.rules.training import GIB, STEPS_PER_EPOCH, Division, smallest_dataset

Settings = Mapping[str, Any]
"""All settings of a run, as returned by `core_config.effective`; empty where its configuration is not known."""
_ODIRECT_WORKLOADS = ("unet3d",)  # workloads that may set `reader.odirect`
_SETTINGS_RULES = ("settings.changed", "workload.differs", "workflow.checkpoint")
"""Rules whose findings name the setting that differs; the hash is compared only if they find nothing."""
_MAX_UNKNOWN_KEYS = 4  # as many keys that DLIO lacks are reported: a file may have any number of them
_DURATIONS = ("train.computation_time.", "reader.preprocess_time.")  # prefixes of the parameters of a random time
_IN_WORKLOAD_FILES = ("model.name", "model.type", "model.model_size", "workflow.checkpoint", "workflow.profiling")
"""Further core settings that workload files have."""


def check_run(
    edition: Edition, setup: Setup, printed: Printed, division: Division, *, by_dlemu: bool = False
) -> list[Finding]:
    """Return the findings of an edition's rules on one run; a single one if the edition lacks the workload.

    A rule is reported as unapplied if neither the settings nor the summary have a fact that it needs. A configuration
    that dlemu wrote has keys that DLIO lacks, so its hash is not compared.
    """
    workload = setup.workload or printed.model or "a workload without a name"
    official = edition.officials.get((workload, setup.accelerator or ""))
    if official is None:
        return [_unknown_workload(edition, workload, setup.accelerator)]
    # OPEN may change the number of samples in a file, on which the required number of files depends.
    samples_per_file = printed.samples_per_file or setup.samples_per_file or official.samples_per_file
    official_with_files = replace(official, samples_per_file=samples_per_file)
    settings = core_config.effective(setup.config) if setup.config else {}
    findings = [
        *_dataset(edition, official_with_files, printed.num_files or setup.num_files, printed),
        *_fixed_settings(official, setup),
        *_core_settings(official, settings, division),
        *_figures(official, printed),
        *_overrides(edition, workload, setup, division),
        *_workflow(edition, workload, setup),
    ]
    is_explained = any(finding.rule in _SETTINGS_RULES for finding in findings)
    if division == "closed" and setup.config and not by_dlemu and not is_explained:
        findings += _hash(official, core_config.core_config_hash(setup.config), settings)
    return findings


def _unknown_workload(edition: Edition, workload: str, accelerator: str | None) -> Finding:
    others = [each.name for each in EDITIONS.values() if (workload, accelerator or "") in each.officials]
    seen = f"{workload} on {accelerator or 'an unnamed accelerator'}"
    workloads = ", ".join(sorted({workload for workload, _ in edition.officials}))
    fix = f"it belongs to {' and '.join(others)}" if others else "no edition has this pair"
    return by_rule("workload.unknown", seen, f"v{edition.name}: {workloads}, on its accelerators", fix)


def _dataset(edition: Edition, official: Official, files: int | None, printed: Printed) -> Iterator[Finding]:
    """The dataset is as large as the memory of the hosts and the steps per epoch require."""
    accelerators, memory_gib = printed.accelerators, printed.memory_gib
    if files is None or accelerators is None or memory_gib is None:
        facts = {"number of files": files, "number of accelerators": accelerators, "memory of the hosts": memory_gib}
        yield from unapplied("dataset.size", facts)
        if files is not None and accelerators is not None:
            yield from _steps(official, files, accelerators)
        return
    # The official batch size: a run with another one breaks `settings.changed`, whatever its dataset.
    bound = smallest_dataset(official, accelerators, memory_gib * GIB)
    if files >= bound.advised_files:
        return
    if bound.files - edition.spare_files <= files < bound.files:
        seen = f"{files:,} files, {bound.files - files} less than required"
        wanted = f"{bound.files:,} files; the round accepted {edition.spare_files} less"
        yield by_rule("dataset.size", seen, wanted, severity="warning")
        return
    share = files / bound.files
    seen = f"{files:,} files, {share:.4f} x the required number"
    wanted = f"{bound.files:,} files or more: {bound.because}"
    fix = f"dataset.num_files_train={bound.advised_files}, or less memory or fewer accelerators"
    if share >= 1:
        yield by_rule("dataset.near", seen, f"{wanted}; measured memory can differ a little", fix)
    elif not edition.checks_tree and files >= bound.tool_files:
        yield by_rule("dataset.size", seen, f"{wanted}; v{edition.name}'s tool rounds down", fix, "warning")
    else:
        yield by_rule("dataset.size", seen, wanted, fix)


def _steps(official: Official, files: int, accelerators: int) -> Iterator[Finding]:
    """Each accelerator takes enough steps in an epoch."""
    samples, step_samples = files * official.samples_per_file, official.batch_size * accelerators
    if math.ceil(samples / step_samples) < STEPS_PER_EPOCH:
        fix = f"at least {math.ceil(STEPS_PER_EPOCH * step_samples / official.samples_per_file):,} files"
        seen = f"{samples // step_samples:,} steps per epoch"
        yield by_rule("dataset.steps", seen, f"{STEPS_PER_EPOCH} or more", fix)


def _fixed_settings(official: Official, setup: Setup) -> Iterator[Finding]:
    """The settings that neither division may override are official."""
    fixed: tuple[tuple[str, float | None, float], ...] = (
        ("reader.batch_size", setup.batch_size, official.batch_size),
        ("train.computation_time", setup.computation_seconds, official.computation_seconds),
        ("train.epochs", setup.epochs, official.epochs),
        ("dataset.record_length_bytes", setup.record_bytes, official.record_bytes),
    )
    yield from unapplied("settings.changed", {key: value for key, value, _ in fixed} | {"metric.au": setup.config})
    for key, value, expected in fixed:
        # Older versions of DLIO wrote record lengths without their fraction.
        if value is not None and not math.isclose(value, expected, rel_tol=1e-5):
            yield _changed(key, f"{value:.10g}", f"{expected:.10g}")
    if setup.config is not None and setup.au_threshold_percent < official.au_percent - 1e-9:
        yield _changed("metric.au", f"{setup.au_threshold_percent / 100:.10g}", f"{official.au_percent / 100:.10g}")


def _core_settings(official: Official, settings: Settings, division: Division) -> Iterator[Finding]:
    """All settings that define the workload are official, as are those that change what AU measures."""
    if not settings:
        yield from unapplied("workload.differs", {"configuration": None})
        return
    samples = {"dataset.num_samples_per_file": official.samples_per_file}
    for key, expected in {**NEVER_SET, **core_config.DEFAULTS, **official.settings, **samples}.items():
        value = settings.get(key)
        if value is None:  # a setting that no workload sets has DLIO's default
            value = NEVER_SET.get(key)
        is_no_limit = key == "train.total_training_steps" and isinstance(value, int) and value <= 0
        is_unused = key.startswith("checkpoint.") and settings.get("workflow.checkpoint") is not True
        is_allowed = division == "open" and key in OPEN_OVERRIDES
        if not (is_no_limit or is_unused or is_allowed or _same(value, expected)):
            yield by_rule("workload.differs", f"{key}={value}", f"{key}={expected}", f"leave {key} unchanged")
    if division == "closed":
        unknown = (key for key in settings if not key.startswith(CORE_SECTIONS) and not is_known(key))
        for key in islice(unknown, _MAX_UNKNOWN_KEYS):
            yield by_rule("workload.differs", f"{key}={settings[key]}", f"no {key}")
    for key, value in settings.items():
        dlio_default = 1 if "start" in key else 0
        if key.startswith("output.metric.exclude_") and value != dlio_default:
            yield _changed(key, str(value), "DLIO's own: it decides which steps AU counts")
        if key.startswith(_DURATIONS) and value != "normal":  # mean and deviation have keys of their own
            yield _changed(key, str(value), "a mean")
    prefetch = settings.get("reader.prefetch_size")
    if prefetch is not None and prefetch not in PREFETCH_SIZES:
        yield by_rule("overrides.value", f"reader.prefetch_size={prefetch}")


def _hash(official: Official, core_hash: str, settings: Settings) -> Iterator[Finding]:
    """The hash of all core settings, including keys that no rule above compares, is official."""
    if core_hash in official.core_configs:
        return
    compared = {*NEVER_SET, *official.settings, *core_config.SITE_KEYS, *_IN_WORKLOAD_FILES}
    added = sorted(key for key in settings if key.startswith(CORE_SECTIONS) and key not in compared)
    yield unknown_hash(core_hash, official.core_configs, added)


def unknown_hash(core_hash: str, accepted: Iterable[str], added: Sequence[str]) -> Finding:
    """Return the finding of a hash that is not accepted; `added` are the keys that no other rule compares."""
    seen = f"core-config-v1 hash {core_hash}"
    if added:
        seen += f", with {first_few(added, ', ')}"
    # Without added keys, DLIO's defaults may be written out, which changes the hash but not the workload.
    severity: Severity = "error" if added else "warning"
    return by_rule("workload.hash", seen, f"{' or '.join(sorted(accepted))}, by editions.yaml", severity=severity)


def _same(value: Any, expected: object) -> bool:
    left, right = number(value), number(expected)
    if left is not None and right is not None:
        return math.isclose(left, right, rel_tol=1e-5)
    return bool(canonical(value) == canonical(expected))


def _changed(key: str, value: str, expected: str) -> Finding:
    return by_rule("settings.changed", f"{key}={value}", expected, f"leave {key} unchanged")


def _figures(official: Official, printed: Printed) -> Iterator[Finding]:
    """All hosts run equally many accelerators, and AU reaches the threshold."""
    hosts, accelerators = printed.hosts, printed.accelerators
    yield from unapplied("hosts.uneven", {"number of hosts": hosts, "number of accelerators": accelerators})
    if hosts and accelerators and accelerators % hosts:
        yield by_rule("hosts.uneven", f"{accelerators} accelerators on {hosts} hosts")
    yield from unapplied("au.low", {"AU": printed.au_percent})
    if printed.au_percent is not None and printed.au_percent < official.au_percent:
        rounded_down = math.floor(100 * printed.au_percent) / 100  # 89.996 must not be shown as 90.00
        yield by_rule("au.low", f"AU {rounded_down:.2f} %", f"{official.au_percent:g} % or more")


def _overrides(edition: Edition, workload: str, setup: Setup, division: Division) -> Iterator[Finding]:
    """The division allows all settings that the command line overrides."""
    yield from unapplied("overrides.unknown", {"overrides of the command line": setup.overrides})
    for key in setup.overridden_keys:
        if key.startswith("workflow.") or key in edition.closed_overrides:
            continue
        if key in OPEN_OVERRIDES:
            if division == "closed":
                yield by_rule("overrides.open", key)
            continue
        yield by_rule("overrides.unknown", key, fix=f"leave {key} out: neither division allows it")
    if value_at(setup.config, "reader.odirect") is True and workload not in _ODIRECT_WORKLOADS:
        yield by_rule("overrides.odirect", f"reader.odirect with {workload}")


def _workflow(edition: Edition, workload: str, setup: Setup) -> Iterator[Finding]:
    """The run saves a checkpoint if the edition requires one of the workload."""
    if workload not in edition.checkpoint_workloads:
        return
    saves = value_at(setup.config, "workflow.checkpoint")
    yield from unapplied("workflow.checkpoint", {"setting": saves if isinstance(saves, bool) else None})
    if saves is False:
        yield by_rule("workflow.checkpoint", "workflow.checkpoint is false")
