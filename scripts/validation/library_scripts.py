"""Each format read as a plain script reads it, by its usual library; nothing of dlemu is in it.

    python -m validation.library_scripts FORMAT READERS BATCH FILE:INDEX...

reads these samples by so many processes, and prints samples/s.
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
"""A file, and which of its samples."""


def npz(samples: Iterable[Sample]) -> Iterator[None]:
    """By np.load."""
    for path, of_file in groupby(samples, key=lambda sample: sample[0]):
        with np.load(path) as archive:
            array = archive["x"]
        for _, index in of_file:
            array[..., index].ravel()
            yield


def npy(samples: Iterable[Sample]) -> Iterator[None]:
    """By np.load."""
    for path, of_file in groupby(samples, key=lambda sample: sample[0]):
        array = np.load(path)
        for _, index in of_file:
            array[..., index].ravel()
            yield


def hdf5(samples: Iterable[Sample]) -> Iterator[None]:
    """By h5py; files of several samples stay open."""
    import h5py

    for path, of_file in groupby(samples, key=lambda sample: sample[0]):
        with h5py.File(path, "r") as file:
            dataset = file["records_0"]
            for _, index in of_file:
                dataset[index]
                yield


def picture(samples: Iterable[Sample]) -> Iterator[None]:
    """By Pillow from an open file, as torchvision's ImageFolder does."""
    from PIL import Image

    for path, _ in samples:
        with open(path, "rb") as file:
            Image.open(file).convert("RGB")
        yield


def csv(samples: Iterable[Sample]) -> Iterator[None]:
    """By the calls that pandas' parser makes."""
    for path, of_file in groupby(samples, key=lambda sample: sample[0]):
        with open(path, "rb") as file:
            while file.read(256 << 10):
                continue
        yield from (None for _ in of_file)


def tfrecord(samples: Iterable[Sample]) -> Iterator[None]:
    """By tf.data.TFRecordDataset, whole files."""
    import tensorflow

    for path, of_file in groupby(samples, key=lambda sample: sample[0]):
        for _, record in zip(of_file, tensorflow.data.TFRecordDataset(path), strict=True):
            record.numpy()
            yield


def webdataset(samples: Iterable[Sample]) -> Iterator[None]:
    """By tarfile as webdataset calls it (`tar_file_iterator`), whole files."""
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
    """By a file that is not buffered, as Megatron-LM's reader without memory maps; the index is mapped."""
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
    """By np.memmap of data and index."""
    maps: dict[str, tuple[Any, Any, Any]] = {}
    for path, index in samples:
        if path not in maps:
            maps[path] = (*_index(path), np.memmap(path, np.uint8, "r"))
        offsets, sizes, data = maps[path]
        begin = int(offsets[index])
        np.array(data[begin : begin + int(sizes[index])])
        yield


def parquet(samples: Iterable[Sample]) -> Iterator[None]:
    """By pyarrow, row group by row group."""
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
"""A format -> the script, which yields once for each sample it has."""


def read(name: str, samples: Sequence[Sample]) -> int:
    """Read samples; return how many came."""
    return sum(1 for _ in SCRIPTS[name](samples))


def samples_per_second(name: str, readers: int, batch: int, samples: Sequence[Sample]) -> float:
    """Read samples by so many processes, which take batches in turn as a DataLoader's workers do.

    The clock begins when each has had the samples of its first file: what is imported is read, too, and some libraries
    read a whole file, or group of rows, for its first sample.
    """
    before = sum(path == samples[0][0] for path, _ in samples)
    fork = multiprocessing.get_context("fork")
    ready = fork.Barrier(readers + 1)

    def work(reader: int) -> None:
        begins = range(reader * batch, len(samples), readers * batch)
        came = SCRIPTS[name]([sample for begin in begins for sample in samples[begin : begin + batch]])
        for _ in islice(came, before):
            pass
        ready.wait()
        for _ in came:
            pass

    processes = [fork.Process(target=work, args=(reader,)) for reader in range(readers)]
    for process in processes:
        process.start()
    ready.wait()
    begun = time.monotonic()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise RuntimeError(f"a reader of {name} failed")
    return (len(samples) - readers * before) / (time.monotonic() - begun)


if __name__ == "__main__":
    parts = (word.rpartition(":") for word in sys.argv[4:])
    places = [(path, int(index)) for path, _, index in parts]
    print(samples_per_second(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), places))
