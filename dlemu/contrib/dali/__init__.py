"""The `dali` loader: NVIDIA DALI reads the files. Only `loader` and `pipeline` import DALI."""

from __future__ import annotations

from dlemu.extend import loader_base


def depths(spec: loader_base.LoaderSpec) -> tuple[int, int]:
    """Return the queue depths in batches, of reader and pipeline: `prefetch_size` as in DLIO, or DALI's defaults."""
    return (spec.reader.prefetch_size,) * 2 if spec.reader.prefetch_size > 0 else (1, 2)
