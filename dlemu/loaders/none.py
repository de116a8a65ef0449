"""No storage and no workers: every planned batch is ready at once, so all overhead is that of the training loop."""

from __future__ import annotations

import time
from collections.abc import Iterator

from datagen.layout import NO_PLACES
from dlemu.loaders.loader_base import Batch, BatchTrace, LoaderSpec
from dlemu.loaders.loader_base import Loader as LoaderBase
from dlemu.loaders.traits_base import LoaderTraits
from dlemu.plan.samples import PlanAhead


class Traits(LoaderTraits):
    pins = False


class Loader(LoaderBase):
    """The `none` loader. Batches have no data."""

    def __init__(self, spec: LoaderSpec) -> None:
        self._spec = spec

    def batches(self, phase: str, epoch: int, steps: int) -> Iterator[Batch]:
        plan = PlanAhead(self._spec.phases[phase].plan, self._spec.phases[phase].batch_size)
        for step in range(1, steps + 1):
            samples, sample_hash = plan.batch(epoch, step)
            now_ns = time.monotonic_ns()
            yield Batch(None, BatchTrace(0, NO_PLACES, now_ns, now_ns, 0, 0, 0, len(samples), 0, 0, sample_hash))
