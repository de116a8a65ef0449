"""Derives a job's dataset from the files that it opened: folder, format, and file sizes by stat."""

from __future__ import annotations

import contextlib
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from dlemu.config.overrides import check_letters
from dlemu.contrib.record.answer import Data, Recording, Spread
from dlemu.contrib.record.recipe import PIECES
from dlemu.extend import DlemuError, format_base, open_regular, own_folder

MAPPED = "mmap_indexed_binary"
_WEIGHTS = (".pt", ".pth", ".ckpt", ".safetensors", ".json", ".txt", ".yaml", ".yml", ".log", ".pkl")
"""File name endings that count as data only if no files with other endings were opened."""
_SHALLOW = 2
"""A common folder of at most this depth (/home/NAME) is too general: only the files' own folders are walked."""
_COUNTED_FILES = 4  # whose samples stand for those of all: counting reads a header for each
_OPENED_PER_SAMPLE = 0.9  # counts as one file per sample: some were opened before the recording, or stayed open
_PARTIAL = 0.8  # whole records: the rest is headers, indexes and padding; a crop reads a smaller share
_OPENS_OFF = 0.1  # more: some samples have files that others lack
_UNSEEN = 0.01  # of a sample: compression and wider types of numbers explain a larger share
_ROWS_OFF = 0.05  # by bytes, a group's rows count with the batch that reads it; more: some columns are not read
_SIZES_OFF = 0.25  # more: some loader reads its files more often; less may be headers that are read twice
_CACHED_OFF = 0.1  # the same as MAX_BYTES_ERROR_PERCENT for the bytes from devices: a smaller share is noise


def data_of(files: Sequence[str], recording: Recording) -> Data | None:
    """Return the dataset of these files, None where none exists any more; raises UserError for names not in UTF-8."""
    sizes = _distinct(files)
    if not sizes:
        return None
    kinds = _kinds(sizes, recording)
    opened = [name for name in sizes if own_folder.kind_of(name) in kinds]
    endings = [ending for ending, _ in Counter(os.path.splitext(name)[1].lower() for name in opened).most_common()]
    folder = os.path.commonpath([os.path.dirname(name) for name in opened])
    check_letters([folder, *endings])
    found = opened
    if not recording.mapped:  # mapped files stay open while they are read, so all of them are known
        roots = [folder] if len(folder.split(os.sep)) > _SHALLOW + 1 else sorted(set(map(os.path.dirname, opened)))
        found = _walk(roots, kinds)
    known = list(_distinct(found or opened).values())
    mean, formats = sum(known) / len(known), {own_folder.kind_of(name) for name in opened}
    file_format = formats.pop() if len(formats) == 1 else own_folder.RAW
    file_format = MAPPED if recording.mapped else own_folder.RAW if file_format[:1] in ("", ".") else file_format
    rows_of_group, counted = _counted(found, file_format, mean)
    whole = counted or (recording.loading.samples or 0) / len(known)
    whole = 1.0 if _opens_each(recording) else max(1.0, whole) if whole else 0.0
    read, streamed = recording.read_bytes_per_sample, recording.loading.iterable and file_format in own_folder.COUNTERS
    samples = whole or 1.0
    if read and (recording.mapped or (streamed and file_format == "parquet") or not whole):
        samples = max(1.0, mean / read)
    part = read / recording.files_per_sample
    is_part = part < _PARTIAL * mean / samples and not streamed
    # Of other formats that have several samples in a file, a replay would read a whole file for each of them
    if part and not recording.mapped and (is_part or (round(samples) > 1 and file_format not in own_folder.COUNTERS)):
        file_format = PIECES
        if is_part or part * samples > (1 + _SIZES_OFF) * mean:
            samples = max(1.0, mean // part)
    if abs(samples - counted) <= _ROWS_OFF * samples:  # of the columns read, a group's rows count with one batch
        samples = counted
    return Data(
        folder=folder,
        format=file_format,
        ending=", ".join(endings),
        files=len(known),
        bytes=sum(known),
        sizes=Spread.of(known),
        samples_per_file=samples,
        stored_bytes_per_sample=mean * recording.files_per_sample / whole if whole else None,
        group_rows=rows_of_group,
    )


def _opens_each(recording: Recording) -> bool:
    return recording.opens_per_sample >= _OPENED_PER_SAMPLE


def _counted(paths: list[str], file_format: str, mean_bytes: float) -> tuple[int, float]:
    """Return the rows of a row group of Parquet, and the samples of a file of mean size; 0: not counted."""
    rows, size_bytes, counts = 0, 0, list[int]()
    for path in paths[:: len(paths) // _COUNTED_FILES + 1] if file_format in own_folder.COUNTERS else ():
        # pyarrow's own errors are ValueErrors
        failures = contextlib.suppress(OSError, ValueError, format_base.DamagedError, DlemuError)
        with failures, own_folder.cache_restored([path]), os.fdopen(open_regular(path), "rb") as file:
            status = os.fstat(file.fileno())
            counts.append(own_folder.COUNTERS[file_format](file, format_base.version_of(path, status.st_size)))
            size_bytes += status.st_size
            rows = rows or (own_folder.group_rows(file) if file_format == "parquet" else 0)
    mean = round(sum(counts) / max(size_bytes, 1) * mean_bytes, 1)
    return rows, float(counts[0]) if len(set(counts)) == 1 else mean


def dataset_of(files: Sequence[str], recording: Recording) -> tuple[Recording, Data | None]:
    """Return the recording with the bytes of a sample that calls don't show, and its dataset, as `data_of`.

    They are known in three ways: by calls and indexed arrays, by files and the number of their samples, by tensors.
    Where these disagree, a note says so, or a problem.
    """
    data = data_of(files, recording)
    if data is None or recording.mapped:  # by NumPy: all that was indexed is known
        return recording, data
    read, shipped = recording.read_bytes_per_sample, recording.shipped_bytes_per_sample
    stored, opened = data.stored_bytes_per_sample or 0.0, _opens_each(recording)
    words = f"calls read {read:,.0f} bytes a sample, its tensors have {shipped:,.0f}, its files {stored:,.0f}"
    least = (1 - _SIZES_OFF) * min((each for each in (stored, shipped) if each), default=0.0)
    alike = opened and abs(shipped - stored) <= _SIZES_OFF * stored
    problem = note = ""
    if data.format in own_folder.COUNTERS and recording.loading.iterable:
        samples = recording.steps * recording.batch_size * recording.loaders
        rounding = recording.loading.workers * read / max(recording.calls_per_sample * samples, 1)  # a call of each
        if stored and read and abs(read - stored) > _SIZES_OFF * stored + rounding:
            why = "a shuffle buffer fills or drains in the measured batches, or samples are dropped"
            problem = f"{words}: {why}; leave those batches out with --skip, or record more of them"
        if data.format == "parquet":  # or some columns are not read
            problem, note = "", problem
    elif read < least and (recording.maps_files or alike):
        recording = replace(recording, mapped=not opened, read_bytes_per_sample=stored if opened else 0.0)
        data = data_of(files, recording)
        if 0 < shipped < (1 - _SIZES_OFF) * stored:
            problem = f"{words}: its files are mapped, and how much of them it reads is not known"
        elif stored:
            note = f"{words}: its files are mapped, and the recipe reads what they have"
    elif 0 < read < _UNSEEN * least:
        problem = f"{words}: it reads in a way that the recorder does not see"
    elif stored and read and (read < least or read > (1 + _SIZES_OFF) * stored):
        note = f"{words}: the recipe reads what calls do"
    problems, notes = (*recording.problems, *filter(None, [problem])), (*recording.notes, *filter(None, [note]))
    return replace(recording, problems=problems, notes=notes), data


def data_problems(data: Data | None, recording: Recording) -> Iterator[str]:
    if data is None or not (recording.mapped or recording.read_bytes_per_sample):
        yield "it reads no data file while it trains: its samples are in memory, or read in a way that is not seen"
        return
    if recording.mapped and not recording.read_bytes_per_sample:
        if not recording.loading.samples:
            yield "its files are mapped, and its dataset has no length: how many bytes a sample has is not known"
        return
    opens, files = recording.opens_per_sample, recording.files_per_sample
    if files > 1 and abs(opens - files) > _OPENS_OFF * files:
        yield f"its samples are read from {opens:.1f} files on average: wanted as many for each of them"


def data_notes(data: Data | None, recording: Recording) -> Iterator[str]:
    cached = cached_before(data, recording) if data is not None else 0
    if data is not None and recording.cached_percent is None:
        unknown = "how much came from the page cache is unknown; a replay begins with the dataset evicted"
        yield f"the kernel does not count what this file system reads from storage: {unknown}"
    if 0 < cached < 100:
        held = f"the page cache held {cached} % of the dataset before the job, and before the replay"
        yield f"{held}: a run of the recipe reads all from storage, unless you add {' '.join(cached_words(cached))}"


def cached_words(percent: int) -> list[str]:
    return ["reader.evict_page_cache=start", *([f"reader.page_cache_percent={percent}"] if percent else [])]


def cached_before(data: Data, recording: Recording) -> int:
    """Return the share of the dataset that the page cache held before the job read it, %; 0 also if it is not known.

    Where the job reads files again, the page cache serves them in a replay, too: these bytes don't count.
    """
    if recording.cached_percent in (0, 100, None):
        return recording.cached_percent or 0
    stored = data.bytes / data.files / data.samples_per_file * recording.files_per_sample  # without parts read twice
    served = 1 - recording.device_bytes_per_sample / min(recording.read_bytes_per_sample, stored)
    again = _read_again(data, recording)
    return round(100 * (served - again) / (1 - again)) if served - again > _CACHED_OFF else 0


def _read_again(data: Data, recording: Recording) -> float:
    """Return the share of reads, after the warm-up's, that repeat earlier ones: the page cache serves these."""
    taken = recording.steps * recording.batch_size * recording.files_per_sample * recording.loaders
    new = data.files * data.samples_per_file - recording.samples_before * recording.files_per_sample
    return 1 - min(max(0.0, new), taken) / taken


def _distinct(names: Iterable[str]) -> dict[str, int]:
    """Return the sizes of regular files; the kernel names an open file once more, without the links in its path."""
    sizes, seen = dict[str, int](), set[tuple[int, int]]()
    for name in names:
        with contextlib.suppress(OSError):
            status = os.stat(name)
            if stat.S_ISREG(status.st_mode) and status.st_size and (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                sizes[name] = status.st_size
    return sizes


def _kinds(sizes: dict[str, int], recording: Recording) -> list[str]:
    """Return the dataset's kinds of files: at most one for each file of a sample, or any if alike."""
    counts, bytes_of = Counter(map(own_folder.kind_of, sizes)), Counter[str]()
    for name, size in sizes.items():
        bytes_of[own_folder.kind_of(name)] += size
    most = recording.files_per_sample
    often = [kind for kind, _ in counts.most_common(None if most == 1 else most)]
    if most == 1:
        ranks = {kind: 0 if kind in _WEIGHTS else 1 if kind[:1] in ("", ".") else 2 for kind in often}
        best = max(often, key=lambda kind: (ranks[kind], bytes_of[kind]))
        if not _opens_each(recording):  # others may be indexes or labels
            return [best]
        often = [kind for kind in often if ranks[kind] or not ranks[best]]
    return [kind for kind in often if counts[kind] >= own_folder.MIN_SHARE_OF_KIND * counts[often[0]]]


def _walk(roots: list[str], kinds: list[str]) -> list[str]:
    """Return the files of these kinds, as a replay finds them."""
    found, seen = list[str](), set[str]()
    for root in roots:
        for folder, below, file_names in os.walk(root, followlinks=True):
            real = os.path.realpath(folder)
            below[:] = [] if real in seen else [name for name in below if not name.startswith(".")]
            if real in seen:  # a link leads back up, or to a folder that has another name here
                continue
            seen.add(real)
            shown = (name for name in file_names if not name.startswith("."))
            found += [os.path.join(folder, name) for name in shown if own_folder.kind_of(name) in kinds]
    return found
