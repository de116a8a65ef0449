"""Records the bytes of a small file of each kind, and the calls by which it is read, in `byte_oracle.json`.

`python -m tests.datagen.byte_oracle` writes that file anew and prints which entries changed. Commit the diff together
with the change of the code, and give the reason.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, get_args

from datagen import registry
from datagen.buffers import AlignedBuffer
from datagen.fetch import Fetcher, FetchSpec
from datagen.formats.format_base import UnreadFormat
from datagen.inspection import inspect
from datagen.spec import Compression, DatasetSpec, Hdf5, ParquetColumn, ParquetSpec
from datagen.storage import memory, storage_base
from datagen.storage.storage_base import Reader, StorageBase, Writer
from tests.datagen.conftest import make
from tests.datasets import format_named

Entry = dict[str, str]
"""An entry of a case: suffix of each file -> its size and checksum; each way of reading -> its calls."""
ORACLE = Path(__file__).with_suffix(".json")
MAKERS = {"hdf5": "h5py", "parquet": "pyarrow"}
"""Format whose bytes may differ between versions of a library -> that library."""
READERS = ("python", "numpy", "h5py", "pyarrow", "pillow")
"""Programs and libraries on whose versions the calls of `reader.engine=library` depend."""
BUFFER_BYTES = 4096
"""The file system's block size (st_blksize), which Python's files use as their buffer size."""
MOST_CALLS = 60
"""Number of calls that are listed for a way of reading; further calls are hashed."""
DATA_FILE = "img_0_of_1"
"""Prefix of the names of the only data file and its index files."""

SHAPES: dict[str, dict[str, Any]] = {
    "one sample": {},
    "5 samples": {"num_samples_per_file": 5},
    "3 samples of a drawn size": {"num_samples_per_file": 3, "record_length_bytes_stdev": 3000},
    "one sample of a drawn size": {"record_length_bytes_stdev": 3000},
    "one large sample": {"record_length_bytes": 700_000},
    "4 arrays of numbers": {"num_samples_per_file": 4, "record_dims": (6, 40, 10), "record_element_type": "float32"},
}
OWN_SHAPES: dict[str, dict[str, dict[str, Any]]] = {
    "hdf5": {
        "chunks": {"num_samples_per_file": 3, "enable_chunking": True, "chunk_size": 2000},
        "3 datasets": {"num_samples_per_file": 2, "record_dims": (6, 900), "hdf5": Hdf5(num_dset_per_record=3)},
    },
    "parquet": {
        "columns": {
            "num_samples_per_file": 90,
            "parquet": ParquetSpec(
                columns=(
                    ParquetColumn(name="label", dtype="int32"),
                    ParquetColumn(name="unread", size=30, read=False),
                    ParquetColumn(name="numbers", dtype="int64", size=20),
                    ParquetColumn(name="bytes", dtype="uint8", size=100),
                ),
                row_group_size=40,
            ),
        }
    },
}


class Recorded(StorageBase):
    """Wraps a storage, and records its calls to open, read and read ahead."""

    def __init__(self, storage: StorageBase) -> None:
        super().__init__(storage.spec)
        self.alignment = storage.alignment
        self.calls: list[tuple[str, int, int]] = []
        """Calls as (kind, offset, bytes); the kind is empty for a read, and has the file's suffix for an open."""
        self._storage = storage

    def open(self, path: str) -> Reader:
        reader = self._storage.open(path)
        self.calls.append((f"open{os.path.basename(path).removeprefix(DATA_FILE)}", 0, 0))
        return _RecordedReader(reader, self.calls)

    def create(self, path: str) -> Writer:
        return self._storage.create(path)

    def entries(self, folder: str) -> AbstractContextManager[Iterator[storage_base.Entry]]:
        return self._storage.entries(folder)

    def size_bytes(self, path: str) -> int:
        return self._storage.size_bytes(path)

    def remove(self, path: str) -> None:
        self._storage.remove(path)


class _Remote(Recorded):
    is_remote = True


class _RecordedReader(Reader):
    def __init__(self, reader: Reader, calls: list[tuple[str, int, int]]) -> None:
        super().__init__(reader.size_bytes)
        self._reader, self._calls = reader, calls

    def will_need(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._calls += [("ahead:", *span) for span in ranges]

    def read_into(self, buffer: memoryview, offset: int) -> int:
        self._calls.append(("", offset, len(buffer)))
        got = self._reader.read_into(buffer, offset)
        self.read_calls, self.app_bytes = self._reader.read_calls, self._reader.app_bytes
        return got

    def close(self) -> None:
        self._reader.close()


def shown(calls: Sequence[tuple[str, int, int]]) -> str:
    """Return calls as `OFFSET+BYTES`; `OFFSET+BYTESxN` are N calls, each where the one before ended."""
    runs: list[tuple[str, int, int, int]] = []
    for what, offset, size in calls:
        if runs and size:
            before, begin, each, count = runs[-1]
            if (before, each, begin + each * count) == (what, size, offset):
                runs[-1] = before, begin, each, count + 1
                continue
        runs.append((what, offset, size, 1))
    words = [
        what if not size else f"{what}{begin}+{size}{f'x{count}' * (count > 1)}" for what, begin, size, count in runs
    ]
    kept, rest = words[:MOST_CALLS], " ".join(words[MOST_CALLS:])
    return " ".join([*kept, f"... {digest(rest.encode())}"] if rest else kept)


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def of_file(data: bytes) -> str:
    return f"{len(data)} bytes, {digest(data)}"


class Case(NamedTuple):
    name: str
    settings: dict[str, Any]


def cases() -> list[Case]:
    """Return a case for each format, shape and compression that can be made."""
    every = []
    for name in registry.names("datagen.formats"):
        for shape, settings in (SHAPES | OWN_SHAPES.get(name, {})).items():
            for compression in get_args(Compression):
                found = {"format": name, "record_length_bytes": 9000.0, "compressibility": 0.3, **settings}
                found |= {"compression": compression, "num_files_train": 1}
                if not DatasetSpec(**found).check():
                    every.append(Case(f"{name}, {shape}, {compression}", found))
    return every


def record(case: Case, folder: Path) -> Entry:
    """Make the file; return its bytes and the calls of every way to read it.

    The library's own call decodes all samples and compares them with what was generated, whatever its version.
    """
    spec = make(DatasetSpec(data_folder=str(folder / "made"), **case.settings))
    entry: dict[str, str] = {
        path.name.removeprefix(DATA_FILE): of_file(path.read_bytes()) for path in sorted(folder.rglob(f"{DATA_FILE}*"))
    }
    if isinstance(format_named(spec.format), UnreadFormat):
        return entry
    ways: dict[str, tuple[type[Recorded], int, dict[str, Any]]] = {
        "matched": (Recorded, 1, {}),
        "fast": (Recorded, 1, {"engine": "fast"}),
        "decoded": (Recorded, 1, {"decode": "full", "verify": True}),
        "cropped": (Recorded, 1, {"resize_bytes": 1000}),
        "direct": (Recorded, 4096, {}),
        "remote": (_Remote, 1, {}),
    }
    for way, (kind, alignment, options) in ways.items():
        # Where records lie is remembered by path: each way finds the file under a path of its own.
        moved = replace(spec, data_folder=str(folder / way))
        os.rename(spec.data_folder, moved.data_folder)
        spec = moved
        held = memory.Storage()
        held.files = {str(path): path.read_bytes() for path in folder.rglob(f"{DATA_FILE}*")}
        storage = kind(held)
        storage.alignment = alignment
        _read(spec, storage, options)
        calls = shown(storage.calls)
        same = next((other for other, known in entry.items() if known == calls), None)
        entry[way] = f"as {same}" if same else calls
    entry["library"] = _by_library(spec)
    return entry


def _by_library(spec: DatasetSpec) -> str:
    """Return what the kernel counts of the library's reads, the second time: at the first it imports what it needs."""
    found = inspect(spec)
    fetch = FetchSpec(found, found.train, engine="library", decode="full", verify=True)
    samples = spec.num_samples_per_file
    fetcher, out = Fetcher(fetch), AlignedBuffer().view(fetch.slot_bytes(max(2, samples)))
    fetched = [fetcher.fetch(range(samples), out) for _ in range(2)][-1]
    fetcher.close()
    return f"{fetched.read_calls} calls, {fetched.app_bytes} bytes"


def _read(spec: DatasetSpec, storage: Recorded, options: dict[str, Any]) -> None:
    """Read all samples as a batch, and then the last and the first."""
    found = inspect(spec)
    fetch = FetchSpec(found, found.train, **options)
    samples = spec.num_samples_per_file
    out = AlignedBuffer().view(fetch.slot_bytes(max(2, samples)))
    fetcher = Fetcher(fetch, storage)
    for batch in (range(samples), (samples - 1, 0)):
        fetcher.fetch(batch, out)
    fetcher.close()


def versions() -> Entry:
    """Return the versions here of what bytes or calls may depend on."""
    python = ".".join(platform.python_version_tuple()[:2])
    libraries = READERS[1:]
    return {"python": python, "zlib": zlib.ZLIB_RUNTIME_VERSION} | {name: version(name) for name in libraries}


def comparable(case: Case, entry: Entry, made_with: Entry) -> Entry:
    """Return of an entry what versions other than those it was made with must not change."""
    differing = {name for name, here in versions().items() if here != made_with[name]}
    packed = case.settings["compression"] != "none"
    if MAKERS.get(case.settings["format"]) in differing or (packed and "zlib" in differing):
        return {}
    if differing.intersection(READERS) or os.stat(tempfile.gettempdir()).st_blksize != BUFFER_BYTES:
        return {way: calls for way, calls in entry.items() if way != "library"}
    return entry


def rewrite(path: Path, found: dict[str, Entry]) -> None:
    """Write an oracle's file anew, and print which entries changed."""
    known = json.loads(path.read_text()) if path.exists() else {}
    for name in sorted(known.keys() | found.keys()):
        if known.get(name) != found.get(name):
            print("new" if name not in known else "gone" if name not in found else "changed", name)
    lines = (json.dumps(name) + ": " + json.dumps(entry, indent=1) for name, entry in found.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main() -> int:
    found = {"versions": versions()}
    for case in cases():
        with tempfile.TemporaryDirectory() as folder:
            found[case.name] = record(case, Path(folder))
    rewrite(ORACLE, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
