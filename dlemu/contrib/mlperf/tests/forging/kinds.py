"""Kinds of forgery: each changes a tree in a way that no honest tool leaves behind, and names a rule that tells of it.

Each rule of the check is broken here at least once, or in a test that needs a tree of its own.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from dlemu.contrib.mlperf.audit import audited_run
from dlemu.contrib.mlperf.rules.core_config import core_config_hash
from dlemu.contrib.mlperf.tests.changes import (
    META,
    Change,
    Edit,
    Inapplicable,
    alter,
    config,
    drop,
    each,
    edited,
    edits,
    end,
    ended_at,
    every,
    first,
    found,
    gone,
    in_first,
    in_last,
    in_run,
    last,
    metadata,
    of_the_first,
    processes,
    put,
    removed,
    runs,
    scale,
    setting,
    summary,
    text,
    together,
)
from dlemu.contrib.mlperf.tests.golden import CODE, STAMP, client, config_folder, edit, moved
from dlemu.contrib.mlperf.tests.golden import leaves as calls

CALLS = f"checkpointing/*/2*/{META}"


@dataclass(frozen=True)
class Forgery:
    name: str
    rules: frozenset[str]
    """Any of which tells of it; `warning:RULE` wants that severity."""
    change: Change
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    """Holds while the forged tree is checked: a fault of dlemu's own, which no file provokes."""
    edition: str = "3.0"

    def fits(self, base: str) -> bool:
        return (base == "2.0") == (self.edition == "2.0")

    def told_by(self, found: Iterable[tuple[str, str, str]]) -> bool:
        """Whether one of its rules is among what was found (rule, severity, what was seen)."""
        return any({rule, f"{severity}:{rule}"} & self.rules for rule, severity, _ in found)

    def names(self, rule: str) -> bool:
        return any(own.rpartition(":")[2] == rule for own in self.rules)


def leaves(root: Path, phase: str = "*") -> list[Path]:
    """The folders of calls, in order of their names; with `phase` those of one phase of training."""
    return sorted(path for path in found(root, f"{phase}/2*_*") if path.is_dir() and len(path.name) == 15)


def trained(root: Path) -> Path:
    """The folder that the runs of training lie in; the tree itself where its edition has no such folder."""
    return next(iter(sorted(root.rglob("training"))), root)


def organisation(root: Path) -> Path:
    divisions = [path for path in sorted(root.iterdir()) if path.name.lower() in ("closed", "open")]
    if not divisions:
        raise Inapplicable
    return next(path for path in sorted(divisions[0].iterdir()) if path.is_dir())


def epochs(content: Any) -> list[Any]:
    """The epochs in a rank's steps, of which there are some."""
    kept = [value for key, value in content.items() if key.isdigit()]
    if not kept or not kept[0]["load"]:
        raise Inapplicable
    return kept


def later(moment: str, seconds: float) -> str:
    return (datetime.fromisoformat(moment) + timedelta(seconds=seconds)).isoformat()


def _renamed(folder: Path, name: str) -> object:
    return folder.rename(folder.with_name(name))


def _to_year(year: int) -> Change:
    """Move everything that a tree tells of its time, folders too, into another year."""

    def apply(root: Path) -> None:
        for leaf in leaves(root):
            stamp = datetime.strptime(leaf.name, STAMP)
            moment = stamp.replace(year=year)
            for path in leaf.glob("*.json"):
                path.write_text(json.dumps(moved(json.loads(path.read_text()), moment - stamp)))
            edits(leaf.glob(META), put("run_datetime", moment.strftime(STAMP)))
            _renamed(leaf, moment.strftime(STAMP))

    return apply


def _copied_rank(jitter: float) -> Change:
    """Give one rank the steps of another, each changed by so much of itself."""

    def apply(root: Path) -> None:
        source = last(trained(root), "0_output.json")
        content = json.loads(source.read_text())
        for epoch in epochs(content):
            for name in ("load", "proc"):
                for block, values in epoch[name].items():
                    epoch[name][block] = [value * (1 + jitter * (-1) ** index) for index, value in enumerate(values)]
        last(trained(root), "1_output.json").write_text(json.dumps(content))

    return apply


def _copied_epoch(content: Any) -> None:
    content["2"] = {**epochs(content)[0]}


def _copied_figures(content: Any) -> None:
    for key in ("train_au_percentage", "train_throughput_samples_per_second"):
        content["metric"][key][1] = content["metric"][key][0]


def _copied_stamps(root: Path) -> None:
    shutil.copy(last(root, "0_per_epoch_stats.json"), last(root, "1_per_epoch_stats.json"))


def _overlap(content: Any) -> None:
    before, part = [value for name, value in content["1"].items() if "_ckpt" in name][:2]
    length = datetime.fromisoformat(part["end"]) - datetime.fromisoformat(part["start"])
    part |= {"start": before["start"], "end": later(before["start"], length.total_seconds())}


def _without_steps(name: str, change: Edit) -> Change:
    """Take the steps of every run of training away, and change one of the files that are left of each."""

    def apply(root: Path) -> None:
        for folder in runs(root):
            for path in folder.glob("*_output.json"):
                path.unlink()
            edits(folder.glob(name), change)

    return apply


def _au(percent: float) -> Edit:
    """Have a summary print another AU, in every epoch alike."""

    def change(content: Any) -> None:
        metric = content["metric"]
        metric["train_au_percentage"] = [percent] * len(metric["train_au_percentage"])
        metric |= {"train_au_mean_percentage": percent, "train_au_meet_expectation": "fail"}
        metric["train_au_stdev_percentage"] = 0.0

    return change


def _short_blocks(content: Any) -> None:
    for epoch in content.values():
        start, end = (datetime.fromisoformat(epoch["block1"][key]) for key in ("start", "end"))
        epoch["block1"]["end"] = (start + (end - start) / 10).isoformat()


def _slow_first_steps(root: Path) -> None:
    """Let each first step take half a minute longer, with 100 readers that fetch batches meanwhile."""

    def longer(content: Any) -> None:
        for epoch in epochs(content):
            for name in ("load", "proc"):
                epoch[name]["block1"][0] += 30

    def earlier(content: Any) -> None:
        for epoch in content.values():
            for part in (epoch, epoch["block1"]):
                part["start"] = later(part["start"], -30)

    edits(found(trained(root), "*_output.json"), longer)
    edits(trained(root).rglob("*per_epoch_stats.json"), earlier)
    config("reader/read_threads", 100)(root)


def waiting(root: Path) -> None:
    """Let every step of the last run wait for its batch as long as it computes, and every block take twice as long."""

    def waiting(content: Any) -> None:
        for epoch in epochs(content):
            waits = epoch["compute"]["block1"]
            for key in ("load", "proc"):
                epoch[key]["block1"] = [value + wait for value, wait in zip(epoch[key]["block1"], waits, strict=True)]
            epoch["throughput"]["block1"] /= 2

    def longer(content: Any) -> None:
        shift = 0.0
        for epoch in content.values():
            block = epoch["block1"]
            length = (datetime.fromisoformat(block["end"]) - datetime.fromisoformat(block["start"])).total_seconds()
            epoch["start"], block["start"] = later(epoch["start"], shift), later(block["start"], shift)
            shift += length
            epoch["end"], block["end"] = later(epoch["end"], shift), later(block["end"], shift)

    edits(runs(root)[-1].glob("*_output.json"), waiting)
    edits(runs(root)[-1].glob("*per_epoch_stats.json"), longer)


def _of_model(name: str) -> Change:
    return together(each(CALLS, put("model", name)), each(CALLS, put("args/model", name)))


def _of_v2(root: Path) -> None:
    """Let nothing tell of v3.0, so that v2.0's rules hold."""
    found(root, CALLS)  # of checkpoints alone

    def older(content: Any) -> None:
        for key in ("system_info", "invocation_start_time"):
            content.pop(key, None)
        for key in ("data_access_protocol", "systemname"):
            content.get("args", {}).pop(key, None)
        content.update(edition="2.0")

    edits(root.rglob(META), older)
    for name in (".mlps-code-image", "fs_separation.json"):
        for path in root.rglob(name):
            path.unlink()


def _late(phase: str) -> Change:
    """Let a phase come after the runs, by all that it tells."""

    def apply(root: Path) -> None:
        final, leaf = leaves(root, "run")[-1], leaves(root, phase)[0]
        began = datetime.strptime(final.name, STAMP) + timedelta(hours=3)
        stamp = began.strftime(STAMP)
        edits(leaf.glob(META), lambda told: told.update(run_datetime=stamp, invocation_start_time=began.isoformat()))
        _renamed(leaf, stamp)

    return apply


def _tampered_code(root: Path) -> None:
    (found(root, ".code-hash.json")[0].parent / "report.py").write_text("AU = 100\n")


def _two_images(root: Path) -> None:
    pool = found(root, ".code-hash.json")[0].parent
    other = pool.with_name("code-other")
    shutil.copytree(pool, other)
    edit(other / ".code-hash.json", put("hash", "f" * 32))
    last(root, ".mlps-code-image").write_text("md5-tree-v2:" + "f" * 32)


def _sums(begin: str, factor: float | None = 1.05) -> Change:
    """Change the figures of such names in the sums of all runs; None: delete them."""

    def apply(root: Path) -> None:
        for path in root.rglob("results.json"):
            rows = json.loads(path.read_text())
            for row in rows if isinstance(rows, list) else [rows]:
                if found := [key for key in row if key.startswith(begin)]:
                    for key in found:
                        value = row.pop(key)
                        row |= {} if factor is None else {key: factor * value}
                    path.write_text(json.dumps(rows))
                    return
        raise Inapplicable

    return apply


def kv(root: Path, place: str = "option_1/trial_0") -> Path:
    return found(root, f"kv_cache/*/run/*/{place}/**/kvcache_results_*.json")[0]


def _kv_rank(change: Edit) -> Change:
    return lambda root: edit(kv(root), change)


_kv_summary = partial(in_first, "kv_cache/*/run/*/summary.json")
_kv_meta = partial(in_first, f"kv_cache/*/run/*/{META}")


def _kv_commands(old: str, new: str, most: int | None = None) -> Change:
    def change(told: Any) -> None:
        for call in told["command_output_files"][:most]:
            call["command"] = call["command"].replace(old, new)

    return _kv_meta(change)


def _kv_waits(told: Any) -> None:
    """Let a rank keep its latencies beside a 95th percentile that is none of theirs."""
    told["storage_latencies"] = [told["summary"]["total_storage_io_time"] / 100] * 100
    told["summary"]["storage_io_latency_ms"]["p95"] = 1.0


def _kv_tokens(root: Path) -> None:
    """Raise a rank's tokens/s, and what the summary makes of them."""
    key, told = "avg_throughput_tokens_per_sec", json.loads(kv(root).read_text())["summary"]
    more = 0.05 * told["total_tokens"] / told["elapsed_time"]
    _kv_rank(put(f"summary/{key}", told[key] + more))(root)
    summed = found(root, "kv_cache/*/run/*/summary.json")[0]
    rate = json.loads(summed.read_text())["options"]["1"][f"aggregated_{key}"]
    edit(summed, put(f"options/1/aggregated_{key}", rate + more / 3))


def _less_work(told: Any) -> None:
    """Let the devices have read a tenth, in as little time."""
    first, last = (told["cluster_snapshots"][moment]["hosts"][0]["disks"][0] for moment in ("start", "end"))
    for key in ("sectors_read", "time_doing_ios_ms"):
        last[key] = first[key] + (last[key] - first[key]) // 10


_OF_ALL_RANKS = (
    *("summary/elapsed_time", "summary/total_requests", "summary/total_tokens", "summary/total_storage_io_time"),
    *("summary/avg_throughput_tokens_per_sec", "summary/storage_io_latency_ms", "end_to_end_latencies"),
    *(f"summary/cache_stats/tier_storage_{name}" for name in ("read_bandwidth_gbps", "kv_bytes_read_gb")),
)


def _copied_times(root: Path) -> None:
    """Give a run another's block times under figures of its own, and take the steps of both away."""
    source, copy = runs(root)[-2:]
    start = [json.loads((run / "summary.json").read_text())["start"] for run in (source, copy)]
    shift = datetime.fromisoformat(start[1]) - datetime.fromisoformat(start[0])
    for path in source.glob("*per_epoch_stats.json"):
        (copy / path.name).write_text(json.dumps(moved(json.loads(path.read_text()), shift)))
    for path in (*source.glob("*_output.json"), *copy.glob("*_output.json")):
        path.unlink()


def _a_day_later(root: Path) -> None:
    run = runs(root)[-1]
    _renamed(run, (datetime.strptime(run.name, STAMP) + timedelta(days=1)).strftime(STAMP))


def _workload(root: Path) -> Path:
    return first(root).parents[1]


def _made(root: Path) -> Path:
    return next((_workload(root) / "datagen").iterdir())


def files_of(phase: str, files: int) -> Change:
    def change(root: Path) -> None:
        first(root)  # of training alone
        edits(root.rglob(f"{phase}/*/dlio_config/config.yaml"), put("workload/dataset/num_files_train", files))
        edits(root.rglob(f"{phase}/*/{META}"), put("parameters/dataset/num_files_train", files))

    return change


def _without_code(root: Path) -> None:
    for image in list(root.rglob(".code-hash.json")):
        shutil.rmtree(image.parent)
    for pointer in root.rglob(".mlps-code-image"):
        pointer.unlink()


def _second_system(root: Path) -> None:
    for suffix in ("yaml", "pdf"):
        path = found(root, f"systems/*.{suffix}")[0]
        shutil.copy(path, path.with_stem("spare"))


def _described(key: str, value: Any) -> Change:
    return in_first("systems/*.yaml", put(f"system_under_test/{key}", value))


def _description(folder: Path) -> Path:
    return folder.parents[3] / f"systems/{folder.parents[1].name}.yaml"


def _able(**capabilities: Any) -> Change:
    return lambda folder: edit(
        _description(folder), lambda told: told["system_under_test"]["solution"]["capabilities"].update(capabilities)
    )


def _in_memory(root: Path) -> None:
    """Put the dataset into memory, by all papers that tell of it."""
    place = "/dev/shm/unet3d"
    config("dataset/data_folder", place)(root)
    metadata("args/data_dir", "/dev/shm")(root)
    metadata("override_parameters/dataset.data_folder", place)(root)


def _on_two_hosts(root: Path) -> None:
    """Let one rank of the first run have a host of its own."""
    edit(first(root) / "summary.json", put("num_hosts", 2))
    for path in first(root).glob("*_output.json"):
        edit(path, put("hostname", "other" if path.name.startswith("3_") else "node0"))


def _logged(line: str) -> Change:
    return lambda root: (first(root) / "dlio.log").write_text(f"[OUTPUT] {line}\n")


def drives(read_gib: float) -> Any:
    """Return the counters of one drive before and after a call."""
    zero = {"device_name": "nvme0n1", "sectors_read": 0, "sectors_written": 0, "time_doing_ios_ms": 0}
    after = zero | {"sectors_read": read_gib * 2**21}
    return {when: {"hosts": [{"hostname": "node0", "disks": [at]}]} for when, at in (("start", zero), ("end", after))}


def _staggered(folder: Path) -> None:
    """Let each rank of a call save after the one before it."""
    for rank, path in enumerate(sorted(calls(folder)[0].glob("*_per_epoch_stats.json"))):

        def change(content: Any, seconds: float = 100.0 * rank) -> None:
            for part in content["1"].values():
                if isinstance(part, dict):
                    part |= {when: later(part[when], seconds) for when in ("start", "end") if when in part}

        edit(path, change)


def _fewer_steps(content: Any) -> None:
    for key in ("load", "proc", "compute"):
        content["1"][key]["block1"] = content["1"][key]["block1"][:-50]


def _without_waits(content: Any) -> None:
    for epoch in epochs(content):
        epoch["load"]["block1"] = [0.0] * len(epoch["load"]["block1"])
        epoch["proc"]["block1"][0] += 2.0


def stamp(root: Path, **changes: Any) -> None:
    """Write provenance.json beside every run, as mlpstorage does, and submission.yaml."""
    for run in runs(root):
        workload = yaml.safe_load((run / "dlio_config/config.yaml").read_text())["workload"]
        core = {"algorithm": "core-config-v1", "allowlist": "training@1", "hash": core_config_hash(workload)}
        told = {"rules_edition": "3.0", "tool": {"code_image": f"md5-tree-v2:{CODE}"}, "dlio": {"version": "3.0.4"}}
        (run / "provenance.json").write_text(json.dumps({**told, "core_config": core, **changes}))
        edits(run.glob(META), put("provenance_file", "provenance.json"))
    org = organisation(root)
    listed = [{"leaf": str(path.relative_to(org))} for path in leaves(org)]
    (org / "submission.yaml").write_text(yaml.safe_dump({"rules_edition": "3.0", "runs": listed}))


def _stamped(**changes: Any) -> Change:
    return lambda root: stamp(root, **changes)


def _cut_block(content: Any) -> None:
    block = content["1"]["block1"]
    block["end"] = (datetime.fromisoformat(block["end"]) - timedelta(seconds=10)).isoformat()


def _override(word: str) -> Change:
    return lambda root: every(root, "overrides.yaml", lambda content: content.append(word))


def for_all(paths: Iterable[Path], change: Callable[[Path], object]) -> None:
    for path in paths:
        change(path)


def in_trained(pattern: str, content: str) -> Change:
    return lambda root: last(trained(root), pattern).write_text(content)


_BOMB = (
    "a0: &a0 {x: 1}\n"
    + "".join(f"a{n + 1}: &a{n + 1} {{x: *a{n}, y: *a{n}}}\n" for n in range(60))
    + "workload: *a60\n"
)


def _configs(content: str) -> Change:
    """Write another content into config.yaml of every run of training."""
    return lambda root: [(config_folder(run) / "config.yaml").write_text(content) for run in runs(root)]


_SEPARATE = "dataset.filesystem checkpoint.filesystem"
_STDEV = "record_length_bytes_stdev"
_SYSTEMS = "systems/*.yaml"
_RATES, _AU = "metric/train_throughput_samples_per_second", "metric/train_au_mean_percentage"
_DLIO_CONFIG = "dlio_config/config.yaml"
_LOGGED_AU = "[OUTPUT]\n[METRIC] Training Accelerator Utilization [AU] (%): 1.5000 (0.1000) \n"
_LOG_OF_DLEMU = "2026-11-21T14:56:14 dlemu 1 as a drop-in replacement for DLIO: train on 1 rank"
_OTHER_LOG = "2026-01-01T00:00:00.0 Running DLIO [Training] with 8 process(es)"
Row = tuple[str, str, Change]
_TREES: tuple[Row, ...] = (
    ("systems/ is gone", "submission.folders", lambda root: shutil.rmtree(organisation(root) / "systems")),
    ("a foreign folder at the top", "submission.top", lambda root: (root / "notes").mkdir()),
    ("a foreign folder of the organisation", "submission.folders submission.top",
     lambda root: (organisation(root) / "x").mkdir()),
    ("the organisation has a blank", "submission.name", lambda root: _renamed(organisation(root), "a b")),
    ("the code's image is gone", "submission.code code.image",
     lambda root: shutil.rmtree(found(root, ".code-hash.json")[0].parent)),
    ("no code, and nothing that names it", "submission.code", _without_code),
    ("a dataset in no time", "time.datagen", each(f"datagen/*/{META}", put("runtime", 2.0))),
    ("datagen goes on during the runs", "time.phases", each(f"datagen/*/{META}", put("runtime", 9e4))),
    ("a file was added to the code", "code.changed", _tampered_code),
    ("two images in one result", "code.mixed", _two_images),
    ("an image that is not there", "code.image",
     lambda root: [(run / ".mlps-code-image").write_text("md5-tree-v2:ff") for run in runs(root)]),
    ("metadata of checkpoints are gone", "files.checkpoint", lambda root: for_all(found(root, CALLS), Path.unlink)),
    ("a leaf names another edition", "edition.differs", in_last(META, put("edition", "2.0"))),
    ("provenance of another edition", "provenance.differs", _stamped(rules_edition="4.0")),
    ("provenance of another workload", "provenance.differs", _stamped(core_config={"hash": "0" * 16})),
    ("provenance of another code", "provenance.differs", _stamped(tool={"code_image": "md5-tree-v2:ff"})),
    ("provenance without DLIO", "provenance.broken", _stamped(dlio={})),
    ("provenance is gone", "provenance.broken", together(stamp, drop("provenance.json"))),
    ("a manifest of nothing", "submission.manifest",
     together(stamp, lambda root: (organisation(root) / "submission.yaml").write_text("runs: []"))),
    ("a benchmark that no edition has", "submission.category",
     lambda root: (_workload(root).parents[1] / "other").mkdir()),
    ("a workload that the edition has not", "submission.workload",
     lambda root: _workload(root).with_name("bert").mkdir()),
    ("a hidden run", "runs.hidden",
     lambda root: shutil.copytree(first(root), first(root).with_name(".20260301_110000"))),
    ("a file is a link", "tree.link", lambda root: (runs(root)[-1] / "notes.txt").symlink_to("/etc/hostname")),
    # descriptions of systems
    ("two groups of hosts for one", "systems.hosts",
     each(_SYSTEMS, lambda told: told["system_under_test"]["clients"].append(client()))),
    ("the pdf has 0 bytes", "files.empty", lambda root: found(root, "systems/*.pdf")[-1].write_bytes(b"")),
    ("the description has 0 bytes", "files.empty", lambda root: found(root, _SYSTEMS)[-1].write_bytes(b"")),
    ("no pdf", "error:systems.pdf", removed("systems/*.pdf")),
    ("a system without results", "systems.missing", _second_system),
    ("a description of something else", "systems.files",
     lambda root: found(root, _SYSTEMS)[0].write_text("other: 1")),
    ("notes in systems/", "systems.files", lambda root: found(root, _SYSTEMS)[0].with_suffix(".txt").write_text("x")),
    ("a folder in systems/", "systems.files", lambda root: found(root, _SYSTEMS)[0].with_name("old.md").mkdir()),
    ("a system of another name", "systems.name", _described("solution/submission_name", "other")),
    ("more hosts described than ran", "systems.hosts", _described("clients", [client(quantity=2)])),
    ("more memory described than there was", "systems.hosts", _described("clients", [client(16)])),
    ("a field still to fill in", "systems.unfilled", _described("deployment", "FILL IN")),
    # papers of a call
    ("metadata: []", "papers.missing", text(META, "[]")),
    ("metadata: {}", "papers.missing", text(META, "{}")),
    ("metadata without args", "papers.missing", in_last(META, gone("args"))),
    ("overrides.yaml: []", "papers.missing", text("dlio_config/overrides.yaml", "[]")),
    ("hydra.yaml: {}", "papers.missing", text("dlio_config/hydra.yaml", "{}")),
    ("config.yaml: {}", "papers.missing config.incomplete", text(_DLIO_CONFIG, "{}")),
    ("summary.json: {}", "summary.incomplete checkpoint.differs unapplied", text("summary.json", "{}")),
    ("results.json: []", "results.differ", lambda root: found(root, "results.json")[0].write_text("[]")),
    ("results.json: {}", "results.differ", lambda root: found(root, "results.json")[0].write_text("{}")),
    ("called INVALID", "division.differs", in_last(META, alter("verification", "INVALID"))),
    ("called OPEN", "division.differs", in_last(META, alter("verification", "OPEN"))),
    ("run as whatif", "division.differs", in_last(META, alter("args/mode", "whatif"))),
    ("it failed", "runs.exit", in_last(META, put("exit_status", 1))),
    ("the command had another override", "overrides.differ",
     in_last(META, put("executed_command", "mpirun dlio ++workload.reader.read_type=memory"))),
    ("another setting was asked for", "overrides.differ",
     in_last(META, put("args/params", ["reader.read_threads=4", "train.epochs=1"]))),
    ("the log printed another AU", "papers.differ", in_trained("dlio.log", _LOGGED_AU)),
    ("dlio.log has 0 bytes", "files.empty", lambda root: found(root, "dlio.log")[-1].write_bytes(b"")),
    ("stdout has 0 bytes", "files.empty", lambda root: found(root, "*_run.stdout.log")[-1].write_bytes(b"")),
    ("no sidecar of the file system", _SEPARATE, lambda root: last(root, "fs_separation.json").unlink()),
    ("one file system", _SEPARATE, in_last("fs_separation.json", alter("same_filesystem", True))),
    ("a rank's files are gone", "files.ranks",
     lambda root: for_all(last(root, "3_per_epoch_stats.json").parent.glob("3_*.json"), Path.unlink)),
    # what commands, logs and hosts tell
    ("a library is preloaded", "error:command.preload",
     metadata("executed_command", "mpirun -n 4 -x LD_PRELOAD=/opt/nosync.so -host n:4 dlio_benchmark")),
    ("an own DLIO runs", "warning:command.preload", metadata("args/mpi_params", ["-x", "PYTHONPATH=/home/me/dlio"])),
    ("files described, objects read", "papers.differ", config("storage", {"storage_type": "s3"})),
    ("the dataset is in memory", "data.memory", _in_memory),
    ("the drives read less than the run", "data.device", metadata("cluster_snapshots", drives(read_gib=900.0))),
    ("the log of another run", "papers.differ", _logged(_OTHER_LOG)),
    ("three ranks on one host and one on another", "hosts.uneven", _on_two_hosts),
    ("dlemu ran in DLIO's place", "error:tool.other", _logged(_LOG_OF_DLEMU)),
    # time
    ("in 2032", "time.year", _to_year(2032)),
    ("in 2016", "time.year", _to_year(2016)),
    ("epochs overlap", "time.order",
     in_run("*per_epoch_stats.json", lambda told: told["2"].update(start=told["1"]["start"]))),
    ("checkpoints overlap", "time.order", in_last("3_per_epoch_stats.json", _overlap)),
    ("datagen after the runs", "time.phases", _late("datagen")),
    ("datasize after the runs", "time.phases", _late("datasize")),
    ("the summary begins late", "time.order checkpoint.differs",
     in_last("summary.json", lambda told: told.update(start=later(told["start"], 60)))),
    ("the tool was shorter", "time.length", in_last(META, alter("runtime", 1.0))),
    ("called another day", "runs.misdated", in_last(META, alter("run_datetime", "20260201_010000"))),
    ("began another day", "runs.misdated", in_last(META, put("invocation_start_time", "2026-02-01T01:00:00"))),
    # copies
    ("a rank's steps are another's", "ranks.copied", _copied_rank(0.0)),
    ("a rank's steps nearly are another's", "ranks.copied", _copied_rank(1e-9)),
    ("an epoch's steps are another's", "ranks.copied", in_run("0_output.json", _copied_epoch)),
    ("an epoch's figures are another's", "epochs.copied", in_run("summary.json", _copied_figures)),
    ("a rank's stamps are another's", "ranks.copied rank.differs", _copied_stamps),
    ("block times are another run's", "runs.copied", _copied_times),
    # what is recomputed
    ("an AU below what the blocks took", "au.impossible", _without_steps("summary.json", _au(40.0))),
    ("an AU below the threshold", "au.low", _without_steps("summary.json", _au(89.0))),
    ("steps that waited as long as they computed", "au.low", waiting),
    ("blocks shorter than their steps", "blocks.short", _without_steps("*per_epoch_stats.json", _short_blocks)),
    ("a block ends before its steps", "blocks.short", in_first("1_per_epoch*", _cut_block)),
    ("prefetch hides slow first steps", "au.rules", _slow_first_steps),
    ("sums of training are forged", "results.differ", _sums("train_throughput_mean_samples_per_second")),
    ("sums of checkpoints are forged", "results.differ", _sums("save_checkpoint_io_mean_GB_per_second")),
    ("sums of a rehearsal are forged", "results.differ", _sums("save_gib_per_second")),
    ("sums without their AU", "results.differ", _sums("train_au_", None)),
    ("sums of checkpoints without a rate", "results.differ", _sums("save_", None)),
    # what can't be judged
    ("no AU", "summary.incomplete", in_run("summary.json", gone(_AU))),
    ("no metric", "summary.incomplete", summary("metric", [])),
    ("AU is NaN", "summary.incomplete", summary(_AU, float("nan"))),
    ("AU is text", "summary.incomplete", summary(_AU, "98.1")),
    ("negative accelerators", "summary.incomplete", summary("num_accelerators", -15)),
    ("config missing", "config.incomplete", 
     lambda root: for_all((run / _DLIO_CONFIG for run in runs(root)), Path.unlink)),
    ("config empty", "config.incomplete", _configs("")),
    ("config without train", "config.incomplete", lambda root: every(root, "config.yaml", gone("workload/train"))),
    ("config is a bomb", "config.incomplete", _configs(_BOMB)),
    ("an epoch has no rate", "epochs.count", in_last("summary.json", gone(f"{_RATES}/0"))),
    ("no samples/s of epochs", "summary.incomplete", in_run("summary.json", gone(_RATES))),
    ("no memory of the hosts", "summary.incomplete", in_run("summary.json", gone("host_memory_GB"))),
    ("a rank's file is cut", "file.broken", lambda root: (first(root) / "0_output.json").write_text("{")),
    # the dataset: 14,000 files of 146,600,628 bytes are 5 times 382.3 GiB
    ("memory just below the bound", "warning:dataset.near", summary("host_memory_GB", [381.5])),
    ("memory just above the bound", "error:dataset.size", summary("host_memory_GB", [384])),
    ("few files on unknown memory", "dataset.steps",
     together(summary("host_memory_GB", []), summary("num_files_train", 13_000),
              config("dataset/num_files_train", 13_000))),
    ("data beside results", "dataset.folder", metadata("args/results_dir", "/data/unet3d")),
    ("metadata without the dataset", "dataset.told", metadata("parameters", {})),
    ("a list for the data's folder", "dataset.folder", metadata("args/data_dir", ["/data"])),
    ("datagen made fewer files", "dataset.phases", files_of("datagen", 13_000)),
    ("datasize wanted more files", "dataset.made", files_of("datasize", 15_000)),
    ("datagen made files of one size", "dataset.differs",
     in_first(f"datagen/2*/{_DLIO_CONFIG}", put(f"workload/dataset/{_STDEV}", 0))),
    ("another dataset in one run", "dataset.differs",
     of_the_first("config.yaml", "workload/dataset/data_folder", "/b")),
    ("data and results on one file system", "error:dataset.filesystem",
     of_the_first("fs_separation.json", "same_filesystem", True)),
    ("a run without its sidecar", "error:dataset.filesystem", drop("fs_separation.json")),
    # settings
    ("another threshold", "settings.changed", config("metric/au", 0.85)),
    ("an override that no division allows", "overrides.unknown", _override("++workload.train.seed=7")),
    ("an override that OPEN allows", "overrides.open", _override("++workload.reader.data_loader=dali")),
    ("batches read ahead", "overrides.value", config("reader/prefetch_size", 16)),
    ("a number beyond all floats", "workload.differs workload.hash",
     config("checkpoint/checkpoint_after_epoch", 10**400)),
    ("direct I/O of another workload", "overrides.odirect",
     together(config("model/name", "retinanet"), config("reader/odirect", True))),
    ("an accelerator of another edition", "workload.unknown", lambda root: [
        (run / "dlio_config/overrides.yaml").write_text("- workload=unet3d_v100\n") for run in runs(root)]),
    ("a workload file with a setting more", "workload.hash", config("workflow/mine", True)),
    ("a reader with a setting more", "workload.differs", config("reader/preloaded", True)),
    ("other readers in one run", "runs.differ", of_the_first("config.yaml", "workload/reader/read_threads", 9)),
    # runs
    ("a run without its summary", "runs.ended", drop("summary.json")),
    ("a run that ended before it began", "runs.clock", of_the_first("summary.json", "end", "2001-01-01")),
    ("two hosts named for a run on one", "hosts.named", metadata("args/hosts", ["a", "b"])),
    ("three hosts for four ranks", "hosts.uneven", summary("num_hosts", 3)),
    ("a run is gone", "error:runs.count", lambda root: shutil.rmtree(runs(root)[-1])),
    ("a run is not named by its time", "runs.stamp", lambda root: _renamed(first(root), "x")),
    ("a day between two runs", "error:runs.gap", _a_day_later),
    # files and folders of training
    ("no sums of training", "files.results", removed("training/*/run/results.json")),
    ("a run without its log", "files.run", drop("dlio.log")),
    ("a run without its output", "files.run", drop("training_run.stdout.log")),
    ("a run without hydra.yaml", "files.run_config", drop("dlio_config/hydra.yaml")),
    ("one rank's steps are gone", "error:files.ranks", drop("3_output.json")),
    ("a foreign phase", "files.phases", lambda root: (_workload(root) / "old").mkdir()),
    ("no datasize", "files.datasize", lambda root: shutil.rmtree(_workload(root) / "datasize")),
    ("datagen without its log", "files.datagen", lambda root: (_made(root) / "dlio.log").unlink()),
    ("datagen without hydra.yaml", "files.datagen_config",
     lambda root: (_made(root) / "dlio_config/hydra.yaml").unlink()),
    ("two calls of datagen", "files.datagen_count",
     lambda root: shutil.copytree(_made(root), _made(root).with_name("20260101_000000"))),
    ("datagen is not named by its time", "files.datagen_stamp", lambda root: _renamed(_made(root), "x")),
    # checkpoints
    ("a model that no edition has", "checkpoint.model", _of_model("gpt-175b")),
    ("8 processes of a larger model", "checkpoint.subset", _of_model("llama3-70b")),
    ("of an edition that never synced", "checkpoint.unsynced", _of_v2),
    ("a call of checkpoints has no figures", "checkpoint.differs",
     in_first("checkpointing/*/2*/summary.json", gone("metric"))),
    ("checkpoints with a setting more", "checkpoint.settings",
     in_first(f"checkpointing/*/2*/{_DLIO_CONFIG}", put("workload/reader", {"preloaded": True}))),
)  # fmt: skip
_V2: tuple[Row, ...] = (
    ("rank 0 took fewer steps", "ranks.steps", in_last("0_output.json", _fewer_steps)),
    ("rank 0 never waited", "steps.parts", in_last("0_output.json", _without_waits)),
    ("ranks' hosts have more memory", "hosts.memory", each("*_output.json", put("host_memory_GB", 125.0))),
    ("more hosts' memory than hosts", "hosts.differ", summary("host_memory_GB", [2.0] * 4)),
    ("one run on another host", "hosts.changed",
     together(of_the_first("summary.json", "hostname", "n7"), of_the_first("*_output.json", "hostname", "n7"))),
    ("no checkpoint", "workflow.checkpoint", config("workflow/checkpoint", False)),
    ("a run without metadata", "files.metadata", drop(META)),
    ("a run without overrides.yaml", "files.run_config", drop("dlio_config/overrides.yaml")),
    ("five runs", "warning:runs.count", lambda root: shutil.rmtree(runs(root)[-1])),
    ("four runs", "error:runs.count", lambda root: for_all(runs(root)[:2], shutil.rmtree)),
    ("a day between two runs of v2.0", "warning:runs.gap", _a_day_later),
    ("one rank's steps are gone from v2.0", "warning:files.ranks", drop("3_output.json")),
    ("no pdf in v2.0", "warning:systems.pdf", removed("systems/*.pdf")),
    ("no AU in v2.0", "summary.incomplete", in_run("summary.json", gone(_AU))),
    ("config empty in v2.0", "config.incomplete", _configs("")),
    ("config is a bomb in v2.0", "config.incomplete", _configs(_BOMB)),
)  # fmt: skip
_KV: tuple[Row, ...] = (
    ("a rank's results are gone", "kv.missing", lambda root: kv(root, "option_2/trial_1").unlink()),
    ("the summary is gone", "kv.missing", removed("kv_cache/*/run/*/summary.json")),
    ("part of it failed", "kv.missing", _kv_summary(put("partial_failure", True))),
    ("an option is gone", "kv.missing", lambda root: shutil.rmtree(kv(root, "option_3").parents[2])),
    ("an option without its rate", "kv.missing", _kv_summary(gone("options/1/aggregated_read_bandwidth_gbps"))),
    ("a rank without its time", "kv.missing", _kv_rank(gone("summary/elapsed_time"))),
    *((f"no rank has {key}", "kv.missing", each("kvcache_results_*.json", gone(key))) for key in _OF_ALL_RANKS),
    ("an option failed in part", "kv.missing", _kv_summary(put("options/1/partial_failure", True))),
    ("an option without its p95", "unapplied", _kv_summary(gone("options/1/aggregated_p95_latency_ms"))),
    ("a published rate is forged", "kv.differs", _kv_summary(scale("options/1/aggregated_read_bandwidth_gbps", 1.05))),
    ("published tokens/s are forged", "kv.differs",
     _kv_summary(scale("options/1/aggregated_storage_throughput_tokens_per_sec", 1.05))),
    ("the published p95 is forged", "kv.differs", _kv_summary(scale("options/1/aggregated_p95_latency_ms", 0.5))),
    ("trials are summed", "kv.aggregate", _kv_summary(scale("options/1/aggregated_read_bandwidth_gbps", 3))),
    ("a rank's rate is forged", "kv.differs",
     _kv_rank(scale("summary/cache_stats/tier_storage_read_bandwidth_gbps", 1.05))),
    ("a rank's bytes are forged", "kv.differs",
     _kv_rank(scale("summary/cache_stats/tier_storage_kv_bytes_written_gb", 1.05))),
    ("requests are left out", "kv.differs", _kv_rank(gone("end_to_end_latencies/0"))),
    ("an option of more ranks", "kv.differs", _kv_summary(put("options/2/rank_count", 9))),
    ("fewer completed", "kv.differs", _kv_rank(alter("requests_completed", 7))),
    ("the waits are forged", "kv.differs", _kv_rank(_kv_waits)),
    ("tokens/s of a rank are forged", "kv.differs", _kv_tokens),
    ("the clock ran longer", "kv.settings", _kv_rank(alter("summary/elapsed_time", 600.0))),
    ("another seed", "kv.settings", _kv_rank(alter("seed", 7))),
    ("fewer users", "kv.settings", _kv_commands("--num-users 200", "--num-users 100")),
    ("fewer users in one trial", "kv.settings", _kv_commands("--num-users 200", "--num-users 100", 1)),
    ("users of one option's summary", "kv.settings", _kv_summary(put("options/3/num_users", 7))),
    ("memory in the summary", "kv.settings", _kv_summary(put("gpu_mem_gb", 16.0))),
    ("more memory", "kv.settings", _kv_commands("--cpu-mem-gb 4", "--cpu-mem-gb 64")),
    ("one trial", "kv.settings", _kv_meta(alter("args/trials", 1))),
    ("no pause", "kv.settings", _kv_meta(alter("args/inter_option_delay", 0))),
    ("an option that CLOSED has not", "kv.settings", _kv_commands("--duration", "--prefill-only --duration")),
    ("memory served reads", "kv.tiers", _kv_rank(put("summary/cache_stats/tier_cpu_kv_bytes_read_gb", 100.0))),
    ("tokens are counted twice", "kv.tokens", _kv_rank(scale("summary/cache_stats/storage_tokens_processed", 4))),
    ("a trial is another's copy", "kv.copied", lambda root: shutil.copy(kv(root), kv(root, "option_1/trial_1"))),
    ("the devices read less", "kv.device", _kv_meta(_less_work)),
    ("devices that no host has", "unapplied", _kv_meta(gone("cluster_snapshots"))),
    ("another number of ranks", "papers.differ kv.missing", _kv_meta(alter("num_processes", 4))),
    ("in the folder of another model", "papers.differ", _kv_meta(alter("model", "tiny-1b"))),
    ("another folder", "papers.differ", _kv_commands("/mnt/drive/kvcache", "/dev/shm/kvcache")),
    ("the tool was shorter", "time.length", _kv_meta(alter("runtime", 100.0))),
)  # fmt: skip
_CHECKPOINTS: tuple[Row, ...] = (
    ("no fsync", "checkpoint.fsync", setting("checkpoint/fsync", False)),
    ("ranks one after another", "checkpoint.staggered", _staggered),
    ("a DLIO of one's own", "tool.path", edited(META, put("args/dlio_bin_path", "/opt/dlio"))),
    ("fewer layers", "checkpoint.settings", setting("model/num_layers", 31)),
    ("a pause between them", "checkpoint.settings", setting("checkpoint/time_between_checkpoints", 60)),
    ("a run under another name", "runs.hidden", lambda folder: shutil.copytree(calls(folder)[0], folder / "old")),
    ("of another size", "checkpoint.size", setting("model/num_layers", 31)),
    ("a setting that no file has", "error:workload.hash", setting("checkpoint/unheard_of", False)),
    ("16 processes", "checkpoint.processes", processes(16)),
    ("two processes a host", "error:checkpoint.hosts", processes(8, hosts=4)),
    ("four processes a host", "warning:checkpoint.hosts", processes(8, hosts=2)),
    ("none read", "checkpoint.count", lambda folder: shutil.rmtree(calls(folder)[1])),
    ("none written", "checkpoint.count", lambda folder: shutil.rmtree(calls(folder)[0])),
    ("three calls", "checkpoint.calls", lambda folder: shutil.copytree(calls(folder)[1], folder / "20260713_120000")),
    ("half a minute between the calls", "error:checkpoint.gap", end("2026-07-13T10:55:10.0")),
    ("calls that overlap by the metadata", "warning:checkpoint.gap", ended_at("2026-07-13T10:55:50.0")),
    ("calls that overlap", "checkpoint.overlap", end("2026-07-13T10:55:50.0")),
    ("no end of reading", "checkpoint.duration", edited("summary.json", gone("end"), 1)),
    ("remapping that is not needed", "checkpoint.remap", _able(remap_time_in_seconds=5)),
    ("no remapping though it is needed", "checkpoint.remap", _able(simultaneous_read=False)),
    ("remapping in no time", "checkpoint.remap", _able(simultaneous_read=False, remap_time_in_seconds=50)),
    ("writing alone", "warning:checkpoint.simultaneous", _able(simultaneous_write=False, remap_time_in_seconds=5)),
    ("two hosts of a system for one", "error:checkpoint.simultaneous",
     together(processes(8, hosts=2), _able(multi_host=False))),
    ("no description", "systems.missing", lambda folder: _description(folder).unlink()),
    ("another override", "checkpoint.overrides", edited(META, put("override_parameters/checkpoint.fsync", True))),
    ("no accelerator", "checkpoint.accelerator", edited(META, put("accelerator", None))),
    ("an older accelerator", "checkpoint.accelerator", edited(META, put("accelerator", "v100"))),
    ("beside their results", "checkpoint.folder", edited(META, put("args/results_dir", "/mnt/llama3-8b/"))),
    ("a forged rate", "checkpoint.differs",
     edited("summary.json", put("metric/save_checkpoint_io_mean_GB_per_second", 9.9))),
    ("no ranks' files", "files.checkpoint",
     lambda folder: for_all(calls(folder)[0].glob("*_output.json"), Path.unlink)),
    ("no hydra.yaml", "files.checkpoint_config", lambda folder: (calls(folder)[0] / "dlio_config/hydra.yaml").unlink()),
    ("no sums", "files.checkpoint_results", lambda folder: (folder / "results.json").unlink()),
)  # fmt: skip


def _of_checkpoints(change: Change) -> Change:
    return lambda root: change(found(root, "checkpointing/*")[0])


def _kinds() -> Iterator[Forgery]:
    for name, rules, change in _TREES:
        yield Forgery(name, frozenset(rules.split()), change)
    for name, rules, change in _V2:
        yield Forgery(name, frozenset(rules.split()), change, edition="2.0")
    for name, rules, change in _KV:
        yield Forgery(f"kv: {name}", frozenset(rules.split()), change)
    for name, rules, change in _CHECKPOINTS:
        yield Forgery(f"checkpoints: {name}", frozenset(rules.split()), _of_checkpoints(change))
    fault = partial(patch.object, audited_run, "audit_run", side_effect=RuntimeError("a fault"))
    yield Forgery("the audit itself fails", frozenset({"audit.failed"}), runs, fault)


KINDS = tuple(_kinds())


# Every single fact of every paper, changed by itself.

_LONELY = frozenset(
    {
        *("made_by", "rehearsal", "run_result_output", "executed_command", "host_cpu_count", "num_files_eval"),
        *("args.hosts", "args.client_host_memory_in_gb", "system_info.num_hosts", "invocation_end_time", "edition"),
        *("host_processor_name", "potential_caching", "probed_at", "probed_by_host", "method", "version"),
        *("probed_by_rank", "data_or_chkpt_realpath", "results_realpath", "runtime", "override_parameters"),
    }
)
"""What only one paper tells, or what may honestly be otherwise: no other file can show that it was changed."""


def single_facts(root: Path) -> Iterator[Forgery]:
    """Yield a forgery for each value of each paper of one leaf of each benchmark and phase."""
    for pattern in (META, "summary.json", "fs_separation.json"):
        for leaf in {path.parent.parent: path for path in leaves(root)}.values():
            for path in leaf.glob(pattern):
                inside = path.relative_to(root)
                for keys, value in _values(json.loads(path.read_text()), ()):
                    where = ".".join(keys)
                    if where == "epochs" and "checkpointing" in inside.parts:
                        continue  # of checkpoints alone it says nothing
                    if not any(where == lonely or where.startswith(f"{lonely}.") for lonely in _LONELY):
                        yield _fact(inside, keys, value)


def _fact(inside: Path, keys: tuple[str, ...], value: Any) -> Forgery:
    name = f"{inside.parts[-4]}/{inside.parts[-3]} {inside.name.rpartition('_')[2]}: {'.'.join(keys)}"
    return Forgery(name, frozenset(), lambda root: edit(root / inside, alter("/".join(keys), _other(value))))


def _values(content: Any, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from _values(value, (*keys, key))
    elif content is not None and content != "" and not isinstance(content, list):
        yield keys, content


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value * 2 + 1
    if value.endswith(" kB"):
        return f"{int(value.removesuffix(' kB')) * 2} kB"
    try:
        return (datetime.fromisoformat(value) - timedelta(days=400)).isoformat()
    except ValueError:
        return str(int(value) + 7) if value.isdigit() else f"{value}x"
