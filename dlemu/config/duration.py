"""Durations of emulated activities, fixed or random, as frozen values; they are written in DLIO's grammar for times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, make_dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from datagen import quantiles
from datagen.errors import UserError
from datagen.registry import nearest
from datagen.settings import at_least, build, refuse

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DurationType = Literal["fixed", "normal", "uniform", "gamma", "exponential", "poisson", "empirical"]

PARAMETERS: dict[DurationType, tuple[str, ...]] = {  # type -> its required parameters, in NumPy's order
    "fixed": ("mean",),
    "normal": ("mean", "stdev"),
    "uniform": ("min", "max"),
    "gamma": ("shape", "scale"),
    "exponential": ("scale",),
    "poisson": ("lam",),
    "empirical": ("seconds", "mean"),
}

MOST_SECONDS = 10**6  # eleven days; sums of steps in 64-bit nanoseconds stay far from overflow

GRAMMAR = (
    "a number of seconds, {mean: M, stdev: S}, {type: normal|uniform|gamma|exponential|poisson, ...}, or {type: "
    "empirical, seconds: [quantiles], mean: M}"
)
_Parameter = Annotated[float, at_least(0, MOST_SECONDS)]


@dataclass(frozen=True, kw_only=True)
class Duration:
    """Seconds of one emulated activity: fixed (only `mean`) or drawn at random each time. GRAMMAR has the forms.

    dlemu adds `{type: empirical, seconds: [...], mean: M}` to DLIO's types: a measured distribution, as quantiles at
    equal steps of probability from 0 to 1 and the exact mean (`datagen.quantiles`).
    """

    type: DurationType = "fixed"
    mean: _Parameter = 0.0
    stdev: _Parameter = 0.0
    min: _Parameter = 0.0
    max: _Parameter = 0.0
    shape: _Parameter = 0.0
    scale: _Parameter = 0.0
    lam: _Parameter = 0.0
    seconds: tuple[float, ...] = ()

    @classmethod
    def from_value(cls, value: object, where: str) -> Duration:
        """Return the duration that a configuration has at the key `where`; raises UserError with all its problems."""
        if isinstance(value, cls):  # made in Python, so not checked yet
            value = value.to_value()
        if isinstance(value, bool) or not isinstance(value, int | float | Mapping):
            raise UserError(f"{where} is {value!r} ({type(value).__name__}): wanted {GRAMMAR}")
        values = {str(name): item for name, item in value.items()} if isinstance(value, Mapping) else {"mean": value}
        kind = values.pop("type", "normal" if values.get("stdev") else "fixed")
        if kind not in PARAMETERS:
            near = nearest(str(kind), PARAMETERS)
            raise UserError(f"{where}.type is {kind!r}: {near}wanted one of {', '.join(PARAMETERS)}")
        if kind == "fixed":
            values.pop("stdev", None)  # in DLIO, `stdev: 0` with a mean is a fixed time
        duration = cls(type=kind, **vars(build(_PARAMETER_CLASSES[kind], values, where)))
        refuse(duration.problems(where))
        return duration

    def to_value(self) -> float | dict[str, Any]:
        """Return the shortest value that `from_value` turns into this duration."""
        if self.type == "fixed":
            return self.mean
        values = {name: getattr(self, name) for name in PARAMETERS[self.type]}
        if self.type == "empirical":
            values["seconds"] = list(self.seconds)
        return {"type": self.type, **values}

    def problems(self, where: str) -> Iterator[str]:
        """Yield the problems that only several parameters together show."""
        if self.type == "uniform" and self.min > self.max:
            yield f"{where}.min is {self.min!r} and max {self.max!r}: wanted min at most max"
        if self.type == "empirical":
            yield from quantiles.problems(self.seconds, self.mean, f"{where}.seconds", f"{where}.mean")
            if max(self.seconds, default=0.0) > MOST_SECONDS:
                yield f"{where}.seconds has {max(self.seconds):g}: wanted at most {MOST_SECONDS:g}"


_FIELD_TYPES = Duration.__annotations__
_PARAMETER_CLASSES = {  # type -> dataclass of its parameters, by which `build` finds missing, unknown, mistyped ones
    kind: make_dataclass(kind, [(name, _FIELD_TYPES[name]) for name in names], namespace={"__module__": __name__})
    for kind, names in PARAMETERS.items()
}
NO_TIME = Duration()


def is_zero(duration: Duration) -> bool:
    return duration.type == "fixed" and duration.mean == 0


def mean_seconds(duration: Duration) -> float:
    """Return the mean of the distribution in seconds; of a normal one, before negative draws become 0."""
    means = {
        "uniform": (duration.min + duration.max) / 2,
        "gamma": duration.shape * duration.scale,
        "exponential": duration.scale,
        "poisson": duration.lam,
    }
    return means.get(duration.type, duration.mean)


def draw_seconds(duration: Duration, random: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Return `count` durations in seconds, shape (count,). Negative draws become 0; DLIO takes their absolute value."""
    import numpy as np

    if duration.type == "fixed":
        return np.full(count, duration.mean, dtype=np.float64)
    if duration.type == "empirical":
        return quantiles.values_at(duration.seconds, duration.mean, quantiles.stratified(random, count))
    parameters = [getattr(duration, name) for name in PARAMETERS[duration.type]]
    drawn = np.asarray(getattr(random, duration.type)(*parameters, size=count), dtype=np.float64)
    return np.maximum(drawn, 0.0)
