"""The duration of an emulated activity, fixed or random: DLIO's grammar for times, as a frozen value."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from datagen import quantiles
from datagen.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DurationType = Literal["fixed", "normal", "uniform", "gamma", "exponential", "poisson", "empirical"]

PARAMETERS: dict[DurationType, tuple[str, ...]] = {
    "fixed": ("mean",),
    "normal": ("mean", "stdev"),
    "uniform": ("min", "max"),
    "gamma": ("shape", "scale"),
    "exponential": ("scale",),
    "poisson": ("lam",),
    "empirical": ("seconds", "mean"),
}
"""Type -> its parameters, all required; for DLIO's types they are those of NumPy's distributions."""

MOST_SECONDS = 10**6
"""Largest value of any parameter, eleven days: far from overflow, as steps are logged in 64-bit nanoseconds."""

GRAMMAR = (
    "a number of seconds, {mean: M, stdev: S}, {type: normal|uniform|gamma|exponential|poisson, ...}, or {type: "
    "empirical, seconds: [quantiles], mean: M}"
)


@dataclass(frozen=True, kw_only=True)
class Duration:
    """Seconds of one emulated activity: fixed (only `mean`) or drawn at random each time.

    The grammar is DLIO's (GRAMMAR), and `{type: empirical, seconds: [...], mean}`, a measured distribution: quantiles
    at equal steps of probability from 0 to 1, and the exact mean (`datagen.quantiles`).
    """

    type: DurationType = "fixed"
    mean: float = 0.0
    stdev: float = 0.0
    min: float = 0.0
    max: float = 0.0
    shape: float = 0.0
    scale: float = 0.0
    lam: float = 0.0
    seconds: tuple[float, ...] = ()

    @classmethod
    def from_value(cls, value: object, where: str) -> Duration:
        """Read the value at the key `where` of a configuration; raises UserError with all problems of the value."""
        if isinstance(value, cls):
            return value
        if isinstance(value, Mapping):
            return _from_mapping(value, where)
        if not _is_number(value):
            raise UserError(f"{where} is {value!r} ({type(value).__name__}): wanted {GRAMMAR}")
        return _checked(cls(mean=_float(value)), where)

    def to_value(self) -> float | dict[str, Any]:
        """Return the shortest value that `from_value` reads back as this one."""
        if self.type == "fixed":
            return self.mean
        values = {name: getattr(self, name) for name in PARAMETERS[self.type]}
        return {"type": self.type, **{name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}}

    def problems(self, where: str) -> list[str]:
        """Return a sentence for each impossible number: negative, or longer than any run."""
        problems = []
        for name in PARAMETERS[self.type]:
            number = max(self.seconds, default=0.0) if name == "seconds" else getattr(self, name)
            if not 0 <= number <= MOST_SECONDS:
                key = where if self.type == "fixed" else f"{where}.{name}"
                wanted = f"wanted a finite number of at least 0, and at most {MOST_SECONDS:g}"
                problems.append(f"{key} is {number!r}: {wanted}")
        if self.type == "uniform" and self.min > self.max:
            problems.append(f"{where}.min is {self.min!r} and max {self.max!r}: wanted min at most max")
        if self.type == "empirical":
            problems += quantiles.problems(self.seconds, self.mean, f"{where}.seconds", f"{where}.mean")
        return problems


NO_TIME = Duration()


def is_zero(duration: Duration) -> bool:
    return duration.type == "fixed" and duration.mean == 0


def mean_seconds(duration: Duration) -> float:
    """Return the mean of the distribution in seconds (for a normal one, before negative draws are replaced by 0)."""
    means = {
        "fixed": duration.mean,
        "normal": duration.mean,
        "uniform": (duration.min + duration.max) / 2,
        "gamma": duration.shape * duration.scale,
        "exponential": duration.scale,
        "poisson": duration.lam,
        "empirical": duration.mean,
    }
    return means[duration.type]


def draw_seconds(duration: Duration, random: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Return `count` durations in seconds, shape (count,); a negative draw counts as 0, in DLIO as positive."""
    import numpy as np

    if duration.type == "fixed":
        return np.full(count, duration.mean, dtype=np.float64)
    if duration.type == "empirical":
        return quantiles.values_at(duration.seconds, duration.mean, quantiles.drawn_shares(random, count))
    parameters = [getattr(duration, name) for name in PARAMETERS[duration.type]]
    drawn = np.asarray(getattr(random, duration.type)(*parameters, size=count), dtype=np.float64)
    return np.maximum(drawn, 0.0)


def _from_mapping(value: Mapping[Any, Any], where: str) -> Duration:
    kind = value.get("type", "fixed" if not value.get("stdev") else "normal")
    if not isinstance(kind, str) or kind not in PARAMETERS:
        raise UserError(f"{where}.type is {kind!r}: wanted one of {', '.join(PARAMETERS)}{_nearest(kind, PARAMETERS)}")
    wanted = PARAMETERS[kind]
    # In DLIO, `stdev: 0` with a mean is a fixed time.
    given = {name: number for name, number in value.items() if name != "type" and (name != "stdev" or kind != "fixed")}
    problems = [
        f"{where}.{name} is missing: {kind} needs {' and '.join(wanted)}" for name in wanted if name not in given
    ]
    for name, number in given.items():
        if name not in wanted:
            problems.append(f"unknown key {where}.{name}: {kind} takes {' and '.join(wanted)}{_nearest(name, wanted)}")
        elif name == "seconds":
            if not isinstance(number, (list, tuple)) or not all(map(_is_number, number)):
                problems.append(f"{where}.{name} is {number!r}: wanted a list of quantiles in seconds")
        elif not _is_number(number):
            problems.append(f"{where}.{name} is {number!r} ({type(number).__name__}): wanted a number of seconds")
    if problems:
        raise UserError("; ".join(problems))
    values = {name: given[name] for name in wanted}
    return _checked(Duration(type=kind, **{name: _parameter(value) for name, value in values.items()}), where)


def _checked(duration: Duration, where: str) -> Duration:
    problems = duration.problems(where)
    if problems:
        raise UserError("; ".join(problems))
    return duration


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _parameter(value: Any) -> Any:
    return tuple(map(_float, value)) if isinstance(value, (list, tuple)) else _float(value)


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _nearest(name: object, known: Mapping[Any, Any] | tuple[str, ...]) -> str:
    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
