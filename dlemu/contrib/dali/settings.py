"""How a workload's settings map to DALI's parameters: as in DLIO, so that both run the same pipeline."""

from __future__ import annotations

from dlemu.extend import loader_base

LoaderSpec = loader_base.LoaderSpec
Phase = loader_base.Phase


def depths(spec: LoaderSpec) -> tuple[int, int]:
    """Return DALI's prefetch queue depths, in batches, of the reader and of the pipeline behind it.

    Each is `prefetch_size`; where that is 0, DALI's own defaults, 1 and 2.
    """
    return (spec.prefetch_size, spec.prefetch_size) if spec.prefetch_size > 0 else (1, 2)


def num_threads(spec: LoaderSpec) -> int:
    """Return the number of threads of a pipeline, and of its reader if that has threads: `read_threads`."""
    return max(1, spec.read_threads)


def reading_ahead(spec: LoaderSpec) -> int:
    """Return the most batches that DALI requests beyond the one delivered."""
    return sum(depths(spec)) + 2
