"""PyTorch's own DataLoader: worker processes, prefetch, persistent workers, reading by dlemu's `BatchMaker`.

Here is what it does; PyTorch is imported with the `Loader`, which is `_torch_loader`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from datagen.extras import library
from dlemu.loaders.traits_base import LoaderTraits

if TYPE_CHECKING:
    from dlemu.loaders._torch_loader import Loader as Loader


class Traits(LoaderTraits):
    """The traits that all loaders have whose workers read by `BatchMaker`."""

    framework = "PyTorch"
    packages = ("torch",)
    extra = "torch"
    in_turn = True


def __getattr__(name: str) -> Any:
    """Import the `Loader`, and PyTorch with it, once it is requested."""
    if name != "Loader":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    library("torch", Traits.extra, "reader.data_loader=pytorch")
    from dlemu.loaders._torch_loader import Loader

    return Loader
