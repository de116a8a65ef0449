"""Two storages beside each other: differences with their uncertainty, and what they come to in a year. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from datagen.errors import UserError
from dlemu.sizing.answers import ComparedSide, Comparison, Difference, Economy, RunFigures, RunPair, Value, YearPlan
from dlemu.sizing.sides import METRICS, Settings, Side, differing_datasets, issues_between, value_of

PLANNED_EPOCHS = 100
"""Of one model; the number of the KIOXIA CM7 white paper on DLIO."""
YEAR_HOURS, YEAR_DAYS = 8760.0, 365.0


@dataclass(frozen=True, kw_only=True)
class Extras:
    """What only the user knows of one side; None where not given."""

    price: float | None = None
    watts: float | None = None
    years: float | None = None
    energy_price: float | None = None
    """Of a kWh, in the price's currency."""


def compare(a: Side, b: Side, extras: tuple[Extras, Extras] = (Extras(), Extras())) -> Comparison:
    """Return A beside B: each pair of runs with equal settings, and what each storage comes to.

    Raises UserError when no runs have equal settings.
    """
    pairs = _pairs(a, b)
    if not pairs and (a.runs or b.runs):
        raise UserError(
            f"{a.name} and {b.name} have no run with the same settings: {_listed(a)} against {_listed(b)}; compare two "
            "runs, two sweeps over the same values, or two searches"
        )
    comparison = Comparison(
        a=a.name,
        b=b.name,
        verdict="",
        runs=tuple(
            replace(compare_runs(of_a, of_b, differing_datasets(a, b)), settings=dict(settings))
            for settings, of_a, of_b in pairs
        ),
        economy=(economy(a, extras[0]), economy(b, extras[1])),
        sides=(_compared(a), _compared(b)),
        issues=tuple(issues_between(a, b)),
    )
    return replace(comparison, verdict=sentence(comparison))


def _pairs(a: Side, b: Side) -> list[tuple[Settings, RunFigures, RunFigures]]:
    """Return the runs with equal settings; two single runs are a pair whatever was set."""
    if len(a.runs) == len(b.runs) == 1:
        return [((), of_a, of_b) for of_a, of_b in zip(a.runs.values(), b.runs.values(), strict=True)]
    return [(settings, a.runs[settings], b.runs[settings]) for settings in a.runs if settings in b.runs]


def _listed(side: Side) -> str:
    runs = [" ".join(f"{key}={value}" for key, value in settings) or "one run" for settings in side.runs]
    return "; ".join(runs) or "a search"


def _compared(side: Side) -> ComparedSide:
    return ComparedSide(name=side.name, workload=side.workload, counts=side.counts, about=side.about)


def compare_runs(a: RunFigures, b: RunFigures, datasets: Sequence[str] = ()) -> RunPair:
    """Return the differences of A to B, metric by metric, and the plan of a year.

    `datasets` says in what their datasets differ. Runs of other datasets, accelerators or counts did not do the same
    work: what they took longer is not the storage's, and no year follows from it.
    """
    differ = list(datasets)
    if a.accelerator and b.accelerator and a.accelerator != b.accelerator:
        differ.insert(0, f"A's accelerators were {a.accelerator}, B's {b.accelerator}")
    if a.ranks != b.ranks:
        differ.insert(0, f"A had {a.ranks} accelerators, B {b.ranks}")
    if a.workload != b.workload:
        differ.insert(0, f"A ran {a.workload}, B {b.workload}")
    values = {metric: (value_of(a, metric), value_of(b, metric)) for metric in METRICS}
    return RunPair(
        settings={},
        ranks=(a.ranks, b.ranks),
        epochs=(a.epochs, b.epochs),
        passed=(a.passed, b.passed),
        limited_by=(a.limited_by.what if a.limited_by else None, b.limited_by.what if b.limited_by else None),
        metrics={metric: difference(of_a, of_b) for metric, (of_a, of_b) in values.items() if of_a and of_b},
        plan=None if differ else _plan(a, b),
        not_comparable=tuple(differ),
    )


def difference(a: Value, b: Value) -> Difference:
    """Return both and how much more A is than B in %; relative half widths add in squares (to first order)."""
    percent = 100 * (a.mean / b.mean - 1) if b.mean else None
    width = None
    if a.mean and b.mean and a.half_width is not None and b.half_width is not None:
        width = 100 * abs(a.mean / b.mean) * math.hypot(a.half_width / a.mean, b.half_width / b.mean)
    return Difference(
        a=a.mean,
        a_half_width=a.half_width,
        b=b.mean,
        b_half_width=b.half_width,
        difference_percent=percent,
        half_width_percent=width,
        distinct=None if percent is None or width is None else abs(percent) > width,
    )


def _plan(a: RunFigures, b: RunFigures) -> YearPlan | None:
    if not a.total_seconds or not b.total_seconds:
        return None
    hours = PLANNED_EPOCHS * a.total_seconds / a.epochs / 3600, PLANNED_EPOCHS * b.total_seconds / b.epochs / 3600
    return YearPlan(
        epochs=PLANNED_EPOCHS,
        hours_per_model=hours,
        models_per_year=(YEAR_HOURS / hours[0], YEAR_HOURS / hours[1]),
        days_saved_per_year=YEAR_DAYS * (1 - hours[0] / hours[1]),
    )


def economy(side: Side, extras: Extras) -> Economy:
    """Return cost per accelerator that is fed, and GB/s per watt; None for what was not given or not measured.

    Over years: price + watts x 8760 h x years / 1000 x price of a kWh, each by the accelerators fed. The storage is
    taken to draw its power always.
    """
    fed, rate, years = side.accelerators, side.gb_per_second, extras.years
    watts = extras.watts / fed if extras.watts and fed else None
    energy = watts * YEAR_HOURS * years / 1000 if watts is not None and years else None
    each = extras.price / fed if extras.price is not None and fed else None
    total = None
    if each is not None and energy is not None and extras.energy_price is not None:
        total = each + energy * extras.energy_price
    return Economy(
        accelerators_fed=fed,
        gb_per_second=rate,
        cost_per_accelerator=each,
        gb_per_second_per_watt=rate / extras.watts if extras.watts and rate is not None else None,
        watts_per_accelerator=watts,
        years=years if energy is not None else None,
        energy_kwh_per_accelerator=energy,
        cost_over_years_per_accelerator=total,
    )


def sentence(comparison: Comparison) -> str:
    """Return what it comes to: the time of the largest runs, and how many accelerators each side feeds."""
    parts = []
    pair = comparison.main_pair
    if pair is not None and pair.not_comparable:
        parts.append(f"not comparable: {', '.join(pair.not_comparable)}")
    elif pair is not None and pair.time is not None:
        a, b = pair.epochs
        each = "" if a == b else f"A ran {a} epoch{'s' * (a != 1)} and B {b}: by the epoch, "
        parts.append(f"{each}with {pair_settings(pair)} {difference_in_time(pair.time)}")
    fed = [side.accelerators_fed for side in comparison.economy]
    if any(fed):
        if fed[0] == fed[1]:
            parts.append(f"A and B feed {fed[0]} accelerator{'s' * (fed[0] != 1)} each")
        else:
            parts.append(f"A feeds {fed[0] or 'no'} accelerator{'s' * (fed[0] != 1)}, B {fed[1] or 'none'}")
    elif comparison.runs and all(passed is False for pair in comparison.runs for passed in pair.passed):
        parts.append("neither passes")
    return "; ".join(parts) or "no figure is known of both"


def pair_settings(pair: RunPair) -> str:
    """Return what a pair of runs has in common, in words."""
    a, b = pair.ranks
    others = [f"{key}={value}" for key, value in pair.settings.items() if key != "ranks"]
    count = f"{a} accelerator{'s' * (a != 1)}" if a == b else f"{a} and {b} accelerators"
    return ", ".join([count, *others])


def difference_in_time(total: Difference, *, repeated: str = "epochs") -> str:
    """Return a difference in seconds in words; `repeated` is what there may be too few of for an interval."""
    percent, width = total.difference_percent, total.half_width_percent
    if percent is None:
        return "no time passed"
    if total.distinct is False:
        return f"no difference in time is shown: A to B {percent:+.1f} % +- {width:.1f}"
    said = f"A takes {abs(percent):.1f} % {'less' if percent < 0 else 'more'} time than B"
    return said + (f" (too few {repeated}: no interval)" if width is None else f" (+- {width:.1f})")
