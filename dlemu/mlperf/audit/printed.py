"""What a run's summary.json printed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dlemu.mlperf.audit.tolerant import count, mapping, number, numbers, read_json, text
from dlemu.mlperf.finding import Finding


@dataclass(frozen=True, kw_only=True)
class Printed:
    """The summary's numbers; None where it has none."""

    start: str | None = None
    end: str | None = None
    model: str | None = None
    accelerators: int | None = None
    hosts: int | None = None
    epochs: int | None = None
    num_files: int | None = None
    samples_per_file: int | None = None
    memory_gib: float | None = None
    """Of all hosts together."""
    verdict: str | None = None
    """`success` or `fail`."""
    au_percent: float | None = None
    au_by_epoch: tuple[float, ...] = ()
    samples_per_second: float | None = None
    samples_per_second_by_epoch: tuple[float, ...] = ()
    mib_per_second: float | None = None
    checkpoints: bool = False
    """Whether it has numbers of checkpoints."""
    ours: bool = False
    """Whether it is dlemu's own summary, not DLIO's."""
    foreign: bool = False
    """Whether it is another benchmark's: MLPerf Storage v3.0 has some that DLIO does not run."""


def read_printed(folder: str, findings: list[Finding]) -> Printed:
    """Return what the summary in a folder says; without one nothing is known, which is a finding."""
    path = os.path.join(folder, "summary.json")
    if not os.path.isfile(path):
        fix = "let the run end: DLIO writes summary.json last"
        findings.append(Finding("error", "summary.missing", "there is no summary.json", "a run that ended", fix))
        return Printed()
    before = len(findings)
    summary = read_json(path, findings)
    if len(findings) == before and not isinstance(summary, Mapping):
        findings.append(_foreign(f"summary.json holds a {type(summary).__name__}"))
    return _printed(mapping(summary), findings)


def _printed(summary: Mapping[str, Any], findings: list[Finding]) -> Printed:
    metric, memory = mapping(summary.get("metric")), numbers(summary.get("host_memory_GB"))
    au, rate = "train_au_percentage", "train_throughput_samples_per_second"
    for key in (au, rate):
        if key in metric and numbers(metric[key]) is None and metric[key] != []:
            findings.append(_foreign(f"summary.json: metric.{key} is {str(metric[key])[:80]}"))
    return Printed(
        start=text(summary.get("start")),
        end=text(summary.get("end")),
        model=text(summary.get("model")),
        accelerators=count(summary.get("num_accelerators")),
        hosts=count(summary.get("num_hosts")),
        epochs=count(summary.get("epochs")),
        num_files=count(summary.get("num_files_train")),
        samples_per_file=count(summary.get("num_samples_per_file")),
        memory_gib=sum(memory) if memory else None,
        verdict=text(metric.get("train_au_meet_expectation")),
        au_percent=number(metric.get("train_au_mean_percentage")),
        au_by_epoch=tuple(numbers(metric.get(au)) or ()),
        samples_per_second=number(metric.get("train_throughput_mean_samples_per_second")),
        samples_per_second_by_epoch=tuple(numbers(metric.get(rate)) or ()),
        mib_per_second=number(metric.get("train_io_mean_MB_per_second")),
        checkpoints=any(str(key).startswith(("save_checkpoint", "load_checkpoint")) for key in metric),
        ours=count(summary.get("schema_version")) is not None,
        foreign=bool(summary) and not summary.keys() & {"metric", "num_accelerators", "epochs", "complete"},
    )


def _foreign(seen: str) -> Finding:
    return Finding("error", "summary.foreign", seen, "numbers as DLIO writes them", "take the file from the run again")
