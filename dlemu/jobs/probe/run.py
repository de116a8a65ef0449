"""`dlemu probe`: checks the target, measures cell by cell, and saves probe.json after each cell."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import product

from datagen.errors import SpaceError, UserError
from dlemu.jobs.probe.probe_file import probe_file
from dlemu.jobs.probe.requests import choose_engine, measure_cell
from dlemu.jobs.probe.result import PROBE, Access, CellSpec, ProbeAnswer, ProbeCell
from dlemu.machine.environment import StorageFacts, describe_folder, describe_host, existing_folder
from dlemu.metrics.cache import IN_MEMORY
from dlemu.metrics.t_interval import MAX_ROUNDS, WINDOW, is_steady
from dlemu.report.units import size
from dlemu.results.answer_files import decode_versioned, save_answer
from dlemu.results.drive import Rate, Rates
from dlemu.results.parts import Environment
from dlemu.results.wording import count
from dlemu.runner.events import Doing, NotSaved, OnEvent, PartMeasured, ignore
from dlemu.runner.run_folder import check_new, new_folder

FILE_BYTES = 4 << 30  # default size of the file that is created in a folder
SIZES = (4 << 10, 16 << 10, 128 << 10, 1 << 20)  # default sizes of requests, bytes
DEPTHS = (1, 8, 32, 128)  # default queue depths


def probe_target(
    target: str,
    *,
    accesses: Sequence[Access] = (),
    sizes: Sequence[int] = (),
    depths: Sequence[int] = (),
    jobs: Sequence[int] = (),
    seconds: float = 2.0,
    engine: str = "auto",
    file_bytes: int | None = None,
    steady: bool = False,
    folder: str = "",
    on_event: OnEvent = ignore,
) -> tuple[ProbeAnswer, str]:
    """Measure each combination of access, size, jobs and depth on a folder or file; return answer and result folder.

    In a folder, a test file of `file_bytes` (None: 4 GiB, or more if requests need it) is created and removed; an
    existing file is only read. `steady`: repeat each write until steady. Raises UserError, SpaceError, DlemuError.
    """
    if "://" in target:
        raise UserError(
            f"{target} is no folder or file: wanted one of a mounted storage; `dlemu predict workload=NAME "
            "storage.storage_type=s3 storage.storage_root=BUCKET` measures a bucket by the workload's own reads"
        )
    combinations = product(accesses or ("randread",), sizes or SIZES, jobs or (1,), depths or DEPTHS)
    cell_specs = [
        CellSpec(access=access, size_bytes=size_bytes, depth=depth, jobs=num_jobs)
        for access, size_bytes, num_jobs, depth in combinations
    ]
    if steady and not any(cell_spec.writes for cell_spec in cell_specs):
        raise UserError("--steady is for writes: wanted --rw randwrite or write")
    folder = folder or new_folder("probe")
    check_new(folder, "--output")
    target = os.path.abspath(target)
    used_engine = choose_engine(engine)
    storage = describe_folder(existing_folder(target))
    answer = ProbeAnswer(
        complete=False,
        target=target,
        engine=used_engine,
        environment=Environment(hosts=(describe_host(),), storage=storage),
        cells=(),
        started_at=datetime.now(UTC).astimezone().isoformat(timespec="milliseconds"),
    )
    _check_target(target, cell_specs)
    size_bytes = _test_file_bytes(target, cell_specs, file_bytes)
    with contextlib.nullcontext(target) if os.path.isfile(target) else probe_file(target, size_bytes) as path:
        _check_direct(path)
        for cell_spec in cell_specs:
            measure = partial(measure_cell, cell_spec, path, size_bytes, seconds, used_engine)
            cell = _until_steady(measure, on_event) if steady and cell_spec.writes else measure()
            answer = replace(answer, cells=(*answer.cells, cell))
            with contextlib.suppress(SpaceError):  # if the disk stays full, saving at the end reports it
                save_answer(folder, PROBE, answer)
            requests = f"{cell.access} {cell.size_bytes / 1024:,.0f} KiB x {cell.in_flight}"
            on_event(PartMeasured(cell, f"{requests}: {cell.mb_per_second:,.1f} MB/s, {cell.iops:,.0f} /s"))
    issues = tuple(_issues(answer, storage, lacks_fio=engine == "auto" and used_engine == "threads"))
    answer = replace(answer, complete=True, issues=issues)
    try:
        save_answer(folder, PROBE, answer)
    except SpaceError:
        on_event(NotSaved("probe", answer))
        raise
    return answer, folder


def _issues(answer: ProbeAnswer, storage: StorageFacts, *, lacks_fio: bool) -> Iterator[str]:
    """Yield what restricts the meaning of the cells, as sentences."""
    if storage.file_system in IN_MEMORY:
        yield f"{storage.folder} is {storage.file_system}, which is memory: no storage was measured"
    if any(cell.writes and cell.steady is None for cell in answer.cells):
        yield (
            "it is not known whether writes had reached their steady state, and a fresh SSD writes faster than a used "
            "one: --steady repeats each write until it has"
        )
    if unsteady := sum(cell.steady is False for cell in answer.cells):
        yield f"not steady after {MAX_ROUNDS} rounds: {count(unsteady, 'write')}"
    if lacks_fio:
        yield "fio is not installed: dlemu's own threads sent the requests"


def _until_steady(measure: Callable[[], ProbeCell], on_event: OnEvent) -> ProbeCell:
    """Repeat a write until steady (at most MAX_ROUNDS); return its last cell with the mean rate of the last WINDOW."""
    rates: list[float] = []
    while len(rates) < MAX_ROUNDS and not is_steady(rates):
        cell = measure()
        rates.append(cell.mb_per_second)
        on_event(Doing(f"round {len(rates)} of at most {MAX_ROUNDS}: {cell.mb_per_second:,.1f} MB/s"))
    mean = sum(rates[-WINDOW:]) / WINDOW  # MB/s
    return replace(cell, mb_per_second=mean, iops=mean * 1e6 / cell.size_bytes, steady=is_steady(rates))


def _check_target(target: str, cell_specs: Sequence[CellSpec]) -> None:
    """Raise UserError for unaligned requests, and unless the target is a folder, or a file that is only read."""
    if unaligned := [spec.size_bytes for spec in cell_specs if spec.size_bytes % 512 or spec.size_bytes < 512]:
        raise UserError(f"a request of {unaligned[0]} bytes can't bypass the page cache: wanted a multiple of 512")
    if not os.path.exists(target):
        raise UserError(f"{target} does not exist: wanted a folder of the storage, or a file to read")
    if os.path.isfile(target):
        if any(spec.writes for spec in cell_specs):
            raise UserError(
                f"{target} is a file, and a probe that writes would destroy it: name a folder, where it makes one"
            )
    elif not os.path.isdir(target):
        raise UserError(
            f"{target} is a device, a pipe or a socket: wanted a folder of the storage, or a file to read; fio "
            "measures devices without a file system"
        )


def _test_file_bytes(target: str, cell_specs: Sequence[CellSpec], file_bytes: int | None) -> int:
    """Return the size of the target file, or of the one to create; UserError if too small, SpaceError without room."""
    min_bytes = max(spec.size_bytes * spec.jobs for spec in cell_specs)  # room for a request of each sequential job
    if os.path.isfile(target):
        size_bytes = os.path.getsize(target)
    else:
        size_bytes = max(FILE_BYTES, min_bytes) if file_bytes is None else file_bytes
        free_bytes = shutil.disk_usage(target).free
        if free_bytes < 1.1 * size_bytes:  # leaves 10 % for metadata and other writers
            space = f"{target} has {size(free_bytes)} free, the file to read needs {size(size_bytes)}"
            raise SpaceError(f"{space}: free some space, or set a smaller --file-size")
    if size_bytes < min_bytes:
        raise UserError(
            f"a test file of {size(size_bytes)} is too small for the largest request of each job: wanted at least "
            f"{size(min_bytes)}, by --file-size or in the file that is named"
        )
    return size_bytes


def _check_direct(path: str) -> None:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError as error:
        raise UserError(
            f"{path} can't be read with O_DIRECT ({error.strerror}): a probe of it would measure memory; name "
            "another folder"
        ) from None


def read_rates(folder: str) -> Rates:
    """Return the rates of a saved probe, preferably of random reads (training) and sequential writes (checkpoints)."""
    probe = decode_versioned(os.path.join(folder, PROBE), ProbeAnswer)
    rates: dict[str, list[Rate]] = {}
    for cell in probe.cells:
        if min(cell.iops, cell.in_flight, cell.size_bytes) > 0:
            rate = Rate(size_bytes=cell.size_bytes, depth=cell.in_flight, per_second=cell.iops)
            rates.setdefault(cell.access, []).append(rate)
    reads = tuple(rates.get("randread") or rates.get("read") or ())
    writes = tuple(rates.get("write") or rates.get("randwrite") or ())
    if not reads and not writes:
        raise UserError(f"{folder} has no reads and no writes: wanted a probe with --rw randread, read or write")
    return Rates(f"a probe of {probe.target}", reads, writes)
