"""The size that MLPerf Storage's rules require of a training dataset."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from dlemu.contrib.mlperf.rules.editions import Official

Division = Literal["closed", "open"]

MEMORY_FACTOR = 5  # the dataset must be at least this many times the memory of all hosts (2.1)
STEPS_PER_EPOCH = 500  # each accelerator must take at least this many steps per epoch (2.1)
MEMORY_MARGIN = 0.01
"""Margin above the memory bound: in published runs, entered and measured memory differ by up to 0.3 %."""
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class DatasetBound:
    """The smallest dataset that the rules allow, in files."""

    files_by_memory: int
    files_by_steps: int
    tool_files: int
    """Number that v2.0's tool prints, as did v3.0's during its submission round: rounded down, it may be one short."""

    @property
    def files(self) -> int:
        """Smallest number of files that satisfies both bounds."""
        return max(self.files_by_memory, self.files_by_steps)

    @property
    def advised_files(self) -> int:
        """Number of files that is still enough if the hosts' memory turns out to be 1 % larger."""
        return max(math.ceil(self.files_by_memory * (1 + MEMORY_MARGIN)), self.files_by_steps)

    @property
    def because(self) -> str:
        """The bound that decides, as a phrase."""
        if self.files_by_memory > self.files_by_steps:
            return f"{MEMORY_FACTOR} x the hosts' memory"
        return f"{STEPS_PER_EPOCH} steps of each accelerator"


def smallest_dataset(official: Official, accelerators: int, memory_bytes: float) -> DatasetBound:
    """Return the smallest allowed dataset for the accelerators and the memory of all hosts together."""
    samples_by_steps = STEPS_PER_EPOCH * official.batch_size * accelerators
    samples_by_memory = MEMORY_FACTOR * memory_bytes / official.record_bytes
    return DatasetBound(
        files_by_memory=math.ceil(samples_by_memory / official.samples_per_file),
        files_by_steps=math.ceil(samples_by_steps / official.samples_per_file),
        tool_files=math.floor(max(samples_by_memory, samples_by_steps) / official.samples_per_file),
    )
