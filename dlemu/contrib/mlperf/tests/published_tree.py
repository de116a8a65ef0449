"""A submission of v3.0 in the shape of one that was published: one drive in one host, all four benchmarks.

Shape and figures are those of github.com/mlcommons/storage_results_v3.0, closed/NewFW, drive D5-P5336, whose repository
states no licence: so nothing is copied, the files are written here, and of long lists (requests, processors) a few
entries. Of the six runs of training the first has its published figures; the others are a little slower each.
"""

from __future__ import annotations

import json
import statistics
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from dlemu.contrib.mlperf.tests import golden
from dlemu.contrib.mlperf.tests.foreign_runs import RECORD_BYTES, metric_of, workload_of, write
from tests.dlio import published_checkpoints as published

ORG, SYSTEM, FILES = "NewFW", "drive", 14_000
TYPED_AS = "Solidigm"
"""What the submitter had called itself when it ran: reviewers renamed the folder, not the files in it."""
RUNS = ("134711", "141606", "144505", "151401", "154257", "161152")
BLOCKS = ((17.434482, 332.873737), (351.266502, 331.746879), (684.015642, 331.998673), (1017.312055, 332.482832))
"""Begin of the first epochs in seconds after 13:47:00 of the first run, and how long their blocks took."""
AU = (97.58648093250396, 97.91948462493626, 97.8707628925002, 97.69198561)
RATES = (42.14605855498721, 42.29051059771409, 42.268794662472864, 42.19201467758779)
LAST = ((1351.068135, 332.382783), 97.72585336376429, 42.207267205232476)
MEM_KB = 395_565_124
TYPED = {"reader.read_threads": "4", "dataset.num_files_train": str(FILES), "reader.odirect": "True"}
OWN = {
    "dataset.skip_listing": "True",
    "dataset.listing_validation_interval": "10",
    "dataset.data_folder": "/mnt/drive/unet3d",
}
LEFT_OUT, RESULTS = "PRUNED BY STAFF\n", "/var/log/run/results"


def make_published(root: Path) -> Path:
    golden.make_result(root, system=SYSTEM)
    org = (root / "closed/acme").rename(root / "closed" / ORG)
    (root / "acme").rename(root / ORG)
    (root / ORG / ".mlps-image-pool").write_text("")
    golden.edit(org / f"systems/{SYSTEM}.yaml", _described)
    results = org / f"results/{SYSTEM}"
    for leaf in (results / "checkpointing/llama3-8b").glob("2*"):
        _as_published(leaf, "checkpointing", "run", 8)
    _training(results / "training/unet3d")
    make_kv(results / "kv_cache/llama3.1-8b/run")
    return root


def _described(told: Any) -> None:
    system = told["system_under_test"]
    system["solution"] |= {"usable_capacity_tib": 55.9, "availability": "available"}
    able = ("multi_host", "simultaneous_write", "simultaneous_read")
    system["solution"]["capabilities"] = {**dict.fromkeys(able, False), "remap_time_in_seconds": 22}


def _training(workload: Path) -> None:
    day = "20260712_"
    sized = workload / f"datasize/{day}133650"
    less = {"num_files_train": 13_806, "num_subfolders_train": 0, "total_disk_bytes": 2_023_968_270_168}
    configured = _workload({})
    configured["dataset"] |= {"data_folder": "data/unet3d/", "skip_listing": "True", **less}
    over = {"dataset.skip_listing": "True", **{f"dataset.{key}": value for key, value in less.items()}}
    _leaf(sized, "datasize", configured, over, typed={})
    made, kept = workload / f"datagen/{day}133654", _workload({**OWN, _FILES: str(FILES)})
    kept["workflow"] |= {"generate_data": True, "train": False}
    _leaf(made, "datagen", {key: kept[key] for key in _OF_DATAGEN}, OWN | {_FILES: str(FILES)})
    for number, time in enumerate(RUNS):
        leaf = workload / f"run/{day}{time}"
        _leaf(leaf, "run", _workload(TYPED | OWN), TYPED | OWN)
        _measured(leaf, number)
    sums = [json.loads(path.read_text())["metric"] for path in sorted(workload.glob("run/*/summary.json"))[1:]]
    means = ("train_throughput_mean_samples_per_second", "train_au_mean_percentage")
    write(workload / "run/results.json", {key: statistics.fmean(each[key] for each in sums) for key in means})


_FILES = "dataset.num_files_train"


def _workload(overrides: dict[str, str]) -> dict[str, Any]:
    """unet3d on b200 as its workload file has it, overrides as text, as the metadata keep them."""
    told = workload_of("v3", FILES, 5, 0.162)
    told["dataset"]["data_folder"] = "data/unet3d/"
    told["reader"] |= {"read_threads": 4, "multiprocessing_context": "fork"}
    told["workflow"]["checkpoint"] = False
    for key, value in overrides.items():
        section, _, name = key.partition(".")
        told[section][name] = value
    return told


def _leaf(
    leaf: Path, phase: str, workload: dict[str, Any], overrides: dict[str, Any], typed: dict[str, str] = TYPED
) -> None:
    leaf.mkdir(parents=True)
    args = {
        "benchmark": "training",
        **({} if phase == "datagen" else {"accelerator_type": "b200", "num_client_hosts": 1}),
        **({"num_accelerators": 1} if phase == "run" else {}),
        **({} if phase == "datasize" else {"data_dir": "/mnt/drive"}),
        "params": [f"{key}={value}" for key, value in typed.items()],
    }
    accelerator = None if phase == "datagen" else "b200"
    settings = {"parameters": workload, "override_parameters": overrides}
    golden.call_metadata(leaf, "training", "unet3d", phase, 1, args, accelerator=accelerator, **settings)
    if phase != "datasize":
        words = ["workload=unet3d_" + ("datagen" if phase == "datagen" else "b200")]
        words += [f"++workload.{key}={value}" for key, value in overrides.items()]
        parsed = {key: _parsed(value) for key, value in workload.items()}
        golden.configured(leaf, f"training_{phase}", parsed, words)
        places = {"data_or_chkpt_path": "/mnt/drive", "data_or_chkpt_realpath": "/mnt/drive"}
        write(leaf / "fs_separation.json", {**places, "results_path": RESULTS, "same_filesystem": False})
    _as_published(leaf, "training", phase, 1)


_OF_DATAGEN = ("model", "framework", "workflow", "dataset")


def _parsed(value: Any) -> Any:
    """What hydra makes of the words that the metadata keep."""
    if isinstance(value, dict):
        return {key: _parsed(each) for key, each in value.items()}
    return yaml.safe_load(value) if value in ("True", "False", "4", "10", str(FILES)) else value


def _utc(leaf: Path, seconds: int) -> str:
    """The moment so long after a call began, whose host's clock is 8 hours ahead."""
    moment = datetime.strptime(leaf.name, golden.STAMP) - timedelta(hours=8) + timedelta(seconds=seconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _as_published(leaf: Path, benchmark: str, phase: str, ranks: int) -> None:
    """Give a leaf what the tool of the round keeps of the hosts."""
    began = datetime.strptime(leaf.name, golden.STAMP)
    result = f"{RESULTS}/closed/{TYPED_AS}/{'/'.join(leaf.parts[-4:])}"
    runner = "dlio_benchmark" if phase != "datasize" else ""
    command = f"mpirun -n {ranks} -host 127.0.0.1:{ranks} --bind-to none --allow-run-as-root /opt/{runner}"
    kept = leaf / "dlio_config/overrides.yaml"
    command = " ".join([command, *(yaml.safe_load(kept.read_text()) if kept.exists() else ())])
    host = {"hostname": published.HOST, "memory": {"total": MEM_KB * 1024}, "disks": []}
    seen: dict[str, Any] = {"total_memory_bytes": MEM_KB * 1024, "num_hosts": 1, "hosts": [host]}
    seen |= {"collection_timestamp": _utc(leaf, 2)}

    def told(metadata: Any) -> None:
        args: dict[str, Any] = {"mode": "closed", "benchmark": benchmark, "command": phase, "num_processes": ranks}
        args |= {"hosts": ["127.0.0.1"], "client_host_memory_in_gb": 377.0, "num_client_hosts": 1}
        args |= {"results_dir": RESULTS, "data_access_protocol": "file"}
        metadata["args"] |= {**args, "systemname": SYSTEM, "orgname": TYPED_AS}
        metadata |= {
            "result_dir": result,
            "system_info": seen,
            "cluster_snapshots": {"start": seen, "end": seen},
            "runtime": 1670.9677176475525 if phase == "run" and benchmark == "training" else 397.6347727775574,
            "invocation_start_time": golden.moment(began + timedelta(seconds=0.195328)),
            "verification": "CLOSED" if phase != "datasize" else None,
            "executed_command": command if phase != "datasize" else None,
            "command_output_files": [{"command": command}] if phase != "datasize" else [],
        }
        if benchmark == "checkpointing":
            metadata["args"] |= {"results_dir": "/root/results"}
            metadata["accelerator"] = None

    golden.edit(leaf / f"{benchmark}_{leaf.name}_metadata.json", told)
    (leaf / "collector-staging").mkdir()
    staged = {"hostname": published.HOST, "meminfo": {"MemTotal": MEM_KB}}
    write(leaf / "collector-staging/cluster_info.json", {published.HOST: staged})


def _measured(leaf: Path, number: int) -> None:
    """One run's summary and block times; the steps were too large to publish."""
    began = datetime(2026, 7, 12, 13, 47)
    shift = datetime.strptime(leaf.name, golden.STAMP) - datetime(2026, 7, 12, 13, 47, 11)
    slower = 1 + number * 2e-5
    stats, end = {}, began
    for epoch, (after, taken) in enumerate((*BLOCKS, LAST[0]), 1):
        start = began + shift + timedelta(seconds=after)
        end = start + timedelta(seconds=taken * slower)
        block = {"start": golden.moment(start), "end": golden.moment(end), "duration": f"{taken * slower:.2f}"}
        stats[str(epoch)] = {
            "start": golden.moment(start - timedelta(microseconds=230)),
            "block1": block,
            "end": golden.moment(end + timedelta(seconds=0.75)),
            "duration": f"{taken * slower:.2f}",
        }
    write(leaf / "0_per_epoch_stats.json", stats)
    (leaf / "0_output.json").write_text(LEFT_OUT)
    au = [each / slower for each in (*AU, LAST[1])]
    rates = [each / slower for each in (*RATES, LAST[2])]
    counts = {"num_accelerators": 1, "num_hosts": 1, "num_files_train": FILES, "num_files_eval": 0}
    summary = {
        **counts,
        "start": golden.moment(began + shift + timedelta(seconds=15.911742)),
        "hostname": published.HOST,
        "metric": metric_of(au, rates),
        "num_samples_per_file": 1,
        "host_cpu_count": [384],
        "host_processor_name": "x86_64",
        "potential_caching": [0],
        "host_meminfo": {"MemTotal": f"{MEM_KB} kB"},
        "host_memory_GB": [MEM_KB / 2**20],
        "data_size_per_host_GB": FILES * RECORD_BYTES / 2**30,
        "epochs": 5,
        "end": golden.moment(end + timedelta(seconds=0.752)),
    }
    write(leaf / "summary.json", summary)


KV_STAMP = "20260712_182110"
_70B = "llama3.1-70b-instruct"
KV = {
    # option: (model, users, GiB of memory, allocations; slowest request, requests in all, then by class; GiB; tokens)
    1: ("llama3.1-8b", 200, 0, 16, 375.91765, 918, (736, 79, 103), (2356.6094970703125, 537.9111328125), 23_666_129),
    2: ("llama3.1-8b", 100, 4, 16, 295.55781, 1211, (1108, 39, 64), (621.2816162109375, 695.8587646484375), 10_766_714),
    3: (_70B, 70, 0, 4, 341.415, 354, (293, 19, 42), (2161.124267578125, 438.11553955078125), 8_447_132),
}
KV_CLOCK, KV_CPU_READ_GIB = 300.0001, 3713.760986328125
KV_BUSY_SECONDS = 3214.0


def make_kv(run: Path, ranks: int = 1) -> Path:
    """Write a run of kv_cache: the first trial of each option as published, the others a little slower."""
    leaf = run / KV_STAMP
    options, moved, commands = {}, [0.0, 0.0], []
    for option, (model, users, memory, allocations, *_) in KV.items():
        parts = []
        for trial in range(3):
            for rank in range(ranks):
                told = _kv_rank(option, trial, rank)
                folder = leaf / f"option_{option}/trial_{trial}/rank_{rank}"
                folder.mkdir(parents=True)
                write(folder / f"kvcache_results_20260712_18{option}{trial}00.json", told)
                parts.append((trial, told["summary"]))
                for way, name in enumerate(("read", "written")):
                    moved[way] += told["summary"]["cache_stats"][f"tier_storage_kv_bytes_{name}_gb"]
            base = f"{RESULTS}/option_{option}/trial_{trial}"
            words = f"--model {model} --num-users {users} --duration 300 --gpu-mem-gb 0 --cpu-mem-gb {memory}"
            words += f" --max-concurrent-allocs {allocations} --generation-mode none"
            start = (
                f"mpirun -n {ranks} mlperf_wrapper.py --rank-output-base {base} --rank-cache-base /mnt/drive/kvcache"
            )
            commands.append({"command": f"{start} --seed-base 42 --config kv.yaml {words}"})
        options[str(option)] = _kv_sums(option, parts, ranks)
    summary = {"schema_version": "1.0", "run_datetime": KV_STAMP, "npernode": ranks, "host_count": 1}
    summary |= {"total_ranks": ranks, "trials_per_option": 3, "options": options}
    write(leaf / "summary.json", {**summary, "partial_failure": False, "trial_failures": {}})
    args = {"trials": 3, "seed": 42, "inter_option_delay": 90, "enable_autoscaling": True, "config_file": None}
    place = {"cache_dir": "/mnt/drive/kvcache"}
    parameters = {"model": "llama3.1-8b", "num_users": 100, "duration": 60, **place}
    path = golden.call_metadata(
        leaf, "kv_cache", "llama3.1-8b", "run", ranks, place | args, parameters=parameters, **place
    )
    _as_published(leaf, "kv_cache", "run", ranks)
    disk: dict[str, Any] = {"device_name": "nvme1n1", "sectors_read": 0, "sectors_written": 0}
    disk |= {"time_doing_ios_ms": 26_468_753}
    after: dict[str, Any] = {"time_doing_ios_ms": disk["time_doing_ios_ms"] + int(KV_BUSY_SECONDS * 1e3)}
    after |= {f"sectors_{way}": int(gib * 2**21) for way, gib in zip(("read", "written"), moved, strict=True)}

    def measured(told: Any) -> None:
        host = {"hostname": published.HOST, "memory": {"total": MEM_KB * 1024}}
        for moment, counters in (("start", disk), ("end", disk | after)):
            part = {**counters, "device_name": "nvme1n1p1"}
            told["cluster_snapshots"][moment] = {"hosts": [{**host, "disks": [counters, part]}]}
        told |= {"verification": None, "runtime": 5113.856439828873, "command_output_files": commands}
        told["executed_command"] = commands[-1]["command"]
        told["args"]["benchmark"] = "kvcache"

    golden.edit(path, measured)
    return leaf


def _kv_rank(option: int, trial: int, rank: int) -> dict[str, Any]:
    _, _, memory, _, slowest, requests, classes, (read, written), tokens = KV[option]
    slower = 1 + trial * 1e-3 + rank * 1e-4
    latencies = [slowest * slower * (place + 1) / requests for place in range(requests)]
    names = ("interactive", "responsive", "batch")
    qos = {
        name: {
            "total_requests": many,
            "latency_ms": {"p95": 1e3 * slowest * 0.95, "max": 1e3 * slowest * slower if name == names[0] else 1.0},
            "sla": {"target_p95_ms": 50, "compliance": 0.0, "met": False},
        }
        for name, many in zip(names, classes, strict=True)
    }
    moved = {"read": read / slower, "written": written / slower}
    stats = {
        "gpu_entries": 0,
        "cpu_entries": 3 if memory else 0,
        "storage_entries": 924,
        "tier_gpu_kv_bytes_read_gb": 0.0,
        "tier_cpu_kv_bytes_read_gb": KV_CPU_READ_GIB if memory else 0.0,
        "storage_tokens_processed": tokens / slower,
        "storage_read_device_p95_ms": 5153.179368302516 * slower,
        "storage_write_device_p95_ms": 199.02336364611978 * slower,
        "storage_health": {"overall_status": "FAIL"},
        **{f"tier_storage_kv_bytes_{way}_gb": gib for way, gib in moved.items()},
        "tier_storage_read_bandwidth_gbps": moved["read"] / KV_CLOCK,
        "tier_storage_write_bandwidth_gbps": moved["written"] / KV_CLOCK,
    }
    summary = {
        "total_requests": requests,
        "total_tokens": 483.15317782319624 / slower * KV_CLOCK,
        "total_storage_io_time": 483.15317782319624 / 8.069116150082497 * KV_CLOCK,
        "elapsed_time": KV_CLOCK,
        "avg_throughput_tokens_per_sec": 483.15317782319624 / slower,
        "storage_throughput_tokens_per_sec": 8.069116150082497 / slower,
        "storage_io_latency_ms": {"p95": 60387.150851514874 * slower},
        "cache_stats": stats,
        "qos_metrics": qos,
    }
    return {"requests_completed": requests, "end_to_end_latencies": latencies, "seed": 42 + rank, "summary": summary}


def _kv_sums(option: int, parts: list[tuple[int, dict[str, Any]]], ranks: int) -> dict[str, Any]:
    def mean(value: Any) -> float:
        return float(sum(value(told) for _, told in parts) / 3)

    return {
        "option": option,
        "aggregated_read_bandwidth_gbps": mean(lambda told: told["cache_stats"]["tier_storage_read_bandwidth_gbps"]),
        "aggregated_write_bandwidth_gbps": mean(lambda told: told["cache_stats"]["tier_storage_write_bandwidth_gbps"]),
        "aggregated_avg_throughput_tokens_per_sec": mean(lambda told: told["avg_throughput_tokens_per_sec"]),
        "aggregated_storage_throughput_tokens_per_sec": mean(lambda told: told["storage_throughput_tokens_per_sec"]),
        "aggregated_p95_latency_ms": max(told["storage_io_latency_ms"]["p95"] for _, told in parts),
        "rank_count": ranks,
        "trial_count": 3,
        "partial_failure": False,
        "missing_files": [],
        "cpu_tier_ranks": [],
    }
