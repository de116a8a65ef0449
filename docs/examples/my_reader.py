"""A loader that reads npz files itself, with NumPy, one after another: docs/extending.md."""

import time

import numpy as np

from dlemu.loaders.loader_base import Batch, BatchTrace
from dlemu.loaders.traits_base import LoaderTraits
from dlemu.plan.samples import hash_samples


class Traits(LoaderTraits):
    formats = ("npz",)
    pins = False

    def reads_files(self, dataset_format):
        return True

    def batches_ahead(self, spec):
        return 0


class Loader:
    def __init__(self, spec):
        self.spec = spec

    def start(self):
        pass

    def batches(self, phase, epoch, steps):
        plan, fetch = self.spec.phases[phase].plan, self.spec.phases[phase].fetch
        for step in range(1, steps + 1):
            started = time.monotonic_ns()
            samples = plan.sample_ids(epoch, step)
            data = [self.load(fetch, int(sample)) for sample in samples]
            finished = time.monotonic_ns()
            trace = BatchTrace(
                slot=0,
                places=[],
                started_ns=started,
                finished_ns=finished,
                read_ns=finished - started,
                decode_ns=0,
                worker=0,
                samples=len(samples),
                app_bytes=sum(array.nbytes for array in data),
                read_calls=0,
                sample_hash=hash_samples(samples),
            )
            yield Batch(data, trace)

    def load(self, fetch, sample):
        if fetch.reads_nothing:  # the emulator's own ceiling is measured without files
            return np.empty(0, np.uint8)
        file, place = fetch.layout.locate(sample)
        return np.load(fetch.layout.path(file))["x"][..., place]

    def explain(self, error):
        return None

    def close(self):
        pass
