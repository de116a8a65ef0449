"""`dlemu pack`: make large files of many images, and say what that asks of the storage."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dlemu.config.schema import Workload


@click.command(name="pack", short_help="Pack images into few large files, and say what limits that.")
@click.argument("overrides", nargs=-1, metavar="[verify] [KEY=VALUE[,VALUE]...]...")
@click.option("--config-dir", "-cd", help="A folder with workload/NAME.yaml of your own, or DLIO's.")
@click.option("--make", is_flag=True, help="Make the workload's images first, or what is missing of them.")
@click.option("--report/--no-report", default=True, show_default=True, help="Make report.html too.")
def command(overrides: tuple[str, ...], config_dir: str | None, make: bool, report: bool) -> None:
    """Pack images: read, decode, rescale, encode and write them, with so many processes.

    \b
    dlemu pack source=/mnt/images target=/mnt/packed processes=8 resize=256 encode=jpeg
    dlemu pack source=/mnt/images target=/mnt/packed processes=8 format=webdataset
    dlemu pack verify target=/mnt/packed
    dlemu pack workload=colfax scale=laptop drives=/mnt/ssd,/mnt/disk processes=1,2,4,8 resize=256x256 --make

    The source is a folder of images of any names (jpeg, png, tiff, npy; of any files without resize), or a workload's
    dataset. Formats: tfrecord, webdataset, parquet, npz. A line at the end says how to train on what was packed.
    Several values are a sweep: each point packs into a folder of its own, which is removed again (keep=true keeps it).
    When interrupted, the same command goes on with the files that are finished; a sweep with output.folder=FOLDER.
    All keys: docs/packing.md.

    Exit status: 0 packed (verify: nothing wrong), 2 a usage error or a damaged image (verify: something is wrong),
    3 a point of several failed, 128 + signal.
    """
    from rich.console import Console

    from dlemu.cli.again import heed_signals
    from dlemu.cli.options import report_result
    from dlemu.comm import Interrupted
    from dlemu.packing.run_pack import PackBegan, PackEvent, pack
    from dlemu.report.pack_report import PackShown, print_pack

    if overrides[:1] == ("verify",):
        raise SystemExit(_verify(overrides[1:]))
    shown = PackShown(Console(stderr=True))

    def watch(event: PackEvent) -> None:
        if isinstance(event, PackBegan):
            heed_signals()
        shown(event)

    try:
        answer = pack(overrides, config_dir=config_dir, make=_make if make else None, on_event=watch)
    except Interrupted as stop:
        raise SystemExit(_interrupted(stop, shown.folder, several=shown.points > 1)) from None
    print_pack(answer, shown.folder, Console())
    report_result(report, shown.folder)
    raise SystemExit(answer.exit_status)


def _interrupted(stop: object, folder: str, *, several: bool) -> int:
    import signal

    from dlemu.cli import complain
    from dlemu.cli.again import interrupted
    from dlemu.comm import Interrupted

    assert isinstance(stop, Interrupted)
    if several:
        return interrupted(stop, "finished points", folder)
    name = signal.Signals(stop.signal_number).name
    complain(f"interrupted by {name}; files that are finished are kept: the same command goes on with them")
    return stop.exit_status


def _verify(words: tuple[str, ...]) -> int:
    """Compare packed files with what was written; return the exit status."""
    from datagen.errors import UserError
    from datagen.packing.packed_set import verify_set
    from datagen.storage.storage_base import FOLDERS, open_storage
    from dlemu.sizing.prerequisites import take_word

    target, others = take_word(words, "target")
    if not target or others:
        raise UserError("wanted the folder of a packed set alone, as in `dlemu pack verify target=/mnt/packed`")
    findings = verify_set(target.rstrip("/"), open_storage(FOLDERS))
    for finding in findings:
        click.echo(f"{finding.severity} {finding.kind} {finding.path}: {finding.message}")
    if not findings:
        click.echo(f"{target}: every byte is as it was written")
    return 2 if findings else 0


def _make(workload: Workload) -> None:
    from dlemu.cli.frontends import TerminalFrontend
    from dlemu.run.datasets import make_on_this_host

    make_on_this_host(workload, len(os.sched_getaffinity(0)), TerminalFrontend([], None).tell, fsync=True)
