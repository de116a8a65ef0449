"""`TrainingJob`, the complete, checked description of a run, which rank 0 makes before it begins; and its schedule."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from datagen import registry
from datagen.errors import UserError
from datagen.fetch import FetchSpec
from datagen.groups import max_groups
from datagen.inspection import Dataset
from datagen.layout import Layout, layouts, nominal_sample_bytes
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import NULL_STORAGE
from dlemu.accelerators.accelerator_base import Accelerator, AcceleratorSpec
from dlemu.config.duration import mean_seconds
from dlemu.config.schema import Workload
from dlemu.loaders.loader_base import Loader, LoaderSpec, Phase
from dlemu.loaders.traits_base import LoaderTraits, traits_of
from dlemu.metrics.demand import row_group_reads
from dlemu.plan.samples import Plan, RankPlan
from dlemu.plan.streams import StreamPlan
from dlemu.runner.run_folder import Job

MIN_CEILING_STEPS, MAX_CEILING_STEPS = 4, 4000  # limits to the steps of the ceiling measurement


@dataclass(frozen=True, kw_only=True)
class TrainingJob(Job):
    """A training run: settings, ranks and dataset. `seed` is `train.seed`, or random if a shuffle is `random`."""

    dataset: Dataset
    """The dataset as it is on the storage; `workload.dataset` has its settings."""

    @property
    def timeout_seconds(self) -> float:
        """Timeout of waiting for other ranks; in checkpoints, a rank below 10 MB/s counts as hanging."""
        if not self.saves:
            return super().timeout_seconds
        from dlemu.checkpoints.checkpoint_plan import plan_checkpoint  # most runs save no checkpoints

        model = self.workload.model
        sizes = plan_checkpoint(model, self.workload.checkpoint, self.ranks).sizes
        largest_bytes = max(sizes.largest_rank_bytes, model.model_size_bytes)  # without layers, a rank may save all
        return max(super().timeout_seconds, largest_bytes / 10e6)

    @property
    def train_plan(self) -> Plan:
        """Which rank reads which samples in training."""
        return self._plan(self.dataset.train, self.workload.reader.batch_size)

    @property
    def valid_plan(self) -> Plan | None:
        """Which rank reads which samples in evaluation; None without evaluation."""
        if not self.workload.workflow.evaluation or self.dataset.valid is None:
            return None
        return self._plan(self.dataset.valid, self.workload.reader.batch_size_eval)

    @property
    def schedule(self) -> tuple[Epoch, ...]:
        """The epochs with their blocks of steps, checkpoints and evaluations."""
        return make_schedule(self.workload, self.train_plan.steps_per_epoch)

    @property
    def saves(self) -> bool:
        """Whether checkpoints are saved during training."""
        return any(block.checkpoint for epoch in self.schedule for block in epoch.blocks)

    @property
    def rows_per_rank(self) -> int:
        """Number of rows in a rank's step log: one for each step of training and evaluation."""
        evaluations = sum(epoch.evaluation for epoch in self.schedule)
        valid_steps = self.valid_plan.steps_per_epoch if self.valid_plan else 0
        return sum(epoch.steps for epoch in self.schedule) + evaluations * valid_steps

    def evicts_before(self, epoch: int) -> bool:
        """Return whether the dataset's pages are dropped from the page cache before an epoch, counted from 1."""
        when = self.workload.reader.evict_page_cache
        return when == "epochs" or (when == "start" and epoch == 1)

    @property
    def ceiling_steps(self) -> int:
        """Steps of the ceiling measurement; 0 without one: `metric.ceiling_seconds=0`, or no step computes."""
        seconds, step_seconds = self.workload.metric.ceiling_seconds, mean_seconds(self.workload.train.computation_time)
        if seconds <= 0 or step_seconds <= 0:
            return 0
        return min(max(ceil(seconds / step_seconds), MIN_CEILING_STEPS), MAX_CEILING_STEPS)

    @property
    def traits(self) -> LoaderTraits:
        return traits_of(self.workload.reader.data_loader)

    @property
    def read_by_loader(self) -> bool:
        """Whether the loader itself opens and reads files, not dlemu's `Fetcher` for it."""
        return self.traits.reads_files(self.workload.dataset.format)

    @property
    def group_rows(self) -> int:
        """Rows of a Parquet row group if a worker reads each group once, for several batches; else 0."""
        data = self.dataset.spec
        if data.format != "parquet" or self.workload.reader.sample_shuffle != "off":
            return 0
        return min(data.parquet.row_group_size, data.num_samples_per_file)

    @property
    def batches_ahead(self) -> int:
        """Maximum number of batches that a rank's loader holds, complete or being made."""
        return self.traits.batches_ahead(self.loader_spec(0))

    @property
    def loader_notes(self) -> tuple[str, ...]:
        """Notes on the loader that explain a run's numbers, as sentences."""
        notes, times = self.traits.notes(self.workload.dataset.format), row_group_reads(self.workload)
        if times <= 1:
            return notes
        repeated = f"row groups are read {times:.3g} times, by each worker whose batches have rows of them"
        return (*notes, f"{repeated}: once with reader.worker_streams=true" if self.traits.in_turn else repeated)

    def _plan(self, layout: Layout, batch_size: int) -> Plan:
        reader = self.workload.reader
        rows, group_rows = layout.num_samples_per_file, self.dataset.spec.parquet.row_group_size
        if self.dataset.spec.format == "parquet" and reader.sample_shuffle != "off":
            groups = min(batch_size, layout.num_files * ceil(rows / group_rows))
            if groups > max_groups(batch_size, rows, group_rows):
                raise UserError(
                    f"reader.sample_shuffle is {reader.sample_shuffle}: {batch_size} shuffled rows would read "
                    f"{groups} row groups whole; set it to off, and shuffle the files (reader.file_shuffle)"
                )
        settings: dict[str, Any] = {
            "num_files": layout.num_files,
            "num_samples_per_file": layout.num_samples_per_file,
            "batch_size": batch_size,
            "ranks": self.ranks,
            "file_shuffle": reader.file_shuffle != "off",
            "sample_shuffle": reader.sample_shuffle != "off",
            "seed": self.seed,
            "seed_change_epoch": self.workload.train.seed_change_epoch,
        }
        streams = self.traits.interleave(reader, self.workload.dataset)
        if streams is None:  # the loader reads samples by their numbers
            return Plan(**settings, worker_streams=max(1, reader.read_threads) if reader.worker_streams else 1)
        if reader.worker_streams:
            raise UserError(
                f"reader.worker_streams is true, and reader.data_loader={reader.data_loader} reads files as streams by "
                "itself: leave it out"
            )
        return StreamPlan(**settings, cycle=streams.files, block_length=streams.block_length)

    @property
    def accelerator_class(self) -> type[Accelerator]:
        """The class of the emulated accelerators; raises UserError for an unknown name."""
        accelerator: type[Accelerator] = registry.find("dlemu.accelerators", self.workload.train.compute, "Accelerator")
        return accelerator

    def accelerator_spec(self, rank: int) -> AcceleratorSpec:
        seconds, eval_seconds = self.workload.train.computation_time, self.workload.evaluation.eval_time
        return AcceleratorSpec(rank=rank, seed=self.seed, computation_time=seconds, eval_time=eval_seconds)

    def loader_class(self) -> type[Loader]:
        """Return the loader's class, importing its framework; raises UserError if either is missing."""
        loader: type[Loader] = registry.find("dlemu.loaders", self.workload.reader.data_loader, "Loader")
        return loader

    def loader_spec(self, rank: int) -> LoaderSpec:
        plan, reader, fetch = self.train_plan, self.workload.reader, self._fetch_spec(self.dataset.train)
        unread = replace(fetch, storage=NULL_STORAGE, verify=False)
        phases = {
            "train": Phase(fetch, RankPlan(plan, rank), reader.batch_size),
            "ceiling": Phase(unread, RankPlan(plan, rank, endless=True), reader.batch_size, preprocesses=False),
        }
        if self.valid_plan is not None and self.dataset.valid is not None:
            valid = self._fetch_spec(self.dataset.valid)
            phases["valid"] = Phase(valid, RankPlan(self.valid_plan, rank), reader.batch_size_eval)
        interleave = self.traits.interleave(reader, self.workload.dataset)
        return LoaderSpec(rank=rank, phases=phases, reader=reader, interleave=interleave, seed=self.seed)

    def _fetch_spec(self, layout: Layout) -> FetchSpec:
        reader = self.workload.reader
        return FetchSpec(
            self.dataset,
            layout,
            storage=self.storage_spec,
            engine=reader.engine,
            transfer_bytes=reader.transfer_size,
            decode=reader.decode,
            resize_bytes=self.workload.dataset.record_length_bytes_resize,
            verify=reader.verify,
        )


def planned_dataset(spec: DatasetSpec) -> Dataset:
    """Return the dataset that the settings describe, whether or not its files exist."""
    train, valid = layouts(spec)
    sample_bytes = nominal_sample_bytes(spec)
    return Dataset(
        spec=spec,
        train=train,
        valid=valid if valid.num_files else None,
        manifest=None,
        max_file_bytes=sample_bytes * spec.num_samples_per_file,
        max_sample_bytes=sample_bytes,
        total_bytes=(train.num_files + valid.num_files) * spec.num_samples_per_file * sample_bytes,
    )


def make_job(workload: Workload, ranks: int, dataset: Dataset, *, folder: str = "") -> TrainingJob:
    """Return the checked job; raises UserError, or DatasetError if the dataset has fewer samples than one step."""
    shuffles = (workload.reader.file_shuffle, workload.reader.sample_shuffle)
    seed = secrets.randbits(48) if "random" in shuffles else workload.train.seed  # 48 bits are exact in JSON numbers
    job = TrainingJob(workload=workload, ranks=ranks, dataset=dataset, seed=seed, folder=folder)
    job.train_plan.check("train")
    if workload.workflow.evaluation:
        if job.valid_plan is None:
            why = "dataset.num_files_eval=0: generate a validation set with that setting (for `dlemu datagen` too)"
            if workload.dataset.source == "folder":
                why = "dataset.source=folder has only a training set"
            raise UserError(f"workflow.evaluation=true, but {why}, or turn evaluation off")
        job.valid_plan.check("valid")
    return job


@dataclass(frozen=True)
class Block:
    """Steps without interruption: from an epoch's start or a checkpoint to the next checkpoint or the epoch's end."""

    number: int  # within the epoch, from 1
    steps: int
    checkpoint: bool  # whether a checkpoint follows the block


@dataclass(frozen=True)
class Epoch:
    number: int  # from 1
    blocks: tuple[Block, ...]
    evaluation: bool  # whether an evaluation follows the epoch

    @property
    def steps(self) -> int:
        return sum(block.steps for block in self.blocks)


def make_schedule(workload: Workload, steps_per_epoch: int) -> tuple[Epoch, ...]:
    """Return the epochs of a run, with checkpoints and evaluations after the same steps and epochs as in DLIO."""
    evaluation, train = workload.evaluation, workload.train
    epochs = []
    steps_left = train.total_training_steps if train.total_training_steps >= 0 else train.epochs * steps_per_epoch
    for number in range(1, train.epochs + 1):
        steps = min(steps_per_epoch, steps_left)
        if steps == 0:
            break
        steps_left -= steps
        is_due = _is_due(number, evaluation.eval_after_epoch, evaluation.epochs_between_evals)
        epochs.append(Epoch(number, _blocks(workload, number, steps), workload.workflow.evaluation and is_due))
    return tuple(epochs)


def _blocks(workload: Workload, epoch: int, steps: int) -> tuple[Block, ...]:
    settings, saves = workload.checkpoint, workload.workflow.checkpoint
    block_steps = settings.steps_between_checkpoints
    if block_steps <= 0 or not saves:
        is_due = _is_due(epoch, settings.checkpoint_after_epoch, settings.epochs_between_checkpoints)
        return (Block(1, steps, checkpoint=saves and is_due),)
    return tuple(
        Block(number, min(steps_left, block_steps), checkpoint=steps_left >= block_steps)
        for number, steps_left in enumerate(range(steps, 0, -block_steps), 1)
    )


def _is_due(epoch: int, first: int, interval: int) -> bool:
    return epoch >= first and (epoch - first) % interval == 0
