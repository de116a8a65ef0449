"""The workloads that are held beside plain reads and a peer: each format at its real record size."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.figure import Wanted, ratio_at_least, ratio_at_most

NEVER_SLOWER = ratio_at_least(1)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One dataset and one way to read it. Nothing computes, and the dataset lies in the page cache."""

    workload: str = "default"
    """Whose columns are read, where the format has them."""
    format: str
    files: int
    samples_per_file: int = 1
    record_bytes: int = 0
    """0: as the workload's columns add up to."""
    resize_bytes: int = 0
    batch_size: int
    read_threads: int
    loader: str = "pytorch"
    peer_loader: str = ""
    """The peer's loader where it has not the one that dlemu uses; it is the same where this is empty."""
    epochs: int
    """Of the longer run; the shorter one has two, and their difference is free of start-up."""
    peer_epochs: int = 0
    """Of the peer's longer run, where so many would take it hours; 0: as many as dlemu's."""
    quick_files: int = 8
    peer_speed: Wanted = NEVER_SLOWER
    """Of samples/s beside the peer's."""
    peer_cost: Wanted | None = None
    """Of CPU for each GB beside the peer's."""
    plain_speed: Wanted | None = None
    """Of samples/s beside a plain read of the same bytes."""
    plain_cost: Wanted | None = None
    """Of CPU for each GB beside a plain read of the same files."""
    peer_making: Wanted | None = None
    """Of MB/s of datagen beside the peer's; None where another case makes the same."""
    making_files: int = 0
    """Files to make for that, where those to read are over in the time it takes to begin, or many; 0: as many."""

    @property
    def fills_places(self) -> bool:
        """Each file is read whole to its place in a batch."""
        return self.loader == "pytorch" and self.samples_per_file == 1 and not self.resize_bytes

    def dataset(self, quick: bool) -> dict[str, int | str]:
        """Return the settings of section `dataset`, which are the same for dlemu and the peer."""
        counts: dict[str, int | str] = {
            "format": self.format,
            "num_files_train": self.quick_files if quick else self.files,
            "num_samples_per_file": min(self.samples_per_file, 500) if quick else self.samples_per_file,
        }
        if not self.record_bytes:
            return counts
        return counts | {
            "record_length_bytes": min(self.record_bytes, 1_000_000) if quick else self.record_bytes,
            "record_length_bytes_resize": self.resize_bytes,
        }


_BERT = Case(
    format="tfrecord",
    files=4,
    samples_per_file=20_000,
    quick_files=2,
    record_bytes=2500,
    batch_size=48,
    read_threads=1,
    epochs=8,
)

CASES: dict[str, Case] = {
    "unet3d": Case(
        format="npz",
        files=4,
        record_bytes=146_600_628,
        resize_bytes=2_097_152,
        batch_size=2,
        read_threads=2,
        epochs=60,
        peer_epochs=14,
        peer_cost=ratio_at_most(1 / 2.5),
        plain_cost=ratio_at_most(1.5),
        peer_making=ratio_at_least(5),
    ),
    "hdf5": Case(
        format="hdf5",
        files=100,
        record_bytes=4_194_304,
        batch_size=4,
        read_threads=2,
        epochs=160,
        peer_epochs=40,
        peer_cost=ratio_at_most(1 / 2.5),
        plain_cost=ratio_at_most(1.5),
        peer_making=ratio_at_least(3),
    ),
    "retinanet": Case(
        format="jpeg",
        files=200,
        record_bytes=322_957,
        batch_size=24,
        read_threads=2,
        epochs=60,
        quick_files=48,
        peer_cost=ratio_at_most(1 / 10),
        peer_making=ratio_at_least(1),
    ),
    "png": Case(
        format="png",
        files=100,
        record_bytes=150_544,
        batch_size=10,
        read_threads=2,
        epochs=40,
        quick_files=20,
        peer_making=ratio_at_least(1),
    ),
    "resnet50": Case(
        format="tfrecord",
        files=16,
        samples_per_file=1251,
        record_bytes=114_660,
        resize_bytes=150_528,
        batch_size=100,
        read_threads=8,
        loader="tensorflow",
        epochs=9,
        peer_speed=ratio_at_least(1.5),
        peer_making=ratio_at_least(5),
    ),
    "cosmoflow": Case(
        format="tfrecord",
        files=100,
        record_bytes=2_828_486,
        batch_size=1,
        read_threads=4,
        loader="tensorflow",
        epochs=8,
        peer_speed=ratio_at_least(1.5),
        peer_making=ratio_at_least(5),
    ),
    "bert": replace(_BERT, loader="tensorflow", peer_speed=ratio_at_least(2)),
    "bert_pytorch": replace(_BERT, peer_loader="tensorflow", peer_speed=ratio_at_least(5)),
    "megatron": Case(
        format="mmap_indexed_binary",
        files=1,
        samples_per_file=5_000,  # DLIO's step takes the longer the more there are
        record_bytes=2048,
        batch_size=16,
        read_threads=1,
        epochs=60,
        peer_epochs=3,
        quick_files=1,
        peer_making=ratio_at_least(1),
        making_files=50,
    ),
    "flux": Case(
        workload="flux",
        format="parquet",
        files=2,
        samples_per_file=96,
        batch_size=48,
        read_threads=2,
        epochs=8,
        quick_files=1,
        peer_making=ratio_at_least(1),
    ),
    "dlrm": Case(
        workload="dlrm",
        format="parquet",
        files=4,
        samples_per_file=393_216,  # 96 steps an epoch, of less than 1 ms each
        batch_size=16_384,
        read_threads=2,
        epochs=20,
        quick_files=80,
        plain_speed=ratio_at_least(0.6),
        peer_making=ratio_at_least(1),
        making_files=1,
    ),
}
"""Name -> case. Record sizes are the workloads' own; files, batches and threads are as few as a short run asks for."""
