"""Audits dlemu's own results: recomputes summary.json from the rows of steps and facts.json, and compares."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dlemu.contrib.mlperf.audit.prefetch_credit import Prefetch
from dlemu.contrib.mlperf.audit.recompute import NOTHING, Formula, Recomputed
from dlemu.contrib.mlperf.audit.run_settings import Printed, Setup, setup_of
from dlemu.contrib.mlperf.audit.tolerant import count, mapping, number, numbers, read_json, same_sum, text
from dlemu.contrib.mlperf.rules.known import Finding, by_rule
from dlemu.extend import UserError, dlio_workload
from dlemu.results.file_names import LIVE, SUMMARY
from dlemu.results.kinds import kind_named, kind_of

DLIO_FOLDER = "dlio"
"""Folder with DLIO's files in a result folder of dlemu."""
_MARKS = ("facts.json", "steps.parquet", "checkpoints.parquet")
"""A folder with summary.json and any of these files is a result of dlemu."""
_VERSION = re.compile(rb'^\s*\{\s*"schema_version":\s*\d')
"""Matches the beginning of dlemu's summary.json."""
_OWN_NAME = re.compile(r"^dlemu(-\d+)?$")  # of the folder beside the results of `dlio_benchmark`
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
    """Read a result folder of dlemu, even of a killed run, recompute its summary, and compare."""
    import msgspec

    kind, path = kind_of(folder), os.path.join(folder, SUMMARY)
    findings: list[Finding] = []
    saved = read_json(path, findings) if os.path.lexists(path) else None
    name = kind.name if kind is not None else mapping(saved).get("kind", _TRAINING)
    if name not in (_TRAINING, _CHECKPOINT):
        info = by_rule("no.training", f"a run of dlemu of another kind ({name})", severity="info")
        return OwnResult(findings=(*findings, info))
    try:
        run = kind_named(name).load().read(folder)
        summary = run.summary
    except UserError as error:
        broken = by_rule("result.broken", str(error))
        return OwnResult(printed=_printed(mapping(saved), name), findings=(*findings, broken))
    if run.facts.failure is not None:
        seen = f"a run of dlemu that did not complete: {run.facts.failure.splitlines()[0][:200]}"
        fix = "run it again; `dlemu report` shows what was measured"
        findings.append(by_rule("no.training", seen, "a run that completed", fix))
    elif name == _CHECKPOINT:
        fix = "nothing: it is recomputed"
        findings.append(by_rule("no.training", "a run of checkpoints only", fix=fix, severity="info"))
    recomputed = msgspec.to_builtins(summary)
    if saved is not None:
        findings += differences(saved, recomputed)
    elif run.facts.failure is None:
        fix = "`dlemu report` shows what the steps give"
        findings.append(by_rule("result.broken", "a run of dlemu without summary.json", "what the run printed", fix))
    workload, is_training = run.facts.workload, name == _TRAINING
    setup = setup_of(dlio_workload(workload), [])
    return OwnResult(
        prefetch=Prefetch(
            credit_percent=summary.metrics.prefetch_credit_percent,
            sustained_percent=summary.metrics.sustained_percent,
        )
        if is_training
        else Prefetch(),
        setup=replace(
            setup,
            workload=workload.model.name,
            accelerator=workload.accelerator or None,
            config=dlio_workload(workload),
        ),
        printed=_printed(mapping(saved) or recomputed, name),
        recomputed=_recomputed(run) if is_training else NOTHING,
        findings=tuple(findings),
    )


_TRAINING, _CHECKPOINT = "training", "checkpoint"


def differences(printed: object, recomputed: object) -> Iterator[Finding]:
    """Yield a finding for each number or verdict of a summary.json that differs from the recomputed one.

    Keys that only one side has are not compared, nor judgements by other rules: then a warning says so.
    """
    old, new = dict(_flatten(printed)), dict(_flatten(recomputed))
    keys = [key for key in old.keys() & new.keys() if not _same(old[key], new[key]) and not _UNCOMPARED.match(key)]
    judged = [key for key in keys if _JUDGED.match(key)]
    if judged and (by := old.get("judgement_version", 1)) != new["judgement_version"]:
        keys = [key for key in keys if key not in judged]
        yield by_rule("summary.judged", f"summary.json: judged by rules {by}, today's are {new['judgement_version']}")
    keys.sort(key=lambda key: (_FIRST.index(key) if key in _FIRST else len(_FIRST), key))
    wanted = "what follows from the rows and facts.json"
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
        return same_sum(old, new)
    return old == new


def _text(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "null" if value is None else str(value)[:120]


def _printed(saved: Mapping[str, Any], kind: str) -> Printed:
    """Return a summary's numbers as DLIO would print them: AU by DLIO 2.x's formula, and the summary's verdict."""
    metrics, dataset = mapping(saved.get("metrics")), mapping(saved.get("dataset"))
    au, passed = mapping(metrics.get("au_dlio_percent")), saved.get("passed")
    hosts = mapping(saved.get("environment")).get("hosts")
    memory = [number(mapping(host).get("memory_bytes")) or 0 for host in hosts] if isinstance(hosts, list) else []
    return Printed(
        start=text(saved.get("started_at")),
        end=text(saved.get("ended_at")),
        model=text(saved.get("workload")),
        accelerators=count(saved.get("ranks")),
        hosts=len(memory) or None,
        epochs=count(metrics.get("epochs")),
        num_files=count(dataset.get("num_files_train")),
        samples_per_file=count(dataset.get("num_samples_per_file")),
        memory_gib=sum(memory) / 2**30 if memory else None,
        verdict=None if passed is None else ("success" if passed else "fail"),
        au_percent=number(au.get("mean")),
        au_by_epoch=tuple(numbers(au.get("per_epoch")) or ()),
        checkpoints=kind == _CHECKPOINT,
    )


def _recomputed(run: Any) -> Recomputed:
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


def _known(spread: Any) -> tuple[float, ...]:
    return tuple(value for value in spread.per_epoch if value is not None) if spread else ()
