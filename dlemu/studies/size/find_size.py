"""`dlemu size`: how many accelerators does a storage feed? Checks, probes, searches, and writes size.json."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from datagen import manifest
from datagen.errors import UserError
from datagen.formats.format_base import UnreadFormat
from datagen.inspection import inspect
from datagen.registry import find
from datagen.storage.storage_base import open_storage
from datagen.withheld import without_secrets
from dlemu.config import check_runnable, datagen_command, digest, load
from dlemu.config.duration import mean_seconds
from dlemu.config.overrides import given_keys, take_word
from dlemu.config.schema import Workload, full_size
from dlemu.doctor.check_base import Facts
from dlemu.doctor.host import check_free_cores
from dlemu.jobs.training.evict import treatment_of
from dlemu.jobs.training.pattern import Level, measure_levels
from dlemu.jobs.training.plan import TrainingJob, make_job, planned_dataset
from dlemu.jobs.training.prediction.event_model import HostCosts
from dlemu.jobs.training.prediction.from_reads import calibrate_from_levels
from dlemu.jobs.training.prediction.make_prediction import predict
from dlemu.jobs.training.prediction.run_prediction import usable_cores
from dlemu.jobs.training.wording import recording_notes
from dlemu.loaders.traits_base import check_installed
from dlemu.metrics.demand import demand, sample_divisor
from dlemu.metrics.t_interval import FEWEST
from dlemu.report import units
from dlemu.results import SUMMARY
from dlemu.results.answer_files import save_answer
from dlemu.results.wording import count, scaled
from dlemu.runner.events import Doing, PartMeasured, Warned, ignore
from dlemu.runner.run_folder import check_place, new_folder
from dlemu.runner.run_list import Planned, RunList, RunsPlanned
from dlemu.studies.answers import SIZE, Question, SizeAnswer, Trial
from dlemu.studies.prerequisites import OnEvent, config_options, take_launcher
from dlemu.studies.size.search import next_count
from dlemu.studies.size.size_verdict import SearchInputs, build_answer, outcome_of, sentence
from dlemu.studies.size.trials import TrialPlan, run_trial

MADE_FOR = 8  # accelerators that a new dataset suffices for: the workload's own dataset may be too small for one
PROBING_READERS = (1, 16)  # 16 reach most of a drive's speed: enough for a first guess, which the trials correct
WINDOW_SECONDS = 1.0  # of a window, at least: long compared with the time slices of drives, caches and throttles
WINDOW_STEPS = 2  # with a single step, chance decides into which window a batch falls


def size(
    overrides: Sequence[str],
    *,
    config_dir: str | None = None,
    at_least: int | None = None,
    most: int = 4096,  # ends the search where no count reaches the storage's limit
    trial_seconds: float = 120.0,  # most trials are decided sooner; the others are repeated
    make: Callable[[Workload], None] | None = None,
    on_event: OnEvent = ignore,
) -> SizeAnswer:
    """Find the most accelerators that a storage keeps busy; each trial is a `dlemu train` of its own.

    `overrides` are those of `dlemu train` without `ranks`, and `launcher`, the command that starts the ranks, with
    `{ranks}` in it. `at_least` accelerators, by default 1, must pass for the answer's `outcome`. `make` makes missing
    files of the dataset: unless the overrides have a number of files, a new dataset suffices for MADE_FOR accelerators,
    or for one more than `at_least`.

    An interrupted search goes on from its `output.folder` when it is called again with the same arguments.
    Raises UserError for what is wrong before the first trial, DlemuError when a trial fails.
    """
    launcher, words = take_launcher("size", overrides)
    if any(word.lstrip("+").startswith("ranks=") for word in words):
        raise UserError("ranks is what `dlemu size` finds: leave it out, or give --most N to try no more than N")
    workload = load(words, config_dir=config_dir)
    check_runnable(workload)
    check_installed(workload.reader.data_loader)
    _check_storage_matters(workload)
    folder = workload.output.folder or new_folder(workload.results_name, "size-")
    check_place(folder)
    if make is not None:
        if not workload.workflow.generate_data and "dataset.num_files_train" not in given_keys(words):
            num_files = _files_to_make(workload, min(most, max(MADE_FOR, (at_least or 0) + 1)))
            if num_files != workload.dataset.num_files_train:  # else the question stays the same without `make`
                words = [*words, f"dataset.num_files_train={num_files}"]
                workload = load(words, config_dir=config_dir)
        # Refuse a dataset that is too small before hours are spent making it.
        _capacity(make_job(workload, 1, planned_dataset(workload.dataset)))
        make(workload)
    _, trial_words = take_word(words, "output.folder")
    divisor = sample_divisor(workload)
    question = Question(
        workload=workload.model.name,
        accelerator=workload.accelerator or None,
        sample_divisor=divisor,
        overrides=tuple(without_secrets(trial_words)),
        launcher=launcher,
        threshold_percent=100 * workload.metric.au,
        cached=workload.metric.cached,
        settings_digest=digest([workload]),
    )
    dataset = inspect(
        workload.dataset,
        command_hint=lambda: f"{datagen_command(workload)} (or add --make here)",
        storage=workload.storage_spec,
    )
    job = make_job(workload, 1, dataset, folder=folder)
    capacity = _capacity(job)
    search = Search(folder, question, (), on_event)
    search.resume()
    page = workload.output.report
    on_event(RunsPlanned(folder=folder, runs=None, finished_runs=len(search.runs), wants_page=page))
    cores = check_free_cores(Facts(workload))
    page_cache = treatment_of(workload, dataset.total_bytes)
    levels = tuple(measure_levels(job, evicts=page_cache in ("evicted", "large"), levels=PROBING_READERS))
    reason = f"--most {most} was the limit"
    if most > capacity:
        files = math.ceil((capacity + 1) * _samples_each(job) / workload.dataset.num_samples_per_file)
        setting = "" if workload.dataset.source == "folder" else f" (dataset.num_files_train={files})"
        reason = f"the dataset has too few files for more than {capacity}: one more takes {files}{setting}"
    inputs = SearchInputs(
        probe_mb_per_second=max(level.mb_per_second for level in levels),
        mb_per_accelerator=_mb_per_accelerator(workload),
        full_mb_per_accelerator=_full_mb_per_accelerator(workload),
        max_accelerators=min(most, capacity),
        max_reason=reason,
        naive_seconds_per_trial=sum(epoch.steps for epoch in job.schedule) * _step_seconds(workload),
        other_programs=f"{cores.observed}: {cores.advice}" if cores.advice else "",
    )
    first = expected_count(job, levels, inputs)
    if inputs.other_programs:
        on_event(Warned(inputs.other_programs))
    accelerators = count(capacity, "accelerator") + scaled(divisor, workload.scale)
    total = units.size(dataset.total_bytes)
    on_event(Doing(f"searching with a dataset of {total} (page cache: {page_cache}), enough for {accelerators}"))
    probed, needed = units.number(inputs.probe_mb_per_second), units.number(inputs.mb_per_accelerator)
    text = f"{probed} MB/s; one accelerator needs {needed} MB/s; expected to pass: {first}"
    on_event(PartMeasured(levels, text))
    if page_cache == "evicted":
        trial_words.append("reader.evict_page_cache=epochs")
    plan = _trial_plan(job, question, trial_seconds, [*config_options(config_dir), *trial_words])
    answer = search.search(inputs, max(1, first), partial(run_trial, plan))
    answer = replace(
        answer,
        at_least=at_least,
        outcome=outcome_of(answer, at_least or 1),
        issues=(*recording_notes(workload.recorded, max(1, answer.max_accelerators)), *answer.issues),
    )
    save_answer(folder, SIZE, answer)
    return answer


def _check_storage_matters(workload: Workload) -> None:
    """Raise UserError for settings with which every count passes."""
    name, missing = "", "reads"
    if _step_seconds(workload) <= 0:
        name, missing = "train.computation_time is 0", "computation"
    elif workload.reader.data_loader == "none":
        name = "reader.data_loader is none"
    elif isinstance(find("datagen.formats", workload.dataset.format, "Format")(), UnreadFormat):
        name = f"dataset.format is {workload.dataset.format}"
    if name:
        raise UserError(f"{name}: without {missing}, every count passes; choose another")


class Search(RunList[int, Trial, SizeAnswer]):
    """The trials of a search; the results so far decide which count is tried next."""

    file, noun, runs_in, answer_type = SIZE, "search", "trials", SizeAnswer

    def resume(self) -> None:
        """Continue with the trials of an interrupted search; raises UserError, also for the folder of a run."""
        if os.path.exists(os.path.join(self.folder, SUMMARY)):
            raise UserError(f"{self.folder} holds the results of a run; set output.folder to a new folder")
        super().resume()

    def start(self, planned: Planned[int], folder: str) -> Trial:
        """Run a trial; raises UserError when this host can't run that many accelerators."""
        return self._run(planned.what, len(self.runs) + 1, folder)

    def answer(self, *, complete: bool) -> SizeAnswer:
        answer = build_answer(self.question, self._inputs, self.runs, refusal=self._refusal)
        return replace(answer, complete=True, verdict=sentence(answer)) if complete else answer

    def search(self, inputs: SearchInputs, first: int, run: Callable[[int, int, str], Trial]) -> SizeAnswer:
        """Run trials, of `first` accelerators to begin with, until the largest count that passes is found and decided.

        `run` gets a trial's accelerators, number and folder. Raises what `run` raises, except for a count that this
        host can't run while it can run a smaller one: then only smaller counts are tried.
        """
        self._inputs, self._run, self._refusal = inputs, run, ""
        most = inputs.max_accelerators
        while (accelerators := next_count(self.runs, self.question, first, most)) is not None:
            trial_number = len(self.runs) + 1
            planned = Planned(
                what=accelerators,
                name=f"trial-{trial_number:02}-{accelerators}",
                label=f"trial {trial_number}: {count(accelerators, 'accelerator')}",
                settings={"ranks": str(accelerators)},
            )
            try:
                self.run_one(planned)
            except UserError as error:
                if accelerators == 1 or any(trial.accelerators == accelerators for trial in self.runs):
                    raise
                first, most = accelerators // 2, accelerators - 1
                self._refusal = f"{accelerators} can't run here: {error}"
        return self.answer(complete=True)


def expected_count(job: TrainingJob, levels: Sequence[Level], inputs: SearchInputs) -> int:
    """Return the largest count that the performance model expects to pass; 1 where it expects none."""
    workload = job.workload
    trained = replace(workload, workflow=replace(workload.workflow, checkpoint=False))
    storage = calibrate_from_levels(job, levels, HostCosts(), cores=usable_cores())
    try:
        return predict(trained, storage, most=inputs.max_accelerators).max_accelerators or 0
    except UserError:  # too few samples: the search reports that
        return 1


def _trial_plan(job: TrainingJob, question: Question, trial_seconds: float, words: Sequence[str]) -> TrialPlan:
    train, ahead = job.workload.train, _batches_ahead(job)
    steps = math.ceil(trial_seconds / _step_seconds(job.workload)) + 1 + ahead
    if train.total_training_steps > 0:
        steps = min(steps, train.total_training_steps)
    # AU measures the reads of training alone.
    off = [f"workflow.{phase}=false" for phase in ("generate_data", "checkpoint", "evaluation")]
    return TrialPlan(
        words=(*words, *off, "output.report=false"),
        question=question,
        window_seconds=_window_seconds(job.workload),
        batches_ahead=ahead,
        total_steps=steps,
        seed=train.seed,
    )


def _step_seconds(workload: Workload) -> float:
    return mean_seconds(workload.train.computation_time)


def _mb_per_accelerator(workload: Workload) -> float:
    return demand(workload.model.name, workload).mb_per_second or 0.0


def _full_mb_per_accelerator(workload: Workload) -> float:
    """Return what one accelerator needs at full size; 0 where that is what it needs here, or is not known."""
    full = full_size(workload)
    full_mb = 0.0 if full is None else _mb_per_accelerator(full)
    return 0.0 if math.isclose(full_mb, _mb_per_accelerator(workload), rel_tol=0.005) else full_mb


def _window_seconds(workload: Workload) -> float:
    return max(WINDOW_SECONDS, WINDOW_STEPS * _step_seconds(workload))


def _batches_ahead(job: TrainingJob) -> int:
    return job.batches_ahead + (0 if job.workload.train.synchronous else 1)


def _capacity(job: TrainingJob) -> int:
    """Return for how many accelerators the dataset suffices; raises UserError when for none."""
    samples, each = job.dataset.train.num_samples, _samples_each(job)
    if samples < each:
        batch_size, files = job.workload.reader.batch_size, math.ceil(each / job.dataset.train.num_samples_per_file)
        raise UserError(
            f"the dataset has {samples} samples: wanted at least {each} for each accelerator ({each // batch_size} "
            f"steps of {batch_size} per epoch), for a verdict; lower reader.batch_size, or use a dataset of {files} "
            "files for each accelerator that you expect to pass"
        )
    return samples // each


def _samples_each(job: TrainingJob) -> int:
    """Return the samples of an epoch that each accelerator of a trial needs.

    The first step of an epoch does not count, nor do its last steps, whose batches are read ahead. The remaining steps,
    over all epochs of a trial, must hold the fewest windows that a verdict can be based on.
    """
    workload = job.workload
    window_steps = math.ceil(_window_seconds(workload) / _step_seconds(workload))
    steps = 2 + _batches_ahead(job) + math.ceil(FEWEST / workload.train.epochs) * window_steps
    return steps * workload.reader.batch_size


def _files_to_make(workload: Workload, accelerators: int) -> int:
    """Return how many files a dataset for so many accelerators needs, or the workload's own number if that is larger.

    A dataset that exists, or is unfinished, keeps its number of files.
    """
    existing = manifest.read(workload.dataset.data_folder, open_storage(workload.storage_spec.buffered))
    if existing is not None:
        return existing.spec.num_files_train
    samples = accelerators * _samples_each(make_job(workload, 1, planned_dataset(workload.dataset)))
    return max(workload.dataset.num_files_train, math.ceil(samples / workload.dataset.num_samples_per_file))
