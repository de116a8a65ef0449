"""Rules of v3.0 on kv_cache and vector_database (Rules.md, sections 5 and 6): settings, folders and copied runs.

`kv_leaf` and `vector_leaf` of `audit` check whether a run's numbers agree with each other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence

from dlemu.contrib.mlperf.audit.fingerprints import STAMP_DECIMALS, copied_pairs, figure_fingerprints
from dlemu.contrib.mlperf.audit.kv_leaf import OPTIONS, KvLeaf, kv_commands, kv_numbers
from dlemu.contrib.mlperf.audit.tolerant import count, mapping, number, read_json, text
from dlemu.contrib.mlperf.audit.vector_leaf import LATENCIES, RECALL, STATISTICS, VectorLeaf, vector_numbers
from dlemu.contrib.mlperf.check.other_leaves import OtherResult, phase_of
from dlemu.contrib.mlperf.check.submission_tree import SEPARATION, runs_differ
from dlemu.contrib.mlperf.rules.core_config import canonical
from dlemu.results.finding import Finding, Located

KV_OPTIONS: Mapping[int, Mapping[str, str]] = {
    1: {"model": "llama3.1-8b", "num-users": "200", "cpu-mem-gb": "0", "max-concurrent-allocs": "16"},
    2: {"model": "llama3.1-8b", "num-users": "100", "cpu-mem-gb": "4", "max-concurrent-allocs": "16"},
    3: {"model": "llama3.1-70b-instruct", "num-users": "70", "cpu-mem-gb": "0", "max-concurrent-allocs": "4"},
}
"""Option -> the flags that differ between options, as the tool's command line spells them."""
_ALL_OPTIONS = {"duration": "300", "gpu-mem-gb": "0", "generation-mode": "none", "seed-base": "42"}
"""The flags that are the same for all options. Both tables are Table KVCache-1 (6.3.1.1)."""
_SEQUENCE = {"seed": 42, "trials": 3, "inter_option_delay": 90}
"""Required arguments of the sequence of options (6.3.2.1), under their names in the metadata's `args`."""
_DURATION_SLACK_SECONDS = 5.0  # room for the tool's own start and end; another --duration is farther off
INDEXES, ENGINE, RUNS = ("DISKANN", "HNSW", "AISAQ"), "milvus", 5
_REPEAT = "repeat the run with `mlpstorage closed`, which sets the options itself"


_VECTOR_PROCESSES = re.compile(r"--processes[\s=]+(\d+)\b")
_COLLECTION = re.compile(r"--collection-name[\s=]+(\S+)")
_CLIENT = ("vector_dim", "processes", "batch_size", "runtime_seconds")
"""Settings in a vector database's config.json that are the same in all runs."""
_STORED = ("data_access_protocol", "storage_root")
"""The same of the metadata's `args`."""


def other_findings(result: OtherResult) -> Iterator[Located]:
    """Yield contradictions in the numbers of a result's runs, and what the runs break of the benchmark's rules."""
    for leaf in result.leaves:
        if isinstance(leaf, KvLeaf):
            found = list(leaf.broken)
            if phase_of(leaf.path) == "run":
                found = [*kv_numbers(leaf), *_kv_length(leaf), *(_kv_settings(leaf) if result.closed else ())]
        else:
            found = list(leaf.broken)
            if phase_of(leaf.path) == "run":
                found = [*vector_numbers(leaf), *_vector_settings(leaf, result), *_folders_apart(leaf)]
        yield from (Located(leaf.path, finding) for finding in found)
    vectors = [leaf for leaf in result.phase("run") if isinstance(leaf, VectorLeaf)]
    if vectors and len(vectors) != RUNS:
        seen, fix = f"{len(vectors)} runs", "submit five runs of the index"
        yield Located(result.path, Finding("error", "vdb.count", seen, f"{RUNS} runs of one index", fix))
    yield from _figures_missing(vectors)
    for what, values in (
        ("vectors", [mapping(leaf.verdict.get("flat_setup")).get("total_vectors") for leaf in vectors]),
        ("k of the recall", [leaf.recall_stats.get("k") for leaf in vectors]),
        ("collection", [_collection(leaf) for leaf in vectors]),
        *((key, [leaf.config.get(key) for leaf in vectors]) for key in _CLIENT),
        *((key, [mapping(leaf.metadata.get("args")).get(key) for leaf in vectors]) for key in _STORED),
    ):
        yield from runs_differ(result.path, what, values, "repeat the runs with one collection and one client")


def _collection(leaf: VectorLeaf) -> str | None:
    found = _COLLECTION.search(text(leaf.metadata.get("executed_command")) or "")
    return found[1] if found else None


def _figures_missing(runs: Sequence[VectorLeaf]) -> Iterator[Located]:
    """Each run has the figures and settings that the others have: one client wrote them all."""
    kept = [
        {
            f"{name}: {key}"
            for name, content in (
                (STATISTICS, leaf.summary),
                (f"{STATISTICS}: recall", mapping(leaf.summary.get("recall"))),
                (RECALL, leaf.recall_file),
                ("config.json", leaf.config),
            )
            for key, value in content.items()
            if value is not None
            and key not in ("throughput_qps", *LATENCIES)  # without them `vector_numbers` finds one
        }
        for leaf in runs
    ]
    for leaf, keys in zip(runs, kept, strict=True):
        lacking = sorted(set().union(*kept) - keys)
        if lacking:
            seen, fix = f"no {', '.join(lacking[:4])}", "keep the files as the client wrote them"
            yield Located(leaf.path, Finding("error", "vdb.metrics", seen, "all that the other runs have", fix))


def _kv_settings(leaf: KvLeaf) -> Iterator[Finding]:
    """CLOSED fixes the flags of each option (Table KVCache-1), the seeds, the trials and the delay between options."""
    flags, differences = kv_commands(leaf), []
    for option in OPTIONS:
        fixed = {**KV_OPTIONS[option], **_ALL_OPTIONS}
        for stated in flags.get(option, []):
            different = [key for key in fixed if stated.get(key, fixed[key]) != fixed[key]]
            differences += [f"option {option}: {key} {stated[key]}" for key in different]
            differences += [f"option {option}: no {key}" for key in fixed if key not in stated]
        differences += _kv_summary_settings(leaf, option, fixed)
        for rank in (rank for trial in leaf.trials(option) for rank in trial):
            elapsed, seed = rank.elapsed_seconds, count(rank.content.get("seed"), 0)
            if elapsed is not None and abs(elapsed - 300) > _DURATION_SLACK_SECONDS:  # Table KVCache-1: --duration 300
                differences.append(f"{rank.where}: {elapsed:.1f} s")
            if seed is not None and seed != 42 + rank.rank:  # Table KVCache-1: --seed-base 42, plus the rank
                differences.append(f"{rank.where}: seed {seed}")
    args = mapping(leaf.metadata.get("args"))
    differences += [f"{key} {args[key]}" for key, value in _SEQUENCE.items() if number(args.get(key, value)) != value]
    differences += ["a different --config"] if text(args.get("config_file")) else []
    differences = list(dict.fromkeys(differences))
    if differences:
        more = f"; and {len(differences) - 4} more" if len(differences) > 4 else ""
        wanted = "the options of Table KVCache-1, seed 42 + rank, 3 trials, 90 s between options"
        yield Finding("error", "kv.settings", f"{'; '.join(differences[:4])}{more}", wanted, _REPEAT)
    elif leaf.metadata and not flags:
        fix = "keep the metadata as the tool wrote it"
        seen = "kv.settings: the commands of the options are unknown"
        yield Finding("info", "unapplied", seen, "kv.settings applied", fix)


def _kv_length(leaf: KvLeaf) -> Iterator[Finding]:
    """The call of the tool lasted at least as long as the clocks of all its trials, which run one after another."""
    runtime = number(leaf.metadata.get("runtime"))
    trials = [trial for option in OPTIONS for trial in leaf.trials(option)]
    clocks = sum(max((rank.elapsed_seconds or 0 for rank in trial), default=0) for trial in trials)
    if runtime is not None and clocks > runtime + _DURATION_SLACK_SECONDS:
        seen = f"{len(trials)} trials of {clocks:.1f} s in all, the metadata's runtime is {runtime:.1f} s"
        fix = "leave folders and files as the tool made them"
        yield Finding("error", "time.length", seen, "a run no longer than the call that started it", fix)


def _kv_summary_settings(leaf: KvLeaf, option: int, fixed: Mapping[str, str]) -> Iterator[str]:
    """Yield the settings in the summary, of an option or of all, that are not the option's: few versions write any.

    The metadata's `args` are no such settings: they keep the command line's defaults, which the options override.
    """
    of_all = {"seed": fixed["seed-base"], "gpu-mem-gb": fixed["gpu-mem-gb"]}
    of_option = mapping(mapping(leaf.summary.get("options")).get(str(option)))
    for place, wanted in ((leaf.summary, of_all), (of_option, {**fixed, **of_all})):
        for key, value in wanted.items():
            stated = canonical(place.get(key.replace("-", "_")))
            if stated is not None and stated != canonical(value):
                yield f"option {option}: {key} {stated} (summary.json)"


def _vector_settings(leaf: VectorLeaf, result: OtherResult) -> Iterator[Finding]:
    """All files name the same index and dimension; in CLOSED, Milvus and one of three indexes (5.6.2, 5.6.3)."""
    args, differences = mapping(leaf.metadata.get("args")), []
    stated = {
        "the folder": result.model,
        "config.json": text(leaf.config.get("index_type")),
        "the metadata": text(leaf.metadata.get("vdb_index")),
        "args": text(args.get("vdb_index")),
    }
    kinds = {who: value.upper() for who, value in stated.items() if value}
    if len(set(kinds.values())) > 1:
        differences.append(", ".join(f"{value} ({who})" for who, value in kinds.items()))
    if result.closed:
        engines = dict.fromkeys(text(each.get("vdb_engine")) for each in (leaf.metadata, args))
        differences += [f"engine {engine}" for engine in engines if engine and engine.lower() != ENGINE]
        differences += [f"index {value}" for value in sorted(set(kinds.values()) - set(INDEXES))]
    words = text(leaf.metadata.get("executed_command")) or ""
    launched = _VECTOR_PROCESSES.search(words)
    if launched and count(leaf.config.get("processes")) not in (None, int(launched[1])):
        differences.append(f"{launched[1]} processes (the command), {leaf.config['processes']} (config.json)")
    sizes = {number(leaf.config.get("vector_dim")), number(leaf.metadata.get("vector_dim"))} - {None}
    differences += [f"{len(sizes)} different vector dimensions"] if len(sizes) > 1 else []
    if differences:
        wanted = f"the same index in all files; in CLOSED {ENGINE} with one of {', '.join(INDEXES)}"
        yield Finding("error", "vdb.settings", "; ".join(differences), wanted, "repeat the runs with one index")


def _folders_apart(leaf: VectorLeaf) -> Iterator[Finding]:
    """Vectors and results are in different folders and file systems (5.4.1, 5.4.2), unless in an object store."""
    args = mapping(leaf.metadata.get("args"))
    vectors, results = text(args.get("storage_root")), text(args.get("results_dir"))
    protocol = args.get("data_access_protocol")
    if protocol == "object" and not (vectors or "").startswith(("/", ".")):
        return
    if protocol not in (None, "file"):
        wanted, fix = "file for a folder; object for a bucket", "keep the metadata as the tool wrote it"
        seen = f"data_access_protocol {protocol}, storage_root {vectors or 'not set'}"
        yield Finding("error", "vdb.folder", seen, wanted, fix)
    if leaf.metadata and (vectors is None or results is None):
        seen = f"storage_root {vectors or 'not set'}, results_dir {results or 'not set'}"
        yield Finding("warning", "vdb.folder", seen, "both set, and different", "set --storage-root")
    elif vectors is not None and results is not None and os.path.normpath(vectors) == os.path.normpath(results):
        yield Finding("error", "vdb.folder", f"both are {vectors}", "different folders", "keep results elsewhere")
    path = os.path.join(leaf.path, SEPARATION)
    same = mapping(read_json(path, [])).get("same_filesystem") if os.path.isfile(path) else None
    if same is not False:
        seen = f"{SEPARATION} says they share one" if same else f"no {SEPARATION} with same_filesystem"
        fix = f"keep results on another file system, and keep {SEPARATION} in the run"
        yield Finding("error", "vdb.filesystem", seen, "vectors and results on different file systems", fix)


def copied_others(results: Sequence[OtherResult]) -> Iterator[Located]:
    """Yield kv_cache runs with exactly the latencies of another run, and copied runs of vector_database."""
    yield from _copied_vectors([leaf for result in results for leaf in result.phase("run")])
    known: dict[tuple[float, ...], str] = {}
    for leaf in (leaf for result in results for leaf in result.leaves if isinstance(leaf, KvLeaf)):
        for rank in leaf.ranks:
            key = tuple(round(value, 6) for value in rank.latencies_seconds)
            first = known.setdefault(key, leaf.path) if key else leaf.path
            if first != leaf.path:
                seen = f"{rank.where} has the latencies of a rank of {first}"
                wanted = "different latencies for each run"
                yield Located(leaf.path, Finding("error", "kv.copied", seen, wanted, "submit each run once"))
                break


def _copied_vectors(leaves: Sequence[KvLeaf | VectorLeaf]) -> Iterator[Located]:
    vectors = [leaf for leaf in leaves if isinstance(leaf, VectorLeaf)]
    figures = [one for leaf in vectors for one in figure_fingerprints(leaf.path, leaf.measured, STAMP_DECIMALS)]
    for first, second in copied_pairs(figures):
        original, copy = sorted((first.where, second.where))
        seen = f"the same time and latencies, to the last digit, as {os.path.relpath(original, copy)}"
        fix = "repeat the run, and submit what it measures"
        yield Located(copy, Finding("error", "runs.copied", seen, "numbers of its own", fix))
