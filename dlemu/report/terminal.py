"""What the terminal shows of a result: one table, what to know about it, and one line of verdict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dlemu.report.units import number as _number
from dlemu.report.units import size as _size

Row = tuple[str, str, str]
"""Metric, value with its unit, what it means."""

_SHOWN_EPOCHS = 6
_SHOWN_HOSTS = 4
_SHOWN_STRAGGLERS = 4
_LEAST_SHOWN = 0.005
_LOUD = "STORAGE WAS NOT READ"
_EVICTED = {"never": "", "start": ", evicted once", "epochs": ", evicted"}
_LOST_TO = {
    "first_step": "steps that AU leaves out",
    "reading": "in opening and reading files",
    "decoding": "in decoding, copying, preprocessing",
    "queueing": "no worker had begun the batch",
    "hand_over": "ready in a worker, not in the trainer",
    "uneven_computation": "draws of the computation time differ",
}


def print_result(summary: dict[str, Any], folder: str, console: Console) -> None:
    """Print a run's result from its summary.json mapping. Reads well from 80 columns on, with or without colour."""
    table = Table(
        "metric", "value", "what it is", title=Text(run_title(summary)), title_justify="left", box=SIMPLE_HEAD
    )
    table.columns[0].no_wrap = True
    for row in result_rows(summary):
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    for issue in summary["issues"]:
        console.print(Text(f"- {issue}", style="yellow"))
    for line in _reasons(summary):
        console.print(line)
    console.print(_verdict(summary))
    console.print(Text(f"results: {folder}"), soft_wrap=True)


def result_rows(summary: dict[str, Any]) -> list[Row]:
    """Return the table's rows: of a run that was cut short those that could be measured."""
    metrics = summary["metrics"]
    return [
        *_utilisation(metrics),
        *_loss(summary["loss_percent"]),
        *_rates(metrics),
        *_waits(metrics),
        *_samples(summary),
        *_checkpoints(summary["checkpoints"]),
        *_evaluation(summary["evaluation"]),
        *_costs(summary),
        *_page_cache(summary["page_cache"]),
    ]


def run_title(summary: dict[str, Any]) -> str:
    """Return what ran where, in a line."""
    scale = f" (scale {summary['scale']})" if summary["scale"] else ""
    kind = f"x {summary['accelerator']}" if summary["accelerator"] else "ranks"
    return f"{summary['workload']}{scale}: {summary['ranks']} {kind}{_hosts(summary['hosts'])}"


def _hosts(hosts: list[str]) -> str:
    if not hosts:
        return ""
    names = ", ".join(hosts[:_SHOWN_HOSTS]) + (", ..." if len(hosts) > _SHOWN_HOSTS else "")
    return f" on {names}" if len(hosts) == 1 else f" on {len(hosts)} hosts ({names})"


def _verdict(summary: dict[str, Any]) -> Text:
    if not summary["complete"]:
        return Text(f"INCOMPLETE: {summary['failure']}", style="bold red")
    return Text(
        summary["verdict"], style={True: "bold green", False: "bold red", None: "bold yellow"}[summary["passed"]]
    )


def _reasons(summary: dict[str, Any]) -> Iterator[Text]:
    """What limited the run, why one may believe it, and what to do; the loudest line says that memory was measured."""
    warning = (summary["page_cache"] or {}).get("warning")
    if warning:
        yield Text(warning, style="bold red" if warning.startswith(_LOUD) else "yellow")
    for late in summary["stragglers"][:_SHOWN_STRAGGLERS]:
        yield Text(_straggler(late), style="yellow")
    limit = summary["limited_by"]
    if limit:
        yield Text(f"limited by: {limit['what']} (confidence {limit['confidence']})", style="bold")
        yield from (Text(f"  {sentence}") for sentence in limit["evidence"] if limit["what"] != "nothing")
        yield from (Text(f"  to do: {sentence}", style="bold") for sentence in limit["advice"])


def _straggler(late: dict[str, Any]) -> str:
    who = f"host {late['host']}" if late["rank"] is None else f"rank {late['rank']} on {late['host']}"
    return (
        f"straggler: {who} cost {late['loss_percent']:.1f} % of AU, {_number(late['mean_delay_ms'])} ms in each of "
        f"{late['steps']:,} steps, mainly by {late['mainly'].replace('_', '-')} ({late['where']})"
    )


def _loss(shares: dict[str, float]) -> Iterator[Row]:
    if sum(shares.values()) < _LEAST_SHOWN:
        return
    yield "lost", _percent(sum(shares.values())), "100 - AU, MLPerf rules; its parts:"
    for name, share in shares.items():
        if share >= _LEAST_SHOWN:
            yield f"  {name.replace('_', ' ')}", _percent(share), _LOST_TO[name]


def _page_cache(cache: dict[str, Any] | None) -> Iterator[Row]:
    if cache is None:
        return
    share, ratio = cache["from_storage_percent"]["mean"], cache["dataset_to_memory_ratio"]
    size = "" if ratio is None else f"dataset {ratio:.2g} x memory"
    yield "from storage", "not known" if share is None else f"{share:.1f} %", f"of the bytes; {size}"


def _utilisation(metrics: dict[str, Any]) -> Iterator[Row]:
    headline = metrics.get("au_percent")
    if headline:
        yield "AU", _percent(headline["mean"]), "compute / (wait + compute + sync)"
        if len(headline["per_epoch"]) > 1:
            yield "  per epoch", f"+- {_percent(headline['std'])}", _epochs(headline["per_epoch"])
        yield "AU, MLPerf rules", _mean_percent(metrics["au_rules_percent"]), "the same, first steps included"
        yield "AU, DLIO 2.x", _mean_percent(metrics["au_dlio_percent"]), "measured sleep / host's block time"
        yield "AU, DLIO v1.0", _mean_percent(metrics["au_dlio_v1_percent"]), "configured sleep / host's block time"
    if metrics["ceiling_au_percent"] is not None:
        yield "emulator's ceiling", _percent(metrics["ceiling_au_percent"]), "AU of this host with null storage"


def _rates(metrics: dict[str, Any]) -> Iterator[Row]:
    if "samples_per_second" not in metrics:
        return
    yield "samples", f"{_number(metrics['samples_per_second']['mean'])} /s", "first steps included"
    mb, mib = metrics["app_mb_per_second"]["mean"], metrics["app_mib_per_second"]["mean"]
    yield "read", f"{_number(mb)} MB/s", f"{_number(mib)} MiB/s, caches included"
    total = f"{metrics['samples']:,} samples, {_size(metrics['app_bytes'])}"
    yield "training", f"{metrics['training_seconds']:,.1f} s", total


def _waits(metrics: dict[str, Any]) -> Iterator[Row]:
    first = metrics.get("time_to_first_batch_seconds")
    if first:
        yield "time to first batch", f"{_number(first['mean'])} s", "slowest rank, mean of the epochs"
    kept = metrics.get("wait_ms", {}).get("kept_steps")
    if kept:
        others = f"p50 {_number(kept['p50'])}, max {_number(kept['max'])} ms, kept steps"
        yield "wait p99", f"{_number(kept['p99'])} ms", others


def _samples(summary: dict[str, Any]) -> Iterator[Row]:
    yield "dropped samples", f"{summary['metrics']['dropped_samples']:,}", "each epoch: they fill no whole step"
    if summary["audit"]:
        yield "each sample once", *_read_once(summary["audit"])


def _read_once(audit: list[dict[str, Any]]) -> tuple[str, str]:
    wrong = [str(part["epoch"]) for part in audit if part["each_sample_once"] is False]
    unknown = [str(part["epoch"]) for part in audit if part["each_sample_once"] is None]
    if wrong:
        return "NO", f"not in epoch {', '.join(wrong)}"
    if unknown:
        return "not known", f"epoch {', '.join(unknown)} was cut short"
    return "yes", "in every epoch, by hash"


def _checkpoints(saved: list[dict[str, Any]]) -> Iterator[Row]:
    if saved:
        size, seconds = sum(one["bytes"] for one in saved), sum(one["seconds"] for one in saved)
        rate = f" at {_number(size / 1e6 / seconds)} MB/s" if seconds else ""
        yield "checkpoints", f"{len(saved)} in {_number(seconds)} s", f"{_size(size)}{rate}"


def _evaluation(evaluation: dict[str, Any] | None) -> Iterator[Row]:
    if evaluation:
        told = f"{_number(evaluation['app_mb_per_second'])} MB/s, {evaluation['seconds']:,.1f} s in all"
        yield "evaluation", f"{_number(evaluation['samples_per_second'])} /s", told


def _costs(summary: dict[str, Any]) -> Iterator[Row]:
    per_gb = summary["metrics"]["cpu_seconds_per_gb"]
    if per_gb is not None:
        yield "CPU", f"{_number(per_gb)} s/GB", "ranks and workers, per GB read"
    how = summary["how"]
    yield "loader", how["data_loader"], f"{how['read_threads']} workers a rank, batches of {how['batch_size']}"
    told = f"{how['engine']} engine, decode {how['decode']}" + _EVICTED[how["evict_page_cache"]]
    yield "reads", "O_DIRECT" if how["odirect"] else "page cache", told


def _epochs(values: list[float | None]) -> str:
    shown = ["-" if value is None else f"{value:.1f}" for value in values]
    if len(shown) > _SHOWN_EPOCHS:
        half = _SHOWN_EPOCHS // 2
        shown = [*shown[:half], "...", *shown[-half:]]
    return " ".join(shown)


def _mean_percent(spread: dict[str, Any]) -> str:
    return _percent(spread["mean"])


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} %"
