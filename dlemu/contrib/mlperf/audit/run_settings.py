"""Reads a run's settings from Hydra's configuration files, and its printed numbers from summary.json."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from functools import partial
from typing import Any

from dlemu.config.duration import Duration, mean_seconds
from dlemu.contrib.mlperf.audit import tolerant
from dlemu.contrib.mlperf.audit.tolerant import integer, mapping, moment, number, numbers, sequence, text, value_at
from dlemu.contrib.mlperf.rules.core_config import canonical
from dlemu.contrib.mlperf.rules.known import Finding, by_rule
from dlemu.extend import UserError

CONFIG_FOLDERS = ("configs", "dlio_config", ".hydra", "")
"""Folders with Hydra's files in a run's folder: of v1.0, of mlpstorage, of DLIO alone, or the run's folder itself."""
Shipped = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Workload -> accelerator -> {batch_size, computation_time}, for the workloads that come with dlemu."""


def _from_file(key: str, read: Callable[[Any], Any], *, required: bool = False, default: Any = None) -> Any:
    """Declare a field with a file's value at a dotted key, converted by `read`; DLIO always writes a `required` one."""
    return field(default=default, metadata={"key": key, "read": read, "required": required})


_natural = partial(integer, minimum=0)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A run's settings; unknown ones are None."""

    workload: str | None = None
    accelerator: str | None = None
    batch_size: int | None = _from_file("reader.batch_size", integer)
    computation_seconds: float | None = None
    """Computation time of one step; the mean if the times are random."""
    is_random: bool = False
    """Whether the computation time of each step is drawn at random."""
    record_bytes: float | None = None
    num_files: int | None = _from_file("dataset.num_files_train", integer)
    samples_per_file: int | None = _from_file("dataset.num_samples_per_file", integer)
    epochs: int | None = _from_file("train.epochs", integer)
    total_training_steps: int | None = _from_file("train.total_training_steps", integer)
    read_threads: int | None = _from_file("reader.read_threads", _natural)
    """Reader processes or threads of each accelerator."""
    au_threshold_percent: float = 90.0
    exclude_start_steps: int = 1
    exclude_end_steps: int = 0
    config: Mapping[str, Any] | None = None
    """The `workload` part of config.yaml."""
    overrides: tuple[str, ...] | None = None
    """Overrides on the command line (`key=value`); None if they were not kept."""

    @property
    def workload_override(self) -> str:
        """Value of the override `workload=`, such as `unet3d_h100`; empty without that override."""
        overrides = (override.lstrip("+") for override in self.overrides or ())
        return next((each.partition("=")[2] for each in overrides if each.startswith("workload=")), "")

    @property
    def overridden_keys(self) -> tuple[str, ...]:
        """Keys of the workload that are overridden: `reader.odirect` for `++workload.reader.odirect=True`."""
        keys = [override.lstrip("+~").partition("=")[0] for override in self.overrides or ()]
        return tuple(key.removeprefix("workload.") for key in keys if key.startswith("workload."))


def read_setup(folder: str, shipped: Shipped, findings: list[Finding]) -> Setup:
    """Return the settings of the run in a folder; a finding reports each unreadable file or value."""
    overrides = _overrides(folder, findings)
    config = _config(folder, findings)
    setup = replace(setup_of(config or {}, findings), config=config, overrides=overrides)
    name, _, accelerator = setup.workload_override.rpartition("_")  # NAME_ACCELERATOR, as in unet3d_h100
    if accelerator in shipped.get(name, {}):
        return replace(setup, workload=setup.workload or name, accelerator=accelerator)
    return replace(setup, accelerator=_matching_accelerator(setup, shipped))


def _config(folder: str, findings: list[Finding]) -> Mapping[str, Any] | None:
    for path in _paths(folder, "config.yaml"):
        workload = mapping(tolerant.read_yaml(path, findings)).get("workload")
        if isinstance(workload, Mapping):
            return workload
    return None


def _overrides(folder: str, findings: list[Finding]) -> tuple[str, ...] | None:
    for path in _paths(folder, "overrides.yaml"):
        content = tolerant.read_yaml(path, findings)
        if isinstance(content, list):
            return tuple(override for override in content if isinstance(override, str))
    return hydra_overrides(folder, findings) or None


def hydra_overrides(folder: str, findings: list[Finding]) -> tuple[str, ...] | None:
    """Return the overrides in hydra.yaml; None without that file."""
    for path in _paths(folder, "hydra.yaml"):
        return tuple(map(str, sequence(value_at(tolerant.read_yaml(path, findings), "hydra.overrides.task"))))
    return None


def _paths(folder: str, name: str) -> list[str]:
    """Return the existing paths of one of Hydra's files in a run's folder."""
    return list(filter(os.path.isfile, (os.path.join(folder, subfolder, name) for subfolder in CONFIG_FOLDERS)))


def setup_of(config: Mapping[str, Any], findings: list[Finding]) -> Setup:
    """Return the settings in the `workload` part of a config.yaml."""
    dataset, model = mapping(config.get("dataset")), config.get("model")
    metric = mapping(value_at(config, "output.metric")) or mapping(config.get("metric"))
    seconds, is_random = _computation(mapping(config.get("train")), findings)
    threshold = number(value_at(config, "metric.au"))
    excluded: dict[str, Any] = {key: _natural(metric.get(key)) for key in ("exclude_start_steps", "exclude_end_steps")}
    config = {"reader": config.get("data_reader"), **config}  # DLIO of v0.5 has `data_reader`
    settings = {each.name: each.metadata["read"](value_at(config, each.metadata["key"])) for each in _declared(Setup)}
    return Setup(
        workload=text(model) or text(mapping(model).get("name")),
        computation_seconds=seconds,
        is_random=is_random,
        record_bytes=number(dataset.get("record_length_bytes", dataset.get("record_length"))),
        au_threshold_percent=90.0 if threshold is None else 100 * threshold,  # DLIO's default
        **settings,
        **{name: steps for name, steps in excluded.items() if steps is not None},
    )


def _declared(kind: type[Setup] | type[Printed]) -> list[Field[Any]]:
    return [each for each in fields(kind) if each.metadata]


def _computation(train: Mapping[str, Any], findings: list[Finding]) -> tuple[float | None, bool]:
    """Return the mean computation time of a step in seconds, and whether each step's time is random."""
    value = train.get("computation_time")
    if value is None:
        return None, False
    spread = number(train.get("computation_time_stdev"))
    try:
        duration = Duration.from_value(value, "train.computation_time")
    except UserError as error:
        findings.append(by_rule("config.value", str(error)))
        return None, False
    seconds = mean_seconds(duration)
    return (seconds if seconds > 0 else None), duration.type != "fixed" or bool(spread)


def complete_setup(
    setup: Setup, model: str | None, step_seconds: float | None, shipped: Shipped, findings: list[Finding]
) -> Setup:
    """Complete the settings of a run without config.yaml by its results and the official workload, with a finding.

    `model` is that of the summary, `step_seconds` the configured time of a step in the ranks' files. Only DLIO of v0.5
    wrote the model into the summary, and v0.5 had a single accelerator, the V100.
    """
    if setup.config is not None:
        return setup
    seconds = setup.computation_seconds or step_seconds
    setup = replace(setup, workload=setup.workload or model, computation_seconds=seconds)
    accelerator = setup.accelerator or _matching_accelerator(setup, shipped)
    if accelerator is None and seconds is None and "v100" in shipped.get(model or "", {}):
        accelerator = "v100"
    if accelerator is None:
        findings.append(by_rule("config.missing", "no config.yaml that can be read"))
        return setup
    official = shipped[str(setup.workload)][accelerator]
    seen = f"no config.yaml; batch size and step time are the official ones of {setup.workload} on {accelerator}"
    findings.append(by_rule("config.assumed", seen))
    return replace(
        setup,
        accelerator=accelerator,
        batch_size=integer(official.get("batch_size")),
        computation_seconds=seconds or number(official.get("computation_time")),
    )


def _matching_accelerator(setup: Setup, shipped: Shipped) -> str | None:
    """Return the one accelerator whose official step time for the workload is that of the run; else None."""
    if setup.computation_seconds is None or setup.is_random:
        return None
    officials = shipped.get(setup.workload or "", {})
    seconds_of = {name: number(official.get("computation_time")) for name, official in officials.items()}
    equal = [name for name, seconds in seconds_of.items() if seconds == setup.computation_seconds]
    return equal[0] if len(equal) == 1 else None


def _sum(value: object) -> float | None:
    summands = numbers(value)
    return sum(summands) if summands else None


def _tuple(value: object) -> tuple[float, ...]:
    return tuple(numbers(value) or ())


def _stamp(value: object) -> str | None:
    return str(value) if moment(value) else None


@dataclass(frozen=True, kw_only=True)
class Printed:
    """The numbers in a summary; those that it lacks are None.

    Since v1.0, DLIO has always written those declared as `required`: all 660 published summaries have them. A run
    can't be judged without those in `unusable`.
    """

    start: str | None = _from_file("start", _stamp, required=True)
    end: str | None = _from_file("end", _stamp, required=True)
    model: str | None = _from_file("model", text)
    """Written by DLIO of v0.5 alone."""
    accelerators: int | None = _from_file("num_accelerators", integer)
    hosts: int | None = _from_file("num_hosts", _natural, required=True)
    hostname: str | None = _from_file("hostname", text, required=True)
    epochs: int | None = _from_file("epochs", _natural, required=True)
    num_files: int | None = _from_file("num_files_train", _natural, required=True)
    samples_per_file: int | None = _from_file("num_samples_per_file", integer, required=True)
    memory_gib: float | None = _from_file("host_memory_GB", _sum, required=True)
    """Memory of all hosts together."""
    data_gib: float | None = _from_file("data_size_per_host_GB", number, required=True)
    """Size of the dataset divided by the number of hosts."""
    verdict: str | None = _from_file("metric.train_au_meet_expectation", text, required=True)
    """`success` or `fail`."""
    au_percent: float | None = _from_file("metric.train_au_mean_percentage", number)
    au_by_epoch: tuple[float, ...] = _from_file("metric.train_au_percentage", _tuple, required=True, default=())
    au_deviation: float | None = _from_file("metric.train_au_stdev_percentage", number, required=True)
    """Standard deviation of the epochs' AU, in points."""
    samples_per_second: float | None = _from_file("metric.train_throughput_mean_samples_per_second", number)
    samples_per_second_by_epoch: tuple[float, ...] = _from_file(
        "metric.train_throughput_samples_per_second", _tuple, required=True, default=()
    )
    samples_per_second_deviation: float | None = _from_file(
        "metric.train_throughput_stdev_samples_per_second", number, required=True
    )
    mib_per_second: float | None = _from_file("metric.train_io_mean_MB_per_second", number, required=True)
    mib_per_second_deviation: float | None = _from_file("metric.train_io_stdev_MB_per_second", number, required=True)
    memory_slots: int | None = None
    """Number of entries in `host_memory_GB`, of which there should be one for each host."""
    meminfo_gib: float | None = None
    """Memory of rank 0's host, from its /proc/meminfo."""
    checkpoints: bool = False
    """Whether the summary has metrics of checkpoints."""
    of_other_benchmark: bool = False
    """Whether a benchmark of MLPerf Storage v3.0 that does not use DLIO wrote the summary."""
    unusable: tuple[str, ...] = ()
    """Numbers needed to judge a training run that are missing or invalid, as phrases: `metric is missing`."""
    missing_keys: tuple[str, ...] = ()
    """Dotted keys that DLIO always writes, and that have no value in the summary."""


def read_printed(folder: str, findings: list[Finding]) -> Printed:
    """Return the numbers in a folder's summary.json; a finding reports a missing or damaged file."""
    path = os.path.join(folder, "summary.json")
    if not os.path.isfile(path):
        findings.append(by_rule("summary.missing", "there is no summary.json"))
        return Printed()
    broken: list[Finding] = []
    summary = tolerant.read_json(path, broken)
    findings += broken
    if not broken and not isinstance(summary, Mapping):
        findings.append(by_rule("summary.foreign", f"summary.json holds a {type(summary).__name__}"))
    return _printed(mapping(summary), findings)


def _printed(summary: Mapping[str, Any], findings: list[Finding]) -> Printed:
    metric = mapping(summary.get("metric"))
    slots = summary.get("host_memory_GB")
    numbers_by_field: dict[str, Any] = {}
    missing_keys = ["host_cpu_count"] if summary.get("host_cpu_count") in (None, [], "") else []
    is_by_dlio = integer(summary.get("num_accelerators")) is not None
    for declared in _declared(Printed):
        key, required = declared.metadata["key"], declared.metadata["required"]
        file_value = value_at(summary, key)
        value = declared.metadata["read"](file_value)
        if value or isinstance(value, float):
            numbers_by_field[declared.name] = value
        elif file_value in (None, [], ""):
            if required:
                missing_keys.append(key)
        elif required and is_by_dlio and value in (None, ()):
            findings.append(by_rule("summary.foreign", f"summary.json: {key} is {_quoted(file_value)}"))
    return Printed(
        **numbers_by_field,
        memory_slots=len(slots) if isinstance(slots, list) else None,
        meminfo_gib=meminfo_gib(mapping(summary.get("host_meminfo")).get("MemTotal")),
        unusable=tuple(_unusable(summary)),
        missing_keys=tuple(missing_keys),
        checkpoints=any(str(key).startswith(("save_checkpoint", "load_checkpoint")) for key in metric),
        of_other_benchmark=bool(summary) and not summary.keys() & {"metric", "num_accelerators", "epochs", "complete"},
    )


def meminfo_gib(value: object) -> float | None:
    """Return a size from /proc/meminfo, in kB with or without the unit, in GiB; None for any other value."""
    size = value.split()[0] if isinstance(value, str) and value.split() else value
    kilobytes = number(canonical(size))
    return None if kilobytes is None else kilobytes / 2**20


def _unusable(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield phrases on the numbers that a training summary lacks, and without which the run can't be judged."""
    metric = summary.get("metric")
    if metric is None:
        yield "metric is missing"
    elif not isinstance(metric, Mapping):
        yield f"metric is a {type(metric).__name__}"
    else:
        for key in ("train_au_mean_percentage", "train_throughput_mean_samples_per_second"):
            value = number(metric.get(key))
            if value is None or value < 0:
                yield f"metric.{key} is {_quoted(metric.get(key))}"
    if integer(summary.get("num_accelerators")) is None:
        yield f"num_accelerators is {_quoted(summary.get('num_accelerators'))}"


def _quoted(value: object) -> str:
    return "missing" if value is None else repr(value)[:60]
