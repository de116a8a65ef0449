"""`dlemu report`: make a page and figures from results."""

from __future__ import annotations

import os
import shlex
import sys

import click

from dlemu.cli.options import answer_options, show


@click.command(name="report")
@click.argument("folders", nargs=-1, required=True, metavar="DIR...", type=click.Path(file_okay=False))
@click.option("--png", is_flag=True, help="Also write each figure to figures/NAME.png next to the page.")
@click.option("--svg", is_flag=True, help="Also write each figure to figures/NAME.svg next to the page.")
@click.option("--output", type=click.Path(dir_okay=False), help="Write the page here.")
@click.option("--remove-unfinished", is_flag=True, help="Remove what a killed run left of a checkpoint; do not prompt.")
@answer_options("summary.json")
def command(
    folders: tuple[str, ...], png: bool, svg: bool, output: str | None, remove_unfinished: bool, as_json: bool
) -> None:
    """Make report.html from a result: a single file with figures, tables and configuration, to share.

    \b
    dlemu report results/unet3d/20260102-030405-4711
    dlemu report results/unet3d/2026*                      # a page each; `dlemu compare` shows two side by side

    DIR is a result's folder, such as one of train, size, sweep or compare. Without --output it gets DIR/report.html.

    The page loads nothing and runs no script; it works on a phone, in print, in light and dark mode. `dlemu train`
    makes it automatically unless output.report=false. Needs the extra `report`: pip install "dlemu[report]".

    Of a run that was killed it shows what was measured until then, names what is left of an unfinished checkpoint,
    and offers to remove it. With --json no page is made.

    Exit status: 0, or 2 when a folder holds no result; with --json 3 for a run that is not complete.
    """
    import signal

    from datagen.errors import DlemuError
    from dlemu.ranks import interrupt_on
    from dlemu.results.answer_files import to_json
    from dlemu.results.kinds import kind_or_training, read_result

    interrupt_on(signal.SIGTERM)
    if len(folders) > 1 and (output or as_json):
        raise click.UsageError("--output and --json take a single DIR; `dlemu compare` shows two side by side")
    for folder in folders:
        _handle_unfinished_checkpoint(folder, remove=remove_unfinished, may_prompt=not as_json)
    if as_json:
        answer = read_result(folders[0])
        summary = getattr(answer, "summary", answer)
        click.echo(to_json(summary), nl=False)
        raise SystemExit(0 if summary.complete else DlemuError.exit_status)
    from dlemu.report.page import write_page, write_pictures

    formats = [name for name, is_wanted in (("png", png), ("svg", svg)) if is_wanted]
    for folder in folders:
        page = write_page(folder, output)
        answer = read_result(folder)
        show(kind_or_training(folder).name, getattr(answer, "summary", answer), folder)
        click.echo(f"report: {page}")
        for file_format in formats:
            for path in write_pictures(folder, file_format, os.path.join(os.path.dirname(page), "figures")):
                click.echo(f"figure: {path}")


def _handle_unfinished_checkpoint(folder: str, *, remove: bool, may_prompt: bool) -> None:
    """Name on stderr the unfinished checkpoint of a killed run; remove it if `remove`, or if the user agrees."""
    from datagen.errors import UserError
    from dlemu.results import FACTS, LIVE
    from dlemu.results.kinds import kind_of
    from dlemu.results.live import is_in_progress

    kind = kind_of(folder)
    if kind is None or not os.path.isfile(os.path.join(folder, LIVE, FACTS)) or is_in_progress(folder):
        return
    try:
        unfinished = kind.load_job().job.unfinished(folder)
        if unfinished is None:
            return
        click.echo(f"the killed run left {unfinished.what}", err=True)
        can_prompt = may_prompt and sys.stdin.isatty() and sys.stderr.isatty()
        if remove or (can_prompt and click.confirm("No rank of it runs on any host: remove this?", err=True)):
            unfinished.remove()
            click.echo("removed", err=True)
        else:
            click.echo(f"to remove it: dlemu report --remove-unfinished {shlex.quote(folder)}", err=True)
    except (OSError, UserError) as error:
        click.echo(f"what the killed run left in its storage can't be examined or removed: {error}", err=True)
