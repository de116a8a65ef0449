"""`dlemu workload show|new`: show what a workload needs from the storage; write a commented workload file."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from dlemu.results.wording import count

if TYPE_CHECKING:
    from dlemu.config.schema import Workload

Row = tuple[str, str, str]

SHOWN_SHARES = (0, 10, 50, 90, 100)
"""Percentiles of file sizes that are shown."""
_TEMPLATE = """\
# {name}: a workload for `dlemu train workload={path}`. `dlemu workload show {path}` shows its demand on the storage,
# `dlemu train --cfg workload={path}` lists all settings with their meanings.
model:
  name: {name}
dataset:
{dataset}
reader:
  data_loader: pytorch
  # Samples per step and accelerator.
  batch_size: {batch_size}
  # Worker processes of each rank (num_workers of a DataLoader).
  read_threads: {workers}
  # CPU seconds of a worker per sample after reading it: decoding, augmentation. Measure with a single worker.
  preprocess_time: {preprocess_seconds}
  file_shuffle: seed
  sample_shuffle: seed
train:
  # Seconds of one step when its batch is ready: forward, backward, optimizer, all-reduce.
  computation_time: {step_seconds}
  # CPU seconds of the trainer itself within each step; 0 where the accelerator does all the work.
  step_cpu_time: 0
  epochs: 2
"""
_OWN_DATA = """\
  # Your own files: dlemu detects their format, number and sizes; they are only read.
  source: folder
  data_folder: {data_folder}"""
_GENERATED = """\
  # Made by `dlemu datagen workload={path}`; dlemu does not remove it.
  data_folder: {data_folder}
  format: {format}
  num_files_train: {files}
  num_samples_per_file: {samples_per_file}
  # Mean bytes of a sample, and their standard deviation.
  record_length_bytes: {sample_bytes}
  record_length_bytes_stdev: {sample_bytes_stdev}"""


@click.group(name="workload", short_help="Show what a workload demands of the storage; write one of your own.")
def command() -> None:
    """Show what a workload reads and needs from the storage, or write a commented file for one of your own."""


@command.command(name="show", short_help="What a workload reads, and what an accelerator demands.")
@click.argument("words", nargs=-1)
def show(words: tuple[str, ...]) -> None:
    """Report what a workload reads, and what an accelerator that never waits needs from the storage.

    WORDS are a workload's name or file, and settings: `dlemu workload show my.yaml dataset.data_folder=/data/images`.
    """
    from rich.console import Console

    from dlemu.config import load
    from dlemu.report.table import Table, columns, print_table

    named = [word if "=" in word else f"workload={word}" for word in words]
    workload = load(named)
    table = Table(
        title=f"workload {workload.model.name}", columns=columns("", "value", "", right=(1,)), rows=[*_rows(workload)]
    )
    print_table(table, Console())
    for note in workload.notes:
        click.echo(f"- {note}")


def _rows(workload: Workload) -> Iterator[Row]:
    from dlemu.config.duration import mean_seconds
    from dlemu.metrics.demand import demand

    data, reader, train = workload.dataset, workload.reader, workload.train
    asked = demand(workload.model.name, workload)
    yield "files", f"{asked.num_files:,}", data.format
    yield "samples", f"{asked.num_samples:,}", f"{data.num_samples_per_file:,} in each file"
    yield "dataset", f"{asked.dataset_gb:,.4g} GB", data.data_folder
    yield "sample", _bytes(asked.sample_bytes), "mean"
    if data.sizes_vary:
        import numpy as np

        from dlemu.jobs.training.prediction.batches import bytes_by_file

        sizes = np.percentile(bytes_by_file(data), SHOWN_SHARES)
        shown = ", ".join(_bytes(float(value)) for value in sizes)
        yield "", "", f"{', '.join(f'p{share}' for share in SHOWN_SHARES)}: {shown}"
    yield from _recording(workload)
    yield "batch", str(reader.batch_size), f"{count(reader.read_threads, 'worker')} per rank"
    seconds = asked.computation_seconds
    yield "step", f"{1e3 * seconds:,.4g} ms", f"mean, {train.computation_time.type}"
    if asked.samples_per_second is None or asked.mb_per_second is None:
        yield "demand", "no limit", "train.computation_time is 0: no computation"
        return
    yield "demand of one accelerator", f"{asked.samples_per_second:,.4g} /s", "samples, when it never waits"
    yield "", f"{asked.mb_per_second:,.4g} MB/s", f"{workload.metric.au:.0%} of it to pass"
    burned = asked.samples_per_second * mean_seconds(reader.preprocess_time)
    if burned and reader.preprocess == "burn":
        yield "", f"{burned:,.3g} cores", "preprocessing in the workers"
    if cores := mean_seconds(train.step_cpu_time) / seconds:
        yield "", f"{cores:,.3g} cores", "the trainer itself"


def _recording(workload: Workload) -> Iterator[Row]:
    recorded = workload.recorded
    if recorded.version:
        yield "recorded", count(recorded.ranks, "rank"), f"{recorded.samples_per_second:,.4g} samples/s"
        yield "  coverage", f"{recorded.coverage_percent:.1f} %", "of the bytes that the job read were recorded"
        states = {True: "yes", False: "no", None: "not verified"}
        yield "  replayable", states[recorded.replayable], recorded.reason


def _bytes(value: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:,.4g} {unit}"
    return f"{value:,.0f} B"


_QUESTIONS: tuple[tuple[str, Any, str, str], ...] = (
    ("batch_size", int, "Samples per step and accelerator", "reader.batch_size"),
    ("step_seconds", float, "Seconds of a step whose batch is ready", "train.computation_time"),
    ("workers", int, "Worker processes of each rank", "reader.read_threads"),
    ("preprocess_seconds", float, "CPU seconds of a worker per sample", "reader.preprocess_time"),
)
_OF_GENERATED: tuple[tuple[str, Any, str, str], ...] = (
    ("format", str, "Format of the files (jpeg, npz, tfrecord, webdataset, ...)", "dataset.format"),
    ("files", int, "Number of files", "dataset.num_files_train"),
    ("samples_per_file", int, "Samples in each file", "dataset.num_samples_per_file"),
    ("sample_bytes", float, "Mean bytes of a sample", "dataset.record_length_bytes"),
)


@command.command(name="new", short_help="Write a commented file for a workload of your own.")
@click.argument("path")
@click.option("--data-folder", help="Folder of your files; with --format, the folder where dlemu makes some.")
@click.option("--batch-size", type=int, help="Samples per step and accelerator.")
@click.option("--step-seconds", type=float, help="Seconds of a step whose batch is ready.")
@click.option("--workers", type=int, help="Worker processes of each rank.")
@click.option("--preprocess-seconds", type=float, help="CPU seconds of a worker per sample.")
@click.option("--format", help="Make a dataset of this format, instead of using your files.")
@click.option("--files", type=int, help="Number of files to make.")
@click.option("--samples-per-file", type=int, help="Samples in each file.")
@click.option("--sample-bytes", type=float, help="Mean bytes of a sample.")
@click.option("--sample-bytes-stdev", type=float, default=0.0, help="Standard deviation of a sample's bytes.")
def new(path: str, **given: Any) -> None:
    """Write a commented workload file PATH, which must not exist.

    On a terminal dlemu prompts for missing options; otherwise a missing option is an error. With only --data-folder the
    dataset consists of the files in it; with --format, --files and --sample-bytes dlemu makes one.
    """
    from datagen.errors import UserError
    from datagen.regular import check_local
    from dlemu.config import load

    if not path.endswith(".yaml"):
        raise UserError(f"{path} does not end in .yaml, as a workload file must: give such a name")
    if os.path.lexists(path):
        raise UserError(f"{path} exists: give the name of a new file, or remove this one")
    makes = any(given[name] is not None for name, *_ in _OF_GENERATED)
    questions = [("data_folder", str, "Folder of the files", "dataset.data_folder"), *_QUESTIONS]
    missing = [each for each in [*questions, *(_OF_GENERATED if makes else ())] if given[each[0]] is None]
    if missing and not sys.stdin.isatty():
        options = "; ".join(f"--{name.replace('_', '-')}: {text}" for name, _, text, _ in missing)
        raise UserError(f"{count(len(missing), 'option')} missing: {options}")
    for name, kind, text, key in missing:
        given[name] = click.prompt(f"{text} ({key})", type=kind)
    check_local(given["data_folder"], "--data-folder")
    given |= {"path": path, "name": os.path.basename(path).removesuffix(".yaml")}
    given["data_folder"] = json.dumps(os.path.abspath(given["data_folder"]))  # quoted, as YAML wants it
    dataset = (_GENERATED if makes else _OWN_DATA).format(**given)
    text = _TEMPLATE.format(dataset=dataset, **given)
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UserError(f"{path} can't be written: {error.strerror or error}") from error
    try:
        load([f"workload={path}"])
    except BaseException:
        os.unlink(path)
        raise
    click.echo(f"{path} has been written; next: dlemu workload show {shlex.quote(path)}")
