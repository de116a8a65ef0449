"""The `dali` loader: NVIDIA DALI reads the files itself. Only `loader` and `pipeline` import DALI."""

from __future__ import annotations

from dlemu.extend import loader_base


def depths(spec: loader_base.LoaderSpec) -> tuple[int, int]:
    """Return the queue depths of reader and pipeline, in batches: `prefetch_size` for both, as in DLIO; else 1, 2."""
    return (spec.reader.prefetch_size,) * 2 if spec.reader.prefetch_size else (1, 2)
