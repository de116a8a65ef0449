"""Reads each format as a plain script does, by the format's usual library and without dlemu.

    python -m validation.library_scripts FORMAT READERS BATCH FILE:INDEX...

reads the samples with READERS processes, and prints samples/s.
"""

from __future__ import annotations

import multiprocessing
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any

import numpy as np

Sample = tuple[str, int]
"""A file, and the index of a sample in it."""


def npz(samples: Iterable[Sample]) -> Iterator[None]:
    """Read by np.load."""
    for path, of_file in groupby(samples, key=lambda sample: sample[0]):
        with np.load(path) as archive:
            array = archive["x"]
        for _, index in of_file:
            array[..., index].ravel()
            yield


def npy(samples: Iterable[Sample]) -> Iterator[None]:
    """Read by np.load."""
    for path, of_file in groupby(samples, key=lambda sample: sample[0]):
        array = np.load(path)
        for _, index in of_file:
            array[..., index].ravel()
            yield


def hdf5(samples: Iterable[Sample]) -> Iterator[None]:
    """Read by h5py; a file of several samples stays open."""
    import h5py

    for path, of_file in groupby(samples, key=lambda sample: sample[0]):
        with h5py.File(path, "r") as file:
            dataset = file["records_0"]
            for _, index in of_file:
                dataset[index]
                yield


def picture(samples: Iterable[Sample]) -> Iterator[None]:
    """Read by Pillow from an open file, as torchvision's ImageFolder does."""
    from PIL import Image

    for path, _ in samples:
        with open(path, "rb") as file:
            Image.open(file).convert("RGB")
        yield


def csv(samples: Iterable[Sample]) -> Iterator[None]:
    """Read by the same calls as pandas' parser."""
    for path, of_file in groupby(samples, key=lambda sample: sample[0]):
        with open(path, "rb") as file:
            while file.read(256 << 10):
                continue
        yield from (None for _ in of_file)


def tfrecord(samples: Iterable[Sample]) -> Iterator[None]:
    """Read whole files by tf.data.TFRecordDataset."""
    import tensorflow

    for path, of_file in groupby(samples, key=lambda sample: sample[0]):
        for _, record in zip(of_file, tensorflow.data.TFRecordDataset(path), strict=True):
            record.numpy()
            yield


def webdataset(samples: Iterable[Sample]) -> Iterator[None]:
    """Read whole files by tarfile, as webdataset does (`tar_file_iterator`)."""
    for path, of_file in groupby(samples, key=lambda sample: sample[0]):
        with open(path, "rb") as stream, tarfile.open(fileobj=stream, mode="r|*") as archive:
            for _, member in zip(of_file, archive, strict=False):
                extracted = archive.extractfile(member)
                assert extracted is not None
                extracted.read()
                yield
            for _ in archive:
                pass


def indexed_binary(samples: Iterable[Sample]) -> Iterator[None]:
    """Read by unbuffered files, as Megatron-LM's reader without memory maps; the index is mapped."""
    indexes: dict[str, tuple[Any, Any]] = {}
    for path, index in samples:
        if path not in indexes:
            indexes[path] = _index(path)
        offsets, sizes = indexes[path]
        record = np.empty(int(sizes[index]), np.uint8)
        with open(path, "rb", buffering=0) as file:
            file.seek(int(offsets[index]))
            file.readinto(record)
        yield


def mmap_indexed_binary(samples: Iterable[Sample]) -> Iterator[None]:
    """Read by np.memmap of data and index."""
    maps: dict[str, tuple[Any, Any, Any]] = {}
    for path, index in samples:
        if path not in maps:
            maps[path] = (*_index(path), np.memmap(path, np.uint8, "r"))
        offsets, sizes, data = maps[path]
        begin = int(offsets[index])
        np.array(data[begin : begin + int(sizes[index])])
        yield


def parquet(samples: Iterable[Sample]) -> Iterator[None]:
    """Read by pyarrow, one row group after another."""
    import pyarrow.parquet

    for path, of_file in groupby(samples, key=lambda sample: sample[0]):
        file = pyarrow.parquet.ParquetFile(path)
        for group in range(file.num_row_groups):
            file.read_row_group(group)
        yield from (None for _ in of_file)


def _index(path: str) -> tuple[Any, Any]:
    offsets, sizes = (np.memmap(path + suffix, np.uint64, "r") for suffix in (".off.idx", ".sz.idx"))
    return offsets, sizes


SCRIPTS: dict[str, Callable[[Iterable[Sample]], Iterator[None]]] = {
    "npz": npz,
    "npy": npy,
    "hdf5": hdf5,
    "jpeg": picture,
    "png": picture,
    "tiff": picture,
    "csv": csv,
    "tfrecord": tfrecord,
    "webdataset": webdataset,
    "indexed_binary": indexed_binary,
    "mmap_indexed_binary": mmap_indexed_binary,
    "parquet": parquet,
}
"""Format -> generator that reads samples, and yields once for each."""


def read(name: str, samples: Sequence[Sample]) -> int:
    """Read samples; return their number."""
    return sum(1 for _ in SCRIPTS[name](samples))


def samples_per_second(name: str, readers: int, batch: int, samples: Sequence[Sample]) -> float:
    """Return the samples/s of `readers` processes, which read batches in turn, as a DataLoader's workers do.

    The clock starts when each process has read the samples of its first file, because imports read files, too, and some
    libraries read a whole file, or row group, for its first sample.
    """
    warm_up = sum(path == samples[0][0] for path, _ in samples)
    fork = multiprocessing.get_context("fork")
    ready = fork.Barrier(readers + 1)

    def work(reader: int) -> None:
        begins = range(reader * batch, len(samples), readers * batch)
        reads = SCRIPTS[name]([sample for begin in begins for sample in samples[begin : begin + batch]])
        for _ in islice(reads, warm_up):
            pass
        ready.wait()
        for _ in reads:
            pass

    processes = [fork.Process(target=work, args=(reader,)) for reader in range(readers)]
    for process in processes:
        process.start()
    ready.wait()
    start = time.monotonic()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise RuntimeError(f"a reader of {name} failed")
    return (len(samples) - readers * warm_up) / (time.monotonic() - start)


if __name__ == "__main__":
    parts = (argument.rpartition(":") for argument in sys.argv[4:])
    all_samples = [(path, int(index)) for path, _, index in parts]
    print(samples_per_second(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), all_samples))
