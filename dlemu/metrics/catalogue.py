"""The catalogue of metrics: what a kind of job measures, each metric declared once in its `metrics.CATALOGUE`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, get_type_hints

from dlemu.config.dump import first_sentence, meanings

Better = Literal["higher", "lower", "neither"]
ACCELERATOR = "accelerator"
"""`Catalogue.rank` of jobs whose ranks emulate accelerators: they pass or fail, and have a price per accelerator."""
RUN = "run"
"""The phase of a job that has only one."""


@dataclass(frozen=True)
class Metric:
    """One metric."""

    title: str
    unit: str
    better: Better
    """Which of two values is in the storage's favour."""
    meaning: str = ""
    """What it means, in one line; empty: the first sentence below the field that declares it."""
    name: str = ""
    """Its key in JSON, which ends in the unit; empty: the name of the field that declares it."""
    axis: str = ""
    """Label with its unit, for axes and columns; empty: title and unit."""
    head: str = ""
    """Heading of its narrow column in a sweep's table; a metric without one is left out there."""
    digits: int | None = None
    """Decimals in a sweep's table; None: as many as are significant."""
    has_interval: bool = False
    """A sweep's table shows the half width of its uncertainty interval, too."""
    is_compared: bool = True
    """Comparisons show it."""
    is_drawn: bool = False
    """Figures of sweeps and comparisons have a panel for it."""
    phase: str = ""
    """The phase whose duration it is; empty for other metrics. A comparison's verdict is about such durations."""
    is_tile: bool = False
    """The page of a comparison begins with it; its verdict is about it in kinds of jobs without durations of phases."""

    @property
    def label(self) -> str:
        return self.axis or f"{self.title}, {self.unit}"


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """The metrics of one kind of job, in the order in which they are shown."""

    metrics: tuple[Metric, ...]
    rank: str = "rank"
    """What the job calls one rank: `rank`, `accelerator`."""
    repetition: str = "repetition"
    """What a run repeats, so that its metrics have a spread: an epoch, a checkpoint."""
    phases: tuple[str, ...] = (RUN,)
    """Parts of the job that each get their own `limited by`: writing, reading."""
    judged: str = ""
    """The metric that is compared with a threshold; empty for a job that neither passes nor fails."""
    decisive: str = ""
    """The metric that is compared with the threshold instead of `judged`, if a result has it: other tools' have not."""
    fallback: str = ""
    """The metric that figures draw, without a threshold, if a result has neither, as those of some other tools."""
    note: str = ""
    """What a reader of its figures must know, a sentence."""

    def __getitem__(self, name: str) -> Metric:
        return next(metric for metric in self.metrics if metric.name == name)

    def __iter__(self) -> Iterator[Metric]:
        return iter(self.metrics)

    @property
    def compared(self) -> tuple[Metric, ...]:
        return tuple(metric for metric in self.metrics if metric.is_compared)

    @property
    def in_sweeps(self) -> tuple[Metric, ...]:
        return tuple(metric for metric in self.metrics if metric.head)

    @property
    def times(self) -> tuple[Metric, ...]:
        return tuple(metric for metric in self.metrics if metric.phase)

    @property
    def headlines(self) -> tuple[Metric, ...]:
        """The metrics that a comparison's page begins with; its verdict is about them."""
        return tuple(metric for metric in self.metrics if metric.phase or metric.is_tile)

    @property
    def feeds_accelerators(self) -> bool:
        return self.rank == ACCELERATOR

    def limited_by(self, phase: str) -> str:
        """Return the label of the row or column that says what limited a phase."""
        return "limited by" if phase == RUN else f"{phase} limited by"


def declared(summary: type[Any]) -> tuple[Metric, ...]:
    """Return the metrics that a summary's class declares, at its fields (`mean_us: Annotated[float, Metric(...)]`) and
    at properties that return `Annotated[..., Metric(...)]`, which show a part of a field.
    """
    texts, hints = meanings(summary), get_type_hints(summary, include_extras=True)
    for name, member in vars(summary).items():
        if isinstance(member, property):
            hints[name] = get_type_hints(member.fget, include_extras=True).get("return")
            texts[name] = member.__doc__ or ""
    metrics = []
    for name, hint in hints.items():
        for metric in getattr(hint, "__metadata__", ()):
            if isinstance(metric, Metric):
                meaning = metric.meaning or first_sentence(texts.get(name, ""))
                metrics.append(replace(metric, name=name, meaning=meaning))
    return tuple(metrics)
