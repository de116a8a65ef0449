"""What is said of a training run below its first screen, on the terminal and on its HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from datagen.formats.format_base import built_in_reads
from dlemu.jobs.training.summary import Loss, Mean, Metrics, PageCache, Summary
from dlemu.jobs.training.wording import causes_line
from dlemu.metrics.t_interval import plus_minus
from dlemu.report.environment import Row, facts_table, request_rows
from dlemu.report.table import Cell, Line, Section, Table, Words, columns
from dlemu.report.units import flat, multiple_of, number, percent, size
from dlemu.results.wording import count

_SHOWN_EPOCHS, _SHOWN_NAMES, _SHOWN_STRAGGLERS, _LONG_TABLE = 6, 4, 4, 24
"""Maximum numbers of items to list, and the number of epochs above which their table is folded."""
_MIN_SHOWN_PERCENT = 0.005  # less would be shown as 0.00 %
_EVICTED = {"never": "", "start": ", evicted once", "epochs": ", evicted"}
_LOST_TO = {
    "first_step": "first steps, which AU does not count",
    "reading": "opening and reading files",
    "decoding": "decoding, copying, preprocessing",
    "queueing": "no worker had started the batch",
    "hand_over": "ready in a worker, not in the trainer",
    "uneven_computation": "computation times drawn at random differ",
}


def sections(summary: Summary, _: str) -> Iterator[Section]:
    """Yield what is said of a run below its first screen."""
    limit = summary.limited_by
    if limit:
        points: list[Cell] = [*limit.evidence, *filter(None, [causes_line(limit)])]
        advice = [Line(f"to do: {sentence}", "strong") for sentence in limit.advice]
        yield Words(f"Limited by: {limit.what} (confidence: {limit.confidence})", [*points, *advice])
    yield _result_table(summary)
    if cpu := list(_library_cpu(summary)):
        yield Words("CPU with the format's usual library", cpu)
    yield from _epochs(summary.metrics)
    yield facts_table("How it was measured", flat(summary.how), folded=True)
    if summary.telemetry:
        if summary.telemetry.notes:
            yield Words("Notes on the telemetry", summary.telemetry.notes)
        for device in summary.telemetry.devices:
            yield facts_table(f"Device {device.name}", flat(device), folded=True)


def _result_table(summary: Summary) -> Table:
    """Return the table of a run's metrics; for an incomplete run, of those that could be computed."""
    metrics = summary.metrics
    rows = [
        *_sustained(metrics),
        *_loss(summary.loss_percent),
        *_rates(metrics),
        *_waits(metrics),
        *_samples(summary),
        *_checkpoints_and_evaluation(summary),
        *_costs(summary),
        *_page_cache(summary.page_cache, odirect=summary.how.odirect),
        *_other_definitions(metrics),
    ]
    return Table(title="Result", columns=columns("metric", "value", "meaning", whole=(0,)), rows=rows)


def _sustained(metrics: Metrics) -> Iterator[Row]:
    """Yield the sustained AU and the ceiling; the other definitions of AU are at the end of the table."""
    sustained, uncertainty = metrics.sustained_percent, metrics.au_uncertainty
    if metrics.au_percent:
        yield "AU", percent(sustained), "in an endless epoch on this storage"
        if uncertainty and sustained is not None:
            width = plus_minus(sustained, uncertainty.expanded_percent, 2).strip("()")
            yield "  uncertainty", f"{width} %", "95 % interval"  # U with k = 2: docs/uncertainty.md
    if (ceiling := metrics.ceiling_au_percent) is not None:
        exceeded = sustained is not None and sustained > ceiling
        meaning = "at least: this run reached more" if exceeded else "AU on this host without storage"
        yield "emulator's ceiling", percent(ceiling), meaning


def _other_definitions(metrics: Metrics) -> Iterator[Row]:
    headline, credit = metrics.au_percent, metrics.prefetch_credit_percent
    if not headline:
        return
    yield "other AU definitions", "", ""
    yield "  counted steps", percent(headline.mean), "compute / (wait + compute + sync)"
    if len(headline.per_epoch) > 1:
        yield "    per epoch", f"+- {percent(headline.std)}", _epoch_values(headline.per_epoch)
    if credit is not None and credit >= _MIN_SHOWN_PERCENT:
        yield "    prefetch credit", percent(credit), "of those steps' batches, read before"
    yield "  whole epochs", _mean(metrics.au_whole_percent), "first step of each epoch included"
    yield "  DLIO 2.x", _mean(metrics.au_dlio_percent), "measured compute / host's time"
    yield "  DLIO v1.0", _mean(metrics.au_dlio_v1_percent), "configured compute / host's time"


def _mean(figure: Mean | None) -> str:
    return percent(figure.mean if figure else None)


def _epoch_values(values: Sequence[float | None]) -> str:
    shown = ["-" if value is None else f"{value:.1f}" for value in values]
    if len(shown) > _SHOWN_EPOCHS:
        half = _SHOWN_EPOCHS // 2
        shown = [*shown[:half], "...", *shown[-half:]]
    return " ".join(shown)


def _loss(loss: Loss | None) -> Iterator[Row]:
    if loss is None or loss.total < _MIN_SHOWN_PERCENT:
        return
    yield "lost", percent(loss.total), "100 - AU of whole epochs, in parts:"
    for name, share in flat(loss):
        if share >= _MIN_SHOWN_PERCENT:
            yield f"  {name.replace('_', ' ')}", percent(share), _LOST_TO[name]


def _rates(metrics: Metrics) -> Iterator[Row]:
    samples, mb, mib = metrics.samples_per_second, metrics.app_mb_per_second, metrics.app_mib_per_second
    if not (samples and mb and mib):
        return
    yield "samples", f"{number(samples.mean)} /s", "first step of each epoch included"
    yield "read", f"{number(mb.mean)} MB/s", f"{number(mib.mean)} MiB/s, caches included"
    total = f"{metrics.samples or 0:,} samples, {size(metrics.app_bytes or 0)}"
    yield "training", f"{metrics.training_seconds or 0:,.1f} s", total


def _waits(metrics: Metrics) -> Iterator[Row]:
    if metrics.time_to_first_batch_seconds:
        seconds = number(metrics.time_to_first_batch_seconds.mean)
        yield "time to first batch", f"{seconds} s", "slowest rank, mean over the epochs"
    kept = metrics.wait_ms and metrics.wait_ms.kept_steps
    if kept:
        yield ("wait p99", f"{number(kept.p99)} ms", (f"p50 {number(kept.p50)}, max {number(kept.max)} ms, counted"))


def _samples(summary: Summary) -> Iterator[Row]:
    yield "dropped samples", f"{summary.metrics.dropped_samples:,}", "per epoch: they do not fill a step"
    if not summary.audit:
        return
    wrong = [str(part.epoch) for part in summary.audit if part.each_sample_once is False]
    unknown = [str(part.epoch) for part in summary.audit if part.each_sample_once is None]
    if wrong:
        yield "each sample once", "NO", f"not in epoch {', '.join(wrong)}"
    elif unknown:
        yield "each sample once", "not known", f"epoch {', '.join(unknown)} was cut short"
    else:
        yield "each sample once", "yes", "in every epoch, verified by hash"


def _checkpoints_and_evaluation(summary: Summary) -> Iterator[Row]:
    saved = summary.checkpoints
    if saved:
        size_bytes, seconds = sum(part.bytes for part in saved), sum(part.seconds for part in saved)
        writing_seconds = sum(part.bytes / 1e6 / part.mb_per_second for part in saved if part.mb_per_second)
        rate = f" at {number(size_bytes / 1e6 / writing_seconds)} MB/s" if writing_seconds else ""
        yield "checkpoints", f"{len(saved)} in {number(seconds)} s", f"{size(size_bytes)}{rate}"
    behind = summary.asynchronous_checkpoints
    if behind:
        yield "  training paused", f"{number(behind.stall_seconds)} s", "per checkpoint, mean (asynchronous)"
        yield "  safe after", f"{number(behind.safe_seconds)} s", "after it was requested, mean"
        if behind.slow_down_percent is not None:
            steps = count(behind.steps_during, "step")
            yield "  steps while saving", f"{behind.slow_down_percent:+.1f} %", f"longer, {steps}"
    made = summary.evaluation
    if made:
        rate = f"{number(made.app_mb_per_second)} MB/s, {made.seconds:,.1f} s in total"
        yield "evaluation", f"{number(made.samples_per_second)} /s", rate


def _costs(summary: Summary) -> Iterator[Row]:
    metrics, apart = summary.metrics, summary.metrics.cpu_apart
    if metrics.read_cpu_seconds_per_gb is not None:
        yield "CPU", f"{number(metrics.read_cpu_seconds_per_gb)} s/GB", "ranks and workers, per GB read"
    elif metrics.cpu_seconds_per_gb is not None:
        yield "CPU", f"{number(metrics.cpu_seconds_per_gb)} s/GB", "ranks and workers, everything"
    if apart is not None:
        saved = f", checkpoints {apart.checkpoints:,.1f}" if apart.checkpoints else ""
        parts = f"start {apart.start:,.1f}, trials {apart.trials:,.1f}{saved}"
        yield "  apart from reading", f"{apart.start + apart.trials + apart.checkpoints:,.1f} s", parts
        if apart.preprocessing or apart.steps:
            emulated = f"preprocessing {apart.preprocessing:,.1f}, trainers' steps {apart.steps:,.1f}: on purpose"
            yield "  emulated", f"{apart.preprocessing + apart.steps:,.1f} s", emulated
    how = summary.how
    yield "loader", how.data_loader, f"{count(how.read_threads, 'worker')} per rank, batch size {how.batch_size}"
    object_requests = summary.requests
    own = how.engine == "fast" and not how.odirect and object_requests is None
    whose = ", larger requests than a real job's" if own else ""
    engine = f"{how.engine} engine{whose}, decode {how.decode}" + _EVICTED[how.evict_page_cache]
    yield "reads", "O_DIRECT" if how.odirect else "page cache" if object_requests is None else "requests", engine
    requested, served = metrics.asked_request_bytes, metrics.device_request_kib
    if requested and requested.mean is not None:
        got = f"; devices saw {number(served.mean)} KiB" if served and served.mean is not None else ""
        yield "read requests", f"{number(requested.mean / 1024)} KiB", f"mean requested{got}"
    if object_requests is not None:
        yield from request_rows(object_requests)


def _library_cpu(summary: Summary) -> Iterator[str]:
    """Yield how much CPU time the readers would use with the format's usual library, as a sentence."""
    own, library = summary.metrics.reader_cpu_seconds_per_gb, summary.metrics.library_cpu_seconds_per_gb
    if own is not None and library is not None:
        call = built_in_reads(summary.dataset.format).call or "its library"
        yield (
            f"the workers used {number(own)} s of CPU per GB; with {call} instead of dlemu's own reader they would "
            f"need about {number(library)} s/GB: reader.engine=library measures it"
        )


def _page_cache(cache: PageCache | None, *, odirect: bool) -> Iterator[Row]:
    """Yield the share of the bytes that came from storage; what it read beyond them, as read-ahead, has its own row."""
    if cache is None:
        return
    share, ratio = cache.from_storage_percent.mean, cache.dataset_to_memory_ratio
    dataset = "" if ratio is None else f"; dataset: {multiple_of(ratio)} memory"
    served = "not known" if share is None else f"{min(share, 100.0):.1f} %"
    yield "from storage", served, f"of the bytes{dataset}"
    if share is not None and share - 100 >= 0.05:
        name = "  whole blocks" if odirect else "  read ahead"
        yield name, f"{share - 100:.1f} %", "more than the loader requested"


def _epochs(metrics: Metrics) -> Iterator[Table]:
    shown: dict[str, Mean | None] = {
        "AU, %": metrics.au_percent,
        "AU whole, %": metrics.au_whole_percent,
        "samples/s": metrics.samples_per_second,
        "loader MB/s": metrics.app_mb_per_second,
        "device MB/s": metrics.device_mb_per_second,
        "device / loader, %": metrics.device_bytes_percent_of_app,
        "first batch, s": metrics.time_to_first_batch_seconds,
    }
    known = {
        name: figure.per_epoch
        for name, figure in shown.items()
        if figure and any(value is not None for value in figure.per_epoch)
    }
    if known:
        epochs = list(zip_longest(*known.values()))
        rows = [(str(epoch), *map(number, values)) for epoch, values in enumerate(epochs, start=1)]
        head = columns("epoch", *known, right=range(len(known) + 1))
        yield Table(title="Epochs", columns=head, rows=rows, folded=len(rows) > _LONG_TABLE)
