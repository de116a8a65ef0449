"""On each file system that this host can make: what is made is read, past the page cache or evicted, and proved so.

The kernel of one host tells of its own file systems alone; which of them were seen stands in docs/reliability.md.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from datagen.buffers import AlignedBuffer
from datagen.errors import DatasetError
from datagen.fetch import Fetcher, FetchSpec
from datagen.inspection import inspect
from datagen.storage.storage_base import FOLDERS, StorageSpec, open_storage, read_in_transfers
from datagen.verify import verify
from dlemu.machine.environment import describe_folder
from tests.datasets import make_dataset
from tests.e2e.harness import DLEMU, dlemu, small_run, start, summary, wait

pytestmark = [pytest.mark.slow, pytest.mark.root]

SCRIPTS = Path(__file__).parents[2] / "scripts"
IMAGE_BYTES = 512 << 20  # less than 300 MiB xfs does not take; it is a sparse file
MADE_BY = {"ext4": ("mkfs.ext4", "-q"), "xfs": ("mkfs.xfs", "-q"), "btrfs": ("mkfs.btrfs", "-q")}
KINDS = ("ext4", "ext4 on blocks of 4096 bytes", "xfs", "btrfs", "overlay", "fuse")
ODD_SIZES = (1, 511, 513, 4095, 4096, 4097, 12_289, 1_000_001)


@dataclass(frozen=True)
class Place:
    kind: str
    """As /proc/mounts has it."""
    folder: Path
    """Where files are made."""
    seen_at: Path
    """Where they are read: elsewhere on a file system that only shows them."""

    @property
    def accounts(self) -> bool:
        return self.folder == self.seen_at


@contextlib.contextmanager
def mounted(folder: Path, argv: list[str], image: Path | None = None) -> Iterator[Path]:
    """Mount something below a folder; it goes, whatever becomes of this process."""
    janitors = importlib.import_module("validation.janitor")
    mount = folder / "mount"
    mount.mkdir(parents=True)
    with janitors.cleaned(janitors.Traces(folder=str(folder), mount=str(mount), image=str(image or ""))) as janitor:
        if image is not None:
            janitor.run("truncate", f"--size={IMAGE_BYTES}", str(image))
        try:
            janitor.run("sh", "-ec", " ".join(argv), "sh", str(mount), str(image or ""))
        except subprocess.CalledProcessError as error:
            pytest.skip(f"it can't be made here: {error.stderr.strip()}")
        yield mount


def on_a_device(kind: str, folder: Path, *, sector_bytes: int = 512) -> contextlib.AbstractContextManager[Path]:
    """Mount a new file system on a loop device of such sectors."""
    program, *options = MADE_BY[kind]
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not here")
    argv = [
        f'device=$(losetup --find --show --sector-size {sector_bytes} "$2");',
        f'{program} {" ".join(options)} "$device";',
        'mount -o noatime "$device" "$1"',
    ]
    return mounted(folder, argv, folder.parent / f"{folder.name}.img")


@pytest.fixture(scope="module", params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if os.geteuid() != 0:
        pytest.skip("making and mounting a file system needs root")
    below: Path = tmp_path_factory.mktemp("file-system")
    kind = str(request.param)
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.syspath_prepend(str(SCRIPTS))
        patch.setenv("PYTHONPATH", str(SCRIPTS), prepend=os.pathsep)
        if kind in MADE_BY:
            mount = stack.enter_context(on_a_device(kind, below / "own"))
            yield Place(kind, mount, mount)
            return
        sector_bytes = 4096 if "4096" in kind else 512
        mount = stack.enter_context(on_a_device("ext4", below / "own", sector_bytes=sector_bytes))
        if kind == "overlay":
            for name in ("lower", "upper", "work"):
                (mount / name).mkdir()
            layers = ",".join(f"{name}dir={mount}/{name}" for name in ("lower", "upper", "work"))
            top = stack.enter_context(mounted(below / "top", [f'mount -t overlay overlay -o {layers} "$1"']))
            yield Place(kind, top, top)
        elif kind == "fuse":
            latency = importlib.import_module("validation.latency")
            reason = latency.why_no_model()
            if reason:
                pytest.skip(reason)
            yield Place(kind, mount, Path(stack.enter_context(latency.model_mounted(str(mount), 0.0, 16))))
        else:
            assert _block_bytes(mount) == 4096
            yield Place("ext4", mount, mount)


def _block_bytes(mount: Path) -> int:
    """Return the size of the logical blocks of the device below."""
    device = os.path.basename(describe_folder(str(mount)).device)
    return int(Path(f"/sys/block/{device}/queue/logical_block_size").read_text())


def served_by_server(mount: Path) -> int:
    """Return the bytes that the program behind a FUSE mount has read so far."""
    (server,) = (each for each in psutil.process_iter() if str(mount) in _command(each))
    return int(server.io_counters().read_chars)


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_a_run_says_whether_storage_or_memory_served_it(place: Place, tmp_path: Path) -> None:
    """Evicted at its start: the first epoch comes from storage, the second from memory. FUSE is evicted before both."""
    assert place.kind in describe_folder(str(place.seen_at)).file_system
    data = place.folder / "run"
    spec = make_dataset(data, num_files_train=48, record_length_bytes=20_000, record_length_bytes_stdev=5_000)
    assert verify(spec) == []
    when = "start" if place.accounts else "epochs"
    changes = (f"reader.evict_page_cache={when}", "ranks=1")
    seen = place.seen_at / "run"
    before = 0 if place.accounts else served_by_server(place.seen_at)
    (ran := dlemu("train", *small_run(tmp_path / "run", seen, *changes))).assert_ran()
    told = summary(tmp_path / "run")
    on_disk = sum(path.stat().st_size for path in (data / "train").iterdir())
    assert told["metrics"]["app_bytes"] == pytest.approx(2 * on_disk, rel=1e-3), "np.load leaves out gaps of a zip"
    assert place.kind in told["environment"]["storage"]["file_system"]
    shares = told["page_cache"]["from_storage_percent"]["per_epoch"]
    if place.accounts:
        assert shares[0] >= 99
        assert shares[1] < 50, "a host may take pages back meanwhile, if only some"
        assert "of it from memory" in ran.out or "MEASURED MEMORY, NOT STORAGE" in ran.out
        assert ("page_cache", "loud") in [(one["code"], one["severity"]) for one in told["findings"]]
    else:
        assert shares == [None, None]
        assert 2 * on_disk <= served_by_server(place.seen_at) - before < 3 * on_disk


def test_files_of_odd_sizes_are_read_past_the_page_cache_to_their_last_byte(place: Place) -> None:
    folder = place.folder / "odd"
    folder.mkdir()
    direct, buffered = open_storage(StorageSpec(direct=True)), open_storage(FOLDERS)
    past = open_storage(StorageSpec(direct=True, direct_writes=True))
    data = os.urandom(max(ODD_SIZES))
    for size in ODD_SIZES:
        writer = (past if place.accounts else buffered).create(f"{folder}/{size}")
        block = AlignedBuffer().view(-(-size // 4096) * 4096)
        block[:size] = data[:size]
        writer.write(block[:size])
        writer.sync()
        writer.commit()
        assert (folder / str(size)).read_bytes() == data[:size]
        out = AlignedBuffer().view(len(block))
        reader = direct.open(f"{place.seen_at}/odd/{size}")
        for transfer_bytes in (0, 4096):
            out[:] = bytes(len(out))
            assert read_in_transfers(reader, out, 0, transfer_bytes) == size
            assert bytes(out[:size]) == data[:size]
        if size > 4096:
            assert read_in_transfers(reader, out[: len(out) - 4096], 4096, 0) == size - 4096
            assert bytes(out[: size - 4096]) == data[4096:size]
        assert reader.size_bytes == size
        reader.close()


def by_another_process(program: str, *arguments: object) -> None:
    subprocess.run([sys.executable, "-c", program, *map(str, arguments)], check=True)


CHANGES = {
    "cut short": "os.truncate(file, os.path.getsize(file) // 2)",
    "emptied": "os.truncate(file, 0)",
    "renamed": "os.rename(file, file + '.aside')",
    "written over": "open(file, 'r+b').write(os.urandom(os.path.getsize(file)))",
    "replaced by another": "os.link(other, other + '.x'); os.rename(other + '.x', file)",
}


@pytest.mark.parametrize("direct", [False, True], ids=["cached", "direct"])
def test_a_file_that_another_process_changes_meanwhile_is_named(place: Place, direct: bool) -> None:
    if not place.accounts:
        pytest.skip("this mount only shows files; what it shows is up to its server's cache")
    folder = place.folder / f"changed-{direct}"
    spec = make_dataset(folder, num_files_train=8, record_length_bytes=200_000)
    assert verify(spec) == []
    found = inspect(spec)
    fetch = FetchSpec(found, found.train, storage=StorageSpec(direct=direct), verify=True)
    fetcher, out = Fetcher(fetch), AlignedBuffer().view(fetch.slot_bytes(1))
    paths = [Path(found.train.path(file)) for file in range(8)]
    kept = paths[3].read_bytes()
    for change in CHANGES.values():
        assert fetcher.fetch([3], out).app_bytes == len(kept)
        by_another_process(f"import os, sys; file, other = sys.argv[1:]; {change}", paths[3], paths[5])
        with pytest.raises(DatasetError, match=re.escape(str(paths[3]))):
            fetcher.fetch([3], out)
        assert fetcher.fetch([4], out).app_bytes == paths[4].stat().st_size
        paths[3].unlink(missing_ok=True)
        paths[3].write_bytes(kept)
    by_another_process("import os, sys; open(sys.argv[1], 'ab').write(bytes(9999))", paths[3])
    with contextlib.suppress(DatasetError):  # of one that only grew the sample may still be right, and is compared
        assert fetcher.fetch([3], out).app_bytes == len(kept) + 9999, "what is read is counted"


@pytest.mark.parametrize("where", ["elsewhere", "behind a link"])
def test_a_mount_whose_name_is_no_text_ends_nothing(where: str, tmp_path: Path) -> None:
    """Any on the host is in the kernel's lists; also that of the dataset and of the results."""
    odd, plain = tmp_path / "odd\udce4", tmp_path / "plain"
    odd.mkdir()
    plain.mkdir()
    (tmp_path / "link").symlink_to(odd)
    top = plain if where == "elsewhere" else tmp_path / "link"
    few = ("train.epochs=1", "workflow.generate_data=true", "ranks=1")
    words = ["train", *small_run(top / "run", top / "data", *few)]
    script = 'mount -t tmpfs tmpfs "$0"; "$@"'
    wait(start("-ec", script, str(odd), DLEMU, *words, launcher=("unshare", "-m"), program="sh")).assert_ran()
