"""`dlemu report`: make a page and figures from results."""

from __future__ import annotations

import os

import click

from dlemu.cli.options import DETAILS, details_option, show


@click.command(name="report")
@click.argument("folders", nargs=-1, required=True, metavar="DIR...", type=click.Path(file_okay=False))
@click.option("--png", is_flag=True, help="Also write each figure to figures/NAME.png next to the page.")
@click.option("--svg", is_flag=True, help="Also write each figure to figures/NAME.svg next to the page.")
@click.option("--output", type=click.Path(dir_okay=False), help="Write the page here.")
@details_option
def command(folders: tuple[str, ...], png: bool, svg: bool, output: str | None) -> None:
    """Make report.html from a result: a single file with figures, tables and configuration, to share.

    \b
    dlemu report results/unet3d/20260102-030405-4711
    dlemu report results/unet3d/2026*                      # a page each; `dlemu compare` shows two side by side

    DIR is a result's folder, such as one of train, size, sweep or compare. Without --output it
    gets DIR/report.html.

    The page loads nothing and runs no script; it works on a phone, in print, in light and dark mode. `dlemu train`
    makes it automatically unless output.report=false. Needs the extra `report`: pip install "dlemu[report]".

    Exit status: 0, or 2 when a folder holds no result.
    """
    import signal

    from dlemu.comm import interrupt_on
    from dlemu.results.kinds import kind_named, kind_of, read_result

    interrupt_on(signal.SIGTERM)
    if output and len(folders) > 1:
        raise click.UsageError("--output is for a single DIR; `dlemu compare` shows two of them side by side")
    if click.get_current_context().meta[DETAILS]:
        for folder in folders:
            answer = read_result(folder)
            show((kind_of(folder) or kind_named("training")).name, getattr(answer, "summary", answer), folder)
    from dlemu.studies.pages import write_page, write_pictures

    for folder in folders:
        page = write_page(folder, output)
        click.echo(f"report: {page}")
        for kind in ("png",) * png + ("svg",) * svg:
            for path in write_pictures(folder, kind, os.path.join(os.path.dirname(page), "figures")):
                click.echo(f"figure: {path}")
