"""What extensions of dlemu are written with: the optional parts in `dlemu.contrib`, and packages of your own.

- Errors that end a command: `UserError` (status 2), `DatasetError`, `SpaceError`, `DlemuError` (3).
- A kind of job: `rows_job`, whose `JobKind` measures rows on each rank for a `Job` that tells its progress by `Notify`
  (`Doing`); `Metric` declares what it measures. `Comm` is between ranks, `thread_accounting`
  what the kernel counts of a process; `cache` tells what storage served.
- A loader: `loader_base`, `LoaderTraits`; `fetch` reads samples, `hash_samples` tells which. A format: `format_base`;
  `registry` finds formats and optional libraries; `pillow_image` opens a picture. A storage: `storage_base`;
  `AlignedBuffer` is what is read into.
- Data: `layout` names a dataset's files, `inspect` checks them, `own_folder` looks into a user's folder, `BulkContent`
  is bytes that can be checked, `checkpoint_plan` a checkpoint's files, `dlio_workload` a workload in DLIO's words.
- A study: a `run_list`, of `child_run`s; `Watched` shows it, `check_launcher` refuses many ranks. A command: `options`.
- Files: `owned` are those that dlemu may remove, `run_folder` names places for results, `write_text` renames,
  `open_regular` is for received ones; `environment` describes hosts and file systems.
- Another benchmark's runs: `au` has DLIO's AU and rates; a plug-in that reads a run returns a `ForeignRun`.

Results, pages and settings are in `dlemu.results`, `dlemu.report` and `dlemu.config`; running a job is in `dlemu.api`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from datagen.registry import import_by_name

if TYPE_CHECKING:
    from datagen import fetch as fetch
    from datagen import layout as layout
    from datagen import own_folder as own_folder
    from datagen import owned as owned
    from datagen import registry as registry
    from datagen.atomic import write_text as write_text
    from datagen.buffers import AlignedBuffer as AlignedBuffer
    from datagen.content import BulkContent as BulkContent
    from datagen.errors import DatasetError as DatasetError
    from datagen.errors import DlemuError as DlemuError
    from datagen.errors import SpaceError as SpaceError
    from datagen.errors import UserError as UserError
    from datagen.formats import format_base as format_base
    from datagen.formats._picture import pillow_image as pillow_image
    from datagen.inspection import inspect as inspect
    from datagen.regular import open_regular as open_regular
    from datagen.storage import storage_base as storage_base
    from dlemu.checkpoints import checkpoint_plan as checkpoint_plan
    from dlemu.cli import options as options
    from dlemu.cli.interruption import Watched as Watched
    from dlemu.dlio.config import dlio_workload as dlio_workload
    from dlemu.jobs.training.prediction.from_times import ForeignRun as ForeignRun
    from dlemu.loaders import loader_base as loader_base
    from dlemu.loaders.traits_base import LoaderTraits as LoaderTraits
    from dlemu.machine import environment as environment
    from dlemu.machine import thread_accounting as thread_accounting
    from dlemu.metrics import au as au
    from dlemu.metrics import cache as cache
    from dlemu.metrics.catalogue import Metric as Metric
    from dlemu.plan.samples import hash_samples as hash_samples
    from dlemu.ranks import Comm as Comm
    from dlemu.runner import child_run as child_run
    from dlemu.runner import rows_job as rows_job
    from dlemu.runner import run_folder as run_folder
    from dlemu.runner import run_list as run_list
    from dlemu.runner.events import Doing as Doing
    from dlemu.runner.job_kind import Notify as Notify
    from dlemu.runner.run_folder import Job as Job
    from dlemu.studies.prerequisites import check_launcher as check_launcher

_PLACES = (
    ("datagen.fetch", "datagen.formats.format_base", "datagen.layout", "datagen.own_folder", "datagen.owned"),
    ("datagen.registry", "datagen.storage.storage_base", "dlemu.checkpoints.checkpoint_plan", "dlemu.cli.options"),
    ("dlemu.loaders.loader_base", "dlemu.machine.environment", "dlemu.machine.thread_accounting", "dlemu.metrics.au"),
    ("dlemu.metrics.cache", "dlemu.runner.child_run", "dlemu.runner.rows_job", "dlemu.runner.run_folder"),
    ("dlemu.runner.run_list", "datagen.atomic:write_text", "datagen.buffers:AlignedBuffer"),
    ("datagen.content:BulkContent", "datagen.errors:DatasetError", "datagen.errors:DlemuError"),
    ("datagen.errors:SpaceError", "datagen.errors:UserError", "datagen.inspection:inspect"),
    ("datagen.regular:open_regular", "dlemu.cli.interruption:Watched", "dlemu.dlio.config:dlio_workload"),
    ("dlemu.jobs.training.prediction.from_times:ForeignRun", "dlemu.loaders.traits_base:LoaderTraits"),
    ("dlemu.metrics.catalogue:Metric", "dlemu.plan.samples:hash_samples", "dlemu.ranks:Comm"),
    ("dlemu.runner.events:Doing", "dlemu.runner.run_folder:Job", "dlemu.runner.job_kind:Notify"),
    ("dlemu.studies.prerequisites:check_launcher", "datagen.formats._picture:pillow_image"),
)
"""Modules, and names in others; imported on use, as a loader or a command wants few of them."""
_PLACE_OF = {re.split("[.:]", place)[-1]: place for row in _PLACES for place in row}


if not TYPE_CHECKING:  # else any name would pass for one of them

    def __getattr__(name: str) -> Any:
        if name not in _PLACE_OF:
            raise AttributeError(f"dlemu.extend has no {name}")
        return import_by_name(*_PLACE_OF[name].split(":"))
