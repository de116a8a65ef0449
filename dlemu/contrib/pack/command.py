"""`dlemu pack`: pack many images into a few large files, and report what limits it."""

from __future__ import annotations

from functools import partial

import click

from dlemu.cli.options import answer_options, config_dir_option, making


@click.command(name="pack", short_help="Pack images into a few large files, and report what limits it.")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE[,VALUE]...]...")
@config_dir_option
@making("images of the workload")
@click.option("--report/--no-report", default=True, show_default=True, help="Make report.html too.")
@answer_options("pack.json")
def command(
    overrides: tuple[str, ...], config_dir: str | None, make: bool, yes: bool, report: bool, as_json: bool
) -> None:
    """Pack images: read, decode, rescale, encode and write them, with several processes.

    \b
    dlemu pack source=/mnt/images target=/mnt/packed processes=8 resize=256 encode=jpeg
    dlemu pack source=/mnt/images target=/mnt/packed processes=8 format=webdataset
    dlemu pack workload=colfax scale=laptop drives=/mnt/ssd,/mnt/disk processes=1,2,4,8 resize=256x256 --make

    The source is a folder of images with any names (jpeg, png, tiff; without resize, files of any type), or a
    workload's dataset. The last line says how to train on packed files. Several values are a sweep: each point packs
    into its own folder, which is removed afterwards. When interrupted, the same command continues after the finished
    files; for a sweep, add output.folder=FOLDER. All keys: docs/packing.md.

    Exit status: 0 packed, 2 a usage error or a damaged image, 3 a point of a sweep failed, 128 + signal.
    """
    from dlemu.cli.frontends import make_here
    from dlemu.cli.interruption import Watched
    from dlemu.cli.options import show_answer
    from dlemu.contrib.pack.api import pack_points

    made = partial(make_here, as_json=as_json, yes=yes) if make else None
    watched = Watched()
    with watched.keeping("finished files and points"):
        answer = pack_points(overrides, config_dir, made, watched)
    show_answer(answer, watched.folder, "pack", as_json=as_json, page=report)
    raise SystemExit(answer.exit_status)
