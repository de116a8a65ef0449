"""The names that extensions of dlemu import: the optional parts in `dlemu.contrib`, and packages of your own.

- Errors that end a command: `UserError`, also as `DatasetError` or `SpaceError` (exit status 2), and `DlemuError` (3).
- A kind of job: `rows_job` has `JobKind`, whose ranks log rows. A rank runs a `Job` and talks to the others by `Comm`;
  rank 0 reports progress (`Doing`) by `Notify`. `Metric` declares a number of the result; `thread_accounting` reads
  the kernel's counters of a thread, and `cache` tells what the storage served.
- A loader: `loader_base` and `LoaderTraits`; `fetch` reads samples, and `hash_samples` identifies the ones read.
- A format: `format_base`; `registry` finds formats and optional libraries, and `pillow_image` opens a picture.
- A storage: `storage_base`, whose reads go into an `AlignedBuffer`.
- Data: `layout` names a dataset's files, `inspect` checks them, `own_folder` examines a user's files, `BulkContent`
  generates bytes that can be verified, `checkpoint_plan` computes checkpoints, `dlio_workload` translates to DLIO.
- A study: `run_list` runs jobs in order, `child_run` starts each as a process, `StudyTerminal` shows their progress,
  and `check_launcher` refuses a study inside a launcher. A command: `options`.
- Files: `owned` marks what dlemu may remove, `run_folder` names and makes result folders, `write_text` replaces a file
  atomically, `open_regular` opens a received file, and `environment` describes hosts and file systems.
- Runs of other benchmarks: `au` computes DLIO's AU and rates; a plug-in that reads such a run returns a `ForeignRun`.

Results, pages and settings are in `dlemu.results`, `dlemu.report` and `dlemu.config`; `dlemu.api` runs jobs.
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
    from dlemu.cli.study_terminal import StudyTerminal as StudyTerminal
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

_EXPORTS = """
    datagen.fetch datagen.layout datagen.own_folder datagen.owned datagen.registry datagen.formats.format_base
    datagen.storage.storage_base dlemu.checkpoints.checkpoint_plan dlemu.cli.options dlemu.loaders.loader_base
    dlemu.machine.environment dlemu.machine.thread_accounting dlemu.metrics.au dlemu.metrics.cache
    dlemu.runner.child_run dlemu.runner.rows_job dlemu.runner.run_folder dlemu.runner.run_list
    datagen.atomic:write_text datagen.buffers:AlignedBuffer datagen.content:BulkContent datagen.inspection:inspect
    datagen.errors:DatasetError datagen.errors:DlemuError datagen.errors:SpaceError datagen.errors:UserError
    datagen.formats._picture:pillow_image datagen.regular:open_regular dlemu.cli.study_terminal:StudyTerminal
    dlemu.dlio.config:dlio_workload dlemu.jobs.training.prediction.from_times:ForeignRun
    dlemu.loaders.traits_base:LoaderTraits dlemu.metrics.catalogue:Metric dlemu.plan.samples:hash_samples
    dlemu.ranks:Comm dlemu.runner.events:Doing dlemu.runner.job_kind:Notify dlemu.runner.run_folder:Job
    dlemu.studies.prerequisites:check_launcher
"""
"""Modules, and MODULE:NAME for names in other modules; each is imported on first use, as an extension needs few."""
_EXPORT_OF = {re.split("[.:]", export)[-1]: export for export in _EXPORTS.split()}


if not TYPE_CHECKING:  # with a module's `__getattr__`, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _EXPORT_OF:
            raise AttributeError(f"dlemu.extend has no {name}")
        return import_by_name(*_EXPORT_OF[name].split(":"))
