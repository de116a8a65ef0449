"""Packing for scripts and notebooks: what the command `dlemu pack` does, returned as a typed result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dlemu.api import main_thread, make_dataset, overrides_of
from dlemu.contrib.pack import run
from dlemu.contrib.pack.result import PackAnswer
from dlemu.contrib.pack.run import PackEvent
from dlemu.runner.events import ignore


def pack(
    overrides: Sequence[str] | Mapping[str, object] = (),
    /,
    *,
    config_dir: str | None = None,
    make: bool = False,
    on_progress: Callable[[PackEvent], None] | None = None,
    **settings: object,
) -> PackAnswer:
    """Pack images into few large files: `dlemu pack`. Lists hold several values to measure: `processes=[1, 2, 4]`.

    `make` makes a workload's images first, or those that are missing. Raises UserError, DlemuError.
    """
    values = overrides_of(overrides, settings, several=True)
    made = make_dataset if make else None
    with main_thread("pack"):
        return run.pack(values, config_dir=config_dir, make=made, on_event=on_progress or ignore)
