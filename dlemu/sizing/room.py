"""How many accelerators a dataset can be divided among so that each trial still has something to say. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from datagen.errors import UserError
from dlemu.sizing.settled import FEWEST


@dataclass(frozen=True, kw_only=True)
class Room:
    """The largest count, and what a larger one would take."""

    most: int
    steps: int
    """Steps of an epoch that a trial needs."""
    why: str


def measure_room(
    *, samples: int, samples_per_file: int, batch_size: int, epochs: int, ahead: int, stretch_steps: int
) -> Room:
    """Return how many accelerators get enough steps an epoch; raises UserError when not even one does.

    An epoch loses its first step and as many at its end as are read ahead; what is left, over all epochs of a trial,
    must hold the stretches of a first look.
    """
    steps = 2 + ahead + ceil(FEWEST / epochs) * stretch_steps
    one = steps * batch_size
    most = samples // one
    if most < 1:
        raise UserError(
            f"the dataset has {samples} samples: wanted at least {one} for each accelerator ({steps} steps of "
            f"{batch_size} an epoch), so that a trial can tell; make it larger, with dataset.num_files_train="
            f"{ceil(one / samples_per_file)} for one, times the count that you expect"
        )
    files = ceil((most + 1) * one / samples_per_file)
    return Room(
        most=most,
        steps=steps,
        why=f"the dataset has samples for {most}; to try {most + 1}, make it with dataset.num_files_train={files}",
    )
