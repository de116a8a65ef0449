"""dlemu emulates training to measure storage: real loaders read a dataset, emulated accelerators wait for batches.

The package `datagen` defines what a dataset contains and how it is read. The functions here do what the commands of
the same names do (docs/python.md); each imports its module on the first call.

    run = dlemu.train(workload="unet3d", accelerator="h100", ranks=4, **{"dataset.data_folder": "/mnt/nvme/unet3d"})
    print(run.summary.au.mean, run.summary.verdict)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datagen.errors import DlemuError, UserError
    from dlemu.api import checkpoint, compare, datagen, load_result, predict, probe, size, sweep, train
    from dlemu.runner.ranks import RunFailedError

__version__ = "0.2.0"
__all__ = [
    "DlemuError",
    "RunFailedError",
    "UserError",
    "checkpoint",
    "compare",
    "datagen",
    "load_result",
    "predict",
    "probe",
    "size",
    "sweep",
    "train",
]

_MODULE_OF = {"DlemuError": "datagen.errors", "UserError": "datagen.errors", "RunFailedError": "dlemu.runner.ranks"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'dlemu' has no attribute {name!r}")
    from datagen.registry import import_by_name

    return import_by_name(_MODULE_OF.get(name, "dlemu.api"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
