"""Rehearses v3.0's kv_cache: three trials of each of the three options, the tool's files, and a check of them.

Formats and names of the files follow mlpstorage_py/benchmarks/kvcache.py and kv_cache_benchmark
(https://github.com/mlcommons/storage); the ranks' numbers are by the tool's formulas (`published`).
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean
from typing import Any

import numpy as np
import psutil

from datagen import owned
from dlemu import __version__
from dlemu.config import digest
from dlemu.config.published import without_secrets
from dlemu.config.schema import Workload
from dlemu.contrib.kvcache.analyse import RunRows
from dlemu.contrib.kvcache.job import read
from dlemu.contrib.kvcache.model import Model
from dlemu.contrib.kvcache.official import CLASSES, OPTIONS, with_option_defaults
from dlemu.contrib.kvcache.published import RankNumbers, rank_numbers
from dlemu.contrib.kvcache.settings import KvSettings
from dlemu.contrib.kvcache.summary import Official
from dlemu.contrib.mlperf.audit.kv_leaf import OPTIONS as OPTION_NUMBERS
from dlemu.contrib.mlperf.audit.kv_leaf import SECTOR_BYTES
from dlemu.contrib.mlperf.check.judge import REHEARSAL, TREE, Checked, check_folder
from dlemu.contrib.mlperf.check.submission_tree import METADATA, STAMP_FORMAT
from dlemu.contrib.mlperf.rehearsal import NOTE
from dlemu.contrib.mlperf.rehearsal.edition_tree import README, write_json, write_system
from dlemu.contrib.mlperf.rehearsal.rehearse import check_names
from dlemu.contrib.mlperf.rules.training import Division
from dlemu.extend import DlemuError, Planned, RunBegan, RunEnded, RunList, RunsPlanned, UserError, run_train, write_text
from dlemu.results.trademark import TRADEMARK
from dlemu.runner.child_run import LOG

EDITION = "3.0"
TRIALS, SEED, PAUSE_SECONDS = 3, 42, 90
"""Required by CLOSED (Rules.md, 6.3.2.1)."""
_MODEL_FOLDER = "llama3.1-8b"
"""Name of the model's folder, in which the tool puts all three options, whatever their models."""
_TARGETS_MS = {"interactive": 50, "responsive": 100, "batch": 1000}
"""Service class -> the tool's target for the 95th percentile of latency."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One finished run (trial) of one option."""

    label: str
    option: int
    trial: int
    stamp: str
    folder: str
    """Result folder of `dlemu kvcache`, relative to the rehearsal's folder."""
    official: Official | None = None
    failure: str | None = None


@dataclass(frozen=True, kw_only=True)
class KvQuestion:
    """What a rehearsal was asked for; it can be continued only with the same."""

    overrides: tuple[str, ...]
    launcher: str
    division: str
    organisation: str
    system: str
    hosts: int
    settings_digest: str
    """Of all settings, those in the workload's file included."""


@dataclass(frozen=True, kw_only=True)
class KvRecord:
    """Content of rehearsal.json."""

    schema_version: int = 1
    rehearsal: str = NOTE
    complete: bool
    edition: str = EDITION
    division: str
    kv_cache: str
    """When the rehearsal began, which names its folder in the tree."""
    disks: tuple[dict[str, Any], ...]
    """The kernel's disk counters at that time."""
    question: KvQuestion
    trials: tuple[Trial, ...]


@dataclass(frozen=True, kw_only=True)
class KvRehearsed:
    """A finished rehearsal."""

    trials: tuple[Trial, ...]
    checked: Checked


@dataclass(frozen=True, kw_only=True)
class KvRehearsal:
    """One rehearsal of kv_cache."""

    workload: Workload
    division: Division
    organisation: str
    system: str
    hosts: int
    memory_gib_per_host: float
    words: tuple[str, ...]
    """Overrides for every run."""
    folder: str
    launcher: str
    """Command that starts each run, with `{ranks}` for the number of ranks. Empty: all ranks on this host."""
    config_dir: str | None
    report: Callable[[str], None]
    sleep: Callable[[float], object] = time.sleep

    edition_name, workload_name, resumes = EDITION, "kv_cache", True

    @property
    def settings(self) -> KvSettings:
        return with_option_defaults(self.workload.section(KvSettings))

    @property
    def pause_seconds(self) -> int:
        """Pause between options, which CLOSED requires; 0 in OPEN."""
        return PAUSE_SECONDS if self.division == "closed" else 0

    @property
    def tree(self) -> str:
        """Root of the tree in the edition's layout."""
        return os.path.join(self.folder, TREE)

    @property
    def submission(self) -> str:
        return os.path.join(self.tree, self.division, self.organisation)

    def leaf(self, stamp: str) -> str:
        """Return the folder in the tree that holds all runs of the rehearsal."""
        return os.path.join(self.submission, "results", self.system, "kv_cache", _MODEL_FOLDER, "run", stamp)

    def run(self) -> KvRehearsed:
        """Do the missing runs, write the tree and check it.

        Finished runs are kept: calling it again continues.

        Raises:
            UserError: settings or names are wrong; found before the first run.
            DlemuError, Interrupted: a run failed, or a signal stopped it.
        """
        check_names(self.organisation, self.system)
        trials = Trials(self)
        trials.resume()
        for line in self._opening_lines(trials):
            self.report(line)
        record = trials.run_missing()
        self._write_tree(record)
        return KvRehearsed(trials=record.trials, checked=check_folder(self.folder))

    def _opening_lines(self, trials: Trials) -> list[str]:
        runs, seconds = len(trials.missing), self.settings.seconds
        lines = [
            f"rehearsal of MLPerf Storage v{EDITION} {self.division.upper()}: kv_cache, {self.workload.ranks} ranks; "
            f"{runs} runs of {seconds:g} s, longer where requests are still running",
            NOTE,
        ]
        if self.division == "closed" and seconds != 300:
            lines.append(f"kv.seconds is {seconds:g}: CLOSED requires 300, so the result will not be valid")
        return [*lines, f"results: {self.folder}"]

    def _write_tree(self, record: KvRecord) -> None:
        leaf = self.leaf(record.kv_cache)
        # If an earlier attempt was interrupted here, its files have the same names and are replaced.
        parts: dict[int, list[list[RankNumbers]]] = {option: [] for option in OPTION_NUMBERS}
        for trial in record.trials:
            run = os.path.join(self.folder, trial.folder)
            seen = RunRows(read(run))
            ranks = rank_numbers(seen.prompts, seen.begins, seen.settings.seconds)
            parts[trial.option].append(ranks)
            for number, rank in enumerate(ranks):
                below = os.path.join(leaf, f"option_{trial.option}", f"trial_{trial.trial}", f"rank_{number}")
                write_json(below, f"kvcache_results_{trial.stamp}.json", rank_file(rank, seen.settings, SEED + number))
            name = f"kvcache_opt{trial.option}_trial{trial.trial}_{record.kv_cache}"
            shutil.copyfile(os.path.join(run, LOG), os.path.join(leaf, f"{name}.stdout.log"))
            write_text(leaf, f"{name}.stderr.log", f"both streams are in {name}.stdout.log\n")
        write_json(leaf, "summary.json", self._summary(record, parts))
        write_json(leaf, f"kv_cache_{record.kv_cache}{METADATA}", self._metadata(record, leaf))
        write_json(leaf, "kv_cache_cluster_info.json", {"rehearsal": NOTE, **_host_facts(_disk_counters())})
        write_system(self.submission, self.system, EDITION, self.hosts, self.memory_gib_per_host)
        layout = f"Written by dlemu {__version__} in the layout of a kv_cache result of MLPerf Storage v{EDITION}."
        write_text(self.tree, README, f"{NOTE}\n\n{layout}\n\n{TRADEMARK}\n")

    def _summary(self, record: KvRecord, parts: dict[int, list[list[RankNumbers]]]) -> dict[str, Any]:
        ranks = self.workload.ranks
        return {
            "rehearsal": NOTE,
            "schema_version": "1.0",
            "run_datetime": record.kv_cache,
            "npernode": max(1, ranks // self.hosts),
            "host_count": self.hosts,
            "total_ranks": ranks,
            "trials_per_option": TRIALS,
            "options": {str(option): option_sums(option, trials) for option, trials in parts.items()},
            "partial_failure": False,
            "trial_failures": {},
        }

    def _metadata(self, record: KvRecord, leaf: str) -> dict[str, Any]:
        folder, ranks = self.settings.folder, self.workload.ranks
        known = {"model": _MODEL_FOLDER, "cache_dir": folder}
        began = datetime.strptime(record.kv_cache, STAMP_FORMAT)
        return {
            "rehearsal": NOTE,
            "made_by": f"dlemu {__version__}",
            "edition": EDITION,
            "benchmark_type": "kv_cache",
            "command": "run",
            "run_datetime": record.kv_cache,
            "verification": self.division,
            "num_processes": ranks,
            "accelerator": None,
            "parameters": {**known, "num_users": self.settings.users, "duration": self.settings.seconds},
            "override_parameters": {},
            **known,
            "args": {
                **known,
                "mode": self.division,
                "benchmark": "kvcache",
                "command": "run",
                "num_processes": ranks,
                "num_client_hosts": self.hosts,
                "results_dir": os.path.abspath(self.tree),
                "trials": TRIALS,
                "seed": SEED,
                "inter_option_delay": self.pause_seconds,
                "config_file": None,
                "data_access_protocol": "file",
            },
            "cluster_snapshots": {"start": _host_facts(record.disks), "end": _host_facts(_disk_counters())},
            "command_output_files": [{"command": self._command(option, leaf)} for option in OPTION_NUMBERS],
            "invocation_start_time": began.isoformat(),
            "invocation_end_time": datetime.now().isoformat(timespec="seconds"),
            "exit_status": 0,
        }

    def _command(self, option: int, leaf: str) -> str:
        """Return a command line with the option's flags as the tool spells them; `dlemu kvcache` is what ran."""
        row, settings = OPTIONS[option], self.option_settings(option)
        flags = {
            "rank-output-base": f"{leaf}/option_{option}/trial_{TRIALS - 1}",
            "rank-cache-base": settings.folder,
            "seed-base": SEED,
            "model": row.model,
            "num-users": settings.users,
            "duration": f"{settings.seconds:g}",
            "gpu-mem-gb": 0,
            "cpu-mem-gb": row.memory_gib,
            "max-concurrent-allocs": row.allocations,
            "generation-mode": "none",
        }
        return "dlemu kvcache " + " ".join(f"--{name} {value}" for name, value in flags.items())

    def option_settings(self, option: int) -> KvSettings:
        """Return the settings that an option runs with."""
        from dlemu.config import load

        return with_option_defaults(load(self.option_words(option), config_dir=self.config_dir).section(KvSettings))

    def option_words(self, option: int) -> list[str]:
        """Return the overrides for an option's runs."""
        return [*self.words, f"kv.option={option}"]


class Trials(RunList[tuple[int, int], Trial, KvRecord]):
    """The nine runs of a rehearsal: 3 options x 3 trials. A failed one leaves no record, so it is run again."""

    file, noun, runs_in, answer_type, shown_by = REHEARSAL, "rehearsal", "trials", KvRecord, "mlperf check"

    def __init__(self, rehearsal: KvRehearsal) -> None:
        planned = [
            Planned(
                what=(option, trial),
                name=f"option-{option}-trial-{trial}",
                label=f"option {option}, trial {trial}",
                settings={"kv.option": str(option)},
            )
            for option in OPTION_NUMBERS
            for trial in range(TRIALS)
        ]
        question = KvQuestion(
            overrides=tuple(without_secrets(rehearsal.words)),
            launcher=rehearsal.launcher,
            division=rehearsal.division,
            organisation=rehearsal.organisation,
            system=rehearsal.system,
            hosts=rehearsal.hosts,
            settings_digest=digest([rehearsal.workload]),
        )
        super().__init__(rehearsal.folder, question, planned, self._report_event)
        self._rehearsal = rehearsal
        self._stamp, self._disks = datetime.now().strftime(STAMP_FORMAT), _disk_counters()

    def resume(self) -> None:
        super().resume()
        saved = self.read()
        if saved is not None:
            self._stamp, self._disks = saved.kv_cache, saved.disks

    def answer(self, *, complete: bool) -> KvRecord:
        """Return the record of the trials so far."""
        return KvRecord(
            complete=complete,
            division=self._rehearsal.division,
            kv_cache=self._stamp,
            disks=self._disks,
            question=self.question,
            trials=tuple(self.runs),
        )

    def is_of(self, run: Trial, planned: Planned[tuple[int, int]]) -> bool:
        """Return whether a trial on record is the planned one."""
        return (run.option, run.trial) == planned.what

    def make_folder(self, planned: Planned[tuple[int, int]]) -> str:
        """Create and return the folder of a run."""
        return owned.fresh_folder(os.path.join(self.folder, "runs"), planned.name)

    def start(self, planned: Planned[tuple[int, int]], folder: str) -> Trial:
        """Do one run; the first trial of an option comes after a pause."""
        option, trial = planned.what
        rehearsal = self._rehearsal
        if trial == 0 and option > 1:
            rehearsal.sleep(rehearsal.pause_seconds)
        options = ["--config-dir", rehearsal.config_dir] if rehearsal.config_dir else []
        launcher = shlex.split(rehearsal.launcher.format(ranks=rehearsal.workload.ranks))
        stamp = datetime.now().strftime(STAMP_FORMAT)
        # CLOSED requires the same seed in all trials: they differ only by how fast the storage answers.
        words = [*options, *rehearsal.option_words(option), f"kv.seed={SEED}", "output.report=false"]
        try:
            run_train(words, folder, lambda: None, launcher, "kvcache")
        except UserError:
            owned.remove_claimed(folder)
            raise
        official = read(folder).summary.official
        where = os.path.relpath(folder, self.folder)
        return Trial(label=planned.label, option=option, trial=trial, stamp=stamp, folder=where, official=official)

    def failed(self, planned: Planned[tuple[int, int]], folder: str, error: DlemuError) -> Trial | None:
        """Record nothing, so that the same command runs it again."""
        return None

    def _report_event(self, event: RunsPlanned | RunBegan | RunEnded[Trial, KvRecord]) -> None:
        match event:
            case RunBegan():
                self._rehearsal.report(f"{event.label} ...")
            case RunEnded(run=trial) if trial.official is not None:
                self._rehearsal.report(f"{trial.label}: {rates(trial.official)}")


def rates(official: Official) -> str:
    """Return a run's rates, by the tool's formula and true ones, as text."""
    return (
        f"read {official.read_gib_per_second:.3g}, write {official.write_gib_per_second:.3g} GiB/s by the tool's "
        f"formula; true {official.true_read_gib_per_second:.3g} and {official.true_write_gib_per_second:.3g} "
        f"over {official.true_window_seconds:.1f} s"
    )


def rank_file(rank: RankNumbers, settings: KvSettings, seed: int) -> dict[str, Any]:
    """Return the tool's result file of a rank, as far as it was measured; its GB are GiB."""
    latencies, storage_seconds = rank.latencies_seconds, rank.storage_seconds
    classes = {}
    for priority, name in CLASSES.items():
        own = rank.done[rank.done["priority"] == priority]
        own_ms = (own["computed_ns"] - own["arrived_ns"]) / 1e6
        met = float((own_ms <= _TARGETS_MS[name]).mean()) if len(own) else 0.0
        classes[name] = {
            "total_requests": len(own),
            "latency_ms": _latency_ms(own_ms / 1e3) | {"max": float(own_ms.max(initial=0.0))},
            "sla": {
                "target_p95_ms": _TARGETS_MS[name],
                "compliance": met,
                "met": met >= 0.95,
            },  # the target is for the p95
        }
    token_bytes = Model(settings).token_bytes / settings.shrink
    stats = {
        "tier_gpu_kv_bytes_read_gb": 0.0,
        "tier_cpu_kv_bytes_read_gb": rank.memory_gib,
        "tier_storage_kv_bytes_read_gb": rank.read_gib,
        "tier_storage_kv_bytes_written_gb": rank.written_gib,
        "tier_storage_read_bandwidth_gbps": rank.read_gib / rank.clock_seconds,
        "tier_storage_write_bandwidth_gbps": rank.written_gib / rank.clock_seconds,
        "storage_entries": int(rank.rows["written_blocks"].sum()),
        "storage_tokens_processed": (rank.read_gib + rank.written_gib) * 2**30 / token_bytes,
    }
    summary = {
        "total_requests": len(rank.done),
        "total_tokens": rank.tokens,
        "elapsed_time": rank.clock_seconds,
        "avg_throughput_tokens_per_sec": rank.tokens_per_second,
        "total_storage_io_time": sum(storage_seconds),
        "storage_throughput_tokens_per_sec": rank.storage_tokens_per_second,
        "requests_per_second": len(rank.done) / rank.clock_seconds,
        "end_to_end_latency_ms": _latency_ms(latencies),
        "storage_io_latency_ms": _latency_ms(storage_seconds),
        "cache_stats": stats,
        "qos_metrics": classes,
    }
    return {
        "rehearsal": NOTE,
        "requests_completed": len(rank.done),
        "total_tokens_generated": rank.tokens,
        "end_to_end_latencies": latencies,
        "storage_latencies": storage_seconds,
        "seed": seed,
        "summary": summary,
    }


def _latency_ms(seconds: Sequence[float]) -> dict[str, float]:
    if not len(seconds):
        return {}
    p50, p95, p99 = np.percentile(seconds, (50, 95, 99)).tolist()
    return {"mean": 1e3 * float(np.mean(seconds)), "p50": 1e3 * p50, "p95": 1e3 * p95, "p99": 1e3 * p99}


def option_sums(option: int, trials: Sequence[Sequence[RankNumbers]]) -> dict[str, Any]:
    """Return an option's numbers: sums over ranks, means over trials, and the largest p95 (Rules.md, 6.3.4)."""

    def mean(part: Callable[[RankNumbers], float]) -> float:
        return fmean(sum(map(part, ranks)) for ranks in trials)

    p95 = [1e3 * float(np.percentile(rank.storage_seconds, 95)) for ranks in trials for rank in ranks if len(rank.done)]
    return {
        "option": option,
        "aggregated_read_bandwidth_gbps": mean(lambda rank: rank.read_gib / rank.clock_seconds),
        "aggregated_write_bandwidth_gbps": mean(lambda rank: rank.written_gib / rank.clock_seconds),
        "aggregated_avg_throughput_tokens_per_sec": mean(lambda rank: rank.tokens_per_second),
        "aggregated_storage_throughput_tokens_per_sec": mean(lambda rank: rank.storage_tokens_per_second),
        "aggregated_p95_latency_ms": max(p95, default=None),
        "rank_count": len(trials[0]),
        "trial_count": len(trials),
        "partial_failure": False,
        "missing_files": [],
        "cpu_tier_ranks": [],
    }


def _disk_counters() -> tuple[dict[str, Any], ...]:
    """Return this host's disk counters (/proc/diskstats) under the tool's keys."""
    return tuple(
        {
            "device_name": name,
            "sectors_read": counters.read_bytes // SECTOR_BYTES,
            "sectors_written": counters.write_bytes // SECTOR_BYTES,
            "time_doing_ios_ms": counters.busy_time,
        }
        for name, counters in sorted((psutil.disk_io_counters(perdisk=True) or {}).items())
    )


def _host_facts(disks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    memory = psutil.virtual_memory().total
    return {"hosts": [{"hostname": socket.gethostname(), "memory": {"total": memory}, "disks": list(disks)}]}
