"""Fake trials, which take no time: the AU of a storage of known speed, with noise."""

from __future__ import annotations

from typing import Any

import numpy as np

from datagen.errors import UserError
from dlemu.results.figures import JobFigures, Value
from dlemu.studies.answers import Question, Trial
from dlemu.studies.size.size_verdict import SearchInputs

DEMAND = 100.0
"""MB/s of one accelerator."""


def make_trial(accelerators: int, values: list[float], **changes: Any) -> Trial:
    settings: dict[str, Any] = {
        "folder": f"trial-{accelerators}",
        "window_au_percent": tuple(values),
        "seconds": 10.0,
        "mb_per_accelerator": DEMAND,
    }
    metrics = {"ceiling_au_percent": 100.0, "app_mb_per_second": float(np.mean(values)) / 100 * accelerators * DEMAND}
    metrics |= {name: changes.pop(name) for name in metrics if name in changes}
    values_of = {name: Value(value) for name, value in metrics.items()}
    figures = JobFigures(kind="training", workload="unet3d", ranks=accelerators, metrics=values_of)
    return Trial(**(settings | changes), figures=figures)


class FakeRunner:
    """Runs trials on a storage of `mb_per_second`, on a host for `holds` accelerators with a `ceiling` of their AU."""

    def __init__(
        self, mb_per_second: float, *, noise: float = 0.1, holds: int = 10**6, ceiling: dict[int, float] | None = None
    ) -> None:
        self._mb_per_second, self._noise, self._holds, self._ceiling = mb_per_second, noise, holds, ceiling or {}
        self._random = np.random.default_rng(7)
        self.tried: list[int] = []

    def __call__(self, accelerators: int, number: int, folder: str) -> Trial:
        self.tried.append(accelerators)
        if accelerators > self._holds:
            raise UserError(f"{accelerators} ranks want more memory")
        ceiling = self._ceiling.get(accelerators, 100.0)
        au = min(ceiling, 100 * self._mb_per_second / (accelerators * DEMAND))
        values = au + self._noise * self._random.standard_normal(12)
        return make_trial(accelerators, values.tolist(), ceiling_au_percent=ceiling)


def question(**changes: Any) -> Question:
    settings: dict[str, Any] = {
        "workload": "unet3d",
        "accelerator": "h100",
        "overrides": ("workload=unet3d",),
        "launcher": "",
        "threshold_percent": 90.0,
        "cached": False,
        "settings_digest": "",
    }
    return Question(**(settings | changes))


def known(**changes: Any) -> SearchInputs:
    settings: dict[str, Any] = {
        "probe_mb_per_second": 1000.0,
        "mb_per_accelerator": DEMAND,
        "max_accelerators": 4096,
        "max_reason": "--most 4096 was the limit",
        "naive_seconds_per_trial": 800.0,
    }
    return SearchInputs(**(settings | changes))
