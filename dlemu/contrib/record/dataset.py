"""Derives a job's dataset from the files that it opened: folder, format, sizes of the files, and samples per file.

Example: a job opened shard0.tar, beside shard1.tar to shard3.tar of 10,000 bytes each, and reads 1000 bytes a sample ->
4 files of format `webdataset` with 10 samples each.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from dlemu.config.overrides import check_encoding
from dlemu.contrib.record.answer import Data, Recording, Spread
from dlemu.contrib.record.recipe import PIECES
from dlemu.extend import DlemuError, format_base, open_regular, own_folder, registry

MAPPED = "mmap_indexed_binary"
# How the bytes of a sample, as read by calls, disagree with its files and tensors.
_Mismatch = Literal["unsteady stream", "mapped files", "unseen reads", "other size"]
# Endings of files that hold weights, labels or logs. They count as data only if the job opened no other files.
_OTHER_ENDINGS = (".pt", ".pth", ".ckpt", ".safetensors", ".json", ".txt", ".yaml", ".yml", ".log", ".pkl")
_MAX_SHALLOW_DEPTH = 2  # Below a common folder as shallow as /home/NAME, only the files' own folders are searched.
_MAX_COUNTED_FILES = 4  # Counting samples reads the headers of a file, so a few files stand for all.
_MIN_OPENS_PER_SAMPLE = 0.9  # With fewer opens, a file holds several samples; a few files may have stayed open.
_MIN_WHOLE_SHARE = 0.8  # Headers and padding take under a fifth of a file; a job that reads less reads parts (crops).
_OPENS_TOLERANCE = 0.1  # A larger deviation of opens per sample shows that samples differ in their number of files.
_MIN_SEEN_SHARE = 0.01  # Below this share of a sample, compression or wider dtypes in tensors can't explain the gap.
_COUNT_TOLERANCE = 0.05  # A count of samples this close to an estimate from the bytes read replaces the estimate.
_SIZE_TOLERANCE = 0.25  # Headers that are read twice, and compression, cause smaller differences.
_CACHED_TOLERANCE = 0.1  # A smaller share from the page cache is noise, like MAX_BYTES_ERROR_PERCENT of device bytes.


def recording_and_data(files: Sequence[str], recording: Recording) -> tuple[Recording, Data | None]:
    """Return the recording, corrected for mapped files, and the dataset of the opened `files` (see `data_of`).

    If read calls, files and tensors disagree on the bytes of a sample, the recording gets a problem or a note.
    """
    data = data_of(files, recording)
    if data is None or recording.mapped:  # NumPy's mapped arrays: the recorder saw each indexing.
        return recording, data
    read = recording.read_bytes_per_sample
    shipped = recording.shipped_bytes_per_sample
    stored = data.stored_bytes_per_sample or 0.0
    sizes = f"calls read {read:,.0f} bytes a sample, its tensors have {shipped:,.0f}, its files {stored:,.0f}"
    problems = list(recording.problems)
    notes = list(recording.notes)
    mismatch = _classify(recording, data.format, stored)
    if mismatch == "unsteady stream":
        why = "a shuffle buffer fills or drains in the measured batches, or samples are dropped"
        findings = notes if data.format == "parquet" else problems  # A stream of Parquet may skip columns.
        findings.append(f"{sizes}: {why}; leave those batches out with --skip, or record more of them")
    elif mismatch == "mapped files":
        if 0 < shipped < (1 - _SIZE_TOLERANCE) * stored:
            problems.append(f"{sizes}: its files are mapped, and how much of them it reads is not known")
        elif stored:
            notes.append(f"{sizes}: its files are mapped, and the recipe reads what they have")
        if recording.opens_per_sample >= _MIN_OPENS_PER_SAMPLE:  # Each sample has a file: a replay reads all of it.
            recording = replace(recording, read_bytes_per_sample=stored)
        else:  # A file has several samples: a replay maps it, too.
            recording = replace(recording, mapped=True, read_bytes_per_sample=0.0)
        data = data_of(files, recording)
    elif mismatch == "unseen reads":
        problems.append(f"{sizes}: it reads in a way that the recorder does not see")
    elif mismatch == "other size":
        notes.append(f"{sizes}: the recipe reads what calls do")
    return replace(recording, problems=tuple(problems), notes=tuple(notes)), data


def _classify(recording: Recording, file_format: str, stored: float) -> _Mismatch | None:
    """Return how read calls disagree with the tensors and the `stored` bytes of a sample (0: unknown); None: agree."""
    read = recording.read_bytes_per_sample
    shipped = recording.shipped_bytes_per_sample
    if file_format in own_folder.COUNTERS and recording.loading.iterable:
        samples = recording.steps * recording.batch_size * recording.loaders
        # The last read call of each worker may be for samples after the measured ones.
        rounding = recording.loading.workers * read / max(recording.calls_per_sample * samples, 1)
        is_unsteady = stored and read and abs(read - stored) > _SIZE_TOLERANCE * stored + rounding
        return "unsteady stream" if is_unsteady else None
    min_bytes = (1 - _SIZE_TOLERANCE) * min((size for size in (stored, shipped) if size), default=0.0)
    has_own_file = recording.opens_per_sample >= _MIN_OPENS_PER_SAMPLE
    tensors_are_files = has_own_file and abs(shipped - stored) <= _SIZE_TOLERANCE * stored
    if read < min_bytes and (recording.maps_files or tensors_are_files):
        return "mapped files"
    if 0 < read < _MIN_SEEN_SHARE * min_bytes:
        return "unseen reads"
    if stored and read and (read < min_bytes or read > (1 + _SIZE_TOLERANCE) * stored):
        return "other size"
    return None


def data_of(files: Sequence[str], recording: Recording) -> Data | None:
    """Return the dataset of these files, or None if no file exists; raises UserError for names that are not UTF-8."""
    opened_sizes = _file_sizes(files)
    if not opened_sizes:
        return None
    kinds = _data_kinds(opened_sizes, recording)
    opened = [path for path in opened_sizes if own_folder.kind_of(path) in kinds]
    endings = [ending for ending, _ in Counter(os.path.splitext(path)[1].lower() for path in opened).most_common()]
    folder = os.path.commonpath([os.path.dirname(path) for path in opened])
    check_encoding([folder, *endings])
    # The recorder has seen all mapped files, as these stay open. Of other files there may be more.
    paths = opened if recording.mapped else _find_files(opened, folder, kinds)
    sizes = list(_file_sizes(paths or opened).values())
    mean_bytes = sum(sizes) / len(sizes)
    file_format = own_folder.RAW
    if recording.mapped:
        file_format = MAPPED
    elif len(kinds) == 1 and kinds[0] in registry.names(format_base.FORMATS):
        file_format = kinds[0]
    group_rows, counted = _count_samples(paths, file_format, mean_bytes)
    samples: float | None = 1.0  # per whole file; None: unknown
    if recording.opens_per_sample < _MIN_OPENS_PER_SAMPLE:
        file_samples = counted or (recording.loading.samples or 0) / len(sizes)
        samples = max(1.0, file_samples) if file_samples else None
    replay_format, replay_samples = _data_format(file_format, samples, mean_bytes, recording)
    if abs(replay_samples - counted) <= _COUNT_TOLERANCE * replay_samples:
        replay_samples = counted
    return Data(
        folder=folder,
        format=replay_format,
        ending=", ".join(endings),
        files=len(sizes),
        bytes=sum(sizes),
        sizes=Spread.of(sizes),
        samples_per_file=replay_samples,
        stored_bytes_per_sample=mean_bytes * recording.files_per_sample / samples if samples else None,
        group_rows=group_rows,
    )


def _file_sizes(paths: Iterable[str]) -> dict[str, int]:
    """Return path -> bytes of the regular, non-empty files, each once even if links give it several paths."""
    sizes, inodes = dict[str, int](), set[tuple[int, int]]()
    for path in paths:
        with contextlib.suppress(OSError):
            status = os.stat(path)
            if stat.S_ISREG(status.st_mode) and status.st_size and (status.st_dev, status.st_ino) not in inodes:
                inodes.add((status.st_dev, status.st_ino))
                sizes[path] = status.st_size
    return sizes


def _data_kinds(sizes: dict[str, int], recording: Recording) -> list[str]:
    """Return the kinds of the files that hold samples: formats or endings, as from `own_folder.kind_of`.

    Example: the job opened 40 .jpg files, 30 .xyz files and labels.json -> jpeg and .xyz. If a file holds several
    samples, all files of a dataset are of one kind -> jpeg, as dlemu has that format.
    """
    counts = Counter(map(own_folder.kind_of, sizes))
    kinds = [kind for kind, _ in counts.most_common()]
    if recording.files_per_sample > 1:
        kinds = kinds[: recording.files_per_sample]
    else:
        kinds = [kind for kind in kinds if kind not in _OTHER_ENDINGS] or kinds
        if recording.opens_per_sample < _MIN_OPENS_PER_SAMPLE:  # Files of the other kinds may be indexes or labels.
            formats = registry.names(format_base.FORMATS)
            bytes_of_kind = Counter[str]()
            for path, size in sizes.items():
                bytes_of_kind[own_folder.kind_of(path)] += size
            return [max([kind for kind in kinds if kind in formats] or kinds, key=bytes_of_kind.__getitem__)]
    return [kind for kind in kinds if counts[kind] >= own_folder.MIN_SHARE_OF_KIND * counts[kinds[0]]]


def _find_files(opened: Sequence[str], folder: str, kinds: list[str]) -> list[str]:
    """Return a dataset's files, those not opened included, as a replay finds them: without hidden files and folders."""
    is_deep = len(folder.split(os.sep)) > _MAX_SHALLOW_DEPTH + 1
    roots = [folder] if is_deep else sorted(set(map(os.path.dirname, opened)))
    paths, visited = list[str](), set[str]()
    for root in roots:
        for parent, subfolders, names in os.walk(root, followlinks=True):
            real = os.path.realpath(parent)
            if real in visited:  # through a link to a folder above, or to one with another path
                subfolders.clear()
                continue
            visited.add(real)
            subfolders[:] = [name for name in subfolders if name[0] != "."]
            data_files = [name for name in names if name[0] != "." and own_folder.kind_of(name) in kinds]
            paths += [os.path.join(parent, name) for name in data_files]
    return paths


def _count_samples(paths: list[str], file_format: str, mean_bytes: float) -> tuple[int, float]:
    """Return the rows per row group of Parquet and the samples in a file of `mean_bytes`; 0 means not counted."""
    group_rows, counted_bytes, counts = 0, 0, list[int]()
    if file_format not in own_folder.COUNTERS:
        return 0, 0.0
    for path in paths[:: len(paths) // _MAX_COUNTED_FILES + 1]:  # spread over all files
        try:
            with own_folder.cache_restored([path]), os.fdopen(open_regular(path), "rb") as file:
                file_bytes = os.fstat(file.fileno()).st_size
                counts.append(own_folder.COUNTERS[file_format](file, format_base.version_of(path, file_bytes)))
                counted_bytes += file_bytes
                if file_format == "parquet" and not group_rows:
                    group_rows = own_folder.group_rows(file)
        except (OSError, ValueError, format_base.DamagedError, DlemuError):  # pyarrow's errors are ValueErrors.
            continue  # The other files are counted.
    if len(set(counts)) == 1:
        return group_rows, float(counts[0])
    return group_rows, round(sum(counts) / max(counted_bytes, 1) * mean_bytes, 1)


def _data_format(file_format: str, samples: float | None, mean_bytes: float, recording: Recording) -> tuple[str, float]:
    """Return the format by which a replay reads the files, and the samples per file in that format.

    A replay reads whole samples of `file_format`, or PIECES of files with as many bytes as the job reads per sample.
    Example: crops of 11,000 bytes out of pictures of 99,800 bytes -> ("indexed_binary", 9.0).
    """
    read = recording.read_bytes_per_sample
    has_counter = file_format in own_folder.COUNTERS
    is_stream = recording.loading.iterable and has_counter
    file_samples = samples or 1.0
    if read and (samples is None or recording.mapped or (is_stream and file_format == "parquet")):
        file_samples = max(1.0, mean_bytes / read)
    piece_bytes = read / recording.files_per_sample
    if not piece_bytes or recording.mapped:
        return file_format, file_samples
    is_part = piece_bytes < _MIN_WHOLE_SHARE * mean_bytes / file_samples and not is_stream
    if not is_part and (has_counter or round(file_samples) <= 1):
        return file_format, file_samples
    # dlemu can't find samples within such a file: without PIECES, a replay would read the whole file for each.
    if is_part or piece_bytes * file_samples > (1 + _SIZE_TOLERANCE) * mean_bytes:
        return PIECES, max(1.0, mean_bytes // piece_bytes)
    return PIECES, file_samples


def data_problems(data: Data | None, recording: Recording) -> Iterator[str]:
    """Yield why a replay of these files could not read as the job did."""
    if data is None or not (recording.mapped or recording.read_bytes_per_sample):
        yield "it reads no data file while it trains: its samples are in memory, or read in a way that is not seen"
        return
    if recording.mapped and not recording.read_bytes_per_sample:
        if not recording.loading.samples:
            yield "its files are mapped, and its dataset has no length: how many bytes a sample has is not known"
        return
    opens, files = recording.opens_per_sample, recording.files_per_sample
    if files > 1 and abs(opens - files) > _OPENS_TOLERANCE * files:
        yield f"its samples are read from {opens:.1f} files on average: wanted as many for each of them"


def data_notes(data: Data | None, recording: Recording) -> Iterator[str]:
    if data is None:
        return
    if recording.cached_percent is None:
        yield (
            "the kernel does not count what this file system reads from storage: how much came from the page cache is "
            "unknown; a replay begins with the dataset evicted"
        )
    cached = cached_before(data, recording)
    if 0 < cached < 100:
        yield (
            f"the page cache held {cached} % of the dataset before the job, and before the replay: a run of the recipe "
            f"reads all from storage, unless you add {' '.join(cache_overrides(cached))}"
        )


def cache_overrides(percent: int) -> list[str]:
    """Return the settings of a training that starts with this share of the dataset in the page cache."""
    if percent == 100:
        return ["reader.evict_page_cache=never"]
    share = [f"reader.page_cache_percent={percent}"] if percent else []
    return ["reader.evict_page_cache=start", *share]


def cached_before(data: Data, recording: Recording) -> int:
    """Return the share of the dataset that the page cache held before the job read it, %; 0 also if unknown.

    The cache serves all repeated reads, and the first reads of what it held: served = repeated + (1 - repeated) * held.
    Example: of 100 bytes read, 40 were read before, and the device served 15: 0.85 = 0.4 + 0.6 * held -> 75 %.
    """
    if recording.cached_percent in (0, 100, None):
        return recording.cached_percent or 0
    sample_bytes = data.bytes / data.files / data.samples_per_file * recording.files_per_sample
    # The smaller of the two, as bytes that the job reads twice for a sample count once.
    served = 1 - recording.device_bytes_per_sample / min(recording.read_bytes_per_sample, sample_bytes)
    reads = recording.steps * recording.batch_size * recording.files_per_sample * recording.loaders
    unread = data.files * data.samples_per_file - recording.samples_before * recording.files_per_sample
    repeated = 1 - min(max(0.0, unread), reads) / reads
    if served - repeated <= _CACHED_TOLERANCE:
        return 0
    return round(100 * (served - repeated) / (1 - repeated))
