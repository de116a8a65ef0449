"""Rules of v3.0 on kv_cache and vector_database (Rules.md, sections 5 and 6), beside what a run's own numbers tell."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from dlemu.mlperf.audit.kv_leaf import OPTIONS, KvLeaf, kv_commands, kv_numbers
from dlemu.mlperf.audit.tolerant import count, mapping, number, read_json, text
from dlemu.mlperf.audit.vector_leaf import VectorLeaf, vector_numbers
from dlemu.mlperf.check.other_leaves import OtherResult
from dlemu.mlperf.check.submission_tree import SEPARATION
from dlemu.results.finding import Finding, Located

KV_OPTIONS: Mapping[int, Mapping[str, str]] = {
    1: {"model": "llama3.1-8b", "num-users": "200", "cpu-mem-gb": "0", "max-concurrent-allocs": "16"},
    2: {"model": "llama3.1-8b", "num-users": "100", "cpu-mem-gb": "4", "max-concurrent-allocs": "16"},
    3: {"model": "llama3.1-70b-instruct", "num-users": "70", "cpu-mem-gb": "0", "max-concurrent-allocs": "4"},
}
_EVERY_OPTION = {"duration": "300", "gpu-mem-gb": "0", "generation-mode": "none", "seed-base": "42"}
"""Table KVCache-1 (6.3.1.1), as the tool's command line spells it."""
_SEQUENCE = {"seed": 42, "trials": 3, "inter_option_delay": 90}
"""6.3.2.1, as the metadata's args have it."""
_DURATION_SLACK_SECONDS = 5.0  # room for the tool's own start and end; another --duration is farther off
INDEXES, ENGINE, RUNS = ("DISKANN", "HNSW", "AISAQ"), "milvus", 5
_REPEAT = "repeat it with `mlpstorage closed`, which sets them itself"


def other_findings(result: OtherResult) -> Iterator[Located]:
    """Yield what the runs of a result break, by their own numbers and by their benchmark's rules."""
    for leaf in result.leaves:
        if isinstance(leaf, KvLeaf):
            found = [*kv_numbers(leaf), *(_kv_settings(leaf) if result.closed else ())]
        else:
            run = leaf in result.phase("run")
            found = [*(vector_numbers(leaf) if run else leaf.broken), *(_vector_settings(leaf, result) if run else ())]
            found += _separate(leaf) if run else ()
        yield from (Located(leaf.path, finding) for finding in found)
    vectors = [leaf for leaf in result.phase("run") if isinstance(leaf, VectorLeaf)]
    if vectors and len(vectors) != RUNS:
        seen, fix = f"{len(vectors)} runs", "submit five runs of the index"
        yield Located(result.path, Finding("error", "vdb.count", seen, f"{RUNS} runs of one index", fix))


def _kv_settings(leaf: KvLeaf) -> Iterator[Finding]:
    """CLOSED runs each option as Table KVCache-1 has it, and the three of them in the locked sequence."""
    started, apart = kv_commands(leaf), []
    for option in OPTIONS:
        stated = started.get(option, {})
        fixed = {**KV_OPTIONS[option], **_EVERY_OPTION}
        apart += [f"option {option}: {key} {stated[key]}" for key in fixed if stated.get(key, fixed[key]) != fixed[key]]
        apart += [f"option {option}: no {key}" for key in fixed if stated and key not in stated]
        for rank in (rank for trial in leaf.trials(option) for rank in trial):
            took, seed = rank.elapsed_seconds, count(rank.content.get("seed"), 0)
            if took is not None and abs(took - 300) > _DURATION_SLACK_SECONDS:  # Table KVCache-1: --duration 300
                apart.append(f"{rank.where}: {took:.1f} s")
            if seed is not None and seed != 42 + rank.rank:  # Table KVCache-1: --seed-base 42, each rank its own
                apart.append(f"{rank.where}: seed {seed}")
    args = mapping(leaf.metadata.get("args"))
    apart += [f"{key} {args[key]}" for key, value in _SEQUENCE.items() if key in args and number(args[key]) != value]
    apart += ["a different --config"] if text(args.get("config_file")) else []
    if apart:
        more = f"; and {len(apart) - 4} more" if len(apart) > 4 else ""
        wanted = "the options of Table KVCache-1, seed 42 + rank, 3 trials, 90 s between options"
        yield Finding("error", "kv.settings", f"{'; '.join(apart[:4])}{more}", wanted, _REPEAT)
    elif leaf.metadata and not started:
        fix = "keep the metadata as the tool wrote them"
        yield Finding("info", "unapplied", "kv.settings: commands of the options not known", "kv.settings applied", fix)


def _vector_settings(leaf: VectorLeaf, result: OtherResult) -> Iterator[Finding]:
    """CLOSED: Milvus with one of three indexes, the one that the folder names (5.6.2, 5.6.3)."""
    args, apart = mapping(leaf.metadata.get("args")), []
    stated = {
        "the folder": result.model,
        "config.json": text(leaf.config.get("index_type")),
        "the metadata": text(leaf.metadata.get("vdb_index")) or text(args.get("vdb_index")),
    }
    kinds = {who: value.upper() for who, value in stated.items() if value}
    if len(set(kinds.values())) > 1:
        apart.append(", ".join(f"{value} ({who})" for who, value in kinds.items()))
    if result.closed:
        engine = text(leaf.metadata.get("vdb_engine")) or text(args.get("vdb_engine"))
        apart += [f"engine {engine}"] if engine and engine.lower() != ENGINE else []
        apart += [f"index {value}" for value in sorted(set(kinds.values()) - set(INDEXES))]
    sizes = {number(leaf.config.get("vector_dim")), number(leaf.metadata.get("vector_dim"))} - {None}
    apart += [f"{len(sizes)} dimensions of vectors"] if len(sizes) > 1 else []
    if apart:
        wanted = f"{ENGINE}, one index of {', '.join(INDEXES)} in CLOSED, the same in all papers"
        yield Finding("error", "vdb.settings", "; ".join(apart), wanted, "repeat the runs with one index")


def _separate(leaf: VectorLeaf) -> Iterator[Finding]:
    """Vectors and results lie apart, and on different file systems (5.4.1, 5.4.2); of a file store alone."""
    args = mapping(leaf.metadata.get("args"))
    if args.get("data_access_protocol") == "object":
        return
    vectors, results = text(args.get("storage_root")), text(args.get("results_dir"))
    if leaf.metadata and (vectors is None or results is None):
        seen = f"storage_root {vectors or 'not set'}, results_dir {results or 'not set'}"
        yield Finding("warning", "vdb.folder", seen, "both, and different", "set --storage-root")
    elif vectors is not None and results is not None and os.path.normpath(vectors) == os.path.normpath(results):
        yield Finding("error", "vdb.folder", f"both are {vectors}", "different folders", "keep results elsewhere")
    path = os.path.join(leaf.path, SEPARATION)
    same = mapping(read_json(path, [])).get("same_filesystem") if os.path.isfile(path) else None
    if same is not False:
        seen = f"{SEPARATION} says that they share one" if same else f"no {SEPARATION} with an answer"
        fix = "keep results on another file system, and that file in the run"
        yield Finding("error", "vdb.filesystem", seen, "vectors and results on different file systems", fix)


def copied_others(results: Sequence[OtherResult]) -> Iterator[Located]:
    """Yield runs of kv_cache that have the latencies of another run."""
    known: dict[tuple[float, ...], str] = {}
    for leaf in (leaf for result in results for leaf in result.leaves if isinstance(leaf, KvLeaf)):
        for rank in leaf.ranks:
            key = tuple(round(value, 6) for value in rank.latencies_seconds)
            first = known.setdefault(key, leaf.path) if key else leaf.path
            if first != leaf.path:
                seen, wanted = (
                    f"{rank.where} has the latencies of a rank of {first}",
                    "different requests for each run",
                )
                yield Located(leaf.path, Finding("error", "kv.copied", seen, wanted, "submit each run once"))
                break
