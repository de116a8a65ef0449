"""What extensions of dlemu are written with: the optional parts in `dlemu.contrib`, and packages of your own.

- Errors that end a command with a message: `UserError` (status 2), `DatasetError`, `SpaceError`, `DlemuError` (3).
- A kind of job: a `RowsKind` measures rows on each rank into a `RowsLog`, whose `Rows` and `RowsRun` its `RowsSummary`
  is computed from, for a `Job` that tells its progress by `Notify`. `Metric` declares what it measures,
  `Outcome` how it ended; `rows_parts` makes the rest of it.
- Ranks: `Comm` between them; `Interrupted`, `interrupt_on` and `detect_launcher` around them.
- A loader: `LoaderTraits`, a `LoaderSpec` with a `Phase` each for training and evaluation, and what it yields, a
  `Batch` with its `BatchTrace`.
- A study: a `RunList` of `Planned` runs, made by `run_train` or a `module_command`; it tells `RunsPlanned`, `RunBegan`
  and `RunEnded`.
- Storage: `open_storage` of a `StorageSpec` returns a `StorageBase`; `AlignedBuffer` is what is read into.
- Files: `write_text` by rename, `open_regular` for received ones; `check_place`, `new_folder`, `take_folder` and
  `fresh_folder` for folders that dlemu owns, so that nobody else's files are removed.

Results, pages and settings are in `dlemu.results`, `dlemu.report` and `dlemu.config`; running a job is in `dlemu.api`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from datagen.registry import import_by_name

if TYPE_CHECKING:
    from datagen.atomic import write_text as write_text
    from datagen.buffers import AlignedBuffer as AlignedBuffer
    from datagen.errors import DatasetError as DatasetError
    from datagen.errors import DlemuError as DlemuError
    from datagen.errors import SpaceError as SpaceError
    from datagen.errors import UserError as UserError
    from datagen.owned import fresh_folder as fresh_folder
    from datagen.owned import take_folder as take_folder
    from datagen.regular import open_regular as open_regular
    from datagen.storage.storage_base import StorageBase as StorageBase
    from datagen.storage.storage_base import StorageSpec as StorageSpec
    from datagen.storage.storage_base import open_storage as open_storage
    from dlemu.comm import Comm as Comm
    from dlemu.comm import Interrupted as Interrupted
    from dlemu.comm import detect_launcher as detect_launcher
    from dlemu.comm import interrupt_on as interrupt_on
    from dlemu.comm.row_log import Rows as Rows
    from dlemu.loaders.loader_base import Batch as Batch
    from dlemu.loaders.loader_base import BatchTrace as BatchTrace
    from dlemu.loaders.loader_base import LoaderSpec as LoaderSpec
    from dlemu.loaders.loader_base import Phase as Phase
    from dlemu.loaders.traits_base import LoaderTraits as LoaderTraits
    from dlemu.metrics.catalogue import Metric as Metric
    from dlemu.metrics.verdict import Outcome as Outcome
    from dlemu.runner.child_run import module_command as module_command
    from dlemu.runner.child_run import run_train as run_train
    from dlemu.runner.job import Job as Job
    from dlemu.runner.job import Notify as Notify
    from dlemu.runner.rows_job import RowsKind as RowsKind
    from dlemu.runner.rows_job import RowsLog as RowsLog
    from dlemu.runner.rows_job import RowsRun as RowsRun
    from dlemu.runner.rows_job import RowsSummary as RowsSummary
    from dlemu.runner.rows_job import rows_parts as rows_parts
    from dlemu.runner.run_folder import check_place as check_place
    from dlemu.runner.run_folder import new_folder as new_folder
    from dlemu.runner.run_list import Planned as Planned
    from dlemu.runner.run_list import RunBegan as RunBegan
    from dlemu.runner.run_list import RunEnded as RunEnded
    from dlemu.runner.run_list import RunList as RunList
    from dlemu.runner.run_list import RunsPlanned as RunsPlanned

_NAMES = {
    "datagen.atomic": ("write_text",),
    "datagen.buffers": ("AlignedBuffer",),
    "datagen.errors": ("DatasetError", "DlemuError", "SpaceError", "UserError"),
    "datagen.owned": ("fresh_folder", "take_folder"),
    "datagen.regular": ("open_regular",),
    "datagen.storage.storage_base": ("StorageBase", "StorageSpec", "open_storage"),
    "dlemu.comm": ("Comm", "Interrupted", "detect_launcher", "interrupt_on"),
    "dlemu.comm.row_log": ("Rows",),
    "dlemu.loaders.loader_base": ("Batch", "BatchTrace", "LoaderSpec", "Phase"),
    "dlemu.loaders.traits_base": ("LoaderTraits",),
    "dlemu.metrics.catalogue": ("Metric",),
    "dlemu.metrics.verdict": ("Outcome",),
    "dlemu.runner.child_run": ("module_command", "run_train"),
    "dlemu.runner.job": ("Job", "Notify"),
    "dlemu.runner.rows_job": ("RowsKind", "RowsLog", "RowsRun", "RowsSummary", "rows_parts"),
    "dlemu.runner.run_folder": ("check_place", "new_folder"),
    "dlemu.runner.run_list": ("Planned", "RunBegan", "RunEnded", "RunList", "RunsPlanned"),
}
"""Module -> its names above; imported on use, as a loader or a command wants few of them."""
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_by_name(_MODULE_OF[name], name)
