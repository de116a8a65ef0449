"""What the settings of a workload are to DALI: DLIO's mapping, so that both run the same pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlemu.loaders.loader_base import LoaderSpec


def depths(spec: LoaderSpec) -> tuple[int, int]:
    """Return the batches that a reader, and the pipeline behind it, have ready or under way.

    `prefetch_size` for each, and DALI's own 1 and 2 where it is 0.
    """
    return (spec.prefetch_size, spec.prefetch_size) if spec.prefetch_size > 0 else (1, 2)


def num_threads(spec: LoaderSpec) -> int:
    """Return the threads of a pipeline, and of its reader where that has any: `read_threads`."""
    return max(1, spec.read_threads)


def reading_ahead(spec: LoaderSpec) -> int:
    """Return the most batches that DALI requests beyond the one delivered."""
    return sum(depths(spec)) + 2
