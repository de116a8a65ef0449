"""From names of files that a job opened to its dataset: where it lies, its format, and its sizes by stat."""

from __future__ import annotations

import os
import stat
import time
from collections import Counter
from collections.abc import Iterator

from datagen.registry import names
from dlemu.studies.record.answer import Data, Recording, Spread

_FORMATS = {
    ".npz": "npz",
    ".npy": "npy",
    ".jpg": "jpeg",
    ".jpeg": "jpeg",
    ".png": "png",
    ".tif": "tiff",
    ".tiff": "tiff",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".csv": "csv",
    ".tfrecord": "tfrecord",
    ".parquet": "parquet",
    ".tar": "webdataset",
}
MAPPED = "mmap_indexed_binary"
_WEIGHTS = (".pt", ".pth", ".ckpt", ".safetensors", ".json", ".txt", ".yaml", ".yml", ".log", ".pkl")
"""Endings that are data only where nothing else was opened."""
_WALK_SECONDS = 60.0  # the user waits; of a larger dataset the files found so far stand for all
_SHALLOW = 2
"""Parts of a path, /home/NAME, that is no dataset's folder: what is below it is not walked."""
_OPENED_PER_SAMPLE = 0.9  # one each, but for files opened before the window or left open
_PARTIAL = 0.8  # headers, indexes and padding are the rest; a crop reads less
_CACHED_OFF = 0.1  # the bytes from devices may differ by as much (MOST_BYTES_ERROR_PERCENT)


def data_of(files: Counter[str], recording: Recording) -> Data | None:
    """Return the dataset that these files are of; None where none of them is there any more."""
    sizes = {name: size for name in files if (size := _size(name))}
    if not sizes:
        return None
    ending = max({_ending(name) for name in sizes}, key=lambda one: _weight(one, sizes))
    own = [name for name in sizes if _ending(name) == ending]
    folder = os.path.commonpath([os.path.dirname(name) for name in own])
    found, is_whole = own, False
    if not recording.mapped:  # of mapped files those that training reads stay open, and are all known
        roots = [folder] if len(folder.split(os.sep)) > _SHALLOW + 1 else sorted(set(map(os.path.dirname, own)))
        found, is_whole = _walk(roots, ending)
    known = [size for name in found if (size := _size(name))]
    each = _samples_per_file(recording, known)
    return Data(
        folder=folder,
        format=MAPPED if recording.mapped else _FORMATS.get(ending, "raw" if "raw" in names("datagen.formats") else ""),
        ending=ending,
        files=len(known),
        bytes=sum(known),
        sizes=Spread.of(known),
        samples_per_file=each,
        is_whole=is_whole or recording.mapped,
    )


def data_problems(data: Data | None, recording: Recording) -> Iterator[str]:
    """Yield why a replay would read otherwise than the job."""
    if data is None:
        yield "no file that the samples come from was seen: they are read where the recorder does not look"
        return
    if not data.format:
        yield f"dlemu does not support the files' format ({data.ending or 'no ending'})"
    if recording.opens_per_sample >= 1.5:  # nearer to two than to one
        yield f"a sample opens {recording.opens_per_sample:.1f} files, but a workload's sample is in one"
    cached = recording.cached_percent
    if 0 < cached < 100 and abs(cached / 100 - _read_again(data, recording)) > _CACHED_OFF:
        yield f"the page cache served {cached} % of its bytes: record it cold, or with all of its data in memory"
    record = data.bytes / (data.files * data.samples_per_file)
    if not recording.mapped and recording.read_bytes_per_sample < _PARTIAL * record:
        share = 100 * recording.read_bytes_per_sample / record
        yield f"a sample reads {share:.0f} % of its record, but a replay reads all of it"


def _read_again(data: Data, recording: Recording) -> float:
    """Return the share of what was recorded that the job had read before: memory serves that in its replay, too."""
    taken = recording.steps * recording.read_batch_size * recording.loaders
    return max(0.0, 1 - data.files * data.samples_per_file / taken)


def _size(name: str) -> int:
    try:
        status = os.stat(name)
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _ending(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def _weight(ending: str, sizes: dict[str, int]) -> tuple[int, int]:
    rank = 2 if ending in _FORMATS else 0 if ending in _WEIGHTS else 1
    return rank, sum(size for name, size in sizes.items() if _ending(name) == ending)


def _walk(roots: list[str], ending: str) -> tuple[list[str], bool]:
    """Return the files of an ending below folders, and whether these are all."""
    until, found = time.monotonic() + _WALK_SECONDS, []
    for root in roots:
        for folder, _, names_in in os.walk(root):
            found += [os.path.join(folder, name) for name in names_in if _ending(name) == ending]
            if time.monotonic() > until:
                return found, False
    return found, True


def _samples_per_file(recording: Recording, sizes: list[int]) -> float:
    """Return how many samples are in a file: by what is opened, what the dataset says, or the bytes that one takes."""
    if recording.opens_per_sample >= _OPENED_PER_SAMPLE:
        return 1.0
    if recording.mapped and recording.read_bytes_per_sample > 0:
        return max(1.0, sum(sizes) / len(sizes) / recording.read_bytes_per_sample)
    if recording.loading.samples:
        return max(1.0, recording.loading.samples / len(sizes))
    if recording.read_bytes_per_sample > 0:
        return max(1.0, sum(sizes) / len(sizes) / recording.read_bytes_per_sample)
    return 1.0
