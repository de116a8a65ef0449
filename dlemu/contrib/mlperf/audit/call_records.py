"""Reads the records of one call: its settings, metadata and summary, as mlpstorage, hydra and DLIO wrote them.

A *call* is one invocation of mlpstorage: a run, or another phase (datasize, datagen). All benchmarks and phases have
the same records; a subclass for each benchmark adds the measurements.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple

from dlemu.contrib.mlperf.audit.run_settings import Setup, hydra_overrides, read_setup
from dlemu.contrib.mlperf.audit.tolerant import integer, mapping, moment, numbers, read_json, sequence, text, value_at
from dlemu.contrib.mlperf.rules.known import Finding
from dlemu.contrib.mlperf.rules.training import GIB

METADATA = "_metadata.json"
SEPARATION = "fs_separation.json"  # mlpstorage v3.0's record of whether data and results share a file system
COLLECTED = os.path.join("collector-staging", "cluster_info.json")  # v3.0's facts about every host: /proc/meminfo, ...
FILE_STORAGES = ("local_fs", "direct_fs")  # `storage.storage_type` of files; v3.0 sets the second for O_DIRECT
PHASES = ("datasize", "datagen", "run")
STAMP_FORMAT = "%Y%m%d_%H%M%S"  # how mlpstorage names the folder of a call: the time when it began
_SECTOR_BYTES = 512  # the unit of /proc/diskstats, whatever sectors the device has
_PARTITION = re.compile(r"^(?:(?:nvme\d+n\d+|mmcblk\d+)p\d+|[shv]d[a-z]+\d+)$")
_STACKED = re.compile(r"^(?:loop|ram|zram|sr|dm-|md)\d*")
"""Devices that pass their requests on to other devices, which are counted themselves."""


@dataclass(frozen=True, kw_only=True)
class CallRecords:
    """The records of one call; those that are missing or can't be read are empty."""

    path: str
    phase: str = "run"
    files: tuple[str, ...] = ()
    setup: Setup = field(default_factory=Setup)
    """DLIO's configuration; kv_cache has none."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """mlpstorage's `*_metadata.json`."""
    summary: Mapping[str, Any] = field(default_factory=dict)
    broken: tuple[Finding, ...] = ()
    """Findings on files that can't be read."""

    @property
    def name(self) -> str:
        """Name of the folder: a time stamp such as `20251121_134501`."""
        return os.path.basename(self.path)

    @property
    def stamp(self) -> datetime | None:
        return stamp_of(self.name)

    @property
    def start(self) -> datetime | None:
        """Start by summary.json."""
        return moment(self.summary.get("start"))

    @property
    def end(self) -> datetime | None:
        """End by summary.json."""
        return moment(self.summary.get("end"))

    @property
    def args(self) -> Mapping[str, Any]:
        """The tool's command-line arguments, by the metadata."""
        return mapping(self.metadata.get("args"))

    @property
    def workload(self) -> Mapping[str, Any]:
        """All settings of the workload, by config.yaml or else by the metadata."""
        return self.setup.config or self.parameters

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The settings of the workload by the metadata."""
        return mapping(self.metadata.get("parameters"))

    @property
    def commands(self) -> list[str]:
        """The commands of kv_cache's ranks, by the metadata."""
        files = sequence(self.metadata.get("command_output_files"))
        return [command for file in files if (command := text(value_at(file, "command")))]

    @property
    def all_commands(self) -> list[str]:
        """The commands of kv_cache's ranks, the tool's command, and the user's MPI options, by the metadata."""
        mpi_params = self.args.get("mpi_params")
        options = mpi_params if isinstance(mpi_params, list) else [mpi_params]
        return [*self.commands, *filter(None, map(text, [self.metadata.get("executed_command"), *options]))]

    @property
    def hosts(self) -> int | None:
        return integer(self.summary.get("num_hosts"))

    @property
    def memory_gib(self) -> float | None:
        memory_gib = numbers(self.summary.get("host_memory_GB"))
        return sum(memory_gib) if memory_gib else None

    def section(self, name: str) -> Mapping[str, Any]:
        """Return a section of the workload's settings, by config.yaml or else by the metadata."""
        return mapping(value_at(self.setup.config, name)) or mapping(self.parameters.get(name))

    @cached_property
    def collected_hosts(self) -> Mapping[str, Any]:
        """Host name -> facts that mlpstorage collected about the host."""
        return mapping(self.read(COLLECTED))

    @cached_property
    def separation(self) -> Mapping[str, Any]:
        """mlpstorage's record of whether data and results share a file system."""
        return mapping(self.read(SEPARATION))

    @cached_property
    def hydra_overrides(self) -> tuple[str, ...] | None:
        """The overrides in hydra.yaml; None without that file."""
        return hydra_overrides(self.path, [])

    @property
    def on_object_store(self) -> bool:
        storage_type = self.section("storage").get("storage_type")
        return storage_type not in (None, *FILE_STORAGES) or self.args.get("data_access_protocol") == "object"

    def read(self, name: str) -> Any:
        """Return the content of a JSON file below the folder; None if it is missing or can't be read."""
        path = os.path.join(self.path, name)
        return read_json(path, []) if os.path.isfile(path) else None


def read_call_records(path: str, setup: Setup | None = None, phase: str = "run") -> CallRecords:
    """Read the records in a folder; `setup` is its configuration if that has been read already."""
    broken: list[Finding] = []
    files = sorted(next(os.walk(path), ("", [], []))[2])  # empty if it can't be listed

    def content(file: str) -> Mapping[str, Any]:
        return mapping(read_json(os.path.join(path, file), broken))

    return CallRecords(
        path=path,
        phase=phase,
        files=tuple(files),
        setup=read_setup(path, {}, broken) if setup is None else setup,
        metadata=next((content(file) for file in files if file.endswith(METADATA)), {}),
        summary=content("summary.json") if "summary.json" in files else {},
        broken=tuple(broken),
    )


def stamp_of(name: str) -> datetime | None:
    """Return the time that a folder's name states, as mlpstorage names folders; None for any other name."""
    try:
        return datetime.strptime(name, STAMP_FORMAT)
    except ValueError:
        return None


class DeviceWork(NamedTuple):
    """The work of one block device of a host between the start and the end of a call."""

    read_gib: float
    written_gib: float
    busy_seconds: float

    @property
    def moved_gib(self) -> float:
        return self.read_gib + self.written_gib


def device_work(metadata: Mapping[str, Any]) -> dict[str, DeviceWork]:
    """Return `host:device` -> its work, for each device with counters of the start and of the end in the metadata.

    Partitions and stacked devices are left out, as the devices below them count the same requests.
    """
    before = _counters(value_at(metadata, "cluster_snapshots.start.hosts"))
    after = _counters(value_at(metadata, "cluster_snapshots.end.hosts"))
    work = {}
    for device in before.keys() & after.keys():
        read, written, busy_ms = (end - start for start, end in zip(before[device], after[device], strict=True))
        work[device] = DeviceWork(read * _SECTOR_BYTES / GIB, written * _SECTOR_BYTES / GIB, busy_ms / 1e3)
    return work


def _counters(hosts: object) -> dict[str, list[float]]:
    """Return `host:device` -> sectors read, sectors written and busy milliseconds since the host booted."""
    counters = {}
    for host in map(mapping, sequence(hosts)):
        for disk in map(mapping, sequence(host.get("disks"))):
            name = text(disk.get("device_name"))
            values = numbers([disk.get(key) for key in ("sectors_read", "sectors_written", "time_doing_ios_ms")])
            if name and values and not _PARTITION.match(name) and not _STACKED.match(name):
                counters[f"{host.get('hostname')}:{name}"] = values
    return counters
