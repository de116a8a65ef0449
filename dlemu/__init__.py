"""dlemu measures time: it streams datasets through real loaders while emulated accelerators compute, and times waits.

The contents of a dataset, and how it is read, are the business of the package `datagen`. The functions here are those
of the command line (docs/python.md); what they need is imported when one is called.

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
