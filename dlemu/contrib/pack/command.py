"""`dlemu pack`: pack many images into a few large files, and report what limits it."""

from __future__ import annotations

from functools import partial

import click

from dlemu.cli.options import answer_options, config_dir_option, making


@click.command(name="pack", short_help="Pack images into a few large files, and report what limits it.")
@click.argument("overrides", nargs=-1, metavar="[verify] [KEY=VALUE[,VALUE]...]...")
@config_dir_option
@making("images of the workload")
@click.option("--report/--no-report", default=True, show_default=True, help="Make report.html too.")
@answer_options("pack.json, or what `verify` found")
def command(
    overrides: tuple[str, ...], config_dir: str | None, make: bool, yes: bool, report: bool, as_json: bool
) -> None:
    """Pack images: read, decode, rescale, encode and write them, with several processes.

    \b
    dlemu pack source=/mnt/images target=/mnt/packed processes=8 resize=256 encode=jpeg
    dlemu pack source=/mnt/images target=/mnt/packed processes=8 format=webdataset
    dlemu pack verify target=/mnt/packed [storage.storage_type=s3 ...]
    dlemu pack workload=colfax scale=laptop drives=/mnt/ssd,/mnt/disk processes=1,2,4,8 resize=256x256 --make

    The source is a folder of images with any names (jpeg, png, tiff, npy; without resize, files of any type), or a
    workload's dataset. Formats: tfrecord, webdataset, parquet, npz. The last line says how to train on packed files.
    Several values are a sweep: each point packs into its own folder, which is removed afterwards (keep=true keeps it).
    When interrupted, the same command continues after the finished files; for a sweep, add output.folder=FOLDER.
    All keys: docs/packing.md.

    Exit status: 0 packed (verify: all is right), 2 a usage error or a damaged image (verify: something is wrong),
    3 a point of a sweep failed, 128 + signal.
    """
    import signal

    from rich.console import Console

    from dlemu.cli import complain
    from dlemu.cli.frontends import make_here
    from dlemu.cli.interruption import interrupted
    from dlemu.cli.options import show_answer
    from dlemu.contrib.pack.page import PackShown
    from dlemu.contrib.pack.run import PackEvent, pack
    from dlemu.extend import Interrupted, RunsPlanned, interrupt_on

    if overrides[:1] == ("verify",):
        raise SystemExit(_verify(overrides[1:], as_json=as_json))
    made = partial(make_here, as_json=as_json, yes=yes) if make else None
    shown = PackShown(Console(stderr=True))

    def watch(event: PackEvent) -> None:
        if isinstance(event, RunsPlanned):
            interrupt_on(signal.SIGINT, signal.SIGTERM)
        shown(event)

    try:
        answer = pack(overrides, config_dir=config_dir, make=made, on_event=watch)
    except Interrupted as stop:
        if shown.points > 1:
            raise SystemExit(interrupted(stop, "finished points", shown.folder)) from None
        name = signal.Signals(stop.signal_number).name
        complain(f"interrupted by {name}; files that are finished are kept: the same command continues with them")
        raise SystemExit(stop.exit_status) from None
    show_answer(answer, shown.folder, "pack", as_json=as_json, page=report)
    raise SystemExit(answer.exit_status)


def _verify(words: tuple[str, ...], *, as_json: bool) -> int:
    """Compare packed files with what was written; return the exit status."""
    from dlemu.config import load
    from dlemu.config.overrides import take_word
    from dlemu.contrib.pack.packed_set import verify_set
    from dlemu.extend import UserError, open_storage
    from dlemu.results.answer_files import to_json

    target, others = take_word(words, "target")
    if not target or not all(word.startswith("storage.") for word in others):
        raise UserError(
            "wanted only the folder of the packed files, as in `dlemu pack verify target=/mnt/packed`, and for a "
            "bucket the settings of its storage (storage.storage_type=s3 ...)"
        )
    findings = verify_set(target.rstrip("/"), open_storage(load(others).storage_spec.buffered))
    if as_json:
        click.echo(to_json(findings), nl=False)
    elif not findings:
        click.echo(f"{target}: every byte is as it was written")
    else:
        for finding in findings:
            click.echo(f"{finding.severity} {finding.kind} {finding.path}: {finding.message}")
    return 2 if findings else 0
