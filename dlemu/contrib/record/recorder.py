"""The hook of `dlemu record` in a job's processes: measures the loading and the use of each batch (docs/record.md).

It imports only the standard library, runs on Python 3.9 and PyTorch 2.0 or later, and must never break, slow or outlive
the job. So a row is one write, there are no threads and no work at exit, and an error in the hook ends the recording of
its process with one warning. Times are CLOCK_MONOTONIC in ns, which all processes of a host share.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import _local, get_native_id  # importing `threading` would cost time in every Python process of the job
from collections.abc import Callable
from typing import Any

FOLDER = "DLEMU_RECORD"  # environment variable with the folder for rows
WINDOW = "DLEMU_RECORD_WINDOW"  # environment variable `BATCHES MINUTES`: when recording ends (0 batches: no limit)
DEFAULT_FOLDER = "dlemu-record"  # below the current folder
DEFAULT_WINDOW = "0 10"  # even with steps of a second, hundreds of batches, enough for quantiles
ROWS_VERSION = 1
ENDING = ".jsonl"
_MODULE = "_dlemu_record"  # this module's name in sys.modules, however it was imported, and its attribute on iterators
_MAX_ROW_BYTES = 256 << 20  # hundreds of thousands of batches; a longer recording could fill the disk
_MAX_FILES = 2000  # file names that a process records at most: enough for a dataset with a folder per class
_HAND_OVER_BYTES = 16384  # more than the messages about a batch of 64 tensors, less than pyarrow's threads read
# Environment variables with the number of ranks: of torchrun and Accelerate, Open MPI, PMIx, MPICH, Slurm.
_RANKS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
_CODE_ENDINGS = (".py", ".pyc", ".pyi", ".so", ".pyd", ".egg-link", ".pth", ".mo")
_NO_SAMPLES = (".safetensors", "-shm")  # endings of mapped files with a model's weights, and of SQLite's shared memory
# Files of the operating system or of Python are not data.
_OS_PATHS = ("/proc/", "/sys/", "/dev/", "/etc/", "/usr/", "/lib/", "/lib64/", f"{sys.prefix}/", f"{sys.base_prefix}/")
_READ, _CALLS, _PROCESS_READ, _PROCESS_DEVICE = 2, 3, 5, 7  # indices in the counters from `_Counters.read`
_now = time.monotonic_ns


class _Process:
    """The state of the recording in this process. A forked process, detected by its pid, keeps settings and `ended`."""

    def __init__(self) -> None:
        self.folder = ""
        self.max_batches = self.max_ns = 0
        self.ended = False
        self.overhead: tuple[int, int] | None = None  # bytes and calls that reading `_Counters` adds to them
        self.renew()

    def renew(self) -> None:
        self.pid = os.getpid()
        self.rows_fd = -1  # -1 until the first row is written
        self.row_bytes = self.began_ns = 0
        self.passes = self.batches = self.delivered = self.fetches = 0  # `batches`: delivered while gradients are on
        self.listed = 0  # number of the last pass whose workers are listed in a row
        self.own_read_bytes = 0  # read by the hook itself while it listed open files
        self.files: set[str] = set()
        self.marker = ""
        self.device_times: DeviceTimes | None = None

    def write(self, row: dict[str, Any]) -> None:
        """Append a row by a single write, so that rows stay whole even if the process forks or is killed."""
        if self.rows_fd < 0:
            self._open()
        line = self.encode(row).encode() + b"\n"
        self.row_bytes += len(line)
        os.write(self.rows_fd, line)
        if self.row_bytes > _MAX_ROW_BYTES:
            self.end()

    def _open(self) -> None:
        import json

        self.encode = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps would make one for each row
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        os.makedirs(self.folder, exist_ok=True)
        self.rows_fd = os.open(os.path.join(self.folder, f"{self.pid}-{_now()}{ENDING}"), flags, 0o600)
        ranks = [int(os.environ[name]) for name in _RANKS if os.environ.get(name, "").isdigit()]
        self.write({"k": "process", "version": ROWS_VERSION, "pid": self.pid, "ranks": ranks[0] if ranks else 1})

    def end(self) -> None:
        """Stop recording in this process, and create the marker file that its workers look for (`window_is_over`)."""
        self.ended = True
        with open(os.path.join(self.folder, f"ended-{self.pid}"), "w"):
            pass

    def window_is_over(self) -> bool:
        if not self.marker:
            import multiprocessing

            parent = multiprocessing.parent_process()
            self.marker = os.path.join(self.folder, f"ended-{parent.pid if parent else self.pid}")
        return os.path.exists(self.marker)


class _Thread(_local):
    """What this thread is doing (loading a batch: `fetch`, waiting for one, saving), and its counters."""

    fetch: Any = None
    is_waiting = is_saving = False
    counters: Any = None


_process, _thread = _Process(), _Thread()


def _never_fails(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function of the hook so that an error in it ends the recording of this process, but not the job."""

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


def _around(begin: Callable[..., Any], end: Callable[..., Any] = lambda *_: None) -> Callable[..., Any]:
    """Return a decorator that calls `begin` with the arguments before a function runs, and `end` afterwards.

    `end` gets what `begin` returned (if None, it isn't called), the arguments, the result, and an exception's type.
    """
    import functools

    begin, end = _never_fails(begin), _never_fails(end)

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(*arguments: Any, **options: Any) -> Any:
            if _process.pid != os.getpid():
                _process.renew()
            start = None if _process.ended else begin(*arguments)
            if start is None:
                return original(*arguments, **options)
            result, error = None, None
            try:
                result = original(*arguments, **options)
            except BaseException as raised:
                error = type(raised)
                raise
            finally:
                end(start, arguments, result, error)
            return result

        return wrapper

    return wrap


class _Counters:
    """Counters of a thread and its process, in files of /proc, closed when the thread ends: a job may start many."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.files = []
        for name in ("thread-self/schedstat", "thread-self/io", "self/io"):
            try:
                self.files.append(os.open("/proc/" + name, os.O_RDONLY | os.O_CLOEXEC))
            except OSError:  # the kernel lacks the counter, or the container forbids reading it
                self.files.append(-1)

    def __del__(self, getpid: Callable[[], int] = os.getpid, close: Callable[[int], None] = os.close) -> None:
        if self.pid != getpid():  # In a forked process, these numbers may be those of other files.
            return
        for file in self.files:
            if file >= 0:
                try:
                    close(file)
                except OSError:  # the job has closed it
                    continue

    def read(self) -> list[int]:
        """Return 8 counters, -1 for each that the kernel does not report.

        Of the thread: CPU ns, run-queue ns (runnable without a core), bytes read, read calls, bytes read from devices.
        Of the process: bytes read, read calls, bytes read from devices.
        """
        schedule, thread, process = (os.pread(file, 512, 0).split() if file >= 0 else [] for file in self.files)
        counters = [int(schedule[0]), int(schedule[1])] if len(schedule) >= 2 else [-1, -1]
        for fields in (thread, process):  # rchar, syscr and read_bytes
            counters += [int(fields[1]), int(fields[5]), int(fields[9])] if len(fields) >= 10 else [-1, -1, -1]
        return counters

    def queue(self) -> int:
        """Return the time that this thread has waited for a core, ns."""
        file = self.files[0]
        return int(os.pread(file, 512, 0).split()[1]) if file >= 0 else -1


def _counters() -> _Counters:
    """Return the counters of this thread, which are reopened after a fork."""
    counters: _Counters | None = _thread.counters
    if counters is None or counters.pid != os.getpid():
        counters = _thread.counters = _Counters()
    return counters


class _Fetch:
    """The files opened and mapped, and the mapped arrays indexed, while one batch is loaded."""

    def __init__(self) -> None:
        self.opens = self.mapped = self.map_calls = self.map_bytes = 0
        self.last_opened = ""
        self.new_files: list[str] = []

    def note_file(self, name: str) -> None:
        if name not in _process.files and len(_process.files) < _MAX_FILES:
            _process.files.add(name)
            self.new_files.append(os.path.abspath(name))

    def open(self, path: object) -> None:
        name = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
        if not name or name.endswith(_CODE_ENDINGS) or "/site-packages/" in name:
            return
        if name.startswith("/dev/shm/") or not name.startswith(_OS_PATHS):  # /dev/shm may hold a job's data.
            self.opens += name != self.last_opened  # to map a file, np.load opens it three times
            self.last_opened = name
            self.note_file(name)


def _begin_fetch(*_: Any) -> Any:
    if _thread.fetch is not None:
        return None
    if _process.fetches and _process.window_is_over():
        _process.ended = True
        return None
    if _process.overhead is None:
        first, second = _counters().read(), _counters().read()
        _process.overhead = second[_READ] - first[_READ], second[_CALLS] - first[_CALLS]
    _thread.fetch = _Fetch()
    return _counters().read(), time.process_time_ns(), _system_ns(), _now()


def _end_fetch(start: Any, arguments: Any, data: Any, error: Any) -> None:
    ended_ns = _now()
    before, cpu_before, system_before, began_ns = start
    cpu, system, after = time.process_time_ns(), _system_ns(), _counters().read()
    fetch, _thread.fetch = _thread.fetch, None
    if error is not None:
        return
    fetcher, index = arguments
    used = [now - was if was >= 0 else -1 for was, now in zip(before, after)]  # noqa: B905  # Python 3.9 has no strict
    cpu_ns, queue_ns, thread_read, thread_calls, thread_device, process_read, process_calls, process_device = used
    # The process may read more than this thread, as libraries such as pyarrow read in their own threads.
    read_bytes = max(thread_read, process_read)
    read_calls = thread_calls
    if thread_read < 0 or process_read - thread_read >= _HAND_OVER_BYTES:  # A smaller excess is from sending tensors.
        read_calls = max(thread_calls, process_calls)
    hook_bytes, hook_calls = _process.overhead or (0, 0)
    is_map = not hasattr(fetcher, "dataset_iter")
    samples, batch_bytes, arrays = _batch_size(data)
    if getattr(fetcher, "auto_collation", False) and (samples is None or is_map):
        samples = len(index)
    _process.fetches += 1
    lists_files = _process.fetches & (_process.fetches - 1) == 0  # only the 1st, 2nd, 4th ... fetch, as it takes 1 ms
    mapped, own_read_bytes = _note_open_files(fetch) if lists_files else (set(), 0)
    row = {  # as `Fetch` in rows.py; `process_cpu_in` is of this fetch, other `process_...` since the process began
        "k": "fetch",
        "t0": began_ns,
        "t1": ended_ns,
        "n": samples,
        "bytes": batch_bytes,
        "arrays": arrays,
        "cpu": cpu_ns,
        "queue": queue_ns,
        "read": max(0, read_bytes - hook_bytes) if read_bytes >= 0 else -1,
        "calls": max(0, read_calls - hook_calls) if read_calls >= 0 else -1,
        "device": max(thread_device, process_device),  # bytes read from devices
        "process_read": after[_PROCESS_READ] - _process.own_read_bytes,
        "process_device": after[_PROCESS_DEVICE],
        "process_cpu": cpu,
        "process_cpu_in": cpu - cpu_before,
        "system_cpu": system - system_before,
        "opens": fetch.opens,
        "mapped": fetch.mapped + sum(not name.endswith(_NO_SAMPLES) for name in mapped),
        "maps": fetch.map_calls,
        "map_bytes": fetch.map_bytes,
        "files": fetch.new_files,
    }
    if is_map:
        row["items"] = len(index) if isinstance(index, (list, tuple)) else 1
    _process.own_read_bytes += own_read_bytes
    _process.write(row)


def _note_open_files(fetch: _Fetch) -> tuple[set[str], int]:
    """Note the names of open data files; return those of mapped files, and the bytes read from /proc to list them."""
    read_before = _counters().read()[_READ]
    opened, mapped = _open_files(_process.folder)
    # Indexing a mapped array notes its file; other mapped files may then be for an evaluation.
    for name in opened - mapped if fetch.map_calls else opened | mapped:  # Python keeps mapped files open.
        fetch.note_file(name)
    return mapped, _counters().read()[_READ] - read_before


def _batch_size(data: Any, depth: int = 0) -> tuple[int | None, int, int]:
    """Return a batch's samples (first dimension of the first array; None without one), bytes and number of arrays."""
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
    samples, total_bytes, arrays = None, 0, 0
    for part in data[:64]:
        part_samples, part_bytes, part_arrays = _batch_size(part, depth + 1)
        samples = part_samples if samples is None else samples
        total_bytes += part_bytes
        arrays += part_arrays
    if len(data) > 64:  # assume that the others are like the first 64
        total_bytes, arrays = total_bytes * len(data) // 64, arrays * len(data) // 64
    return samples, total_bytes, arrays


def _system_ns() -> int:
    """Return this thread's CPU time in the kernel, ns."""
    import resource

    return round(resource.getrusage(resource.RUSAGE_THREAD).ru_stime * 1e9)


def _open_files(rows_folder: str) -> list[set[str]]:
    """Return the data files that are open for reading, and those that are mapped, without files in `rows_folder`."""
    import fcntl

    opened, mapped = set(), set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if fcntl.fcntl(int(name), fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY:
                opened.add(os.readlink("/proc/self/fd/" + name))
        except OSError:  # a file that was closed meanwhile, such as the listing itself
            continue
    with open("/proc/self/maps", "rb") as lines:
        for line in lines:
            parts = line.split(None, 5)  # address, permissions, offset, device, inode, path
            if len(parts) == 6 and parts[5].startswith(b"/") and b"x" not in parts[1]:
                mapped.add(os.fsdecode(parts[5].rstrip(b"\n")))
    folders, endings = (*_OS_PATHS, rows_folder), (*_CODE_ENDINGS, " (deleted)")
    return [
        {n for n in names if n[0] == "/" and not n.startswith(folders) and not n.endswith(endings) and ".so." not in n}
        for names in (opened, mapped)
    ]


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Record the files that Python opens and maps while a batch is loaded; an error in here would reach the job."""
    if event not in ("open", "mmap.__new__"):
        return
    try:
        fetch = _thread.fetch
        if fetch is not None and event != "open":
            fetch.mapped += arguments[0] >= 0  # -1: memory without a file
        elif fetch is not None and not arguments[2] & (os.O_WRONLY | os.O_CREAT | os.O_TMPFILE):  # not a log
            fetch.open(arguments[0])
    except Exception:  # while the interpreter shuts down
        return


def _opening(position: int, maps: bool = False) -> Callable[..., Any]:
    """Return a decorator of functions that open a file in C, without an audit event; `position` is the path's index."""

    def begin(*arguments: Any) -> None:
        if _thread.fetch is not None:
            _thread.fetch.mapped += maps
            if len(arguments) > position:
                _thread.fetch.open(arguments[position])

    return _around(begin)


def _end_index(fetch: Any, arguments: Any, selected: Any, error: Any) -> None:
    """Count the bytes indexed from memory-mapped arrays, whose pages the kernel reads without a read call."""
    array, size = arguments[0], getattr(selected, "nbytes", 0)
    if error is None and size < array.nbytes:  # A view of the whole array does not read yet.
        fetch.map_calls += 1
        fetch.map_bytes += size
    if array.filename is not None:
        fetch.note_file(os.fsdecode(array.filename))


class DeviceTimes:
    """Measures the GPU time of each step with CUDA events, which are queried some steps later and never waited for."""

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda  # `torch.cuda`, or an object with the same Event and default_stream
        self._pending: list[Any] = []
        self._begin: Any = None
        self._last_end: Any = None
        self._batch = -1

    def end_step(self) -> bool:
        """Record the end of the step on the GPU; return whether the GPU was already idle, waiting for the host."""
        stream = self._cuda.default_stream()
        drained = bool(stream.query())
        if self._begin is not None:
            end = self._cuda.Event(enable_timing=True)
            end.record(stream)
            self._pending.append((self._batch, self._last_end, self._begin, end))
            self._last_end, self._begin = end, None
        return drained

    def begin_step(self, batch: int) -> None:
        self._begin = self._cuda.Event(enable_timing=True)
        self._begin.record(self._cuda.default_stream())
        self._batch = batch

    def completed(self) -> list[tuple[int, float, float]]:
        """Return completed steps as (batch, ms of the step, ms that the GPU was idle before it or -1 if unknown)."""
        steps = []
        while self._pending and self._pending[0][3].query():
            batch, last_end, begin, end = self._pending.pop(0)
            idle_ms = -1.0 if last_end is None else last_end.elapsed_time(begin)
            steps.append((batch, begin.elapsed_time(end), idle_ms))
        return steps


def _new_pass(_: Any, arguments: Any, __: Any, error: Any) -> None:
    if error is not None:
        return
    iterator, loader = arguments[:2]
    _process.passes += 1
    iterator.__dict__[_MODULE] = _process.passes
    dataset = loader.dataset
    _process.write(
        {
            "k": "pass",
            "pass": _process.passes,
            "iterable": bool(iterator._dataset_kind),
            "workers": loader.num_workers,
            "prefetch": getattr(loader, "prefetch_factor", None),
            "method": _start_method(loader),
            "batch": loader.batch_size if isinstance(loader.batch_size, int) else None,
            "samples": len(dataset) if hasattr(dataset, "__len__") and not iterator._dataset_kind else None,
            "order": _order(loader),
            "t": _now(),
        }
    )


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


def _begin_next(iterator: Any) -> Any:
    number = iterator.__dict__.get(_MODULE)
    if number is None or _thread.is_waiting:
        return None
    _thread.is_waiting = True
    torch = sys.modules["torch"]
    if torch.cuda.is_initialized() and _process.device_times is None:
        _process.device_times = DeviceTimes(torch.cuda)
    drained = None if _process.device_times is None else _process.device_times.end_step()
    return number, drained, torch.is_grad_enabled(), _counters().queue(), time.process_time_ns(), _now()


def _end_next(start: Any, arguments: Any, _: Any, error: Any) -> None:
    ended_ns = _now()
    number, drained, grad, queue_before, cpu_before, began_ns = start
    _thread.is_waiting = False
    if error is not None and not issubclass(error, StopIteration):
        return
    is_first = number != _process.listed
    _process.listed = number
    _process.write(
        {
            "k": "batch" if error is None else "over",
            "pass": number,
            "serial": _process.delivered,
            "t0": began_ns,
            "t1": ended_ns,
            "cpu0": cpu_before,
            "cpu1": time.process_time_ns(),
            "queue0": queue_before,
            "queue1": _counters().queue(),
            "thread": get_native_id(),
            "drained": drained,
            "pids": [worker.pid for worker in getattr(arguments[0], "_workers", ()) if is_first],
        }
    )
    device_times = _process.device_times
    if device_times is not None:
        for batch, step_ms, waited_ms in device_times.completed():
            _process.write({"k": "device", "serial": batch, "ms": step_ms, "waited_ms": waited_ms})
    if error is not None:
        return
    if device_times is not None:
        device_times.begin_step(_process.delivered)
    _process.delivered += 1
    if grad:
        _process.batches += 1
        _process.began_ns = _process.began_ns or ended_ns
        if 0 < _process.max_batches <= _process.batches or 0 < _process.max_ns <= ended_ns - _process.began_ns:
            _process.end()


def _with_step_hook(register: Callable[..., Any]) -> Callable[..., Any]:
    """Register a hook that writes a row whenever an optimizer steps; return the function that registers hooks."""
    record_step = _around(lambda *_: _process.write({"k": "step", "t": _now(), "thread": get_native_id()}))
    register(record_step(lambda *_: None))
    return register


def _begin_save(*_: Any) -> Any:
    if _thread.is_saving:
        return None
    _thread.is_saving = True
    return _now(), _written_bytes()


def _end_save(start: Any, *_: Any) -> None:
    _thread.is_saving = False
    written = _written_bytes() - start[1]
    if written > 0:
        _process.write({"k": "save", "t0": start[0], "t1": _now(), "bytes": written})


def _written_bytes() -> int:
    try:
        with open("/proc/self/io", "rb") as lines:
            return int(lines.read().split()[3])
    except (OSError, ValueError, IndexError):
        return 0


_FETCH, _SAVE = _around(_begin_fetch, _end_fetch), _around(_begin_save, _end_save)
_INDEX = _around(lambda *_: _thread.fetch, _end_index)
_PATCHES: dict[str, dict[str, Callable[..., Any]]] = {  # module -> its functions to wrap on import -> wrapper
    "torch.utils.data._utils.fetch": {"_MapDatasetFetcher.fetch": _FETCH, "_IterableDatasetFetcher.fetch": _FETCH},
    "torch.utils.data.dataloader": {
        "_BaseDataLoaderIter.__init__": _around(lambda *_: True, _new_pass),
        # Persistent workers begin further passes by `_reset`; the first call is a part of `__init__`.
        "_BaseDataLoaderIter._reset": _around(lambda iterator, *_: iterator.__dict__.get(_MODULE), _new_pass),
        "_BaseDataLoaderIter.__next__": _around(_begin_next, _end_next),
    },
    "torch.optim.optimizer": {"register_optimizer_step_post_hook": _with_step_hook},
    "torch.serialization": {"save": _SAVE},
    "torch.distributed.checkpoint.state_dict_saver": {"save": _SAVE},
    "safetensors.torch": {"save_file": _SAVE},
    "numpy._core.memmap": {"memmap.__getitem__": _INDEX},
    "numpy.core.memmap": {"memmap.__getitem__": _INDEX},
    "h5py._hl.files": {"File.__init__": _opening(1)},
    "pyarrow.parquet.core": {"ParquetFile.__init__": _opening(1)},
    "torch": {"from_file": _opening(0, maps=True)},
    "torch.storage": {"UntypedStorage.from_file": _opening(0, maps=True)},  # for torch.load, safetensors
    "torchvision.io.image": {"read_file": _opening(0)},
    "cv2": {"imread": _opening(0)},
}


@_never_fails
def _patch(module: Any) -> None:
    for dotted, wrap in _PATCHES[module.__name__].items():
        *above, name = dotted.split(".")
        owner = getattr(module, above[0], None) if above else module
        original = getattr(owner, name, None)
        if original is not None:  # another version of the library may lack it
            is_method = not above or hasattr(original, "__get__")  # a class does not bind functions in C
            setattr(owner, name, wrap(original) if is_method else staticmethod(wrap(original)))


@_never_fails
def _patch_once_loaded(loader: Any) -> None:
    execute = loader.exec_module

    def exec_module(module: Any) -> None:
        del loader.exec_module  # uncovers the method of the loader's class again
        execute(module)
        _patch(module)

    loader.exec_module = exec_module


class _Finder:
    """The first finder in sys.meta_path: finds modules by the other finders, and patches those in `_PATCHES`."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        for finder in sys.meta_path if name in _PATCHES else ():
            find = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(name, path, target)
            if spec is not None:
                if spec.loader is not None:  # a mere folder of that name has none
                    _patch_once_loaded(spec.loader)
                return spec
        return None


@_never_fails
def _install(folder: str) -> None:
    if _MODULE in sys.modules:
        return
    sys.modules[_MODULE] = sys.modules[__name__]
    _process.folder = os.path.abspath(folder)
    batches, minutes = os.environ.get(WINDOW, DEFAULT_WINDOW).split()
    _process.max_batches, _process.max_ns = int(batches), int(float(minutes) * 60e9)
    sys.addaudithook(_audit)
    sys.meta_path.insert(0, _Finder())
    for name in _PATCHES:
        if name in sys.modules:
            _patch(sys.modules[name])


def _run_hidden_sitecustomize(own_folder: str) -> None:
    """Run the environment's own `sitecustomize`, if any, which this file hides as it precedes it on the path."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize", [part for part in sys.path if os.path.abspath(part) != own_folder])
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    if os.environ.get(FOLDER):
        _install(os.environ[FOLDER])
    _run_hidden_sitecustomize(os.path.dirname(os.path.abspath(__file__)))
elif __name__.rpartition(".")[2] == "recorder":
    _install(os.environ.get(FOLDER) or DEFAULT_FOLDER)
