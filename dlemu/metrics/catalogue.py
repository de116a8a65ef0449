"""Catalogues of metrics: each kind of job has one (`CATALOGUE`), made from the metrics that its summary declares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, get_type_hints

from dlemu.config.dump import first_sentence, meanings

Better = Literal["higher", "lower", "neither"]
ACCELERATOR = "accelerator"
"""`Catalogue.rank` of jobs whose ranks emulate accelerators: they pass or fail, and have a price per accelerator."""
RUN = "run"  # the phase of a job with a single phase


@dataclass(frozen=True)
class Metric:
    """A metric and how tables, figures and comparisons show it."""

    title: str
    unit: str
    better: Better
    """Whether the storage is better with higher or lower values."""
    meaning: str = ""
    """Its meaning in one line; by default the first sentence of the docstring of the field that declares it."""
    name: str = ""
    """Its key in JSON, which ends in the unit; by default the name of the field that declares it."""
    axis: str = ""
    """Label for axes and columns; by default title and unit."""
    head: str = ""
    """Heading of its narrow column in a sweep's table; without a heading it has no column."""
    digits: int | None = None
    """Decimals in a sweep's table; None for the significant ones."""
    has_interval: bool = False
    """A sweep's table also shows the half width of its uncertainty interval."""
    is_compared: bool = True
    """Comparisons show it."""
    is_drawn: bool = False
    """Figures of sweeps and comparisons have a panel for it."""
    phase: str = ""
    """The phase of which it is the duration, if any. A comparison's verdict is about the durations of phases."""
    is_tile: bool = False
    """The page of a comparison begins with it; without durations of phases, the verdict is about such metrics."""

    @property
    def label(self) -> str:
        return self.axis or f"{self.title}, {self.unit}"


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """The metrics of one kind of job, in the order in which they are shown."""

    metrics: tuple[Metric, ...]
    rank: str = "rank"
    """The job's word for a rank: `rank`, `accelerator`."""
    repetition: str = "repetition"
    """The job's word for the unit that a run repeats, over which metrics vary: an epoch, a checkpoint."""
    phases: tuple[str, ...] = (RUN,)
    """Parts of the job that each have a limit of their own: writing, reading."""
    judged: str = ""
    """Name of the metric that is compared with a threshold; empty for a job that neither passes nor fails."""
    decisive: str = ""
    """Name of the metric compared instead of `judged` in results that have it; those of other tools lack it."""
    fallback: str = ""
    """Name of the metric that figures draw, without a threshold, for results that lack both, as some of other tools."""
    note: str = ""
    """A sentence for the readers of its figures."""

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
        """The metrics with which a comparison's page begins, and about which its verdict is."""
        return tuple(metric for metric in self.metrics if metric.phase or metric.is_tile)

    @property
    def feeds_accelerators(self) -> bool:
        return self.rank == ACCELERATOR

    def limited_by(self, phase: str) -> str:
        """Return the label of the row or column with the limit of a phase."""
        return "limited by" if phase == RUN else f"{phase} limited by"


def declared(summary: type[Any]) -> tuple[Metric, ...]:
    """Return the metrics declared (`mean_us: Annotated[float, Metric(...)]`) by a summary's fields, then properties."""
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
