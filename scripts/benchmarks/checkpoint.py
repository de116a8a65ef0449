"""checkpoint: 8 ranks write and read llama3_8b, compared with a program with ready buffers; and null storage."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

from measuring.runs import section

from benchmarks.bench import Bench
from benchmarks.figure import Figure, Unmeasured, alone, compare, each, ratio_at_least, ratio_at_most, value_at_most
from benchmarks.peer import Peer, PeerFailed, PeerSaved
from dlemu.checkpoints.checkpoint_plan import plan_checkpoint
from dlemu.checkpoints.io_rows import WRITE
from dlemu.config import load
from dlemu.jobs.checkpoint.run import CHECKPOINTS

WORKLOAD = "workload=llama3_8b", "scale=laptop"
RANKS = 8
ROUNDS = 5
NUM_CHECKPOINTS = 3
MODELS = {"llama3_8b": 8, "llama3_70b": 64, "llama3_405b": 512, "llama3_1t": 1024}
TRANSFER_BYTES = 8 << 20
PEER_WORKLOAD = "llama_8b_zero3"
"""DLIO's workload of the same model, in its sources of 2026; release 2.0.0 has no model that is defined by layers."""
SHRUNKEN = {"vocab_size": 8016, "hidden_size": 256, "ffn_hidden_size": 896}
PEER_ROUNDS = 3
READERS = 4


class TransferRates(NamedTuple):
    """Rates and CPU times of dlemu, or of the plain program."""

    write_gb_per_second: float
    read_gb_per_second: float
    write_cpu: float
    """CPU seconds per 1e9 bytes."""
    read_cpu: float
    write_cpu_less_content: float
    """The same without generating the bytes, which the plain program does not do."""


def measure(bench: Bench) -> Iterator[Figure | Unmeasured]:
    """Measure files of 44 and 10 MB, buffered and direct; then plan every model, and write it to null storage."""
    _by_plain(bench, False)  # in a virtual machine, the first program to fill so much memory is slow
    for name, direct in (("page cache", False), ("O_DIRECT", True)):
        rounds = bench.interleaved(ROUNDS, partial(_by_dlemu, bench, direct), partial(_by_plain, bench, direct))
        yield from _figures(name, rounds)
    if bench.peer is not None:
        yield from _beside_peer(bench, bench.peer)
    for workload, ranks in MODELS.items():
        done = bench.plain("null_checkpoint", workload, ranks)
        size = f"{workload}, {ranks} ranks"
        yield alone(f"plan {size}", "s", [done["plan_seconds"]], value_at_most(2))
        yield alone(f"memory of a rank, {size}", "MB", [done["memory_mb"]], value_at_most(300))
        yield alone(f"null storage, a rank of {workload}", "GB/s", [done["gb_per_second"]], None)


def _figures(name: str, rounds: list[tuple[TransferRates, ...]]) -> Iterator[Figure]:
    yield from each(
        rounds,
        "ready buffers, plain calls",
        (f"write, {name}, 8 ranks", "GB/s", "write_gb_per_second", ratio_at_least(0.95)),
        (f"read, {name}, 8 ranks", "GB/s", "read_gb_per_second", ratio_at_least(0.9)),
        (f"write, CPU, {name}, 8 ranks", "s/GB", "write_cpu", ratio_at_most(1.3)),
        (f"write, CPU less content, {name}, 8 ranks", "s/GB", "write_cpu_less_content", ratio_at_most(1.3)),
        (f"read, CPU, {name}, 8 ranks", "s/GB", "read_cpu", ratio_at_most(1.3)),
    )


def _beside_peer(bench: Bench, peer: Peer) -> Iterator[Figure | Unmeasured]:
    """Compare with DLIO on the same shrunken model, from the page cache and without fsync, which DLIO does not call."""
    by_peer = partial(peer.save, os.path.join(bench.folder, "peer"), PEER_WORKLOAD, SHRUNKEN, 8, bench.rounds(3))
    try:
        rounds = bench.interleaved(PEER_ROUNDS, partial(_as_peer, bench), by_peer)
    except PeerFailed as error:
        yield Unmeasured(what="a model's checkpoints", who="DLIO", why=str(error))
        return
    finally:
        shutil.rmtree(os.path.join(bench.folder, "peer"), ignore_errors=True)
    for what, unit, field, scale, wanted in (
        ("seconds to the first checkpoint", "s", "seconds_to_first", 1.0, None),
        ("write, page cache without fsync, rank 0", "GiB/s", "write_gib_per_second", 1.0, None),
        ("read, page cache, rank 0", "GiB/s", "read_gib_per_second", 1.0, None),
        ("memory of all ranks", "MB", "pss_bytes", 1e-6, ratio_at_most(0.2)),
    ):
        pairs = [(scale * getattr(own, field), scale * getattr(other, field)) for own, other in rounds]
        yield compare(what, unit, pairs, "DLIO, the same model", wanted)


def _as_peer(bench: Bench) -> PeerSaved:
    folder, result = os.path.join(bench.folder, "saved"), os.path.join(bench.folder, "result")
    arguments = [
        *("checkpoint", "workload=llama3_8b", "output.report=false", f"output.folder={result}"),
        *(f"model.transformer.{name}={value}" for name, value in SHRUNKEN.items()),
        *section("checkpoint", checkpoint_folder=folder, num_checkpoints_write=bench.rounds(3)),
        *section("checkpoint", num_checkpoints_read=bench.rounds(3)),
        *("checkpoint.time_between_checkpoints=0", "checkpoint.fsync=false", "checkpoint.evict_page_cache=false"),
    ]
    start = time.time()
    ended = bench.dlemu(*arguments)
    done = CHECKPOINTS.read(result)
    write, read = done.summary.write, done.summary.read
    assert write is not None
    assert read is not None
    first_ns = int(done.whole["began_ns"].min()) + done.facts.journal.wall_clock_offset_ns
    shutil.rmtree(folder)
    shutil.rmtree(result)
    rates = (fmean(times.rank0_gib_per_second for times in phase.checkpoints) for phase in (write, read))
    return PeerSaved(first_ns / 1e9 - start, *rates, ended.pss_bytes)


def _by_dlemu(bench: Bench, direct: bool) -> TransferRates:
    folder, result = os.path.join(bench.folder, "saved"), os.path.join(bench.folder, "result")
    arguments = [
        *("checkpoint", *WORKLOAD, "output.report=false", f"output.folder={result}"),
        *section("checkpoint", checkpoint_folder=folder, num_checkpoints_write=bench.rounds(NUM_CHECKPOINTS)),
        *section("checkpoint", num_checkpoints_read=bench.rounds(NUM_CHECKPOINTS), odirect=direct, readers=READERS),
        *section("checkpoint", transfer_size=TRANSFER_BYTES),
        "metric.ceiling_seconds=0",
    ]
    bench.dlemu(*arguments)
    with open(os.path.join(result, "summary.json")) as lines:
        summary: dict[str, Any] = json.load(lines)
    whole = CHECKPOINTS.read(result).whole
    written = whole[whole["phase"] == WRITE]
    content = float((written["cpu_ns"] - written["mover_cpu_ns"]).sum()) / float(written["bytes"].sum())
    shutil.rmtree(folder)
    shutil.rmtree(result)
    write, read = summary["write"], summary["read"]
    return TransferRates(
        write["wall_gb_per_second"],
        read["wall_gb_per_second"],
        write["cpu_seconds_per_gb"],
        read["cpu_seconds_per_gb"],
        write["cpu_seconds_per_gb"] - content,
    )


def _by_plain(bench: Bench, direct: bool) -> TransferRates:
    """Write, drop from the page cache, and read the same files by the same calls, with ready buffers."""
    folder = os.path.join(bench.folder, "plain")
    workload = load(WORKLOAD)
    plan = plan_checkpoint(workload.model, workload.checkpoint, RANKS)
    sizes = [",".join(str(layout.size_bytes) for layout in plan.files(rank)) for rank in plan.ranks]
    arguments = (folder, int(direct), bench.rounds(NUM_CHECKPOINTS), READERS, TRANSFER_BYTES)
    done = bench.plain("plain_checkpoint", *arguments, *sizes)
    shutil.rmtree(folder)
    write, read = done["write"], done["read"]
    return TransferRates(_rate(write), _rate(read), _cpu(write), _cpu(read), _cpu(write))


def _rate(part: dict[str, float]) -> float:
    return part["bytes"] / 1e9 / part["wall_seconds"]


def _cpu(part: dict[str, float]) -> float:
    return part["cpu_seconds"] / (part["bytes"] / 1e9)
