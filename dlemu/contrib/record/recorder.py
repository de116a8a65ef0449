"""The recorder that runs inside a training job: measures how each batch is loaded and used (docs/record.md).

`dlemu record -- COMMAND` makes the job load a copy of this file as `sitecustomize`; where a launcher drops the
environment, `import dlemu.contrib.record.recorder` as the script's first line does the same. It imports only the
standard library, and runs on Python 3.9 and later, with PyTorch 2.0 and later.

Functions of PyTorch and other libraries are wrapped when their modules are imported. Each process appends its
measurements, one JSON object (a row) per line, to a file of its own. Recording ends with the window: a number of
batches or minutes.

The recorder must never break, slow or outlive the job. So: nothing happens before PyTorch's loader is imported; a row
is one write; no threads, nothing at exit; an error in here ends the recording of its process with one warning.

Times are CLOCK_MONOTONIC in ns, which all processes of a host share.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

FOLDER = "DLEMU_RECORD"
"""Environment variable with the folder for rows. The next three set the window: batches, minutes, warm-up batches."""
STEPS = "DLEMU_RECORD_STEPS"
MINUTES = "DLEMU_RECORD_MINUTES"
SKIP = "DLEMU_RECORD_SKIP"
ROWS_VERSION = 1
ENDING = ".jsonl"
DEFAULT_FOLDER = "dlemu-record"
"""Folder for rows, below the current one, where the environment has no FOLDER."""
DEFAULT_MINUTES = 10.0  # hundreds of batches, enough for quantiles, even if a step takes a second

_MODULE = "_dlemu_record"
"""Name of this module in sys.modules, however it was imported, and of its attribute on loaders and iterators."""
_MAX_ROW_BYTES = 256 << 20  # hundreds of thousands of batches; recording must not fill the disk
_MAX_FILES = 2000
"""File names that a process records at most: enough for a dataset with a folder per class."""
_HAND_OVER_BYTES = 16384  # more than the messages about a batch of 64 tensors; pyarrow reads more in threads of its own
_MAX_PENDING = 256
"""Steps with pending GPU events at most; beyond that the oldest is dropped, and gets no device time."""
_RANKS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "PMIX_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
"""Environment variables by launcher: torchrun and Accelerate, Open MPI, PMIx, MPICH, Slurm."""
_CODE_EXTENSIONS = (".py", ".pyc", ".pyi", ".so", ".pyd", ".egg-link", ".pth", ".mo")
_NO_SAMPLES = (".safetensors", "-shm")  # mapped files of a model's weights, and of SQLite
_OS_PATHS = ("/proc/", "/sys/", "/dev/", "/etc/", "/usr/", "/lib/", "/lib64/", f"{sys.prefix}/", f"{sys.base_prefix}/")
"""Beginnings of paths that belong to the operating system or to Python: no data."""
_now = time.monotonic_ns


class _Process:
    """The state of the recording in this process. After a fork, noticed by the changed pid, it starts afresh."""

    def __init__(self) -> None:
        self.folder = ""
        self.max_batches = 0
        self.max_ns = 0
        self.ended = False
        self.renew()

    def renew(self) -> None:
        self.pid = os.getpid()
        self.rows = -1  # file descriptor
        self.row_bytes = 0
        self.batches = 0
        self.delivered = 0
        self.began_ns = 0
        self.passes = 0
        self.fetches = 0
        self.own_read_bytes = 0  # by the recorder itself, while listing open files
        self.opened_bytes = 0  # of data files that were opened before the first batch
        self.files: set[str] = set()
        self.marker = ""
        self.device: DeviceTimes | None = None

    def renew_after_fork(self) -> None:
        if self.pid != os.getpid():
            self.renew()

    def write(self, row: dict[str, Any]) -> None:
        """Append a row in a single write, so that rows stay whole even if the process is killed or forks."""
        if self.rows < 0:
            self._open()
        self._append(row)
        if self.row_bytes > _MAX_ROW_BYTES:
            self.end("rows")

    def _append(self, row: dict[str, Any]) -> None:
        line = self.encode(row).encode() + b"\n"
        self.row_bytes += len(line)
        os.write(self.rows, line)

    def _open(self) -> None:
        import json
        import multiprocessing
        import platform

        self.encode = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps would make one for each row
        parent = multiprocessing.parent_process()
        name = f"{self.pid}-{_now()}{ENDING}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        os.makedirs(self.folder, exist_ok=True)
        self.rows = os.open(os.path.join(self.folder, name), flags, 0o600)
        rank, size = _rank()
        self._append(
            {
                "k": "process",
                "version": ROWS_VERSION,
                "pid": self.pid,
                "parent": None if parent is None else parent.pid,
                "rank": rank,
                "ranks": size,
                "python": platform.python_version(),
                "torch": str(getattr(sys.modules.get("torch"), "__version__", "")),
                "cores": len(os.sched_getaffinity(0)),
                "t": _now(),
            }
        )

    def end(self, why: str) -> None:
        """Stop recording in this process, and create the marker file that its workers check (`window_is_over`)."""
        if not self.ended:
            self.ended = True
            self._append({"k": "end", "why": why, "t": _now()})
            with open(os.path.join(self.folder, f"ended-{self.pid}"), "w"):
                pass

    def window_is_over(self) -> bool:
        if not self.marker:
            import multiprocessing

            parent = multiprocessing.parent_process()
            self.marker = os.path.join(self.folder, f"ended-{parent.pid if parent else self.pid}")
        return os.path.exists(self.marker)


_process = _Process()


def _rank() -> tuple[int | None, int]:
    for rank, size in _RANKS:
        if os.environ.get(rank, "").isdigit():
            return int(os.environ[rank]), int(os.environ.get(size) or 1)
    return None, 1


def _never_fails(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function of the recorder so that an error in it ends the recording of this process, not the job."""

    def guarded(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            if not _process.ended:
                _process.ended = True
                warning = f"dlemu record: the recording of process {os.getpid()} stopped ({error!r}); the job continues"
                print(warning, file=sys.stderr)
            return None

    return guarded


class _Meter:
    """Reads counters of this thread and process from files in /proc, opened once per thread and again after a fork."""

    def __init__(self) -> None:
        import threading

        self._local = threading.local()

    def read(self) -> list[int]:
        """Return 8 counters; -1 for any that the kernel does not report.

        Of the thread: CPU ns, run-queue ns (runnable, without a core), bytes read, read calls, bytes read from devices.
        Of the process: bytes read, read calls, bytes read from devices.
        """
        schedule, thread, process = (os.pread(file, 512, 0).split() if file >= 0 else [] for file in self._files())
        found = [int(schedule[0]), int(schedule[1])] if len(schedule) >= 2 else [-1, -1]
        for words in (thread, process):
            found += [int(words[1]), int(words[5]), int(words[9])] if len(words) >= 10 else [-1, -1, -1]
        return found

    def queue(self) -> int:
        """Return how long this thread has waited for a core, ns."""
        file = self._files()[0]
        return int(os.pread(file, 512, 0).split()[1]) if file >= 0 else -1

    def _files(self) -> list[int]:
        counters = getattr(self._local, "counters", None)
        if counters is None or counters.pid != os.getpid():
            self._local.counters = counters = _Counters()
        files: list[int] = counters.files
        return files

    def overhead(self) -> tuple[int, int]:
        """Return the bytes and read calls that `read` itself adds to the counters."""
        first = self.read()
        second = self.read()
        return second[2] - first[2], second[3] - first[3]


def _descriptor(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # this kernel does not have the counter, or this container does not allow reading it
        return -1


class _Counters:
    """A thread's open files in /proc, which are closed when it ends: a job may start a thread for each pass."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        names = ("thread-self/schedstat", "thread-self/io", "self/io")
        self.files = [_descriptor("/proc/" + name) for name in names]

    def __del__(self, getpid: Callable[[], int] = os.getpid, close: Callable[[int], None] = os.close) -> None:
        if self.pid != getpid():  # a fork may have closed them all, and have other files by these numbers
            return
        for file in self.files:
            if file >= 0:
                try:
                    close(file)
                except OSError:  # the job has closed it
                    continue


class _Fetch:
    """The files opened and mapped, and the mapped arrays indexed, while one batch is loaded."""

    __slots__ = ("last", "map_bytes", "map_calls", "mapped", "new", "opens")

    def __init__(self) -> None:
        self.opens = self.mapped = 0
        self.last = ""
        self.new: list[str] = []
        self.map_calls = 0
        self.map_bytes = 0

    def note_file(self, name: str) -> None:
        known = _process.files
        if name not in known and len(known) < _MAX_FILES:
            known.add(name)
            self.new.append(os.path.abspath(name))


class DeviceTimes:
    """Measures the GPU time of each step with CUDA events: they are queried some steps later, never waited for.

    `cuda` is `torch.cuda`, or an object with the same Event and default_stream.
    """

    def __init__(self, cuda: Any) -> None:
        from collections import deque

        self._cuda = cuda
        self._pending: Any = deque()
        self._begin: Any = None
        self._last_end: Any = None
        self._batch = -1

    def end_step(self) -> bool:
        """Record the end of the step on the GPU; return whether the GPU was already idle: it waits for the host."""
        stream = self._cuda.default_stream()
        drained = bool(stream.query())
        if self._begin is not None:
            end = self._cuda.Event(enable_timing=True)
            end.record(stream)
            self._pending.append((self._batch, self._last_end, self._begin, end))
            self._last_end, self._begin = end, None
            if len(self._pending) > _MAX_PENDING:
                self._pending.popleft()
        return drained

    def begin_step(self, batch: int) -> None:
        self._begin = self._cuda.Event(enable_timing=True)
        self._begin.record(self._cuda.default_stream())
        self._batch = batch

    def completed(self) -> list[tuple[int, float, float]]:
        """Return completed steps as (batch, ms of the step, ms that the GPU was idle before it, -1 if unknown)."""
        found = []
        while self._pending and self._pending[0][3].query():
            batch, before, begin, end = self._pending.popleft()
            waited = -1.0 if before is None else before.elapsed_time(begin)
            found.append((batch, begin.elapsed_time(end), waited))
        return found


def _batch_size(data: Any, depth: int = 0) -> tuple[int | None, int, int]:
    """Return a batch's samples (first dimension of the first array; None without arrays), its bytes and its arrays."""
    shape, size = getattr(data, "shape", None), getattr(data, "nbytes", None)
    if shape is not None and isinstance(size, int):
        return (int(shape[0]) if len(shape) else 1), size, 1
    if depth > 3 or isinstance(data, (str, bytes)):
        return None, 0, 0
    if hasattr(data, "keys") and hasattr(data, "values"):
        data = list(data.values())
    if not isinstance(data, (list, tuple)):
        return None, 0, 0
    if data and isinstance(data[0], (str, bytes, int, float)):
        return len(data), 0, 0
    length, total, arrays = None, 0, 0
    for part in data[:64]:
        found, bytes_of_part, arrays_of_part = _batch_size(part, depth + 1)
        length = found if length is None else length
        total += bytes_of_part
        arrays += arrays_of_part
    if len(data) > 64:
        total, arrays = (each * len(data) // 64 for each in (total, arrays))
    return length, total, arrays


class _Hooks:
    """What the wrapped functions do before and after the original call. `local` is state of the current thread."""

    def __init__(self) -> None:
        import threading

        self.local = threading.local()
        self.meter = _Meter()
        self.overhead: tuple[int, int] | None = None
        self.loaders = 0

    # In the workers; without workers, in the trainer.

    @_never_fails
    def begin_fetch(self) -> Any:
        _process.renew_after_fork()
        if _process.ended or getattr(self.local, "fetch", None) is not None:
            return None
        if _process.fetches and _process.window_is_over():
            _process.ended = True
            return None
        if self.overhead is None:
            self.overhead = self.meter.overhead()
        self.local.fetch = fetch = _Fetch()
        return fetch, self.meter.read(), time.process_time_ns(), _system_ns(), _now()

    @_never_fails
    def end_fetch(self, begun: Any, fetcher: Any, index: Any, data: Any) -> None:
        ended_ns = _now()
        fetch, before, cpu_before, system_before, began_ns = begun
        cpu, system, after = time.process_time_ns(), _system_ns(), self.meter.read()
        self.local.fetch = None
        spent = [b - a if a >= 0 else -1 for a, b in zip(before, after)]  # noqa: B905  # Python 3.9 has no strict
        # The process's reads, if more than this thread's: some libraries, as pyarrow, read in threads of their own.
        thread = spent[:2] + [max(both) for both in zip(spent[2:5], spent[5:8])]  # noqa: B905
        if spent[2] >= 0 and spent[5] - spent[2] < _HAND_OVER_BYTES:  # a thread that sends tensors reads little
            thread[3] = spent[3]
        assert self.overhead is not None
        samples, batch_bytes, arrays = _batch_size(data)
        if getattr(fetcher, "auto_collation", False) and (samples is None or not hasattr(fetcher, "dataset_iter")):
            samples = len(index)
        _process.fetches += 1
        if _process.fetches & (_process.fetches - 1) == 0:  # the 1st, 2nd, 4th ...: it costs a millisecond
            read_before = self.meter.read()[2]
            opened, mapped = _open_files(_process.folder)
            # Arrays name their files when they are indexed; others that are mapped may be those of an evaluation.
            for name in opened - mapped if fetch.map_calls else opened | mapped:  # Python's maps keep their files open
                fetch.note_file(name)
            own_read_bytes = self.meter.read()[2] - read_before  # from /proc, by the recorder itself
        else:
            own_read_bytes, mapped = 0, set()
        row = {  # process_..._in: during this fetch; other process_...: since the process began
            "k": "fetch",
            "t0": began_ns,
            "t1": ended_ns,
            "n": samples,
            "bytes": batch_bytes,
            "arrays": arrays,
            "cpu": thread[0],
            "queue": thread[1],
            "read": max(0, thread[2] - self.overhead[0]) if thread[2] >= 0 else -1,
            "calls": max(0, thread[3] - self.overhead[1]) if thread[3] >= 0 else -1,
            "device": thread[4],
            "process_read": after[5] - _process.own_read_bytes,
            "process_read_in": after[5] - before[5],
            "process_device": after[7],
            "process_device_in": after[7] - before[7],
            "process_cpu": cpu,
            "process_cpu_in": cpu - cpu_before,
            "system_cpu": system - system_before,
            "opens": fetch.opens,
            "opened": _process.opened_bytes,
            "mapped": fetch.mapped + sum(not name.endswith(_NO_SAMPLES) for name in mapped),
        }
        if not hasattr(fetcher, "dataset_iter"):
            row["items"] = len(index) if isinstance(index, (list, tuple)) else 1
        if fetch.map_calls:
            row["maps"], row["map_bytes"] = fetch.map_calls, fetch.map_bytes
        if fetch.new:
            row["files"] = fetch.new
        _process.own_read_bytes += own_read_bytes
        _process.write(row)

    def drop_fetch(self) -> None:
        self.local.fetch = None

    # In the trainer.

    @_never_fails
    def new_pass(self, iterator: Any, loader: Any) -> None:
        _process.renew_after_fork()
        if _process.ended:
            return
        number = loader.__dict__.get(_MODULE)
        if number is None:
            self.loaders += 1
            number = loader.__dict__[_MODULE] = self.loaders
        _process.passes += 1
        iterator.__dict__[_MODULE] = [_process.passes, 0]  # number of the pass, batches requested in it
        dataset = loader.dataset
        _process.write(
            {
                "k": "pass",
                "pass": _process.passes,
                "loader": number,
                "iterable": bool(iterator._dataset_kind),
                "workers": loader.num_workers,
                "prefetch": getattr(loader, "prefetch_factor", None),
                "pin": bool(loader.pin_memory),
                "persistent": bool(getattr(loader, "persistent_workers", False)),
                "method": _start_method(loader),
                "batch": loader.batch_size if isinstance(loader.batch_size, int) else None,
                "samples": len(dataset) if hasattr(dataset, "__len__") and not iterator._dataset_kind else None,
                "order": _order(loader),
                "opened": _process.opened_bytes,
                "t": _now(),
            }
        )

    @_never_fails
    def begin_next(self, iterator: Any) -> Any:
        _process.renew_after_fork()
        mark = iterator.__dict__.get(_MODULE)
        if _process.ended or mark is None or getattr(self.local, "waits", False):
            return None
        self.local.waits = True
        drained = None
        torch = sys.modules["torch"]
        if torch.cuda.is_initialized() and _process.device is None:
            _process.device = DeviceTimes(torch.cuda)
        if _process.device is not None:
            drained = _process.device.end_step()
        queue = self.meter.queue()
        return mark, drained, torch.is_grad_enabled(), queue, time.process_time_ns(), _now()

    @_never_fails
    def end_next(self, begun: Any, iterator: Any, delivered: bool) -> None:
        ended_ns = _now()
        mark, drained, grad, queue_before, cpu_before, began_ns = begun
        self.local.waits = False
        import threading

        process = self.meter.read()
        row = {
            "k": "batch" if delivered else "over",
            "pass": mark[0],
            "i": mark[1],
            "serial": _process.delivered,
            "t0": began_ns,
            "t1": ended_ns,
            "grad": grad,
            "cpu0": cpu_before,
            "cpu1": time.process_time_ns(),
            "queue0": queue_before,
            "queue1": process[1],
            "device": process[7],
            "thread": threading.get_native_id(),
        }
        if drained is not None:
            row["drained"] = drained
        if mark[1] == 0:
            row["pids"] = [worker.pid for worker in getattr(iterator, "_workers", ())]
        mark[1] += 1
        _process.write(row)
        device = _process.device
        if device is not None:
            for batch, step_ms, waited_ms in device.completed():
                _process.write({"k": "device", "serial": batch, "ms": step_ms, "waited_ms": waited_ms})
        if not delivered:
            return
        if device is not None:
            device.begin_step(_process.delivered)
        _process.delivered += 1
        if grad:
            self._count(ended_ns)

    def _count(self, at_ns: int) -> None:
        _process.batches += 1
        _process.began_ns = _process.began_ns or at_ns
        if 0 < _process.max_batches <= _process.batches:
            _process.end("steps")
        elif 0 < _process.max_ns <= at_ns - _process.began_ns:
            _process.end("minutes")

    @_never_fails
    def stepped(self, *_: Any) -> None:
        if not _process.ended:
            import threading

            _process.renew_after_fork()
            _process.write({"k": "step", "t": _now(), "thread": threading.get_native_id()})

    def saving(self, save: Callable[..., Any]) -> Callable[..., Any]:
        import functools

        @functools.wraps(save)
        def wrapper(*arguments: Any, **options: Any) -> Any:
            if _process.ended or getattr(self.local, "saves", False):
                return save(*arguments, **options)
            self.local.saves, began_ns, before = True, _now(), _written()
            try:
                return save(*arguments, **options)
            finally:
                self.local.saves = False
                self.saved(began_ns, _written() - before)

        return wrapper

    @_never_fails
    def saved(self, began_ns: int, written: int) -> None:
        _process.renew_after_fork()
        if written > 0:
            _process.write({"k": "save", "t0": began_ns, "t1": _now(), "bytes": written})

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Record what Python opens and maps while a batch is loaded; an error raised here would reach the job."""
        if event not in ("open", "mmap.__new__"):
            return
        try:
            if event != "open":
                self.local.fetch.mapped += arguments[0] >= 0  # -1: memory of no file
            elif not arguments[2] & (os.O_WRONLY | os.O_CREAT | os.O_TMPFILE):  # else a log or a temporary file
                self.opened(arguments[0])
        except Exception:  # the interpreter shuts down, no batch is loaded, or the file is not there
            return

    def opened(self, path: object) -> None:
        fetch = getattr(self.local, "fetch", None)
        _process.renew_after_fork()
        if fetch is None and (_process.delivered or _process.fetches):
            return
        name = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
        if not name or name.endswith(_CODE_EXTENSIONS) or "/site-packages/" in name:
            return
        if name.startswith(_OS_PATHS) and not name.startswith("/dev/shm/"):  # opened by name there: data in memory
            return
        if fetch is None:
            _process.opened_bytes += os.stat(name).st_size
        else:
            fetch.opens += name != fetch.last  # np.load opens a file that it maps three times
            fetch.last = name
            fetch.note_file(name)

    def opening(self, function: Callable[..., Any], position: int, maps: bool = False) -> Callable[..., Any]:
        """Wrap a function whose C code opens files, without an audit event; argument `position` is the file's name."""
        import functools

        @functools.wraps(function)
        def wrapper(*arguments: Any, **options: Any) -> Any:
            if maps:
                self.audit("mmap.__new__", (0,))
            if len(arguments) > position:
                self.audit("open", (arguments[position], "r", os.O_RDONLY))
            return function(*arguments, **options)

        return wrapper


_hooks: Any = None


def _system_ns() -> int:
    """Return this thread's CPU time in the kernel."""
    import resource

    return round(resource.getrusage(resource.RUSAGE_THREAD).ru_stime * 1e9)


def _written() -> int:
    try:
        with open("/proc/self/io", "rb") as lines:
            return int(lines.read().split()[3])
    except (OSError, ValueError, IndexError):
        return 0


def _open_files(rows_folder: str) -> list[set[str]]:
    """Return the data files outside `rows_folder` that are open for reading, and those that are mapped."""
    import fcntl

    found, maps = set(), set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if fcntl.fcntl(int(name), fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY:
                found.add(os.readlink("/proc/self/fd/" + name))
        except OSError:  # closed since, such as the descriptor of the listing itself
            continue
    with open("/proc/self/maps", "rb") as lines:
        for line in lines:
            parts = line.split(None, 5)
            if len(parts) == 6 and parts[5].startswith(b"/") and b"x" not in parts[1]:
                maps.add(os.fsdecode(parts[5].rstrip(b"\n")))
    outside, other = (*_OS_PATHS, rows_folder), (*_CODE_EXTENSIONS, " (deleted)")
    return [
        {n for n in names if n[0] == "/" and not n.startswith(outside) and not n.endswith(other) and ".so." not in n}
        for names in (found, maps)
    ]


def _start_method(loader: Any) -> str:
    import multiprocessing

    context = loader.multiprocessing_context
    if context is not None:
        return str(context.get_start_method())
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def _order(loader: Any) -> str:
    batches = getattr(loader, "batch_sampler", None)
    sampler = getattr(loader, "sampler", None) if batches is None else getattr(batches, "sampler", None)
    name = type(sampler).__name__
    if "Random" in name or getattr(sampler, "shuffle", False) is True:
        return "shuffled"
    return "in order" if name in ("SequentialSampler", "DistributedSampler") else "own"


def _patch_fetch(module: Any) -> None:
    for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
        kind = getattr(module, name)
        kind.fetch = _recorded_fetch(kind.fetch)


def _recorded_fetch(original: Callable[..., Any]) -> Callable[..., Any]:
    def fetch(self: Any, possibly_batched_index: Any) -> Any:
        begun = None if _process.ended else _hooks.begin_fetch()
        if begun is None:
            return original(self, possibly_batched_index)
        try:
            data = original(self, possibly_batched_index)
        except BaseException:
            _hooks.drop_fetch()
            raise
        _hooks.end_fetch(begun, self, possibly_batched_index, data)
        return data

    return fetch


def _patch_loader(module: Any) -> None:
    base = module._BaseDataLoaderIter
    original_init, original_reset, original_next = base.__init__, base._reset, base.__next__

    def __init__(self: Any, loader: Any, *arguments: Any, **options: Any) -> None:
        original_init(self, loader, *arguments, **options)
        if not _process.ended:
            _hooks.new_pass(self, loader)

    def _reset(self: Any, loader: Any, first_iter: bool = False) -> None:
        original_reset(self, loader, first_iter)
        if not first_iter and not _process.ended:  # persistent workers begin another pass
            _hooks.new_pass(self, loader)

    def __next__(self: Any) -> Any:
        begun = None if _process.ended else _hooks.begin_next(self)
        if begun is None:
            return original_next(self)
        try:
            data = original_next(self)
        except StopIteration:
            _hooks.end_next(begun, self, False)
            raise
        except BaseException:
            _hooks.local.waits = False
            raise
        _hooks.end_next(begun, self, True)
        return data

    base.__init__, base._reset, base.__next__ = __init__, _reset, __next__


def _patch_optimizer(module: Any) -> None:
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is not None:
        register(_hooks.stepped)


def _patch_memmap(module: Any) -> None:
    """Count the bytes indexed from memory-mapped arrays: the kernel reads their pages without a read call."""
    kind = module.memmap
    original = kind.__getitem__

    def __getitem__(self: Any, index: Any) -> Any:
        found = original(self, index)
        fetch = getattr(_hooks.local, "fetch", None)
        if fetch is not None:
            size = getattr(found, "nbytes", 0)
            if size < self.nbytes:  # a view of the whole array reads nothing yet
                fetch.map_calls += 1
                fetch.map_bytes += size
            if self.filename is not None:
                fetch.note_file(os.fsdecode(self.filename))
        return found

    kind.__getitem__ = __getitem__


def _patch(wrapper: str, *places: tuple[Any, ...]) -> Callable[[Any], None]:
    """Return what wraps functions of a module by a method of `_hooks`; a place: (dotted name, arguments...)."""

    def patch(module: Any) -> None:
        for dotted, *arguments in places:
            *above, name = dotted.split(".")
            owner = getattr(module, above[0], None) if above else module
            if owner is not None and hasattr(owner, name):  # else another version of the library
                original = getattr(owner, name)
                wrapped = getattr(_hooks, wrapper)(original, *arguments)
                is_method = not above or hasattr(original, "__get__")  # else C code, which a class does not bind
                setattr(owner, name, wrapped if is_method else staticmethod(wrapped))

    return patch


_PATCHES: dict[str, Callable[[Any], None]] = {
    "torch.utils.data._utils.fetch": _patch_fetch,
    "torch.utils.data.dataloader": _patch_loader,
    "torch.optim.optimizer": _patch_optimizer,
    "torch.serialization": _patch("saving", ("save",)),
    "torch.distributed.checkpoint.state_dict_saver": _patch("saving", ("save",)),
    "safetensors.torch": _patch("saving", ("save_file",)),
    "numpy._core.memmap": _patch_memmap,
    "numpy.core.memmap": _patch_memmap,
    "h5py._hl.files": _patch("opening", ("File.__init__", 1)),
    "pyarrow.parquet.core": _patch("opening", ("ParquetFile.__init__", 1)),
    "torch": _patch("opening", ("from_file", 0, True)),
    "torch.storage": _patch("opening", ("UntypedStorage.from_file", 0, True)),  # by torch.load, safetensors
    "torchvision.io.image": _patch("opening", ("read_file", 0)),
    "cv2": _patch("opening", ("imread", 0)),
}


class _Loader:
    def __init__(self, loader: Any, patch: Callable[[Any], None]) -> None:
        self._loader, self._patch = loader, patch

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":
            raise AttributeError(name)
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._loader.exec_module(module)
        module.__loader__ = module.__spec__.loader = self._loader
        _never_fails(self._patch)(module)


class _Finder:
    """First in sys.meta_path: has the other finders find the modules to patch, and wraps their loaders in `_Loader`."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        patch = _PATCHES.get(name)
        if patch is None:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, patch)
                return spec
        return None


def _number(variable: str, default: float) -> float:
    try:
        return float(os.environ.get(variable) or default)
    except ValueError:
        return default


def _install(folder: str) -> None:
    global _hooks
    if _MODULE in sys.modules:
        return
    sys.modules[_MODULE] = sys.modules[__name__]
    _process.folder = os.path.abspath(folder)
    steps = int(_number(STEPS, 0))
    _process.max_batches = steps + int(_number(SKIP, 0)) if steps else 0
    _process.max_ns = int(_number(MINUTES, DEFAULT_MINUTES) * 60e9)
    _hooks = _Hooks()
    sys.addaudithook(_hooks.audit)
    sys.meta_path.insert(0, _Finder())
    for name in _PATCHES:
        if name in sys.modules:
            _never_fails(_PATCHES[name])(sys.modules[name])


def _run_hidden_sitecustomize(own_folder: str) -> None:
    """Run the environment's own `sitecustomize`, if any: this file precedes it on the path."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize", [part for part in sys.path if os.path.abspath(part) != own_folder])
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    if os.environ.get(FOLDER):
        _never_fails(_install)(os.environ[FOLDER])
    _run_hidden_sitecustomize(os.path.dirname(os.path.abspath(__file__)))
elif __name__.rpartition(".")[2] == "recorder":
    _never_fails(_install)(os.environ.get(FOLDER) or DEFAULT_FOLDER)
