"""The traits of the `dali` loader, which every command may read; DALI itself is imported with the `Loader`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlemu.contrib.dali import depths
from dlemu.extend import LoaderTraits, loader_base

if TYPE_CHECKING:
    from dlemu.contrib.dali.loader import Loader as Loader

_RANK_BYTES = 32 << 20  # private memory of a rank besides its buffers, if it is forked after the import of DALI 2.4
_BATCHES_HELD = 6  # batches in memory besides those in DALI's queues, as measured with npy; the trainer holds two


class Traits(LoaderTraits):
    """DALI opens and reads every file itself."""

    framework = "DALI"
    packages = ("nvidia-dali-cuda130",)
    module = "nvidia.dali"
    extra = "dali"
    formats = ("jpeg", "npy", "png")
    direct_formats = ("npy",)  # `use_o_direct` of its reader
    pins = False

    def reads_files(self, dataset_format: str) -> bool:
        return True

    def batches_ahead(self, spec: loader_base.LoaderSpec) -> int:
        return sum(depths(spec))

    def rank_bytes(self, spec: loader_base.LoaderSpec) -> int:
        """Return the memory of a rank: batches x (bytes as read + bytes of a decoded or cropped copy) + _RANK_BYTES."""
        phase = spec.phases["train"]
        sample_bytes = phase.fetch.place_bytes
        # Samples that are neither cropped nor decoded are delivered as they were read, without a copy.
        copy_bytes = phase.fetch.resize_bytes or (sample_bytes if phase.fetch.decode == "full" else 0)
        batches = self.batches_ahead(spec) + _BATCHES_HELD
        return batches * phase.batch_size * (sample_bytes + copy_bytes) + _RANK_BYTES


def __getattr__(name: str) -> Any:
    """Import the `Loader`, and with it DALI, on first use."""
    if name != "Loader":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dlemu.contrib.dali.loader import Loader

    return Loader
