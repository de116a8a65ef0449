"""A run of the audit held against an edition's rules."""

from __future__ import annotations

from dataclasses import dataclass

from dlemu.mlperf.audit.printed import Printed
from dlemu.mlperf.audit.setup import Setup
from dlemu.mlperf.audit.tolerant import mapping
from dlemu.mlperf.editions import EDITIONS
from dlemu.mlperf.finding import Finding
from dlemu.mlperf.rules import Division, RunFacts, check_run, override_keys


@dataclass(frozen=True)
class Rulebook:
    """What runs are held against."""

    edition: str
    division: Division


def rule_findings(setup: Setup, printed: Printed, book: Rulebook) -> list[Finding]:
    """Return what the run breaks, as far as its files tell; rules are named `rules.NAME`."""
    config = mapping(setup.config)
    odirect = mapping(config.get("reader")).get("odirect")
    checkpoint = mapping(config.get("workflow")).get("checkpoint")
    facts = RunFacts(
        workload=setup.workload or printed.model or "a workload without a name",
        accelerator=setup.accelerator or "",
        accelerators=printed.accelerators,
        hosts=printed.hosts,
        memory_gib=printed.memory_gib,
        num_files=printed.num_files or setup.num_files,
        samples_per_file=printed.samples_per_file or setup.samples_per_file,
        record_bytes=setup.record_bytes,
        batch_size=setup.batch_size,
        computation_seconds=setup.computation_seconds,
        epochs=setup.epochs,
        au_threshold_percent=setup.au_threshold_percent if setup.config is not None else None,
        au_percent=printed.au_percent,
        checkpoint=checkpoint if isinstance(checkpoint, bool) else None,
        odirect=odirect if isinstance(odirect, bool) else None,
        overrides=override_keys(setup.overrides),
    )
    found = check_run(EDITIONS[book.edition], facts, book.division)
    return [Finding(one.severity, f"rules.{one.rule}", one.seen, one.wanted, one.fix) for one in found]
