"""What `dlemu doctor` looks at, one function each; a check is data, and nothing here prints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from dlemu.config.schema import Workload

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing looked at. `wanted` and `advice` are empty where there is nothing to want or to do."""

    name: str
    level: Level
    seen: str
    wanted: str = ""
    advice: str = ""


def all_checks(workload: Workload) -> Iterator[Check]:
    """Look at everything a run of the workload needs on this host, one after the other; nothing here raises."""
    from dlemu.cli import checks_dataset, checks_host, checks_software

    yield from checks_software.checks(workload)
    yield from checks_host.checks(workload)
    yield from checks_dataset.checks(workload)
