"""A folder of somebody's own files is a dataset: found as it lies, read whole, never written to."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import pickle
import re
import shutil
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from datagen.errors import DatasetError, UserError
from datagen.fetch import Fetched, Fetcher, FetchSpec
from datagen.formats import format_base, tfrecord, webdataset
from datagen.formats.format_base import RecordInputs, reading
from datagen.formats.webdataset import BLOCK, TAIL, TarRecords
from datagen.generate import prepare
from datagen.inspection import Dataset, inspect
from datagen.own_folder import inspect_own_folder
from datagen.spec import DatasetSpec, EngineName
from datagen.storage import posix
from datagen.storage.storage_base import FOLDERS
from dlemu.config import load
from tests.datagen.conftest import fetched
from tests.datagen.sources import MemorySource
from tests.datagen.test_tfrecord import framed
from tests.object_stores import BUCKET, storage_of

Make = Callable[[Path], None]


def put(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(hashlib.shake_256(path.name.encode()).digest(size))


def own(folder: Path, **changes: Any) -> DatasetSpec:
    return DatasetSpec(**({"data_folder": str(folder), "source": "folder", "format": ""} | changes))


def read_all(found: Dataset, **options: Any) -> tuple[Fetched, memoryview]:
    """Read every sample in one batch; return what it took, and the memory that they are in."""
    fetch = FetchSpec(found, found.train, **options)
    out = memoryview(bytearray(fetch.slot_bytes(found.train.num_samples)))
    with contextlib.closing(Fetcher(fetch)) as fetcher:
        return fetcher.fetch(range(found.train.num_samples), out), out


def state(folder: Path) -> dict[Path, tuple[int, bytes]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def anything_flat(folder: Path) -> None:
    for number in range(6):
        put(folder / f"scan {number}.dcm", 1000 + 500 * number)
    put(folder / "README", 10)
    put(folder / ".DS_Store", 10)


def classes_of_scans(folder: Path) -> None:
    for number in range(6):
        put(folder / "train" / f"class {number % 2}" / "left" / f"{number}.DCM", 3000)
    put(folder / "val" / "class 0" / "9.dcm", 3000)


def arrays_of_others(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for number in range(6):
        np.savez(folder / f"{number}.npz", image=np.arange(5000 + number), mask=np.ones(9000, np.uint8))


def compressed_arrays(folder: Path) -> None:
    """Far larger once decompressed; members are stored or deflated, and named as their owner likes."""
    folder.mkdir(exist_ok=True)
    for number in range(3):
        np.savez_compressed(folder / f"{number}.npz", image=np.zeros((100, 200 + number), np.uint8))
        with zipfile.ZipFile(folder / f"{number}-mixed.npz", "w") as archive:
            archive.writestr("a.npy", array_file(9000), zipfile.ZIP_STORED)
            archive.writestr("deep/b.npy", array_file(90_000), zipfile.ZIP_DEFLATED)


def array_file(size: int) -> bytes:
    packed = io.BytesIO()
    np.save(packed, np.zeros(size, np.uint8))
    return packed.getvalue()


def picture(kind: str, mode: str = "RGB") -> bytes:
    image, packed = pytest.importorskip("PIL.Image"), io.BytesIO()
    image.effect_noise((40, 40), 50).convert(mode).save(packed, kind)
    return packed.getvalue()


def odd_pictures(folder: Path, ending: str = "jpg") -> None:
    """Not what their names say, or with something behind the end."""
    folder.mkdir(exist_ok=True)
    kinds = [picture(kind) for kind in ("GIF", "WEBP", "PNG", "BMP", "JPEG")]
    for number, data in enumerate([*kinds, picture("JPEG", "CMYK"), picture("JPEG") + bytes(10), picture("TIFF")]):
        (folder / f"{number}.{ending}").write_bytes(data)


odd_pngs, odd_tiffs = (partial(odd_pictures, ending=ending) for ending in ("PNG", "tif"))


def broken_pictures(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    whole = picture("JPEG")
    for number, data in enumerate([b"junk" + whole, whole[:-30], whole[:20], whole, b"\xff\xd8", whole]):
        (folder / f"{number}.JPEG").write_bytes(data)


def plain_arrays(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for number in range(6):
        np.save(folder / f"{number}.npy", np.arange(1000 + 10 * number, dtype=np.float32))


def shards(folder: Path) -> None:
    """The last has fewer samples, and a sample is a picture with its label."""
    folder.mkdir(exist_ok=True)
    for shard, samples in enumerate((4, 4, 4, 1)):
        with tarfile.open(folder / f"shard-{shard:06}.tar", "w") as tar:
            for number in range(samples):
                for ending, size in (("jpg", 900 + 100 * number), ("cls", 1)):
                    member = tarfile.TarInfo(f"{shard}_{number}.{ending}")
                    member.size = size
                    tar.addfile(member, io.BytesIO(bytes(size)))


def records(folder: Path) -> None:
    """Of changing lengths, in files named as TFDS names them."""
    folder.mkdir(exist_ok=True)
    for shard in range(3):
        (folder / f"train.tfrecord-{shard:05}-of-00003").write_bytes(
            b"".join(framed(bytes(size)) for size in range(100, 700, 100))
        )


def tables(folder: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder.mkdir(exist_ok=True)
    for shard in range(3):
        columns = {"text": ["words " * (number + 1) for number in range(50)], "label": list(range(50))}
        parquet.write_table(arrow.table(columns), folder / f"part-{shard}.parquet", row_group_size=20)


CASES: list[tuple[Make, str, int, int]] = [
    (anything_flat, "raw", 6, 1),
    (classes_of_scans, "raw", 6, 1),
    (arrays_of_others, "npz", 6, 1),
    (compressed_arrays, "npz", 6, 1),
    (odd_pictures, "jpeg", 8, 1),
    (odd_pngs, "png", 8, 1),
    (odd_tiffs, "tiff", 8, 1),
    (broken_pictures, "jpeg", 6, 1),
    (plain_arrays, "npy", 6, 1),
    (shards, "webdataset", 3, 4),
    (records, "tfrecord", 3, 6),
    (tables, "parquet", 3, 50),
]


@pytest.mark.parametrize(("make", "name", "files", "samples"), CASES, ids=[case[1] for case in CASES])
def test_own_files_are_read_whole_and_left_alone(
    make: Make, name: str, files: int, samples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path)
    before = state(tmp_path)
    for folder in (tmp_path, *(path for path in tmp_path.rglob("*") if path.is_dir())):
        folder.chmod(0o555)
    spec = inspect_own_folder(own(tmp_path), FOLDERS).spec
    assert (spec.format, spec.num_files_train, spec.num_samples_per_file) == (name, files, samples)
    monkeypatch.setattr(posix, "_is_cached", looked := Mock(return_value=True))
    found = inspect(spec)
    assert found.spec == spec
    assert looked.called == (samples > 1), "files of one sample are not opened: only their sizes are needed"
    result, out = read_all(found)
    if samples == 1:
        assert result.app_bytes == found.total_bytes == sum(os.path.getsize(found.train.path(n)) for n in range(files))
        assert spec.record_length_bytes == pytest.approx(found.total_bytes / files)
    assert result.app_bytes > 0.3 * found.total_bytes
    for number, (start, size) in enumerate(result.places.tolist() if name in ("jpeg", "png", "tiff") else ()):
        assert bytes(out[start : start + size]) == Path(found.train.path(number)).read_bytes(), "as it is"
    assert state(tmp_path) == before
    with pytest.raises(UserError, match="which are only read"):
        prepare(spec)


@pytest.mark.parametrize("engine", ["matched", "fast", "library"])
@pytest.mark.parametrize("make", [odd_pictures, odd_pngs, odd_tiffs, compressed_arrays])
def test_own_files_are_decoded_as_what_they_hold(make: Make, engine: EngineName, tmp_path: Path) -> None:
    make(tmp_path)
    found = inspect(inspect_own_folder(own(tmp_path), FOLDERS).spec)
    for size in (40 * 40 * 3, 0):  # without a size, what there is room for
        result, _ = read_all(found, engine=engine, decode="full", resize_bytes=size)
        assert result.app_bytes > 0.5 * found.total_bytes


def test_hdf5_with_many_samples_is_read_whole_and_its_note_says_how_to_cut_it(tmp_path: Path) -> None:
    with pytest.importorskip("h5py").File(tmp_path / "all.h5", "w") as file:
        file.create_dataset("train/images", data=np.zeros((60, 3, 8, 8), np.uint8))
    words = ["dataset.source=folder", f"dataset.data_folder={tmp_path}"]
    (note,) = (note for note in load(words).notes if "read whole" in note)
    assert "set dataset.format=mmap_indexed_binary and dataset.record_length_bytes" in note
    cut = load([*words, "dataset.format=mmap_indexed_binary", "dataset.record_length_bytes=192"]).dataset
    assert cut.num_samples_per_file == os.path.getsize(tmp_path / "all.h5") // 192


CHOICES = """
%.png:99 labels.npz:900 |  | png 4: %.png | files of other kinds are skipped: .npz .1.
%.jpg:99 %.csv |  | jpeg 4: %.jpg | .csv .4.
%.jpg:99 %.txt a.md | format=raw | raw 4: %.jpg | .txt .4., .md .1.
%.jpg:99 %.seg | format=raw | raw 8: %.jpg %.seg |
%.bin:99 %.idx |  | raw 4: %.bin | skipped: .idx .4.
%.mp4:99 %.srt labels.csv:50 |  | raw 4: %.mp4 | .csv .1.
%.h5 %.txt a/%.json |  | raw 4: %.h5 | skipped: .txt .4., .json .4.
%.flac:99 %.seg:50 |  | raw 8: %.flac %.seg | each .flac file is read whole, as one sample
%.tfrecord:R %.tfrecord.idx |  | tfrecord 4x3: %.tfrecord | .idx
part-0000%:R README _SUCCESS:0 | format=tfrecord | tfrecord 4x3: part-0000% | empty files are skipped: 1
%.json:R | format=tfrecord | tfrecord 4x3: %.json |
%.json:600 | format=indexed_binary record_length_bytes=60 | indexed_binary 4x10: %.json |
data.mdb:600 lock.mdb | format=mmap_indexed_binary record_length_bytes=60 | mmap_indexed_binary 1x10: data.mdb | .mdb
%.tar.gz |  | raw 4: %.tar.gz | each .tar.gz file .* one sample: if it holds many, set dataset.format=mmap_indexed_bin
a/train-%.bmp a/dev-%.bmp a/test-%.bmp |  | raw 4: a/train-%.bmp | files of other splits are skipped: 8
train2017/%.bmp val2017/%.bmp a/%.json |  | raw 4: train2017/%.bmp | skipped: 4, such as val2017/0.bmp
train/%.bmp more/%.bmp |  | raw 8: more/%.bmp train/%.bmp | each .bmp file
validation-%.bmp test-%.bmp |  | raw 8: test-%.bmp validation-%.bmp | each .bmp file
train/car/%.bmp train/test/%.bmp |  | raw 8: train/car/%.bmp train/test/%.bmp | each .bmp file
train.txt val.txt images/%.bmp |  | raw 4: images/%.bmp | .txt .2.
%.png | format=tfrecord | refused | named as png: leave dataset.format out
%.dcm | format=npz | refused | dataset.format=npz: .*0.dcm: .*: leave dataset.format out, or set dataset.format=raw
part-% | format=parquet | refused | set dataset.format=raw
%.tfrecord:Z |  | refused | decompress it if it is compressed.* set dataset.format=raw
%.tar:Z |  | refused | decompress it if it is compressed
"""


@pytest.mark.parametrize("choice", CHOICES.strip().split("\n"))
def test_files_that_count_are_chosen_once_and_others_are_told_of(choice: str, tmp_path: Path) -> None:
    files, words, wanted, said = (part.strip() for part in choice.split("|"))
    for name, _, size in (each.partition(":") for each in files.split()):
        for number in "0123" if "%" in name else "0":
            put(tmp_path / name.replace("%", number), int(size) if size.isdigit() else 9)
            if size in ("R", "Z"):
                data = framed(bytes(20)) * 3
                (tmp_path / name.replace("%", number)).write_bytes(gzip.compress(data) if size == "Z" else data)
    settings = [
        "dataset.source=folder",
        f"dataset.data_folder={tmp_path}",
        *(f"dataset.{word}" for word in words.split()),
    ]
    if wanted == "refused":
        with pytest.raises(UserError, match=said):
            load(settings)
        return
    workload = load(settings)
    run = inspect(workload.dataset)  # as the run does, by the settings found
    spec, names = run.spec, run.train.names or ()
    assert spec == workload.dataset
    samples = f"x{spec.num_samples_per_file}" * (spec.num_samples_per_file > 1)
    chosen = dict.fromkeys(re.sub(r"(?<![a-z0-9])[0-3](?!\d)|(?<=0000)[0-3]", "%", name) for name in names)
    assert f"{spec.format} {len(names)}{samples}: {' '.join(chosen)}" == wanted
    assert re.search(said, "\n".join(workload.notes[1:])) if said else "one sample" not in "".join(workload.notes)


@pytest.mark.parametrize(("make", "walks"), [(shards, webdataset), (records, tfrecord)])
def test_headers_are_read_once_and_by_no_other_process(
    make: Make, walks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that looks for them makes a request for each record, which no training job makes."""
    make(tmp_path)

    found = inspect(own(tmp_path))
    monkeypatch.setattr(walks.Format, "offsets", Mock(side_effect=AssertionError("the headers are read again")))
    format_base._offsets_of_files.clear()
    assert read_all(pickle.loads(pickle.dumps(found)))[0].app_bytes > 0.3 * found.total_bytes


@pytest.mark.parametrize("group", [7, 20, 1000])
def test_a_batch_of_tables_with_small_row_groups_has_room(group: int, tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for shard in range(3):
        table = arrow.table({"image": [bytes(1000 + number) for number in range(90)]})
        parquet.write_table(table, tmp_path / f"{shard}.parquet", row_group_size=group, compression="none")
    spec = inspect_own_folder(own(tmp_path), FOLDERS).spec
    assert spec.parquet.row_group_size == min(group, 90)
    found = inspect(spec)
    fetch = FetchSpec(found, found.train)
    room = memoryview(bytearray(fetch.slot_bytes(64)))
    fetcher = Fetcher(fetch)
    read = sum(fetcher.fetch(list(range(first, first + 64)), room).app_bytes for first in range(0, 256, 64))
    assert 256 * 1000 < read < found.total_bytes


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize(("make", "most"), [(shards, 2), (records, 2), (tables, 4)])
@pytest.mark.parametrize("folder", ["own", f"s3://{BUCKET}/own"])
def test_samples_of_objects_are_those_of_files(server: Any, make: Make, most: int, folder: str, tmp_path: Path) -> None:
    """They are counted before the run, by few requests, and no worker looks for headers again."""
    make(tmp_path)
    local = inspect_own_folder(own(tmp_path), FOLDERS)
    server.objects = {f"own/{path.name}": path.read_bytes() for path in tmp_path.iterdir()}
    storage = storage_of(server).spec
    objects = inspect_own_folder(replace(own(tmp_path), data_folder=folder), storage)
    assert objects.spec == replace(local.spec, data_folder=folder)
    assert objects.layout.names == local.layout.names
    of_each = Counter(request.key for request in server.requests if request.key)
    assert 0 < max(of_each.values()) <= most
    found = inspect(objects.spec, storage=storage)
    looked = len(server.requests)
    assert inspect(objects.spec, storage=storage).max_record_bytes == found.max_record_bytes
    again = Counter(each.key for each in server.requests[looked:] if each.key)
    assert max(again.values()) <= most, "their sizes are listed: no HEAD for each but the one that opens it"
    assert read_all(found, storage=storage)[0].app_bytes == read_all(inspect(local.spec))[0].app_bytes


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_members_with_long_names_are_samples_of_their_own(kind: int) -> None:
    """Their plain headers have only the first 100 characters, which here are the same."""
    out, folder = io.BytesIO(), "/".join(["a-folder-of-a-deep-tree"] * 5)
    with tarfile.open(fileobj=out, mode="w", format=kind) as tar:
        for number in range(3):
            for ending in ("jpg", "cls"):
                member = tarfile.TarInfo(f"{folder}/{number}.{ending}")
                member.size = 700 + number
                tar.addfile(member, io.BytesIO(bytes(member.size)))
    source = MemorySource(out.getvalue())
    source.path = f"s3://bucket/{kind}.tar"
    file = RecordInputs(source, 3, lambda _: None)
    records = TarRecords(file._replace(offsets=webdataset.Format().locate(file)))
    spans = [records.span(sample, 1) for sample in range(3)]
    assert [offset for offset, _ in spans[1:]] == [offset + size for offset, size in spans[:2]]
    assert sum(size for _, size in spans) <= source.size_bytes - len(TAIL)
    with pytest.raises(DatasetError, match="3"), reading("file.dat"):
        webdataset.Format().locate(file._replace(samples=4))


def test_a_changed_file_is_looked_at_again(tmp_path: Path) -> None:
    records(tmp_path)
    inspect(own(tmp_path))
    for path in tmp_path.iterdir():
        data = path.read_bytes()
        path.write_bytes(data[116:] + data[:116])  # the first record goes to the end
    found = inspect(own(tmp_path))
    assert read_all(found)[0].app_bytes > 0.3 * found.total_bytes, "by the offsets of today"


def test_of_many_files_the_short_ones_are_left_out(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"{number:03}.tfrecord").write_bytes(framed(bytes(100)) * (1 if number in (7, 299) else 3))
    found = inspect(own(tmp_path))
    assert (found.spec.num_files_train, found.spec.num_samples_per_file) == (298, 3)
    tarfile.open(tmp_path / "shard.tar", "w").close()
    with pytest.raises(DatasetError, match=r"shard\.tar holds no samples: move all such files away"):
        inspect_own_folder(own(tmp_path, format="webdataset"), FOLDERS)


@pytest.mark.parametrize("damaged", ["00.npz", "02.npz"])
def test_one_damaged_file_does_not_make_all_of_them_raw(damaged: str, tmp_path: Path) -> None:
    for number in range(3):
        np.savez(tmp_path / f"{number:02}.npz", x=np.zeros(99, np.uint8))
    os.truncate(tmp_path / damaged, 100)
    with pytest.raises(DatasetError, match=rf"{damaged}: at offset 100: no end.* move it away, or") as caught:
        inspect_own_folder(own(tmp_path), FOLDERS)
    assert "datagen" not in str(caught.value), "dlemu did not make it, and can't make it again"
    assert inspect_own_folder(own(tmp_path, format="raw"), FOLDERS).spec.format == "raw"


def test_what_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="holds no files"):
        inspect_own_folder(own(tmp_path), FOLDERS)
    put(tmp_path / "images" / "a.jpg", 10)
    for name in ("up", "again", "once-more"):  # files are at every second level only; 3^16 folders take days
        (tmp_path / "images" / name).symlink_to(tmp_path)
    with pytest.raises(UserError, match="remove the link that leads back up"):
        inspect_own_folder(own(tmp_path), FOLDERS)
    shutil.rmtree(tmp_path / "images")
    put(tmp_path / "1.dcm", 10)
    os.mkfifo(tmp_path / "2.dcm")
    with pytest.raises(DatasetError, match=r"2\.dcm: it is a pipe, wanted a regular file"):  # which is not waited for
        inspect_own_folder(own(tmp_path), FOLDERS)


def test_a_file_that_is_cut_off_is_the_users_own(tmp_path: Path) -> None:
    """Nobody is advised to delete it and to have dlemu make it again."""
    plain_arrays(tmp_path)
    found = inspect(own(tmp_path))
    os.truncate(tmp_path / "3.npy", 300)
    with pytest.raises(DatasetError, match=r"3\.npy.*the file is yours") as caught:
        read_all(found)
    assert "dlemu datagen" not in str(caught.value)


def test_tokens_in_flat_files_are_cut_into_samples_of_the_length_asked_for(tmp_path: Path) -> None:
    """As nanoGPT's train.bin: no index beside it, and what is left at its end belongs to no sample."""
    put(tmp_path / "train.bin", 41_000)
    for name in ("vocab.json", "a.idx", "b.idx", "c.idx"):
        put(tmp_path / name, 50)
    spec = own(tmp_path, format="mmap_indexed_binary", record_length_bytes=4099)
    for size, files, samples in ((20_500, 2, 5), (20_000, 1, 10)):  # of what reads equally many, that of more files
        put(tmp_path / "more.bin", size)
        seen = inspect_own_folder(spec, FOLDERS).spec
        assert (seen.num_files_train, seen.num_samples_per_file, seen.record_length_bytes) == (files, samples, 4099)
    found, data = inspect(spec), (tmp_path / "train.bin").read_bytes()
    result, read = fetched(FetchSpec(found, found.train), [9, 1])
    assert read == [data[9 * 4099 : 10 * 4099], data[4099 : 2 * 4099]]
    assert result.app_bytes == 2 * 4099
    with pytest.raises(DatasetError, match="no file has the 50000 bytes of a sample: set"):
        inspect_own_folder(replace(spec, record_length_bytes=50_000), FOLDERS)


def tar(sizes: Sequence[int] = (700,) * 6) -> bytearray:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for number, size in enumerate(sizes):
            member = tarfile.TarInfo(f"{number}.jpg")
            member.size, member.mtime = size, number
            archive.addfile(member, io.BytesIO(bytes(size)))
    return bytearray(out.getvalue()[: len(sizes) * 3 * BLOCK] + TAIL)


def outcome(data: bytearray, first: int, count: int, path: str) -> list[list[int]] | str:
    """Return what a run of samples gives: places in the file, or why there are none."""
    begin, whole = first * 3 * BLOCK, count * 3 * BLOCK
    records = TarRecords(RecordInputs(MemorySource(bytes(data), path), 6, lambda _: None))
    try:
        with reading(path):
            places = np.asarray(records.samples(first, count, memoryview(data)[begin : begin + whole], False))
    except DatasetError as error:
        return str(error).replace(path, "")
    places[:, 0] += begin
    in_file: list[list[int]] = places.tolist()
    return in_file


@pytest.mark.parametrize("field", [0, 124, 148, 156, 257, 511])
@pytest.mark.parametrize("summed", [True, False])
@pytest.mark.parametrize("value", [0, ord("3"), 255])
def test_a_changed_header_is_found_among_others(field: int, summed: bool, value: int) -> None:
    """As if each sample were read alone, whether the checksum is that of the change or not."""
    data, at = tar(), 4 * 3 * BLOCK
    data[at + field] = value
    if summed and not 148 <= field < 156:
        data[at + 148 : at + 156] = b" " * 8
        data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + BLOCK])
    path = f"s3://bucket/{field}-{summed}-{value}"
    alone = [outcome(data, number, 1, f"{path}-{number}") for number in range(6)]
    wanted = next((one for one in alone if isinstance(one, str)), [one[0] for one in alone])
    assert outcome(data, 0, 6, path) == wanted
