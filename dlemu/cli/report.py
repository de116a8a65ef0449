"""`dlemu report`: a page and pictures from results."""

from __future__ import annotations

import os

import click


@click.command(name="report", short_help="Make a page with figures from results.")
@click.argument("folders", nargs=-1, required=True, metavar="DIR...")
@click.option("--png", is_flag=True, help="Also write each figure as DIR/figures/NAME.png.")
@click.option("--svg", is_flag=True, help="Also write each figure as DIR/figures/NAME.svg.")
@click.option("--output", type=click.Path(dir_okay=False), help="Write the page here instead of DIR/report.html.")
def command(folders: tuple[str, ...], png: bool, svg: bool, output: str | None) -> None:
    """Make report.html from the folder of a result: one file with figures, tables and configuration, to send on.

    \b
    dlemu report results/unet3d/20260102-030405
    dlemu report results/unet3d/20260102-030405 --png --output drive-a.html

    The page loads nothing and runs no script; it reads well on a phone, in print, by day and by night. `dlemu train`
    makes it by itself (output.report=false leaves it out). Needs the extra `report`: pip install "dlemu[report]".

    Exit status: 0, or 2 when a folder holds no result.
    """
    from datagen.errors import UserError
    from dlemu.report.pages import write_page, write_pictures

    if output and len(folders) > 1:
        raise UserError(
            f"--output names one file, but {len(folders)} folders were given: name one folder, or leave it out"
        )
    for folder in folders:
        click.echo(f"report: {write_page(folder, output)}")
        beside = os.path.join(os.path.dirname(output) if output else folder, "figures")
        for kind in ("png",) * png + ("svg",) * svg:
            for path in write_pictures(folder, kind, beside):
                click.echo(f"figure: {path}")
