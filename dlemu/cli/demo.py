"""`dlemu demo`: a first run that needs no preparation."""

from __future__ import annotations

import contextlib
import os
import shlex
import tempfile
from collections.abc import Iterator

import click


@click.command(name="demo")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def command(overrides: tuple[str, ...]) -> None:
    """Train 18 emulated H100s with samples 1/256 of real size (1.4 GB), and report whether this host keeps them busy.

    \b
    dlemu demo
    dlemu demo accelerator=v100
    dlemu demo dataset.data_folder=/mnt/nvme/demo

    The dataset and the result are in a new folder in $TMPDIR, which is printed at the end and not removed. With
    dataset.data_folder the dataset is made there, or used if it exists already, and the result is in results/.
    The dataset fits in memory, which is allowed here (metric.cached=true): the demo measures this host, not storage.

    Exit status: that of `dlemu train`.
    """
    import importlib.util
    from dataclasses import replace

    from datagen.errors import UserError
    from dlemu.cli.frontends import Terminal, job_request, show_job
    from dlemu.config.overrides import given_keys, override
    from dlemu.ranks import detect_launcher

    if detect_launcher() != "none":
        raise UserError("the demo starts its ranks by itself: run `dlemu demo` without a launcher such as mpirun")
    given = given_keys(overrides)
    settings: dict[str, object] = {
        "workload": "unet3d",
        "scale": "laptop",
        "ranks": 18,
        "accelerator": "h100",
        "metric.cached": True,
    }
    if not importlib.util.find_spec("torch"):
        settings["reader.data_loader"] = "threads"
    with contextlib.ExitStack() as stack:
        if "dataset.data_folder" not in given:
            folder = stack.enter_context(_new_folder())
            settings["dataset.data_folder"] = os.path.join(folder, "data")
            settings["output.folder"] = os.path.join(folder, "result")
        words = [override((*key.split("."),), value) for key, value in settings.items() if key not in given]
        words += overrides
        # a dataset that is too small for a verdict is run, too: the demo needs none
        request = replace(job_request(words, None, make=True), wants_verdict=False)
        raise SystemExit(show_job(request, Terminal(words)))


@contextlib.contextmanager
def _new_folder() -> Iterator[str]:
    """Make a folder for the demo; print its name at the end, however it ends, or remove it if it is empty."""
    folder = tempfile.mkdtemp(prefix="dlemu-demo-")
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            os.rmdir(folder)
        if os.path.isdir(folder):
            click.echo(f"demo: everything is in {folder}; to remove it: rm -r {shlex.quote(folder)}")
