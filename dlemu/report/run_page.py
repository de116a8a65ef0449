"""The page of one training run, from its folder alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from dlemu.report.page import Page, Table, Text, Words, split_verdict, tiles
from dlemu.report.result import Run
from dlemu.report.terminal import result_rows, run_title
from dlemu.report.units import at, flat, number, size, unit_of

_HOSTS, _LONG_LIST = 8, 24
_TILES = (
    ("AU", "au_percent.mean", "%", "compute / (wait + compute + sync), kept steps"),
    ("AU, MLPerf rules", "au_rules_percent.mean", "%", "first steps included"),
    ("pass line", "au_threshold_percent", "%", "AU at which a run passes"),
    ("emulator's ceiling", "ceiling_au_percent", "%", "AU of this host with null storage"),
    ("samples", "samples_per_second.mean", "/s", "all accelerators"),
    ("read by the loader", "app_mb_per_second.mean", "MB/s", "caches included"),
    ("read from the devices", "device_mb_per_second.mean", "MB/s", "all devices behind the dataset"),
    ("devices / loader", "device_bytes_percent_of_app.mean", "%", "100 % or more: storage, not the page cache"),
    ("first batch", "time_to_first_batch_seconds.mean", "s", "slowest rank, mean of the epochs"),
    ("training", "training_seconds", "s", "all epochs"),
)


def run_page(run: Run) -> Page:
    """Return what stands on the page of a run."""
    summary = run.summary
    state = "open" if not summary["complete"] else {True: "passed", False: "failed", None: "open"}[summary["passed"]]
    verdict = summary["verdict"] if summary["complete"] else f"INCOMPLETE: {summary['failure']}"
    return Page(
        title=run_title(summary),
        lead=_lead(run),
        state=state,
        verdict=split_verdict(verdict),
        tiles=tiles(run.metrics, _TILES, "metrics."),
        words=list(_words(summary)),
        tables=list(_tables(run)),
        texts=[Text("Full configuration (config.yaml)", run.config)] if run.config else [],
        source=os.path.basename(os.path.abspath(run.folder)),
        warning=(summary.get("page_cache") or {}).get("warning") or "",
    )


def _lead(run: Run) -> str:
    data = run.summary["dataset"]
    read = f"{data['num_files_train']:,} {data['format']} files, {size(data['total_bytes'])}, in {data['data_folder']}"
    return f"{run.summary['started_at']}. {read}."


def _words(summary: dict[str, Any]) -> Iterator[Words]:
    limited = summary.get("limited_by")
    if limited:
        sure = f" (confidence: {plain(limited['confidence'])})" if limited.get("confidence") is not None else ""
        yield Words(f"Limited by: {plain(limited['what'])}{sure}", points=[*limited["evidence"]])
        if limited.get("advice"):
            yield Words("What would help", points=limited["advice"])
    stragglers = summary.get("stragglers")
    if stragglers:
        yield Words("Stragglers", points=[_straggler(one) for one in stragglers])
    notes = [*summary["issues"], *(summary.get("telemetry") or {}).get("notes", [])]
    if notes:
        yield Words("What to know about these numbers", points=notes)


def _straggler(one: dict[str, Any]) -> str:
    who = f"host {one['host']}" if one["rank"] is None else f"rank {one['rank']} on {one['host']}"
    mainly = one["mainly"].replace("_", "-")
    return (
        f"{who}: {one['loss_percent']:.2f} points of AU; {one['steps']} steps late by {one['mean_delay_ms']:.1f} ms on "
        f"average, mainly {mainly} ({one['where']})"
    )


def _tables(run: Run) -> Iterator[Table]:
    summary = run.summary
    yield Table("Result", ("metric", "value", "what it is"), result_rows(summary), (1,))
    yield from _epochs(run.metrics)
    loss = summary.get("loss_percent")
    if loss:
        rows = [
            (key.replace("_", " "), f"{value:.2f} %") for key, value in flat(loss) if isinstance(value, int | float)
        ]
        yield Table("Where the loss went", ("part", "of all accelerator time"), rows, (1,))
    yield Table("How it was measured", (), [(key, plain(value)) for key, value in summary["how"].items()])
    yield from environment_tables(summary)
    every = [(key, _numbers(value), unit_of(key)) for key, value in flat(run.metrics)]
    yield Table("Every metric of summary.json", ("metrics.", "value", "unit"), every, folded=True)


def _epochs(metrics: dict[str, Any]) -> Iterator[Table]:
    shown = {
        "AU, %": "au_percent",
        "AU rules, %": "au_rules_percent",
        "samples/s": "samples_per_second",
        "loader MB/s": "app_mb_per_second",
        "device MB/s": "device_mb_per_second",
        "device / loader, %": "device_bytes_percent_of_app",
        "first batch, s": "time_to_first_batch_seconds",
    }
    found = {name: at(metrics, f"{key}.per_epoch") for name, key in shown.items()}
    found = {name: values for name, values in found.items() if values and any(one is not None for one in values)}
    if not found:
        return
    count = max(len(values) for values in found.values())
    rows = [(str(epoch + 1), *(number(values[epoch]) for values in found.values())) for epoch in range(count)]
    numbers = range(len(found) + 1)
    yield Table("Epochs", ("epoch", *found), rows, numbers, folded=count > _LONG_LIST)


def environment_tables(summary: dict[str, Any]) -> Iterator[Table]:
    """Yield what a run ran on: hosts, storage and devices."""
    environment = summary["environment"]
    hosts = environment.get("hosts", [])
    for host in hosts[:_HOSTS]:
        rows = [
            ("processor", plain(host["processor"])),
            ("cores", f"{host['cpu_usable']} usable of {host['cpu_count']}{_limited(host)}"),
            ("memory", size(host["memory_bytes"])),
            ("kernel", plain(host["kernel"])),
            ("Python", plain(host["python"])),
            ("dlemu", plain(host["dlemu"])),
            ("packages", ", ".join(f"{name} {version}" for name, version in host["packages"].items())),
        ]
        yield Table(f"Host {host['host']}", (), rows, folded=len(hosts) > 1)
    if len(hosts) > _HOSTS:
        yield Table(
            "More hosts", (), [(host["host"], plain(host["processor"])) for host in hosts[_HOSTS:]], folded=True
        )
    storage = environment.get("storage")
    if storage:
        yield Table("Storage of the dataset", (), [(name, _stored(name, value)) for name, value in flat(storage)])
    for device in (summary.get("telemetry") or {}).get("devices", []):
        rows = (
            [(name, _stored(name, value)) for name, value in flat(device)]
            if isinstance(device, dict)
            else [("", plain(device))]
        )
        yield Table(f"Device {device['name']}" if isinstance(device, dict) and "name" in device else "Device", (), rows)


def _limited(host: dict[str, Any]) -> str:
    limit = host.get("cpu_limit")  # runs of before it was asked have none
    return f", {limit:.1f} by a CPU limit (cgroup)" if limit else ""


def _stored(name: str, value: Any) -> str:
    return size(value) if name.endswith("_bytes") and isinstance(value, int) else _numbers(value)


def _numbers(value: Any) -> str:
    """Return a value as it is, a long list of them cut in the middle."""
    if not isinstance(value, list):
        return plain(value)
    shown = [plain(one) for one in value]
    if len(shown) > _LONG_LIST:
        shown = [*shown[:10], f"... {len(shown) - 20} more ...", *shown[-10:]]
    return ", ".join(shown)


def plain(value: Any) -> str:
    """Return any value of a summary as text."""
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} {plain(one)}" for key, one in value.items())
    if isinstance(value, list):
        return ", ".join(plain(one) for one in value) or "none"
    return str(value) or "none"
