"""The papers of a run agree: metadata, configuration, overrides, summary, facts of the hosts, and sidecars.

Each fact is stated in several places; `FACTS` has, for each, where. What only one place states can't disagree.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

from dlemu.mlperf.audit.run_settings import CONFIG_FOLDERS, Setup, meminfo_gib
from dlemu.mlperf.audit.tolerant import count, mapping, number, numbers, read_json, read_yaml, text
from dlemu.mlperf.check.checkpoint_result import CheckpointResult
from dlemu.mlperf.check.other_leaves import OtherResult, phase_of
from dlemu.mlperf.check.submission_tree import METADATA, SEPARATION, Result, stamp_of
from dlemu.mlperf.check.tree_edition import Voter
from dlemu.mlperf.rules.checkpoints import official_model
from dlemu.mlperf.rules.core_config import canonical, settings_of
from dlemu.mlperf.rules.editions import Edition
from dlemu.mlperf.rules.training import Division
from dlemu.results.finding import Finding, Located

HOSTS = os.path.join("collector-staging", "cluster_info.json")
"""/proc/meminfo and more of every host, as mlpstorage v3.0 collects it."""
Benchmark = Literal["training", "checkpointing", "kv_cache", "vector_database"]
_CALLED = {"kvcache": "kv_cache", "vectordb": "vector_database"}
"""What mlpstorage's command line calls benchmarks otherwise than its folders."""
_FOLDERS = {
    "training": ("dataset", "data_folder", "data_dir"),
    "checkpointing": ("checkpoint", "checkpoint_folder", "checkpoint_folder"),
    "kv_cache": ("", "cache_dir", "cache_dir"),
    "vector_database": ("storage", "storage_root", "storage_root"),
}
"""Where each benchmark's settings, and the tool's arguments, say what folder is measured."""
_KEEP = "keep the files as the tool wrote them, or repeat the run"
_KEYS = ("benchmark_type", "model", "command", "run_datetime", "num_processes", "parameters", "args")
"""What mlpstorage's metadata always have."""
_KEYS_OF_V2 = ("benchmark_type", "args")
_RANKS = re.compile(r"(?:^|\s)-(?:n|np)\s+(\d+)(?=\s)")
_MEMORY = 0.01
"""Relative: the same memory, in kB of /proc/meminfo and in bytes."""


@dataclass(frozen=True, kw_only=True)
class RunPapers:
    """One call of the tool, of any benchmark and phase, and the result that it belongs to."""

    path: str
    benchmark: Benchmark
    phase: str
    """`run`, `datagen` or `datasize`."""
    model_folder: str
    """What the folder of the result calls the model."""
    edition: Edition
    division: Division
    files: tuple[str, ...]
    metadata: Mapping[str, Any] | None
    setup: Setup

    @property
    def name(self) -> str:
        """The folder's name."""
        return os.path.basename(self.path)

    @property
    def stamp(self) -> datetime | None:
        """The time in it."""
        return stamp_of(self.name)

    @property
    def args(self) -> Mapping[str, Any]:
        """The tool's command line."""
        return mapping(mapping(self.metadata).get("args"))

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The workload as the metadata have it."""
        return mapping(mapping(self.metadata).get("parameters"))

    @cached_property
    def summary(self) -> Mapping[str, Any]:
        """summary.json; empty without one that can be read."""
        return mapping(self.read("summary.json"))

    @cached_property
    def hosts(self) -> Mapping[str, Any]:
        """What was collected of each host, by its name."""
        return mapping(self.read(HOSTS))

    @property
    def has_hydra(self) -> bool:
        """Whether hydra kept what it composed."""
        return self._hydra is not None

    @cached_property
    def _hydra(self) -> str | None:
        paths = [os.path.join(self.path, below, "hydra.yaml") for below in CONFIG_FOLDERS]
        return next((path for path in paths if os.path.isfile(path)), None)

    @cached_property
    def chosen(self) -> tuple[str, ...] | None:
        """The overrides that hydra.yaml has."""
        path = self._hydra
        hydra = mapping(mapping(read_yaml(path, [])).get("hydra")) if path else {}
        task = mapping(hydra.get("overrides")).get("task")
        return tuple(str(word) for word in task) if isinstance(task, list) else None

    def read(self, name: str) -> Any:
        """Return what a JSON file below the folder holds, None for one that is missing or broken."""
        path = os.path.join(self.path, name)
        return read_json(path, []) if os.path.isfile(path) else None

    def setting(self, section: str, key: str) -> Any:
        """Return a setting as config.yaml has it."""
        return mapping(mapping(self.setup.config).get(section)).get(key)


def papers_of(result: Result | CheckpointResult | OtherResult) -> list[RunPapers]:
    """Return the papers of every call of a result."""
    if isinstance(result, OtherResult):
        kind: Benchmark = "kv_cache" if result.category == "kv_cache" else "vector_database"
        return [_papers(leaf, result, kind, phase_of(leaf.path), result.model) for leaf in result.leaves]
    if isinstance(result, CheckpointResult):
        return [_papers(leaf, result, "checkpointing", "run", os.path.basename(result.path)) for leaf in result.leaves]
    model = os.path.basename(result.workload_folder) if result.phased else ""
    phases = (("datasize", result.datasize), ("datagen", result.datagen), ("run", result.runs))
    return [_papers(leaf, result, "training", phase, model) for phase, leaves in phases for leaf in leaves]


def _papers(
    leaf: Voter, of: Result | CheckpointResult | OtherResult, benchmark: Benchmark, phase: str, model: str
) -> RunPapers:
    return RunPapers(
        path=leaf.path,
        benchmark=benchmark,
        phase=phase,
        model_folder=model,
        edition=of.edition,
        division=of.division,
        files=leaf.files,
        metadata=leaf.metadata,
        setup=leaf.setup,
    )


Claims = Iterator[tuple[str, Any]]
"""Who states something, and what; None where it is not stated."""


def _processes(papers: RunPapers) -> Claims:
    stated, words = mapping(papers.metadata), text(mapping(papers.metadata).get("executed_command"))
    launched = _RANKS.search(words) if words else None
    yield "metadata", count(stated.get("num_processes"))
    if papers.phase != "datasize":
        yield "args.num_processes", count(papers.args.get("num_processes"))
        yield "the command's -n", int(launched[1]) if launched else None
    if papers.phase == "run":
        yield "args.num_accelerators", count(papers.args.get("num_accelerators"))
        yield "summary.json", count(papers.summary.get("num_accelerators")) or count(papers.summary.get("total_ranks"))


def _host_count(papers: RunPapers) -> Claims:
    if papers.phase == "run":
        yield "summary.json", count(papers.summary.get("num_hosts")) or count(papers.summary.get("host_count"))
        yield "args.num_client_hosts", count(papers.args.get("num_client_hosts"))
        yield HOSTS, len(papers.hosts) or None


def _host_names(papers: RunPapers) -> Claims:
    """The host of rank 0 is one of those that were collected."""
    first, collected = text(papers.summary.get("hostname")), sorted(map(_short, papers.hosts))
    rank = text(mapping(papers.read("0_output.json")).get("hostname"))
    yield "summary.json", _short(first) if first else None
    yield "0_output.json", _short(rank) if rank and papers.benchmark == "checkpointing" else None
    yield (
        HOSTS,
        (_short(first) if _short(first) in collected else ", ".join(collected)) if first and collected else None,
    )


def _short(host: str) -> str:
    return host.partition(".")[0].lower()


def _model(papers: RunPapers) -> Claims:
    model, config = mapping(papers.metadata).get("model"), mapping(papers.setup.config).get("model")
    word = next((word for word in papers.setup.overrides or () if word.lstrip("+").startswith("workload=")), "")
    stated = {
        "metadata": model,
        "args.model": papers.args.get("model"),
        "parameters.model.name": mapping(papers.parameters.get("model")).get("name"),
        "config.yaml": config if isinstance(config, str) else mapping(config).get("name"),
        "overrides.yaml": word.partition("=")[2],
        "the folder": papers.model_folder,
    }
    for who, value in stated.items():
        yield who, _model_named(text(value), papers)


def _model_named(name: str | None, papers: RunPapers) -> str | None:
    """Return a model by one spelling: llama_8b and llama3-8b are one, and so are unet3d and unet3d_b200."""
    if not name:
        return None
    if papers.benchmark == "checkpointing":
        known = official_model(name)
        return known.name if known else name
    if papers.benchmark == "vector_database":
        return name.rpartition("_")[2]  # milvus_DISKANN
    return name.rpartition("_")[0] or name


def _accelerator(papers: RunPapers) -> Claims:
    word = next((word for word in papers.setup.overrides or () if word.lstrip("+").startswith("workload=")), "")
    yield "metadata", text(mapping(papers.metadata).get("accelerator"))
    if papers.phase != "datagen":
        yield "args.accelerator_type", text(papers.args.get("accelerator_type"))
    if papers.phase == "run" and papers.benchmark == "training":
        yield "overrides.yaml", word.rpartition("_")[2] if "_" in word else None


def _what(papers: RunPapers) -> Claims:
    stated = mapping(papers.metadata)
    for who, value in (("metadata", stated.get("benchmark_type")), ("args", papers.args.get("benchmark"))):
        yield who, _CALLED.get(value.lower(), value.lower()) if isinstance(value, str) else None
    yield "the folder", papers.benchmark


def _phase(papers: RunPapers) -> Claims:
    yield "metadata", _phase_named(mapping(papers.metadata).get("command"))
    yield "args", _phase_named(papers.args.get("command"))
    yield "the folder", papers.phase


def _phase_named(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _data(papers: RunPapers) -> Claims:
    """Where the data or the checkpoints lie; the tool adds the model's folder to what it is given."""
    if papers.phase == "datasize" or papers.args.get("data_access_protocol") == "object":
        return  # it has no dataset yet; an object store's address stands in other settings
    section, key, argument = _FOLDERS[papers.benchmark]
    stated = {
        "metadata": mapping(papers.metadata).get(argument),
        "parameters": mapping(papers.parameters.get(section) if section else papers.parameters).get(key),
        "config.yaml": papers.setting(section, key),
        "args": papers.args.get(argument),
        SEPARATION: mapping(papers.read(SEPARATION)).get("data_or_chkpt_path"),
    }
    models = (papers.model_folder, mapping(papers.metadata).get("model"), papers.args.get("model"))
    for who, value in stated.items():
        if isinstance(value, str) and value:
            above, name = os.path.split(os.path.normpath(value))
            yield who, above if name in models else os.path.join(above, name)


def _results(papers: RunPapers) -> Claims:
    for who, value in (
        ("args.results_dir", papers.args.get("results_dir")),
        (SEPARATION, mapping(papers.read(SEPARATION)).get("results_path")),
    ):
        yield who, os.path.normpath(value) if isinstance(value, str) and value else None


def _memory(papers: RunPapers) -> Claims:
    """Of all hosts, in GiB."""
    if papers.phase != "run":
        return
    printed = numbers(papers.summary.get("host_memory_GB"))
    collected = [meminfo_gib(mapping(mapping(host).get("meminfo")).get("MemTotal")) for host in papers.hosts.values()]
    known = [value for value in collected if value is not None]
    noted = mapping(mapping(papers.metadata).get("system_info"))
    noted_bytes, hosts = number(noted.get("total_memory_bytes")), count(papers.summary.get("num_hosts"))
    values = {
        "summary.json": sum(printed) if printed else None,
        HOSTS: sum(known) if known and len(known) == len(papers.hosts) == hosts else None,
        "metadata": noted_bytes / 2**30 if noted_bytes and noted.get("num_hosts") == hosts else None,
    }
    stated = [value for value in values.values() if value is not None]
    same = stated and max(stated) <= min(stated) * (1 + _MEMORY)
    for who, value in values.items():
        yield who, None if value is None else f"{stated[0] if same else value:.2f} GiB"


def _division(papers: RunPapers) -> Claims:
    """Not reported here: it has a rule of its own."""
    yield "args.mode", _lower(papers.args.get("mode"))
    if mapping(papers.metadata).get("verification") is not None:
        yield "verification", _lower(mapping(papers.metadata).get("verification"))


def _lower(value: object) -> str | None:
    """Return the name of an enum's member: 3.0 writes CLOSED where 2.0 wrote closed."""
    return value.lower().rpartition(".")[2] if isinstance(value, str) and value else None


FACTS: tuple[tuple[str, Callable[[RunPapers], Claims]], ...] = (
    ("benchmark", _what),
    ("phase", _phase),
    ("model", _model),
    ("accelerator", _accelerator),
    ("number of processes", _processes),
    ("number of hosts", _host_count),
    ("host of rank 0", _host_names),
    ("memory of all hosts", _memory),
    ("folder of the data", _data),
    ("folder of the results", _results),
)


def papers_agree(papers: RunPapers) -> Iterator[Finding]:
    """Yield every fact that two papers state differently."""
    for what, claims_of in FACTS:
        claims = [(who, value) for who, value in claims_of(papers) if value is not None]
        if len({value for _, value in claims}) > 1:
            seen = f"{what}: {', '.join(f'{value} ({who})' for who, value in claims)}"
            yield Finding("error", "papers.differ", seen, f"one {what} in all papers of a run", _KEEP)
    yield from _settings_agree(papers)


def _settings_agree(papers: RunPapers) -> Iterator[Finding]:
    """config.yaml has what the overrides say, and the metadata's parameters are those of config.yaml."""
    config = {key: canonical(value) for key, value in settings_of(mapping(papers.setup.config))}
    given = {} if papers.setup.overrides is None else dict(_word(word) for word in papers.setup.overrides)
    sources = (
        ("overrides.yaml", {key.removeprefix("workload."): value for key, value in given.items() if "." in key}),
        ("metadata", dict(settings_of(papers.parameters))),
    )
    for who, stated in sources:
        apart = [
            f"{key}={canonical(value)} ({who}), {config[key]} (config.yaml)"
            for key, value in stated.items()
            if key in config
            and str(canonical(value)) != str(config[key])
            and not (value is None or config[key] is None)
        ]
        if apart:
            seen = "; ".join(apart[:3])
            yield Finding("error", "papers.differ", seen, "the settings of one run in all its papers", _KEEP)
    yield from _overrides_agree(papers, given)


def _overrides_agree(papers: RunPapers, given: Mapping[str, str]) -> Iterator[Finding]:
    """What the metadata and hydra.yaml say was overridden is what overrides.yaml has, with the same values."""
    if papers.setup.overrides is None:
        return
    mine = {key: value for key, value in given.items() if key.startswith("workload")}
    noted = mapping(papers.metadata).get("override_parameters")
    others = {"hydra.yaml": None if papers.chosen is None else dict(_word(word) for word in papers.chosen)}
    if isinstance(noted, Mapping) and (noted or papers.edition.checks_tree):
        kept = {key: value for key, value in mine.items() if "." not in key}  # the metadata have no choice of workload
        others["metadata"] = kept | {f"workload.{key}": str(value) for key, value in noted.items()}
    for who, stated in others.items():
        if stated is None:
            continue
        theirs = {key: value for key, value in stated.items() if key.startswith("workload")}
        apart = [
            f"{key.removeprefix('workload.')}={mine.get(key, 'not there')}, {theirs.get(key, 'not there')} in {who}"
            for key in sorted(mine | theirs)
            if str(canonical(mine.get(key))) != str(canonical(theirs.get(key)))
        ]
        if apart:
            seen = f"overrides.yaml has {'; '.join(apart[:3])}"
            yield Finding("error", "overrides.differ", seen, "the same overrides in all papers", _KEEP)


def _word(word: str) -> tuple[str, str]:
    key, _, value = word.lstrip("+~").partition("=")
    return key, value.strip("'\"")


def division_stated(papers: RunPapers) -> Iterator[Finding]:
    """mlpstorage's metadata name the division that the tree has the run in."""
    for who, stated in _division(papers):
        if stated not in (None, papers.division, "whatif") and not (stated == "closed" and who == "args.mode"):
            seen = f"in {papers.division}, {who} has {stated}"
            fix = "move the result to the division that it was run for, or run it for this one"
            severity: Literal["error", "warning"] = "warning" if stated == "closed" else "error"
            yield Finding(severity, "division.differs", seen, "one division", fix)
        elif stated == "whatif":
            yield Finding("error", "division.differs", f"{who} says whatif", papers.division, "run it for a division")


def papers_there(papers: RunPapers) -> Iterator[Finding]:
    """A paper that holds nothing is missing: `[]` and `{}` are no metadata, and no overrides."""
    empty = []
    for name in papers.files:
        if name.endswith(METADATA):
            content = papers.read(name)
            wanted = _KEYS if papers.edition.checks_tree else _KEYS_OF_V2
            lacking = [key for key in wanted if key not in mapping(content)]
            if content in ([], {}) or not isinstance(content, Mapping):
                empty.append(f"{name} holds {_shown(content)}")
            elif lacking:
                empty.append(f"{name} without {', '.join(lacking)}")
        elif name == SEPARATION and not isinstance(mapping(papers.read(name)).get("same_filesystem"), bool):
            empty.append(f"{name} does not say whether the file system is the same")
    if papers.phase != "datasize":
        if papers.setup.overrides == ():
            empty.append("overrides.yaml holds nothing, not even the workload")
        if papers.chosen is None and papers.has_hydra:
            empty.append("hydra.yaml has no overrides")
        if papers.edition.checks_tree and not papers.setup.config and os.path.isdir(_config(papers)):
            empty.append("config.yaml has no workload")
    if empty:
        yield Finding("error", "papers.missing", "; ".join(empty[:4]), "the whole content that the tool wrote", _KEEP)


def _config(papers: RunPapers) -> str:
    return os.path.join(papers.path, "dlio_config")


def _shown(content: object) -> str:
    return str(content)[:40] if content is not None else "nothing that can be read"


def ended_well(papers: RunPapers) -> Iterator[Finding]:
    """The tool's own record of how a call ended does not say that it failed."""
    status = mapping(papers.metadata).get("exit_status")
    if status not in (None, 0):
        seen, fix = f"the metadata's exit_status is {status}", "repeat the call until it succeeds"
        yield Finding("error", "runs.exit", seen, "a call that succeeded", fix)


PAPER_RULES = (papers_agree, division_stated, papers_there, ended_well)


def judged(papers: RunPapers) -> Iterator[Located]:
    """Yield what the papers of one call break."""
    for rule in PAPER_RULES:
        yield from (Located(papers.path, finding) for finding in rule(papers))
