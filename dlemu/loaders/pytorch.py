"""PyTorch's DataLoader: persistent worker processes that prefetch batches, and read by dlemu's `BatchMaker`.

Only the traits are here; the `Loader`, which imports PyTorch, is in `_torch_loader`.
"""

from __future__ import annotations

from typing import Any

from datagen.registry import library
from dlemu.loaders.traits_base import LoaderTraits


class Traits(LoaderTraits):
    framework = "PyTorch"
    packages = ("torch",)
    module = "torch"
    extra = "torch"
    in_turn = True
    collates = True


def __getattr__(name: str) -> Any:
    """Import the `Loader`, and PyTorch with it, once it is requested."""
    if name != "Loader":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    library("torch", Traits.extra, "reader.data_loader=pytorch")
    from dlemu.loaders._torch_loader import Loader

    return Loader
