"""Reads a run's settings, from the configuration files that Hydra kept, and its printed numbers, from summary.json."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from functools import partial
from typing import Any

from dlemu.config.duration import Duration, mean_seconds
from dlemu.contrib.mlperf.audit import tolerant
from dlemu.contrib.mlperf.audit.tolerant import integer, mapping, moment, number, numbers, text, value_at
from dlemu.contrib.mlperf.rules.core_config import canonical
from dlemu.contrib.mlperf.rules.known import Finding, by_rule
from dlemu.extend import UserError

CONFIG_FOLDERS = ("configs", "dlio_config", ".hydra", "")
"""Folders of Hydra's files in a run's folder: of v1.0, of mlpstorage, of DLIO alone, and the run's folder itself."""
Shipped = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Workload -> accelerator -> {batch_size, computation_time}, for the workloads that come with dlemu."""


def _at(key: str, read: Callable[[Any], Any], *, required: bool = False, default: Any = None) -> Any:
    """Declare a field for a file's value at a dotted key: what converts it, and whether DLIO always writes it."""
    return field(default=default, metadata={"key": key, "read": read, "required": required})


_natural = partial(integer, least=0)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A run's settings; None for those that are not known."""

    workload: str | None = None
    accelerator: str | None = None
    batch_size: int | None = _at("reader.batch_size", integer)
    computation_seconds: float | None = None
    """Computation time of one step; the mean if the times are random."""
    is_random: bool = False
    """Whether the computation time of each step is drawn at random."""
    record_bytes: float | None = None
    num_files: int | None = _at("dataset.num_files_train", integer)
    samples_per_file: int | None = _at("dataset.num_samples_per_file", integer)
    epochs: int | None = _at("train.epochs", integer)
    total_training_steps: int | None = _at("train.total_training_steps", integer)
    read_threads: int | None = _at("reader.read_threads", _natural)
    """Reader processes or threads of each accelerator."""
    au_threshold_percent: float = 90.0
    exclude_start_steps: int = 1
    exclude_end_steps: int = 0
    config: Mapping[str, Any] | None = None
    """The `workload` part of config.yaml."""
    overrides: tuple[str, ...] | None = None
    """Overrides on the command line (`key=value`); None where they were not kept."""

    @property
    def chosen(self) -> str:
        """The workload and its accelerator as the override `workload=` names them; empty without one."""
        words = (word.lstrip("+") for word in self.overrides or ())
        return next((word.partition("=")[2] for word in words if word.startswith("workload=")), "")


def read_setup(folder: str, shipped: Shipped, findings: list[Finding]) -> Setup:
    """Return the settings of the run in a folder; unreadable files and values of the wrong type become findings."""
    overrides = _overrides(folder, findings)
    config = _config(folder, findings)
    setup = replace(setup_of(config or {}, findings), config=config, overrides=overrides)
    return _with_accelerator(setup, shipped)


def _config(folder: str, findings: list[Finding]) -> Mapping[str, Any] | None:
    for path in _paths(folder, "config.yaml"):
        workload = mapping(tolerant.read_yaml(path, findings)).get("workload")
        if isinstance(workload, Mapping):
            return workload
    return None


def _overrides(folder: str, findings: list[Finding]) -> tuple[str, ...] | None:
    for path in _paths(folder, "overrides.yaml"):
        words = tolerant.read_yaml(path, findings)
        if isinstance(words, list):
            return tuple(word for word in words if isinstance(word, str))
    return hydra_overrides(folder, findings) or None


def hydra_overrides(folder: str, findings: list[Finding]) -> tuple[str, ...] | None:
    """Return the overrides in hydra.yaml; None without that file."""
    for path in _paths(folder, "hydra.yaml"):
        overrides = value_at(tolerant.read_yaml(path, findings), "hydra.overrides.task")
        return tuple(map(str, overrides)) if isinstance(overrides, list) else ()
    return None


def _paths(folder: str, name: str) -> list[str]:
    """Return where a file of hydra's is, below a run's folder."""
    paths = [os.path.join(folder, subfolder, name) for subfolder in CONFIG_FOLDERS]
    return [path for path in paths if os.path.isfile(path)]


def setup_of(config: Mapping[str, Any], findings: list[Finding]) -> Setup:
    """Return the settings in the `workload` part of a config.yaml."""
    dataset, model = mapping(config.get("dataset")), config.get("model")
    metric = mapping(value_at(config, "output.metric")) or mapping(config.get("metric"))
    seconds, is_random = _computation(mapping(config.get("train")), findings)
    threshold = number(value_at(config, "metric.au"))
    excluded: dict[str, Any] = {key: _natural(metric.get(key)) for key in ("exclude_start_steps", "exclude_end_steps")}
    config = {"reader": config.get("data_reader"), **config}  # as DLIO of v0.5 calls it
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
    """Return the (mean) computation seconds of a step, and whether they are random."""
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


def _with_accelerator(setup: Setup, shipped: Shipped) -> Setup:
    """Fill in workload and accelerator: from the override `workload=NAME_ACCELERATOR`, or from the time of a step."""
    name, _, accelerator = setup.chosen.rpartition("_")
    if accelerator in shipped.get(name, {}):
        return replace(setup, workload=setup.workload or name, accelerator=accelerator)
    return replace(setup, accelerator=_matching(setup, shipped))


def completed(
    setup: Setup, shipped: Shipped, *, workload: str | None, step_seconds: float | None, findings: list[Finding]
) -> Setup:
    """Complete the settings of a run without config.yaml from its results and the official workload, with a finding.

    `workload` is the model in the summary, `step_seconds` the configured time of a step in the ranks' files. Only DLIO
    of v0.5 put the model into the summary, and v0.5 had one accelerator, the V100.
    """
    if setup.config is not None:
        return setup
    seconds = setup.computation_seconds or step_seconds
    setup = replace(setup, workload=setup.workload or workload, computation_seconds=seconds)
    accelerator = setup.accelerator or _matching(setup, shipped)
    if accelerator is None and seconds is None and _V05_ACCELERATOR in shipped.get(workload or "", {}):
        accelerator = _V05_ACCELERATOR
    if accelerator is None:
        findings.append(by_rule("config.missing", "no config.yaml that can be read"))
        return setup
    pair = shipped[str(setup.workload)][accelerator]
    seen = f"no config.yaml; batch size and step time are the official ones of {setup.workload} on {accelerator}"
    findings.append(by_rule("config.assumed", seen))
    return replace(
        setup,
        accelerator=accelerator,
        batch_size=integer(pair.get("batch_size")),
        computation_seconds=seconds or number(pair.get("computation_time")),
    )


_V05_ACCELERATOR = "v100"


def _matching(setup: Setup, shipped: Shipped) -> str | None:
    """Return the accelerator whose official step time for this workload equals that of the run, if exactly one does."""
    if setup.computation_seconds is None or setup.is_random:
        return None
    pairs = shipped.get(setup.workload or "", {})
    equal = [name for name, pair in pairs.items() if number(pair.get("computation_time")) == setup.computation_seconds]
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
    """The numbers in a summary; None for those that it lacks.

    DLIO has written those declared with `required` since v1.0: all 660 published summaries have them. What keeps a
    run from being judged at all is in `unusable`.
    """

    start: str | None = _at("start", _stamp, required=True)
    end: str | None = _at("end", _stamp, required=True)
    model: str | None = _at("model", text)
    """DLIO of v0.5 alone writes it."""
    accelerators: int | None = _at("num_accelerators", integer)
    hosts: int | None = _at("num_hosts", _natural, required=True)
    hostname: str | None = _at("hostname", text, required=True)
    epochs: int | None = _at("epochs", _natural, required=True)
    num_files: int | None = _at("num_files_train", _natural, required=True)
    samples_per_file: int | None = _at("num_samples_per_file", integer, required=True)
    memory_gib: float | None = _at("host_memory_GB", _sum, required=True)
    """Memory of all hosts together."""
    data_gib: float | None = _at("data_size_per_host_GB", number, required=True)
    """Size of the dataset divided by the number of hosts."""
    verdict: str | None = _at("metric.train_au_meet_expectation", text, required=True)
    """`success` or `fail`."""
    au_percent: float | None = _at("metric.train_au_mean_percentage", number)
    au_by_epoch: tuple[float, ...] = _at("metric.train_au_percentage", _tuple, required=True, default=())
    au_deviation: float | None = _at("metric.train_au_stdev_percentage", number, required=True)
    """Standard deviation of the epochs' AU, in points."""
    samples_per_second: float | None = _at("metric.train_throughput_mean_samples_per_second", number)
    samples_per_second_by_epoch: tuple[float, ...] = _at(
        "metric.train_throughput_samples_per_second", _tuple, required=True, default=()
    )
    samples_per_second_deviation: float | None = _at(
        "metric.train_throughput_stdev_samples_per_second", number, required=True
    )
    mib_per_second: float | None = _at("metric.train_io_mean_MB_per_second", number, required=True)
    mib_per_second_deviation: float | None = _at("metric.train_io_stdev_MB_per_second", number, required=True)
    memory_slots: int | None = None
    """Number of entries in `host_memory_GB`, which has one for each host."""
    meminfo_gib: float | None = None
    """Memory of rank 0's host, from its /proc/meminfo."""
    checkpoints: bool = False
    """Whether the summary has metrics of checkpoints."""
    of_other_benchmark: bool = False
    """Whether another benchmark wrote the summary: some of MLPerf Storage v3.0 do not use DLIO."""
    unusable: tuple[str, ...] = ()
    """Required numbers of a training run that are missing or not numbers, each as a phrase: `metric is missing`."""
    missing_keys: tuple[str, ...] = ()
    """Dotted keys for which the summary has no value, though DLIO always writes one."""


def read_printed(folder: str, findings: list[Finding]) -> Printed:
    """Return the numbers of a folder's summary.json; a missing or damaged one becomes a finding."""
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
    metric, slots = mapping(summary.get("metric")), summary.get("host_memory_GB")
    numbers_by_field: dict[str, Any] = {}
    missing_keys = ["host_cpu_count"] if summary.get("host_cpu_count") in (None, [], "") else []
    is_training = integer(summary.get("num_accelerators")) is not None  # DLIO's, and not another benchmark's
    for each in _declared(Printed):
        key, required = each.metadata["key"], each.metadata["required"]
        in_file = value_at(summary, key)
        value = each.metadata["read"](in_file)
        if value or isinstance(value, float):
            numbers_by_field[each.name] = value
        elif in_file in (None, [], ""):
            if required:
                missing_keys.append(key)
        elif required and is_training and value in (None, ()):
            findings.append(by_rule("summary.foreign", f"summary.json: {key} is {_shown(in_file)}"))
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
    """Return a size from /proc/meminfo in GiB; it is in kB, with or without the unit."""
    size = value.split()[0] if isinstance(value, str) and value.split() else value
    kilobytes = number(canonical(size))
    return None if kilobytes is None else kilobytes / 2**20


def _unusable(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield which numbers a training summary lacks that are needed to judge the run."""
    metric = summary.get("metric")
    if not isinstance(metric, Mapping):
        yield f"metric is {'missing' if metric is None else f'a {type(metric).__name__}'}"
    else:
        for key in ("train_au_mean_percentage", "train_throughput_mean_samples_per_second"):
            value = number(metric.get(key))
            if value is None or value < 0:
                yield f"metric.{key} is {_shown(metric.get(key))}"
    if integer(summary.get("num_accelerators")) is None:
        yield f"num_accelerators is {_shown(summary.get('num_accelerators'))}"


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)[:60]
