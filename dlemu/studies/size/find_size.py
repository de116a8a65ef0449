"""`dlemu size`: finds how many accelerators a storage feeds. Checks, probes, runs trials, and writes size.json."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from datagen import manifest
from datagen.errors import UserError
from datagen.formats.format_base import UnreadFormat
from datagen.inspection import inspect
from datagen.registry import find
from datagen.storage.storage_base import open_storage
from datagen.withheld import redact_argv
from dlemu.config import check_runnable, datagen_command, digest, load
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
from dlemu.metrics.cache import eviction
from dlemu.metrics.demand import demand, sample_divisor
from dlemu.metrics.t_interval import FEWEST
from dlemu.report import units
from dlemu.results.answer_files import save_answer
from dlemu.results.wording import at_scale, count
from dlemu.runner.events import Doing, PartMeasured, Warned, ignore
from dlemu.runner.run_folder import new_folder
from dlemu.runner.run_list import Planned, RunList, RunsPlanned
from dlemu.studies.answers import SIZE, Question, SizeAnswer, Trial
from dlemu.studies.prerequisites import OnEvent, config_options, take_launcher
from dlemu.studies.size.search import next_count
from dlemu.studies.size.size_verdict import SearchInputs, build_answer, outcome_of, sentence
from dlemu.studies.size.trials import batches_ahead_of, plan_trials, run_trial, step_seconds, window_seconds_of

DEFAULT_CAPACITY = 8  # accelerators that a new dataset suffices for; the workload's own size may be too small for one
PROBING_READERS = (1, 16)  # 16 reach most of a drive's rate: enough to choose the first count of the search


def size(
    overrides: Sequence[str],
    *,
    config_dir: str | None = None,
    at_least: int | None = None,
    most: int = 4096,  # the largest count to try, for storage that feeds any number
    trial_seconds: float = 120.0,  # at full speed; most trials are stopped sooner, as their verdict is certain
    make: Callable[[Workload], None] | None = None,
    on_event: OnEvent = ignore,
) -> SizeAnswer:
    """Find the most accelerators that a storage keeps busy; each trial is a `dlemu train` of its own.

    `overrides` are those of `dlemu train` without `ranks`, and `launcher`, the command that starts the ranks, with
    `{ranks}` in it. `make` makes the missing files of the dataset: unless the overrides set their number, as many as
    DEFAULT_CAPACITY accelerators need, or one more than `at_least`. The answer's `outcome` is whether `at_least`
    accelerators pass, by default one. Called again with the same arguments, it continues an interrupted search in its
    `output.folder`. Raises UserError before the first trial, DlemuError if a trial fails.
    """
    launcher, settings = take_launcher("size", overrides)
    if any(setting.lstrip("+").startswith("ranks=") for setting in settings):
        raise UserError("ranks is what `dlemu size` finds: leave it out, or give --most N to try no more than N")
    workload = load(settings, config_dir=config_dir)
    check_runnable(workload)
    check_installed(workload.reader.data_loader)
    _check_storage_matters(workload)
    folder = workload.output.folder or new_folder(workload.results_name, "size-")
    if make is not None:
        with_files = _with_files(settings, workload, min(most, max(DEFAULT_CAPACITY, (at_least or 0) + 1)))
        if with_files != settings:  # loading again inspects the user's own files, which may take long
            settings = with_files
            workload = load(settings, config_dir=config_dir)
    _, settings = take_word(settings, "output.folder")  # each trial has its own folder
    question = Question(
        workload=workload.model.name,
        accelerator=workload.accelerator or None,
        sample_divisor=sample_divisor(workload),
        overrides=tuple(redact_argv(settings)),
        launcher=launcher,
        threshold_percent=100 * workload.metric.au,
        cached=workload.metric.cached,
        settings_digest=digest([workload]),
    )
    search = Search(folder, question, (), on_event)
    search.resume()
    if make is not None:
        _capacity(make_job(workload, 1, planned_dataset(workload.dataset)))  # refuses a dataset that is too small
        make(workload)
    dataset = inspect(
        workload.dataset,
        command_hint=lambda: f"{datagen_command(workload)} (or add --make here)",
        storage=workload.storage_spec,
    )
    job = make_job(workload, 1, dataset, folder=folder)
    argv = [*config_options(config_dir), *settings]
    answer = _probe_and_search(search, job, argv, on_event, most=most, trial_seconds=trial_seconds)
    issues = (*recording_notes(workload.recorded, max(1, answer.max_accelerators)), *answer.issues)
    answer = replace(answer, at_least=at_least, outcome=outcome_of(answer, at_least or 1), issues=issues)
    save_answer(folder, SIZE, answer)
    return answer


def _check_storage_matters(workload: Workload) -> None:
    """Raise UserError for settings with which every count would pass, whatever the storage."""
    missing = "reads"
    if step_seconds(workload) <= 0:
        setting = "train.computation_time is 0"
        missing = "computation"
    elif workload.reader.data_loader == "none":
        setting = "reader.data_loader is none"
    elif isinstance(find("datagen.formats", workload.dataset.format, "Format")(), UnreadFormat):
        setting = f"dataset.format is {workload.dataset.format}"
    else:
        return
    raise UserError(f"{setting}: without {missing}, every count passes; choose another")


def _with_files(settings: list[str], workload: Workload, accelerators: int) -> list[str]:
    """Return settings with enough files for a count, unless they set the number; an existing dataset keeps its own."""
    if workload.workflow.generate_data or "dataset.num_files_train" in given_keys(settings):
        return settings
    existing = manifest.read(workload.dataset.data_folder, open_storage(workload.storage_spec.buffered))
    if existing is not None:
        num_files = existing.spec.num_files_train
    else:
        samples = accelerators * _samples_per_accelerator(make_job(workload, 1, planned_dataset(workload.dataset)))
        num_files = max(workload.dataset.num_files_train, math.ceil(samples / workload.dataset.num_samples_per_file))
    if num_files == workload.dataset.num_files_train:  # adding it would change the question of an interrupted search
        return settings
    return [*settings, f"dataset.num_files_train={num_files}"]


def _probe_and_search(
    search: Search, job: TrainingJob, argv: Sequence[str], on_event: OnEvent, *, most: int, trial_seconds: float
) -> SizeAnswer:
    """Probe the storage, then run or resume trials with the arguments `argv`, of at most `most` accelerators."""
    workload, total_bytes, capacity = job.workload, job.dataset.total_bytes, _capacity(job)
    page = workload.output.report
    on_event(RunsPlanned(folder=search.folder, runs=None, finished_runs=len(search.runs), wants_page=page))
    cores = check_free_cores(Facts(workload))  # before the probe, which uses cores itself
    page_cache = treatment_of(workload, total_bytes)
    levels = tuple(measure_levels(job, evicts=page_cache in ("evicted", "large"), levels=PROBING_READERS))
    max_reason = f"--most {most} was the limit"
    if most > capacity:
        files = math.ceil((capacity + 1) * _samples_per_accelerator(job) / workload.dataset.num_samples_per_file)
        setting = "" if workload.dataset.source == "folder" else f" (dataset.num_files_train={files})"
        max_reason = f"the dataset has too few files for more than {capacity}: one more takes {files}{setting}"
    inputs = SearchInputs(
        probe_mb_per_second=max(level.mb_per_second for level in levels),
        mb_per_accelerator=_mb_per_accelerator(workload),
        full_mb_per_accelerator=_full_mb_per_accelerator(workload),
        max_accelerators=min(most, capacity),
        max_reason=max_reason,
        naive_seconds_per_trial=sum(epoch.steps for epoch in job.schedule) * step_seconds(workload),
        other_programs=f"{cores.observed}: {cores.advice}" if cores.advice else "",
    )
    expected = expected_count(job, levels, inputs)
    if inputs.other_programs:
        on_event(Warned(inputs.other_programs))
    accelerators = count(capacity, "accelerator") + at_scale(sample_divisor(workload), workload.scale)
    data = f"{units.size(total_bytes)} (page cache: {page_cache})"
    on_event(Doing(f"searching with a dataset of {data}, enough for {accelerators}"))
    probed, needed = units.number(inputs.probe_mb_per_second), units.number(inputs.mb_per_accelerator)
    on_event(PartMeasured(levels, f"{probed} MB/s; one accelerator needs {needed} MB/s; expected to pass: {expected}"))
    if page_cache == "evicted":  # as for the probe
        argv = [*argv, eviction(workload.dataset.format)]
    plan = plan_trials(job, search.question, trial_seconds, argv)
    return search.search(inputs, max(1, expected), partial(run_trial, plan))


class Search(RunList[int, Trial, SizeAnswer]):
    """The trials of a search, in which the results so far decide the next count of accelerators."""

    file, noun, runs_in, answer_type = SIZE, "search", "trials", SizeAnswer

    def start(self, planned: Planned[int], folder: str) -> Trial:
        """Run a trial; raises UserError if this host can't run that many accelerators."""
        return self._run(planned.what, len(self.runs) + 1, folder)

    def answer(self, *, complete: bool) -> SizeAnswer:
        answer = build_answer(self.question, self._inputs, self.runs, refusal=self._refusal)
        return replace(answer, complete=True, verdict=sentence(answer)) if complete else answer

    def search(self, inputs: SearchInputs, first: int, run: Callable[[int, int, str], Trial]) -> SizeAnswer:
        """Run trials until the largest passing count of accelerators is decided; the first trial has `first`.

        `run` runs a trial, given its count of accelerators, its number and its folder. It raises UserError if this host
        can't run the count: the search goes on with smaller ones, unless the count is 1 or has run here before.
        """
        self._inputs, self._run, self._refusal = inputs, run, ""  # the last: the message of that error
        max_count = inputs.max_accelerators
        while (accelerators := next_count(self.runs, self.question, first, max_count)) is not None:
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
                first, max_count = accelerators // 2, accelerators - 1
                self._refusal = f"{accelerators} can't run here: {error}"
        return self.answer(complete=True)


def expected_count(job: TrainingJob, levels: Sequence[Level], inputs: SearchInputs) -> int:
    """Return the largest count of accelerators that is predicted to pass: 0 if none is, 1 without a prediction."""
    training_only = replace(job.workload, workflow=replace(job.workload.workflow, checkpoint=False))
    storage = calibrate_from_levels(job, levels, HostCosts(), cores=usable_cores())
    try:
        return predict(training_only, storage, most=inputs.max_accelerators).max_accelerators or 0
    except UserError:  # too few samples, which the search reports
        return 1


def _mb_per_accelerator(workload: Workload) -> float:
    return demand(workload.model.name, workload).mb_per_second or 0.0


def _full_mb_per_accelerator(workload: Workload) -> float:
    """Return the rate that one accelerator needs at full size, MB/s; 0 if it is the same as here, or unknown."""
    full = full_size(workload)
    full_mb = 0.0 if full is None else _mb_per_accelerator(full)
    return 0.0 if math.isclose(full_mb, _mb_per_accelerator(workload), rel_tol=0.005) else full_mb


def _capacity(job: TrainingJob) -> int:
    """Return the number of accelerators that the dataset suffices for; raises UserError if it is too small for one."""
    samples, needed = job.dataset.train.num_samples, _samples_per_accelerator(job)
    if samples < needed:
        batch_size, files = job.workload.reader.batch_size, math.ceil(needed / job.dataset.train.num_samples_per_file)
        raise UserError(
            f"the dataset has {samples} samples: wanted at least {needed} for each accelerator ({needed // batch_size} "
            f"steps of {batch_size} per epoch), for a verdict; lower reader.batch_size, or use a dataset of {files} "
            "files for each accelerator that you expect to pass"
        )
    return samples // needed


def _samples_per_accelerator(job: TrainingJob) -> int:
    """Return how many samples per epoch each accelerator of a trial needs at least.

    The first step of an epoch does not count, nor do the last ones, whose batches are read ahead. The other steps of
    all epochs must last for FEWEST windows of time, the minimum for a verdict.
    """
    workload = job.workload
    window_steps = math.ceil(window_seconds_of(workload) / step_seconds(workload))
    steps = 2 + batches_ahead_of(job) + math.ceil(FEWEST / workload.train.epochs) * window_steps
    return steps * workload.reader.batch_size
